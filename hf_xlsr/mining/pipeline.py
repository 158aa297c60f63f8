"""Bitext mining from two text files or matrices to pairs, in stages that resume."""

from __future__ import annotations

import hashlib
import logging
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from hf_xlsr.encoders.encoding import Encoder
from hf_xlsr.mining.encode_stage import ITEMSIZE, LazyEncoder, check_vectors
from hf_xlsr.mining.search.both_ways import as_matrix, check_memory, copied_itemsize, neighbours_both_ways
from hf_xlsr.mining.search.extraction import MinedBitext, extract_pairs, mine_vectors
from hf_xlsr.mining.search.storage import drop_pages
from hf_xlsr.mining.stages import Processes, Stages, TextSide, TextSides, vector_stage
from hf_xlsr.mining.texts import DUPLICATES, Sentences, TextStore
from hf_xlsr.mining.work_folder import WorkFolder, save_array, save_rows
from hf_xlsr.utils.devices import known_device
from hf_xlsr.utils.errors import XlsrError, nearest
from hf_xlsr.utils.memory import parse_size

logger = logging.getLogger(__name__)

SIDES = ("source", "target")
ROWS_AT_ONCE = 1 << 12
PAIRS_AT_ONCE = 1 << 12
PAIR_ARRAYS = ("source", "target", "score")


@dataclass(frozen=True)
class MiningSettings:
    """The options of `mine_bitext`, checked; and two more.

    Attributes:
        vectors: Of the lines of the two texts, instead of an encoder: `(lines, width)` each.
        dtype: Precision of the weights of an encoder that is given by name; as its files hold them when None.
    """

    encoder: Encoder | str | None = None
    vectors: tuple[np.ndarray, np.ndarray] | None = None
    dtype: str | None = None
    languages: Sequence[str] | None = None
    k: int = 4
    margin: str = "ratio"
    retrieval: str = "max"
    threshold: float | None = None
    one_to_one: bool = True
    duplicates: str | None = None
    max_pairs: int | None = None
    method: str = "auto"
    memory: int | str | None = None
    device: str | None = None
    batch_size: int = 64
    prompt: str = ""
    routes: Mapping[str, str] | None = None
    show_progress_bar: bool = False

    def __post_init__(self) -> None:
        parse_size(self.memory)
        if self.duplicates is not None and self.duplicates not in DUPLICATES:
            raise XlsrError(f"duplicates is '{self.duplicates}'; {nearest(self.duplicates, DUPLICATES)}")
        if self.languages is not None and len(self.languages) != 2:
            raise XlsrError(f"languages is {','.join(self.languages)}; give source and target, e.g. en,fr.")
        if self.batch_size < 1:
            raise XlsrError(f"batch_size is {self.batch_size}; encode 1 sentence or more at a time.")
        nothing = np.empty((0, 1), np.float32)
        # Mining nothing checks the other options, before hours of encoding.
        mine_vectors(nothing, nothing, k=self.k, method=self.method, **self.extraction())

    def extraction(self) -> dict[str, Any]:
        """The options of `extract_pairs`."""
        names = ("margin", "retrieval", "threshold", "one_to_one", "max_pairs")
        return {name: getattr(self, name) for name in names}


