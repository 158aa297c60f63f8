from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hf_xlsr.errors import XlsrError
from hf_xlsr.evaluation.input_languages import pair_views
from hf_xlsr.evaluation.input_rows import RowReader, data_name, parse_where
from hf_xlsr.evaluation.inputs import read_inputs
from hf_xlsr.evaluation.protocols import PROTOCOLS
from hf_xlsr.evaluation.request import Request
from hf_xlsr.evaluation.row_groups import pool_of

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


def write_tsv(path: Path, rows: list[str]) -> str:
    path.write_text("\n".join(rows) + "\n", "utf-8")
    return str(path)


def read(protocol: str, *data: str, **options: Any) -> Any:
    return read_inputs(Request(model="m", protocol=protocol, data=data, **options), PROTOCOLS[protocol])


def texts(rows: list[dict[str, Any]], *columns: str) -> list[tuple[Any, ...]]:
    return [tuple(row[column] for column in columns) for row in rows]


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
    for split in ("validation", "train"):
        with pytest.raises(XlsrError, match=f"--split is '{split}'; protocol zero-shot learns on train"):
            read("zero-shot", topics(tmp_path), columns="label=category", languages=("de",), split=split)


def test_training_rows_from_other_files(tmp_path: Path) -> None:
    test = write_tsv(tmp_path / "test.tsv", ["lang\ttext\tlabel", "de\ta\t1", "fr\tb\t0"])
    train = write_tsv(tmp_path / "train.tsv", ["text\tlabel", *(f"t{n}\t{n % 2}" for n in range(40))])
    tune = write_tsv(tmp_path / "tune.tsv", ["text\tlabel", "u\t1"])
    inputs = read("zero-shot", test, train=(train,), tune=(tune,), train_language="eng")
    assert len(inputs.train) == 40 and texts(inputs.tune, "text", "lang") == [("u", "en")]
    held = read("zero-shot", test, train=(train,), hold_out="text", train_language="en")
    assert len(held.train) + len(held.tune) == 40 and held.tune
    assert not {row["text"] for row in held.train} & {row["text"] for row in held.tune}


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


def bucc_files(tmp_path: Path) -> dict[str, Any]:
    for part in ("train", "test"):
        write_tsv(tmp_path / f"{part}.de", [f"{part}-de-{n}\tde {part} {n}" for n in range(3)])
        write_tsv(tmp_path / f"{part}.en", [f"{part}-en-{n}\ten {part} {n}" for n in range(3)])
        write_tsv(tmp_path / f"{part}.gold", [f"{part}-de-0\t{part}-en-1"])
    places = {
        f"{part}.{end}": str(tmp_path / f"{part}.{end}") for part in ("train", "test") for end in ("de", "en", "gold")
    }
    return {
        "data": (places["test.de"], places["test.en"]),
        "gold": places["test.gold"],
        "tune": (places["train.de"], places["train.en"]),
        "tune_gold": places["train.gold"],
    }


