from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from input_helpers import read, texts, write_tsv

from hf_xlsr.evaluation.input_languages import pair_views
from hf_xlsr.evaluation.input_rows import RowReader, data_name, parse_where
from hf_xlsr.evaluation.row_groups import pool_of
from hf_xlsr.utils.errors import XlsrError

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


def test_wide_file_is_read_once_for_each_other_language(wide: str) -> None:
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


def test_a_pool_stays_whole_under_a_limit(wide: str, tmp_path: Path) -> None:
    pairs = write_tsv(tmp_path / "pool.tsv", ["en\tde", *(f"more {n}\tmehr {n}" for n in range(5))])
    lines = write_tsv(tmp_path / "pool.txt", [f"mehr {n}" for n in range(5)])
    for pool in (pairs, lines):
        inputs = read("xsr", wide, columns="source=en,target=de", languages=("en", "de"), limit=2, pool=(pool,))
        assert (len(inputs.only), len(inputs.pool)) == (2, 5)


def test_sentences_in_two_languages_are_of_both(tmp_path: Path) -> None:
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


def test_one_language_by_two_codes_is_one(tmp_path: Path) -> None:
    labelled = [f"text {n} {tag}\t{n % 2}\t{tag}" for tag in ("eng", "deu") for n in range(4)]
    test = write_tsv(tmp_path / "test.tsv", ["text\tlabel\tlang", *labelled])
    learnt = [f"other {n}\t{n % 2}\ten\t{'dev' if n > 5 else 'train'}" for n in range(8)]
    train = write_tsv(tmp_path / "train.tsv", ["text\tlabel\tlang\tsplit", *learnt])
    inputs = read("zero-shot", test, train=(train,), train_language="en")
    assert {row["lang"] for row in inputs.only} == {"en", "de"} and inputs.train_language == "en"


def test_one_file_a_language_with_the_placeholder_in_the_path(tmp_path: Path) -> None:
    for language, word in (("de", "Tag"), ("fr", "jour")):
        write_tsv(tmp_path / f"en-{language}.tsv", ["en\txx", f"day\t{word}"])
    inputs = read(
        "tatoeba", str(tmp_path / "en-{lang}.tsv"), columns="source=en,target=xx", languages=("en", "de", "fr")
    )
    assert texts(inputs.only, *PAIR) == [("en", "de", "day", "Tag"), ("en", "fr", "day", "jour")]
    swapped = read("tatoeba", str(tmp_path / "en-{lang}.tsv"), columns="source=xx,target=en", languages=("fr", "en"))
    assert texts(swapped.only, *PAIR) == [("fr", "en", "jour", "day")]


def test_line_aligned_files_are_in_the_languages_of_their_names(tmp_path: Path) -> None:
    files = [
        write_tsv(tmp_path / f"news.{code}", [word, f"{word} {word}"]) for code, word in (("de", "ja"), ("en", "yes"))
    ]
    for data in (files, [str(tmp_path / "news.{de,en}")]):
        assert texts(read("tatoeba", *data).only, *PAIR)[0] == ("de", "en", "ja", "yes")
    # Languages in the other order do not turn the files round, and are not believed against their names.
    assert texts(read("tatoeba", *files, languages=("en", "de")).only, *PAIR)[0] == ("de", "en", "ja", "yes")


def test_compressed_line_aligned_files(tmp_path: Path) -> None:
    for code, word in (("de", "ja"), ("en", "yes")):
        (tmp_path / f"{code}-news.{code}.gz").write_bytes(gzip.compress(f"{word}\n".encode()))
    files = [str(tmp_path / f"{code}-news.{code}.gz") for code in ("de", "en")]
    assert texts(read("tatoeba", *files).only, *PAIR) == [("de", "en", "ja", "yes")]
    wild = [str(tmp_path / "{lang}-news.{lang}.gz"), str(tmp_path / "en-news.en.gz")]
    assert texts(read("tatoeba", *wild, languages=("en", "de")).only, *PAIR) == [("de", "en", "ja", "yes")]


