"""Bitext mining from two text files or matrices to pairs, in stages that resume."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from hf_xlsr.encoders.encoding import Encoder
from hf_xlsr.mining.encode_stage import LazyEncoder, check_vectors
from hf_xlsr.mining.options import MiningOptions
from hf_xlsr.mining.search.extraction import MinedBitext, extract_pairs
from hf_xlsr.mining.search.neighbours import as_matrix
from hf_xlsr.mining.search.vectors import check_widths
from hf_xlsr.mining.stages import Processes, Stages, TextSide, TextSides, job_folder
from hf_xlsr.mining.texts import Sentences, TextStore
from hf_xlsr.mining.thresholds import HiddenPairs, PrecisionCurve, gold_curve, hidden_curve, label_curve
from hf_xlsr.mining.work_folder import save_array, save_rows
from hf_xlsr.utils.devices import parse_size
from hf_xlsr.utils.errors import XlsrError
from hf_xlsr.utils.hashing import array_hash

logger = logging.getLogger(__name__)

SIDES = ("source", "target")
ROWS_AT_ONCE = 1 << 12
PAIR_ARRAYS = ("source", "target", "score")


@dataclass
class MiningRun:
    """Result of `run_mining`: pairs by line of the inputs, from 0, and the same by row of `texts` (None for matrices)."""

    pairs: MinedBitext
    rows: MinedBitext
    texts: tuple[TextStore, TextStore] | None
    report: dict[str, Any]
    is_main: bool = True
    curve: PrecisionCurve | None = None

    def best(self, threshold: float | None, max_pairs: int | None = None) -> MiningRun:
        """The run with the pairs at or above the threshold, at most `max_pairs` of them."""
        count = len(self.rows) if threshold is None else int((self.rows.score >= threshold).sum())
        first = slice(min(count, len(self.rows) if max_pairs is None else max_pairs))
        pairs, rows = (
            MinedBitext(all.source[first], all.target[first], all.score[first]) for all in (self.pairs, self.rows)
        )
        scores = [float(rows.score[-1]), float(rows.score[0])] if len(rows) else None
        report = {**self.report, "pairs": len(rows), "threshold": threshold, "scores": scores}
        return replace(self, pairs=pairs, rows=rows, report=report)

    def chosen(self, options: MiningOptions, precision: float | None = None) -> MiningRun:
        """The run with the best pairs, above the threshold of the options or else the one that the curve chooses."""
        threshold, estimate = options.threshold, {}
        if self.curve is not None:
            index = self.curve.choose(precision) if threshold is None else self.curve.index(threshold)
            estimate = {**self.curve.at(index), "basis": self.curve.basis}
            threshold = float(self.curve.threshold[index]) if threshold is None else threshold
        run = self.best(threshold, options.max_pairs)
        return replace(run, report={**run.report, "estimate": estimate})

    def gold_curve(self, gold: Iterable[tuple[str, str]]) -> PrecisionCurve:
        """Precision and recall by threshold against all translations that are in the texts."""
        assert self.texts is not None, "matrices have no sentences"
        pairs = set(gold)
        there = [store.holds(pair[side] for pair in pairs) for side, store in enumerate(self.texts)]
        right = np.array([(row["source"], row["target"]) in pairs for row in self.sentences()], bool)
        return gold_curve(right, int((there[0] & there[1]).sum()), self.rows.score)

    def label_curve(self, labels: Mapping[tuple[str, str], bool]) -> PrecisionCurve:
        """Precision by threshold from labels of some of the pairs, by source and target."""
        found = [(row["score"], (row["source"], row["target"])) for row in self.sentences()]
        return label_curve([(score, labels[pair]) for score, pair in found if pair in labels], self.rows.score)

    def sentences(self) -> Iterator[dict[str, Any]]:
        """The pairs with their texts, best first, for `write_pairs`; lines are numbered from 1."""
        assert self.texts is not None, "matrices have no sentences"
        for start in range(0, len(self.rows), ROWS_AT_ONCE):
            part = slice(start, start + ROWS_AT_ONCE)
            yield from (
                {"score": score, "source": source, "target": target, "source_line": x + 1, "target_line": y + 1}
                for score, source, target, x, y in zip(
                    self.rows.score[part].tolist(),
                    self.texts[0].texts(self.rows.source[part]),
                    self.texts[1].texts(self.rows.target[part]),
                    self.pairs.source[part].tolist(),
                    self.pairs.target[part].tolist(),
                    strict=True,
                )
            )


def mine_bitext(
    source: Sentences | np.ndarray,
    target: Sentences | np.ndarray,
    options: MiningOptions | None = None,
    *,
    encoder: Encoder | str | None = None,
    folder: str | os.PathLike[str] | None = None,
    known: Iterable[tuple[str, str]] | None = None,
    precision: float | None = None,
    **changes: Any,
) -> MinedBitext:
    """Finds sentences that are likely translations of each other in two texts, or rows in two matrices.

    The stages (read and deduplicate, encode, neighbours, pairs) save their results in `folder`. The same call resumes
    after a stop, even by SIGKILL; a call with another threshold starts from the neighbours, one with a changed file
    reads and encodes that side again. Under `accelerate launch` or `torchrun` all processes encode.

    Args:
        source: A file with one sentence per line (also `.gz`, `.bz2`, `.xz`, `.zst`), a list of sentences, or a matrix
            with a vector in each row, which is normalised to length 1.
        target: The other side, of the same kind.
        options: The defaults if None.
        encoder: Anything with a sentence-transformers style `encode`, or the folder or Hub id of a model, which is
            loaded only if something is left to encode. Not for matrices.
        folder: Work folder of the stages; a temporary one if None.
        known: Translations that are hidden among the sentences to choose the threshold, see `docs/mine.md`.
        precision: With known pairs, the precision that the threshold must reach; by default it has the best F1.
        **changes: Fields of `MiningOptions` that replace those of `options`.

    Returns:
        `source` and `target`, the lines (from 0, in the given file) or rows of each pair, and `score`; best first.

    Examples:
        >>> class Letters:
        ...     def encode(self, texts, **kwargs):
        ...         return np.array([[text.count(letter) + 0.1 for letter in "abc"] for text in texts])
        >>> mined = mine_bitext(["aa", "b", "aa"], ["bb", "a", "cc"], encoder=Letters(), threshold=1.05)
        >>> list(zip(mined.source.tolist(), mined.target.tolist()))
        [(1, 0), (0, 1)]
    """
    options = replace(options or MiningOptions(), **changes)
    with job_folder(folder) as work:
        return run_mining(source, target, work, options, encoder=encoder, known=known).chosen(options, precision).pairs


def run_mining(
    source: Sentences | np.ndarray,
    target: Sentences | np.ndarray,
    folder: str | os.PathLike[str],
    options: MiningOptions,
    *,
    encoder: Encoder | str | None = None,
    vectors: tuple[np.ndarray, np.ndarray] | None = None,
    known: Iterable[tuple[str, str]] | None = None,
) -> MiningRun:
    """`mine_bitext` with all pairs, a report, and access to the texts; `vectors` of the lines may replace the encoder."""
    hidden = HiddenPairs() if known is None else HiddenPairs.sample(known)
    if hidden.complete and encoder is None:
        raise XlsrError("`known` pairs need an encoder (--model), which encodes them like the texts.")
    given = {"source": source, "target": target}
    if vectors is None and hasattr(source, "__array__") and hasattr(target, "__array__"):
        given, vectors = {}, (np.asanyarray(source), np.asanyarray(target))
    if (vectors is None) == (encoder is None):
        raise XlsrError("Texts need either an encoder (--model) or vectors, matrices need no encoder.")
    matrices = {side: as_matrix(matrix, side) for side, matrix in zip(SIDES, vectors or (), strict=bool(vectors))}
    if matrices:
        check_widths(*matrices.values())
        if options.duplicates not in (None, "keep"):
            raise XlsrError(f"`duplicates` must be keep when vectors are given, got '{options.duplicates}'.")
    processes = Processes()
    languages = dict(zip(SIDES, options.languages or (None, None), strict=True))
    duplicates = options.duplicates or ("keep" if matrices else "merge")
    texts = TextSides(
        {side: TextSide(text, languages[side], duplicates, getattr(hidden, side)) for side, text in given.items()},
        None
        if encoder is None
        else LazyEncoder(encoder, options.device or processes.device, options.dtype, options.vectors),
        options.encoding,
    )
    inputs, plan = _plan(texts, matrices, options) if processes.is_main else ({}, {})
    stages = Stages(folder, processes, parse_size(options.memory), options.show_progress_bar)
    with stages.claimed("mine", inputs, plan):
        stores, report = texts.read(stages)
        found = texts.encode(stages, stores)
        for side, matrix in matrices.items():
            lines = report.setdefault(side, {"name": side, "sentences": len(matrix)}).get("lines", len(matrix))
            found[side] = _unit_vectors(stages, side, matrix, stores.get(side), lines)
        lines = {side: store.lines(np.arange(len(store))) for side, store in stores.items()} if hidden.complete else {}
        without = {side: own >= report[side]["lines"] for side, own in lines.items()}
        if processes.is_main:
            _mine(stages, found, without, options, encoder is not None)
        report |= stages["pairs"].wait()
        folder = stages.work.path / "pairs"
        rows, *joint = (
            MinedBitext(*(np.load(folder / f"{kind}{name}.npy") for name in PAIR_ARRAYS))
            for kind in (("", "hidden.") if without else ("",))
        )
        pairs, *joint = (
            replace(one, **{side: store.lines(getattr(one, side)) for side, store in stores.items()})
            for one in (rows, *joint)
        )
        processes.barrier()
    curve = None
    if joint and processes.is_main:
        counts, sentences = ([report[side][name] for side in SIDES] for name in ("lines", "sentences"))
        present = [
            set((lines[side][without[side]] - count).tolist()) for side, count in zip(SIDES, counts, strict=True)
        ]
        curve = hidden_curve(hidden, joint[0], counts, sentences, present, rows.score)
    texts_of_sides = (stores["source"], stores["target"]) if stores else None
    run = MiningRun(pairs, rows, texts_of_sides, report | stages.report(), processes.is_main, curve)
    return run.best(None)


def _plan(
    texts: TextSides, matrices: Mapping[str, np.ndarray], options: MiningOptions
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The inputs with their hashes, and the settings of each stage, which include those of the stages before it."""
    inputs, plan = texts.plan()
    for side, matrix in matrices.items():
        digest, name = array_hash(matrix), getattr(matrix, "filename", None)
        # A job with texts is identified by these, whatever their vectors.
        inputs.setdefault(side, {"name": None if name is None else str(name), "sha256": digest})
        plan[f"{side}.vectors"] = {"sha256": digest, "text": inputs[side]["sha256"]}
    vectors = [plan[f"{side}.vectors"] for side in SIDES]
    plan["neighbours"] = {"vectors": vectors, **options.search}
    plan["pairs"] = {"neighbours": plan["neighbours"], **options.extraction}
    return inputs, plan


