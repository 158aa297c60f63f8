"""Results from metrics by key, as the protocols would give them."""

from __future__ import annotations

import re
from collections.abc import Mapping

from hf_xlsr.evaluation.protocols import NAMES
from hf_xlsr.evaluation.results import Results, measured


def results(metrics: Mapping[str, float]) -> Results:
    """Results with the keys and values of `metrics`; languages are divided at the first hyphen."""
    results = Results()
    for key, value in metrics.items():
        name, languages, split, metric = key.split("/", 3)
        start = start_of_protocol(name)
        dataset = name[:start].rstrip("-") or name
        protocol = name[start:]
        if "-average-of-" in name:
            protocol, _, count = name.rpartition("-average-of-")
            dataset = f"average-of-{count}"

        first, _, second = languages.partition("-")
        sides = (first, second) if second and first != "mean" else languages
        results |= measured(dataset, protocol, sides, split, {metric: value})

    assert list(results) == list(metrics)
    return results


def start_of_protocol(name: str) -> int:
    """Of the whole end of a name, as in `x-tatoeba-mteb`, or else of the last protocol, as in `my-nli-bucc-k4`."""
    starts_of_ends = []
    starts = [0]
    for protocol in NAMES:
        if re.search(f"(^|-){protocol}$", name):
            starts_of_ends.append(len(name) - len(protocol))
        for match in re.finditer(f"(^|-){protocol}-", name):
            starts.append(match.end(1))
    return min(starts_of_ends or [max(starts)])


def loaded(metrics: Mapping[str, float]) -> dict[str, object]:
    """What `load_results` would give."""
    return {
        "created": "2026-01-01T00:00:00+00:00",
        "settings": {},
        "data_sha256": {},
        "versions": {},
        "metrics": results(metrics),
    }
