"""The stages that mining and scoring share: texts to disk, then vectors, by one process or several."""

from __future__ import annotations

import gc
import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hf_xlsr.data.formats.reading import expand_braces
from hf_xlsr.data.languages import language_code
from hf_xlsr.encoders.encoding import EncodingOptions
from hf_xlsr.mining.encode_stage import LazyEncoder, VectorFile, encode_shards, shards_of
from hf_xlsr.mining.search.storage import resident_bytes, trim
from hf_xlsr.mining.texts import Sentences, TextStore, input_hash, read_texts, skipped_sentence
from hf_xlsr.mining.work_folder import SECONDS_BETWEEN_LOOKS, WorkFolder, disk_errors
from hf_xlsr.utils.errors import XlsrError

logger = logging.getLogger(__name__)

# Before an encoder and its libraries are loaded, at least by the command.
RESIDENT_AT_IMPORT = resident_bytes()


class Processes:
    """The processes that a launcher started: this one's number, how many there are, and this one's device."""

    def __init__(self) -> None:
        self.index, self.count = 0, 1
        self.device: str | None = None
        self._state: Any = None
        if int(os.environ.get("WORLD_SIZE", "1")) > 1:
            import torch
            from accelerate import PartialState
            from accelerate.utils import parse_flag_from_env

            # Without being told of a machine without GPUs, accelerate takes each process for the only one.
            self._state = PartialState(cpu=not torch.cuda.is_available() or parse_flag_from_env("ACCELERATE_USE_CPU"))
            self.index, self.count = self._state.process_index, self._state.num_processes
            self.device = str(self._state.device)

    @property
    def leads(self) -> bool:
        """Whether this is the process that does what only one can do."""
        return self.index == 0

    def meet(self) -> None:
        """Waits for the others; only where all come within minutes, as launchers give up on longer waits."""
        if self._state is not None:
            self._state.wait_for_everyone()


