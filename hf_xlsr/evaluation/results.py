"""Results: a record for each measured value, and files of them."""

from __future__ import annotations

import json
import math
import os
import platform
import re
import sys
import zipfile
import zlib
from collections import defaultdict
from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from numbers import Integral
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple, SupportsFloat, cast

import numpy as np
from langcodes import tag_is_valid

from hf_xlsr.data.languages import standard_tag
from hf_xlsr.evaluation.outcomes import Outcomes, interval, mean_interval
from hf_xlsr.utils.errors import XlsrError, error_line
from hf_xlsr.utils.files import atomic_write, write_text

MOST_OUTCOMES = 1 << 28  # bytes
PACKAGES = (
    "torch",
    "transformers",
    "sentence-transformers",
    "datasets",
    "numpy",
    "scipy",
    "scikit-learn",
    "faiss-cpu",
    "mteb",
)
TORN = (zipfile.BadZipFile, zlib.error, EOFError)
"""What else numpy raises for a damaged file of outcomes."""
# Metrics that count what the others are measured on.
COUNTS = ("gold", "pairs", "queries", "documents", "sentences", "rows")
AVERAGE = re.compile(r"(?:mean|average)-of-\d+")


class Result(NamedTuple):
    """One measured value.

    Attributes:
        dataset: Name of the dataset; `average-of-7` for an average over datasets.
        protocol: Name of the protocol, with its setting where that is not the default: `xsim-k3-distance`.
        languages: As the key has them: `en`, `en-fr`, `mean-of-5`.
        source: First language, or the one of training; empty for means.
        target: Second language, or the one of the test; the first where there is one only; empty for means.
        value: The value; an integer is a count.
        n: Number of pairs, queries or texts that it is measured on, where the metrics have it.
        low: Lower end of its 95 % interval, where outcomes of single examples are known; likewise `high`.
        candidates: Number of texts among which each query or source is answered, in a retrieval.
        limit: The most rows of a language that were measured (`--limit`); None: all.
    """

    dataset: str
    protocol: str
    languages: str
    source: str
    target: str
    split: str
    metric: str
    value: float
    n: int | None = None
    low: float | None = None
    high: float | None = None
    candidates: int | None = None
    limit: int | None = None

    @property
    def name(self) -> str:
        """First part of the key: dataset and protocol; a dataset that the protocol is named after is not repeated."""
        if self.is_average:
            return f"{self.protocol}-{self.dataset}"
        if f"{self.protocol}-".startswith(f"{self.dataset}-"):
            return self.protocol
        return f"{self.dataset}-{self.protocol}"

    @property
    def key(self) -> str:
        return f"{self.name}/{self.languages}/{self.split}/{self.metric}"

    @property
    def is_average(self) -> bool:
        return AVERAGE.fullmatch(self.dataset) is not None

    @property
    def is_mean(self) -> bool:
        return AVERAGE.fullmatch(self.languages) is not None

    @property
    def is_transfer(self) -> bool:
        """Whether means count it. They leave out the test of a head in its training language (`en-en`)."""
        return self.languages != f"{self.source}-{self.source}"


class Results(dict[str, float]):
    """Metrics by key, `DATASET-PROTOCOL/LANGUAGES/SPLIT/METRIC`.

    Attributes:
        records: The `Result` of each, by key, in the order of the keys.
        outcomes: Outcomes of single examples by key, of the values that are computed from them.
    """

    def __init__(self, records: Iterable[Result] = (), outcomes: Mapping[str, Outcomes] | None = None) -> None:
        self.records = {record.key: record for record in records}
        self.outcomes = dict(outcomes or {})
        super().__init__((key, record.value) for key, record in self.records.items())

    def __or__(self, other: Results) -> Results:  # type: ignore[override]  # metrics without records are no results
        merged = Results(self.records.values(), self.outcomes)
        merged |= other
        return merged

    def __ior__(self, other: Results) -> Results:  # type: ignore[override]
        self.records |= other.records
        self.outcomes |= other.outcomes
        super().update(other)
        return self


