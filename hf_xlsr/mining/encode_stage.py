"""Sentences to float16 vectors on disk, shard by shard, by any number of processes."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tqdm import tqdm

from hf_xlsr.encoders.encoding import Encoder, EncodingOptions, default_prompt, embed
from hf_xlsr.encoders.fingerprint import content_hash, loaded_hash
from hf_xlsr.encoders.loading import check_choice, check_dtype, load_encoder
from hf_xlsr.encoders.routing import routes_of
from hf_xlsr.mining.search.storage import drop_pages
from hf_xlsr.mining.texts import TextStore
from hf_xlsr.utils.errors import XlsrError

LARGEST_SHARD, SMALLEST_SHARD, SHARDS_WANTED = 1 << 14, 1 << 10, 64  # rows, rows, shards a side
SHARD_BYTES = 1 << 25
VECTORS, SHARDS = "vectors.npy", "shards"
# The second is longer than any encoder takes: its vector tells where it is cut.
PROBES = ("One sentence.", "One sentence of many words, " * 200)
HEADER = 128  # bytes, whatever the shape
ITEMSIZE = 2  # bytes a number, of float16
ROWS_AT_ONCE = 1 << 12
UNIT_TOLERANCE = 2e-3


class VectorFile:
    """A float16 matrix on disk that is filled by ranges of rows, in any order and by several processes.

    A range is written, then noted in `shards/`: what is noted is there, whenever the process was killed.

    Args:
        folder: Where it lies; made when missing.
        rows: Its rows.
        shards: The ranges.
    """

    def __init__(self, folder: Path, rows: int, shards: Sequence[tuple[int, int]]) -> None:
        self.path, self.notes, self.rows, self.shards = folder / VECTORS, folder / SHARDS, rows, list(shards)
        self.notes.mkdir(parents=True, exist_ok=True)

    def missing(self) -> list[int]:
        """Numbers of the ranges that are not written yet."""
        done = set(os.listdir(self.notes))
        return [number for number in range(len(self.shards)) if str(number) not in done]

    def write(self, number: int, vectors: np.ndarray) -> None:
        """Writes one range and notes it.

        Raises:
            XlsrError: the vectors are of another width than those of the ranges before.
        """
        start, stop = self.shards[number]
        width = vectors.shape[1]
        header = _header((self.rows, width))
        # Processes that come first together write the same header.
        with open(os.open(self.path, os.O_RDWR | os.O_CREAT, 0o666), "r+b", buffering=0) as file:
            there = file.read(HEADER)
            if len(there) < HEADER:
                _write_all(file, 0, header)
            elif there != header:
                raise XlsrError(
                    f"the encoder gave vectors {width} wide after others of another width; encode all with one model."
                )
            _write_all(file, HEADER + ITEMSIZE * start * width, vectors.astype(np.float16).tobytes())
            os.fsync(file.fileno())
        (self.notes / str(number)).touch()

    def open(self) -> np.ndarray:
        """The whole matrix, `(rows, width)`, float16, memory-mapped; once every range is there."""
        return np.load(self.path, mmap_mode="r")


def _header(shape: tuple[int, int]) -> bytes:
    fields = f"{{'descr': '<f2', 'fortran_order': False, 'shape': ({shape[0]}, {shape[1]}), }}"
    return b"\x93NUMPY\x01\x00" + (HEADER - 10).to_bytes(2, "little") + fields.ljust(HEADER - 11).encode() + b"\n"


def _write_all(file: Any, start: int, content: bytes) -> None:
    file.seek(start)
    view = memoryview(content)
    while view:  # a disk that runs full, or a limit, first cuts a write short
        view = view[file.write(view) :]


class LazyEncoder:
    """An encoder, or the name of one, which is loaded when it is first used and forgotten afterwards.

    Args:
        encoder: Anything with a sentence-transformers style `encode`, or the folder or Hub id of a model.
        device: Where a model that is loaded by name goes; its own choice when None.
        dtype: Precision of the weights of a model that is loaded by name; as its files hold them when None.

    Raises:
        XlsrError: the dtype is unknown.
    """

    def __init__(self, encoder: Encoder | str, device: str | None = None, dtype: str | None = None) -> None:
        check_dtype(dtype)
        self._encoder = None if isinstance(encoder, str) else encoder
        self.model = encoder if isinstance(encoder, str) else None
        self._device, self._dtype = device, dtype

    def get(self) -> Any:
        """The encoder."""
        if self._encoder is None and self.model is not None:
            self._encoder = load_encoder(self.model, self._device, self._dtype)
        return self._encoder

    def width(self) -> int | None:
        """How wide its vectors are; None where it does not say so."""
        tell = getattr(self.get(), "get_embedding_dimension", None)
        return None if tell is None else tell()

    def release(self) -> None:
        """Forgets a model that was loaded by name, which frees its memory."""
        if self.model is not None:
            self._encoder = None

    def identity(self, language: str | None = None, routes: Mapping[str, str] | None = None) -> str:
        """What tells this encoder from another.

        A model counts by its files, wherever they lie: a folder's, or those of an id of the Hub in its cache on this
        machine, where they are fetched to when they are not there. A loaded model counts by its settings and weights
        (`loaded_hash`), any other object by its class, and both by their vectors of two sentences, in `language`.

        Raises:
            XlsrError: there is no such model folder, or the model cannot be fetched.
        """
        if self.model is not None:
            check_choice(self.model, self._device, self._dtype)
            name = self._hash_or_id(self.model)
            return f"{name} in {self._dtype}" if self._dtype else name
        encoder = self.get()
        # Rounded, as the last digits depend on the number of threads.
        probe = embed(encoder, PROBES, language=language, routes=routes)
        digest = hashlib.sha256((probe.round(2) + 0).tobytes())
        if isinstance(encoder, torch.nn.Module):
            digest.update(loaded_hash(encoder, poolers=False).encode())
        return f"{type(encoder).__qualname__}:{digest.hexdigest()}"

    def _hash_or_id(self, model: str) -> str:
        if Path(model).is_dir():
            return f"sha256:{content_hash(model)}"
        digest = _cached_hash(model)
        if digest is None:
            # Fetched now rather than at the first shard: a second call, which finds the files, must not count the
            # vectors of this one as another encoder's.
            self.get()
            self.release()
            digest = _cached_hash(model)
        return model if digest is None else f"sha256:{digest}"


def _cached_hash(model: str) -> str | None:
    try:
        return content_hash(model)
    except XlsrError:
        return None


class _NamesLines:
    """Passes texts on to an encoder and checks its vectors; says in which line of the file a bad one stands."""

    def __init__(self, encoder: Any, line_of: Callable[[int], str]) -> None:
        self.encoder, self.line_of = encoder, line_of
        self.routes = routes_of(encoder)
        self.default_prompt_name = default_prompt(encoder)

    def encode(self, texts: Sequence[str], **options: Any) -> Any:
        vectors = self.encoder.encode(texts, **options)
        if np.ndim(vectors) == 2 and len(vectors) == len(texts):
            check_vectors(np.asarray(vectors), self.line_of)
        return vectors


def check_vectors(vectors: np.ndarray, name_of: Callable[[int], str]) -> bool:
    """Refuses vectors that have no direction, and looks at their lengths.

    Args:
        vectors: `(rows, width)`; read in blocks.
        name_of: What the sentence of a row is called.

    Returns:
        Whether all are of length 1, as far as float16 can be.

    Raises:
        XlsrError: one holds NaN or infinity, or only zeros; says which is the first one.
    """
    unit = True
    for start in range(0, len(vectors), ROWS_AT_ONCE):
        block = np.asarray(vectors[start : start + ROWS_AT_ONCE], np.float32)
        drop_pages(vectors)
        lengths = np.linalg.norm(block, axis=1)
        for rows, fault, mend in (
            (~np.isfinite(lengths), "holds NaN or infinity", "check the encoder, or encode in float32"),
            (lengths == 0, "is all zeros", "leave that sentence out, or take an encoder that knows its words"),
        ):
            bad = np.flatnonzero(rows)
            if bad.size:
                raise XlsrError(f"the vector of {name_of(start + int(bad[0]))} {fault}; {mend}.")
        unit = unit and bool((np.abs(lengths - 1) < UNIT_TOLERANCE).all())
    return unit


def shards_of(store: TextStore) -> list[tuple[int, int]]:
    """The ranges of rows that are encoded at a time; they depend on the texts alone."""
    rows = min(LARGEST_SHARD, max(SMALLEST_SHARD, -(-len(store) // SHARDS_WANTED)))
    return store.shards(rows, SHARD_BYTES)


def encode_shards(
    sides: Sequence[tuple[TextStore, VectorFile, str | None]],
    encoder: LazyEncoder,
    encoding: EncodingOptions,
    *,
    process: tuple[int, int] = (0, 1),
    show_progress_bar: bool = False,
) -> None:
    """Encodes what is missing of some sides; each process takes every so-manieth shard.

    Inside a shard the longest sentences come first, so that a batch holds sentences of like length. What a sentence's
    vector is depends on its shard, not on the processes.

    Args:
        sides: Texts, where the vectors go, and the language, of each side.
        encoder: Loaded only when something is missing.
        encoding: Options of `embed`.
        process: Number of this process, and how many there are.
        show_progress_bar: Show one over all processes' sentences.

    Raises:
        XlsrError: the encoder gave a vector of NaN or zeros, or none.
    """
    # By number, not by what is missing: a process that begins late must not count otherwise than the others.
    tasks = [(side, number) for side, (_, file, _) in enumerate(sides) for number in range(len(file.shards))]
    missing = [set(file.missing()) for _, file, _ in sides]
    total, left = sum(len(store) for store, _, _ in sides), _rows_missing(sides)
    hidden = not (show_progress_bar and left)
    with tqdm(total=total, initial=total - left, desc="encoding", unit=" sentences", disable=hidden) as bar:
        for side, number in tasks[process[0] :: process[1]]:
            if number in missing[side]:
                store, file, language = sides[side]
                file.write(number, _encode(store, file.shards[number], encoder.get(), language, encoding))
                bar.update(total - _rows_missing(sides) - bar.n)


def _rows_missing(sides: Sequence[tuple[TextStore, VectorFile, str | None]]) -> int:
    return sum(file.shards[number][1] - file.shards[number][0] for _, file, _ in sides for number in file.missing())


def _encode(
    store: TextStore, shard: tuple[int, int], encoder: Any, language: str | None, encoding: EncodingOptions
) -> np.ndarray:
    rows = np.arange(*shard)
    texts = store.texts(rows)
    # Equal texts are handed over once, so that positions in the encoder's input are known.
    first = {text: place for place, text in reversed(list(enumerate(texts)))}
    order = sorted(first.values(), key=lambda place: (-len(texts[place]), place))

    def line_of(position: int) -> str:
        return f"line {store.lines(rows[order[position : position + 1]])[0] + 1} of {store.name}"

    vectors = embed(_NamesLines(encoder, line_of), [texts[place] for place in order], language=language, **encoding)
    position = {place: number for number, place in enumerate(order)}
    return vectors[[position[first[text]] for text in texts]]
