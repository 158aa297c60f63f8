"""What cards of a run say beyond its recipe."""

from __future__ import annotations

from typing import Any

from hf_xlsr.encoders.heads import new_head

SETTINGS: dict[str, Any] = {
    "data": {"pairs": 27609, "vocab_size": 15389, "cleaning": {}, "labels": {}, "languages": []},
    "parameters": 5_100_000,
    "steps": 645,
    "dimension": 256,
    "seconds": {"training": 290.4},
    "device": "cpu",
    "processes": 1,
    "threads": 2,
    "precision": "bfloat16",
    "max_length": 77,
    "head": new_head(256),
}
