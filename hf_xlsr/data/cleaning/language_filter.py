"""The step of cleaning that removes texts in another language than theirs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from typing import ClassVar

from pydantic.dataclasses import dataclass

from hf_xlsr.data.cleaning.steps import OPTIONS, Share, Step, known_language, text_columns
from hf_xlsr.data.columns import Row
from hf_xlsr.data.identification import Probabilities, load_identifier
from hf_xlsr.data.languages import alphabet_share, language_code, script_share
from hf_xlsr.utils.errors import XlsrError

DEFAULT_SHARES = {"script": 0.2, "alphabet": 1.0}
"""Method -> default of `min_share`."""
IDENTIFIED_SHARE = 0.05
"""The default of all other methods."""


@dataclass(kw_only=True, config=OPTIONS)
class LanguageFilter(Step):
    """Removes rows with a side of which less than `min_share` is in its language. The method defines the share:

    - `script`: of letters in the scripts of the language; of foreign ones, Latin letters weigh little and others a lot
      (`script_share`). Default: 0.2.
    - `alphabet`: of words in the alphabets of both languages of the row (`alphabet_share`), for rows that `script` keeps.
      Default: 1.0.
    - `py3langid`, `heliport`, `fasttext:FILE`, or a function from a text to the probabilities of languages: of the
      language's probability in the sum of it and of the most probable other language (`Identifier.share`). Default: 0.05.

    Texts without letters stay. The defaults were chosen so that `script` and `py3langid` keep more than 99 % of clean
    texts with names, units, formulas and code, see docs/results/cleaning.md.

    The language of a side is that of its row; else one of `languages`: two are those of source and target.
    """

    name: ClassVar[str] = "language"
    languages: Sequence[str] | None = None
    method: str | Callable[[str], Probabilities] = "script"
    min_share: Share | None = None

    def __post_init__(self) -> None:
        self._default = tuple(map(language_code, self.languages or ()))
        default_share = DEFAULT_SHARES.get(str(self.method), IDENTIFIED_SHARE)
        self._min_share: float = default_share if self.min_share is None else self.min_share
        if self.method not in DEFAULT_SHARES:
            load_identifier(self.method)  # raises for an unknown method
        self._is_row_kept(["x"], [self._default])  # raises for unknown languages

    def __repr__(self) -> str:
        """With the name of the identifier, on which prepared data depend."""
        method = self.method if self.method in DEFAULT_SHARES else load_identifier(self.method).name
        return f"{type(self).__name__}(languages={self.languages}, method={method!r}, min_share={self._min_share})"

    def keeps(self, row: Row) -> bool:
        columns = text_columns(row)
        texts = [row[column] for column in columns]
        languages = [self._languages_of(row, column) for column in columns]
        return self._is_row_kept(texts, languages)

    def _is_row_kept(self, texts: Sequence[str], languages: Sequence[tuple[str, ...]]) -> bool:
        row_languages = tuple(chain.from_iterable(languages))
        for text, text_languages in zip(texts, languages, strict=True):
            if text_languages and not self._is_text_kept(text, text_languages, row_languages):
                return False
        return True

    def _is_text_kept(self, text: str, languages: tuple[str, ...], row_languages: tuple[str, ...]) -> bool:
        if self.method == "script":
            return script_share(text, languages) >= self._min_share
        if self.method == "alphabet":
            is_in_script = script_share(text, languages) >= DEFAULT_SHARES["script"]
            return is_in_script and alphabet_share(text, row_languages) >= self._min_share
        identifier = load_identifier(self.method)
        identifier.check(languages)
        return identifier.share(text, languages) >= self._min_share

    def _languages_of(self, row: Row, column: str) -> tuple[str, ...]:
        is_side_of_pair = column in ("source", "target")
        language_column = f"{column}_lang" if is_side_of_pair else "lang"
        language = known_language(row, language_column)
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
