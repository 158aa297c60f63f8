from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from hf_xlsr.mining.work_folder import WorkFolder
from hf_xlsr.utils.errors import XlsrError


def inputs_of(name: str = "/a.txt", sha256: str = "1") -> dict[str, Any]:
    return {
        "source": {"name": name, "sha256": sha256},
        "target": {"name": None, "sha256": "2"},
    }


def plan_of(sha256: str = "1", k: int = 4) -> dict[str, Any]:
    return {
        "text": {"sha256": sha256},
        "pairs": {"text": {"sha256": sha256}, "k": k},
    }


INPUTS = inputs_of()
PLAN = plan_of()


def claim(folder: Path, inputs: dict[str, Any] = INPUTS, plan: dict[str, Any] = PLAN) -> dict[str, bool]:
    """Claims the folder and finishes all stages; returns which were finished."""
    work = WorkFolder(folder)
    finished = {}
    with work.claim("mine", inputs, plan):
        for name in plan:
            finished[name] = work.stage(name).result is not None
        for name in plan:
            (folder / name / "data").touch()
            work.stage(name).finish(rows=3)
            assert work.stage(name).result == {"rows": 3}
    return finished


def test_finished_stages_stay_and_changed_ones_go(tmp_path: Path):
    folder = tmp_path / "work"
    assert claim(folder) == {"text": False, "pairs": False}

    moved = inputs_of("/b.txt")  # of the same content
    assert claim(folder, moved) == {"text": True, "pairs": True}
    assert claim(folder) == {"text": True, "pairs": True}

    old_file = folder / "pairs" / "old"
    old_file.touch()
    assert claim(folder, plan=plan_of(k=5)) == {"text": True, "pairs": False}
    assert not old_file.exists()
    assert (folder / "text" / "data").exists()

    changed_inputs = inputs_of(sha256="9")
    changed_plan = plan_of(sha256="9", k=5)
    assert claim(folder, changed_inputs, changed_plan) == {"text": False, "pairs": False}


def test_other_files_and_a_busy_folder_are_refused(tmp_path: Path):
    (tmp_path / "letter.txt").touch()
    with pytest.raises(XlsrError, match="other files"):
        claim(tmp_path)

    folder = tmp_path / "work"
    with WorkFolder(folder).claim("mine", INPUTS, PLAN), pytest.raises(XlsrError, match="in use"):
        claim(folder)
    claim(folder)


def test_half_removed_stage_is_unfinished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    folder = tmp_path / "work"
    claim(folder)

    remove = shutil.rmtree

    def interrupt(path: Path, **options: Any) -> None:
        if Path(path).name in PLAN:
            raise KeyboardInterrupt
        remove(path, **options)

    with monkeypatch.context() as patch:
        patch.setattr("shutil.rmtree", interrupt)
        with pytest.raises(KeyboardInterrupt):
            claim(folder, plan=plan_of(k=6))

    assert claim(folder) == {"text": True, "pairs": False}
