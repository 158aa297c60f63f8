from __future__ import annotations

import errno
import json
from pathlib import Path

import numpy as np
import pytest

from hf_xlsr.mining.work_folder import WorkFolder, disk_errors, save_array, save_rows
from hf_xlsr.utils.errors import XlsrError

INPUTS = {"source": {"name": "/a.txt", "sha256": "1"}, "target": {"name": None, "sha256": "2"}}
PLAN = {"text": {"sha256": "1"}, "pairs": {"text": {"sha256": "1"}, "k": 4}}


def claim(folder: Path, inputs: dict = INPUTS, plan: dict = PLAN, kind: str = "mine") -> dict[str, bool]:
    """Takes the folder, and does every stage that is not done; says which were."""
    work = WorkFolder(folder)
    with work.claim(kind, inputs, plan):
        done = {stage: work.result(stage) is not None for stage in plan}
        for stage in plan:
            (folder / stage / "data").touch()
            work.finish(stage, {"rows": 3})
            assert work.result(stage) == {"rows": 3}
    return done


def test_done_stages_stay_done_and_changed_ones_go(tmp_path: Path):
    folder = tmp_path / "work"
    assert claim(folder) == {"text": False, "pairs": False}
    assert claim(folder) == {"text": True, "pairs": True}
    other_k = {**PLAN, "pairs": {**PLAN["pairs"], "k": 5}}
    (folder / "pairs" / "left over").touch()
    assert claim(folder, plan=other_k) == {"text": True, "pairs": False}
    assert not (folder / "pairs" / "left over").exists() and (folder / "text" / "data").exists()
    changed = {"source": {"name": "/a.txt", "sha256": "9"}, "target": INPUTS["target"]}
    plan = {"text": {"sha256": "9"}, "pairs": {"text": {"sha256": "9"}, "k": 5}}
    assert claim(folder, changed, plan) == {"text": False, "pairs": False}


def test_the_same_content_elsewhere_is_the_same_job(tmp_path: Path):
    claim(tmp_path / "work")
    moved = {"source": {"name": "/b.txt", "sha256": "1"}, "target": INPUTS["target"]}
    assert claim(tmp_path / "work", moved) == {"text": True, "pairs": True}


@pytest.mark.parametrize(
    ("inputs", "kind", "message"),
    [
        (
            {"source": {"name": "/b.txt", "sha256": "9"}},
            "mine",
            "holds another job, with /a.txt as source; choose another folder .--work., or remove that one.",
        ),
        ({**INPUTS, "target": {"name": None, "sha256": "9"}}, "mine", "another job, with other sentences as target"),
        (INPUTS, "score", "holds another job, with /a.txt as source"),
    ],
)
def test_another_job_is_refused_and_not_harmed(inputs: dict, kind: str, message: str, tmp_path: Path):
    claim(tmp_path / "work")
    plan = PLAN if inputs == INPUTS else {"text": {"sha256": "9"}}
    with pytest.raises(XlsrError, match=message):
        claim(tmp_path / "work", inputs, plan, kind)
    assert claim(tmp_path / "work") == {"text": True, "pairs": True}


def test_a_job_that_finished_nothing_of_its_own_gives_way(tmp_path: Path):
    folder = tmp_path / "work"
    inputs = {side: {"name": f"/{side}.txt", "sha256": side} for side in ("source", "target")}
    plan = {f"{side}.text": {"sha256": side} for side in inputs}
    with WorkFolder(folder).claim("mine", inputs, plan):
        WorkFolder(folder).finish("source.text")
    other = {**inputs, "target": {"name": "/other.txt", "sha256": "other"}}
    other_plan = {**plan, "target.text": {"sha256": "other"}}
    # What was done is the new job's as well.
    assert claim(folder, other, other_plan) == {"source.text": True, "target.text": False}
    with pytest.raises(XlsrError, match="holds another job, with /other.txt as target"):
        claim(folder, inputs, plan)


