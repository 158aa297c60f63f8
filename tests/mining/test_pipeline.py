from __future__ import annotations

import importlib
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mined_helpers import SOURCE, TARGET, half, same
from mining_fakes import NumberEncoder, in_child, write_lines

from hf_xlsr.encoders.encoding import embed
from hf_xlsr.mining import encode_stage, pipeline, stages, work_folder
from hf_xlsr.mining.encode_stage import PROBES
from hf_xlsr.mining.pipeline import MiningSettings, mine_bitext, run_mining
from hf_xlsr.mining.search.extraction import MinedBitext, mine_vectors
from hf_xlsr.utils.errors import XlsrError


@pytest.fixture(autouse=True)
def small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encode_stage, "SMALLEST_SHARD", 16)


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    return write_lines(tmp_path / "en.txt", SOURCE), write_lines(tmp_path / "fr.txt", TARGET)


def test_mines_what_its_parts_mine(files: tuple[Path, Path]):
    mined = mine_bitext(*files, encoder=NumberEncoder(), k=3, threshold=1.1)
    same(mined, mine_vectors(half(SOURCE), half(TARGET), k=3, threshold=1.1))
    found = {(SOURCE[i].split()[1], TARGET[j].split()[1]) for i, j in zip(mined.source, mined.target, strict=True)}
    assert len(found) > 30 and sum(x == y for x, y in found) >= 0.9 * len(found)


@pytest.mark.parametrize(
    "options",
    [
        {"margin": "distance", "retrieval": "intersection"},
        {"one_to_one": False, "retrieval": "forward", "max_pairs": 7},
        # Ample, as the budget counts all that the process of the tests holds.
        {"prompt": "query: ", "batch_size": 3, "memory": "64GB", "method": "exact"},
    ],
)
def test_options_reach_the_parts(options: dict[str, Any]):
    mined = mine_bitext(SOURCE, TARGET, encoder=NumberEncoder(), **options)
    prompt = options.get("prompt", "")
    plain = {name: value for name, value in options.items() if name not in ("prompt", "batch_size", "memory")}
    same(
        mined,
        mine_vectors(half([prompt + text for text in SOURCE]), half([prompt + text for text in TARGET]), **plain),
    )


def test_lines_are_those_of_the_file_and_duplicates_go_by_name(tmp_path: Path):
    source = write_lines(tmp_path / "en.txt", ["", "en 1", "en 2", "en 1", "en 3"])
    target = write_lines(tmp_path / "fr.txt", ["fr 3", "fr 3", " ", "fr 1", "fr 2"])

    def pairs(**options: Any) -> set[tuple[int, int]]:
        mined = mine_bitext(source, target, encoder=NumberEncoder(noise=0.05), k=2, **options)
        return set(zip(mined.source.tolist(), mined.target.tolist(), strict=True))

    assert pairs() == pairs(duplicates="merge") == {(1, 3), (2, 4), (4, 0)}
    assert pairs(duplicates="drop", threshold=1.05) == {(2, 4)}
    kept = pairs(duplicates="keep", one_to_one=False, retrieval="forward")
    assert kept == {(1, 3), (3, 3), (2, 4), (4, 0)}


def test_matrices_are_mined_as_they_are_or_brought_to_length_one(tmp_path: Path):
    source, target = embed(NumberEncoder(), SOURCE), embed(NumberEncoder(), TARGET)
    expected = mine_vectors(source, target)
    same(mine_bitext(source, target), expected)
    longer = mine_bitext(3 * source.astype(np.float64), target)
    np.testing.assert_array_equal(longer.source, expected.source)
    np.testing.assert_allclose(longer.score, expected.score, rtol=1e-6)
    np.save(tmp_path / "s.npy", source)
    mapped = np.load(tmp_path / "s.npy", mmap_mode="r")
    same(mine_bitext(mapped, target, folder=tmp_path / "work"), expected)
    assert not (tmp_path / "work" / "source.vectors" / "vectors.npy").exists()


