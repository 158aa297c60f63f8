"""Encoding of sentences to float16 vectors on disk, shard by shard, by any number of processes."""

from __future__ import annotations

import hashlib
import io
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tqdm import tqdm

from hf_xlsr.encoders.cache import CachedEncoder, VectorStore
from hf_xlsr.encoders.encoding import Encoder, EncodingOptions, default_prompt, embed, routes_of
from hf_xlsr.encoders.fingerprint import content_hash, loaded_hash
from hf_xlsr.encoders.loading import check_choice, check_dtype, encoder_facts, fastest_dtype, load_encoder
from hf_xlsr.mining.texts import TextStore
from hf_xlsr.mining.work_folder import disk_errors
from hf_xlsr.utils.errors import XlsrError

LARGEST_SHARD, SMALLEST_SHARD, SHARDS_WANTED = 1 << 14, 1 << 10, 64  # rows, rows, shards of each side
SHARD_BYTES = 1 << 25
VECTORS, SHARDS = "vectors.npy", "shards"
# The second is longer than any encoder takes: its vector depends on where it is truncated.
PROBES = ("One sentence.", "One sentence of many words, " * 200)
ITEMSIZE = 2  # bytes of a float16
ROWS_AT_ONCE = 1 << 12
UNIT_TOLERANCE = 2e-3


class VectorFile:
    """A float16 matrix on disk that several processes fill by ranges of rows (`shards`), in any order.

    A range is written first and then marked in `shards/`, so a marked range is complete whenever a process is killed.
    """

    def __init__(self, folder: Path, rows: int, shards: Sequence[tuple[int, int]]) -> None:
        self.path, self.marks, self.rows, self.shards = folder / VECTORS, folder / SHARDS, rows, list(shards)
        self.marks.mkdir(parents=True, exist_ok=True)

    def missing(self) -> list[int]:
        """Numbers of the ranges that are not written yet."""
        done = set(os.listdir(self.marks))
        return [number for number in range(len(self.shards)) if str(number) not in done]

    def write(self, number: int, vectors: np.ndarray) -> None:
        """Writes one range and marks it."""
        start, width = self.shards[number][0], vectors.shape[1]
        header = _header((self.rows, width))
        # Processes that write the first ranges write the same header.
        with disk_errors(self.path), open(os.open(self.path, os.O_RDWR | os.O_CREAT, 0o666), "r+b") as file:
            there = file.read(len(header))
            file.seek(0)
            if len(there) < len(header):
                file.write(header)
            elif there != header:
                raise XlsrError(f"The encoder changed the width of its vectors to {width}.")
            file.seek(len(header) + ITEMSIZE * start * width)
            file.write(vectors.astype(np.float16).tobytes())
            file.flush()
            os.fsync(file.fileno())
        (self.marks / str(number)).touch()

    def open(self) -> np.ndarray:
        """The matrix, `(rows, width)`, memory-mapped; only when no range is missing."""
        return np.load(self.path, mmap_mode="r")


def _header(shape: tuple[int, int]) -> bytes:
    buffer = io.BytesIO()
    np.lib.format.write_array_header_1_0(buffer, {"descr": "<f2", "fortran_order": False, "shape": shape})
    return buffer.getvalue()


class LazyEncoder:
    """An encoder, or the name of one, which is loaded at its first use and released afterwards."""

    def __init__(
        self, encoder: Encoder | str, device: str | None = None, dtype: str | None = None, vectors: str | None = None
    ) -> None:
        check_dtype(dtype)
        self._encoder = None if isinstance(encoder, str) else encoder
        self.model = encoder if isinstance(encoder, str) else None
        self._device, self._dtype, self._vectors = device, dtype, vectors

    def get(self) -> Any:
        if self._encoder is None and self.model is not None:
            self._encoder = load_encoder(self.model, self._device, self._dtype)
            if self._vectors:
                store = VectorStore(self._vectors, encoder_facts(self._encoder, self.model))
                self._encoder = CachedEncoder(self._encoder, store)
        return self._encoder

    def release(self) -> None:
        """Frees a model that was loaded by name."""
        if self.model is not None:
            self._encoder = None

    def identity(self, language: str | None = None, routes: Mapping[str, str] | None = None) -> str:
        """An identifier that differs between encoders.

        A model given by name is identified by the content of its files, which are downloaded if missing. A loaded model
        is identified by its settings and weights (`loaded_hash`), any other object by its class, and both by their
        vectors of two sentences, in `language`.
        """
        if self.model is not None:
            check_choice(self.model, self._device, self._dtype)
            if self._dtype == "auto":
                self._dtype = fastest_dtype(self.model, self._device)
            name = self._content_or_id(self.model)
            return f"{name} in {self._dtype}" if self._dtype else name
        encoder = self.get()
        # Rounded, as the last digits depend on the number of threads.
        probe = embed(encoder, PROBES, language=language, routes=routes)
        digest = hashlib.sha256((probe.round(2) + 0).tobytes())
        if isinstance(encoder, torch.nn.Module):
            digest.update(loaded_hash(encoder, poolers=False).encode())
        return f"{type(encoder).__qualname__}:{digest.hexdigest()}"

    def _content_or_id(self, model: str) -> str:
        with suppress(XlsrError):
            return f"sha256:{content_hash(model)}"
        # Downloads the model now rather than at the first shard: a second call, which finds the files, must not take the
        # vectors of this one for those of another encoder.
        self.get()
        self.release()
        with suppress(XlsrError):
            return f"sha256:{content_hash(model)}"
        return model


class _NamesLines:
    """An encoder whose vectors are checked; an error names the line of the file."""

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
    """Whether all vectors have length 1, up to float16; none may hold NaN, infinity or only zeros."""
    unit = True
    for start in range(0, len(vectors), ROWS_AT_ONCE):
        block = np.asarray(vectors[start : start + ROWS_AT_ONCE], np.float32)
        lengths = np.linalg.norm(block, axis=1)
        bad = np.flatnonzero(~np.isfinite(lengths) | (lengths == 0))
        if bad.size:
            fault = "only zeros" if lengths[bad[0]] == 0 else "NaN or infinity"
            raise XlsrError(f"The vector of {name_of(start + int(bad[0]))} holds {fault}.")
        unit = unit and bool((np.abs(lengths - 1) < UNIT_TOLERANCE).all())
    return unit


def shards_of(store: TextStore) -> list[tuple[int, int]]:
    """Ranges of rows that are encoded at a time; they depend only on the texts."""
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
    """Encodes the missing shards of sides; `process` is the number of this one and of all, which take shards in turn.

    Sentences of a shard are sorted by length, longest first, so that a batch has sentences of similar length. A vector
    depends on its shard, not on the number of processes.
    """
    # All shards are dealt out, not the missing ones: processes that start later must agree on their shares.
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
    # Equal texts are encoded once, so that positions in the encoder's input are known.
    first = {text: place for place, text in reversed(list(enumerate(texts)))}
    order = sorted(first.values(), key=lambda place: (-len(texts[place]), place))

    checked = _NamesLines(encoder, lambda position: store.line_name(rows[order[position]]))
    vectors = embed(checked, [texts[place] for place in order], language=language, **encoding)
    position = {place: number for number, place in enumerate(order)}
    return vectors[[position[first[text]] for text in texts]]
