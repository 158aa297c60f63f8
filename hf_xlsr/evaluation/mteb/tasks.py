"""mteb's tasks and their data as rows with our columns."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Any

import langcodes
import mteb
from mteb.abstasks.task_metadata import TaskMetadata
from mteb.languages import check_language_code

from hf_xlsr.data.columns import split_name
from hf_xlsr.data.languages import language_code, share_of_first, whole_tag
from hf_xlsr.evaluation.languages import metric_languages
from hf_xlsr.utils.errors import XlsrError, error_line

logger = logging.getLogger(__name__)

Row = dict[str, Any]
SAMPLE = 2000  # texts of a column that vote
CLEAR = 2 / 3  # share of the votes that settles a column's language

# Type of task -> our columns, and the columns that name the languages.
COLUMNS = {
    "BitextMining": (("source", "target"), ("source_lang", "target_lang")),
    "STS": (("sentence1", "sentence2", "score"), ("lang",)),
    "PairClassification": (("sentence1", "sentence2", "label"), ("lang",)),
    "Classification": (("text", "label", "split"), ("lang",)),
}


def their_columns(task: Any) -> dict[str, str]:
    names = {"source": "sentence1", "target": "sentence2", "score": "score"}
    if task.metadata.type == "STS":
        names.update(zip(("sentence1", "sentence2"), task.column_names, strict=True))
    elif task.metadata.type == "PairClassification":
        names["sentence1"], names["sentence2"] = task.input1_column_name, task.input2_column_name
    elif task.metadata.type == "Classification":
        names["text"] = task.input_column_name
    return names | {"label": getattr(task, "label_column_name", "label")}


def mteb_task(name: str, languages: Sequence[str] = (), hf_subsets: Sequence[str] = ()) -> Any:
    """One of mteb's tasks, without its data; only its subsets between `languages`, or only `hf_subsets`."""
    try:
        task = mteb.get_task(name, hf_subsets=list(hf_subsets) or None)
    except (KeyError, ValueError) as error:
        raise XlsrError(f"mteb task '{name}': {error_line(error.args[0])}") from error
    if languages:
        # Tasks have different tags of one language: `zho-Hans` or `cmn-Hans`, `ara-Arab` or `arb-Arab`.
        wanted = {whole_tag(langscript(language) or language): language for language in languages}
        theirs = task.metadata.hf_subsets_to_langscripts
        tags = {subset: set(map(whole_tag, theirs[subset])) for subset in task.hf_subsets}
        task.hf_subsets = [subset for subset in task.hf_subsets if tags[subset] <= wanted.keys()]
        if not task.hf_subsets:
            raise XlsrError(f"mteb task '{name}' has no subset in {', '.join(languages)}; use other --languages.")
        found = set().union(*(tags[subset] for subset in task.hf_subsets))
        if lost := [language for tag, language in wanted.items() if tag not in found]:
            logger.warning("mteb task '%s' has no subset for %s in these languages", name, ", ".join(lost))
    return task


def mteb_rows(task_name: str, *, subsets: Sequence[str] | None = None, split: str | None = None) -> Iterator[Row]:
    """The rows of one of mteb's tasks, with our columns.

    Languages are named by their codes; where a task has two kinds of one language (`zho-Hans`, `zho-Hant`), by its
    tags. The columns of bitext are in the languages of the subset's name, in this order, as the tasks document it; the
    `lang` of a pair in two languages is both, `en+de`.

    `split` is one of the data's, `dev` for any name of it. By default, of those that mteb evaluates on, `test` or the
    first; of classification all of them and the one it trains on.
    """
    task = mteb_task(task_name)
    kind, unknown = task.metadata.type, set(subsets or ()) - set(task.hf_subsets)
    if kind not in COLUMNS or unknown:
        what = f"no subset {', '.join(unknown)}" if kind in COLUMNS else f"type {kind} is unsupported"
        raise XlsrError(f"Cannot read rows of mteb's task {task_name}: {what}.")
    # Only these are downloaded, where the Hub keeps them apart.
    task.hf_subsets = list(subsets or task.hf_subsets)
    task.load_data()
    tags = [tag for langs in task.metadata.hf_subsets_to_langscripts.values() for tag in langs]
    languages = metric_languages(dict.fromkeys(tags))
    parts = list(_parts(task, split))
    return (row for part in parts for row in _read(task, *part, languages))


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
                f"Subset '{subset}' of mteb's task {task.metadata.name} has no split "
                f"'{split or _usual_splits(task)[0]}', only {', '.join(tables) or 'none'}."
            )
        for name in wanted:
            yield subset, name, tables[name]


