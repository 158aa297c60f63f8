"""Cleaning of streams of rows, dicts with the text columns `TEXT_COLUMNS`: steps that remove or rewrite rows."""

from __future__ import annotations

import dataclasses
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, compress, islice
from math import inf
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import ConfigDict, Field, ValidationError
from pydantic.dataclasses import dataclass

from hf_xlsr.data.columns import Row
from hf_xlsr.data.languages import foreign_letters, identifier_labels, language_code, language_identifier
from hf_xlsr.data.normalization import match_key, normalize_text, width
from hf_xlsr.data.seen import SeenHashes, hash64, hash_keys
from hf_xlsr.utils.errors import XlsrError, require_choice
from hf_xlsr.utils.validation import explain

Share = Annotated[float, Field(ge=0, le=1)]

TEXT_COLUMNS = ("source", "target", "text", "first", "second", "premise", "hypothesis")
BATCH_ROWS = 1024
_OPTIONS = ConfigDict(extra="forbid")
_NUMBER = re.compile(r"\d+(?: \d+)*")


def text_columns(row: Mapping[str, Any]) -> list[str]:
    """The names of the text columns of a row, in the order of `TEXT_COLUMNS`."""
    return [column for column in TEXT_COLUMNS if column in row]


def texts_of(row: Mapping[str, Any]) -> list[str]:
    """The texts of a row, in the order of `text_columns`."""
    return [row[column] for column in TEXT_COLUMNS if column in row]


def evaluation_keys(rows: Iterable[Mapping[str, Any]]) -> SeenHashes:
    """The match keys of all text columns of evaluation rows, for `RemoveEvaluation`."""
    texts = chain.from_iterable(map(texts_of, rows))
    return SeenHashes(filter(None, map(match_key, texts)))


class Step:
    """One step of cleaning, which keeps, changes or drops each row by itself."""

    name: ClassVar[str]

    def apply(self, rows: list[Row]) -> list[Row | None]:
        """For each row of a batch the row itself, a changed copy, or None to drop it."""
        return [row if self.keeps(row) else None for row in rows]

    def keeps(self, row: Row) -> bool:
        """Whether the row stays, for steps that change none."""
        raise NotImplementedError


class ComparingStep:
    """A step of cleaning that keeps the first of all rows with one key."""

    name: ClassVar[str]

    def key(self, row: Row) -> str:
        """What equal rows have in common."""
        raise NotImplementedError


@dataclass(kw_only=True, config=_OPTIONS)
class Normalize(Step):
    """Normalises every side with `normalize_text`; removes rows with an empty side."""

    name: ClassVar[str] = "normalize"
    form: Literal["NFKC", "NFC"] = "NFKC"
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


@dataclass(kw_only=True, config=_OPTIONS)
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
        texts = texts_of(row) if self.on == "pair" else [row[self.on]]
        return "\t".join([*languages, *map(match_key, texts)])


@dataclass(kw_only=True, config=_OPTIONS)
class NearDuplicates(Deduplicate):
    """`Deduplicate`, where numbers and accents do not count: `Page 3 of 10` and `Page 4 of 12` are equal."""

    name: ClassVar[str] = "near_duplicates"

    def key(self, row: Row) -> str:
        """The key of `Deduplicate` without accents, and with each number as 0."""
        letters = unicodedata.normalize("NFD", super().key(row))
        # Accents have classes from 200; vowel signs of Indic and Thai scripts and Japanese voicing have lower ones.
        plain = "".join(letter for letter in letters if unicodedata.combining(letter) < 200)
        return _NUMBER.sub("0", plain)


@dataclass(kw_only=True, config=_OPTIONS)
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
        source = _digits_of(row["source"])
        target = _digits_of(row["target"])
        return 2 * (source & target).total() >= self.min_share * (source.total() + target.total())


def _digits_of(text: str) -> Counter[int]:
    digits = (unicodedata.digit(letter, 0) for letter in text)
    return Counter(filter(None, digits))


