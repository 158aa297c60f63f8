from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from conftest import make_pairs

from hf_xlsr.data.concatenated import ConcatenatedExamples
from hf_xlsr.data.prepared import PreparedPairs
from hf_xlsr.data.texts import prepare_texts
from hf_xlsr.utils.errors import XlsrError


@pytest.fixture
def two_files(tmp_path: Path) -> list[dict[str, Any]]:
    english, french = tmp_path / "en.txt", tmp_path / "fr.jsonl"
    english.write_text("red house\nblue tree\nred house\nking\n", "utf-8")
    french.write_text('{"text": "maison rouge", "lang": "fr"}\n{"text": "arbre bleu", "lang": "fr"}\n', "utf-8")
    return [
        {"path": str(english), "languages": ["en"]},
        {"path": str(french)},
    ]


def test_sentences_are_cleaned_counted_and_grouped_by_language(
    two_files: list[dict[str, Any]], tokenizer: Any, tmp_path: Path
) -> None:
    texts = prepare_texts(
        two_files,
        languages=["en", "fr"],
        tokenizers=tokenizer,
        folder=tmp_path / "texts",
        evaluation_texts=["King."],
        cleaning=["normalize", "drop_identical", {"deduplicate": {"on": "source"}}],  # meant for the pairs beside
    )
    assert texts.languages == ["en", "fr"]
    assert len(texts) == 4 and texts.groups.tolist() == [0, 0, 1, 1]
    assert texts.report["cleaning"]["deduplicate"] == {"in": 6, "out": 5, "changed": 0}
    assert texts.report["cleaning"]["remove_evaluation"]["out"] == 4
    example = texts[2, 3]
    assert example["lang"] == "fr" and example["epoch"] == 2
    assert tokenizer.decode(example["text_ids"]).strip() == "arbre bleu"
    assert texts.lengths.tolist() == [len(texts[0, index]["text_ids"]) for index in range(4)]


def test_a_second_call_takes_what_the_first_left(
    two_files: list[dict[str, Any]], tokenizer: Any, tmp_path: Path
) -> None:
    def prepare() -> Any:
        return prepare_texts(
            two_files[1], languages=["fr"], tokenizers=tokenizer, folder=tmp_path / "texts", evaluation_texts=[]
        )

    assert prepare()[0, 1] == prepare()[0, 1]
    with open(two_files[1]["path"], "a", encoding="utf-8") as file:
        file.write('{"text": "roi", "lang": "fr"}\n')
    with pytest.raises(XlsrError, match="has changed since"):
        prepare()


def test_nothing_left_is_an_error(two_files: list[dict[str, Any]], tokenizer: Any, tmp_path: Path) -> None:
    with pytest.raises(XlsrError, match="no monolingual sentence is left"):
        prepare_texts(
            two_files[1],
            languages=["fr"],
            tokenizers=tokenizer,
            folder=tmp_path / "texts",
            evaluation_texts=["maison rouge", "arbre bleu"],
        )


def test_pairs_and_sentences_count_for_one_language(
    two_files: list[dict[str, Any]], tokenizer: Any, prepared: PreparedPairs, tmp_path: Path
) -> None:
    texts = prepare_texts(
        two_files[1], languages=["fr"], tokenizers=tokenizer, folder=tmp_path / "texts", evaluation_texts=[]
    )
    pairs = PreparedPairs(
        prepared.rows.add_column("length", prepared.lengths).add_column("group", prepared.groups), [("en", "fr")]
    )
    both = ConcatenatedExamples([pairs, texts])
    assert both.languages == ["fr"] and set(both.groups.tolist()) == {0}
    assert len(both) == len(make_pairs(200)) + 2
    fetched = both.__getitems__([(1, 201), (1, 3), (1, 200)])
    assert [feature["index"] for feature in fetched] == [201, 3, 200]
    assert fetched[1]["source_ids"] == pairs[1, 3]["source_ids"]
    assert fetched[0]["text_ids"] == texts[1, 1]["text_ids"]