@dataclass
class MiningRun:
    """What `run_mining` found.

    Attributes:
        pairs: By line of the inputs, from 0.
        rows: The same pairs by row of `texts`.
        texts: Both sides' sentences; None for matrices.
        report: Counts, sizes of neighbourhoods, method, recall, seconds by stage.
        leader: Whether this is the first of several processes, which writes what is to be written.
    """

    pairs: MinedBitext
    rows: MinedBitext
    texts: tuple[TextStore, TextStore] | None
    report: dict[str, Any]
    leader: bool = True

    def sentences(self) -> Iterator[dict[str, Any]]:
        """The pairs with their texts, best first, for `write_pairs`; lines count from 1 here."""
        if self.texts is None:
            raise XlsrError("matrices were mined; there are no texts to write.")
        for start in range(0, len(self.rows), PAIRS_AT_ONCE):
            part = slice(start, start + PAIRS_AT_ONCE)
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
    *,
    encoder: Encoder | str | None = None,
    languages: Sequence[str] | None = None,
    k: int = 4,
    margin: str = "ratio",
    retrieval: str = "max",
    threshold: float | None = None,
    one_to_one: bool = True,
    duplicates: str | None = None,
    max_pairs: int | None = None,
    method: str = "auto",
    memory: int | str | None = None,
    device: str | None = None,
    folder: str | os.PathLike[str] | None = None,
    batch_size: int = 64,
    prompt: str = "",
    routes: Mapping[str, str] | None = None,
    show_progress_bar: bool = False,
) -> MinedBitext:
    """Finds sentences that are likely translations of each other in two texts, or rows in two matrices.

    The stages (read and deduplicate, encode, neighbours, pairs) leave their results in `folder`. The same call goes on
    where it was stopped, even by SIGKILL; a call with another threshold starts from the neighbours, one with a changed
    file reads and encodes that side again. Under `accelerate launch` or `torchrun` all processes encode.

    Args:
        source: A file with one sentence a line (also `.gz`, `.bz2`, `.xz`, `.zst`), a list of sentences, or a matrix
            with a vector in each row, which is brought to length 1.
        target: The other side, of the same kind.
        encoder: Anything with a sentence-transformers style `encode`, or the folder or Hub id of a model, which is
            loaded only if something is left to encode. Not for matrices.
        languages: Of source and target; an encoder with a route for each language needs them.
        k: Size of the neighbourhoods, both ways; cut to the number of sentences on the other side.
        margin: `ratio`, `distance` or `absolute`, see `margin_scores`.
        retrieval: `max`, `intersection`, `forward` or `backward`, see `extract_pairs`.
        threshold: The lowest score that counts, in every mode; none by default.
        one_to_one: Each sentence in one pair at most.
        duplicates: `merge` (equal lines are one sentence, found under the first one's line; what texts take by
            default), `keep` (every line for itself; all that matrices can) or `drop` (a text that occurs twice on a
            side is left out).
        max_pairs: Keep that many of the best pairs; all by default.
        method: `exact`, `ivf` or `auto`, see `neighbours_both_ways`.
        memory: What all stages but the encoder itself may use: bytes, or a text such as `512MB`.
        device: Where the model, if given by name, and the search run; by default a GPU if there is one, for matrices
            the CPU.
        folder: Where the stages leave their results; a temporary one by default, removed in the end.
        batch_size: Sentences encoded at a time.
        prompt: Put before every sentence, for instance `"query: "`.
        routes: Language -> route of an encoder whose routes do not bear the languages' names.
        show_progress_bar: Show one for every stage.

    Returns:
        `source` and `target`, the lines (from 0, in the file as it was given) or rows of each pair, and `score`; best
        first.

    Raises:
        XlsrError: a file, an option or a vector is wrong, the folder is another job's, or the disk is full.

    Example:
        >>> class Letters:
        ...     def encode(self, texts, **kwargs):
        ...         return np.array([[text.count(letter) + 0.1 for letter in "abc"] for text in texts])
        >>> mined = mine_bitext(["aa", "b", "aa"], ["bb", "a", "cc"], encoder=Letters(), threshold=1.05)
        >>> list(zip(mined.source.tolist(), mined.target.tolist()))
        [(1, 0), (0, 1)]
    """
    settings = MiningSettings(
        encoder=encoder,
        languages=languages,
        k=k,
        margin=margin,
        retrieval=retrieval,
        threshold=threshold,
        one_to_one=one_to_one,
        duplicates=duplicates,
        max_pairs=max_pairs,
        method=method,
        memory=memory,
        device=device,
        batch_size=batch_size,
        prompt=prompt,
        routes=routes,
        show_progress_bar=show_progress_bar,
    )
    if folder is not None:
        return run_mining(source, target, folder, settings).pairs
    if Processes().count > 1:
        raise XlsrError("several processes mine together through a folder; give one that all of them see.")
    with tempfile.TemporaryDirectory(prefix="hf-xlsr-mine-") as temporary:
        return run_mining(source, target, Path(temporary) / "work", settings).pairs


