"""Results: records, their keys, JSON files and terminal tables."""

from __future__ import annotations

import json
import math
import os
import platform
import re
import sys
from collections.abc import Collection, Mapping
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from numbers import Integral
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from rich.markup import escape
from rich.table import Table
from rich.text import Text

from hf_xlsr.evaluation.protocols import NAMES
from hf_xlsr.utils.errors import XlsrError, error_line
from hf_xlsr.utils.files import atomic_write, is_stream

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
# Other names in metric keys: scores of mining, translation and fine-tuning.
OTHER_NAMES = ("mining", "bleu", "fine-tuning", "cross-lingual-test", "translate-test", "translate-train")
# The dataset matches greedily: where it is called like a protocol (`my-nli-tatoeba`), the last name counts. The
# exception is `tatoeba-mteb`, which ends in another name.
PROTOCOL = re.compile(rf"(?:(.+)-)?(?!(?<=tatoeba-)mteb)((?:{'|'.join((*NAMES, *OTHER_NAMES))})(?:-.+)?)")
# A script and a region have capitals, which distinguish them from a second language: `en-zho-Hans`, `pt-BR-en`.
TAG = r"[a-z]{2,3}(?:-[A-Z][a-z]{3})?(?:-[A-Z]{2})?"
PAIR = re.compile(f"({TAG})(?:-({TAG}))?")
MEAN = re.compile(r"mean-of-\d+")
LONGEST_METRIC = 40  # characters that fit on one line of a table for the terminal
# Parts of metric names. Correlations and F1 are not shares: they are times 100, without a sign.
PLAIN_WORDS = {"bias", "threshold", "loss", "mse", "margin", "seconds"}
SCORE_WORDS = {"spearman", "pearson", "matthews", "bleu", "f1", "ap", "score"}
COUNTS = ("pairs", "queries", "documents", "sentences")  # metrics that count what the others are measured on


class Result(NamedTuple):
    """One measured value; `results_of` gives the results of metric keys.

    Attributes:
        name: First part of the key: the protocol, with the dataset as prefix; empty for a key of another shape.
        dataset: Empty where the protocol is named after it.
        protocol: Empty where it is unknown.
        languages: As the key has them.
        source: First language.
        target: Second language; that of the source where there is one only, empty for means.
        split: Split of the dataset.
        metric: Name of the metric.
        value: The value; an integer is a count.
        n: Number of pairs, queries or texts that it is measured on, where the metrics have it.
    """

    name: str
    dataset: str
    protocol: str
    languages: str
    source: str
    target: str
    split: str
    metric: str
    value: float
    n: int | None

    @property
    def key(self) -> str:
        """The key in results files."""
        return "/".join([self.name, self.languages, self.split, self.metric]) if self.name else self.metric

    @property
    def is_mean(self) -> bool:
        """Whether it is a mean over languages."""
        return MEAN.fullmatch(self.languages) is not None


def results_of(metrics: Mapping[str, float]) -> list[Result]:
    """The records of metrics by key, in their order.

    Example:
        >>> result, count = results_of({"tico19-xsim/en-fr/test/error": 0.1, "tico19-xsim/en-fr/test/pairs": 30})
        >>> result.dataset, result.protocol, result.source, result.target, result.n
        ('tico19', 'xsim', 'en', 'fr', 30)
    """
    pairs = {split_key(key)[1] for key in metrics}
    found = []
    for key, value in metrics.items():
        name, languages, split, metric = split_key(key)
        front = key.removesuffix(metric)
        counts = [metrics[front + count] for count in COUNTS if front + count in metrics]
        n = int(counts[0]) if counts and name else None
        found.append(
            Result(name, *split_protocol(name), languages, *_sides(languages, pairs), split, metric, value, n)
        )
    return found


