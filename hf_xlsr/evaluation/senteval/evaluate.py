"""Protocol `senteval`: SentEval's transfer tasks, linear classifiers on frozen sentence embeddings."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np
import torch
from typing_extensions import Unpack

from hf_xlsr.encoders.encoding import Encoder, EncodingOptions, embed
from hf_xlsr.evaluation.outcomes import f1
from hf_xlsr.evaluation.pairs import embed_pairs
from hf_xlsr.evaluation.results import Results, measured
from hf_xlsr.evaluation.rows import Row
from hf_xlsr.evaluation.senteval.classifier import Schedule
from hf_xlsr.evaluation.senteval.folds import Classification, Outcome, relatedness
from hf_xlsr.evaluation.senteval.tasks import Task, read_task
from hf_xlsr.utils.devices import resolve_device
from hf_xlsr.utils.errors import require_choice

logger = logging.getLogger(__name__)


class Setting(NamedTuple):
    protocol: str
    folds: int
    schedule: Schedule


SETTINGS = {
    "literature": Setting("senteval", 10, Schedule()),
    "fast": Setting("senteval-fast", 5, Schedule("rmsprop", batch_size=128, passes_per_check=2, tenacity=3)),
}


def senteval(
    encoder: Encoder,
    tasks: Mapping[str, Iterable[Row]],
    *,
    language: str = "en",
    setting: str = "literature",
    device: str | None = None,
    seed: int = 1111,
    **encoding: Unpack[EncodingOptions],
) -> Results:
    """SentEval's transfer tasks: a classifier on frozen embeddings, trained and tested as the toolkit does.

    | tasks | columns | weight decay chosen on | tested on |
    |---|---|---|---|
    | MR, CR, SUBJ, MPQA | `text`, `label` (no split is read) | folds of an outer fold's other rows | outer folds |
    | TREC | `text`, `label`, `split` | folds of train, which dev joins | test |
    | MRPC | `sentence1`, `sentence2`, `label`, `split` | likewise | test |
    | SST2, SST5 | `text`, `label`, `split` | dev | test |
    | SICK-E | `sentence1`, `sentence2`, `label`, `split` | dev | test |
    | SICK-R, STS-B | `sentence1`, `sentence2`, `score`, `split` | none; see `relatedness` | test |

    The classifier is one linear layer with softmax cross-entropy, its weight decay one of 1e-5, 1e-4, 1e-3, 1e-2. It
    trains until its dev accuracy has failed to rise six times in all (four in setting `fast`), and the best check is
    kept. The features of a pair are `[|u - v|, u * v]`. Embeddings are not normalised. White space in texts is reduced to
    single spaces, and rows are sorted by their numbers of words and their label, as in SentEval: folds and batches depend
    on the order.

    Args:
        tasks: Rows by the task's name, such as `MR`. A suffix after a dot may be chosen freely (`MR.de`, the same task
            in another language).
        setting: `literature`: 10 folds, Adam, batches of 64, as papers report. `fast`: 5 folds, RMSprop, batches of
            128, less patience; SentEval's setting for prototypes, with the protocol name `senteval-fast`.
        device: Where classifiers are trained; by default an accelerator if there is one.
        seed: Of the classifiers' weights and batches.

    Returns:
        - `accuracy` under `MR-senteval/en/test/`, for MRPC `f1` too, and the number of tested `sentences` or `pairs`;
          `accuracy` of the chosen weight decay, on what it was chosen on, under `MR-senteval/en/dev/`.
        - SICK-R and STS-B: `pearson`, `spearman` and `mse` (of the score) in place of the accuracy; `pearson` on dev.
        - Of two accuracies or more, the mean, under a name with their number: `senteval-average-of-5/en/test/`.

    Relations:
        SentEval (Conneau and Kiela, 2018) with PyTorch, `nhid` 0 and these settings gives the same numbers up to
        rounding: its orders, folds, weights and batches come from the same generators with the same seeds. Two things
        differ. Labels are numbered in sorted order, which differs from SentEval's for SICK-E. And the mean over outer
        folds is taken of accuracies that are not rounded first.
    """
    require_choice("setting", setting, SETTINGS)
    protocol, folds, schedule = SETTINGS[setting]
    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    place = resolve_device(device) if device else accelerator or torch.device("cpu")
    # All rows are read before anything is encoded: a wrong label in the last task should not cost the wait.
    read = {name: read_task(rows, name) for name, rows in tasks.items()}
    results = Results()
    accuracies = []
    for name, task in read.items():
        features = _features(encoder, task, language, encoding)
        if task.spec.test == "relatedness":
            rows = (task.splits[split] for split in task.spec.splits)
            dev_pearson, tested = relatedness(features, task.gold, *rows, seed=seed, device=place)
            dev = {"pearson": dev_pearson}
        else:
            classification = Classification(
                features, task.gold, schedule=schedule, folds=folds, seed=seed, device=place
            )
            outcome = _classify(classification, task)
            dev, tested = {"accuracy": outcome.dev}, {"accuracy": outcome.test}
            if task.spec.f1:
                tested["f1"] = float(f1(outcome.predicted == 1, task.gold[task.splits["test"]] == 1))
            accuracies.append(outcome.test)
        logger.info("%s: %s", name, tested)
        tested["pairs" if task.spec.pairs else "sentences"] = len(task.splits["test"])
        results |= measured(name, protocol, language, "test", tested) | measured(name, protocol, language, "dev", dev)
    if len(accuracies) > 1:
        mean = {"accuracy": float(np.mean(accuracies))}
        results |= measured(f"average-of-{len(accuracies)}", protocol, language, "test", mean)
    return results


def _features(encoder: Encoder, task: Task, language: str, encoding: EncodingOptions) -> np.ndarray:
    if not task.spec.pairs:
        return embed(encoder, task.sides[0], language=language, normalize=False, **encoding)
    first, second = task.sides
    u, v = embed_pairs(encoder, first, second, (language, language), normalize=False, **encoding)
    return np.concatenate([np.abs(u - v), u * v], axis=1)


def _classify(classification: Classification, task: Task) -> Outcome:
    rows = [task.splits[split] for split in task.spec.splits]
    if task.spec.test == "nested":
        return classification.nested(*rows)
    return classification.train_folds(*rows) if task.spec.test == "folds" else classification.fixed_dev(*rows)
