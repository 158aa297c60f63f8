"""Embeddings of a stream of texts by tasks, which several processes run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path

import numpy as np

from hf_xlsr.encoders.encoding import EncodingOptions, embed
from hf_xlsr.mining.stages import LazyEncoder, worker_encoder
from hf_xlsr.utils.hashing import address_of, data_hash
from hf_xlsr.utils.tasks import LocalPool, Runner, Task, import_ahead, resumed_folder


class ChunkEncoder:
    """Work of tasks: encodes a list of texts in one language by a model given by name."""

    def __init__(self, encoder: LazyEncoder, language: str, encoding: EncodingOptions) -> None:
        self.encoder = encoder
        self.identity = encoder.identity()
        self.language = language
        self.encoding = encoding

    @property
    def address(self) -> str:
        """A name that differs for other embeddings of the same texts."""
        return address_of({"encoder": self.identity, "language": self.language, **self.encoding})

    def __call__(self, output: Path, texts: list[str]) -> None:
        """Writes the embeddings, float32, a row per text."""
        encoder = worker_encoder(self.encoder, self.identity)
        vectors = embed(encoder, texts, language=self.language, **self.encoding)
        with output.open("wb") as file:
            np.save(file, vectors)


def encoded_by_tasks(
    work: ChunkEncoder,
    texts: Iterable[str],
    rows: int,
    runner: Runner,
    folder: Path,
) -> Iterator[tuple[list[str], np.ndarray]]:
    """Texts with their embeddings, `rows` at a time, in their order.

    The files of the tasks stay in `folder` until the last one was read, so that the same call continues after a stop.
    Others may use the folder at the same time, but not for the same model and language.
    """
    if isinstance(runner, LocalPool):
        import_ahead(__name__)

    with resumed_folder(folder, work.address) as home:

        def tasks() -> Iterator[Task]:
            remaining = iter(texts)
            while chunk := list(islice(remaining, rows)):
                yield Task(home / f"{data_hash(chunk)}.npy", chunk)

        for task in runner.run(work, tasks(), description=work.language):
            yield task.content, np.load(task.output)
