"""Stages of mining and scoring in a work folder: texts, embeddings by any number of processes, neighbours."""

from __future__ import annotations

import hashlib
import json
import logging
import math
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import torch
from tqdm import tqdm

from hf_xlsr.data.prompts import PromptTable
from hf_xlsr.encoders.cache import CachedEncoder, VectorStore
from hf_xlsr.encoders.encoding import Encoder, EncodingOptions, check_directions, embed
from hf_xlsr.encoders.fingerprint import content_hash, loaded_hash
from hf_xlsr.encoders.loading import encoder_facts, fastest_dtype, load_encoder
from hf_xlsr.encoders.reading import find_model
from hf_xlsr.encoders.stock import longest_text
from hf_xlsr.mining.options import MiningOptions
from hf_xlsr.mining.search.neighbours import BothWays, neighbours_both_ways
from hf_xlsr.mining.search.vectors import check_widths
from hf_xlsr.mining.texts import Sentences, TextStore, counted, file_of, input_hash, read_texts
from hf_xlsr.mining.work_folder import SECONDS_BETWEEN_LOOKS, Stage, WorkFolder, npy_header
from hf_xlsr.utils.devices import parse_size
from hf_xlsr.utils.errors import XlsrError
from hf_xlsr.utils.files import disk_errors

logger = logging.getLogger(__name__)

LARGEST_SHARD = 1 << 14  # rows
SMALLEST_SHARD = 1 << 10  # rows
SHARDS_WANTED = 64  # of each side
SHARD_BYTES = 1 << 25
VECTORS = "vectors.npy"
SHARDS = "shards"
SHORT = "One sentence."
# The second is longer than any encoder takes: its vector depends on where it is truncated.
PROBES = (SHORT, "One sentence of many words, " * 200)
ITEMSIZE = 2  # bytes of a float16
SETTINGS_FILE = "config_sentence_transformers.json"


class Processes:
    """This process of a launcher, the number of all, and its device."""

    def __init__(self) -> None:
        self.index = 0
        self.count = 1
        self.device: str | None = None
        self._state: Any = None

        if int(os.environ.get("WORLD_SIZE", "1")) > 1:
            from accelerate import PartialState
            from accelerate.utils import parse_flag_from_env

            # On a machine without GPUs, accelerate takes each process for the only one unless `cpu` is set.
            cpu = parse_flag_from_env("ACCELERATE_USE_CPU") or not torch.cuda.is_available()
            self._state = PartialState(cpu=cpu)
            self.index = self._state.process_index
            self.count = self._state.num_processes
            self.device = str(self._state.device)

    @property
    def is_main(self) -> bool:
        return self.index == 0

    @property
    def share(self) -> tuple[int, int]:
        """Number of this process and of all."""
        return self.index, self.count

    def barrier(self) -> None:
        """Waits for all processes. Launchers give up on long waits: only where all arrive within minutes."""
        if self._state is not None:
            self._state.wait_for_everyone()


class LazyEncoder:
    """An encoder, or the name of one, which is loaded at its first use and released afterwards."""

    def __init__(
        self,
        encoder: Encoder | str,
        device: str | None = None,
        dtype: str | None = None,
        vectors: str | None = None,
        truncate_dim: int | None = None,
    ) -> None:
        self.model: str | None = None
        self._encoder: Any = None
        if isinstance(encoder, str):
            self.model = encoder
        else:
            self._encoder = encoder
        self._device = device
        self._dtype = dtype
        self._vectors = vectors
        self._truncate_dim = truncate_dim

    def get(self) -> Any:
        """The encoder; one given by name keeps its vectors in the folder of vectors, if there is one."""
        if self._encoder is None and self.model is not None:
            self._encoder = load_encoder(self.model, self._device, self._dtype, self._truncate_dim)
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
            return self._identity_of_files(self.model)

        encoder = self.get()
        texts = list(PROBES) if truncates_texts(encoder) else [SHORT]
        # Rounded, as the last digits depend on the number of threads; the sum makes -0 a 0.
        vectors = embed(encoder, texts, language=language, routes=routes).round(2) + 0
        digest = hashlib.sha256(vectors.tobytes())
        if isinstance(encoder, torch.nn.Module):
            digest.update(loaded_hash(encoder, poolers=False).encode())
        return f"{type(encoder).__qualname__}:{digest.hexdigest()}"

    def _identity_of_files(self, model: str) -> str:
        if self._dtype == "auto":
            self._dtype = fastest_dtype(model, self._device)
        try:
            digest = content_hash(model)
        except XlsrError:
            self.get()  # downloads the model now: a second call, which finds the files, must know their vectors
            digest = content_hash(model)
        in_dtype = f" in {self._dtype}" if self._dtype else ""
        in_width = f" in {self._truncate_dim} dimensions" if self._truncate_dim else ""
        return f"sha256:{digest}{in_dtype}{in_width}"