@dataclass(kw_only=True, config=_OPTIONS)
class DropIdentical(Step):
    """Removes untranslated copies: pairs of two languages whose sides are equal by `match_key`."""

    name: ClassVar[str] = "drop_identical"

    def keeps(self, row: Row) -> bool:
        language = row.get("source_lang")
        is_one_language = language is not None and language == row.get("target_lang")
        return is_one_language or match_key(row["source"]) != match_key(row["target"])


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
        default_share = 0.5 if self.method == "py3langid" else 1.0
        self._min_share = default_share if self.min_share is None else self.min_share
        if self._default:
            self._own_share("", self._default, self._default)  # raises for unknown languages

    def keeps(self, row: Row) -> bool:
        columns = text_columns(row)
        languages = [self._languages_of(row, column) for column in columns]
        row_languages = tuple(chain.from_iterable(languages))
        for column, side_languages in zip(columns, languages, strict=True):
            if self._own_share(row[column], side_languages, row_languages) < self._min_share:
                return False
        return True

    def _languages_of(self, row: Row, column: str) -> tuple[str, ...]:
        is_side_of_pair = column in ("source", "target")
        language_column = f"{column}_lang" if is_side_of_pair else "lang"
        language = row.get(language_column)
        if language:
            return (language_code(language),)

        if not self._default:
            raise XlsrError(
                f"cleaning step 'language': a row has no language of '{column}'; add '{language_column}' or set "
                "`languages`."
            )

        if is_side_of_pair and len(self._default) == 2:
            side = ("source", "target").index(column)
            return (self._default[side],)
        return self._default

    def _own_share(self, text: str, languages: tuple[str, ...], row_languages: tuple[str, ...]) -> float:
        if self.method == "py3langid":
            label, probability = language_identifier().classify(text)
            return 1.0 if label in identifier_labels(languages) else 1.0 - probability
        foreign = foreign_letters(text, languages, row_languages if self.method == "alphabet" else None)
        letters = max(foreign, 1, sum(map(str.isalpha, text)))  # the two Unicode versions may differ
        return (letters - foreign) / letters


class RemoveEvaluation(Step):
    """Removes rows with a side that occurs, by `match_key`, in an evaluation set: texts, or their `evaluation_keys`."""

    name: ClassVar[str] = "remove_evaluation"

    def __init__(self, texts: Iterable[str] | SeenHashes) -> None:
        if not isinstance(texts, SeenHashes):
            texts = evaluation_keys({"text": text} for text in texts)
        self._keys = texts

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._keys.digest()})"

    def apply(self, rows: list[Row]) -> list[Row | None]:
        keys_by_row = [list(map(match_key, texts_of(row))) for row in rows]
        keys = list(chain.from_iterable(keys_by_row))
        # An empty key never counts, even if the given set of keys contains one.
        held_out_keys = set(compress(keys, self._keys.contains_many(keys))) - {""}

        results: list[Row | None] = []
        for row, row_keys in zip(rows, keys_by_row, strict=True):
            is_training = held_out_keys.isdisjoint(row_keys)
            results.append(row if is_training else None)
        return results


class RemoveEvaluationRows(RemoveEvaluation):
    """Removes rows whose `row_text` is among the evaluation texts, or one of whose texts is."""

    def apply(self, rows: list[Row]) -> list[Row | None]:
        """Held-out sources are removed text by text, evaluation sets row by row."""
        results = super().apply([{**row, "text": row_text(row)} for row in rows])
        for number, row in enumerate(rows):
            if results[number] is not None:
                results[number] = row
        return results


def row_text(row: Mapping[str, Any]) -> str:
    """The texts of a labelled row joined by a tab."""
    return "\t".join(texts_of(row))


@dataclass
class NoLabel(Step):
    """Removes rows whose label is None."""

    name: ClassVar[str] = "no_label"

    def keeps(self, row: Row) -> bool:
        """Whether the row has a label."""
        return row["label"] is not None


@dataclass(kw_only=True, config=_OPTIONS)
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


@dataclasses.dataclass
class Verdicts:
    """What each step says of each of some rows, whatever rows come before them.

    Attributes:
        dropped_by: Number of the step that drops each row by itself, `(rows,)`; the number of steps if none does.
        changed_by: Whether each step changed each row, `(rows, steps)`.
        keys: Number of each step that compares rows -> hash of the key of each row that reaches it, `(rows,)`, uint64.
    """

    dropped_by: np.ndarray
    changed_by: np.ndarray
    keys: dict[int, np.ndarray]


def judge_rows(steps: Sequence[AnyStep], rows: Sequence[Row]) -> tuple[list[Row], Verdicts]:
    """Rows as steps change them, and the verdicts of the steps, as if every row were new to those that compare rows."""
    judged_rows = list(rows)
    dropped_by = np.full(len(rows), len(steps))
    changed_by = np.zeros((len(rows), len(steps)), dtype=bool)
    keys: dict[int, np.ndarray] = {}
    remaining = list(range(len(rows)))

    for number, step in enumerate(steps):
        remaining_rows = [judged_rows[row] for row in remaining]
        if isinstance(step, ComparingStep):
            keys[number] = np.zeros(len(rows), dtype=np.uint64)
            keys[number][remaining] = hash_keys(list(map(step.key, remaining_rows)))
            continue

        results = step.apply(remaining_rows)
        for row, before, after in zip(remaining, remaining_rows, results, strict=True):
            if after is None:
                dropped_by[row] = number
            elif after is not before:
                changed_by[row, number] = True
                judged_rows[row] = after
        remaining = [row for row in remaining if dropped_by[row] == len(steps)]

    return judged_rows, Verdicts(dropped_by, changed_by, keys)


