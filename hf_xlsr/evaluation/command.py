"""What `hf-xlsr evaluate` does: one encoder, one protocol, local files or a named corpus, one JSON file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hf_xlsr.data.columns import parse_columns
from hf_xlsr.data.quarantine import Quarantine
from hf_xlsr.data.sources import as_source, open_source, source_name
from hf_xlsr.errors import XlsrError, nearest
from hf_xlsr.evaluation.report import data_hash, save_results
from hf_xlsr.evaluation.tatoeba import tatoeba
from hf_xlsr.evaluation.xsr import xsr_both_directions

COMMAND_PROTOCOLS = ("tatoeba", "xsr")


def load_encoder(model: str) -> Any:
    """Loads whatever sentence-transformers loads.

    Raises:
        XlsrError: it does not.
    """
    from sentence_transformers import SentenceTransformer

    if not Path(model).is_dir() and (model.startswith((".", "/", "~")) or model.count("/") != 1):
        raise XlsrError(f"model folder '{model}' does not exist; give a folder or an id of the Hub (owner/name).")
    try:
        return SentenceTransformer(model)
    except (OSError, ValueError, RuntimeError) as error:
        reason = " ".join(str(error).split())[:200]
        raise XlsrError(f"model '{model}' cannot be loaded by sentence-transformers: {reason}") from error


def evaluate_files(
    model: str,
    *,
    protocol: str,
    data: Sequence[str],
    columns: str | None = None,
    languages: Sequence[str] = ("en", "fr"),
    split: str = "test",
    pool: Sequence[str] | None = None,
    prompt: str = "",
    limit: int | None = None,
    batch_size: int = 128,
    output: str | None = None,
) -> dict[str, float]:
    """Evaluates a model on files of pairs.

    Args:
        model: Folder or Hub id of a sentence encoder.
        protocol: `tatoeba` (accuracy both ways) or `xsr` (queries among a pool, both ways).
        data: One file, two Moses files, or the name of a corpus.
        columns: Column mapping, e.g. `source=en,target=fr`.
        languages: As metric keys name them.
        split: Split of a corpus, and of the keys.
        pool: `xsr`: files of further pairs whose sentences join the candidates, with the same columns.
        prompt: Put before each sentence.
        limit: At most so many pairs.
        batch_size: Sentences encoded at a time.
        output: Where the JSON goes.

    Returns:
        Metrics by key.

    Raises:
        XlsrError: a file, column, protocol or model is not right, or there is no pair.
    """
    if protocol not in COMMAND_PROTOCOLS:
        raise XlsrError(f"protocol is '{protocol}'; {nearest(protocol, COMMAND_PROTOCOLS)}")
    if pool and protocol != "xsr":
        raise XlsrError(f"--pool is for protocol xsr; leave it out with {protocol}.")
    if len(languages) != 2:
        raise XlsrError(f"--languages is {','.join(languages)}; give source and target, e.g. en,fr.")
    mapping = parse_columns(columns) or None
    rows = _rows(data, mapping, languages, split, limit)
    if not rows:
        raise XlsrError(f"{' '.join(data)} has no pair to evaluate on; check the file and --columns.")
    sources, targets = [row["source"] for row in rows], [row["target"] for row in rows]
    encoder = load_encoder(model)
    common: dict[str, Any] = {
        "languages": (languages[0], languages[1]),
        "name": source_name(data[0]),
        "split": split,
        "prompt": prompt,
        "batch_size": batch_size,
        "show_progress_bar": True,
    }
    extra = _rows(pool, mapping, languages, split, None) if pool else []
    if protocol == "tatoeba":
        metrics = tatoeba(encoder, sources, targets, **common)
    else:
        pools = [[*texts, *(row[side] for row in extra)] for side, texts in (("source", sources), ("target", targets))]
        metrics = xsr_both_directions(encoder, sources, targets, pools[0], pools[1], **common)
    if output:
        settings: dict[str, Any] = {"model": model, "protocol": protocol, "data": list(data), "pool": list(pool or ())}
        settings.update(columns=columns, prompt=prompt, limit=limit, languages=list(languages), split=split)
        hashes = {"pairs": data_hash(sources + targets), "pool": data_hash(row["target"] for row in extra)}
        save_results(output, metrics, settings=settings, data_hashes=hashes)
    return metrics


def _rows(
    files: Sequence[str], columns: dict[str, str] | None, languages: Sequence[str], split: str, limit: int | None
) -> list[dict[str, Any]]:
    source = as_source(files[0] if len(files) == 1 else list(files))
    source.update({"columns": columns} if columns else {})
    with Quarantine() as quarantine:
        rows = list(open_source({**source, "limit": limit}, languages=languages, split=split, quarantine=quarantine))
        if quarantine.total:
            print(quarantine.report())
    return rows
