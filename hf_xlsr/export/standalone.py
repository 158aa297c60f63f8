"""One file of code that runs without this package, made of the package's own sources, so that the two cannot differ."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from typing import Any

PACKAGE = "hf_xlsr"
_HEADER = '"""{summary}\n\nWritten by hf-xlsr out of its own sources; changes belong there.\n"""\n\n'


@dataclass(frozen=True)
class _Module:
    """A module's source: its definitions by name, and where each imported name comes from."""

    text: str
    definitions: dict[str, ast.stmt]
    # Name -> (module, name there or None for the module itself); relative ones made absolute.
    imports: dict[str, tuple[str, str | None]]

    def source(self, name: str) -> str:
        """The lines of a definition, its decorators among them."""
        node = self.definitions[name]
        start = min([node.lineno, *(decorator.lineno for decorator in getattr(node, "decorator_list", ()))])
        return "\n".join(self.text.splitlines()[start - 1 : node.end_lineno])


def standalone_source(objects: Iterable[Callable[..., Any]], summary: str) -> str:
    """The source of classes and functions of this package with all that they use of it, in one file.

    What they import from other packages is imported by the file too. Imports inside functions stay as they are.

    Args:
        objects: Defined at the top level of their modules.
        summary: First line of the file.

    Raises:
        ValueError: one name stands for different things in two modules, or is not found.

    Example:
        >>> from hf_xlsr.utils.pooling import pool
        >>> source = standalone_source([pool], "Pooling.")
        >>> "class XlsrError" in source, "POOLING_MODES = " in source, "import hf_xlsr" in source
        (True, True, False)
    """
    written: dict[str, str] = {}  # name -> where it comes from
    pieces: list[str] = []
    imports: dict[str, set[str]] = {}

    def check(name: str, place: str) -> None:
        if written[name] != place:
            raise ValueError(f"'{name}' is in {written[name]} and in {place}; give one another name.")

    def visit(module: str, name: str) -> None:
        content = _read(module)
        if name in content.definitions:
            if name in written:
                check(name, module)
                return
            node = content.definitions[name]
            written.update({other: module for other, same in content.definitions.items() if same is node})
            for used in sorted(_names(node) - {name}):
                if used in content.definitions or used in content.imports:
                    visit(module, used)
            pieces.append(content.source(name))
        elif name in content.imports:
            origin, original = content.imports[name]
            if origin.split(".", 1)[0] != PACKAGE:
                place = origin if original else origin.split(".", 1)[0]
                written.setdefault(name, place)
                check(name, place)
                statement, what = _import_of(origin, original, name)
                imports.setdefault(statement, set()).add(what)
            elif original != name:
                raise ValueError(f"'{name}' in {module} is imported from {origin} under another name.")
            else:
                visit(origin, name)
        else:
            raise ValueError(f"{module} has no '{name}'.")

    for wanted in objects:
        visit(wanted.__module__, wanted.__name__)
    lines = [
        f"{statement} {', '.join(sorted(names))}".rstrip()
        for statement, names in sorted(imports.items(), key=lambda item: (item[0].split()[0] == "from", item[0]))
    ]
    head = "\n".join(["from __future__ import annotations", "", *lines])
    return _HEADER.format(summary=summary) + head + "\n\n\n" + "\n\n\n".join(pieces) + "\n"


@cache
def _read(name: str) -> _Module:
    text = inspect.getsource(importlib.import_module(name))
    package = name if importlib.util.find_spec(name).submodule_search_locations else name.rpartition(".")[0]  # type: ignore[union-attr]
    definitions: dict[str, ast.stmt] = {}
    imports: dict[str, tuple[str, str | None]] = {}
    for node in ast.parse(text).body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            definitions[node.name] = node
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            definitions.update({name: node for target in targets for name in _names(target)})
        elif isinstance(node, ast.Import):
            imports.update({alias.asname or alias.name.split(".")[0]: (alias.name, None) for alias in node.names})
        elif isinstance(node, ast.ImportFrom) and node.module != "__future__":
            origin = importlib.util.resolve_name("." * node.level + (node.module or ""), package)
            imports.update({alias.asname or alias.name: (origin, alias.name) for alias in node.names})
    return _Module(text, definitions, imports)


def _names(node: ast.AST) -> set[str]:
    return {inner.id for inner in ast.walk(node) if isinstance(inner, ast.Name)}


def _import_of(origin: str, original: str | None, name: str) -> tuple[str, str]:
    """A statement of an import, and what it names."""
    if original is None:
        return f"import {origin}", "" if name == origin.split(".")[0] else f"as {name}"
    return f"from {origin} import", original if original == name else f"{original} as {name}"
