"""Running a recipe: data, tokenizer, training, evaluation, export, plots, card."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState
from rich.console import Console
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModel, TrainerState
from transformers import logging as transformers_logging
from transformers.trainer_callback import PrinterCallback, ProgressCallback

from hf_xlsr.data.held_out import held_out_texts
from hf_xlsr.data.prepare import PreparedData, evaluation_rows, prepare
from hf_xlsr.data.sources import as_list, source_name
from hf_xlsr.errors import XlsrError
from hf_xlsr.evaluation.encoding import embed
from hf_xlsr.evaluation.plots import plot_loss_curves, plot_tsne
from hf_xlsr.evaluation.report import data_hash, results_table, save_results
from hf_xlsr.evaluation.tatoeba import tatoeba
from hf_xlsr.evaluation.xsr import xsr_both_directions
from hf_xlsr.export import export_sentence_transformer
from hf_xlsr.export.card import write_card
from hf_xlsr.mining.extraction import mine_vectors
from hf_xlsr.modeling.lightweight import LightweightConfig, LightweightDualTransformer
from hf_xlsr.modeling.lightweight.configuration_lightweight import paper_encoder_config
from hf_xlsr.run_folder import RunFolder
from hf_xlsr.trainers import LightweightTrainer, LightweightTrainingArguments
from hf_xlsr.trainers.base import XlsrTrainer, last_whole_checkpoint
from hf_xlsr.trainers.callbacks import TrainingClockCallback
from hf_xlsr.trainers.console import ConsoleCallback

RUN_PROTOCOLS = ("tatoeba", "xsr")


@dataclass
class RunResult:
    """What a run left.

    Args:
        folder: Its folder.
        metrics: Test metrics by name; empty without a test set.
        stopped: Whether a signal ended the training before its last step.
    """

    folder: Path
    metrics: dict[str, float]
    stopped: bool = False


def evaluation_sets(recipe: Mapping[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """The rows of `data.dev` and `data.test`."""
    return {
        split: evaluation_rows(as_list(recipe["data"][split]), languages=recipe["languages"], split=split)
        for split in ("dev", "test")
    }


def run_protocol(encoder: Any, recipe: Mapping[str, Any], rows: list[dict[str, Any]], split: str) -> dict[str, float]:
    """Evaluates on the rows under the protocol that the recipe names.

    `xsr` searches among the other rows' sentences and, on the test set, those of `evaluation.pool`.

    Raises:
        XlsrError: the protocol is not one of `RUN_PROTOCOLS`.
    """
    protocol = recipe["evaluation"]["protocol"]
    common: dict[str, Any] = {
        "languages": tuple(recipe["languages"][:2]),
        "name": source_name(as_list(recipe["data"][split])[0]),
        "split": split,
        "batch_size": recipe["evaluation"]["batch_size"],
    }
    sources, targets = [row["source"] for row in rows], [row["target"] for row in rows]
    if protocol == "tatoeba":
        return tatoeba(encoder, sources, targets, **common)
    if protocol == "xsr":
        more = as_list(recipe["evaluation"]["pool"]) if split == "test" else []
        pool = [*rows, *evaluation_rows(more, languages=recipe["languages"], split=split)]
        pools = [row["source"] for row in pool], [row["target"] for row in pool]
        return xsr_both_directions(encoder, sources, targets, *pools, **common)
    raise XlsrError(f"evaluation.protocol is '{protocol}'; a recipe may use {' or '.join(RUN_PROTOCOLS)}.")


def build_model(recipe: Mapping[str, Any], data: PreparedData) -> LightweightDualTransformer:
    """The model that a recipe describes, on the vocabulary of its data.

    Raises:
        XlsrError: a value does not fit, or the positions are fewer than `data.max_length`.
    """
    options = dict(recipe["model"])
    encoder = dict(options.pop("encoder", None) or {})
    path, kind = encoder.pop("path", None), encoder.pop("model_type", "bert")
    try:
        if path:
            text_config = AutoConfig.from_pretrained(path, **encoder)
        else:
            sizes = {"vocab_size": len(data.tokenizer), "pad_token_id": data.tokenizer.pad_token_id, **encoder}
            text_config = paper_encoder_config(**sizes) if kind == "bert" else AutoConfig.for_model(kind, **sizes)
        config = LightweightConfig(text_config=text_config, **options)
    except OSError:
        raise XlsrError(f"model.encoder.path '{path}' holds no encoder that loads; check it.") from None
    except (TypeError, ValueError) as error:
        detail = " ".join(str(error).split())
        raise XlsrError(f"recipe '{recipe['name']}', model: {detail}") from None
    positions = getattr(text_config, "max_position_embeddings", None)
    if positions is not None and positions < recipe["data"]["max_length"]:
        raise XlsrError(
            f"data.max_length is {recipe['data']['max_length']} pieces but the encoder has {positions} positions; lower "
            "the one or raise model.encoder.max_position_embeddings."
        )
    if len(data.tokenizer) > text_config.vocab_size:
        raise XlsrError(
            f"the tokenizer has {len(data.tokenizer):,} pieces but the encoder {text_config.vocab_size:,}; give "
            "tokenizer.path and model.encoder.path that belong together."
        )
    model = LightweightDualTransformer(config)
    if path:
        missing, _ = model.encoder.load_state_dict(AutoModel.from_pretrained(path).state_dict(), strict=False)
        if missing:
            raise XlsrError(f"'{path}' lacks weights of the encoder ({missing[0]}, ...); give a whole checkpoint.")
    return model


def build_trainer(
    recipe: Mapping[str, Any], folder: RunFolder, data: PreparedData, dev: list[dict[str, Any]]
) -> XlsrTrainer:
    """The trainer that a recipe describes.

    Raises:
        XlsrError: an argument does not fit.
    """
    options = {"disable_tqdm": None, "report_to": "none", **recipe["training"]}
    if not dev:
        options["eval_strategy"] = "no"
    try:
        arguments = LightweightTrainingArguments(
            output_dir=str(folder.training), seed=recipe["seed"], **{k: v for k, v in options.items() if v is not None}
        )
    except (TypeError, ValueError) as error:
        raise XlsrError(f"recipe '{recipe['name']}', training: {' '.join(str(error).split())}") from None
    torch.manual_seed(recipe["seed"])
    trainer = LightweightTrainer(
        build_model(recipe, data),
        arguments,
        train_dataset=data.train,
        processing_class=data.tokenizer,
        max_length=recipe["data"]["max_length"],
        evaluations=[partial(run_protocol, recipe=recipe, rows=dev, split="dev")] if dev else [],
    )
    trainer.remove_callback(ProgressCallback)
    trainer.remove_callback(PrinterCallback)
    trainer.add_callback(ConsoleCallback())
    trainer.add_callback(TrainingClockCallback())
    return trainer


def prepare_data(recipe: Mapping[str, Any], folder: Path, rows: Mapping[str, list[dict[str, Any]]]) -> PreparedData:
    """Data and tokenizer of a recipe, made in `folder` or taken from there."""
    return prepare(
        data=recipe["data"],
        tokenizer=recipe["tokenizer"],
        languages=recipe["languages"],
        evaluation_texts=_evaluation_texts(recipe, rows),
        folder=folder,
        seed=recipe["seed"],
    )


def train_tokenizer_of(recipe: Mapping[str, Any], output: str | Path) -> str:
    """Trains the tokenizer of a recipe on its cleaned data and saves it; returns a sentence that says so."""
    with tempfile.TemporaryDirectory() as scratch:
        data = prepare_data(recipe, Path(scratch), evaluation_sets(recipe))
        data.tokenizer.save_pretrained(str(output))
    return f"{data.report['vocab_size']:,} pieces from {data.report['pairs']:,} pairs, saved in {output}."


def train_recipe(recipe: Mapping[str, Any], console: Console | None = None) -> RunResult:
    """Runs a recipe to its end, going on from the last whole checkpoint of the same run.

    Args:
        recipe: From `hf_xlsr.recipe.load_runs`.
        console: Where tables are printed; standard output when absent.

    Returns:
        Folder and test metrics; `stopped` when a signal ended it early, in which case nothing is exported.

    Raises:
        XlsrError: for every mistake in the recipe or its data.
    """
    # Other processes wait while the first prepares data and, at the end, evaluates: longer than the usual time-out.
    state = PartialState(cpu=not torch.accelerator.is_available(), timeout=timedelta(days=2))
    # The number of processes changes what an epoch draws; a run cannot go on with another.
    recipe = {**recipe, "processes": state.num_processes}
    # Soft wrap: sentences and paths stay whole for those who search or copy them.
    console = console or Console(quiet=not state.is_main_process, soft_wrap=True)
    folder = RunFolder(recipe["output_dir"])
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()  # of saving and loading small models; training has its own bar
    started = time.monotonic()
    with state.main_process_first():
        if state.is_main_process:
            folder.claim(recipe)
        rows = evaluation_sets(recipe)
        data = prepare_data(recipe, folder.training, rows)
    _print_data(console, recipe, data)
    trainer = build_trainer(recipe, folder, data, rows["dev"])
    checkpoint = last_whole_checkpoint(folder.training, state.num_processes)
    _print_training(console, trainer, checkpoint)
    prepared = time.monotonic()
    if not (checkpoint and _take_finished(trainer, checkpoint)):
        trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    if trainer.stopped_early and trainer.state.global_step < trainer.state.max_steps:
        console.print(
            f"Stopped at step {trainer.state.global_step:,} of {trainer.state.max_steps:,}; the checkpoint is saved and "
            "the same command goes on from there."
        )
        return RunResult(folder.path, {}, stopped=True)
    trainer.save_model(str(folder.final))
    metrics: dict[str, float] = {}
    if state.is_main_process:
        seconds = {"preparing": prepared - started, "training": TrainingClockCallback.read(folder.training)}
        metrics = _finish(recipe, folder, trainer, data, rows["test"], seconds, console)
    state.wait_for_everyone()
    return RunResult(folder.path, metrics)


def _take_finished(trainer: XlsrTrainer, checkpoint: Path) -> bool:
    """Loads a checkpoint of the last step as it is; Trainer, told to resume from it, would take one step more."""
    state = TrainerState.load_from_json(str(checkpoint / "trainer_state.json"))
    if state.global_step < state.max_steps:
        return False
    trainer.model.load_state_dict(load_file(checkpoint / "model.safetensors"))
    trainer.state = state
    return True


def _evaluation_texts(recipe: Mapping[str, Any], rows: Mapping[str, list[dict[str, Any]]]) -> Iterator[str]:
    for split in ("dev", "test"):
        for row in rows[split]:
            yield row["source"]
            yield row["target"]
    yield from held_out_texts(as_list(recipe["data"]["held_out"]), languages=recipe["languages"])


def _print_data(console: Console, recipe: Mapping[str, Any], data: PreparedData) -> None:
    report = data.report
    removed = {
        step: counts["in"] - counts["out"]
        for step, counts in report["cleaning"].items()
        if counts["in"] > counts["out"]
    }
    gone = ", ".join(f"{step} removed {count:,}" for step, count in removed.items()) or "nothing removed"
    bad = sum(report["rejected"].values())
    console.print(
        f"[bold]{recipe['name']}[/]: {report['pairs']:,} training pairs ({gone}; {bad:,} bad lines), ", end=""
    )
    console.print(f"{report['vocab_size']:,} pieces; {report['truncated_sides']:,} sentences over the limit were cut.")


def _print_training(console: Console, trainer: XlsrTrainer, checkpoint: Path | None) -> None:
    arguments = trainer.args
    precision = "bfloat16 autocast" if arguments.bf16 else "float16 autocast" if arguments.fp16 else "float32"
    size = sum(parameter.numel() for parameter in trainer.model.parameters()) / 1e6
    console.print(
        f"{size:.1f} M parameters, {precision}, {arguments.world_size} process(es) on {arguments.device.type}"
        + (f", going on from {checkpoint.name}" if checkpoint else "")
    )


def _finish(
    recipe: Mapping[str, Any],
    folder: RunFolder,
    trainer: XlsrTrainer,
    data: PreparedData,
    test: list[dict[str, Any]],
    seconds: dict[str, float],
    console: Console,
) -> dict[str, float]:
    """Exports, evaluates the export as loaded from its folder, plots, and writes results and card."""
    model = trainer.accelerator.unwrap_model(trainer.model)
    encoder = export_sentence_transformer(
        model.encoder,
        data.tokenizer,
        folder.model,
        pooling=model.config.pooling,
        normalize=recipe["export"]["normalize"],
        max_length=recipe["data"]["max_length"],
    )
    folder.log.write_text(json.dumps(trainer.state.log_history, indent=2), "utf-8")
    plots = []
    if any("loss" in entry for entry in trainer.state.log_history):  # a run shorter than logging_steps logs none
        plots.append(folder.path / "loss.png")
        plot_loss_curves(plots[-1], trainer.state.log_history)
    metrics: dict[str, float] = {}
    if test:
        metrics = run_protocol(encoder, recipe, test, "test")
        console.print(results_table(metrics, title=f"{recipe['name']}: test"))
        plots.append(folder.path / "tsne.png")
        _show_alignment(recipe, plots[-1], encoder, test, console)
    arguments = trainer.args
    settings = {
        "recipe": {key: value for key, value in recipe.items() if key not in ("output_dir", "processes")},
        "data": data.report,
        "steps": trainer.state.global_step,
        "seconds": {name: round(value, 1) for name, value in seconds.items()},
        "precision": "bfloat16" if arguments.bf16 else "float16" if arguments.fp16 else "float32",
        "processes": arguments.world_size,
        "device": arguments.device.type,
        "threads": torch.get_num_threads(),
        "dimension": model.config.hidden_size,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
    }
    hashes = {"test": data_hash(text for row in test for text in (row["source"], row["target"]))}
    save_results(folder.results, metrics, settings=settings, data_hashes=hashes)
    write_card(folder.card, recipe, metrics, settings)
    write_card(folder.model / "README.md", recipe, metrics, settings)
    console.print(f"model    {folder.model}\nresults  {folder.results}\ncard     {folder.card}")
    console.print(f"plots    {', '.join(map(str, plots)) or 'none'}")
    return metrics


def _show_alignment(
    recipe: Mapping[str, Any], plot: Path, encoder: Any, test: list[dict[str, Any]], console: Console
) -> None:
    """Mines the test text as if its order were unknown, prints the first pairs, and plots some translations."""
    sources, targets = [row["source"] for row in test], [row["target"] for row in test]
    source_vectors, target_vectors = embed(encoder, sources), embed(encoder, targets)
    mined = mine_vectors(source_vectors, target_vectors, k=4)
    shown = zip(mined.source, mined.target, mined.score, strict=True)
    for source, target, score in islice(shown, recipe["evaluation"]["mined_pairs"]):
        right = "right" if targets[target] == targets[source] else "wrong"
        console.print(f"mined, margin {score:.2f} ({right})", style="bold", highlight=False)
        for text in (sources[source], targets[target]):
            console.print(f"  {text}", highlight=False, markup=False)
    plot_tsne(
        plot,
        source_vectors,
        target_vectors,
        sources,
        targets,
        languages=tuple(recipe["languages"][:2]),
        pairs=recipe["evaluation"]["plot_pairs"],
        seed=recipe["seed"],
    )
