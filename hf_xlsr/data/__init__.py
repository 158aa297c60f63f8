"""Reading, cleaning, tokenising, mixing and batching of parallel and running text."""