def run_mining(
    source: Sentences | np.ndarray,
    target: Sentences | np.ndarray,
    folder: str | os.PathLike[str],
    settings: MiningSettings,
) -> MiningRun:
    """What `mine_bitext` does, with a report and access to the texts, as long as the folder is there.

    Args:
        source: A file, a list of sentences or a matrix.
        target: The other side, of the same kind.
        folder: Where the stages leave their results.
        settings: The options.

    Raises:
        XlsrError: as `mine_bitext` says.
    """
    matrices = _matrices(source, target, settings)
    duplicates = settings.duplicates or ("keep" if matrices else "merge")
    if matrices and duplicates != "keep":
        raise XlsrError(f"duplicates is '{duplicates}', but vectors are given and every row counts; leave it out.")
    processes = Processes()
    device = search_device(settings.device, settings.encoder)
    encoder = None
    if settings.encoder is not None:
        encoder = LazyEncoder(settings.encoder, settings.device or processes.device, settings.dtype)
    given = {} if matrices and settings.vectors is None else {"source": source, "target": target}
    languages = dict(zip(SIDES, settings.languages or (None, None), strict=True))
    texts = TextSides(
        {side: TextSide(text, languages[side], duplicates) for side, text in given.items()},
        encoder,
        {"prompt": settings.prompt, "batch_size": settings.batch_size, "routes": settings.routes},
    )
    inputs, plan = _plan(texts, matrices, settings) if processes.leads else ({}, {})
    stages = Stages(
        WorkFolder(folder),
        processes,
        memory=parse_size(settings.memory),
        show_progress_bar=settings.show_progress_bar,
    )

    def check(counts: Mapping[str, int], width: int, itemsize: int) -> None:
        check_memory(
            (counts["source"], counts["target"]),
            width,
            settings.k,
            itemsize=itemsize,
            method=settings.method,
            memory=stages.memory,
            device=device,
            uncounted=stages.uncounted(encoder is not None),
        )

    with stages.claimed("mine", inputs, plan):
        if matrices and processes.leads and stages.work.result("neighbours") is None:
            given_rows = {side: len(matrix) for side, matrix in matrices.items()}
            check(given_rows, matrices["source"].shape[1], max(map(copied_itemsize, matrices.values())))
        stores, report = texts.read(stages)
        counts = {side: len(store) for side, store in stores.items()}
        vectors = texts.encode(stages, stores, lambda width: check(counts, width, ITEMSIZE))
        for side, matrix in matrices.items():
            lines = report.setdefault(side, {"name": side, "sentences": len(matrix)}).get("lines", len(matrix))
            vectors[side] = _unit_vectors(stages, side, matrix, stores.get(side), lines)
        if processes.leads:
            _mine(stages, vectors, settings, device)
        report |= stages.work.wait_for("pairs")
        rows = pairs = MinedBitext(*(np.load(stages.work.path / "pairs" / f"{name}.npy") for name in PAIR_ARRAYS))
        if stores:
            pairs = MinedBitext(stores["source"].lines(rows.source), stores["target"].lines(rows.target), rows.score)
        processes.meet()
    report |= {"pairs": len(rows), "threshold": settings.threshold}
    report["scores"] = [float(rows.score[-1]), float(rows.score[0])] if len(rows) else None
    report |= stages.report()
    return MiningRun(pairs, rows, (stores["source"], stores["target"]) if stores else None, report, processes.leads)


def _matrices(source: Any, target: Any, settings: MiningSettings) -> dict[str, np.ndarray]:
    """The vectors by side; none when there are only texts."""
    if settings.vectors is not None:
        found = dict(zip(SIDES, settings.vectors, strict=True))
    else:
        found = {
            side: value for side, value in zip(SIDES, (source, target), strict=True) if hasattr(value, "__array__")
        }
    if len(found) == 1:
        raise XlsrError(f"only {next(iter(found))} is a matrix; give two matrices, or two texts.")
    if found and settings.encoder is not None:
        raise XlsrError("there are vectors and an encoder as well; give one of them.")
    if not found and settings.encoder is None:
        raise XlsrError("texts become vectors by an encoder, but none is given; give one (--model), or matrices.")
    matrices = {side: as_matrix(value, side) for side, value in found.items()}
    for side, matrix in matrices.items():
        if not len(matrix):
            raise XlsrError(f"{side} has shape {matrix.shape}; give a matrix of one row or more, each a sentence's.")
    if matrices and matrices["source"].shape[1] != matrices["target"].shape[1]:
        widths = " and ".join(f"{side} {matrix.shape[1]}" for side, matrix in matrices.items())
        raise XlsrError(f"the matrices are not equally wide ({widths}); encode both sides with one model.")
    return matrices


