"""One preparation for every kind of row: read, clean, store, tokenise and save, once per folder."""

from __future__ import annotations

import hashlib
import json
import logging
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
from datasets import Dataset, Features, Value, load_from_disk
from datasets import Sequence as ListOf
from datasets.exceptions import DatasetGenerationError

from hf_xlsr.data.cleaning import Cleaner
from hf_xlsr.data.formats.quarantine import Quarantine
from hf_xlsr.data.formats.reading import expand_braces
from hf_xlsr.data.seen import hash64
from hf_xlsr.data.sources import as_list, as_source, expand
from hf_xlsr.utils.errors import XlsrError, did_you_mean
from hf_xlsr.utils.files import atomic_write
from hf_xlsr.utils.hashing import file_sha256

logger = logging.getLogger(__name__)

FORMAT = 2
"""Version of prepared folders: since 2 every row names its languages."""

# Shares of unknown tokens in a language. Good vocabularies stay below 1 %, also in Chinese; where a vocabulary lacks a
# script, nearly all tokens but spaces are unknown.
_WARN_SHARE, _MAX_SHARE = 0.05, 0.3
_MIN_TOKENS = 1000  # fewer tokens of a language are no evidence
_ENCODING: dict[str, Any] = {"add_special_tokens": True, "return_attention_mask": False, "verbose": False}

Row = dict[str, Any]


@dataclass(frozen=True)
class RowKind:
    """The columns of one kind of row.

    Args:
        texts: Columns that are tokenised, each to `TEXT_ids`.
        languages: The language column of each text, or one for all texts.
        kept: Further columns and their types, stored as they are.
        identities: Also store `TEXT_text`, the signed `hash64` of each text: equal for equal texts.
        empty: Error message when no row is left.
    """

    texts: tuple[str, ...]
    languages: tuple[str, ...] = ("lang",)
    kept: Mapping[str, str] = field(default_factory=dict)
    identities: bool = False
    empty: str = "no row is left after cleaning; check the sources and the counts of each cleaning step."

    def text_features(self) -> Features:
        """Columns of a row before tokenisation."""
        columns = {**dict.fromkeys((*self.texts, *self.languages), "string"), **self.kept}
        return Features({name: Value(dtype) for name, dtype in columns.items()})

    def token_features(self) -> Features:
        """Columns of a tokenised row; `length` is that of its longest text."""
        columns = {**self.kept, **dict.fromkeys(self.languages, "string"), "length": "int32"}
        columns |= {f"{text}_text": "int64" for text in self.texts if self.identities}
        ids = {f"{text}_ids": ListOf(Value("int32")) for text in self.texts}
        return Features({**ids, **{name: Value(dtype) for name, dtype in columns.items()}})


def prepare_rows(
    kind: RowKind,
    read: Callable[[Quarantine], Iterable[Row]],
    *,
    sources: Sequence[Any],
    folder: str | Path,
    cleaner: Cleaner,
    tokenize: Callable[[Dataset], tuple[Dataset, dict[str, Any]]],
    vocabulary: str | None,
    finish: Callable[[Iterable[Row]], Iterable[Row]] = iter,
    limit: int | None = None,
) -> tuple[Dataset, dict[str, Any]]:
    """Reads, cleans, tokenises and saves rows, or loads what a finished call left in the folder.

    Every row that is read is kept, dropped by a cleaning step (`cleaning`), or quarantined (`rejected`); rows after
    `limit` are not read.

    Args:
        kind: Columns of the rows.
        read: Yields rows; bad lines go to the quarantine.
        sources: Sources of the rows; their local files are checked for changes.
        folder: Gets `data/`, `rejected.jsonl` and, last of all, `prepared.json`.
        cleaner: Cleans the rows.
        tokenize: Returns the tokenised rows and their counts.
        vocabulary: See `prepare_once`.
        finish: Changes the clean rows before they are stored.
        limit: Keep at most this many clean rows.

    Returns:
        The tokenised rows and the counts, with `cleaning` and `rejected`.

    Raises:
        XlsrError: no row is left; a file or the vocabulary has changed; what reading, cleaning or tokenising raise.
    """
    folder = Path(folder)

    def make() -> dict[str, Any]:
        with Quarantine(folder / "rejected.jsonl") as quarantine:
            clean = islice(finish(cleaner(read(quarantine))), limit)
            rows = store_rows(clean, kind.text_features(), folder / "rows", empty=kind.empty)
            if quarantine.total:
                logger.warning("%s", quarantine.report())
            counts = {"rejected": dict(quarantine.counts), "cleaning": dict(cleaner.counts)}
        tokenised, more = tokenize(rows)
        tokenised.save_to_disk(str(folder / "data"))
        return {**more, **counts}

    report = prepare_once(folder, sources, make, vocabulary)
    return load_from_disk(str(folder / "data")), report


