from __future__ import annotations

import importlib
import os
import resource
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mining_fakes import SOURCE, TARGET, Copies, NumberEncoder, assert_same_pairs, half, in_child, write_lines

from hf_xlsr.mining import MiningOptions, mine_bitext, mine_vectors, stages
from hf_xlsr.mining.pipeline import run_mining
from hf_xlsr.mining.stages import PROBES
from hf_xlsr.utils.errors import XlsrError
from hf_xlsr.utils.tasks import LocalPool


@pytest.fixture(autouse=True)
def small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stages, "SMALLEST_SHARD", 16)


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    return write_lines(tmp_path / "en.txt", SOURCE), write_lines(tmp_path / "fr.txt", TARGET)


class Routed(NumberEncoder):
    """Routes by language; French has a noise of its own."""

    routes = ("en", "fr")

    def __init__(self, noise: float = 0.3) -> None:
        super().__init__()
        self.noises = {"en": 0.3, "fr": noise}
        self.tasks: list[str] = []

    def encode(self, texts: Any, **options: Any) -> np.ndarray:
        self.tasks.append(options["task"])
        self.noise = self.noises[options["task"]]
        return super().encode(texts)


def test_texts_are_mined_as_their_vectors(files: tuple[Path, Path]):
    mined = mine_bitext(*files, encoder=NumberEncoder(), k=3, threshold=1.1)
    assert_same_pairs(mined, mine_vectors(half(SOURCE), half(TARGET), k=3, threshold=1.1))

    correct_pairs = 0
    for source, target in zip(mined.source, mined.target, strict=True):
        correct_pairs += SOURCE[source].split()[1] == TARGET[target].split()[1]
    assert len(mined) > 30
    assert correct_pairs >= 0.9 * len(mined)


def test_lines_and_duplicates(tmp_path: Path):
    source = write_lines(tmp_path / "en.txt", ["", "en 1", "en 2", "en 1", "en 3"])
    target = write_lines(tmp_path / "fr.txt", ["fr 3", "fr 3", " ", "fr 1", "fr 2"])

    def pairs(**options: Any) -> set[tuple[int, int]]:
        mined = mine_bitext(source, target, encoder=NumberEncoder(noise=0.05), k=2, **options)
        return set(zip(mined.source.tolist(), mined.target.tolist(), strict=True))

    merged = {(1, 3), (2, 4), (4, 0)}
    assert pairs() == merged
    assert pairs(duplicates="merge") == merged
    assert pairs(duplicates="keep", one_to_one=False, retrieval="forward") == merged | {(3, 3)}


def encoded_sentences(encoder: NumberEncoder) -> int:
    """Sentences that the encoder encoded, the probes aside."""
    return sum(map(len, encoder.calls)) - len(PROBES)


def test_only_changes_are_redone(files: tuple[Path, Path], tmp_path: Path):
    def run(**options: Any) -> tuple[int, dict[str, Any]]:
        encoder = NumberEncoder()
        mining_options = MiningOptions(**options)
        all_pairs = run_mining(*files, tmp_path / "work", mining_options, encoder=encoder)
        mined = all_pairs.chosen(mining_options)
        assert_same_pairs(mined.pairs, mine_bitext(*files, encoder=NumberEncoder(), **options))
        return encoded_sentences(encoder), mined.report

    assert run()[0] == 110

    sentences, report = run()
    assert sentences == 0
    assert report["seconds"].keys() <= {"encode"}
    assert "pairs" in report["reused"]

    sentences, report = run(threshold=1.2)
    assert sentences == 0
    assert "pairs" in report["reused"]

    sentences, report = run(margin="distance")
    assert sentences == 0
    assert "pairs" not in report["reused"]
    assert "neighbours" in report["reused"]

    assert run(k=2)[0] == 0
    write_lines(files[1], TARGET[:30])
    assert run()[0] == 30
    assert run(prompt="q: ")[0] == 90

    with pytest.raises(XlsrError, match="another job"):
        mine_bitext(files[0], SOURCE, encoder=NumberEncoder(), folder=tmp_path / "work")


def test_changed_route_encodes_its_side_again(files: tuple[Path, Path], tmp_path: Path):
    options: dict[str, Any] = {"folder": tmp_path / "work", "languages": ("eng", "fra")}
    first = Routed()
    mine_bitext(*files, encoder=first, **options)
    assert first.tasks == ["en", "fr", *["en"] * 4, *["fr"] * 4]  # one probe of each language, then four shards

    changed = Routed(0.6)
    mined = mine_bitext(*files, encoder=changed, **options)
    assert changed.tasks[2:] == ["fr"] * 4
    assert_same_pairs(mined, mine_bitext(*files, encoder=Routed(0.6), languages=("en", "fr")))


ENCODED = {"source.text", "target.text", "source.vectors", "target.vectors"}


