"""Steps of cleaning, which keep, change or drop rows: dicts with some of the columns `TEXT_COLUMNS`."""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Mapping, Sequence
from math import inf
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass

from hf_xlsr.data.columns import Row
from hf_xlsr.data.normalization import match_key, normalize_text, width
from hf_xlsr.data.seen import hash64, hash_keys
from hf_xlsr.utils.plugins import origin_of

Share = Annotated[float, Field(ge=0, le=1)]

PACKAGE = "hf_xlsr"
TEXT_COLUMNS = ("source", "target", "text", "first", "second", "premise", "hypothesis")
OPTIONS = ConfigDict(extra="forbid")


def text_columns(row: Mapping[str, Any]) -> list[str]:
    """The names of the text columns of a row, in the order of `TEXT_COLUMNS`."""
    return [column for column in TEXT_COLUMNS if column in row]


def texts_of(row: Mapping[str, Any]) -> list[str]:
    """The texts of a row, in the order of `text_columns`."""
    return [row[column] for column in TEXT_COLUMNS if column in row]


def known_language(row: Mapping[str, Any], column: str) -> str | None:
    """The language that a column of a row names, if it names one."""
    language: str | None = row.get(column)
    return None if language in ("", "und") else language


class Step:
    """One step of cleaning, which keeps, changes or drops each row by itself.

    Attributes:
        name: Its name in recipes and counts.
        needs_pair: Whether it compares `source` and `target`; such a step is ignored where rows are single sentences.
    """

    name: ClassVar[str]
    needs_pair: ClassVar[bool] = False

    def apply(self, rows: list[Row]) -> list[Row | None]:
        """For each row of a batch the row itself, a changed copy, or None to drop it."""
        return [row if self.keeps(row) else None for row in rows]

    def keeps(self, row: Row) -> bool:
        """Whether the row stays, for steps that change none."""
        raise NotImplementedError


class ComparingStep:
    """A step of cleaning that keeps the first of all rows with one key; with several keys, of all that share any."""

    name: ClassVar[str]
    needs_pair: ClassVar[bool] = False
    num_keys: int = 1

    def key(self, row: Row) -> str:
        """What equal rows have in common."""
        raise NotImplementedError

    def hashes(self, rows: Sequence[Row]) -> np.ndarray:
        """The hashes of the keys of each row, `(rows, keys)`, uint64."""
        return hash_keys(list(map(self.key, rows)))[:, None]


@dataclass(kw_only=True, config=OPTIONS)
class Normalize(Step):
    """Normalises every side with `normalize_text`; removes rows with an empty side."""

    name: ClassVar[str] = "normalize"
    form: Literal["letters", "NFKC", "NFC"] = "letters"
    lowercase: bool = False

    def apply(self, rows: list[Row]) -> list[Row | None]:
        return list(map(self._normalized, rows))

    def _normalized(self, row: Row) -> Row | None:
        changes: Row = {}
        for column in text_columns(row):
            text = normalize_text(row[column] or "", self.form, self.lowercase)
            if not text:
                return None
            if text != row[column]:
                changes[column] = text
        return {**row, **changes} if changes else row


@dataclass(kw_only=True, config=OPTIONS)
class LengthBounds(Step):
    """Removes rows with a side that is too short or too long; None sets no limit. Words are separated by white space."""

    name: ClassVar[str] = "length"
    min_chars: int = 1
    max_chars: int | None = None
    min_words: int = 0
    max_words: int | None = None

    def keeps(self, row: Row) -> bool:
        return all(map(self._fits, texts_of(row)))

    def _fits(self, text: str) -> bool:
        max_chars = inf if self.max_chars is None else self.max_chars
        max_words = inf if self.max_words is None else self.max_words
        return self.min_chars <= len(text) <= max_chars and self.min_words <= len(text.split()) <= max_words


@dataclass(kw_only=True, config=OPTIONS)
class RatioBounds(Step):
    """Keeps pairs with `(longer + slack) / (shorter + slack) <= max_ratio`, lengths in characters (see `width`).

    The default removes less than 1 in 1000 pairs of most clean corpora, see docs/results/cleaning.md.
    """

    name: ClassVar[str] = "ratio"
    needs_pair: ClassVar[bool] = True
    max_ratio: Annotated[float, Field(ge=1)] = 3.0
    slack: Annotated[float, Field(ge=0)] = 10.0

    def keeps(self, row: Row) -> bool:
        shorter, longer = sorted((width(row["source"]), width(row["target"])))
        return longer + self.slack <= self.max_ratio * (shorter + self.slack)


@dataclass(kw_only=True, config=OPTIONS)
class NumberMatch(Step):
    """Keeps pairs whose sides share at least `min_share` of their digits: 2 x common / all, in any order.

    Digits of all scripts count, zeros do not, so that `1,5 million` and `1.500.000` agree. A number in words on one side
    only (`three`, `3`) shares nothing. Pairs without digits are kept.
    """

    name: ClassVar[str] = "numbers"
    needs_pair: ClassVar[bool] = True
    min_share: Share = 0.5

    def keeps(self, row: Row) -> bool:
        return digit_share(row["source"], row["target"]) >= self.min_share


def digit_share(source: str, target: str) -> float:
    """The share of the digits of two texts that both have, 2 x common / all; 1 for texts without digits.

    Examples:
        >>> digit_share("1,5 million", "1.500.000"), digit_share("24 of 30", "24")
        (1.0, 0.8)
    """
    source_digits = _digits_of(source)
    target_digits = _digits_of(target)
    total = source_digits.total() + target_digits.total()
    return 2 * (source_digits & target_digits).total() / total if total else 1.0


def _digits_of(text: str) -> Counter[int]:
    digits = (unicodedata.digit(letter, 0) for letter in text)
    return Counter(filter(None, digits))


@dataclass(kw_only=True, config=OPTIONS)
class DropIdentical(Step):
    """Removes untranslated copies: pairs of two languages whose sides are equal by `match_key`."""

    name: ClassVar[str] = "drop_identical"
    needs_pair: ClassVar[bool] = True

    def keeps(self, row: Row) -> bool:
        language = known_language(row, "source_lang")
        is_one_language = language is not None and language == row.get("target_lang")
        return is_one_language or match_key(row["source"]) != match_key(row["target"])


@dataclass
class NoLabel(Step):
    """Removes rows whose label is None."""

    name: ClassVar[str] = "no_label"

    def keeps(self, row: Row) -> bool:
        """Whether the row has a label."""
        return row["label"] is not None


@dataclass(kw_only=True, config=OPTIONS)
class Sample(Step):
    """Keeps a share of the rows, chosen by a hash of their text: the same rows whatever their order or number.

    With one seed, a smaller share is part of every larger one.
    """

    name: ClassVar[str] = "sample"
    fraction: Share
    seed: int = 0

    def keeps(self, row: Row) -> bool:
        key = "\t".join([str(self.seed), *texts_of(row)])
        return hash64(key) < int(self.fraction * 2**64)


AnyStep = Step | ComparingStep


def identity_of(step: AnyStep) -> str:
    """What the verdicts of a step depend on: options, and of a step of others package and version or code."""
    module = type(step).__module__
    if module.startswith(f"{PACKAGE}."):
        return repr(step)
    return f"{step!r} of {origin_of(type(step))}"
