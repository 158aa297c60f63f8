"""What the card of a trainer's model says: facts of the model, the data and the arguments that it really used."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import MISSING, fields
from itertools import chain
from typing import Any

import numpy as np
import torch
from datasets import Dataset, IterableDataset
from langcodes import tag_is_valid
from sentence_transformers.sentence_transformer.model_card import SentenceTransformerModelCardData
from transformers import PreTrainedConfig, PreTrainedModel

from hf_xlsr.data.encoding import LABELLED, UNDETERMINED
from hf_xlsr.data.raw_rows import UNNAMED
from hf_xlsr.encoders.encoding import routes_of
from hf_xlsr.encoders.loading import finite_length
from hf_xlsr.evaluation.results import Results, with_intervals
from hf_xlsr.export.base_models import base_models_of
from hf_xlsr.export.card import code
from hf_xlsr.export.hub import is_hub_id
from hf_xlsr.export.model_card import CardFacts, DataSource, encoder_facts_of, framework_versions
from hf_xlsr.modeling.configuration import SentenceEncoderConfig
from hf_xlsr.trainers.adapters import base_model
from hf_xlsr.utils.devices import hardware_name, precision_of

UNKNOWN_START = "unknown: new weights, or an object that names no folder or model on the Hub"
UNKNOWN_SOURCE = DataSource("rows whose source and licence are unknown")
# Training arguments that a card always shows.
MAIN_ARGUMENTS = (
    "per_device_train_batch_size",
    "gradient_accumulation_steps",
    "num_train_epochs",
    "max_steps",
    "learning_rate",
    "lr_scheduler_type",
    "warmup_steps",
    "weight_decay",
)
# Starts of names of training arguments that say nothing of the model: those of one machine or one call, of logs and of
# files, and those that the card states elsewhere.
HIDDEN_ARGUMENTS = (
    *("output_dir", "run_name", "report_to", "project", "trackio", "log", "disable_tqdm", "debug", "skip_memory"),
    *("save", "hub", "push", "eval_", "per_device_eval", "include", "batch_eval", "prediction", "restore", "resume"),
    *(
        "do_",
        "dataloader",
        "ddp",
        "local_rank",
        "use_cpu",
        "accelerator_config",
        "num_proc",
        "remove_unused",
        "use_cache",
    ),
    *("seed", "precision", "bf16", "fp16", "max_length", "prompts"),
)
# Settings of a model that describe its encoder.
OF_THE_ENCODER = ("text_config", "encoder_configs", "heads", "languages")


def step_of_weights(trainer: Any) -> int:
    """The step of training that the trainer's weights are of: the best one, if it was loaded at the end."""
    state = trainer.state
    has_best = trainer.args.load_best_model_at_end and state.best_model_checkpoint and not trainer.is_in_train
    step: int = state.best_global_step if has_best else state.global_step
    return step


def trainer_facts(trainer: Any, title: str, encoder: Any = None) -> CardFacts:
    """The facts of the live model of a trainer.

    Args:
        trainer: A trainer of this package.
        title: Name of the model.
        encoder: Its export, a `SentenceTransformer`; None for a model without one.
    """
    model = base_model(trainer.accelerator.unwrap_model(trainer.model))
    config = model.config
    starts = starting_weights(model)
    makes_embeddings = trainer.args.trains_embeddings
    scores, other_scores = _scores(trainer)
    return CardFacts(
        title=title,
        method=trainer.method,
        tag=config.model_type,
        trainer=type(trainer).__name__,
        languages=_languages(trainer, config),
        dimension=config.hidden_size if encoder is None else encoder.get_embedding_dimension(),
        max_length=finite_length(encoder) or trainer.max_length,
        routes=routes_of(encoder),
        unexported=type(model).__name__ if makes_embeddings and encoder is None else "",
        text_pairs=_has_text_pairs(trainer),
        starts=list(dict.fromkeys(starts.values())),
        pretrained=bool(starts),
        base_models=base_models_of(starts.values()),
        sources=[source for rows in trainer.given_rows.values() for source in data_sources(rows)],
        training=_training_facts(trainer, model, starts),
        scores=scores,
        other_scores=other_scores,
        scores_note=_scores_note(trainer, scores, other_scores),
        comparison=trainer.changes,
        settings_title="The training arguments, and the settings of the method",
        settings={
            "training": _training_arguments(trainer.args),
            "model": method_settings(config, trainer.method.settings),
        },
        metadata=trainer.card,
        **(encoder_facts_of(config) if makes_embeddings else {}),
    )