def test_columns_named_after_languages_need_no_option(wide: str) -> None:
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


def test_rows_are_grouped_by_a_language_column(tagged: str) -> None:
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


def test_two_scripts_of_a_language_stay_apart(tmp_path: Path) -> None:
    rows = ["lang\ttext\tlabel\tsplit"]
    rows += [f"{lang}\tx{n}\t{n}\ttest" for lang in ("zho_Hans", "zho_Hant", "eng_Latn") for n in (0, 1)]
    path = write_tsv(tmp_path / "topics.tsv", rows)
    reader = RowReader("zero-shot", ("text", "label"), ("lang", "split"))
    assert [row["lang"] for row in reader.read([path], "test")] == ["zho-Hans"] * 2 + ["zho-Hant"] * 2 + ["en"] * 2
    assert [row["lang"] for row in reader.read([path], "test", ("zh",))] == ["zho-Hans"] * 2 + ["zho-Hant"] * 2
    assert [row["lang"] for row in reader.read([path], "test", ("zho_Hant", "en"))] == ["zh"] * 2 + ["en"] * 2


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


def test_sentences_in_two_languages(tmp_path: Path) -> None:
    path = write_tsv(tmp_path / "sts.tsv", ["sentence1\tsentence2\tscore\tlang", "a\tb\t5\teng+deu"])
    assert read("sts", path).rows["sts"][0]["lang"] == "en+de"


def test_labels_of_all_formats_are_the_same(tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.table({"sentence1": ["a", "b"], "sentence2": ["c", "d"], "label": [1.0, 0.0]}), path)
    tsv = write_tsv(tmp_path / "rows.tsv", ["sentence1\tsentence2\tlabel", "a\tc\t1", "b\td\t 0"])
    kinds = [read("pair-classification", str(data), languages=("en",)).only for data in (path, tsv)]
    assert kinds[0] == kinds[1]


def test_hashes_tell_data_apart(wide: str) -> None:
    options: dict[str, Any] = {"columns": "source=en,target={lang}", "languages": ("en", "de", "fr")}
    hashes = read("tatoeba", wide, **options).hashes(("source", "target"))
    assert list(hashes) == ["data/numbers/en-de", "data/numbers/en-fr"] and len(set(hashes.values())) == 2
    assert read("tatoeba", wide, **options).hashes(("source", "target")) == hashes
    assert read("tatoeba", wide, limit=2, **options).hashes(("source", "target")) != hashes


def test_pool_of_pairs_and_of_lines(wide: str, tmp_path: Path) -> None:
    lines = write_tsv(tmp_path / "pool.txt", ["vier", "fünf"])
    options: dict[str, Any] = {"columns": "source=en,target={lang}", "languages": ("en", "de")}
    assert read("xsr", wide, pool=(lines,), **options).pool == [{"target": "vier"}, {"target": "fünf"}]
    assert texts(read("xsr", wide, pool=(wide,), **options).pool, "target") == [("eins",), ("zwei",), ("drei",)]


def test_pools_that_cannot_serve(wide: str, tmp_path: Path) -> None:
    lines = write_tsv(tmp_path / "pool.txt", ["vier"])
    options: dict[str, Any] = {"columns": "source=en,target={lang}", "languages": ("en", "de", "fr")}
    with pytest.raises(XlsrError, match="--pool is lines of one language, and --data has targets in de, fr"):
        read("xsr", wide, pool=(lines,), **options)
    empty = tmp_path / "empty.txt"
    empty.write_text("", "utf-8")
    with pytest.raises(XlsrError, match="--pool has no sentence"):
        read("xsr", wide, pool=(str(empty),), **options | {"languages": ("en", "de")})
    header = "source_lang\ttarget_lang\tsource\ttarget"
    test = write_tsv(tmp_path / "test.tsv", [header, "en\tde\tday\tTag"])
    pool = write_tsv(tmp_path / "pool.tsv", [header, "en\tfr\tday\tjour", "fr\tit\tjour\tgiorno"])
    with pytest.raises(XlsrError, match="--pool has pairs in en-fr, fr-it and --data in en-de; give a pool in the"):
        read("xsr", test, pool=(pool,))
    turned = write_tsv(tmp_path / "turned.tsv", [header, "de\ten\tNacht\tnight", "en\tfr\tday\tjour"])
    inputs = read("xsr", test, pool=(turned,))
    assert texts(pool_of(inputs.pool, ("en", "de")), *PAIR) == [("en", "de", "night", "Nacht")]


