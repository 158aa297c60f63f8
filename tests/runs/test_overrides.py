"""Names of keys on the command line of a recipe."""

from __future__ import annotations

import pytest

from hf_xlsr.runs.methods import METHODS
from hf_xlsr.runs.overrides import USUAL_NAMES, full_key, parse_arguments, recipe_keys
from hf_xlsr.runs.recipe import load_runs
from hf_xlsr.utils.errors import XlsrError

KEYS = {name: recipe_keys({"method": name}, method) for name, method in METHODS.items()}
EVERY_METHOD = pytest.mark.parametrize("method", METHODS)


def refusal(name: str, method: str) -> str:
    with pytest.raises(XlsrError) as caught:
        full_key(name, KEYS[method])
    return str(caught.value)


@EVERY_METHOD
def test_every_key_is_found_by_its_full_name(method: str) -> None:
    for key in KEYS[method]:
        assert full_key(key, KEYS[method]) == key


@EVERY_METHOD
def test_short_names_are_of_training_first(method: str) -> None:
    """Unless they are keys of the top, such as `seed`."""
    of_training = [key for key in KEYS[method] if key.startswith("training.")]
    assert len(of_training) > 50
    for key in of_training:
        short = key.removeprefix("training.")
        assert full_key(short, KEYS[method]) == (short if short in KEYS[method] else key)


@EVERY_METHOD
def test_other_short_names_are_unique_or_refused_with_all_keys(method: str) -> None:
    keys = KEYS[method]
    for last_part in {key.rpartition(".")[2] for key in keys}:
        matches = [key for key in keys if key.endswith(f".{last_part}") and not key.startswith("data.train.")]
        if last_part in keys or f"training.{last_part}" in keys or last_part in USUAL_NAMES or not matches:
            continue
        fewest = min(key.count(".") for key in matches)
        candidates = [key for key in matches if key.count(".") == fewest]
        if len(candidates) == 1:
            assert full_key(last_part, keys) == candidates[0]
        else:
            error = refusal(last_part, method)
            assert "ambiguous" in error and all(f"--{key}" in error for key in candidates)


@EVERY_METHOD
@pytest.mark.parametrize("name", USUAL_NAMES)
def test_usual_names_are_suggestions(name: str, method: str) -> None:
    """They never set anything, neither of training nor of a section that happens to have the name."""
    error = refusal(name, method)
    assert f"--{USUAL_NAMES[name].removeprefix('training.')}" in error
    assert ("evaluation.batch_size" in error) == (name == "batch_size" and "evaluation.batch_size" in KEYS[method])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["--batch_size", "8"],
            "--batch_size is ambiguous; write --per_device_train_batch_size or --evaluation.batch_size.",
        ),
        (["--epochs", "2"], "unknown option --epochs; did you mean --num_train_epochs?"),
        (["--lr", "1e-3"], "unknown option --lr; did you mean --learning_rate?"),
        (["--training.learning_rat", "1"], "unknown option --training.learning_rat; did you mean --learning_rate?"),
        (["--trian", "a.tsv"], "unknown option --trian; did you mean --train?"),
        (["--zzz", "1"], "unknown option --zzz; docs/recipes.md lists the keys of recipes."),
    ],
)
def test_refusals_are_one_short_line(words: list[str], message: str) -> None:
    with pytest.raises(XlsrError) as caught:
        load_runs("quickstart", words)
    assert str(caught.value) == message


def test_values() -> None:
    words = ["--data.prompt", "query: ", "--num-train-epochs=2", "--evaluation.batch_size", "7"]
    (run,) = load_runs("quickstart", words)
    (plain,) = load_runs("quickstart")
    assert run.recipe.data.prompt == "query: "
    assert run.recipe.evaluation.batch_size == 7
    assert run.recipe.training == {**plain.recipe.training, "num_train_epochs": 2}


@pytest.mark.parametrize("words", [["--seed"], ["--seed", "--overwrite", "true"], ["seed", "2"]])
def test_an_option_needs_a_value(words: list[str]) -> None:
    with pytest.raises(XlsrError, match=f"got '{words[0]}'"):
        parse_arguments(words)
