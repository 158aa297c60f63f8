"""`xsim` by hand and against a naive twin; xsim++: distractors by rules, and the search among them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from bitext_helpers import TableEncoder, cosines, noisy
from hypothesis import given
from hypothesis import strategies as st

from hf_xlsr.evaluation import distractors, xsim, xsim_pp
from hf_xlsr.utils.errors import XlsrError

LANGUAGES = ("en", "de")


def naive(similarities: np.ndarray, k: int, margin: str) -> float:
    """One source and one neighbour at a time, in float64."""
    forward = np.sort(similarities, axis=1)[:, ::-1][:, :k].mean(axis=1)
    backward = np.sort(similarities, axis=0)[::-1][:k].mean(axis=0)
    wrong = 0
    for i, row in enumerate(similarities):
        best, best_score = -1, -np.inf
        for j in np.argsort(-row, kind="stable")[:k]:
            average = (forward[i] + backward[j]) / 2
            score = {"ratio": row[j] / average, "distance": row[j] - average, "absolute": row[j]}[margin]
            if score > best_score:
                best, best_score = j, score
        wrong += best != i
    return wrong / len(similarities)


def test_hand_example():
    # Two sources, k 1. Both lie nearest to A, so A is the only neighbour of either: b is wrong whatever the margin.
    encoder = TableEncoder({"a": [1.0, 0.0], "b": [0.8, 0.6], "A": [0.96, 0.28], "B": [0.0, 1.0]})
    metrics = xsim(encoder, ["a", "b"], ["A", "B"], languages=LANGUAGES, name="toy", k=1)
    assert metrics == {"toy-xsim-k1-ratio/en-de/test/error": 0.5, "toy-xsim-k1-ratio/en-de/test/pairs": 2}
    # k 2. Cosines: a-A 0.96, a-B 0, b-A 0.936, b-B 0.6; means: a 0.48, b 0.768, A 0.948, B 0.3.
    # b-A gives 0.936 / 0.858 = 1.09 and b-B 0.6 / 0.534 = 1.12: the ratio finds what the cosine does not.
    metrics = xsim(encoder, ["a", "b"], ["A", "B"], languages=LANGUAGES, name="toy", k=2)
    assert metrics["toy-xsim-k2-ratio/en-de/test/error"] == 0.0
    # The distance: 0.936 - 0.858 = 0.078 for b-A, 0.6 - 0.534 = 0.066 for b-B.
    metrics = xsim(encoder, ["a", "b"], ["A", "B"], languages=LANGUAGES, name="toy", k=2, margin="distance")
    assert metrics["toy-xsim-k2-distance/en-de/test/error"] == 0.5


@pytest.mark.parametrize("margin", ["ratio", "distance", "absolute"])
@pytest.mark.parametrize("k", [1, 3, 4, 16])
def test_equals_the_naive_twin(k: int, margin: str):
    encoder, sources, targets = noisy(220, noise=1.0, seed=k, width=24)
    expected = naive(cosines(encoder, sources, targets), k, margin)
    metrics = xsim(encoder, sources, targets, languages=LANGUAGES, name="toy", k=k, margin=margin)
    (error,) = (value for key, value in metrics.items() if key.endswith("/error"))
    assert 0.02 < expected < 0.9
    assert error == pytest.approx(expected)


@pytest.mark.parametrize(
    ("options", "protocol"),
    [
        ({}, "xsim"),
        ({"k": 4, "margin": "ratio"}, "xsim"),
        ({"k": 3}, "xsim-k3-ratio"),
        ({"margin": "distance"}, "xsim-k4-distance"),
        ({"k": 3, "margin": "distance"}, "xsim-k3-distance"),
        ({"k": 9, "margin": "absolute"}, "xsim-absolute"),
    ],
)
def test_setting_in_the_key(options: dict, protocol: str):
    encoder, sources, targets = noisy(5, noise=0.0)
    metrics = xsim(encoder, sources, targets, languages=LANGUAGES, name="toy", split="dev", **options)
    assert list(metrics) == [f"toy-{protocol}/en-de/dev/error", f"toy-{protocol}/en-de/dev/pairs"]


def test_neighbourhoods_larger_than_the_data():
    encoder, sources, targets = noisy(3, noise=0.1)
    metrics = xsim(encoder, sources, targets, languages=LANGUAGES, name="toy", k=50)
    assert metrics["toy-xsim-k50-ratio/en-de/test/error"] == naive(cosines(encoder, sources, targets), 3, "ratio")
    one = xsim(encoder, sources[:1], targets[:1], languages=LANGUAGES, name="toy")
    assert one == {"toy-xsim/en-de/test/error": 0.0, "toy-xsim/en-de/test/pairs": 1}


# xsim++


@pytest.mark.parametrize(
    ("text", "changed"),
    [
        ("He is not here.", {"He is here."}),
        ("They can't win.", {"They can win.", "They can't lose."}),
        ("She won't come.", {"She will come."}),
        ("It was easy.", {"It was not easy.", "It was difficult."}),
        ("Isn't it good?", {"Is it good?", "Isn't it bad?"}),
        ("New York in the north.", {"New York in the south."}),
    ],
)
def test_meanings(text: str, changed: set[str]) -> None:
    assert {one.text for one in distractors([text]) if one.kind == "meaning"} == changed


def test_numbers_and_names() -> None:
    texts = ["Two men met Anna in Bonn.", "In 2014, 305 people saw Karl.", "Nothing here."]
    found = distractors(texts)
    numbers = [one for one in found if one.kind == "number"]
    assert [one.row for one in numbers] == [0, 1, 1]
    assert numbers[0].text.split()[0] in "One Three Four Five Six Seven Eight Nine Ten Eleven Twelve".split()
    assert numbers[0].text.endswith(" men met Anna in Bonn.")
    assert {len(one.text) for one in numbers[1:]} == {len(texts[1])}
    names = {one.text for one in found if one.kind == "entity"}
    assert names == {"Two men met Karl in Bonn.", "Two men met Anna in Karl."} | {
        text for text in names if text.startswith("In 2014, 305 people saw ")
    }
    assert not any(one.row == 2 for one in found)


@given(
    st.lists(st.text(st.sampled_from("Anna Bonn is not 12 can't more, x."), max_size=40), max_size=12),
    st.integers(0, 9),
)
def test_distractors_differ_from_all_sentences(texts: list[str], seed: int) -> None:
    found = distractors(texts, seed=seed)
    assert not {one.text for one in found} & set(texts) and len({one.text for one in found}) == len(found)
    assert found == distractors(texts, seed=seed)
    assert all(sum(one.row == row and one.kind == kind for one in found) <= 3 for row, kind, _ in found)


class Counts:
    """Vectors of letters: a distractor with one other word is near."""

    def encode(self, texts: list[str], **_: Any) -> np.ndarray:
        return np.array(
            [[text.lower().count(letter) + 0.1 for letter in "abcdefghijklmnopqrstuvwxyz012345"] for text in texts]
        )


def test_equals_xsim_on_the_same_candidates() -> None:
    english = ["Two men are here.", "Anna saw Karl.", "It was 1984 and cold.", "No change at all"]
    german = ["Zwei Menschen sind hier.", "Anna sah Karl.", "Es war 1984 und kalt.", "keine Aenderung hier"]
    found = xsim_pp(Counts(), english, german, languages=("en", "de"), name="x", margin="absolute", seed=3)
    pool = [*english, *(one.text for one in distractors(english, seed=3))]
    unit = [
        vectors / np.linalg.norm(vectors, axis=1, keepdims=True) for vectors in map(Counts().encode, (german, pool))
    ]
    chosen = (unit[0] @ unit[1].T).argmax(axis=1)
    key = "x-xsim-pp-absolute/de-en/test/"
    assert found[f"{key}error"] == np.mean(chosen != np.arange(4)) and found[f"{key}distractors"] == len(pool) - 4
    reverse = xsim_pp(Counts(), german, english, languages=("de", "en"), name="x", margin="absolute", seed=3)
    assert dict(found) == dict(reverse)
    kinds = sum(found[f"{key}{kind}_error"] for kind in ("number", "entity", "meaning"))
    assert 0 < kinds <= found[f"{key}error"]
    plain = xsim(Counts(), german, english, languages=("de", "en"), name="x", margin="absolute")
    assert plain["x-xsim-absolute/de-en/test/error"] <= found[f"{key}error"]


def test_needs_english() -> None:
    with pytest.raises(XlsrError, match="English"):
        xsim_pp(Counts(), ["a"], ["b"], languages=("de", "fr"), name="x")
