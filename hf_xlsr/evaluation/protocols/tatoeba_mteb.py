"""Protocol `tatoeba-mteb`: mteb's weighted F1 of translation retrieval."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from typing_extensions import Unpack

from hf_xlsr.encoders.encoding import Encoder, EncodingOptions
from hf_xlsr.evaluation.protocols.tatoeba import encode_pairs, nearest_row
from hf_xlsr.evaluation.registry import pair_protocol
from hf_xlsr.evaluation.results import Results, measured


def tatoeba_mteb(
    encoder: Encoder,
    sources: Sequence[str],
    targets: Sequence[str],
    *,
    languages: tuple[str, str],
    name: str = "tatoeba",
    split: str = "test",
    **encoding: Unpack[EncodingOptions],
) -> Results:
    """mteb's score of bitext tasks: each target row is a class, each source predicts one, F1 is weighted over classes.

    From the first language to the second only, by cosine. A row that several sources choose has a low precision, so F1
    is below the accuracy wherever sources share a wrong answer. Arguments are those of `tatoeba`. A tie goes to the
    lowest row; mteb leaves it to `torch.topk`, which takes any of the tied ones below 64 candidates.

    Returns:
        `f1` (mteb's main score), `precision`, `recall`, `accuracy` and `pairs` under
        `{name}-tatoeba-mteb/en-fr/test/`. The recall equals the accuracy, as each class has one row.
    """
    from sklearn.metrics import accuracy_score, precision_recall_fscore_support

    predictions = nearest_row(*encode_pairs(encoder, sources, targets, languages, **encoding))
    labels = np.arange(len(predictions))
    scores = precision_recall_fscore_support(labels, predictions, average="weighted", zero_division=0)
    values = {
        "f1": float(scores[2]),
        "precision": float(scores[0]),
        "recall": float(scores[1]),
        "accuracy": float(accuracy_score(labels, predictions)),
        "pairs": len(sources),
    }
    right = labels == predictions
    return measured(name, "tatoeba-mteb", languages, split, values, {"recall": right, "accuracy": right})


PROTOCOL = pair_protocol("tatoeba-mteb", "mteb's weighted F1, source to target", tatoeba_mteb)