def _sides(languages: str, known: Collection[str]) -> tuple[str, str]:
    """The two languages of a pair: as the reversed pair, where it is known, divides them, or else by the form of tags.

    Example:
        >>> _sides("en-zho-Hans", []), _sides("pt-br-en", ["en-pt-br"]), _sides("zho-Hans", [])
        (('en', 'zho-Hans'), ('pt-br', 'en'), ('zho-Hans', 'zho-Hans'))
    """
    if not languages or MEAN.fullmatch(languages):
        return "", ""
    parts = languages.split("-")
    for place in range(1, len(parts)):
        first, second = "-".join(parts[:place]), "-".join(parts[place:])
        if f"{second}-{first}" in known:
            return first, second
    if pair := PAIR.fullmatch(languages):
        return pair[1], pair[2] or pair[1]
    return parts[0], "-".join(parts[1:]) or parts[0]


def mean_over_languages(metrics: Mapping[str, float]) -> dict[str, float]:
    """The metrics and, for each that was measured for several language pairs, its unweighted mean.

    Counts (integers) and thresholds are not averaged. Each direction of a pair counts as one (`en-de`, `de-en`). A head
    tested in its training language (`en-en`) measures no transfer and is skipped, like premises and hypotheses in
    different languages (`en-de_fr`). An existing mean is computed again.

    Args:
        metrics: Values by `protocol/languages/split/metric`.

    Returns:
        `metrics`, then the means under `protocol/mean-of-3/split/metric`, 3 being the number of language pairs.

    Example:
        >>> metrics = mean_over_languages({"tatoeba/en-fr/test/accuracy": 0.5, "tatoeba/en-de/test/accuracy": 1.0})
        >>> metrics["tatoeba/mean-of-2/test/accuracy"]
        0.75
    """
    groups: dict[tuple[str, str, str], list[float]] = {}
    for result in results_of(metrics):
        languages = result.languages
        half = len(languages) // 2
        same = languages[:half] == languages[half + 1 :] or "_" in languages.partition("-")[2]
        # A threshold is a setting that was found, not a score: its mean has no meaning.
        if result.name and not (result.is_mean or same or result.metric.endswith("threshold")):
            if not isinstance(result.value, Integral):
                groups.setdefault((result.name, result.split, result.metric), []).append(float(result.value))
    means = {
        f"{name}/mean-of-{len(values)}/{split}/{metric}": fmean(values)
        for (name, split, metric), values in groups.items()
        if len(values) > 1
    }
    return {**metrics, **means}


def metric_prefix(dataset: str, protocol: str, languages: str, split: str) -> str:
    """The prefix of a metric's key; a dataset that the protocol, or its family, is named after is not repeated.

    Raises:
        XlsrError: a part is empty or has a slash, so that the key could not be read back.

    Example:
        >>> metric_prefix("tico19", "tatoeba", "en-fr", "test")
        'tico19-tatoeba/en-fr/test'
        >>> metric_prefix("tatoeba", "tatoeba", "en-fr", "test")
        'tatoeba/en-fr/test'
        >>> metric_prefix("tatoeba", "tatoeba-xtreme", "en-fr", "test")
        'tatoeba-xtreme/en-fr/test'
    """
    for what, value in (("dataset name", dataset), ("languages", languages), ("split", split)):
        if not value or "/" in value:
            raise XlsrError(f"the {what} is '{value}'; metric keys are split at '/', so use a name without it.")
    named = protocol == dataset or protocol.startswith(f"{dataset}-")
    return "/".join([protocol if named else f"{dataset}-{protocol}", languages, split])


def split_key(key: str) -> tuple[str, str, str, str]:
    """Protocol (with the dataset), languages, split and metric of a key; of a key of another shape only the metric.

    Example:
        >>> split_key("tico19-tatoeba/en-fr/test/accuracy")
        ('tico19-tatoeba', 'en-fr', 'test', 'accuracy')
        >>> split_key("eval_loss")
        ('', '', '', 'eval_loss')
    """
    if key.count("/") < 3:
        return "", "", "", key
    protocol, languages, split, metric = key.split("/", 3)
    return protocol, languages, split, metric


