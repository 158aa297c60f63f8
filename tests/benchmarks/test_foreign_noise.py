"""Noise of foreign kinds: each kind is what its name says, and a mixture uses each line once."""

from __future__ import annotations

import random
from typing import Any

import pytest

from benchmarks.foreign_noise import MENUS, NOISE, Material, foreign_mixture, lexicon_of
from hf_xlsr.mining.filtering.damage import GOOD

SENTENCES = [
    ("The dog saw the house, said Paul, near Berlin.", "Der Hund sah das Haus, sagte Paul, bei Berlin."),
    ("After the long winter, the boat met a storm.", "Nach dem langen Winter, traf das Boot einen Sturm."),
    ("My father, who never sleeps, sold the car to Anna.", "Mein Vater, der nie schläft, verkaufte Anna den Wagen."),
    ("In the evening, the teacher took a train to Paris.", "Am Abend, nahm die Lehrerin einen Zug nach Paris."),
]
LANGUAGES = {"source_lang": "en", "target_lang": "de"}


def rows_of(count: int) -> list[dict[str, Any]]:
    """Lines that begin with their number."""
    rows = []
    for line in range(count):
        source, target = SENTENCES[line % len(SENTENCES)]
        rows.append(
            {"source": f"Line {line}: {source}", "target": f"Zeile {line}: {target}", **LANGUAGES, "line": line}
        )
    return rows


ROWS = rows_of(300)
MATERIAL = Material(
    ROWS,
    nearest=[(number + 4) % len(ROWS) for number in range(len(ROWS))],
    sisters=[f"Regel {number} in het Nederlands" for number in range(len(ROWS))],
    lexicon={"dog": "Hund", "the": "der"},
    names=["Rome", "Oslo", "Madrid", "Lagos", "Quito"],
)


def made(kind: str, material: Material = MATERIAL, number: int = 8) -> dict[str, Any]:
    row = NOISE[kind](material, number, random.Random(1))
    assert row is not None
    return row


def target(number: int) -> str:
    return str(ROWS[number]["target"])


def test_other_sentences() -> None:
    assert made("nearest other")["target"] == target(12)
    assert made("next line joined")["target"] == f"{target(8)} {target(9)}"
    assert made("same passage")["target"] in [target(8 + distance) for distance in (-6, -5, -4, -3, -2, 2, 3, 4, 5, 6)]
    assert made("sister language")["target"] == "Regel 8 in het Nederlands"


def test_halves() -> None:
    first = target(8).split()
    second = target(9).split()
    assert made("half exchanged")["target"].split() == first[: len(first) // 2] + second[len(second) // 2 :]

    english = ROWS[8]["source"].split()
    assert made("half English")["target"].split() == first[: len(first) // 2] + english[len(english) // 2 :]
    third = first[: len(first) // 3]
    assert made("phrase repeated")["target"].split() == third * 3


def test_changes_inside_the_target() -> None:
    shuffled = made("words shuffled")["target"]
    assert shuffled != target(8)
    assert sorted(shuffled.split()) == sorted(target(8).split())

    damaged = made("letters damaged")["target"]
    assert damaged != target(8)
    assert 0.8 < len(damaged) / len(target(8)) < 1.2
    assert made("menu behind")["target"] in [f"{target(8)} {menu}" for menu in MENUS["de"]]
    assert made("word for word")["target"] == "Line 8: der Hund saw der house, said Paul, near Berlin."


@pytest.mark.parametrize("kind", ["name exchanged", "roles exchanged"])
def test_edits_change_the_english_side_alone(kind: str) -> None:
    row = made(kind)
    assert row["target"] == target(8)
    assert row["source"] != ROWS[8]["source"]
    has_same_letters = sorted(row["source"].lower()) == sorted(ROWS[8]["source"].lower())
    assert has_same_letters == (kind == "roles exchanged")


def test_a_dropped_clause_is_never_the_last() -> None:
    for seed in range(20):
        row = NOISE["clause dropped"](MATERIAL, 8, random.Random(seed)) or {}
        changed = [side for side in ("source", "target") if row[side] != ROWS[8][side]]
        assert len(changed) == 1
        original = ROWS[8][changed[0]]
        assert original.endswith(row[changed[0]][-10:])
        assert len(row[changed[0]]) < 0.8 * len(original)


def test_kinds_that_do_not_apply() -> None:
    row = {"source": "Yes", "target": "是", "source_lang": "en", "target_lang": "zh", "line": 0}
    material = Material([row, {**row, "line": 1}], nearest=[1, 0])
    for kind in (
        "nearest other",
        "half exchanged",
        "clause dropped",
        "name exchanged",
        "word for word",
        "sister language",
    ):
        assert NOISE[kind](material, 0, random.Random(1)) is None


def test_mixture_has_no_line_twice_and_half_of_them_good() -> None:
    mixture = foreign_mixture(MATERIAL, seed=3)
    lines = [row["line"] for row in mixture.rows]
    assert len(set(lines)) == len(lines)
    assert mixture.kinds.count(GOOD) == 150
    assert {mixture.kinds.count(kind) for kind in NOISE} == {150 // len(NOISE)}

    for row, kind in zip(mixture.rows, mixture.kinds, strict=True):
        assert (row == ROWS[row["line"]]) == (kind == GOOD)
    for kind, applies in mixture.applies.items():
        assert all(does for does, one in zip(applies, mixture.kinds, strict=True) if one == kind)
    assert foreign_mixture(MATERIAL, seed=3) == mixture
    assert foreign_mixture(MATERIAL, seed=4) != mixture


def test_lexicon_prefers_words_that_share_all_their_pairs() -> None:
    sides = [("the red dog", "der rote Hund"), ("the red cat", "die rote Katze"), ("the dog", "der Hund")]
    lexicon = lexicon_of({"source": source, "target": target} for source, target in sides)
    assert lexicon["cat"] in ("Katze", "die")
    assert lexicon["red"] == "rote"
