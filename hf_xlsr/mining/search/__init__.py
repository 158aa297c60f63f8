"""Nearest-neighbour search in both directions, margin scores, and extraction of pairs."""

from __future__ import annotations
