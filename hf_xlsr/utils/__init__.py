"""Helpers that every package may use."""

from __future__ import annotations
