"""A tiny recipe for every trainer, without dropout, and a script that runs them all on two processes.

Run as a script under torchrun: `two_process_recipes.py FOLDER`, after `write_recipes(FOLDER)`.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import sys
from pathlib import Path
from typing import Any

GLOBAL_BATCH = 16
# Plain gradient descent, which would show a wrong scale that Adam hides.
TRAINING = {
    "max_steps": 4,
    "per_device_train_batch_size": GLOBAL_BATCH,
    "learning_rate": 0.05,
    "optim": "sgd",
    "logging_steps": 1,
    "save_strategy": "no",
    "precision": "float32",
    "disable_tqdm": True,
}
ENCODER = {
    "model_type": "bert",
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
    "max_position_embeddings": 48,
}
# Those that are evaluated and exported too.
WHOLE = ("LightweightTrainer", "FineTuneTrainer")
ROWS = ("DualMomentumTrainer", "FineTuneTrainer")  # with `trainable_rows`
CACHED = ("LightweightTrainer", "DistillationTrainer", "DualMomentumTrainer", "HictlTrainer", "CmlmTrainer")
STEPS = {"eval_strategy": "steps", "eval_steps": 2, "save_strategy": "steps", "save_steps": 2}


def recipes(folder: Path) -> dict[str, dict[str, Any]]:
    """A recipe of each method by the name of its trainer; what they read lies in `folder`."""
    pairs: dict[str, Any] = {"train": {"path": f"{folder}/train.tsv"}, "max_length": 32, "cleaning": ["normalize"]}
    measured = {**pairs, "dev": {"path": f"{folder}/dev.tsv"}, "test": {"path": f"{folder}/dev.tsv"}}
    tokenizer, start = {"path": f"{folder}/tokenizer"}, f"{folder}/encoder"
    text = {"path": f"{folder}/text.tsv", "columns": "text=text,document=document,lang=lang"}
    nli = {"train": {"path": f"{folder}/nli.tsv", "languages": ["en"]}}
    labelled = {"path": f"{folder}/labelled.tsv"}
    return {
        "LightweightTrainer": {
            "method": "lightweight",
            "data": measured,
            "tokenizer": tokenizer,
            "model": {"encoder": ENCODER, "similarity_reduction": "sum"},
            "training": STEPS,
        },
        "DistillationTrainer": {
            "method": "distillation",
            "data": pairs,
            "tokenizer": tokenizer,
            "teacher": {"path": start, "vectors": f"{folder}/vectors"},
            "model": {
                "encoder": {**ENCODER, "hidden_size": 12},
                "generative_task": "xtr",
                "generative_weight": 0.1,
                "matching_weight": 1.0,
                "queue_size": 32,
            },
        },
        "DualMomentumTrainer": {
            "method": "dual_momentum",
            "data": pairs,
            "nli": {"train": {"path": f"{folder}/nli.tsv"}},
            "model": {
                "encoders": {"en": start, "fr": start},
                "dropout": 0.0,
                "queue_size": 32,
                "momentum": 0.9,
                "in_batch_negatives": True,
                "mask_stale_keys": False,
                "mask_duplicates": False,
                "nli_dropout": 0.0,
            },
            "training": {"nli_batch_size": 8, "warmup_steps": 0, "weight_decay": 0.0},
        },
        # Each process draws its own negative words, so the word level is left out.
        "HictlTrainer": {
            "method": "hictl",
            "data": pairs,
            "tokenizer": tokenizer,
            "model": {"encoder": ENCODER, "sentence_temperature": 0.1, "word_weight": 0.0},
        },
        "CmlmTrainer": {
            "method": "cmlm",
            "data": {**pairs, "text": text},
            "nli": nli,
            "tokenizer": tokenizer,
            "model": {"encoder": ENCODER, "projections": 3, "retrieval_normalize": True, "retrieval_scale": 20.0},
            "training": {"retrieval_batch_size": 12, "nli_batch_size": 8},
        },
        "FineTuneTrainer": {
            "method": "classification",
            "data": {"train": labelled, "dev": {"toy": {"path": f"{folder}/labelled_dev.tsv"}}, "max_length": 32},
            "task": {"texts": "single", "labels": ["calm", "red"]},
            "model": {"start": start, "dropout": 0.0, "classifier_dropout": 0.0},
            "training": STEPS,
        },
        "TranslationTrainer": {
            "method": "translation",
            "data": pairs,
            "model": {"start": start, "dropout": 0.0, "decoder_layers": 1},
        },
    }


def write_recipes(folder: Path) -> None:
    """Writes the data, the tokenizer, the encoder, and each recipe as YAML."""
    import yaml
    from conftest import make_pairs
    from translation_helpers import encoder_folder

    rows = make_pairs(96)
    encoder_folder(folder / "encoder", dropout=0.0, max_position_embeddings=48)
    shutil.copytree(
        folder / "encoder", folder / "tokenizer", ignore=shutil.ignore_patterns("*.safetensors", "config*")
    )
    for name, chosen in (("train", rows), ("dev", make_pairs(12, seed=2))):
        lines = (f"{row['source']}\t{row['target']}\n" for row in chosen)
        (folder / f"{name}.tsv").write_text("".join(lines), "utf-8")
    sentences = (f"{row['source']}\td{number // 6}\ten\n" for number, row in enumerate(rows))
    (folder / "text.tsv").write_text("text\tdocument\tlang\n" + "".join(sentences), "utf-8")
    labels = random.Random(3)
    inference = (f"{row['source']}\t{row['source']}\t{labels.randrange(3)}\n" for row in rows)
    (folder / "nli.tsv").write_text("premise\thypothesis\tlabel\n" + "".join(inference), "utf-8")
    for name, chosen in (("labelled", rows[13:]), ("labelled_dev", rows[:13])):
        classes = (f"{row['source']}\t{labels.choice(['calm', 'red'])}\ten\n" for row in chosen)
        (folder / f"{name}.tsv").write_text("text\tlabel\tlang\n" + "".join(classes), "utf-8")
    for name, recipe in recipes(folder).items():
        training = {**TRAINING, **recipe.get("training", {})}
        whole = {"languages": ["en", "fr"], **recipe, "training": training}
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(whole), "utf-8")


def run(folder: Path, name: str, output: str, *more: str, whole: bool = False) -> None:
    """Trains by one recipe and leaves log and weights in `FOLDER/OUTPUT/NAME`; every process of a launch has to call.

    `more` are options, as on the command line; `whole` evaluates and exports too, as `hf-xlsr train` does.
    """
    from accelerate import PartialState
    from rich.console import Console

    from hf_xlsr.runs.folder import RunFolder
    from hf_xlsr.runs.recipe import load_runs
    from hf_xlsr.runs.train import read_data, train_recipe

    state = PartialState(cpu=True)
    common = ["--output_dir", str(folder / output / name)]
    common += ["--per_device_train_batch_size", str(GLOBAL_BATCH // state.num_processes)]
    (method,) = load_runs(str(folder / f"{name}.yaml"), [*common, *more])
    if whole:
        train_recipe(method, Console(quiet=True))
        return
    place, sets = RunFolder(method.recipe.output_dir), method.evaluation_sets()
    arguments = method.arguments(place.training, sets)
    method.check(arguments, sets)
    with state.main_process_first():
        data = read_data(method, sets)
    trainer = method.build_trainer(arguments, data, sets)
    trainer.train()
    trainer.save_model(str(place.final))
    if state.is_main_process:
        place.log.write_text(json.dumps(trainer.state.log_history), "utf-8")


def shard_on_processors() -> None:
    """Has accelerate shard weights on processors as it does on GPUs: torch can, accelerate passes over them."""
    from accelerate import PartialState
    from accelerate.utils import DistributedType

    make = PartialState.__init__

    def pretend(self: Any, *args: Any, **kwargs: Any) -> None:
        make(self, *args, **kwargs)
        if self.distributed_type == DistributedType.MULTI_CPU:
            self.distributed_type = DistributedType.MULTI_GPU

    PartialState.__init__ = pretend


def go_back(folder: Path) -> None:
    """Leaves of a finished run what one that was killed after its first checkpoint leaves."""
    training = folder / "training"
    for path in (training / "checkpoint-4", training / "final", folder / "model"):
        shutil.rmtree(path)


def main(folder: Path) -> None:
    """All trainers under DDP, then under FSDP2; what is refused goes into `refused.json`."""
    from accelerate import PartialState

    from hf_xlsr.utils.errors import XlsrError

    state = PartialState(cpu=True)
    if state.num_processes != 2:
        raise SystemExit(f"{state.num_processes} process(es)")
    names = list(recipes(folder))
    for name in names:
        run(folder, name, "ddp")
    for name in CACHED:
        run(folder, name, "cached", "--cache_batch_size", "3")
    for name in ROWS:
        run(folder, name, "rows", "--trainable_rows", "true")
    refused = {}
    os.environ.update(ACCELERATE_USE_FSDP="true", FSDP_VERSION="2", FSDP_AUTO_WRAP_POLICY="TRANSFORMER_BASED_WRAP")
    try:
        run(folder, "HictlTrainer", "unsharded")
    except XlsrError as error:
        refused["processors"] = str(error)
    shard_on_processors()
    for name in names:
        try:
            run(folder, name, "fsdp", whole=name in WHOLE)
        except XlsrError as error:
            refused[name] = str(error)
    adam = ("--optim", "adamw_torch")  # whose averages are part of the checkpoint
    run(folder, "LightweightTrainer", "adam", *adam, whole=True)
    stopped = folder / "stopped" / "LightweightTrainer"
    if PartialState().is_main_process:
        shutil.copytree(folder / "adam" / "LightweightTrainer", stopped)
        go_back(stopped)
    PartialState().wait_for_everyone()
    for _ in range(2):  # the second time nothing is left to train
        run(folder, "LightweightTrainer", "stopped", *adam, whole=True)
    if PartialState().is_main_process:
        (folder / "refused.json").write_text(json.dumps(refused), "utf-8")
    PartialState().wait_for_everyone()
    os._exit(0)  # gloo's threads may hold up the usual way


if __name__ == "__main__":
    main(Path(sys.argv[1]))
