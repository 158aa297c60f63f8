"""Fine-tune an encoder on own pairs, and compare it with its start, as docs/train.md says."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pytest
from conftest import loaded, make_pairs
from forked_command import Command
from safetensors.torch import load_file
from sentence_transformers import SentenceTransformer
from story_helpers import assert_equal

from hf_xlsr.cli import main
from hf_xlsr.data.evaluation_sets import evaluation_pairs
from hf_xlsr.data.normalization import match_key
from hf_xlsr.data.sources import parse_sources
from hf_xlsr.evaluation.comparison import compare_encoders
from hf_xlsr.evaluation.results import load_results
from hf_xlsr.trainers.base import XlsrTrainer
from hf_xlsr.trainers.checkpoints import last_whole_checkpoint

SMALL = ["--max_steps", "6", "--queue_size", "32", "--max_length", "32", "--per_device_train_batch_size", "8"]


def lines_of(pairs: list[dict[str, str]]) -> list[str]:
    return [f"{pair['source']}\t{pair['target']}" for pair in pairs]


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """Own files: pairs with named columns, pairs of another language, scored pairs, and lines in two files."""
    pairs = make_pairs(120)
    scored = []
    for number, pair in enumerate(make_pairs(20, 9)):
        text = pair["source"]
        scored.append(f"{text}\t{text[:-2]}\t{number % 6}")
    files = {
        "pairs.tsv": ["en\tde", *lines_of(pairs)],
        "other.tsv": ["en\tfr", *lines_of(pairs[:40])],
        "tested.tsv": ["en\tde", *lines_of(make_pairs(40, 5))],
        "scored.tsv": ["sentence1\tsentence2\tscore", *scored],
        "lines.en": [pair["source"] for pair in pairs],
        "lines.de": [pair["target"] for pair in pairs],
    }
    for name, lines in files.items():
        (tmp_path / name).write_text("\n".join(lines) + "\n", "utf-8")
    return tmp_path


def finetune(encoder: str, train: Path, output: Path, *options: str) -> list[str]:
    """The arguments of a short run on English and German."""
    arguments = ["train", "finetune", "--encoder", encoder, "--train", str(train), "--output_dir", str(output)]
    return [*arguments, "--languages", "en,de", *SMALL, *options]


@pytest.fixture
def compared(own: Path, tiny_encoder_folder: str) -> Path:
    """A run with a test set and sets that training should not make worse."""
    sets = {"--guard": ["other.tsv", "scored.tsv"], "--test": ["tested.tsv"]}
    options = ["--data.prompt", "one: "]
    for option, names in sets.items():
        for name in names:
            options += [option, str(own / name)]
    assert main(finetune(tiny_encoder_folder, own / "pairs.tsv", own / "run", *options)) == 0
    return own / "run"


def test_finetune_encodes_each_text_once(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Before and after training; the encoder in training is another one."""
    encode = SentenceTransformer.encode
    live_encoder = XlsrTrainer.live_encoder
    encoded: dict[SentenceTransformer, Counter[str]] = defaultdict(Counter)
    live = []

    def counting(model: SentenceTransformer, texts: list[str], **options: Any) -> Any:
        encoded[model].update(texts)
        return encode(model, texts, **options)

    def watched(trainer: XlsrTrainer) -> Any:
        live.append(live_encoder(trainer))
        return live[-1]

    monkeypatch.setattr(XlsrTrainer, "live_encoder", watched)
    monkeypatch.setattr(SentenceTransformer, "encode", counting)

    request.getfixturevalue("compared")

    exported = [counts for model, counts in encoded.items() if model not in live]
    assert len(exported) == 2
    for counts in exported:
        assert len(counts) > 100
        assert set(counts.values()) == {1}


def test_run_is_tested_against_an_evaluation(compared: Path, own: Path, tiny_encoder_folder: str) -> None:
    """The run has the tags of its recipe, the evaluation others: a language pair has one key."""
    words = (
        f"--protocol tatoeba --data {own / 'tested.tsv'} --languages eng,deu --predictions --output {own / 'start'}"
    )
    assert main(["evaluate", tiny_encoder_folder, *words.split()]) == 0

    results = {"run": load_results(compared / "results.json"), "start": load_results(own / "start")}
    for table in compare_encoders(results):
        assert table.columns == ["en-de"]
        assert ("run", "start", "en-de") in table.p_values


def test_finetune_compares_with_start(compared: Path) -> None:
    settings = json.loads((compared / "results.json").read_text("utf-8"))["settings"]
    comparison = settings["comparison"]
    assert {key.rsplit("/", 1)[0] for key in comparison} == {
        "pairs-tatoeba/en-de/dev",
        "pairs-xsim/en-de/dev",
        "tested-tatoeba/en-de/test",
        "tested-xsim/en-de/test",
        "other-tatoeba/en-fr/guard",
        "other-xsim/en-fr/guard",
        "scored-sts/en/guard",
    }
    for values in comparison.values():
        assert values["difference"] == values["after"] - values["before"]
    assert any(values["difference"] for values in comparison.values())

    model = SentenceTransformer(str(compared / "model"), device="cpu")
    assert model.prompts[str(model.default_prompt_name)] == "one: "
    assert f"{settings['dimension']}-dimensional" in (compared / "README.md").read_text("utf-8")


@pytest.mark.slow
def test_killed_finetuning_ends_alike(own: Path, tiny_encoder_folder: str) -> None:
    steps = ["--max_steps", "60", "--save_strategy", "steps", "--save_steps", "5"]

    def start(name: str) -> Command:
        arguments = finetune(tiny_encoder_folder, own / "pairs.tsv", own / name, *steps)
        return Command(*arguments, log=own / "log.txt")

    start("whole").finish()

    command = start("killed")
    command.wait_for(lambda: last_whole_checkpoint(own / "killed" / "training"))
    command.kill()
    assert not (own / "killed" / "training" / "final").exists(), "the run was over before it was killed"
    assert "resuming from" in start("killed").finish()

    weights = Path("training", "final", "model.safetensors")
    assert_equal(load_file(own / "whole" / weights), load_file(own / "killed" / weights))


def test_dev_set_is_drawn_and_removed_from_training(own: Path, tiny_encoder_folder: str) -> None:
    arguments = finetune(tiny_encoder_folder, own / "lines.{en,de}", own / "run")
    assert main(arguments) == 0

    (recipe,) = loaded("finetune", arguments[2:])

    def rows_of(split: str) -> list[Any]:
        sources = parse_sources(recipe["data"][split])
        return evaluation_pairs(sources, languages=["en", "de"], split=split)

    dev = rows_of("dev")
    assert dev == rows_of("dev")
    assert 2 <= len(dev) <= 30

    held_out = {match_key(row[side]) for row in dev for side in ("source", "target")}
    train = rows_of("train")
    expected = set()
    for row in train:
        if held_out.isdisjoint([match_key(row["source"]), match_key(row["target"])]):
            expected.add((row["source"], row["target"]))
    report = json.loads((own / "run" / "results.json").read_text("utf-8"))["settings"]["data"]
    assert report["pairs"] == len(expected)
    assert len(expected) < len(train)
