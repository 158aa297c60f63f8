"""Invalid input of mining and scoring: an error that names it, before anything is encoded where possible."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from mining_fakes import SOURCE, TARGET, NumberEncoder

from hf_xlsr.mining import MiningOptions, mine_bitext, neighbours_both_ways, score_bitext
from hf_xlsr.mining.search.neighbours import nearest_neighbours
from hf_xlsr.utils.errors import XlsrError

EYE = np.eye(3)
ENCODER = NumberEncoder()
INVALID_OPTIONS: dict[str, Any] = {
    "k": 0,
    "margin": "ration",
    "retrieval": "best",
    "method": "hnsw",
    "memory": "4 apples",
    "duplicates": "x",
    "languages": ["en"],
    "max_pairs": 0,
    "device": "gpu9",
    "recall": 2,
}


def refusal(call: Callable[[], Any]) -> str:
    """The one line of the error."""
    with pytest.raises(XlsrError) as caught:
        call()

    message = str(caught.value)
    assert "\n" not in message
    return message


@pytest.mark.parametrize("name", INVALID_OPTIONS)
def test_invalid_option_is_named(name: str):
    assert name in refusal(lambda: MiningOptions(**{name: INVALID_OPTIONS[name]}))


def mine(source: Any, target: Any, **options: Any) -> Callable[[], Any]:
    return lambda: mine_bitext(source, target, **options)


def score(*sides: list[str], **options: Any) -> Callable[[], Any]:
    return lambda: score_bitext(*sides, encoder=ENCODER, **options)


@pytest.mark.parametrize(
    ("call", "key"),
    [
        (mine(SOURCE, TARGET), "encoder"),
        (mine(EYE, EYE, encoder=ENCODER), "encoder"),
        (mine(EYE, np.eye(4)), "3 and 4"),
        (mine(EYE, np.ones(3)), "target"),
        (mine(EYE, np.diag([1, np.nan, 1])), "row 1 of target"),
        (mine([], TARGET, encoder=ENCODER), "source"),
        (mine(SOURCE, TARGET, encoder="./none"), "./none"),
        (score(["en 1"], []), "1 and 0"),
        (score(["en 1", " "], ["fr 1", "fr 2"]), "source"),
        (lambda: neighbours_both_ways(np.diag([1, 2, -np.inf]), EYE), "row 2 of `source`"),
        (lambda: nearest_neighbours(EYE, np.eye(2)), "3 and 2"),
    ],
)
def test_invalid_input_is_named(call: Callable[[], Any], key: str):
    assert key in refusal(call)
