"""Results from metrics by key, as the protocols would give them."""

from __future__ import annotations

import re
from collections.abc import Mapping

from hf_xlsr.evaluation.protocols import NAMES
from hf_xlsr.evaluation.results import Results, measured


def results(metrics: Mapping[str, float]) -> Results:
    """Results with the keys and values of `metrics`; languages are divided at the first hyphen."""
    found = Results()
    for key, value in metrics.items():
        name, languages, split, metric = key.split("/", 3)
        # The whole end of the name, as in `x-tatoeba-mteb`, or else the last protocol in it, as in `my-nli-bucc-k4`.
        ends = [len(name) - len(protocol) for protocol in NAMES if re.search(f"(^|-){protocol}$", name)]
        inside = [match.end(1) for protocol in NAMES for match in re.finditer(f"(^|-){protocol}-", name)]
        start = min(ends) if ends else max(inside, default=0)
        dataset, protocol = name[:start].rstrip("-") or name, name[start:]
        if "-average-of-" in name:
            protocol, _, count = name.rpartition("-average-of-")
            dataset = f"average-of-{count}"
        first, _, second = languages.partition("-")
        sides = (first, second) if second and first != "mean" else languages
        found |= measured(dataset, protocol, sides, split, {metric: value})
    assert list(found) == list(metrics)
    return found


def loaded(metrics: Mapping[str, float]) -> dict[str, object]:
    """What `load_results` would give."""
    empty: dict[str, object] = {"created": "2026-01-01T00:00:00+00:00", "settings": {}, "data_sha256": {}}
    return {**empty, "versions": {}, "metrics": results(metrics)}
