"""The methods of `SentenceTransformer` that encode, for encoders of this package."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np

from hf_xlsr.data.prompts import ROLES, PromptTable
from hf_xlsr.encoders.encoding import call_encode, unit_length
from hf_xlsr.utils.errors import XlsrError, require_choice, require_positive
from hf_xlsr.utils.vectors import as_array

PRECISIONS = ("float32", "int8", "uint8", "binary", "ubinary")
SENTENCES = "sentence_embedding"


class EncodeMethods(ABC):
    """`encode`, `encode_query` and `encode_document` with the arguments and results of `SentenceTransformer`.

    An argument that an encoder cannot serve is refused. A subclass computes plain embeddings, `vectors_of`. Its prompts
    are the attributes `prompts` and `default_prompt_name`, and `truncate_dim` the width by default, where it has them.

    Examples:
        >>> class Lengths(EncodeMethods):
        ...     prompts = {"query": "q: "}
        ...     def vectors_of(self, texts, *, prompt, task, **options):
        ...         return np.array([[len(prompt + text), 1.0] for text in texts], np.float32)
        >>> Lengths().encode(["a", "bcd"]).tolist(), Lengths().encode_query("a", truncate_dim=1).tolist()
        ([[1.0, 1.0], [3.0, 1.0]], [4.0])
    """

    @abstractmethod
    def vectors_of(
        self,
        texts: list[str],
        *,
        prompt: str,
        task: str | None,
        **options: Any,
    ) -> np.ndarray:
        """Embeddings of at least one text, `(texts, width)`, float32, as they are before an argument changes them.

        `options` are `batch_size`, `show_progress_bar` and, where the user gives one, `device`.
        """

    def encode(
        self,
        inputs: str | Sequence[str] | None = None,
        prompt_name: str | None = None,
        prompt: str | None = None,
        batch_size: int = 32,
        show_progress_bar: bool | None = None,
        output_value: str | None = SENTENCES,
        precision: str | None = "float32",
        convert_to_numpy: bool = True,
        convert_to_tensor: bool = False,
        device: Any = None,
        normalize_embeddings: bool = False,
        truncate_dim: int | None = None,
        *,
        task: str | None = None,
        sentences: str | Sequence[str] | None = None,
        **unsupported: Any,
    ) -> Any:
        """Embeddings of texts, `(texts, width)`, or of a single text, `(width,)`.

        Args:
            inputs: The texts; `sentences` is their old name.
            prompt_name: Name of the prompt before each text, one of `prompts`.
            prompt: The prompt itself, which comes before a name; without either it is the default one.
            output_value: Only `sentence_embedding` is supported.
            precision: `float32`, `int8`, `uint8`, `binary` or `ubinary`.
            convert_to_numpy: Return an array; otherwise a list of tensors.
            convert_to_tensor: Return a tensor.
            truncate_dim: Number of leading dimensions to keep, of embeddings with more.
            task: The route, for a model with several.

        Returns:
            float32 for the precision of that name, also for models in half precision.
        """
        for name, value in unsupported.items():
            if value is not None:
                raise XlsrError(f"`{name}` is not supported by {type(self).__name__}, got {value}.")

        require_choice("output_value", output_value, [SENTENCES])
        require_choice("precision", precision or "float32", PRECISIONS)
        require_positive("batch_size", batch_size)

        if inputs is None:
            inputs = sentences
        texts: list[Any] = [inputs] if isinstance(inputs, str | None) else list(inputs)
        if not all(isinstance(text, str) for text in texts):
            raise XlsrError("`inputs` must be a text or a list of texts.")

        vectors = np.empty(0, np.float32)  # of no texts, without a width, as in sentence-transformers
        if texts:
            options: dict[str, Any] = {"batch_size": batch_size, "show_progress_bar": show_progress_bar}
            if device is not None:
                options["device"] = device
            vectors = self.vectors_of(texts, prompt=self._resolved(prompt, prompt_name), task=task, **options)
            vectors = self._truncated(vectors, truncate_dim)
            if normalize_embeddings:
                vectors = unit_length(vectors)
            vectors = quantized(vectors, precision)

        embeddings: Any = vectors
        if convert_to_tensor:
            embeddings = self._tensor(vectors)
        elif not convert_to_numpy:
            embeddings = list(self._tensor(vectors))

        return embeddings[0] if isinstance(inputs, str) else embeddings

    def encode_query(
        self,
        inputs: str | Sequence[str] | None = None,
        prompt_name: str | None = None,
        prompt: str | None = None,
        **options: Any,
    ) -> Any:
        """`encode` with the task `query`, and by default with the prompt of that name, if there is one."""
        return self._encode_role("query", inputs, prompt_name, prompt, options)

    def encode_document(
        self,
        inputs: str | Sequence[str] | None = None,
        prompt_name: str | None = None,
        prompt: str | None = None,
        **options: Any,
    ) -> Any:
        """`encode` with the task `document`, and by default with the first of `document`, `passage` and `corpus`."""
        return self._encode_role("document", inputs, prompt_name, prompt, options)

    def _encode_role(
        self,
        role: str,
        inputs: Any,
        prompt_name: str | None,
        prompt: str | None,
        options: dict[str, Any],
    ) -> Any:
        if prompt_name is None and prompt is None:
            prompts = PromptTable.of(self).texts
            prompt_name = next(filter(prompts.__contains__, ROLES[role]), None)
        return self.encode(inputs, prompt_name, prompt, **{"task": role, **options})

    def _resolved(self, prompt: str | None, prompt_name: str | None) -> str:
        """The text of the prompt that two arguments of `encode` name."""
        if prompt is not None:
            return prompt
        table = PromptTable.of(self)
        if prompt_name is None:
            return table.text()
        require_choice("prompt_name", prompt_name, table.texts)
        return table.texts[prompt_name]

    def _truncated(self, vectors: np.ndarray, truncate_dim: int | None) -> np.ndarray:
        if truncate_dim is None:
            truncate_dim = getattr(self, "truncate_dim", None)
        return vectors[:, :truncate_dim]

    def _tensor(self, vectors: np.ndarray) -> Any:
        """A tensor on the device of the encoder; of another precision than float32 on the CPU."""
        import torch

        device = getattr(self, "device", None) if vectors.dtype == np.float32 else None
        return torch.as_tensor(vectors, device=device)


class WrappedEncoder(EncodeMethods):
    """`EncodeMethods` around another encoder, whose prompts and settings it has."""

    SETTINGS = ("prompts", "default_prompt_name", "truncate_dim", "device", "max_seq_length", "similarity_fn_name")

    def __init__(self, encoder: Any) -> None:
        self.encoder = encoder

    def __getattr__(self, name: str) -> Any:
        if name in self.SETTINGS:
            return getattr(self.encoder, name)
        raise AttributeError(f"no attribute '{name}'")

    def inner_vectors(
        self,
        texts: list[str],
        prompt: str,
        task: str | None,
        **options: Any,
    ) -> np.ndarray:
        """What the other encoder gives, `(texts, width)`, float32, not normalised."""
        encoded = call_encode(
            self.encoder,
            texts,
            prompt=prompt,
            task=task,
            normalize_embeddings=False,
            **options,
        )
        return as_array(encoded)


def quantized(vectors: np.ndarray, precision: str | None) -> np.ndarray:
    """Embeddings `(n, width)` in another precision, as `SentenceTransformer.encode` gives them.

    The ranges of `int8` and `uint8` are those of these embeddings; the binary ones have one bit for each dimension.
    """
    if precision in (None, "float32"):
        return vectors
    from sentence_transformers.util import quantize_embeddings  # slow to load

    return np.asarray(quantize_embeddings(vectors, precision=precision))  # type: ignore[arg-type]
