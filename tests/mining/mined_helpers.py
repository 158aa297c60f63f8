"""Texts of two languages, their vectors, and what it is that two runs of mining found the same."""

from __future__ import annotations

import numpy as np
from mining_fakes import NumberEncoder, numbered

from hf_xlsr.encoders.encoding import embed
from hf_xlsr.mining.search.extraction import MinedBitext

SOURCE, TARGET = numbered("en", 60), numbered("fr", 50, start=20, seed=1)


def same(one: MinedBitext, other: MinedBitext) -> None:
    for name in ("source", "target", "score"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name))


def half(sentences: list[str]) -> np.ndarray:
    return embed(NumberEncoder(), sentences).astype(np.float16)
