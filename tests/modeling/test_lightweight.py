from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import AutoConfig, AutoModel

from hf_xlsr import LightweightConfig, LightweightDualTransformer, XlsrError
from hf_xlsr.losses import alignment_loss, generative_labels, generative_loss, similarity_loss
from hf_xlsr.losses.unified_generative import GENERATIVE_TASKS
from hf_xlsr.pooling import pool

VOCABULARY, WIDTH, PAIRS, LENGTH, MASK = 40, 16, 4, 6, 3
SIZES: dict[str, Any] = {"vocab_size": VOCABULARY, "pad_token_id": 0}
BERT = {
    "model_type": "bert",
    "hidden_size": WIDTH,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "max_position_embeddings": 16,
    "type_vocab_size": 1,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
    **SIZES,
}
ENCODERS: dict[str, dict[str, Any]] = {
    "bert": BERT,
    "xlm-roberta": {**BERT, "model_type": "xlm-roberta", "pad_token_id": 1, "max_position_embeddings": 20},
    "mpnet": {**BERT, "model_type": "mpnet", "pad_token_id": 1, "max_position_embeddings": 20},
    "distilbert": {
        "model_type": "distilbert",
        "dim": WIDTH,
        "n_layers": 2,
        "n_heads": 2,
        "hidden_dim": 32,
        "max_position_embeddings": 16,
        "dropout": 0.0,
        "attention_dropout": 0.0,
        **SIZES,
    },
    "modernbert": {
        "model_type": "modernbert",
        "hidden_size": WIDTH,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 32,
        "max_position_embeddings": 16,
        "local_attention": 8,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "cls_token_id": 1,
        "sep_token_id": 2,
        **SIZES,
    },
}


def config(encoder: dict[str, Any] = BERT, **kwargs: Any) -> LightweightConfig:
    return LightweightConfig(text_config=dict(encoder), **kwargs)


def build(encoder: dict[str, Any] = BERT, seed: int = 0, **kwargs: Any) -> LightweightDualTransformer:
    torch.manual_seed(seed)
    return LightweightDualTransformer(config(encoder, **kwargs))


def make_batch(task: str = "ugt", pad: int = 0, seed: int = 0) -> dict[str, Any]:
    """Pairs of unequal length, masked as `task` wants."""
    generator = torch.Generator().manual_seed(seed)
    rows = 2 * PAIRS
    lengths = torch.randint(2, LENGTH + 1, (rows,), generator=generator)
    lengths[0] = LENGTH
    mask = (torch.arange(LENGTH) < lengths.unsqueeze(1)).long()
    ids = torch.randint(4, VOCABULARY, (rows, LENGTH), generator=generator)
    original = torch.where(mask == 1, ids, pad)
    batch: dict[str, Any] = {"input_ids": original.clone(), "attention_mask": mask, "original_ids": original}
    if task in ("ugt", "smlm"):
        batch["masked_ids"] = torch.full((rows,), -100)
        for pair in range(PAIRS):
            row = pair if pair % 2 else pair + PAIRS
            batch["masked_ids"][row] = original[row, 1]
            batch["input_ids"][row, 1] = MASK
    elif task.startswith("mlm"):
        batch["mlm_labels"] = torch.full((rows, LENGTH), -100)
        batch["mlm_labels"][:, 0] = original[:, 0]
        batch["input_ids"][:, 0] = MASK
    return batch


def gradients(model: LightweightDualTransformer, batch: dict[str, Any]) -> dict[str, torch.Tensor | None]:
    model.zero_grad()
    model(**batch).loss.backward()
    return {name: parameter.grad for name, parameter in model.named_parameters()}


def without_gradient(model: LightweightDualTransformer, batch: dict[str, Any]) -> list[str]:
    return [name for name, gradient in gradients(model, batch).items() if gradient is None]


# What is computed


def test_loss_is_equation_seven_of_the_parts_by_hand() -> None:
    model, batch = build().eval(), make_batch()
    output = model(**batch)
    mask = batch["attention_mask"]
    states = model.encoder(input_ids=batch["input_ids"], attention_mask=mask).last_hidden_state
    pooled = pool(states, mask)
    source, target = pooled[:PAIRS], pooled[PAIRS:]
    labels = generative_labels(batch["original_ids"], mask, batch["masked_ids"])
    table = model.get_input_embeddings().weight
    expected = {
        "generative": generative_loss(model.head(pooled), table, model.head.bias, *labels),
        "alignment": alignment_loss(source, target),
        "similarity": similarity_loss(source, target),
    }
    torch.testing.assert_close(output.losses, expected)
    total = expected["generative"] + 2 * expected["alignment"] + 2 * expected["similarity"]
    torch.testing.assert_close(output.loss, total)
    torch.testing.assert_close(output.source_embeds, source)
    torch.testing.assert_close(output.target_embeds, target)


