"""A filter of given pairs: a small classifier that is trained on known pairs and damaged copies of them."""