def test_vectors_of_the_lines_stand_in_for_an_encoder(files: tuple[Path, Path], tmp_path: Path):
    settings = MiningSettings(vectors=(half(SOURCE), half(TARGET)))
    run = run_mining(*files, tmp_path / "work", settings)
    same(run.pairs, mine_bitext(*files, encoder=NumberEncoder()))
    best = next(run.sentences())
    assert (best["source"], best["target"]) == (SOURCE[run.pairs.source[0]], TARGET[run.pairs.target[0]])
    assert (best["source_line"], best["target_line"]) == (run.pairs.source[0] + 1, run.pairs.target[0] + 1)


def test_only_what_changed_is_done_again(files: tuple[Path, Path], tmp_path: Path):
    folder = tmp_path / "work"

    def run(**options: Any) -> tuple[int, dict[str, Any]]:
        encoder = NumberEncoder()
        done = run_mining(*files, folder, MiningSettings(encoder=encoder, **options))
        same(done.pairs, mine_bitext(*files, encoder=NumberEncoder(), **options))
        return sum(map(len, encoder.calls)) - len(PROBES), done.report

    assert run()[0] == 110
    sentences, report = run()
    assert sentences == 0 and report["seconds"].keys() <= {"encode"} and "pairs" in report["reused"]
    sentences, report = run(threshold=1.2)
    assert sentences == 0 and "pairs" not in report["reused"] and "neighbours" in report["reused"]
    assert run(k=2)[0] == 0
    write_lines(files[1], TARGET[:30])
    assert run()[0] == 30
    assert run(prompt="q: ")[0] == 90
    assert run(duplicates="keep")[0] == 90
    with pytest.raises(XlsrError, match="work folder .* holds another job, with .*fr.txt as target; choose another"):
        mine_bitext(files[0], SOURCE, encoder=NumberEncoder(), folder=folder)


def test_routes_go_by_language():
    class Routed(NumberEncoder):
        routes = ("en", "fr")
        tasks: list[str] = []

        def encode(self, texts: Any, **options: Any) -> np.ndarray:
            self.tasks.append(options["task"])
            return super().encode(texts, **options)

    encoder = Routed()
    mine_bitext(SOURCE, TARGET, encoder=encoder, languages=("eng", "fra"))
    # One sentence of each language tells the encoder from others.
    assert encoder.tasks == ["en", "fr", *["en"] * 4, *["fr"] * 4]
    with pytest.raises(XlsrError, match="but the sentences' language was not given; name the languages"):
        mine_bitext(SOURCE, TARGET, encoder=Routed())


def test_a_change_of_one_route_encodes_its_side_again(files: tuple[Path, Path], tmp_path: Path):
    class Routed(NumberEncoder):
        routes = ("en", "fr")

        def __init__(self, noise: float) -> None:
            super().__init__()
            self.noises = {"en": 0.3, "fr": noise}
            self.tasks: list[str] = []

        def encode(self, texts: Any, **options: Any) -> np.ndarray:
            self.tasks.append(options["task"])
            self.noise = self.noises[options["task"]]
            return super().encode(texts)

    options: dict[str, Any] = {"languages": ("en", "fr")}
    mine_bitext(*files, encoder=Routed(0.3), folder=tmp_path / "work", **options)
    changed = Routed(0.6)
    mined = mine_bitext(*files, encoder=changed, folder=tmp_path / "work", **options)
    assert changed.tasks[2:] == ["fr"] * 4
    same(mined, mine_bitext(*files, encoder=Routed(0.6), **options))


def test_after_an_empty_file_the_right_one_is_taken(files: tuple[Path, Path], tmp_path: Path):
    empty = write_lines(tmp_path / "empty.txt", [])
    expected = mine_bitext(*files, encoder=NumberEncoder())
    for number, wrong in enumerate([(files[0], empty), (empty, files[1])]):
        folder = tmp_path / f"work {number}"
        with pytest.raises(XlsrError, match="empty.txt has no sentence: it is empty"):
            mine_bitext(*wrong, encoder=NumberEncoder(), folder=folder)
        same(mine_bitext(*files, encoder=NumberEncoder(), folder=folder), expected)
    with pytest.raises(XlsrError, match="holds another job, .* choose another folder .--work., or remove that one."):
        mine_bitext(files[0], empty, encoder=NumberEncoder(), folder=folder)


