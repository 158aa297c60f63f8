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

from hf_xlsr.evaluation.languages import pair_views
from hf_xlsr.evaluation.rows import in_order

WIDE = {
    "en": ["one", "two", "three"],
    "de": ["eins", "zwei", "drei"],
    "fr": ["un", None, "trois"],
    "kind": ["a", "b", "a"],
}


@pytest.fixture
def wide(tmp_path: Path) -> str:
    path = tmp_path / "numbers.test.parquet"
    pq.write_table(pa.table(WIDE), path)
    return str(path)


PAIR = ("source_lang", "target_lang", "source", "target")


def test_wide_file(wide: str) -> None:
    inputs = read("tatoeba", wide, columns="source=en,target={lang}", languages=("en", "de", "fr"))
    assert texts(inputs.only, *PAIR) == [
        *[("en", "de", "one", "eins"), ("en", "de", "two", "zwei"), ("en", "de", "three", "drei")],
        *[("en", "fr", "one", "un"), ("en", "fr", "three", "trois")],
    ]
    assert inputs.name == "numbers" and inputs.skipped == {"empty target": 1}


def test_placeholder_on_the_source_side(wide: str) -> None:
    inputs = read("tatoeba", wide, columns="source={lang},target=en", languages=("en", "de"), limit=1)
    assert texts(inputs.only, *PAIR) == [("de", "en", "eins", "one")]


def test_where_and_limit_per_language(wide: str) -> None:
    options: dict[str, Any] = {"columns": "source=en,target={lang}", "languages": ("en", "de", "fr")}
    assert [row["source"] for row in read("tatoeba", wide, where=("kind=b",), **options).only] == ["two"]
    either = read("tatoeba", wide, where=("kind=b", "kind=a"), limit=1, **options).only
    assert texts(either, *PAIR) == [("en", "de", "one", "eins"), ("en", "fr", "one", "un")]


def test_pool_stays_whole_under_a_limit(wide: str, tmp_path: Path) -> None:
    pairs = write_tsv(tmp_path / "pool.tsv", ["en\tde", *(f"more {n}\tmehr {n}" for n in range(5))])
    lines = write_tsv(tmp_path / "pool.txt", [f"mehr {n}" for n in range(5)])
    for pool in (pairs, lines):
        inputs = read("xsr", wide, columns="source=en,target=de", languages=("en", "de"), limit=2, pool=(pool,))
        assert (len(inputs.only), len(inputs.pool)) == (2, 5)


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


def test_placeholder_in_the_path(tmp_path: Path) -> None:
    for language, word in (("de", "Tag"), ("fr", "jour")):
        write_tsv(tmp_path / f"en-{language}.tsv", ["en\txx", f"day\t{word}"])
    inputs = read(
        "tatoeba", str(tmp_path / "en-{lang}.tsv"), columns="source=en,target=xx", languages=("en", "de", "fr")
    )
    assert texts(inputs.only, *PAIR) == [("en", "de", "day", "Tag"), ("en", "fr", "day", "jour")]
    swapped = read("tatoeba", str(tmp_path / "en-{lang}.tsv"), columns="source=xx,target=en", languages=("fr", "en"))
    assert texts(swapped.only, *PAIR) == [("fr", "en", "jour", "day")]


def test_line_aligned_files(tmp_path: Path) -> None:
    files = [
        write_tsv(tmp_path / f"news.{code}", [word, f"{word} {word}"]) for code, word in (("de", "ja"), ("en", "yes"))
    ]
    for data in (files, [str(tmp_path / "news.{de,en}")]):
        assert texts(read("tatoeba", *data).only, *PAIR)[0] == ("de", "en", "ja", "yes")
    # Languages in the other order do not turn the files round, and are not believed against their names.
    assert texts(read("tatoeba", *files, languages=("en", "de")).only, *PAIR)[0] == ("de", "en", "ja", "yes")


def test_columns_named_after_languages(wide: str) -> None:
    assert texts(read("tatoeba", wide, columns="source=de,target=en", limit=1).only, *PAIR) == [
        ("de", "en", "eins", "one")
    ]
    told = read("tatoeba", wide, columns="source=de,target=en", languages=("en", "de"), limit=1)
    assert texts(told.only, *PAIR) == [("de", "en", "eins", "one")]


@pytest.fixture
def tagged(tmp_path: Path) -> str:
    rows = [
        "src_lang\ttext\tenglish",
        "deu\tTag\tday",
        "fra\tjour\tday",
        "deu\tNacht\tnight",
        "\tx\ty",
        "jpn\t日\tsun",
    ]
    return write_tsv(tmp_path / "tatoeba.tsv", rows)


