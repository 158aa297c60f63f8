"""The recipes of lightweight and dual momentum: the papers' values, and that each runs."""

from __future__ import annotations

from operator import itemgetter
from pathlib import Path
from typing import Any

import pytest
import yaml
from recipe_helpers import TWO_STEPS, assert_values, runs_of

from hf_xlsr.data.cleaning import Cleaner, build_steps
from hf_xlsr.data.sources import parse_sources
from hf_xlsr.runs.inputs import held_out_texts
from hf_xlsr.runs.recipe import merge, resolve
from hf_xlsr.runs.train import train_recipe

# Section 4.1 and tables 2, 5-9 and figure 2 of the paper.
PAPER = {
    "data.max_length": 200,
    "tokenizer.vocab_size": 50_000,
    "model.encoder.num_hidden_layers": 2,
    "model.encoder.hidden_size": 512,
    "model.encoder.num_attention_heads": 8,
    "model.encoder.intermediate_size": 1024,
    "model.encoder.hidden_dropout_prob": 0.1,
    "model.encoder.attention_probs_dropout_prob": 0.1,
    "model.generative_task": "ugt",
    "model.label_mode": "accumulate",
    "model.generative_head": "linear",
    "model.generative_weight": 1.0,
    "model.alignment_weight": 2.0,
    "model.similarity_weight": 2.0,
    "training.learning_rate": 1e-3,
    "training.per_device_train_batch_size": 128,
    "training.num_train_epochs": 12,
    "training.warmup_steps": 3 / 12,
    "data.fraction": 1.0,
}
DEPARTURES = """
lightweight_en_fr: {}
lightweight_en_de: {}
lightweight_en_es: {}
lightweight_en_it: {training.num_train_epochs: 30, training.warmup_steps: 0.2}
lightweight_en_de_ugt: {model.alignment_weight: 0.0, model.similarity_weight: 0.0}
lightweight_en_it_ugt:
    {training.num_train_epochs: 30, training.warmup_steps: 0.2, model.alignment_weight: 0.0, model.similarity_weight: 0.0}
lightweight_en_fr_released: {model.label_mode: set, model.generative_head: released}
lightweight_ablation_batch/batch-64: {training.per_device_train_batch_size: 64}
lightweight_ablation_batch/batch-128: {training.per_device_train_batch_size: 128}
lightweight_ablation_batch/batch-256: {training.per_device_train_batch_size: 256}
lightweight_ablation_corpus/corpus-12.5: {data.fraction: 0.125}
lightweight_ablation_corpus/corpus-25: {data.fraction: 0.25}
lightweight_ablation_corpus/corpus-50: {data.fraction: 0.5}
lightweight_ablation_corpus/corpus-100: {data.fraction: 1.0}
lightweight_ablation_width/width-128:
    {model.encoder.hidden_size: 128, model.encoder.num_attention_heads: 2, model.encoder.intermediate_size: 256}
lightweight_ablation_width/width-256:
    {model.encoder.hidden_size: 256, model.encoder.num_attention_heads: 4, model.encoder.intermediate_size: 512}
lightweight_ablation_width/width-512:
    {model.encoder.hidden_size: 512, model.encoder.num_attention_heads: 8, model.encoder.intermediate_size: 1024}
"""
# Each in English with French, and in English with Spanish.
DEPARTURES_IN_BOTH = """
layers{pair}/layers-1: {model.encoder.num_hidden_layers: 1}
layers{pair}/layers-2: {model.encoder.num_hidden_layers: 2}
layers{pair}/layers-3: {model.encoder.num_hidden_layers: 3}
layers{pair}/layers-4: {model.encoder.num_hidden_layers: 4}
layers{pair}/layers-5: {model.encoder.num_hidden_layers: 5}
layers{pair}/layers-6: {model.encoder.num_hidden_layers: 6}
tasks{pair}/mlm: {model.generative_task: mlm, model.alignment_weight: 0.0, model.similarity_weight: 0.0}
tasks{pair}/smlm: {model.generative_task: smlm, model.alignment_weight: 0.0, model.similarity_weight: 0.0}
tasks{pair}/xtr: {model.generative_task: xtr, model.alignment_weight: 0.0, model.similarity_weight: 0.0}
tasks{pair}/mlm-xtr: {model.generative_task: mlm+xtr, model.alignment_weight: 0.0, model.similarity_weight: 0.0}
tasks{pair}/ugt: {model.generative_task: ugt, model.alignment_weight: 0.0, model.similarity_weight: 0.0}
contrast{pair}/ugt: {model.alignment_weight: 0.0, model.similarity_weight: 0.0}
contrast{pair}/ugt-align: {model.similarity_weight: 0.0}
contrast{pair}/ugt-align-sim: {}
"""
# What tables 5, 9 and figure 2 test on MLDoc.
UGT_ALONE = {"model.alignment_weight": 0.0, "model.similarity_weight": 0.0}
# Table 9 and section 3.4 of the dual momentum paper.
MOMENTUM_PAPER = {
    "model.queue_size": 409_600,
    "model.temperature": 0.04,
    "model.momentum": 0.999,
    "model.dropout": 0.1,
    "model.pooling": "mean",
    "training.num_train_epochs": 15,
    "training.per_device_train_batch_size": 1024,
    "training.learning_rate": 4e-5,
    "training.lr_scheduler_type": "cosine",
    "training.warmup_steps": 400,
    "training.max_grad_norm": 10.0,
    "training.weight_decay": 1e-4,
}
MOMENTUM_DEPARTURES = """
moco_bert_en_zh: {}
moco_bert_en_zh_nli: {model.nli_weight: 0.1, training.nli_batch_size: 128}
moco_bert_ablation_temperature/t-0.01: {model.queue_size: 204800, model.temperature: 0.01}
moco_bert_ablation_temperature/t-0.04: {model.queue_size: 204800, model.temperature: 0.04}
moco_bert_ablation_temperature/t-0.07: {model.queue_size: 204800, model.temperature: 0.07}
moco_bert_ablation_temperature/t-0.1: {model.queue_size: 204800, model.temperature: 0.1}
moco_bert_ablation_pooling/mean: {model.queue_size: 204800, model.pooling: mean}
moco_bert_ablation_pooling/max: {model.queue_size: 204800, model.pooling: max}
moco_bert_ablation_pooling/cls: {model.queue_size: 204800, model.pooling: cls}
moco_bert_ablation_queue/queue-1k: {model.queue_size: 1024}
moco_bert_ablation_queue/queue-4k: {model.queue_size: 4096}
moco_bert_ablation_queue/queue-16k: {model.queue_size: 16384}
moco_bert_ablation_queue/queue-64k: {model.queue_size: 65536}
moco_bert_ablation_queue/queue-204k: {model.queue_size: 204800}
moco_bert_ablation_queue/queue-409k: {model.queue_size: 409600}
moco_bert_ablation_batch/batch-256: {model.queue_size: 204800, training.per_device_train_batch_size: 256}
moco_bert_ablation_batch/batch-512: {model.queue_size: 204800, training.per_device_train_batch_size: 512}
moco_bert_ablation_batch/batch-1024: {model.queue_size: 204800, training.per_device_train_batch_size: 1024}
moco_bert_ablation_momentum/with-momentum: {model.queue_size: 204800}
moco_bert_ablation_momentum/without-momentum: {model.queue_size: 204800, model.use_momentum: false}
"""
SIZES = {"hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 32, "max_position_embeddings": 256}
RUNS = {run["name"]: run for method in ("lightweight", "dual_momentum") for run in runs_of(method)}
RUNNABLE = [run for name, run in RUNS.items() if "_en_es/" not in name]
MOMENTUM_RUNS = list(yaml.safe_load(MOMENTUM_DEPARTURES))


def paper_table() -> dict[str, dict[str, Any]]:
    """The paper's values of each run, by dotted key."""
    table = {}
    for name, values in yaml.safe_load(DEPARTURES).items():
        table[name] = {**PAPER, **values}
        if "corpus/" in name or "width/" in name:
            table[f"{name}-ugt"] = {**PAPER, **values, **UGT_ALONE}
    for name, values in yaml.safe_load(MOMENTUM_DEPARTURES).items():
        table[name] = {**MOMENTUM_PAPER, **values}
    for ending, languages in (("", ["en", "fr"]), ("_en_es", ["en", "es"])):
        departures = yaml.safe_load(DEPARTURES_IN_BOTH.replace("{pair}", ending))
        for name, values in departures.items():
            table[f"lightweight_ablation_{name}"] = {**PAPER, "languages": languages, **values}
            if name.startswith("layers"):
                table[f"lightweight_ablation_{name}-ugt"] = {**PAPER, "languages": languages, **values, **UGT_ALONE}
    return table


def test_paper_values() -> None:
    table = paper_table()
    papers = {name for name in RUNS if name.startswith(("lightweight_", "moco_bert_"))}
    not_of_papers = {name for name in papers if name.endswith(("_small", "_open", "_literal"))}
    not_of_papers.add("moco_bert_ablation_queue/queue-1600k")  # which the paper could not
    assert papers - not_of_papers == table.keys()
    for name, values in table.items():
        assert_values(RUNS[name], values)


@pytest.mark.parametrize(
    ("language", "translation"),
    [
        ("fr", "La maison rouge est au bord de la rivière."),
        ("de", "Das rote Haus steht am Ufer des Flusses."),
        ("es", "La casa roja está a la orilla del río."),
        ("it", "La casa rossa si trova sulla riva del fiume."),
    ],
)
def test_third_languages_are_removed(language: str, translation: str) -> None:
    """By a foreign letter, or by the words of a whole sentence."""
    english = "The red house stands on the bank of the river."
    others = [
        "Dom na brzegu należał do Łukasza.",
        "Het rode huis staat aan de oever van de rivier.",
        "Дом у реки.",
    ]
    rows = [{"source": english, "target": text} for text in (translation, *others)]

    steps = build_steps(RUNS[f"lightweight_en_{language}"]["data"]["cleaning"], ["en", language])
    assert [row["target"] for row in Cleaner(steps)(rows)] == [translation]


@pytest.fixture
def bucc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The texts of a small copy of BUCC."""
    monkeypatch.setenv("HF_XLSR_DATA", str(tmp_path))
    folder = tmp_path / "bucc2018"
    folder.mkdir()

    texts = {'"more'}
    for split in ("sample", "training", "test"):
        for language in ("zh", "en"):
            text = f"text of {split} in {language}"
            (folder / f"zh-en.{split}.{language}").write_text(f'id-1\t{text}\nid-2\t"more\n', "utf-8")
            texts.add(text)
    return texts


@pytest.mark.parametrize("name", MOMENTUM_RUNS)
def test_bucc_is_held_out_of_news_commentary(bucc: set[str], name: str) -> None:
    sources = [source for source in RUNS[name]["data"]["held_out"] if "/bucc2018/" in source["path"]]
    assert {*held_out_texts(parse_sources(sources), languages=["en", "zh"])} == bucc


def momentum_settings(run: dict[str, Any], encoder: str, folder: Path) -> dict[str, Any]:
    """Settings that make a run of dual momentum small."""
    nli_path = folder / "nli.tsv"
    rows = ["premise\thypothesis\tlabel"]
    rows += [f"one two\tred\t{label}" for label in [0, 1, 2] * 4]
    nli_path.write_text("\n".join(rows), "utf-8")
    return {
        "model": {"encoders": dict.fromkeys(run["languages"], encoder), "queue_size": 32},
        "data": {"max_length": 32},
        "training": {"nli_batch_size": 4},
        "nli": {"train": [{"path": str(nli_path)}] if run["nli"]["train"] else []},
    }


@pytest.mark.sample(2)
@pytest.mark.parametrize("run", RUNNABLE, ids=itemgetter("name"))
def test_recipe_runs(run: dict[str, Any], write_pairs: Any, tiny_encoder_folder: str, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    changes: dict[str, Any] = {
        "data": {
            "train": [{"path": str(write_pairs("train.tsv", 60))}],
            "dev": [{"path": str(write_pairs("dev.tsv", 10, seed=2))}],
            "test": [{"path": str(write_pairs("test.tsv", 10, seed=3))}],
            "held_out": [],
            "cleaning": [step for step in run["data"]["cleaning"] if "language" not in step],
        },
        "evaluation": {"pool": None},
        "training": TWO_STEPS,
        "output_dir": str(folder),
    }
    if run["method"] == "dual_momentum":
        changes = merge(changes, momentum_settings(run, tiny_encoder_folder, tmp_path))
    else:
        changes["tokenizer"] = {"vocab_size": 80, "algorithm": "bpe"}
        changes["model"] = {"encoder": SIZES}

    result = train_recipe(resolve(merge(run, changes)))

    first, second = run["languages"][:2]
    assert any(key.split("/")[1] == f"{first}-{second}" for key in result.metrics)
    assert list((folder / "model").rglob("model.safetensors"))
    for file in ("results.json", "README.md", "loss.png", "tsne.png"):
        assert (folder / file).stat().st_size > 0, file
