"""Tiny models and batches: `CASES` is the table of `test_model_matrix.py`, which a model joins by a line."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from conftest import tiny_encoder
from transformers import AutoModel, AutoModelForSeq2SeqLM, AutoModelForSequenceClassification

from hf_xlsr import (
    CmlmModel,
    DistillationModel,
    DualMomentumConfig,
    DualMomentumModel,
    HictlForConditionalGeneration,
    HictlForPreTraining,
    HictlForSequenceClassification,
    LightweightConfig,
    LightweightDualTransformer,
)

VOCABULARY = 56
SPECIAL, START, END, MASK = 4, 1, 2, 3  # of each vocabulary the first four tokens; 0 is padding

BERT = {
    **tiny_encoder(VOCABULARY),
    "num_hidden_layers": 1,
    "pad_token_id": 0,
    "bos_token_id": START,
    "eos_token_id": END,
}
PLAIN = {**BERT, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
ROBERTA = {**BERT, "model_type": "xlm-roberta", "max_position_embeddings": 42}


@dataclass(frozen=True)
class Case:
    """A model and what the matrix has to know of it.

    Args:
        model_class: Ours.
        options: Values of its configuration.
        batch: Inputs of `forward` that give a loss, for a vocabulary of a size.
        auto: The Auto class that loads it.
        encoders: Where its stock encoders and decoders lie.
        float32: Beginnings of the names of weights that stay float32 under `dtype=torch.bfloat16`.
        resized: The encoder whose embeddings are resized, where there are several.
        rows: Parameters with a row for each token of the vocabulary, besides the embeddings.
    """

    model_class: Any
    options: dict[str, Any]
    batch: Callable[[int], dict[str, Any]]
    auto: Any = AutoModel
    encoders: tuple[str, ...] = ("encoder",)
    float32: tuple[str, ...] = ()
    resized: str = ""
    rows: tuple[str, ...] = ()


def sentences(count: int, length: int, vocabulary: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Random sentences of ragged length and their mask; the last token of the vocabulary is in the first."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(3, length + 1, (count, 1), generator=generator)
    lengths[0] = length
    mask = (torch.arange(length) < lengths).long()
    ids = torch.randint(SPECIAL, vocabulary, (count, length), generator=generator)
    ids[:, 0] = START
    ids[0, 1] = vocabulary - 1
    return ids * mask, mask


def masked(ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Sentences whose second token is masked, and that token as label."""
    hidden = ids.clone()
    hidden[:, 1] = MASK
    labels = torch.full_like(ids, -100)
    labels[:, 1] = ids[:, 1]
    return hidden, labels


def pair_batch(vocabulary: int, source: str = "en", target: str = "fr") -> dict[str, Any]:
    return {
        "source_lang": source,
        "target_lang": target,
        **side_of("source", sentences(4, 7, vocabulary, 0)),
        **side_of("target", sentences(4, 7, vocabulary, 1)),
        "source_texts": torch.arange(4),
        "target_texts": torch.arange(10, 14),
        "examples": torch.arange(4),
        "nli": {**nli_batch(vocabulary), "lang": source},
    }


