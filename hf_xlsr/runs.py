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
from transformers import TrainerState
from transformers import logging as transformers_logging
from transformers.trainer_callback import PrinterCallback, ProgressCallback

from hf_xlsr.data.held_out import held_out_texts
from hf_xlsr.data.prepare import PreparedData, evaluation_rows
from hf_xlsr.data.sources import as_list, source_name
from hf_xlsr.errors import XlsrError
from hf_xlsr.evaluation.encoding import embed
from hf_xlsr.evaluation.plots import plot_loss_curves, plot_tsne
from hf_xlsr.evaluation.report import data_hash, results_table, save_results
from hf_xlsr.evaluation.tatoeba import tatoeba
from hf_xlsr.evaluation.xsr import xsr_both_directions
from hf_xlsr.export.card import write_card
from hf_xlsr.methods import get_method
from hf_xlsr.mining.extraction import mine_vectors
from hf_xlsr.run_folder import RunFolder
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
    """Evaluates on the rows under the protocol that the recipe names, each language pair for itself.

    `xsr` searches among the other rows' sentences and, on the test set, those of `evaluation.pool`.

    Raises:
        XlsrError: the protocol is not one of `RUN_PROTOCOLS`.
    """
    protocol = recipe["evaluation"]["protocol"]
    if protocol not in RUN_PROTOCOLS:
        raise XlsrError(f"evaluation.protocol is '{protocol}'; a recipe may use {' or '.join(RUN_PROTOCOLS)}.")
    more = as_list(recipe["evaluation"]["pool"]) if protocol == "xsr" and split == "test" else []
    pool = rows_by_languages(evaluation_rows(more, languages=recipe["languages"], split=split))
    metrics: dict[str, float] = {}
    for languages, chosen in rows_by_languages(rows).items():
        common: dict[str, Any] = {
            "languages": languages,
            "name": source_name(as_list(recipe["data"][split])[0]),
            "split": split,
            "batch_size": recipe["evaluation"]["batch_size"],
        }
        sources, targets = _sides(chosen)
        if protocol == "tatoeba":
            metrics.update(tatoeba(encoder, sources, targets, **common))
        else:
            pools = _sides([*chosen, *pool.get(languages, [])])
            metrics.update(xsr_both_directions(encoder, sources, targets, *pools, **common))
    return metrics


def rows_by_languages(rows: list[dict[str, Any]]) -> dict[tuple[str, str], list[dict[str, Any]]]:
    """Rows by their language pair, in the order in which the pairs appear."""
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault((row["source_lang"], row["target_lang"]), []).append(row)
    return groups


def _sides(rows: list[dict[str, Any]]) -> tuple[list[str], list[str]]:
    return [row["source"] for row in rows], [row["target"] for row in rows]


def build_trainer(
    recipe: Mapping[str, Any], folder: RunFolder, data: PreparedData, dev: list[dict[str, Any]]
) -> XlsrTrainer:
    """The trainer that a recipe describes, talking to the console.

    Raises:
        XlsrError: a value of the model or an argument does not fit.
    """
    evaluations = [partial(run_protocol, recipe=recipe, rows=dev, split="dev")] if dev else []
    trainer = get_method(recipe["method"]).build_trainer(recipe, folder.training, data, evaluations)
    trainer.remove_callback(ProgressCallback)
    trainer.remove_callback(PrinterCallback)
    trainer.add_callback(ConsoleCallback())
    trainer.add_callback(TrainingClockCallback())
    return trainer


def prepare_data(recipe: Mapping[str, Any], folder: Path, rows: Mapping[str, list[dict[str, Any]]]) -> PreparedData:
    """Data and tokenizers of a recipe, made in `folder` or taken from there."""
    return get_method(recipe["method"]).prepare(recipe, folder, evaluation_texts(recipe, rows))


def train_tokenizer_of(recipe: Mapping[str, Any], output: str | Path) -> str:
    """Trains the tokenizer of a recipe on its cleaned data and saves it; returns a sentence that says so.

    Raises:
        XlsrError: the method's encoders bring tokenizers of their own.
    """
    if "tokenizer" not in recipe:
        raise XlsrError(f"recipe '{recipe['name']}' trains no tokenizer: its encoders bring their own.")
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
    trainer.state = state
    if trainer.args.load_best_model_at_end and state.best_model_checkpoint:
        trainer._load_best_model()
    else:
        trainer._load_from_checkpoint(str(checkpoint))
    return True


def evaluation_texts(recipe: Mapping[str, Any], rows: Mapping[str, list[dict[str, Any]]]) -> Iterator[str]:
    """The sentences that training must not see: those of its evaluation sets and of `data.held_out`.

    Args:
        recipe: Resolved.
        rows: From `evaluation_sets`.
    """
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
    pieces = f"{report['vocab_size']:,} pieces; " if report.get("vocab_size") else ""
    console.print(
        f"[bold]{recipe['name']}[/]: {report['pairs']:,} training pairs ({gone}; {bad:,} bad lines), ", end=""
    )
    console.print(f"{pieces}{report['truncated_sides']:,} sentences over the limit were cut.")


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
    encoder = get_method(recipe["method"]).export(recipe, trainer, data, folder.model)
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
        languages, rows = next(iter(rows_by_languages(test).items()))
        _show_alignment(recipe, plots[-1], encoder, rows, languages, console)
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
    recipe: Mapping[str, Any],
    plot: Path,
    encoder: Any,
    test: list[dict[str, Any]],
    languages: tuple[str, str],
    console: Console,
) -> None:
    """Mines the test text as if its order were unknown, prints the first pairs, and plots some translations."""
    sources, targets = _sides(test)
    source_vectors = embed(encoder, sources, language=languages[0])
    target_vectors = embed(encoder, targets, language=languages[1])
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
        languages=languages,
        pairs=recipe["evaluation"]["plot_pairs"],
        seed=recipe["seed"],
    )
