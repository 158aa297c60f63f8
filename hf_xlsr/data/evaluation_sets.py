"""The rows of evaluation sets, in memory."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from hf_xlsr.data.columns import Row
from hf_xlsr.data.encoding import PAIRS
from hf_xlsr.data.label_tasks import LabelledSet, LabelledTask
from hf_xlsr.data.sources import Source, open_source, without_repeats
from hf_xlsr.data.training_rows import labelled_rows
from hf_xlsr.utils.errors import XlsrError

logger = logging.getLogger(__name__)


def evaluation_pairs(
    sources: Sequence[Source],
    *,
    languages: Sequence[str],
    split: str,
) -> list[Row]:
    """The translation pairs of evaluation sets; sources that are `distinct` have no row in common."""
    rows: list[Row] = []
    for source in sources:
        rows += open_source(source, languages=languages, split=split)
    if sources and all(source.distinct for source in sources):
        return list(without_repeats(rows, PAIRS.texts))
    return rows


def labelled_sets(
    sets: Mapping[str, Sequence[Source]],
    task: LabelledTask,
    *,
    languages: Sequence[str],
    split: str,
    seed: int = 1,
) -> list[LabelledSet]:
    """Labelled evaluation sets, each of the sources under its name; rows without a label are skipped."""
    result = []
    for name, sources in sets.items():
        num_skipped = 0
        rows = []
        for row in labelled_rows(sources, task, languages=languages, split=split, seed=seed):
            if row["label"] is None:
                num_skipped += 1
            else:
                rows.append(row)

        if num_skipped:
            logger.warning("data.%s.%s: %d rows have no label and are skipped.", split, name, num_skipped)
        if not rows:
            raise XlsrError(f"data.{split}.{name} has no labelled row; check its path, columns and conditions.")
        result.append(LabelledSet(str(name), split, rows, task))

    return result
