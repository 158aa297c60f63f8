"""What holds for every method of recipes: its keys, and what is checked before anything runs."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from conftest import make_pairs

from hf_xlsr.data.seen import SeenHashes
from hf_xlsr.data.tokenization import load_tokenizer
from hf_xlsr.runs.methods import METHODS, Method
from hf_xlsr.runs.recipe import load_runs
from hf_xlsr.utils.errors import XlsrError

sys.path.append(str(Path(__file__).resolve().parents[1] / "trainers"))
import two_process_recipes  # noqa: E402

EVERY_METHOD = pytest.mark.parametrize("method", METHODS)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Data, a tokenizer, an encoder, and a recipe of each trainer."""
    folder = tmp_path_factory.mktemp("recipes")
    two_process_recipes.write_recipes(folder)
    return folder


@pytest.fixture
def run_of(folder: Path, tmp_path: Path) -> Callable[..., Method]:
    """A run of a method, with words of a command line."""

    def load(method: str, *words: str) -> Method:
        recipe = folder / f"{METHODS[method].trainer_class.__name__}.yaml"
        (run,) = load_runs(str(recipe), ["--output_dir", str(tmp_path / "run"), *words])
        return run

    return load


# Values of a configuration that follow from the recipe, or that another model reads.
OTHER_VALUES = {
    "lightweight": ["text_config", "head"],
    "distillation": ["text_config", "teacher_dim"],
    "dual_momentum": ["encoder_configs", "languages", "nli_labels"],
    "hictl": ["text_config", "classifier_dropout", "decoder_layers", "word_similarity"],
    "cmlm": ["text_config", "nli_labels"],
    "classification": ["text_config", "decoder_layers", "negative_words"],
    "translation": ["text_config", "classifier_dropout", "negative_words"],
}


@EVERY_METHOD
def test_values_that_a_recipe_does_not_choose_are_no_keys(method: str, run_of: Callable[..., Method]) -> None:
    for name in OTHER_VALUES[method]:
        with pytest.raises(XlsrError, match=f"unknown option --model.{name}"):
            run_of(method, f"--model.{name}", "1")


@EVERY_METHOD
def test_metric_of_the_best_model_is_one_of_the_dev_set(
    method: str, run_of: Callable[..., Method], folder: Path, tmp_path: Path
) -> None:
    words = [] if method == "classification" else ["--data.dev.path", str(folder / "dev.tsv")]
    sets = run_of(method, *words).evaluation_sets()
    measured = run_of(method, *words).metric_names(sets)[0]
    for metric in (measured, f"eval_{measured}", "toy/accuracy"):
        run = run_of(method, *words, "--metric_for_best_model", metric)
        with pytest.raises(XlsrError, match="toy/accuracy") if metric == "toy/accuracy" else nullcontext():
            run.check(run.arguments(tmp_path, sets), sets)


@pytest.mark.parametrize(("task", "is_masked"), [("mlm", True), ("xtr", False)])
def test_tokenizer_needs_a_mask_where_tokens_are_masked(
    task: str, is_masked: bool, run_of: Callable[..., Method], folder: Path, tmp_path: Path
) -> None:
    tokenizer = load_tokenizer(str(folder / "tokenizer"), "tokenizer.path")
    tokenizer.mask_token = None
    tokenizer.save_pretrained(str(tmp_path / "maskless"))
    words = ["--tokenizer.path", str(tmp_path / "maskless"), "--generative_task", task]
    run = run_of("lightweight", *words)
    sets: dict[str, Any] = {"dev": [], "test": [], "guard": {}}
    with pytest.raises(XlsrError, match=r"tokenizer\.path") if is_masked else nullcontext():
        run.check(run.arguments(tmp_path, sets), sets)


def test_vocabulary_is_reduced_to_the_tokens_of_its_sources(
    run_of: Callable[..., Method], folder: Path, tmp_path: Path
) -> None:
    row = make_pairs(1)[0]
    (tmp_path / "few.tsv").write_text(f"{row['source']}\t{row['target']}\n", "utf-8")

    tokenizer = (
        run_of("translation", "--vocabulary.sources", str(tmp_path / "few.tsv")).read_data(SeenHashes()).tokenizer
    )

    whole = load_tokenizer(str(folder / "tokenizer"), "tokenizer.path")
    assert len(tokenizer) < len(whole)
    for text in (row["source"], row["target"]):
        assert tokenizer.tokenize(text) == whole.tokenize(text)
