"""Named corpora (`catalog.yaml`): `bible` from an installed package, the others streamed from the Hub."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from itertools import chain
from typing import Any

from hf_xlsr.data.columns import column_value
from hf_xlsr.data.corpora.bible import LANGUAGES as BIBLE_LANGUAGES
from hf_xlsr.data.corpora.bible import bible_pairs, bible_text
from hf_xlsr.utils.errors import XlsrError, did_you_mean
from hf_xlsr.utils.yaml import parse_yaml

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Corpus:
    """One named corpus; `catalog.yaml` explains the fields."""

    name: str
    kind: str
    licence: str
    source: str
    size: str
    languages: tuple[str, ...] = ()
    hub_id: str | None = None
    config: str | None = None
    order: str = "alphabetical"
    columns: Mapping[str, str] = field(default_factory=dict)
    splits: Mapping[str, str] = field(default_factory=dict)
    codes: Mapping[str, str] = field(default_factory=dict)
    note: str = ""


_CATALOG: dict[str, Any] = parse_yaml((resources.files(__package__) / "catalog.yaml").read_bytes(), "catalog.yaml")
_CATALOG["corpora"]["bible"]["languages"] = " ".join(BIBLE_LANGUAGES)
CORPORA: dict[str, Corpus] = {}
for _name, _fields in _CATALOG["corpora"].items():
    _fields["languages"] = tuple(_fields.get("languages", "").split())
    CORPORA[_name] = Corpus(name=_name, **_fields)


def load_corpus(
    name: str,
    *,
    languages: Sequence[str],
    split: str = "train",
    source_version: str | None = None,
    target_version: str | None = None,
) -> Iterator[dict[str, Any]]:
    """Streams the rows of a named corpus, with our columns.

    Args:
        languages: ISO 639-1 codes. Parallel corpora: source and target, in either order. Others: one or more, read one
            after the other. `bible` with one language gives running text.
        split: `train`, `dev` or `test`, or the dataset's own name of a split.
        source_version: Translation of `bible` in the first, or only, language; by default the language's.
        target_version: Translation of `bible` in the second language.

    Returns:
        Rows of `source`, `target`, `source_lang`, `target_lang`; or of `lang` and `text`; `premise`, `hypothesis` and
        `label`; or `first` and `second`. Rows with an empty side or without a label are skipped, and their number logged.

    Examples:
        >>> load_corpus("opus100", languages=["en", "fr"])
        Traceback (most recent call last):
        ...
        hf_xlsr.utils.errors.XlsrError: the corpus 'opus100' is unknown; did you mean 'opus-100'?
    """
    if name not in CORPORA:
        raise XlsrError(f"the corpus '{name}' is unknown; {did_you_mean(name, CORPORA)}")
    corpus = CORPORA[name]
    fault = _unreadable(corpus, languages)
    if fault is not None:
        raise XlsrError(f"the corpus '{name}' {fault}.")

    if name == "bible":
        if len(languages) == 2:
            source, target = languages
            return bible_pairs(source, target, split, source_version, target_version)
        return bible_text(languages[0], split, source_version)
    if source_version or target_version:
        raise XlsrError(f"the corpus '{name}' has no versions.")

    hub_split = corpus.splits.get(split, split)
    if corpus.kind == "parallel":
        return _pairs(corpus, languages, hub_split)
    rows = []
    for language in languages:
        dataset = _open(corpus, {"lang": corpus.codes.get(language, language)}, hub_split)
        rows.append(_rows(corpus, dataset, corpus.columns, {"lang": language}))
    return chain.from_iterable(rows)


def _unreadable(corpus: Corpus, languages: Sequence[str]) -> str | None:
    """Why a corpus cannot be read in some languages, or None."""
    for language in languages:
        if corpus.languages and language not in corpus.languages:
            return f"has no language '{language}'; it has {', '.join(corpus.languages)}"
    if corpus.name == "bible":
        return None
    if corpus.kind == "parallel" and len(set(languages)) != 2:
        return f"needs two languages, got {', '.join(languages)}"
    return None if corpus.hub_id else f"cannot be read by its name; {corpus.note}"


def _pairs(corpus: Corpus, languages: Sequence[str], split: str) -> Iterator[dict[str, Any]]:
    source_lang, target_lang = languages
    stored = sorted(languages)
    if corpus.order != "alphabetical":
        stored.sort(key=lambda language: (language == "en") != (corpus.order == "en-first"))
    names = dict(zip(("source", "target"), stored, strict=True))
    dataset = _open(corpus, names, split)

    columns = {name: path.format(**names) for name, path in corpus.columns.items()}
    if stored[0] != source_lang:
        columns = {"source": columns["target"], "target": columns["source"]}
    return _rows(corpus, dataset, columns, {"source_lang": source_lang, "target_lang": target_lang})


def _open(corpus: Corpus, names: Mapping[str, str], split: str) -> Iterable[Any]:
    import datasets  # takes seconds to import, and most users of corpora only read `bible` and files

    config = corpus.config.format(**names) if corpus.config else None
    dataset: Iterable[Any] = datasets.load_dataset(corpus.hub_id, config, split=split, streaming=True)
    return dataset


def _rows(
    corpus: Corpus,
    dataset: Iterable[Any],
    columns: Mapping[str, str],
    fixed: Mapping[str, str],
) -> Iterator[dict[str, Any]]:
    skipped = 0
    for record in dataset:
        row = {name: column_value(record, path) for name, path in columns.items()}
        has_empty = any(value is None or not str(value).strip() for value in row.values())
        # -1 marks rows whose annotators disagreed, or whose label is not public.
        if has_empty or row.get("label") == -1:
            skipped += 1
        else:
            yield {**row, **fixed}

    if skipped:
        logger.info("corpus %s: %d rows skipped, a side or the label is empty.", corpus.name, skipped)


def corpora_table() -> list[dict[str, str]]:
    """The corpora as rows of text, for printing."""
    columns = ("name", "kind", "languages", "size", "licence", "source", "hub_id", "splits", "note")
    rows = []
    for corpus in CORPORA.values():
        rows.append({name: _cell(getattr(corpus, name)) for name in columns})
    return rows


def _cell(value: Any) -> str:
    if isinstance(value, tuple):  # languages
        return f"{len(value)} languages" if len(value) > 15 else " ".join(value) or "many"
    if isinstance(value, Mapping):
        value = " ".join(value)
    return value or "-"
