"""A model in training as an encoder for evaluation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel

from hf_xlsr.data.collators.padding import pad_rows
from hf_xlsr.utils.pooling import normalize


class LiveEncoder:
    """Encodes with the current weights; the model keeps its mode.

    Args:
        model: With `encode_sentences`.
        tokenizer: A fast tokenizer; or one for each language, for a model that takes `language`. Languages are then
            the routes: `encode(sentences, task="zh")`.
        max_length: Sentences are truncated to this many tokens.
        autocast_dtype: Precision of the pass; by default that of the weights.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: Any,
        *,
        max_length: int = 200,
        autocast_dtype: torch.dtype | None = None,
    ) -> None:
        self.model: Any = model
        self.tokenizer = tokenizer
        self.routes = tuple(tokenizer) if isinstance(tokenizer, Mapping) else ()
        self.max_length, self.autocast_dtype = max_length, autocast_dtype

    @torch.no_grad()
    def encode(
        self,
        sentences: str | Sequence[str],
        batch_size: int = 64,
        normalize_embeddings: bool = False,
        task: str | None = None,
        **_: Any,
    ) -> np.ndarray:
        """Sentence embeddings in the given order, `(sentences, width)`, float32; `(width,)` for a single sentence."""
        if isinstance(sentences, str):
            one: np.ndarray = self.encode([sentences], batch_size, normalize_embeddings, task)[0]
            return one
        tokenizer, options = self.tokenizer, {}
        if self.routes:
            tokenizer, options = self.tokenizer[task], {"language": task}
        if not sentences:
            return np.empty((0, self.model.config.hidden_size), dtype=np.float32)
        truncation = {"truncation": True, "max_length": self.max_length}
        ids = tokenizer(list(sentences), return_attention_mask=False, verbose=False, **truncation)["input_ids"]
        order = sorted(range(len(ids)), key=lambda index: len(ids[index]))
        was_training, device = self.model.training, self.model.device
        self.model.eval()
        parts = []
        with torch.autocast(device.type, dtype=self.autocast_dtype, enabled=self.autocast_dtype is not None):
            for start in range(0, len(order), batch_size):
                rows = [ids[index] for index in order[start : start + batch_size]]
                batch = [torch.from_numpy(array).to(device) for array in pad_rows(rows, tokenizer.pad_token_id)]
                vectors = self.model.encode_sentences(*batch, **options).float()
                parts.append((normalize(vectors) if normalize_embeddings else vectors).cpu())
        self.model.train(was_training)
        result = np.empty((len(order), self.model.config.hidden_size), dtype=np.float32)
        result[order] = torch.cat(parts).numpy()
        return result
