"""Mining of tables, documents and cleaned text, by the command as users run it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from conftest import make_pairs

from hf_xlsr.cli import main
from hf_xlsr.mining.texts import SourceTexts, is_plain

ROWS = make_pairs(60, seed=3)


def mine(model: str, folder: Path, source: Path, target: Path, *more: str) -> list[dict[str, Any]]:
    output = folder / "pairs.jsonl"
    words = ["mine", str(source), str(target), "--model", model, "--output", str(output), "--device", "cpu", *more]
    assert main(words) == 0
    return [json.loads(line) for line in output.read_text("utf-8").splitlines()]


def write(path: Path, lines: list[str]) -> Path:
    path.write_text("".join(f"{line}\n" for line in lines), "utf-8")
    return path


@pytest.fixture
def plain(tmp_path: Path) -> tuple[Path, Path]:
    source, target = (write(tmp_path / f"{side}.txt", [row[side] for row in ROWS]) for side in ("source", "target"))
    return source, target


def test_tables_give_the_pairs_of_their_texts(tiny_export: str, plain: tuple[Path, Path], tmp_path: Path) -> None:
    expected = mine(tiny_export, tmp_path, *plain)
    tables = [
        write(tmp_path / f"{lang}.jsonl", [json.dumps({"id": n, lang: row[side]}) for n, row in enumerate(ROWS)])
        for lang, side in (("en", "source"), ("fr", "target"))
    ]
    found = mine(tiny_export, tmp_path, *tables, "--columns", "text={lang}", "--languages", "en,fr")
    assert found == expected
    # The raw lines of a table are never sentences.
    assert main(["mine", *map(str, tables), "--model", tiny_export, "--output", str(tmp_path / "raw.tsv")]) == 1


def test_documents_are_split(tiny_export: str, plain: tuple[Path, Path], tmp_path: Path) -> None:
    texts = [[row[side].capitalize() + "." for row in ROWS] for side in ("source", "target")]
    split = [write(tmp_path / f"lines.{n}", lines) for n, lines in enumerate(texts)]
    whole = [
        write(tmp_path / f"whole{n}.txt", [" ".join(lines[i : i + 6]) for i in range(0, 60, 6)])
        for n, lines in enumerate(texts)
    ]
    found = mine(tiny_export, tmp_path, *whole, "--split-sentences", "--languages", "en,fr")
    assert found == mine(tiny_export, tmp_path, *split)


def test_cleaning_of_texts_and_pairs(tiny_export: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    long = "one two three four five six seven eight nine ten " * 4
    source = write(tmp_path / "en.txt", [row["source"] for row in ROWS] + ["дом дерево река"])
    target = write(tmp_path / "fr.txt", [row["target"] for row in ROWS] + [long])
    capsys.readouterr()
    options = ("--languages", "en,fr", "--cleaning", "normalize,language,ratio", "--json")
    pairs = mine(tiny_export, tmp_path, source, target, *options)
    report = json.loads(capsys.readouterr().out)
    counts = report["cleaning"]
    assert counts["source"]["cleaning"]["language"] == {"in": 61, "out": 60, "changed": 0}
    assert all("дом" not in pair["source"] for pair in pairs)
    assert counts["pairs"]["ratio"]["out"] == len(pairs) == report["pairs"]
    assert all(len(pair["target"]) < 4 * len(pair["source"]) for pair in pairs)


def test_language_step_needs_languages(
    tiny_export: str, plain: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["mine", *map(str, plain), "--model", tiny_export, "--output", str(plain[0].with_name("no.tsv"))]
    for option in (["--cleaning", "language"], ["--split-sentences"]):
        assert main([*words, *option]) == 1
        assert "--languages" in capsys.readouterr().err


def test_sources_are_read_anew(tmp_path: Path) -> None:
    path = write(tmp_path / "en.tsv", ["text\tlabel", "one\t1", "two  words\t2"])
    texts = SourceTexts(str(path), "en")
    assert list(texts) == list(texts) == ["one", "two words"]
    write(tmp_path / "a.en", ["one"])
    names = (str(tmp_path / "a.en"), "a.txt.zst", "a.tsv", "a.tmx")
    assert [is_plain(name) for name in names] == [True, True, False, False]
