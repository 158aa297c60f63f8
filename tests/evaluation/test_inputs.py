from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datasets import Dataset, DatasetDict
from input_helpers import bucc_files, read, texts, write_tsv

from hf_xlsr.evaluation.rows import in_order

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
    write_tsv(tmp_path / "plain.tsv", ["source\ttarget", "day\tTag"])
    unit = "<tu><tuv xml:lang='en'><seg>day</seg></tuv><tuv xml:lang='de'><seg>Tag</seg></tuv></tu>"
    (tmp_path / "memory.tmx").write_text(f"<tmx><body>{unit}</body></tmx>", "utf-8")
    write_tsv(tmp_path / "pool.txt", ["vier", "fünf"])
    return tmp_path


@pytest.mark.parametrize(
    ("files", "options", "expected"),
    [
        (WIDE_FILE, ALL, "en-de one eins, en-de two zwei, en-de three drei, en-fr one un, en-fr three trois"),
        (WIDE_FILE, {**ALL, "where": ("kind=b",)}, "en-de two zwei"),
        (WIDE_FILE, {**ALL, "where": ("kind=b", "kind=a"), "limit": 1}, "en-de one eins, en-fr one un"),
        # A column or a file that is named after a language is in it, whatever the order of --languages.
        (WIDE_FILE, {"columns": "source={lang},target=en", "languages": ("en", "de"), "limit": 1}, "de-en eins one"),
        (WIDE_FILE, {"columns": "source=de,target=en", "limit": 1}, "de-en eins one"),
        (WIDE_FILE, {"columns": "source=de,target=en", "languages": ("en", "de"), "limit": 1}, "de-en eins one"),
        ("news.de news.en", {"limit": 1}, "de-en ja yes"),
        ("news.{de,en}", {"limit": 1}, "de-en ja yes"),
        ("news.de news.en", {"languages": ("en", "de"), "limit": 1}, "de-en ja yes"),
        ("en-{lang}.tsv", {**ALL, "columns": "source=en,target=xx"}, "en-de day Tag, en-fr day jour"),
        ("en-{lang}.tsv", {"columns": "source=xx,target=en", "languages": ("fr", "en")}, "fr-en jour day"),
        ("memory.tmx", {"languages": ("de", "en")}, "de-en Tag day"),
        ("tagged.tsv", {**TAGGED, "languages": ("en", "ja", "fr")}, "en-fr day jour, en-ja sun 日"),
        ("tagged.tsv", {**TURNED, "limit": 1}, "de-en Tag day, fr-en jour day, ja-en 日 sun"),
        ("plain.tsv", {}, "source-target day Tag"),
    ],
)
def test_pairs(files: str, options: dict[str, Any], expected: str, folder: Path) -> None:
    rows = read("tatoeba", *files.split(), **options).only
    assert ", ".join("{}-{} {} {}".format(*row) for row in texts(rows, *PAIR)) == expected


def test_names_skipped_rows_and_hashes(folder: Path) -> None:
    inputs = read("tatoeba", WIDE_FILE, **ALL)
    assert inputs.name == "numbers" and inputs.skipped == {"empty target": 1}
    hashes = inputs.hashes(("source", "target"))
    assert list(hashes) == ["data/numbers/en-de", "data/numbers/en-fr"] and len(set(hashes.values())) == 2
    assert read("tatoeba", WIDE_FILE, **ALL).hashes(("source", "target")) == hashes
    assert read("tatoeba", WIDE_FILE, limit=2, **ALL).hashes(("source", "target")) != hashes
    tagged = read("tatoeba", "tagged.tsv", languages=("en",), **TAGGED)
    assert tagged.skipped == {"empty target_lang": 1} and len(tagged.only) == 4


