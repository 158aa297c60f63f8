"""Stages of mining and scoring in a work folder: texts, embeddings by any number of processes, neighbours."""

from __future__ import annotations

import hashlib
import io
import json
import logging
import math
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import torch
from tqdm import tqdm

from hf_xlsr.data.prompts import PromptTable
from hf_xlsr.encoders.cache import CachedEncoder, VectorStore
from hf_xlsr.encoders.encoding import Encoder, EncodingOptions, embed
from hf_xlsr.encoders.fingerprint import content_hash, loaded_hash
from hf_xlsr.encoders.loading import encoder_facts, fastest_dtype, find_model, load_encoder
from hf_xlsr.encoders.stock import max_positions
from hf_xlsr.mining.options import MiningOptions
from hf_xlsr.mining.search.neighbours import BothWays, neighbours_both_ways
from hf_xlsr.mining.search.vectors import check_widths
from hf_xlsr.mining.texts import Sentences, TextStore, counted, file_of, input_hash, read_texts
from hf_xlsr.mining.work_folder import SECONDS_BETWEEN_LOOKS, Stage, WorkFolder, disk_errors
from hf_xlsr.utils.devices import parse_size
from hf_xlsr.utils.errors import XlsrError

logger = logging.getLogger(__name__)

SIDES = ("source", "target")
LARGEST_SHARD, SMALLEST_SHARD, SHARDS_WANTED = 1 << 14, 1 << 10, 64  # rows, rows, shards of each side
SHARD_BYTES = 1 << 25
VECTORS, SHARDS = "vectors.npy", "shards"
# The second is longer than any encoder takes: its vector depends on where it is truncated.
PROBES = ("One sentence.", "One sentence of many words, " * 200)
ITEMSIZE = 2  # bytes of a float16
SETTINGS_FILE = "config_sentence_transformers.json"


class Processes:
    """This process of a launcher, the number of all, and its device."""

    def __init__(self) -> None:
        self.index, self.count = 0, 1
        self.device: str | None = None
        self._state: Any = None
        if int(os.environ.get("WORLD_SIZE", "1")) > 1:
            from accelerate import PartialState
            from accelerate.utils import parse_flag_from_env

            # On a machine without GPUs, accelerate takes each process for the only one unless `cpu` is set.
            self._state = PartialState(cpu=not torch.cuda.is_available() or parse_flag_from_env("ACCELERATE_USE_CPU"))
            self.index, self.count = self._state.process_index, self._state.num_processes
            self.device = str(self._state.device)

    @property
    def is_main(self) -> bool:
        return self.index == 0

    def barrier(self) -> None:
        """Waits for all processes. Launchers give up on long waits: only where all arrive within minutes."""
        if self._state is not None:
            self._state.wait_for_everyone()


class LazyEncoder:
    """An encoder, or the name of one, which is loaded at its first use and released afterwards."""

    def __init__(
        self, encoder: Encoder | str, device: str | None = None, dtype: str | None = None, vectors: str | None = None
    ) -> None:
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

    def prompts(self) -> PromptTable:
        """The encoder's own prompts, from its files where these have them, so that it is not loaded for them."""
        if self._encoder is None and self.model is not None:
            from sentence_transformers.util import load_file_path

            file = load_file_path(find_model(self.model).path, SETTINGS_FILE)
            if file is not None:
                settings = json.loads(Path(file).read_text("utf-8"))
                return PromptTable.of(SimpleNamespace(**settings))
        return PromptTable.of(self.get())

    def identity(self, language: str | None = None, routes: Mapping[str, str] | None = None) -> str:
        """An identifier that differs between encoders.

        That of a model given by name is the content of its files, which are downloaded if missing; of a loaded model
        its `loaded_hash`, of another object its class, and of both their vectors of two sentences, in `language`.
        """
        if self.model is not None:
            if self._dtype == "auto":
                self._dtype = fastest_dtype(self.model, self._device)
            try:
                digest = content_hash(self.model)
            except XlsrError:
                self.get()  # downloads the model now: a second call, which finds the files, must know their vectors
                digest = content_hash(self.model)
            return f"sha256:{digest}" + (f" in {self._dtype}" if self._dtype else "")
        encoder = self.get()
        # Rounded, as the last digits depend on the number of threads.
        texts = PROBES if truncates_texts(encoder) else PROBES[:1]
        probe = embed(encoder, texts, language=language, routes=routes)
        found = hashlib.sha256((probe.round(2) + 0).tobytes())
        if isinstance(encoder, torch.nn.Module):
            found.update(loaded_hash(encoder, poolers=False).encode())
        return f"{type(encoder).__qualname__}:{found.hexdigest()}"


