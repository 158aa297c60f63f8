"""Bitext mining from two text files or matrices to pairs, in stages that resume."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from hf_xlsr.encoders.encoding import Encoder, unit_length
from hf_xlsr.mining.facts import PairFacts, Step, histogram, new_step
from hf_xlsr.mining.hidden_pairs import HiddenPairs, hidden_curve, mine_hidden
from hf_xlsr.mining.labels import RowLabels
from hf_xlsr.mining.options import MiningOptions
from hf_xlsr.mining.search.block_search import SIDES
from hf_xlsr.mining.search.extraction import MinedBitext, extract_pairs
from hf_xlsr.mining.search.int8_rows import as_floats, stored_as
from hf_xlsr.mining.search.neighbours import as_matrix
from hf_xlsr.mining.search.sorted_pairs import pairs_of
from hf_xlsr.mining.search.vectors import Vectors, check_widths
from hf_xlsr.mining.stages import Job, job_folder
from hf_xlsr.mining.texts import Sentences, TextStore, pair_rows
from hf_xlsr.mining.thresholds import PrecisionCurve, gold_curve
from hf_xlsr.mining.work_folder import save_rows
from hf_xlsr.utils.errors import XlsrError
from hf_xlsr.utils.files import atomic_write
from hf_xlsr.utils.hashing import array_hash
from hf_xlsr.utils.tasks import LocalPool, Runner, import_ahead

logger = logging.getLogger(__name__)

ROWS_AT_ONCE = 1 << 12
PAIRS_VERSION = 2  # of the files of pairs in a work folder
UNIT_TOLERANCE = 2e-3
LONGEST_EXAMPLE = 80  # characters of a text in a warning


@dataclass
class MiningRun:
    """Result of `run_mining`. Pairs are row numbers in `texts` (None for matrices); skipped lines have none."""

    rows: MinedBitext
    texts: tuple[TextStore, TextStore] | None
    report: dict[str, Any]
    curve: PrecisionCurve | None = None
    facts: dict[str, Any] = field(default_factory=dict)
    """Encoder, settings and hashes of the texts, for `new_step`."""

    @property
    def pairs(self) -> MinedBitext:
        """The pairs by line of the inputs, from 0, in memory."""
        if self.texts is not None:
            return _by_line(self.rows, self.texts)
        return MinedBitext(np.array(self.rows.source), np.array(self.rows.target), np.array(self.rows.score))

    def chosen(self, options: MiningOptions, precision: float | None = None) -> MiningRun:
        """The run with the best pairs, above the threshold of the options or else the one that the curve chooses."""
        threshold = options.threshold
        estimate: dict[str, Any] = {}
        if self.curve is not None:
            threshold, estimate = self.curve.chosen(threshold, precision)

        rows = self.rows.best(threshold, options.max_pairs)
        scores = None
        if len(rows):
            scores = [float(rows.score[-1]), float(rows.score[0])]
        report = {"pairs": len(rows), "threshold": threshold, "scores": scores, "estimate": estimate}
        return replace(self, rows=rows, report=self.report | report)

    def labelled(self, run: MiningRun, labels: RowLabels) -> MiningRun:
        """These pairs, without rejected ones, and with the accepted ones of `run`, from which they were chosen."""
        is_chosen = np.arange(len(run.rows)) < len(self.rows)
        is_kept = labels.keeps(is_chosen)
        rows = MinedBitext(run.rows.source[is_kept], run.rows.target[is_kept], run.rows.score[is_kept])
        report = {"pairs": len(rows), "labels": labels.counts(is_chosen)}
        return replace(self, rows=rows, report=self.report | report)

    def step(
        self,
        verb: str,
        run: MiningRun,
        *,
        languages: Sequence[str] | None = None,
        command: str = "",
    ) -> Step:
        """What mining did, for the file of facts; `run` has all pairs, from which these were chosen."""
        facts = {
            **self.facts,
            "pairs": {"in": len(run.rows), "out": self.report["pairs"]},
            "histogram": histogram(np.asarray(run.rows.score), "margin score"),
            "curve": run.curve and run.curve.values(),
        }
        search = {"method": self.report["method"], "share_of_neighbours_found": self.report["recall"]}
        facts["settings"] = {**facts["settings"], **search}
        return new_step(verb, self.report, facts, command=command, languages=languages)

    def gold_curve(self, gold: Iterable[tuple[str, str]]) -> PrecisionCurve:
        """Precision and recall by threshold against all translations that are in the texts.

        Gold pairs of which a side is not in its text are counted and named in a warning, and in `report`.
        """
        assert self.texts is not None, "matrices have no sentences"
        ordered_gold = list(dict.fromkeys(gold))
        gold_pairs = set(ordered_gold)
        source_held = self.texts[0].holds(source for source, _ in ordered_gold)
        target_held = self.texts[1].holds(target for _, target in ordered_gold)
        is_held = source_held & target_held
        total = int(is_held.sum())
        missing = [" | ".join(ordered_gold[number]) for number in np.flatnonzero(~is_held)]
        self.report["gold"] = _counted_texts("gold pairs that are not in the texts", missing, len(ordered_gold))

        right = np.zeros(len(self.rows), bool)
        first = np.zeros(len(self.rows), bool)
        not_mined = set(gold_pairs)
        for number, row in enumerate(self.sentences()):
            pair = (row["source"], row["target"])
            right[number] = pair in gold_pairs
            first[number] = pair in not_mined  # equal lines can give a pair twice
            not_mined.discard(pair)
        return gold_curve(right, first, total, self.rows.score)

    def sentences(self) -> Iterator[dict[str, Any]]:
        """The pairs with their texts, best first, for `write_pairs`; lines are numbered from 1."""
        assert self.texts is not None, "matrices have no sentences"
        for start in range(0, len(self.rows), ROWS_AT_ONCE):
            rows = self.rows[start : start + ROWS_AT_ONCE]
            pairs = _by_line(rows, self.texts)
            lines = {"source_line": pairs.source + 1, "target_line": pairs.target + 1}
            yield from pair_rows(self.texts, (rows.source, rows.target), score=rows.score, **lines)


def mine_bitext(
    source: Sentences | np.ndarray,
    target: Sentences | np.ndarray,
    options: MiningOptions | None = None,
    *,
    encoder: Encoder | str | None = None,
    folder: str | os.PathLike[str] | None = None,
    known: Iterable[tuple[str, str]] | None = None,
    precision: float | None = None,
    runner: Runner | None = None,
    **changes: Any,
) -> MinedBitext:
    """Finds sentences that are likely translations of each other in two texts, or rows in two matrices.

    The stages (read and deduplicate, encode, neighbours, pairs) save their results in `folder`. The same call resumes
    after a stop, even by SIGKILL; a call with another threshold starts from the neighbours, one with a changed file
    reads and encodes that side again.

    Args:
        source: A file with one sentence per line (also `.gz`, `.bz2`, `.xz`, `.zst`, `.lz4`), a list of sentences, or a
            matrix with a vector in each row, which is normalised to length 1.
        target: The other side, of the same kind.
        options: The defaults if None.
        encoder: Anything with a sentence-transformers style `encode`, or the folder or Hub id of a model. Not for
            matrices.
        folder: Work folder of the stages; a temporary one if None.
        known: Translations that are hidden among the sentences to choose the threshold, see `docs/mine.md`.
        precision: With known pairs, the precision that the threshold must reach; by default it has the best F1.
        runner: What encodes and searches: this process by default, `hf_xlsr.utils.tasks.LocalPool` on several processes
            of this machine, `hf_xlsr.utils.ray_tasks.RayRunner` on a cluster that sees the folder. Several processes need
            an encoder by name. The pairs are the same.
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
        run = run_mining(source, target, work, options, encoder=encoder, known=known, runner=runner)
        chosen = run.chosen(options, precision)
        step = chosen.step("mine_bitext", run, languages=options.languages)
        return replace(chosen.pairs, facts=PairFacts([step]))


