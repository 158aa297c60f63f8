"""What mining refuses, and when it says so."""

from __future__ import annotations

import gc
import gzip
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mined_helpers import SOURCE, TARGET, half, same
from mining_fakes import NumberEncoder, write_lines

from hf_xlsr.mining import encode_stage, pipeline, stages
from hf_xlsr.mining.encode_stage import PROBES
from hf_xlsr.mining.pipeline import MiningSettings, mine_bitext, run_mining
from hf_xlsr.mining.search.storage import resident_bytes, trim
from hf_xlsr.utils.errors import XlsrError
from hf_xlsr.utils.memory import parse_size


@pytest.fixture(autouse=True)
def small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encode_stage, "SMALLEST_SHARD", 16)


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    return write_lines(tmp_path / "en.txt", SOURCE), write_lines(tmp_path / "fr.txt", TARGET)


@pytest.mark.parametrize(
    ("source", "target", "options", "message"),
    [
        (
            SOURCE,
            TARGET,
            {},
            "texts become vectors by an encoder, but none is given; give one .--model., or matrices.",
        ),
        (
            np.eye(3),
            np.eye(3),
            {"encoder": NumberEncoder()},
            "there are vectors and an encoder as well; give one",
        ),
        (np.eye(3), TARGET, {"encoder": NumberEncoder()}, "only source is a matrix; give two matrices, or two texts."),
        (
            np.eye(3),
            np.eye(4),
            {},
            "the matrices are not equally wide .source 3 and target 4.; encode both sides with",
        ),
        (np.eye(3), np.ones(3), {}, r"target has shape \(3,\); give a matrix with one row a sentence"),
        (np.eye(3), np.full((3, 3), "x"), {}, "target holds <U1; give a matrix of real numbers."),
        (np.eye(3) + 1j, np.eye(3), {}, "source holds complex128; give a matrix of real numbers."),
        (np.eye(3), np.empty((0, 3)), {}, r"target has shape \(0, 3\); give a matrix of one row or more"),
        (np.eye(3), np.diag([1, np.nan, 1]), {}, "the vector of row 1 of target holds NaN or infinity; check the enc"),
        (np.diag([1, 1, 0]), np.eye(3), {}, "the vector of row 2 of source is all zeros; leave that sentence out"),
        (np.eye(3), np.eye(3), {"duplicates": "merge"}, "duplicates is 'merge', but vectors are given and every row"),
        ([], TARGET, {"encoder": NumberEncoder()}, "source has no sentence: it is empty; give another file."),
        ("none.txt", "none", {"encoder": NumberEncoder()}, "there is no file none.txt; check the path of the source"),
        (SOURCE, TARGET, {"encoder": "./none"}, "model folder './none' does not exist; give a folder or an id"),
        ("none.txt", "none", {"encoder": "./none", "device": "gpu9"}, "device is 'gpu9', which torch cannot use here"),
        (SOURCE, TARGET, {"encoder": NumberEncoder(), "k": 0}, "k is 0; "),
        (
            SOURCE,
            TARGET,
            {"encoder": NumberEncoder(), "margin": "ration"},
            "margin is 'ration'; did you mean 'ratio'?",
        ),
        (
            SOURCE,
            TARGET,
            {"encoder": NumberEncoder(), "method": "hnsw"},
            "method is 'hnsw'; known are auto, exact, ivf.",
        ),
        (
            SOURCE,
            TARGET,
            {"encoder": NumberEncoder(), "memory": "4 apples"},
            "memory.*4 apples",
        ),
        (
            SOURCE,
            TARGET,
            {"encoder": NumberEncoder(), "duplicates": "x"},
            "duplicates is 'x'; known are drop, keep",
        ),
        (SOURCE, TARGET, {"encoder": NumberEncoder(), "languages": ["en"]}, "languages is en; give source and target"),
        (SOURCE, TARGET, {"encoder": NumberEncoder(), "batch_size": 0}, "batch_size is 0; encode 1 sentence or more"),
    ],
)
def test_mistakes_are_one_sentence(source: Any, target: Any, options: dict[str, Any], message: str):
    with pytest.raises(XlsrError, match=message) as caught:
        mine_bitext(source, target, **options)
    assert "\n" not in str(caught.value)


def test_a_mistake_in_an_option_comes_before_the_encoding():
    encoder = NumberEncoder()
    with pytest.raises(XlsrError, match="retrieval is 'best'"):
        mine_bitext(SOURCE, TARGET, encoder=encoder, retrieval="best")
    assert not encoder.calls


