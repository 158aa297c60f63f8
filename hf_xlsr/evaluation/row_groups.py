"""Rows by their languages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from hf_xlsr.evaluation.input_rows import Row


def by_pair(rows: Iterable[Row]) -> dict[tuple[str, str], list[Row]]:
    """Rows of each pair of languages, in the order they are first seen."""
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((row["source_lang"], row["target_lang"]), []).append(row)
    return groups


def by_pair_either_way(rows: Iterable[Row]) -> dict[tuple[str, str], list[Row]]:
    """Rows of each two languages, those in the other order turned round to that of the first one seen.

    Example:
        >>> rows = [{"source": "day", "target": "Tag", "source_lang": "en", "target_lang": "de"},
        ...         {"source": "Nacht", "target": "night", "source_lang": "de", "target_lang": "en"}]
        >>> [(pair, [row["source"] for row in group]) for pair, group in by_pair_either_way(rows).items()]
        [(('en', 'de'), ['day', 'night'])]
    """
    groups: dict[tuple[str, str], list[Row]] = {}
    for languages, group in by_pair(rows).items():
        place = languages[::-1] if languages[::-1] in groups else languages
        groups.setdefault(place, []).extend(pool_of(group, place))
    return groups


def both_sides(rows: Iterable[Mapping[str, Any]]) -> tuple[list[str], list[str]]:
    """Sources and targets of rows.

    Example:
        >>> both_sides([{"source": "day", "target": "Tag"}, {"source": "night", "target": "Nacht"}])
        (['day', 'night'], ['Tag', 'Nacht'])
    """
    rows = list(rows)
    return [row["source"] for row in rows], [row["target"] for row in rows]


def by_language(rows: Iterable[Row]) -> dict[str, list[Row]]:
    """Rows of each language, in the order they are first seen."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(row["lang"], []).append(row)
    return groups


def pool_of(pool: Iterable[Row], languages: tuple[str, str]) -> list[Row]:
    """Rows of a pool that are in a pair of languages, turned round where they are in the other order.

    Lines of targets, which have no language of their own, are in any.

    Example:
        >>> row = {"source": "Tag", "target": "day", "source_lang": "de", "target_lang": "en"}
        >>> [(row["source"], row["target"]) for row in pool_of([row], ("en", "de"))]
        [('day', 'Tag')]
    """
    chosen = []
    for row in pool:
        found = (row["source_lang"], row["target_lang"]) if "source_lang" in row else languages
        if found == languages:
            chosen.append(row)
        elif found[::-1] == languages:
            sides = {"source": row["target"], "target": row["source"]}
            chosen.append({**row, **sides, "source_lang": found[1], "target_lang": found[0]})
    return chosen
