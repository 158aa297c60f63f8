"""Means over languages, under keys that say how many there are."""

from __future__ import annotations

import re
from collections.abc import Mapping
from numbers import Integral
from statistics import fmean

from hf_xlsr.evaluation.report import split_key

MEAN = re.compile(r"mean-of-\d+")


def mean_over_languages(metrics: Mapping[str, float]) -> dict[str, float]:
    """The metrics and, for each that was measured for several language pairs, its unweighted mean.

    Metrics belong together when dataset, protocol, split and name are the same. Counts (whole numbers) and thresholds
    are not averaged, and neither are keys of another shape. Each direction of a pair counts as one (`en-de`, `de-en`).
    A head tested in the language that it learnt (`en-en`) is no transfer and is left out, and so are premises and
    hypotheses in different languages (`en-de_fr`). A mean that is there already is computed again.

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
    for key, value in metrics.items():
        protocol, languages, split, metric = split_key(key)
        if not protocol or MEAN.fullmatch(languages) or isinstance(value, Integral):
            continue
        half = len(languages) // 2
        if languages[:half] == languages[half + 1 :] or "_" in languages.partition("-")[2]:
            continue
        # A threshold is a setting that was found, not a score: its mean says nothing.
        if not metric.endswith("threshold"):
            groups.setdefault((protocol, split, metric), []).append(float(value))
    means = {
        f"{protocol}/mean-of-{len(values)}/{split}/{metric}": fmean(values)
        for (protocol, split, metric), values in groups.items()
        if len(values) > 1
    }
    return {**metrics, **means}
