"""Steps of cleaning that keep one of several equal or similar rows."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from functools import cached_property
from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import Field
from pydantic.dataclasses import dataclass

from hf_xlsr.data.cleaning.steps import OPTIONS, ComparingStep, texts_of
from hf_xlsr.data.columns import Row
from hf_xlsr.data.normalization import match_key
from hf_xlsr.data.seen import hash_keys
from hf_xlsr.utils.errors import XlsrError
from hf_xlsr.utils.extras import require_package

_NUMBER = re.compile(r"\d+(?: \d+)*")
SIGNATURE = 128
"""Values of a MinHash signature."""
SHINGLE = 4
"""Characters of a shingle: words would not do for languages without spaces."""


@dataclass(kw_only=True, config=OPTIONS)
class Deduplicate(ComparingStep):
    """Keeps the first of all rows that are equal by `match_key`, on all text columns (`pair`) or on one.

    Rows in different languages (`source_lang`, `target_lang`, `lang`) are never equal, so a source sentence with
    translations into several languages keeps them all. Memory: see `SeenHashes`.
    """

    name: ClassVar[str] = "deduplicate"
    on: Literal["pair", "source", "target", "text", "first", "second", "premise", "hypothesis"] = "pair"

    def key(self, row: Row) -> str:
        """Languages and match keys, separated by tabs, which match keys do not have."""
        languages = [row.get(column) or "" for column in ("source_lang", "target_lang", "lang")]
        if self.on != "pair" and self.on not in row:
            raise XlsrError(f"cleaning step '{self.name}': rows have no column '{self.on}' (`on`).")
        texts = texts_of(row) if self.on == "pair" else [row[self.on]]
        return "\t".join([*languages, *map(match_key, texts)])


@dataclass(kw_only=True, config=OPTIONS)
class NearDuplicates(Deduplicate):
    """`Deduplicate`, where numbers and accents do not count: `Page 3 of 10` and `Page 4 of 12` are equal."""

    name: ClassVar[str] = "near_duplicates"

    def key(self, row: Row) -> str:
        """The key of `Deduplicate` without accents, and with each number as 0."""
        letters = unicodedata.normalize("NFD", super().key(row))
        # Accents have classes from 200; vowel signs of Indic and Thai scripts and Japanese voicing have lower ones.
        plain = "".join(letter for letter in letters if unicodedata.combining(letter) < 200)
        return _NUMBER.sub("0", plain)


@dataclass(kw_only=True, config=OPTIONS)
class FuzzyDuplicates(Deduplicate):
    """`Deduplicate` for texts that share most of their runs of four characters, by MinHash.

    Two rows count as similar if one of `bands` groups of values of their signatures is equal. Of pairs of rows with a
    share of common runs (Jaccard) equal to `threshold` about two thirds are; at 0.8 for `threshold`, 4 % of those with
    0.6 and 98 % of those with 0.9. A row is also removed if it is similar to one that was removed. Memory: 8 bytes for
    each band of a row.
    """

    name: ClassVar[str] = "fuzzy_duplicates"
    threshold: Annotated[float, Field(gt=0, lt=1)] = 0.8

    def __post_init__(self) -> None:
        require_package("rensa")
        self.num_keys = SIGNATURE // self.band_width

    @cached_property
    def band_width(self) -> int:
        """Values of a band, for which `(1 / bands) ** (1 / width)` is nearest to the threshold."""

        def distance(num_values: int) -> float:
            num_bands = SIGNATURE // num_values
            value = (1 / num_bands) ** (1 / num_values)
            return float(abs(value - self.threshold))

        return min(range(1, SIGNATURE + 1), key=distance)

    def hashes(self, rows: Sequence[Row]) -> np.ndarray:
        """The hash of each band of each row, `(rows, bands)`, uint64."""
        from rensa import RMinHash

        if not rows:
            return np.zeros((0, self.num_keys), dtype=np.uint64)
        shingles = [list(_shingles(self.key(row))) for row in rows]
        signatures = np.array(RMinHash.digests_from_token_sets(shingles, num_perm=SIGNATURE, seed=0), dtype=np.uint32)

        columns = []
        for band in range(self.num_keys):
            values = signatures[:, band * self.band_width : (band + 1) * self.band_width]
            columns.append(hash_keys([bytes([band]) + row.tobytes() for row in np.ascontiguousarray(values)]))
        return np.column_stack(columns)


def _shingles(key: str) -> set[str]:
    """The runs of characters of each field of a key, numbered so that those of source and target differ."""
    shingles: set[str] = set()
    for number, field in enumerate(key.split("\t")):
        for start in range(max(1, len(field) - SHINGLE + 1)):
            shingles.add(f"{number}{field[start : start + SHINGLE]}")
    return shingles