def _plan(
    texts: TextSides, matrices: Mapping[str, np.ndarray], settings: MiningSettings
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The inputs with their hashes, and the settings of each stage, which hold those of the stages before it."""
    inputs, plan = texts.plan()
    for side, matrix in matrices.items():
        digest, name = _matrix_hash(matrix), getattr(matrix, "filename", None)
        # A job with texts is known by these, whatever their vectors.
        inputs.setdefault(side, {"name": None if name is None else str(name), "sha256": digest})
        plan[vector_stage(side)] = {"sha256": digest, "text": inputs[side]["sha256"]}
    vectors = [plan[vector_stage(side)] for side in SIDES]
    plan["neighbours"] = {"vectors": vectors, "k": settings.k, "method": settings.method}
    plan["pairs"] = {"neighbours": plan["neighbours"], **settings.extraction()}
    return inputs, plan


def _matrix_hash(matrix: np.ndarray) -> str:
    digest = hashlib.sha256(f"{matrix.dtype} {matrix.shape}".encode())
    for start in range(0, len(matrix), ROWS_AT_ONCE):
        digest.update(np.ascontiguousarray(matrix[start : start + ROWS_AT_ONCE]).tobytes())
        drop_pages(matrix)
    return digest.hexdigest()


def _unit_vectors(stages: Stages, side: str, matrix: np.ndarray, store: TextStore | None, lines: int) -> np.ndarray:
    """A matrix that was given, if its rows are of length 1 and all of use; else a copy on disk of which that is true."""
    if len(matrix) != lines:
        name = side if store is None else store.name
        raise XlsrError(
            f"{name} has {lines:,} lines, but {len(matrix):,} vectors are given for them; give the vectors of this very "
            "file."
        )
    stage = vector_stage(side)
    used, path = stages.work.path / stage / "used.npy", stages.work.path / stage / "vectors.npy"
    fewer = store if store is not None and len(store) < lines else None
    if stages.processes.leads and stages.work.result(stage) is None:
        with stages.timed("vectors"):
            if fewer is not None:
                save_rows(used, _rows_used(matrix, fewer), (len(fewer), matrix.shape[1]), matrix.dtype)
                matrix = np.load(used, mmap_mode="r")
            unit = check_vectors(matrix, partial(_line_of, side, store))
            if not unit:
                save_rows(path, _normalized(matrix), matrix.shape, np.float32)
                used.unlink(missing_ok=True)
            stages.work.finish(stage, {"unit": unit})
    if not stages.work.wait_for(stage)["unit"]:
        return np.load(path, mmap_mode="r")
    return matrix if fewer is None else np.load(used, mmap_mode="r")


def _line_of(side: str, store: TextStore | None, row: int) -> str:
    return f"row {row} of {side}" if store is None else f"line {store.lines(np.array([row]))[0] + 1} of {store.name}"


def _rows_used(matrix: np.ndarray, store: TextStore) -> Iterator[np.ndarray]:
    """The vectors of the lines that were not skipped."""
    for start in range(0, len(store), ROWS_AT_ONCE):
        rows = store.lines(np.arange(start, min(start + ROWS_AT_ONCE, len(store))))
        block = np.asarray(matrix[rows])
        drop_pages(matrix)
        yield block


def _normalized(matrix: np.ndarray) -> Iterator[np.ndarray]:
    for start in range(0, len(matrix), ROWS_AT_ONCE):
        block = np.asarray(matrix[start : start + ROWS_AT_ONCE], np.float64)
        drop_pages(matrix)
        yield block / np.linalg.norm(block, axis=1, keepdims=True)


def _mine(stages: Stages, vectors: Mapping[str, np.ndarray], settings: MiningSettings, device: str) -> None:
    """Neighbours and pairs, into the work folder; nothing where the pairs are there."""
    work = stages.work
    if work.result("pairs") is not None:
        stages.reused += ["neighbours", "pairs"]
        return
    if work.result("neighbours") is not None:
        stages.reused.append("neighbours")
    with stages.timed("neighbours"):
        both = neighbours_both_ways(
            vectors["source"],
            vectors["target"],
            settings.k,
            method=settings.method,
            memory=stages.memory,
            device=device,
            uncounted=stages.uncounted(settings.encoder is not None),
            folder=work.path / "neighbours",
            show_progress_bar=stages.show_progress_bar,
        )
        sizes = {"source": both.forward_indices.shape[1], "target": both.backward_indices.shape[1]}
        found = {"method": both.method, "recall": both.recall, "k": settings.k, "neighbours": sizes}
        work.finish("neighbours", found)
    for side, size in sizes.items():
        if size < settings.k:
            logger.warning(
                "k is %d, but %s sentences have only %d to be compared with: k is cut.", settings.k, side, size
            )
    with stages.timed("pairs"):
        mined = extract_pairs(both, **settings.extraction())
        for name in PAIR_ARRAYS:
            save_array(work.path / "pairs" / f"{name}.npy", getattr(mined, name))
        work.finish("pairs", found)


def search_device(device: str | None, encoder: Encoder | str | None) -> str:
    """Where the search runs: as told, else on a GPU if there is one and an encoder was given.

    Raises:
        XlsrError: there is no such device.
    """
    if device is not None:
        return str(known_device(device))
    if encoder is None:
        return "cpu"
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"