def run_mining(
    source: Sentences | np.ndarray,
    target: Sentences | np.ndarray,
    folder: str | os.PathLike[str],
    options: MiningOptions,
    *,
    encoder: Encoder | str | None = None,
    vectors: tuple[np.ndarray, np.ndarray] | None = None,
    known: Iterable[tuple[str, str]] | None = None,
    runner: Runner | None = None,
) -> MiningRun:
    """`mine_bitext` with all pairs, a report, and access to the texts; `vectors` of the lines may replace the encoder."""
    hidden = HiddenPairs() if known is None else HiddenPairs.sample(known)
    texts: dict[str, Any] = {"source": source, "target": target}
    if vectors is None and hasattr(source, "__array__") and hasattr(target, "__array__"):
        texts = {}
        vectors = (np.asanyarray(source), np.asanyarray(target))
    if (vectors is None) == (encoder is None) or (hidden.complete and encoder is None):
        raise XlsrError("Texts and `known` pairs need an encoder (--model), given vectors and matrices need none.")

    matrices: dict[str, np.ndarray] = {}
    duplicates = options.duplicates
    if vectors is not None:
        matrices = {side: as_matrix(matrix, side) for side, matrix in zip(SIDES, vectors, strict=True)}
        check_widths(*matrices.values())
        duplicates = "keep"
    hidden_sentences = {"source": hidden.source, "target": hidden.target}
    job = Job(folder, options, texts, encoder, duplicates, hidden_sentences, runner)
    if isinstance(runner, LocalPool):
        import_ahead(__name__)

    with job.claimed("mine", lambda: _plan(job, matrices)):
        stores, report = job.read()
        unit_vectors = job.encode(stores)
        for side, matrix in matrices.items():
            report.setdefault(side, {"name": side, "sentences": len(matrix), "lines": len(matrix)})
            unit_vectors[side] = _unit_vectors(job, side, matrix, stores.get(side), report[side]["lines"])

        hidden_numbers = []
        if hidden.complete:
            hidden_numbers = [_hidden_numbers(store, report[side]) for side, store in stores.items()]

        figures = _mine(job, unit_vectors, hidden_numbers)
        run = MiningRun(_load_pairs(job, "pairs"), None, report | figures | job.report(), facts=job.facts())
        if stores:
            run.texts = (stores["source"], stores["target"])
            if hidden.complete:
                mined = _by_line(_load_pairs(job, "hidden"), run.texts)
                present = [set(numbers.tolist()) for numbers in hidden_numbers]
                run.report["known"] = _known_in_texts(hidden, present)
                lines = [report[side]["lines"] for side in SIDES]
                sentences = [report[side]["sentences"] for side in SIDES]
                run.curve = hidden_curve(hidden, mined, lines, sentences, present, run.rows.score)
    return run