def test_bucc_files_and_their_languages(tmp_path: Path) -> None:
    files = bucc_files(tmp_path)
    inputs = read("bucc", *files.pop("data"), **files)
    assert inputs.languages == ("de", "en")
    assert inputs.bitexts["test"].gold == {("test-de-0", "test-en-1")}
    assert inputs.bitexts["tune"].sources[0] == "de train 0"
    assert set(inputs.hashes(())) == {"test", "tune"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tune": ()}, "--tune is missing; protocol bucc tunes its threshold on other data"),
        ({"gold": None}, "--gold is missing"),
        ({"tune_gold": None}, "--tune-gold is missing"),
        ({"data": ("a.de",)}, "--data has 1 file\\(s\\); protocol bucc takes two"),
        ({"tune": ("a", "b", "c")}, "--tune has 3 file\\(s\\)"),
        ({"columns": "source=x"}, "--columns is for tables"),
        ({"languages": ("de",)}, "give those of sources and targets"),
    ],
)
def test_mistakes_with_bucc(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    files = bucc_files(tmp_path) | change
    with pytest.raises(XlsrError, match=message):
        read("bucc", *files.pop("data"), **files)


def test_bucc_files_without_a_language_in_their_names(tmp_path: Path) -> None:
    files = bucc_files(tmp_path)
    plain = tuple(str(Path(file).rename(Path(file).with_suffix(f".{n}"))) for n, file in enumerate(files.pop("data")))
    with pytest.raises(XlsrError, match="do not end in their languages; say --languages de,en"):
        read("bucc", *plain, **files)


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
    ("tatoeba", {"columns": "source=kind,target=en"}, "does not say which language its source side is in"),
    ("pair-classification", {"columns": "sentence1=en,sentence2=de,label=kind"}, "which language its text is in"),
    ("tatoeba", {"columns": "source=en,target=de", "where": ("kind=z",)}, "has no row for protocol tatoeba"),
    ("tatoeba", {"columns": "source=en,target=de", "where": ("kid=z",)}, "no column 'kid', only en, de, fr, kind"),
    ("tatoeba", {"columns": "source=en,target=de", "where": ("kind",)}, "write COLUMN=VALUE"),
    ("tatoeba", {"columns": "source=en,target=de", "limit": 0}, "limit is 0; it takes a whole number above 0"),
    ("sts", {"columns": "sentence1=en,source=de"}, "--columns has 'source', which protocol sts does not take"),
    ("zero-shot", {"columns": "text=en,label=kind", "languages": ("en",)}, "does not tell rows of split 'train'"),
]


@pytest.mark.parametrize(("protocol", "options", "message"), MISTAKES)
def test_mistakes_with_tables(protocol: str, options: dict[str, Any], message: str, wide: str) -> None:
    with pytest.raises(XlsrError) as error:
        read(protocol, wide, **options)
    assert message in str(error.value) and "\n" not in str(error.value)


def test_unknown_splits_and_languages(tmp_path: Path) -> None:
    path = topics(tmp_path, "train test")
    options: dict[str, Any] = {"columns": "label=category", "train_language": "en"}
    with pytest.raises(XlsrError, match="has no row of split 'final'; its splits are test, train"):
        read("zero-shot", path, split="final", **options)
    with pytest.raises(XlsrError, match="say --train-language, e.g. en"):
        read("zero-shot", path, columns="label=category")
    with pytest.raises(XlsrError, match="has no row in it; its column 'lang' has deu_Latn, eng_Latn"):
        read("zero-shot", path, languages=("it",), **options)
    with pytest.raises(XlsrError, match="no split 'dev' in .*--tune FILE, or .* --hold-out COLUMN"):
        read("zero-shot", path, **options)
    with pytest.raises(XlsrError, match="--hold-out is 'texd'.*did you mean 'text'"):
        read("zero-shot", path, hold_out="texd", **options)
    with pytest.raises(XlsrError, match="leaves all 3 rows on one side"):
        read("zero-shot", path, hold_out="lang", **options)


def test_tested_rows_are_not_learnt_from(tmp_path: Path) -> None:
    path = write_tsv(tmp_path / "rows.tsv", ["text\tlabel", "a\t1", "b\t0"])
    with pytest.raises(XlsrError, match="--train and --data would be the same rows of .*rows.tsv; give other rows"):
        read("zero-shot", path, train=(path,), tune=(path,), languages=("en",))
    pairs = write_tsv(tmp_path / "pairs.tsv", ["sentence1\tsentence2\tlabel", "a\tb\t1", "b\tc\t0"])
    other = str(Path(pairs).parent / ".." / tmp_path.name / "pairs.tsv")
    with pytest.raises(XlsrError, match="--tune and --data would be the same rows"):
        read("pair-classification", pairs, tune=(other,), languages=("en",))
    rows = ["sentence1\tsentence2\tlabel\tsplit", "a\tb\t1\tdev", "b\tc\t0\ttest"]
    split = write_tsv(tmp_path / "split.tsv", rows)
    assert len(read("pair-classification", split, tune=(split,), languages=("en",)).tune) == 1
    with pytest.raises(XlsrError, match="--tune and --data would be the same rows"):
        read("pair-classification", split, tune=(split,), languages=("en",), split="dev")


