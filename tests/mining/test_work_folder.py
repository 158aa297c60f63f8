from __future__ import annotations

import errno
from pathlib import Path

import numpy as np
import pytest

from hf_xlsr.mining.work_folder import WorkFolder, disk_errors, load_arrays, save_arrays, save_rows
from hf_xlsr.utils.errors import XlsrError

INPUTS = {"source": {"name": "/a.txt", "sha256": "1"}, "target": {"name": None, "sha256": "2"}}
PLAN = {"text": {"sha256": "1"}, "pairs": {"text": {"sha256": "1"}, "k": 4}}


def claim(folder: Path, inputs: dict = INPUTS, plan: dict = PLAN, kind: str = "mine") -> dict[str, bool]:
    """Claims the folder and finishes all stages; returns which were finished."""
    work = WorkFolder(folder)
    with work.claim(kind, inputs, plan):
        done = {name: work.stage(name).result is not None for name in plan}
        for name in plan:
            (folder / name / "data").touch()
            work.stage(name).finish(rows=3)
            assert work.stage(name).result == {"rows": 3}
    return done


def test_finished_stages_stay_and_changed_ones_go(tmp_path: Path):
    folder = tmp_path / "work"
    assert claim(folder) == {"text": False, "pairs": False}
    moved = {"source": {"name": "/b.txt", "sha256": "1"}, "target": INPUTS["target"]}  # of the same content
    assert claim(folder, moved) == claim(folder) == {"text": True, "pairs": True}
    (folder / "pairs" / "old").touch()
    assert claim(folder, plan={**PLAN, "pairs": {**PLAN["pairs"], "k": 5}}) == {"text": True, "pairs": False}
    assert not (folder / "pairs" / "old").exists() and (folder / "text" / "data").exists()
    changed = {"source": {"name": "/a.txt", "sha256": "9"}, "target": INPUTS["target"]}
    plan = {"text": {"sha256": "9"}, "pairs": {"text": {"sha256": "9"}, "k": 5}}
    assert claim(folder, changed, plan) == {"text": False, "pairs": False}


@pytest.mark.parametrize(
    ("inputs", "kind"),
    [
        ({"source": {"name": "/b.txt", "sha256": "9"}}, "mine"),
        ({**INPUTS, "target": {"name": None, "sha256": "9"}}, "mine"),
        (INPUTS, "score"),
    ],
)
def test_another_job_is_refused_and_not_harmed(inputs: dict, kind: str, tmp_path: Path):
    claim(tmp_path / "work")
    with pytest.raises(XlsrError, match="another job"):
        claim(tmp_path / "work", inputs, PLAN if inputs == INPUTS else {"text": {"sha256": "9"}}, kind)
    assert claim(tmp_path / "work") == {"text": True, "pairs": True}


def test_job_without_results_of_its_own_is_replaced(tmp_path: Path):
    folder = tmp_path / "work"
    inputs = {side: {"name": f"/{side}.txt", "sha256": side} for side in ("source", "target")}
    plan = {f"{side}.text": {"sha256": side} for side in inputs}
    with WorkFolder(folder).claim("mine", inputs, plan):
        WorkFolder(folder).stage("source.text").finish()
    other = {**inputs, "target": {"name": "/other.txt", "sha256": "other"}}
    assert claim(folder, other, {**plan, "target.text": {"sha256": "other"}}) == {
        "source.text": True,
        "target.text": False,
    }
    with pytest.raises(XlsrError, match="another job"):
        claim(folder, inputs, plan)
    with WorkFolder(tmp_path / "new").claim("score", INPUTS, {"scores": {}, "text": {}}):
        (tmp_path / "new" / "scores" / "old").touch()
    assert claim(tmp_path / "new") == {"text": False, "pairs": False}
    assert not (tmp_path / "new" / "scores").exists()


def test_other_files_and_a_busy_folder_are_refused(tmp_path: Path):
    (tmp_path / "letter.txt").touch()
    for place in (tmp_path, tmp_path / "letter.txt"):
        with pytest.raises(XlsrError, match="other files"):
            claim(place)
    with WorkFolder(tmp_path / "work").claim("mine", INPUTS, PLAN):
        with pytest.raises(XlsrError, match="in use"):
            claim(tmp_path / "work")
    claim(tmp_path / "work")


def test_half_removed_stage_is_unfinished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
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
def test_disk_errors_name_the_place(error: OSError):
    with pytest.raises(XlsrError, match="place"), disk_errors("place"):
        raise error


def test_saved_arrays(tmp_path: Path):
    arrays = {"a": np.arange(6.0).reshape(2, 3), "b": np.empty((0, 3), np.int64), "c": np.eye(3, order="F")}
    save_arrays(tmp_path / "all.npz", **arrays)
    for name, read in load_arrays(tmp_path / "all.npz").items():
        np.testing.assert_array_equal(read, arrays[name])
        assert read.dtype == arrays[name].dtype
    save_rows(tmp_path / "a.npy", (np.full((2, 2), i) for i in range(3)), (6, 2), np.float16)
    assert np.load(tmp_path / "a.npy")[:, 0].tolist() == [0, 0, 1, 1, 2, 2]
    assert {path.name for path in tmp_path.iterdir()} == {"all.npz", "a.npy"}
