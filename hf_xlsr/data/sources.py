"""Where rows come from: a named corpus, or files with a column mapping, parsed once into a frozen `Source`."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cache, partial
from itertools import combinations, islice
from pathlib import Path
from random import Random
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, ValidationError, model_validator

from hf_xlsr.data.columns import PLACEHOLDER, filled, parse_columns
from hf_xlsr.data.corpora.loading import CORPORA, load_corpus
from hf_xlsr.data.file_languages import language_of_file, text_language
from hf_xlsr.data.formats.quarantine import Quarantine
from hf_xlsr.data.formats.reading import read_rows
from hf_xlsr.data.seen import hash64
from hf_xlsr.utils.errors import XlsrError
from hf_xlsr.utils.validation import Section, explain
from hf_xlsr.utils.variables import expand

FEW_ROWS = 100_000  # sampled in memory
_VERSIONS = {"source_version", "target_version"}
_CORPUS_KEYS = {"corpus", "languages", "split", "distinct", "limit", "sample", "split_sentences"} | _VERSIONS


def as_list(value: Any) -> list[Any]:
    """A list unchanged, None as an empty list, anything else as a list of one."""
    if value is None:
        return []
    return list(value) if isinstance(value, (list, tuple)) else [value]


OneOrMore = Annotated[list[str], BeforeValidator(as_list)]


class Source(Section, frozen=True):
    """Where rows come from: a named corpus, or files.

    Examples:
        >>> source = Source.parse({"path": "news.{en,de}.gz", "limit": 5})
        >>> source.name, source.limit, Source.parse("tatoeba").corpus
        ('news', 5, 'tatoeba')
        >>> Source.parse({"path": "pairs.tsv", "limt": 5})
        Traceback (most recent call last):
        ...
        hf_xlsr.utils.errors.XlsrError: unknown key 'limt'; did you mean 'limit'?
    """

    corpus: str | None = Field(None, description="name of a corpus; `hf-xlsr corpora` lists them")
    path: str | list[str] | None = Field(
        None,
        description="file, pair of Moses files, tables of one format, folder or id of a dataset; HF_XLSR_* are expanded",
    )
    languages: OneOrMore | None = Field(None, description="source and target language; by default the recipe's")
    columns: str | dict[str, Any] | None = Field(
        None, description="our column = column of the file, e.g. `source=en,target=fr`"
    )
    parallel: dict[str, Any] | None = Field(
        None,
        description="language = column of the file, two or more, instead of `columns`: each row gives all pairs of its "
        "filled cells; `languages` selects some",
    )
    format: str | None = Field(
        None,
        description="moses, tsv, csv, jsonl, json, zip, parquet, tmx, po, mo or datasets; by default from the suffix; "
        "tsv-quoted, tsv-literal and csv-comma do not look at the file for quotation marks and separators",
    )
    split: str | None = Field(None, description="train, dev or test of a corpus or dataset")
    config: str | None = Field(None, description="configuration of a dataset")
    where: dict[str | int, Any] | None = Field(
        None, description="keep rows with these values; a name is a column of the file, or a standard name"
    )
    hash_split: Literal["rest", "held"] | None = Field(
        None, description="keep rows whose crc32 of `hash_key` modulo `hash_modulus` is not 0, or is 0"
    )
    hash_key: str | int | None = Field(None, description="column of the file for `hash_split`, or a standard name")
    hash_modulus: int = Field(100, ge=1, description="100 holds out about 1 %")
    distinct: bool = Field(
        False, description="skip rows with a text seen before on the same side, for evaluation by retrieval"
    )
    split_sentences: bool = Field(
        False, description="split each text of monolingual data into sentences; `limit` and `sample` count texts"
    )
    limit: int | None = Field(
        None, ge=1, description="maximum number of rows (of pairs, with `parallel`): the first; `sample` draws"
    )
    sample: int | None = Field(
        None,
        ge=1,
        description="number of rows drawn at random, in their order, by the recipe's seed (dev and test: the same for "
        "every seed); reads the source twice",
    )
    source_version: str | None = Field(None, description="translation of the bible corpus")
    target_version: str | None = Field(None, description="translation of the bible corpus")

    @model_validator(mode="after")
    def _check_keys(self) -> Source:
        keys = set(self.model_dump(exclude_none=True, exclude_defaults=True))
        if self.corpus:
            unsupported = keys - _CORPUS_KEYS
        elif self.path:
            unsupported = keys & _VERSIONS
        else:
            raise ValueError("a source needs `corpus` or `path`")

        if unsupported:
            raise ValueError(
                f"a source with `{self.corpus or self.path}` does not support the key '{min(unsupported)}'"
            )

        if self.hash_split and self.hash_key is None:
            raise ValueError("`hash_split` needs `hash_key`")
        if self.parallel is not None and self.columns is not None:
            raise ValueError("`parallel` excludes `columns`")
        return self

    @classmethod
    def parse(cls, value: Any) -> Source:
        """The source that a user writes: a mapping with these keys, the name of a corpus, or a path."""
        if isinstance(value, Source):
            return value
        if isinstance(value, str) and value in CORPORA:
            value = {"corpus": value}
        elif not isinstance(value, Mapping):
            value = {"path": value}
        try:
            return cls.model_validate(dict(value))
        except ValidationError as error:
            raise XlsrError(explain(error, cls)) from None

    @property
    def name(self) -> str:
        """The name in metric keys and cards: the corpus, or the stem of the first file."""
        first = self.corpus or str(as_list(self.path)[0])
        return Path(first).name.split(".")[0]

    @property
    def location(self) -> str | list[str]:
        """`path` with its variables expanded."""
        location: str | list[str] = expand(self.path)
        return location

    @property
    def paths(self) -> list[str]:
        """`location` as a list; empty for a corpus."""
        return list(map(expand, as_list(self.path)))

    @property
    def column_map(self) -> dict[str, str]:
        """Our column -> column of the file."""
        return parse_columns(self.columns)

    @property
    def is_template(self) -> bool:
        """Whether `{lang}` stands for each language in turn, in a path, a column or a configuration."""
        return PLACEHOLDER in str(self.model_dump(exclude_none=True))

    def languages_or(self, languages: Sequence[str]) -> list[str]:
        """The languages of the source, or else these."""
        return list(self.languages or languages)

    def text_language(self, languages: Sequence[str], *, strict: bool = True) -> str:
        """The language of texts without a language of their own: that of the file's name, else the first of `languages`.

        `strict` raises if the name says another language than these.
        """
        paths = self.paths
        if len(paths) != 1 or self.columns or not Path(paths[0]).expanduser().is_file():
            return languages[0]
        if not strict and language_of_file(paths[0], languages) not in languages:
            return languages[0]
        return text_language(paths[0], languages)

    def in_language(self, language: str) -> Source:
        """The source of one language, which also replaces `{lang}`."""
        content = filled(self.model_dump(exclude_unset=True), language)
        return Source.parse({**content, "languages": [language]})


def parse_sources(value: Any) -> list[Source]:
    """The sources that a user writes: one, a list of them, or None for none."""
    return list(map(Source.parse, as_list(value)))


class RowFilter:
    """Selects rows by the values of columns (`where`) and by the crc32 of one (`hash_split`) of a source."""

    def __init__(self, source: Source) -> None:
        self.source = source
        # Columns may be positions, or names like 2017.
        self.allowed: dict[str, set[str]] = {}
        for name, values in (source.where or {}).items():
            self.allowed[str(name)] = set(map(_plain, as_list(values)))
        self.key = str(source.hash_key)
        self.columns = list(self.allowed)
        if source.hash_split and self.key not in self.allowed:
            self.columns.append(self.key)

    def keeps(self, row: Mapping[str, Any]) -> bool:
        """Whether the row is selected."""
        for name, allowed in self.allowed.items():
            if _plain(row[name]) not in allowed:
                return False
        if not self.source.hash_split:
            return True
        text = row[self.key]
        is_held = text not in (None, "") and zlib.crc32(str(text).encode()) % self.source.hash_modulus == 0
        return is_held == (self.source.hash_split == "held")

    def taken(self, row: Mapping[str, Any]) -> dict[str, Any] | None:
        """A row read with `columns` as `selecting`, without what was read only for this; None if it is not selected."""
        values = {name: row.get(f"_{name}", row.get(name)) for name in self.columns}
        if not self.keeps(values):
            return None
        return {name: value for name, value in row.items() if not name.startswith("_")}


def _plain(value: Any) -> str:
    """A value as text, the same for 2017 and 2017.0: integer columns with gaps are often stored as floats."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return str(value)


