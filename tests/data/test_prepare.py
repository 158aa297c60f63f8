from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datasets import load_from_disk
from tokenizer_helpers import word_tokenizer

from hf_xlsr.data.cleaning import evaluation_keys
from hf_xlsr.data.prepare import PreparedData, prepare
from hf_xlsr.utils.errors import XlsrError

ENGLISH, GERMAN, FRENCH = ["one", "two", "three"], ["eins", "zwei", "drei"], ["un", "deux", "trois"]
LANGUAGES = ["en", "de", "fr"]


@pytest.fixture
def wide(tmp_path: Path) -> Path:
    path = tmp_path / "wide.parquet"
    words = zip(ENGLISH, GERMAN, FRENCH, strict=True)
    pq.write_table(pa.Table.from_pylist([{"en": a, "de": b, "fr": c} for a, b, c in words]), path)
    return path


@pytest.fixture
def paths(tmp_path: Path) -> dict[str, str]:
    """A tokenizer for English and one that German and French share."""
    word_tokenizer(ENGLISH).save_pretrained(str(tmp_path / "english"))
    word_tokenizer([*GERMAN, *FRENCH], special_first=False).save_pretrained(str(tmp_path / "others"))
    return {"en": str(tmp_path / "english"), "de": str(tmp_path / "others"), "fr": str(tmp_path / "others")}


@pytest.fixture
def shared(tmp_path: Path) -> str:
    """A tokenizer for all three languages."""
    word_tokenizer([*ENGLISH, *GERMAN, *FRENCH]).save_pretrained(str(tmp_path / "shared"))
    return str(tmp_path / "shared")


def run(wide: Path, folder: Path, **options: Any) -> PreparedData:
    source = {"path": str(wide), "parallel": {language: language for language in LANGUAGES}}
    data = {"train": source, "cleaning": ["deduplicate"], "fraction": 1.0, "limit": None, "max_length": 16}
    given = {"tokenizer": None, "languages": LANGUAGES, "evaluation_texts": iter(()), "seed": 1, **options}
    return prepare(data={**data, **given.pop("data", {})}, folder=folder, **given)


def test_a_tokenizer_for_each_language(wide: Path, paths: dict[str, str], tmp_path: Path) -> None:
    for _ in ("prepared", "taken from the folder"):
        data = run(wide, tmp_path / "run", tokenizers=paths)
        assert data.tokenizer is None and set(data.tokenizers) == set(LANGUAGES)
        assert data.tokenizers["de"] is data.tokenizers["fr"] is not data.tokenizers["en"]
        assert data.report["language_pairs"] == [["de", "fr"], ["en", "de"], ["en", "fr"]]
        assert data.report["pairs"] == len(data.train) == 9 and "vocab_size" not in data.report
        for index in range(9):
            pair = data.train[0, index]
            texts = [
                data.tokenizers[pair[f"{side}_lang"]].decode(pair[f"{side}_ids"], skip_special_tokens=True)
                for side in ("source", "target")
            ]
            words = {"en": ENGLISH, "de": GERMAN, "fr": FRENCH}
            places = [
                words[pair[f"{s}_lang"]].index(text) for s, text in zip(("source", "target"), texts, strict=True)
            ]
            assert places[0] == places[1]
    assert {path.name for path in (tmp_path / "run" / "tokenizer").iterdir()} == set(LANGUAGES)


def test_one_tokenizer_for_all(wide: Path, shared: str, tmp_path: Path) -> None:
    data = run(wide, tmp_path / "run", tokenizer={"path": shared})
    assert data.tokenizers == {} and len(data.tokenizer) == data.report["vocab_size"] == 13


def test_evaluation_texts_may_come_as_their_keys(wide: Path, paths: dict[str, str], tmp_path: Path) -> None:
    keys = evaluation_keys([{"text": "Zwei!"}])
    data = run(wide, tmp_path / "run", tokenizers=paths, evaluation_texts=keys)
    assert data.report["cleaning"]["remove_evaluation"] == {"in": 9, "out": 7, "changed": 0}


def test_samples_follow_the_seed(wide: Path, paths: dict[str, str], tmp_path: Path) -> None:
    source = {"path": str(wide), "parallel": {language: language for language in LANGUAGES}, "sample": 4}

    def chosen(seed: int, name: str) -> list[int]:
        data = run(wide, tmp_path / name, tokenizers=paths, data={"train": source}, seed=seed)
        return [data.train[0, index]["source_text"] for index in range(len(data.train))]

    one, same, other = chosen(1, "a"), chosen(1, "b"), [chosen(seed, str(seed)) for seed in range(2, 6)]
    assert len(one) == 4 and one == same and any(one != texts for texts in other)


