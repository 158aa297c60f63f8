"""Tables to evaluate on: the columns, languages and splits of a file, a corpus, a dataset or a task of mteb."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from hf_xlsr.data.columns import PLACEHOLDER, MissingColumn, filled, split_name
from hf_xlsr.data.corpora.loading import CORPORA
from hf_xlsr.data.formats.quarantine import Quarantine
from hf_xlsr.data.formats.reading import detect_format, expand_braces
from hf_xlsr.data.sources import Source, open_source
from hf_xlsr.evaluation.languages import UNKNOWN, View, matching_languages, pair_views, sentence_languages
from hf_xlsr.utils.errors import XlsrError

Row = dict[str, Any]
MTEB = "mteb:"


@dataclass(frozen=True)
class TableReader:
    """How the files of one command are read; no part of a file is read twice."""

    protocol: str  # for errors
    required: tuple[str, ...]  # with `source` among them rows are pairs of two languages
    optional: tuple[str, ...] = ()
    nullable: tuple[str, ...] = ()
    columns: Mapping[str, str] = field(default_factory=dict)  # our name -> file column, which may contain `{lang}`
    where: Mapping[str, Sequence[str]] = field(default_factory=dict)
    config: str | None = None
    quarantine: Quarantine = field(default_factory=Quarantine)
    cache: dict[tuple[Any, ...], list[Row]] = field(default_factory=dict)

    @property
    def paired(self) -> bool:
        return "source" in self.required

    @property
    def of_sentences(self) -> bool:
        """Whether a row has two sentences, possibly in two languages, under one tag."""
        return not {"sentence1", "premise"}.isdisjoint(self.required)

    @property
    def language_columns(self) -> tuple[str, ...]:
        return ("source_lang", "target_lang") if self.paired else ("lang",)

    def open(self, files: Sequence[str], languages: Sequence[str] = ()) -> Table:
        """The table of one source; in pairs the first language is the source's, unless the file says otherwise."""
        return Table(self, tuple(map(str, files)), tuple(languages))