def _unit_vectors(stages: Stages, side: str, matrix: np.ndarray, store: TextStore | None, lines: int) -> np.ndarray:
    """The given matrix if its rows have length 1 and no line is skipped; otherwise such a copy on disk."""
    if len(matrix) != lines:
        raise XlsrError(f"{store.name if store else side} has {lines:,} lines, but {len(matrix):,} vectors are given.")
    stage, folder = stages[f"{side}.vectors"], stages.work.path / f"{side}.vectors"
    used, path = folder / "used.npy", folder / "vectors.npy"
    fewer = store if store is not None and len(store) < lines else None

    def line_of(row: int) -> str:
        return f"row {row} of {side}" if store is None else store.line_name(row)

    if stages.processes.is_main and stage.result is None:
        with stages.timed("vectors"):
            if fewer is not None:
                save_rows(used, _rows_used(matrix, fewer), (len(fewer), matrix.shape[1]), matrix.dtype)
                matrix = np.load(used, mmap_mode="r")
            unit = check_vectors(matrix, line_of)
            if not unit:
                save_rows(path, _normalized(matrix), matrix.shape, np.float32)
                used.unlink(missing_ok=True)
            stage.finish(unit=unit)
    if not stage.wait()["unit"]:
        return np.load(path, mmap_mode="r")
    return matrix if fewer is None else np.load(used, mmap_mode="r")