def test_a_copy_of_the_tested_rows_is_not_learnt_from(tmp_path: Path) -> None:
    lines = [f"t{n}\t{n % 2}" for n in range(40)]
    test = write_tsv(tmp_path / "test.tsv", ["text\tlabel", *lines])
    other = write_tsv(tmp_path / "other.tsv", ["text\tlabel", *(f"u{n}\t{n % 2}" for n in range(40))])
    third = write_tsv(tmp_path / "third.tsv", ["text\tlabel", *(f"v{n}\t{n % 2}" for n in range(40))])
    # The same bytes; the rows in another order; other labels.
    for number, copied in enumerate((lines, lines[::-1], [f"t{n}\t{(n + 1) % 2}" for n in range(40)])):
        copy = write_tsv(tmp_path / f"copy{number}.tsv", ["text\tlabel", *copied])
        with pytest.raises(XlsrError, match="40 rows in en to be learnt from have the same texts .* by --train"):
            read("zero-shot", test, train=(copy,), tune=(other,), languages=("en",))
        with pytest.raises(XlsrError, match="rows in en to be chosen on have the same texts .* by --tune"):
            read("zero-shot", test, train=(other,), tune=(copy,), languages=("en",))
        with pytest.raises(XlsrError, match="rows in fr to be learnt from .* as those in en to be tested"):
            read("zero-shot", test, train=(copy,), hold_out="text", languages=("en",), train_language="fr")
    assert read("zero-shot", test, train=(other,), tune=(third,), languages=("en",)).tune

    rows = ["sentence1\tsentence2\tlabel", "a\tb\t1", "b\tc\t0"]
    pairs, copy = (write_tsv(tmp_path / name, rows) for name in ("pairs.tsv", "pairs-copy.tsv"))
    with pytest.raises(XlsrError, match="the 2 rows in en to be chosen on have the same texts as those in en"):
        read("pair-classification", pairs, tune=(copy,), languages=("en",))


def test_shared_rows_are_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    rows = ["sentence1\tsentence2\tlabel", "a\tb\t1", "b\tc\t0", "c\td\t0"]
    test = write_tsv(tmp_path / "test.tsv", rows)
    tune = write_tsv(tmp_path / "tune.tsv", [*rows[:3], "e\tf\t1"])
    read("pair-classification", test, tune=(tune,), languages=("en",))
    assert caplog.messages == ["2 of 3 rows of the test stand among those in en that are chosen on"]
    caplog.clear()
    apart = write_tsv(tmp_path / "apart.tsv", [rows[0], "e\tf\t1", "a\tf\t1"])
    read("pair-classification", test, tune=(apart,), languages=("en",))
    assert not caplog.messages