def test_a_language_without_tokenizer_is_told_before_reading(
    wide: Path, paths: dict[str, str], tmp_path: Path
) -> None:
    wide.unlink()
    with pytest.raises(XlsrError, match="also in 'fr', which has no tokenizer; known are de, en"):
        run(wide, tmp_path / "run", tokenizers={key: paths[key] for key in ("en", "de")})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tokenizers": {"en": "gone", "de": "gone", "fr": "gone"}}, "tokenizers.en 'gone' holds no tokenizer"),
        ({"tokenizer": {"path": "gone"}}, "tokenizer.path 'gone' holds no tokenizer"),
        ({}, "takes the recipe's tokenizer section or a tokenizer for each language"),
    ],
)
def test_tokenizer_mistakes(wide: Path, tmp_path: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(XlsrError, match=message):
        run(wide, tmp_path / "run", **options)


def test_a_folder_made_with_other_tokenizers_is_refused(wide: Path, paths: dict[str, str], tmp_path: Path) -> None:
    run(wide, tmp_path / "run", tokenizers=paths)
    with pytest.raises(XlsrError, match="was prepared with other tokenizers; start anew"):
        run(wide, tmp_path / "run", tokenizers={**paths, "fr": paths["en"]})


def test_a_folder_of_an_older_version_is_refused(wide: Path, paths: dict[str, str], tmp_path: Path) -> None:
    folder = tmp_path / "run"
    run(wide, folder, tokenizers=paths)
    old = load_from_disk(str(folder / "data")).remove_columns(["source_text", "target_text"])
    old.save_to_disk(str(folder / "older"))
    (folder / "data").rename(folder / "newer")
    (folder / "older").rename(folder / "data")
    with pytest.raises(XlsrError, match="prepared by an older version; start anew with --overwrite true"):
        run(wide, folder, tokenizers=paths)


def test_a_changed_file_is_noticed(wide: Path, paths: dict[str, str], tmp_path: Path) -> None:
    run(wide, tmp_path / "run", tokenizers=paths)
    pq.write_table(pa.Table.from_pylist([{"en": "one", "de": "eins", "fr": "un"}]), wide)
    with pytest.raises(XlsrError, match="wide.parquet has changed since"):
        run(wide, tmp_path / "run", tokenizers=paths)


def test_a_copy_of_the_same_file_is_taken(wide: Path, paths: dict[str, str], tmp_path: Path) -> None:
    first = run(wide, tmp_path / "run", tokenizers=paths)
    elsewhere = tmp_path / "elsewhere" / wide.name
    elsewhere.parent.mkdir()
    shutil.move(wide, elsewhere)
    os.utime(elsewhere, (1, 1))
    assert run(elsewhere, tmp_path / "run", tokenizers=paths).report == first.report


def test_a_changed_file_of_the_same_size_is_noticed(wide: Path, paths: dict[str, str], tmp_path: Path) -> None:
    run(wide, tmp_path / "run", tokenizers=paths)
    content = bytearray(wide.read_bytes())
    content[-1] ^= 1
    wide.write_bytes(content)
    os.utime(wide, (1, 1))
    with pytest.raises(XlsrError, match="wide.parquet has changed since"):
        run(wide, tmp_path / "run", tokenizers=paths)


def test_files_of_one_name_in_two_folders_are_both_watched(wide: Path, paths: dict[str, str], tmp_path: Path) -> None:
    other = tmp_path / "other" / wide.name
    other.parent.mkdir()
    shutil.copy(wide, other)
    both = {"train": [{"path": str(path), "parallel": {"en": "en", "de": "de"}} for path in (wide, other)]}
    run(wide, tmp_path / "run", tokenizers=paths, data=both)
    pq.write_table(pa.Table.from_pylist([{"en": "one", "de": "eins", "fr": "un"}]), wide)
    with pytest.raises(XlsrError, match="wide.parquet has changed since"):
        run(wide, tmp_path / "run", tokenizers=paths, data=both)


def test_an_interrupted_preparation_starts_anew(wide: Path, paths: dict[str, str], tmp_path: Path) -> None:
    folder = tmp_path / "run"
    run(wide, folder, tokenizers=paths)
    (folder / "prepared.json").unlink()
    data = run(wide, folder, tokenizers=paths, data={"limit": 2})
    assert len(data.train) == json.loads((folder / "prepared.json").read_text("utf-8"))["pairs"] == 2


def test_nothing_left_is_an_error(wide: Path, paths: dict[str, str], tmp_path: Path) -> None:
    with pytest.raises(XlsrError, match="the training corpus is empty"):
        run(wide, tmp_path / "run", tokenizers=paths, evaluation_texts=iter([*ENGLISH, *GERMAN]))


def test_pairs_of_another_vocabulary_are_refused_and_older_folders_taken(
    wide: Path, shared: str, tmp_path: Path
) -> None:
    options: dict[str, Any] = {"tokenizer": {"path": shared}}
    first = run(wide, tmp_path / "run", **options)
    word_tokenizer(["other", "words"]).save_pretrained(shared)
    with pytest.raises(XlsrError, match="was prepared with another vocabulary"):
        run(wide, tmp_path / "run", **options)
    marker = tmp_path / "run" / "prepared.json"
    stored = json.loads(marker.read_text("utf-8"))
    del stored["vocabulary"]  # as a version before this check left it
    marker.write_text(json.dumps(stored), "utf-8")
    assert len(run(wide, tmp_path / "run", **options).train) == len(first.train)
