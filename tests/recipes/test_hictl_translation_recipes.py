"""The translation recipes: the paper's values, and runs of a few steps."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import loaded
from recipe_helpers import TWO_STEPS, assert_values
from rich.console import Console
from safetensors.torch import load_file
from transformers import AutoTokenizer
from translation_helpers import encoder_folder

from hf_xlsr import XlsrError
from hf_xlsr.data.sources import as_list
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
# The test set of WMT 14 is newstest2014, its dev set newstest2012 and 2013; those of WMT 18 are newstest2018 and 2017.
SPLITS = """\
hictl_iwslt14_en_de test  dev2010.{en,de} dev2012.{en,de} tst2010.{en,de} tst2011.{en,de} tst2012.{en,de}
hictl_iwslt14_de_en test  dev2010.{de,en} dev2012.{de,en} tst2010.{de,en} tst2011.{de,en} tst2012.{de,en}
hictl_iwslt17_en_fr train en-fr.train.parquet
hictl_iwslt17_en_fr dev   en-fr.validation.parquet
hictl_iwslt17_en_fr test  en-fr.test.parquet
hictl_iwslt17_en_zh train en-zh.train.parquet
hictl_iwslt17_en_zh dev   en-zh.validation.parquet
hictl_iwslt17_en_zh test  en-zh.test.parquet
hictl_wmt14_en_de   dev   newstest2012.{en,de} wmt14:dev
hictl_wmt14_en_de   test  wmt14:test
hictl_wmt14_en_fr   dev   newstest2012.{en,fr} wmt14:dev
hictl_wmt14_en_fr   test  wmt14:test
hictl_wmt18_en_zh   dev   wmt18:dev
hictl_wmt18_en_zh   test  wmt18:test
hictl_wmt18_en_ru   dev   wmt18:dev
hictl_wmt18_en_ru   test  wmt18:test
""".splitlines()


@pytest.fixture(scope="module")
def encoders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("encoders")
    encoder_folder(folder / "e5-small", algorithm="unigram")
    return folder


@pytest.fixture
def data(write_pairs: Any) -> dict[str, str]:
    dev = str(write_pairs("dev.tsv", 12, seed=2))
    return {"train": str(write_pairs()), "dev": dev, "test": dev}


def shrunk(data: dict[str, str], encoders: Path, output: Path, *more: str) -> list[str]:
    """Options that leave a recipe as it is but for its size and its text."""
    options = {
        "model.start": str(encoders / "e5-small"),
        "output_dir": str(output),
        "data.held_out": "[]",
        "data.max_length": "32",
        "eval_strategy": "steps",
        "save_strategy": "steps",
    }
    for split, path in data.items():
        options[f"data.{split}"] = f"[{{path: {path}}}]"
    for key, value in TWO_STEPS.items():
        options[f"training.{key}"] = str(value).lower()

    arguments = []
    for name, text in options.items():
        arguments += [f"--{name}", text]
    return [*arguments, *more]


def train(recipe: dict[str, Any]) -> dict[str, float]:
    """Trains, and gives the metrics."""
    return train_recipe(resolve(recipe), Console(quiet=True)).metrics


@pytest.mark.parametrize("name", TASKS)
def test_paper_values_of_step_two(name: str) -> None:
    languages, beams, penalty, test_set = TASKS[name]
    corpus = name.split("_")[1].rstrip("0123456789")
    (recipe,) = loaded(name)
    values = {
        **PAPER,
        "languages": languages,
        "start_from": f"outputs/hictl_{corpus}_decoder",
        "training.generation_num_beams": beams,
        "training.generation_length_penalty": penalty,
        "evaluation.name": test_set,
        "training.freeze_encoder": False,
        "training.load_best_model_at_end": True,
    }
    assert_values(recipe, values)

    best = recipe["training"]["metric_for_best_model"]
    assert best.startswith(test_set)
    assert f"/{'-'.join(languages)}/dev/bleu" in best


@pytest.mark.parametrize("name", DECODERS)
def test_paper_values_of_step_one(name: str) -> None:
    (recipe,) = loaded(name)
    assert_values(recipe, {**PAPER, "training.freeze_encoder": True, "start_from": None})

    language_pairs = {"-".join(source["languages"]) for source in recipe["data"]["train"]}
    assert language_pairs == DECODERS[name]


@pytest.mark.parametrize("task", TASKS)
def test_decoder_suits_its_tasks(task: str) -> None:
    (run,) = loaded(task)
    (decoder,) = loaded(Path(run["start_from"]).name)
    for section, key in (("model", "start"), ("data", "max_length")):
        assert decoder[section][key] == run[section][key]
    assert decoder["vocabulary"] == run["vocabulary"]

    if task != "hictl_iwslt14_de_en":
        held_out = names(decoder["data"]["held_out"])
        assert {*names(run["data"]["dev"]), *names(run["data"]["test"])} <= {*held_out}


def names(sources: Any) -> list[str]:
    """Corpora with their splits, and names of files."""
    result = []
    for source in as_list(sources):
        if "corpus" in source:
            split = source.get("split", "train")
            result.append(f"{source['corpus']}:{split}")
        else:
            result.append(Path(source["path"]).name)
    return result


def task_data(name: str) -> dict[str, Any]:
    (run,) = loaded(name)
    return run["data"]


@pytest.mark.parametrize("line", SPLITS)
def test_paper_splits(line: str) -> None:
    name, split, *expected = line.split()
    assert names(task_data(name)[split]) == expected


@pytest.mark.parametrize(("name", "english"), [("hictl_iwslt14_en_de", "source"), ("hictl_iwslt14_de_en", "target")])
def test_iwslt14_holds_out_sentences_for_dev(name: str, english: str) -> None:
    data = task_data(name)
    dev = data["dev"]
    train = data["train"]
    assert dev["path"] == train["path"]
    assert dev["hash_split"] == "held"
    assert train["hash_split"] == "rest"
    assert dev["hash_modulus"] == 23  # 160 thousand pairs over 22: 7 thousand
    assert dev["hash_key"] == english  # in both directions


@pytest.mark.parametrize("language", ["fr", "zh"])
def test_iwslt17_trains_on_all_rows(language: str) -> None:
    assert "hash_split" not in task_data(f"hictl_iwslt17_en_{language}")["train"][0]


def test_second_step_starts_from_the_first() -> None:
    first, second = loaded("hictl_multi30k_en_de")
    assert first["start_from"] is None
    assert first["training"]["freeze_encoder"]
    assert second["start_from"] == first["output_dir"]
    assert not second["training"].get("freeze_encoder")


@pytest.mark.parametrize("name", ["with", "without"])
def test_ablation_differs_in_word_similarity(name: str) -> None:
    runs = {run["name"].split("/")[1]: run for run in loaded("hictl_multi30k_en_de_ablation")}
    decoder = runs[f"{name}_decoder"]
    final = runs[name]
    assert decoder["start_from"] is None
    assert final["start_from"] == decoder["output_dir"]

    first, second = loaded("hictl_multi30k_en_de")
    for run, plain in ((decoder, first), (final, second)):
        assert run["model"] == {**plain["model"], "word_similarity": name == "with"}
        for section in ("data", "training", "evaluation", "vocabulary", "seed"):
            assert run[section] == plain[section]


def test_ablation_has_a_random_transformer() -> None:
    (transformer,) = (run for run in loaded("hictl_multi30k_en_de_ablation") if run["name"].endswith("/transformer"))
    assert transformer["start_from"] is None
    assert transformer["model"]["random_weights"]


# Vaswani et al. (2017): base for IWSLT, big for WMT.
TRANSFORMERS = {
    "base": {"hidden_size": 512, "num_hidden_layers": 6, "num_attention_heads": 8, "intermediate_size": 2048},
    "big": {"hidden_size": 1024, "num_hidden_layers": 6, "num_attention_heads": 16, "intermediate_size": 4096},
}


@pytest.mark.parametrize("size", TRANSFORMERS)
def test_transformers_of_the_paper_are_trained_whole_on_the_data_of_their_tasks(size: str) -> None:
    for run in loaded(f"hictl_transformer_{size}"):
        model = run["model"]
        assert model["shape"] == {**TRANSFORMERS[size], "hidden_act": "relu"}
        assert (model["random_weights"], model["decoder_layers"], model["word_similarity"]) == (True, 6, False)
        assert (run["start_from"], run["training"]["freeze_encoder"]) == (None, False)

        (task,) = loaded(f"hictl_{run['name'].split('/')[1]}")
        assert run["data"]["train"] == task["data"]["train"]
        assert run["data"]["test"] == task["data"]["test"]
        assert run["evaluation"]["name"] == task["evaluation"]["name"]
        assert as_list(run["vocabulary"]["sources"]) == as_list(run["data"]["train"])


def test_transformer_has_the_shape_of_the_recipe(data: dict[str, str], encoders: Path, tmp_path: Path) -> None:
    options = shrunk(data, encoders, tmp_path / "run", "--vocabulary.sources", "[]", "--eval_strategy", "no")
    options += ["--load_best_model_at_end", "false", "--shape.hidden_size", "32", "--shape.intermediate_size", "64"]
    options += ["--shape.num_hidden_layers", "3", "--metric_for_best_model", "null"]
    recipe = loaded("hictl_transformer_base", options)[0]
    train(recipe)
    config = HictlForConditionalGeneration.from_pretrained(
        tmp_path / "run" / "iwslt14_en_de" / "model"
    ).config.get_text_config()
    assert (config.hidden_size, config.num_hidden_layers, config.hidden_act) == (32, 3, "relu")


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--model.shape.hidden_size", "32"], "model.shape"),
        (["--model.random_weights", "true", "--start_from", "outputs/other"], "outputs/other"),
        (["--model.random_weights", "true", "--freeze_encoder", "true"], "freeze_encoder true would keep"),
        (["--model.random_weights", "true", "--adapters.rank", "2"], "adapters.rank 2 would keep"),
    ],
)
def test_weights_that_contradict_the_recipe_are_refused(
    options: list[str], named: str, data: dict[str, str], encoders: Path, tmp_path: Path
) -> None:
    words = shrunk(data, encoders, tmp_path / "run", "--start_from", "null", *options)
    recipe = loaded("hictl_iwslt14_en_de", words)[0]
    with pytest.raises(XlsrError, match=named):
        train(recipe)


def weights_of(run: Path) -> dict[str, torch.Tensor]:
    return load_file(run / "training" / "final" / "model.safetensors")


@pytest.mark.slow
@pytest.mark.parametrize("group", ["iwslt", "wmt"])
def test_paper_recipes_run(group: str, data: dict[str, str], encoders: Path, tmp_path: Path) -> None:
    options = shrunk(data, encoders, tmp_path / "one", "--data.cleaning", "[]", "--eval_strategy", "no")
    (recipe,) = loaded(f"hictl_{group}_decoder", options)
    recipe["data"].update(dev=None, test=None, train=[{"path": data["train"], "languages": ["en", "fr"]}])
    train(recipe)

    first = weights_of(tmp_path / "one")
    start = load_file(encoders / "e5-small" / "model.safetensors")
    for name, value in start.items():
        assert torch.equal(first[f"encoder.{name}"], value), name

    for name in TASKS:
        if group not in name:
            continue

        # The next lines are what the paper's users run, less the size.
        options = shrunk(data, encoders, tmp_path / name, "--start_from", str(tmp_path / "one"))
        (recipe,) = loaded(name, options)
        metrics = train(recipe)

        languages, _, _, test_set = TASKS[name]
        protocol = f"{test_set}-bleu-zh" if "zh" in languages else f"{test_set}-bleu"
        assert f"{protocol}/{'-'.join(languages)}/test/bleu" in metrics

        # Two steps at 2e-5 / 4,000 and less: still nearly what step one left.
        weights = weights_of(tmp_path / name)
        torch.testing.assert_close(weights, first, atol=1e-4, rtol=0)
        table = "encoder.embeddings.word_embeddings.weight"
        assert not torch.equal(weights[table], first[table])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["hictl_multi30k_en_de", "hictl_multi30k_en_de_ablation"])
def test_small_recipes_run(
    name: str, data: dict[str, str], encoders: Path, write_pairs: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_XLSR_DATA", str(encoders))
    monkeypatch.setenv("HF_XLSR_ENCODERS", str(encoders))
    few_pairs = write_pairs("few.tsv", 2, seed=3)
    vocabulary = ["--vocabulary.sources", f"[{{path: {few_pairs}}}]"]
    whole = AutoTokenizer.from_pretrained(encoders / "e5-small")

    for run in loaded(name, shrunk(data, encoders, tmp_path / "out", *vocabulary)):
        metrics = train(run)
        folder = Path(run["output_dir"])
        assert metrics["multi30k-bleu/en-de/test/sentences"] == 12

        model = HictlForConditionalGeneration.from_pretrained(folder / "model")
        tokenizer = AutoTokenizer.from_pretrained(folder / "model")
        assert len(tokenizer) < len(whole)
        assert len(tokenizer) == model.config.get_text_config().vocab_size
        assert model.config.word_similarity == run["model"]["word_similarity"]
        assert model.generation_config.num_beams == 5
        assert model.generation_config.length_penalty == 1.0

        results = json.loads((folder / "results.json").read_text("utf-8"))
        signature = results["settings"]["data"]["bleu_signatures"]["multi30k-bleu/en-de/test/bleu"]
        assert "tok:13a" in signature
        assert "version:" in signature

        translations = (folder / "training" / "translations.txt").read_text("utf-8")
        assert len(translations.splitlines()) == 12

        card = (folder / "README.md").read_text("utf-8")
        assert "HictlForConditionalGeneration.from_pretrained" in card
        assert "pipeline_tag: translation" in card
        assert escape_markdown(signature) in card
        assert str(tmp_path.parent) not in card  # no folder of this machine


@pytest.mark.slow
def test_missing_tokenizer_of_a_language(
    data: dict[str, str], encoders: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("MeCab", "ipadic"):
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delitem(sys.modules, "sacrebleu.tokenizers.tokenizer_ja_mecab", raising=False)
    (recipe,) = loaded("start_translation", shrunk(data, encoders, tmp_path / "out", "--languages", "[en, ja]"))

    with pytest.raises(XlsrError, match="MeCab"):
        train(recipe)

    recipe["evaluation"]["tokenize"] = "char"
    train(recipe)
