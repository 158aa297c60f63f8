"""Stages of mining and scoring in a work folder: texts, embeddings, neighbours, each as tasks."""

from __future__ import annotations

import hashlib
import json
import logging
import math
import os
import platform
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import torch

from hf_xlsr.data.prompts import PromptTable
from hf_xlsr.encoders.cache import CachedEncoder, VectorStore
from hf_xlsr.encoders.encoding import Encoder, EncodingOptions, check_directions, embed
from hf_xlsr.encoders.fingerprint import content_hash, hub_revision, loaded_hash
from hf_xlsr.encoders.loading import encoder_facts, fastest_dtype, load_encoder
from hf_xlsr.encoders.reading import find_model
from hf_xlsr.encoders.stock import longest_text
from hf_xlsr.mining.options import MiningOptions
from hf_xlsr.mining.search.int8_rows import stored_as
from hf_xlsr.mining.search.neighbours import BothWays, neighbours_both_ways
from hf_xlsr.mining.search.spans import array_of
from hf_xlsr.mining.search.vectors import check_widths
from hf_xlsr.mining.texts import Sentences, TextStore, counted, file_of, input_hash, read_texts
from hf_xlsr.mining.work_folder import Stage, WorkFolder, save_rows, write_arrays
from hf_xlsr.utils.devices import hardware_name, parse_size
from hf_xlsr.utils.errors import XlsrError
from hf_xlsr.utils.local_paths import public_name
from hf_xlsr.utils.tasks import InProcess, Runner, Task

logger = logging.getLogger(__name__)

LARGEST_SHARD = 1 << 14  # rows
SMALLEST_SHARD = 1 << 10  # rows
SHARDS_WANTED = 64  # of each side
SHARD_BYTES = 1 << 25
VECTORS = "vectors.npy"
STORED_DTYPE = "float16"
VECTORS_VERSION = 2  # of the files of embeddings in a work folder
SHARDS = "shards"
SHORT = "One sentence."
# The second is longer than any encoder takes: its vector depends on where it is truncated.
PROBES = (SHORT, "One sentence of many words, " * 200)
SETTINGS_FILE = "config_sentence_transformers.json"


class LazyEncoder:
    """An encoder, or the name of one, which is loaded at its first use and released afterwards.

    Another process that gets the object loads a model given by name itself, once.
    """

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

    def __getstate__(self) -> dict[str, Any]:
        if self.model is not None:  # another process may run in another folder
            model = os.path.abspath(self.model) if os.path.isdir(self.model) else self.model
            vectors = os.path.abspath(self._vectors) if self._vectors else None
            return {**vars(self), "_encoder": None, "model": model, "_vectors": vectors}
        if isinstance(self._encoder, torch.nn.Module):
            raise XlsrError("Several processes load an encoder each: give its folder or Hub id, not the loaded model.")
        return vars(self)

    def get(self) -> Any:
        """The encoder; one given by name keeps its vectors in the folder of vectors, if there is one."""
        if self._encoder is None and self.model is not None:
            self._encoder = load_encoder(self.model, self._device, self._dtype, self._truncate_dim)
            if self._vectors:
                store = VectorStore(self._vectors, encoder_facts(self._encoder, self.model))
                self._encoder = CachedEncoder(self._encoder, store)
        return self._encoder

    @property
    def settings(self) -> tuple[Any, ...]:
        """What a model given by name is loaded by."""
        return self.model, self._device, self._dtype, self._truncate_dim, self._vectors

    @property
    def public_name(self) -> str:
        """The id on the Hub or the name of the folder; of an object, its class."""
        return public_name(self.model) if self.model is not None else type(self._encoder).__qualname__

    def revision(self) -> str | None:
        """The commit of a model on the Hub; None for a folder or an object."""
        return hub_revision(self.model) if self.model is not None else None

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


class Side(NamedTuple):
    """The texts of a side, and how they are encoded; `role` is that of `embed`.

    `identity` is that of the encoder (`LazyEncoder.identity`) for this side's language.
    """

    store: TextStore
    identity: str
    language: str | None = None
    role: str | None = None


def text_shards(store: TextStore) -> list[tuple[int, int]]:
    """The ranges of rows that are encoded together; they depend only on the texts."""
    return store.shards(rows_of_shard(len(store)), SHARD_BYTES)


def rows_of_shard(count: int) -> int:
    """The rows of a shard of a side with that many; long texts have fewer."""
    return min(max(SMALLEST_SHARD, math.ceil(count / SHARDS_WANTED)), LARGEST_SHARD)