def open_source(
    source: Source,
    *,
    languages: Sequence[str],
    split: str = "train",
    required: Sequence[str] = ("source", "target"),
    optional: Sequence[str] | None = None,
    quarantine: Quarantine | None = None,
    seed: int = 1,
    wide: Mapping[str, str] | None = None,
    nullable: Collection[str] = (),
) -> Iterator[dict[str, Any]]:
    r"""Streams the rows of a source: `source`, `target` and their languages, or those of `required`.

    With `parallel`, the pairs of a row of the file come one after the other, in the order of its languages there.

    Args:
        languages: Those of a source that names none.
        split: Split of a corpus or dataset when the source names none.
        optional: Columns read where a file has them; None reads all of ours unless the source maps columns.
        seed: Chooses the rows of `sample`.
        wide: The caller's names -> columns of a file, instead of the source's `columns`; cells may be empty.
        nullable: Required columns that may be empty.

    Examples:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     file = Path(folder) / "wide.tsv"
        ...     _ = file.write_text("en\tde\tfr\nyes\tja\toui\nno\t\tnon\n")
        ...     source = Source(path=str(file), parallel={"en": "en", "de": "de", "fr": "fr"})
        ...     [(row["source"], row["target"]) for row in open_source(source, languages=["en", "de", "fr"])]
        [('yes', 'ja'), ('yes', 'oui'), ('ja', 'oui'), ('no', 'non')]
    """
    own_languages = source.languages_or(languages)
    parallel: dict[str, str] = {}
    for language, column in (source.parallel or {}).items():
        if not source.languages or str(language) in source.languages:
            parallel[str(language)] = str(column)

    needs_pair = "source" in required
    if needs_pair and not parallel and len(own_languages) != 2:
        raise XlsrError(
            f"the data source '{source.name}' needs two languages, got {', '.join(own_languages)}; set its `languages`."
        )

    def read(quarantine: Quarantine | None) -> Iterator[dict[str, Any]]:
        if source.corpus:
            rows = load_corpus(
                source.corpus,
                languages=own_languages,
                split=source.split or split,
                source_version=source.source_version,
                target_version=source.target_version,
            )
        elif parallel:
            rows = _parallel_pairs(
                _selected_rows(source, parallel, split=split, quarantine=quarantine), list(parallel)
            )
        elif wide is not None:
            rows = _selected_rows(source, wide, split=split, quarantine=quarantine)
        else:
            rows = _selected_rows(
                source,
                source.column_map,
                languages=own_languages[:2],
                required=required,
                optional=optional,
                nullable=nullable,
                split=split,
                quarantine=quarantine,
            )
            if needs_pair:
                rows = _with_languages(rows, own_languages, source.name, quarantine)

        return without_repeats(rows, required) if source.distinct else rows

    if source.sample is None:
        return islice(read(quarantine), source.limit)
    return islice(_random_rows(read, source.sample, seed, quarantine), source.limit)