def test_every_switch_of_the_config_reaches_its_loss() -> None:
    batch = make_batch()
    plain = build().eval()(**batch, mask_token_id=MASK).losses
    for changes, part in (
        ({"label_mode": "set"}, "generative"),
        ({"alignment_temperature": 0.1}, "alignment"),
        ({"alignment_normalize": True}, "alignment"),
        ({"similarity_temperature": 9.0}, "similarity"),
        ({"similarity_normalize": True}, "similarity"),
        ({"similarity_reduction": "sum"}, "similarity"),
        ({"similarity_epsilon": 0.9}, "similarity"),
    ):
        losses = build(**changes).eval()(**batch, mask_token_id=MASK).losses
        for name, value in losses.items():
            assert (value.item() != pytest.approx(plain[name].item(), rel=1e-6)) == (name == part), (changes, name)
    assert build(pooling="max").eval()(**batch).loss.item() != build().eval()(**batch).loss.item()


@pytest.mark.parametrize("part", ["generative", "alignment", "similarity"])
def test_a_weight_of_zero_switches_the_part_off(part: str) -> None:
    model, batch = build(**{f"{part}_weight": 0.0}), make_batch()
    output = model(**batch)
    assert part not in output.losses and len(output.losses) == 2
    assert without_gradient(model, batch) == []


def test_no_weight_at_all_is_rejected() -> None:
    model = build(generative_weight=0.0, alignment_weight=0.0, similarity_weight=0.0)
    with pytest.raises(XlsrError, match="weight above 0"):
        model(**make_batch())


def test_the_chunk_size_changes_nothing() -> None:
    batch = make_batch()
    whole, chunked = build(logits_chunk_size=128), build(logits_chunk_size=3)
    torch.testing.assert_close(gradients(chunked, batch), gradients(whole, batch))


