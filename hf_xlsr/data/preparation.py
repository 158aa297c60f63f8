"""One preparation for every kind of row: read, clean, store and tokenise, once for all runs that need the same rows."""

from __future__ import annotations

import logging
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from datasets import Dataset, Features, Value
from datasets import Sequence as ListOf
from huggingface_hub import HfApi

from hf_xlsr.data.cleaning import Cleaner
from hf_xlsr.data.corpora.catalog import CORPORA
from hf_xlsr.data.formats.quarantine import Quarantine
from hf_xlsr.data.formats.reading import expand_braces
from hf_xlsr.data.seen import hash64
from hf_xlsr.data.shards import Encoder, join_shards, read_json, store_rows, tokenize_shard
from hf_xlsr.data.sources import as_list, as_source, expand
from hf_xlsr.data.tokenization import tokenizer_hash
from hf_xlsr.utils.cache import address_of, cache_folder, cached, content_hash
from hf_xlsr.utils.errors import XlsrError, did_you_mean
from hf_xlsr.utils.files import write_json, write_text
from hf_xlsr.utils.processes import run_shards

logger = logging.getLogger(__name__)

FORMAT = 3
"""Version of prepared data and of what readers and cleaning make of a file: part of every address."""

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


@dataclass
class RowEncoder:
    """Tokenises each text with the tokenizer of its language.

    Args:
        kind: Columns of the rows.
        tokenizers: One tokenizer, or a mapping from language to tokenizer.
        max_length: Longer texts are truncated to this many tokens, special tokens included.
        prompt: Put before every text.
    """

    kind: RowKind
    tokenizers: Any
    max_length: int
    prompt: str = ""

    def __post_init__(self) -> None:
        self.counts = TokenCounts(self.tokenizers, self.max_length)

    def features(self) -> Features:
        return self.kind.token_features()

    def __call__(self, batch: dict[str, list[Any]]) -> dict[str, Any]:
        kind = self.kind
        languages = kind.languages * (len(kind.texts) // len(kind.languages))
        ids = {
            f"{text}_ids": self.counts.tokenize([self.prompt + one for one in batch[text]], batch[language])
            for text, language in zip(kind.texts, languages, strict=True)
        }
        lengths = [max(map(len, row)) for row in zip(*ids.values(), strict=True)]
        texts = {f"{text}_text": text_identities(batch[text]) for text in kind.texts if kind.identities}
        kept = {name: batch[name] for name in (*kind.kept, *kind.languages)}
        return {**ids, **texts, **kept, "length": lengths}


class PreparedFolder(NamedTuple):
    """Prepared rows in the cache.

    Attributes:
        path: Their folder, with `rows.arrow`, `report.json`, `rejected.jsonl` for bad lines, and perhaps `tokenizer/`.
        rows: The tokenised rows, memory-mapped.
        report: Counts of the preparation.
    """

    path: Path
    rows: Dataset
    report: dict[str, Any]


def prepare_rows(
    kind: RowKind,
    read: Callable[[Quarantine], Iterable[Row]],
    *,
    sources: Sequence[Any],
    languages: Sequence[str],
    folder: str | Path,
    cleaner: Cleaner,
    tokenizers: Any,
    max_length: int,
    prompt: str = "",
    describe: Callable[[Dataset], dict[str, Any]],
    encoder: Callable[[Any], Encoder] | None = None,
    key: Any = None,
    train: Callable[[Dataset], Any] | None = None,
    keep_tokenizers: bool = False,
    finish: Callable[[Iterable[Row]], Iterable[Row]] = iter,
    limit: int | None = None,
    seed: int = 1,
    num_proc: int = 1,
) -> PreparedFolder:
    """Reads, cleans and tokenises rows into the cache, or finds there what an earlier call made of the same.

    Every row that is read is kept, dropped by a cleaning step (`cleaning`), or quarantined (`rejected`); rows after
    `limit` are not read. This process reads and cleans, in order; at the same time others tokenise, in shards of 20,000
    rows. A killed call resumes with the shards that are missing.

    Args:
        kind: Columns of the rows.
        read: Yields rows; bad lines go to the quarantine.
        sources: Sources of the rows.
        languages: Languages of the recipe.
        folder: Folder of the run; gets copies of the report (`prepared.json`, with the address as `cache`), the
            bad lines and the tokenizers.
        cleaner: Cleans the rows.
        tokenizers: One tokenizer, or a mapping from language to tokenizer; None with `train`.
        max_length: Longer texts are truncated to this many tokens.
        prompt: Put before every text.
        describe: The caller's part of the report, from the clean rows; may raise an error.
        encoder: Makes an encoder from tokenizers; `RowEncoder` by default.
        key: What else the rows depend on.
        train: Trains a tokenizer on the clean rows.
        keep_tokenizers: Store the tokenizers with the rows; of one, `vocab_size` is in the report.
        finish: Changes the clean rows before they are stored.
        limit: Keep at most this many clean rows.
        seed: Of `read`; part of the address where a source draws rows.
        num_proc: Number of processes that tokenise.

    Raises:
        XlsrError: no row is left; `folder` was used for other data; what reading, cleaning and tokenising raise.
    """
    drawn = any(as_source(source).get("sample") or "{lang}" in str(source) for source in sources)
    cleaning = [repr(step) for step in cleaner.steps]
    address = address_of(
        [
            FORMAT,
            (kind.texts, kind.languages, dict(kind.kept), kind.identities),
            languages,
            cleaning,
            limit,
            max_length,
        ]
        + [
            key,
            prompt,
            tokenizer_hash(tokenizers),
            seed if drawn else None,
            [source_content(source) for source in sources],
        ]
    )

    pointer = Path(folder) / "prepared.json"
    if pointer.is_file() and read_json(pointer)["cache"] != address:
        raise XlsrError(
            f"the data of {folder} were prepared from other files, tokenizers, options or dev and test sets; start again "
            "with --overwrite true or in another --output_dir."
        )

    def clean(place: Path) -> Iterator[int]:
        """Stores the clean rows and yields the number of each shard; the counts are written at the end."""
        number = -1
        with Quarantine(place / "rejected.jsonl") as quarantine:
            rows = islice(finish(cleaner(read(quarantine))), limit)
            for number in store_rows(rows, kind.text_features(), place / "clean.arrow"):
                yield number
            quarantine.path = place.with_suffix("") / "rejected.jsonl"  # where the folder will be
            if faults := quarantine.report():
                logger.warning("%s", faults)
            counts = {"rejected": quarantine.counts, "cleaning": cleaner.counts}
            if quarantine.repairs:
                counts["repaired"] = quarantine.repairs
        if number < 0:
            raise XlsrError(kind.empty)
        report = {**describe(Dataset.from_file(str(place / "clean.arrow"))), **counts}
        write_json(place / "clean.json", {"shards": number + 1, "report": report})

    def make(place: Path) -> None:
        cleaned, chosen = place / "clean.json", tokenizers
        shards: Iterable[int] = range(read_json(cleaned)["shards"]) if cleaned.is_file() else clean(place)
        if train is not None or num_proc == 1:
            shards = list(shards)
        if train is not None:
            chosen = train(Dataset.from_file(str(place / "clean.arrow")))
        if keep_tokenizers:  # before their first use: tokenizers keep the limits of their last call
            for language, one in chosen.items() if isinstance(chosen, Mapping) else [("", chosen)]:
                one.save_pretrained(str(place / "tokenizer" / language))
        encode = encoder(chosen) if encoder else RowEncoder(kind, chosen, max_length, prompt)
        work = partial(tokenize_shard, place, encode, tokenizer_hash(chosen))
        run_shards(work, shards, num_proc=num_proc, description="tokenising")
        stored = read_json(cleaned)
        join_shards(place, encode, stored["shards"])
        size = {"vocab_size": len(chosen)} if keep_tokenizers and not isinstance(chosen, Mapping) else {}
        write_json(place / "report.json", {**encode.counts.report(), **size, **stored["report"]})
        for part in (*place.glob("clean.*"), *place.glob("shards/*")):
            part.unlink()
        (place / "shards").rmdir()

    path = cached(address, make)
    rows, report = Dataset.from_file(str(path / "rows.arrow")), read_json(path / "report.json")
    rows._fingerprint = address
    _record(path, report, Path(folder))
    return PreparedFolder(path, rows, report)


def _record(path: Path, report: Mapping[str, Any], folder: Path) -> None:
    """Copies what a run keeps of its prepared data."""
    pointer = folder / "prepared.json"
    if pointer.is_file():
        return  # of several processes, one copies
    folder.mkdir(parents=True, exist_ok=True)
    if (path / "tokenizer").is_dir():
        shutil.copytree(path / "tokenizer", folder / "tokenizer", dirs_exist_ok=True)
    if (path / "rejected.jsonl").is_file():
        shutil.copyfile(path / "rejected.jsonl", folder / "rejected.jsonl")
    write_json(pointer, {**report, "cache": path.name})


def source_content(source: Any) -> list[Any]:
    """What a source yields depends on: its options, and hashes of its files or the revision of its data set."""
    options = as_source(source)
    content: list[Any] = [{name: value for name, value in options.items() if name != "path"}]
    if options.get("corpus") in CORPORA:
        content.append(hub_revision(CORPORA[options["corpus"]].hub_id))
    for path in as_list(expand(options["path"])) if options.get("path") else ():
        for file in expand_braces(path)[0]:
            files = sorted(part for part in file.rglob("*") if part.is_file()) if file.is_dir() else [file]
            content += [
                (part.name, content_hash(part) if part.is_file() else hub_revision(str(path))) for part in files
            ]
    return content


def hub_revision(dataset: str | None) -> str | None:
    """The newest commit of a dataset on the Hub; without a connection, the last one that this cache met."""
    if not dataset:
        return None
    known = cache_folder() / "files" / address_of(dataset)
    try:
        revision = HfApi().dataset_info(dataset, timeout=10).sha
        known.parent.mkdir(parents=True, exist_ok=True)
        write_text(known, str(revision))
    except (OSError, ValueError):  # the reader reports it
        return known.read_text("utf-8") if known.is_file() else None
    return revision


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
    encode = RowEncoder(kind, tokenizers, max_length)
    tokenised = rows.map(
        encode,
        batched=True,
        remove_columns=rows.column_names,
        features=encode.features(),
        new_fingerprint=address_of([FORMAT, rows._fingerprint, tokenizer_hash(tokenizers), max_length, str(kind)]),
        load_from_cache_file=False,  # `encode` also counts
        desc="tokenising",
    )
    return tokenised, encode.counts.report()


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
        # By name and language; `framing` are the special tokens around the texts.
        self.counts: dict[str, Counter[str]] = {
            name: Counter() for name in ("truncated", "tokens", "framing", "unknown")
        }

    def clear(self) -> None:
        """Counts from 0 again."""
        for counter in self.counts.values():
            counter.clear()

    def add(self, counts: Mapping[str, Mapping[str, int]]) -> None:
        """Adds the `counts` of another object."""
        for name, counter in self.counts.items():
            counter.update(counts[name])

    def tokenize(self, texts: Sequence[str], languages: Sequence[str]) -> list[list[int]]:
        """Token ids of texts, each with the tokenizer of its language; a truncated text keeps its special tokens.

        Raises:
            XlsrError: a language has no tokenizer, or most of its tokens are unknown.
        """
        check_tokenizers(self.tokenizers, set(languages))
        chosen = [_tokenizer_of(self.tokenizers, language) for language in languages]
        result: list[list[int]] = [[] for _ in texts]
        for one in {id(part): part for part in chosen}.values():
            places = [place for place, part in enumerate(chosen) if part is one]
            batch = [texts[place] for place in places]
            ids = one(batch, truncation=True, max_length=self.max_length, **_ENCODING)["input_ids"]
            self.counts["truncated"][""] += num_longer(one, [batch], ids, self.max_length)
            frame, unknown = one([""], **_ENCODING)["input_ids"][0], one.unk_token_id
            for place, row in zip(places, map(list, ids), strict=True):
                result[place], language = row, languages[place]
                self.counts["tokens"][language] += len(row)
                self.counts["framing"][language] += len(frame)
                if unknown is not None:  # some tokenizers frame sentences with the unknown token
                    self.counts["unknown"][language] += max(0, row.count(unknown) - list(frame).count(unknown))
        for language in set(languages):
            if self.counts["tokens"][language] >= _MIN_TOKENS and self._share(language) > _MAX_SHARE:
                raise XlsrError(
                    f"{self._share(language):.0%} of the tokens in '{language}' are unknown to the tokenizer; use a "
                    "tokenizer of that language, or train one on text that includes it."
                )
        return result

    def report(self) -> dict[str, int]:
        """`num_truncated`, `tokens` and `unknown_tokens` so far; warns of languages with many unknown tokens."""
        for language in self.counts["unknown"]:
            if (share := self._share(language)) > _WARN_SHARE:
                logger.warning("%.0f %% of the tokens in '%s' are unknown to the tokenizer.", 100 * share, language)
        return {
            "num_truncated": self.counts["truncated"].total(),
            "tokens": self.counts["tokens"].total(),
            "unknown_tokens": self.counts["unknown"].total(),
        }

    def _share(self, language: str) -> float:
        words = self.counts["tokens"][language] - self.counts["framing"][language]
        return self.counts["unknown"][language] / max(1, words)


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