def open_texts(
    source: Source,
    columns: Sequence[str],
    *,
    languages: Sequence[str],
    more: Sequence[str] = (),
    split: str = "train",
    quarantine: Quarantine | None = None,
    seed: int = 1,
) -> Iterator[dict[str, Any]]:
    """`open_source` for texts that are not translations, each row with its language in `lang`.

    The columns `more` are read where a file has them.
    """
    own_languages = source.languages_or(languages)
    default = source.text_language(own_languages, strict=False)
    rows = open_source(
        source,
        languages=[default],
        split=split,
        required=columns,
        optional=(*more, "lang"),
        quarantine=quarantine,
        seed=seed,
    )
    language_of_name = cache(partial(source.text_language, own_languages))
    for row in rows:
        row["lang"] = row.get("lang") or language_of_name()
        yield row


def without_repeats(rows: Iterable[dict[str, Any]], columns: Sequence[str]) -> Iterator[dict[str, Any]]:
    """The rows none of whose texts was in an earlier row of the same languages."""
    keys_before: set[tuple[Any, ...]] = set()
    for row in rows:
        languages = (row.get("source_lang"), row.get("target_lang"))
        keys = {(column, *languages, hash64(str(row[column]).casefold())) for column in columns}
        if keys_before.isdisjoint(keys):
            keys_before |= keys
            yield row


