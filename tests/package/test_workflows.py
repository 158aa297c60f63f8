"""The workflows of the hosting service: actions are pinned to commits, and rights are named."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

tomllib = pytest.importorskip("tomllib")  # of Python 3.11

ROOT = Path(__file__).resolve().parents[2]
REQUIREMENTS = ROOT / ".github" / "requirements.txt"
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


def test_every_requirement_has_hashes() -> None:
    for requirement in _pinned_requirements().values():
        assert "--hash=sha256:" in requirement


def test_requirements_are_those_of_the_constraints() -> None:
    pinned = _pinned_requirements()
    for line in (ROOT / "constraints.txt").read_text("utf-8").splitlines():
        if line.startswith("#"):
            continue
        name, _, version = line.partition("==")
        assert f"=={version} " in pinned[canonicalize_name(name)]


def test_requirements_hold_what_the_package_needs_for_work_on_it() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    needed = [Requirement(text) for text in project["dependencies"] + project["optional-dependencies"]["dev"]]
    pinned = _pinned_requirements()
    for requirement in needed:
        assert requirement.name == "hf-xlsr" or canonicalize_name(requirement.name) in pinned


def _pinned_requirements() -> dict[str, str]:
    """Name -> version and hashes, of what the hosted workflows install."""
    lines = REQUIREMENTS.read_text("utf-8").replace("\\\n", " ").splitlines()
    return {canonicalize_name(line.partition("==")[0]): line for line in lines}
