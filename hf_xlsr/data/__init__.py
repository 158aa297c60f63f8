"""Reading, cleaning, tokenising, mixing and batching of parallel and running text."""

from __future__ import annotations
