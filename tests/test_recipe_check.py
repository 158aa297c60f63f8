"""Values that a key of a recipe does not take are told by one sentence, before anything is read or written."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from conftest import tiny_encoder

from hf_xlsr.runs.methods import METHODS
from hf_xlsr.runs.recipe import load_runs, sections_of
from hf_xlsr.runs.recipe_check import REFUSED_TRAINING_KEYS, recipe_keys, refused_training_keys
from hf_xlsr.runs.recipe_keys import Key, argument_help, config_keys, training_keys
from hf_xlsr.runs.train import train_recipe
from hf_xlsr.trainers.arguments import CmlmTrainingArguments, XlsrTrainingArguments
from hf_xlsr.utils.errors import XlsrError


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("training: {max_steps: -5}", "training.max_steps is -5; use -1 or more"),
        ("training: {max_steps: many}", "training.max_steps is 'many'; it takes a whole number"),
        ("training: {max_steps: [1]}", r"training.max_steps is \[1\]; it takes a whole number"),
        ("training: {num_train_epochs: 0}", "training.num_train_epochs is 0; use a value above 0"),
        ("training: {learning_rate: -1e-3}", "training.learning_rate is -0.001; use 0 or more"),
        ("training: {per_device_train_batch_size: 0}", "per_device_train_batch_size is 0; use 1 or more"),
        ("training: {lr_scheduler_type: cosin}", "lr_scheduler_type is 'cosin'; did you mean 'cosine'"),
        ("training: {eval_strategy: step}", "training.eval_strategy is 'step'; did you mean 'steps'"),
        ("training: {optim: adamw_torc}", "training.optim is 'adamw_torc'; did you mean 'adamw_torch'"),
        ("training: {mixing: equl}", "training.mixing is 'equl'; did you mean 'equal'"),
        ("training: {precision: int4}", "training.precision is 'int4'; known are"),
        ("training: {lr_scheduler_kwargs: 3}", "lr_scheduler_kwargs is 3; it takes keys with values or a word"),
        ("training: {hub_token: hf_secret}", "leave it out and log in with `hf auth login`"),
        ("training: {seed: 3}", "training.seed stands at the top of a recipe; move it there.$"),
        ("training: {fp16: true}", "training.fp16 follows from training.precision; set that instead.$"),
        (
            "training: {ignore_data_skip: true}",
            "would show a run .* what it saw already; leave it out.$",
        ),
        (
            "training: {dataloader_in_order: false}",
            "would let a run that goes on see other batches .*; leave it out.$",
        ),
        (
            "training: {train_sampling_strategy: group_by_length}",
            "is for batches that Trainer draws; leave it out, ours are drawn as .*say.$",
        ),
        ("training: {prediction_loss_only: true}", "in whose place protocols measure here; leave it out.$"),
        ("training: {resume_from_checkpoint: x}", "the same command goes on from the last checkpoint; leave it out.$"),
        ("training: [1]", "'training' is .1.; it holds keys"),
        ("model: [bert]", "'model' is .'bert'.; it holds keys"),
        ("model: {encoder: bert}", "model.encoder is 'bert'; it takes keys with values"),
        ("model: {encoder: {hidden_size: wide}}", "model.encoder.hidden_size is 'wide'; it takes a whole number"),
        ("model: {generative_task: ugtt}", "generative_task"),
        ("model: {alignment_weight: -1}", "alignment_weight"),
        ("data: {train: 3}", "data.train is 3; it takes a source or a list of sources"),
        ("data: {train: [{path: a}, 3]}", "data.train is .*; it takes a source or a list of sources"),
        ("data: {cleaning: normalize}", "data.cleaning is 'normalize'; it takes a list or keys with values"),
        ("data: {max_length: null}", "data.max_length is None; it takes a whole number"),
        ("data: {fraction: 1.5}", "data.fraction is 1.5; use 1 or less"),
        ("data: {limit: 0}", "data.limit is 0; use 1 or more"),
        ("tokenizer: {algorithm: wordpiece}", "tokenizer.algorithm is 'wordpiece'; use unigram or bpe"),
        ("evaluation: {protocol: tatoba}", "evaluation.protocol is 'tatoba'; use tatoeba or xsr"),
        ("adapters: {rank: -1}", "adapters.rank is -1; use 0 or more"),
        ("languages: {en: fr}", "languages is .*; it takes a list or a word"),
        ("seed: true", "seed is True; it takes a whole number"),
        ("output_dir: 3", "output_dir is 3; it takes a word"),
        ("card: {licence: mit}", "unknown key 'card.licence'; did you mean 'license'"),
    ],
)
def test_values_that_do_not_fit(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(
        ("" if "languages" in text else "languages: [en, fr]\n") + f"method: lightweight\n{text}\n", "utf-8"
    )
    with pytest.raises(XlsrError, match=message) as caught:
        load_runs(str(path))
    assert "recipe 'mine'" in str(caught.value) and "\n" not in str(caught.value)


def test_what_is_refused_are_arguments_of_trainer() -> None:
    for method in METHODS.values():
        assert set(refused_training_keys(method.arguments_class)) <= {
            field.name for field in fields(method.arguments_class)
        }
    assert set(REFUSED_TRAINING_KEYS) <= {field.name for field in fields(XlsrTrainingArguments)}


def test_rows_evaluated_together_are_a_training_argument_where_trainer_evaluates_rows(tmp_path: Path) -> None:
    argument = "training: {per_device_eval_batch_size: 4}"
    for method in METHODS.keys() - {"classification"}:
        path = tmp_path / f"{method}.yaml"
        path.write_text(f"languages: [en, fr]\nmethod: {method}\n{argument}\n", "utf-8")
        with pytest.raises(
            XlsrError, match=r"per_device_eval_batch_size is for .* set evaluation\.batch_size instead"
        ):
            load_runs(str(path))
    (path := tmp_path / "mine.yaml").write_text(f"base: hictl_xnli_cross_lingual\n{argument}\n", "utf-8")
    assert all(recipe["training"]["per_device_eval_batch_size"] == 4 for recipe in load_runs(str(path)))


def test_values_that_fit(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(
        "method: lightweight\nlanguages: [en, fr]\n"
        "training: {learning_rate: 1, warmup_steps: 0.1, eval_strategy: no, save_total_limit: null, report_to: [none],\n"
        "  lr_scheduler_kwargs: {a: 1}, fsdp: true, include_num_input_tokens_seen: all}\n"
        "data: {train: [a.tsv, {path: b.tsv}], cleaning: {normalize: null}, limit: null}\n"
        "model: {encoder: {hidden_size: 64, hidden_dropout_prob: 0}}\n",
        "utf-8",
    )
    (recipe,) = load_runs(str(path))
    assert recipe["training"]["learning_rate"] == 1 and recipe["data"]["max_length"] == 200
    assert recipe["card"] == dict.fromkeys(("license", "license_name", "license_link", "base_model", "datasets"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--eval_strategy", "steps", "--eval_steps", "0.5", "--max_steps", "0"], "training: "),
    ],
)
def test_arguments_are_made_before_the_folder_is_taken(
    options: list[str], message: str, write_pairs: Any, tmp_path: Path
) -> None:
    recipe = tmp_path / "toy.yaml"
    recipe.write_text(
        f"method: lightweight\nlanguages: [en, fr]\ndata: {{train: {{path: {write_pairs()}}}}}\n"
        f"model: {{encoder: {tiny_encoder(90)}}}\ntraining: {{load_best_model_at_end: true}}\n",
        "utf-8",
    )
    (resolved,) = load_runs(str(recipe), ["--output_dir", str(tmp_path / "run"), *options])
    with pytest.raises(XlsrError, match=message):
        train_recipe(resolved)
    assert not (tmp_path / "run").exists()


def test_every_key_says_what_it_means() -> None:
    for name in METHODS:
        for section, keys in recipe_keys({"method": name, "languages": ["en"]}).items():
            if section != "model.encoder":  # values of a stock configuration
                assert all(key.help and key.kinds != ("any",) for key in keys.values()), (name, section)


def test_defaults_fit_their_own_keys() -> None:
    for name in METHODS:
        for section, keys in recipe_keys({"method": name}).items():
            for key, value in keys.items():
                if section != "model.encoder":
                    assert value.mend(value.default) is None, (name, section, key)


def test_a_method_changes_defaults_of_common_keys_alone_for_itself() -> None:
    lengths = {name: sections_of(name)["data"]["max_length"] for name in METHODS}
    assert lengths["lightweight"] == 200 and lengths["translation"] == lengths["classification"] == 128
    assert sections_of("hictl")["tokenizer"]["frame"] and not sections_of("lightweight")["tokenizer"]["frame"]
    sections_of("hictl")["data"]["held_out"].append("x")
    assert sections_of("hictl")["data"]["held_out"] == []


def test_meanings_come_from_docstrings_and_metadata() -> None:
    keys = training_keys(CmlmTrainingArguments)
    assert keys["retrieval_batch_size"].help.startswith("Translation pairs in an optimiser step, in all micro-batches")
    assert (
        keys["optimizer"].choices == ("trainer", "lamb") and keys["optimizer"].mend("adam") == "use trainer or lamb."
    )
    assert keys["learning_rate"].help and keys["learning_rate"].default == 5e-5
    assert argument_help(CmlmTrainingArguments)["bucket_by_length"] == "Batch examples of similar length."

    class Config:
        size: int = 3
        either: float | str = 0.5
        unknown: Nowhere = None  # type: ignore[name-defined] # noqa: F821

    kinds = {name: key.kinds for name, key in config_keys(Config, ["size", "either", "unknown"]).items()}
    assert kinds == {"size": ("int",), "either": ("float", "str"), "unknown": ("any",)}


def test_a_key_says_what_it_takes() -> None:
    assert Key(None, kinds=("int", "str")).takes == "a whole number or a word"
    assert (
        Key("a", choices=("a", "b")).takes == "a or b" and Key("a", choices=("a", "b", "c")).takes == "one of a, b, c"
    )
    assert Key({}).mend([1]) == "it takes keys with values." and Key(None).mend(object()) is None
