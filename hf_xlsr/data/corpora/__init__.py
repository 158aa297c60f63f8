"""Named corpora: where their files come from and how they are read."""

from __future__ import annotations