class Cleaner:
    """Runs rows through steps, and counts what each step did. A second pass needs a new cleaner.

    Examples:
        >>> cleaner = Cleaner([Normalize(), DropIdentical()])
        >>> list(cleaner([{"source": "a  b", "target": "c"}, {"source": "OK", "target": "ok."}]))
        [{'source': 'a b', 'target': 'c'}]
        >>> cleaner.counts
        {'normalize': {'in': 2, 'out': 2, 'changed': 1}, 'drop_identical': {'in': 2, 'out': 1, 'changed': 0}}
    """

    def __init__(self, steps: Iterable[AnyStep] = ()) -> None:
        self.steps = list(steps)
        self.counts: dict[str, dict[str, int]] = {}
        """Step -> rows `in`, `out`, and `changed` of these. The second step of one name is called `length-2`."""
        self._seen: dict[int, SeenHashes] = {}
        repeats = Counter[str]()
        for number, step in enumerate(self.steps):
            name = step.name
            repeats[name] += 1
            if repeats[name] > 1:
                name = f"{name}-{repeats[name]}"
            self.counts[name] = {"in": 0, "out": 0, "changed": 0}
            if isinstance(step, ComparingStep):
                self._seen[number] = SeenHashes()

    def __call__(self, rows: Iterable[Row]) -> Iterator[Row]:
        """Yields the rows that are kept, in order. Rows are read and counted in batches of 1024."""
        stream = iter(rows)
        while batch := list(islice(stream, BATCH_ROWS)):
            judged_rows, verdicts = judge_rows(self.steps, batch)
            for row in np.flatnonzero(self.keeps(verdicts)).tolist():
                yield judged_rows[row]

    def keeps(self, verdicts: Verdicts, limit: int | None = None) -> np.ndarray:
        """Whether each row is kept, `(rows,)`, after all rows before it.

        With a limit, rows end with the last one that is kept: `(rows up to it,)`. Later ones are not counted.
        """
        last_step = verdicts.dropped_by.copy()
        for number, keys_before in self._seen.items():
            reaches = np.flatnonzero(last_step >= number)
            is_new = keys_before.add_hashes(verdicts.keys[number][reaches])
            last_step[reaches[~is_new]] = number

        kept_rows = np.flatnonzero(last_step == len(self.steps))
        if limit is not None and len(kept_rows) >= limit:
            last_step = last_step[: kept_rows[limit - 1] + 1]

        for number, count in enumerate(self.counts.values()):
            passes = last_step > number
            count["in"] += int((last_step >= number).sum())
            count["out"] += int(passes.sum())
            count["changed"] += int((passes & verdicts.changed_by[: len(passes), number]).sum())

        is_kept: np.ndarray = last_step == len(self.steps)
        return is_kept


_TEXT_STEPS = (Normalize, Deduplicate, NearDuplicates, LengthBounds, LanguageFilter)
_PAIR_STEPS = (RatioBounds, NumberMatch, DropIdentical)
STEPS: dict[str, Callable[..., AnyStep]] = {step.name: step for step in (*_TEXT_STEPS, *_PAIR_STEPS)}
"""The steps that a recipe can name."""


Config = Sequence[str | Mapping[str, Any]] | Mapping[str, Any]


def build_steps(config: Config | None, languages: Sequence[str] | None = None) -> list[AnyStep]:
    """The steps of a recipe's `cleaning`: names and `{name: options}`, or a mapping from names to options."""
    steps: list[AnyStep] = []
    for entry in [config] if isinstance(config, Mapping) else config or ():
        if not isinstance(entry, Mapping):
            entry = {entry: None}
        for name, options in entry.items():
            steps.append(_build_step(name, options, languages))
    return steps


def build_text_steps(config: Config | None, languages: Sequence[str] | None = None) -> list[AnyStep]:
    """`build_steps` for single sentences, from a section written for pairs.

    Steps that compare two sides are ignored, and `deduplicate` on one of the sides compares the sentences.
    """
    steps = [step for step in build_steps(config, languages) if not isinstance(step, _PAIR_STEPS)]
    for step in steps:
        if isinstance(step, Deduplicate) and step.on in ("source", "target"):
            step.on = "pair"  # all texts of a row
    return steps


def _build_step(name: Any, options: Any, languages: Sequence[str] | None) -> AnyStep:
    require_choice("cleaning", name, STEPS)
    values = dict(options or {})
    if name == LanguageFilter.name:
        values.setdefault("languages", languages)
    try:
        return STEPS[name](**values)
    except ValidationError as error:
        raise XlsrError(f"cleaning step '{name}': {explain(error)}.") from error
