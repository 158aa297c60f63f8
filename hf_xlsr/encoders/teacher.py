"""A teacher: embeddings of training texts, each computed once and kept on disk."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any

import numpy as np
import torch
from tqdm.auto import tqdm

from hf_xlsr.data.prompts import Prompts
from hf_xlsr.encoders.cache import CachedEncoder, VectorStore
from hf_xlsr.encoders.encoding import RUN_BATCH_SIZE, embed, unit_length
from hf_xlsr.encoders.fingerprint import loaded_hash
from hf_xlsr.encoders.loading import encoder_facts, load_encoder
from hf_xlsr.utils.devices import choose_precision
from hf_xlsr.utils.errors import XlsrError
from hf_xlsr.utils.hashing import cache_folder

TEXTS_AT_ONCE = 4096
"""A killed run computes at most this many embeddings again."""


class Teacher:
    """Unit vectors of a sentence encoder for training texts.

    Cosines of many encoders fill a narrow range (those of E5 are above 0.7). Centred embeddings use the whole range,
    which is easier to learn.

    Args:
        encoder: Folder, Hub id, or anything with a sentence-transformers style `encode`.
        prompt: Put before every text, or none if it is empty; by default the encoder's own prompt.
        center: Subtract the mean of the training texts; see `prepare`.

        vectors: Folder of the embeddings, which may be that of `hf-xlsr evaluate --vectors`. By default they go to the
            cache; those of an object without weights stay in memory, because nothing identifies it.

    Examples:
        >>> class Lengths:
        ...     def encode(self, texts, **kwargs):
        ...         return np.array([[len(text), 1.0] for text in texts])
        >>> teacher = Teacher(Lengths(), center=False, vectors="vectors")
        >>> teacher(["abc"]), teacher.dim
        (tensor([[0.9487, 0.3162]]), 2)
    """

    def __init__(
        self,
        encoder: Any,
        *,
        prompt: Prompts = None,
        center: bool = True,
        vectors: str | os.PathLike[str] | None = None,
    ) -> None:
        self.prompt = prompt
        self.center = center
        self._mean: np.ndarray | None = None

        facts: dict[str, Any] = {"loaded": ""}
        if isinstance(encoder, str | os.PathLike):
            path = str(encoder)
            precision = choose_precision()
            encoder = load_encoder(path, dtype=None if precision == "float32" else precision)
            facts = encoder_facts(encoder, path)
        elif hasattr(encoder, "state_dict"):
            facts = {"loaded": loaded_hash(encoder)}

        if vectors is None and facts != {"loaded": ""}:
            vectors = cache_folder() / "vectors"
        store = None if vectors is None else VectorStore(vectors, facts)
        self.encoder = CachedEncoder(encoder, store)

    @property
    def dim(self) -> int:
        """Width of the vectors."""
        return len(self._embed(["a"])[0])

    def _embed(self, texts: Sequence[str]) -> np.ndarray:
        return embed(self.encoder, texts, prompt=self.prompt, batch_size=RUN_BATCH_SIZE)

    def prepare(self, texts: Iterable[str]) -> None:
        """Computes the embeddings of the training texts that are not on disk yet, and their mean, the centre."""
        total = np.zeros(self.dim)
        count = 0
        stream = iter(texts)
        with tqdm(desc="teacher", unit=" texts", disable=None) as bar:
            while chunk := list(islice(stream, TEXTS_AT_ONCE)):
                total += self._embed(chunk).sum(0, dtype=np.float64)
                count += len(chunk)
                bar.update(len(chunk))
        if self.center:
            self._mean = (total / max(1, count)).astype(np.float32)

    def check_centre(self) -> None:
        """Checks that the centre is known, if there is to be one."""
        if self.center and self._mean is None:
            raise XlsrError(
                "A teacher's centre is the mean of the training texts. Give `train_dataset`, call `prepare(texts)` of "
                "the teacher, or set `center` to False."
            )

    def __call__(self, texts: Sequence[str]) -> torch.Tensor:
        """Unit vectors, `(texts, dim)`, float32."""
        vectors = self._embed(texts)
        if self._mean is not None:
            vectors = unit_length(vectors - self._mean)
        return torch.from_numpy(vectors)
