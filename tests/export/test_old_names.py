"""Every way out of the library writes folders that servers with the names of older versions read."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import make_pairs
from hub_helpers import Hub, train, write_recipe
from old_server import NotServedError, OldServer, read
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Normalize
from torch import nn
from transformers import ModernBertConfig

from hf_xlsr.cli import main
from hf_xlsr.export import save_export
from hf_xlsr.export.old_names import POOLING_FLAGS
from hf_xlsr.modeling.lightweight import LightweightDualTransformer
from hf_xlsr.runs.card import card_of_model
from hf_xlsr.runs.publish import push_run
from hf_xlsr.trainers import LightweightTrainer

TESTS = Path(__file__).resolve().parents[1]
sys.path += [str(TESTS / "encoders"), str(TESTS / "trainers")]
from given_encoders import (  # noqa: E402
    GIVEN,
    MODERN_SIZE,
    SENTENCES,
    WIDTH,
    bert,
    build,
    dense,
    gemma,
    named,
    of_config,
    qwen,
)
from seven_trainers import arguments_of  # noqa: E402

OLD_PYTHON = os.environ.get("HF_XLSR_OLD_PYTHON", "")
OLD_SCRIPT = Path(__file__).with_name("old_versions.py")

TEXTS = [text.strip() for text in SENTENCES]  # older versions strip texts
REFUSED = [
    *("bert_max", "bert_weighted", "bert_sqrt", "bert_two_modes", "layer_norm", "word_weights"),
    *("static", "static_words", "t5", "routed"),
]
# Further encoders of BERT that are not computed.
ODD: dict[str, tuple[Any, ...]] = {
    "last_token": ("lasttoken",),
    "relu": ("mean", dense(WIDTH, 12, nn.ReLU())),
    "normalized_first": ("mean", Normalize(), dense(WIDTH, 12, nn.Tanh())),
}
IGNORED = ["prompt_left_out", "chat"]  # the prompt counts, and the template is not applied
SERVED = [name for name in GIVEN if name not in REFUSED + IGNORED]
# What versions before 5.4 lack: routes, several modes, chats; they leave out prompts of another length, and no dimension.
NEWER = ["routed", "bert_two_modes", "chat", "prompt_left_out", "bert_mean"]


def command(*words: Any) -> None:
    assert main([str(word) for word in words]) == 0


def saved(model: SentenceTransformer, folder: Path) -> Path:
    """What sentence-transformers itself saves."""
    model.save(str(folder / "saved"))
    return folder / "saved"


def texts_in(folder: Path) -> Path:
    file = folder / "texts.txt"
    file.write_text("\n".join(TEXTS * 20), "utf-8")
    return file


def exported(model: SentenceTransformer, folder: Path, hub: Hub) -> Path:
    save_export(model, folder / "out")
    return folder / "out"


def copied(model: SentenceTransformer, folder: Path, hub: Hub) -> Path:
    command("export", saved(model, folder), "--output", folder / "out")
    return folder / "out"


def pushed(model: SentenceTransformer, folder: Path, hub: Hub) -> Path:
    push_run(saved(model, folder), "me/encoder")
    return hub.pull("me/encoder", folder / "out")


def debiased(model: SentenceTransformer, folder: Path, hub: Hub) -> Path:
    source = saved(model, folder)
    texts = texts_in(folder)

    command("debias", "fit", source, "--texts", f"en={texts}", f"fr={texts}", "--output", folder / "fitted")
    command("debias", "apply", folder / "fitted", "--model", source, "--output", folder / "debiased")
    command("export", folder / "debiased", "--route", "fr", "--output", folder / "out")
    return folder / "out"


def pruned(model: SentenceTransformer, folder: Path, hub: Hub) -> Path:
    texts = texts_in(folder)

    command("prune", saved(model, folder), "--texts", f"en={texts}", "--output", folder / "out")
    return folder / "out"


def trained(model: SentenceTransformer, folder: Path, hub: Hub) -> Path:
    trainer = LightweightTrainer(
        model=LightweightDualTransformer.from_encoder(model, generative_weight=0.0),
        args=arguments_of("Lightweight", folder / "run"),
        train_dataset=make_pairs(16),
    )

    trainer.save_sentence_transformer(folder / "out")
    return folder / "out"


WAYS: dict[str, Callable[[SentenceTransformer, Path, Hub], Path]] = {
    "save_export": exported,
    "export": copied,
    "push": pushed,
    "debias": debiased,
    "prune": pruned,
    "trainer": trained,
}


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Hub:
    return Hub(monkeypatch)


def expected(folder: Path) -> torch.Tensor:
    model = SentenceTransformer(str(folder), device="cpu")
    return torch.nn.functional.normalize(model.encode(TEXTS, convert_to_tensor=True), dim=-1)


def served(folder: Path) -> torch.Tensor:
    """Embeddings with the default prompt, which the program takes only if it is told its name."""
    settings = read(folder / "config_sentence_transformers.json")
    prompt = settings["prompts"].get(settings["default_prompt_name"], "")
    return OldServer(folder).embed([prompt + text for text in TEXTS])


@pytest.mark.sample(4)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", named(SERVED))
def test_old_server_gives_the_embeddings(name: str, way: str, hub: Hub, tmp_path: Path) -> None:
    folder = WAYS[way](build(name, tmp_path / "given"), tmp_path, hub)

    by_name = served(folder)

    vectors = expected(folder)
    shown = torch.nn.functional.normalize(by_name[:, : vectors.shape[1]], dim=-1)
    torch.testing.assert_close(shown, vectors, rtol=0, atol=1e-5)


@pytest.mark.slow
def test_old_server_reads_runs(hub: Hub, tmp_path: Path) -> None:
    run = train(write_recipe(tmp_path), tmp_path / "run")
    push_run(run, "me/run")
    command("export", run, "--output", tmp_path / "out")

    folders = [run / "model", tmp_path / "out", hub.pull("me/run", tmp_path / "pulled")]

    for folder in folders:
        torch.testing.assert_close(served(folder), expected(folder), rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", [*named(REFUSED), *ODD])
def test_what_the_old_server_does_not_compute_is_in_the_card(name: str, tmp_path: Path) -> None:
    model = bert(tmp_path / "given", *ODD[name]) if name in ODD else build(name, tmp_path / "given")
    save_export(model, tmp_path / "out")

    assert "text-embeddings-inference does not compute" in card_of_model(str(tmp_path / "out"))
    try:
        by_name = served(tmp_path / "out")
    except NotServedError:
        return
    assert not torch.allclose(by_name, expected(tmp_path / "out"), atol=1e-3)


@pytest.mark.parametrize("name", named([*SERVED, *IGNORED]))
def test_card_says_what_is_not_served(name: str, tmp_path: Path) -> None:
    save_export(build(name, tmp_path / "given"), tmp_path / "out")

    card = card_of_model(str(tmp_path / "out"))

    assert ("text-embeddings-inference" not in card) == (name in SERVED)


@pytest.mark.parametrize("name", named(GIVEN))
def test_export_loads_as_before(name: str, tmp_path: Path) -> None:
    model = build(name, tmp_path / "given")

    save_export(model, tmp_path / "out")

    loaded = SentenceTransformer(str(tmp_path / "out"), device="cpu")
    assert [type(module) for module in loaded.modules()] == [type(module) for module in model.modules()]
    options = {"task": "fr"} if name == "routed" else {}
    assert (loaded.encode(TEXTS, **options) == model.encode(TEXTS, **options)).all()


@pytest.mark.parametrize("mode", POOLING_FLAGS)
def test_flags_of_every_mode(mode: str, tmp_path: Path) -> None:
    save_export(bert(tmp_path / "given", mode), tmp_path / "out")

    config = read(tmp_path / "out" / "1_Pooling" / "config.json")
    assert [flag for flag in POOLING_FLAGS.values() if config[flag]] == [POOLING_FLAGS[mode]]


def test_modules_of_routes_have_old_names(tmp_path: Path) -> None:
    save_export(build("routed", tmp_path / "given"), tmp_path / "out")

    types = read(tmp_path / "out" / "router_config.json")["types"]
    assert set(types.values()) == {f"sentence_transformers.models.{name}" for name in ("Transformer", "Pooling")}


def test_positions_bound_the_length(tmp_path: Path) -> None:
    """RoBERTa has fewer positions than its configuration and its tokenizer say."""
    save_export(build("xlmr_no_limit", tmp_path / "given"), tmp_path / "out")

    assert read(tmp_path / "out" / "sentence_bert_config.json")["max_seq_length"] == 41


def rotated(config: Any, **rope: Any) -> Callable[[Path], SentenceTransformer]:
    """Builds an encoder whose rotary positions are not those by default."""

    def make(folder: Path) -> SentenceTransformer:
        config.rope_parameters = rope
        config.standardize_rope_params()
        return of_config(config, "mean")(folder)

    return make


def base(theta: float) -> dict[str, Any]:
    return {"rope_type": "default", "rope_theta": theta}


ROTATED: dict[str, tuple[Callable[[Path], SentenceTransformer], dict[str, Any]]] = {
    "flat": (rotated(qwen(), **base(50.0)), {"rope_theta": 50.0}),
    "scaled": (
        rotated(qwen(), rope_type="linear", rope_theta=50.0, factor=2.0),
        {"rope_theta": 50.0, "rope_scaling": {"rope_type": "linear", "rope_theta": 50.0, "factor": 2.0}},
    ),
    "gemma": (
        rotated(gemma(), full_attention=base(50.0), sliding_attention=base(7.0)),
        {"rope_theta": 50.0, "rope_local_base_freq": 7.0},
    ),
    "modernbert": (
        rotated(ModernBertConfig(**MODERN_SIZE), full_attention=base(50.0), sliding_attention=base(7.0)),
        {"global_rope_theta": 50.0, "local_rope_theta": 7.0},
    ),
}


@pytest.mark.parametrize("name", ROTATED)
def test_rotary_positions_have_their_old_names(name: str, tmp_path: Path) -> None:
    make, old_values = ROTATED[name]
    model = make(tmp_path / "given")

    loaded = save_export(model, tmp_path / "out")

    config = read(tmp_path / "out" / "config.json")
    assert {key: config[key] for key in old_values} == old_values
    assert ("rope_parameters" in config) == (name != "gemma")
    assert loaded[0].config.rope_parameters == model[0].config.rope_parameters
    assert (loaded.encode(TEXTS) == model.encode(TEXTS)).all()


@pytest.mark.slow
@pytest.mark.skipif(not OLD_PYTHON, reason="needs HF_XLSR_OLD_PYTHON")
def test_older_versions_give_the_embeddings(tmp_path: Path) -> None:
    cases = {}
    builders = {name: make for name, make in GIVEN.items() if name not in NEWER}
    builders |= {f"rotated_{name}": make for name, (make, _) in ROTATED.items()}
    for name, make in builders.items():
        (tmp_path / name).mkdir()
        model = make(tmp_path / name / "given")
        save_export(model, tmp_path / name / "out")
        cases[str(tmp_path / name / "out")] = model.encode(TEXTS).tolist()
    (tmp_path / "cases.json").write_text(json.dumps([TEXTS, cases]), "utf-8")

    run = subprocess.run(
        [OLD_PYTHON, str(OLD_SCRIPT), str(tmp_path / "cases.json")],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": ""},
        check=False,
    )

    assert run.returncode == 0, run.stderr[-2000:]
    assert max(json.loads(run.stdout.splitlines()[-1]).values()) < 1e-5
