"""Data of mteb's tasks as rows with our columns; mteb is an optional extra and is imported when it is needed."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from hf_xlsr.data.columns import split_name
from hf_xlsr.evaluation.languages import metric_languages
from hf_xlsr.utils.errors import XlsrError, did_you_mean, error_line

Row = dict[str, Any]


def require_mteb() -> Any:
    """The package mteb.

    Raises:
        XlsrError: it is not installed.
    """
    try:
        import mteb
    except ModuleNotFoundError as error:
        if error.name != "mteb":
            raise
        raise XlsrError("mteb is not installed; install it with `pip install 'hf-xlsr[mteb]'`.") from error
    return mteb


def mteb_task(name: str) -> Any:
    """One of mteb's tasks, without its data.

    Raises:
        XlsrError: mteb is not installed or has no such task.
    """
    mteb = require_mteb()
    try:
        return mteb.get_task(name)
    except KeyError as error:
        from mteb.get_tasks import TASK_LIST

        names = [task.metadata.name for task in TASK_LIST]
        raise XlsrError(f"mteb has no task '{name}'; {_nearest_few(name, names)}") from error


def load_task(task: Any) -> None:
    """Loads the data of one of mteb's tasks, from the Hub or its cache on this machine.

    Raises:
        XlsrError: they are not to be had.
    """
    if task.data_loaded:
        return
    try:
        task.load_data()
    except (OSError, ValueError, RuntimeError) as error:
        reason = error_line(error, 200)
        raise XlsrError(
            f"the data of mteb's task {task.metadata.name} are not on this machine and could not be loaded from "
            f"'{task.metadata.dataset['path']}' on the Hub ({reason}); go online once to fetch them, or give local files."
        ) from error


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
        XlsrError: mteb is not installed; it has no such task, or one of another type; the task has no such subset or
            split; or its data are not to be had.
    """
    task = mteb_task(task_name)
    reader = _READERS.get(task.metadata.type)
    if reader is None:
        raise XlsrError(
            f"mteb's task {task_name} is of type {task.metadata.type}; rows are given of {', '.join(_READERS)}."
        )
    known = task.metadata.hf_subsets
    for subset in subsets or ():
        if subset not in known:
            raise XlsrError(f"mteb's task {task_name} has no subset '{subset}'; {_nearest_few(subset, known)}")
    # Only these are downloaded, where the Hub keeps them apart.
    task.hf_subsets = list(subsets or task.hf_subsets)
    load_task(task)
    tags = [tag for langs in task.metadata.hf_subsets_to_langscripts.values() for tag in langs]
    names = metric_languages(dict.fromkeys(tags))
    parts = list(_parts(task, split))
    return (row for subset, part, data in parts for row in reader(task, subset, part, data, names))


def _parts(task: Any, split: str | None) -> Iterator[tuple[str, str, Any]]:
    """Subset, split and table of each part of the data that is wanted."""
    for subset in task.hf_subsets:
        tables = _tables(task, subset)
        if split is None:
            wanted = [name for name in _usual_splits(task) if name in tables]
        else:
            wanted = [split] if split in tables else [name for name in tables if split_name(name) == split_name(split)]
        if not wanted:
            raise XlsrError(
                f"subset '{subset}' of mteb's task {task.metadata.name} has no split "
                f"'{split or _usual_splits(task)[0]}'; its splits are {', '.join(tables) or 'none'}."
            )
        for name in wanted:
            yield subset, name, tables[name]


def _tables(task: Any, subset: str) -> Any:
    """The tables of a subset by split."""
    together = getattr(task, "parallel_subsets", False) or (subset == "default" and subset not in task.dataset)
    return task.dataset if together else task.dataset.get(subset, {})


def task_splits(task_name: str) -> list[str]:
    """Names of the splits of a task's data, as `mteb_rows` takes them."""
    task = mteb_task(task_name)
    load_task(task)
    return sorted({name for subset in task.hf_subsets for name in _tables(task, subset)})


def _usual_splits(task: Any) -> list[str]:
    tested = list(task.metadata.eval_splits)
    if task.metadata.type == "Classification":
        return list(dict.fromkeys([task.train_split, *tested]))
    return ["test"] if "test" in tested else tested[:1]


def _bitext(task: Any, subset: str, _: str, data: Any, names: dict[str, str]) -> Iterator[Row]:
    columns = subset.split("-") if task.parallel_subsets else ("sentence1", "sentence2")
    sources, targets = (data[column] for column in columns)
    if isinstance(data, dict) and "gold" in data:
        # The first BUCC keeps all targets beside the sources that have a translation.
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
    # No language tag has a plus sign: two languages are never taken for one.
    return "+".join(dict.fromkeys(names[tag] for tag in tags))


def _nearest_few(name: str, known: Iterable[str]) -> str:
    """`nearest` without listing the hundreds of names that mteb knows."""
    names = list(known)
    return did_you_mean(name, difflib.get_close_matches(name, names, n=5, cutoff=0.3) or names[:5])