MISTAKES: list[tuple[str, dict[str, Any], str]] = [
    (
        "tatoeba",
        {"columns": "source=en,target=it", "languages": ("en", "it")},
        "has no column 'it', only en, de, fr, kind; protocol tatoeba needs source, target: say --columns target=NAME.",
    ),
    ("sts", {"languages": ("en",)}, "protocol sts needs sentence1, sentence2, score: say --columns sentence1=NAME."),
    (
        "tatoeba",
        {"columns": "source=en,target={lang}"},
        "{lang} stands for each language of --languages, which is not",
    ),
    ("tatoeba", {"columns": "source=en,target={lang}", "languages": ("en",)}, "name a second language beside 'en'"),
    ("tatoeba", {"columns": "source={lang},target={lang}", "languages": ("en", "de")}, "both sides hold {lang}"),
    ("pair-classification", {"columns": "sentence1=en,sentence2=de,label=kind"}, "which language its text is in"),
    ("tatoeba", {"columns": "source=en,target=de", "where": ("kind=z",)}, "has no row for protocol tatoeba"),
    ("tatoeba", {"columns": "source=en,target=de", "where": ("kid=z",)}, "no column 'kid', only en, de, fr, kind"),
    ("tatoeba", {"columns": "source=en,target=de", "where": ("kind",)}, "write COLUMN=VALUE"),
    ("tatoeba", {"columns": "source=en,target=de", "limit": 0}, "limit"),
    ("sts", {"columns": "sentence1=en,source=de"}, "--columns has 'source', which protocol sts does not take"),
    ("zero-shot", {"columns": "text=en,label=kind", "languages": ("en",)}, "does not tell rows of split 'train'"),
]


@pytest.mark.parametrize(("protocol", "options", "message"), MISTAKES)
def test_mistakes_with_tables(protocol: str, options: dict[str, Any], message: str, wide: str) -> None:
    with pytest.raises(XlsrError) as error:
        read(protocol, wide, **options)
    assert message in str(error.value) and "\n" not in str(error.value)


def test_too_many_files(wide: str) -> None:
    with pytest.raises(
        XlsrError, match="--data has 3 files; this protocol takes one table, or two line-aligned files"
    ):
        read("tatoeba", wide, wide, wide)
    with pytest.raises(XlsrError, match="two files of task 'numbers'; tell them apart by NAME=FILE"):
        read("sts", wide, wide)
    with pytest.raises(XlsrError, match="--name does not go with protocol sts, whose keys name tasks"):
        read("sts", wide, name="x")


def test_tmx_needs_languages(tmp_path: Path) -> None:
    path = tmp_path / "memory.tmx"
    unit = "<tu><tuv xml:lang='en'><seg>day</seg></tuv><tuv xml:lang='de'><seg>Tag</seg></tuv></tu>"
    path.write_text(f"<tmx><body>{unit}</body></tmx>", "utf-8")
    assert texts(read("tatoeba", str(path), languages=("de", "en")).only, *PAIR) == [("de", "en", "Tag", "day")]
    with pytest.raises(XlsrError, match="say --languages en,fr"):
        read("tatoeba", str(path))


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
    with pytest.raises(
        XlsrError, match="the corpus 'bible' is read for each language of --languages, which is not given"
    ):
        read("tatoeba", "bible")
    with pytest.raises(XlsrError, match="--columns is for files and data sets; 'bible' is read by its name"):
        read("tatoeba", "bible", languages=("en", "de"), columns="source=x")


