"""The translation recipes: the paper's values, and runs of a few steps."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import loaded, make_pairs
from recipe_helpers import TWO_STEPS, assert_values
from rich.console import Console
from safetensors.torch import load_file
from transformers import AutoTokenizer
from translation_helpers import encoder_folder

from hf_xlsr import XlsrError
from hf_xlsr.modeling.hictl.modeling_generation import HictlForConditionalGeneration
from hf_xlsr.runs.recipe import resolve
from hf_xlsr.runs.train import train_recipe
from hf_xlsr.utils.markdown import escape_markdown

# Section 4.2: languages, beams, length penalty, test set.
TASKS: dict[str, tuple[list[str], int, float, str]] = {
    "hictl_iwslt14_en_de": (["en", "de"], 5, 1.0, "iwslt14"),
    "hictl_iwslt14_de_en": (["de", "en"], 5, 1.0, "iwslt14"),
    "hictl_iwslt17_en_fr": (["en", "fr"], 5, 1.0, "iwslt17"),
    "hictl_iwslt17_en_zh": (["en", "zh"], 5, 1.0, "iwslt17"),
    "hictl_wmt14_en_de": (["en", "de"], 4, 0.6, "wmt14"),
    "hictl_wmt14_en_fr": (["en", "fr"], 5, 1.0, "wmt14"),
    "hictl_wmt18_en_zh": (["en", "zh"], 5, 1.0, "wmt18"),
    "hictl_wmt18_en_ru": (["en", "ru"], 5, 1.0, "wmt18"),
}
PAPER = {
    "training.learning_rate": 2e-5,
    "training.lr_scheduler_type": "inverse_sqrt",
    "model.decoder_layers": 4,
    "model.word_similarity": True,
}
DECODERS = {
    "hictl_iwslt_decoder": {"en-de", "de-en", "en-fr", "en-zh"},
    "hictl_wmt_decoder": {"en-de", "en-fr", "en-zh", "en-ru"},
}


@pytest.fixture(scope="module")
def encoders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("encoders")
    encoder_folder(folder / "e5-small", algorithm="unigram")
    return folder


@pytest.fixture
def data(write_pairs: Any) -> dict[str, str]:
    return {"train": str(write_pairs()), "dev": str(write_pairs("dev.tsv", 12, seed=2))}


def shrunk(data: dict[str, str], encoders: Path, output: Path, *more: str) -> list[str]:
    """Options that leave a recipe as it is but for its size and its text."""
    options = {f"data.{split}": f"[{{path: {data.get(split, data['dev'])}}}]" for split in ("train", "dev", "test")}
    options |= {"output_dir": output, "data.held_out": "[]", "data.max_length": "32"}
    options |= {"model.start": encoders / "e5-small", "eval_strategy": "steps", "save_strategy": "steps"}
    options |= {f"training.{key}": str(value).lower() for key, value in TWO_STEPS.items()}
    return [word for key, value in options.items() for word in (f"--{key}", str(value))] + list(more)


@pytest.mark.parametrize("name", TASKS)
def test_paper_values_of_step_two(name: str) -> None:
    languages, beams, penalty, test_set = TASKS[name]
    (recipe,) = loaded(name)
    values = {
        **PAPER,
        "languages": languages,
        "start_from": f"outputs/hictl_{'wmt' if 'wmt' in name else 'iwslt'}_decoder",
        "training.generation_num_beams": beams,
        "training.generation_length_penalty": penalty,
        "evaluation.name": test_set,
        "training.freeze_encoder": False,
        "training.load_best_model_at_end": True,
    }
    assert_values(recipe, values)
    best = recipe["training"]["metric_for_best_model"]
    assert best.startswith(test_set) and f"/{'-'.join(languages)}/dev/bleu" in best


@pytest.mark.parametrize("name", DECODERS)
def test_paper_values_of_step_one(name: str) -> None:
    (recipe,) = loaded(name)
    assert {"-".join(source["languages"]) for source in recipe["data"]["train"]} == DECODERS[name]
    assert_values(recipe, {**PAPER, "training.freeze_encoder": True, "start_from": None})
    held = set(names(recipe["data"]["held_out"]))
    for task in (task for task in TASKS if name.split("_")[1] in task):
        (pair,) = loaded(task)
        same = {"model.start": pair["model"]["start"], "data.max_length": pair["data"]["max_length"]}
        assert_values(recipe, {**same, "vocabulary": pair["vocabulary"]})
        if task != "hictl_iwslt14_de_en":
            assert {*names(pair["data"]["dev"]), *names(pair["data"]["test"])} <= held


def names(sources: Any) -> list[str]:
    sources = sources if isinstance(sources, list) else [sources]
    return [
        f"{source['corpus']}:{source.get('split', 'train')}" if "corpus" in source else Path(source["path"]).name
        for source in sources
    ]


def test_paper_splits() -> None:
    data = {name: loaded(name)[0]["data"] for name in TASKS}
    for name, ends in (("hictl_iwslt14_en_de", "en,de"), ("hictl_iwslt14_de_en", "de,en")):
        assert names(data[name]["test"]) == [
            f"{part}.{{{ends}}}" for part in ("dev2010", "dev2012", "tst2010", "tst2011", "tst2012")
        ]
        held, rest = data[name]["dev"], data[name]["train"]
        assert held["path"] == rest["path"] and (held["hash_split"], rest["hash_split"]) == ("held", "rest")
        assert held["hash_modulus"] == 23  # 160 thousand pairs over 22: 7 thousand
        assert held["hash_key"] == ("source" if ends == "en,de" else "target")  # English in both directions
    for language in ("fr", "zh"):
        ours = data[f"hictl_iwslt17_en_{language}"]
        assert [names(ours[split])[0] for split in ("train", "dev", "test")] == [
            f"en-{language}.{split}.parquet" for split in ("train", "validation", "test")
        ]
        assert "hash_split" not in ours["train"][0]
    for language in ("de", "fr"):
        ours = data[f"hictl_wmt14_en_{language}"]
        assert names(ours["dev"]) == [f"newstest2012.{{en,{language}}}", "wmt14:dev"]  # newstest2013
        assert names(ours["test"]) == ["wmt14:test"]  # newstest2014
    for language in ("zh", "ru"):
        ours = data[f"hictl_wmt18_en_{language}"]
        assert (names(ours["dev"]), names(ours["test"])) == (["wmt18:dev"], ["wmt18:test"])  # newstest2017, 2018


def test_ablation_differs_in_word_similarity() -> None:
    first, second = loaded("hictl_multi30k_en_de")
    assert first["training"]["freeze_encoder"] and not second["training"].get("freeze_encoder")
    assert second["start_from"] == first["output_dir"] and first["start_from"] is None
    runs = {run["name"].split("/")[1]: run for run in loaded("hictl_multi30k_en_de_ablation")}
    assert runs["transformer"]["start_from"] is None and runs["transformer"]["model"]["random_weights"]
    for name in ("with", "without"):
        decoder, final = runs[f"{name}_decoder"], runs[name]
        assert final["start_from"] == decoder["output_dir"] and decoder["start_from"] is None
        for ours, plain in ((decoder, first), (final, second)):
            assert all(ours[part] == plain[part] for part in ("data", "training", "evaluation", "vocabulary", "seed"))
            assert ours["model"] == {**plain["model"], "word_similarity": name == "with"}


@pytest.mark.slow
@pytest.mark.parametrize("group", ["iwslt", "wmt"])
def test_paper_recipes_run(group: str, data: dict[str, str], encoders: Path, tmp_path: Path) -> None:
    more = ["--data.cleaning", "[]", "--eval_strategy", "no"]
    (recipe,) = loaded(f"hictl_{group}_decoder", shrunk(data, encoders, tmp_path / "one", *more))
    recipe["data"]["dev"] = recipe["data"]["test"] = None
    recipe["data"]["train"] = [{"path": data["train"], "languages": ["en", "fr"]}]
    train_recipe(resolve(recipe), Console(quiet=True))
    first = load_file(tmp_path / "one" / "training" / "final" / "model.safetensors")
    start = load_file(encoders / "e5-small" / "model.safetensors")
    for name, value in start.items():
        assert torch.equal(first[f"encoder.{name}"], value), name
    for name in TASKS:
        if group not in name:
            continue
        # The next line is what the paper's users run, less the size.
        options = shrunk(data, encoders, tmp_path / name, "--start_from", str(tmp_path / "one"))
        (recipe,) = loaded(name, options)
        metrics = train_recipe(resolve(recipe), Console(quiet=True)).metrics
        languages, _, _, test_set = TASKS[name]
        protocol = f"{test_set}-bleu-zh" if "zh" in languages else f"{test_set}-bleu"
        assert f"{protocol}/{'-'.join(languages)}/test/bleu" in metrics
        weights = load_file(tmp_path / name / "training" / "final" / "model.safetensors")
        # Two steps at 2e-5 / 4,000 and less: still nearly what step one left.
        torch.testing.assert_close(weights, first, atol=1e-4, rtol=0)
        table = "encoder.embeddings.word_embeddings.weight"
        assert not torch.equal(weights[table], first[table])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["hictl_multi30k_en_de", "hictl_multi30k_en_de_ablation"])
def test_small_recipes_run(
    name: str, data: dict[str, str], encoders: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in ("HF_XLSR_DATA", "HF_XLSR_ENCODERS"):
        monkeypatch.setenv(variable, str(encoders))
    few = tmp_path / "few.tsv"
    few.write_text("".join(f"{pair['source']}\t{pair['target']}\n" for pair in make_pairs(2, seed=3)), "utf-8")
    sources = ["--vocabulary.sources", f"[{{path: {few}}}]"]
    whole = len(AutoTokenizer.from_pretrained(encoders / "e5-small"))
    runs = loaded(name, shrunk(data, encoders, tmp_path / "out", *sources))
    for run in runs:
        metrics = train_recipe(resolve(run), Console(quiet=True)).metrics
        folder = Path(run["output_dir"])
        assert metrics["multi30k-bleu/en-de/test/sentences"] == 12
        model = HictlForConditionalGeneration.from_pretrained(folder / "model")
        tokenizer = AutoTokenizer.from_pretrained(folder / "model")
        assert len(tokenizer) == model.config.get_text_config().vocab_size < whole
        assert model.config.word_similarity == run["model"]["word_similarity"]
        assert (model.generation_config.num_beams, model.generation_config.length_penalty) == (5, 1.0)
        results = json.loads((folder / "results.json").read_text("utf-8"))
        signature = results["settings"]["data"]["bleu_signatures"]["multi30k-bleu/en-de/test/bleu"]
        assert "tok:13a" in signature and "version:" in signature
        lines = (folder / "training" / "translations.txt").read_text("utf-8").splitlines()
        assert len(lines) == 12
        card = (folder / "README.md").read_text("utf-8")
        assert "HictlForConditionalGeneration.from_pretrained" in card and "pipeline_tag: translation" in card
        assert escape_markdown(signature) in card
        assert str(tmp_path.parent) not in card  # no folder of this machine


def test_missing_tokenizer_of_a_language(
    data: dict[str, str], encoders: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("MeCab", "ipadic"):
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delitem(sys.modules, "sacrebleu.tokenizers.tokenizer_ja_mecab", raising=False)
    (recipe,) = loaded("start_translation", shrunk(data, encoders, tmp_path / "out", "--languages", "[en, ja]"))
    with pytest.raises(XlsrError, match="MeCab"):
        train_recipe(resolve(recipe), Console(quiet=True))
    recipe["evaluation"]["tokenize"] = "char"
    train_recipe(resolve(recipe), Console(quiet=True))
