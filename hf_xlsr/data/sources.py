"""The sources of a recipe: a named corpus, or files with a column mapping."""

from __future__ import annotations

import os
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import combinations, islice
from pathlib import Path
from random import Random
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, ValidationError, model_validator

from hf_xlsr.data.columns import parse_columns
from hf_xlsr.data.corpora.loading import CORPORA, load_corpus
from hf_xlsr.data.formats.quarantine import Quarantine
from hf_xlsr.data.formats.reading import read_rows
from hf_xlsr.data.seen import hash64
from hf_xlsr.utils.errors import XlsrError
from hf_xlsr.utils.validation import Section, explain

FEW_ROWS = 100_000  # sampled in memory
_VERSIONS = ("source_version", "target_version")
_CORPUS_KEYS = {"corpus", "languages", "split", "distinct", "limit", "sample", "split_sentences", *_VERSIONS}


def as_list(value: Any) -> list[Any]:
    """A list unchanged, None as an empty list, anything else as a list of one."""
    return [] if value is None else list(value) if isinstance(value, (list, tuple)) else [value]


OneOrMore = Annotated[list[str], BeforeValidator(as_list)]


class Source(Section):
    """Where rows come from: a named corpus, or files."""

    corpus: str | None = Field(None, description="name of a corpus; `hf-xlsr corpora` lists them")
    path: str | list[str] | None = Field(
        None, description="file, pair of Moses files, folder or id of a dataset; environment variables are expanded"
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
        None, description="moses, tsv, csv, jsonl, parquet, tmx, po, mo or datasets; by default from the suffix"
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
    limit: int | None = Field(None, ge=1, description="maximum number of rows (of pairs, with `parallel`)")
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
        given = set(self.model_dump(exclude_none=True, exclude_defaults=True))
        kind = "corpus" if "corpus" in given else "path"
        unsupported = sorted(given - _CORPUS_KEYS if kind == "corpus" else given & {*_VERSIONS})
        fault = None
        if kind not in given:
            fault = "a source needs `corpus` or `path`"
        elif unsupported:
            fault = f"a source with `{kind}` does not support the key '{unsupported[0]}'"
        elif self.hash_split and self.hash_key is None:
            fault = "`hash_split` needs `hash_key`"
        elif self.parallel is not None and self.columns is not None:
            fault = "`parallel` excludes `columns`"
        if fault:
            raise ValueError(fault)
        return self


def check_source(value: Any) -> dict[str, Any]:
    """`as_source`, validated.

    Examples:
        >>> check_source({"path": "pairs.tsv", "limt": 5})
        Traceback (most recent call last):
        ...
        hf_xlsr.utils.errors.XlsrError: unknown key 'limt'; did you mean 'limit'?
    """
    source = as_source(value)
    try:
        Source.model_validate(source)
    except ValidationError as error:
        raise XlsrError(explain(error, Source)) from None
    return source


def variables_of(path: Any) -> list[str]:
    """Names of the environment variables of a path, or a list of paths."""
    return list(dict.fromkeys(re.findall(r"\$\{?(\w+)\}?", " ".join(map(str, as_list(path))))))


def unset_variables(path: Any) -> list[str]:
    """Those of `variables_of` that are not set."""
    return [name for name in variables_of(path) if name not in os.environ]


def expand(path: Any) -> Any:
    """Expands environment variables of a path or a list of paths; an error if one is not set."""
    if isinstance(path, (list, tuple)):
        return [expand(part) for part in path]
    if unset := unset_variables(path):
        raise XlsrError(f"path '{path}' needs the environment variable {unset[0]}, which is not set.")
    return os.path.expandvars(str(path))


def as_source(value: Any) -> dict[str, Any]:
    """A source as a mapping; a string is a corpus if one has that name, else a path."""
    if isinstance(value, Mapping):
        return dict(value)
    return {"corpus": value} if isinstance(value, str) and value in CORPORA else {"path": value}


def source_name(value: Any) -> str:
    """The name of a source in metric keys and cards: its corpus, or the stem of its file."""
    source = as_source(value)
    return str(source.get("corpus") or Path(str(as_list(source["path"])[0])).name.split(".")[0])


class RowFilter:
    """Selects rows by the values of columns (`where`) and by the crc32 of one (`hash_split`) of a valid source."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        conditions = (options.get("where") or {}).items()
        self.conditions = {str(name): set(map(_plain, as_list(value))) for name, value in conditions}
        self.part, self.modulus = options.get("hash_split"), options.get("hash_modulus", 100)
        # A column by its position, or by a name like 2017.
        self.key = None if options.get("hash_key") is None else str(options["hash_key"])
        self.columns = list(dict.fromkeys([*self.conditions, *([self.key] if self.key else [])]))

    def keeps(self, row: Mapping[str, Any]) -> bool:
        """Whether the row is selected."""
        for name, allowed in self.conditions.items():
            if _plain(row[name]) not in allowed:
                return False
        if not self.part or not self.key:
            return True
        held = row[self.key] not in (None, "") and zlib.crc32(str(row[self.key]).encode()) % self.modulus == 0
        return held == (self.part == "held")

    def takes(self, row: dict[str, Any]) -> bool:
        """Whether a row read with `columns` as `selecting` is selected; removes the columns read only for this."""
        return self.keeps({name: row.pop(f"_{name}") if f"_{name}" in row else row[name] for name in self.columns})


def _plain(value: Any) -> str:
    """A value as text, the same for 2017 and 2017.0: integer columns with gaps are often stored as floats."""
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def open_source(
    source: Any,
    *,
    languages: Sequence[str],
    split: str = "train",
    required: Sequence[str] = ("source", "target"),
    optional: Sequence[str] | None = None,
    quarantine: Quarantine | None = None,
    seed: int = 1,
    wide: Mapping[str, str] | None = None,
) -> Iterator[dict[str, Any]]:
    """Streams the rows of one source of a recipe: `source`, `target` and their languages, or those of `required`.

    With `parallel`, the pairs of a row of the file come one after the other, in the order of its languages there.

    Args:
        split: Split of a corpus or dataset when the source names none.
        optional: Columns read where a file has them; None reads all of ours unless the source maps columns.
        seed: Chooses the rows of `sample`.
        wide: The caller's names -> columns of a file, instead of the source's `columns`; cells may be empty.

    Examples:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     file = Path(folder) / "wide.tsv"
        ...     _ = file.write_text("en\\tde\\tfr\\nyes\\tja\\toui\\nno\\t\\tnon\\n")
        ...     source = {"path": str(file), "parallel": {"en": "en", "de": "de", "fr": "fr"}}
        ...     [(row["source"], row["target"]) for row in open_source(source, languages=["en", "de", "fr"])]
        [('yes', 'ja'), ('yes', 'oui'), ('ja', 'oui'), ('no', 'non')]
    """
    options = check_source(source)
    own = as_list(options.get("languages"))
    languages = own or list(languages)
    parallel = {str(name): str(column) for name, column in (options.get("parallel") or {}).items()}
    if parallel:
        parallel = {name: column for name, column in parallel.items() if name in (own or parallel)}
    if "source" in required and not parallel and len(languages) != 2:
        raise XlsrError(f"data source {options} needs two languages, got {', '.join(languages)}; set its `languages`.")

    def read(quarantine: Quarantine | None) -> Iterator[dict[str, Any]]:
        more: dict[str, Any] = {"split": split, "quarantine": quarantine}
        if options.get("corpus"):
            extra = {key: options[key] for key in _VERSIONS if options.get(key) is not None}
            rows = load_corpus(options["corpus"], languages=languages, split=options.get("split") or split, **extra)
        elif parallel:
            rows = _parallel_pairs(_chosen_rows(options, parallel, list(parallel), **more), list(parallel))
        elif wide is not None:
            rows = _chosen_rows(options, wide, languages, **more)
        else:
            columns = parse_columns(options.get("columns"))
            rows = _chosen_rows(options, columns, languages, required=required, optional=optional, **more)
            if "source" in required:
                rows = _with_languages(rows, languages, source_name(options), quarantine)
        return without_repeats(rows, required) if options.get("distinct") else rows

    sample = options.get("sample")
    rows = read(quarantine) if sample is None else _random_rows(read, sample, seed, quarantine)
    return islice(rows, options.get("limit"))


def open_texts(
    source: Any, columns: Sequence[str], *, languages: Sequence[str], more: Sequence[str] = (), **options: Any
) -> Iterator[dict[str, Any]]:
    """`open_source` for texts that are not translations, each row with its language in `lang`.

    The columns `more` are read where a file has them.
    """
    default = default_language(source, languages)
    for row in open_source(source, languages=[default], required=columns, optional=(*more, "lang"), **options):
        row["lang"] = row.get("lang") or default
        yield row


def default_language(source: Any, languages: Sequence[str]) -> str:
    """The language of rows that name none: the first of the source, else of the recipe."""
    return str((as_list(as_source(source).get("languages")) or languages)[0])


def without_repeats(rows: Iterable[dict[str, Any]], columns: Sequence[str]) -> Iterator[dict[str, Any]]:
    """The rows none of whose texts was in an earlier row of the same languages."""
    seen: set[tuple[Any, ...]] = set()
    for row in rows:
        languages = row.get("source_lang"), row.get("target_lang")
        keys = {(column, *languages, hash64(str(row[column]).casefold())) for column in columns}
        if seen.isdisjoint(keys):
            seen |= keys
            yield row


def _random_rows(
    read: Callable[[Quarantine | None], Iterator[dict[str, Any]]], size: int, seed: int, quarantine: Quarantine | None
) -> Iterator[dict[str, Any]]:
    """A random subset of the rows, in order and in bounded memory: selection sampling (Knuth, volume 2, algorithm S)."""
    rows = read(quarantine)
    first = list(islice(rows, FEW_ROWS))
    left = len(first) + sum(1 for _ in rows)
    wanted, random = min(size, left), Random(seed)
    # Few rows are in memory. More are read again; the first pass counted their bad lines.
    for row in first if left == len(first) else read(Quarantine()):
        if not wanted:
            return
        if random.random() * left < wanted:
            wanted -= 1
            yield row
        left -= 1


def _with_languages(
    rows: Iterator[dict[str, Any]], languages: Sequence[str], name: str, quarantine: Quarantine | None
) -> Iterator[dict[str, Any]]:
    """Adds `source_lang` and `target_lang` where a file has none; a row with an empty one is a bad line."""
    for row in rows:
        row = {"source_lang": languages[0], "target_lang": languages[1], **row}
        empty = next((column for column in ("source_lang", "target_lang") if not row[column]), None)
        if empty is None:
            yield row
        elif quarantine is not None:
            quarantine.reject(name, 0, f"empty {empty}", row["source"])


def _chosen_rows(
    options: Mapping[str, Any], columns: Mapping[str, str], languages: Sequence[str], *, split: str, **more: Any
) -> Iterator[dict[str, Any]]:
    """The rows of a file that `where` and `hash_split` keep; by default no column is required."""
    chosen = RowFilter(options)
    more = {"required": (), "languages": languages[:2], "default_split": split, **more}
    rows = read_file(options, columns, selecting=chosen.columns, **more)
    yield from (row for row in rows if chosen.takes(row))


def read_file(options: Mapping[str, Any], columns: Mapping[str, str], **more: Any) -> Iterator[dict[str, Any]]:
    """`read_rows` of the file of a source, whatever it selects."""
    given: dict[str, Any] = {name: options.get(name) for name in ("format", "split", "config")}
    return read_rows(expand(options["path"]), columns=columns, **given, **more)


def _parallel_pairs(rows: Iterator[dict[str, Any]], languages: Sequence[str]) -> Iterator[dict[str, Any]]:
    for row in rows:
        filled = [(language, row[language]) for language in languages if (row[language] or "").strip()]
        for (source_lang, source), (target_lang, target) in combinations(filled, 2):
            yield {"source": source, "target": target, "source_lang": source_lang, "target_lang": target_lang}