def truncates_texts(encoder: Any) -> bool:
    """Whether an encoder truncates texts to the positions that it has; some fail on a longer text instead."""
    modules = encoder.modules() if isinstance(encoder, torch.nn.Module) else ()
    transformers: list[Any] = [module for module in modules if hasattr(module, "auto_model")]
    return all(
        (transformer.max_seq_length or 0) <= (max_positions(transformer.auto_model) or math.inf)
        for transformer in transformers
    )


class VectorFile:
    """A float16 matrix on disk that several processes fill by ranges of rows (`shards`), in any order.

    A range is written first and then marked in `shards/`, so a marked range is complete whenever a process is killed.
    """

    def __init__(self, folder: Path, rows: int, shards: Sequence[tuple[int, int]]) -> None:
        self.path, self.marks, self.rows, self.shards = folder / VECTORS, folder / SHARDS, rows, list(shards)
        self.marks.mkdir(parents=True, exist_ok=True)

    @classmethod
    def of(cls, folder: Path, store: TextStore) -> VectorFile:
        """The vectors of some texts, in ranges that depend only on the texts."""
        rows = min(LARGEST_SHARD, max(SMALLEST_SHARD, -(-len(store) // SHARDS_WANTED)))
        return cls(folder, len(store), store.shards(rows, SHARD_BYTES))

    def missing(self) -> list[int]:
        """Numbers of the ranges that are not written yet."""
        done = set(os.listdir(self.marks))
        return [number for number in range(len(self.shards)) if str(number) not in done]

    def write(self, number: int, vectors: np.ndarray) -> None:
        """Writes one range and marks it."""
        start, width = self.shards[number][0], vectors.shape[1]
        header = _header((self.rows, width))
        with disk_errors(self.path), open(os.open(self.path, os.O_RDWR | os.O_CREAT, 0o666), "r+b") as file:
            file.write(header)  # the same as other processes write
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


class Side(NamedTuple):
    """The texts of a side and the file of their vectors; `role` is that of `embed`."""

    store: TextStore
    file: VectorFile
    language: str | None = None
    role: str | None = None


def encode_shards(
    sides: Sequence[Side],
    encoder: LazyEncoder,
    encoding: EncodingOptions,
    *,
    process: tuple[int, int] = (0, 1),
    show_progress_bar: bool = False,
) -> None:
    """Encodes the missing shards of sides; `process` is the number of this one and of all, which take shards in turn.

    Sentences of a shard are sorted by length. A vector depends on its shard, not on the number of processes.
    """
    # All shards are dealt out, not the missing ones: processes that start later must agree on their shares.
    shards = [(side, shard) for side in sides for shard in range(len(side.file.shards))]
    share = shards[process[0] :: process[1]]
    missing = {side.file: set(side.file.missing()) for side in sides}
    left = [(side, shard) for side, shard in share if shard in missing[side.file]]

    for side, shard in tqdm(left, "encoding", unit=" shards", disable=not (show_progress_bar and left)):
        texts = side.store.texts(np.arange(*side.file.shards[shard]))
        order = sorted(range(len(texts)), key=lambda place: -len(texts[place]))
        by_length = [texts[place] for place in order]
        vectors = embed(encoder.get(), by_length, language=side.language, role=side.role, **encoding)
        side.file.write(shard, vectors[np.argsort(order)])


class Job:
    """One mining job: the texts of both sides, their encoder (none if vectors are given) and the work folder.

    `hidden` sentences of a side follow its own. `seconds` are those of the stages that ran, `reused` are the others.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        options: MiningOptions,
        texts: Mapping[str, Sentences],
        encoder: Encoder | str | None,
        duplicates: str = "merge",
        hidden: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        self.work, self.processes, self.options, self.texts = WorkFolder(folder), Processes(), options, texts
        self.duplicates, self.hidden, self.memory = duplicates, hidden or {}, parse_size(options.memory)
        self.encoder = None
        if encoder is not None:
            device = options.device or self.processes.device
            self.encoder = LazyEncoder(encoder, device, options.dtype, options.vectors)
        self.show_progress_bar = options.show_progress_bar and self.processes.is_main
        self.seconds: dict[str, float] = {}
        self.reused: list[str] = []

    def language(self, side: str) -> str | None:
        languages = self.options.languages
        return None if languages is None else languages[SIDES.index(self.role(side))]

    @staticmethod
    def role(side: str) -> str:
        """`source` or `target`: a pool has the prompt of its side."""
        return side.removesuffix("_pool")

    def __getitem__(self, name: str) -> Stage:
        return self.work.stage(name)

    def folder(self, name: str) -> Path:
        """The folder of a stage."""
        return self.work.path / name

    def plan(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """The inputs with their hashes, and the settings of each stage, which include those of the stages before it."""
        inputs: dict[str, Any] = {}
        plan: dict[str, Any] = {}
        identities: dict[str | None, str] = {}
        prompts = self.encoder.prompts().given(self.options.prompt) if self.encoder else PromptTable()
        for side, sentences in self.texts.items():
            path, digest = file_of(sentences), input_hash(sentences)
            inputs[side] = {"name": os.path.abspath(path) if path else None, "sha256": digest}
            read = {"sha256": digest, "duplicates": self.duplicates}
            if self.hidden.get(side):
                read["hidden"] = input_hash(self.hidden[side])
            plan[f"{side}.text"] = read
            if self.encoder is not None:
                # A model given by name is identified by its files, hashed once; an object may route by language.
                language = self.language(side) if self.encoder.model is None else None
                if language not in identities:
                    identities[language] = self.encoder.identity(language, self.options.routes)
                plan[f"{side}.vectors"] = {
                    "text": read,
                    "encoder": identities[language],
                    "prompt": prompts.text(role=self.role(side), language=self.language(side)),
                    "language": self.language(side),
                    "routes": dict(self.options.routes or {}),
                }
        return inputs, plan

    @contextmanager
    def claimed(self, kind: str, plan: Callable[[], tuple[dict[str, Any], dict[str, Any]]]) -> Iterator[None]:
        """Locks the folder. Finished stages are then of the present settings, so other processes can wait for them."""
        with self.work.claim(kind, *plan()) if self.processes.is_main else nullcontext():
            self.processes.barrier()
            yield

    def read(self) -> tuple[dict[str, TextStore], dict[str, Any]]:
        """Reads the texts that are not read yet; returns the stores and the counts of `read_texts`, by side."""
        stores: dict[str, TextStore] = {}
        report: dict[str, Any] = {}
        for side, sentences in self.texts.items():
            stage, name, folder = self[f"{side}.text"], file_of(sentences) or side, self.folder(f"{side}.text")
            counts = stage.result if self.processes.is_main else stage.wait()
            if counts is not None:
                self.reused.append(f"{side}.text")
            else:
                shared: Any = {"memory": self.memory, "show_progress_bar": self.show_progress_bar}
                hidden = self.hidden.get(side, ())
                with self.timed("read"):
                    counts = read_texts(sentences, folder, name, self.duplicates, hidden, **shared)
                    stage.finish(**counts)
            if counts["skipped"] and self.processes.is_main:
                logger.warning("%s: skipped lines: %s.", name, counted(counts["skipped"]))
            stores[side] = TextStore(folder, name)
            report[side] = {"name": name, **counts}
        return stores, report

    def encode(self, stores: Mapping[str, TextStore]) -> dict[str, np.ndarray]:
        """Encodes what is not encoded yet, together with the other processes; returns the vectors by side."""
        if self.encoder is None:
            return {}
        files = {side: VectorFile.of(self.folder(f"{side}.vectors"), store) for side, store in stores.items()}
        waiting = [side for side, file in files.items() if file.missing()]
        self.reused += [f"{side}.vectors" for side in files if side not in waiting]
        with self.timed("encode"):
            sides = [Side(store, files[side], self.language(side), self.role(side)) for side, store in stores.items()]
            process = self.processes.index, self.processes.count
            shown = self.show_progress_bar
            encode_shards(sides, self.encoder, self.options.encoding, process=process, show_progress_bar=shown)
            self.encoder.release()
            while any(file.missing() for file in files.values()):
                time.sleep(SECONDS_BETWEEN_LOOKS)
        for side in waiting if self.processes.is_main else ():
            self[f"{side}.vectors"].finish()
        vectors = {side: file.open() for side, file in files.items()}
        for matrix in vectors.values():
            check_widths(vectors["source"], matrix)
        return vectors

    def search(self, name: str, source: np.ndarray, target: np.ndarray, together: bool = False) -> BothWays:
        """The neighbours of both sides, saved in the folder of the stage; on a GPU if the encoder may use one.

        `together`, all processes search.
        """
        on_gpu = self.encoder is not None and torch.cuda.is_available()
        return neighbours_both_ways(
            source,
            target,
            memory=self.memory,
            device=self.options.device or (self.processes.device or "cuda" if on_gpu else "cpu"),
            process=(self.processes.index, self.processes.count) if together else (0, 1),
            folder=self.folder(name),
            show_progress_bar=self.show_progress_bar,
            **self.options.search,
        )

    @contextmanager
    def timed(self, stage: str) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[stage] = self.seconds.get(stage, 0.0) + time.perf_counter() - start

    def report(self) -> dict[str, Any]:
        seconds = {stage: round(seconds, 3) for stage, seconds in self.seconds.items()}
        return {"seconds": seconds, "reused": self.reused, "processes": self.processes.count}


@contextmanager
def job_folder(folder: str | os.PathLike[str] | None) -> Iterator[Path]:
    """The work folder of a call from Python: a temporary one if None."""
    if folder is not None:
        yield Path(folder)
    elif Processes().count > 1:
        raise XlsrError("`folder` is required by several processes: they share their results in it.")
    else:
        with tempfile.TemporaryDirectory(prefix="hf-xlsr-mine-") as temporary:
            yield Path(temporary) / "work"
