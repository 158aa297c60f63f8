"""YAML of others, and the header of a card, are read in time that grows with their length."""

from __future__ import annotations

from time import perf_counter

import pytest

from hf_xlsr.evaluation.suites.suite import load_suite
from hf_xlsr.runs.recipe import read_recipe
from hf_xlsr.utils.errors import XlsrError
from hf_xlsr.utils.markdown import front_matter
from hf_xlsr.utils.yaml import MOST_CHARACTERS, parse_yaml


def aliases(open_bracket: str, close_bracket: str) -> str:
    lines = [f"a0: &a0 {open_bracket}x: 1{close_bracket}"]
    for number in range(1, 25):
        copies = ", ".join([f"*a{number - 1}"] * 8)
        lines.append(f"a{number}: &a{number} [{copies}]")
    return "\n".join(lines)


MERGES = "m0: &m0 {k0: 1}\n" + "\n".join(
    f"m{number}: &m{number} {{<<: [*m{number - 1}, *m{number - 1}], k{number}: 1}}" for number in range(1, 30)
)
BOMBS = {
    "aliases": (aliases("{", "}"), "values"),
    "merges": (MERGES, "values"),
    "a long text many times": (f"a: &a {'x' * 100_000}\nb: [{'*a,' * 10_000}]", "values"),
    "itself": ("a: &a [*a]", "itself"),
    "merged with itself": ("&a {<<: *a}", "itself"),
    "brackets": ("[" * 5_000, "deep"),
    "nested lists": ("- " * 5_000, "deep"),
    "aliases of deep values": (f"a: &a {'[' * 35}{']' * 35}\nb: {'[' * 35}*a{']' * 35}", "deep"),
    "many values": (f"[{'1,' * 60_000}]", "values"),
    "a number by sixties": ("a: 1" + ":00" * 10_000, "number"),
    "a number with a tag": ("a: !!int '1" + ":00" * 10_000 + "'", "number"),
    "many digits": ("a: " + "9" * 5_000, "number"),
    "too long": (" " * (MOST_CHARACTERS + 1), "characters"),
    "a class": ("a: !!python/object/apply:os.system [true]", "tag"),
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_is_one_sentence(name):
    text, reason = BOMBS[name]
    with pytest.raises(XlsrError, match=reason):
        parse_yaml(text, "recipe 'x'")


@pytest.mark.parametrize("read", [read_recipe, load_suite])
def test_files_of_the_command_have_the_limits(tmp_path, read):
    file = tmp_path / "bomb.yaml"
    file.write_text(BOMBS["aliases"][0], "utf-8")
    with pytest.raises(XlsrError, match="values"):
        read(str(file))


def test_recipes_that_extend_each_other(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "one.yaml").write_text("base: two.yaml\ndata_from: two.yaml\n", "utf-8")
    (tmp_path / "two.yaml").write_text("base: one.yaml\n", "utf-8")
    with pytest.raises(XlsrError, match="extend each other"):
        read_recipe("one.yaml")


def test_aliases_are_allowed():
    assert parse_yaml("a: &a {x: [1, 2]}\nb: *a\nc: {<<: *a, y: 3}", "x")["c"] == {"x": [1, 2], "y": 3}


HEADERS = {
    "line breaks": lambda size: "---" + "\n" * size + "x",
    "ends with trailing spaces": lambda size: "---\n" + ("\n---" + " " * (size // 8) + "x") * 8,
    "fences": lambda size: "---\n" * (size // 4),
    "spaces": lambda size: "---" + " " * size,
    "aliases": lambda size: f"---\n{BOMBS['aliases'][0]}\n---\n" + "x" * size,
}


@pytest.mark.parametrize("name", HEADERS)
def test_hostile_headers_take_little_time(name):
    start = perf_counter()
    front_matter(HEADERS[name](60_000))
    assert perf_counter() - start < 2  # seconds; the old pattern took a minute and more