def _rows_used(matrix: np.ndarray, store: TextStore) -> Iterator[np.ndarray]:
    for start in range(0, len(store), ROWS_AT_ONCE):
        rows = store.lines(np.arange(start, min(start + ROWS_AT_ONCE, len(store))))
        yield np.asarray(matrix[rows])


def _normalized(matrix: np.ndarray) -> Iterator[np.ndarray]:
    for start in range(0, len(matrix), ROWS_AT_ONCE):
        block = np.asarray(matrix[start : start + ROWS_AT_ONCE], np.float64)
        yield block / np.linalg.norm(block, axis=1, keepdims=True)


def _mine(
    stages: Stages,
    vectors: Mapping[str, np.ndarray],
    without: Mapping[str, np.ndarray],
    options: MiningOptions,
    encoded: bool,
) -> None:
    """Neighbours and pairs, saved in the work folder, unless they are; pairs with and without hidden rows."""
    if stages["pairs"].result is not None:
        stages.reused += ["neighbours", "pairs"]
        return
    if stages["neighbours"].result is not None:
        stages.reused.append("neighbours")
    with stages.timed("neighbours"):
        both = stages.search("neighbours", vectors["source"], vectors["target"], options, encoded)
        sizes = {"source": both.forward_indices.shape[1], "target": both.backward_indices.shape[1]}
        found = {name: getattr(both, name) for name in ("method", "recall", "recall_margin")}
        found |= {"k": options.k, "neighbours": sizes}
        stages["neighbours"].finish(**found)
    for side, size in sizes.items():
        if size < options.k:
            logger.warning("k is %d, but %s sentences have only %d neighbours.", options.k, side, size)
    with stages.timed("pairs"):
        kinds = {"": (without["source"], without["target"]), "hidden.": None} if without else {"": None}
        for kind, rows in kinds.items():
            mined = extract_pairs(both, without=rows, **options.extraction)
            for name in PAIR_ARRAYS:
                save_array(stages.work.path / "pairs" / f"{kind}{name}.npy", getattr(mined, name))
        stages["pairs"].finish(**found)
