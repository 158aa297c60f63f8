"""Ranking metrics by trec_eval, where its bindings are installed (`pip install pytrec-eval-terrier`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from importlib.util import find_spec

import numpy as np


@cache
def has_trec() -> bool:
    return find_spec("pytrec_eval") is not None


def trec_metrics(
    scores: np.ndarray,
    gains: Mapping[int, float],
    own: int | None = None,
    *,
    depth: int,
    ranks: Sequence[int],
) -> dict[str, float] | None:
    """`mrr`, `ndcg@DEPTH` and `recall@K` of one query; None where trec_eval is not installed or does not take the gains.

    trec_eval takes whole numbers as gains. `scores` are the similarities of all documents, `(documents,)`; of equal ones
    the first ranks higher, as the greater id does in trec_eval. `gains` are those of the relevant ones, by position.
    `own` is a document that is left out; where it is relevant, it counts as not found.
    """
    if not has_trec() or any(gain != int(gain) for gain in gains.values()):
        return None
    import pytrec_eval

    # Documents below the best relevant one and below the deepest rank change nothing, unless they are relevant.
    columns = list(gains)
    deepest = min(max(depth, *ranks), len(scores))
    lowest = min(scores[columns].max(), np.partition(scores, -deepest)[-deepest])
    ranked = {*np.flatnonzero(scores >= lowest).tolist(), *columns} - {own}

    run = {_trec_id(column, scores): float(scores[column]) for column in ranked}
    relevance = {_trec_id(column, scores): int(gain) for column, gain in gains.items()}
    measures = {f"ndcg_cut.{depth}", "recip_rank", f"recall.{','.join(map(str, ranks))}"}
    values = pytrec_eval.RelevanceEvaluator({"query": relevance}, measures).evaluate({"query": run})["query"]

    metrics = {"mrr": values["recip_rank"], f"ndcg@{depth}": values[f"ndcg_cut_{depth}"]}
    for rank in ranks:
        metrics[f"recall@{rank}"] = values[f"recall_{rank}"]
    return metrics


def _trec_id(column: int, scores: np.ndarray) -> str:
    """An id that is greater for an earlier document."""
    return f"{len(scores) - column:012d}"
