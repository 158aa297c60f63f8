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
    assert inputs.name == "numbers"
    assert inputs.skipped == {"empty target": 1}
    assert list(inputs.hashes) == ["data/numbers/en-de", "data/numbers/en-fr"]
    assert len(set(inputs.hashes.values())) == 2
    assert read("tatoeba", WIDE_FILE, limit=2, **ALL).hashes != inputs.hashes


def test_pool_stays_whole(folder: Path) -> None:
    options: dict[str, Any] = {"columns": "source=en,target=de", "languages": ("en", "de"), "limit": 1}
    inputs = read("xsr", WIDE_FILE, pool=(WIDE_FILE,), **options)
    assert texts(inputs.rows, "target") == [("eins",)]
    assert texts(inputs.pool, "target") == [("eins",), ("zwei",), ("drei",)]


def test_sentence_pairs_in_two_languages(tmp_path: Path) -> None:
    # As the subsets of STS17 are called.
    tags = ["en-en", "fr-en", "en-de", "es-es", "ko-ko", "pt-BR"]
    rows = [f"one {tag}\ttwo {tag}\t{score}\t{tag}" for score, tag in enumerate(tags)]
    path = write_tsv(tmp_path / "sts17.tsv", ["sentence1\tsentence2\tscore\tlang", *rows])

    def languages_of(*languages: str) -> list[str]:
        return [row["lang"] for row in read("sts", path, languages=languages).tasks["sts17"]]

    assert languages_of() == ["en", "fr+en", "en+de", "es", "ko", "pt"]
    assert languages_of("fr-en") == ["fr+en"]
    assert languages_of("en") == ["en"]


def test_two_scripts_of_a_language(tmp_path: Path) -> None:
    rows = [f"{tag}\tx{n}" for tag in ("zho_Hans", "zho_Hant", "eng_Latn") for n in (0, 1)]
    path = write_tsv(tmp_path / "topics.tsv", ["lang\ttext", *rows])

    def languages_of(*languages: str) -> list[str]:
        return [row["lang"] for row in read("language-bias", path, languages=languages).rows]

    assert languages_of() == ["zho-Hans"] * 2 + ["zho-Hant"] * 2 + ["en"] * 2
    assert languages_of("zh") == ["zho-Hans"] * 2 + ["zho-Hant"] * 2
    assert languages_of("zho_Hant", "en") == ["zh"] * 2 + ["en"] * 2


def test_corpora_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    def corpus(name: str, *, languages: list[str], split: str, **versions: None) -> Any:
        source_lang, target_lang = languages
        sides = {"source": f"{source_lang} {split}", "target": target_lang}
        yield {**sides, "source_lang": source_lang, "target_lang": target_lang}

    monkeypatch.setattr("hf_xlsr.data.sources.load_corpus", corpus)
    inputs = read("tatoeba", "bible", languages=("en", "de", "fr"))
    assert inputs.name == "bible"
    assert texts(inputs.rows, *PAIR) == [("en", "de", "en test", "de"), ("en", "fr", "en test", "fr")]


def test_tasks_of_mteb_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    def task(name: str, *, split: str) -> Any:
        yield {"source": f"{name} {split}", "target": "day", "source_lang": "de", "target_lang": "en"}
        yield {"source": "x", "target": " ", "source_lang": "de", "target_lang": "en"}

    monkeypatch.setattr("hf_xlsr.evaluation.mteb.tasks.mteb_rows", task)
    inputs = read("tatoeba", "mteb:Tatoeba", split="validation")
    assert inputs.name == "Tatoeba"
    assert inputs.skipped == {"empty target": 1}
    assert texts(inputs.rows, *PAIR) == [("de", "en", "Tatoeba dev", "day")]


def test_tasks_of_senteval(tmp_path: Path) -> None:
    rows = ["text\tlabel\tsplit", "a\t1\ttrain", "b\t0\tvalid", "c\t1\ttest"]
    file = write_tsv(tmp_path / "SST2.tsv", rows)
    of_file = read("senteval", file, languages=("en",), limit=1).tasks["SST2"]
    assert texts(of_file, "text", "split") == [("a", "train"), ("b", "valid"), ("c", "test")]

    splits = {name: Dataset.from_dict({"text": [name], "label": [1]}) for name in ("train", "validation", "test")}
    DatasetDict(splits).save_to_disk(tmp_path / "sst")
    of_dataset = read("senteval", f"SST2={tmp_path / 'sst'}", languages=("en",)).tasks["SST2"]
    assert texts(of_dataset, "text", "split") == [("train", "train"), ("validation", "dev"), ("test", "test")]


