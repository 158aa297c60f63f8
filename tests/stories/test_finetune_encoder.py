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
from hf_xlsr.data.cleaning import match_key
from hf_xlsr.data.evaluation_sets import evaluation_pairs
from hf_xlsr.data.sources import parse_sources
from hf_xlsr.trainers.base import XlsrTrainer
from hf_xlsr.trainers.checkpoints import last_whole_checkpoint

SMALL = ["--max_steps", "6", "--queue_size", "32", "--max_length", "32", "--per_device_train_batch_size", "8"]


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """Own files: pairs with named columns, pairs of another language, scored pairs, and lines in two files."""
    pairs = make_pairs(120)
    rows = [f"{pair['source']}\t{pair['target']}" for pair in pairs]
    scored = [f"{pair['source']}\t{pair['source'][:-2]}\t{n % 6}" for n, pair in enumerate(make_pairs(20, 9))]
    tables = {"pairs": ["en\tde", *rows], "other": ["en\tfr", *rows[:40]]}
    tables["tested"] = ["en\tde", *(f"{pair['source']}\t{pair['target']}" for pair in make_pairs(40, 5))]
    tables["scored"] = ["sentence1\tsentence2\tscore", *scored]
    for name, lines in tables.items():
        (tmp_path / f"{name}.tsv").write_text("\n".join(lines) + "\n", "utf-8")
    for side, language in (("source", "en"), ("target", "de")):
        (tmp_path / f"lines.{language}").write_text("".join(f"{pair[side]}\n" for pair in pairs), "utf-8")
    return tmp_path


def test_finetune_compares_with_start(own: Path, tiny_encoder_folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    encode = SentenceTransformer.encode
    encoded: dict[SentenceTransformer, Counter[str]] = defaultdict(Counter)
    live = []

    def counting(model: SentenceTransformer, texts: list[str], **options: Any) -> Any:
        encoded[model].update(texts)
        return encode(model, texts, **options)

    def watched(trainer: XlsrTrainer) -> Any:
        live.append(live_encoder(trainer))
        return live[-1]

    live_encoder = XlsrTrainer.live_encoder
    monkeypatch.setattr(XlsrTrainer, "live_encoder", watched)

    monkeypatch.setattr(SentenceTransformer, "encode", counting)
    train = ["train", "finetune", "--encoder", tiny_encoder_folder, "--train", str(own / "pairs.tsv")]
    guard = ["--guard", str(own / "other.tsv"), "--guard", str(own / "scored.tsv"), "--test", str(own / "tested.tsv")]
    options = ["--languages", "en,de", "--data.prompt", "one: ", *SMALL, "--output_dir", str(own / "run")]
    assert main([*train, *guard, *options]) == 0
    exported = [counts for model, counts in encoded.items() if model not in live]
    assert len(exported) == 2
    for counts in exported:
        assert len(counts) > 100
        assert set(counts.values()) == {1}
    settings = json.loads((own / "run" / "results.json").read_text("utf-8"))["settings"]
    model = SentenceTransformer(str(own / "run" / "model"), device="cpu")
    assert model.prompts[str(model.default_prompt_name)] == "one: "
    comparison = settings["comparison"]
    assert f"{settings['dimension']}-dimensional" in (own / "run" / "README.md").read_text("utf-8")
    assert {tuple(key.split("/")[:3]) for key in comparison} == {
        ("pairs-tatoeba", "en-de", "dev"),
        ("pairs-xsim", "en-de", "dev"),
        ("tested-tatoeba", "en-de", "test"),
        ("tested-xsim", "en-de", "test"),
        ("other-tatoeba", "en-fr", "guard"),
        ("other-xsim", "en-fr", "guard"),
        ("scored-sts", "en", "guard"),
    }
    for values in comparison.values():
        assert values["difference"] == values["after"] - values["before"]
    assert any(values["difference"] for values in comparison.values())
    assert list((own / "run" / "model").rglob("model.safetensors"))


@pytest.mark.slow
def test_killed_finetuning_ends_alike(own: Path, tiny_encoder_folder: str) -> None:
    train = ["train", "finetune", "--encoder", tiny_encoder_folder, "--train", str(own / "pairs.tsv")]
    train += ["--languages", "en,de", *SMALL[2:], "--max_steps", "60", "--save_strategy", "steps", "--save_steps", "5"]
    for name in ("whole", "killed"):
        command = Command(*train, "--output_dir", own / name, log=own / "log.txt")
        if name == "killed":
            command.wait_for(lambda: last_whole_checkpoint(own / "killed" / "training"))
            command.kill()
            assert not (own / "killed" / "training" / "final").exists(), "the run was over before it was killed"
            command = Command(*train, "--output_dir", own / name, log=own / "log.txt")
            assert "resuming from" in command.finish()
        command.finish()
    whole, killed = (
        load_file(own / name / "training" / "final" / "model.safetensors") for name in ("whole", "killed")
    )
    assert_equal(whole, killed)


def test_dev_set_is_drawn_and_removed_from_training(own: Path, tiny_encoder_folder: str) -> None:
    train = ["train", "finetune", "--encoder", tiny_encoder_folder, "--train", str(own / "lines.{en,de}")]
    assert main([*train, "--languages", "[en, de]", *SMALL, "--output_dir", str(own / "run")]) == 0
    (recipe,) = loaded("finetune", [*train[2:], "--languages", "en,de"])
    dev = evaluation_pairs(parse_sources(recipe["data"]["dev"]), languages=["en", "de"], split="dev")
    assert dev == evaluation_pairs(parse_sources(recipe["data"]["dev"]), languages=["en", "de"], split="dev")
    assert 2 <= len(dev) <= 30
    seen = {match_key(row[side]) for row in dev for side in ("source", "target")}
    all_rows = evaluation_pairs(parse_sources(recipe["data"]["train"]), languages=["en", "de"], split="train")
    left = [row for row in all_rows if not {match_key(row["source"]), match_key(row["target"])} & seen]
    report = json.loads((own / "run" / "results.json").read_text("utf-8"))["settings"]["data"]
    assert report["pairs"] == len({(row["source"], row["target"]) for row in left}) < len(all_rows)
