"""Names, files and tables of results: every number says which dataset, protocol, languages and split it is of."""

from __future__ import annotations

import json
import math
import os
import platform
import re
import sys
from collections.abc import Mapping
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from rich.markup import escape
from rich.table import Table
from rich.text import Text

from hf_xlsr.utils.errors import XlsrError
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
# The dataset is as long as can be, for it may be called like a protocol (`my-nli-tatoeba`): the last name counts.
PROTOCOL = re.compile(
    r"(?:(.+)-)?(tatoeba(?:-laser|-xtreme|-mteb)?"
    r"|(?:xsim|xsr|bucc|sts|senteval|language-bias|zero-shot|nli|pair-classification|mining|(?<!tatoeba-)mteb|bleu)"
    r"(?:-.+)?|fine-tuning|cross-lingual-test|translate-(?:test|train(?:-all)?))"
)
LONGEST_METRIC = 40  # characters that stand on one line of a table for the terminal
# Words of metrics' names. Correlations and F1 are no shares of anything: they stand times 100, without a sign.
PLAIN_WORDS = {"bias", "threshold", "loss", "mse", "margin", "seconds"}
SCORE_WORDS = {"spearman", "pearson", "matthews", "bleu", "f1", "ap", "score"}


def metric_prefix(dataset: str, protocol: str, languages: str, split: str) -> str:
    """The front of a metric's key; a dataset that the protocol, or its family, is named after is not named twice.

    Raises:
        XlsrError: a part is empty or holds a slash, so that the key could not be read back.

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
            raise XlsrError(f"the {what} is '{value}'; metric keys are split at '/', so give a name without one.")
    named = protocol == dataset or protocol.startswith(f"{dataset}-")
    return "/".join([protocol if named else f"{dataset}-{protocol}", languages, split])


def split_key(key: str) -> tuple[str, str, str, str]:
    """Protocol (with the dataset), languages, split and metric of a key; a key of another shape is all metric.

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
    """Dataset and protocol of the first part of a key; without a protocol that is known it is all dataset.

    A dataset that the protocol is named after, and an average over datasets, come without a dataset. Where a dataset
    is called like a protocol, the last protocol in the name is the one.

    Example:
        >>> split_protocol("tico19-tatoeba-laser"), split_protocol("STS12-sts"), split_protocol("tatoeba")
        (('tico19', 'tatoeba-laser'), ('STS12', 'sts'), ('', 'tatoeba'))
        >>> split_protocol("sts-average-of-7"), split_protocol("my-nli-tatoeba-mteb")
        (('', 'sts-average-of-7'), ('my-nli', 'tatoeba-mteb'))
    """
    match = PROTOCOL.fullmatch(name)
    return (match[1] or "", match[2]) if match else (name, "")


def metric_unit(metric: str) -> str:
    """How `metric_value` writes a metric that is no count: `%`, `×100` or nothing.

    Shares (accuracy, precision, recall, error rates) stand in per cent. Correlations, F1 and average precision (`ap`)
    stand times 100 and without a sign, as papers print them. Thresholds, losses, margins, biases and seconds stand as
    they are.

    Example:
        >>> [metric_unit(name) for name in ("source_to_target_error", "weighted_f1", "all_spearman", "threshold")]
        ['%', '×100', '×100', '']
    """
    words = metric.lower().replace("/", "_").replace("-", "_").split("_")
    if words[-1] in PLAIN_WORDS:
        return ""
    return "×100" if SCORE_WORDS.intersection(words) or words[-2:] == ["average", "precision"] else "%"


