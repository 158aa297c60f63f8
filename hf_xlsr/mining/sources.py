"""Sentences to mine from any source that training reads, cleaned like training data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hf_xlsr.data.cleaning import build_cleaner, build_text_cleaner
from hf_xlsr.data.formats.quarantine import Quarantine
from hf_xlsr.data.formats.reading import SUFFIXES, format_suffix
from hf_xlsr.data.running_text import split_sentences
from hf_xlsr.data.sources import open_texts


def is_plain(path: str) -> bool:
    """Whether mining reads a file line by line: any that is not a table, a translation memory or a dataset.

    Examples:
        >>> is_plain("news.txt.gz"), is_plain("news.jsonl"), is_plain("news.parquet")
        (True, False, False)
    """
    file = Path(path).expanduser()
    suffix = format_suffix(file)
    return SUFFIXES[suffix] == "moses" if suffix in SUFFIXES else file.is_file()  # else an id on the Hub


@dataclass
class SourceTexts:
    """The sentences of a source (as in a recipe), read anew in each iteration.

    Documents are split with `split`; cleaning steps that compare two sides are ignored here, see `clean_pairs`. The
    `report` of the last iteration has `cleaning` (rows in and out by step) and `bad_lines`.

    Examples:
        >>> _ = Path("news.jsonl").write_text('{"text": "One. Two."}\\n{"text": "Three."}\\n')
        >>> list(SourceTexts("news.jsonl", "en", split=True))
        ['One.', 'Two.', 'Three.']
    """

    source: str | Mapping[str, Any]
    language: str | None = None
    split: bool = False
    cleaning: Sequence[Any] = ()
    report: dict[str, Any] = field(default_factory=dict)

    def __iter__(self) -> Iterator[str]:
        language, quarantine = self.language or "und", Quarantine()
        cleaner = build_text_cleaner(self.cleaning, [language])
        rows = open_texts(self.source, ("text",), languages=[language], quarantine=quarantine)
        if self.split:
            rows = ({**row, "text": text} for row in rows for text in split_sentences(row["text"], row["lang"]))
        for row in cleaner(rows):
            yield " ".join(row["text"].split())
        self.report = {"cleaning": cleaner.counts, "bad_lines": quarantine.report()}


def clean_pairs(
    rows: Iterator[dict[str, Any]], cleaning: Sequence[Any], languages: Sequence[str] | None, counts: dict[str, Any]
) -> Iterator[dict[str, Any]]:
    """Mined pairs that the cleaning steps keep, such as `ratio` and `length`; `counts` gets the rows in and out of each.

    Steps that change texts were applied before.
    """
    source, target = languages or ("und", "und")
    cleaner = build_cleaner(cleaning, [source, target])
    yield from cleaner({**row, "source_lang": source, "target_lang": target} for row in rows)
    counts |= cleaner.counts