class ShardEncoder:
    """Work of tasks: encodes ranges of rows of sides. A task's content is the name of a side, a start and a stop.

    Sentences of a shard are sorted by length. A vector depends on its shard, not on the number of processes.
    """

    def __init__(
        self,
        sides: Mapping[str, Side],
        encoder: LazyEncoder,
        encoding: EncodingOptions,
        dtype: str = STORED_DTYPE,
    ) -> None:
        self.sides = sides
        self.encoder = encoder
        self.encoding = encoding
        self.dtype = dtype
        self.is_copy = False

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "is_copy": True}

    def __call__(self, output: Path, content: tuple[str, int, int]) -> None:
        """Writes the vectors of a shard, and the processor that computed them."""
        name, start, stop = content
        side = self.sides[name]
        encoder = worker_encoder(self.encoder, side.identity) if self.is_copy else self.encoder.get()

        texts = side.store.texts(np.arange(start, stop))
        order = np.argsort([-len(text) for text in texts], kind="stable")
        by_length = [texts[row] for row in order]
        vectors = embed(encoder, by_length, language=side.language, role=side.role, **self.encoding)
        check_directions(vectors, by_length)
        in_order = stored_as(vectors[np.argsort(order)], self.dtype)
        write_arrays(output, vectors=in_order, processor=np.array(hardware_name(device_of(encoder))))


_worker_encoders: dict[tuple[Any, ...], Any] = {}


def worker_encoder(encoder: LazyEncoder, identity: str) -> Any:
    """The encoder in a process that runs tasks; a model given by name is loaded once, and must be that of the caller."""
    if encoder.model is None:
        return encoder.get()
    key = (*encoder.settings, identity)
    if key not in _worker_encoders:
        if encoder.identity() != identity:
            raise XlsrError(
                f"The machine {platform.node()} has another '{encoder.model}' (weights, tokenizer or settings) than the "
                "one that began. Copy the model there, or give a folder that all machines share."
            )
        _worker_encoders.clear()
        _worker_encoders[key] = encoder.get()
    return _worker_encoders[key]


