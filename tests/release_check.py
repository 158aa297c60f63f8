"""Builds the distributions, checks what they hold, and uses them in clean environments; `make release-check` runs it.

usage: python tests/release_check.py [--versions newest lowest] [--torch 2.13.0] [--keep FOLDER | --given FOLDER]
                                     [--history FILE]

A release stops where a speed case became slower, or needs more memory, by more than a tenth; see benchmarks/history.py.

`lowest` installs the lower bound of each dependency that pyproject.toml names, also of those of the extras, `newest`
whatever the installer finds. `--given` takes distributions that are already built.
torch is over two gigabytes where it comes with CUDA: `--torch` takes one version of it in all environments.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import venv
import zipfile
from collections.abc import Sequence
from email.parser import Parser
from hashlib import sha256
from pathlib import Path

import tomllib
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parent.parent
IN_WHEEL = (
    "hf_xlsr/__init__.py",
    "hf_xlsr/py.typed",
    "hf_xlsr/recipes/quickstart.yaml",
    "hf_xlsr/model_cards/card.md.jinja",
    "hf_xlsr/modeling/cmlm/modeling_cmlm.py",
    "hf_xlsr/trainers/base.py",
)
IN_SDIST = ("pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "CITATION.cff", "hf_xlsr/encoders/stock.py")
NOT_USED = {"all", "dev", "docs"}  # extras that name others, or are for work on the package
OUTSIDE = re.compile(r"(^|/)(tests|benchmarks|docs|outputs|\.venv|__pycache__)/")


class Wrong(Exception):
    """A release that must not go out; the message says why."""


def run(command: list[str], **options: object) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False, **options)  # type: ignore[call-overload]
    if done.returncode:
        raise Wrong(f"{' '.join(command[:6])} ended with {done.returncode}:\n{(done.stdout + done.stderr)[-4000:]}")
    return str(done.stdout)


def build(folder: Path) -> tuple[Path, Path]:
    """The sdist, and the wheel that is built from the sdist, so that the sdist is known to hold everything."""
    commit_time = run(["git", "log", "-1", "--format=%ct"], cwd=ROOT).strip()
    environment = {**os.environ, "SOURCE_DATE_EPOCH": commit_time}
    with tempfile.TemporaryDirectory() as second_folder:
        for output in (str(folder), second_folder):
            run([sys.executable, "-m", "build", "--outdir", output, str(ROOT)], env=environment)
        (wheel,) = folder.glob("*.whl")
        (sdist,) = folder.glob("*.tar.gz")
        content = wheel.read_bytes()
        if (Path(second_folder) / wheel.name).read_bytes() != content:
            raise Wrong("two builds of the same commit give different wheels.")

    print(f"sha256   {sha256(content).hexdigest()} (two builds)")
    run([sys.executable, "-m", "twine", "check", "--strict", str(wheel), str(sdist)])
    return wheel, sdist


def check_contents(wheel: Path, sdist: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        (metadata_name,) = [name for name in names if name.endswith(".dist-info/METADATA")]
        metadata = Parser().parsestr(archive.read(metadata_name).decode("utf-8"))
    with tarfile.open(sdist) as packed:
        source = [name.partition("/")[2] for name in packed.getnames()]

    recipes = [f"hf_xlsr/recipes/{path.name}" for path in (ROOT / "hf_xlsr" / "recipes").glob("*.yaml")]
    check_missing("wheel", [*IN_WHEEL, *recipes], names)
    check_missing("sdist", IN_SDIST, source)
    for name in names:
        if OUTSIDE.search(name) or not name.startswith(("hf_xlsr/", "hf_xlsr-")):
            raise Wrong(f"the wheel holds {name}, which does not belong there.")

    version = metadata["Version"]
    for name, line in (("CHANGELOG.md", rf"^## {version}\b"), ("CITATION.cff", rf"^version: {version}$")):
        if not re.search(line, (ROOT / name).read_text("utf-8"), re.MULTILINE):
            raise Wrong(f"the wheel is version {version}, and {name} names another.")
    given_keys = [key for key, value in metadata.items() if value]
    check_missing("metadata", ("Summary", "License-Expression", "Requires-Python", "Keywords"), given_keys)


def check_missing(kind: str, needed: Sequence[str], present: Sequence[str]) -> None:
    missing = sorted(set(needed) - set(present))
    if missing:
        raise Wrong(f"the {kind} lacks {', '.join(missing)}.")


def lowest_versions() -> list[str]:
    """The lower bound of every dependency, as constraints."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    extras = project["optional-dependencies"]
    named = list(project["dependencies"])
    for extra in extras.keys() - NOT_USED:
        named += extras[extra]
    lowest = []
    for requirement in map(Requirement, named):
        bounds = [bound.version for bound in requirement.specifier if bound.operator in (">=", "==")]
        lowest += [f"{requirement.name}=={bound}" for bound in bounds]
    return lowest


def speed(history: Path | None) -> str:
    """Compares the newest results of the speed cases with earlier ones on the same kind of machine."""
    command = [sys.executable, "-m", "benchmarks.history", "--check"]
    if history:
        command += ["--history", str(history.resolve())]
    return run(command, cwd=ROOT).strip()


def use(wheel: Path, versions: str, torch: str | None, folder: Path) -> str:
    """Installs the wheel into a new environment, runs the smoke test there, and returns what it printed."""
    venv.create(folder)
    python = str(folder / "bin" / "python")
    constraints = lowest_versions() if versions == "lowest" else []
    if torch:
        constraints = [line for line in constraints if not line.startswith("torch==")]
        constraints.append(f"torch=={torch}")
    bounds = folder / "constraints.txt"
    bounds.write_text("\n".join(constraints), "utf-8")

    # uv, since pip searches for hours where many packages have a lowest version.
    uv = [sys.executable, "-m", "uv", "pip"]
    run([*uv, "install", "--quiet", "--python", python, "--constraint", str(bounds), f"{wheel}[all,bible]"])
    run([*uv, "check", "--quiet", "--python", python])
    smoke = folder / "smoke.py"
    smoke.write_bytes((ROOT / "tests" / "smoke.py").read_bytes())
    # Isolated: neither this folder nor the user's own packages are seen.
    return run([python, "-I", str(smoke), str(folder / "work")], cwd=folder)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--versions", nargs="*", choices=["newest", "lowest"], default=["newest", "lowest"])
    parser.add_argument("--torch", help="version of torch in every environment")
    place = parser.add_mutually_exclusive_group()
    place.add_argument("--keep", type=Path, help="folder that the distributions are left in")
    place.add_argument("--given", type=Path, help="folder with distributions, which are checked instead of new ones")
    parser.add_argument("--history", type=Path, help="results of `python -m benchmarks CASE`, if not in outputs/")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        dist = options.keep or Path(temporary) / "dist"
        try:
            if options.given:
                (wheel,) = options.given.glob("*.whl")
                (sdist,) = options.given.glob("*.tar.gz")
            else:
                wheel, sdist = build(dist)
                print(f"built    {wheel.name}, {sdist.name}")
            check_contents(wheel, sdist)
            print("contents versions, recipes, cards and metadata agree")
            print(f"speed    {speed(options.history)}")
            for versions in options.versions:
                print(f"{versions:8} {use(wheel, versions, options.torch, Path(temporary) / versions).strip()}")
        except Wrong as error:
            print(f"release-check: {error}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
