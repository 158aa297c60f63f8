"""A model in training as an encoder for evaluation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from sentence_transformers.util import (
    cos_sim,
    pairwise_cos_sim,
    quantize_embeddings,
    truncate_embeddings,
)
from transformers import PreTrainedModel

from hf_xlsr.data.collators import pad_rows, truncate_row
from hf_xlsr.utils.pooling import normalize

Prompts = str | Mapping[str, str] | None


def named_prompts(prompts: Prompts) -> dict[str, str]:
    """Prompts by name as in sentence-transformers: `default`, or `query` and `document` for sources and targets."""
    if isinstance(prompts, str):
        return dict.fromkeys(("default", "query", "document"), prompts)
    given = dict(prompts or {})
    roles = {"query": "source", "document": "target"}
    return {**{name: given[role] for name, role in roles.items() if role in given}, **given}


class _NoCard:
    """What evaluators of sentence-transformers write their metrics to; the trainer logs them."""

    def set_evaluation_metrics(self, *_: Any, **__: Any) -> None: ...


def set_prompts(model: Any, prompts: Prompts) -> None:
    """Gives a sentence-transformers model the prompts of training; a single one becomes its default."""
    model.prompts |= named_prompts(prompts)
    if isinstance(prompts, str):
        model.default_prompt_name = "default"


@contextmanager
def evaluating(model: Any, autocast_dtype: torch.dtype | None) -> Iterator[torch.device]:
    """Runs a model in evaluation mode, by default in the precision of its weights, and restores its mode."""
    was_training, device = model.training, model.device
    model.eval()
    with torch.autocast(device.type, dtype=autocast_dtype, enabled=autocast_dtype is not None):
        yield device
    model.train(was_training)


class LiveEncoder:
    """Encodes with the current weights; the model keeps its mode. Evaluators of sentence-transformers take it.

    With a tokenizer for each language, languages are the routes: `encode(sentences, task="zh")`.
    """

    similarity_fn_name = "cosine"
    similarity = staticmethod(cos_sim)
    similarity_pairwise = staticmethod(pairwise_cos_sim)
    model_card_data = _NoCard()
    truncate_dim: int | None = None

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: Any,
        *,
        max_length: int = 200,
        autocast_dtype: torch.dtype | None = None,
        prompts: Prompts = None,
        default_route: str | None = None,
    ) -> None:
        self.model: Any = model
        self.tokenizer, self.default_route = tokenizer, default_route
        self.routes = tuple(tokenizer) if isinstance(tokenizer, Mapping) else ()
        self.max_length, self.autocast_dtype, self.prompts = max_length, autocast_dtype, named_prompts(prompts)

    @property
    def device(self) -> torch.device:
        return self.model.device

    def route(self, language: str) -> LiveEncoder:
        """The encoder of a language, whose `encode` needs no `task`."""
        options: dict[str, Any] = {"max_length": self.max_length, "autocast_dtype": self.autocast_dtype}
        return LiveEncoder(self.model, self.tokenizer, **options, prompts=self.prompts, default_route=language)

    def encode(
        self,
        sentences: str | Sequence[str],
        batch_size: int = 64,
        normalize_embeddings: bool = False,
        task: str | None = None,
        *,
        prompt_name: str | None = None,
        prompt: str | None = None,
        convert_to_numpy: bool = True,
        convert_to_tensor: bool = False,
        precision: str | None = None,
        truncate_dim: int | None = None,
        **_: Any,
    ) -> Any:
        """Sentence embeddings in the given order, `(sentences, width)`, as `SentenceTransformer.encode`."""
        if isinstance(sentences, str):
            options: dict[str, Any] = {"prompt_name": prompt_name, "prompt": prompt, "precision": precision}
            options |= {"convert_to_numpy": convert_to_numpy, "convert_to_tensor": convert_to_tensor}
            options |= {"truncate_dim": truncate_dim, "normalize_embeddings": normalize_embeddings, "task": task}
            return self.encode([sentences], batch_size, **options)[0]
        task = task or self.default_route
        tokenizer = self.tokenizer[task] if self.routes else self.tokenizer
        if prompt is None:
            prompt = self.prompts.get(prompt_name or task or "", self.prompts.get("default", ""))
        texts = [prompt + sentence for sentence in sentences]
        options = {"truncation": True, "max_length": self.max_length, "return_attention_mask": False}
        ids = tokenizer(texts, verbose=False, **options)["input_ids"] if texts else []
        vectors = torch.from_numpy(self.encode_ids(ids, batch_size, task=task))
        if (width := truncate_dim or self.truncate_dim) is not None:
            vectors = truncate_embeddings(vectors, width)
        if normalize_embeddings:
            vectors = normalize(vectors)
        found: Any = quantize_embeddings(vectors, precision) if precision else vectors  # type: ignore[arg-type]
        if convert_to_tensor:
            return torch.as_tensor(found, device=self.device)
        return np.asarray(found) if convert_to_numpy else list(torch.as_tensor(found))

    def encode_query(self, sentences: str | Sequence[str], **options: Any) -> Any:
        """`encode` with the prompt `query`, if there is one."""
        return self.encode(sentences, **{"prompt_name": "query", **options})

    def encode_document(self, sentences: str | Sequence[str], **options: Any) -> Any:
        """`encode` with the prompt `document`, if there is one."""
        return self.encode(sentences, **{"prompt_name": "document", **options})

    @torch.no_grad()
    def encode_ids(self, ids: Sequence[Sequence[int]], batch_size: int = 64, *, task: str | None = None) -> np.ndarray:
        """Sentence embeddings of token ids, `(sentences, width)`, float32."""
        tokenizer = self.tokenizer[task] if self.routes else self.tokenizer
        language = {"language": task} if self.routes else {}
        result = np.empty((len(ids), self.model.config.hidden_size), dtype=np.float32)
        order = sorted(range(len(ids)), key=lambda index: len(ids[index]))
        with evaluating(self.model, self.autocast_dtype) as device:
            for start in range(0, len(order), batch_size):
                places = order[start : start + batch_size]
                rows = [truncate_row(ids[place], self.max_length) for place in places]
                batch = [torch.from_numpy(array).to(device) for array in pad_rows(rows, tokenizer.pad_token_id)]
                result[places] = self.model.encode_sentences(*batch, **language).float().cpu().numpy()
        return result
