"""No verb writes over what it reads, whatever links or names lead there."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cli_helpers import failing

from hf_xlsr.cli.app import VERBS, load_verb

# A command, and the input that OUT leads to; without OUT the command would write there by itself.
CASES = [
    ("mine a.txt b.txt --model model --output OUT --format tsv", "a.txt"),
    ("mine a.txt b.txt --model model --output OUT --format tsv", "b.txt"),
    ("mine a.txt b.txt --model model --known p.tsv --output OUT", "p.tsv"),
    ("mine a.txt b.txt --model model --labels l.tsv --output OUT", "l.tsv"),
    ("mine a.txt p.tsv.report.html --model model --output p.tsv", "p.tsv.report.html"),
    ("score p.tsv --model model --output OUT", "p.tsv"),
    ("score a.txt b.txt --model model --format tsv --output OUT", "b.txt"),
    ("score p.tsv --model model --source-pool a.txt --format tsv --output OUT", "a.txt"),
    ("filter p.tsv --model model --known q.{en,de} --languages en,de --output OUT", "p.tsv"),
    ("filter p.tsv --model model --known l.tsv --languages en,de --save-training OUT --output o.tsv", "l.tsv"),
    ("negatives p.tsv --model model --output OUT", "p.tsv"),
    ("negatives p.tsv --model model --known q.de --format tsv --output OUT", "q.de"),
    ("negatives p.tsv --model model --truth l.tsv --output OUT", "l.tsv"),
    ("negatives l.tsv --labels p.tsv.report.html --model model --output p.tsv", "p.tsv.report.html"),
    ("clean p.tsv --output OUT", "p.tsv"),
    ("clean p.tsv --known q.de --report OUT", "q.de"),
    ("encode model --texts en=out/en.txt --output out", "out/en.txt"),
    ("encode model --texts en=out/en.faiss --output out --index faiss", "out/en.faiss"),
    ("evaluate model --protocol tatoeba --data p.tsv --output OUT", "p.tsv"),
    ("evaluate model --protocol tatoeba --data p.tsv --pool q.{en,de} --output OUT", "q.de"),
    ("evaluate model --protocol tatoeba --data p.tsv --output model/config.json", "model/config.json"),
    ("evaluate model second --protocol tatoeba --data out/table.csv --output out", "out/table.csv"),
    ("compare r.json --output OUT", "r.json"),
    ("submit r.json --model model --name o/n --revision c --output model", "model/config.json"),
    ("plot tsne model --data p.png --output OUT", "p.png"),
    ("plot spaces model --data p.png --output OUT", "p.png"),
    ("plot languages p.png --output OUT", "p.png"),
    ("card model --output model/config.json", "model/config.json"),
    ("push p.tsv --repo o/n --license mit --sources a=mit --dry-run --output OUT", "p.tsv"),
    ("mine a.txt p.tsv.facts.json --model model --output p.tsv", "p.tsv.facts.json"),
    ("clean p.tsv.facts.json --output p.tsv", "p.tsv.facts.json"),
    ("export model --output model", "model/config.json"),
    ("prune model --texts en=a.txt --output model", "model/config.json"),
    ("debias fit model --texts en=out/debias.json --output out", "out/debias.json"),
    ("debias apply fitted --model model --output model", "model/config.json"),
    ("train run.yaml --output_dir run --overwrite true", "run/training/p.tsv"),
    ("prepare run.yaml --output_dir run --overwrite true", "run/training/p.tsv"),
]
WRITE_NOTHING = {"nearest", "recipes", "corpora"}
RECIPE = "method: lightweight\nlanguages: [en, de]\ndata: {train: run/training/p.tsv, dev: p.tsv}\n"
WAYS: dict[str, Callable[[Path, Path], object]] = {
    "hard link": lambda link, file: os.link(file, link),
    "symbolic link": lambda link, file: link.symlink_to(file.resolve()),
}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a.txt", "b.txt", "p.tsv", "q.en", "q.de", "l.tsv", "r.json", "p.png", "p.tsv.report.html"):
        Path(name).write_text("source\ttarget\na\tb\n", "utf-8")
    Path("p.tsv.facts.json").write_text("[]", "utf-8")
    for name in ("out/en.txt", "out/en.faiss", "out/table.csv", "out/debias.json", "run/training/p.tsv"):
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text("source\ttarget\na\tb\n", "utf-8")
    for name in ("model", "second"):
        Path(name).mkdir()
        Path(name, "config.json").write_text(json.dumps({"model_type": "bert"}), "utf-8")
    Path("run.yaml").write_text(RECIPE, "utf-8")


def refusal(capsys: pytest.CaptureFixture[str], words: str, file: str, output: str) -> str:
    before = Path(file).read_bytes()
    error = failing(capsys, *words.replace("OUT", output).split())
    assert Path(file).read_bytes() == before
    return error


@pytest.mark.parametrize(("words", "file"), CASES)
def test_input_is_not_overwritten(words: str, file: str, capsys: pytest.CaptureFixture[str]) -> None:
    error = refusal(capsys, words, file, file)
    assert "would overwrite" in error or "would remove" in error
    assert Path(file).name in error or f"'{Path(file).parts[0]}'" in error


@pytest.mark.parametrize("way", list(WAYS))
@pytest.mark.parametrize(("words", "file"), [case for case in CASES if "OUT" in case[0]])
def test_links_lead_to_the_same_file(words: str, file: str, way: str, capsys: pytest.CaptureFixture[str]) -> None:
    link = Path(file).with_stem("link")
    WAYS[way](link, Path(file))
    error = refusal(capsys, words, file, str(link))
    assert f"'{link}' would overwrite '{file}'" in error


def test_output_beside_the_input_is_allowed(capsys: pytest.CaptureFixture[str]) -> None:
    Path("other.tsv").write_text("", "utf-8")
    error = failing(capsys, *"score p.tsv --model model --output other.tsv".split())
    assert "would overwrite" not in error


def commands() -> Iterator[str]:
    for verb in VERBS:
        parts = getattr(load_verb(verb), "commands", {})
        yield from (f"{verb} {part}" for part in parts) if parts else [verb]


def test_every_verb_that_writes_has_a_case() -> None:
    tested = {command for command in commands() for words, _ in CASES if f"{words} ".startswith(f"{command} ")}
    assert set(commands()) - tested == WRITE_NOTHING
