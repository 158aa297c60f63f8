from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datasets import Dataset, DatasetDict
from input_helpers import bucc_files, read, texts, write_tsv

from hf_xlsr.evaluation.rows import by_language

WIDE = {
    "en": ["one", "two", "three"],
    "de": ["eins", "zwei", "drei"],
    "fr": ["un", None, "trois"],
    "kind": ["a", "b", "a"],
}


PAIR = ("source_lang", "target_lang", "source", "target")
WIDE_FILE = "numbers.test.parquet"
ALL: dict[str, Any] = {"columns": "source=en,target={lang}", "languages": ("en", "de", "fr")}
TAGGED = {"columns": "source=english,target=text,target_lang=src_lang"}
CHINESE = {"columns": "source=zh-Hans,target=zh-Hant"}
EACH = {"columns": "source=zh-Hans,target={lang}", "languages": ("zh-Hans", "zh-Hant", "en")}
TURNED = {"columns": "source=text,target=english,source_lang=src_lang", "languages": ("en",)}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder, with files of all kinds."""
    monkeypatch.chdir(tmp_path)
    pq.write_table(pa.table(WIDE), WIDE_FILE)
    for code, word, yes in (("de", "Tag", "ja"), ("fr", "jour", "oui"), ("en", "day", "yes")):
        write_tsv(tmp_path / f"en-{code}.tsv", ["en\txx", f"day\t{word}"])
        write_tsv(tmp_path / f"news.{code}", [yes, f"{yes} {yes}"])
    rows = ["deu\tTag\tday", "fra\tjour\tday", "deu\tNacht\tnight", "\tx\ty", "jpn\t日\tsun"]
    write_tsv(tmp_path / "tagged.tsv", ["src_lang\ttext\tenglish", *rows])
    write_tsv(tmp_path / "chinese.tsv", ["zh-Hans\tzh-Hant\ten", "书\t書\tbook"])
    write_tsv(tmp_path / "plain.tsv", ["source\ttarget", "day\tTag"])
    unit = "<tu><tuv xml:lang='en'><seg>day</seg></tuv><tuv xml:lang='de'><seg>Tag</seg></tuv></tu>"
    (tmp_path / "memory.tmx").write_text(f"<tmx><body>{unit}</body></tmx>", "utf-8")
    return tmp_path


@pytest.mark.parametrize(
    ("files", "options", "expected"),
    [
        (WIDE_FILE, ALL, "en-de one eins, en-de two zwei, en-de three drei, en-fr one un, en-fr three trois"),
        (WIDE_FILE, {**ALL, "where": ("kind=b",)}, "en-de two zwei"),
        (WIDE_FILE, {**ALL, "where": ("kind=b", "kind=a"), "limit": 1}, "en-de one eins, en-fr one un"),
        # A column or a file that is named after a language is in it, whatever the order of --languages.
        (WIDE_FILE, {"columns": "source=de,target=en", "limit": 1}, "de-en eins one"),
        ("news.de news.en", {"limit": 1}, "de-en ja yes"),
        ("news.de news.en", {"languages": ("en", "de"), "limit": 1}, "de-en ja yes"),
        ("en-{lang}.tsv", {**ALL, "columns": "source=en,target=xx"}, "en-de day Tag, en-fr day jour"),
        ("memory.tmx", {"languages": ("de", "en")}, "de-en Tag day"),
        ("tagged.tsv", {**TAGGED, "languages": ("en", "ja", "fr")}, "en-fr day jour, en-ja sun 日"),
        ("tagged.tsv", {**TURNED, "limit": 1}, "de-en Tag day, fr-en jour day, ja-en 日 sun"),
        ("plain.tsv", {}, "source-target day Tag"),
        ("chinese.tsv", {**CHINESE, "languages": ("zh-Hans", "zh-Hant")}, "zh-Hans-zh-Hant 书 書"),
        ("chinese.tsv", {**CHINESE, "languages": ("zh_Hant", "zh_Hans")}, "zh-Hans-zh-Hant 书 書"),
        ("chinese.tsv", EACH, "zh-Hans-zh-Hant 书 書, zh-Hans-en 书 book"),
    ],
)
def test_pairs(files: str, options: dict[str, Any], expected: str, folder: Path) -> None:
    rows = read("tatoeba", *files.split(), **options).rows
    assert ", ".join("{}-{} {} {}".format(*row) for row in texts(rows, *PAIR)) == expected


def test_names_skipped_rows_and_hashes(folder: Path) -> None:
    inputs = read("tatoeba", WIDE_FILE, **ALL)
    assert inputs.name == "numbers" and inputs.skipped == {"empty target": 1}
    hashes = inputs.hashes(("source", "target"))
    assert list(hashes) == ["data/numbers/en-de", "data/numbers/en-fr"] and len(set(hashes.values())) == 2
    assert read("tatoeba", WIDE_FILE, limit=2, **ALL).hashes(("source", "target")) != hashes


def test_pool_stays_whole(folder: Path) -> None:
    options: dict[str, Any] = {"columns": "source=en,target=de", "languages": ("en", "de"), "limit": 1}
    inputs = read("xsr", WIDE_FILE, pool=(WIDE_FILE,), **options)
    assert len(inputs.rows) == 1 and texts(inputs.pool, "target") == [("eins",), ("zwei",), ("drei",)]


def test_sentence_pairs_in_two_languages(tmp_path: Path) -> None:
    # As the subsets of STS17 are called.
    tags = ["en-en", "fr-en", "en-de", "es-es", "ko-ko", "pt-BR"]
    rows = [f"one {tag}\ttwo {tag}\t{place}\t{tag}" for place, tag in enumerate(tags)]
    path = write_tsv(tmp_path / "sts17.tsv", ["sentence1\tsentence2\tscore\tlang", *rows])
    assert [row["lang"] for row in read("sts", path).tasks["sts17"]] == ["en", "fr+en", "en+de", "es", "ko", "pt"]
    assert [row["lang"] for row in read("sts", path, languages=("fr-en",)).tasks["sts17"]] == ["fr+en"]
    assert [row["lang"] for row in read("sts", path, languages=("en",)).tasks["sts17"]] == ["en"]


def test_two_scripts_of_a_language(tmp_path: Path) -> None:
    rows = ["lang\ttext\tlabel\tsplit"]
    rows += [f"{lang}\tx{n}\t{n}\ttest" for lang in ("zho_Hans", "zho_Hant", "eng_Latn") for n in (0, 1)]
    path = write_tsv(tmp_path / "topics.tsv", rows)

    def found(*languages: str) -> list[str]:
        return [row["lang"] for row in read("language-bias", path, languages=languages).rows]

    assert found() == ["zho-Hans"] * 2 + ["zho-Hant"] * 2 + ["en"] * 2
    assert found("zh") == ["zho-Hans"] * 2 + ["zho-Hant"] * 2
    assert found("zho_Hant", "en") == ["zh"] * 2 + ["en"] * 2


def test_corpora_and_tasks_of_mteb_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    def corpus(name: str, *, languages: list[str], split: str) -> Any:
        tags = dict(zip(("source_lang", "target_lang"), languages, strict=True))
        yield {"source": f"{languages[0]} {split}", "target": languages[1], **tags}

    def task(name: str, *, split: str) -> Any:
        yield {"source": f"{name} {split}", "target": "day", "source_lang": "de", "target_lang": "en"}
        yield {"source": "x", "target": " ", "source_lang": "de", "target_lang": "en"}

    monkeypatch.setattr("hf_xlsr.data.sources.load_corpus", corpus)
    monkeypatch.setattr("hf_xlsr.evaluation.mteb.tasks.mteb_rows", task)
    inputs = read("tatoeba", "bible", languages=("en", "de", "fr"))
    assert inputs.name == "bible"
    assert texts(inputs.rows, *PAIR) == [("en", "de", "en test", "de"), ("en", "fr", "en test", "fr")]
    inputs = read("tatoeba", "mteb:Tatoeba", split="validation")
    assert inputs.name == "Tatoeba" and inputs.skipped == {"empty target": 1}
    assert texts(inputs.rows, *PAIR) == [("de", "en", "Tatoeba dev", "day")]


def test_tasks_of_senteval(tmp_path: Path) -> None:
    rows = ["text\tlabel\tsplit", "a\t1\ttrain", "b\t0\tvalid", "c\t1\ttest"]
    sst = write_tsv(tmp_path / "SST2.tsv", rows)
    inputs = read("senteval", sst, languages=("en",), limit=1)
    assert texts(inputs.tasks["SST2"], "text", "split") == [("a", "train"), ("b", "valid"), ("c", "test")]
    parts = {name: Dataset.from_dict({"text": [name], "label": [1]}) for name in ("train", "validation", "test")}
    DatasetDict(parts).save_to_disk(tmp_path / "sst")
    by_name = read("senteval", f"SST2={tmp_path / 'sst'}", languages=("en",)).tasks["SST2"]
    assert texts(by_name, "text", "split") == [("train", "train"), ("validation", "dev"), ("test", "test")]


def topics(tmp_path: Path, splits: str = "train validation test") -> str:
    rows = ["lang\tsplit\ttext\tcategory"]
    for lang in ("eng_Latn", "deu_Latn"):
        rows += [f"{lang}\t{split}\t{lang} {split} {n}\t{n % 2}" for split in splits.split() for n in range(3)]
    return write_tsv(tmp_path / "topics.tsv", rows)


def test_splits_of_one_source(tmp_path: Path) -> None:
    inputs = read("zero-shot", topics(tmp_path), columns="label=category", languages=("en", "de"))
    assert texts(inputs.train, "text", "label") == [(f"eng_Latn train {n}", n % 2) for n in range(3)]
    assert [row["text"] for row in inputs.tune] == [f"eng_Latn validation {n}" for n in range(3)]
    assert [row["lang"] for row in inputs.rows] == ["en"] * 3 + ["de"] * 3
    assert inputs.train_language == "en"
    only = read("zero-shot", topics(tmp_path), columns="label=category", languages=("de",), train_language="en")
    assert {row["lang"] for row in only.rows} == {"de"} and {row["lang"] for row in only.train} == {"en"}


def test_training_rows_from_other_files(tmp_path: Path) -> None:
    test = write_tsv(tmp_path / "test.tsv", ["lang\ttext\tlabel", "de\ta\t1", "fr\tb\t0"])
    train = write_tsv(tmp_path / "train.tsv", ["text\tlabel", *(f"t{n}\t{n % 2}" for n in range(40))])
    tune = write_tsv(tmp_path / "tune.tsv", ["text\tlabel", "u\t1"])
    inputs = read("zero-shot", test, train=(train,), tune=(tune,), train_language="eng")
    assert len(inputs.train) == 40 and texts(inputs.tune, "text", "lang") == [("u", "en")]
    held = read("zero-shot", test, train=(train,), hold_out="text", train_language="en")
    assert len(held.train) + len(held.tune) == 40 and held.tune
    assert not {row["text"] for row in held.train} & {row["text"] for row in held.tune}


def test_one_name_of_a_language_in_all_tables(tmp_path: Path) -> None:
    def table(name: str, *languages: str) -> str:
        rows = [f"{name} {language} {n}\tb\t{n % 2}\t{language}" for language in languages for n in range(4)]
        return write_tsv(tmp_path / name, ["sentence1\tsentence2\tlabel\tlang", *rows])

    one, both = table("one.tsv", "zho_Hans", "deu_Latn"), table("both.tsv", "zho_Hans", "deu_Latn", "zho_Hant")
    inputs = read("pair-classification", one, tune=(both,))
    assert [*by_language(inputs.rows)] == ["zho-Hans", "de"]
    assert [*by_language(inputs.tune)] == ["zho-Hans", "de", "zho-Hant"]


def test_bucc_files(tmp_path: Path) -> None:
    files = bucc_files(tmp_path)
    inputs = read("bucc", *files["data"], **{name: value for name, value in files.items() if name != "data"})
    assert inputs.languages == ("de", "en") and set(inputs.hashes(())) == {"test", "tune"}
    assert inputs.test.gold == {("test-de-0", "test-en-1")}
    assert inputs.tune.sources[0] == "de train 0"
