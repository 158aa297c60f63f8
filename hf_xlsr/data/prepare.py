"""From a recipe's data section to tokenised pairs on disk, once per run folder."""

from __future__ import annotations

import hashlib
import json
import logging
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path
from typing import Any

from datasets import Dataset, load_from_disk
from transformers import AutoTokenizer

from hf_xlsr.data.cleaning import RemoveEvaluation, Sample, build_cleaner
from hf_xlsr.data.formats.quarantine import Quarantine
from hf_xlsr.data.formats.reading import expand_braces
from hf_xlsr.data.prepared import (
    SIDES,
    PreparedPairs,
    check_tokenizers,
    language_pairs,
    store_pairs,
    tokenize_pairs,
)
from hf_xlsr.data.seen import SeenHashes
from hf_xlsr.data.sources import as_list, as_source, expand, open_source
from hf_xlsr.data.tokenization import smoothed_text, train_tokenizer
from hf_xlsr.utils.errors import XlsrError
from hf_xlsr.utils.hashing import file_sha256

logger = logging.getLogger(__name__)


@dataclass
class PreparedData:
    """What a run trains on.

    Args:
        train: Tokenised pairs, `PreparedPairs`, or what a method made of them.
        tokenizer: The tokenizer of all languages; None where each has its own.
        report: Counts: `cleaning` (rows in and out by step), `rejected` (bad lines by reason), `pairs`, `pieces`,
            `truncated_sides`, `vocab_size` (of one tokenizer); `language_pairs`, source and target of each group of
            `train`.
        tokenizers: Language -> tokenizer, where each has its own; languages with one path share one object.
        nli: `PreparedNli` of a second task, where a method has one.
    """

    train: Any
    tokenizer: Any
    report: dict[str, Any]
    tokenizers: dict[str, Any] = field(default_factory=dict)
    nli: Any = None


def evaluation_rows(
    sources: Sequence[Any], *, languages: Sequence[str], split: str, quarantine: Quarantine | None = None
) -> list[dict[str, Any]]:
    """The rows of small evaluation sets, in memory."""
    return [
        row
        for source in sources
        for row in open_source(source, languages=languages, split=split, quarantine=quarantine)
    ]


def prepare(
    *,
    data: Mapping[str, Any],
    tokenizer: Mapping[str, Any] | None,
    languages: Sequence[str],
    evaluation_texts: Iterable[str] | SeenHashes,
    folder: str | Path,
    seed: int,
    tokenizers: Mapping[str, str] | None = None,
) -> PreparedData:
    """Reads, cleans and tokenises the training pairs into `folder`, or takes what a finished call left there.

    Args:
        data: The recipe's `data` section.
        tokenizer: Its `tokenizer` section; `path` names an existing one. Not used, and None, with `tokenizers`.
        languages: All languages of the recipe.
        evaluation_texts: Sentences that are removed from training, on either side, or their keys from
            `evaluation_keys`.
        folder: The run's folder: `data/`, `tokenizer/`, `rejected.jsonl` and, last of all, `prepared.json`.
        seed: For sampling and the order of drawn text.
        tokenizers: Language -> path or id of an existing tokenizer, one for each language; they are kept in
            `tokenizer/LANGUAGE/`.

    Raises:
        XlsrError: what readers, cleaning and tokenizer training raise; no pair is left; a language has no tokenizer;
            the folder was prepared with others.
    """
    folder = Path(folder)
    paths = {language: str(path) for language, path in (tokenizers or {}).items()}
    if tokenizer is None and not paths:
        raise XlsrError(
            "preparing data takes the recipe's tokenizer section or a tokenizer for each language; give either."
        )
    given = (tokenizer or {}).get("path") if not paths else None
    report = prepare_once(
        folder,
        as_list(data["train"]),
        lambda: _prepare_fresh(data, tokenizer or {}, paths, languages, evaluation_texts, folder, seed),
        vocabulary_hash(load_tokenizer(expand(given), "tokenizer.path")) if given else None,
    )
    if report.get("tokenizers", {}) != paths:
        raise XlsrError(
            f"the data in {folder} was prepared with other tokenizers; start anew with --overwrite true or in another "
            "--output_dir."
        )
    train = PreparedPairs(load_from_disk(str(folder / "data")), report.get("language_pairs"))
    if not paths:
        return PreparedData(train, AutoTokenizer.from_pretrained(str(folder / "tokenizer")), report)
    loaded = {path: folder / "tokenizer" / language for language, path in paths.items()}
    by_path = {path: AutoTokenizer.from_pretrained(str(copy)) for path, copy in loaded.items()}
    return PreparedData(train, None, report, {language: by_path[path] for language, path in paths.items()})


