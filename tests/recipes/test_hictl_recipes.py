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
LANGUAGES = set("ar bg de el en es fr hi ru sw th tr ur vi zh".split())


@pytest.mark.parametrize("name", ["hictl_xlmr_15", "hictl_xlmr_15_task"])
def test_paper_values(name: str) -> None:
    (run,) = loaded(name)
    for key, value in PAPER.items():
        assert value_of(run, key) == value, key


def test_fifteen_languages() -> None:
    (run,) = loaded("hictl_xlmr_15")
    assert set(run["languages"]) == LANGUAGES
    assert {source["languages"][1] for source in run["data"]["train"]} == LANGUAGES - {"en"}
    assert {source["languages"][0] for source in run["data"]["monolingual"]} == LANGUAGES
    (second,) = loaded("hictl_xlmr_15_task")
    assert second["start_from"] == "outputs/hictl_xlmr_15" and not as_list(second["data"]["monolingual"])


def test_controls_differ_in_loss_parts() -> None:
    runs = loaded("hictl_open_ablation")
    weights = [(run["model"].get("sentence_weight", 1.0), run["model"].get("word_weight", 1.0)) for run in runs]
    assert weights == [(0.0, 0.0), (1.0, 0.0), (0.0, 1.0), (1.0, 1.0)]
    assert len({str(run["training"]) for run in runs}) == 1
