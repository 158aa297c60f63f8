"""Margin scores of given pairs, against the neighbourhoods of their sentences in two pools."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from hf_xlsr.encoders.encoding import Encoder
from hf_xlsr.mining.options import MiningOptions
from hf_xlsr.mining.search.block_search import SIDES
from hf_xlsr.mining.search.extraction import count_small_means, margin_scores, warn_of_small_means
from hf_xlsr.mining.search.vectors import pair_products
from hf_xlsr.mining.stages import Job, job_folder
from hf_xlsr.mining.texts import Sentences, TextStore, counted, pair_rows
from hf_xlsr.mining.thresholds import PrecisionCurve
from hf_xlsr.mining.work_folder import load_arrays, save_arrays
from hf_xlsr.utils.errors import XlsrError
from hf_xlsr.utils.tasks import LocalPool, Runner, import_ahead

SCORES_VERSION = 2  # of the files of scores in a work folder


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
    report: dict[str, Any]
    curve: PrecisionCurve | None = None
    means: tuple[np.ndarray, np.ndarray] | None = None
    facts: dict[str, Any] = field(default_factory=dict)
    """Encoder, settings and hashes of the texts, for `new_step`."""

    def margins(self) -> dict[str, np.ndarray]:
        """Scores of each pair by name, `(pairs,)`: margin, cosine, and how far it is above the means of both sides."""
        assert self.means is not None, "scores are not there yet"
        cosine = self.scores.cosine.astype(np.float64)
        source_means, target_means = self.means
        return {
            "margin": self.scores.score,
            "cosine": cosine,
            "above_source": cosine - source_means,
            "above_target": cosine - target_means,
        }

    def sentences(self) -> Iterator[dict[str, Any]]:
        """The pairs with their scores, for `write_pairs`."""
        return pair_rows(self.texts, self.rows, **vars(self.scores))


def score_bitext(
    sources: Sequence[str],
    targets: Sequence[str],
    options: MiningOptions | None = None,
    *,
    encoder: Encoder | str,
    source_pool: Sentences | None = None,
    target_pool: Sentences | None = None,
    folder: str | os.PathLike[str] | None = None,
    runner: Runner | None = None,
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
        runner: What encodes and searches, see `mine_bitext`.
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
        return run_scoring(sources, targets, pools, work, options, encoder=encoder, runner=runner).scores


def run_scoring(
    sources: Sentences,
    targets: Sentences,
    pools: Mapping[str, Sentences | None],
    folder: str | os.PathLike[str],
    options: MiningOptions,
    *,
    encoder: Encoder | str,
    runner: Runner | None = None,
) -> ScoringRun:
    """`score_bitext` with a report, and with access to the texts as long as the folder exists."""
    texts = {"source": sources, "target": targets}
    for name, pool in pools.items():
        if pool is not None:
            texts[name] = pool
    job = Job(folder, options, texts, encoder, runner=runner)
    if isinstance(runner, LocalPool):
        import_ahead(__name__)
    with job.claimed("score", lambda: _plan(job)):
        stores, report = job.read()
        for side in SIDES:
            skipped = report[side]["skipped"]
            if skipped:
                raise XlsrError(f"Remove pairs whose {side} cannot be scored: {counted(skipped)}.")
        vectors = job.encode(stores)
        source_rows = stores["source"].rows_of_lines(job.memory)
        target_rows = stores["target"].rows_of_lines(job.memory)

        figures = job["scores"].result
        if figures is None:
            with job.timed("neighbours"):
                source_means, target_means, figures = _neighbour_means(job, vectors)
            with job.timed("scores"):
                cosine = pair_products(vectors["source"], source_rows, vectors["target"], target_rows)
                means = (source_means[source_rows], target_means[target_rows])
                score = margin_scores(cosine, *means, options.margin)
                warn_of_small_means(count_small_means(*means), options.margin)
                save_arrays(job.folder("scores") / "means.npz", source=means[0], target=means[1])
                save_arrays(job.folder("scores") / "scores.npz", score=score, cosine=cosine)
                job["scores"].finish(**figures)

        report |= figures
        scores = PairScores(**load_arrays(job.folder("scores") / "scores.npz"))
        stored_means = load_arrays(job.folder("scores") / "means.npz")

    report |= {"pairs": len(scores.score), "k": options.k, **job.report()}
    sides = (stores["source"], stores["target"])
    run = ScoringRun(scores, sides, (source_rows, target_rows), report, facts=job.facts())
    run.means = (stored_means["source"], stored_means["target"])
    return run


def _plan(job: Job) -> tuple[dict[str, Any], dict[str, Any]]:
    """Inputs and settings of the stages, as `Job.plan`, with the stages after the vectors."""
    inputs, plan = job.plan()
    neighbours = {"vectors": {side: plan[f"{side}.vectors"] for side in job.texts}, **job.options.search}
    plan |= {f"{side}.neighbours": neighbours for side in SIDES}
    plan["scores"] = {"neighbours": neighbours, "margin": job.options.margin, "file": SCORES_VERSION}
    return inputs, plan


def _neighbour_means(job: Job, vectors: Mapping[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray, dict[str, Any]]:
    """Mean cosine of each distinct source and target with its nearest in the other pool.

    Also the method and recall of the less exact search.
    """
    sources = vectors["source"]
    targets = vectors["target"]
    source_pool = vectors.get("source_pool", sources)
    target_pool = vectors.get("target_pool", targets)

    search = job.search("source.neighbours", sources, target_pool)
    source_means, target_means = search.means()
    if source_pool is not sources or target_pool is not targets:
        second_search = job.search("target.neighbours", targets, source_pool)
        target_means, _ = second_search.means()
        if (second_search.method, -second_search.recall) > (search.method, -search.recall):
            search = second_search
    return source_means, target_means, search.figures