def test_vectors_that_do_not_fit_their_text_are_told(files: tuple[Path, Path], tmp_path: Path):
    for vectors, message in (
        ((half(SOURCE)[:-1], half(TARGET)), "en.txt has 60 lines, but 59 vectors are given for them"),
        ((half(SOURCE), np.zeros((50, 24))), "the vector of line 1 of .*fr.txt is all zeros"),
    ):
        with pytest.raises(XlsrError, match=message):
            run_mining(*files, tmp_path / "work", MiningSettings(vectors=vectors))
    with pytest.raises(XlsrError, match="matrices were mined; there are no texts to write."):
        next(run_mining(np.eye(2), np.eye(2), tmp_path / "other", MiningSettings()).sentences())


@pytest.mark.parametrize("given", ["an encoder", "vectors"])
def test_too_little_memory_is_told_at_once_with_what_suffices(
    given: str, files: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    class Telling(NumberEncoder):
        def get_embedding_dimension(self) -> int:
            return self.width

    encoder = Telling()
    options: dict[str, Any] = (
        {"encoder": encoder} if given == "an encoder" else {"vectors": (half(SOURCE), half(TARGET))}
    )
    # As where the process took much for the encoder after this package was imported.
    gc.collect()
    trim()
    resident = resident_bytes()
    monkeypatch.setattr(stages, "RESIDENT_AT_IMPORT", resident - 50_000_000)
    with pytest.raises(XlsrError) as caught:
        run_mining(*files, tmp_path / "work", MiningSettings(memory="1MB", **options))
    told = re.match(r"memory is 1\.0 MB, but this search needs (\d+MB), (\d+MB) of which are in", str(caught.value))
    assert told is not None and sum(map(len, encoder.calls)) <= len(PROBES)
    counted = resident - 50_000_000 if given == "an encoder" else resident
    assert abs((parse_size(told[2]) or 0) - counted) < 20_000_000
    run = run_mining(*files, tmp_path / "work", MiningSettings(memory=told[1], **options))
    same(run.pairs, mine_bitext(*files, encoder=NumberEncoder()))
    # What is done needs no memory.
    again = run_mining(*files, tmp_path / "work", MiningSettings(memory="1MB", **options))
    assert "pairs" in again.report["reused"]


def test_files_called_by_the_other_sides_language_are_refused(tmp_path: Path):
    source, target = write_lines(tmp_path / "c.en.txt", SOURCE), write_lines(tmp_path / "c.fr", TARGET)
    english = write_lines(tmp_path / "c.en", SOURCE)

    def mined(*files: Path, languages: str) -> int:
        return len(mine_bitext(*files, encoder=NumberEncoder(), languages=languages.split(",")))

    for files, languages, side, label in (
        ((english, target), "fr,en", "source", "en"),
        ((english, target), "fra,eng_Latn", "source", "en"),
        ((source, target), "fr,en", "target", "fr"),
    ):
        named = files[("source", "target").index(side)]
        other = languages.split(",")[("source", "target").index(side)]
        with pytest.raises(XlsrError) as caught:
            mined(*files, languages=languages)
        assert str(caught.value) == (
            f"languages says that {side} is in '{other}', but its file {named} is called by the other language, "
            f"'{label}'; give the languages in the order of the files, or rename the file."
        )
    compressed = tmp_path / "c.en.gz"
    compressed.write_bytes(gzip.compress(english.read_bytes()))
    with pytest.raises(XlsrError, match=r"its file .*c\.en\.gz is called by the other language, 'en'"):
        mined(compressed, target, languages="fr,en")
    assert mined(english, target, languages="eng,fra") and mined(english, target, languages="de,es")
    assert mined(english, write_lines(tmp_path / "d.en", TARGET), languages="en,en")


def test_sides_of_unequal_width_are_told():
    class Uneven(NumberEncoder):
        routes = ("en", "fr")

        def encode(self, texts: Any, **options: Any) -> np.ndarray:
            return super().encode(texts)[:, : 5 if options["task"] == "en" else 6]

    with pytest.raises(XlsrError, match=r"vectors are not equally wide \(source 5, target 6\); encode all with one"):
        mine_bitext(SOURCE, TARGET, encoder=Uneven(), languages=("en", "fr"))


def test_several_processes_need_a_folder(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(pipeline, "Processes", lambda: type("Two", (), {"count": 2}))
    with pytest.raises(XlsrError, match="several processes mine together through a folder; give one that all of them"):
        mine_bitext(SOURCE, TARGET, encoder=NumberEncoder())