def test_bucc_is_not_tuned_on_a_copy(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    files = bucc_files(tmp_path)
    read("bucc", *files["data"], **{key: value for key, value in files.items() if key != "data"})
    assert not caplog.messages
    for end in ("de", "en"):  # the texts of the test under the ids of the training part
        lines = [f"train-{end}-{n}\t{end} test {n}" for n in range(3)]
        write_tsv(tmp_path / f"train.{end}", lines)
        if end == "de":
            read("bucc", *files["data"], **{key: value for key, value in files.items() if key != "data"})
            assert caplog.messages == ["3 sources and 0 targets of --data stand in --tune too"]
    write_tsv(tmp_path / "train.gold", ["train-de-2\ttrain-en-2"])
    with pytest.raises(XlsrError, match="--data and --tune hold the same texts; tune the threshold on other data"):
        read("bucc", *files.pop("data"), **files)


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


def test_data_set_folder_with_splits(tmp_path: Path) -> None:
    from datasets import Dataset, DatasetDict

    def rows(split: str) -> Any:
        return Dataset.from_dict({"text": [f"{split} {n}" for n in range(4)], "label": [0, 1, 0, 1]})

    folder = tmp_path / "topics"
    DatasetDict({"train": rows("train"), "validation": rows("validation"), "test": rows("test")}).save_to_disk(folder)
    inputs = read("zero-shot", str(folder), languages=("en",))
    assert inputs.name == "topics"
    firsts = [part[0]["text"] for part in (inputs.train, inputs.tune, inputs.only)]
    assert firsts == ["train 0", "validation 0", "test 0"]


def test_data_set_without_splits_is_not_learnt_from(tmp_path: Path) -> None:
    from datasets import Dataset, DatasetDict

    rows = Dataset.from_dict({"text": ["a", "b"], "label": [0, 1]})
    rows.save_to_disk(tmp_path / "plain")
    DatasetDict({"test": rows}).save_to_disk(tmp_path / "tests")
    for name in ("plain", "tests"):
        with pytest.raises(XlsrError, match="does not tell rows of split 'train'"):
            read("zero-shot", str(tmp_path / name), languages=("en",))


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

    monkeypatch.setattr("hf_xlsr.evaluation.mteb_data.mteb_rows", rows)
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


def test_languages_have_one_name_in_all_that_is_read(tmp_path: Path) -> None:
    header = "sentence1\tsentence2\tlabel\tlang"
    one = scripts(tmp_path / "one.tsv", header, "zho_Hans", "deu_Latn")
    both = scripts(tmp_path / "both.tsv", header, "zho_Hans", "deu_Latn", "zho_Hant")
    inputs = read("pair-classification", one, tune=(both,))
    assert inputs.tune_languages == {"zho-Hans": "zho-Hans", "de": "de"}
    # The other script is another language, also where neither file holds both.
    other = scripts(tmp_path / "other.tsv", header, "zho_Hant", "deu_Latn")
    with pytest.raises(XlsrError, match="--tune has rows in zho-Hans, de, none in zho-Hant"):
        list(read("pair-classification", other, tune=(one,)).tune_languages)


def test_a_pool_serves_the_scripts_that_it_has(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    header = "source\ttarget\tsource_lang\ttarget_lang"

    def pairs(name: str, *languages: str) -> str:
        return write_tsv(tmp_path / name, [header, *(f"{name} {x}\t{x} {name}\teng_Latn\t{x}" for x in languages)])

    data = pairs("data.tsv", "zho_Hans", "zho_Hant", "deu_Latn")
    inputs = read("xsr", data, pool=(pairs("pool.tsv", "zho_Hans", "deu_Latn"),))
    assert [len(pool_of(inputs.pool, ("en", other))) for other in ("zho-Hans", "zho-Hant", "de")] == [1, 0, 1]
    assert "--pool has nothing in en-zho-Hant, whose candidates are those of --data" in caplog.text
    assert set(inputs.only[0]) == {"source", "target", "source_lang", "target_lang"}


def test_a_head_that_learnt_one_script_is_called_by_it(tmp_path: Path) -> None:
    header = "text\tlabel\tlang"
    test = scripts(tmp_path / "test.tsv", header, "zho_Hans", "zho_Hant", "eng_Latn")
    train, tune = (scripts(tmp_path / f"{name}.tsv", header, "zho_Hans") for name in ("train", "tune"))
    inputs = read("zero-shot", test, train=(train,), tune=(tune,), train_language="zho_Hans")
    assert inputs.train_language == "zho-Hans" == inputs.train[0]["lang"] == inputs.tune[0]["lang"]
    assert sorted({row["lang"] for row in inputs.only}) == ["en", "zho-Hans", "zho-Hant"]
