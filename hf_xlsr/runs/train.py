"""Running a recipe: data, tokenizer, training, evaluation, export, plots, card."""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from datetime import timedelta
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from accelerate import PartialState
from rich.console import Console
from rich.markup import escape
from transformers import TrainerState
from transformers import logging as transformers_logging
from transformers.integrations.integration_utils import WandbCallback
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_utils import SaveStrategy

from hf_xlsr.data.cleaning import evaluation_keys
from hf_xlsr.data.cleaning.cost import cost_warnings
from hf_xlsr.encoders.loading import finite_length
from hf_xlsr.encoders.trainable_rows import saved_tensors
from hf_xlsr.evaluation.results import save_results
from hf_xlsr.export.model_card import encoder_facts_of
from hf_xlsr.runs.card import render_card
from hf_xlsr.runs.folder import RunFolder, read_record
from hf_xlsr.runs.inputs import check_inputs, held_out_texts
from hf_xlsr.runs.methods import METHODS
from hf_xlsr.runs.methods.base import Method, TrainingData
from hf_xlsr.runs.sending import check_push, describe_sending
from hf_xlsr.trainers.adapters import base_model, merged
from hf_xlsr.trainers.base import XlsrTrainer
from hf_xlsr.trainers.callbacks import TrainingClockCallback
from hf_xlsr.trainers.card import optimizer_of
from hf_xlsr.trainers.checkpoints import (
    DiskSizeCallback,
    checkpoints_of,
    last_whole_checkpoint,
    saved_bytes,
    tokenizer_bytes,
    weight_bytes,
)
from hf_xlsr.trainers.row_selection import rows_hint
from hf_xlsr.trainers.sharding import gather_model
from hf_xlsr.utils.console import SafeConsole
from hf_xlsr.utils.devices import hardware_name, precision_of
from hf_xlsr.utils.errors import XlsrError
from hf_xlsr.utils.extras import can_plot
from hf_xlsr.utils.files import atomic_folder, copy_file, disk_errors, write_json, write_text
from hf_xlsr.utils.hashing import address_of_rows
from hf_xlsr.utils.plugins import PLUGINS, recorded, with_plugins
from hf_xlsr.utils.seals import seal

logger = logging.getLogger(__name__)


@dataclass
class RunResult:
    """The folder of a run, its test metrics by name, and the signal that ended the training early, else 0."""

    folder: Path
    metrics: dict[str, float]
    stopped: int = 0


def read_data(method: Method, sets: Mapping[str, Any]) -> TrainingData:
    """Clean rows and tokenizers of a recipe, from the cache or made there, without any text that is measured."""
    held_out = held_out_texts(method.sources("held_out"), languages=method.recipe.languages)
    texts = chain(method.evaluation_texts(sets), held_out)
    rows = ({"text": text} for text in texts)
    data = method.read_data(evaluation_keys(rows))
    data.cleaning_cost = method.cleaning_cost()
    for warning in cost_warnings(data.cleaning_cost):
        logger.warning("%s", warning)
    return data


def prepare_recipe(method: Method) -> dict[str, Any]:
    """Cleans and tokenises the data of a recipe ahead of its training; returns their report."""
    with TemporaryDirectory() as folder:
        sets = method.evaluation_sets()
        arguments = method.arguments(Path(folder), sets)
        arguments.push_to_hub = False  # making the trainer would make the repository
        arguments.report_to = []
        method.check(arguments, sets)
        data = read_data(method, sets)
        trainer = method.build_trainer(arguments, data, sets)
    return data.report(trainer.token_counts)


