"""Names, files and tables of results: every number says which dataset, protocol, languages and split it is of."""

from __future__ import annotations

import hashlib
import json
import math
import os
import platform
from collections.abc import Iterable, Mapping
from datetime import datetime, timezone
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rich.table import Table

from hf_xlsr.errors import XlsrError

PACKAGES = ("torch", "transformers", "sentence-transformers")


def metric_prefix(dataset: str, protocol: str, languages: str, split: str) -> str:
    """The front of a metric's key; a dataset that the protocol is named after is not named twice.

    Raises:
        XlsrError: a part is empty or holds a slash, so that the key could not be read back.

    Example:
        >>> metric_prefix("tico19", "tatoeba", "en-fr", "test")
        'tico19-tatoeba/en-fr/test'
        >>> metric_prefix("tatoeba", "tatoeba", "en-fr", "test")
        'tatoeba/en-fr/test'
    """
    for what, value in (("dataset name", dataset), ("languages", languages), ("split", split)):
        if not value or "/" in value:
            raise XlsrError(f"the {what} is '{value}'; metric keys are split at '/', so give a name without one.")
    return "/".join([protocol if dataset == protocol else f"{dataset}-{protocol}", languages, split])


def data_hash(texts: Iterable[str]) -> str:
    """SHA-256 of the texts in order, to tell whether two results are of the same data.

    Each text counts as its length in bytes (8 bytes, big-endian) and its UTF-8, so that no two lists read the same.

    Example:
        >>> data_hash(["a", "b"])[:12], data_hash(["ab"])[:12]
        ('3c9d591045bc', '9caccc24b5d7')
    """
    digest = hashlib.sha256()
    for text in texts:
        encoded = text.encode("utf-8", "surrogatepass")
        digest.update(len(encoded).to_bytes(8, "big"))
        digest.update(encoded)
    return digest.hexdigest()


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
    file.parent.mkdir(parents=True, exist_ok=True)
    # Written beside and moved into place: a run that is stopped here leaves the old results readable.
    partial = file.with_name(file.name + ".partial")
    partial.write_text(json.dumps(content, indent=2, ensure_ascii=False, default=str) + "\n", encoding="utf-8")
    partial.replace(file)


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


def results_table(metrics: Mapping[str, float], title: str) -> Table:
    """A table for the terminal, one metric a line, with a rule between protocols.

    Whole numbers are counts and stand as they are; thresholds and losses have four decimals; everything else is a
    share and stands in per cent with one decimal.

    Args:
        metrics: Values by `protocol/languages/split/metric`.
        title: Stands above the table.

    Returns:
        The table, to be printed by `rich.console.Console`.
    """
    table = Table(title=title)
    for column in ("protocol", "languages", "split", "metric"):
        table.add_column(column, no_wrap=column != "metric")
    table.add_column("value", justify="right", no_wrap=True)
    above: list[str] = [""] * 3
    for key, value in metrics.items():
        # A key of another shape, such as a trainer's eval_loss, keeps its whole name in the last column.
        parts = key.split("/", 3) if key.count("/") >= 3 else ["", "", "", key]
        if table.row_count and parts[0] != above[0]:
            table.add_section()
        depth = next((i for i in range(3) if parts[i] != above[i]), 3)
        table.add_row(*[""] * depth, *parts[depth:3], parts[3].replace("_", " "), _readable(parts[3], value))
        above = parts[:3]
    return table


def _readable(metric: str, value: float) -> str:
    if isinstance(value, int):
        return str(value)
    if metric.rsplit("/", 1)[-1].endswith(("threshold", "loss")):
        return f"{value:.4f}"
    return f"{100 * value:.1f} %"


def _plain_number(key: str, value: Any) -> int | float:
    number = value.item() if hasattr(value, "item") else value
    if not isinstance(number, (int, float)) or not math.isfinite(number):
        raise XlsrError(f"metric '{key}' is {value!r}; only finite numbers can be saved.")
    return number


def _versions() -> dict[str, str]:
    import hf_xlsr

    versions = {"hf_xlsr": hf_xlsr.__version__, "python": platform.python_version()}
    return versions | {package: version(package) for package in PACKAGES}
