"""Cleaning of streams of rows, dicts with the text columns `TEXT_COLUMNS`: steps that remove or rewrite rows."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from math import inf
from typing import Annotated, Any, ClassVar, Literal

from pydantic import ConfigDict, Field, ValidationError
from pydantic.dataclasses import dataclass

from hf_xlsr.data.languages import foreign_letters, identifier_labels, language_code, language_identifier
from hf_xlsr.data.normalization import match_key, normalize_text, width
from hf_xlsr.data.seen import SeenHashes, hash64
from hf_xlsr.utils.errors import XlsrError, did_you_mean

Row = dict[str, Any]
Share = Annotated[float, Field(ge=0, le=1)]

TEXT_COLUMNS = ("source", "target", "text", "first", "second", "premise", "hypothesis")
BATCH_ROWS = 1024
_OPTIONS = ConfigDict(extra="forbid")
_NUMBER = re.compile(r"\d+(?: \d+)*")


def text_columns(row: Mapping[str, Any]) -> list[str]:
    """The names of the text columns of a row, in the order of `TEXT_COLUMNS`."""
    return [column for column in TEXT_COLUMNS if column in row]


def evaluation_keys(rows: Iterable[Mapping[str, Any]]) -> SeenHashes:
    """The match keys of all text columns of evaluation rows, for `RemoveEvaluation`."""
    return SeenHashes(key for row in rows for column in text_columns(row) if (key := match_key(row[column])))


class Step:
    """One step of cleaning; most keep or remove one row at a time."""

    name: ClassVar[str]

    def apply(self, rows: list[Row]) -> list[Row | None]:
        """For each row of a batch the row itself, a changed copy, or None to remove it."""
        return [row if self.keeps(row) else None for row in rows]

    def keeps(self, row: Row) -> bool:
        return True


@dataclass(kw_only=True, config=_OPTIONS)
class Normalize(Step):
    """Normalises every side with `normalize_text`; removes rows with an empty side."""

    name: ClassVar[str] = "normalize"
    form: Literal["NFKC", "NFC"] = "NFKC"
    lowercase: bool = False

    def apply(self, rows: list[Row]) -> list[Row | None]:
        return [self._normalized(row) for row in rows]

    def _normalized(self, row: Row) -> Row | None:
        texts = {column: normalize_text(row[column] or "", self.form, self.lowercase) for column in text_columns(row)}
        changed = {**row, **texts} if any(row[column] != text for column, text in texts.items()) else row
        return changed if all(texts.values()) else None


@dataclass(kw_only=True, config=_OPTIONS)
class Deduplicate(Step):
    """Keeps the first of all rows seen that are equal by `match_key`, on all text columns (`pair`) or on one.

    Rows in different languages (`source_lang`, `target_lang`, `lang`) are never equal, so a source sentence with
    translations into several languages keeps them all. Memory: see `SeenHashes`.
    """

    name: ClassVar[str] = "deduplicate"
    on: Literal["pair", "source", "target", "text", "first", "second", "premise", "hypothesis"] = "pair"

    def __post_init__(self) -> None:
        self._seen = SeenHashes()

    def apply(self, rows: list[Row]) -> list[Row | None]:
        new = self._seen.add_many([self._key(row) for row in rows])
        return [row if is_new else None for row, is_new in zip(rows, new.tolist(), strict=True)]

    def _key(self, row: Row) -> str:
        texts = [row[column] for column in (text_columns(row) if self.on == "pair" else [self.on])]
        languages = [row.get(column) or "" for column in ("source_lang", "target_lang", "lang")]
        return "\t".join(languages + [match_key(text) for text in texts])  # match keys have no tab


@dataclass(kw_only=True, config=_OPTIONS)
class NearDuplicates(Deduplicate):
    """`Deduplicate`, where numbers and accents do not count: `Page 3 of 10` and `Page 4 of 12` are equal."""

    name: ClassVar[str] = "near_duplicates"

    def _key(self, row: Row) -> str:
        letters = unicodedata.normalize("NFD", super()._key(row))
        # Accents have classes from 200; vowel signs of Indic and Thai scripts and Japanese voicing have lower ones.
        return _NUMBER.sub("0", "".join(letter for letter in letters if unicodedata.combining(letter) < 200))


@dataclass(kw_only=True, config=_OPTIONS)
class LengthBounds(Step):
    """Removes rows with a side that is too short or too long; None sets no limit. Words are separated by white space."""

    name: ClassVar[str] = "length"
    min_chars: int = 1
    max_chars: int | None = None
    min_words: int = 0
    max_words: int | None = None

    def keeps(self, row: Row) -> bool:
        max_chars, max_words = (inf if most is None else most for most in (self.max_chars, self.max_words))
        return all(
            self.min_chars <= len(text) <= max_chars and self.min_words <= len(text.split()) <= max_words
            for text in (row[column] for column in text_columns(row))
        )


@dataclass(kw_only=True, config=_OPTIONS)
class RatioBounds(Step):
    """Keeps pairs with `(longer + slack) / (shorter + slack) <= max_ratio`, lengths in characters (see `width`).

    The default removes at most 3 in 1000 pairs of clean corpora of European and Asian languages with English.
    """

    name: ClassVar[str] = "ratio"
    max_ratio: Annotated[float, Field(ge=1)] = 3.0
    slack: Annotated[float, Field(ge=0)] = 10.0

    def keeps(self, row: Row) -> bool:
        shorter, longer = sorted((width(row["source"]), width(row["target"])))
        return longer + self.slack <= self.max_ratio * (shorter + self.slack)


@dataclass(kw_only=True, config=_OPTIONS)
class NumberMatch(Step):
    """Keeps pairs whose sides share at least `min_share` of their digits: 2 x common / all, in any order.

    Digits of all scripts count, zeros do not, so that `1,5 million` and `1.500.000` agree. A number in words on one side
    only (`three`, `3`) shares nothing. Pairs without digits are kept.
    """

    name: ClassVar[str] = "numbers"
    min_share: Share = 0.5

    def keeps(self, row: Row) -> bool:
        digits = ([unicodedata.digit(letter, 0) for letter in row[side]] for side in ("source", "target"))
        source, target = (Counter(filter(None, side)) for side in digits)
        return 2 * (source & target).total() >= self.min_share * (source.total() + target.total())


@dataclass(kw_only=True, config=_OPTIONS)
class DropIdentical(Step):
    """Removes untranslated copies: pairs of two languages whose sides are equal by `match_key`."""

    name: ClassVar[str] = "drop_identical"

    def keeps(self, row: Row) -> bool:
        one_language = row.get("source_lang") is not None and row["source_lang"] == row.get("target_lang")
        return one_language or match_key(row["source"]) != match_key(row["target"])


@dataclass(kw_only=True, config=_OPTIONS)
class LanguageFilter(Step):
    """Removes rows with a side of which more than `1 - min_share` is foreign. The method defines what is foreign:

    - `script`: letters outside the scripts of the side's language (`scripts_of`). Text without letters is kept.
    - `alphabet`: these, and Latin letters outside the alphabets of both languages of the row (`ALPHABETS`), such as ñ
      in English and French. At the default share a foreign name also removes its row.
    - `py3langid`: the probability of the most probable language, if it is another one.

    The language of a side is that of its row; else one of `languages`: two are those of source and target. By default
    `min_share` is 1.0, for `py3langid` 0.5; languages that mix in Latin words (Japanese, Chinese) need less than 1.0.
    """

    name: ClassVar[str] = "language"
    languages: Sequence[str] | None = None
    method: Literal["script", "alphabet", "py3langid"] = "script"
    min_share: Share | None = None

    def __post_init__(self) -> None:
        self._default = tuple(map(language_code, self.languages or ()))
        usual = 0.5 if self.method == "py3langid" else 1.0
        self._min_share = usual if self.min_share is None else self.min_share
        if self._default:
            self._own_share("", self._default, self._default)  # raises for unknown languages

    def keeps(self, row: Row) -> bool:
        sides = {column: self._languages_of(row, column) for column in text_columns(row)}
        everything = tuple(chain.from_iterable(sides.values()))
        shares = (self._own_share(row[column], languages, everything) for column, languages in sides.items())
        return all(share >= self._min_share for share in shares)

    def _languages_of(self, row: Row, column: str) -> tuple[str, ...]:
        named = f"{column}_lang" if column in ("source", "target") else "lang"
        if language := row.get(named):
            return (language_code(language),)
        if not self._default:
            raise XlsrError(
                f"cleaning step 'language': a row has no language of '{column}'; add '{named}' or set `languages`."
            )
        if len(self._default) == 2 and column in ("source", "target"):
            return self._default[:1] if column == "source" else self._default[1:]
        return self._default

    def _own_share(self, text: str, side: tuple[str, ...], everything: tuple[str, ...]) -> float:
        if self.method == "py3langid":
            label, probability = language_identifier().classify(text)
            return 1.0 if label in identifier_labels(side) else 1.0 - probability
        foreign = foreign_letters(text, side, everything if self.method == "alphabet" else None)
        letters = max(foreign, 1, sum(map(str.isalpha, text)))  # the two Unicode versions may differ
        return (letters - foreign) / letters


class RemoveEvaluation(Step):
    """Removes rows with a side that occurs, by `match_key`, in an evaluation set: texts, or their `evaluation_keys`."""

    name: ClassVar[str] = "remove_evaluation"

    def __init__(self, texts: Iterable[str] | SeenHashes) -> None:
        self._keys = texts if isinstance(texts, SeenHashes) else evaluation_keys({"text": text} for text in texts)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._keys.digest()})"

    def apply(self, rows: list[Row]) -> list[Row | None]:
        keys = [[match_key(row[column]) for column in text_columns(row)] for row in rows]
        found = iter(self._keys.contains_many(list(chain.from_iterable(keys))).tolist())
        # An empty key never counts, even if the given set of keys contains one.
        hits = [[next(found) and key != "" for key in row_keys] for row_keys in keys]
        return [None if any(row_hits) else row for row, row_hits in zip(rows, hits, strict=True)]


@dataclass(kw_only=True, config=_OPTIONS)
class Sample(Step):
    """Keeps a share of the rows, chosen by a hash of their text: the same rows whatever their order or number.

    With one seed, a smaller share is part of every larger one.
    """

    name: ClassVar[str] = "sample"
    fraction: Share
    seed: int = 0

    def keeps(self, row: Row) -> bool:
        key = "\t".join([str(self.seed), *(row[column] for column in text_columns(row))])
        return hash64(key) < int(self.fraction * 2**64)


class Cleaner:
    """Runs rows through steps in batches of 1024, and counts those yielded so far. A second pass needs a new cleaner.

    Examples:
        >>> cleaner = Cleaner([Normalize(), DropIdentical()])
        >>> list(cleaner([{"source": "a  b", "target": "c"}, {"source": "OK", "target": "ok."}]))
        [{'source': 'a b', 'target': 'c'}]
        >>> cleaner.counts
        {'normalize': {'in': 2, 'out': 2, 'changed': 1}, 'drop_identical': {'in': 2, 'out': 1, 'changed': 0}}
    """

    def __init__(self, steps: Iterable[Step] = ()) -> None:
        self.steps: list[Step] = list(steps)
        self._counts: dict[int, dict[str, int]] = {}

    def __call__(self, rows: Iterable[Row]) -> Iterator[Row]:
        """Yields the rows that are kept, in order."""
        stream = iter(rows)
        while batch := list(islice(stream, BATCH_ROWS)):
            yield from self._clean(batch)

    def _clean(self, batch: list[Row]) -> Iterator[Row]:
        stages: list[list[Row | None]] = [list(batch)]
        for step in self.steps:
            results = iter(step.apply([row for row in stages[-1] if row is not None]))
            stages.append([None if row is None else next(results) for row in stages[-1]])
        counts = list(self.counts.values())
        for row_stages in zip(*stages, strict=True):
            for count, before, now in zip(counts, row_stages, row_stages[1:], strict=False):
                if before is None:
                    break
                count["in"] += 1
                count["out"] += now is not None
                count["changed"] += now is not None and now is not before
            if row_stages[-1] is not None:
                yield row_stages[-1]

    @property
    def counts(self) -> dict[str, dict[str, int]]:
        """Step -> rows `in`, `out`, and `changed` of these. The second step of one name is called `length-2`."""
        counts: dict[str, dict[str, int]] = {}
        names = [step.name for step in self.steps]
        for place, step in enumerate(self.steps):
            repeat = names[:place].count(step.name)
            name = f"{step.name}-{repeat + 1}" if repeat else step.name
            counts[name] = self._counts.setdefault(id(step), {"in": 0, "out": 0, "changed": 0})
        return counts


_TEXT_STEPS = (Normalize, Deduplicate, NearDuplicates, LengthBounds, LanguageFilter)
_PAIR_STEPS = (RatioBounds, NumberMatch, DropIdentical)
STEPS: Mapping[str, Callable[..., Step]] = {step.name: step for step in (*_TEXT_STEPS, *_PAIR_STEPS)}
"""The steps that a recipe can name."""


Config = Sequence[str | Mapping[str, Any]] | Mapping[str, Any]


def build_cleaner(config: Config, languages: Sequence[str] | None = None) -> Cleaner:
    """Builds a cleaner from a recipe's `cleaning`: names and `{name: options}`, or a mapping from names to options."""
    steps: list[tuple[Any, Any]] = []
    for entry in [config] if isinstance(config, Mapping) else config:
        steps += entry.items() if isinstance(entry, Mapping) else [(entry, None)]
    return Cleaner(_build_step(name, options, languages) for name, options in steps)


def build_text_cleaner(config: Config, languages: Sequence[str] | None = None) -> Cleaner:
    """`build_cleaner` for single sentences, from a section written for pairs.

    Steps that compare two sides are ignored, and `deduplicate` on one of the sides compares the sentences.
    """
    cleaner = build_cleaner(config, languages)
    cleaner.steps = [step for step in cleaner.steps if not isinstance(step, _PAIR_STEPS)]
    for step in cleaner.steps:
        if isinstance(step, Deduplicate) and step.on in ("source", "target"):
            step.on = "pair"  # all texts of a row
    return cleaner


def _build_step(name: Any, options: Any, languages: Sequence[str] | None) -> Step:
    if name not in STEPS:
        raise XlsrError(f"cleaning step '{name}' is unknown; {did_you_mean(str(name), STEPS)}")
    options = {"languages": languages} | (options or {}) if name == LanguageFilter.name else options or {}
    try:
        return STEPS[name](**options)
    except (TypeError, ValidationError) as error:
        fault = str(error)
        if isinstance(error, ValidationError):
            found = error.errors()[0]
            fault = f"option '{'.'.join(map(str, found['loc']))}': {found['msg']}"
        raise XlsrError(f"cleaning step '{name}': {fault}.") from error
