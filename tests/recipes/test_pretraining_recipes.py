"""The pre-training recipes of HICTL and CMLM: the papers' values, and that each runs on tiny data."""

from __future__ import annotations

from operator import itemgetter
from pathlib import Path
from typing import Any

import pytest
from conftest import loaded, tiny_encoder
from hictl_helpers import framed_tokenizer
from recipe_helpers import TWO_STEPS, assert_values, runs_of

from hf_xlsr.data.sources import as_list
from hf_xlsr.runs.recipe import resolve
from hf_xlsr.runs.train import train_recipe

ENCODER = {**tiny_encoder(0), "max_position_embeddings": 64}
del ENCODER["vocab_size"]  # that of the tokenizer
TRAINING = {**TWO_STEPS, "per_device_train_batch_size": 4, "gradient_accumulation_steps": 2}


@pytest.fixture
def toy_sources(write_pairs: Any, tmp_path: Path) -> dict[str, Any]:
    """Tiny sources for each role of data in a recipe."""
    text_path = tmp_path / "texts.txt"
    text_path.write_text("red house\nblue tree\nstone bird\n\nfish king\none two\nthree four\n" * 10, "utf-8")
    text = {"path": str(text_path), "languages": ["en"]}

    nli_path = tmp_path / "nli.tsv"
    header = "premise_en\tpremise_fr\thypothesis_en\thypothesis_fr\tlabel\n"
    nli_path.write_text(header + "red\trouge\tblue\tbleu\tneutral\n" * 12, "utf-8")
    return {
        "train": {"path": str(write_pairs("train.tsv", 60))},
        "test": {"path": str(write_pairs("test.tsv", 10, seed=3))},
        "text": text,
        "monolingual": text,
        "nli": {
            "path": str(nli_path),
            "columns": "premise=premise_{lang},hypothesis=hypothesis_{lang},label=label",
            "languages": ["en", "fr"],
        },
    }


@pytest.mark.sample(2)
@pytest.mark.parametrize("run", [*runs_of("hictl"), *runs_of("cmlm")], ids=itemgetter("name"))
def test_recipe_runs(run: dict[str, Any], toy_sources: dict[str, Any], tmp_path: Path) -> None:
    framed_tokenizer().save_pretrained(tmp_path / "tokenizer")
    run["tokenizer"]["path"] = str(tmp_path / "tokenizer")
    run["model"]["encoder"] = ENCODER
    run["training"] |= TRAINING
    run.update(start_from=None, languages=["en", "fr"], output_dir=str(tmp_path / "run"))

    data = run["data"]
    for role in ("train", "test", "text", "monolingual"):
        if as_list(data.get(role)):
            data[role] = toy_sources[role]
    data.update(held_out=[], dev=None, max_length=32)

    if run["method"] == "hictl":
        run["model"]["negative_words"] = 8
    else:
        run["training"].update(retrieval_batch_size=None, nli_batch_size=None)
        if as_list(run["nli"]["train"]):
            run["nli"]["train"] = toy_sources["nli"]

    result = train_recipe(resolve(run))

    assert bool(result.metrics) == bool(as_list(data["test"]))
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
    "training.per_device_train_batch_size": 128,  # x 8 processes = 1,024 pairs, in one batch of 2,046 negatives
    "training.cache_batch_size": 16,
    "training.mixing": "equal",
    "training.weight_decay": 0.0,
}
TASKS = {
    "iwslt": ["hictl_iwslt14_en_de", "hictl_iwslt17_en_fr", "hictl_iwslt17_en_zh"],
    "wmt": ["hictl_wmt14_en_de", "hictl_wmt14_en_fr", "hictl_wmt18_en_zh", "hictl_wmt18_en_ru"],
}
LANGUAGES = set("ar bg de el en es fr hi ru sw th tr ur vi zh".split())


@pytest.mark.parametrize("name", ["hictl_xlmr_15_iwslt", "hictl_xlmr_15_wmt", "hictl_xlmr_15"])
def test_hictl_paper_values(name: str) -> None:
    (run,) = loaded(name)
    assert_values(run, HICTL_PAPER)


def test_hictl_languages_are_those_of_the_paper() -> None:
    (run,) = loaded("hictl_xlmr_15")
    train = run["data"]["train"]
    monolingual = run["data"]["monolingual"]
    assert {*run["languages"]} == LANGUAGES
    assert {source["languages"][1] for source in train} == LANGUAGES - {"en"}
    assert {source["languages"][0] for source in monolingual} == LANGUAGES
    assert all(source["split_sentences"] for source in monolingual)  # articles otherwise