ENCODED = {"source.text", "target.text", "source.vectors", "target.vectors"}


# Killed within each stage, a job goes on to the same result.


def kills(function: Callable[..., Any], calls: int) -> Callable[..., Any]:
    """The function, which kills its process at that call."""
    count = 0

    def killing(*arguments: Any, **options: Any) -> Any:
        nonlocal count
        count += 1
        if count == calls:
            os.kill(os.getpid(), signal.SIGKILL)
        return function(*arguments, **options)

    return killing


@pytest.mark.parametrize(
    ("place", "name", "calls", "done"),
    [
        (stages, "read_texts", 2, {"source.text"}),
        ("texts", "hash64", 100, {"source.text"}),
        (NumberEncoder, "encode", 5, {"source.text", "target.text"}),
        (encode_stage, "_write_all", 8, {"source.text", "target.text", "source.vectors"}),
        (pipeline, "neighbours_both_ways", 1, ENCODED),
        ("search.block_search", "settle", 1, ENCODED),
        (pipeline, "extract_pairs", 1, ENCODED | {"neighbours"}),
        (pipeline, "save_array", 3, ENCODED | {"neighbours"}),
        (work_folder, "_write_json", 3, set()),
    ],
)
def test_killed_and_resumed_equals_undisturbed(
    place: Any, name: str, calls: int, done: set[str], files: tuple[Path, Path], tmp_path: Path
):
    expected = mine_bitext(*files, encoder=NumberEncoder(), folder=tmp_path / "undisturbed")
    folder = tmp_path / "work"

    module = importlib.import_module(f"hf_xlsr.mining.{place}") if isinstance(place, str) else place

    def disturbed() -> None:
        setattr(module, name, kills(getattr(module, name), calls))
        mine_bitext(*files, encoder=NumberEncoder(), folder=folder)

    assert in_child(disturbed) == (-signal.SIGKILL, "")
    encoder = NumberEncoder()
    resumed = run_mining(*files, folder, MiningSettings(encoder=encoder))
    same(resumed.pairs, expected)
    for side in ("source", "target"):
        vectors = [np.load(tmp_path / run / f"{side}.vectors" / "vectors.npy") for run in ("undisturbed", "work")]
        np.testing.assert_array_equal(*vectors)
    assert set(resumed.report["reused"]) == done
    if name == "encode":  # its first call tells the encoder from others; of eight shards three were done
        assert sum(map(len, encoder.calls)) - len(PROBES) == 110 - 3 * 16


def test_a_full_disk_is_told_and_resumed(files: tuple[Path, Path], tmp_path: Path):
    folder = tmp_path / "work"
    # Texts and manifests fit below the limit, the vectors of a side do not.
    limit = 128 + 2 * 24 * 40

    def limited() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        mine_bitext(*files, encoder=NumberEncoder(), folder=folder, prompt="")

    code, message = in_child(limited)
    assert code == 1
    assert message == (
        f"XlsrError: the disk that holds {folder} is full, or a limit on file size is reached; what was finished is "
        "kept: make room, then give the same command again."
    )
    assert len(list((folder / "source.vectors" / "shards").iterdir())) == 2
    encoder = NumberEncoder()
    same(mine_bitext(*files, encoder=encoder, folder=folder), mine_bitext(*files, encoder=NumberEncoder()))
    assert sum(map(len, encoder.calls)) - len(PROBES) == 110 - 32


WORKER = """
import sys
from pathlib import Path
import numpy as np
sys.path.insert(0, sys.argv[1])
from mined_helpers import SOURCE, TARGET, half, same
from mining_fakes import NumberEncoder
from hf_xlsr.mining import encode_stage
from hf_xlsr.mining.pipeline import MiningSettings, run_mining
encode_stage.SMALLEST_SHARD = 16
encoder = NumberEncoder()
folder = Path(sys.argv[2])
run = run_mining(folder / "en.txt", folder / "fr.txt", folder / "two", MiningSettings(encoder=encoder))
sentences = sum(map(len, encoder.calls))
rank = run.report["processes"], 0 if run.leader else 1
np.savez(folder / f"{rank[1]}.npz", source=run.pairs.source, target=run.pairs.target, score=run.pairs.score,
         processes=rank[0], sentences=sentences)
"""


