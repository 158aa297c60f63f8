"""What recipes may hold: the keys of every method, and the refusal of all others and of values that do not fit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from hf_xlsr.data.sources import as_list
from hf_xlsr.runs.methods import METHODS, get_method
from hf_xlsr.runs.recipe_keys import Key, training_keys
from hf_xlsr.utils.errors import XlsrError, did_you_mean

if TYPE_CHECKING:
    from hf_xlsr.trainers.arguments import XlsrTrainingArguments

TOP_LEVEL: dict[str, Key] = {
    "name": Key(None, "of the run; that of the file when absent", ("str",)),
    "description": Key("", "a sentence, for the list of recipes and the model card"),
    "method": Key(None, "what is trained", ("str",)),
    "output_dir": Key(None, "folder of the run; outputs/NAME when absent", ("str",)),
    "seed": Key(1, "of everything that is drawn", least=0),
    "languages": Key(None, "ISO 639-1 codes", ("list", "str")),
    "data": Key({}, "what is trained and measured on"),
    "model": Key({}, "the method's configuration"),
    "training": Key({}, "the method's training arguments"),
    "evaluation": Key({}, "how the dev and test sets are measured"),
    "export": Key({}, "how the model is written"),
    "start_from": Key(None, "folder of a finished run, or of saved weights, to start from", ("str",)),
    "overwrite": Key(False, "whether a run that lies in the folder is removed first"),
}
# Read and gone before a recipe is resolved.
BEFORE: dict[str, Key] = {
    "base": Key(None, "name or path of the recipe underneath", ("str",)),
    "data_from": Key(None, "name or path of a recipe, of any method, whose `data` comes underneath", ("str",)),
    "runs": Key(None, "runs of name and set, side by side", ("list",)),
    "stages": Key(None, "runs of name and set, each from the weights of the one before", ("list",)),
}
# Those of every method; each adds its own.
SECTIONS: dict[str, dict[str, Key]] = {
    "data": {
        "train": Key(None, "what is trained on", ("source",)),
        "dev": Key(None, "what is measured on while training goes on", ("source",)),
        "test": Key(None, "what is measured on at the end", ("source",)),
        "held_out": Key([], "more sentences that training must not see", ("source",)),
        "cleaning": Key(
            ["normalize", "drop_identical", "deduplicate"], "steps, by name or as {name: options}", ("list", "mapping")
        ),
        "fraction": Key(1.0, "share of the pairs that is trained on, of the cleaned ones", above=0, most=1),
        "limit": Key(None, "at most so many pairs", ("int",), least=1),
        "max_length": Key(200, "sentences are cut here, in pieces", least=1),
    },
    "card": {
        "license": Key(None, "of the weights, as the Hub writes it", ("str",)),
        "license_name": Key(None, "its name, where `license` is other", ("str",)),
        "license_link": Key(None, "where it stands, likewise", ("str",)),
        "base_model": Key(None, "Hub ids; found out from the recipe when absent", ("list", "str")),
        "datasets": Key(None, "Hub ids, likewise", ("list", "str")),
    },
}
# Lists of runs that a recipe may stand for: side by side, or one after the other.
LISTS = {"runs": "run", "stages": "stage"}
# Arguments of transformers that no recipe holds, and why.
REFUSED_TRAINING_KEYS: dict[str, str] = {
    **dict.fromkeys(("output_dir", "seed"), "stands at the top of a recipe; move it there"),
    **dict.fromkeys(("bf16", "fp16"), "follows from training.precision; set that instead"),
    "hub_token": (
        "would stand in the run's folder and its card; leave it out and log in with `hf auth login`, or set HF_TOKEN"
    ),
    "resume_from_checkpoint": "is not needed: the same command goes on from the last checkpoint; leave it out",
    "save_only_model": (
        "would leave no state of optimiser and generators in checkpoints, from which a run goes on; leave it out"
    ),
    "ignore_data_skip": "would show a run that goes on what it saw already; leave it out",
    "dataloader_in_order": "would let a run that goes on see other batches than one that was not stopped; leave it out",
    "enable_jit_checkpoint": "is not needed: SIGTERM makes every training save a checkpoint; leave it out",
    "local_rank": "is set by launchers; leave it out",
    "parallelism_config": "is no value that YAML holds; leave it out",
    "remove_unused_columns": "is false here, where no columns are taken away; leave it out",
    **dict.fromkeys(
        ("do_train", "do_eval", "do_predict"), "is read by transformers' example scripts alone; leave it out"
    ),
    **dict.fromkeys(
        ("train_sampling_strategy", "length_column_name", "dataloader_drop_last"),
        "is for batches that Trainer draws; leave it out, ours are drawn as bucket_by_length, mixing and "
        "homogeneous_batches say",
    ),
    **dict.fromkeys(
        (
            *("prediction_loss_only", "label_names", "include_for_metrics", "batch_eval_metrics"),
            *("eval_accumulation_steps", "eval_do_concat_batches", "eval_use_gather_object"),
            *("bf16_full_eval", "fp16_full_eval"),
        ),
        "is for Trainer's own evaluation, in whose place protocols measure here; leave it out",
    ),
}


def refused_training_keys(arguments_class: type[XlsrTrainingArguments]) -> dict[str, str]:
    """Training arguments that no recipe of these arguments holds, and why.

    Example:
        >>> from hf_xlsr.trainers.arguments import XlsrTrainingArguments
        >>> "per_device_eval_batch_size" in refused_training_keys(XlsrTrainingArguments)
        True
    """
    if arguments_class.evaluates_rows:
        return REFUSED_TRAINING_KEYS
    own = "is for Trainer's own evaluation, in whose place protocols measure here; set evaluation.batch_size instead"
    return {**REFUSED_TRAINING_KEYS, "per_device_eval_batch_size": own}


def section_keys(method: object) -> dict[str, dict[str, Key]]:
    """The sections of a method's recipes but `model` and `training`: those of every method, and its own.

    Raises:
        XlsrError: there is no such method.

    Example:
        >>> section_keys("classification")["data"]["max_length"].default
        128
    """
    sections = {name: dict(keys) for name, keys in SECTIONS.items()}
    for part in reversed(type(get_method(method)).__mro__):  # a method adds to what its kind has
        for section, keys in vars(part).get("sections", {}).items():
            known = sections.setdefault(section, {})
            for name, value in keys.items():
                known[name] = value if isinstance(value, Key) else replace(known[name], default=value)
    return sections


def recipe_keys(recipe: Mapping[str, Any]) -> dict[str, dict[str, Key]]:
    """All keys that a recipe may have, by dotted section; those of the top are under an empty name.

    Args:
        recipe: Says the method, and what else decides on keys: the encoder's architecture, the languages.

    Raises:
        XlsrError: the recipe's method, or its encoder's architecture, is unknown.
    """
    name = recipe.get("method")
    if name is None:
        raise XlsrError(f"recipe '{recipe.get('name', 'recipe')}' has no 'method'; {did_you_mean('', METHODS)}")
    method, sections = get_method(name), section_keys(name)
    return {
        "": {key: value for key, value in TOP_LEVEL.items() if key not in (*sections, "model", "training")},
        **sections,
        **method.model_keys(recipe),
        "training": training_keys(method.arguments_class, frozenset(refused_training_keys(method.arguments_class))),
    }


def check_keys(recipe: Mapping[str, Any]) -> None:
    """Refuses unknown keys, naming the nearest, and values that a key does not take.

    They would fail much later, be passed over, or be taken for something else.

    Args:
        recipe: As written, or resolved.

    Raises:
        XlsrError: as said.
    """
    name = recipe.get("name", "recipe")
    for section in ("model", "data"):  # whose contents decide on what is known
        _check_mapping(name, section, recipe.get(section), ())
    arguments = _content(recipe, "training")
    known = recipe_keys(recipe)
    refused = refused_training_keys(get_method(recipe["method"]).arguments_class)
    for key in arguments if isinstance(arguments, Mapping) else ():
        if key in refused:
            raise XlsrError(f"recipe '{name}': training.{key} {refused[key]}.")
    for section, keys in known.items():
        content = _content(recipe, section)
        allowed = [*keys, *([s for s in known if s and "." not in s] if not section else [])]
        _check_mapping(name, section, content, allowed)
        for key, value in (content or {}).items():
            where = f"{section}.{key}" if section else key
            if key not in allowed:
                raise XlsrError(f"recipe '{name}': unknown key '{where}'; {did_you_mean(str(key), allowed)}")
            if key in keys and (mend := keys[key].mend(value)):
                raise XlsrError(f"recipe '{name}': {where} is {value!r}; {mend}")
    _check_sources(name, recipe)


def _content(recipe: Mapping[str, Any], section: str) -> Any:
    content: Any = recipe
    for part in section.split(".") if section else []:
        content = (content or {}).get(part) if isinstance(content, Mapping) or not content else None
    return content


def _check_mapping(name: Any, section: str, content: Any, allowed: Any) -> None:
    if content is not None and not isinstance(content, Mapping):
        keys = f": {', '.join(list(allowed)[:8])} ..." if allowed else ""
        raise XlsrError(f"recipe '{name}': '{section}' is {content!r}; it holds keys{keys or ' with values.'}")


def _check_sources(name: Any, recipe: Mapping[str, Any]) -> None:
    method = get_method(recipe["method"])
    for place, sources in method.sources(recipe).items():
        for source in as_list(sources):
            if not isinstance(source, (str, Mapping)):
                raise XlsrError(
                    f"recipe '{name}': {place} has {source!r}; a source is a corpus, a path, or keys such as path."
                )
            for key in source if isinstance(source, Mapping) else {}:
                if key not in method.source_keys:
                    raise XlsrError(
                        f"recipe '{name}': unknown key '{place}.{key}'; {did_you_mean(str(key), method.source_keys)}"
                    )
