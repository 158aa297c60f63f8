"""Evaluation by mteb: our encoders in its tasks."""

from __future__ import annotations
