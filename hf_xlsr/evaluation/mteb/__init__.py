"""Evaluation by mteb: our encoders in its tasks, our protocols as its tasks, and its data as our rows."""

from __future__ import annotations

from hf_xlsr.utils.extras import require_package

require_package("mteb")