def split_protocol(name: str) -> tuple[str, str]:
    """Dataset and protocol of the first part of a key; without a known protocol only the dataset.

    The dataset is empty where the protocol is named after it, and for averages over datasets.

    Example:
        >>> split_protocol("tico19-tatoeba-laser"), split_protocol("STS12-sts"), split_protocol("tatoeba")
        (('tico19', 'tatoeba-laser'), ('STS12', 'sts'), ('', 'tatoeba'))
        >>> split_protocol("sts-average-of-7"), split_protocol("my-nli-tatoeba-mteb")
        (('', 'sts-average-of-7'), ('my-nli', 'tatoeba-mteb'))
    """
    match = PROTOCOL.fullmatch(name)
    return (match[1] or "", match[2]) if match else (name, "")


def metric_unit(metric: str) -> str:
    """Unit in which `metric_value` writes a metric other than a count: `%`, `×100` or none.

    Shares (accuracy, precision, recall, error rates) are in per cent. Correlations, F1 and average precision (`ap`)
    are times 100, as papers print them. Thresholds, losses, margins, biases and seconds are unchanged.

    Example:
        >>> [metric_unit(name) for name in ("source_to_target_error", "weighted_f1", "all_spearman", "threshold")]
        ['%', '×100', '×100', '']
    """
    words = metric.lower().replace("/", "_").replace("-", "_").split("_")
    if words[-1] in PLAIN_WORDS:
        return ""
    return "×100" if SCORE_WORDS.intersection(words) or words[-2:] == ["average", "precision"] else "%"


def metric_value(metric: str, value: float) -> str:
    """A value as tables and plots write it, without its unit: a count as an integer, a plain number with four decimals.

    Example:
        >>> metric_value("pairs", 1000), metric_value("accuracy", 0.9449), metric_value("threshold", 1.08632)
        ('1000', '94.5', '1.0863')
    """
    if isinstance(value, int):
        return str(value)
    return f"{100 * value:.1f}" if metric_unit(metric) else f"{value:.4f}"


def lower_is_better(metric: str) -> bool:
    """Whether a metric is an error or a loss.

    Example:
        >>> lower_is_better("error_rate"), lower_is_better("accuracy")
        (True, False)
    """
    return not {"error", "errors", "loss", "mse"}.isdisjoint(metric.lower().replace("/", "_").split("_"))


def check_writable(path: str | os.PathLike[str], option: str, *, folder: bool = False) -> None:
    """Checks that results can be written to a place, before hours of work; nothing is created.

    Args:
        path: The file, or the folder.
        option: Name of the option, for the error.
        folder: Whether it is a folder for files.

    Raises:
        XlsrError: it is a folder instead of a file or the other way round, or not writable.
    """
    stream = not folder and is_stream(Path(path))
    place = Path(path) if folder or stream else Path(path).parent
    # The nearest existing parent: the rest is created. (`Path.exists` raises in a locked folder.)
    while not os.path.exists(place) and place != place.parent:
        place = place.parent
    if not folder and os.path.isdir(path):
        problem = "it is a folder, not a file"
    elif not stream and not os.path.isdir(place):
        problem = f"{place} is a file"
    elif not os.access(place, os.W_OK):
        problem = f"{place} is not writable"
    else:
        return
    raise XlsrError(f"{option} '{path}' cannot be written: {problem}.")


def save_results(
    path: str | os.PathLike[str],
    metrics: Mapping[str, float],
    *,
    settings: Mapping[str, Any],
    data_hashes: Mapping[str, str] | None = None,
) -> None:
    """Writes metrics as JSON together with what produced them; an existing file is replaced at once.

    Args:
        path: The file; its folder is created.
        metrics: Values by key; integers are counts.
        settings: Model, protocol arguments, seed: everything needed to measure again.
        data_hashes: `data_hash` of the evaluated texts, by a name.

    Raises:
        XlsrError: a metric is not a finite number.
    """
    plain = {key: _plain_number(key, value) for key, value in metrics.items()}
    content = {
        "created": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "versions": _versions(),
        "settings": dict(settings),
        "data_sha256": dict(data_hashes or {}),
        "metrics": plain,
    }
    file = Path(path)
    text = json.dumps(content, indent=2, ensure_ascii=False, default=str) + "\n"
    file.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(file) as partial:
        partial.write_text(text, encoding="utf-8")