@dataclass(frozen=True)
class Table:
    """One source of rows; `TableReader.open` makes it."""

    reader: TableReader
    files: tuple[str, ...]
    languages: tuple[str, ...]

    @property
    def place(self) -> str:
        return " ".join(self.files)

    @cached_property
    def splits(self) -> frozenset[str]:
        """Splits that the source distinguishes, by name or by a column `split`; empty where it has none."""
        names = self._named_splits or [row["split"] for row in self._rows("") if "split" in row]
        return frozenset(map(split_name, names))

    def split(self, name: str | None, *, select: bool = True) -> list[Row]:
        """The rows of one split, or of all with None, with the required columns and those of their languages.

        Of a file without a column `split`, all rows count as the split. `select` takes only rows in `languages`.
        """
        rows = self._rows("" if is_table(self.files) else split_name(name or ""))
        every = rows
        if name is not None:
            rows = [row for row in rows if split_name(row.get("split", name)) == split_name(name)]
        rows = self._select_languages(rows) if select else rows
        if not rows:
            columns = ("split", *self.reader.language_columns)
            has = {f"{column} {row[column]}" for row in every for column in columns if column in row}
            raise XlsrError(
                f"{self.place} has no row for protocol {self.reader.protocol}, only {', '.join(sorted(has)) or 'none'}; "
                "check the file, --columns, --where, --split and --languages."
            )
        return rows

    def all_splits(self) -> list[Row]:
        """The rows of all splits, with a column `split` where the source distinguishes them."""
        if is_table(self.files):
            return self.split(None)
        if not self.splits:
            return self.split("test")
        wanted = [split for split in ("train", "dev", "test") if split in self.splits]
        return [{**row, "split": split} for split in wanted for row in self.split(split)]

    @property
    def _named_splits(self) -> Sequence[str]:
        name = self.files[0]
        if name in CORPORA:
            return list(CORPORA[name].splits)
        if name.startswith(MTEB):
            from hf_xlsr.evaluation.mteb.tasks import task_splits

            return task_splits(name.removeprefix(MTEB))
        if is_table(self.files):
            return []
        from hf_xlsr.data.formats.tables import dataset_splits

        options = self._options(self._views[0][1])
        return dataset_splits(options["path"], options.get("config"))

    @cached_property
    def _views(self) -> list[View]:
        reader, files, languages = self.reader, self.files, self.languages
        if files[0].startswith(MTEB):
            return [((UNKNOWN,) * len(reader.language_columns), None)]
        wide = any(PLACEHOLDER in text for text in (*files, *reader.columns.values(), reader.config or ""))
        each = wide or files[0] in CORPORA
        if each and not languages:
            what = PLACEHOLDER if wide else f"the corpus '{files[0]}'"
            raise XlsrError(f"{what} needs --languages, e.g. en,de: it is read once for each language.")
        if not reader.paired:
            if each:
                return [((language,), language) for language in languages]
            return [((languages[0] if len(languages) == 1 else UNKNOWN,), None)]
        sides = reader.columns.get("source", ""), reader.columns.get("target", "")
        if not reader.columns:
            _, labels = expand_braces(files if len(files) > 1 else files[0].replace(PLACEHOLDER, ""))
            sides = (labels[0], labels[1]) if len(labels) == 2 else sides
        return pair_views(languages, sides, each=each, mapped=reader.columns)

    def _rows(self, split: str) -> list[Row]:
        """All valid rows, with their languages: of all splits where a column names the splits."""
        columns, rows = self.reader.language_columns, []
        for view, language in self._views:
            if self.reader.of_sentences:
                view = tuple(map(sentence_languages, view))
            for row in self._source(view, language, split):
                tags = {
                    name: (tag if row[name] == UNKNOWN else row[name]) for name, tag in zip(columns, view, strict=True)
                }
                if UNKNOWN in tags.values():
                    if not self.reader.paired:
                        raise self._unknown_language("lang")
                    # Results are named by the columns: `source`, `target`.
                    tags = {name: name.removesuffix("_lang") if tag == UNKNOWN else tag for name, tag in tags.items()}
                rows.append({**row, **tags})
        return rows

    def _source(self, view: tuple[str, ...], language: str | None, split: str) -> list[Row]:
        reader, languages = self.reader, (UNKNOWN,) * len(view)
        options = {} if self.files[0].startswith(MTEB) else self._options(language)
        if _format(self.files) == "tmx":
            if UNKNOWN in view:
                raise self._unknown_language(reader.language_columns[view.index(UNKNOWN)])
            languages = view
        elif "corpus" in options or (
            {"source", "target"} <= {*reader.required} and not options.get("columns") and UNKNOWN not in view
        ):
            languages = view  # columns may be named like them
        key = self.files, str(options), split, languages, reader.required
        if key not in reader.cache:
            reader.cache[key] = list(self._read(options, split, languages))
        return reader.cache[key]

    def _read(self, options: dict[str, Any], split: str, languages: tuple[str, ...]) -> Iterator[Row]:
        reader = self.reader
        if self.files[0].startswith(MTEB):
            from hf_xlsr.evaluation.mteb.tasks import mteb_rows

            rows = mteb_rows(self.files[0].removeprefix(MTEB), split=split)
        else:
            required = [name for name in reader.required if name not in reader.nullable]
            more: dict[str, Any] = {"optional": reader.optional, "quarantine": reader.quarantine}
            rows = open_source(Source.parse(options), languages=languages, split=split, required=required, **more)
        try:
            for row in rows:
                if (fault := self._fault(row, languages)) is None:
                    yield row
                else:
                    reader.quarantine.reject(self.place, 0, fault, str(row))
        except MissingColumn as error:
            has = f"{error.file} has no column '{error.column}', only {', '.join(error.names)}"
            needed = f"protocol {reader.protocol} needs {', '.join(reader.required)}: use --columns {error.ours}=NAME."
            raise XlsrError(f"{has}; {needed if error.ours in reader.required else 'correct the name.'}") from error

    def _options(self, language: str | None) -> dict[str, Any]:
        reader, first = self.reader, self.files[0]
        place = {"corpus": first} if first in CORPORA else {"path": first if len(self.files) == 1 else self.files}
        columns = {**{name: name for name in reader.nullable}, **reader.columns}
        source = filled({**place, "columns": columns, "config": reader.config}, language or PLACEHOLDER)
        return {name: value for name, value in {**source, "where": reader.where}.items() if value}

    def _fault(self, row: Row, languages: Sequence[str]) -> str | None:
        """What is wrong with a row, if anything; completes it in place."""
        reader = self.reader
        for name, language in zip(reader.language_columns, languages, strict=True):
            row.setdefault(name, language)
            if row[name] and reader.of_sentences:
                row[name] = sentence_languages(str(row[name]))
        for name in (*reader.language_columns, *reader.required, *(["split"] if "split" in row else [])):
            if name not in row:
                raise XlsrError(f"{self.place} has no column '{name}', which protocol {reader.protocol} needs.")
            if name not in reader.nullable and not str("" if row[name] is None else row[name]).strip():
                return f"empty {name}"
        if "label" in row:
            row["label"] = parse_label(row["label"])
        return None

    def _select_languages(self, rows: list[Row]) -> list[Row]:
        """Rows in `languages`; a single name for pairs only says what the fixed side is."""
        languages = list(self.languages)
        if len(languages) < len(self.reader.language_columns):
            return rows
        if self.reader.of_sentences:
            languages = [sentence_languages(language) for language in languages]
        for name in self.reader.language_columns:
            present = {row[name] for row in rows}
            wanted = {tag for language in languages for tag in matching_languages(language, present)}
            rows = [row for row in rows if row[name] in wanted]
        return rows

    def _unknown_language(self, column: str) -> XlsrError:
        return XlsrError(
            f"the language of {self.place} is unknown; use --languages, e.g. {'en,fr' if self.reader.paired else 'en'}, "
            f"or --columns {column}=NAME if a column has it."
        )


