"""The workflows of the hosting service: actions are pinned to commits, and rights are named."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.version import Version

tomllib = pytest.importorskip("tomllib")  # of Python 3.11

ROOT = Path(__file__).resolve().parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
# The first versions without a fault that became known.
WITHOUT_KNOWN_FAULTS = {
    "filelock": "3.20.3",
    "jinja2": "3.1.6",
    "nbconvert": "7.17",
    "onnx": "1.21",
    "setuptools": "78.1.1",
    "tqdm": "4.66.3",
}


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


def test_only_the_last_job_of_a_release_may_sign() -> None:
    jobs = yaml.safe_load((ROOT / ".github" / "workflows" / "release.yml").read_text("utf-8"))["jobs"]
    *others, last = jobs.values()
    assert all("permissions" not in job for job in others)
    assert last["permissions"]["id-token"] == "write"
    assert sorted(last["needs"]) == sorted(set(jobs) - {"publish"})


def test_job_that_signs_runs_nothing() -> None:
    jobs = yaml.safe_load((ROOT / ".github" / "workflows" / "release.yml").read_text("utf-8"))["jobs"]
    for step in jobs["publish"]["steps"]:
        assert "run" not in step
        assert "checkout" not in step["uses"]


def requirements() -> list[Requirement]:
    """What the package and its extras install, and what builds it."""
    content = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    lines = [*content["build-system"]["requires"], *content["project"]["dependencies"]]
    for extra in content["project"]["optional-dependencies"].values():
        lines += extra
    return [requirement for requirement in map(Requirement, lines) if requirement.name != "hf-xlsr"]


@pytest.mark.parametrize("requirement", requirements(), ids=str)
def test_dependencies_have_a_lower_bound(requirement: Requirement) -> None:
    bounds = [bound.version for bound in requirement.specifier if bound.operator in (">=", "==")]
    assert len(bounds) == 1
    assert Version(bounds[0]) >= Version(WITHOUT_KNOWN_FAULTS.get(requirement.name, "0"))
