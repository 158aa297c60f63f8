"""Margin scores of given pairs, against the neighbourhoods of their sentences in two pools."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from hf_xlsr.encoders.encoding import Encoder
from hf_xlsr.mining.encode_stage import LazyEncoder
from hf_xlsr.mining.options import MiningOptions
from hf_xlsr.mining.pipeline import SIDES
from hf_xlsr.mining.search.extraction import margin_scores
from hf_xlsr.mining.search.neighbours import BothWays
from hf_xlsr.mining.stages import Processes, Stages, TextSide, TextSides, job_folder
from hf_xlsr.mining.texts import Sentences, TextStore, skipped_sentence
from hf_xlsr.mining.work_folder import save_array
from hf_xlsr.utils.devices import parse_size
from hf_xlsr.utils.errors import XlsrError

PAIRS_AT_ONCE = 1 << 12


@dataclass(frozen=True)
class PairScores:
    """Margin (float64) and cosine (float32) of pairs, in their order."""

    score: np.ndarray
    cosine: np.ndarray


@dataclass
class ScoringRun:
    """Result of `run_scoring`; `rows` are those of the pairs' sentences in `texts`, which are distinct."""

    scores: PairScores
    texts: tuple[TextStore, TextStore]
    rows: tuple[np.ndarray, np.ndarray]
    report: dict[str, Any] = field(default_factory=dict)
    is_main: bool = True

    def sentences(self) -> Iterator[dict[str, Any]]:
        """The pairs with their scores, for `write_pairs`."""
        for start in range(0, len(self.scores.score), PAIRS_AT_ONCE):
            part = slice(start, start + PAIRS_AT_ONCE)
            columns = [self.scores.score[part].tolist(), self.scores.cosine[part].tolist()]
            texts = [store.texts(rows[part]) for store, rows in zip(self.texts, self.rows, strict=True)]
            for score, cosine, source, target in zip(*columns, *texts, strict=True):
                yield {"score": score, "cosine": cosine, "source": source, "target": target}


def score_bitext(
    sources: Sequence[str],
    targets: Sequence[str],
    options: MiningOptions | None = None,
    *,
    encoder: Encoder | str,
    source_pool: Sentences | None = None,
    target_pool: Sentences | None = None,
    folder: str | os.PathLike[str] | None = None,
    **changes: Any,
) -> PairScores:
    """Margin and cosine of each pair of sentences.

    The margin of a pair compares its cosine with the mean cosine of its source with the `k` nearest distinct sentences
    of `target_pool`, and of its target with those of `source_pool`. The partner of a sentence is among them only if it
    is in the pool, as it is in the pairs' own sides.

    Args:
        sources: Source of each pair.
        targets: Target of each pair.
        options: The defaults if None. Those of the extraction of pairs are ignored.
        encoder: Anything with a sentence-transformers style `encode`, or the folder or Hub id of a model.
        source_pool: Sentences of the sources' language, a file or a list; the pairs' sources if None.
        target_pool: Sentences of the targets' language; the pairs' targets if None.
        folder: Work folder of the stages, from which a stopped call resumes; a temporary one if None.
        **changes: Fields of `MiningOptions` that replace those of `options`.

    Returns:
        The scores; of pairs that `mine_bitext` found in the pools, they equal its own if both searches were exact.

    Examples:
        >>> class Letters:
        ...     def encode(self, texts, **kwargs):
        ...         return np.array([[text.count(letter) + 0.1 for letter in "abc"] for text in texts])
        >>> score_bitext(["aa", "b"], ["a", "c"], encoder=Letters(), k=1).cosine.round(2)
        array([1.  , 0.19], dtype=float32)
    """
    if len(sources) != len(targets):
        raise XlsrError(f"Pairs need as many targets as sources, got {len(sources):,} and {len(targets):,}.")
    options = replace(options or MiningOptions(), **changes)
    pools = {"source_pool": source_pool, "target_pool": target_pool}
    with job_folder(folder) as work:
        return run_scoring(sources, targets, pools, work, options, encoder=encoder).scores


