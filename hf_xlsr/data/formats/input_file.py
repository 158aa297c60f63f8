"""The file that a reader reads: what the caller asked for, and the bad lines so far."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hf_xlsr.data.columns import resolve_columns
from hf_xlsr.data.formats.headers import code_of_language
from hf_xlsr.data.formats.quarantine import Quarantine
from hf_xlsr.data.languages import is_language_code, nearest_tag
from hf_xlsr.utils.errors import XlsrError

# A file with a larger share of malformed lines than this, after so many lines, is not what the options say.
MAX_BAD = 0.2
MIN_LINES = 1000
# Faults of lines that are malformed. Empty sides are not: catalogues and multilingual files have many.
LIKELY_CAUSES = {
    "invalid UTF-8": "the file is probably in another encoding; convert it to UTF-8",
    "NUL character": "the file is probably UTF-16 or binary; convert it to UTF-8",
    "over-long line": "the file probably has another format or is binary; set `format`",
    "wrong column count": "the delimiter, or the format, is probably another one; check the file and `format`",
    "unclosed quote": "quotation marks are probably text here; use a file in the format tsv",
    "malformed quoting": "quotation marks are probably text here; use a file in the format tsv",
    "malformed XML": "the file is probably not TMX, or a tool that does not know XML has changed it",
    "malformed JSON": "the file is probably not one JSON object per line; check `format`",
}


@dataclass
class InputFile:
    """A corpus to read: the arguments of `read_rows`, and what was counted.

    `paths` is one file, one per side for Moses, or the id of a dataset; `labels` distinguish their names.
    """

    name: str
    paths: tuple[Path, ...]
    labels: tuple[str, ...]
    columns: Mapping[str, str]
    required: tuple[str, ...]
    languages: Sequence[str]
    split: str | None
    config: str | None
    quarantine: Quarantine
    default_split: str = "train"
    optional: Sequence[str] | None = None
    selecting: Sequence[str] = ()
    nullable: Collection[str] = ()
    num_rows: int = 0
    malformed: Counter[str] = field(default_factory=Counter)

    def needs(self, name: str) -> bool:
        """Whether a column must not be empty in a row."""
        return name in self.required and name not in self.nullable

    def resolve(self, names: Collection[str], default: Mapping[str, str] | None = None) -> dict[str, str]:
        """Our name -> column, for a file with columns of these names.

        `default` is the mapping where the caller gives none; without it, columns have our names or those of languages.
        """
        if default is None:
            default = self.columns_of_languages(names)
        columns = self.columns or default
        return resolve_columns(columns, self.required, names, self.name, self.optional, self.selecting)

    def columns_of_languages(self, names: Collection[str]) -> dict[str, str]:
        """Columns named like the two languages, for a table of pairs without columns `source` and `target`."""
        reads_pairs = self.required == ("source", "target") and len(set(self.languages)) == 2
        if not reads_pairs or not set(self.required).isdisjoint(names):
            return {}

        name_of_tag = {name: name for name in names if is_language_code(name)}
        if not name_of_tag:
            name_of_tag = {str(code_of_language(name)): name for name in names if code_of_language(name)}
        nearest = [nearest_tag(language, name_of_tag) for language in self.languages]
        if None in nearest:
            return {}
        return {name: name_of_tag[str(tag)] for name, tag in zip(self.required, nearest, strict=True)}

    def reject(
        self,
        number: int,
        reason: object,
        text: str | bytes,
        path: Path | None = None,
    ) -> None:
        """Sends a line to the quarantine; an error if too many lines are malformed."""
        fault = str(reason)
        name = path or self.name
        self.quarantine.reject(name, number, fault, text)
        self.num_rows += 1
        if fault not in LIKELY_CAUSES:
            return

        self.malformed[fault] += 1
        num_malformed = self.malformed.total()
        if self.num_rows >= MIN_LINES and num_malformed > MAX_BAD * self.num_rows:
            most_common = max(self.malformed, key=self.malformed.__getitem__)
            raise XlsrError(
                f"{name}: {num_malformed:,} of the first {self.num_rows:,} lines are malformed; "
                f"{LIKELY_CAUSES[most_common]}."
            )


# Line number, row by our names, and the raw line (None where a format has none).
Record = tuple[int, dict[str, Any], "str | bytes | None"]
Reader = Callable[[InputFile], Iterator[Record]]
