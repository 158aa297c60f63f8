"""Protocol `sts`: correlation of cosine similarities with human scores of sentence pairs."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from typing_extensions import Unpack

from hf_xlsr.encoders.encoding import Encoder, EncodingOptions
from hf_xlsr.evaluation.inputs import Inputs, read_tasks
from hf_xlsr.evaluation.outcomes import STATISTICS, Outcomes, spearman
from hf_xlsr.evaluation.pairs import Languages, distinct_languages, embed_pairs, pair_cosines
from hf_xlsr.evaluation.registry import Options, option, row_protocol
from hf_xlsr.evaluation.results import Results, measured
from hf_xlsr.evaluation.rows import Row, read_columns

logger = logging.getLogger(__name__)

COEFFICIENTS = ("spearman", "pearson")


class _Task(NamedTuple):
    first: list[str]
    second: list[str]
    scores: np.ndarray
    subsets: np.ndarray
    dropped: int


def sts(
    encoder: Encoder,
    tasks: Mapping[str, Iterable[Row]],
    *,
    language: Languages = "en",
    split: str = "test",
    subsets: bool = False,
    **encoding: Unpack[EncodingOptions],
) -> Results:
    """Correlation of cosines with gold scores, for each task and over the tasks.

    A task may consist of subsets (STS12 has five). Its correlation is then one of three:
    - `all`: of the pairs of all subsets together. This is what SimCSE and most papers since report.
    - `mean`: the mean of the subsets' correlations.
    - `wmean`: the mean weighted by the subsets' numbers of pairs (SentEval's main number before SimCSE).

    Rows without a gold score are dropped and counted. White space in sentences is reduced to single spaces; case is
    kept. An undefined correlation (one pair, or all scores equal) counts as 0, with a warning.

    Args:
        tasks: Rows `{"sentence1": ..., "sentence2": ..., "score": ..., "subset": ...}` by the task's name. The score
            may be on any scale, and a number or its text. Without a column `subset` the task is one subset.
        language: Of the sentences; `"en-es"` or `("en", "es")` for pairs across languages, where each side takes its
            own route.
        subsets: Also give the Spearman correlation of each subset of the tasks that have several.

    Returns:
        - For each task `spearman_all`, `spearman_mean`, `spearman_wmean` and the same of `pearson`; `pairs`, those
          with a score, and `dropped`: under `STS12-sts/en/test/`.
        - With `subsets`: `spearman` and `pairs` under `STS12.MSRpar-sts/en/test/`.
        - Of two tasks or more, the unweighted means of the six correlations, under a name with their number:
          `sts-average-of-7/en/test/spearman_all`. `spearman_all_rounded` there is SimCSE's average: the correlation
          of each task, in per cent, is first rounded to two decimals, as papers print it.

    Examples:
        >>> class Letters:
        ...     def encode(self, texts, **kwargs):
        ...         return np.array([[text.count("a"), text.count("b")] for text in texts], np.float32)
        >>> rows = [("a", "a", 5), ("aab", "ab", 3), ("aab", "bb", "1.5"), ("b", "a", 0), ("b", "b", "")]
        >>> rows = [dict(zip(("sentence1", "sentence2", "score"), row)) for row in rows]
        >>> metrics = sts(Letters(), {"letters": rows})
        >>> metrics["letters-sts/en/test/spearman_all"], metrics["letters-sts/en/test/dropped"]
        (1.0, 1)
    """
    languages = distinct_languages(language)
    read = {name: _read(rows, name) for name, rows in tasks.items()}
    results = Results()
    by_task: dict[str, dict[str, float]] = {}
    for name, task in read.items():
        cosines = pair_cosines(*embed_pairs(encoder, task.first, task.second, language, **encoding))
        parts = {subset: task.subsets == subset for subset in dict.fromkeys(task.subsets.tolist())}
        by_task[name] = _correlations(cosines, task.scores, list(parts.values()), name)
        counts = {"pairs": len(cosines), "dropped": task.dropped}
        outcomes = {f"{kind}_all": Outcomes(kind, (cosines, task.scores)) for kind in COEFFICIENTS}
        results |= measured(name, "sts", languages, split, {**by_task[name], **counts}, outcomes)
        for subset, rows in parts.items() if subsets and len(parts) > 1 else ():
            values = {"spearman": float(spearman(cosines[rows], task.scores[rows])), "pairs": int(rows.sum())}
            own = {"spearman": Outcomes("spearman", (cosines[rows], task.scores[rows]))}
            results |= measured(f"{name}.{subset}", "sts", languages, split, values, own)
    if len(by_task) > 1:
        means = {
            metric: float(np.mean([values[metric] for values in by_task.values()]))
            for metric in next(iter(by_task.values()))
        }
        rounded = [float(f"{100 * values['spearman_all']:.2f}") for values in by_task.values()]
        means["spearman_all_rounded"] = float(np.mean(rounded)) / 100
        results |= measured(f"average-of-{len(by_task)}", "sts", languages, split, means)
    return results


def _correlations(cosines: np.ndarray, scores: np.ndarray, parts: Sequence[np.ndarray], name: str) -> dict[str, float]:
    sizes = np.array([part.sum() for part in parts])
    undefined = sum(not (np.ptp(values[part]) > 0) for part in parts for values in (cosines, scores))
    if undefined:
        logger.warning("%s: scores or cosines of a subset are all equal %d time(s); counted as 0", name, undefined)
    result = {}
    for kind in COEFFICIENTS:
        correlation = STATISTICS[kind]
        each = [correlation(cosines[part], scores[part]) for part in parts]
        result[f"{kind}_all"] = float(correlation(cosines, scores))
        result[f"{kind}_mean"] = float(np.mean(each))
        result[f"{kind}_wmean"] = float(np.average(each, weights=sizes))
    return result


def _read(rows: Iterable[Row], name: str) -> _Task:
    rows, place = list(rows), f"tasks['{name}']"
    with_subsets = bool(rows) and isinstance(rows[0], Mapping) and "subset" in rows[0]
    values = ["score", "subset"] if with_subsets else ["score"]
    first, second, gold, *subsets = read_columns(rows, texts=["sentence1", "sentence2"], values=values, name=place)
    scores = np.array([_score(score) for score in gold])
    kept = np.flatnonzero(~np.isnan(scores))
    groups = np.array([str(subset) for subset in subsets[0]] if subsets else [""] * len(gold))
    one, other = ([" ".join(side[row].split()) for row in kept] for side in (first, second))
    return _Task(one, other, scores[kept], groups[kept], dropped=len(gold) - len(kept))


def _score(score: Any) -> float:
    if score is None or (isinstance(score, str) and not score.strip()):
        return math.nan
    return float(score)


@dataclass(frozen=True)
class StsOptions(Options):
    subsets: bool = option(False, "also the correlation of each subset of a task")


def _run(encoder: Encoder, inputs: Inputs, options: StsOptions) -> Results:
    results = Results()
    common: dict[str, Any] = {"split": inputs.split, **inputs.encoding, **options.arguments()}
    for language, tasks in inputs.tasks.items():
        results |= sts(encoder, tasks, language=language, **common)
    return results


PROTOCOL = row_protocol(
    "sts",
    "correlation of cosines with gold scores: all, mean and wmean",
    ("sentence1", "sentence2", "score"),
    _run,
    StsOptions,
    read=read_tasks,
    nullable=("score",),
    optional=("subset",),
)