def record_data(folder: Path, data: TrainingData, trainer: XlsrTrainer | None = None) -> None:
    """Writes `prepared.json`, the report and the addresses of the data in the cache, and copies of the bad lines.

    A run that is resumed must have the same data.
    """
    record = folder / "prepared.json"
    addresses = {task or "train": clean.folder.name for task, clean in data.rows.items()}
    counts: dict[str, int] = {}
    if trainer is not None:
        counts = trainer.token_counts
        for task, features in trainer.features.items():
            addresses[f"{task} tokens"] = fingerprint_of(features)

    stored_addresses: dict[str, str] = {}
    if record.is_file():
        stored_addresses = read_record(record).get("cache", {})
    all_addresses = {**addresses, **stored_addresses}
    if any(all_addresses[key] != address for key, address in addresses.items()):
        raise XlsrError(
            f"the data of {folder} were prepared from other files, tokenizers, options or dev and test sets; start again "
            "with --overwrite true or in another --output_dir."
        )

    folder.mkdir(parents=True, exist_ok=True)
    for task, clean in data.rows.items():
        bad_lines = clean.folder / "rejected.jsonl"
        if bad_lines.is_file():
            name = f"rejected_{task}" if task else "rejected"
            copy_file(bad_lines, folder / f"{name}.jsonl")
    write_json(record, {**data.report(counts), "cache": all_addresses})


def fingerprint_of(features: Any) -> str:
    """The address of converted rows, of one dataset or several."""
    if hasattr(features, "datasets"):
        return "-".join(map(fingerprint_of, features.datasets))
    return address_of_rows(getattr(features, "text", features).rows)


def train_recipe(method: Method, console: Console | None = None, *, push: bool = False) -> RunResult:
    """Trains, evaluates and exports by a recipe, resuming from the last complete checkpoint of the same run.

    If a signal stopped it early, nothing is exported.

    Args:
        method: A recipe, bound to its method.
        console: Where results are printed.
        push: Whether the recipe may push to the Hub (`training.push_to_hub`).

    Raises:
        XlsrError: The recipe pushes, and may not; inputs are missing; the folder holds something else.
    """
    if not push:
        check_push([method.recipe], allowed=False)
    # Other processes wait longer than the usual time-out while the first prepares data and, at the end, evaluates.
    state = PartialState(cpu=not torch.accelerator.is_available(), timeout=timedelta(days=2))
    # The number of processes changes what an epoch draws; a run cannot resume with another.
    settings = {**method.recipe.settings(), "processes": state.num_processes}
    # Soft wrap: sentences and paths can be searched and copied.
    console = console or SafeConsole(quiet=not state.is_main_process, soft_wrap=True)
    sending = describe_sending(method.recipe)
    if sending:
        console.print(sending, markup=False)
    folder = RunFolder(method.recipe.output_dir)
    method.check_complete()
    check_inputs([method])
    with recorded() as plugins, folder.locked() if state.is_main_process else nullcontext():
        METHODS.find("method", method.recipe.method)
        return _train(method, settings, plugins, folder, state, console)


def _train(
    method: Method,
    settings: Mapping[str, Any],
    plugins: Mapping[str, str],
    folder: RunFolder,
    state: PartialState,
    console: Console,
) -> RunResult:
    transformers_logging.set_verbosity_error()
    # Of saving and loading small models; training has its own bar.
    transformers_logging.disable_progress_bar()
    started = time.monotonic()

    with state.main_process_first():
        sets = method.evaluation_sets()
    arguments = method.arguments(folder.training, sets)
    method.check(arguments, sets)

    with state.main_process_first():
        run_folder = folder.training
        if state.is_main_process:
            run_folder = folder.reserve(settings)
        data = read_data(method, sets)
        if state.is_main_process:
            record_data(run_folder, data)
            if run_folder == folder.preparing:
                folder.claim(with_plugins(settings, plugins))

    trainer = method.build_trainer(arguments, data, sets)
    if state.is_main_process:
        record_data(folder.training, data, trainer)

    described = method.describe_data(data.report(trainer.token_counts))
    console.print(f"[bold]{escape(method.recipe.name)}[/]: {escape(described)}")
    trainer.add_callback(TrainingClockCallback())

    checkpoint = last_whole_checkpoint(folder.training, state.num_processes)
    _print_training(console, trainer, checkpoint)
    prepared = time.monotonic()

    is_saved = folder.trained
    is_finished = _take_finished(trainer, folder, checkpoint, is_saved=is_saved)
    if not is_finished and not _trains_to_the_end(trainer, checkpoint):
        has_state = not trainer.args.save_only_model
        then = "the same command resumes from it" if has_state else "`save_only_model` left out what a resume needs"
        console.print(
            f"Stopped at step {trainer.state.global_step:,} of {trainer.state.max_steps:,}; the checkpoint is saved, and "
            f"{then}."
        )
        return RunResult(folder.path, {}, stopped=trainer.stop_signal)

    if not (is_finished and is_saved):
        _save_final(trainer, folder.final)
    if state.is_main_process:
        folder.share_final()
    if trainer.is_fsdp_enabled:
        gather_model(trainer, method.build_model(data))

    metrics: dict[str, float] = {}
    if state.is_main_process:
        seconds = {"preparing": prepared - started, "training": TrainingClockCallback.read(folder.training)}
        recipe = with_plugins(settings, plugins)
        metrics = _finish(method, recipe, folder, trainer, data, sets, seconds, console)

    state.wait_for_everyone()
    return RunResult(folder.path, metrics)


