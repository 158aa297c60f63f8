"""Margins of pairs that are given, against the neighbourhoods of their sentences in two pools."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from typing_extensions import Unpack

from hf_xlsr.encoders.encoding import Encoder, EncodingOptions
from hf_xlsr.mining.encode_stage import ITEMSIZE, LazyEncoder
from hf_xlsr.mining.pipeline import SIDES, search_device
from hf_xlsr.mining.search.both_ways import BothWays, check_memory, neighbours_both_ways
from hf_xlsr.mining.search.extraction import mine_vectors
from hf_xlsr.mining.search.margin import margin_scores
from hf_xlsr.mining.search.storage import drop_pages
from hf_xlsr.mining.stages import Processes, Stages, TextSide, TextSides, vector_stage
from hf_xlsr.mining.texts import Sentences, TextStore, skipped_sentence
from hf_xlsr.mining.work_folder import WorkFolder, save_array
from hf_xlsr.utils.errors import XlsrError
from hf_xlsr.utils.memory import parse_size

PAIRS_AT_ONCE = 1 << 12


@dataclass(frozen=True)
class PairScores:
    """Scores of pairs, in the order of the pairs.

    Attributes:
        score: Margin of each pair, float64.
        cosine: Cosine of each pair, float32.
    """

    score: np.ndarray
    cosine: np.ndarray


@dataclass
class ScoringRun:
    """What `run_scoring` found.

    Attributes:
        scores: Of the pairs, in their order.
        texts: The distinct sentences of both sides.
        rows: Row in `texts` of each pair's two sentences.
        report: Counts, method and recall of the search, seconds by stage.
        leader: Whether this is the first of several processes.
    """

    scores: PairScores
    texts: tuple[TextStore, TextStore]
    rows: tuple[np.ndarray, np.ndarray]
    report: dict[str, Any] = field(default_factory=dict)
    leader: bool = True

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
    *,
    encoder: Encoder | str,
    source_pool: Sentences | None = None,
    target_pool: Sentences | None = None,
    languages: Sequence[str] | None = None,
    k: int = 4,
    margin: str = "ratio",
    method: str = "auto",
    memory: int | str | None = None,
    device: str | None = None,
    folder: str | os.PathLike[str] | None = None,
    **encoding: Unpack[EncodingOptions],
) -> PairScores:
    """Margin and cosine of each pair of sentences.

    A pair's margin compares its cosine with the mean cosine of its source with the `k` nearest distinct sentences of
    `target_pool`, and of its target with those of `source_pool`. A pair's own partner counts among them only if it is
    in the pool, as it is in the pairs' own sides.

    Args:
        sources: Source of each pair.
        targets: Target of each pair.
        encoder: Anything with a sentence-transformers style `encode`, or the folder or Hub id of a model.
        source_pool: Sentences of the sources' language, a file or a list; the pairs' own sources by default.
        target_pool: Sentences of the targets' language; the pairs' own targets by default.
        languages: Of source and target; an encoder with a route for each language needs them.
        k: Size of the neighbourhoods, both ways; cut to the size of the pool.
        margin: `ratio`, `distance` or `absolute`, see `margin_scores`.
        method: `exact`, `ivf` or `auto`, see `neighbours_both_ways`.
        memory: What all stages but the encoder itself may use: bytes, or a text such as `512MB`.
        device: Where a model given by name, and the search, run.
        folder: Where the stages leave their results, so that a stopped call goes on; a temporary one by default.
        **encoding: Options of `embed`.

    Returns:
        The scores; those of pairs that `mine_bitext` found in the pools equal its own where both searched exactly.

    Raises:
        XlsrError: there is no pair, the sides are not equally long, a sentence is blank, or as `mine_bitext` says.

    Example:
        >>> class Letters:
        ...     def encode(self, texts, **kwargs):
        ...         return np.array([[text.count(letter) + 0.1 for letter in "abc"] for text in texts])
        >>> score_bitext(["aa", "b"], ["a", "c"], encoder=Letters(), k=1).cosine.round(2)
        array([1.  , 0.19], dtype=float32)
    """
    if len(sources) != len(targets):
        raise XlsrError(f"there are {len(sources):,} sources and {len(targets):,} targets; give pairs.")
    pools = {"source_pool": source_pool, "target_pool": target_pool}
    arguments: dict[str, Any] = {"encoder": encoder, "languages": languages, "k": k, "margin": margin}
    arguments |= {"method": method, "memory": memory, "device": device, "encoding": encoding}
    if folder is not None:
        return run_scoring(sources, targets, pools, folder, **arguments).scores
    if Processes().count > 1:
        raise XlsrError("several processes score together through a folder; give one that all of them see.")
    with tempfile.TemporaryDirectory(prefix="hf-xlsr-score-") as temporary:
        return run_scoring(sources, targets, pools, Path(temporary) / "work", **arguments).scores


def run_scoring(
    sources: Sentences,
    targets: Sentences,
    pools: Mapping[str, Sentences | None],
    folder: str | os.PathLike[str],
    *,
    encoder: Encoder | str,
    languages: Sequence[str] | None = None,
    k: int = 4,
    margin: str = "ratio",
    method: str = "auto",
    memory: int | str | None = None,
    device: str | None = None,
    dtype: str | None = None,
    encoding: EncodingOptions | None = None,
) -> ScoringRun:
    """What `score_bitext` does, with a report and access to the texts, as long as the folder is there.

    Args:
        sources: Source of each pair, to be gone through more than once.
        targets: Target of each pair.
        pools: `source_pool` and `target_pool`, or None for the pairs' own sentences.
        folder: Where the stages leave their results.
        encoder: As in `score_bitext`; so are the rest.
        languages: Of source and target.
        k: Size of the neighbourhoods.
        margin: `ratio`, `distance` or `absolute`.
        method: `exact`, `ivf` or `auto`.
        memory: What the stages may use.
        device: Where models and the search run.
        dtype: Precision of the weights of an encoder that is given by name; as its files hold them when None.
        encoding: Options of `embed`.

    Raises:
        XlsrError: as `score_bitext` says.
    """
    if languages is not None and len(languages) != 2:
        raise XlsrError(f"languages is {','.join(languages)}; give source and target, e.g. en,fr.")
    nothing = np.empty((0, 1), np.float32)
    mine_vectors(nothing, nothing, k=k, margin=margin, method=method)  # checks them, before hours of encoding
    options: EncodingOptions = {**(encoding or {})}
    progress = options.pop("show_progress_bar", False)
    processes = Processes()
    place = search_device(device, encoder)
    tags = dict(zip(SIDES, languages or (None, None), strict=True))
    given = {"source": sources, "target": targets, **{name: pool for name, pool in pools.items() if pool is not None}}
    texts = TextSides(
        {name: TextSide(text, tags[name.removesuffix("_pool")]) for name, text in given.items()},
        LazyEncoder(encoder, device or processes.device, dtype),
        options,
    )
    inputs, plan = texts.plan() if processes.leads else ({}, {})
    for name in SIDES if processes.leads else ():
        vectors_of = {side: plan[vector_stage(side)] for side in given}
        plan[f"{name}.neighbours"] = {"vectors": vectors_of, "k": k, "method": method}
    if processes.leads:
        plan["scores"] = {"neighbours": plan["source.neighbours"], "margin": margin}
    stages = Stages(WorkFolder(folder), processes, memory=parse_size(memory), show_progress_bar=progress)

    def check(width: int) -> None:
        for asking, asked in (("source", "target"), ("target", "source")):
            counts = len(stores[asking]), len(stores.get(f"{asked}_pool", stores[asked]))
            check_memory(
                counts,
                width,
                k,
                itemsize=ITEMSIZE,
                method=method,
                memory=stages.memory,
                device=place,
                uncounted=stages.uncounted(encoded=True),
            )

    with stages.claimed("score", inputs, plan):
        stores, report = texts.read(stages)
        for side in SIDES:
            if report[side]["skipped"]:
                raise XlsrError(f"{skipped_sentence(side, report[side])[:-1]}; give pairs without such sentences.")
        rows = [stores[side].rows_of_lines() for side in SIDES]
        if len(rows[0]) != len(rows[1]):
            raise XlsrError(f"there are {len(rows[0]):,} sources and {len(rows[1]):,} targets; give pairs.")
        vectors = texts.encode(stages, stores, check)
        if processes.leads and stages.work.result("scores") is None:
            with stages.timed("neighbours"):
                means, found = _neighbour_means(stages, vectors, k, method, place)
            with stages.timed("scores"):
                cosine = _cosines(vectors, rows)
                score = margin_scores(cosine, means[0][rows[0]], means[1][rows[1]], margin)
                save_array(stages.work.path / "scores" / "score.npy", score)
                save_array(stages.work.path / "scores" / "cosine.npy", cosine)
                stages.work.finish("scores", found)
        report |= stages.work.wait_for("scores")
        scores = PairScores(*(np.load(stages.work.path / "scores" / f"{name}.npy") for name in ("score", "cosine")))
        processes.meet()
    report |= {"pairs": len(scores.score), "k": k, **stages.report()}
    return ScoringRun(scores, (stores["source"], stores["target"]), (rows[0], rows[1]), report, processes.leads)


def _neighbour_means(
    stages: Stages, vectors: Mapping[str, np.ndarray], k: int, method: str, device: str
) -> tuple[tuple[np.ndarray, np.ndarray], dict[str, Any]]:
    """Mean cosine of each distinct source with its nearest in the pool of targets, and the other way round.

    With them `method` and `recall`: of two searches that of the less exact one.
    """
    uncounted = stages.uncounted(encoded=True)

    def search(side: str, pool: np.ndarray) -> BothWays:
        return neighbours_both_ways(
            vectors[side],
            pool,
            k,
            method=method,
            memory=stages.memory,
            device=device,
            uncounted=uncounted,
            folder=stages.work.path / f"{side}.neighbours",
            show_progress_bar=stages.show_progress_bar,
        )

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
        for side in SIDES:
            drop_pages(vectors[side])
    return cosines