def test_language_column(tagged: str) -> None:
    columns = "source=english,target=text,target_lang=src_lang"
    rows = read("tatoeba", tagged, columns=columns, languages=("en",))
    assert texts(rows.only, "source_lang", "target_lang", "target") == [
        ("en", "de", "Tag"),
        ("en", "fr", "jour"),
        ("en", "de", "Nacht"),
        ("en", "ja", "日"),
    ]
    assert rows.skipped == {"empty target_lang": 1}
    chosen = read("tatoeba", tagged, columns=columns, languages=("en", "ja", "fr"))
    assert [row["target_lang"] for row in chosen.only] == ["fr", "ja"]
    other = read("tatoeba", tagged, columns="source=text,target=english,source_lang=src_lang", languages=("en",))
    assert texts(other.only, *PAIR)[0] == ("de", "en", "Tag", "day")


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


def test_hashes_of_data(wide: str) -> None:
    options: dict[str, Any] = {"columns": "source=en,target={lang}", "languages": ("en", "de", "fr")}
    hashes = read("tatoeba", wide, **options).hashes(("source", "target"))
    assert list(hashes) == ["data/numbers/en-de", "data/numbers/en-fr"] and len(set(hashes.values())) == 2
    assert read("tatoeba", wide, **options).hashes(("source", "target")) == hashes
    assert read("tatoeba", wide, limit=2, **options).hashes(("source", "target")) != hashes


def test_in_order_pairs_and_of_lines(wide: str, tmp_path: Path) -> None:
    lines = write_tsv(tmp_path / "pool.txt", ["vier", "fünf"])
    options: dict[str, Any] = {"columns": "source=en,target={lang}", "languages": ("en", "de")}
    assert read("xsr", wide, pool=(lines,), **options).pool == [{"target": "vier"}, {"target": "fünf"}]
    assert texts(read("xsr", wide, pool=(wide,), **options).pool, "target") == [("eins",), ("zwei",), ("drei",)]


def test_pool_in_the_other_order(tmp_path: Path) -> None:
    header = "source_lang\ttarget_lang\tsource\ttarget"
    test = write_tsv(tmp_path / "test.tsv", [header, "en\tde\tday\tTag"])
    turned = write_tsv(tmp_path / "turned.tsv", [header, "de\ten\tNacht\tnight", "en\tfr\tday\tjour"])
    inputs = read("xsr", test, pool=(turned,))
    assert texts(in_order(inputs.pool, ("en", "de")), *PAIR) == [("en", "de", "night", "Nacht")]


def test_tmx(tmp_path: Path) -> None:
    path = tmp_path / "memory.tmx"
    unit = "<tu><tuv xml:lang='en'><seg>day</seg></tuv><tuv xml:lang='de'><seg>Tag</seg></tuv></tu>"
    path.write_text(f"<tmx><body>{unit}</body></tmx>", "utf-8")
    assert texts(read("tatoeba", str(path), languages=("de", "en")).only, *PAIR) == [("de", "en", "Tag", "day")]


def test_corpus_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(name: str, *, languages: list[str], split: str) -> Any:
        yield {
            "source": f"{languages[0]} {split}",
            "target": languages[1],
            "source_lang": languages[0],
            "target_lang": languages[1],
        }

    monkeypatch.setattr("hf_xlsr.data.sources.load_corpus", load)
    inputs = read("tatoeba", "bible", languages=("en", "de", "fr"))
    assert inputs.name == "bible"
    assert texts(inputs.only, *PAIR) == [("en", "de", "en test", "de"), ("en", "fr", "en test", "fr")]


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


def test_tasks_of_mteb(monkeypatch: pytest.MonkeyPatch) -> None:
    def rows(task: str, *, split: str) -> Any:
        yield {"source": f"{task} {split}", "target": "day", "source_lang": "de", "target_lang": "en"}
        yield {"source": "x", "target": " ", "source_lang": "de", "target_lang": "en"}

    monkeypatch.setattr("hf_xlsr.evaluation.mteb.data.mteb_rows", rows)
    inputs = read("tatoeba", "mteb:Tatoeba", split="validation")
    assert inputs.name == "Tatoeba" and inputs.skipped == {"empty target": 1}
    assert texts(inputs.only, *PAIR) == [("de", "en", "Tatoeba dev", "day")]


def test_languages_without_any_hint() -> None:
    assert pair_views([], ("source", "target"), each=False, told=()) == [(("und", "und"), None)]
    assert pair_views(["en"], ("source", "target"), each=False, told={"source_lang"}) == [(("und", "en"), None)]