def test_pool_of_pairs_or_lines_stays_whole(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    options: dict[str, Any] = {"columns": "source=en,target=de", "languages": ("en", "de"), "limit": 1}
    lines = read("xsr", WIDE_FILE, pool=("pool.txt",), **options)
    assert len(lines.only) == 1 and lines.pool == [{"target": "vier"}, {"target": "fünf"}]
    pairs = read("xsr", WIDE_FILE, pool=(WIDE_FILE,), **options).pool
    assert texts(pairs, "target") == [("eins",), ("zwei",), ("drei",)]
    # Pairs may be in the other order; scripts count as languages.
    header = "source_lang\ttarget_lang\tsource\ttarget"
    rows = [f"eng_Latn\t{language}\tday\t{language} day" for language in ("zho_Hans", "zho_Hant", "deu_Latn")]
    turned = write_tsv(folder / "turned.tsv", [header, "deu_Latn\teng_Latn\tNacht\tnight", rows[0], "en\tfr\ta\tb"])
    inputs = read("xsr", write_tsv(folder / "data.tsv", [header, *rows]), pool=(turned,))
    found = {other: in_order(inputs.pool, ("en", other)) for other in ("zho-Hans", "zho-Hant", "de")}
    assert [len(group) for group in found.values()] == [1, 0, 1] and "en-zho-Hant" in caplog.text
    assert texts(found["de"], *PAIR) == [("en", "de", "night", "Nacht")]
    assert set(inputs.only[0]) == set(PAIR)


def test_sentence_pairs_in_two_languages(tmp_path: Path) -> None:
    # As the subsets of STS17 are called.
    tags = ["en-en", "fr-en", "en-de", "es-es", "ko-ko", "pt-BR"]
    rows = [f"one {tag}\ttwo {tag}\t{place}\t{tag}" for place, tag in enumerate(tags)]
    path = write_tsv(tmp_path / "sts17.tsv", ["sentence1\tsentence2\tscore\tlang", *rows])
    assert [row["lang"] for row in read("sts", path).only] == ["en", "fr+en", "en+de", "es", "ko", "pt"]
    assert [row["lang"] for row in read("sts", path, languages=("fr-en",)).only] == ["fr+en"]
    assert [row["lang"] for row in read("sts", path, languages=("en",)).only] == ["en"]
    plain = write_tsv(tmp_path / "plain.tsv", ["one\ttwo\t1", "three\tfour\t2"])
    told = read("sts", plain, columns="sentence1=0,sentence2=1,score=2", languages=("fr-en",))
    assert {row["lang"] for row in told.only} == {"fr+en"}


def test_two_scripts_of_a_language(tmp_path: Path) -> None:
    rows = ["lang\ttext\tlabel\tsplit"]
    rows += [f"{lang}\tx{n}\t{n}\ttest" for lang in ("zho_Hans", "zho_Hant", "eng_Latn") for n in (0, 1)]
    path = write_tsv(tmp_path / "topics.tsv", rows)

    def found(*languages: str) -> list[str]:
        return [row["lang"] for row in read("language-bias", path, languages=languages).only]

    assert found() == ["zho-Hans"] * 2 + ["zho-Hant"] * 2 + ["en"] * 2
    assert found("zh") == ["zho-Hans"] * 2 + ["zho-Hant"] * 2
    assert found("zho_Hant", "en") == ["zh"] * 2 + ["en"] * 2


def test_wide_pairs_of_sentences(tmp_path: Path) -> None:
    rows = [
        {"label": "neutral", "premise_en": "a", "hypothesis_en": "b", "premise_sw": "c", "hypothesis_sw": "d"}
    ] * 12
    path = tmp_path / "xnli.jsonl"
    path.write_text("".join(json.dumps({**row, "premise_en": f"a{n}"}) + "\n" for n, row in enumerate(rows)), "utf-8")
    columns = "premise=premise_{lang},hypothesis=hypothesis_{lang}"
    other = tmp_path / "train.jsonl"
    other.write_text(path.read_text("utf-8").replace('"a', '"other a'), "utf-8")
    options: dict[str, Any] = {"columns": columns, "train": (str(other),), "hold_out": "premise"}
    inputs = read("nli", str(path), languages=("sw", "en"), train_language="en", **options)
    assert texts(inputs.only, "lang", "premise", "hypothesis")[:1] == [("sw", "c", "d")]
    assert [row["lang"] for row in inputs.only] == ["sw"] * 12 + ["en"] * 12
    assert {row["hypothesis"] for row in inputs.train + inputs.tune} == {"b"}


def test_tasks_are_named_by_their_files(tmp_path: Path) -> None:
    rows = ["sentence1\tsentence2\tscore\tsubset\tsplit", "a\tb\t5\tx\ttest", "a\tc\t\tx\ttest", "d\tb\t1\ty\ttrain"]
    first, second = (write_tsv(tmp_path / name, rows) for name in ("sts12.tsv", "other.tsv"))
    inputs = read("sts", first, f"STS13={second}", languages=("en",))
    assert list(inputs.rows) == ["sts12", "STS13"]
    # A pair without a gold score is the protocol's to drop and count.
    assert texts(inputs.rows["STS13"], "sentence2", "score", "subset", "lang") == [
        ("b", "5", "x", "en"),
        ("c", "", "x", "en"),
    ]


def test_corpora_and_tasks_of_mteb_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    def corpus(name: str, *, languages: list[str], split: str) -> Any:
        tags = dict(zip(("source_lang", "target_lang"), languages, strict=True))
        yield {"source": f"{languages[0]} {split}", "target": languages[1], **tags}

    def task(name: str, *, split: str) -> Any:
        yield {"source": f"{name} {split}", "target": "day", "source_lang": "de", "target_lang": "en"}
        yield {"source": "x", "target": " ", "source_lang": "de", "target_lang": "en"}

    monkeypatch.setattr("hf_xlsr.data.sources.load_corpus", corpus)
    monkeypatch.setattr("hf_xlsr.evaluation.mteb.data.mteb_rows", task)
    inputs = read("tatoeba", "bible", languages=("en", "de", "fr"))
    assert inputs.name == "bible"
    assert texts(inputs.only, *PAIR) == [("en", "de", "en test", "de"), ("en", "fr", "en test", "fr")]
    inputs = read("tatoeba", "mteb:Tatoeba", split="validation")
    assert inputs.name == "Tatoeba" and inputs.skipped == {"empty target": 1}
    assert texts(inputs.only, *PAIR) == [("de", "en", "Tatoeba dev", "day")]


def test_invalid_rows_count_once(tmp_path: Path) -> None:
    rows = [f"{split} {n}\t{n}\t{split}\ten" for n in (0, 1) for split in ("train", "dev", "test")]
    path = write_tsv(tmp_path / "t.tsv", ["text\tlabel\tsplit\tlang", *rows, "\t1\ttest\ten", "b\t1\t\ten", "c"])
    inputs = read("zero-shot", path, train_language="en")
    assert inputs.skipped == {"empty text": 1, "wrong column count": 1, "empty split": 1}


def test_tasks_of_senteval(tmp_path: Path) -> None:
    rows = ["text\tlabel\tsplit", "a\t1\ttrain", "b\t0\tvalid", "c\t1\ttest"]
    sst = write_tsv(tmp_path / "SST2.tsv", rows)
    reviews = write_tsv(tmp_path / "MR.tsv", ["sentence\tlabel", "a\t1"])
    inputs = read("senteval", sst, languages=("en",), limit=1)
    assert texts(inputs.rows["SST2"], "text", "split") == [("a", "train"), ("b", "valid"), ("c", "test")]
    assert texts(read("senteval", reviews, columns="text=sentence", languages=("en",)).rows["MR"], "text") == [("a",)]
    parts = {name: Dataset.from_dict({"text": [name], "label": [1]}) for name in ("train", "validation", "test")}
    DatasetDict(parts).save_to_disk(tmp_path / "sst")
    by_name = read("senteval", f"SST2={tmp_path / 'sst'}", languages=("en",)).rows["SST2"]
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
    assert [row["lang"] for row in inputs.only] == ["en"] * 3 + ["de"] * 3
    assert inputs.train_language == "en"
    only = read("zero-shot", topics(tmp_path), columns="label=category", languages=("de",), train_language="en")
    assert {row["lang"] for row in only.only} == {"de"} and {row["lang"] for row in only.train} == {"en"}
    names = ("train", "validation", "test")
    parts = {split: Dataset.from_dict({"text": [f"{split} {n}" for n in "ab"], "label": [0, 1]}) for split in names}
    DatasetDict(parts).save_to_disk(tmp_path / "set")
    inputs = read("zero-shot", str(tmp_path / "set"), languages=("en",))
    assert inputs.name == "set"
    assert [part[0]["text"] for part in (inputs.train, inputs.tune, inputs.only)] == [f"{split} a" for split in names]


def test_training_rows_from_other_files(tmp_path: Path) -> None:
    test = write_tsv(tmp_path / "test.tsv", ["lang\ttext\tlabel", "de\ta\t1", "fr\tb\t0"])
    train = write_tsv(tmp_path / "train.tsv", ["text\tlabel", *(f"t{n}\t{n % 2}" for n in range(40))])
    tune = write_tsv(tmp_path / "tune.tsv", ["text\tlabel", "u\t1"])
    inputs = read("zero-shot", test, train=(train,), tune=(tune,), train_language="eng")
    assert len(inputs.train) == 40 and texts(inputs.tune, "text", "lang") == [("u", "en")]
    held = read("zero-shot", test, train=(train,), hold_out="text", train_language="en")
    assert len(held.train) + len(held.tune) == 40 and held.tune
    assert not {row["text"] for row in held.train} & {row["text"] for row in held.tune}


def test_shared_rows_are_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    rows = ["sentence1\tsentence2\tlabel", "a\tb\t1", "b\tc\t0", "c\td\t0"]
    test = write_tsv(tmp_path / "test.tsv", rows)
    tune = write_tsv(tmp_path / "tune.tsv", [*rows[:3], "e\tf\t1"])
    read("pair-classification", test, tune=(tune,), languages=("en",))
    assert len(caplog.messages) == 1 and "2 of 3" in caplog.text and "--tune" in caplog.text
    caplog.clear()
    apart = write_tsv(tmp_path / "apart.tsv", [rows[0], "e\tf\t1", "a\tf\t1"])
    read("pair-classification", test, tune=(apart,), languages=("en",))
    assert not caplog.messages


def test_one_name_of_a_language_in_all_tables(tmp_path: Path) -> None:
    def table(name: str, *languages: str) -> str:
        rows = [f"{name} {language} {n}\tb\t{n % 2}\t{language}" for language in languages for n in range(4)]
        return write_tsv(tmp_path / name, ["sentence1\tsentence2\tlabel\tlang", *rows])

    one, both = table("one.tsv", "zho_Hans", "deu_Latn"), table("both.tsv", "zho_Hans", "deu_Latn", "zho_Hant")
    assert read("pair-classification", one, tune=(both,)).tune_languages == {"zho-Hans": "zho-Hans", "de": "de"}


def test_file_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from hf_xlsr.evaluation import table

    opened: list[Any] = []
    real = table.open_source
    monkeypatch.setattr(table, "open_source", lambda *args, **options: opened.append(args) or real(*args, **options))
    read("zero-shot", topics(tmp_path), columns="label=category", languages=("de",), train_language="en")
    assert len(opened) == 1


def test_bucc_files(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    files = bucc_files(tmp_path)
    inputs = read("bucc", *files["data"], **{name: value for name, value in files.items() if name != "data"})
    assert inputs.languages == ("de", "en") and set(inputs.hashes(())) == {"test", "tune"}
    assert inputs.bitexts["test"].gold == {("test-de-0", "test-en-1")}
    assert inputs.bitexts["tune"].sources[0] == "de train 0" and not caplog.messages
    packed = []
    for name in files.pop("data"):
        packed.append(f"{name}.gz")
        Path(packed[-1]).write_bytes(gzip.compress(Path(name).read_bytes()))
    write_tsv(tmp_path / "train.de", [f"train-de-{n}\tde test {n}" for n in range(3)])
    assert read("bucc", *packed, **files).languages == ("de", "en")
    assert "3 sources and 0 targets" in caplog.text