def load_results(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Reads what `save_results` wrote: `created`, `versions`, `settings`, `data_sha256` and `metrics`.

    Raises:
        XlsrError: the file is missing or not a results file.
    """
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
        dict(content["metrics"])
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise XlsrError(f"{path} is not a file of results with 'metrics' ({error_line(error)}).") from error
    return content


def metrics_of(results: Mapping[str, Any]) -> dict[str, float]:
    """The metrics of what `load_results` gave; bare metrics are taken as they are.

    Raises:
        XlsrError: a metric is not a finite number.

    Example:
        >>> metrics_of({"metrics": {"a": 1.0}, "settings": {}}) == metrics_of({"a": 1.0})
        True
    """
    inner = results.get("metrics")
    metrics = inner if isinstance(inner, Mapping) else results
    return {key: _plain_number(key, value) for key, value in metrics.items()}


def results_table(metrics: Mapping[str, float], title: str) -> Table:
    """A table for `rich.console.Console`, one metric per line, with a rule between protocols.

    Values and units are those of `metric_value` and `metric_unit`. At 80 columns, which a log or a pipe has, no name
    and no number is truncated: long names continue in the next line.

    Args:
        metrics: Values by `protocol/languages/split/metric`.
        title: Title of the table.
    """
    table = Table(title=escape(title))
    for column in ("protocol", "languages", "split"):
        table.add_column(column, overflow="fold")
    results = results_of(metrics)
    # A longer metric would leave the others no room, and rich truncates what may not fold.
    longest = max((len(result.metric) for result in results), default=0)
    table.add_column("metric", overflow="fold", no_wrap=longest <= LONGEST_METRIC)
    table.add_column("value", justify="right", no_wrap=True)
    above = ("", "", "")
    for result in results:
        parts = (result.name, result.languages, result.split)
        if table.row_count and result.name != above[0]:
            table.add_section()
        depth = next((i for i in range(3) if parts[i] != above[i]), 3)
        unit = "" if isinstance(result.value, int) else metric_unit(result.metric)
        name, shown = result.metric.replace("_", " "), metric_value(result.metric, result.value)
        name, shown = (name, f"{shown} %") if unit == "%" else (f"{name} {unit}".rstrip(), shown)
        # Text, because rich would take square brackets in a name for markup.
        table.add_row(*map(Text, [*[""] * depth, *parts[depth:], name, shown]))
        above = parts
    return table


def language_table(metrics: Mapping[str, float], *, title: str, protocol: str) -> Table:
    """A table for `rich.console.Console` with a line for each language and one for their average.

    Args:
        metrics: Values of one protocol by key; counts are left out.
        title: Title of the table, followed by the protocol.
        protocol: That of the keys.
    """
    lines: dict[str, dict[str, str]] = {}
    average: dict[str, str] = {}
    for key, value in metrics.items():
        name, language, split, metric = split_key(key)
        if not isinstance(value, int):
            line = average if MEAN.fullmatch(language) else lines.setdefault(language, {})
            heading = f"{name.removesuffix(f'-{protocol}')} {split}\n{metric} {metric_unit(metric)}".rstrip()
            line[heading] = metric_value(metric, value)
    headings = list(dict.fromkeys(heading for line in lines.values() for heading in line))
    table = Table(title=escape(f"{title}: {protocol}"))
    table.add_column("language")
    for heading in headings:
        table.add_column(Text(heading), justify="right", overflow="fold")
    for language, line in lines.items():
        table.add_row(language, *(line.get(heading, "") for heading in headings))
    if average:
        table.add_section()
        table.add_row("avg", *(average.get(heading, "") for heading in headings))
    return table


def _plain_number(key: str, value: Any) -> int | float:
    number = value.item() if hasattr(value, "item") else value
    if not isinstance(number, (int, float)) or not math.isfinite(number):
        raise XlsrError(f"metric '{key}' must be a finite number, got {value!r}.")
    return number


def _versions() -> dict[str, str]:
    versions = {"hf_xlsr": version("hf-xlsr"), "python": platform.python_version()}
    for package in PACKAGES:
        # mteb counts only where it took part; FAISS may be installed under another name.
        if package == "mteb" and package not in sys.modules:
            continue
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    return versions
