"""Data of mteb's tasks as rows with our columns."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import mteb
from mteb.abstasks import AbsTask

from hf_xlsr.data.splits import split_name
from hf_xlsr.evaluation.input_languages import key_languages
from hf_xlsr.utils.errors import XlsrError, error_line

Row = dict[str, Any]


def mteb_task(name: str) -> Any:
    """One of mteb's tasks, without its data.

    Raises:
        XlsrError: mteb has no such task.
    """
    try:
        return mteb.get_task(name)
    except KeyError as error:
        raise XlsrError(f"mteb task {error.args[0].removeprefix('KeyError: ')}") from error


def load_task(task: AbsTask) -> None:
    """Loads the data of one of mteb's tasks, from the Hub or its cache on this machine.

    Raises:
        XlsrError: they cannot be loaded.
    """
    if task.data_loaded:
        return
    try:
        task.load_data()
    except (OSError, ValueError, RuntimeError) as error:
        reason = error_line(error, 200)
        raise XlsrError(f"Could not load the data of mteb's task {task.metadata.name}: {reason}") from error


def mteb_rows(task_name: str, *, subsets: Sequence[str] | None = None, split: str | None = None) -> Iterator[Row]:
    """The rows of one of mteb's tasks, with our columns.

    Languages are named by their codes; where a task has two kinds of one language (`zho-Hans`, `zho-Hant`), by its
    tags. The columns of bitext are in the languages of the subset's name, in this order, as the tasks document it.

    Args:
        task_name: As mteb calls it, for instance `Tatoeba`, `STSBenchmark`, `XNLI`.
        subsets: As mteb calls them, for instance `deu-eng`; all by default.
        split: A split of the data, `dev` for any name of it. By default, of those that mteb evaluates on, `test` or the
            first; of classification all of them and the one it trains on.

    Returns:
        Bitext: `source`, `target`, `source_lang`, `target_lang`. STS: `sentence1`, `sentence2`, `score`, `lang`. Pair
        classification: `sentence1`, `sentence2`, `label`, `lang`. Classification: `text`, `label`, `lang`, `split`.
        The `lang` of a pair in two languages is both, `en+de`.

    Raises:
        XlsrError: mteb has no such task, or one of another type; the task has no such subset or split; or its data
            cannot be loaded.
    """
    task = mteb_task(task_name)
    reader = _READERS.get(task.metadata.type)
    unknown = set(subsets or ()) - set(task.hf_subsets)
    if reader is None or unknown:
        what = f"type {task.metadata.type} is unsupported" if reader is None else f"no subset {', '.join(unknown)}"
        raise XlsrError(f"Cannot read rows of mteb's task {task_name}: {what}.")
    # Only these are downloaded, where the Hub keeps them apart.
    task.hf_subsets = list(subsets or task.hf_subsets)
    load_task(task)
    tags = [tag for langs in task.metadata.hf_subsets_to_langscripts.values() for tag in langs]
    names = key_languages(dict.fromkeys(tags))
    parts = list(_parts(task, split))
    return (row for subset, part, data in parts for row in reader(task, subset, part, data, names))


def _parts(task: Any, split: str | None) -> Iterator[tuple[str, str, Any]]:
    """Subset, split and table of each part of the data that is wanted."""
    for subset in task.hf_subsets:
        together = getattr(task, "parallel_subsets", False) or (subset == "default" and subset not in task.dataset)
        tables = task.dataset if together else task.dataset.get(subset, {})
        if split is None:
            wanted = [name for name in _usual_splits(task) if name in tables]
        else:
            wanted = [split] if split in tables else [name for name in tables if split_name(name) == split_name(split)]
        if not wanted:
            raise XlsrError(
                f"Subset '{subset}' of mteb's task {task.metadata.name} has no split "
                f"'{split or _usual_splits(task)[0]}', only {', '.join(tables) or 'none'}."
            )
        for name in wanted:
            yield subset, name, tables[name]


def _usual_splits(task: Any) -> list[str]:
    tested = list(task.metadata.eval_splits)
    if task.metadata.type == "Classification":
        return list(dict.fromkeys([task.train_split, *tested]))
    return ["test"] if "test" in tested else tested[:1]


def _bitext(task: Any, subset: str, _: str, data: Any, names: dict[str, str]) -> Iterator[Row]:
    columns = subset.split("-") if task.parallel_subsets else ("sentence1", "sentence2")
    sources, targets = (data[column] for column in columns)
    if isinstance(data, dict) and "gold" in data:
        # The first BUCC also has targets without a source.
        targets = [targets[target] for _, target in data["gold"]]
    tags = task.metadata.hf_subsets_to_langscripts[subset]
    languages = names[tags[0]], names[tags[1 if len(tags) > 1 else 0]]
    for source, target in zip(sources, targets, strict=True):
        yield {"source": source, "target": target, "source_lang": languages[0], "target_lang": languages[1]}


def _sts(task: Any, subset: str, _: str, data: Any, names: dict[str, str]) -> Iterator[Row]:
    language = _language(task, subset, names)
    columns = (data[column] for column in (*task.column_names, "score"))
    for first, second, score in zip(*columns, strict=True):
        yield {"sentence1": first, "sentence2": second, "score": float(score), "lang": language}


def _pairs(task: Any, subset: str, _: str, data: Any, names: dict[str, str]) -> Iterator[Row]:
    language = _language(task, subset, names)
    if len(data) == 1 and isinstance(data[0][task.label_column_name], list):
        data = data[0]  # older tasks keep each column as one list
    columns = (data[name] for name in (task.input1_column_name, task.input2_column_name, task.label_column_name))
    for first, second, label in zip(*columns, strict=True):
        yield {"sentence1": first, "sentence2": second, "label": label, "lang": language}


def _texts(task: Any, subset: str, split: str, data: Any, names: dict[str, str]) -> Iterator[Row]:
    language = _language(task, subset, names)
    for text, label in zip(data[task.input_column_name], data[task.label_column_name], strict=True):
        yield {"text": text, "label": label, "lang": language, "split": split}


_READERS: dict[str, Callable[[Any, str, str, Any, dict[str, str]], Iterator[Row]]] = {
    "BitextMining": _bitext,
    "STS": _sts,
    "PairClassification": _pairs,
    "Classification": _texts,
}


def _language(task: Any, subset: str, names: dict[str, str]) -> str:
    tags = task.metadata.hf_subsets_to_langscripts[subset]
    return "+".join(dict.fromkeys(names[tag] for tag in tags))  # no language tag has a plus sign