def starting_weights(model: Any) -> dict[str, str]:
    """Folders and Hub ids that the weights of a model were loaded from, by heading; without those that name none."""
    paths = {"started from": model.name_or_path}
    encoders = getattr(model, "encoders", None) or {"": model.encoder}
    for name, encoder in encoders.items():
        heading = f"encoder of {name} made from" if len(encoders) > 1 else "encoder made from"
        paths[heading] = origin_of(encoder)
    return {heading: path for heading, path in paths.items() if path}


def origin_of(model: Any) -> str:
    """Folder or Hub id that an encoder was loaded from; empty if it names none."""
    for module in model.modules() if hasattr(model, "modules") else ():
        if isinstance(module, PreTrainedModel):
            return module.name_or_path or ""
    return ""


def data_sources(data: Any) -> Iterator[DataSource]:
    """Where data of users are from, as far as the datasets say."""
    if isinstance(data, Mapping):
        for inner in data.values():
            yield from data_sources(inner)
    elif isinstance(data, Dataset | IterableDataset):
        yield _dataset_source(data)
    else:
        yield UNKNOWN_SOURCE


def _dataset_source(dataset: Dataset | IterableDataset) -> DataSource:
    """A dataset by what it was loaded from, which sentence-transformers finds."""
    (found,) = SentenceTransformerModelCardData(local_files_only=True).infer_datasets(dataset)
    info = dataset.info
    name = found.get("id") or found.get("name")
    if not name:
        return UNKNOWN_SOURCE
    if name == info.builder_name:
        name = f"{name} files"  # which no repository names
    notes = []
    if info.config_name and info.config_name != "default":
        notes.append(info.config_name)
    if dataset.split:
        notes.append(f"split {dataset.split}")
    if "revision" in found:
        notes.append(f"revision {found['revision'][:8]}")
    notes.append(info.license or "licence unknown")
    hub_id = name if "id" in found and is_hub_id(name) else ""
    return DataSource(name, tuple(notes), hub_id=hub_id)


def rows_by_languages(data: Any) -> Counter[tuple[str, ...]]:
    """Number of converted rows in each language or language pair; empty for streams and where nothing names them."""
    counts = Counter[tuple[str, ...]]()
    for rows in getattr(data, "datasets", [data]):
        names = getattr(getattr(rows, "text", rows), "group_names", ())
        groups, sizes = np.unique(getattr(rows, "groups", ()), return_counts=True)
        for group, size in zip(groups.tolist(), sizes.tolist(), strict=True):
            counts[names[group]] += size
    return Counter({names: count for names, count in counts.items() if names not in ((UNDETERMINED,), UNNAMED)})


def _shown_rows(data: Any) -> str:
    """The number of converted rows, and of those in each language that is named."""
    if not hasattr(data, "__len__"):
        return "a stream, whose rows are not counted"
    languages = [f"{'-'.join(names)} {count:,}" for names, count in rows_by_languages(data).items()]
    return f"{len(data):,} ({', '.join(languages)})".removesuffix(" ()")


def _languages(trainer: Any, config: Any) -> list[str]:
    """The languages that the model or its training data name."""
    names = list(getattr(config, "languages", None) or ())
    for data in trainer.features.values():
        names += chain.from_iterable(rows_by_languages(data))
    return [name for name in dict.fromkeys(names) if tag_is_valid(name)]


def _has_text_pairs(trainer: Any) -> bool:
    """Whether the given rows of a classifier have two texts."""
    for rows in trainer.given_rows.values():
        while isinstance(rows, Mapping) and rows:
            rows = next(iter(rows.values()))
        columns = getattr(rows, "column_names", None) or ()
        if isinstance(rows, list) and rows:
            columns = rows[0]
        if LABELLED["pair"].columns_of(dict.fromkeys(columns)):
            return True
    return False