class DecodedRows(TorchDispatchMode):
    """Records the most rows of any matrix as wide as the vocabulary."""

    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.vocabulary, self.rows = vocabulary, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor) and result.shape[-1:] == (self.vocabulary,):
            self.rows = max(self.rows, result.numel() // self.vocabulary)
        return result


@pytest.mark.parametrize("task", GENERATIVE_TASKS)
def test_no_more_rows_are_decoded_at_a_time_than_the_config_says(task: str) -> None:
    width, vocabulary = 2, 97
    encoder = {**BERT, "hidden_size": width, "intermediate_size": 4, "vocab_size": vocabulary}
    model = build(encoder, generative_task=task, logits_chunk_size=3)
    with DecodedRows(vocabulary) as decoded:
        model(**make_batch(task)).loss.backward()
    assert decoded.rows == 3


def test_mlm_and_reconstruction_are_halved() -> None:
    batch = make_batch("mlm+xtr")
    losses = {
        task: build(generative_task=task).eval()(**batch).losses["generative"] for task in ("mlm", "xtr", "mlm+xtr")
    }
    torch.testing.assert_close(losses["mlm+xtr"], (losses["mlm"] + losses["xtr"]) / 2)


def test_return_loss_false_gives_the_vectors_alone() -> None:
    model, batch = build().eval(), make_batch()
    output = model(batch["input_ids"], batch["attention_mask"], return_loss=False)
    assert output.loss is None and output.losses is None
    vectors = model.encode_sentences(batch["input_ids"], batch["attention_mask"])
    torch.testing.assert_close(torch.cat([output.source_embeds, output.target_embeds]), vectors)


def test_padding_does_not_change_a_sentence_vector() -> None:
    model, batch = build().eval(), make_batch()
    row = int(batch["attention_mask"].sum(1).argmin())
    length = int(batch["attention_mask"][row].sum())
    assert length < LENGTH
    alone = model.encode_sentences(batch["input_ids"][row : row + 1, :length])
    together = model.encode_sentences(batch["input_ids"], batch["attention_mask"])[row : row + 1]
    torch.testing.assert_close(alone, together)


def test_an_empty_sentence_does_not_spoil_the_batch() -> None:
    model, batch = build().eval(), make_batch()
    batch["attention_mask"][PAIRS] = 0
    batch["masked_ids"][PAIRS] = -100
    output = model(**batch)
    output.loss.backward()
    assert output.loss.isfinite()
    assert all(p.grad.isfinite().all() for p in model.parameters())


# Rules of the house


def test_a_forward_changes_no_state() -> None:
    model, batch = build(), make_batch()
    model.train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    buffers = {name: value.clone() for name, value in model.named_buffers()}
    inputs = {name: value.clone() for name, value in batch.items()}
    first, second = model(**batch), model(**batch)
    assert first.loss.item() == second.loss.item()
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(torch.equal(value, buffers[name]) for name, value in model.named_buffers())
    assert all(torch.equal(value, inputs[name]) for name, value in batch.items())


def test_two_forwards_before_one_backward_add_up() -> None:
    model = build()
    first, second = make_batch(seed=1), make_batch(seed=2)
    expected = {name: gradients(model, first)[name].clone() for name, _ in model.named_parameters()}
    for name, gradient in gradients(model, second).items():
        expected[name] += gradient
    model.zero_grad()
    losses = [model(**batch).loss for batch in (first, second)]
    sum(losses).backward()
    torch.testing.assert_close({n: p.grad for n, p in model.named_parameters()}, expected)


@pytest.mark.parametrize("name", ["bert", "xlm-roberta", "distilbert", "modernbert"])  # mpnet has no checkpointing
@pytest.mark.parametrize("reentrant", [True, False])
def test_gradient_checkpointing_changes_nothing(name: str, reentrant: bool) -> None:
    encoder = ENCODERS[name]
    model, batch = build(encoder).train(), make_batch(pad=encoder["pad_token_id"])
    expected = {name: gradient.clone() for name, gradient in gradients(model, batch).items()}
    model.gradient_checkpointing_enable({"use_reentrant": reentrant})
    assert any(getattr(module, "gradient_checkpointing", False) for module in model.encoder.modules())
    torch.testing.assert_close(gradients(model, batch), expected)


@pytest.mark.parametrize("encoder", ENCODERS.values(), ids=list(ENCODERS))
def test_every_parameter_gets_a_gradient(encoder: dict[str, Any]) -> None:
    model = build(encoder).train()
    assert without_gradient(model, make_batch(pad=encoder["pad_token_id"])) == []


@pytest.mark.parametrize("task", GENERATIVE_TASKS)
@pytest.mark.parametrize("pooling", ["mean", "max", "cls"])
def test_every_parameter_gets_a_gradient_in_every_task(task: str, pooling: str) -> None:
    assert without_gradient(build(generative_task=task, pooling=pooling), make_batch(task)) == []


def test_every_parameter_gets_a_gradient_when_nothing_was_masked() -> None:
    batch = make_batch("mlm")
    batch["mlm_labels"][:] = -100
    model = build(generative_task="mlm")
    assert without_gradient(model, batch) == []
    assert model(**batch).losses["generative"].item() == 0
    assert all(p.grad.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize("task", GENERATIVE_TASKS)
def test_every_generative_task_trains(task: str) -> None:
    model, batch = build(generative_task=task).train(), make_batch(task)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    history = []
    for _ in range(30):
        output = model(**batch)
        history.append({name: value.item() for name, value in output.losses.items()} | {"all": output.loss.item()})
        optimizer.zero_grad()
        output.loss.backward()
        optimizer.step()
    assert history[-1]["all"] < 0.7 * history[0]["all"]
    assert history[-1]["generative"] < 0.9 * history[0]["generative"]
    assert history[-1]["alignment"] < 0.5 * history[0]["alignment"]


@pytest.mark.parametrize("encoder", ENCODERS.values(), ids=list(ENCODERS))
def test_any_encoder_trains(encoder: dict[str, Any]) -> None:
    model, batch = build(encoder).train(), make_batch(pad=encoder["pad_token_id"])
    assert model.config.hidden_size == WIDTH
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    losses = []
    for _ in range(15):
        loss = model(**batch).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.85 * losses[0]


# Errors


def test_an_odd_number_of_rows_is_rejected() -> None:
    batch = {name: value[:-1] for name, value in make_batch().items()}
    with pytest.raises(XlsrError, match="7 rows"):
        build()(**batch)


@pytest.mark.parametrize(
    ("task", "label"),
    [
        ("ugt", "masked_ids"),
        ("smlm", "masked_ids"),
        ("mlm", "mlm_labels"),
        ("mlm+xtr", "mlm_labels"),
        ("ugt", "original_ids"),  # without them the labels would ask for <mask>
        ("mlm+xtr", "original_ids"),
    ],
)
def test_missing_labels_are_named(task: str, label: str) -> None:
    batch = make_batch(task)
    del batch[label]
    with pytest.raises(XlsrError, match=f"'{task.replace('+', '.')}' needs {label}"):
        build(generative_task=task)(**batch)


def test_reconstruction_needs_no_labels() -> None:
    batch = make_batch("xtr")
    expected = build(generative_task="xtr")(**batch).loss.item()
    del batch["original_ids"]
    assert build(generative_task="xtr")(**batch).loss.item() == expected


def test_set_mode_needs_the_id_of_mask() -> None:
    with pytest.raises(XlsrError, match="mask_token_id"):
        build(label_mode="set")(**make_batch())
    assert build(label_mode="set")(**make_batch(), mask_token_id=MASK).loss.isfinite()


def test_an_encoder_whose_embeddings_have_another_width_is_rejected() -> None:
    encoder = {**BERT, "model_type": "electra", "embedding_size": 8}
    with pytest.raises(XlsrError, match="'electra' has embeddings of width 8 and states of width 16"):
        build(encoder)
    assert build(encoder, generative_weight=0.0)(**make_batch()).loss.isfinite()


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ({"pooling": "maen"}, "pooling is 'maen'; did you mean 'mean'"),
        ({"generative_task": "ugtt"}, "generative_task is 'ugtt'; did you mean 'ugt'"),
        ({"label_mode": "sets"}, "label_mode is 'sets'; did you mean 'set'"),
        ({"similarity_reduction": "none"}, "similarity_reduction is 'none'"),
        ({"initialization": "xyz"}, "initialization is 'xyz'; known are bert, released"),
        ({"alignment_temperature": 0.0}, "alignment_temperature"),
        ({"similarity_temperature": -1.0}, "similarity_temperature"),
        ({"similarity_weight": -0.1}, "similarity_weight"),
        ({"mlm_probability": 0.0}, "mlm_probability"),
        ({"mlm_probability": 15.0}, "mlm_probability"),
        ({"similarity_epsilon": 0.0}, "similarity_epsilon"),
        ({"similarity_epsilon": 1e-9}, "similarity_epsilon"),
        ({"logits_chunk_size": 0}, "logits_chunk_size"),
    ],
)
def test_a_bad_value_is_met_at_the_door(argument: dict[str, Any], message: str) -> None:
    with pytest.raises(XlsrError, match=message):
        config(**argument)


