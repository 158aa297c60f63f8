"""A package imports only from packages before it in `LAYERS`."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LAYERS = "utils losses data encoders mining evaluation export modeling trainers sentence_transformers runs cli".split()
PLACES = [*(ROOT / "hf_xlsr").iterdir(), ROOT / "modeling", ROOT / "trainers"]
DATA_ONLY = {"recipes", "__pycache__"}


def imported(tree: ast.AST) -> Iterator[str]:
    """Every imported name, also inside functions and under `TYPE_CHECKING`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            # The package as a whole gives every name, also those of packages above.
            yield from ("hf_xlsr.*" if alias.name == "hf_xlsr" else alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def back_edges() -> set[str]:
    found = set()
    for place in PLACES:
        if place.name in DATA_ONLY or not place.is_dir():
            continue
        for file in place.rglob("*.py"):
            for name in imported(ast.parse(file.read_text("utf-8"))):
                parts = name.split(".")
                if parts[0] != "hf_xlsr" or len(parts) < 2:
                    continue
                target = parts[1] if parts[1] in LAYERS else "cli"  # names of the top are above every package
                if LAYERS.index(target) > LAYERS.index(place.name):
                    found.add(f"{file.relative_to(ROOT).with_suffix('')} -> {'.'.join(parts[1:3])}")
    return found


def test_packages_are_the_layers() -> None:
    assert {place.name for place in PLACES if place.is_dir()} - DATA_ONLY == set(LAYERS)
    assert [file.name for file in (ROOT / "hf_xlsr").glob("*.py")] == ["__init__.py"]


def test_imports_point_down() -> None:
    assert not back_edges()


def files_by_name() -> dict[str, Path]:
    """Every file of the package by its dotted name."""
    files = {}
    for place in PLACES:
        for file in place.rglob("*.py"):
            relative = file.relative_to(place.parent).with_suffix("")
            parts = [part for part in relative.parts if part != "__init__"]
            files[".".join(["hf_xlsr", *parts])] = file
    return files


def test_no_circles_between_files() -> None:
    """Also none through imports inside functions, or for annotations."""
    files = files_by_name()
    graph = {}
    for name, file in files.items():
        package = name if file.name == "__init__.py" else name.rpartition(".")[0]
        tree = ast.parse(file.read_text("utf-8"))
        targets = set(imported(tree))
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.level == 1:
                targets |= {f"{package}.{node.module}.{alias.name}" for alias in node.names}
        modules = {target if target in files else target.rpartition(".")[0] for target in targets}
        graph[name] = modules & set(files) - {name}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        raise AssertionError(" -> ".join(error.args[1])) from None
