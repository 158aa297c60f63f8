"""What users of transformers and peft expect of a model, asked of each of ours: `model_cases.CASES` is the table."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from model_cases import CASES, VOCABULARY, Case, build, gradients_of, run
from transformers import AutoConfig

from hf_xlsr import DualMomentumModel, XlsrError
from hf_xlsr.encoders.stock import encoder_from_pretrained
from hf_xlsr.modeling.base import attention_of
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
    torch.testing.assert_close(dict(first.state_dict()), dict(second.state_dict()), rtol=0, atol=0)
    assert trained_names(first) == trained_names(second)


def trained_names(model: Any) -> set[str]:
    return {name for name, parameter in model.named_parameters() if parameter.requires_grad}


def gradients(model: Any, case: Case) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """The loss, and the gradient of each parameter that has one."""
    model.zero_grad()
    loss = run(model, case).loss
    loss.backward()
    return loss.detach(), gradients_of(model)


def test_auto_classes_load_shards(case: Case, model: Any, loss: Any, folder: Path) -> None:
    assert len(list(folder.glob("*.safetensors"))) > 1
    assert {path.suffix for path in folder.iterdir()} == {".safetensors", ".json"}

    loaded, report = case.auto.from_pretrained(folder, output_loading_info=True)
    assert type(loaded) is case.model_class
    assert not loaded.training
    assert type(AutoConfig.from_pretrained(folder)) is case.model_class.config_class
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    assert not report["mismatched_keys"]
    assert_same(loaded, model)
    assert torch.equal(run(loaded, case).loss, loss)


def test_pickled_weights_are_refused(case: Case, model: Any, tmp_path: Path) -> None:
    model.config.save_pretrained(tmp_path)
    torch.save(model.state_dict(), tmp_path / "pytorch_model.bin")
    with pytest.raises(OSError, match="no file named model.safetensors"):
        case.auto.from_pretrained(tmp_path)

    folder = tmp_path / "encoder"
    encoder = model.get_submodule(case.encoders[0])
    encoder.config.save_pretrained(folder)
    torch.save(encoder.state_dict(), folder / "pytorch_model.bin")
    with pytest.raises(XlsrError, match="safetensors"):
        encoder_from_pretrained(str(folder))


def test_bfloat16(case: Case, loss: Any, folder: Path) -> None:
    loaded = case.auto.from_pretrained(folder, dtype=torch.bfloat16)
    for name, parameter in loaded.named_parameters():
        expected = torch.float32 if name.startswith(case.float32) else torch.bfloat16
        assert parameter.dtype == expected, name

    rounded_loss = run(loaded, case).loss
    assert rounded_loss.dtype == torch.float32
    torch.testing.assert_close(rounded_loss, loss, rtol=5e-2, atol=5e-2)
    rounded_loss.backward()


def test_attention_reaches_every_encoder(case: Case, loss: Any, folder: Path) -> None:
    loaded = case.auto.from_pretrained(folder, attn_implementation="eager")
    for kind in ("eager", "sdpa"):
        loaded.set_attn_implementation(kind)
        for name in case.encoders:
            assert attention_of(loaded.get_submodule(name).config) == kind, name
        torch.testing.assert_close(run(loaded, case).loss, loss, rtol=1e-5, atol=1e-6)


def test_gradient_checkpointing(case: Case) -> None:
    expected_loss, expected_gradients = gradients(build(case).train(), case)

    model = build(case).train()
    model.gradient_checkpointing_enable({"use_reentrant": False})
    loss, checkpointed_gradients = gradients(model, case)

    assert model.is_gradient_checkpointing
    assert torch.equal(loss, expected_loss)  # dropout included
    torch.testing.assert_close(checkpointed_gradients, expected_gradients)


@pytest.mark.slow
@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_compiled_model_gives_the_same(name: str) -> None:
    case = CASES[name]
    model = build(case)
    batch = case.batch(VOCABULARY)
    for task in ("nli", "retrieval"):  # more of the same
        batch.pop(task, None)

    def step(callable_model: Any) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        model.zero_grad()
        torch.manual_seed(1)
        loss = callable_model(**batch).loss
        loss.backward()
        return loss.detach(), gradients_of(model)

    expected = step(model)
    torch.compiler.reset()
    compiled = step(torch.compile(model, backend="eager"))
    torch.testing.assert_close(compiled, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("size", [VOCABULARY + 14, VOCABULARY - 16])
def test_resized_embeddings(size: int, case: Case, tmp_path: Path) -> None:
    model = build(case)
    kept_rows = min(size, VOCABULARY)
    before = copy.deepcopy(model.state_dict())
    options = {"language": case.resized} if case.resized else {}
    embeddings = model.resize_token_embeddings(size, **options)

    resized = [name for name in case.encoders if name.endswith(case.resized or ("encoder", "shared"))]
    assert embeddings is model.get_submodule(resized[0]).get_input_embeddings()
    for name in case.encoders:
        encoder = model.get_submodule(name)
        table = encoder.get_input_embeddings()
        if table is not None:  # that of translation has none of its own
            expected_size = size if name in resized else VOCABULARY
            assert table.num_embeddings == expected_size
            assert encoder.config.vocab_size == expected_size
    if "text_config" in model.config.sub_configs_defaults:
        assert model.config.get_text_config() is model.encoder.config

    for name, value in model.state_dict().items():
        expected = before[name]
        if value.dim():
            value = value[:kept_rows]
            expected = expected[:kept_rows]
        assert torch.equal(value, expected), name

    for name in case.rows:
        parameter = model.get_parameter(name)
        assert len(parameter) == size, name
        assert parameter.requires_grad, name
        assert (parameter[kept_rows:] == 0).all(), name

    for momentum_name in resized[1:]:
        table = model.get_submodule(momentum_name).get_input_embeddings().weight
        assert torch.equal(table[kept_rows:], embeddings.weight[kept_rows:])
        assert not table.requires_grad

    run(model.train(), case, kept_rows if case.resized else size).loss.backward()
    model.eval().save_pretrained(tmp_path)
    loaded = case.auto.from_pretrained(tmp_path)
    assert_same(loaded, model)
    assert torch.equal(run(loaded, case, kept_rows).loss, run(model, case, kept_rows).loss)


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

    trained_children = set()
    for name in trained_names(adapted):
        child_name = name.split(".")[2]
        trained_children.add(child_name)
        if child_name.startswith("encoder"):
            assert "lora_" in name  # nothing else of an encoder
    children = set()
    for name, child in plain.named_children():
        if list(child.parameters()) and not name.startswith("momentum_"):
            children.add(name)
    assert trained_children == children

    optimizer = torch.optim.SGD(adapted.parameters(), lr=0.05)
    for _ in range(2):
        optimizer.zero_grad()
        run(adapted.train(), case).loss.backward()
        optimizer.step()
    expected = run(adapted.eval(), case).loss
    assert not torch.allclose(expected, run(plain, case).loss, rtol=2e-5)

    adapted.save_pretrained(tmp_path)
    written = {path.name for path in tmp_path.iterdir()}
    assert written == {"README.md", "adapter_config.json", "adapter_model.safetensors"}
    adapter_size = (tmp_path / "adapter_model.safetensors").stat().st_size
    shard_sizes = [path.stat().st_size for path in folder.glob("*.safetensors")]
    assert adapter_size < sum(shard_sizes)

    loaded = peft.PeftModel.from_pretrained(start(case, folder), tmp_path).eval()
    assert type(base_model(loaded)) is case.model_class
    torch.testing.assert_close(run(loaded, case).loss, expected, rtol=1e-6, atol=0)

    whole = merged(loaded)
    assert type(whole) is case.model_class
    assert whole.state_dict().keys() == plain.state_dict().keys()
    torch.testing.assert_close(run(whole, case).loss, expected, rtol=5e-6, atol=1e-6)

    whole.save_pretrained(tmp_path / "merged")
    merged_again = case.auto.from_pretrained(tmp_path / "merged")
    torch.testing.assert_close(run(merged_again, case).loss, expected, rtol=1e-4, atol=1e-5)


def test_forward_changes_nothing(case: Case) -> None:
    model = build(case).train()
    state = copy.deepcopy(dict(model.state_dict()))

    first = run(model, case).loss
    second = run(model, case).loss

    assert torch.equal(first, second)
    torch.testing.assert_close(dict(model.state_dict()), state, rtol=0, atol=0)

    inputs = case.batch(VOCABULARY)
    model(**inputs)
    for name, value in case.batch(VOCABULARY).items():
        if isinstance(value, torch.Tensor):
            assert torch.equal(inputs[name], value), name


def test_every_trained_parameter_gets_a_gradient(case: Case) -> None:
    """DDP waits for all of them."""
    model = build(case).train()
    _, gradients_of_step = gradients(model, case)
    assert gradients_of_step.keys() == trained_names(model)
