"""Collators: from examples to padded batches."""

from __future__ import annotations