def prepare_once(
    folder: Path, sources: Sequence[Any], make: Callable[[], dict[str, Any]], vocabulary: str | None = None
) -> dict[str, Any]:
    """Has data made in a folder, unless a finished call left it there and its files have not changed since.

    Args:
        folder: Gets the data, and `prepared.json` when all of it is written.
        sources: What the data is made of.
        make: Makes it, in a folder without leftovers, and gives a report that JSON can hold.
        vocabulary: `vocabulary_hash` of what makes pieces of it, empty where a tokenizer is made along: data of another
            one are refused. Not looked at when absent.

    Returns:
        The report, then or now.

    Raises:
        XlsrError: a file or the vocabulary has changed, or what `make` raises.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as scratch:
        ...     first = prepare_once(Path(scratch), [], lambda: {"pairs": 7})
        ...     prepare_once(Path(scratch), [], lambda: {"pairs": 8})["pairs"]
        7
    """
    marker = folder / "prepared.json"
    files = _files_of(sources)
    if marker.is_file():
        stored = json.loads(marker.read_text("utf-8"))
        # Folders of older versions say neither of the two.
        then = stored.get("content", {})
        if vocabulary is not None and stored.get("vocabulary", vocabulary) != vocabulary:
            raise XlsrError(
                f"the data in {folder} was prepared with another vocabulary; start anew with --overwrite true or in "
                "another --output_dir."
            )
        changed = [name for name, states in then.items() if not _same_content(states, files.get(name, []))]
        if changed:
            raise XlsrError(
                f"{changed[0]} has changed since this run prepared its data from it; start anew with --overwrite true "
                "or in another --output_dir."
            )
    else:
        for part in ("data", "tokenizer", "rows"):
            shutil.rmtree(folder / part, ignore_errors=True)
        folder.mkdir(parents=True, exist_ok=True)
        content = {name: [_state_of(file) for file in found] for name, found in files.items()}
        report = make()
        shutil.rmtree(folder / "rows", ignore_errors=True)
        marker.write_text(json.dumps({**report, "content": content, "vocabulary": vocabulary}, indent=2), "utf-8")
    return json.loads(marker.read_text("utf-8"))


def vocabulary_hash(tokenizers: Any) -> str | None:
    """A short hash of which piece has which number, of one tokenizer or of each language's; None without any.

    Args:
        tokenizers: A tokenizer, a mapping from language to tokenizer, or None.
    """
    if tokenizers is None:
        return None
    named = tokenizers if isinstance(tokenizers, Mapping) else {"": tokenizers}
    pieces = [(name, sorted(named[name].get_vocab().items())) for name in sorted(named)]
    return hashlib.sha256(json.dumps(pieces).encode()).hexdigest()[:16]


def _files_of(sources: Sequence[Any]) -> dict[str, list[Path]]:
    """The local files that sources name, by their last names, so that a data folder may move as a whole."""
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
    """Whether files hold what they held. A file is read only where its time differs, as after a copy."""
    if len(then) != len(now):
        return False
    for state, file in zip(then, now, strict=True):
        status = file.stat()
        if status.st_size != state["bytes"]:
            return False
        if status.st_mtime_ns != state["changed_ns"] and file_sha256(file) != state["sha256"]:
            return False
    return True


