"""Trainings of all methods and of sentence-transformers on synthetic text with random weights, timed step by step."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas
import psutil
import torch
import torch.nn.functional as F
import yaml
from datasets import Dataset
from transformers import AutoModel, BertConfig, TrainerCallback
from transformers.trainer import DEFAULT_CALLBACKS

from benchmarks.harness import synchronize
from hf_xlsr.data.tokenization import train_tokenizer
from hf_xlsr.utils.devices import choose_precision

METHODS = ("lightweight", "dual_momentum", "hictl", "cmlm")
PEER = "sentence-transformers"
WARM_UP = 4  # steps that are not timed


class StepClock(TrainerCallback):
    """Seconds of the steps after the warm-up, by the clock and of the processor, and the peak of memory at their ends."""

    current: StepClock

    def __init__(self) -> None:
        self.times: list[float] = []
        self.processor_times: list[float] = []
        self.peak = 0
        StepClock.current = self  # the Trainer makes its own from DEFAULT_CALLBACKS

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if hasattr(kwargs["model"], "enqueue"):
            fill_queues(kwargs["model"])
        if torch.cuda.is_available():
            torch.cuda.reset_peak_memory_stats()

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        cuda = torch.cuda.is_available()
        self.peak = max(self.peak, torch.cuda.max_memory_allocated() if cuda else psutil.Process().memory_info().rss)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.on_pre_optimizer_step(args, state, control)
        synchronize()
        self.times.append(time.perf_counter())
        self.processor_times.append(time.process_time())

    def figures(self, batch: int) -> dict[str, float]:
        step = per_step(self.times)
        return {
            "seconds": step,
            "processor_seconds": per_step(self.processor_times),
            "pairs_per_second": batch / step,
            "peak_bytes": self.peak,
        }


def per_step(times: list[float]) -> float:
    """The mean time of a step after the warm-up, from the times at the ends of all steps."""
    return (times[-1] - times[WARM_UP - 1]) / (len(times) - WARM_UP)


def fill_queues(model: Any) -> None:
    """Fills the queues of dual momentum contrast with random keys, so that every step has the whole loss."""
    size = model.config.queue_size
    for language in model.config.languages if size else ():
        keys = F.normalize(torch.randn(size, model.config.hidden_size, device=model.device), dim=1)
        numbers = torch.arange(size, device=model.device) + 10**9  # of no sentence
        model.enqueue(language, keys, numbers, numbers)


def made_pairs(count: int, words: int, vocabulary: int = 20_000) -> Iterator[tuple[str, str]]:
    """Sentences of invented words, half to one and a half times `words` long; the target maps each word to another."""
    chance = random.Random(1)
    for _ in range(count):
        numbers = [int(vocabulary * chance.random() ** 3) for _ in range(chance.randint(words // 2, 3 * words // 2))]
        yield " ".join(f"k{n:x}o" for n in numbers), " ".join(f"z{n:x}i" for n in numbers)


def encoder_sizes(width: int, layers: int, vocabulary: int) -> dict[str, Any]:
    """Part of the configuration of an encoder like BERT."""
    sizes = {"hidden_size": width, "num_hidden_layers": layers, "intermediate_size": 4 * width}
    return {"vocab_size": vocabulary, "num_attention_heads": max(1, width // 64), **sizes}


NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


def make_material(folder: Path, size: dict[str, Any]) -> None:
    """Writes pairs, running text, a tokenizer and a random BERT encoder into `folder`."""
    pairs = list(made_pairs(size["batch"] * (size["steps"] + WARM_UP + 1), size["words"]))
    (folder / "pairs.tsv").write_text("".join(f"{source}\t{target}\n" for source, target in pairs), "utf-8")
    lines = (f"{source}\td{number // 20}\ten\n" for number, (source, _) in enumerate(pairs))
    (folder / "text.tsv").write_text("text\tdocument\tlang\n" + "".join(lines), "utf-8")
    texts = [side for pair in pairs[:20_000] for side in pair]
    words = min(size["vocabulary"], 8000)
    tokenizer = train_tokenizer(texts, vocab_size=words, algorithm="bpe", frame=True, max_length=128)
    more = {"max_position_embeddings": 288, "pad_token_id": tokenizer.pad_token_id}
    sizes = encoder_sizes(size["width"], size["layers"], max(size["vocabulary"], len(tokenizer)))
    torch.manual_seed(1)
    AutoModel.from_config(BertConfig(**sizes, **more)).save_pretrained(folder / "encoder")
    tokenizer.save_pretrained(str(folder / "encoder"))


def read_pairs(folder: Path) -> Dataset:
    return Dataset.from_pandas(pandas.read_csv(folder / "pairs.tsv", sep="\t", names=["source", "target"]))


def recipe_of(method: str, folder: Path, size: dict[str, Any], precision: str) -> dict[str, Any]:
    encoder = {"path": f"{folder}/encoder"}
    models: dict[str, dict[str, Any]] = {
        "lightweight": {"encoder": encoder},
        "dual_momentum": {"encoders": dict.fromkeys(("en", "fr"), encoder["path"]), "queue_size": size["queue"]},
        "hictl": {"encoder": encoder, "negative_words": min(512, size["vocabulary"] // 4)},
        "cmlm": {"encoder": encoder, "projections": min(15, size["words"])},
    }
    data: dict[str, Any] = {"train": {"path": f"{folder}/pairs.tsv"}, "max_length": 128}
    training = {
        "max_steps": size["steps"] + WARM_UP,
        "per_device_train_batch_size": size["batch"],
        "precision": precision,
        "save_strategy": "no",
        "eval_strategy": "no",
        "disable_tqdm": True,
    }
    if method == "cmlm":
        columns = "text=text,document=document,lang=lang"
        data["text"] = {"path": f"{folder}/text.tsv", "columns": columns, "languages": ["en"]}
        training["retrieval_batch_size"] = size["batch"]
    recipe = {"method": method, "languages": ["en", "fr"], "data": data, "model": models[method], "training": training}
    if method == "lightweight":
        recipe["tokenizer"] = encoder
    return recipe


def train_ours(method: str, folder: Path, size: dict[str, Any], precision: str = "auto") -> dict[str, float]:
    """Runs `hf-xlsr train` in this process and returns the figures of its steps."""
    from hf_xlsr.cli import main

    file = folder / f"{method}.yaml"
    file.write_text(yaml.safe_dump(recipe_of(method, folder, size, precision)), "utf-8")
    DEFAULT_CALLBACKS.append(StepClock)
    try:
        if status := main(["train", str(file), "--output_dir", str(folder / f"{method}-{precision}")]):
            raise RuntimeError(f"hf-xlsr train of {method} ended with status {status}.")
    finally:
        DEFAULT_CALLBACKS.remove(StepClock)
    return StepClock.current.figures(size["batch"])


def both_directions(scale: float) -> dict[str, Any]:
    """Arguments that let sentence-transformers' ranking losses work in both directions, as ours do."""
    return {"scale": scale, "directions": ("query_to_doc", "doc_to_query"), "partition_mode": "per_direction"}


