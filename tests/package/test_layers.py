"""A package imports only from packages before it in `LAYERS`."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LAYERS = "utils losses data encoders mining evaluation export modeling trainers sentence_transformers runs cli".split()
DATA_ONLY = {"recipes", "__pycache__"}


def package_folders() -> list[Path]:
    folders = [ROOT / "modeling", ROOT / "trainers"]
    for path in (ROOT / "hf_xlsr").iterdir():
        if path.is_dir() and not path.is_symlink() and path.name not in DATA_ONLY:
            folders.append(path)
    return folders


def imported_names(file: Path, package: str = "hf_xlsr") -> Iterator[str]:
    """Every imported name, also inside functions and under `TYPE_CHECKING`."""
    for node in ast.walk(ast.parse(file.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            for alias in node.names:
                # The package as a whole gives every name, also those of packages above.
                yield "hf_xlsr.*" if alias.name == "hf_xlsr" else alias.name
        elif isinstance(node, ast.ImportFrom):
            module = f"{package}.{node.module}" if node.level else node.module
            for alias in node.names:
                yield f"{module}.{alias.name}"


def back_edges() -> set[str]:
    edges = set()
    for folder in package_folders():
        for file in folder.rglob("*.py"):
            package = ".".join(["hf_xlsr", *file.relative_to(folder.parent).parent.parts])
            for name in imported_names(file, package):
                if not name.startswith("hf_xlsr."):
                    continue
                target = name.split(".")[1]
                if target not in LAYERS:
                    target = "cli"  # names of the top are above every package
                if LAYERS.index(target) > LAYERS.index(folder.name):
                    edges.add(f"{file.relative_to(ROOT)} -> {name}")
    return edges


def test_packages_are_the_layers() -> None:
    assert sorted(folder.name for folder in package_folders()) == sorted(LAYERS)
    assert list((ROOT / "hf_xlsr").glob("*.py")) == [ROOT / "hf_xlsr" / "__init__.py"]


def test_imports_point_down() -> None:
    assert not back_edges()


def files_by_name() -> dict[str, Path]:
    """Every file of the package by its dotted name."""
    files = {}
    for folder in package_folders():
        for file in folder.rglob("*.py"):
            relative = file.relative_to(folder.parent).with_suffix("")
            name = ".".join(["hf_xlsr", *relative.parts])
            files[name.removesuffix(".__init__")] = file
    return files


def test_no_circles_between_files() -> None:
    """Also none through imports inside functions, or for annotations."""
    files = files_by_name()
    graph = {}
    for name, file in files.items():
        package = name if file.name == "__init__.py" else name.rpartition(".")[0]
        modules = set()
        for target in imported_names(file, package):
            modules.add(target if target in files else target.rpartition(".")[0])
        graph[name] = modules & set(files) - {name}

    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        raise AssertionError(" -> ".join(error.args[1])) from None
