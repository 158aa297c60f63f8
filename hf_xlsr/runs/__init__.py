"""Training runs: recipes, run folders, methods, cards, and publishing."""