def test_bad_rows_of_a_file_that_is_read_twice_count_once(tmp_path: Path) -> None:
    rows = [f"{split} {n}\t{n}\t{split}\ten" for n in (0, 1) for split in ("train", "dev", "test")]
    path = write_tsv(tmp_path / "t.tsv", ["text\tlabel\tsplit\tlang", *rows, "\t1\ttest\ten", "b\t1\t\ten", "c"])
    inputs = read("zero-shot", path, train_language="en")
    assert inputs.skipped == {"empty text": 1, "wrong column count": 1, "empty split": 1}


def test_tasks_of_senteval(tmp_path: Path) -> None:
    from datasets import Dataset, DatasetDict

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
    with pytest.raises(XlsrError, match="protocol senteval needs text, label, split: say --columns split=NAME"):
        read("senteval", f"TREC={reviews}", columns="text=sentence", languages=("en",))
    with pytest.raises(XlsrError, match="no task 'numbers'"):
        read("senteval", str(tmp_path / "numbers.tsv"), languages=("en",))
    with pytest.raises(XlsrError, match="--split is 'dev'; protocol senteval"):
        read("senteval", sst, languages=("en",), split="dev")


def test_tasks_of_mteb(monkeypatch: pytest.MonkeyPatch) -> None:
    def rows(task: str, *, split: str) -> Any:
        yield {"source": f"{task} {split}", "target": "day", "source_lang": "de", "target_lang": "en"}
        yield {"source": "x", "target": " ", "source_lang": "de", "target_lang": "en"}

    monkeypatch.setattr("hf_xlsr.evaluation.mteb.data.mteb_rows", rows)
    inputs = read("tatoeba", "mteb:Tatoeba", split="validation")
    assert inputs.name == "Tatoeba" and inputs.skipped == {"empty target": 1}
    assert texts(inputs.only, *PAIR) == [("de", "en", "Tatoeba dev", "day")]
    with pytest.raises(
        XlsrError, match="mteb:Tatoeba has no column 'sentence1', which protocol sts needs; it has source"
    ):
        read("sts", "mteb:Tatoeba")
    with pytest.raises(XlsrError, match="protocol mteb runs tasks by name, give mteb:TASK"):
        read("mteb", "Tatoeba")


def test_views_of_a_table_without_any_hint() -> None:
    assert pair_views([], ("source", "target"), each=False, told=()) == [(("und", "und"), None)]
    assert pair_views(["en"], ("source", "target"), each=False, told={"source_lang"}) == [(("und", "en"), None)]


def test_small_helpers() -> None:
    assert parse_where(None) == {}
    assert data_name(["bible"]) == "bible"


def test_a_pool_serves_the_scripts_that_it_has(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    header = "source\ttarget\tsource_lang\ttarget_lang"

    def pairs(name: str, *languages: str) -> str:
        return write_tsv(tmp_path / name, [header, *(f"{name} {x}\t{x} {name}\teng_Latn\t{x}" for x in languages)])

    data = pairs("data.tsv", "zho_Hans", "zho_Hant", "deu_Latn")
    inputs = read("xsr", data, pool=(pairs("pool.tsv", "zho_Hans", "deu_Latn"),))
    assert [len(pool_of(inputs.pool, ("en", other))) for other in ("zho-Hans", "zho-Hant", "de")] == [1, 0, 1]
    assert "--pool has nothing in en-zho-Hant, whose candidates are those of --data" in caplog.text
    assert set(inputs.only[0]) == {"source", "target", "source_lang", "target_lang"}


def test_unnamed_languages_of_pairs_are_called_by_their_side(tmp_path: Path):
    (tmp_path / "t.tsv").write_text("source\ttarget\nday\tTag\nnight\tNacht\n")
    inputs = read("tatoeba", str(tmp_path / "t.tsv"))
    assert [(row["source_lang"], row["target_lang"]) for row in inputs.only] == [("source", "target")] * 2