def run_scoring(
    sources: Sentences,
    targets: Sentences,
    pools: Mapping[str, Sentences | None],
    folder: str | os.PathLike[str],
    options: MiningOptions,
    *,
    encoder: Encoder | str,
) -> ScoringRun:
    """`score_bitext` with a report, and with access to the texts as long as the folder exists."""
    processes = Processes()
    languages = dict(zip(SIDES, options.languages or (None, None), strict=True))
    given = {"source": sources, "target": targets, **{name: pool for name, pool in pools.items() if pool is not None}}
    texts = TextSides(
        {name: TextSide(text, languages[name.removesuffix("_pool")]) for name, text in given.items()},
        LazyEncoder(encoder, options.device or processes.device, options.dtype, options.vectors),
        options.encoding,
    )
    inputs, plan = _plan(texts, options) if processes.is_main else ({}, {})
    stages = Stages(folder, processes, parse_size(options.memory), options.show_progress_bar)
    with stages.claimed("score", inputs, plan):
        stores, report = texts.read(stages)
        for side in SIDES:
            if report[side]["skipped"]:
                raise XlsrError(skipped_sentence(side, report[side]) + " Remove such pairs.")
        vectors = texts.encode(stages, stores)
        rows = [stores[side].rows_of_lines() for side in SIDES]
        if processes.is_main and stages["scores"].result is None:
            with stages.timed("neighbours"):
                means, found = _neighbour_means(stages, vectors, options)
            with stages.timed("scores"):
                cosine = _cosines(vectors, rows)
                score = margin_scores(cosine, means[0][rows[0]], means[1][rows[1]], options.margin)
                save_array(stages.work.path / "scores" / "score.npy", score)
                save_array(stages.work.path / "scores" / "cosine.npy", cosine)
                stages["scores"].finish(**found)
        report |= stages["scores"].wait()
        scores = PairScores(*(np.load(stages.work.path / "scores" / f"{name}.npy") for name in ("score", "cosine")))
        processes.barrier()
    report |= {"pairs": len(scores.score), "k": options.k, **stages.report()}
    return ScoringRun(scores, (stores["source"], stores["target"]), (rows[0], rows[1]), report, processes.is_main)


def _plan(texts: TextSides, options: MiningOptions) -> tuple[dict[str, Any], dict[str, Any]]:
    inputs, plan = texts.plan()
    vectors = {side: plan[f"{side}.vectors"] for side in texts.sides}
    for side in SIDES:
        plan[f"{side}.neighbours"] = {"vectors": vectors, **options.search}
    plan["scores"] = {"neighbours": plan["source.neighbours"], "margin": options.margin}
    return inputs, plan


def _neighbour_means(
    stages: Stages, vectors: Mapping[str, np.ndarray], options: MiningOptions
) -> tuple[tuple[np.ndarray, np.ndarray], dict[str, Any]]:
    """Mean cosine of each distinct sentence with its nearest in the other pool, and the less exact search's recall."""

    def search(side: str, pool: np.ndarray) -> BothWays:
        return stages.search(f"{side}.neighbours", vectors[side], pool, options, encoded=True)

    source_pool, target_pool = (vectors.get(f"{side}_pool", vectors[side]) for side in SIDES)
    forward = search("source", target_pool)
    mean_x = forward.forward_similarities.mean(axis=1, dtype=np.float64)
    if source_pool is vectors["source"] and target_pool is vectors["target"]:
        mean_y = forward.backward_similarities.mean(axis=1, dtype=np.float64)
        return (mean_x, mean_y), {"method": forward.method, "recall": forward.recall}
    backward = search("target", source_pool)
    mean_y = backward.forward_similarities.mean(axis=1, dtype=np.float64)
    worse = max(forward, backward, key=lambda both: (both.method == "ivf", -both.recall))
    return (mean_x, mean_y), {"method": worse.method, "recall": worse.recall}


def _cosines(vectors: Mapping[str, np.ndarray], rows: Sequence[np.ndarray]) -> np.ndarray:
    """Cosine of each pair, rounded to float32 as those of neighbours are."""
    cosines = np.empty(len(rows[0]), np.float32)
    for start in range(0, len(cosines), PAIRS_AT_ONCE):
        part = slice(start, start + PAIRS_AT_ONCE)
        left, right = (vectors[side][rows[place][part]].astype(np.float64) for place, side in enumerate(SIDES))
        cosines[part] = (left * right).sum(axis=1)
    return cosines
