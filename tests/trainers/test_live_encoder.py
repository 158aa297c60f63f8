"""The live encoder is what is exported: every evaluator of sentence-transformers gives both the same scores."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import make_pairs
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer import evaluation
from seven_trainers import trainer_of
from transformers import AutoConfig, AutoModel

sys.path.insert(0, str(Path(__file__).parents[1] / "encoders"))
from given_encoders import SENTENCES, build, vectors  # noqa: E402
from test_given_encoders import TRAINERS  # noqa: E402

from hf_xlsr import DistillationModel, DualMomentumModel  # noqa: E402
from hf_xlsr.trainers import add_adapters  # noqa: E402
from hf_xlsr.trainers.adapters import attention_layers  # noqa: E402
from hf_xlsr.utils.errors import XlsrError  # noqa: E402

PAIRS = make_pairs(20, seed=9)
SOURCES, TARGETS = ([pair[side] for pair in PAIRS] for side in ("source", "target"))
LABELS = [number % 2 for number in range(len(PAIRS))]
QUERIES = {str(number): text for number, text in enumerate(SOURCES)}
CORPUS = {str(number): text for number, text in enumerate(TARGETS)}
RELEVANT = {number: {number} for number in QUERIES}
SAMPLES = [
    {"query": query, "positive": [target], "negative": TARGETS[:3]}
    for query, target in zip(SOURCES[4:], TARGETS[4:], strict=True)
]


def evaluators(teacher: SentenceTransformer) -> dict[str, Any]:
    """Every evaluator of sentence-transformers that compares sentences."""
    scores = [label / 2 for label in LABELS]
    return {
        "similarity": evaluation.EmbeddingSimilarityEvaluator(SOURCES, TARGETS, scores),
        "classification": evaluation.BinaryClassificationEvaluator(SOURCES, TARGETS, LABELS),
        "triplet": evaluation.TripletEvaluator(SOURCES, TARGETS, TARGETS[::-1]),
        "translation": evaluation.TranslationEvaluator(SOURCES, TARGETS),
        "retrieval": evaluation.InformationRetrievalEvaluator(QUERIES, CORPUS, RELEVANT),
        "reranking": evaluation.RerankingEvaluator(SAMPLES),
        "paraphrases": evaluation.ParaphraseMiningEvaluator({**QUERIES}, [("0", "1")]),
        "mse": evaluation.MSEEvaluator(SOURCES, TARGETS, teacher_model=teacher),
        "several": evaluation.SequentialEvaluator([evaluation.TranslationEvaluator(SOURCES, TARGETS)]),
    }


@pytest.mark.slow
@pytest.mark.parametrize("kind", TRAINERS)
def test_evaluators_give_live_and_exported_encoders_the_same_scores(kind: str, tmp_path: Path) -> None:
    given = build("bert_prompts", tmp_path / "raw")
    trainer = TRAINERS[kind](given, tmp_path / "run", learning_rate=1e-2, max_steps=3)
    trainer.train()
    live = trainer.live_encoder()
    trainer.save_sentence_transformer(tmp_path / "export")
    exported = SentenceTransformer(str(tmp_path / "export"), device="cpu")
    assert not torch.allclose(vectors(live), vectors(given), atol=1e-3)
    for name, evaluator in evaluators(given).items():
        assert evaluator(live) == evaluator(exported), name


@pytest.mark.sample(3)
@pytest.mark.parametrize("role", ["encode", "encode_query", "encode_document"])
@pytest.mark.parametrize("prompt", [{}, {"prompt": "red "}, {"prompt": ""}, {"prompt_name": "fr"}])
def test_live_and_exported_vectors_are_bit_equal(role: str, prompt: dict[str, str], tmp_path: Path) -> None:
    trainer = TRAINERS["distillation"](build("bert_prompts", tmp_path / "raw"), tmp_path / "run", learning_rate=1e-2)
    trainer.train()
    trainer.save_sentence_transformer(tmp_path / "export")
    exported = SentenceTransformer(str(tmp_path / "export"), device="cpu")
    live, expected = (
        getattr(model, role)(SENTENCES, convert_to_tensor=True, **prompt)
        for model in (trainer.live_encoder(), exported)
    )
    assert torch.equal(live, expected)


def test_adapters_are_measured_as_the_merged_model(tmp_path: Path) -> None:
    given = build("labse", tmp_path / "raw")
    model = add_adapters(DistillationModel.from_encoder(given, generative_weight=0.0, teacher_dim=16), rank=2)
    for name, weight in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(weight, std=0.1)
    trainer = TRAINERS["distillation"](model, tmp_path / "run", learning_rate=1e-2)
    trainer.train()
    trainer.save_sentence_transformer(tmp_path / "export")
    exported = SentenceTransformer(str(tmp_path / "export"), device="cpu")
    live = vectors(trainer.live_encoder())
    assert not torch.allclose(live, vectors(given), atol=1e-3)
    torch.testing.assert_close(live, vectors(exported), rtol=0, atol=1e-6)
    assert {type(module).__name__ for module in exported} == {"Transformer", "Pooling", "Dense", "Normalize"}


def test_evaluating_restores_the_mode_of_every_module(tmp_path: Path) -> None:
    trainer = TRAINERS["dual"](build("bert_cls", tmp_path / "raw"), tmp_path / "run")
    trainer.evaluations = [lambda encoder: {"width": float(encoder.encode("red").shape[0])}]
    trainer.train()
    trainer.model.train()
    trainer.model.encoders["shared"].embeddings.eval()
    before = [module.training for module in trainer.model.modules()]
    assert any(before) and not all(before)
    assert trainer.evaluate()["eval_width"] == 16.0
    assert [module.training for module in trainer.model.modules()] == before


def test_pooling_is_exact_under_bfloat16(tmp_path: Path) -> None:
    """As in training; sentence-transformers alone would round the mean to bfloat16."""
    trainer = TRAINERS["distillation"](build("bert_mean", tmp_path / "raw"), tmp_path / "run", precision="bfloat16")
    seen = {}
    trainer.live_encoder()[1].register_forward_hook(lambda *given: seen.update(given[2]))
    trainer.evaluations = [lambda encoder: {"length": float(abs(encoder.encode("red blue")).sum())}]
    trainer.evaluate()
    assert seen["token_embeddings"].dtype == seen["sentence_embedding"].dtype == torch.float32


@pytest.mark.sample(3)
@pytest.mark.parametrize("kind", TRAINERS)
@pytest.mark.parametrize("name", ["bert_cls", "bert_mean"])
def test_evaluators_get_float32_under_bfloat16(kind: str, name: str, tmp_path: Path) -> None:
    """They turn embeddings into numpy arrays, which have no bfloat16."""
    trainer = TRAINERS[kind](build(name, tmp_path / "raw"), tmp_path / "run", precision="bfloat16")
    trainer.evaluations = [evaluation.TranslationEvaluator(SOURCES, TARGETS)]
    assert 0 <= trainer.evaluate()["eval_mean_accuracy"] <= 1


@pytest.mark.parametrize("kind", ["Lightweight", "FineTune", "Translation"])
def test_results_can_be_kept_by_live_model(kind: str, tmp_path: Path) -> None:
    """In a dictionary, as functions with a cache do."""
    live = trainer_of(kind, tmp_path).live_encoder()
    assert {live: 1.0}[live] == 1.0


@pytest.mark.parametrize(
    ("name", "layers"),
    [
        ("bert_cls", ["query", "key", "value"]),
        ("modernbert", ["Wqkv"]),
        ("t5", ["q", "k", "v"]),
        ("qwen", ["q_proj", "k_proj", "v_proj"]),
        ("gemma", ["q_proj", "k_proj", "v_proj"]),
    ],
)
def test_layers_of_attention_get_adapters(name: str, layers: list[str], tmp_path: Path) -> None:
    model = DualMomentumModel.from_encoders(build(name, tmp_path / "raw"), languages=["en", "fr"], queue_size=8)
    assert attention_layers(model) == layers
    adapted = add_adapters(model, rank=2)
    trained = [name for name, weight in adapted.named_parameters() if weight.requires_grad]
    assert trained and all("lora_" in name and "momentum" not in name for name in trained)


ATTENTION = {
    **dict.fromkeys(("bert", "roberta", "electra"), ["query", "key", "value"]),
    **dict.fromkeys(("llama", "mistral", "qwen3", "gemma3_text"), ["q_proj", "k_proj", "v_proj"]),
    **dict.fromkeys(("mpnet", "t5"), ["q", "k", "v"]),
    "distilbert": ["q_lin", "k_lin", "v_lin"],
    "deberta-v2": ["query_proj", "key_proj", "value_proj"],
    "modernbert": ["Wqkv"],
    "phi3": ["qkv_proj"],
    "gpt2": ["c_attn"],
}


@pytest.mark.parametrize("kind", ATTENTION)
def test_layers_of_attention_by_architecture(kind: str) -> None:
    with torch.device("meta"):
        encoder = AutoModel.from_config(AutoConfig.for_model(kind, num_hidden_layers=1))
    assert attention_layers(torch.nn.ModuleDict({"encoder": encoder})) == ATTENTION[kind]


def test_layers_that_nobody_knows_must_be_named(tmp_path: Path) -> None:
    model = DualMomentumModel.from_encoders(build("bert_cls", tmp_path / "raw"), languages=["en", "fr"], queue_size=8)
    for parts in (model.encoders, model.momentum_encoders):
        for layer in parts["shared"].encoder.layer:
            own = layer.attention.self
            own.first, own.second, own.third = own.query, own.key, own.value
            del own.query, own.key, own.value
    with pytest.raises(XlsrError, match="first"):
        add_adapters(model)