# Configuration


def test_defaults_are_the_papers() -> None:
    encoder = LightweightConfig().get_text_config()
    assert (encoder.num_hidden_layers, encoder.num_attention_heads) == (2, 8)
    assert (encoder.hidden_size, encoder.intermediate_size, encoder.vocab_size) == (512, 1024, 50_000)
    assert (encoder.hidden_dropout_prob, encoder.attention_probs_dropout_prob) == (0.1, 0.1)
    ours = LightweightConfig()
    assert (ours.generative_weight, ours.alignment_weight, ours.similarity_weight) == (1, 2, 2)
    assert (ours.pooling, ours.generative_task, ours.label_mode) == ("mean", "ugt", "accumulate")
    assert not ours.alignment_normalize and ours.alignment_temperature == 1


def test_two_default_configs_share_nothing() -> None:
    first, second = LightweightConfig(), LightweightConfig()
    first.text_config.vocab_size = 7
    assert second.text_config.vocab_size == 50_000


@pytest.mark.parametrize("encoder", ENCODERS.values(), ids=list(ENCODERS))
def test_config_round_trip(encoder: dict[str, Any], tmp_path: Path) -> None:
    before = config(encoder, pooling="cls", label_mode="set", similarity_epsilon=1e-3, alignment_weight=0.0)
    before.save_pretrained(tmp_path)
    after = AutoConfig.from_pretrained(tmp_path)
    assert type(after) is LightweightConfig
    assert type(after.text_config) is type(AutoConfig.for_model(encoder["model_type"]))
    assert {**after.to_dict(), "_name_or_path": ""} == before.to_dict()


def test_a_dict_without_model_type_is_bert() -> None:
    encoder = {name: value for name, value in BERT.items() if name != "model_type"}
    assert config(encoder).text_config.model_type == "bert"


# Saving and loading


