"""Means over languages, under keys that have their number."""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Integral
from statistics import fmean

from hf_xlsr.evaluation.report import results_of


def mean_over_languages(metrics: Mapping[str, float]) -> dict[str, float]:
    """The metrics and, for each that was measured for several language pairs, its unweighted mean.

    Counts (integers) and thresholds are not averaged. Each direction of a pair counts as one (`en-de`, `de-en`). A head
    tested in its training language (`en-en`) is no transfer and is left out, and so are premises and hypotheses in
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
