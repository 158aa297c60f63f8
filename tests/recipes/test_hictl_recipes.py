"""The pre-training recipes of HICTL: the paper's values."""

from __future__ import annotations

import pytest
from conftest import loaded
from recipe_helpers import value_of

from hf_xlsr.data.sources import as_list

# Section 4.1 of the paper.
PAPER = {
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


@pytest.mark.parametrize("name", ["hictl_xlmr_15", "hictl_xlmr_15_iwslt", "hictl_xlmr_15_wmt"])
def test_paper_values(name: str) -> None:
    (run,) = loaded(name)
    for key, value in PAPER.items():
        assert value_of(run, key) == value, key


def test_fifteen_languages() -> None:
    (run,) = loaded("hictl_xlmr_15")
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


def test_controls_differ_in_loss_parts() -> None:
    runs = loaded("hictl_open_ablation")
    weights = [(run["model"].get("sentence_weight", 1.0), run["model"].get("word_weight", 1.0)) for run in runs]
    assert weights == [(0.0, 0.0), (1.0, 0.0), (0.0, 1.0), (1.0, 1.0)]
    assert len({str(run["training"]) for run in runs}) == 1
