"""A model in training as an encoder for evaluation, its loss and its translation accuracy."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from sentence_transformers.util import cos_sim, pairwise_cos_sim, quantize_embeddings, truncate_embeddings

from hf_xlsr.data.collators import pad_rows, truncate_row
from hf_xlsr.data.encoding import Prompts
from hf_xlsr.data.prepared import PreparedPairs
from hf_xlsr.data.sampling import MAIN, TASK
from hf_xlsr.evaluation.protocols.tatoeba import nearest_row
from hf_xlsr.utils.pooling import normalize

if TYPE_CHECKING:
    from hf_xlsr.trainers.base import XlsrTrainer


def named_prompts(prompts: Prompts) -> dict[str, str]:
    """Prompts by name as in sentence-transformers: `default`, or `query` and `document` for sources and targets."""
    given = {"default": prompts} if isinstance(prompts, str) else dict(prompts or {})
    common = dict.fromkeys(("query", "document"), given["default"]) if "default" in given else {}
    roles = {"query": "source", "document": "target"}
    return {**common, **{name: given[role] for name, role in roles.items() if role in given}, **given}


def set_prompts(model: Any, prompts: Prompts) -> None:
    """Gives a sentence-transformers model the prompts of training; one for all becomes its default."""
    model.prompts |= named_prompts(prompts)
    if "default" in named_prompts(prompts):
        model.default_prompt_name = "default"


@contextmanager
def evaluating(model: Any, autocast_dtype: torch.dtype | None) -> Iterator[torch.device]:
    """Runs a model in evaluation mode, by default in the precision of its weights, and restores its mode."""
    was_training, device = model.training, model.device
    model.eval()
    try:
        with torch.autocast(device.type, dtype=autocast_dtype, enabled=autocast_dtype is not None):
            yield device
    finally:
        model.train(was_training)


def batches_by_length(ids: Sequence[Sequence[int]], batch_size: int) -> list[list[int]]:
    """Batches of row numbers; the rows of a batch have similar lengths."""
    order = sorted(range(len(ids)), key=lambda index: len(ids[index]))
    return [order[start : start + batch_size] for start in range(0, len(order), batch_size)]


@dataclass(eq=False, repr=False)
class LiveModel:
    """A model in training for evaluation, with its current weights; the model keeps its mode."""

    model: Any
    tokenizer: Any
    _: KW_ONLY
    max_length: int = 128
    autocast_dtype: torch.dtype | None = None
    progress: bool = False


class LiveEncoder(LiveModel):
    """Encodes with the current weights. Evaluators of sentence-transformers take it.

    With a tokenizer for each language, languages are the routes: `encode(sentences, task="zh")`.
    """

    similarity_fn_name = "cosine"
    similarity = staticmethod(cos_sim)
    similarity_pairwise = staticmethod(pairwise_cos_sim)
    # Evaluators of sentence-transformers write their metrics to it; the trainer logs them.
    model_card_data = SimpleNamespace(set_evaluation_metrics=lambda *_, **__: None)
    truncate_dim: int | None = None

    def __init__(
        self, model: Any, tokenizer: Any, *, prompts: Prompts = None, default_route: str | None = None, **options: Any
    ) -> None:
        super().__init__(model, tokenizer, **options)
        self.routes = tuple(tokenizer) if isinstance(tokenizer, Mapping) else ()
        self.prompts, self.default_route = named_prompts(prompts), default_route

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
        task = task or self.default_route
        tokenizer = self.tokenizer[task] if self.routes else self.tokenizer
        if prompt is None:
            prompt = self.prompts.get(prompt_name or task or "", self.prompts.get("default", ""))
        texts = [prompt + sentence for sentence in ([sentences] if isinstance(sentences, str) else sentences)]
        options: dict[str, Any] = {"truncation": True, "max_length": self.max_length, "return_attention_mask": False}
        ids = tokenizer(texts, verbose=False, **options)["input_ids"] if texts else []
        vectors = torch.from_numpy(self.encode_ids(ids, batch_size, task=task))
        if (width := truncate_dim or self.truncate_dim) is not None:
            vectors = truncate_embeddings(vectors, width)
        if normalize_embeddings:
            vectors = normalize(vectors)
        found: Any = quantize_embeddings(vectors, precision) if precision else vectors  # type: ignore[arg-type]
        if convert_to_tensor:
            found = torch.as_tensor(found, device=self.device)
        else:
            found = np.asarray(found) if convert_to_numpy else list(torch.as_tensor(found))
        return found[0] if isinstance(sentences, str) else found

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
        with evaluating(self.model, self.autocast_dtype) as device:
            for places in batches_by_length(ids, batch_size):
                rows = [truncate_row(ids[place], self.max_length) for place in places]
                batch = [torch.from_numpy(array).to(device) for array in pad_rows(rows, tokenizer.pad_token_id)]
                result[places] = self.model.encode_sentences(*batch, **language).float().cpu().numpy()
        return result


def evaluation_batches(
    data: Any, batch_size: int, *, homogeneous: bool, processes: int = 1, rank: int = 0
) -> Iterator[list[int]]:
    """This process's rows of each batch: rows of similar length, each batch of about the same size.

    Every process has as many rows of each batch, at most `batch_size`; up to one less than `processes` are dropped.
    """
    groups = np.asarray(data.groups) if homogeneous else np.zeros(len(data), dtype=np.int64)
    for group in np.unique(groups):
        rows = np.flatnonzero(groups == group)
        rows = rows[np.argsort(np.asarray(data.lengths)[rows], kind="stable")]
        for batch in np.array_split(rows, -(-len(rows) // (batch_size * processes))):
            if share := len(batch) // processes:
                yield batch[rank::processes][:share].tolist()


@torch.no_grad()
def evaluation_loss(trainer: XlsrTrainer, data: Any, task: str = MAIN) -> float:
    """Mean loss of the rows. It draws no random numbers from those of training."""
    args, model = trainer.args, trainer.model
    options = {"processes": args.world_size, "rank": args.process_index, "homogeneous": args.homogeneous_batches}
    total = torch.zeros(2, dtype=torch.float64)
    was_training = model.training
    model.eval()
    devices = [args.device] if args.device.type == "cuda" else []
    with torch.random.fork_rng(devices):
        torch.manual_seed(trainer.args.seed_of_data)
        for rows in evaluation_batches(data, args.per_device_eval_batch_size, **options):
            features = [{TASK: task, **feature} for feature in data.__getitems__([(0, row) for row in rows])]
            inputs = trainer._prepare_inputs(trainer.data_collator(features))
            with trainer.compute_loss_context_manager():
                loss = trainer.compute_loss(model, inputs)
            total += torch.tensor([float(loss) * len(rows), len(rows)], dtype=torch.float64)
    model.train(was_training)
    if args.world_size > 1:
        total = trainer.accelerator.reduce(total.to(args.device, torch.float32)).double().cpu()
    return float(total[0] / total[1])


def translation_accuracy(encoder: Any, pairs: PreparedPairs, *, batch_size: int = 64) -> dict[str, float]:
    """Share of sentences whose nearest sentence of the other language, by cosine, is their translation.

    Equal sentences count as translations of each other's partners, as in `TranslationEvaluator` of
    sentence-transformers, whose names these are: `SOURCE-TARGET_src2trg_accuracy`, `..._trg2src_accuracy` and
    `..._mean_accuracy` of each language pair, and `accuracy`, the mean of the language pairs.
    """
    metrics: dict[str, float] = {}
    for group, languages in enumerate(pairs.language_pairs):
        rows = pairs.rows.select(np.flatnonzero(pairs.groups == group))
        vectors, texts = [], []
        for side, language in zip(("source", "target"), languages, strict=True):
            task = language if encoder.routes else None
            encoded = torch.from_numpy(encoder.encode_ids(rows[f"{side}_ids"][:], batch_size, task=task))
            vectors.append(normalize(encoded).numpy())
            texts.append(np.asarray(rows[f"{side}_text"][:]))
        name = "-".join(languages)
        forward, backward = (
            float(np.mean(texts[1 - side][nearest_row(vectors[side], vectors[1 - side])] == texts[1 - side]))
            for side in (0, 1)
        )
        metrics[f"{name}_src2trg_accuracy"], metrics[f"{name}_trg2src_accuracy"] = forward, backward
        metrics[f"{name}_mean_accuracy"] = (forward + backward) / 2
    means = [value for key, value in metrics.items() if key.endswith("_mean_accuracy")]
    return {"accuracy": float(np.mean(means)), **metrics}
