"""From a recipe's data section to tokenised pairs on disk, once per run folder."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any

from datasets import Dataset, load_from_disk
from transformers import AutoTokenizer

from hf_xlsr.data.cleaning import RemoveEvaluation, Sample, build_cleaner
from hf_xlsr.data.formats import expand_braces
from hf_xlsr.data.prepared import PreparedPairs, language_pairs, store_pairs, tokenize_pairs
from hf_xlsr.data.quarantine import Quarantine
from hf_xlsr.data.sources import as_list, as_source, expand, open_source
from hf_xlsr.data.tokenization import smoothed_text, train_tokenizer
from hf_xlsr.errors import XlsrError

logger = logging.getLogger(__name__)


@dataclass
class PreparedData:
    """What a run trains on.

    Args:
        train: Tokenised pairs.
        tokenizer: The fast tokenizer.
        report: Counts: `cleaning` (rows in and out by step), `rejected` (bad lines by reason), `pairs`, `pieces`,
            `truncated_sides`, `vocab_size`.
    """

    train: PreparedPairs
    tokenizer: Any
    report: dict[str, Any]


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
    tokenizer: Mapping[str, Any],
    languages: Sequence[str],
    evaluation_texts: Iterator[str],
    folder: str | Path,
    seed: int,
) -> PreparedData:
    """Reads, cleans and tokenises the training pairs into `folder`, or takes what a finished call left there.

    Args:
        data: The recipe's `data` section.
        tokenizer: Its `tokenizer` section; `path` names an existing one.
        languages: All languages of the recipe.
        evaluation_texts: Sentences that are removed from training, on either side.
        folder: The run's folder: `data/`, `tokenizer/`, `rejected.jsonl` and, last of all, `prepared.json`.
        seed: For sampling and the order of drawn text.

    Raises:
        XlsrError: what readers, cleaning and tokenizer training raise; no pair is left.
    """
    folder = Path(folder)
    marker = folder / "prepared.json"
    files = _state_of_files(as_list(data["train"]))
    if marker.is_file():
        then = json.loads(marker.read_text("utf-8"))["files"]
        changed = [name for name, state in then.items() if state != files.get(name)]
        if changed:
            raise XlsrError(
                f"{changed[0]} has changed since this run prepared its data from it; start anew with --overwrite true "
                "or in another --output_dir."
            )
    else:
        for part in ("data", "tokenizer", "rows"):
            shutil.rmtree(folder / part, ignore_errors=True)
        folder.mkdir(parents=True, exist_ok=True)
        report = _prepare_fresh(data, tokenizer, languages, evaluation_texts, folder, seed)
        report["files"] = files
        shutil.rmtree(folder / "rows", ignore_errors=True)
        marker.write_text(json.dumps(report, indent=2), "utf-8")
    return PreparedData(
        train=PreparedPairs(load_from_disk(str(folder / "data"))),
        tokenizer=AutoTokenizer.from_pretrained(str(folder / "tokenizer")),
        report=json.loads(marker.read_text("utf-8")),
    )


def _state_of_files(sources: Sequence[Any]) -> dict[str, list[int]]:
    """Size and time of change of each local file that a source names, by name."""
    states = {}
    for source in sources:
        for path in as_list(expand(as_source(source).get("path", ""))):
            for file in expand_braces(path)[0]:
                if file.is_file():
                    status = file.stat()
                    states[file.name] = [status.st_size, status.st_mtime_ns]
    return states


def _prepare_fresh(
    data: Mapping[str, Any],
    tokenizer_options: Mapping[str, Any],
    languages: Sequence[str],
    evaluation_texts: Iterator[str],
    folder: Path,
    seed: int,
) -> dict[str, Any]:
    sources = as_list(data["train"])
    if not sources:
        raise XlsrError("the recipe has no data.train; name a corpus or a path there.")
    cleaner = build_cleaner(data["cleaning"] or [], languages=list(languages))
    cleaner.steps.append(RemoveEvaluation(evaluation_texts))
    if data["fraction"] != 1.0:
        cleaner.steps.append(Sample(fraction=data["fraction"], seed=seed))
    with Quarantine(folder / "rejected.jsonl") as quarantine:
        rows = chain.from_iterable(
            open_source(source, languages=languages, split="train", quarantine=quarantine) for source in sources
        )
        cleaned = cleaner(rows)
        pairs = store_pairs(islice(cleaned, data["limit"]), folder / "rows")
        rejected = dict(quarantine.counts)
        if quarantine.total:
            logger.warning("%s", quarantine.report())
    language_pairs(pairs)  # a corpus in one language is refused before anything is trained on it
    tokenizer = _tokenizer(pairs, tokenizer_options, data["max_length"], seed)
    tokenizer.save_pretrained(str(folder / "tokenizer"))
    tokenised, counts = tokenize_pairs(pairs, tokenizer, max_length=data["max_length"])
    tokenised.save_to_disk(str(folder / "data"))
    return {**counts, "vocab_size": len(tokenizer), "rejected": rejected, "cleaning": dict(cleaner.counts)}


def _tokenizer(pairs: Dataset, options: Mapping[str, Any], max_length: int, seed: int) -> Any:
    if options["path"]:
        try:
            tokenizer = AutoTokenizer.from_pretrained(options["path"])
        except (OSError, ValueError) as error:
            raise XlsrError(f"tokenizer.path '{options['path']}' holds no tokenizer that loads; check it.") from error
        if tokenizer.pad_token_id is None:
            raise XlsrError(f"the tokenizer of '{options['path']}' has no padding token; give it one.")
        return tokenizer
    sizes: dict[str, int] = {}
    for side in ("source", "target"):
        for batch in pairs.select_columns([f"{side}_lang"]).iter(batch_size=10_000):
            for lang in batch[f"{side}_lang"]:
                sizes[lang] = sizes.get(lang, 0) + 1

    def texts_of(language: str) -> Iterator[str]:
        for batch in pairs.iter(batch_size=1_000):
            for side in ("source", "target"):
                yield from (
                    text for text, lang in zip(batch[side], batch[f"{side}_lang"], strict=True) if lang == language
                )

    texts = {language: (lambda language=language: texts_of(language)) for language in sorted(sizes)}
    return train_tokenizer(
        smoothed_text(texts, {name: sizes[name] for name in sorted(sizes)}, exponent=options["smoothing"], seed=seed),
        vocab_size=options["vocab_size"],
        algorithm=options["algorithm"],
        lowercase=options["lowercase"],
        max_length=max_length,
    )
