"""mteb's tasks and their data as rows with our columns."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Sequence
from functools import cache
from importlib import resources
from itertools import chain
from typing import Any

import langcodes
import mteb
from mteb.abstasks.task_metadata import TaskMetadata
from mteb.languages import check_language_code

from hf_xlsr.data.columns import split_name
from hf_xlsr.data.identification import share_of_first
from hf_xlsr.data.languages import language_code
from hf_xlsr.evaluation.languages import metric_languages
from hf_xlsr.utils.errors import XlsrError, error_line

logger = logging.getLogger(__name__)

Row = dict[str, Any]
SAMPLE = 2000  # texts of a column that vote
CLEAR = 2 / 3  # share of the votes that settles a column's language

ONE_SCRIPT = {"Hang": "Kore", "Hira": "Jpan"}  # scripts that tasks write in two ways
TYPES = ("BitextMining", "STS", "PairClassification", "Classification")  # of tasks whose data are read as rows


def their_columns(task: Any) -> dict[str, str]:
    """Our columns, besides those of the languages -> the columns of a task's data."""
    if task.metadata.type == "BitextMining":
        return {"source": "sentence1", "target": "sentence2"}
    if task.metadata.type == "STS":
        first, second = task.column_names
        return {"sentence1": first, "sentence2": second, "score": "score"}
    if task.metadata.type == "PairClassification":
        return {
            "sentence1": task.input1_column_name,
            "sentence2": task.input2_column_name,
            "label": task.label_column_name,
        }
    return {"text": task.input_column_name, "label": task.label_column_name}


def mteb_task(name: str, languages: Sequence[str] = (), hf_subsets: Sequence[str] = ()) -> Any:
    """One of mteb's tasks, without its data; only its subsets between `languages` (see `means`), or only `hf_subsets`."""
    try:
        task = mteb.get_task(name, hf_subsets=list(hf_subsets) or None)
    except (KeyError, ValueError) as error:
        raise XlsrError(f"mteb task '{name}': {error_line(error.args[0])}") from error
    if not languages:
        return task

    selected_languages: set[str] = set()
    subsets = []
    for subset in task.hf_subsets:
        tags = task.metadata.hf_subsets_to_langscripts[subset]
        meant = [[language for language in languages if means(language, tag)] for tag in tags]
        if all(meant):
            subsets.append(subset)
            selected_languages.update(chain.from_iterable(meant))
    if not subsets:
        raise XlsrError(f"mteb task '{name}' has no subset in {', '.join(languages)}; use other --languages.")

    unused = [language for language in languages if language not in selected_languages]
    if unused:
        logger.warning("mteb task '%s' has no subset for %s in these languages", name, ", ".join(unused))
    task.hf_subsets = subsets
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
    if task.metadata.type not in TYPES:
        raise XlsrError(f"Cannot read rows of mteb's task {task_name}: type {task.metadata.type} is unsupported.")
    unknown = set(subsets or ()) - set(task.hf_subsets)
    if unknown:
        raise XlsrError(f"mteb's task {task_name} has no subset {', '.join(unknown)}.")

    # Only these are downloaded, where the Hub keeps them apart.
    task.hf_subsets = list(subsets or task.hf_subsets)
    task.load_data()
    tags = chain.from_iterable(task.metadata.hf_subsets_to_langscripts.values())
    languages = metric_languages(set(tags))
    tables = list(_wanted_tables(task, split))
    return chain.from_iterable(_read_table(task, *table, languages) for table in tables)


def _wanted_tables(task: Any, split: str | None) -> Iterator[tuple[str, str, Any]]:
    """Subset, split and rows of each table of the data that is wanted."""
    for subset in task.hf_subsets:
        tables = _tables(task, subset)
        if split is None:
            names = [name for name in _usual_splits(task) if name in tables]
        elif split in tables:
            names = [split]
        else:
            names = [name for name in tables if split_name(name) == split_name(split)]
        if not names:
            raise XlsrError(f"Subset '{subset}' of {task.metadata.name} has no split '{split}', only {list(tables)}.")

        for name in names:
            yield subset, name, tables[name]


def _tables(task: Any, subset: str) -> Any:
    """The tables of a subset by split."""
    is_only_subset = subset == "default" and subset not in task.dataset
    if is_only_subset or getattr(task, "parallel_subsets", False):
        return task.dataset
    return task.dataset.get(subset, {})


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


