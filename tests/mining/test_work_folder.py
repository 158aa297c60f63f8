from __future__ import annotations

from pathlib import Path

import pytest

from hf_xlsr.mining.work_folder import WorkFolder
from hf_xlsr.utils.errors import XlsrError

INPUTS = {"source": {"name": "/a.txt", "sha256": "1"}, "target": {"name": None, "sha256": "2"}}
PLAN = {"text": {"sha256": "1"}, "pairs": {"text": {"sha256": "1"}, "k": 4}}


def claim(folder: Path, inputs: dict = INPUTS, plan: dict = PLAN) -> dict[str, bool]:
    """Claims the folder and finishes all stages; returns which were finished."""
    work = WorkFolder(folder)
    with work.claim("mine", inputs, plan):
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
    assert claim(folder, moved) == {"text": True, "pairs": True}
    assert claim(folder) == {"text": True, "pairs": True}

    (folder / "pairs" / "old").touch()
    assert claim(folder, plan={**PLAN, "pairs": {**PLAN["pairs"], "k": 5}}) == {"text": True, "pairs": False}
    assert not (folder / "pairs" / "old").exists()
    assert (folder / "text" / "data").exists()

    changed = {"source": {"name": "/a.txt", "sha256": "9"}, "target": INPUTS["target"]}
    plan = {"text": {"sha256": "9"}, "pairs": {"text": {"sha256": "9"}, "k": 5}}
    assert claim(folder, changed, plan) == {"text": False, "pairs": False}


def test_other_files_and_a_busy_folder_are_refused(tmp_path: Path):
    (tmp_path / "letter.txt").touch()
    with pytest.raises(XlsrError, match="other files"):
        claim(tmp_path)

    with WorkFolder(tmp_path / "work").claim("mine", INPUTS, PLAN), pytest.raises(XlsrError, match="in use"):
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
