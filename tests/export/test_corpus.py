"""Rows of pairs as a dataset in a folder: its columns, its languages, its card, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from corpus_helpers import METADATA, header_of, section
from datasets import load_dataset
from hub_helpers import train, write_recipe

from hf_xlsr.data.sources import Source, open_source
from hf_xlsr.export import CorpusMetadata, corpus_files, save_corpus
from hf_xlsr.export.corpus_card import size_category
from hf_xlsr.mining.facts import PairFacts, new_step
from hf_xlsr.utils.errors import XlsrError

PAIR = {"source": "a", "target": "b"}


def saved_card(rows: list[dict[str, Any]], folder: Path, **options: Any) -> str:
    """The card of pairs whose languages nobody states."""
    save_corpus(rows, folder, CorpusMetadata("cc0-1.0", {"a phrase book": "cc0-1.0"}), **options)
    return (folder / "README.md").read_text("utf-8")


@pytest.mark.parametrize(("rows", "name"), [(0, "n<1K"), (10**6, "1M<n<10M"), (10**12, "n>1T")])
def test_sizes_are_named_as_on_the_hub(rows: int, name: str) -> None:
    assert size_category(rows) == name


def test_long_texts_end_a_group(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpus_files, "GROUP_BYTES", 10)
    rows = [{"a": "12345", "b": "67890"}, {"a": "1", "b": "2"}, {"a": "123456789", "b": "0"}]
    sizes = [len(group) for group in corpus_files.row_groups(rows, ("a", "b"))]
    assert sizes == [1, 2]


def test_several_language_pairs(tmp_path: Path) -> None:
    rows = []
    for source, target, source_lang, target_lang in (("yes", "ja", "en", "de"), ("oui", "sí", "fr", "es")):
        rows.append({"source": source, "target": target, "source_lang": source_lang, "target_lang": target_lang})
    sources = {"a phrase book": "cc0-1.0"}
    save_corpus(rows, tmp_path / "corpus", CorpusMetadata("cc0-1.0", sources))
    dataset = load_dataset(str(tmp_path / "corpus"), split="train", cache_dir=str(tmp_path / "cache"))
    assert dataset.to_list() == rows

    with pytest.raises(XlsrError, match="Pair 2 .* 'fr'"):
        save_corpus(rows, tmp_path / "second", CorpusMetadata("cc0-1.0", sources, languages=("en", "de")))
    assert not (tmp_path / "second").exists()


def test_languages_that_all_rows_name(tmp_path: Path) -> None:
    row = {"source": "yes", "target": "oui", "source_lang": "en", "target_lang": "fr"}
    card = saved_card([row, row], tmp_path / "named")
    assert header_of(card)["language"] == ["en", "fr"]
    assert "--languages en,fr" in section(card, "Use")

    card = saved_card([row, {**row, "target_lang": "de"}], tmp_path / "several")
    assert "hf-xlsr train" not in section(card, "Use")  # which needs two languages
    assert "languages" not in section(card, "Not known")


def test_other_scripts_are_other_languages(tmp_path: Path) -> None:
    metadata = CorpusMetadata("cc0-1.0", {"a phrase book": "cc0-1.0"}, languages=("en", "zh-Hant"))
    rows = [{"source": "a book", "target": "书"}]
    facts = PairFacts([new_step("clean", {}, {}, languages=("en", "zh-Hans"))])
    with pytest.raises(XlsrError, match="en,zh-Hans"):
        save_corpus(rows, tmp_path / "corpus", metadata, facts=facts)

    named = {**rows[0], "source_lang": "en", "target_lang": "zh-Hans"}
    with pytest.raises(XlsrError, match="Pair 1 .* 'zh-Hans'"):
        save_corpus([named], tmp_path / "corpus", metadata)


@pytest.mark.parametrize(
    ("rows", "key"),
    [
        ([], "no pairs"),
        ([{**PAIR, "score": "high"}], "Pair 1 .* 'high'"),
        ([PAIR | {"score": 1}, PAIR | {"score": [1]}], r"Pair 2 .* '\[1\]'"),
        ([{**PAIR, "source_line": 10**30}], "Pair 1 .* '10{30}'"),
        ([{**PAIR, "source_line": 1.5}], "Pair 1 .* '1.5'"),
        ([{"en": "a", "fr": "b"}], "Pair 1 .* 'source'.* en, fr"),
        ([{"source": "a", "target": None}], "Pair 1 .* target, got None"),
    ],
)
def test_rows_that_are_no_corpus(rows: list[dict[str, Any]], key: str, tmp_path: Path) -> None:
    with pytest.raises(XlsrError, match=key):
        save_corpus(rows, tmp_path / "corpus", METADATA)
    assert not (tmp_path / "corpus").exists()


@pytest.mark.parametrize("value", [[1], 10**30])
def test_figures_of_a_file_that_are_no_numbers(value: Any, tmp_path: Path) -> None:
    file = tmp_path / "pairs.jsonl"
    file.write_text(json.dumps({**PAIR, "source_line": value}), "utf-8")
    with pytest.raises(XlsrError, match="Pair 1 .* source_line"):
        save_corpus(file, tmp_path / "corpus", METADATA)


def test_facts_of_a_path_are_those_that_are_given(tmp_path: Path) -> None:
    file = tmp_path / "pairs.tsv"
    file.write_text("source\ttarget\nyes\toui\n", "utf-8")
    facts = PairFacts([new_step("mine_bitext", {}, {"pairs": {"in": 3, "out": 1}})])
    save_corpus(file, tmp_path / "corpus", METADATA, facts=facts)
    assert "`mine_bitext`" in (tmp_path / "corpus" / "README.md").read_text("utf-8")


def test_facts_of_other_pairs_are_refused(tmp_path: Path) -> None:
    facts = PairFacts([new_step("mine_bitext", {}, {"pairs": {"in": 3, "out": 2}})])
    with pytest.raises(XlsrError, match="2 pairs, got 1"):
        save_corpus([PAIR], tmp_path / "corpus", METADATA, facts=facts)


@pytest.mark.parametrize(
    ("verb", "is_mined", "is_margin"), [("mine_bitext", True, True), ("score", False, True), ("clean", False, False)]
)
def test_card_calls_pairs_mined_only_if_they_were(verb: str, is_mined: bool, is_margin: bool, tmp_path: Path) -> None:
    card = saved_card([PAIR | {"score": 1.5}], tmp_path / "corpus", facts=PairFacts([new_step(verb, {}, {})]))
    assert ("mined pairs of sentences" in card) == is_mined
    assert ("margin score" in section(card, "Columns")) == is_margin


@pytest.mark.parametrize(("count", "may_change"), [(1, False), (2, True)])
def test_later_steps_that_change_no_pair(count: int, may_change: bool, tmp_path: Path) -> None:
    estimate = {"precision": 0.9, "low": 0.8, "high": 0.95}
    steps = [new_step("mine_bitext", {"estimate": estimate}, {})]
    steps.append(new_step("score", {}, {"pairs": {"in": count, "out": 1}}))
    card = saved_card([PAIR], tmp_path / "corpus", facts=PairFacts(steps))
    assert ("Later steps" in section(card, "Quality")) == may_change


def test_columns_that_the_filter_read_are_numbers(tmp_path: Path) -> None:
    facts = PairFacts([new_step("filter", {}, {"columns": ["comet"]}, languages=("en", "fr"))])
    rows = [{"source": "yes", "target": "oui", "comet": "0.75"}, {"source": "no", "target": "non", "comet": ""}]
    save_corpus(rows, tmp_path / "corpus", METADATA, facts=facts)
    dataset = load_dataset(str(tmp_path / "corpus"), split="train", cache_dir=str(tmp_path / "cache"))
    assert dataset["comet"][:] == [0.75, None]


def test_tags_with_a_region(tmp_path: Path) -> None:
    metadata = CorpusMetadata("cc0-1.0", {"a phrase book": "cc0-1.0"}, languages=("en", "pt-BR"))
    save_corpus([{"source": "bus", "target": "ônibus"}], tmp_path / "corpus", metadata)
    assert header_of((tmp_path / "corpus" / "README.md").read_text("utf-8"))["language"] == ["en", "pt"]
    (row,) = open_source(Source.parse(str(tmp_path / "corpus")), languages=["en", "pt-BR"])
    assert (row["source"], row["target"]) == ("bus", "ônibus")


@pytest.fixture
def saved(tmp_path: Path) -> Callable[..., Path]:
    """Writes pairs as a dataset in a folder."""

    def save(rows: list[dict[str, str]]) -> Path:
        save_corpus(rows, tmp_path / "corpus", METADATA)
        return tmp_path / "corpus"

    return save


def test_recipes_read_the_dataset(saved: Callable[..., Path], tmp_path: Path) -> None:
    recipe = write_recipe(tmp_path)
    pairs = [line.split("\t") for line in (tmp_path / "train.tsv").read_text("utf-8").splitlines()]
    folder = saved([{"source": source, "target": target} for source, target in pairs])

    rows = open_source(Source.parse(str(folder)), languages=["en", "fr"])
    assert [(row["source"], row["target"]) for row in rows] == [tuple(pair) for pair in pairs]
    text = recipe.read_text("utf-8").replace(str(tmp_path / "train.tsv"), str(folder))
    recipe.write_text(text, "utf-8")
    train(recipe, tmp_path / "run")
    assert (tmp_path / "run" / "model" / "modules.json").is_file()