def side_of(name: str, side: tuple[torch.Tensor, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The inputs of one side of a batch."""
    ids, mask = side
    return {f"{name}_input_ids": ids, f"{name}_attention_mask": mask}


def nli_batch(vocabulary: int) -> dict[str, torch.Tensor]:
    return {
        **side_of("premise", sentences(3, 6, vocabulary, 2)),
        **side_of("hypothesis", sentences(3, 6, vocabulary, 3)),
        "labels": torch.tensor([0, 1, 2]),
    }


def hictl_batch(vocabulary: int) -> dict[str, Any]:
    ids, mask = sentences(8, 7, vocabulary, 0)
    joint, joint_mask = sentences(4, 9, vocabulary, 1)
    hidden, labels = masked(joint)
    return {
        "input_ids": ids,
        "attention_mask": mask,
        "lm_input_ids": hidden,
        "lm_attention_mask": joint_mask,
        "lm_labels": labels,
        "joint_input_ids": joint,
        "joint_attention_mask": joint_mask,
        "special_ids": torch.arange(SPECIAL),
    }


def classification_batch(vocabulary: int) -> dict[str, Any]:
    ids, mask = sentences(3, 7, vocabulary, 0)
    return {"input_ids": ids, "attention_mask": mask, "labels": torch.tensor([0, 1, 2])}


def pair_classification_batch(vocabulary: int) -> dict[str, Any]:
    """Rows whose last two tokens are the second text."""
    batch = classification_batch(vocabulary)
    lengths = batch["attention_mask"].sum(1, keepdim=True)
    positions = torch.arange(batch["input_ids"].shape[1])
    is_second = (positions >= lengths - 2) & (positions < lengths)
    return {**batch, "token_type_ids": is_second.long()}


def translation_batch(vocabulary: int) -> dict[str, Any]:
    ids, mask = sentences(3, 7, vocabulary, 0)
    targets, target_mask = sentences(3, 6, vocabulary, 1)
    return {"input_ids": ids, "attention_mask": mask, "labels": targets.masked_fill(target_mask == 0, -100)}


def cmlm_batch(vocabulary: int) -> dict[str, Any]:
    first, first_mask = sentences(4, 6, vocabulary, 0)
    second, second_mask = sentences(4, 7, vocabulary, 1)
    hidden, labels = masked(second)
    pairs, pairs_mask = sentences(6, 6, vocabulary, 2)
    return {
        "first_input_ids": first,
        "first_attention_mask": first_mask,
        "second_input_ids": hidden,
        "second_attention_mask": second_mask,
        "labels": labels,
        "retrieval": {"input_ids": pairs, "attention_mask": pairs_mask},
        "nli": nli_batch(vocabulary),
    }


def lightweight_batch(vocabulary: int = VOCABULARY, task: str = "ugt") -> dict[str, Any]:
    """Four pairs, masked as `task` wants: on one side each, or on both for `mlm`."""
    ids, mask = sentences(8, 7, vocabulary, 0)
    hidden, labels = masked(ids)
    batch = {"input_ids": ids, "attention_mask": mask, "original_ids": ids, "mask_token_id": MASK}
    if task.startswith("mlm"):
        return {**batch, "input_ids": hidden, "mlm_labels": labels}
    if task == "xtr":
        return batch

    one_side = torch.tensor([True, False, False, True, False, True, True, False])
    batch["input_ids"] = torch.where(one_side[:, None], hidden, ids)
    batch["masked_ids"] = labels[:, 1].masked_fill(~one_side, -100)
    return batch


def distillation_batch(vocabulary: int) -> dict[str, Any]:
    return {
        **lightweight_batch(vocabulary),
        "identities": torch.tensor([[1, 2, 1, 4]] * 2),
        "teacher_embeds": torch.randn(4, 12, generator=torch.Generator().manual_seed(5)),
    }


# Negatives of equation 2: the queue alone.
QUEUE_ALONE = {"in_batch_negatives": False, "mask_stale_keys": False, "mask_duplicates": False}
DUAL = {
    **QUEUE_ALONE,
    "languages": ["en", "fr"],
    "queue_size": 16,
    "queue_storage": "int8",
    "projection_dim": 12,
    "nli_labels": 3,
    "mask_duplicates": True,
}
KEYS = ("momentum_encoders", "momentum_heads")
CASES: dict[str, Case] = {
    "dual_momentum": Case(
        DualMomentumModel,
        {**DUAL, "encoder_configs": {"en": BERT, "fr": ROBERTA}},
        pair_batch,
        encoders=("encoders.en", "encoders.fr", "momentum_encoders.en", "momentum_encoders.fr"),
        float32=KEYS,
        resized="fr",
    ),
    "dual_momentum_shared": Case(
        DualMomentumModel,
        {
            **QUEUE_ALONE,
            "languages": ["en", "fr"],
            "queue_size": 16,
            "nli_labels": 3,
            "encoder_configs": {"shared": BERT},
        },
        pair_batch,
        encoders=("encoders.shared", "momentum_encoders.shared"),
        float32=KEYS,
    ),
    "hictl": Case(
        HictlForPreTraining, {"text_config": BERT, "negative_words": 8}, hictl_batch, rows=("lm_head.bias",)
    ),
    "hictl_classification": Case(
        HictlForSequenceClassification,
        {"text_config": BERT, "num_labels": 3},
        classification_batch,
        auto=AutoModelForSequenceClassification,
    ),
    "hictl_classification_of_embeddings": Case(
        HictlForSequenceClassification,
        {"text_config": BERT, "num_labels": 3, "classifier_input": "embedding"},
        classification_batch,
        auto=AutoModelForSequenceClassification,
    ),
    "hictl_classification_of_pairs": Case(
        HictlForSequenceClassification,
        {"text_config": BERT, "num_labels": 3, "classifier_input": "embedding_pair"},
        pair_classification_batch,
        auto=AutoModelForSequenceClassification,
    ),
    "hictl_translation": Case(
        HictlForConditionalGeneration,
        {"text_config": BERT, "decoder_layers": 2},
        translation_batch,
        auto=AutoModelForSeq2SeqLM,
        encoders=("encoder", "decoder"),
        rows=("output_bias.bias",),
    ),
    "cmlm": Case(
        CmlmModel,
        {"text_config": ROBERTA, "projections": 3, "conditioning": "skip", "nli_labels": 3},
        cmlm_batch,
        rows=("lm_head.bias",),
    ),
    "lightweight": Case(LightweightDualTransformer, {"text_config": BERT}, lightweight_batch, rows=("lm_head.bias",)),
    "distillation": Case(
        DistillationModel,
        {"text_config": BERT, "teacher_dim": 12, "matching_weight": 1.0, "generative_weight": 1.0},
        distillation_batch,
        rows=("lm_head.bias",),
    ),
}


def build(case: Case, seed: int = 0) -> Any:
    """A random model in evaluation mode. No weight of it, constant ones included, is what an initialisation gives."""
    torch.manual_seed(seed)
    model = case.model_class(case.model_class.config_class(**case.options))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.05)
    if isinstance(model, DualMomentumModel):
        for language in ("en", "fr"):
            keys = torch.nn.functional.normalize(torch.randn(6, model.config.hidden_size), dim=-1)
            model.enqueue(language, keys, torch.arange(6), torch.arange(6) + 10)
    return model.eval()


def in_training(model: Any) -> Any:
    """A model that computes the loss of training, with its queues, while no submodule drops anything."""
    model.eval()
    model.training = True
    return model


def run(model: Any, case: Case, vocabulary: int = VOCABULARY) -> Any:
    """A forward pass, the same random numbers each time: HICTL draws its negative words."""
    torch.manual_seed(1)
    return model(**case.batch(vocabulary))


def lightweight(encoder: Any = PLAIN, **options: Any) -> LightweightDualTransformer:
    """A model as it starts."""
    torch.manual_seed(0)
    return LightweightDualTransformer(LightweightConfig(text_config=encoder, **options))


def dual(encoders: dict[str, dict[str, Any]] | None = None, **options: Any) -> DualMomentumModel:
    """A model as it starts, without dropout."""
    torch.manual_seed(0)
    values: dict[str, Any] = {**QUEUE_ALONE, "languages": ["en", "fr"], "queue_size": 32, **options}
    values["encoder_configs"] = encoders or dict.fromkeys(values["languages"], PLAIN)
    return DualMomentumModel(DualMomentumConfig(**values))


def dual_batch(count: int = 4, seed: int = 0, languages: tuple[str, str] = ("en", "fr")) -> dict[str, Any]:
    """Pairs with their texts, numbered from 100 * seed."""
    source_lang, target_lang = languages
    numbers = 100 * seed + torch.arange(count)
    return {
        "source_lang": source_lang,
        "target_lang": target_lang,
        **side_of("source", sentences(count, 6, VOCABULARY, 1000 + seed)),
        **side_of("target", sentences(count, 6, VOCABULARY, 2000 + seed)),
        "source_texts": 1000 + numbers,
        "target_texts": 2000 + numbers,
        "examples": numbers,
    }


def gradients_of(model: Any) -> dict[str, torch.Tensor]:
    """A copy of the gradient of each parameter that has one."""
    gradients = {}
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            gradients[name] = parameter.grad.clone()
    return gradients


def assert_same_gradients(model: Any, loss: torch.Tensor, expected: torch.Tensor, **tolerances: float) -> None:
    """Two losses have the same gradient for every parameter, each of which has one."""
    names, parameters = zip(*model.named_parameters(), strict=True)
    gradients = torch.autograd.grad(loss, parameters)
    expected_gradients = torch.autograd.grad(expected, parameters)
    torch.testing.assert_close(
        dict(zip(names, gradients, strict=True)),
        dict(zip(names, expected_gradients, strict=True)),
        **tolerances,
    )


def enqueue_keys(model: DualMomentumModel, batch: dict[str, Any]) -> None:
    """What the trainer does at the end of a step."""
    with torch.no_grad():
        output = model(**batch)
    model.enqueue(batch["source_lang"], output.source_keys, batch["source_texts"], batch["examples"])
    model.enqueue(batch["target_lang"], output.target_keys, batch["target_texts"], batch["examples"])