def measured(
    dataset: str,
    protocol: str,
    languages: str | tuple[str, str],
    split: str,
    values: Mapping[str, SupportsFloat],
    outcomes: Mapping[str, Outcomes | np.ndarray] | None = None,
    *,
    candidates: int | None = None,
) -> Results:
    """The results of one protocol on one dataset in a language, a language pair or a mean.

    Args:
        languages: Tags of any standard: `eng` and `en` have one key, `pt` and `pt-BR` have two.
        values: Value of each metric. An integer is a count.
        outcomes: Outcomes of single examples by metric; an array is averaged. A metric that is not in `values` has the
            value of its outcomes, and comes before the others.
        candidates: See `Result`.
    """
    if isinstance(languages, str):
        name = language_key(languages)
        source = target = "" if AVERAGE.fullmatch(name) else name
    else:
        source, target = map(language_key, languages)
        name = f"{source}-{target}"

    numbers: dict[str, Any] = {}
    outcomes_of: dict[str, Outcomes] = {}
    for metric, examples in (outcomes or {}).items():
        if isinstance(examples, np.ndarray):
            examples = Outcomes("mean", (examples,))
        outcomes_of[metric] = examples
        if metric not in values:
            numbers[metric] = examples.value()
    for metric, value in values.items():
        numbers[metric] = np.asarray(value).item()

    n = next((numbers[count] for count in COUNTS if count in numbers), None)
    records = {}
    for metric, number in numbers.items():
        record = Result(dataset, protocol, name, source, target, split, metric, number, n)
        records[metric] = record._replace(candidates=candidates)

    outcomes_by_key = {records[metric].key: examples for metric, examples in outcomes_of.items()}
    return Results(records.values(), outcomes_by_key)


def language_key(tag: str) -> str:
    """A language, or two with a plus sign, as all metric keys write it: the shortest code, script and region if stated.

    Examples:
        >>> [language_key(tag) for tag in ("deu", "eng_Latn", "pt_BR", "zho-Hant", "eng+deu", "source", "mean-of-3")]
        ['de', 'en', 'pt-BR', 'zh-Hant', 'en+de', 'source', 'mean-of-3']
    """
    keys = []
    for part in tag.split("+"):
        keys.append(standard_tag(part) if tag_is_valid(part) else part)
    return "+".join(keys)


def with_intervals(results: Results) -> Results:
    """The results with the 95 % interval of each value, or mean, whose outcomes of single examples are known."""
    records = dict(results.records)
    for key, outcomes in results.outcomes.items():
        if len(outcomes.columns[0]) > 1:
            low, high = interval(outcomes)
            records[key] = records[key]._replace(low=low, high=high)

    metrics_with_outcomes = {records[key].metric for key in results.outcomes}
    for key, record in results.records.items():
        if (record.is_mean or record.is_average) and record.metric in metrics_with_outcomes:
            ends = interval_of_mean(record, results)
            if ends is not None:
                records[key] = record._replace(low=ends[0], high=ends[1])
    return Results(records.values(), results.outcomes)


def interval_of_mean(mean: Result, results: Results) -> tuple[float, float] | None:
    """The 95 % interval of a mean over the languages or the datasets of results; None where outcomes are not known."""
    same = ("dataset", "protocol", "split", "metric")
    if not mean.is_mean:
        same = ("languages", "protocol", "split", "metric")
    group = [getattr(mean, name) for name in same]

    outcomes = []
    for key, record in results.records.items():
        if not is_averaged(record) or record.is_average or [getattr(record, name) for name in same] != group:
            continue
        if key not in results.outcomes:
            return None
        outcomes.append(results.outcomes[key])

    name = mean.languages if mean.is_mean else mean.dataset
    count = int(name.rpartition("-")[2])
    return mean_interval(outcomes) if len(outcomes) == count else None


def mean_over_languages(results: Results) -> Results:
    """The results and, for each metric that was measured for several language pairs, its unweighted mean.

    Counts (integers) and thresholds are not averaged. Both directions of a pair count (`en-de`, `de-en`). A head
    tested in its training language (`en-en`) measures no transfer and is skipped. An existing mean is computed again. The
    languages of a mean over 3 language pairs are `mean-of-3`.

    Examples:
        >>> results = measured("tatoeba", "tatoeba", ("en", "fr"), "test", {"accuracy": 0.5})
        >>> results |= measured("tatoeba", "tatoeba", ("en", "de"), "test", {"accuracy": 1.0})
        >>> mean_over_languages(results)["tatoeba/mean-of-2/test/accuracy"]
        0.75
    """
    groups: dict[tuple[str, str, str, str], list[Result]] = defaultdict(list)
    for record in results.records.values():
        if is_averaged(record):
            groups[record.dataset, record.protocol, record.split, record.metric].append(record)

    results = results | Results()
    for (dataset, protocol, split, metric), records in groups.items():
        if len(records) > 1:
            mean_name = f"mean-of-{len(records)}"
            mean = fmean(record.value for record in records)
            results |= measured(dataset, protocol, mean_name, split, {metric: mean})
    return results


