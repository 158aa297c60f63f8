"""Cleaning of streams of rows, counted step by step."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, cast

from hf_xlsr.data.cleaning_steps import (
    TEXT_COLUMNS,
    Deduplicate,
    DropIdentical,
    LanguageFilter,
    LengthBounds,
    Normalize,
    RatioBounds,
    RemoveEvaluation,
    Row,
    Sample,
    Step,
    evaluation_keys,
)
from hf_xlsr.data.normalization import match_key, normalize_text
from hf_xlsr.utils.errors import XlsrError, did_you_mean

__all__ = [
    "STEPS",
    "TEXT_COLUMNS",
    "Cleaner",
    "Deduplicate",
    "DropIdentical",
    "LanguageFilter",
    "LengthBounds",
    "Normalize",
    "RatioBounds",
    "RemoveEvaluation",
    "Sample",
    "Step",
    "build_cleaner",
    "build_text_cleaner",
    "evaluation_keys",
    "match_key",
    "normalize_text",
]

_BATCH_ROWS = 1024


class Cleaner:
    """Runs rows through steps, one after the other, and counts.

    Rows are read in batches of 1024, since steps with a memory are several times as fast on batches; the counts are those
    of the rows yielded so far, as if each row were processed alone. The memory of a step lasts as long as the step:
    several corpora are deduplicated against each other, and a second pass over the same corpus needs a new cleaner.

    Args:
        steps: The steps in order.

    Example:
        >>> cleaner = Cleaner([Normalize(), DropIdentical()])
        >>> list(cleaner([{"source": "a  b", "target": "c"}, {"source": "OK", "target": "ok."}]))
        [{'source': 'a b', 'target': 'c'}]
        >>> cleaner.counts
        {'normalize': {'in': 2, 'out': 2, 'changed': 1}, 'drop_identical': {'in': 2, 'out': 1, 'changed': 0}}
    """

    def __init__(self, steps: Iterable[Step] = ()) -> None:
        self.steps: list[Step] = list(steps)
        self._counts: dict[int, dict[str, int]] = {}

    def __call__(self, rows: Iterable[Row]) -> Iterator[Row]:
        """Yields the rows that are kept, in order."""
        stream = iter(rows)
        while batch := list(islice(stream, _BATCH_ROWS)):
            yield from self._clean(batch)

    def _clean(self, batch: list[Row]) -> Iterator[Row]:
        stages: list[list[Row | None]] = [list(batch)]
        for step in self.steps:
            alive = [(place, row) for place, row in enumerate(stages[-1]) if row is not None]
            after: list[Row | None] = [None] * len(batch)
            for (place, _), row in zip(alive, step.apply([row for _, row in alive]), strict=True):
                after[place] = row
            stages.append(after)
        counts = list(self.counts.values())
        for row_stages in zip(*stages, strict=True):
            for count, before, now in zip(counts, row_stages, row_stages[1:], strict=False):
                if before is None:
                    break
                count["in"] += 1
                count["out"] += now is not None
                count["changed"] += now is not None and now is not before
            if row_stages[-1] is not None:
                yield row_stages[-1]

    @property
    def counts(self) -> dict[str, dict[str, int]]:
        """Step -> rows `in`, rows `out`, and how many of these the step `changed`.

        The second step of one name is called `length-2`.
        """
        counts: dict[str, dict[str, int]] = {}
        names = [step.name for step in self.steps]
        for place, step in enumerate(self.steps):
            repeat = names[:place].count(step.name)
            name = f"{step.name}-{repeat + 1}" if repeat else step.name
            counts[name] = self._counts.setdefault(id(step), {"in": 0, "out": 0, "changed": 0})
        return counts

    def report(self) -> list[dict[str, Any]]:
        """The counts as rows of a table: `step`, `in`, `out`, `changed`, `removed` and `removed_share`."""
        return [
            {
                "step": name,
                **count,
                "removed": count["in"] - count["out"],
                "removed_share": (count["in"] - count["out"]) / max(count["in"], 1),
            }
            for name, count in self.counts.items()
        ]


STEPS: Mapping[str, type] = {
    step.name: step
    for step in (Normalize, Deduplicate, LengthBounds, RatioBounds, DropIdentical, LanguageFilter, Sample)
}
"""The steps that a recipe can name; `RemoveEvaluation` takes texts, not options."""


def build_cleaner(
    config: Sequence[str | Mapping[str, Any]] | Mapping[str, Any], languages: Sequence[str] | None = None
) -> Cleaner:
    """Builds a cleaner from the `cleaning` section of a recipe.

    Args:
        config: A list of steps, each a name or `{name: options}`; or a mapping from names to options or None.
        languages: Default languages of `LanguageFilter`.

    Raises:
        XlsrError: a step or an option is unknown, missing or invalid.

    Example:
        >>> cleaner = build_cleaner([{"normalize": {"form": "NFC"}}, "deduplicate", {"length": {"max_chars": 500}}])
        >>> [step.name for step in cleaner.steps]
        ['normalize', 'deduplicate', 'length']
    """
    steps: list[tuple[Any, Any]] = []
    for entry in [config] if isinstance(config, Mapping) else config:
        steps += entry.items() if isinstance(entry, Mapping) else [(entry, None)]
    return Cleaner(_build_step(name, options, languages) for name, options in steps)


def build_text_cleaner(
    config: Sequence[str | Mapping[str, Any]] | Mapping[str, Any], languages: Sequence[str] | None = None
) -> Cleaner:
    """`build_cleaner` for single sentences, from a section written for pairs.

    Steps that compare two sides are ignored, and `deduplicate` on one of the sides compares the sentences.

    Example:
        >>> cleaner = build_text_cleaner(["ratio", {"deduplicate": {"on": "source"}}])
        >>> [row["text"] for row in cleaner([{"text": "Yes."}, {"text": "yes"}, {"text": "No."}])]
        ['Yes.', 'No.']
    """
    cleaner = build_cleaner(config, languages)
    cleaner.steps = [step for step in cleaner.steps if not isinstance(step, (DropIdentical, RatioBounds))]
    for step in cleaner.steps:
        if isinstance(step, Deduplicate) and step.on in ("source", "target"):
            step.on = "pair"  # all texts of a row
    return cleaner


def _build_step(name: Any, options: Any, languages: Sequence[str] | None) -> Step:
    if name not in STEPS:
        raise XlsrError(f"cleaning step '{name}' is unknown; {did_you_mean(str(name), STEPS)}")
    options = {"languages": languages} | (options or {}) if name == LanguageFilter.name else options or {}
    try:
        return cast(Step, STEPS[name](**options))
    except TypeError as error:  # an unknown or a missing option
        raise XlsrError(f"cleaning step '{name}': {str(error).partition('() ')[2] or error}.") from error