def store_rows(rows: Iterable[Row], features: Features, cache_dir: str | Path, *, empty: str) -> Dataset:
    """Writes the columns in `features` of rows to a memory-mapped Arrow file, whose hash becomes the fingerprint.

    Raises:
        XlsrError: `rows` is empty (with the message `empty`), or raises it.
    """
    stream = ({name: row[name] for name in features} for row in rows)
    first = next(stream, None)
    if first is None:
        raise XlsrError(empty)
    try:  # this fingerprint only names the file
        dataset = Dataset.from_generator(
            lambda: chain([first], stream), features=features, cache_dir=str(cache_dir), fingerprint="rows"
        )
    except DatasetGenerationError as error:
        if isinstance(error.__cause__, XlsrError):  # from a row further down
            raise error.__cause__ from None
        raise
    dataset._fingerprint = file_sha256(Path(dataset.cache_files[0]["filename"]))[:16]
    return dataset


def tokenize_rows(
    kind: RowKind, rows: Dataset, tokenizers: Any, *, max_length: int = 200
) -> tuple[Dataset, dict[str, Any]]:
    """Tokenises the texts of stored rows, each with the tokenizer of its language.

    Args:
        kind: Columns of the rows.
        rows: Rows with `kind.text_features()`.
        tokenizers: One tokenizer, or a mapping from language to tokenizer.
        max_length: Longer texts are truncated to this many tokens, special tokens included.

    Returns:
        Rows with `kind.token_features()`, and the counts of `TokenCounts`.

    Raises:
        XlsrError: a language has no tokenizer, or most of its tokens are unknown.
    """
    languages = kind.languages * (len(kind.texts) // len(kind.languages))
    for name in kind.languages:
        check_tokenizers(tokenizers, rows.unique(name))
    counts = TokenCounts(tokenizers, max_length)

    def encode(batch: dict[str, list[Any]]) -> dict[str, Any]:
        ids = {
            f"{text}_ids": counts.tokenize(batch[text], batch[language])
            for text, language in zip(kind.texts, languages, strict=True)
        }
        lengths = [max(map(len, row)) for row in zip(*ids.values(), strict=True)]
        texts = {f"{text}_text": text_identities(batch[text]) for text in kind.texts if kind.identities}
        kept = {name: batch[name] for name in (*kind.kept, *kind.languages)}
        return {**ids, **texts, **kept, "length": lengths}

    settings = [vocabulary_hash(tokenizers), max_length, kind.identities]
    tokenised = map_rows(rows, encode, kind.token_features(), settings)
    return tokenised, counts.report()


def map_rows(rows: Dataset, encode: Any, features: Features, settings: Sequence[Any]) -> Dataset:
    """Maps stored rows to new columns on disk, batch by batch.

    The new fingerprint is a hash of the old one and of `settings`: what else the result depends on.
    """
    address = json.dumps([FORMAT, rows._fingerprint, *settings, str(features)])
    return rows.map(
        encode,
        batched=True,
        remove_columns=rows.column_names,
        features=features,
        new_fingerprint=hashlib.sha256(address.encode()).hexdigest()[:16],
        load_from_cache_file=False,  # `encode` also counts
        desc="tokenising",
    )


def text_identities(texts: Sequence[str]) -> np.ndarray:
    """`hash64` of each text as a signed number, `(len(texts),)`, int64, to find equal texts.

    Example:
        >>> first, second, third = text_identities(["yes", "no", "yes"])
        >>> bool(first == third), bool(first == second)
        (True, False)
    """
    return np.array([hash64(text) for text in texts], dtype=np.uint64).view(np.int64)


def check_tokenizers(tokenizers: Any, languages: Iterable[str]) -> None:
    """Raises an error for a language without a tokenizer, where each language has its own."""
    for language in languages if isinstance(tokenizers, Mapping) else ():
        if language not in tokenizers:
            raise XlsrError(
                f"language '{language}' of the training data has no tokenizer; {did_you_mean(language, tokenizers)}"
            )


def _tokenizer_of(tokenizers: Any, language: str) -> Any:
    return tokenizers[language] if isinstance(tokenizers, Mapping) else tokenizers


class TokenCounts:
    """Tokenises texts, batch by batch, and counts tokens.

    Args:
        tokenizers: One tokenizer, or a mapping from language to tokenizer.
        max_length: Longer texts are truncated to this many tokens, special tokens included.

    Example:
        >>> from hf_xlsr.data.tokenization import train_tokenizer
        >>> tokenizer = train_tokenizer(["the cat sat", "le chat dort"] * 50, vocab_size=20, algorithm="bpe")
        >>> counts = TokenCounts(tokenizer, max_length=12)
        >>> [len(ids) for ids in counts.tokenize(["the cat", "the dort x cat sat"], ["en", "en"])]
        [5, 12]
        >>> counts.report()
        {'num_truncated': 1, 'tokens': 17, 'unknown_tokens': 1}
    """

    def __init__(self, tokenizers: Any, max_length: int) -> None:
        self.tokenizers, self.max_length = tokenizers, max_length
        self._truncated = 0
        self._tokens: Counter[str] = Counter()
        self._framing: Counter[str] = Counter()  # special tokens around the texts
        self._unknown: Counter[str] = Counter()

    def tokenize(self, texts: Sequence[str], languages: Sequence[str]) -> list[list[int]]:
        """Token ids of texts, each with the tokenizer of its language; a truncated text keeps its special tokens.

        Raises:
            XlsrError: most tokens of a language are unknown.
        """
        chosen = [_tokenizer_of(self.tokenizers, language) for language in languages]
        result: list[list[int]] = [[] for _ in texts]
        for one in {id(part): part for part in chosen}.values():
            places = [place for place, part in enumerate(chosen) if part is one]
            batch = [texts[place] for place in places]
            ids = one(batch, truncation=True, max_length=self.max_length, **_ENCODING)["input_ids"]
            self._truncated += num_longer(one, [batch], ids, self.max_length)
            frame, unknown = one([""], **_ENCODING)["input_ids"][0], one.unk_token_id
            for place, row in zip(places, map(list, ids), strict=True):
                result[place], language = row, languages[place]
                self._tokens[language] += len(row)
                self._framing[language] += len(frame)
                if unknown is not None:  # some tokenizers frame sentences with the unknown token
                    self._unknown[language] += max(0, row.count(unknown) - list(frame).count(unknown))
        for language in set(languages):
            if self._tokens[language] >= _MIN_TOKENS and self._share(language) > _MAX_SHARE:
                raise XlsrError(
                    f"{self._share(language):.0%} of the tokens in '{language}' are unknown to the tokenizer; use a "
                    "tokenizer of that language, or train one on text that includes it."
                )
        return result

    def report(self) -> dict[str, int]:
        """`num_truncated`, `tokens` and `unknown_tokens` so far; warns of languages with many unknown tokens."""
        for language in self._unknown:
            if (share := self._share(language)) > _WARN_SHARE:
                logger.warning("%.0f %% of the tokens in '%s' are unknown to the tokenizer.", 100 * share, language)
        return {
            "num_truncated": self._truncated,
            "tokens": self._tokens.total(),
            "unknown_tokens": self._unknown.total(),
        }

    def _share(self, language: str) -> float:
        return self._unknown[language] / max(1, self._tokens[language] - self._framing[language])


def num_longer(tokenizer: Any, sides: Sequence[Sequence[str]], ids: Sequence[Sequence[int]], max_length: int) -> int:
    """How many rows were longer than `max_length` before truncation, which tokenizers do not report.

    `sides` are the texts, or the first and the second texts, of the truncated rows `ids`.
    """
    # Only rows that fill the limit can be longer.
    full = [place for place, row in enumerate(ids) if len(row) == max_length]
    if not full:
        return 0
    whole = tokenizer(*([side[place] for place in full] for side in sides), truncation=False, **_ENCODING)["input_ids"]
    return sum(len(row) > max_length for row in whole)


def vocabulary_hash(tokenizers: Any) -> str | None:
    """A short hash of the token ids of one tokenizer, or of one for each language; None for None."""
    if tokenizers is None:
        return None
    named = tokenizers if isinstance(tokenizers, Mapping) else {"": tokenizers}
    tokens = [(name, sorted(named[name].get_vocab().items())) for name in sorted(named)]
    return hashlib.sha256(json.dumps(tokens).encode()).hexdigest()[:16]


def prepare_once(
    folder: Path, sources: Sequence[Any], make: Callable[[], dict[str, Any]], vocabulary: str | None = None
) -> dict[str, Any]:
    """Makes data in a folder, unless a finished call did so and its files have not changed since.

    Args:
        folder: Gets the data and, when they are complete, `prepared.json`.
        sources: Sources of the data.
        make: Makes the data in the folder and returns a report for JSON.
        vocabulary: `vocabulary_hash` of the tokenizers; None where the tokenizer is trained on the data.

    Returns:
        The report of this call or of the finished one.

    Raises:
        XlsrError: a file, the vocabulary or the format of the folder has changed, or what `make` raises.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as scratch:
        ...     first = prepare_once(Path(scratch), [], lambda: {"pairs": 7})
        ...     prepare_once(Path(scratch), [], lambda: {"pairs": 8})["pairs"]
        7
    """
    marker, files = folder / "prepared.json", _files_of(sources)
    if not marker.is_file():
        for part in ("data", "tokenizer", "rows"):
            shutil.rmtree(folder / part, ignore_errors=True)
        folder.mkdir(parents=True, exist_ok=True)
        content = {name: [_state_of(file) for file in found] for name, found in files.items()}
        report = make()
        shutil.rmtree(folder / "rows", ignore_errors=True)
        facts = {"format": FORMAT, "content": content, "vocabulary": vocabulary}
        with atomic_write(marker) as file:
            file.write_text(json.dumps({**report, **facts}, indent=2), "utf-8")
    stored: dict[str, Any] = json.loads(marker.read_text("utf-8"))
    if stored.get("format") != FORMAT:
        stale = ["another version of hf-xlsr"]
    else:
        stale = ["another vocabulary"] if stored["vocabulary"] != vocabulary else []
        stale += [
            f"another version of {name}"
            for name, states in stored["content"].items()
            if not _same_content(states, files.get(name, []))
        ]
    if stale:
        raise XlsrError(
            f"the data in {folder} was prepared with {stale[0]}; start again with --overwrite true or in another "
            "--output_dir."
        )
    return stored


def _files_of(sources: Sequence[Any]) -> dict[str, list[Path]]:
    """The local files of sources by their last names, so that a data folder may move as a whole."""
    files: dict[str, list[Path]] = {}
    for source in sources:
        for path in as_list(expand(as_source(source).get("path", ""))):
            for file in expand_braces(path)[0]:
                if file.is_file():
                    files.setdefault(file.name, []).append(file)
    return files


def _state_of(file: Path) -> dict[str, Any]:
    status = file.stat()
    return {"bytes": status.st_size, "changed_ns": status.st_mtime_ns, "sha256": file_sha256(file)}


def _same_content(then: Sequence[Mapping[str, Any]], now: Sequence[Path]) -> bool:
    """Whether files are unchanged. A file is only hashed where its time differs, as after a copy."""
    if len(then) != len(now):
        return False
    for state, file in zip(then, now, strict=True):
        status = file.stat()
        if status.st_size != state["bytes"]:
            return False
        if status.st_mtime_ns != state["changed_ns"] and file_sha256(file) != state["sha256"]:
            return False
    return True
