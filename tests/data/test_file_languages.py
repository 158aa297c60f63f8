"""Which language the name of a file says, and what is refused because of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from hf_xlsr.data.file_languages import check_order, file_order, language_of_file, languages_of_files, text_language
from hf_xlsr.data.formats.reading import read_rows
from hf_xlsr.data.running_text import read_running_text
from hf_xlsr.data.sources import Source, open_texts
from hf_xlsr.evaluation.table import Table
from hf_xlsr.utils.errors import XlsrError

NAMED = {
    "newstest2019-ref.deu.txt": "deu",
    "deu_Latn.devtest": "deu_Latn",
    "de.txt": "de",
    "de/test.txt": "de",
    "corpus.de": "de",
    "corpus.de.gz": "de",
    "europarl-v7.de-en.de": "de",
    "newstest2019-ende-ref.de.sgm": "de",
    "Tatoeba.zh_Hant.txt.xz": "zh_Hant",
    "corpus.pt_BR": "pt_BR",
    "zho_Hans/dev.tsv": "zho_Hans",
}
# Words that are codes of languages too, pairs, and names that say nothing.
UNNAMED = [
    *"corpus.src corpus.tgt corpus.ref train.in train.out x.to all.txt is/test.txt or.txt no.dup.txt it/a.txt".split(),
    *"src/de-en.txt dev.en-de train.tsv data.raw mr.tsv run/a.txt cat.txt MR.tsv test_de.txt a.tok news.2019".split(),
]


@pytest.mark.parametrize(("name", "language"), NAMED.items())
def test_name_of_a_language(name: str, language: str) -> None:
    assert language_of_file(name) == language
    assert language_of_file(name, ["en", language]) == language


@pytest.mark.parametrize("name", UNNAMED)
def test_words_name_no_language(name: str) -> None:
    assert language_of_file(name) is None
    assert text_language(name, ["th"]) == "th"


@pytest.mark.parametrize(
    ("name", "languages", "found"),
    [
        ("train_de.txt", "en de", "de"),
        ("train-en.txt", "en de", "en"),
        ("wiki.kab", "en kab", "kab"),
        ("corpus.no", "en no", "no"),
        ("no-dup.txt", "en no", None),
        ("DE.txt", "en de", "DE"),
        ("corpus.zh-cn", "en zh", "zh"),
        ("en-de.txt", "en de", None),
        ("run/eng/a.txt", "eng deu", "eng"),
    ],
)
def test_languages_of_the_user_are_found_in_more_places(name: str, languages: str, found: str | None) -> None:
    assert language_of_file(name, languages.split()) == found


ORDERS = [
    ("newstest2019-ref.deu.txt newstest2019-src.eng.txt", "en de", [1, 0]),
    ("deu_Latn.devtest eng_Latn.devtest", "en de", [1, 0]),
    ("de.txt en.txt", "en de", [1, 0]),
    ("de/test.txt en/test.txt", "en de", [1, 0]),
    ("train_de.txt train_en.txt", "en de", [1, 0]),
    ("x.zh-TW x.zh-CN", "zh-CN zh-TW", [1, 0]),
    ("europarl.de-en.en europarl.de-en.de", "en de", [0, 1]),
    ("de/src.txt de/ref.txt", "en de", [0, 1]),
    ("a.src a.tgt", "en de", [0, 1]),
    ("translated.from translated.to", "en de", [0, 1]),
    ("it-news.src.txt it-news.tgt.txt", "en it", [0, 1]),
    ("a.en b.en", "en en", [0, 1]),
    ("all.is.txt all.or.txt", "en de", [0, 1]),
]


@pytest.mark.parametrize(("names", "languages", "order"), ORDERS)
def test_files_are_matched_to_the_languages(names: str, languages: str, order: list[int], tmp_path: Path) -> None:
    assert file_order(names.split(), languages.split()) == order

    paths = [tmp_path / "files" / name for name in names.split()]
    for number, path in enumerate(paths):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"text {number}\n", "utf-8")
    (row,) = read_rows(paths, languages=languages.split())
    assert [row["source"], row["target"]] == [f"text {number}" for number in order]


@pytest.mark.parametrize(
    ("names", "languages"),
    [("a.de b.fr", "en de"), ("a.fr b.de", "en de"), ("a.en b.en", "en de"), ("de.txt other.txt", "en de")],
)
def test_contradiction_is_refused(names: str, languages: str) -> None:
    with pytest.raises(XlsrError, match="is named after '..' and would be read as '..'"):
        file_order(names.split(), languages.split())


def test_files_in_the_other_order_are_a_contradiction_where_the_order_counts() -> None:
    check_order(["en.txt", "de.txt"], ["en", "de"])
    with pytest.raises(XlsrError, match=r"'de\.txt' is named after 'de' and would be read as 'en'"):
        check_order(["de.txt", "en.txt"], ["en", "de"])


def test_names_without_languages_of_the_user() -> None:
    assert languages_of_files(["x-ref.deu.txt", "x-src.eng.txt"]) == ["de", "en"]


@pytest.fixture
def german(tmp_path: Path) -> str:
    file = tmp_path / "texts.de.txt"
    file.write_text("Guten Tag. Wie geht es?\n", "utf-8")
    return str(file)


def test_texts_of_a_source_take_the_language_of_the_file(german: str) -> None:
    source = Source(path=german, format="moses")
    with pytest.raises(XlsrError, match="named after 'de' and would be read as 'en'"):
        list(read_running_text([source], languages=["en"]))
    assert [row["lang"] for row in open_texts(source, ("text",), languages=["en", "de"])] == ["de"]
    with pytest.raises(XlsrError, match="named after 'de' and would be read as 'en'"):
        list(open_texts(source, ("text",), languages=["en", "fr"]))


def test_language_of_a_row_goes_before_the_name_of_its_file(tmp_path: Path) -> None:
    file = tmp_path / "texts.de.tsv"
    file.write_text("text\tlang\nhello\ten\n", "utf-8")
    assert [row["lang"] for row in open_texts(Source(path=str(file)), ("text",), languages=["en"])] == ["en"]


def test_tables_of_texts_in_evaluation(tmp_path: Path) -> None:
    file = tmp_path / "topics.de.tsv"
    file.write_text("text\tlabel\nTag\t1\n", "utf-8")
    table = Table("zero-shot", ("text", "label"))
    assert table.open([str(file)]).split("test")[0]["lang"] == "de"
    with pytest.raises(XlsrError, match="named after 'de' and would be read as 'en'"):
        table.open([str(file)], ["en"]).split("test")
