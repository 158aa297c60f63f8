"""Hard negatives: which candidates are ruled out, what is counted, and what readers of the columns make of them."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from mining_fakes import NumberEncoder, half, in_child

from hf_xlsr.mining import MiningOptions, NegativeOptions, hard_negatives, negatives, run_negatives
from hf_xlsr.mining.negative_counts import Counts, Example
from hf_xlsr.mining.negative_report import false_negatives, report_lines
from hf_xlsr.mining.negatives import Knowledge, NegativesRun
from hf_xlsr.mining.texts import on_one_line
from hf_xlsr.utils.errors import XlsrError

COUNT = 40
SOURCES = [f"de {number} wort" for number in range(COUNT)]
TARGETS = [f"en {number} word was near the house" for number in range(COUNT)]
MINING = MiningOptions(languages=("de", "en"))


def run(
    folder: Path, sources: Sequence[str] = SOURCES, targets: Sequence[str] = TARGETS, **options: Any
) -> NegativesRun:
    knowledge = options.pop("knowledge", None)
    opinions = {name: options.pop(name) for name in ("second_encoder", "cross_encoder") if name in options}
    encoder = options.pop("encoder", NumberEncoder())
    chosen = NegativeOptions(**options)
    return run_negatives(
        sources, targets, folder / "work", MINING, chosen, encoder=encoder, knowledge=knowledge, **opinions
    )


def naive_mined(per_pair: int, below: float, nearest: int, k: int = 4) -> list[list[str]]:
    """The nearest sentences by ratio margin below a share of the pair's own, sentence by sentence."""
    source = half(SOURCES).astype(np.float64)
    target = half(TARGETS).astype(np.float64)
    cosines = source @ target.T
    mined = []
    for row in range(COUNT):
        candidates = np.argsort(-cosines[row], kind="stable")[: nearest + 1]

        def margin(column: int, row: int = row) -> float:
            mean_of_source = np.sort(cosines[row])[-k:].mean()
            mean_of_target = np.sort(cosines[:, column])[-k:].mean()
            return cosines[row, column] / ((mean_of_source + mean_of_target) / 2)

        scored = sorted(((margin(column), column) for column in candidates if column != row), reverse=True)
        allowed = [TARGETS[column] for score, column in scored if score < below * margin(row)]
        mined.append(allowed[:per_pair])
    return mined


@pytest.mark.parametrize("below", [0.7, 0.95])
def test_mined_equal_the_naive_twin(tmp_path: Path, below: float) -> None:
    expected = naive_mined(3, below, nearest=8)
    rows = list(run(tmp_path, per_pair=3, below=below, nearest=8).stored())
    assert any(expected)
    for row, texts in zip(rows, expected, strict=True):
        mined = [text for text, kind in zip(row["negatives"], row["kinds"], strict=True) if kind == "mined"]
        assert mined == texts
        assert len({*row["negatives"], row["target"]}) == 4


def with_other_words(word: str) -> tuple[list[str], list[str]]:
    """The pairs, and as many of other sources whose targets say the same as the first ones in another way."""
    others = [target.replace("word", word) for target in TARGETS]
    return [*SOURCES, *(f"de {100 + number} wort" for number in range(COUNT))], [*TARGETS, *others]


def others_among_negatives(made: NegativesRun, others: Sequence[str]) -> int:
    rows = list(made.stored())[:COUNT]
    return sum(other in row["negatives"] for row, other in zip(rows, others, strict=True))


def test_known_translations_are_no_negatives(tmp_path: Path) -> None:
    """Also where only sentences of other languages link them."""
    sources, targets = with_other_words("term")
    others = targets[COUNT:]
    before = run(tmp_path / "before", sources, targets, per_pair=4, below=1.0)
    assert others_among_negatives(before, others) > 5

    links = []
    for number, other in enumerate(others):
        links += [(f"fr {number}", TARGETS[number]), (f"fr {number}", f"it {number}"), (f"it {number}", other.upper())]
    linked = run(tmp_path / "after", sources, targets, per_pair=4, below=1.0, knowledge=Knowledge(known=links))
    assert others_among_negatives(linked, others) == 0
    assert linked.counts.ruled_out["known"] > 5