def test_pool_of_some_scripts(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    header = "source\ttarget\tsource_lang\ttarget_lang"

    def pairs(name: str, *languages: str) -> str:
        return write_tsv(tmp_path / name, [header, *(f"{name} {x}\t{x} {name}\teng_Latn\t{x}" for x in languages)])

    data = pairs("data.tsv", "zho_Hans", "zho_Hant", "deu_Latn")
    inputs = read("xsr", data, pool=(pairs("pool.tsv", "zho_Hans", "deu_Latn"),))
    assert [len(in_order(inputs.pool, ("en", other))) for other in ("zho-Hans", "zho-Hant", "de")] == [1, 0, 1]
    assert "en-zho-Hant" in caplog.text
    assert set(inputs.only[0]) == {"source", "target", "source_lang", "target_lang"}


def test_unknown_languages_are_named_by_columns(tmp_path: Path):
    (tmp_path / "t.tsv").write_text("source\ttarget\nday\tTag\nnight\tNacht\n")
    inputs = read("tatoeba", str(tmp_path / "t.tsv"))
    assert [(row["source_lang"], row["target_lang"]) for row in inputs.only] == [("source", "target")] * 2


def topics(tmp_path: Path, splits: str = "train validation test") -> str:
    rows = ["lang\tsplit\ttext\tcategory"]
    for lang in ("eng_Latn", "deu_Latn"):
        rows += [f"{lang}\t{split}\t{lang} {split} {n}\t{n % 2}" for split in splits.split() for n in range(3)]
    return write_tsv(tmp_path / "topics.tsv", rows)


def test_splits_of_one_file(tmp_path: Path) -> None:
    inputs = read("zero-shot", topics(tmp_path), columns="label=category", languages=("en", "de"))
    assert texts(inputs.train, "text", "label") == [(f"eng_Latn train {n}", n % 2) for n in range(3)]
    assert [row["text"] for row in inputs.tune] == [f"eng_Latn validation {n}" for n in range(3)]
    assert [row["lang"] for row in inputs.only] == ["en"] * 3 + ["de"] * 3
    assert inputs.train_language == "en"
    only = read("zero-shot", topics(tmp_path), columns="label=category", languages=("de",), train_language="en")
    assert {row["lang"] for row in only.only} == {"de"} and {row["lang"] for row in only.train} == {"en"}


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


def test_dataset_folder_with_splits(tmp_path: Path) -> None:
    def rows(split: str) -> Any:
        return Dataset.from_dict({"text": [f"{split} {n}" for n in range(4)], "label": [0, 1, 0, 1]})

    folder = tmp_path / "topics"
    DatasetDict({"train": rows("train"), "validation": rows("validation"), "test": rows("test")}).save_to_disk(folder)
    inputs = read("zero-shot", str(folder), languages=("en",))
    assert inputs.name == "topics"
    firsts = [part[0]["text"] for part in (inputs.train, inputs.tune, inputs.only)]
    assert firsts == ["train 0", "validation 0", "test 0"]


def scripts(path: Path, header: str, *languages: str) -> str:
    """Rows of languages, each with its own texts."""
    rows = [
        "\t".join(
            {"lang": language, "label": str(number % 2)}.get(column, f"{path.stem} {column} {language} {number}")
            for column in header.split("\t")
        )
        for language in languages
        for number in range(4)
    ]
    return write_tsv(path, [header, *rows])


def test_one_name_of_a_language_in_all_tables(tmp_path: Path) -> None:
    header = "sentence1\tsentence2\tlabel\tlang"
    one = scripts(tmp_path / "one.tsv", header, "zho_Hans", "deu_Latn")
    both = scripts(tmp_path / "both.tsv", header, "zho_Hans", "deu_Latn", "zho_Hant")
    inputs = read("pair-classification", one, tune=(both,))
    assert inputs.tune_languages == {"zho-Hans": "zho-Hans", "de": "de"}


def test_head_is_named_by_its_script(tmp_path: Path) -> None:
    header = "text\tlabel\tlang"
    test = scripts(tmp_path / "test.tsv", header, "zho_Hans", "zho_Hant", "eng_Latn")
    train, tune = (scripts(tmp_path / f"{name}.tsv", header, "zho_Hans") for name in ("train", "tune"))
    inputs = read("zero-shot", test, train=(train,), tune=(tune,), train_language="zho_Hans")
    assert inputs.train_language == "zho-Hans" == inputs.train[0]["lang"] == inputs.tune[0]["lang"]
    assert sorted({row["lang"] for row in inputs.only}) == ["en", "zho-Hans", "zho-Hant"]


def test_dataset_with_a_split_column(tmp_path: Path) -> None:
    splits = ["train", "train", "dev", "dev", "test", "test"]
    columns = {"text": [f"t{n}" for n in range(6)], "label": [0, 1] * 3, "split": splits}
    Dataset.from_dict(columns).save_to_disk(tmp_path / "plain")
    inputs = read("zero-shot", str(tmp_path / "plain"), languages=("en",))
    assert [len(rows) for rows in (inputs.train, inputs.tune, inputs.only)] == [2, 2, 2]


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
