"""What users of transformers and peft expect of a model, asked of each of ours: `model_cases.CASES` is the table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from model_cases import CASES, VOCABULARY, Case, build, run
from transformers import AutoConfig

from hf_xlsr import DualMomentumModel, XlsrError
from hf_xlsr.encoders.stock import encoder_from_pretrained
from hf_xlsr.trainers.adapters import add_adapters, base_model, merged

ONE_OF_EACH = {case.model_class: name for name, case in reversed(CASES.items())}.values()


@pytest.fixture(scope="module", params=CASES)
def case(request: pytest.FixtureRequest) -> Case:
    return CASES[request.param]


@pytest.fixture(scope="module")
def model(case: Case) -> Any:
    """For reading alone: tests share it."""
    return build(case)


@pytest.fixture(scope="module")
def loss(case: Case, model: Any) -> torch.Tensor:
    return run(model, case).loss.detach()


@pytest.fixture(scope="module")
def folder(model: Any, tokenizer: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model in shards, and a tokenizer."""
    path = tmp_path_factory.mktemp("model")
    model.save_pretrained(path, max_shard_size="10KB")
    tokenizer.save_pretrained(path)
    return path


def assert_same(first: Any, second: Any) -> None:
    """The same weights and buffers bit for bit, and the same of them trained."""
    expected = second.state_dict()
    assert first.state_dict().keys() == expected.keys()
    for name, value in first.state_dict().items():
        assert value.dtype == expected[name].dtype and torch.equal(value, expected[name]), name
    trained = [{name for name, value in side.named_parameters() if value.requires_grad} for side in (first, second)]
    assert trained[0] == trained[1]


def gradients(model: Any, case: Case) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    model.zero_grad()
    loss = run(model, case).loss
    loss.backward()
    return loss.detach(), {name: part.grad.clone() for name, part in model.named_parameters() if part.grad is not None}


def test_auto_classes_load_shards(case: Case, model: Any, loss: Any, folder: Path) -> None:
    shards = sorted(path.name for path in folder.glob("*.safetensors"))
    assert len(shards) > 1
    written = {path.suffix for path in folder.iterdir()}
    assert written == {".safetensors", ".json"}
    loaded, report = case.auto.from_pretrained(folder, output_loading_info=True)
    assert type(loaded) is case.model_class and not loaded.training
    assert type(AutoConfig.from_pretrained(folder)) is case.model_class.config_class
    assert not any(report[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert_same(loaded, model)
    assert torch.equal(run(loaded, case).loss, loss)


def test_pickled_weights_are_refused(case: Case, model: Any, tmp_path: Path) -> None:
    model.config.save_pretrained(tmp_path)
    torch.save(model.state_dict(), tmp_path / "pytorch_model.bin")
    with pytest.raises(OSError, match="no file named model.safetensors"):
        case.auto.from_pretrained(tmp_path)
    encoder = model.get_submodule(case.encoders[0])
    encoder.config.save_pretrained(tmp_path / "encoder")
    torch.save(encoder.state_dict(), tmp_path / "encoder" / "pytorch_model.bin")
    with pytest.raises(XlsrError, match="safetensors"):
        encoder_from_pretrained(str(tmp_path / "encoder"))


def test_bfloat16(case: Case, loss: Any, folder: Path) -> None:
    loaded = case.auto.from_pretrained(folder, dtype=torch.bfloat16)
    for name, parameter in loaded.named_parameters():
        exact = name.startswith(case.float32) if case.float32 else False
        assert parameter.dtype == (torch.float32 if exact else torch.bfloat16), name
    found = run(loaded, case).loss
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, loss, rtol=5e-2, atol=5e-2)
    found.backward()


def test_attention_reaches_every_encoder(case: Case, loss: Any, folder: Path) -> None:
    loaded = case.auto.from_pretrained(folder, attn_implementation="eager")
    for kind in ("eager", "sdpa"):
        loaded.set_attn_implementation(kind)
        for name in case.encoders:
            assert loaded.get_submodule(name).config._attn_implementation == kind, name
        torch.testing.assert_close(run(loaded, case).loss, loss, rtol=1e-5, atol=1e-6)


def test_gradient_checkpointing(case: Case) -> None:
    plain = gradients(build(case).train(), case)
    model = build(case).train()
    model.gradient_checkpointing_enable({"use_reentrant": False})
    again = gradients(model, case)
    assert model.is_gradient_checkpointing and plain[1].keys() == again[1].keys()
    assert torch.equal(plain[0], again[0])  # dropout included
    torch.testing.assert_close(again[1], plain[1])


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name == "lightweight" else pytest.mark.slow) for name in ONE_OF_EACH],
)
def test_compiled_model_gives_the_same(name: str) -> None:
    case = CASES[name]
    model, batch = build(case), case.batch(VOCABULARY)
    batch = {name: value for name, value in batch.items() if name not in ("nli", "retrieval")}  # more of the same

    def step(callable_model: Any) -> tuple[torch.Tensor, list[torch.Tensor | None]]:
        model.zero_grad()
        torch.manual_seed(1)
        loss = callable_model(**batch).loss
        loss.backward()
        return loss.detach(), [parameter.grad for parameter in model.parameters()]

    expected = step(model)
    torch.compiler.reset()
    found = step(torch.compile(model, backend="eager"))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("size", [VOCABULARY + 14, VOCABULARY - 16])