def _read_table(task: Any, subset: str, split: str, table: Any, languages: dict[str, str]) -> Iterator[Row]:
    """The rows of one table with our columns."""
    column_of = their_columns(task)
    codes = [languages[tag] for tag in task.metadata.hf_subsets_to_langscripts[subset]]
    constants = {"lang": "+".join(dict.fromkeys(codes))}  # no language tag has a plus sign
    if task.metadata.type == "BitextMining":
        constants = {"source_lang": codes[0], "target_lang": codes[:2][-1]}
        if task.parallel_subsets:
            column_of["source"], column_of["target"] = subset.split("-")
    if task.metadata.type == "Classification":
        constants["split"] = split

    if not isinstance(table, dict) and len(table) == 1:
        (only_row,) = table
        if any(isinstance(only_row[column], list) for column in column_of.values()):
            table = only_row  # older tasks keep each column as one list
    values = {name: table[column] for name, column in column_of.items()}
    if isinstance(table, dict) and "gold" in table:
        # The first BUCC also has targets without a source.
        targets = values["target"]
        values["target"] = [targets[target] for _, target in table["gold"]]

    for row in zip(*values.values(), strict=True):
        yield {**dict(zip(values, row, strict=True)), **constants}


def means(language: str, tag: str) -> bool:
    """Whether a language, as a user names it, means a tag of mteb's tasks.

    Tasks have several tags of one language: `zho-Hans` or `cmn-Hans`, `kor-Hang` or `kor-Kore`. A language alone means
    all its scripts; one with a script or a region means those that it says or implies.

    Examples:
        >>> [means("ko", tag) for tag in ("kor-Hang", "kor-Kore", "jpn-Jpan")]
        [True, True, False]
        >>> means("zh", "cmn-Hant"), means("zh-TW", "zho-Hant"), means("zh-TW", "zho-Hans"), means("fa", "prs-Arab")
        (True, True, False, False)
        >>> means("ar", "arb-Latn"), means("ar-Arab", "arb-Latn")
        (True, False)
    """
    if not (langcodes.tag_is_valid(language) and langcodes.tag_is_valid(tag)):
        return f"{tag}-".startswith(f"{language}-")  # codes that langcodes does not know, such as `tok`
    wanted, present = (langcodes.Language.get(langcodes.standardize_tag(name, macro=True)) for name in (language, tag))
    if wanted.language != present.language or present.territory not in (None, wanted.territory):
        return False
    # A standard tag leaves a usual script out, also one that the user states: `ar-Arab`.
    stated = langcodes.Language.get(language, normalize=False)
    return not (stated.script or stated.territory) or _script(wanted) == _script(present)


def _script(language: langcodes.Language) -> str | None:
    script = language.maximize().script
    return ONE_SCRIPT.get(script, script) if script else None


def langscript(language: str) -> str | None:
    """A language as mteb writes it, `deu-Latn`: ISO 639-3 and ISO 15924; None if mteb does not know it.

    The script is the stated one, or by mteb's own list, which says `kor-Hang` and `azb-Arab`.
    """
    if not langcodes.tag_is_valid(language):
        return None
    stated = langcodes.Language.get(language)
    code = stated.to_alpha3()
    script = stated.maximize().script
    if not (stated.script or stated.territory):
        script = _default_scripts().get(code, script)
    tag = f"{code}-{script}"
    try:
        check_language_code(tag)
    except ValueError:
        return None
    return tag


@cache
def _default_scripts() -> dict[str, str]:
    """mteb's list of the script of each language that it knows; empty in versions without the list."""
    file = resources.files("mteb.languages") / "iso_639_3_to_default_script.json"
    if not file.is_file():
        return {}
    scripts: dict[str, str] = json.loads(file.read_text("utf-8"))
    return scripts


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

    step = max(1, len(texts) // SAMPLE)
    votes = [vote for vote in map(share, texts[::step]) if vote is not None]
    points = sum((vote > 0.5) + (vote >= 0.5) for vote in votes)  # a tie gives each language one
    share_of_votes = points / 2 / max(len(votes), 1)
    if votes and share_of_votes >= CLEAR:
        return first
    if votes and share_of_votes <= 1 - CLEAR:
        return second
    raise XlsrError(f"{place} may be in {first} or {second} ({share_of_votes:.0%} {first}); {advice}.")