def _trains_to_the_end(trainer: XlsrTrainer, checkpoint: Path | None) -> bool:
    """Trains, from a checkpoint if there is one; False if a signal ended it."""
    try:
        trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    except KeyboardInterrupt:
        if not trainer.stopped_early:
            raise
        return False
    finally:
        _close_reporters(trainer)
    return True


def _close_reporters(trainer: XlsrTrainer) -> None:
    """Ends the run of Weights & Biases, which would otherwise continue with the next run of a list."""
    if any(isinstance(callback, WandbCallback) for callback in trainer.callback_handler.callbacks):
        import wandb

        wandb.finish()


def _save_final(trainer: XlsrTrainer, final: Path) -> None:
    """Saves the final model, and at last the state of its training."""
    if trainer.is_world_process_zero():
        shutil.rmtree(final, ignore_errors=True)  # its weights may be a file of a checkpoint too
    with disk_errors(final):
        trainer.save_model(str(final))
    if trainer.is_world_process_zero():
        trainer.state.save_to_json(str(final / TRAINER_STATE_NAME))
        seal(final)


def _take_finished(trainer: XlsrTrainer, folder: RunFolder, checkpoint: Path | None, *, is_saved: bool) -> bool:
    """Loads the result of a finished training: its final model if complete, else its last checkpoint.

    Trainer, resuming from it, would take one more step.
    """
    final = folder.final
    # Also a training that stopped early by its protocol; its end is in the newest checkpoint, if that is whole.
    ended = any(final.glob("*.safetensors")) and checkpoint in checkpoints_of(folder.training)[:1]
    if is_saved and not trainer.is_fsdp_enabled:
        trainer.state = TrainerState.load_from_json(str(final / TRAINER_STATE_NAME))
        trainer.load_checkpoint(final)
        return True

    if checkpoint is None:
        return False
    state = TrainerState.load_from_json(str(checkpoint / TRAINER_STATE_NAME))
    if state.global_step < state.max_steps and not ended and not _out_of_patience(state):
        return False

    trainer.state = state
    if trainer.args.load_best_model_at_end and state.best_model_checkpoint:
        trainer.load_best_checkpoint()
    else:
        trainer.load_checkpoint(checkpoint)
    return True


def _out_of_patience(state: TrainerState) -> bool:
    """Whether early stopping ended a training that was killed before it could write its model."""
    callbacks: Any = state.stateful_callbacks  # states by name, once they have been saved
    stored = callbacks.get("EarlyStoppingCallback")
    if not stored:
        return False
    evaluations: int = stored["attributes"]["early_stopping_patience_counter"]
    return evaluations >= int(stored["args"]["early_stopping_patience"])