def _known_in_texts(hidden: HiddenPairs, present: Sequence[set[int]]) -> dict[str, Any]:
    """Counts the known sentences that cannot be hidden, as the texts have them, too; `present` are the hidden ones."""
    in_texts = []
    for sentences, numbers in zip((hidden.source, hidden.target), present, strict=True):
        in_texts += [text for number, text in enumerate(sentences) if number not in numbers]
    total = len(hidden.source) + len(hidden.target)
    return _counted_texts("known sentences that the texts have, too, which tell nothing", in_texts, total)


def _counted_texts(what: str, texts: Sequence[str], total: int) -> dict[str, Any]:
    """The number of some texts, and the first three, for a report; with a warning if there are any."""
    examples = [text[:LONGEST_EXAMPLE] for text in texts[:3]]
    if texts:
        names = "; ".join(f"'{example}'" for example in examples)
        logger.warning("%d of %d are %s, first: %s.", len(texts), total, what, names)
    return {"given": total, what: len(texts), "first": examples}


def _hidden_numbers(store: TextStore, counts: Mapping[str, Any]) -> np.ndarray:
    """Numbers among the hidden sentences, from 0, of those that are not in the text: the last rows of the store."""
    numbers: np.ndarray = store.lines(np.arange(counts["sentences"], len(store))) - counts["lines"]
    return numbers


def _pairs_file(job: Job, name: str) -> Path:
    return job.folder("pairs") / f"{name}.npy"


def _save_hidden(job: Job, mined: MinedBitext) -> None:
    with atomic_write(_pairs_file(job, "hidden")) as partial, partial.open("wb") as file:
        np.save(file, pairs_of(mined.source, mined.target, mined.score))


def _load_pairs(job: Job, name: str) -> MinedBitext:
    return MinedBitext.load(_pairs_file(job, name))


def _by_line(rows: MinedBitext, texts: tuple[TextStore, TextStore]) -> MinedBitext:
    return replace(rows, source=texts[0].lines(rows.source), target=texts[1].lines(rows.target))


