"""Tables to evaluate on: the columns, languages and splits of a file, a corpus, a dataset or a task of mteb."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from hf_xlsr.data.columns import PLACEHOLDER, filled, split_name
from hf_xlsr.data.corpora.loading import CORPORA
from hf_xlsr.data.file_languages import UNKNOWN, language_of_file, languages_of_files, text_language
from hf_xlsr.data.formats.quarantine import Quarantine
from hf_xlsr.data.formats.reading import detect_format, expand_braces
from hf_xlsr.data.languages import contradict, tags_meant
from hf_xlsr.data.sources import Source, open_source
from hf_xlsr.evaluation.languages import View, pair_views, sentence_languages
from hf_xlsr.utils.errors import XlsrError

Row = dict[str, Any]
MTEB = "mteb:"
FILE_ROW = "_row"


@dataclass(frozen=True)
class Table:
    """A source of rows for a protocol, and how it is read; `open` gives another source that is read alike.

    Attributes:
        protocol: Its name, for errors.
        required: Columns of every row; with `source` among them rows are pairs of two languages.
        optional: Columns that a row may have.
        nullable: Required columns that may be empty.
        columns: Our column -> column of the file, which may contain `{lang}`.
        where: Column -> values of the rows that are read.
        quarantine: Counts invalid rows, of all sources together.
        cache: Rows that were read, of all sources together: no file is read twice.
        files: The source: files, or the name of a corpus, a dataset or a task of mteb.
        languages: In pairs the first is the source's, unless the file says otherwise.
    """

    protocol: str
    required: tuple[str, ...]
    optional: tuple[str, ...] = ()
    nullable: tuple[str, ...] = ()
    columns: Mapping[str, str] = field(default_factory=dict)
    where: Mapping[str, Sequence[str]] = field(default_factory=dict)
    config: str | None = None
    format: str | None = None
    quarantine: Quarantine = field(default_factory=Quarantine)
    cache: dict[tuple[Any, ...], list[Row]] = field(default_factory=dict)
    files: tuple[str, ...] = ()
    languages: tuple[str, ...] = ()

    def open(self, files: Sequence[str], languages: Sequence[str] = ()) -> Table:
        """The table of another source."""
        return replace(self, files=tuple(map(str, files)), languages=tuple(languages))

    @property
    def paired(self) -> bool:
        return "source" in self.required

    @property
    def of_sentences(self) -> bool:
        """Whether a row has two sentences, possibly in two languages, under one tag."""
        return not {"sentence1", "premise"}.isdisjoint(self.required)

    @property
    def is_wide(self) -> bool:
        """Whether each language is a column of the same rows, which then have their number in the file, `FILE_ROW`."""
        in_columns = any(PLACEHOLDER in column for column in self.columns.values())
        return in_columns and not any(PLACEHOLDER in text for text in (*self.files, self.config or ""))

    @property
    def language_columns(self) -> tuple[str, ...]:
        return ("source_lang", "target_lang") if self.paired else ("lang",)

    @property
    def source_name(self) -> str:
        """Name of the source in errors."""
        return " ".join(self.files)

    @property
    def file_format(self) -> str | None:
        """The format of the files, given or detected; None for a corpus or a task."""
        return self.format or _format(self.files)

    @property
    def mteb_task(self) -> str | None:
        """The name of the source if it is a task of mteb."""
        name = self.files[0]
        return name.removeprefix(MTEB) if name.startswith(MTEB) else None

    @cached_property
    def splits(self) -> frozenset[str]:
        """Splits that the source distinguishes, by name or by a column `split`; empty where it has none."""
        names = self._named_splits()
        if not names:
            names = [row["split"] for row in self._rows("") if "split" in row]
        return frozenset(map(split_name, names))

    def split(self, name: str | None, *, select: bool = True) -> list[Row]:
        """The rows of one split, or of all with None, with the required columns and those of their languages.

        Of a file without a column `split`, all rows count as the split. `select` takes only rows in `languages`.
        """
        wanted = split_name(name or "")
        rows = self._rows("" if is_table(self.files) else wanted)
        if name is not None:
            rows = [row for row in rows if split_name(row.get("split", name)) == wanted]
        if select:
            rows = self._select_languages(rows)
        if not rows:
            advice = f"check the file, --columns, --where, --split and --languages. {self.quarantine.report()}"
            raise XlsrError(f"{self.source_name} has no row for protocol {self.protocol}; {advice.rstrip()}")
        return rows

    def all_splits(self) -> list[Row]:
        """The rows of all splits, with a column `split` where the source distinguishes them."""
        if is_table(self.files):
            return self.split(None)
        if not self.splits:
            return self.split("test")

        rows = []
        for split in ("train", "dev", "test"):
            if split in self.splits:
                rows += [{**row, "split": split} for row in self.split(split)]
        return rows

    def _named_splits(self) -> Sequence[str]:
        """Splits of a corpus, a task or a dataset, which have names; none of files."""
        name = self.files[0]
        if name in CORPORA:
            return list(CORPORA[name].splits)
        if self.mteb_task is not None:
            from hf_xlsr.evaluation.mteb.tasks import task_splits

            return task_splits(self.mteb_task)
        if is_table(self.files):
            return []

        from hf_xlsr.data.formats.tables import dataset_splits

        _, language = self._views[0]
        options = self._options(language)
        return dataset_splits(options["path"], options.get("config"))

    @cached_property
    def _views(self) -> list[View]:
        """The languages of each reading of the source, and what `{lang}` stands for in it."""
        languages = self.languages
        if self.mteb_task is not None:
            return [((UNKNOWN,) * len(self.language_columns), None)]

        texts = (*self.files, *self.columns.values(), self.config or "")
        each = self.files[0] in CORPORA or any(PLACEHOLDER in text for text in texts)
        if each and not languages:
            raise XlsrError(f"{self.source_name} needs --languages, e.g. en,de: it is read once for each language.")
        if self.paired:
            return pair_views(languages, self._side_names(), each=each, mapped=self.columns)
        if each:
            return [((language,), language) for language in languages]
        return [((self._text_language(),), None)]

    def _text_language(self) -> str:
        """The language of texts: that of the names of the files, which must be the only one of `languages`."""
        files = () if self.columns or not is_table(self.files) else self.files
        if len(self.languages) == 1:
            (language,) = self.languages
            is_pair = self.of_sentences and "+" in sentence_languages(language)
            for file in () if is_pair else files:
                text_language(file, self.languages)
            return language
        tags = {language_of_file(file, self.languages) for file in files}
        return (tags.pop() if len(tags) == 1 else None) or UNKNOWN

    def _side_names(self) -> tuple[str, str]:
        """Names of columns or files that may say the languages of the two sides."""
        if not self.columns and self.file_format == "moses":
            paths, labels = expand_braces(self.files)
            if len(self.files) == 1:
                paths, labels = expand_braces(self.files[0].replace(PLACEHOLDER, ""))
            if len(labels) == 2:
                tags = languages_of_files(paths, self.languages)
                return tags[0] or labels[0], tags[1] or labels[1]
        return self.columns.get("source", ""), self.columns.get("target", "")

    def _rows(self, split: str) -> list[Row]:
        """All valid rows, with their languages: of all splits where a column names the splits."""
        rows = []
        for view, language in self._views:
            if self.of_sentences:
                view = tuple(map(sentence_languages, view))
            for row in self._source(view, language, split):
                row = dict(row)  # the one in the cache stays as it is
                for column, default in zip(self.language_columns, view, strict=True):
                    if row[column] == UNKNOWN:
                        row[column] = self._default_language(column, default)
                rows.append(row)
        return rows

    def _default_language(self, column: str, default: str) -> str:
        """The language of one side of a row that has no tag of its own."""
        if default != UNKNOWN:
            return default
        if not self.paired:
            raise self._unknown_language(column)
        # Results are named by the columns: `source`, `target`.
        return column.removesuffix("_lang")

    @property
    def _has_a_text_of_each(self) -> bool:
        """Whether the sides of pairs are one column of a dataset that has a configuration for each language."""
        source = self.columns.get("source")
        has_configurations = PLACEHOLDER in (self.config or "")
        return has_configurations and source is not None and source == self.columns.get("target")

    def _joined(self, languages: tuple[str, ...], split: str) -> list[Row]:
        """Pairs of the texts in two configurations, row by row."""
        first, second = (self._texts(language, split) for language in languages)
        if len(first) != len(second):
            raise XlsrError(
                f"{self.source_name} must have parallel rows, got {len(first)} in {languages[0]} and {len(second)} in "
                f"{languages[1]}."
            )
        tags = dict(zip(self.language_columns, languages, strict=True))
        return [{"source": source, "target": target, **tags} for source, target in zip(first, second, strict=True)]

    def _texts(self, language: str, split: str) -> list[str]:
        """The texts of one configuration, of which none may be left out: rows would no longer be parallel."""
        single = replace(
            self,
            required=("text",),
            optional=(),
            columns={"text": self.columns["source"]},
            quarantine=Quarantine(),
            languages=(language,),
        )
        rows = single.split(split)
        if single.quarantine.report():
            raise XlsrError(f"{self.source_name} has unusable rows in {language}: {single.quarantine.report()}")
        return [row["text"] for row in rows]

    def _source(self, view: tuple[str, ...], language: str | None, split: str) -> list[Row]:
        """The valid rows of one reading, with the tag that a row or the format gives its languages."""
        if self._has_a_text_of_each:
            return self._joined(view, split)
        options = {} if self.mteb_task is not None else self._options(language)
        languages = (UNKNOWN,) * len(view)
        if self._needs_languages(view, options):
            languages = view

        key = self.files, str(options), split, languages, self.required
        if key not in self.cache:
            self.cache[key] = list(self._read(options, split, languages))
        return self.cache[key]

    def _needs_languages(self, view: tuple[str, ...], options: Mapping[str, Any]) -> bool:
        """Whether the texts of a reading are found by their languages: in a TMX file, a corpus, or by column names."""
        if self.file_format == "tmx":
            if UNKNOWN in view:
                raise self._unknown_language(self.language_columns[view.index(UNKNOWN)])
            return True
        if "corpus" in options:
            return True
        # Columns of pairs may be named like the languages.
        return self.paired and not options.get("columns") and UNKNOWN not in view

    def _read(self, options: dict[str, Any], split: str, languages: tuple[str, ...]) -> Iterator[Row]:
        if self.mteb_task is not None:
            from hf_xlsr.evaluation.mteb.tasks import mteb_rows

            rows = mteb_rows(self.mteb_task, split=split)
        else:
            rows = open_source(
                Source.parse(options),
                languages=languages,
                split=split,
                required=self.required,
                optional=self.optional,
                nullable=self.required if self.is_wide else self.nullable,
                quarantine=self.quarantine,
            )

        for number, row in enumerate(rows):
            row = self._with_languages(row, languages)
            if self.is_wide:
                row[FILE_ROW] = number
            empty_column = self._empty_column(row)
            if empty_column is not None:
                self.quarantine.reject(self.source_name, 0, f"empty {empty_column}", str(row))
                continue
            if "label" in row:
                row["label"] = parse_label(row["label"])
            yield row

    def _options(self, language: str | None) -> dict[str, Any]:
        """The source as a recipe would have it, in one language."""
        options: dict[str, Any] = {"path": self.files[0] if len(self.files) == 1 else self.files}
        if self.files[0] in CORPORA:
            options = {"corpus": self.files[0]}
        options["columns"] = self.columns
        options["config"] = self.config
        options["format"] = self.format
        options = filled(options, language or PLACEHOLDER)
        options["where"] = self.where
        return {name: value for name, value in options.items() if value}

    def _with_languages(self, row: Row, languages: Sequence[str]) -> Row:
        """A row with its languages, which are those of the source where it has no column of them."""
        row = dict(row)
        for column, language in zip(self.language_columns, languages, strict=True):
            tag = row.setdefault(column, language)
            if tag and self.of_sentences:
                row[column] = sentence_languages(str(tag))
        return row

    def _empty_column(self, row: Row) -> str | None:
        """The first column without a value that a row must have."""
        required = [name for name in (*self.language_columns, *self.required) if name not in self.nullable]
        if "split" in row:
            required.append("split")
        for column in required:
            value = row.get(column)
            if value is None or not str(value).strip():
                return column
        return None

    def _select_languages(self, rows: list[Row]) -> list[Row]:
        """Rows in `languages`; a single name for pairs only says what the fixed side is."""
        languages = list(self.languages)
        if len(languages) < len(self.language_columns):
            return rows
        if self.of_sentences:
            languages = list(map(sentence_languages, languages))

        for column in self.language_columns:
            present = {row[column] for row in rows}
            selected: set[str] = set()
            for language in languages:
                meant = tags_meant(language, present)
                selected.update(tag for tag in meant if not contradict(language, tag))
            rows = [row for row in rows if row[column] in selected]
        return rows

    def _unknown_language(self, column: str) -> XlsrError:
        return XlsrError(
            f"the language of {self.source_name} is unknown; use --languages, e.g. en or en,fr, "
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
    if not isinstance(label, str):
        return label
    if re.fullmatch(r"\s*-?[0-9]{1,9}\s*", label):
        return int(label)
    return label.strip()


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
    name = str(files[0]).removeprefix(MTEB)
    return Source.parse(name.replace(PLACEHOLDER, "xx")).name


def is_table(files: Sequence[str]) -> bool:
    """Whether these are files, which are one split or distinguish splits by a column."""
    return _format(files) not in (None, "datasets")


def _format(files: Sequence[str]) -> str | None:
    """The format of files, `datasets` included; None for a corpus or a task."""
    if files[0] in CORPORA or files[0].startswith(MTEB):
        return None
    if len(files) == 1:
        paths, _ = expand_braces(files[0])
        return detect_format(paths)
    return detect_format([Path(file) for file in files])