@pytest.fixture
def topics(tmp_path: Path) -> str:
    rows = ["lang\tsplit\ttext\tcategory"]
    for tag in ("eng_Latn", "deu_Latn"):
        for split in ("train", "validation", "test"):
            rows += [f"{tag}\t{split}\t{tag} {split} {n}\t{n % 2}" for n in range(3)]
    return write_tsv(tmp_path / "topics.tsv", rows)


def test_splits_of_one_source(topics: str) -> None:
    inputs = read("zero-shot", topics, columns="label=category", languages=("en", "de"))
    assert texts(inputs.train, "text", "label") == [(f"eng_Latn train {n}", n % 2) for n in range(3)]
    assert texts(inputs.tune, "text") == [(f"eng_Latn validation {n}",) for n in range(3)]
    assert texts(inputs.rows, "lang") == [("en",)] * 3 + [("de",)] * 3
    assert inputs.train_language == "en"


def test_training_language_that_is_not_tested(topics: str) -> None:
    inputs = read("zero-shot", topics, columns="label=category", languages=("de",), train_language="en")
    assert texts(inputs.rows, "lang") == [("de",)] * 3
    assert texts(inputs.train, "lang") == [("en",)] * 3


def test_training_rows_from_other_files(tmp_path: Path) -> None:
    test = write_tsv(tmp_path / "test.tsv", ["lang\ttext\tlabel", "de\ta\t1", "fr\tb\t0"])
    train = write_tsv(tmp_path / "train.tsv", ["text\tlabel", *(f"t{n}\t{n % 2}" for n in range(40))])
    tune = write_tsv(tmp_path / "tune.tsv", ["text\tlabel", "u\t1"])
    inputs = read("zero-shot", test, train=(train,), tune=(tune,), train_language="eng")
    assert len(inputs.train) == 40
    assert texts(inputs.tune, "text", "lang") == [("u", "en")]


def test_held_out_training_rows(tmp_path: Path) -> None:
    test = write_tsv(tmp_path / "test.tsv", ["lang\ttext\tlabel", "de\ta\t1", "fr\tb\t0"])
    train = write_tsv(tmp_path / "train.tsv", ["text\tlabel", *(f"t{n // 2}\t{n % 2}" for n in range(80))])
    inputs = read("zero-shot", test, train=(train,), hold_out="text", train_language="en")
    assert inputs.tune
    assert len(inputs.train) + len(inputs.tune) == 80
    assert not set(texts(inputs.train, "text")) & set(texts(inputs.tune, "text"))


def test_one_name_of_a_language_in_all_tables(tmp_path: Path) -> None:
    def table(name: str, *languages: str) -> str:
        rows = [f"{name} {language} {n}\tb\t{n % 2}\t{language}" for language in languages for n in range(4)]
        return write_tsv(tmp_path / name, ["sentence1\tsentence2\tlabel\tlang", *rows])

    tested = table("tested.tsv", "zho_Hans", "deu_Latn")
    tune = table("tune.tsv", "zho_Hans", "deu_Latn", "zho_Hant")
    inputs = read("pair-classification", tested, tune=(tune,))
    assert [*by_language(inputs.rows)] == ["zho-Hans", "de"]
    assert [*by_language(inputs.tune)] == ["zho-Hans", "de", "zho-Hant"]


def test_bucc_files(tmp_path: Path) -> None:
    options = bucc_files(tmp_path)
    inputs = read("bucc", *options.pop("data"), **options)
    assert inputs.languages == ("de", "en")
    assert set(inputs.hashes) == {"test", "tune"}
    assert inputs.test.gold == {("test-de-0", "test-en-1")}
    assert inputs.tune.sources[0] == "de train 0"


def test_test_sentences_that_are_also_tuned_on_are_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    options = bucc_files(tmp_path)
    read("bucc", *options.pop("data"), languages=["de", "en"], **options)
    assert not caplog.records

    shared = bucc_files(tmp_path)
    shared |= {"tune": shared["data"], "tune_gold": shared["gold"]}
    read("bucc", *shared.pop("data"), languages=["de", "en"], **shared)
    assert "3 sources and 3 targets" in caplog.text
