"""Readers of file formats."""

from __future__ import annotations