@pytest.mark.parametrize("group", TASKS)
def test_second_phase_sees_the_pairs_of_its_tasks_alone(group: str) -> None:
    """What the translation recipes of the group train on."""
    (second,) = loaded(f"hictl_xlmr_15_{group}")
    (decoder,) = loaded(f"hictl_{group}_decoder")
    english = [source for source in decoder["data"]["train"] if source["languages"][0] == "en"]
    assert second["start_from"] == "outputs/hictl_xlmr_15"
    assert second["languages"] == decoder["languages"]
    assert second["data"]["train"] == english
    assert second["data"]["held_out"] == decoder["data"]["held_out"]
    assert not as_list(second["data"]["monolingual"])


@pytest.mark.parametrize("group", TASKS)
def test_second_phase_holds_out_dev_and_test_sets_of_its_tasks(group: str) -> None:
    (second,) = loaded(f"hictl_xlmr_15_{group}")
    held_out = [{**source, "languages": None} for source in second["data"]["held_out"]]

    for name in TASKS[group]:
        (task,) = loaded(name)
        for source in (*as_list(task["data"]["dev"]), *as_list(task["data"]["test"])):
            expected = {**source, "languages": None}
            if "path" not in source:
                expected.setdefault("split", "test")
            assert expected in held_out, name


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
STEPS = {
    "cmlm_base": [1_000_000],
    "cmlm_large": [1_000_000],
    "cmlm_multilingual": [2_000_000],
    "cmlm_br": [2_000_000],
    "cmlm_then_br": [1_500_000, 1_000_000],
    "cmlm_then_cmlm_br": [1_500_000, 1_000_000],
}
# Weights of CMLM and of retrieval in each stage; None is the model's default.
STAGES = {"cmlm_then_br": [(None, 0.0), (0.0, 1.0)], "cmlm_then_cmlm_br": [(None, 0.0), (None, 0.2)]}


@pytest.mark.parametrize("name", STEPS)
def test_cmlm_paper_values(name: str) -> None:
    width, depth = (1024, 24) if name == "cmlm_large" else (768, 12)
    values = {**CMLM_PAPER, "model.encoder.hidden_size": width, "model.encoder.num_hidden_layers": depth}
    if name not in ("cmlm_base", "cmlm_large"):
        values.update({"tokenizer.vocab_size": 501_153, "tokenizer.smoothing": 0.3, "tokenizer.lowercase": False})

    runs = loaded(name)
    assert [run["training"]["max_steps"] for run in runs] == STEPS[name]
    for run in runs:
        assert_values(run, values)


@pytest.mark.parametrize("name", STAGES)
def test_cmlm_paper_stages(name: str) -> None:
    weights = [(run["model"].get("cmlm_weight"), run["model"]["retrieval_weight"]) for run in loaded(name)]
    assert weights == STAGES[name]


@pytest.mark.parametrize("name", STAGES)
def test_inference_is_learnt_after_the_stages(name: str) -> None:
    *earlier, last = loaded(f"{name}_nli")
    assert [run["training"]["max_steps"] for run in earlier] == STEPS[name]
    assert last["start_from"] == earlier[-1]["output_dir"]

    (source,) = as_list(last["nli"]["train"])
    assert (source["path"], source["config"]) == ("facebook/xnli", "all_languages")
    assert {*source["languages"]} == LANGUAGES
    assert not as_list(last["data"]["text"])
    assert not as_list(last["data"]["train"])


def differences(model: dict[str, Any], base: dict[str, Any]) -> list[str]:
    """The keys in which two models differ."""
    keys = {*model, *base}
    return [key for key in keys if model.get(key) != base.get(key)]


def test_cmlm_ablations_have_the_rows_of_the_paper() -> None:
    rows = {run["name"].split("/")[1]: run["model"] for run in loaded("cmlm_ablation")}
    masks = {"mask-40": 40 / 256, "mask-60": 60 / 256, "mask-100": 100 / 256}
    shares = {name: model["mlm_probability"] for name, model in rows.items() if "mask-" in name}
    assert shares == pytest.approx(masks)
    assert {model["projections"] for model in rows.values()} == {1, 5, 10, 15, 20}
    assert {model.get("pooling", "mean") for model in rows.values()} == {"mean", "max", "cls"}

    (base,) = loaded("cmlm_base")
    for model in rows.values():
        assert len(differences(model, base["model"])) <= 1


def test_cmlm_controls_differ_in_one_value() -> None:
    runs = {run["name"].split("/")[1]: run for run in loaded("cmlm_en_open_ablation")}
    default = runs.pop("n15")
    seeds = [default["seed"]]
    for name, run in runs.items():
        assert run["training"] == default["training"]
        changed = differences(run["model"], default["model"])
        if changed:
            assert len(changed) == 1, name
        else:
            seeds.append(run["seed"])
    assert sorted(seeds) == [1, 2, 3, 4, 5]


def test_cmlm_controls_train_as_long_as_both_stages() -> None:
    first, second = loaded("cmlm_open_then_cmlm_br")[:2]
    steps = first["training"]["max_steps"] + second["training"]["max_steps"]
    for run in loaded("cmlm_open_ablation"):
        assert run["training"]["max_steps"] == steps