def test_copies_are_no_negatives(tmp_path: Path) -> None:
    sources, targets = with_other_words("WORD!")  # the targets but for case and punctuation
    made = run(tmp_path, sources, targets, per_pair=4, below=1.0)
    assert others_among_negatives(made, targets[COUNT:]) == 0
    assert made.counts.ruled_out["duplicate"] > 5


def test_shares_of_false_negatives(tmp_path: Path) -> None:
    plain = run(tmp_path / "plain", per_pair=2, below=1.0)
    first = next(plain.stored())
    truth = [(first["source"], first["negatives"][0])]
    labels = {(first["source"], text): label for text, label in zip(first["negatives"], [True, False], strict=True)}
    knowledge = Knowledge(truth=truth, labels=labels)
    measured = run(tmp_path / "measured", per_pair=2, below=1.0, knowledge=knowledge)

    assert [row["negatives"] for row in measured.stored()] == [row["negatives"] for row in plain.stored()]
    shares = false_negatives(measured.counts)
    assert shares["by labels"]["share"] == 0.5
    # The truth links two pairs, so that each of four negatives is spoken of.
    assert shares["by truth"]["of"] == 4
    assert shares["by truth"]["share"] in (0.25, 0.5)


class CrossEncoder:
    """Takes sentences with a number below ten for translations."""

    def predict(self, pairs: Sequence[tuple[str, str]]) -> np.ndarray:
        scores = []
        for _, target in pairs:
            digits = "".join(filter(str.isdigit, target))
            scores.append(1.0 if int(digits or 0) < 10 else 0.1)
        return np.array(scores)


def test_cross_encoder(tmp_path: Path) -> None:
    made = run(tmp_path, per_pair=2, cross_encoder=CrossEncoder())
    for row in list(made.stored())[:10]:
        for text, kind in zip(row["negatives"], row["kinds"], strict=True):
            assert kind != "mined" or int("".join(filter(str.isdigit, text))) >= 10
    assert made.counts.ruled_out["cross-encoder"] > 0


class Halves(NumberEncoder):
    """Sentences whose numbers differ by 20 have one meaning."""

    def vector(self, text: str) -> np.ndarray:
        digits = int("".join(filter(str.isdigit, text)) or 0)
        return super().vector(f"{digits % 20}")


def test_second_encoder(tmp_path: Path) -> None:
    made = run(tmp_path, per_pair=2, nearest=COUNT - 1, second_encoder=Halves(noise=0.0))
    for number, row in enumerate(made.stored()):
        assert TARGETS[(number + 20) % COUNT] not in row["negatives"]
    assert made.counts.ruled_out["paraphrase"] >= COUNT / 2


def test_edits(tmp_path: Path) -> None:
    made = run(tmp_path, per_pair=4, synthetic=("number", "negation"), edited=2)
    for row in made.stored():
        assert sorted(row["kinds"]) == ["mined", "mined", "negation", "number"]
        negation = row["negatives"][row["kinds"].index("negation")]
        assert set(negation.split()) - set(row["target"].split()) <= {"hardly", "scarcely", "no", "longer", "far"}


def test_random_sentences_fill_up() -> None:
    rows = hard_negatives(SOURCES, TARGETS, encoder=NumberEncoder(), below=0.01, per_pair=3)
    for row in rows:
        negatives_of_row = [row["negative_1"], row["negative_2"], row["negative_3"]]
        assert set(negatives_of_row) <= set(TARGETS) - {row["target"]}
        assert len(set(negatives_of_row)) == 3


def test_blocks_make_no_difference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options: dict[str, Any] = {"per_pair": 3, "synthetic": ("number", "negation", "order")}
    whole = run(tmp_path / "whole", **options)
    monkeypatch.setattr(negatives, "PAIRS_OF_A_TASK", 7)
    blocks = run(tmp_path / "blocks", **options)
    assert len(blocks.files) == 6
    assert list(blocks.stored()) == list(whole.stored())
    assert blocks.counts.chosen == whole.counts.chosen


