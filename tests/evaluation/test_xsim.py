"""`xsim` against a naive twin; xsim++: distractors by rules, and the search among them."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from bitext_helpers import cosines, noisy, unit
from hypothesis import given
from hypothesis import strategies as st
from margin_helpers import mine_by_hand

from hf_xlsr.evaluation import distractors, xsim, xsim_pp
from hf_xlsr.evaluation.protocols.xsim import held_out_distractors
from hf_xlsr.utils.errors import XlsrError

LANGUAGES = ("en", "de")


@pytest.mark.parametrize("margin", ["ratio", "distance", "absolute"])
@pytest.mark.parametrize("k", [1, 4, 16])
def test_equals_the_naive_twin(k: int, margin: str):
    encoder, sources, targets = noisy(220, noise=1.0, seed=k, width=24)

    metrics = xsim(encoder, sources, targets, languages=LANGUAGES, name="toy", k=k, margin=margin)

    similarities = cosines(encoder, sources, targets)
    pairs = mine_by_hand(similarities, k, margin, retrieval="forward", one_to_one=False)
    expected = np.mean([source != target for source, target, _ in pairs])
    assert 0.02 < expected < 0.9
    (error,) = [value for key, value in metrics.items() if key.endswith("/error")]
    assert error == pytest.approx(expected)


# xsim++


def distractors_of_kind(texts: list[str], kind: str) -> list[Any]:
    return [distractor for distractor in distractors(texts) if distractor.kind == kind]


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
    meanings = distractors_of_kind([text], "meaning")
    assert {distractor.text for distractor in meanings} == changed


TEXTS = ["Two men met Anna in Bonn.", "In 2014, 305 people saw Karl.", "Nothing here."]


def test_numbers() -> None:
    in_word, first_in_digits, second_in_digits = distractors_of_kind(TEXTS, "number")

    assert in_word.row == 0
    first_word, _, rest = in_word.text.partition(" ")
    assert first_word in "One Three Four Five Six Seven Eight Nine Ten Eleven Twelve".split()
    assert rest == "men met Anna in Bonn."

    for distractor in (first_in_digits, second_in_digits):
        assert distractor.row == 1
        assert len(distractor.text) == len(TEXTS[1])


def test_names() -> None:
    changed: dict[int, set[str]] = {0: set(), 1: set()}
    for distractor in distractors_of_kind(TEXTS, "entity"):
        changed[distractor.row].add(distractor.text)

    assert changed[0] == {"Two men met Karl in Bonn.", "Two men met Anna in Karl."}
    for text in changed[1]:
        assert text.startswith("In 2014, 305 people saw ")


def test_sentences_without_anything_to_change() -> None:
    assert not distractors(TEXTS[2:])


WORDS = st.text(st.sampled_from("Anna Bonn is not 12 can't more, x."), max_size=40)


@given(st.lists(WORDS, max_size=12), st.integers(0, 9))
def test_distractors_differ_from_all_sentences(texts: list[str], seed: int) -> None:
    changed = distractors(texts, seed=seed)
    assert changed == distractors(texts, seed=seed)

    changed_texts = {distractor.text for distractor in changed}
    assert changed_texts.isdisjoint(texts)
    assert len(changed_texts) == len(changed)

    counts = Counter((distractor.row, distractor.kind) for distractor in changed)
    assert max(counts.values(), default=0) <= 3


class Counts:
    """Vectors of letters: a distractor with one other word is near."""

    def encode(self, texts: list[str], **_: Any) -> np.ndarray:
        rows = []
        for text in texts:
            rows.append([text.lower().count(letter) + 0.1 for letter in "abcdefghijklmnopqrstuvwxyz012345"])
        return np.array(rows)


ENGLISH = ["Two men are here.", "Anna saw Karl.", "It was 1984 and cold.", "No change at all"]
GERMAN = ["Zwei Menschen sind hier.", "Anna sah Karl.", "Es war 1984 und kalt.", "keine Aenderung hier"]


def test_equals_xsim_on_the_same_candidates() -> None:
    metrics = xsim_pp(Counts(), ENGLISH, GERMAN, languages=("en", "de"), name="x", margin="absolute", seed=3)

    changed = [distractor.text for distractor in distractors(ENGLISH, seed=3)]
    queries = unit(Counts().encode(GERMAN))
    candidates = unit(Counts().encode(ENGLISH + changed))
    nearest = (queries @ candidates.T).argmax(axis=1)

    key = "x-xsim-pp-absolute/de-en/test/"
    assert metrics[f"{key}error"] == np.mean(nearest != np.arange(4))
    assert metrics[f"{key}distractors"] == len(changed)
    kinds = sum(metrics[f"{key}{kind}_error"] for kind in ("number", "entity", "meaning"))
    assert 0 < kinds <= metrics[f"{key}error"]


def test_english_may_be_the_source_or_the_target() -> None:
    options: dict[str, Any] = {"name": "x", "margin": "absolute", "seed": 3}
    into_german = xsim_pp(Counts(), ENGLISH, GERMAN, languages=("en", "de"), **options)
    into_english = xsim_pp(Counts(), GERMAN, ENGLISH, languages=("de", "en"), **options)
    assert dict(into_german) == dict(into_english)


# Kinds that training never has


def test_kinds_of_edits_that_training_never_has() -> None:
    texts = ["He was here.", "Two men met Anna in Bonn.", "Karl saw Eve in Rome.", "Nothing."]
    metrics = xsim_pp(Counts(), texts, texts, languages=("en", "de"), name="x", kinds="negation,name")
    key = "x-xsim-pp-negation-name/de-en/test/"
    shares = [metrics[f"{key}{kind}_error"] for kind in ("negation", "name")]
    assert sum(shares) <= metrics[f"{key}error"]

    changed = held_out_distractors(texts, ["negation", "name"])
    assert metrics[f"{key}distractors"] == len(changed)
    assert {distractor.kind for distractor in changed} == {"negation", "name"}
    assert {distractor.text for distractor in changed}.isdisjoint(texts)


def test_unknown_kind() -> None:
    with pytest.raises(XlsrError, match=r"kinds.*colour"):
        xsim_pp(Counts(), ENGLISH, GERMAN, languages=("en", "de"), name="x", kinds="colour")
