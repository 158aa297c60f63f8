"""Rows that are drawn from data, the same for every encoder, process and order of the file."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any

from hf_xlsr.data.seen import hash64
from hf_xlsr.evaluation.rows import AnyRow, Row
from hf_xlsr.evaluation.table import FILE_ROW

CLASS_COLUMNS = ("label", "subset")  # whose values keep their shares
SIDES = {"source_lang": "source", "target_lang": "target"}
ABOUT = ("source_lang", "target_lang", "lang", "split", FILE_ROW)  # what a row is, not what it says


def drawn_rows(
    rows: Sequence[AnyRow],
    limit: int,
    *,
    key: Callable[[AnyRow], Any],
    group: Callable[[AnyRow], Hashable] = lambda row: None,
) -> list[AnyRow]:
    """At most `limit` rows of each group, in their order.

    Rows are taken by rising `key`, which must not depend on their order. Labels and subsets keep their shares in a
    group, rounded up, so that each has a row if the limit allows it. A smaller limit takes some of the rows of a larger.

    Examples:
        >>> rows = [{"text": f"text {number}", "label": int(number > 5)} for number in range(8)]
        >>> drawn = drawn_rows(rows, 4, key=content_key)
        >>> [row["label"] for row in drawn], drawn == drawn_rows(rows[::-1], 4, key=content_key)[::-1]
        ([0, 0, 0, 1], True)
    """
    numbers_of_group: dict[Hashable, list[int]] = defaultdict(list)
    for number, row in enumerate(rows):
        numbers_of_group[group(row)].append(number)

    drawn_numbers: list[int] = []
    for numbers in numbers_of_group.values():
        shuffled = sorted(numbers, key=lambda number: key(rows[number]))
        classes = [_class_of(rows[number]) for number in shuffled]
        in_proportion = _in_proportion(classes)
        drawn_numbers += [shuffled[item] for item in in_proportion[:limit]]
    return [rows[number] for number in sorted(drawn_numbers)]


def _class_of(row: Row) -> str:
    return str([row.get(column) for column in CLASS_COLUMNS])


def _in_proportion(classes: Sequence[str]) -> list[int]:
    """The order of items in which each beginning has the classes in proportion: by their share of the class so far."""
    sizes = Counter(classes)
    counts: Counter[str] = Counter()
    shares = []
    for name in classes:
        shares.append(counts[name] / sizes[name])
        counts[name] += 1
    return sorted(range(len(classes)), key=shares.__getitem__)


def content_key(row: Row) -> tuple[int, ...]:
    """A hash of what a row says, whatever its language and split."""
    content = sorted((column, str(value)) for column, value in row.items() if column not in ABOUT)
    return (hash64(json.dumps(content)),)


def translation_key(rows: Iterable[Row], reference: str) -> Callable[[Row], tuple[int, ...]]:
    """A hash of what a row of a wide table says in the language `reference`, so that all languages have the same rows."""
    key_of_number = {row[FILE_ROW]: content_key(row) for row in rows if row["lang"] == reference}

    def key(row: Row) -> tuple[int, ...]:
        return key_of_number.get(row[FILE_ROW]) or content_key(row)

    return key


def pair_key(reference: str) -> Callable[[Row], tuple[int, ...]]:
    """A hash of a translation pair: of the text in the language `reference`, then of both, whatever their order.

    Pairs of one sentence with its translations are therefore drawn together.
    """

    def key(row: Row) -> tuple[int, ...]:
        texts = [str(row[column]) for column in SIDES.values()]
        own_texts = [str(row[side]) for column, side in SIDES.items() if row[column] == reference]
        hashes = [hash64(text) for text in own_texts[:1]]
        return (*hashes, hash64(json.dumps(sorted(texts))))

    return key


def reference_language(groups: Iterable[Sequence[str]]) -> str:
    """The language that most groups have; of several English, else the first by name.

    Examples:
        >>> reference_language([("de", "en")]), reference_language([("de", "en"), ("de", "fr")])
        ('en', 'de')
    """
    counts: Counter[str] = Counter()
    for languages in groups:
        counts.update(set(languages))
    return min(counts, key=lambda language: (-counts[language], language != "en", language))