def test_resumes_after_a_kill(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(negatives, "PAIRS_OF_A_TASK", 7)
    original = negatives.BlockSelection.__call__

    def killed(self: Any, path: Path, span: tuple[int, int]) -> None:
        if span[0] == 21:
            os.kill(os.getpid(), signal.SIGKILL)
        original(self, path, span)

    def first_run() -> None:
        negatives.BlockSelection.__call__ = killed  # type: ignore[method-assign]
        run(tmp_path, per_pair=2)

    code, _ = in_child(first_run)
    assert code == -9
    assert len(list(tmp_path.rglob("00*.arrow"))) == 3

    spans: list[int] = []

    def watched(self: Any, path: Path, span: tuple[int, int]) -> None:
        spans.append(span[0])
        original(self, path, span)

    monkeypatch.setattr(negatives.BlockSelection, "__call__", watched)
    resumed = run(tmp_path, per_pair=2)
    assert spans == [21, 28, 35]
    assert "source.vectors" in resumed.report["reused"]

    monkeypatch.setattr(negatives.BlockSelection, "__call__", original)
    fresh = run(tmp_path / "fresh", per_pair=2)
    assert list(resumed.stored()) == list(fresh.stored())


def test_report(tmp_path: Path) -> None:
    made = run(tmp_path, per_pair=4, synthetic=("number",))
    text = "\n".join(report_lines(made.counts, COUNT))
    for kind in ("mined", "number"):
        assert len(made.counts.examples[kind]) == 20
        for example in made.counts.examples[kind]:
            assert example.negative in text


def test_counts_survive_their_file(tmp_path: Path) -> None:
    counts = Counts(labelled=2)
    counts.chosen["mined"] = 3
    counts.show("mined", [Example("a", "b", "c", 1.5), Example("a", "b", "d", None)])
    counts.write(tmp_path / "x.arrow", pa.table({"source": ["a"]}))
    assert Counts.load(tmp_path / "x.arrow") == counts


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"per_pair": 0}, ("per_pair", "0")),
        ({"below": 1.5}, ("below", "1.5")),
        ({"per_pair": 2, "edited": 3, "synthetic": ("number",)}, ("edited", "3")),
        ({"edited": 1}, ("edited", "1")),
        ({"synthetic": ("colour",)}, ("kinds", "colour")),
    ],
)
def test_refusals(options: dict[str, Any], words: tuple[str, str]) -> None:
    with pytest.raises(XlsrError) as refusal:
        NegativeOptions(**options)
    for word in words:
        assert word in str(refusal.value)


def test_edits_need_languages() -> None:
    with pytest.raises(XlsrError, match="languages"):
        hard_negatives(SOURCES, TARGETS, encoder=NumberEncoder(), synthetic=("number",))


def test_too_few_sentences() -> None:
    with pytest.raises(XlsrError, match="`per_pair` is 4"):
        hard_negatives(SOURCES[:3], TARGETS[:3], encoder=NumberEncoder(), per_pair=4)


def test_labels_are_found_by_texts_on_one_line(tmp_path: Path) -> None:
    sources = [text.replace(" ", "\t", 1) for text in SOURCES]
    first = next(run(tmp_path / "plain", sources, per_pair=2, below=1.0).stored())
    labels = {(on_one_line(first["source"]), on_one_line(text)): True for text in first["negatives"]}
    measured = run(tmp_path / "labelled", sources, per_pair=2, below=1.0, knowledge=Knowledge(labels=labels))
    assert measured.counts.labelled == 2


def test_labels_of_other_negatives_are_refused(tmp_path: Path) -> None:
    labels = {(SOURCES[0], "a sentence of another run"): True}
    with pytest.raises(XlsrError, match="labels"):
        run(tmp_path, knowledge=Knowledge(labels=labels))


def test_all_near_sentences_are_asked_before_random_ones(tmp_path: Path) -> None:
    asked: list[int] = []

    class Refusing:
        def predict(self, pairs: Any) -> list[float]:
            asked.append(len(pairs) - 1)
            return [1.0] * len(pairs)

    made = run(tmp_path, per_pair=1, nearest=20, below=1.0, cross_encoder=Refusing())
    assert made.counts.chosen["mined"] == 0
    of_one_pair = sum(asked[1:]) / COUNT
    assert of_one_pair > 2
