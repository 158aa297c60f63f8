"""Rows to evaluate on: the columns, languages and split of a file, a corpus or a data set, by one set of rules."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hf_xlsr.data.columns import MissingColumn, split_name
from hf_xlsr.data.corpora.loading import CORPORA
from hf_xlsr.data.formats.quarantine import Quarantine
from hf_xlsr.data.formats.reading import detect_format, expand_braces
from hf_xlsr.data.sources import open_source, source_name
from hf_xlsr.evaluation.input_languages import (
    PLACEHOLDER,
    UNKNOWN,
    View,
    key_languages,
    matching_languages,
    pair_views,
    sentence_languages,
    text_views,
)
from hf_xlsr.utils.errors import XlsrError

Row = dict[str, Any]
MTEB = "mteb:"
_NO_SPLIT = "no-such-split"
TAGS = "(languages as the file has them)"


@dataclass
class RowReader:
    """Reads the files of one command, all in the same way.

    Attributes:
        protocol: For whom; error sentences name it.
        required: Columns that no row may lack; with `source` among them rows are pairs of two languages.
        optional: Columns that are read where a file has them.
        nullable: Required columns that may be empty in a row.
        columns: Our name -> file column; `{lang}` in it, in a path or in `config` stands for each language in turn.
        where: Column -> values: only rows that have one of them.
        config: Configuration of a data set.
        limit: At most so many rows of each language (pair) and split.
        quarantine: Counts rows that cannot be used.
    """

    protocol: str
    required: tuple[str, ...]
    optional: tuple[str, ...] = ()
    nullable: tuple[str, ...] = ()
    columns: Mapping[str, str] = field(default_factory=dict)
    where: Mapping[str, Sequence[str]] = field(default_factory=dict)
    config: str | None = None
    limit: int | None = None
    quarantine: Quarantine = field(default_factory=Quarantine)

    def __post_init__(self) -> None:
        self.paired = "source" in self.required
        self._filled = tuple(name for name in self.required if name not in self.nullable)
        self.language_columns = ("source_lang", "target_lang") if self.paired else ("lang",)
        self._of_sentences = not {"sentence1", "premise"}.isdisjoint(self.required)  # which may be in two languages
        self._tables: dict[tuple[str, ...], list[Row]] = {}
        self._counted: set[str] = set()

    def read(self, files: Sequence[str], split: str | None, languages: Sequence[str] = ()) -> list[Row]:
        """The rows of one split, or of all.

        Args:
            files: One table, two line-aligned files, the name of a corpus, the id or folder of a data set, or
                `mteb:TASK`.
            split: Rows whose column `split` says so; all rows of a file without such a column. None takes all of a
                file; a data set, a corpus and a task of mteb need a split.
            languages: The only ones wanted. Pairs: the first is that of the source unless the file says otherwise.

        Returns:
            Rows with the required columns and either `lang`, or `source_lang` and `target_lang`: codes as metric keys
            name them, as far as this reading tells; under `TAGS` what the file calls them, for `name_languages`.

        Raises:
            XlsrError: what `open_source` raises; a needed column is missing; the languages are not known; no row is
                left.
        """
        place = " ".join(map(str, files))
        rows = self._all(files, split, languages)
        if split is not None and any("split" in row for row in rows):
            found = sorted({str(row["split"]) for row in rows})
            rows = [row for row in rows if split_name(row["split"]) == split_name(split)]
            if not rows:
                raise XlsrError(f"{place} has no row of split '{split}'; its splits are {', '.join(found)}.")
        rows = self._chosen(rows, place, languages)
        if not rows:
            raise XlsrError(f"{place} has no row for protocol {self.protocol}; check the file, --columns and --where.")
        codes = key_languages(sorted({row[name] for row in rows for name in self.language_columns}))
        counts: dict[tuple[str, ...], int] = {}
        kept = []
        for row in rows:
            tags = {name: row[name] for name in self.language_columns}
            named = {name: codes[tag] for name, tag in tags.items()}
            group = (*named.values(), row.get("split", ""))
            counts[group] = counts.get(group, 0) + 1
            if self.limit is None or counts[group] <= self.limit:
                kept.append({**row, **named, TAGS: tags})
        return kept

    def read_all(self, files: Sequence[str], languages: Sequence[str] = ()) -> list[Row]:
        """The rows of all splits, which stand in a column `split` where the source tells them apart."""
        if is_table(files):
            return self.read(files, None, languages)
        if not self.tells_splits(files, languages):
            return self.read(files, "test", languages)
        splits = [split for split in ("train", "dev", "test") if self.has_split(files, split, languages)]
        return [{**row, "split": split} for split in splits for row in self.read(files, split, languages)]

    def has_split(self, files: Sequence[str], split: str, languages: Sequence[str] = ()) -> bool:
        """Whether the source tells its splits apart and has this one."""
        if not self.tells_splits(files, languages):
            return False
        try:
            rows = self._all(files, split, languages)
        except XlsrError:
            return False
        return any(split_name(row.get("split", split)) == split_name(split) for row in rows)

    def tells_splits(self, files: Sequence[str], languages: Sequence[str] = ()) -> bool:
        """Whether the source tells its splits apart, by a column or by their names."""
        try:
            rows = self._all(files, _NO_SPLIT, languages)
        except XlsrError:
            if is_table(files):
                raise
            return True
        return any("split" in row for row in rows)

    def _all(self, files: Sequence[str], split: str | None, languages: Sequence[str]) -> list[Row]:
        """All usable rows: of all splits where the splits stand in a column. Read once."""
        part = "" if is_table(files) else split_name(split or "")
        key = (*files, *languages, part)
        if key not in self._tables:
            rows = self._benchmark(files, part) if files[0].startswith(MTEB) else self._source(files, part, languages)
            self._tables[key] = list(rows)
        return self._tables[key]

    def _benchmark(self, files: Sequence[str], split: str) -> Iterator[Row]:
        from hf_xlsr.evaluation.mteb.data import mteb_rows

        self._no_file_options(files[0])
        languages = (UNKNOWN,) * len(self.language_columns)
        for row in mteb_rows(files[0].removeprefix(MTEB), split=split):
            for name in self.required:
                if name not in row:
                    raise XlsrError(
                        f"{files[0]} has no column '{name}', which protocol {self.protocol} needs; it has "
                        f"{', '.join(row)}."
                    )
            if (fault := self._fault(row, languages, files[0])) is None:
                yield row
            else:
                self.quarantine.reject(files[0], 0, fault, str(row))

    def _source(self, files: Sequence[str], split: str, languages: Sequence[str]) -> Iterator[Row]:
        place = " ".join(map(str, files))
        for view_languages, language in self._views(files, languages):
            if UNKNOWN in view_languages and is_table(files) and detect_format([Path(files[0])]) == "tmx":
                raise self._unknown_language(self.language_columns[view_languages.index(UNKNOWN)], place)
            options = self._options(files, language)
            # A file that is read again, for other languages or another role, has no new bad lines.
            quarantine = Quarantine() if (again := f"{options} {split}") in self._counted else self.quarantine
            self._counted.add(again)
            rows = open_source(
                options,
                languages=view_languages,
                split=split,
                required=self._filled,
                optional=self.optional,
                quarantine=quarantine,
            )
            try:
                for row in rows:
                    if (fault := self._fault(row, view_languages, place)) is None:
                        yield row
                    else:
                        quarantine.reject(place, 0, fault, str(row))
            except MissingColumn as error:
                raise self._missing(error) from error

    def _views(self, files: Sequence[str], languages: Sequence[str]) -> list[View]:
        wide = any(PLACEHOLDER in text for text in (*files, *self.columns.values(), self.config or ""))
        each = wide or files[0] in CORPORA
        if each and not languages:
            what = f"{PLACEHOLDER} stands" if wide else f"the corpus '{files[0]}' is read"
            raise XlsrError(f"{what} for each language of --languages, which is not given; say --languages en,de.")
        if not self.paired:
            return text_views(languages, each=each)
        sides = self.columns.get("source", ""), self.columns.get("target", "")
        if not self.columns:
            _, labels = expand_braces(files if len(files) > 1 else files[0].replace(PLACEHOLDER, ""))
            sides = (labels[0], labels[1]) if len(labels) == 2 else sides
        return pair_views(languages, sides, each=each, told=self.columns)

    def _options(self, files: Sequence[str], language: str | None) -> dict[str, Any]:
        def filled(text: str) -> str:
            return text.replace(PLACEHOLDER, language) if language else text

        if files[0] in CORPORA:
            self._no_file_options(files[0])
            return {"corpus": files[0]}
        paths = [filled(str(file)) for file in files]
        source: dict[str, Any] = {"path": paths[0] if len(paths) == 1 else paths}
        columns = {**{name: name for name in self.nullable}, **self.columns}
        if columns:
            source["columns"] = {ours: filled(theirs) for ours, theirs in columns.items()}
        if self.where:
            source["where"] = self.where
        if self.config:
            source["config"] = filled(self.config)
        return source

    def _no_file_options(self, name: str) -> None:
        for option, value in (("--columns", self.columns), ("--where", self.where), ("--config", self.config)):
            if value:
                raise XlsrError(f"{option} is for files and data sets; '{name}' is read by its name, so leave it out.")

    def _fault(self, row: Row, languages: Sequence[str], place: str) -> str | None:
        """Fills in the languages and the label of a row; says why it cannot be used, if so."""
        for name, language in zip(self.language_columns, languages, strict=True):
            if row.setdefault(name, language) == UNKNOWN:
                if not self.paired:
                    raise self._unknown_language(name, place)
                row[name] = name.removesuffix("_lang")  # `source` or `target` names the result
            if self._of_sentences and row[name]:
                row[name] = sentence_languages(str(row[name]))
        for name in (*self.language_columns, *self._filled, *(["split"] if "split" in row else [])):
            if row[name] is None or not str(row[name]).strip():
                return f"empty {name}"
        if "label" in row:
            row["label"] = parse_label(row["label"])
        return None

    def _chosen(self, rows: list[Row], place: str, languages: Sequence[str]) -> list[Row]:
        """Rows of the languages that the user named; one name for pairs says what the fixed side is, no more."""
        if len(languages) < len(self.language_columns):
            return rows
        if self._of_sentences:
            languages = [sentence_languages(language) for language in languages]
        for name in self.language_columns:
            present = {row[name] for row in rows}
            wanted = {tag for language in languages for tag in matching_languages(language, present)}
            if present and not wanted:
                raise XlsrError(
                    f"{place} has no row in {' or '.join(languages)}; its column '{name}' has "
                    f"{', '.join(sorted(present))}."
                )
            rows = [row for row in rows if row[name] in wanted]
        return rows

    def _missing(self, error: MissingColumn) -> XlsrError:
        has = f"{error.file} has no column '{error.column}', only {', '.join(error.names)}"
        if error.ours not in self.required:
            return XlsrError(f"{has}; correct the name.")
        needed = ", ".join(self.required)
        return XlsrError(f"{has}; protocol {self.protocol} needs {needed}: say --columns {error.ours}=NAME.")

    def _unknown_language(self, name: str, place: str) -> XlsrError:
        example = "en,fr" if self.paired else "en"
        what = f"{name.removesuffix('_lang')} side" if self.paired else "text"
        return XlsrError(
            f"{place} does not say which language its {what} is in, by which results are named; say --languages "
            f"{example}, or --columns {name}=NAME if a column says it."
        )


def parse_label(label: Any) -> Any:
    """A label as a whole number where it is one, so that `1` of a TSV and 1 of a Parquet file are the same.

    Example:
        >>> [parse_label(label) for label in ("1", 1.0, True, "-1", "sports", " 2 ")]
        [1, 1, 1, -1, 'sports', 2]
    """
    if isinstance(label, (bool, float)) and float(label).is_integer():
        return int(label)
    if isinstance(label, str):
        return int(label) if re.fullmatch(r"\s*-?[0-9]{1,9}\s*", label) else label.strip()
    return label


def parse_where(pieces: Sequence[str] | None) -> dict[str, list[str]]:
    """Reads `column=value` pieces; a column given twice takes either value.

    Raises:
        XlsrError: a piece has no `=`.

    Example:
        >>> parse_where(["set=newstest2018", "lang=de", "lang=fr"])
        {'set': ['newstest2018'], 'lang': ['de', 'fr']}
    """
    conditions: dict[str, list[str]] = {}
    for piece in pieces or ():
        column, equals, value = piece.partition("=")
        if not equals or not column.strip():
            raise XlsrError(f"--where has '{piece}'; write COLUMN=VALUE, e.g. set=newstest2018.")
        conditions.setdefault(column.strip(), []).append(value.strip())
    return conditions


def data_name(files: Sequence[str]) -> str:
    """What metric keys call data: the corpus, the task of mteb, or the stem of the first file.

    Example:
        >>> data_name(["mteb:XNLI"]), data_name(["data/tico19.test.parquet"]), data_name(["en-{lang}.tsv"])
        ('XNLI', 'tico19', 'en-xx')
    """
    return source_name(str(files[0]).removeprefix(MTEB).replace(PLACEHOLDER, "xx"))


def is_table(files: Sequence[str]) -> bool:
    """Whether these are files, which are one split or tell splits apart by a column."""
    if files[0] in CORPORA or files[0].startswith(MTEB):
        return False
    return (
        detect_format(expand_braces(files[0])[0] if len(files) == 1 else [Path(file) for file in files]) != "datasets"
    )