def is_averaged(record: Result) -> bool:
    """Whether means take a value in: the one definition of a mean, also of the tables of `compare`."""
    # A threshold is a setting, not a score: its mean has no meaning.
    is_score = not record.metric.endswith("threshold") and not isinstance(record.value, Integral)
    return is_score and not record.is_mean and record.is_transfer


def save_results(
    path: str | os.PathLike[str],
    results: Results,
    *,
    settings: Mapping[str, Any],
    data_hashes: Mapping[str, str] | None = None,
    predictions: bool = False,
) -> None:
    """Writes results as JSON together with what produced them; an existing file is replaced at once.

    `settings` are everything needed to measure again, `data_hashes` the `data_hash` of the evaluated texts by a name.
    With `predictions` the outcomes of single examples go to a file of the same name that ends in `.npz` (`a.json` and
    `a.npz`, `a-1.0` and `a-1.0.npz`). A value that is not a finite number is refused.
    """
    for record in results.records.values():
        if not isinstance(record.value, (int, float)) or not math.isfinite(record.value):
            raise XlsrError(f"'{record.key}' must be a finite number, got {record.value!r}.")

    statistics = {}
    columns = {}
    if predictions:
        for key, outcomes in results.outcomes.items():
            statistics[key] = outcomes.statistic
            for number, column in enumerate(outcomes.columns):
                columns[f"{key}/{number}"] = column

    content = {
        "created": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "versions": _versions(),
        "settings": dict(settings),
        "data_sha256": dict(data_hashes or {}),
        "metrics": results,
        "records": {key: record._asdict() for key, record in results.records.items()},
        "statistics": statistics,
    }
    text = json.dumps(content, indent=2, ensure_ascii=False, default=str) + "\n"

    Path(path).parent.mkdir(parents=True, exist_ok=True)
    if predictions:
        with atomic_write(outcomes_file(path)) as partial, partial.open("wb") as stream:
            np.savez_compressed(stream, allow_pickle=False, **columns)
    write_text(path, text)


def outcomes_file(path: str | os.PathLike[str]) -> Path:
    """Where `save_results` puts the outcomes of single examples."""
    return Path(f"{os.fspath(path).removesuffix('.json')}.npz")


def load_results(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Reads what `save_results` wrote: `created`, `versions`, `settings`, `data_sha256`, and `metrics` as `Results`.

    Outcomes are read where the file was written with `predictions`.
    """
    again = "Write it anew by hf-xlsr evaluate --output"
    try:
        content: dict[str, Any] = json.loads(Path(path).read_text(encoding="utf-8"))
        missing = {"records", "statistics"} - content.keys()
        if missing:
            raise XlsrError(f"{path} is not a file of results: it has no key '{min(missing)}'. {again}.")

        outcomes = outcomes_file(path)
        if content["statistics"] and not outcomes.is_file():
            raise XlsrError(f"The outcomes of {path} are missing: '{outcomes}'. Copy them too. {again} --predictions.")

        records = [Result(**record) for record in content.pop("records").values()]
        metrics = Results(records, _load_outcomes(path, content.pop("statistics")))
    except XlsrError:
        raise
    except (*TORN, OSError, ValueError, LookupError, TypeError, AttributeError, MemoryError) as error:
        raise XlsrError(f"{path} is not a file of results ({error_line(error)}).") from error
    return {**content, "metrics": metrics}


def _load_outcomes(path: str | os.PathLike[str], statistics: Mapping[str, str]) -> dict[str, Outcomes]:
    if not statistics:
        return {}
    columns: dict[str, list[np.ndarray]] = defaultdict(list)
    with np.load(outcomes_file(path), allow_pickle=False) as stored:
        size = sum(entry.file_size for entry in stored.zip.infolist())  # the most that the archive gives
        if size > MOST_OUTCOMES:
            raise ValueError(f"its outcomes take {size:,} bytes, more than {MOST_OUTCOMES:,}")
        for name, column in stored.items():
            columns[name.rpartition("/")[0]].append(column)
    outcomes = {}
    for key, statistic in statistics.items():
        outcomes[key] = Outcomes(statistic, tuple(columns[key]))
    return outcomes


def metrics_of(results: Results | Mapping[str, Any]) -> Results:
    """What was measured: results themselves, or those in what `load_results` gave."""
    if isinstance(results, Results):
        return results
    return cast("Results", results["metrics"])


def _versions() -> dict[str, str]:
    versions = {"hf_xlsr": version("hf-xlsr"), "python": platform.python_version()}
    for package in PACKAGES:
        # mteb counts only where it took part; FAISS may be installed under another name.
        if package != "mteb" or package in sys.modules:
            with suppress(PackageNotFoundError):
                versions[package] = version(package)
    return versions