def test_resized_embeddings(size: int, case: Case, tmp_path: Path) -> None:
    model = build(case)
    kept = min(size, VOCABULARY)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    options = {"language": case.resized} if case.resized else {}
    embeddings = model.resize_token_embeddings(size, **options)
    resized = [name for name in case.encoders if name.endswith(case.resized or ("encoder", "shared"))]
    assert resized and embeddings is model.get_submodule(resized[0]).get_input_embeddings()
    for name in case.encoders:
        encoder = model.get_submodule(name)
        if encoder.get_input_embeddings() is not None:  # that of translation has none of its own
            count = size if name in resized else VOCABULARY
            assert encoder.get_input_embeddings().num_embeddings == encoder.config.vocab_size == count
    if "text_config" in model.config.sub_configs_defaults:
        assert model.config.get_text_config() is model.encoder.config
    for name in case.rows:
        parameter = model.get_parameter(name)
        assert len(parameter) == size and parameter.requires_grad, name
        if parameter.dim() == 1:
            assert (parameter[kept:] == 0).all()
    for name, value in model.state_dict().items():
        assert torch.equal(value[:kept], before[name][:kept]) if value.dim() else value == before[name], name
    for base, average in zip(resized, resized[1:], strict=False):
        tables = [model.get_submodule(name).get_input_embeddings().weight for name in (base, average)]
        assert torch.equal(tables[0][kept:], tables[1][kept:]) and not tables[1].requires_grad
    output = run(model.train(), case, kept if case.resized else size)
    output.loss.backward()
    model.eval().save_pretrained(tmp_path)
    loaded = case.auto.from_pretrained(tmp_path)
    assert_same(loaded, model)
    assert torch.equal(run(loaded, case, kept).loss, run(model, case, kept).loss)


def start(case: Case, folder: Path) -> Any:
    """The model that adapters are made for; averages begin as copies."""
    model = case.auto.from_pretrained(folder)
    if isinstance(model, DualMomentumModel):
        model.reset_momentum()
    return model


def test_adapters_train_save_load_and_merge(case: Case, folder: Path, tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    plain = start(case, folder)
    adapted = add_adapters(start(case, folder), rank=2, alpha=4)
    trained = {name for name, value in adapted.named_parameters() if value.requires_grad}
    inside = {name for name in trained if name.split(".")[2] in ("encoder", "encoders")}
    assert inside and all("lora_" in name for name in inside)  # nothing else of an encoder
    assert not any("momentum_" in name for name in trained)
    heads = {name.split(".")[2] for name in trained - inside}
    parts = {name for name, part in plain.named_children() if list(part.parameters())}
    assert heads == {name for name in parts if name not in ("encoder", "encoders") and "momentum_" not in name}
    optimizer = torch.optim.SGD([value for value in adapted.parameters() if value.requires_grad], lr=0.05)
    for _ in range(2):
        optimizer.zero_grad()
        run(adapted.train(), case).loss.backward()
        optimizer.step()
    expected = run(adapted.eval(), case).loss
    assert not torch.allclose(expected, run(plain, case).loss, rtol=1e-4)
    adapted.save_pretrained(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {
        "README.md",
        "adapter_config.json",
        "adapter_model.safetensors",
    }
    size = (tmp_path / "adapter_model.safetensors").stat().st_size
    assert size < sum(path.stat().st_size for path in folder.glob("*.safetensors"))
    loaded = peft.PeftModel.from_pretrained(start(case, folder), tmp_path).eval()
    assert type(base_model(loaded)) is case.model_class
    torch.testing.assert_close(run(loaded, case).loss, expected, rtol=1e-6, atol=0)
    whole = merged(loaded)
    assert type(whole) is case.model_class and whole.state_dict().keys() == plain.state_dict().keys()
    torch.testing.assert_close(run(whole, case).loss, expected, rtol=1e-4, atol=1e-5)
    whole.save_pretrained(tmp_path / "merged")
    again = case.auto.from_pretrained(tmp_path / "merged")
    torch.testing.assert_close(run(again, case).loss, expected, rtol=1e-4, atol=1e-5)


def test_forward_changes_nothing(case: Case) -> None:
    model = build(case).train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    inputs = case.batch(VOCABULARY)
    kept = {name: value.clone() for name, value in inputs.items() if isinstance(value, torch.Tensor)}
    first, second = run(model, case).loss, run(model, case).loss
    assert torch.equal(first, second)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    model(**inputs)
    assert all(torch.equal(value, inputs[name]) for name, value in kept.items())


def test_every_trained_parameter_gets_a_gradient(case: Case) -> None:
    """DDP waits for all of them."""
    model = build(case).train()
    found = gradients(model, case)[1]
    assert {name for name, value in model.named_parameters() if value.requires_grad} == found.keys()
