"""The pre-training recipes of HICTL and CMLM: the papers' values, and that each runs on tiny data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from conftest import loaded, tiny_encoder
from hictl_helpers import framed_tokenizer
from recipe_helpers import TWO_STEPS, assert_values, mostly_slow, runs_of

from hf_xlsr.data.sources import as_list
from hf_xlsr.runs.recipe import resolve
from hf_xlsr.runs.train import train_recipe

ENCODER = {**tiny_encoder(0), "max_position_embeddings": 64}
del ENCODER["vocab_size"]  # that of the tokenizer
TRAINING = {**TWO_STEPS, "per_device_train_batch_size": 4, "gradient_accumulation_steps": 2}
FAST = ("hictl_open", "hictl_open_ablation/lm", "cmlm_open", "cmlm_then_cmlm_br_nli/nli", "cmlm_f_mbert")


@pytest.mark.parametrize("run", mostly_slow([*runs_of("hictl"), *runs_of("cmlm")], *FAST))
def test_recipe_runs(run: dict[str, Any], write_pairs: Any, tmp_path: Path) -> None:
    framed_tokenizer().save_pretrained(tmp_path / "tokenizer")
    run["tokenizer"]["path"], run["start_from"] = str(tmp_path / "tokenizer"), None
    run["languages"], run["output_dir"] = ["en", "fr"], str(tmp_path / "run")
    run["model"]["encoder"] = ENCODER
    run["training"] |= TRAINING
    text, nli = tmp_path / "texts.txt", tmp_path / "nli.tsv"
    text.write_text("red house\nblue tree\nstone bird\n\nfish king\none two\nthree four\n" * 10, "utf-8")
    columns = ("premise_en", "premise_fr", "hypothesis_en", "hypothesis_fr", "label")
    nli.write_text("\t".join(columns) + "\n" + "red\trouge\tblue\tbleu\tneutral\n" * 12, "utf-8")
    small: dict[str, Any] = {
        "train": {"path": str(write_pairs("train.tsv", 60))},
        "test": {"path": str(write_pairs("test.tsv", 10, seed=3))},
        "text": {"path": str(text), "languages": ["en"]},
        "monolingual": {"path": str(text), "languages": ["en"]},
    }
    run["data"] |= {name: source for name, source in small.items() if as_list(run["data"].get(name))}
    run["data"] |= {"held_out": [], "dev": None, "max_length": 32}
    if run["method"] == "cmlm":
        run["training"] |= {"retrieval_batch_size": None, "nli_batch_size": None}
        if as_list(run["nli"]["train"]):
            names = "premise=premise_{lang},hypothesis=hypothesis_{lang},label=label"
            run["nli"]["train"] = {"path": str(nli), "columns": names, "languages": ["en", "fr"]}
    else:
        run["model"]["negative_words"] = 8
    result = train_recipe(resolve(run))
    assert bool(result.metrics) == bool(as_list(run["data"]["test"]))
    exported = list((tmp_path / "run" / "model").rglob("model.safetensors"))
    assert bool(exported) != (run["model"].get("sentence_vector") == "projected")  # which has no stock form


# Section 4.1 of the paper.
HICTL_PAPER = {
    "model.encoder.path": "FacebookAI/xlm-roberta-base",
    "model.sentence_temperature": 1.0,
    "model.negative_words": 512,
    "data.max_length": 128,
    "training.learning_rate": 2.5e-5,
    "training.lr_scheduler_type": "linear",
    "training.gradient_accumulation_steps": 16,
    "training.per_device_train_batch_size": 8,  # x 16 x 8 processes = 1,024
    "training.mixing": "equal",
    "training.weight_decay": 0.0,
}
TASKS = [f"hictl_{task}" for task in "iwslt14_en_de iwslt17_en_fr iwslt17_en_zh".split()]
TASKS += [f"hictl_{task}" for task in "wmt14_en_de wmt14_en_fr wmt18_en_zh wmt18_en_ru".split()]
LANGUAGES = set("ar bg de el en es fr hi ru sw th tr ur vi zh".split())


def test_hictl_paper_values() -> None:
    for name in ("hictl_xlmr_15_iwslt", "hictl_xlmr_15_wmt", "hictl_xlmr_15"):
        (run,) = loaded(name)
        assert_values(run, HICTL_PAPER)
    assert set(run["languages"]) == LANGUAGES
    assert {source["languages"][1] for source in run["data"]["train"]} == LANGUAGES - {"en"}
    assert {source["languages"][0] for source in run["data"]["monolingual"]} == LANGUAGES
    assert all(source["split_sentences"] for source in run["data"]["monolingual"])  # articles otherwise


@pytest.mark.parametrize("group", ["iwslt", "wmt"])
def test_second_phase_sees_the_pairs_of_its_tasks_alone(group: str) -> None:
    """What the translation recipes of the group train on, without what they choose by and test on."""
    (second,), (decoder,) = loaded(f"hictl_xlmr_15_{group}"), loaded(f"hictl_{group}_decoder")
    assert second["start_from"] == "outputs/hictl_xlmr_15" and not as_list(second["data"]["monolingual"])
    assert second["languages"] == decoder["languages"]
    english = [source for source in decoder["data"]["train"] if source["languages"][0] == "en"]
    assert second["data"]["train"] == english
    assert second["data"]["held_out"] == decoder["data"]["held_out"]
    tasks = [loaded(name)[0] for name in TASKS if name.startswith(f"hictl_{group}")]
    held = [{**source, "languages": None} for source in second["data"]["held_out"]]
    for task in tasks:
        for source in (*as_list(task["data"]["dev"]), *as_list(task["data"]["test"])):
            wanted = source if "path" in source else {"split": "test", **source}
            assert {**wanted, "languages": None} in held, task["name"]


def test_hictl_controls_differ_in_loss_parts() -> None:
    runs = loaded("hictl_open_ablation")
    weights = [(run["model"].get("sentence_weight", 1.0), run["model"].get("word_weight", 1.0)) for run in runs]
    assert weights == [(0.0, 0.0), (1.0, 0.0), (0.0, 1.0), (1.0, 1.0)]
    assert len({str(run["training"]) for run in runs}) == 1


# Sections 3 and 4.4 of the paper.
CMLM_PAPER = {
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
STAGES = {"cmlm_then_br": [(None, 0.0), (0.0, 1.0)], "cmlm_then_cmlm_br": [(None, 0.0), (None, 0.2)]}


@pytest.mark.parametrize("name", STEPS)
def test_cmlm_paper_values(name: str) -> None:
    runs = loaded(name)
    assert [run["training"]["max_steps"] for run in runs] == STEPS[name]
    for run in runs:
        assert_values(run, {**CMLM_PAPER, **(MULTILINGUAL if name not in ("cmlm_base", "cmlm_large") else {})})
    encoder = runs[0]["model"]["encoder"]
    assert (encoder["hidden_size"], encoder["num_hidden_layers"]) == ((1024, 24) if "large" in name else (768, 12))


@pytest.mark.parametrize("name", STAGES)
def test_cmlm_paper_stages(name: str) -> None:
    weights = [(run["model"].get("cmlm_weight"), run["model"]["retrieval_weight"]) for run in loaded(name)]
    assert weights == STAGES[name]
    *earlier, last = loaded(f"{name}_nli")
    assert [run["training"]["max_steps"] for run in earlier] == STEPS[name]
    assert last["start_from"] == earlier[-1]["output_dir"]
    assert as_list(last["nli"]["train"]) and not as_list(last["data"]["text"]) + as_list(last["data"]["train"])


def test_cmlm_ablations_have_the_rows_of_the_paper() -> None:
    rows = {run["name"].split("/")[1]: run["model"] for run in loaded("cmlm_ablation")}
    assert {model["projections"] for model in rows.values()} == {1, 5, 10, 15, 20}
    masked = {round(256 * model["mlm_probability"], 6): name for name, model in rows.items() if "mask-" in name}
    assert masked == {40.0: "mask-40", 60.0: "mask-60", 100.0: "mask-100"}
    assert {model.get("pooling", "mean") for model in rows.values()} == {"mean", "max", "cls"}
    (base,) = loaded("cmlm_base")
    assert all(sum(model.get(key) != base["model"].get(key) for key in model) <= 1 for model in rows.values())


def test_cmlm_controls_differ_in_one_value() -> None:
    runs = loaded("cmlm_en_open_ablation")
    assert len({str(run["training"]) for run in runs}) == 1
    default = next(run for run in runs if run["name"].endswith("/n15"))
    for run in runs:
        keys = {*run["model"], *default["model"]}
        changed = [key for key in keys if run["model"].get(key) != default["model"].get(key)]
        assert len(changed) <= 1 and (changed or run["seed"] != 1 or run is default), run["name"]
    assert sorted(run["seed"] for run in runs if run["model"] == default["model"]) == [1, 2, 3, 4, 5]
    together = sum(run["training"]["max_steps"] for run in loaded("cmlm_open_then_cmlm_br")[:2])
    assert {run["training"]["max_steps"] for run in loaded("cmlm_open_ablation")} == {together}