def parse_label(label: Any) -> Any:
    """A label as an integer where it is one, so that `1` of a TSV and 1 of a Parquet file are equal.

    Examples:
        >>> [parse_label(label) for label in ("1", 1.0, True, "-1", "sports", " 2 ")]
        [1, 1, 1, -1, 'sports', 2]
    """
    if isinstance(label, (bool, float)) and float(label).is_integer():
        return int(label)
    if isinstance(label, str):
        return int(label) if re.fullmatch(r"\s*-?[0-9]{1,9}\s*", label) else label.strip()
    return label


def parse_where(conditions: Sequence[str] | None) -> dict[str, list[str]]:
    """Parses `column=value` conditions; a column given twice accepts either value."""
    values: dict[str, list[str]] = {}
    for condition in conditions or ():
        column, equals, value = condition.partition("=")
        if not equals or not column.strip():
            raise XlsrError(f"--where must be COLUMN=VALUE, e.g. set=newstest2018, got '{condition}'.")
        values.setdefault(column.strip(), []).append(value.strip())
    return values


def data_name(files: Sequence[str]) -> str:
    """Name of data in metric keys: the corpus, the task of mteb, or the stem of the first file."""
    return Source.parse(str(files[0]).removeprefix(MTEB).replace(PLACEHOLDER, "xx")).name


def is_table(files: Sequence[str]) -> bool:
    """Whether these are files, which are one split or distinguish splits by a column."""
    return _format(files) not in (None, "datasets")


def _format(files: Sequence[str]) -> str | None:
    if files[0] in CORPORA or files[0].startswith(MTEB):
        return None
    return detect_format(expand_braces(files[0])[0] if len(files) == 1 else [Path(file) for file in files])