class Stages:
    """Runs the stages of a job in its work folder.

    Args:
        work: The folder.
        processes: This process among others.
        memory: Bytes that a stage may use.
        show_progress_bar: Show one for every stage, in the first process.

    Attributes:
        seconds: By stage, as far as it ran in this call.
        reused: Stages that were done before.
    """

    def __init__(
        self, work: WorkFolder, processes: Processes, *, memory: int | None = None, show_progress_bar: bool = False
    ) -> None:
        self.work, self.processes, self.memory = work, processes, memory
        self.show_progress_bar = show_progress_bar and processes.leads
        self.seconds: dict[str, float] = {}
        self.reused: list[str] = []

    @contextmanager
    def claimed(self, kind: str, inputs: Mapping[str, Mapping[str, Any]], plan: Mapping[str, Any]) -> Iterator[None]:
        """The folder is this job's while the context lasts; see `WorkFolder.claim`.

        What a stage has noted as done is then of the present inputs and settings, so that the other processes can wait
        for it by looking.
        """
        with disk_errors(self.work.path):
            if self.processes.leads:
                with self.work.claim(kind, inputs, plan):
                    self.processes.meet()
                    yield
            else:
                self.processes.meet()
                yield

    def uncounted(self, encoded: bool) -> int:
        """Bytes that the process has resident now and that `memory` is not for.

        Args:
            encoded: An encoder was given; what the process has taken for it does not count.
        """
        if self.memory is None or not encoded:
            return 0
        gc.collect()
        trim()
        return max(0, resident_bytes() - RESIDENT_AT_IMPORT)

    @contextmanager
    def timed(self, stage: str) -> Iterator[None]:
        """Adds to the seconds of a stage."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[stage] = self.seconds.get(stage, 0.0) + time.perf_counter() - start

    def report(self) -> dict[str, Any]:
        """`seconds`, `reused` and the number of `processes`."""
        seconds = {stage: round(seconds, 3) for stage, seconds in self.seconds.items()}
        return {"seconds": seconds, "reused": self.reused, "processes": self.processes.count}


@dataclass(frozen=True)
class TextSide:
    """One text of a job.

    Attributes:
        sentences: What `read_texts` reads.
        language: Its language, for an encoder that routes by it.
        duplicates: See `read_texts`.
    """

    sentences: Sentences
    language: str | None = None
    duplicates: str = "merge"

    @property
    def path(self) -> str | None:
        """The file; None for a list."""
        return os.fspath(self.sentences) if isinstance(self.sentences, (str, os.PathLike)) else None


@dataclass(frozen=True)
class TextSides:
    """The texts of a job and how they become vectors.

    Attributes:
        sides: By the names that messages call them.
        encoder: None where vectors come from elsewhere.
        encoding: Options of `embed`.

    Raises:
        XlsrError: a file is called by the language of another side.
    """

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
                    f"languages says that {side} is in '{text.language}', but its file {text.path} is called by the "
                    f"other language, '{label}'; give the languages in the order of the files, or rename the file."
                )

    def plan(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Inputs and settings of stages, for `Stages.claimed`.

        Raises:
            XlsrError: a file or model folder is missing, or a sentence is no text.
        """
        inputs: dict[str, Any] = {}
        plan: dict[str, Any] = {}
        identities: dict[str | None, str] = {}
        for side, text in self.sides.items():
            digest = input_hash(text.sentences, side)
            inputs[side] = {"name": os.path.abspath(text.path) if text.path else None, "sha256": digest}
            read = {"sha256": digest, "duplicates": text.duplicates}
            plan[_text_stage(side)] = read
            if self.encoder is not None:
                routes = self.encoding.get("routes")
                # A named model counts by its files, which are hashed once; an object may route by language.
                language = text.language if self.encoder.model is None else None
                if language not in identities:
                    identities[language] = self.encoder.identity(language, routes)
                plan[vector_stage(side)] = {
                    "text": read,
                    "encoder": identities[language],
                    "prompt": self.encoding.get("prompt", ""),
                    "language": text.language,
                    "routes": dict(routes or {}),
                }
        return inputs, plan

    def read(self, stages: Stages) -> tuple[dict[str, TextStore], dict[str, Any]]:
        """Reads what is not read; the stores and `read_texts`' counts, by side.

        Raises:
            XlsrError: a file cannot be read or holds nothing to be used.
        """
        stores: dict[str, TextStore] = {}
        report: dict[str, Any] = {}
        work, leads = stages.work, stages.processes.leads
        for side, text in self.sides.items():
            stage, name = _text_stage(side), text.path or side
            counts = work.result(stage) if leads else work.wait_for(stage)
            if counts is not None:
                stages.reused.append(stage)
            else:
                with stages.timed("read"):
                    counts = read_texts(
                        text.sentences,
                        work.path / stage,
                        name=name,
                        duplicates=text.duplicates,
                        memory=stages.memory,
                        show_progress_bar=stages.show_progress_bar,
                    )
                    work.finish(stage, counts)
            if counts["skipped"] and leads:
                logger.warning(skipped_sentence(name, counts))
            stores[side] = TextStore(work.path / stage, name)
            report[side] = {"name": name, **counts}
        return stores, report

    def encode(
        self, stages: Stages, stores: Mapping[str, TextStore], check: Callable[[int], None]
    ) -> dict[str, np.ndarray]:
        """Encodes what is not encoded, together with the other processes; the vectors by side.

        Args:
            stages: Where they go.
            stores: The texts by side.
            check: Refuses, given the vectors' width, a memory budget in which they could not be searched.

        Raises:
            XlsrError: a vector is bad, or the sides' vectors are not equally wide.
        """
        if self.encoder is None:
            return {}
        work, processes = stages.work, stages.processes
        files = {
            side: VectorFile(work.path / vector_stage(side), len(store), shards_of(store))
            for side, store in stores.items()
        }
        waiting = [side for side, file in files.items() if file.missing()]
        stages.reused += [vector_stage(side) for side in files if side not in waiting]
        if waiting and processes.leads and stages.memory is not None and (width := self.encoder.width()) is not None:
            check(width)
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
        for side in waiting if processes.leads else ():
            work.finish(vector_stage(side))
        vectors = {side: file.open() for side, file in files.items()}
        widths = {side: matrix.shape[1] for side, matrix in vectors.items()}
        if len(set(widths.values())) > 1:
            listed = ", ".join(f"{side} {width}" for side, width in widths.items())
            raise XlsrError(f"the encoder's vectors are not equally wide ({listed}); encode all with one model.")
        return vectors


def _text_stage(side: str) -> str:
    return f"{side}.text"


def vector_stage(side: str) -> str:
    """Name of the stage that leaves a side's vectors."""
    return f"{side}.vectors"
