"""The model-card template, and a card for each recipe that has been trained."""

from __future__ import annotations
