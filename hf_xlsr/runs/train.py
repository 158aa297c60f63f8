"""Running a recipe: data, tokenizer, training, evaluation, export, plots, card."""

from __future__ import annotations

import json
import platform
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState
from rich.console import Console
from transformers import TrainerState
from transformers import logging as transformers_logging
from transformers.integrations import WandbCallback
from transformers.trainer import TRAINER_STATE_NAME

from hf_xlsr.data.held_out import remember_evaluated
from hf_xlsr.evaluation.plots import plot_loss_curves
from hf_xlsr.evaluation.report import save_results
from hf_xlsr.runs.card import write_card
from hf_xlsr.runs.folder import RunFolder
from hf_xlsr.runs.methods import get_method
from hf_xlsr.trainers.adapters import merged
from hf_xlsr.trainers.base import XlsrTrainer, last_whole_checkpoint
from hf_xlsr.trainers.callbacks import TrainingClockCallback
from hf_xlsr.trainers.sharding import gather_model
from hf_xlsr.utils.errors import XlsrError


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


def build_trainer(recipe: Mapping[str, Any], folder: RunFolder, data: Any, sets: Mapping[str, Any]) -> XlsrTrainer:
    """The trainer that a recipe describes.

    Raises:
        XlsrError: a value of the model or an argument does not fit.
    """
    method = get_method(recipe["method"])
    trainer = method.build_trainer(recipe, folder.training, data, method.evaluations(recipe, sets))
    trainer.add_callback(TrainingClockCallback())
    return trainer


def prepare_data(recipe: Mapping[str, Any], folder: Path, sets: Mapping[str, Any]) -> Any:
    """Data and tokenizers of a recipe, made in `folder` or taken from there.

    Raises:
        XlsrError: what the method raises; data made for other evaluation sets lie there.
    """
    method = get_method(recipe["method"])
    without_others = {**recipe, "data": {**recipe["data"], "held_out": None}}
    remember_evaluated(folder, method.evaluation_texts(without_others, sets))
    return method.prepare(recipe, folder, method.evaluation_texts(recipe, sets))


def train_tokenizer_of(recipe: Mapping[str, Any], output: str | Path) -> str:
    """Trains the tokenizer of a recipe on its cleaned data and saves it; returns a sentence that says so.

    Raises:
        XlsrError: the method's encoders bring tokenizers of their own.
    """
    if "tokenizer" not in recipe:
        raise XlsrError(f"recipe '{recipe['name']}' trains no tokenizer: its encoders bring their own.")
    with tempfile.TemporaryDirectory() as scratch:
        data = prepare_data(recipe, Path(scratch), get_method(recipe["method"]).evaluation_sets(recipe))
        data.tokenizer.save_pretrained(str(output))
    read = get_method(recipe["method"]).describe_data(data.report)
    return f"{data.report['vocab_size']:,} pieces, saved in {output}. {read}"


