"""Stages that mining and scoring share: texts to disk, then vectors, by one process or several."""

from __future__ import annotations

import logging
import os
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from hf_xlsr.data.formats.reading import expand_braces
from hf_xlsr.data.languages import language_code
from hf_xlsr.encoders.encoding import EncodingOptions
from hf_xlsr.mining.encode_stage import LazyEncoder, VectorFile, encode_shards, shards_of
from hf_xlsr.mining.options import MiningOptions
from hf_xlsr.mining.search.neighbours import BothWays, neighbours_both_ways
from hf_xlsr.mining.search.vectors import check_widths
from hf_xlsr.mining.texts import Sentences, TextStore, input_hash, read_texts, skipped_sentence
from hf_xlsr.mining.work_folder import SECONDS_BETWEEN_LOOKS, Stage, WorkFolder
from hf_xlsr.utils.errors import XlsrError

logger = logging.getLogger(__name__)


class Processes:
    """This process of a launcher, the number of all, and its device."""

    def __init__(self) -> None:
        self.index, self.count = 0, 1
        self.device: str | None = None
        self._state: Any = None
        if int(os.environ.get("WORLD_SIZE", "1")) > 1:
            import torch
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


class Stages:
    """Runs the stages of a job in its work folder: seconds of those that ran, and which were `reused`."""

    def __init__(
        self, folder: str | os.PathLike[str], processes: Processes, memory: int | None, show_progress_bar: bool
    ) -> None:
        self.work, self.processes, self.memory = WorkFolder(folder), processes, memory
        self.show_progress_bar = show_progress_bar and processes.is_main
        self.seconds: dict[str, float] = {}
        self.reused: list[str] = []

    def __getitem__(self, name: str) -> Stage:
        return self.work.stage(name)

    @contextmanager
    def claimed(self, kind: str, inputs: Mapping[str, Mapping[str, Any]], plan: Mapping[str, Any]) -> Iterator[None]:
        """Locks the folder. Finished stages are then of the present settings, so other processes can wait for them."""
        if self.processes.is_main:
            with self.work.claim(kind, inputs, plan):
                self.processes.barrier()
                yield
        else:
            self.processes.barrier()
            yield

    def search(
        self, name: str, source: np.ndarray, target: np.ndarray, options: MiningOptions, encoded: bool
    ) -> BothWays:
        """The neighbours of both sides, saved in the folder of the stage."""
        return neighbours_both_ways(
            source,
            target,
            memory=self.memory,
            device=options.search_device(encoded),
            folder=self.work.path / name,
            show_progress_bar=self.show_progress_bar,
            **options.search,
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


@dataclass(frozen=True)
class TextSide:
    """One text of a job; `hidden` sentences follow the others."""

    sentences: Sentences
    language: str | None = None
    duplicates: str = "merge"
    hidden: Sequence[str] = ()

    @property
    def path(self) -> str | None:
        """The file; None for a list."""
        return os.fspath(self.sentences) if isinstance(self.sentences, (str, os.PathLike)) else None


@dataclass(frozen=True)
class TextSides:
    """The texts of a job by name, and how they are encoded; no encoder if vectors are given."""

    sides: Mapping[str, TextSide]
    encoder: LazyEncoder | None = None
    encoding: EncodingOptions = field(default_factory=EncodingOptions)

    def __post_init__(self) -> None:
        languages = {text.language for text in self.sides.values() if text.language}
        for side, text in self.sides.items():
            if text.path is None or text.language is None:
                continue
            _, (label,) = expand_braces([text.path])
            codes = {language_code(language) for language in languages} - {language_code(text.language)}
            if label in languages - {text.language} or language_code(label) in codes:
                raise XlsrError(
                    f"`languages` gives '{text.language}' for {side}, but its file {text.path} is named after the other "
                    f"language, '{label}'. Give the languages in the order of the files, or rename the file."
                )

    def plan(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Inputs and settings of the stages, for `Stages.claimed`."""
        inputs: dict[str, Any] = {}
        plan: dict[str, Any] = {}
        identities: dict[str | None, str] = {}
        for side, text in self.sides.items():
            digest = input_hash(text.sentences)
            inputs[side] = {"name": os.path.abspath(text.path) if text.path else None, "sha256": digest}
            read = {"sha256": digest, "duplicates": text.duplicates}
            if text.hidden:
                read["hidden"] = input_hash(text.hidden)
            plan[f"{side}.text"] = read
            if self.encoder is not None:
                routes = self.encoding.get("routes")
                # A model given by name is identified by its files, hashed once; an object may route by language.
                language = text.language if self.encoder.model is None else None
                if language not in identities:
                    identities[language] = self.encoder.identity(language, routes)
                plan[f"{side}.vectors"] = {
                    "text": read,
                    "encoder": identities[language],
                    "prompt": self.encoding.get("prompt", ""),
                    "language": text.language,
                    "routes": dict(routes or {}),
                }
        return inputs, plan

    def read(self, stages: Stages) -> tuple[dict[str, TextStore], dict[str, Any]]:
        """Reads the texts that are not read yet; returns the stores and the counts of `read_texts`, by side."""
        stores: dict[str, TextStore] = {}
        report: dict[str, Any] = {}
        is_main = stages.processes.is_main
        for side, text in self.sides.items():
            stage, name = stages[f"{side}.text"], text.path or side
            folder = stages.work.path / f"{side}.text"
            counts = stage.result if is_main else stage.wait()
            if counts is not None:
                stages.reused.append(f"{side}.text")
            else:
                with stages.timed("read"):
                    counts = read_texts(
                        text.sentences,
                        folder,
                        name=name,
                        duplicates=text.duplicates,
                        hidden=text.hidden,
                        memory=stages.memory,
                        show_progress_bar=stages.show_progress_bar,
                    )
                    stage.finish(**counts)
            if counts["skipped"] and is_main:
                logger.warning(skipped_sentence(name, counts))
            stores[side] = TextStore(folder, name)
            report[side] = {"name": name, **counts}
        return stores, report

    def encode(self, stages: Stages, stores: Mapping[str, TextStore]) -> dict[str, np.ndarray]:
        """Encodes what is not encoded yet, together with the other processes; returns the vectors by side."""
        if self.encoder is None:
            return {}
        processes = stages.processes
        files = {
            side: VectorFile(stages.work.path / f"{side}.vectors", len(store), shards_of(store))
            for side, store in stores.items()
        }
        waiting = [side for side, file in files.items() if file.missing()]
        stages.reused += [f"{side}.vectors" for side in files if side not in waiting]
        with stages.timed("encode"):
            encode_shards(
                [(store, files[side], self.sides[side].language) for side, store in stores.items()],
                self.encoder,
                self.encoding,
                process=(processes.index, processes.count),
                show_progress_bar=stages.show_progress_bar,
            )
            self.encoder.release()
            while any(file.missing() for file in files.values()):
                time.sleep(SECONDS_BETWEEN_LOOKS)
        for side in waiting if processes.is_main else ():
            stages[f"{side}.vectors"].finish()
        vectors = {side: file.open() for side, file in files.items()}
        for matrix in vectors.values():
            check_widths(vectors["source"], matrix)
        return vectors