def device_of(encoder: Any) -> torch.device:
    """Where an encoder computes; the CPU if it does not say."""
    device = getattr(encoder, "device", None)
    return device if isinstance(device, torch.device) else torch.device("cpu")


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
        runner: Runner | None = None,
    ) -> None:
        self.work = WorkFolder(folder)
        self.runner = runner or InProcess()
        self.options = options
        self.texts = texts
        self.duplicates = duplicates
        self.hidden = hidden or {}
        self.memory = parse_size(options.memory)
        self.show_progress_bar = options.show_progress_bar

        self.encoder: LazyEncoder | None = None
        if encoder is not None:
            device = options.device or self.runner.device
            self.encoder = LazyEncoder(encoder, device, options.dtype, options.vectors, options.truncate_dim)
        self.encodings: dict[str, dict[str, Any]] = {}
        self.inputs: dict[str, dict[str, Any]] = {}
        self.seconds: dict[str, float] = {}
        self.reused: list[str] = []

    def language(self, side: str) -> str | None:
        """The language of a side; None if it is not given."""
        source, target = self.options.languages or (None, None)
        return source if self.role(side) == "source" else target

    @property
    def stored_dtype(self) -> str:
        """How embeddings are stored that are encoded."""
        return self.options.vectors_dtype or STORED_DTYPE

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
            self.inputs[side] = {"sha256" if file else "texts_sha256": digest}
            text = {"sha256": digest, "duplicates": self.duplicates}
            if self.hidden.get(side):
                text["hidden"] = input_hash(self.hidden[side])
            plan[f"{side}.text"] = text

        if self.encoder is not None:
            self.encodings = self._encodings(self.encoder)
            for side, settings in self.encodings.items():
                plan[f"{side}.vectors"] = {"text": plan[f"{side}.text"], "file": VECTORS_VERSION, **settings}
        return inputs, plan

    def _encodings(self, encoder: LazyEncoder) -> dict[str, dict[str, Any]]:
        """What the vectors of each side depend on besides its text."""
        prompts = encoder.prompts().given(self.options.prompt)
        # A model given by name is identified by its files; an object may route by language.
        identity = cache(lambda language: encoder.identity(language, self.options.routes))

        # Not of the default, so that work folders from before there was a choice are still read.
        stored = {} if self.stored_dtype == STORED_DTYPE else {"dtype": self.stored_dtype}

        encodings = {}
        for side in self.texts:
            language = self.language(side)
            encodings[side] = {
                "encoder": identity(language if encoder.model is None else None),
                "prompt": prompts.text(role=self.role(side), language=language),
                "language": language,
                "routes": dict(self.options.routes or {}),
                **stored,
            }
        return encodings

    @contextmanager
    def claimed(self, kind: str, plan: Callable[[], tuple[dict[str, Any], dict[str, Any]]]) -> Iterator[None]:
        """Locks the folder, and removes the stages of other settings than the present ones."""
        with self.work.claim(kind, *plan()):
            yield

    def read(self) -> tuple[dict[str, TextStore], dict[str, Any]]:
        """Reads the texts that are not read yet; returns the stores and the counts of `read_texts`, by side."""
        stores: dict[str, TextStore] = {}
        report: dict[str, Any] = {}
        for side, sentences in self.texts.items():
            name = file_of(sentences) or side
            folder = self.folder(f"{side}.text")
            stage = self[f"{side}.text"]

            counts = stage.result
            if counts is None:
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
                self.reused.append(f"{side}.text")

            if counts["skipped"]:
                logger.warning("%s: skipped lines: %s.", name, counted(counts["skipped"]))
            stores[side] = TextStore(folder, name)
            report[side] = {"name": name, **counts}
        return stores, report

    def encode(self, stores: Mapping[str, TextStore]) -> dict[str, np.ndarray]:
        """Encodes what is not encoded yet; returns the vectors by side."""
        if self.encoder is None:
            return {}
        sides = {}
        tasks = []
        for name, store in stores.items():
            folder = self.folder(f"{name}.vectors")
            if self[f"{name}.vectors"].result is not None:
                self.reused.append(f"{name}.vectors")
                continue
            sides[name] = Side(store, self.encodings[name]["encoder"], self.language(name), self.role(name))
            if (folder / VECTORS).exists():  # joined, then killed
                continue
            (folder / SHARDS).mkdir(parents=True, exist_ok=True)
            for start, stop in text_shards(store):
                tasks.append(Task(folder / SHARDS / f"{start}.npz", (name, start, stop)))

        with self.timed("encode"):
            work = ShardEncoder(sides, self.encoder, self.options.encoding, self.stored_dtype)
            description = "encoding" if self.show_progress_bar and tasks else ""
            if tasks:
                for _ in self.runner.run(work, tasks, description=description):
                    pass
            self.encoder.release()
            for name, side in sides.items():
                self._join_shards(name, side.store)

        vectors = {}
        for name in stores:
            vectors[name] = np.load(self.folder(f"{name}.vectors") / VECTORS, mmap_mode="r")
            check_widths(vectors["source"], vectors[name])
        return vectors

    def _join_shards(self, name: str, store: TextStore) -> None:
        """Writes the vectors of all shards of a side to one file, and finishes the stage."""
        stage = self[f"{name}.vectors"]
        folder = self.folder(f"{name}.vectors")
        if not (folder / VECTORS).exists():
            files = [folder / SHARDS / f"{start}.npz" for start, _ in text_shards(store)]
            processors = sorted({str(array_of(file, "processor")) for file in files})
            stage.update(processors=processors)
            first = array_of(files[0], "vectors")
            blocks = (array_of(file, "vectors") for file in files)
            save_rows(folder / VECTORS, blocks, (len(store), *first.shape[1:]), first.dtype)

        shutil.rmtree(folder / SHARDS, ignore_errors=True)
        processors = stage.state["processors"]
        if len(processors) > 1:
            logger.warning(
                "%s was encoded on processors of several kinds, whose embeddings differ in the last digits: %s.",
                store.name,
                ", ".join(processors),
            )
        stage.finish(processors=processors)

    def search(self, name: str, source: np.ndarray, target: np.ndarray) -> BothWays:
        """The neighbours of both sides, saved in the folder of the stage; on a GPU if the encoder may use one."""
        device = self.options.device or self.runner.device
        if device is None:
            device = "cuda" if self.encoder is not None and torch.cuda.is_available() else "cpu"
        elif device == self.runner.device == "cuda" and not torch.cuda.is_available():
            # This process prepares and checks what the tasks search.
            logger.warning("The search runs on CPUs: the machine that mining was called on has no GPU.")
            device = "cpu"

        return neighbours_both_ways(
            source,
            target,
            memory=self.memory,
            device=device,
            folder=self.folder(name),
            show_progress_bar=self.show_progress_bar,
            runner=self.runner,
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
        """Time by stage, and the stages of an earlier call."""
        seconds = {stage: round(seconds, 3) for stage, seconds in self.seconds.items()}
        return {"seconds": seconds, "reused": self.reused}

    def facts(self) -> dict[str, Any]:
        """The encoder, what made the embeddings of each side, and the hashes of the texts, for `new_step`."""
        facts: dict[str, Any] = {"input_hashes": self.inputs, "settings": self._settings()}
        if self.encoder is None:
            return facts

        identities = dict.fromkeys(encoding["encoder"] for encoding in self.encodings.values())
        prompts = {side: encoding["prompt"] for side, encoding in self.encodings.items() if encoding["prompt"]}
        facts["encoder"] = {
            "name": self.encoder.public_name,
            "revision": self.encoder.revision(),
            "hash": ", ".join(identities),
            "prompts": prompts,
        }
        return facts

    def _settings(self) -> dict[str, Any]:
        """Options that change scores or pairs."""
        options = self.options
        return {
            "k": options.k,
            "margin": options.margin,
            "retrieval": options.retrieval,
            "one_to_one": options.one_to_one,
            "duplicates": self.duplicates,
            "max_pairs": options.max_pairs,
            "dtype": options.dtype,
            "vectors_dtype": options.vectors_dtype,
            "truncate_dim": options.truncate_dim,
        }


@contextmanager
def job_folder(folder: str | os.PathLike[str] | None) -> Iterator[Path]:
    """The work folder of a call from Python: a temporary one if None."""
    if folder is not None:
        yield Path(folder)
    else:
        with tempfile.TemporaryDirectory(prefix="hf-xlsr-mine-") as temporary:
            yield Path(temporary) / "work"