def kills(function: Callable[..., Any], calls: int) -> Callable[..., Any]:
    """The function; its process is killed at that call."""
    count = 0

    def killing(*arguments: Any, **options: Any) -> Any:
        nonlocal count
        count += 1
        if count == calls:
            os.kill(os.getpid(), signal.SIGKILL)
        return function(*arguments, **options)

    return killing


@pytest.mark.parametrize(
    ("module", "name", "calls", "finished_stages"),
    [
        ("stages", "read_texts", 2, {"source.text"}),
        ("", "encode", 5, {"source.text", "target.text"}),
        ("stages", "save_rows", 2, {"source.text", "target.text", "source.vectors"}),
        ("stages", "neighbours_both_ways", 1, ENCODED),
        ("pipeline", "extract_pairs", 1, ENCODED | {"neighbours"}),
        ("work_folder", "write_json", 3, set()),
    ],
)
def test_killed_and_resumed_equals_undisturbed(
    module: str, name: str, calls: int, finished_stages: set[str], files: tuple[Path, Path], tmp_path: Path
):
    expected = mine_bitext(*files, encoder=NumberEncoder(), folder=tmp_path / "undisturbed")
    owner = importlib.import_module(f"hf_xlsr.mining.{module}") if module else NumberEncoder

    def disturbed() -> None:
        setattr(owner, name, kills(getattr(owner, name), calls))
        mine_bitext(*files, encoder=NumberEncoder(), folder=tmp_path / "work")

    assert in_child(disturbed) == (-signal.SIGKILL, "")

    encoder = NumberEncoder()
    resumed = run_mining(*files, tmp_path / "work", MiningOptions(), encoder=encoder)
    assert_same_pairs(resumed.pairs, expected)
    assert set(resumed.report["reused"]) == finished_stages
    if name == "encode":  # two probes, then eight shards, of which three were finished
        assert encoded_sentences(encoder) == 110 - 3 * 16

    for side in ("source", "target"):
        file = f"{side}.vectors/vectors.npy"
        vectors = np.load(tmp_path / "work" / file)
        expected_vectors = np.load(tmp_path / "undisturbed" / file)
        np.testing.assert_array_equal(vectors, expected_vectors)


def test_full_disk_and_resumed(files: tuple[Path, Path], tmp_path: Path):
    folder = tmp_path / "work"
    # Texts and states fit below the limit, the vectors of a side do not.
    limit = 2000

    def limited() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        mine_bitext(*files, encoder=NumberEncoder(), folder=folder)

    code, message = in_child(limited)
    assert code == 1
    assert message.startswith("FullDiskError: ")
    assert str(folder) in message
    assert len(list((folder / "source.vectors" / "shards").iterdir())) == 4

    encoder = NumberEncoder()
    resumed = mine_bitext(*files, encoder=encoder, folder=folder)
    assert_same_pairs(resumed, mine_bitext(*files, encoder=NumberEncoder()))
    assert encoded_sentences(encoder) == 0


def test_copies_of_the_work_mine_what_one_process_does(files: tuple[Path, Path], tmp_path: Path):
    shared = mine_bitext(*files, encoder=NumberEncoder(), folder=tmp_path / "shared", runner=Copies())
    assert_same_pairs(shared, mine_bitext(*files, encoder=NumberEncoder()))


@pytest.mark.slow
def test_processes_mine_what_one_does(files: tuple[Path, Path], tmp_path: Path, tiny_export: str):
    shared = mine_bitext(*files, encoder=tiny_export, folder=tmp_path / "shared", runner=LocalPool(2))
    assert_same_pairs(shared, mine_bitext(*files, encoder=tiny_export))


def test_given_vectors_of_skipped_lines_are_ignored(tmp_path: Path) -> None:
    lines = [sentence.encode() for sentence in SOURCE]
    lines[3] = b""
    lines[17] = b"\xff\xfe"
    lines[18] = b"   "
    bad = [3, 17, 18]
    good = np.setdiff1d(np.arange(len(SOURCE)), bad)

    source = tmp_path / "en.txt"
    source.write_bytes(b"\n".join(lines) + b"\n")
    target = write_lines(tmp_path / "fr.txt", TARGET)
    expected = mine_vectors(half(SOURCE)[good], half(TARGET), k=3)

    def run(name: str, *vectors: np.ndarray) -> Any:
        return run_mining(source, target, tmp_path / name, MiningOptions(k=3), vectors=vectors)  # type: ignore[arg-type]

    source_vectors = 3 * half(SOURCE)  # of any length
    source_vectors[bad] = np.nan
    mined = run("work", source_vectors, half(TARGET))
    pairs = mined.pairs
    assert pairs.source.tolist() == good[expected.source].tolist()
    assert pairs.target.tolist() == expected.target.tolist()
    np.testing.assert_allclose(pairs.score, expected.score, rtol=1e-3)

    for row, line in zip(mined.sentences(), pairs.source, strict=True):
        assert row["source"] == SOURCE[line]
        assert row["source_line"] == line + 1

    with pytest.raises(XlsrError, match="60 lines, but 57"):
        run("few", source_vectors[good], half(TARGET))
