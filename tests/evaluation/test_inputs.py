from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datasets import Dataset, DatasetDict
from input_helpers import TMX, WIDE, bucc_files, read, texts, topic_rows, write_tsv

from hf_xlsr.evaluation.rows import by_language
from hf_xlsr.utils.errors import XlsrError

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
    tagged_rows = ["deu\tTag\tday", "fra\tjour\tday", "deu\tNacht\tnight", "\tx\ty", "jpn\t日\tsun"]
    files = {
        "en-de.tsv": ["en\txx", "day\tTag"],
        "en-fr.tsv": ["en\txx", "day\tjour"],
        "en-en.tsv": ["en\txx", "day\tday"],
        "news.de": ["ja", "ja ja"],
        "news.en": ["yes", "yes yes"],
        "tagged.tsv": ["src_lang\ttext\tenglish", *tagged_rows],
        "chinese.tsv": ["zh-Hans\tzh-Hant\ten", "书\t書\tbook"],
        "plain.tsv": ["source\ttarget", "day\tTag"],
        "memory.tmx": [TMX],
    }
    for name, lines in files.items():
        write_tsv(tmp_path / name, lines)
    return tmp_path


@pytest.mark.parametrize(
    ("files", "options", "expected"),
    [
        (WIDE_FILE, ALL, "en-de one eins, en-de two zwei, en-de three drei, en-fr one un, en-fr three trois"),
        (WIDE_FILE, {**ALL, "where": ("kind=b",)}, "en-de two zwei"),
        (WIDE_FILE, {**ALL, "where": ("en=one", "en=x")}, "en-de one eins, en-fr one un"),
        # A column or a file that is named after a language is in it, whatever the order of --languages.
        (WIDE_FILE, {"columns": "source=de,target=en", "where": ("de=eins",)}, "de-en eins one"),
        ("news.de news.en", {}, "de-en ja yes, de-en ja ja yes yes"),
        ("news.de news.en", {"languages": ("en", "de")}, "de-en ja yes, de-en ja ja yes yes"),
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
    shown_rows = ["{source_lang}-{target_lang} {source} {target}".format(**row) for row in rows]
    assert ", ".join(shown_rows) == expected


def test_names_skipped_rows_and_hashes(folder: Path) -> None:
    inputs = read("tatoeba", WIDE_FILE, **ALL)
    assert inputs.name == "numbers"
    assert inputs.skipped == {"empty target": 1}
    assert list(inputs.hashes) == ["data/numbers/en-de", "data/numbers/en-fr"]
    assert len(set(inputs.hashes.values())) == 2

    limited = read("tatoeba", WIDE_FILE, limit=2, **ALL)
    assert limited.hashes != inputs.hashes


def test_pool_stays_whole(folder: Path) -> None:
    options: dict[str, Any] = {"columns": "source=en,target=de", "languages": ("en", "de"), "limit": 1}
    inputs = read("xsr", WIDE_FILE, pool=(WIDE_FILE,), **options)

    assert len(inputs.rows) == 1
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
    rows = ["zho_Hans\tx", "zho_Hans\ty", "zho_Hant\tx", "zho_Hant\ty", "eng_Latn\tx", "eng_Latn\ty"]
    path = write_tsv(tmp_path / "topics.tsv", ["lang\ttext", *rows])

    def languages_of(*languages: str) -> list[str]:
        return [row["lang"] for row in read("language-bias", path, languages=languages).rows]

    assert languages_of() == ["zho-Hans", "zho-Hans", "zho-Hant", "zho-Hant", "en", "en"]
    assert languages_of("zh") == ["zho-Hans", "zho-Hans", "zho-Hant", "zho-Hant"]
    assert languages_of("zho_Hant", "en") == ["zho-Hant", "zho-Hant", "en", "en"]
    assert languages_of("zho_Hans", "en") == ["zh", "zh", "en", "en"]


def test_corpora_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    def corpus(name: str, *, languages: list[str], split: str, **versions: None) -> Any:
        source_lang, target_lang = languages
        yield {
            "source": f"{source_lang} {split}",
            "target": target_lang,
            "source_lang": source_lang,
            "target_lang": target_lang,
        }

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


def test_task_of_senteval_in_a_file(tmp_path: Path) -> None:
    file = write_tsv(tmp_path / "SST2.tsv", ["text\tlabel\tsplit", "a\t1\ttrain", "b\t0\tvalid", "c\t1\ttest"])
    inputs = read("senteval", file, languages=("en",), limit=1)
    assert texts(inputs.tasks["SST2"], "text", "split") == [("a", "train"), ("b", "valid"), ("c", "test")]


def test_task_of_senteval_in_a_dataset(tmp_path: Path) -> None:
    row = Dataset.from_dict({"text": ["a"], "label": [1]})
    folder = tmp_path / "sst"
    DatasetDict(train=row, validation=row, test=row).save_to_disk(folder)
    inputs = read("senteval", f"SST2={folder}", languages=("en",))
    assert texts(inputs.tasks["SST2"], "text", "split") == [("a", "train"), ("a", "dev"), ("a", "test")]


@pytest.fixture
def topics(tmp_path: Path) -> str:
    return write_tsv(tmp_path / "topics.tsv", topic_rows("category", "train", "validation", "test"))


def test_splits_of_one_source(topics: str) -> None:
    inputs = read("zero-shot", topics, columns="label=category", languages=("en", "de"))

    assert inputs.train_language == "en"
    assert texts(inputs.train, "text", "label") == [
        ("eng_Latn train 0", 0),
        ("eng_Latn train 1", 1),
        ("eng_Latn train 2", 0),
    ]
    assert texts(inputs.tune, "text") == [
        ("eng_Latn validation 0",),
        ("eng_Latn validation 1",),
        ("eng_Latn validation 2",),
    ]
    assert texts(inputs.rows, "lang") == [("en",)] * 3 + [("de",)] * 3


def test_training_language_that_is_not_tested(topics: str) -> None:
    inputs = read("zero-shot", topics, columns="label=category", languages=("de",), train_language="en")
    assert texts(inputs.rows, "lang") == [("de",)] * 3
    assert texts(inputs.train, "lang") == [("en",)] * 3


@pytest.fixture
def test_and_train(tmp_path: Path) -> tuple[str, str]:
    """Tested rows in German and French; training rows with every text twice, with both labels."""
    test = write_tsv(tmp_path / "test.tsv", ["lang\ttext\tlabel", "de\ta\t1", "fr\tb\t0"])
    train_rows = [f"t{n // 2}\t{n % 2}" for n in range(80)]
    train = write_tsv(tmp_path / "train.tsv", ["text\tlabel", *train_rows])
    return test, train


def test_training_rows_from_other_files(test_and_train: tuple[str, str], tmp_path: Path) -> None:
    test, train = test_and_train
    tune = write_tsv(tmp_path / "tune.tsv", ["text\tlabel", "u\t1"])
    inputs = read("zero-shot", test, train=(train,), tune=(tune,), train_language="eng")

    assert len(inputs.train) == 80
    assert texts(inputs.tune, "text", "lang") == [("u", "en")]


def test_held_out_training_rows(test_and_train: tuple[str, str]) -> None:
    test, train = test_and_train
    inputs = read("zero-shot", test, train=(train,), hold_out="text", train_language="en")

    assert inputs.tune
    assert len(inputs.train) + len(inputs.tune) == 80
    train_texts = {row["text"] for row in inputs.train}
    tune_texts = {row["text"] for row in inputs.tune}
    assert train_texts.isdisjoint(tune_texts)


def test_one_name_of_a_language_in_all_tables(tmp_path: Path) -> None:
    def table(name: str, *languages: str) -> str:
        lines = ["sentence1\tsentence2\tlabel\tlang"]
        for language in languages:
            lines += [f"{name} {language} {n}\tb\t{n % 2}\t{language}" for n in range(4)]
        return write_tsv(tmp_path / name, lines)

    tested = table("tested.tsv", "zho_Hans", "deu_Latn")
    tune = table("tune.tsv", "zho_Hans", "deu_Latn", "zho_Hant")

    inputs = read("pair-classification", tested, tune=(tune,))

    assert list(by_language(inputs.rows)) == ["zho-Hans", "de"]
    assert list(by_language(inputs.tune)) == ["zho-Hans", "de", "zho-Hant"]


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

    files = bucc_files(tmp_path)
    shared = {"gold": files["gold"], "tune": files["data"], "tune_gold": files["gold"]}
    read("bucc", *files["data"], languages=["de", "en"], **shared)
    assert "3 sources and 3 targets" in caplog.text


GAPS = {
    "wide.tsv": (["en\tde\tja", "cat\tKatze\tneko", "bird\tVogel\t", "river\tFluss\tkawa"], "text={lang}"),
    "long.tsv": (
        ["lang\ttext", "en\tcat", "de\tKatze", "ja\tneko", "en\tbird", "de\tVogel", "ja\t \nen\triver"]
        + ["de\tFluss", "ja\tkawa"],
        None,
    ),
    "lines.{lang}.txt": (["en cat bird river", "de Katze Vogel Fluss", "ja neko  kawa"], None),
}


@pytest.mark.parametrize("protocol", ["search", "language-bias"])
@pytest.mark.parametrize("file", GAPS)
def test_an_empty_text_leaves_its_row_out_in_all_languages(protocol: str, file: str, tmp_path: Path) -> None:
    lines, columns = GAPS[file]
    if "{lang}" in file:
        for line in lines:
            language, *words = line.split(" ")
            write_tsv(tmp_path / f"lines.{language}.txt", words)
    else:
        write_tsv(tmp_path / file, lines)

    inputs = read(protocol, str(tmp_path / file), columns=columns, languages=("en", "de", "ja"))

    assert texts(inputs.rows, "text") == [("cat",), ("river",), ("Katze",), ("Fluss",), ("neko",), ("kawa",)]
    assert inputs.skipped == {"empty text in ja": 1}


@pytest.mark.parametrize("protocol", ["search", "language-bias"])
def test_texts_that_are_not_parallel(protocol: str, tmp_path: Path) -> None:
    shorter = write_tsv(tmp_path / "shorter.tsv", ["lang\ttext", "en\tcat", "en\tbird", "de\tKatze"])
    with pytest.raises(XlsrError, match="'de': 1"):
        read(protocol, shorter)

    (tmp_path / "broken.tsv").write_bytes(b"en\tde\ncat\tKatze\nbird\t\xff\n")
    with pytest.raises(XlsrError, match="not parallel"):
        read(protocol, str(tmp_path / "broken.tsv"), columns="text={lang}", languages=("en", "de"))
