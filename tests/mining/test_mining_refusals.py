"""Invalid input of mining and scoring: an error that names it, before anything is encoded where possible."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mining_fakes import SOURCE, TARGET, NumberEncoder, half, write_lines

from hf_xlsr.mining import MiningOptions, extract_pairs, mine_bitext, neighbours_both_ways, score_bitext, stages
from hf_xlsr.mining.search.extraction import margin_scores
from hf_xlsr.mining.search.neighbours import nearest_neighbours
from hf_xlsr.utils.errors import XlsrError

EYE = np.eye(3)
ENCODER = NumberEncoder()
INVALID: dict[str, Any] = {"k": 0, "margin": "ration", "retrieval": "best", "method": "hnsw", "memory": "4 apples"}
INVALID |= {
    "duplicates": "x",
    "languages": ["en"],
    "batch_size": 0,
    "max_pairs": 0,
    "device": "gpu9",
    "dtype": "f8",
    "recall": 2,
}


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
        (mine(EYE, np.full((3, 3), "x")), "target"),
        (mine(EYE, np.diag([1, np.nan, 1])), "row 1 of target"),
        (mine(np.diag([1, 1, 0]), EYE), "row 2 of source"),
        (mine(EYE, EYE, duplicates="merge"), "duplicates"),
        (mine([], TARGET, encoder=ENCODER), "source"),
        (mine(SOURCE, TARGET, encoder="./none"), "./none"),
        (score(["en 1"], []), "1 and 0"),
        (score([], []), "source"),
        (score(["en 1", " "], ["fr 1", "fr 2"]), "source"),
        *((lambda name=name: MiningOptions(**{name: INVALID[name]}), name) for name in INVALID),
        (lambda: margin_scores(np.ones(1), np.ones(1), np.ones(1), "ration"), "margin"),
        (lambda: extract_pairs(neighbours_both_ways(EYE, EYE), retrieval="foward"), "retrieval"),
        (lambda: neighbours_both_ways(EYE, EYE, method="exat"), "exact"),
        (lambda: neighbours_both_ways(EYE, np.eye(2)), "3 and 2"),
        (lambda: neighbours_both_ways(np.diag([1, 2, -np.inf]), EYE), "row 2 of `source`"),
        (lambda: nearest_neighbours(EYE, 1e20 * EYE), "normalise"),
        (lambda: nearest_neighbours(EYE, EYE, 0), "k"),
        (lambda: nearest_neighbours(EYE, np.empty((0, 3))), "candidates"),
        (lambda: nearest_neighbours(EYE, np.eye(2)), "3 and 2"),
        (lambda: nearest_neighbours(np.ones(2), EYE), "queries"),
    ],
)
def test_invalid_input_is_named(call: Callable[[], Any], key: str):
    with pytest.raises(XlsrError) as caught:
        call()
    assert key in str(caught.value) and "\n" not in str(caught.value)


def test_file_named_after_the_other_language(tmp_path: Path):
    english, french = write_lines(tmp_path / "c.en", SOURCE), write_lines(tmp_path / "c.fr", TARGET)
    (compressed := tmp_path / "d.en.gz").write_bytes(gzip.compress(english.read_bytes()))

    def mined(*files: Path, languages: str) -> int:
        return len(mine_bitext(*files, encoder=NumberEncoder(), languages=languages.split(",")))

    for source in (english, compressed):
        for languages in ("fr,en", "fra,eng_Latn"):
            with pytest.raises(XlsrError, match="languages"):
                mined(source, french, languages=languages)
    assert mined(english, french, languages="eng,fra") and mined(english, french, languages="de,es")
    assert mined(english, write_lines(tmp_path / "d.en", TARGET), languages="en,en")
    with pytest.raises(XlsrError, match="target_pool"):
        score(["en 1"], ["fr 1"], target_pool=english, languages=("en", "fr"))()


def test_sides_of_unequal_width():
    class Uneven(NumberEncoder):
        routes = ("en", "fr")

        def encode(self, texts: Any, **options: Any) -> np.ndarray:
            return super().encode(texts)[:, : 5 if options["task"] == "en" else 6]

    with pytest.raises(XlsrError, match="5 and 6"):
        mine_bitext(SOURCE, TARGET, encoder=Uneven(), languages=("en", "fr"))
    with pytest.raises(XlsrError, match="language"):
        mine_bitext(SOURCE, TARGET, encoder=Uneven())


def test_several_processes_need_a_folder(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(stages, "Processes", lambda: type("Two", (), {"count": 2}))
    with pytest.raises(XlsrError, match="folder"):
        mine_bitext(half(SOURCE), half(TARGET))
