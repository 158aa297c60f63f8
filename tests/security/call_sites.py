"""Every call in the package, from its syntax trees, so that tests find new ones which go around a promise."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class CallSite:
    """A call.

    Attributes:
        place: File and function, such as `hf_xlsr/utils/files.py:atomic_write`.
        name: What is called, such as `path.write_text`.
        node: The call.
        contexts: What the enclosing `with` statements of the function call.
    """

    place: str
    name: str
    node: ast.Call
    contexts: frozenset[str]

    @property
    def method(self) -> str:
        """The last part of the name."""
        return self.name.rpartition(".")[2]

    def option(self, name: str, position: int | None = None) -> ast.expr | None:
        """The value of an argument; None if it is not given."""
        for keyword in self.node.keywords:
            if keyword.arg == name:
                return keyword.value
        if position is not None and position < len(self.node.args):
            return self.node.args[position]
        return None


def source_files() -> list[Path]:
    """The files of the package, without those that a link repeats."""
    files = []
    for package in ("hf_xlsr", "modeling", "trainers"):
        for file in sorted((ROOT / package).rglob("*.py")):
            if not any(parent.is_symlink() for parent in file.parents):
                files.append(file)
    return files


@cache
def call_sites() -> list[CallSite]:
    """All calls of the package."""
    sites: list[CallSite] = []
    for file in source_files():
        tree = ast.parse(file.read_text("utf-8"))
        sites += _calls_in(tree, file.relative_to(ROOT).as_posix(), "", frozenset())
    return sites


def _calls_in(node: ast.AST, file: str, function: str, contexts: frozenset[str]) -> Iterator[CallSite]:
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        function = f"{function}.{node.name}".strip(".")
        contexts = frozenset()
    if isinstance(node, ast.With):
        contexts |= {
            ast.unparse(item.context_expr.func) for item in node.items if isinstance(item.context_expr, ast.Call)
        }
    if isinstance(node, ast.Call):
        yield CallSite(f"{file}:{function}", ast.unparse(node.func), node, contexts)
    for child in ast.iter_child_nodes(node):
        yield from _calls_in(child, file, function, contexts)


def places_of(is_meant: Callable[[CallSite], bool]) -> set[str]:
    """Where calls of a kind are."""
    return {site.place for site in call_sites() if is_meant(site)}
