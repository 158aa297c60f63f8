"""Steps of cleaning: each removes, keeps or rewrites rows of a batch.

A row is a dict. Its text columns are those in `TEXT_COLUMNS`; all others stay unchanged.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Protocol

from hf_xlsr.data.languages import language_code
from hf_xlsr.data.normalization import match_key, normalize_text, width
from hf_xlsr.data.scripts import foreign_letters, identifier_labels, language_identifier
from hf_xlsr.data.seen import SeenHashes, hash64
from hf_xlsr.utils.errors import XlsrError, did_you_mean

Row = dict[str, Any]

TEXT_COLUMNS = ("source", "target", "text", "first", "second", "premise", "hypothesis")
LANGUAGE_METHODS = ("script", "alphabet", "py3langid")


def text_columns(row: Mapping[str, Any]) -> list[str]:
    """The names of the text columns of a row, in the order of `TEXT_COLUMNS`."""
    return [column for column in TEXT_COLUMNS if column in row]


def evaluation_keys(rows: Iterable[Mapping[str, Any]]) -> SeenHashes:
    """The match keys of all text columns of evaluation rows, for `RemoveEvaluation`.

    Example:
        >>> keys = evaluation_keys([{"source": "Hello!", "target": "Hallo!"}, {"text": "Bye"}])
        >>> match_key("hallo") in keys, len(keys)
        (True, 3)
    """
    return SeenHashes(key for row in rows for column in text_columns(row) if (key := match_key(row[column])))


class Step(Protocol):
    """One step of cleaning."""

    name: ClassVar[str]

    def apply(self, rows: list[Row]) -> list[Row | None]:
        """For each row of a batch the row itself, a changed copy, or None to remove it."""
        ...


class _Filter(ABC):
    """A step that keeps or removes one row at a time."""

    def apply(self, rows: list[Row]) -> list[Row | None]:
        return [row if self.keeps(row) else None for row in rows]

    @abstractmethod
    def keeps(self, row: Row) -> bool: ...


def _check_range(step: str, option: str, value: float, least: float, most: float = float("inf")) -> None:
    if not least <= value <= most:
        raise XlsrError(f"cleaning step '{step}': `{option}` must be from {least} to {most}, got {value}.")


def _check_choice(step: str, option: str, value: Any, known: Sequence[str]) -> None:
    if value not in known:
        raise XlsrError(f"cleaning step '{step}': `{option}` is {value!r}; {did_you_mean(str(value), known)}")


@dataclass(kw_only=True)
class Normalize:
    """Normalises every side with `normalize_text`; removes rows with an empty side.

    Args:
        form: `NFKC`, which also replaces ligatures, full-width letters and other variants, or `NFC`.
        lowercase: Lower the case.
    """

    name: ClassVar[str] = "normalize"
    form: Literal["NFKC", "NFC"] = "NFKC"
    lowercase: bool = False

    def __post_init__(self) -> None:
        _check_choice(self.name, "form", self.form, ("NFKC", "NFC"))

    def apply(self, rows: list[Row]) -> list[Row | None]:
        return [self._row(row) for row in rows]

    def _row(self, row: Row) -> Row | None:
        texts = {column: normalize_text(row[column] or "", self.form, self.lowercase) for column in text_columns(row)}
        if not all(texts.values()):
            return None
        return row if all(row[column] == text for column, text in texts.items()) else {**row, **texts}


@dataclass(kw_only=True)
class Deduplicate:
    """Keeps the first of all rows seen that are equal by `match_key`.

    Rows in different languages (`source_lang`, `target_lang`, `lang`) are never equal, so a source sentence with
    translations into several languages keeps them all. Memory: see `SeenHashes`.

    Args:
        on: `pair` compares all text columns of a row together; the name of one text column compares this one.
    """

    name: ClassVar[str] = "deduplicate"
    on: str = "pair"
    _seen: SeenHashes = field(default_factory=SeenHashes, init=False, repr=False)

    def __post_init__(self) -> None:
        _check_choice(self.name, "on", self.on, ("pair", *TEXT_COLUMNS))

    def apply(self, rows: list[Row]) -> list[Row | None]:
        new = self._seen.add_many([self._key(row) for row in rows])
        return [row if is_new else None for row, is_new in zip(rows, new.tolist(), strict=True)]

    def _key(self, row: Row) -> str:
        texts = [row[column] for column in (text_columns(row) if self.on == "pair" else [self.on])]
        languages = [row.get(column) or "" for column in ("source_lang", "target_lang", "lang")]
        return "\t".join(languages + [match_key(text) for text in texts])  # match keys hold no tab


@dataclass(kw_only=True)
class LengthBounds(_Filter):
    """Removes rows with a side that is too short or too long; None sets no limit.

    Args:
        min_chars: Minimum characters of each side.
        max_chars: Maximum characters.
        min_words: Minimum words, separated by white space; useless for languages without it.
        max_words: Maximum words.
    """

    name: ClassVar[str] = "length"
    min_chars: int = 1
    max_chars: int | None = None
    min_words: int = 0
    max_words: int | None = None

    def keeps(self, row: Row) -> bool:
        return all(
            self.min_chars <= len(text) <= (len(text) if self.max_chars is None else self.max_chars)
            and self._words_fit(text)
            for text in (row[column] for column in text_columns(row))
        )

    def _words_fit(self, text: str) -> bool:
        if self.min_words == 0 and self.max_words is None:
            return True
        words = len(text.split())
        return self.min_words <= words and (self.max_words is None or words <= self.max_words)


@dataclass(kw_only=True)
class RatioBounds(_Filter):
    """Removes pairs whose sides differ too much in length.

    A pair stays when `(longer + slack) / (shorter + slack) <= max_ratio`. Lengths are in characters; Chinese,
    Japanese and Korean ones count two, since they carry as much as two letters or more: one bound then serves all
    languages. The slack lets short pairs survive, as `Hi!` and `Bonjour à tous !` (26 / 13 by default).

    Args:
        max_ratio: At the default, at most 3 in 1000 pairs of clean corpora of European, Chinese, Japanese, Korean,
            Arabic, Hindi with English are removed.
        slack: Characters added to both sides.
    """

    name: ClassVar[str] = "ratio"
    max_ratio: float = 3.0
    slack: float = 10.0

    def __post_init__(self) -> None:
        _check_range(self.name, "max_ratio", self.max_ratio, 1)
        _check_range(self.name, "slack", self.slack, 0)

    def keeps(self, row: Row) -> bool:
        shorter, longer = sorted((width(row["source"]), width(row["target"])))
        return longer + self.slack <= self.max_ratio * (shorter + self.slack)


@dataclass(kw_only=True)
class DropIdentical(_Filter):
    """Removes untranslated copies: pairs whose sides are equal by `match_key`."""

    name: ClassVar[str] = "drop_identical"

    def keeps(self, row: Row) -> bool:
        return match_key(row["source"]) != match_key(row["target"])


@dataclass(kw_only=True)
class LanguageFilter(_Filter):
    """Removes rows with a side that is not in its language: "sentences that cover tokens out of the two languages".

    A side is removed when more than `1 - min_share` of it is foreign. What is foreign depends on the method:

    - `script`: letters outside the scripts of the side's language (`scripts.SCRIPTS`). Text without letters stays.
    - `alphabet`: these, and Latin letters outside the alphabets of both languages of the row (`scripts.ALPHABETS`),
      such as ñ in English and French. At the default share also a foreign name removes its row.
    - `py3langid`: the probability that the identifier gives to another language, if it gives most to that one.

    The language of a side is its row's `source_lang`, `target_lang` or `lang`. Regions are ignored: `pt_BR` is `pt`.

    Args:
        languages: For rows that do not name their language: two languages stand for source and target; in any other
            case a side may be in each of them.
        method: One of the three.
        min_share: Share of each side that must not be foreign; by default 1.0, for `py3langid` 0.5. Languages that mix
            in Latin words (Japanese, Chinese) need less than 1.0.

    Raises:
        XlsrError: a language is not known, or not said at all.

    Example:
        >>> keeps = LanguageFilter(languages=["en", "ru"]).keeps
        >>> keeps({"source": "Hello", "target": "Привет"}), keeps({"source": "Hello", "target": "Hello"})
        (True, False)
    """

    name: ClassVar[str] = "language"
    languages: Sequence[str] | None = None
    method: str = "script"
    min_share: float | None = None

    def __post_init__(self) -> None:
        _check_choice(self.name, "method", self.method, LANGUAGE_METHODS)
        self._default = tuple(map(language_code, self.languages or ()))
        usual = 0.5 if self.method == "py3langid" else 1.0
        self._min_share = usual if self.min_share is None else self.min_share
        _check_range(self.name, "min_share", self._min_share, 0, 1)
        if self._default:
            self._own_share("", self._default, self._default)  # raises for unknown languages

    def keeps(self, row: Row) -> bool:
        sides = {column: self._languages_of(row, column) for column in text_columns(row)}
        everything = tuple(language for languages in sides.values() for language in languages)
        return all(
            self._own_share(row[column], languages, everything) >= self._min_share
            for column, languages in sides.items()
        )

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
        foreign = len(text.translate(foreign_letters(side, everything if self.method == "alphabet" else None)))
        letters = sum(map(str.isalpha, text)) if foreign else 1
        return (letters - foreign) / letters


class RemoveEvaluation:
    """Removes rows with a side that occurs, by `match_key`, in an evaluation set.

    Args:
        texts: The evaluation texts, or their keys from `evaluation_keys`.
    """

    name: ClassVar[str] = "remove_evaluation"

    def __init__(self, texts: Iterable[str] | SeenHashes) -> None:
        self._keys = texts if isinstance(texts, SeenHashes) else evaluation_keys({"text": text} for text in texts)

    def apply(self, rows: list[Row]) -> list[Row | None]:
        keys = [[match_key(row[column]) for column in text_columns(row)] for row in rows]
        found = iter(self._keys.contains_many([key for row_keys in keys for key in row_keys]).tolist())
        # An empty key never counts, even if the given set of keys should hold one.
        hits = [[next(found) and key != "" for key in row_keys] for row_keys in keys]
        return [None if any(row_hits) else row for row, row_hits in zip(rows, hits, strict=True)]


@dataclass(kw_only=True)
class Sample(_Filter):
    """Keeps a share of the rows, chosen by a hash of their text: the same rows whatever their order or number.

    With one seed, a smaller share is part of every larger one.

    Args:
        fraction: Expected share of the rows, 0 to 1.
        seed: Chooses other rows.
    """

    name: ClassVar[str] = "sample"
    fraction: float
    seed: int = 0

    def __post_init__(self) -> None:
        _check_range(self.name, "fraction", self.fraction, 0, 1)
        self._limit = int(self.fraction * 2**64)

    def keeps(self, row: Row) -> bool:
        return hash64("\t".join([str(self.seed), *(row[column] for column in text_columns(row))])) < self._limit
