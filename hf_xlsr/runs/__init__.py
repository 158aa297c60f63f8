"""Training runs: recipes, run folders, methods, cards, and publishing."""

from __future__ import annotations
