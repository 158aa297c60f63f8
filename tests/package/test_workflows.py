"""The workflows of the hosting service: actions are pinned to commits, and rights are named."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

WORKFLOWS = sorted((Path(__file__).resolve().parents[2] / ".github" / "workflows").glob("*.yml"))


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_actions_are_pinned_and_rights_named(path: Path) -> None:
    text = path.read_text("utf-8")
    workflow = yaml.safe_load(text)
    assert workflow["permissions"] == {"contents": "read"}
    assert workflow["jobs"]

    actions = re.findall(r"uses: (\S+)(.*)$", text, re.MULTILINE)
    assert actions
    for action, comment in actions:
        assert re.search(r"@[0-9a-f]{40}$", action)
        assert "# v" in comment

    makefile = (path.parents[2] / "Makefile").read_text("utf-8")
    targets = re.findall(r"^([a-z-]+):", makefile, re.MULTILINE)
    assert set(re.findall(r"make ([a-z-]+)", text)) <= set(targets)
