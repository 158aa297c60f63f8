"""The filter of given pairs, on sentences whose numbers say which belong together."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from itertools import islice, permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mining_fakes import NumberEncoder, write_lines

from hf_xlsr.cli import app as cli
from hf_xlsr.data.formats.reading import read_rows
from hf_xlsr.mining import stages
from hf_xlsr.mining.filtering.damage import DAMAGE, GOOD, damaged_mixture
from hf_xlsr.mining.filtering.features import FEATURES
from hf_xlsr.mining.filtering.negation import num_negations, without_negation
from hf_xlsr.mining.filtering.pair_filter import FEWEST_KNOWN, FilterOptions, HeldOut, filter_bitext, training_pairs
from hf_xlsr.utils.errors import XlsrError

FILTERING = FilterOptions(("en", "de"), identifier="script")


def row(number: int, target_number: int | None = None) -> dict[str, Any]:
    other = number if target_number is None else target_number
    return {
        "source": f"The house {number} is not red.",
        "target": f"Das Haus {other} ist nicht rot.",
        "source_lang": "en",
        "target_lang": "de",
    }


KNOWN = [row(number) for number in range(1000, 1600)]


def test_mixture_uses_each_row_once() -> None:
    mixture = damaged_mixture(KNOWN, seed=1)
    kinds = [kind for _, kind in mixture]

    assert set(kinds) == {GOOD, *DAMAGE}
    assert kinds.count(GOOD) == pytest.approx(len(mixture) / 2, abs=2)
    for damaged, kind in mixture:
        is_known = damaged in KNOWN
        assert is_known == (kind == GOOD)


def test_training_pairs_are_not_among_the_pairs() -> None:
    pairs = [row(number) for number in range(1000, 1010)]
    rows, report = training_pairs(pairs, KNOWN + KNOWN[-5:], FILTERING)

    texts = {training["source"] for training in rows if training["kind"] == GOOD}
    assert not texts & {pair["source"] for pair in pairs}
    assert report["also in the pairs"] == 10
    assert report["repeated"] == 5

    with pytest.raises(XlsrError, match="90"):
        training_pairs([], KNOWN[:90], FILTERING)


def test_replaced_words_are_some_of_the_next_row() -> None:
    rows = [
        {"source": "a b c d e f", "target": "一二三四五六", "source_lang": "en", "target_lang": "zh"},
        {"source": "u v w x y z", "target": "甲乙丙丁戊己", "source_lang": "en", "target_lang": "zh"},
    ]
    for seed in range(10):
        damaged = DAMAGE["words replaced"](rows, random.Random(seed))[0]
        (side,) = [side for side in ("source", "target") if damaged[side] != rows[0][side]]
        assert len(damaged[side]) == len(rows[0][side])
        new_words = set(damaged[side]) - set(rows[0][side])
        assert 1 <= len(new_words) <= 2
        assert new_words <= set(rows[1][side])


def test_the_fewest_known_pairs_suffice() -> None:
    """Pairs without numbers and negations have fewer kinds of damage."""
    words = ["red", "green", "blue", "old", "new", "big", "small", "long"]
    known = []
    for first, second, third in islice(permutations(words, 3), FEWEST_KNOWN):
        known.append({"source": f"{first} {second} {third} house", "target": f"Haus, {third} {second} {first}"})
    pairs = [row(number) for number in range(20)]
    result = filter_bitext(pairs, known, FILTERING, encoder=NumberEncoder())
    assert result.held_out.curve().recall is not None


def test_negations() -> None:
    assert without_negation("Das Haus ist nicht rot.", "de") == "Das Haus ist rot."
    assert without_negation("这不是书", "zh") == "这是书"
    assert without_negation("Das Haus ist rot.", "de") is None
    assert num_negations("It is not red.", "en") == 1
    assert num_negations("It is not red.", "eo") is None


def test_reliability_and_precision_by_hand() -> None:
    probability = np.array([0.9] * 40 + [0.1] * 40)
    kinds = [GOOD] * 36 + ["truncated"] * 4 + [GOOD] * 4 + ["truncated"] * 36

    held_out = HeldOut(probability, kinds)

    bins = held_out.reliability()
    assert sum(one.pairs for one in bins) == 80
    assert np.mean([one.good for one in bins[5:]]) == pytest.approx(0.9)
    figures = held_out.curve().chosen(0.5)[1]
    assert figures["precision"] == pytest.approx(0.9)
    assert figures["recall"] == pytest.approx(0.9)
    assert held_out.kept_by_kind(0.5) == {GOOD: (36, 40), "truncated": (4, 40)}


def test_filter_tells_good_pairs_from_bad_ones() -> None:
    pairs = [row(number) for number in range(2000, 2200)]
    pairs += [row(number, number + 400) for number in range(2200, 2300)]

    result = filter_bitext(pairs, KNOWN, FILTERING, encoder=NumberEncoder())

    assert result.probability[:200].mean() > 0.8
    assert result.probability[200:].mean() < 0.2
    assert {"margin", "cosine", "numbers", "negation", "repeats_target"} <= set(result.features)


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A `filter` command in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    Path("MODEL").mkdir()
    Path("MODEL/config.json").write_text("{}")
    monkeypatch.setattr(stages, "load_encoder", lambda *options: NumberEncoder())
    pairs = [row(number) for number in range(2000, 2060)]
    pairs += [row(number, number + 400) for number in range(2060, 2090)]
    write_lines(Path("pairs.tsv"), [f"{pair['source']}\t{pair['target']}" for pair in pairs])
    write_lines(Path("known.tsv"), [f"{pair['source']}\t{pair['target']}" for pair in KNOWN])
    return "filter pairs.tsv --model MODEL --known known.tsv --languages en,de --identifier script"


def test_command_keeps_probable_pairs(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([*command.split(), "--output", "kept.tsv", "--json"]) == 0

    report = json.loads(capsys.readouterr().out)
    kept = list(read_rows("kept.tsv", selecting=["probability"]))
    assert report["pairs"] == len(kept)
    assert 40 <= len(kept) <= 70
    assert min(float(pair["_probability"]) for pair in kept) >= 0.5
    assert len(report["reliability"]) == 10
    assert report["curve"]["recall"]
    assert Path("kept.tsv.report.html").is_file()
    assert not Path("kept.tsv.work").exists()


def test_columns_of_the_user_need_training_pairs_with_them(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = [*command.split(), "--output", "kept.tsv"]
    assert cli.main([*words, "--features", "comet"]) == 1
    assert "comet" in capsys.readouterr().err

    assert cli.main([*words, "--save-training", "training.tsv"]) == 0
    training = list(read_rows("training.tsv", selecting=["kind", "part"]))
    assert {pair["_part"] for pair in training} == {"train", "test"}
    lines = ["kind\tpart\tcomet\tsource\ttarget"]
    for pair in training:
        comet = float(pair["_kind"] == GOOD)
        lines.append(f"{pair['_kind']}\t{pair['_part']}\t{comet}\t{pair['source']}\t{pair['target']}")
    write_lines(Path("training.tsv"), lines)
    pairs = [
        f"{number % 2}\t{pair['source']}\t{pair['target']}" for number, pair in enumerate(map(row, range(2000, 2060)))
    ]
    write_lines(Path("pairs.tsv"), ["comet\tsource\ttarget", *pairs])

    capsys.readouterr()
    words = [word.replace("known.tsv", "training.tsv") for word in words]
    assert cli.main([*words, "--features", "comet", "--json"]) == 0
    kept = list(read_rows("kept.tsv", selecting=["comet"]))
    assert {pair["_comet"] for pair in kept} == {"1"}


def test_saved_training_pairs_are_not_damaged_again(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = [*command.split(), "--output", "kept.tsv", "--json"]
    assert cli.main(words) == 0
    report = json.loads(capsys.readouterr().out)

    assert cli.main([*words, "--save-training", "training.tsv"]) == 0
    capsys.readouterr()
    words = [word.replace("known.tsv", "training.tsv") for word in words]
    assert cli.main(words) == 0
    assert json.loads(capsys.readouterr().out)["held-out pairs kept"] == report["held-out pairs kept"]


@pytest.mark.parametrize("column", ["score", "cosine", "numbers", "margin", "probability", "kind"])
def test_columns_need_names_of_their_own(column: str) -> None:
    with pytest.raises(XlsrError, match=column):
        FilterOptions(("en", "de"), columns=(column,))


@pytest.mark.parametrize("identifier", ["script", "py3langid"])
def test_features_are_named_in_one_place(identifier: str) -> None:
    pairs = [row(number) for number in range(2000, 2010)]
    filtering = replace(FILTERING, identifier=identifier)
    assert set(filter_bitext(pairs, KNOWN, filtering, encoder=NumberEncoder()).features) <= set(FEATURES)