def _plan(job: Job, matrices: Mapping[str, np.ndarray]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Inputs and settings of the stages, as `Job.plan`, with the given matrices and the stages after the vectors."""
    inputs, plan = job.plan()
    for side, matrix in matrices.items():
        digest = array_hash(matrix)
        file: Path | None = getattr(matrix, "filename", None)
        # A job with texts is identified by these, whatever their vectors.
        inputs.setdefault(side, {"name": file and str(file), "sha256": digest})
        plan[f"{side}.vectors"] = {"sha256": digest, "text": inputs[side]["sha256"]}
        if job.options.vectors_dtype:
            plan[f"{side}.vectors"]["dtype"] = job.options.vectors_dtype

    vectors = [plan[f"{side}.vectors"] for side in SIDES]
    plan["neighbours"] = {"vectors": vectors, **job.options.search}
    plan["pairs"] = {"neighbours": plan["neighbours"], "file": PAIRS_VERSION, **job.options.extraction}
    return inputs, plan


def _unit_vectors(
    job: Job,
    side: str,
    matrix: np.ndarray,
    store: TextStore | None,
    lines: int,
) -> np.ndarray:
    """The given matrix if its rows have length 1 and no line is skipped; otherwise such a copy on disk.

    A copy is also made if the options say how vectors are stored.
    """
    if len(matrix) != lines:
        raise XlsrError(f"{store.name if store else side} has {lines:,} lines, but {len(matrix):,} vectors are given.")
    stage = job[f"{side}.vectors"]
    path = job.folder(f"{side}.vectors") / "vectors.npy"
    if stage.result is None:
        with job.timed("vectors"):
            _save_unit_vectors(path, side, matrix, store, job.options.vectors_dtype)
            stage.finish()
    return np.load(path, mmap_mode="r") if path.exists() else matrix


def _save_unit_vectors(
    path: Path,
    side: str,
    matrix: np.ndarray,
    store: TextStore | None,
    dtype: str | None,
) -> None:
    """Writes the vectors of the lines in the store (all if None) with length 1, unless the matrix itself has these.

    `dtype` is one of `VECTOR_BYTES`; None keeps that of the matrix if its rows have length 1.
    """
    vectors = Vectors(matrix)
    lines = np.arange(len(matrix))
    if store is not None:
        lines = store.lines(np.arange(len(store)))

    def blocks() -> Iterator[np.ndarray]:
        for start in range(0, len(lines), ROWS_AT_ONCE):
            yield vectors.rows(lines[start : start + ROWS_AT_ONCE])

    lengths_of_blocks = [np.empty(0, np.float32)]
    for block in blocks():
        lengths_of_blocks.append(np.linalg.norm(as_floats(block, np.float32), axis=1))
    lengths = np.concatenate(lengths_of_blocks)
    bad_rows = np.flatnonzero(~np.isfinite(lengths) | (lengths == 0))
    if len(bad_rows):
        bad_line = lines[bad_rows[0]]
        name = f"row {bad_line} of {side}" if store is None else f"line {bad_line + 1} of {store.name}"
        raise XlsrError(f"The vector of {name} must be finite and not only zeros.")

    is_unit = (np.abs(lengths - 1) < UNIT_TOLERANCE).all()
    if dtype or not is_unit:
        stored_dtype = dtype or "float32"
        unit_blocks = (unit_length(as_floats(block, np.float64)) for block in blocks())
        stored_blocks = (stored_as(block, stored_dtype) for block in unit_blocks)
        empty = stored_as(vectors[lines[:0]], stored_dtype)
        save_rows(path, stored_blocks, (len(lines), *empty.shape[1:]), empty.dtype)
    elif len(lines) < len(matrix):
        save_rows(path, blocks(), vectors.shape(len(lines)), matrix.dtype)


def _mine(job: Job, vectors: Mapping[str, np.ndarray], hidden: Sequence[np.ndarray]) -> dict[str, Any]:
    """Saves neighbours and pairs in the work folder, unless they are there; returns how they were searched.

    `hidden` has the numbers of the hidden sentences of both sides, whose rows are the last ones; it is empty if none are
    hidden. With hidden rows, pairs are extracted without and with them.
    """
    finished = job["pairs"].result
    if finished is not None:
        job.reused += ["neighbours", "pairs"]
        return finished
    if job["neighbours"].result is not None:
        job.reused.append("neighbours")

    with job.timed("neighbours"):
        neighbours = job.search("neighbours", vectors["source"], vectors["target"])
        k = job.options.k
        sizes = {
            "source": neighbours.forward_indices.shape[1],
            "target": neighbours.backward_indices.shape[1],
        }
        figures = {**neighbours.figures, "k": k, "neighbours": sizes}
        job["neighbours"].finish(**figures)
    for side, size in sizes.items():
        if size < k:
            logger.warning("k is %d, but %s sentences have only %d neighbours.", k, side, size)

    with job.timed("pairs"):
        extraction = {"memory": job.memory, **job.options.extraction}
        without = None
        if hidden:
            numbers = [np.full(len(vectors[side]), -1) for side in SIDES]
            for rows, own in zip(numbers, hidden, strict=True):
                rows[len(rows) - len(own) :] = own
            _save_hidden(job, mine_hidden(neighbours, numbers, **extraction))
            without = (numbers[0] >= 0, numbers[1] >= 0)
        extract_pairs(neighbours, without=without, file=_pairs_file(job, "pairs"), **extraction)
        job["pairs"].clear(keep=("pairs", "hidden"))
        job["pairs"].finish(**figures)
    return figures
