from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_xlsr.utils.errors import did_you_mean

names = st.text("abcdefgh_.", min_size=1, max_size=12)


@pytest.mark.parametrize(
    ("name", "known", "expected"),
    [
        ("temprature", ["width", "temperature"], "did you mean 'temperature'?"),
        ("model.wieght", ["loss.weight", "data.corpus"], "did you mean 'loss.weight'?"),
        ("train.seed", ["data.seed", "train.speed"], "did you mean 'train.speed'?"),  # the whole name first
        ("zzz", ["b", "a", "b"], "known are a, b."),
    ],
)
def test_nearest(name: str, known: list[str], expected: str) -> None:
    assert did_you_mean(name, known) == expected


@settings(max_examples=50)
@given(name=names, known=st.lists(names, min_size=1, max_size=6))
def test_known_names_are_offered(name: str, known: list[str]) -> None:
    sentence = did_you_mean(name, known)
    assert sentence == did_you_mean(name, reversed(known))
    if sentence.startswith("did you mean"):
        assert sentence[len("did you mean '") : -len("'?")] in known
    else:
        assert sentence == f"known are {', '.join(sorted(set(known)))}."
