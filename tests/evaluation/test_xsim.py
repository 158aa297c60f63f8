"""`xsim` against a naive twin; xsim++: distractors by rules, and the search among them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from bitext_helpers import cosines, noisy
from hypothesis import given
from hypothesis import strategies as st

from hf_xlsr.evaluation import distractors, xsim, xsim_pp

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


@pytest.mark.parametrize("margin", ["ratio", "distance", "absolute"])
@pytest.mark.parametrize("k", [1, 4, 16])
def test_equals_the_naive_twin(k: int, margin: str):
    encoder, sources, targets = noisy(220, noise=1.0, seed=k, width=24)
    expected = naive(cosines(encoder, sources, targets), k, margin)
    metrics = xsim(encoder, sources, targets, languages=LANGUAGES, name="toy", k=k, margin=margin)
    (error,) = (value for key, value in metrics.items() if key.endswith("/error"))
    assert 0.02 < expected < 0.9
    assert error == pytest.approx(expected)


# xsim++


@pytest.mark.parametrize(
    ("text", "changed"),
    [
        ("He is not here.", {"He is here."}),
        ("She won't come.", {"She will come."}),
        ("It was easy.", {"It was not easy.", "It was difficult."}),
        ("Isn't it good?", {"Is it good?", "Isn't it bad?"}),
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