def truncates_texts(encoder: Any) -> bool:
    """Whether an encoder truncates texts to the positions that it has; some fail on a longer text instead."""
    if not isinstance(encoder, torch.nn.Module):
        return True
    for module in encoder.modules():
        length = getattr(module, "max_seq_length", None)
        if length and hasattr(module, "auto_model") and length != longest_text([module.auto_model], length):
            return False
    return True


class VectorFile:
    """A float16 matrix on disk that several processes fill by ranges of rows (`shards`), in any order.

    A range is written first and then marked in `shards/`, so a marked range is complete whenever a process is killed.
    The ranges depend only on the texts in the store.
    """

    def __init__(self, folder: Path, store: TextStore) -> None:
        self.path = folder / VECTORS
        self.marks = folder / SHARDS
        self.marks.mkdir(parents=True, exist_ok=True)
        self.rows = len(store)
        shard_rows = max(SMALLEST_SHARD, math.ceil(self.rows / SHARDS_WANTED))
        self.shards = store.shards(min(shard_rows, LARGEST_SHARD), SHARD_BYTES)

    def missing(self) -> set[int]:
        """Numbers of the ranges that are not written yet."""
        return set(range(len(self.shards))) - set(map(int, os.listdir(self.marks)))

    def write(self, number: int, vectors: np.ndarray) -> None:
        """Writes one range and marks it."""
        start, _ = self.shards[number]
        width = vectors.shape[1]
        header = npy_header((self.rows, width), np.float16)

        with disk_errors(self.path):
            self.path.touch()
            with self.path.open("r+b") as file:
                file.write(header)  # the same as other processes write
                file.seek(len(header) + ITEMSIZE * start * width)
                file.write(vectors.astype(np.float16).tobytes())
                file.flush()
                os.fsync(file.fileno())

        (self.marks / str(number)).touch()

    def open(self) -> np.ndarray:
        """The matrix, `(rows, width)`, memory-mapped; only when no range is missing."""
        vectors: np.ndarray = np.load(self.path, mmap_mode="r")
        return vectors


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
    """Encodes the missing shards of sides.

    `process` is the number of this process and of all, which take shards in turn. Sentences of a shard are sorted by
    length. A vector depends on its shard, not on the number of processes.
    """
    # All shards are dealt out, not the missing ones: processes that start later must agree on their shares.
    index, processes = process
    number = 0
    todo = []
    for side in sides:
        missing = side.file.missing()
        for shard in range(len(side.file.shards)):
            if number % processes == index and shard in missing:
                todo.append((side, shard))
            number += 1

    for side, shard in tqdm(todo, "encoding", unit=" shards", disable=not (show_progress_bar and todo)):
        texts = side.store.texts(np.arange(*side.file.shards[shard]))
        order = np.argsort([-len(text) for text in texts], kind="stable")
        by_length = [texts[row] for row in order]
        vectors = embed(
            encoder.get(),
            by_length,
            language=side.language,
            role=side.role,
            **encoding,
        )
        check_directions(vectors, by_length)
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
        self.work = WorkFolder(folder)
        self.processes = Processes()
        self.options = options
        self.texts = texts
        self.duplicates = duplicates
        self.hidden = hidden or {}
        self.memory = parse_size(options.memory)
        self.show_progress_bar = options.show_progress_bar and self.processes.is_main

        self.encoder: LazyEncoder | None = None
        if encoder is not None:
            device = options.device or self.processes.device
            self.encoder = LazyEncoder(encoder, device, options.dtype, options.vectors, options.truncate_dim)
        self.seconds: dict[str, float] = {}
        self.reused: list[str] = []

    def language(self, side: str) -> str | None:
        """The language of a side; None if it is not given."""
        source, target = self.options.languages or (None, None)
        return source if self.role(side) == "source" else target

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
        for side, sentences in self.texts.items():
            file = file_of(sentences)
            digest = input_hash(sentences)
            inputs[side] = {"name": file and os.path.abspath(file), "sha256": digest}
            text = {"sha256": digest, "duplicates": self.duplicates}
            if self.hidden.get(side):
                text["hidden"] = input_hash(self.hidden[side])
            plan[f"{side}.text"] = text

        if self.encoder is not None:
            for side, settings in self._encodings(self.encoder).items():
                plan[f"{side}.vectors"] = {"text": plan[f"{side}.text"], **settings}
        return inputs, plan

    def _encodings(self, encoder: LazyEncoder) -> dict[str, dict[str, Any]]:
        """What the vectors of each side depend on besides its text."""
        prompts = encoder.prompts().given(self.options.prompt)
        # A model given by name is identified by its files; an object may route by language.
        identity = cache(lambda language: encoder.identity(language, self.options.routes))

        encodings = {}
        for side in self.texts:
            language = self.language(side)
            encodings[side] = {
                "encoder": identity(language if encoder.model is None else None),
                "prompt": prompts.text(role=self.role(side), language=language),
                "language": language,
                "routes": dict(self.options.routes or {}),
            }
        return encodings

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
            name = file_of(sentences) or side
            folder = self.folder(f"{side}.text")
            stage = self[f"{side}.text"]

            if stage.result is None and self.processes.is_main:
                with self.timed("read"):
                    counts = read_texts(
                        sentences,
                        folder,
                        name,
                        self.duplicates,
                        self.hidden.get(side, ()),
                        memory=self.memory,
                        show_progress_bar=self.show_progress_bar,
                    )
                    stage.finish(**counts)
            else:
                counts = stage.wait()
                self.reused.append(f"{side}.text")

            if counts["skipped"] and self.processes.is_main:
                logger.warning("%s: skipped lines: %s.", name, counted(counts["skipped"]))
            stores[side] = TextStore(folder, name)
            report[side] = {"name": name, **counts}
        return stores, report

    def encode(self, stores: Mapping[str, TextStore]) -> dict[str, np.ndarray]:
        """Encodes what is not encoded yet, together with the other processes; returns the vectors by side."""
        if self.encoder is None:
            return {}
        sides = {}
        for name, store in stores.items():
            file = VectorFile(self.folder(f"{name}.vectors"), store)
            sides[name] = Side(store, file, self.language(name), self.role(name))
            if not file.missing():
                self.reused.append(f"{name}.vectors")

        with self.timed("encode"):
            encode_shards(
                list(sides.values()),
                self.encoder,
                self.options.encoding,
                process=self.processes.share,
                show_progress_bar=self.show_progress_bar,
            )
            self.encoder.release()
            while any(side.file.missing() for side in sides.values()):
                time.sleep(SECONDS_BETWEEN_LOOKS)

        vectors = {}
        for name, side in sides.items():
            vectors[name] = side.file.open()
            check_widths(vectors["source"], vectors[name])
            if self.processes.is_main:
                self[f"{name}.vectors"].finish()
        return vectors

    def search(
        self,
        name: str,
        source: np.ndarray,
        target: np.ndarray,
        together: bool = False,
    ) -> BothWays:
        """The neighbours of both sides, saved in the folder of the stage; on a GPU if the encoder may use one.

        `together`, all processes search.
        """
        device = "cpu"
        if self.encoder is not None and torch.cuda.is_available():
            device = self.processes.device or "cuda"

        return neighbours_both_ways(
            source,
            target,
            memory=self.memory,
            device=self.options.device or device,
            process=self.processes.share if together else (0, 1),
            folder=self.folder(name),
            show_progress_bar=self.show_progress_bar,
            **self.options.search,
        )

    @contextmanager
    def timed(self, stage: str) -> Iterator[None]:
        """Adds the seconds of a block to those of the stage."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[stage] = self.seconds.get(stage, 0.0) + time.perf_counter() - start

    def report(self) -> dict[str, Any]:
        """Time by stage, the stages of an earlier call, and the number of processes."""
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
