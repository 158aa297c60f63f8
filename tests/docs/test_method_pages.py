"""The Python code of docs/train.md and docs/translate.md runs and prints what the pages say."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from datasets import Dataset
from page_blocks import blocks_of
from story_helpers import write_files

DOCS = Path(__file__).resolve().parents[2] / "docs"


def code_of(page: str) -> list[str]:
    return [block.text for block in blocks_of(DOCS / page) if block.tag == "python"]


def run(code: str, names: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> str:
    """Executes a block and returns the last line that it prints."""
    exec(compile(code, "page", "exec"), names)
    return capsys.readouterr().out.strip().splitlines()[-1]


@pytest.mark.slow
def test_train_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.chdir(tmp_path)
    encoders = {
        "google-bert/bert-base-uncased": "source",
        "hfl/chinese-roberta-wwm-ext": "target",
        "intfloat/multilingual-e5-small": "source",
    }
    write_files(tmp_path, encoders=encoders)
    for name in ("pairs", "dev"):
        Dataset.from_csv(f"{name}.tsv", sep="\t").to_parquet(f"{name}.parquet")

    outputs = [run(code, {"__name__": "page"}, capsys) for code in code_of("train.md")]
    dual, stream, guards, search, cmlm, few_shot = outputs
    assert dual == "(1, 16)"
    assert cmlm == "(1, 16)"
    assert 0 <= float(stream) <= 1
    assert guards.startswith("└")
    assert few_shot == "['animal', 'place']"
    accuracy, rate = map(float, search.split())
    assert 0 <= accuracy <= 1
    assert 1e-6 <= rate <= 1e-3


@pytest.mark.slow
def test_translate_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "page"}
    first, second, third = [run(code, names, capsys) for code in code_of("translate.md")]
    assert first.startswith("['rouge oiseau', ")
    assert re.fullmatch(r"\{'toy-bleu/en-fr/test/bleu': [\d.e-]+, 'toy-bleu/en-fr/test/sentences': 1\}", second)
    whole, small = map(int, third.split())
    assert small < whole