def _training_facts(trainer: Any, model: Any, starts: Mapping[str, str]) -> dict[str, str]:
    args = trainer.args
    facts = dict(starts) or {"started from": UNKNOWN_START}
    teacher = getattr(trainer, "teacher", None)
    if teacher is not None:
        facts["teacher"] = origin_of(teacher.encoder.encoder) or "unknown: an object without a name"
    for task, data in trainer.features.items():
        heading = "training rows" if len(trainer.features) == 1 else f"training rows of the task {task}"
        facts[heading] = _shown_rows(data)
    for name, data in trainer.eval_sets.items():
        facts[f"evaluation rows of {name}" if name else "evaluation rows"] = _shown_rows(data)

    if getattr(trainer, "class_names", None):
        facts["labels"] = ", ".join(trainer.class_names)
    if trainer.processing_class is not None:
        facts["vocabulary"] = f"{len(trainer.processing_class):,} tokens"
    facts["parameters"] = f"{model.num_parameters():,}, including those only for training"
    facts["trained parameters"] = f"{model.num_parameters(only_trainable=True):,}"

    facts |= _progress(trainer)
    facts["hardware"] = hardware_name(args.device)
    facts["seed"] = str(args.seed)
    facts["versions"] = framework_versions({})
    return facts


def _progress(trainer: Any) -> dict[str, str]:
    """How long the trainer trained: its steps, optimizer and time."""
    args = trainer.args
    state = trainer.state
    if not state.global_step:
        return {"steps": "0: the model is not trained yet"}

    steps = f"{state.global_step:,} of {max(state.global_step, state.max_steps):,}"
    if step_of_weights(trainer) != state.global_step:
        steps += f"; the weights are those of step {step_of_weights(trainer):,}, the best"
    facts = {"steps": steps}

    size = state.train_batch_size or args.train_batch_size
    facts["rows in a step"] = f"{size * args.gradient_accumulation_steps * args.world_size:,} of the first task"
    optimizer = optimizer_of(trainer)
    if optimizer:
        facts["optimizer"] = optimizer

    time = "unknown"
    for entry in state.log_history:
        if "train_runtime" in entry:
            time = f"{entry['train_runtime']:.0f} s in the last call of train"
    facts["time"] = (
        f"{time}, on {args.device.type}, {args.world_size} process(es), {torch.get_num_threads()} threads, "
        f"{precision_of(args)}"
    )
    return facts


def optimizer_of(trainer: Any) -> str:
    """Class and learning rate of the optimizer that a trainer used; empty if it made none."""
    optimizer = getattr(trainer.optimizer, "optimizer", trainer.optimizer)
    if optimizer is None:
        return ""
    rate = getattr(optimizer, "defaults", {}).get("lr", "unknown")
    return f"{type(optimizer).__name__}, learning rate {rate}"


def _scores(trainer: Any) -> tuple[Results, dict[str, float]]:
    """What `evaluate` measured of the trainer's weights: results of protocols, and other metrics."""
    step = step_of_weights(trainer)
    if step in trainer.measured:
        metrics, results = trainer.measured[step]
    else:  # before the training was resumed
        results = Results()
        metrics = {}
        for entry in trainer.state.log_history:
            if entry["step"] == step:
                metrics |= {name: value for name, value in entry.items() if name.startswith("eval_")}
    other_scores = {name: value for name, value in metrics.items() if name.removeprefix("eval_") not in results}
    return with_intervals(results), other_scores


def _scores_note(trainer: Any, scores: Results, other_scores: Mapping[str, float]) -> str:
    """What a card says of the scores as a whole, in Markdown."""
    if not scores and not other_scores:
        return "Not measured: the trainer's last weights were not evaluated."
    return (
        f"Measured by the trainer's {code('evaluate')} at step {step_of_weights(trainer):,}. Names with slashes are "
        "dataset, protocol, languages, split and metric. Whether training saw the measured texts is unknown."
    )


def _training_arguments(args: Any) -> dict[str, Any]:
    """The main training arguments, and those that differ from their defaults."""
    values = args.to_dict()
    shown = {}
    for field in fields(args):
        name = field.name
        default = field.default if field.default_factory is MISSING else field.default_factory()
        is_set = values[name] != default and bool(values[name] or default)
        if name in MAIN_ARGUMENTS or (is_set and not name.startswith(HIDDEN_ARGUMENTS)):
            shown[name] = values[name]
    shown.pop("num_train_epochs" if args.max_steps > 0 else "max_steps")
    return shown


def method_settings(config: Any, names: Collection[str]) -> dict[str, Any]:
    """The values of a method's own configuration, defaults included; of `names` only, if there are any."""
    hidden = {field.name for owner in (PreTrainedConfig, SentenceEncoderConfig) for field in fields(owner)}
    hidden.update(OF_THE_ENCODER)
    values = config.to_dict()
    settings = {}
    for field in fields(config):
        name = field.name
        is_shown = name in names if names else name not in hidden
        if is_shown and values.get(name) is not None:
            settings[name] = values[name]
    return settings
