"""Model classes, one folder a method."""

from __future__ import annotations