def peer_arguments(output: Path, batch: int, precision: str = "auto", **more: Any) -> Any:
    """Arguments of sentence-transformers' trainer: those that all comparisons share, and `more`."""
    from sentence_transformers import SentenceTransformerTrainingArguments

    usual = {"save_strategy": "no", "logging_strategy": "no", "disable_tqdm": True, "report_to": "none"}
    usual |= {"bf16": choose_precision(precision) == "bfloat16", "use_cpu": not torch.accelerator.is_available()}
    usual |= {"per_device_train_batch_size": batch, "dataloader_drop_last": True}
    return SentenceTransformerTrainingArguments(output_dir=str(output), **{**usual, **more})


def train_peer(folder: Path, size: dict[str, Any], precision: str = "auto") -> dict[str, float]:
    from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer
    from sentence_transformers.sentence_transformer import losses

    model = SentenceTransformer(str(folder / "encoder"))
    model.max_seq_length = 128
    arguments = peer_arguments(folder / "peer", size["batch"], precision, max_steps=size["steps"] + WARM_UP)
    rows, clock, loss = read_pairs(folder), StepClock(), losses.MultipleNegativesRankingLoss(model)
    SentenceTransformerTrainer(model, arguments, train_dataset=rows, loss=loss, callbacks=[clock]).train()
    return clock.figures(size["batch"])


def train(side: str, folder: Path, size: dict[str, Any], precision: str = "auto") -> dict[str, float]:
    return train_peer(folder, size, precision) if side == PEER else train_ours(side, folder, size, precision)
