"""Model classes, one folder a method."""