def train_recipe(recipe: Mapping[str, Any], console: Console | None = None) -> RunResult:
    """Runs a recipe to its end, going on from the last whole checkpoint of the same run.

    Args:
        recipe: From `hf_xlsr.runs.recipe.load_runs`.
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
    folder, method = RunFolder(recipe["output_dir"]), get_method(recipe["method"])
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()  # of saving and loading small models; training has its own bar
    started = time.monotonic()
    with state.main_process_first():
        sets = method.evaluation_sets(recipe)
    method.check_training(recipe, folder.training, sets)
    with state.main_process_first():
        if state.is_main_process:
            folder.claim(recipe)
        data = prepare_data(recipe, folder.training, sets)
    console.print(f"[bold]{recipe['name']}[/]: {method.describe_data(data.report)}")
    trainer = build_trainer(recipe, folder, data, sets)
    checkpoint = last_whole_checkpoint(folder.training, state.num_processes)
    _print_training(console, trainer, checkpoint)
    prepared = time.monotonic()
    if not _take_finished(trainer, folder.final, checkpoint):
        trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
        _close_reporters(trainer)
    if trainer.stopped_early and trainer.state.global_step < trainer.state.max_steps:
        console.print(
            f"Stopped at step {trainer.state.global_step:,} of {trainer.state.max_steps:,}; the checkpoint is saved and "
            "the same command goes on from there."
        )
        return RunResult(folder.path, {}, stopped=True)
    trainer.save_model(str(folder.final))
    if state.is_main_process:
        trainer.state.save_to_json(str(folder.final / TRAINER_STATE_NAME))
    if trainer.is_fsdp_enabled:
        gather_model(trainer, method.build_model(recipe, data))
    metrics: dict[str, float] = {}
    if state.is_main_process:
        seconds = {"preparing": prepared - started, "training": TrainingClockCallback.read(folder.training)}
        metrics = _finish(recipe, folder, trainer, data, sets, seconds, console)
    state.wait_for_everyone()
    return RunResult(folder.path, metrics)


def _close_reporters(trainer: XlsrTrainer) -> None:
    """Ends the run of Weights & Biases, which else would take the next run of a list for the same."""
    for callback in trainer.callback_handler.callbacks:
        if isinstance(callback, WandbCallback):
            callback._wandb.finish()


def _take_finished(trainer: XlsrTrainer, final: Path, checkpoint: Path | None) -> bool:
    """Loads what a training that is over has left; Trainer, told to resume from it, would take a step more.

    That is its last model where that is whole, as checkpoints may be older, or none; or else its last checkpoint.
    """
    ended = any(final.glob("*.safetensors"))  # also a training that stopped early by its protocol
    if ended and (final / TRAINER_STATE_NAME).is_file() and not trainer.is_fsdp_enabled:
        trainer.state = TrainerState.load_from_json(str(final / TRAINER_STATE_NAME))
        trainer._load_from_checkpoint(str(final))
        return True
    if checkpoint is None:
        return False
    state = TrainerState.load_from_json(str(checkpoint / TRAINER_STATE_NAME))
    if state.global_step < state.max_steps and not ended and not _out_of_patience(state):
        return False
    trainer.state = state
    if trainer.args.load_best_model_at_end and state.best_model_checkpoint:
        trainer._load_best_model()
    else:
        trainer._load_from_checkpoint(str(checkpoint))
    return True


def _out_of_patience(state: TrainerState) -> bool:
    """Whether early stopping ended a training that was killed before it could write its model."""
    callbacks: Any = state.stateful_callbacks  # states by name, once they have been saved
    stored = callbacks.get("EarlyStoppingCallback") or {}
    found = {**stored.get("args", {}), **stored.get("attributes", {})}
    return bool(found) and found["early_stopping_patience_counter"] >= found["early_stopping_patience"]


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
    data: Any,
    sets: Mapping[str, Any],
    seconds: dict[str, float],
    console: Console,
) -> dict[str, float]:
    """Has the method write and evaluate its model, and writes log, loss plot, results and card."""
    model = trainer.accelerator.unwrap_model(trainer.model)
    folder.record_recipe(recipe)
    finished = get_method(recipe["method"]).evaluate_and_export(recipe, folder, trainer, data, sets, console)
    if (whole := merged(model)) is not model:  # what a later run starts from; adapters alone are of no use to it
        whole.save_pretrained(folder.merged)
        if trainer.processing_class is not None:
            trainer.processing_class.save_pretrained(folder.merged)
    folder.log.write_text(json.dumps(trainer.state.log_history, indent=2), "utf-8")
    if any("loss" in entry for entry in trainer.state.log_history):  # a run shorter than logging_steps logs none
        finished.plots.insert(0, folder.path / "loss.png")
        plot_loss_curves(finished.plots[0], trainer.state.log_history)
    arguments = trainer.args
    settings = {
        "recipe": {key: value for key, value in recipe.items() if key not in ("output_dir", "processes")},
        "data": data.report,
        "steps": trainer.state.global_step,
        "seconds": {name: round(value, 1) for name, value in seconds.items()},
        "precision": "bfloat16" if arguments.bf16 else "float16" if arguments.fp16 else "float32",
        "processes": arguments.world_size,
        "device": arguments.device.type,
        "hardware": hardware_name(arguments.device),
        "threads": torch.get_num_threads(),
        "dimension": finished.dimension,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
    }
    save_results(folder.results, finished.metrics, settings=settings, data_hashes=finished.data_hashes)
    write_card(folder.card, recipe, finished.metrics, settings)
    if folder.model.is_dir():  # a model without a stock form has no export
        write_card(folder.model / "README.md", recipe, finished.metrics, settings)
        console.print(f"model    {folder.model}", markup=False)
    console.print(f"results  {folder.results}\ncard     {folder.card}", markup=False)
    console.print(f"plots    {', '.join(map(str, finished.plots)) or 'none'}", markup=False)
    return finished.metrics


def hardware_name(device: torch.device) -> str:
    """What a device is called by its maker.

    Args:
        device: Of the training.

    Example:
        >>> isinstance(hardware_name(torch.device("cpu")), str)
        True
    """
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    information = Path("/proc/cpuinfo")
    names = information.read_text("utf-8").splitlines() if information.is_file() else []
    found = (line.partition(":")[2].strip() for line in names if line.startswith("model name"))
    return next(found, "") or platform.processor() or platform.machine()