def perturb(model: torch.nn.Module) -> None:
    """Moves every weight, constant ones too, so that no initialisation looks like it."""
    generator = torch.Generator().manual_seed(42)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator).to(parameter.dtype))


def assert_same_weights(first: torch.nn.Module, second: torch.nn.Module) -> None:
    expected = second.state_dict()
    assert first.state_dict().keys() == expected.keys()
    for name, value in first.state_dict().items():
        assert value.dtype == expected[name].dtype and torch.equal(value, expected[name]), name


@pytest.mark.parametrize("initialization", ["bert", "released"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_round_trip_through_the_auto_class(initialization: str, dtype: torch.dtype, tmp_path: Path) -> None:
    model = build(initialization=initialization).to(dtype).eval()
    perturb(model)
    model.save_pretrained(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"config.json", "model.safetensors"}
    assert json.loads((tmp_path / "config.json").read_text())["initialization"] == initialization

    loaded, report = AutoModel.from_pretrained(tmp_path, output_loading_info=True)
    assert type(loaded) is LightweightDualTransformer
    assert not any(report[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert loaded.dtype == dtype and not loaded.training
    assert loaded.config.initialization == initialization
    # An initialisation applied over loaded weights would show here, whether they come by meta device or not.
    assert_same_weights(loaded, model)
    batch = make_batch()
    assert torch.equal(loaded(**batch).loss, model(**batch).loss)

    again = tmp_path / "again"
    loaded.save_pretrained(again)
    assert_same_weights(LightweightDualTransformer.from_pretrained(again), model)


def test_loading_in_another_precision(tmp_path: Path) -> None:
    model = build().bfloat16()
    model.save_pretrained(tmp_path)
    loaded = AutoModel.from_pretrained(tmp_path, dtype=torch.float32)
    assert {parameter.dtype for parameter in loaded.parameters()} == {torch.float32}
    assert_same_weights(loaded, model.float())


def test_loading_draws_no_released_weights_for_what_the_checkpoint_holds(tmp_path: Path) -> None:
    model = build(initialization="released")
    perturb(model)
    state = model.state_dict()
    loaded = LightweightDualTransformer.from_pretrained(None, config=model.config, state_dict=state)
    assert_same_weights(loaded, model)


def test_an_idle_head_gets_zero_gradients_after_loading_too(tmp_path: Path) -> None:
    build(generative_weight=0.0).save_pretrained(tmp_path)
    loaded, batch = AutoModel.from_pretrained(tmp_path).train(), make_batch()
    for name, gradient in gradients(loaded, batch).items():
        # DDP waits for every parameter.
        assert gradient is not None and (name.startswith("head.") == bool((gradient == 0).all())), name
    output = loaded(**batch)
    assert output.loss.item() == pytest.approx(2 * sum(value.item() for value in output.losses.values()))


def test_attention_implementation_reaches_the_encoder(tmp_path: Path) -> None:
    model, batch = build().eval(), make_batch()
    model.save_pretrained(tmp_path)
    eager = AutoModel.from_pretrained(tmp_path, attn_implementation="eager")
    assert eager.encoder.config._attn_implementation == "eager"
    torch.testing.assert_close(eager(**batch).loss, model(**batch).loss)


@pytest.mark.parametrize("task", GENERATIVE_TASKS)
def test_bfloat16_weights_and_autocast_stay_close_to_float32(task: str) -> None:
    batch = make_batch(task)
    exact = build(generative_task=task)
    expected = gradients(exact, batch)
    loss = exact(**batch).loss.item()

    def compare(model: LightweightDualTransformer, got: dict[str, torch.Tensor | None]) -> None:
        assert model(**batch).loss.item() == pytest.approx(loss, rel=2e-2)
        flat = torch.cat([gradient.float().flatten() for gradient in got.values()])
        truth = torch.cat([gradient.flatten() for gradient in expected.values()])
        assert torch.cosine_similarity(flat, truth, dim=0) > 0.99
        assert (flat - truth).norm() < 0.1 * truth.norm()

    lowered = build(generative_task=task).bfloat16()
    compare(lowered, gradients(lowered, batch))
    mixed = build(generative_task=task)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output = mixed(**batch)
        assert output.loss.dtype == torch.float32
        assert all(value.dtype == torch.float32 for value in output.losses.values())
        compare(mixed, gradients(mixed, batch))


# Vocabulary


@pytest.mark.parametrize("size", [VOCABULARY + 7, VOCABULARY - 5])
def test_resizing_keeps_the_decoder_bias_in_step(size: int, tmp_path: Path) -> None:
    model = build()
    perturb(model)
    bias, kept = model.head.bias.detach().clone(), min(size, VOCABULARY)
    embeddings = model.resize_token_embeddings(size)
    assert embeddings is model.get_input_embeddings()
    assert model.head.bias.shape == (size,) and model.head.bias.requires_grad
    assert torch.equal(model.head.bias[:kept], bias[:kept])
    assert (model.head.bias[kept:] == 0).all()
    assert model.config.get_text_config().vocab_size == model.encoder.config.vocab_size == size

    batch = make_batch()
    batch = {n: v.clamp(max=size - 1) for n, v in batch.items()}
    batch["original_ids"][0, 0] = batch["input_ids"][0, 0] = size - 1
    assert without_gradient(model, batch) == []
    model.save_pretrained(tmp_path)
    assert_same_weights(AutoModel.from_pretrained(tmp_path), model)


def test_resizing_to_the_same_size_or_none_keeps_the_parameter() -> None:
    model = build()
    bias = model.head.bias
    model.resize_token_embeddings(VOCABULARY)
    model.resize_token_embeddings()
    assert model.head.bias is bias


def test_resizing_to_a_multiple() -> None:
    model = build()
    model.resize_token_embeddings(VOCABULARY + 1, pad_to_multiple_of=16)
    assert len(model.head.bias) == model.get_input_embeddings().num_embeddings == 48


def test_the_decoder_is_tied_to_the_embeddings() -> None:
    model = build()
    assert sum(parameter.shape == (VOCABULARY, WIDTH) for parameter in model.parameters()) == 1
    table = torch.nn.Embedding(VOCABULARY, WIDTH)
    model.set_input_embeddings(table)
    batch = make_batch("xtr")
    model.config.generative_task = "xtr"
    gradients(model, batch)
    # A piece that is in no sentence gets its gradient from the decoder alone.
    absent = next(piece for piece in range(VOCABULARY) if piece not in batch["input_ids"])
    assert table.weight.grad[absent].norm() > 0


# Initialisation


def test_bert_initialisation() -> None:
    model = build({**BERT, "vocab_size": 500, "initializer_range": 0.3})
    assert model.get_input_embeddings().weight.std().item() == pytest.approx(0.3, rel=0.1)
    assert model.head.dense.weight.std().item() == pytest.approx(0.3, rel=0.2)
    assert (model.head.bias == 0).all() and (model.head.dense.bias == 0).all()
    first, second = (layer.attention.self.query.weight for layer in model.encoder.encoder.layer)
    assert not torch.equal(first, second)


def test_released_initialisation() -> None:
    model = build({**BERT, "vocab_size": 2000, "num_hidden_layers": 3}, initialization="released")
    table = model.get_input_embeddings().weight
    assert (table[0] == 0).all()
    assert table[1:].mean().item() == pytest.approx(0, abs=0.02)
    assert table[1:].std().item() == pytest.approx(1, rel=0.02)
    layers = model.encoder.encoder.layer
    for layer in layers[1:]:
        assert_same_weights(layer, layers[0])
        for one, other in zip(layer.parameters(), layers[0].parameters(), strict=True):
            assert one is not other  # alike at the start, not tied
    linears = {name: module for name, module in model.named_modules() if isinstance(module, torch.nn.Linear)}
    assert "head.dense" in linears
    for linear in linears.values():
        bound = 1 / math.sqrt(linear.in_features)
        assert linear.weight.abs().max() <= bound and linear.bias.abs().max() <= bound
        assert linear.weight.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.15)
        assert (linear.bias != 0).any()
    for module in model.modules():
        if isinstance(module, torch.nn.LayerNorm):
            assert (module.weight == 1).all() and (module.bias == 0).all()
    assert (model.head.bias == 0).all()


def test_released_initialisation_follows_the_seed() -> None:
    assert_same_weights(build(initialization="released", seed=3), build(initialization="released", seed=3))
    same = build(initialization="released", seed=4)
    assert not torch.equal(same.head.dense.weight, build(initialization="released", seed=3).head.dense.weight)


def test_released_layers_part_ways_in_training() -> None:
    model, batch = build(initialization="released"), make_batch()
    gradients(model, batch)
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    first, second = (layer.attention.self.value.weight for layer in model.encoder.encoder.layer)
    assert not torch.equal(first, second)
