from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from input_helpers import read, texts, write_tsv

from hf_xlsr.utils.errors import XlsrError


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


def test_a_head_that_learnt_one_script_is_called_by_it(tmp_path: Path) -> None:
    header = "text\tlabel\tlang"
    test = scripts(tmp_path / "test.tsv", header, "zho_Hans", "zho_Hant", "eng_Latn")
    train, tune = (scripts(tmp_path / f"{name}.tsv", header, "zho_Hans") for name in ("train", "tune"))
    inputs = read("zero-shot", test, train=(train,), tune=(tune,), train_language="zho_Hans")
    assert inputs.train_language == "zho-Hans" == inputs.train[0]["lang"] == inputs.tune[0]["lang"]
    assert sorted({row["lang"] for row in inputs.only}) == ["en", "zho-Hans", "zho-Hant"]