def _prepare_fresh(
    data: Mapping[str, Any],
    tokenizer_options: Mapping[str, Any],
    tokenizer_paths: Mapping[str, str],
    languages: Sequence[str],
    evaluation_texts: Iterable[str] | SeenHashes,
    folder: Path,
    seed: int,
) -> dict[str, Any]:
    sources = as_list(data["train"])
    if not sources:
        raise XlsrError("the recipe has no data.train; name a corpus or a path there.")
    # Before hours of reading: a missing tokenizer is a mistake that can be told at once.
    given: dict[str, Any] = {}
    for language, path in tokenizer_paths.items():
        if path not in given:
            given[path] = load_tokenizer(path, f"tokenizers.{language}")
    tokenizers = {language: given[path] for language, path in tokenizer_paths.items()}
    if tokenizers:
        check_tokenizers(tokenizers, languages)
    cleaner = build_cleaner(data["cleaning"] or [], languages=list(languages))
    cleaner.steps.append(RemoveEvaluation(evaluation_texts))
    if data["fraction"] != 1.0:
        cleaner.steps.append(Sample(fraction=data["fraction"], seed=seed))
    with Quarantine(folder / "rejected.jsonl") as quarantine:
        rows = chain.from_iterable(
            open_source(source, languages=languages, split="train", quarantine=quarantine, seed=seed)
            for source in sources
        )
        cleaned = cleaner(rows)
        pairs = store_pairs(islice(cleaned, data["limit"]), folder / "rows")
        rejected = dict(quarantine.counts)
        if quarantine.total:
            logger.warning("%s", quarantine.report())
    language_pairs(pairs)  # a corpus in one language is refused before anything is trained on it
    # Saved before their first use: tokenizers keep the limits of their last call.
    report: dict[str, Any] = {"rejected": rejected, "cleaning": dict(cleaner.counts)}
    if tokenizers:
        for language, tokenizer in tokenizers.items():
            tokenizer.save_pretrained(str(folder / "tokenizer" / language))
        report["tokenizers"] = dict(tokenizer_paths)
    else:
        tokenizer = _tokenizer(pairs, tokenizer_options, data["max_length"], seed)
        tokenizer.save_pretrained(str(folder / "tokenizer"))
        report["vocab_size"] = len(tokenizer)
    tokenised, counts = tokenize_pairs(pairs, tokenizers or tokenizer, max_length=data["max_length"])
    tokenised.save_to_disk(str(folder / "data"))
    return {**counts, **report}


def load_tokenizer(path: str, key: str) -> Any:
    """A tokenizer of a folder or Hub id.

    Args:
        path: Where it is.
        key: What error sentences call the value.

    Raises:
        XlsrError: none loads, or it has no piece for padding.
    """
    try:
        tokenizer = AutoTokenizer.from_pretrained(path)
    except (OSError, ValueError) as error:
        raise XlsrError(f"{key} '{path}' holds no tokenizer that loads; check it.") from error
    if tokenizer.pad_token_id is None:
        raise XlsrError(f"the tokenizer of '{path}' has no padding token; give it one.")
    return tokenizer


def _tokenizer(pairs: Dataset, options: Mapping[str, Any], max_length: int, seed: int) -> Any:
    if options["path"]:
        return load_tokenizer(expand(options["path"]), "tokenizer.path")
    columns = [(side, f"{side}_lang") for side in SIDES]
    return trained_tokenizer(pairs, options, columns=columns, max_length=max_length, seed=seed)


def trained_tokenizer(
    rows: Dataset,
    options: Mapping[str, Any],
    *,
    columns: Sequence[tuple[str, str]] = (("text", "lang"),),
    max_length: int = 200,
    seed: int = 1,
) -> Any:
    """A tokenizer trained on stored rows, with smoothing over their languages.

    Args:
        rows: Of texts and their languages.
        options: As in a recipe's `tokenizer` section: `smoothing` (of `smoothed_text`), and `vocab_size`, `algorithm`,
            `lowercase`, `frame` of `train_tokenizer`; its `path` does not count.
        columns: Each column of texts with that of their languages.
        max_length: `model_max_length` of the result.
        seed: Of the order of drawn text.

    Raises:
        XlsrError: the text allows no such tokenizer.

    Example:
        >>> rows = Dataset.from_dict({"text": ["the cat sat", "le chat dort"] * 50, "lang": ["en", "fr"] * 50})
        >>> len(trained_tokenizer(rows, {"vocab_size": 20, "algorithm": "bpe"}))
        20
    """
    sizes: dict[str, int] = {}
    for _, lang_column in columns:
        for batch in rows.select_columns([lang_column]).iter(batch_size=10_000):
            for lang in batch[lang_column]:
                sizes[lang] = sizes.get(lang, 0) + 1

    texts = (
        pair
        for batch in rows.iter(batch_size=1_000)
        for text_column, lang_column in columns
        for pair in zip(batch[lang_column], batch[text_column], strict=True)
    )
    sizes = {name: sizes[name] for name in sorted(sizes)}
    return train_tokenizer(
        smoothed_text(texts, sizes, exponent=options.get("smoothing", 0.3), seed=seed),
        **{name: options[name] for name in ("vocab_size", "algorithm", "lowercase", "frame") if name in options},
        max_length=max_length,
    )