def metric_value(metric: str, value: float) -> str:
    """A value as tables and plots write it, without its unit: a count whole, a plain number with four decimals.

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
    """Refuses a place that results cannot be written to, before the work is done; nothing is made there.

    Args:
        path: The file, or the folder.
        option: Who names it, for the error sentence.
        folder: Whether it is a folder that files are to go into.

    Raises:
        XlsrError: it is a folder where a file is meant or the other way round, a file stands on the way to it, or it is
            not writable, or the folder that it would be made in.
    """
    place = Path(path)
    if not folder and os.path.isdir(place):
        raise XlsrError(f"{option} is '{path}', which is a folder; give a file.")
    if not folder and is_stream(place):
        if not os.access(place, os.W_OK):
            raise XlsrError(f"{option} is '{path}', which is not writable; give another place.")
        return
    # The nearest thing on the way that is there already: the rest is made. (`Path.exists` raises in a locked folder.)
    home = place if folder else place.parent
    while not os.path.exists(home) and home != home.parent:
        home = home.parent
    if not os.path.isdir(home):
        raise XlsrError(f"{option} is '{path}', but {home} is a file; give another place.")
    if not os.access(home, os.W_OK | os.X_OK):
        raise XlsrError(f"{option} is '{path}', but the folder {home} is not writable; give another place.")


def save_results(
    path: str | os.PathLike[str],
    metrics: Mapping[str, float],
    *,
    settings: Mapping[str, Any],
    data_hashes: Mapping[str, str] | None = None,
) -> None:
    """Writes metrics as JSON together with what produced them; a file that is there is replaced whole.

    Args:
        path: The file; folders on the way are made.
        metrics: Values by key; whole numbers are counts.
        settings: Model, protocol arguments, seed: whatever is needed to measure again.
        data_hashes: `data_hash` of the evaluated texts, by a name.

    Raises:
        XlsrError: a metric is not a finite number, or the file cannot be written.
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
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(file) as partial:
            partial.write_text(text, encoding="utf-8")
    except OSError as error:
        raise XlsrError(f"results {file} cannot be written ({error.strerror}); give another place.") from error


def load_results(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Reads what `save_results` wrote: `created`, `versions`, `settings`, `data_sha256` and `metrics`.

    Raises:
        XlsrError: the file is missing or is no results file.
    """
    file = Path(path)
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise XlsrError(f"results {file} cannot be read ({error.strerror}); check the path.") from error
    except ValueError as error:
        raise XlsrError(f"results {file} is not JSON ({error}); evaluate again to replace it.") from error
    if not isinstance(content, dict) or not isinstance(content.get("metrics"), dict):
        raise XlsrError(f"results {file} has no 'metrics'; give a file that `save_results` wrote.")
    return content


def metrics_of(results: Mapping[str, Any]) -> dict[str, float]:
    """The metrics of what `load_results` gave; metrics that come bare are taken as they are.

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
    """A table for the terminal, one metric a line, with a rule between protocols.

    Counts stand as they are, thresholds and losses have four decimals, shares and error rates stand in per cent with
    one decimal; correlations and F1 are written times 100, which their names then say (`spearman ×100`).

    At 80 columns, which a log or a pipe has, no name and no number is cut: names go on in the next line.

    Args:
        metrics: Values by `protocol/languages/split/metric`.
        title: Stands above the table.

    Returns:
        The table, to be printed by `rich.console.Console`.
    """
    table = Table(title=escape(title))
    for column in ("protocol", "languages", "split"):
        table.add_column(column, overflow="fold")
    # A metric longer than that would leave the others no room, and rich cuts what may not fold.
    longest = max((len(split_key(key)[3]) for key in metrics), default=0)
    table.add_column("metric", overflow="fold", no_wrap=longest <= LONGEST_METRIC)
    table.add_column("value", justify="right", no_wrap=True)
    above: tuple[str, ...] = ("", "", "")
    for key, value in metrics.items():
        *parts, metric = split_key(key)
        if table.row_count and parts[0] != above[0]:
            table.add_section()
        depth = next((i for i in range(3) if parts[i] != above[i]), 3)
        name, shown = metric.replace("_", " "), metric_value(metric, value)
        if not isinstance(value, int):
            unit = metric_unit(metric)
            name, shown = (name, f"{shown} %") if unit == "%" else (f"{name} {unit}".rstrip(), shown)
        # Text, for a name may hold square brackets, which rich would take for markup.
        table.add_row(*map(Text, [*[""] * depth, *parts[depth:], name, shown]))
        above = tuple(parts)
    return table


def _plain_number(key: str, value: Any) -> int | float:
    number = value.item() if hasattr(value, "item") else value
    if not isinstance(number, (int, float)) or not math.isfinite(number):
        raise XlsrError(f"metric '{key}' is {value!r}; metrics are finite numbers.")
    return number


def _versions() -> dict[str, str]:
    versions = {"hf_xlsr": version("hf-xlsr"), "python": platform.python_version()}
    for package in PACKAGES:
        # mteb counts only where it took part; FAISS may have come without a package of this name.
        if package == "mteb" and package not in sys.modules:
            continue
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    return versions
