"""Which rows `--limit` takes: drawn by their content, in every protocol."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from input_helpers import read, write_tsv

from hf_xlsr.evaluation.drawing import content_key, drawn_rows
from hf_xlsr.evaluation.protocol import PROTOCOLS

NAMES = "source target source_lang target_lang text premise hypothesis sentence1 sentence2 label score split lang"
COLUMNS = NAMES.split()
EACH = 40  # rows of a split in a language
LIMIT = 12
UNLIMITED = ("bucc", "mteb")  # their data determine the rows
PARALLEL = ("search", "language-bias")
OPTIONS: dict[str, dict[str, Any]] = {
    "zero-shot": {"train_language": "en"},
    "nli": {"train_language": "en"},
    "senteval": {"languages": ("en",)},
}
TASKS = {"sts": "STS12=", "senteval": "SST2="}


def table(folder: Path, *, shuffled: bool = False) -> str:
    """A table with the columns of all protocols, sorted by label; of the labels one is three times as frequent."""
    rows = []
    for split in ("train", "dev", "test"):
        for lang in ("en", "de"):
            for number in range(EACH):
                values = {column: f"{column} {split} {lang} {number}" for column in COLUMNS}
                values |= {"label": str(int(number >= EACH * 3 / 4)), "score": str(number % 6)}
                values |= {"source_lang": lang, "target_lang": "fr", "lang": lang, "split": split}
                rows.append("\t".join(values.values()))
    if shuffled:
        random.Random(3).shuffle(rows)
    return write_tsv(folder / f"rows-{shuffled}.tsv", ["\t".join(COLUMNS), *rows])


def tables_of(inputs: Any) -> dict[str, list[dict[str, Any]]]:
    """All rows that a protocol reads, by role or task."""
    roles = {"rows": None, "train": None, "tune": None, **getattr(inputs, "tasks", {})}
    return {role: getattr(inputs, role, rows) or [] for role, rows in roles.items()}


def content(rows: list[dict[str, Any]]) -> list[str]:
    return sorted(map(str, rows))


@pytest.mark.parametrize("protocol", [name for name in PROTOCOLS if name not in (*UNLIMITED, *PARALLEL)])
def test_the_order_of_the_file_does_not_matter(protocol: str, tmp_path: Path) -> None:
    options = OPTIONS.get(protocol, {})
    data = TASKS.get(protocol, "") + table(tmp_path)
    shuffled_data = TASKS.get(protocol, "") + table(tmp_path, shuffled=True)

    whole = tables_of(read(protocol, data, **options))
    drawn = tables_of(read(protocol, data, limit=LIMIT, **options))
    drawn_of_shuffled = tables_of(read(protocol, shuffled_data, limit=LIMIT, **options))
    for role, rows in drawn.items():
        assert len(rows) == len(whole[role]) * LIMIT / EACH
        assert content(rows) == content(drawn_of_shuffled[role])


@pytest.mark.parametrize(
    ("protocol", "role"),
    [
        ("zero-shot", "train"),
        ("zero-shot", "tune"),
        ("zero-shot", "rows"),
        ("nli", "train"),
        ("nli", "rows"),
        ("pair-classification", "rows"),
        ("senteval", "SST2"),
    ],
)
def test_labels_keep_their_shares(protocol: str, role: str, tmp_path: Path) -> None:
    data = TASKS.get(protocol, "") + table(tmp_path)
    rows = tables_of(read(protocol, data, limit=LIMIT, **OPTIONS.get(protocol, {})))[role]

    counts = Counter((row["lang"], row.get("split"), row["label"]) for row in rows)
    for (_, _, label), count in counts.items():
        assert count == (LIMIT // 4 if label else LIMIT * 3 // 4)


def wide(folder: Path, *languages: str) -> str:
    lines = ["\t".join([*languages])]
    for number in range(EACH):
        lines.append("\t".join(f"{language} {number}" for language in languages))
    return write_tsv(folder / "wide.tsv", lines)


def numbers_of(rows: list[dict[str, Any]], text: str, language: str) -> dict[str, set[str]]:
    """The numbers of the rows of each language."""
    numbers: dict[str, set[str]] = {}
    for row in rows:
        numbers.setdefault(row[language], set()).add(row[text].split()[1])
    return numbers


@pytest.mark.parametrize("protocol", PARALLEL)
def test_parallel_texts_stay_parallel(protocol: str, tmp_path: Path) -> None:
    data = wide(tmp_path, "de", "en", "fr")
    rows = read(protocol, data, columns="text={lang}", languages=("de", "fr", "en"), limit=LIMIT).rows

    de, fr, en = numbers_of(rows, "text", "lang").values()
    assert de == fr == en
    assert len(en) == LIMIT


WIDE = {
    "nli": "premise={lang},hypothesis={lang}",
    "zero-shot": "text={lang}",
    "pair-classification": "sentence1={lang},sentence2={lang}",
}


@pytest.mark.parametrize("protocol", WIDE)
def test_languages_of_a_wide_table_have_the_same_rows(protocol: str, tmp_path: Path) -> None:
    lines = ["de\tlabel\ten\tsplit"]
    for number in range(EACH):
        for split in ("train", "dev", "test"):
            lines.append(f"{split}-de {number}\t{number % 3 % 2}\t{split}-en {number}\t{split}")
    lines[6] = lines[6].replace("test-de 1", "")
    data = write_tsv(tmp_path / "wide.tsv", lines)
    options = {"columns": WIDE[protocol], "languages": ("en", "de"), "limit": LIMIT}

    column = "text" if protocol == "zero-shot" else next(iter(WIDE[protocol].split("=")))
    en, de = numbers_of(read(protocol, data, **options).rows, column, "lang").values()
    assert len(en) == len(de) == LIMIT
    assert len(en & de) >= LIMIT - 1  # one text is missing in German


def test_pairs_of_one_sentence_are_drawn_together(tmp_path: Path) -> None:
    data = wide(tmp_path, "de", "en", "fr")
    to_each = {"columns": "source=en,target={lang}", "languages": ("en", "de", "fr"), "limit": LIMIT}
    from_german = {"columns": "source=de,target=en", "languages": ("de", "en"), "limit": LIMIT}

    de, fr = numbers_of(read("tatoeba", data, **to_each).rows, "source", "target_lang").values()
    (turned,) = numbers_of(read("tatoeba", data, **from_german).rows, "target", "target_lang").values()
    assert de == fr == turned
    assert len(de) == LIMIT


LABELLED = st.lists(st.tuples(st.integers(0, 50), st.sampled_from("abc")), unique=True, min_size=1, max_size=60)


@given(LABELLED, st.integers(1, 70), st.randoms(use_true_random=False))
def test_a_draw(labelled: list[tuple[int, str]], limit: int, shuffler: random.Random) -> None:
    rows = [{"text": f"{number} {label}", "label": label} for number, label in labelled]
    drawn = drawn_rows(rows, limit, key=content_key)

    assert len(drawn) == min(limit, len(rows))
    assert drawn == [row for row in rows if row in drawn]
    smaller = drawn_rows(rows, max(1, limit // 2), key=content_key)
    assert all(row in drawn for row in smaller)

    sizes = Counter(row["label"] for row in rows)
    counts = Counter(row["label"] for row in drawn)
    for label, size in sizes.items():
        assert abs(counts[label] - len(drawn) * size / len(rows)) < len(sizes)
        assert counts[label] or limit < len(sizes)

    shuffled = list(rows)
    shuffler.shuffle(shuffled)
    assert content(drawn_rows(shuffled, limit, key=content_key)) == content(drawn)
