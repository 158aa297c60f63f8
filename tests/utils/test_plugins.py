"""Names that other packages add: looked up late, refused where they are taken, recorded where they are used."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

from hf_xlsr.utils import plugins
from hf_xlsr.utils.errors import XlsrError
from hf_xlsr.utils.plugins import Registry, origin_of, recorded, used_so_far, with_plugins

SHAPES = """
import plugin_registry
class Square: ...
class Round: ...
plugin_registry.SHAPES.add("square", 4, Square)
"""


class Triangle:
    """What a plug-in may define."""


class Dist:
    """Stands in for the metadata of a package."""

    name = "my-shapes"
    version = "2.1"


@pytest.fixture
def shapes() -> Registry[int]:
    return Registry("shape", "steps", {"circle": 0}, reserved=["line"])


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shapes: Registry[int]) -> Iterator[Any]:
    """Installs modules by their text: name of the module -> text, each with an entry point of a name."""
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "plugin_registry.py").write_text("SHAPES = None\n", "utf-8")
    import plugin_registry  # type: ignore[import-not-found]

    plugin_registry.SHAPES = shapes
    monkeypatch.setattr(plugins, "_loader", plugins._Loader())

    def install(entry: str = "steps", **modules: str) -> None:
        entries = []
        for module, text in modules.items():
            (tmp_path / f"{module}.py").write_text(text, "utf-8")
            entries.append(EntryPoint(entry, module, plugins.GROUP)._for(Dist()))
        monkeypatch.setattr(plugins, "_entry_points", lambda: tuple(entries))

    yield install

    import sys

    for name in ("plugin_registry", "my_square", "my_broken", "my_circle"):
        sys.modules.pop(name, None)


def is_imported(name: str) -> bool:
    import sys

    return name in sys.modules


def test_plugin_is_imported_when_an_unknown_name_is_looked_up(install: Any, shapes: Registry[int]) -> None:
    install(my_square=SHAPES)
    assert shapes["circle"] == 0
    assert not is_imported("my_square")
    assert shapes["square"] == 4
    assert list(shapes) == ["circle", "square"]


@pytest.mark.parametrize("entry", ["steps", "anything"])
def test_module_named_for_another_kind_is_not_imported(install: Any, entry: str) -> None:
    install(entry=entry, my_square=SHAPES)
    assert "square" not in Registry("colour", "losses", {"red": 1})
    assert is_imported("my_square") == (entry == "anything")


def test_broken_plugin_is_one_sentence(install: Any, shapes: Registry[int], caplog: Any) -> None:
    install(my_broken="import a_package_that_is_missing")
    with caplog.at_level(logging.WARNING):
        assert list(shapes) == ["circle"]
        assert list(shapes) == ["circle"]
    (warning,) = caplog.messages
    for part in ("my-shapes 2.1", "steps = my_broken", "a_package_that_is_missing"):
        assert part in warning

    with pytest.raises(
        XlsrError, match=r"'cirle'.*did you mean 'circle'\?.*my-shapes 2\.1.*a_package_that_is_missing"
    ):
        shapes.find("shape", "cirle")


def test_plugin_with_a_built_in_name_is_refused(install: Any, shapes: Registry[int], caplog: Any) -> None:
    install(my_circle=SHAPES.replace('"square"', '"circle"'))
    with caplog.at_level(logging.WARNING):
        assert list(shapes) == ["circle"]
    assert "'circle'" in caplog.text
    assert "my_circle.Square" in caplog.text
    assert "my-shapes 2.1" in caplog.text
    assert shapes["circle"] == 0


def test_name_of_two_definitions_is_refused(shapes: Registry[int]) -> None:
    shapes.add("triangle", 3, Triangle)
    shapes.add("triangle", 33, Triangle)  # a cell of a notebook that runs again
    assert shapes["triangle"] == 33
    with pytest.raises(XlsrError, match=r"'triangle'.*test_plugins\.Triangle.*test_plugins\.Dist"):
        shapes.add("triangle", 4, Dist)


@pytest.mark.parametrize("name", ["line", "circle", "two words", "a/b", ""])
def test_name_is_refused(shapes: Registry[int], name: str) -> None:
    with pytest.raises(XlsrError, match=f"'{name}'"):
        shapes.add(name, 3, Triangle)


def test_used_plugins_are_recorded_with_package_and_version(install: Any, shapes: Registry[int]) -> None:
    install(my_square=SHAPES)
    with recorded() as command:
        shapes.find("shape", "circle")
        with recorded() as task:
            shapes.find("shape", "square")
            assert used_so_far() == {"shape square": "my-shapes 2.1"}
    assert command == task == {"shape square": "my-shapes 2.1"}
    assert used_so_far() == {}
    assert with_plugins({"seed": 1}, task) == {"seed": 1, "plugins": task}
    assert with_plugins({"seed": 1}, {}) == {"seed": 1}


def test_names_are_listed_without_being_used(install: Any, shapes: Registry[int]) -> None:
    install(my_square=SHAPES)
    with recorded() as used:
        assert dict(shapes) == {"circle": 0, "square": 4}
    assert not used


def test_the_package_is_that_of_the_nearest_module(monkeypatch: pytest.MonkeyPatch) -> None:
    class First(Dist):
        name = "acme-first"

    class Second(Dist):
        name = "acme-second"

    entries = [
        EntryPoint("steps", "acme.first.steps", plugins.GROUP)._for(First()),
        EntryPoint("steps", "acme.second.steps", plugins.GROUP)._for(Second()),
    ]
    monkeypatch.setattr(plugins, "_entry_points", lambda: tuple(entries))
    monkeypatch.setattr(Triangle, "__module__", "acme.second.shapes")
    assert origin_of(Triangle) == "acme-second 2.1"


def test_code_without_a_package_is_told_apart_by_its_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    origins = set()
    for number in range(2):
        (tmp_path / f"shape_{number}.py").write_text(f"def area(side): return side + {number}\n", "utf-8")
        monkeypatch.syspath_prepend(str(tmp_path))
        area = importlib.import_module(f"shape_{number}").area
        monkeypatch.setattr(area, "__module__", "__main__")
        origins.add(origin_of(area))
    assert len(origins) == 2


def test_overlapping_records_keep_what_is_theirs(install: Any, shapes: Registry[int]) -> None:
    install(my_shapes=SHAPES)
    outer, inner = recorded(), recorded()
    outer.__enter__()
    used = inner.__enter__()
    outer.__exit__(None, None, None)
    shapes.find("shape", "square")
    inner.__exit__(None, None, None)
    assert used == {"shape square": "my-shapes 2.1"}
