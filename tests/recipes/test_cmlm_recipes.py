"""The recipes of CMLM: the paper's values and stages."""

from __future__ import annotations

import pytest
from conftest import loaded
from recipe_helpers import value_of

from hf_xlsr.data.sources import as_list

# Sections 3 and 4.4 of the paper.
PAPER = {
    "model.projections": 15,
    "model.mlm_probability": 80 / 256,
    "data.max_length": 256,
    "training.optimizer": "lamb",
    "training.learning_rate": 1e-3,
    "training.adam_beta1": 0.9,
    "training.adam_beta2": 0.999,
    "training.warmup_steps": 10_000,
    "training.lr_scheduler_type": "linear",
}
MULTILINGUAL = {"tokenizer.vocab_size": 501_153, "tokenizer.smoothing": 0.3, "tokenizer.lowercase": False}
STEPS = {
    "cmlm_base": [1_000_000],
    "cmlm_large": [1_000_000],
    "cmlm_multilingual": [2_000_000],
    "cmlm_br": [2_000_000],
    "cmlm_then_br": [1_500_000, 1_000_000],
    "cmlm_then_cmlm_br": [1_500_000, 1_000_000],
}
# Weights of the tasks in each stage: CMLM, retrieval, inference; None is the model's default.
STAGES = {
    "cmlm_then_br": [(None, 0.0), (0.0, 1.0)],
    "cmlm_then_cmlm_br": [(None, 0.0), (None, 0.2)],
}


@pytest.mark.parametrize("name", STEPS)
def test_paper_values(name: str) -> None:
    runs = loaded(name)
    assert [run["training"]["max_steps"] for run in runs] == STEPS[name]
    for run in runs:
        for key, value in {**PAPER, **(MULTILINGUAL if "base" not in name and "large" not in name else {})}.items():
            assert value_of(run, key) == value, key
    encoder = runs[0]["model"]["encoder"]
    assert (encoder["hidden_size"], encoder["num_hidden_layers"]) == ((1024, 24) if "large" in name else (768, 12))


@pytest.mark.parametrize("name", STAGES)
def test_paper_stages(name: str) -> None:
    weights = [(run["model"].get("cmlm_weight"), run["model"]["retrieval_weight"]) for run in loaded(name)]
    assert weights == STAGES[name]
    *earlier, last = loaded(f"{name}_nli")
    assert [run["training"]["max_steps"] for run in earlier] == STEPS[name]
    assert last["start_from"] == earlier[-1]["output_dir"]
    assert as_list(last["nli"]["train"]) and not as_list(last["data"]["text"]) + as_list(last["data"]["train"])


def test_ablations_have_the_rows_of_the_paper() -> None:
    rows = {run["name"].split("/")[1]: run["model"] for run in loaded("cmlm_ablation")}
    assert {model["projections"] for model in rows.values()} == {1, 5, 10, 15, 20}
    masked = {round(256 * model["mlm_probability"], 6): name for name, model in rows.items() if "mask-" in name}
    assert masked == {40.0: "mask-40", 60.0: "mask-60", 100.0: "mask-100"}
    assert {model.get("pooling", "mean") for model in rows.values()} == {"mean", "max", "cls"}
    (base,) = loaded("cmlm_base")
    assert all(sum(model.get(key) != base["model"].get(key) for key in model) <= 1 for model in rows.values())


def test_controls_differ_in_one_value() -> None:
    runs = loaded("cmlm_en_open_ablation")
    assert len({str(run["training"]) for run in runs}) == 1
    default = next(run for run in runs if run["name"].endswith("/n15"))
    for run in runs:
        changed = {
            key for key in {*run["model"], *default["model"]} if run["model"].get(key) != default["model"].get(key)
        }
        assert len(changed) <= 1 and (changed or run["seed"] != 1 or run is default), run["name"]
    assert sorted(run["seed"] for run in runs if run["model"] == default["model"]) == [1, 2, 3, 4, 5]
    together = sum(run["training"]["max_steps"] for run in loaded("cmlm_open_then_cmlm_br")[:2])
    assert {run["training"]["max_steps"] for run in loaded("cmlm_open_ablation")} == {together}