def test_two_processes_share_the_encoding_and_find_what_one_finds(files: tuple[Path, Path], tmp_path: Path):
    script = tmp_path / "worker.py"
    script.write_text(WORKER)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", str(script)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    command += [str(Path(__file__).parent), str(tmp_path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    expected = mine_bitext(*files, encoder=NumberEncoder(), folder=tmp_path / "one")
    results = [np.load(tmp_path / f"{rank}.npz") for rank in range(2)]
    for result in results:
        same(MinedBitext(result["source"], result["target"], result["score"]), expected)
        assert result["processes"] == 2
    # Shards of 16: four of the source, four of the target, taken in turn; the first process also knows the encoder.
    assert [int(result["sentences"]) for result in results] == [len(PROBES) + 32 + 32, 28 + 18]


def test_small_sides(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    one = mine_bitext(["en 1"], ["fr 1"], encoder=NumberEncoder(), k=4)
    assert (one.source.tolist(), one.target.tolist()) == ([0], [0])
    assert one.score.tolist() == [1.0]
    caplog.clear()
    run = run_mining(["en 1", "en 2"], ["fr 1"], tmp_path / "work", MiningSettings(encoder=NumberEncoder(), k=2))
    assert run.report["neighbours"] == {"source": 1, "target": 2} and len(run.pairs) == 1
    assert caplog.messages == ["k is 2, but source sentences have only 1 to be compared with: k is cut."]


def test_identical_vectors_pair_in_order():
    ones = np.ones((4, 3))
    mined = mine_bitext(ones, ones[:3])
    assert (mined.source.tolist(), mined.target.tolist()) == ([0], [0])  # all propose the first of the other side
    np.testing.assert_allclose(mined.score, 1)


@pytest.mark.parametrize("scale", [1.0, 3.0], ids=["unit vectors", "others"])
def test_lines_that_are_skipped_are_not_mined_by_their_vectors(scale: float, tmp_path: Path) -> None:
    bad = np.array([3, 17, 18])
    lines = [sentence.encode() for sentence in SOURCE]
    for line, content in zip(bad, (b"", b"\xff\xfe", b"   "), strict=True):
        lines[line] = content
    (source := tmp_path / "en.txt").write_bytes(b"\n".join(lines) + b"\n")
    target = write_lines(tmp_path / "fr.txt", TARGET)
    vectors = (scale * half(SOURCE), half(TARGET))
    vectors[0][bad] = np.nan  # whatever stands there
    run = run_mining(source, target, tmp_path / "work", MiningSettings(vectors=vectors, k=3))
    good = np.setdiff1d(np.arange(len(SOURCE)), bad)
    expected = mine_vectors(half(SOURCE)[good], half(TARGET), k=3)
    assert run.pairs.source.tolist() == good[expected.source].tolist()
    assert run.pairs.target.tolist() == expected.target.tolist()
    np.testing.assert_allclose(run.pairs.score, expected.score, rtol=1e-3)
    assert run.report["source"]["sentences"] == len(good) and run.report["source"]["lines"] == len(SOURCE)
    assert [row["source"] for row in run.sentences()] == [SOURCE[line].rstrip() for line in run.pairs.source]
    again = run_mining(source, target, tmp_path / "work", MiningSettings(vectors=vectors, k=3))
    same(again.pairs, run.pairs)
    vectors[0][5] = 0
    with pytest.raises(XlsrError, match=r"the vector of line 6 of .*en.txt is all zeros"):
        run_mining(source, target, tmp_path / "zeros", MiningSettings(vectors=vectors, k=3))
    with pytest.raises(XlsrError, match=r"en.txt has 60 lines, but 57 vectors are given"):
        run_mining(source, target, tmp_path / "few", MiningSettings(vectors=(vectors[0][good], vectors[1]), k=3))