def _random_rows(
    read: Callable[[Quarantine | None], Iterator[dict[str, Any]]],
    size: int,
    seed: int,
    quarantine: Quarantine | None,
) -> Iterator[dict[str, Any]]:
    """A random subset of the rows, in order and in bounded memory: selection sampling (Knuth, volume 2, algorithm S)."""
    rows = read(quarantine)
    first_rows = list(islice(rows, FEW_ROWS))
    num_left = len(first_rows) + sum(1 for _ in rows)
    num_wanted = min(size, num_left)
    random = Random(seed)

    # Few rows are in memory. More are read again; the first pass counted their bad lines.
    candidates = first_rows if num_left == len(first_rows) else read(Quarantine())

    for row in candidates:
        if not num_wanted:
            return
        if random.random() * num_left < num_wanted:
            num_wanted -= 1
            yield row
        num_left -= 1


def _with_languages(
    rows: Iterator[dict[str, Any]],
    languages: Sequence[str],
    name: str,
    quarantine: Quarantine | None,
) -> Iterator[dict[str, Any]]:
    """Adds `source_lang` and `target_lang` where a file has none; a row with an empty one is a bad line."""
    for row in rows:
        row = {"source_lang": languages[0], "target_lang": languages[1], **row}
        if row["source_lang"] and row["target_lang"]:
            yield row
        elif quarantine is not None:
            empty_column = "target_lang" if row["source_lang"] else "source_lang"
            quarantine.reject(name, 0, f"empty {empty_column}", row["source"])


def _selected_rows(
    source: Source,
    columns: Mapping[str, str],
    *,
    languages: Sequence[str] = (),
    required: Sequence[str] = (),
    optional: Sequence[str] | None = None,
    nullable: Collection[str] = (),
    split: str,
    quarantine: Quarantine | None,
) -> Iterator[dict[str, Any]]:
    """The rows of a file that `where` and `hash_split` keep."""
    row_filter = RowFilter(source)
    rows = read_file(
        source,
        columns,
        languages=languages,
        required=required,
        optional=optional,
        selecting=row_filter.columns,
        nullable=nullable,
        split=split,
        quarantine=quarantine,
    )
    for row in map(row_filter.taken, rows):
        if row is not None:
            yield row


def read_file(
    source: Source,
    columns: Mapping[str, str],
    *,
    languages: Sequence[str] = (),
    required: Sequence[str] = (),
    optional: Sequence[str] | None = None,
    selecting: Sequence[str] = (),
    nullable: Collection[str] = (),
    split: str = "train",
    quarantine: Quarantine | None = None,
) -> Iterator[dict[str, Any]]:
    """`read_rows` of the file of a source, whatever it selects."""
    return read_rows(
        source.location,
        columns=columns,
        languages=languages,
        required=required,
        optional=optional,
        selecting=selecting,
        nullable=nullable,
        format=source.format,
        split=source.split,
        default_split=split,
        config=source.config,
        quarantine=quarantine,
    )


def _parallel_pairs(rows: Iterator[dict[str, Any]], languages: Sequence[str]) -> Iterator[dict[str, Any]]:
    for row in rows:
        filled_languages = [language for language in languages if (row[language] or "").strip()]
        for source_lang, target_lang in combinations(filled_languages, 2):
            yield {
                "source": row[source_lang],
                "target": row[target_lang],
                "source_lang": source_lang,
                "target_lang": target_lang,
            }