def test_a_job_of_another_kind_without_results_leaves_nothing(tmp_path: Path):
    with WorkFolder(tmp_path / "work").claim("score", INPUTS, {"scores": {}, "text": {}}):
        (tmp_path / "work" / "scores" / "left over").touch()
    assert claim(tmp_path / "work") == {"text": False, "pairs": False}
    assert not (tmp_path / "work" / "scores").exists()


def test_other_files_and_a_busy_folder_are_refused(tmp_path: Path):
    (tmp_path / "letter.txt").touch()
    with pytest.raises(XlsrError, match="is taken by other files; choose another."):
        claim(tmp_path)
    with pytest.raises(XlsrError, match="is taken by other files"):
        claim(tmp_path / "letter.txt")
    with WorkFolder(tmp_path / "work").claim("mine", INPUTS, PLAN):
        with pytest.raises(XlsrError, match="is in use by another process; wait for it"):
            claim(tmp_path / "work")
    claim(tmp_path / "work")


def test_a_stage_that_is_half_removed_does_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    claim(tmp_path / "work")

    def dies(path: Path) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("shutil.rmtree", dies)
        with pytest.raises(KeyboardInterrupt):
            claim(tmp_path / "work", plan={**PLAN, "pairs": {"k": 6}})
    assert claim(tmp_path / "work") == {"text": True, "pairs": False}


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "No space left on device"),
        OSError(errno.EFBIG, "File too large"),
        OSError("1000 requested and 12 written"),
    ],
)
def test_a_full_disk_is_one_sentence(error: OSError):
    with pytest.raises(
        XlsrError, match="the disk that holds place is full, or a limit on file size .* make room, then"
    ):
        with disk_errors("place"):
            raise error


def test_what_must_not_be_written_is_told_and_the_rest_goes_through():
    with pytest.raises(XlsrError, match="place cannot be written .Permission denied: there.; choose another place."):
        with disk_errors("place"):
            raise PermissionError(errno.EACCES, "Permission denied", "there")
    for number, reason in (
        (errno.EROFS, "Read-only file system"),
        (errno.EISDIR, "Is a directory"),
        (errno.ENOTDIR, "Not a directory"),
        (errno.EEXIST, "Not a directory"),
        (errno.ENOENT, "No such file or directory"),
    ):
        with pytest.raises(XlsrError, match=f"^place cannot be written .{reason}: place/x.; choose another place.$"):
            with disk_errors("place"):
                raise OSError(number, "File exists" if number == errno.EEXIST else reason, "place/x")
    with pytest.raises(FileNotFoundError, match="vocabulary"):  # an encoder's own trouble
        with disk_errors("place"):
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", "/models/vocabulary")
    with pytest.raises(OSError, match="Input/output"):
        with disk_errors("place"):
            raise OSError(errno.EIO, "Input/output error")


@pytest.mark.parametrize("array", [np.arange(6.0).reshape(2, 3), np.empty((0, 3), np.int64), np.eye(3, order="F")])
def test_arrays_are_numpys(array: np.ndarray, tmp_path: Path):
    save_array(tmp_path / "a.npy", array)
    read = np.load(tmp_path / "a.npy")
    np.testing.assert_array_equal(read, array)
    assert read.dtype == array.dtype and [path.name for path in tmp_path.iterdir()] == ["a.npy"]


def test_rows_are_converted_block_by_block(tmp_path: Path):
    save_rows(tmp_path / "a.npy", (np.full((2, 2), i) for i in range(3)), (6, 2), np.float16)
    assert np.load(tmp_path / "a.npy")[:, 0].tolist() == [0, 0, 1, 1, 2, 2]


def test_notes_are_json(tmp_path: Path):
    claim(tmp_path / "work")
    note = json.loads((tmp_path / "work" / "pairs" / "stage.json").read_text())
    assert note == {"settings": PLAN["pairs"], "done": True, "result": {"rows": 3}}