def _print_training(console: Console, trainer: XlsrTrainer, checkpoint: Path | None) -> None:
    size = num_parameters(trainer.model) / 1e6
    devices = f"{trainer.args.world_size} process(es) on {trainer.args.device.type}"
    resumed = f", resuming from {checkpoint.name}" if checkpoint else ""
    console.print(f"{size:.1f} M parameters, {precision_of(trainer.args)}, {devices}{resumed}")
    hint = rows_hint(trainer)
    if hint:
        console.print(hint)
    trainer.pop_callback(DiskSizeCallback)
    trainer.callback_handler.callbacks.insert(0, DiskSizeCallback(trainer, console.print, results_bytes(trainer)))


def results_bytes(trainer: XlsrTrainer) -> int:
    """Bytes of the model that a run writes after training, and of the final weights that no checkpoint has."""
    model: Any = trainer.accelerator.unwrap_model(trainer.model)
    tokenizers = tokenizer_bytes(trainer)
    exported = trainer.live_encoder() if trainer.args.trains_embeddings else base_model(model)
    size = weight_bytes(exported) + tokenizers
    if base_model(model) is not model:  # merged adapters
        size += weight_bytes(base_model(model)) + tokenizers
    if trainer.args.save_strategy == SaveStrategy.NO:
        size += saved_bytes(trainer)
    return size


def num_parameters(model: torch.nn.Module) -> int:
    return sum(tensor.numel() for _, tensor in saved_tensors(model) if isinstance(tensor, torch.nn.Parameter))


def _finish(
    method: Method,
    recipe: Mapping[str, Any],
    folder: RunFolder,
    trainer: XlsrTrainer,
    data: TrainingData,
    sets: Mapping[str, Any],
    seconds: dict[str, float],
    console: Console,
) -> dict[str, float]:
    model = trainer.accelerator.unwrap_model(trainer.model)
    folder.record_recipe(recipe)
    finished = method.evaluate_and_export(folder, trainer, data, sets, console)

    merged_model = merged(model)
    if merged_model is not model:  # later runs start from merged weights
        with atomic_folder(folder.merged, merge=True) as partial:
            merged_model.save_pretrained(partial)
            trainer.save_tokenizers(partial)

    write_json(folder.log, trainer.state.log_history)
    # A run shorter than logging_steps logs no loss.
    if any("loss" in entry for entry in trainer.state.log_history) and can_plot():
        from hf_xlsr.evaluation.plots import plot_curves

        finished.plots.insert(0, folder.path / "loss.png")
        plot_curves(finished.plots[0], trainer.learning_curve())

    arguments = trainer.args
    encoder = trainer.live_encoder() if arguments.trains_embeddings else None
    settings = {
        "recipe": {key: value for key, value in recipe.items() if key not in ("output_dir", "processes", PLUGINS)},
        "data": {**data.report(trainer.token_counts), **finished.facts},
        "steps": trainer.state.global_step,
        "seconds": {name: round(value, 1) for name, value in seconds.items()},
        "optimizer": optimizer_of(trainer),
        "precision": precision_of(arguments),
        "processes": arguments.world_size,
        "device": arguments.device.type,
        "hardware": hardware_name(arguments.device),
        "threads": torch.get_num_threads(),
        "dimension": finished.dimension,
        "max_length": finite_length(encoder) or trainer.max_length,
        **encoder_facts_of(model.config),
        "parameters": num_parameters(model),
        "plots": [plot.name for plot in finished.plots],
    }
    if PLUGINS in recipe:
        settings[PLUGINS] = recipe[PLUGINS]
    if finished.comparison:
        settings["comparison"] = {key: asdict(change) for key, change in finished.comparison.items()}

    metrics = finished.metrics
    save_results(
        folder.results,
        metrics,
        settings=settings,
        data_hashes=finished.data_hashes,
        predictions=bool(metrics.outcomes),
    )

    card = render_card(method, metrics, settings)
    write_text(folder.card, card)

    outputs = [folder.results, folder.card, *finished.plots]
    if folder.model.is_dir():  # a model without stock modules has no export
        write_text(folder.model / "README.md", card)
        outputs.insert(0, folder.model)
    for output in outputs:
        console.print(output, markup=False, highlight=False)
    return metrics