def _tables(task: Any, subset: str) -> Any:
    together = getattr(task, "parallel_subsets", False) or (subset == "default" and subset not in task.dataset)
    return task.dataset if together else task.dataset.get(subset, {})


def task_splits(task_name: str) -> list[str]:
    """Names of the splits of a task's data, as `mteb_rows` takes them."""
    task = mteb_task(task_name)
    task.load_data()
    return sorted({name for subset in task.hf_subsets for name in _tables(task, subset)})


def _usual_splits(task: Any) -> list[str]:
    tested = list(task.metadata.eval_splits)
    if task.metadata.type == "Classification":
        return list(dict.fromkeys([task.train_split, *tested]))
    return ["test"] if "test" in tested else tested[:1]


def _read(task: Any, subset: str, split: str, data: Any, languages: dict[str, str]) -> Iterator[Row]:
    columns, sides = COLUMNS[task.metadata.type]
    ours = [column for column in columns if column != "split"]
    names = [their_columns(task)[column] for column in ours]
    own = [languages[tag] for tag in task.metadata.hf_subsets_to_langscripts[subset]]
    if len(sides) == 2:
        names = subset.split("-") if task.parallel_subsets else names
        constant = {"source_lang": own[0], "target_lang": own[:2][-1]}
    else:
        constant = {"lang": "+".join(dict.fromkeys(own))}  # no language tag has a plus sign
    if "split" in columns:
        constant["split"] = split
    if not isinstance(data, dict) and len(data) == 1 and isinstance(data[0][names[0]], list):
        data = data[0]  # older tasks keep each column as one list
    values = [data[name] for name in names]
    if isinstance(data, dict) and "gold" in data:
        # The first BUCC also has targets without a source.
        values[1] = [values[1][target] for _, target in data["gold"]]
    return ({**dict(zip(ours, row, strict=True)), **constant} for row in zip(*values, strict=True))


def langscript(language: str) -> str | None:
    """A language as mteb writes it, `deu-Latn`: ISO 639-3 and ISO 15924; None if mteb does not know it."""
    if not langcodes.tag_is_valid(language):
        return None
    full = langcodes.Language.get(language).maximize()
    tag = f"{full.to_alpha3()}-{full.script}"
    try:
        check_language_code(tag)
    except ValueError:
        return None
    return tag


def subset_languages(metadata: TaskMetadata, subset: str) -> tuple[str, ...]:
    """The codes of the languages of a subset, or of a column that mteb names by its language; none where unknown."""
    tags = metadata.hf_subsets_to_langscripts.get(subset)
    if tags is None:
        tags = [subset] if langcodes.tag_is_valid(subset) else []
    return tuple(dict.fromkeys(map(language_code, tags)))


def column_language(texts: Sequence[str], candidates: tuple[str, str], *, place: str) -> str:
    """Identifies which of two languages a whole column is in, by the votes of up to 2,000 evenly spaced texts."""
    first, second = candidates
    advice = "evaluate this subset with a protocol of hf-xlsr, which takes the languages of both sides"
    share = share_of_first(candidates, place=place, advice=advice)
    votes = [found for text in texts[:: max(1, len(texts) // SAMPLE)] if (found := share(text)) is not None]
    won = sum(0.5 if vote == 0.5 else vote > 0.5 for vote in votes) / max(len(votes), 1)
    if votes and won >= CLEAR:
        return first
    if votes and won <= 1 - CLEAR:
        return second
    raise XlsrError(
        f"{place} may be in {first} or {second}: {won:.0%} of its {len(votes)} texts with letters look like {first}; "
        f"{advice}."
    )
