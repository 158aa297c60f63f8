"""The `hf-xlsr` command."""

from __future__ import annotations

from hf_xlsr.cli.app import main

__all__ = ["main"]
