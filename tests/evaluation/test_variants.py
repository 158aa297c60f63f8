"""Variants of a language stay apart in every protocol, and one that the user names has the user's tag."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from input_helpers import bucc_files, read, write_tsv

from hf_xlsr.evaluation.protocol import PROTOCOLS
from hf_xlsr.evaluation.reading import TaskInputs
from hf_xlsr.utils.errors import XlsrError

VARIANTS = [("pt", "pt-BR"), ("en-US", "en"), ("zh", "zh-CN"), ("es", "es-ES"), ("sr", "sr-Cyrl"), ("fr", "fr-CA")]
OTHERS = {"bucc", "mteb"}  # read no table
COLUMNS = "source target text premise hypothesis sentence1 sentence2 label score split".split()
OPTIONS: dict[str, dict[str, Any]] = {
    "zero-shot": {"train_language": "de"},
    "nli": {"train_language": "de"},
}
TASKS = {"sts": "STS12=", "senteval": "SST2="}


def table(folder: Path, tags: Sequence[str]) -> str:
    """Two rows of each split in each language, with the columns of all protocols."""
    lines = ["\t".join([*COLUMNS, "source_lang", "target_lang", "lang"])]
    for tag in ("de", *tags):
        for split in ("train", "dev", "test"):
            for label in "01":
                cells = [f"{column} {tag} {split} {label}" for column in COLUMNS]
                cells[COLUMNS.index("label")] = cells[COLUMNS.index("score")] = label
                cells[COLUMNS.index("split")] = split
                lines.append("\t".join([*cells, "de", tag, tag]))
    return write_tsv(folder / "table.tsv", lines)


def rows_of(inputs: Any) -> list[dict[str, Any]]:
    """What is tested, besides German."""
    rows = inputs.rows if not isinstance(inputs, TaskInputs) else next(iter(inputs.tasks.values()))
    return [row for row in rows if row.get("target_lang", row.get("lang")) != "de"]


def languages_of(inputs: Any) -> set[str]:
    return {row.get("target_lang", row.get("lang")) for row in rows_of(inputs)}


@pytest.mark.parametrize("variants", VARIANTS, ids="-".join)
@pytest.mark.parametrize("protocol", sorted(PROTOCOLS.keys() - OTHERS))
def test_two_variants_in_one_table(protocol: str, variants: tuple[str, str], tmp_path: Path) -> None:
    data = TASKS.get(protocol, "") + table(tmp_path, variants)
    options = OPTIONS.get(protocol, {})

    assert languages_of(read(protocol, data, **options)) == set(variants)
    for variant in variants:
        rows = rows_of(read(protocol, data, languages=("de", variant), **options))
        assert rows
        assert all(f" {variant} " in str(row) for row in rows)


@pytest.mark.parametrize(
    ("tags", "asked", "expected"),
    [
        (["pt_BR", "pt"], "pt-BR", {"pt-BR"}),
        (["pt_BR", "pt_PT"], "pt", {"pt-BR", "pt-PT"}),
        (["pt_BR"], "pt", {"pt"}),
        (["pt_BR"], "pt-BR", {"pt-BR"}),
        (["por_Latn"], "pt", {"pt"}),
        (["zho_Hant", "zho_Hans"], "zh-TW", {"zh-TW"}),
        (["en_US", "en_GB"], "en-AU", set()),
    ],
)
def test_what_a_language_selects(tags: list[str], asked: str, expected: set[str], tmp_path: Path) -> None:
    data = table(tmp_path, tags)
    if not expected:
        with pytest.raises(XlsrError, match="--languages"):
            read("language-bias", data, languages=(asked,))
        return
    assert languages_of(read("language-bias", data, languages=("de", asked))) == expected


def test_a_training_language_has_the_tag_of_the_user(tmp_path: Path) -> None:
    data = table(tmp_path, ["pt_BR"])
    assert read("zero-shot", data, languages=("de",), train_language="pt-BR").train_language == "pt-BR"


def test_columns_of_two_variants(tmp_path: Path) -> None:
    data = write_tsv(tmp_path / "wide.tsv", ["en\tpt_BR\tpt", "day\tdia!\tdia"])
    options: dict[str, Any] = {"columns": "source=en,target={lang}", "languages": ("en", "pt", "pt_BR")}

    rows = read("tatoeba", data, **options).rows

    assert [(row["target_lang"], row["target"]) for row in rows] == [("pt", "dia"), ("pt-BR", "dia!")]


class Lengths:
    """Vectors of the length and the last letter of a text."""

    def encode(self, texts: Sequence[str], **options: Any) -> np.ndarray:
        return np.array([[len(text), ord(text[-1]), 1.0] for text in texts])


@pytest.mark.parametrize(("protocol", "pair"), [("xsim-pp", "de-en-US"), ("tatoeba-xtreme", "en-US-de")])
def test_protocols_with_an_english_side(protocol: str, pair: str, tmp_path: Path) -> None:
    lines = [f"Satz {number}\tsentence {number}" for number in range(6)]
    data = write_tsv(tmp_path / "wide.tsv", ["de\ten_US", *lines])
    inputs = read(protocol, data, columns="source=de,target=en_US", languages=("de", "en-US"))

    metrics = PROTOCOLS[protocol].run(Lengths(), inputs, PROTOCOLS[protocol].options())

    assert {record.languages for record in metrics.records.values()} == {pair}


def test_bitexts_of_two_variants(tmp_path: Path) -> None:
    options = bucc_files(tmp_path)
    files = []
    for file, tag in zip(options.pop("data"), ("pt", "pt-BR"), strict=True):
        files.append(str(Path(file).rename(tmp_path / f"test.{tag}")))
    assert read("bucc", *files, languages=("pt", "pt-BR"), **options).languages == ("pt", "pt-BR")
