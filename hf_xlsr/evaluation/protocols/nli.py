"""Protocol `nli`: a classifier of premise and hypothesis, trained in one language and tested in others."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from itertools import product
from typing import Any, Literal

import numpy as np
from typing_extensions import Unpack

from hf_xlsr.encoders.encoding import Encoder, EncodingOptions, embed
from hf_xlsr.evaluation.inputs import read_trained
from hf_xlsr.evaluation.pairs import pair_features
from hf_xlsr.evaluation.registry import TrainedOptions, option, row_protocol, run_trained
from hf_xlsr.evaluation.results import Results, averaged, measured
from hf_xlsr.evaluation.rows import LabelledTexts, Row, read_labelled
from hf_xlsr.utils.errors import XlsrError


def nli(
    encoder: Encoder,
    train: Iterable[Row],
    dev: Iterable[Row],
    tests: Mapping[str, Iterable[Row]],
    *,
    train_language: str,
    name: str,
    head: str = "mlp",
    split: str = "test",
    cross: bool = False,
    epochs: int | None = None,
    learning_rate: float | None = None,
    seed: int = 159753,
    **encoding: Unpack[EncodingOptions],
) -> Results:
    """Accuracy of natural language inference in each test language, with a head trained in one language.

    The head reads `[u, v, |u - v|, u * v]` with the unit embeddings u of the premise and v of the hypothesis. Its
    regularisation or epoch is chosen on `dev`, which is in the training language.

    Args, besides those of `zero_shot`:
        train: Rows `{"premise": ..., "hypothesis": ..., "label": ...}`; labels are entailment, neutral, contradiction
            or 0, 1, 2.
        head: As in `zero_shot`; `mlp` is LASER's network for XNLI (hidden widths 512 and 384, dropout 0.3, batches of
            128, by default 200 epochs; see `fit_mlp`).
        cross: Also test premises of each language with hypotheses of each other one; `tests` must hold the same pairs
            in the same order.
        seed: Of weights, dropout and order of pairs, by default the number in LASER's script.

    Returns:
        For head `mlp` trained on `en`: `accuracy` and `pairs` under `{name}-nli-mlp/en-de/{split}/` for each test
        language `de`, with `cross` also under `{name}-nli-mlp/en-de_fr/{split}/` (premise `de`, hypothesis `fr`), and
        `accuracy` on `dev` under `{name}-nli-mlp/en-en/dev/`.
    """
    from hf_xlsr.evaluation.classifiers import XNLI_MLP, learn_classifier

    learn, choose, judge = read_labelled(train, dev, tests, texts=["premise", "hypothesis"], clean=_label)
    if cross:
        _check_aligned(judge)
    protocol = f"nli-{head}"
    training: dict[str, Any] = {"epochs": epochs, "learning_rate": learning_rate, "seed": seed, **encoding}
    classifier = learn_classifier(encoder, learn, choose, language=train_language, head=head, mlp=XNLI_MLP, **training)
    results = measured(name, protocol, (train_language,) * 2, "dev", {"accuracy": classifier.dev_accuracy})

    def vectors(language: str, side: int) -> np.ndarray:
        return embed(classifier.encoder, judge[language].sides[side], language=language, **encoding)

    encoded = cache(vectors) if cross else vectors
    for one, other in product(judge, repeat=2) if cross else zip(judge, judge, strict=True):
        predicted = classifier.predict(pair_features(encoded(one, 0), encoded(other, 1)))
        right = predicted == judge[one].labels
        pair = train_language, one if one == other else f"{one}_{other}"
        results |= averaged(name, protocol, pair, split, {"accuracy": right}, {"pairs": len(predicted)})
    return results


def _label(label: Any, row: int, name: str) -> str:
    from hf_xlsr.data.labelled import NLI_TASK, label_number

    with suppress(ValueError):
        if (number := label_number(label)) is not None:
            return NLI_TASK.labels[number]
    raise XlsrError(
        f"Row {row} of {name} has an invalid label {label!r:.40}. Expected entailment, neutral, contradiction or 0, 1, "
        "2; leave out rows without a label."
    )


def _check_aligned(tests: Mapping[str, LabelledTexts]) -> None:
    (first, base), *others = tests.items()
    for language, rows in others:
        if not np.array_equal(rows.labels, base.labels):
            raise XlsrError(
                f"`cross` needs the same pairs in the same order in every language; the labels of tests['{first}'] and "
                f"tests['{language}'] differ."
            )


@dataclass(frozen=True)
class NliOptions(TrainedOptions):
    head: Literal["linear", "mlp", "trained"] = option("mlp", "classifier")
    seed: int = option(159753, "seed of everything random (default: senteval 1111, nli 159753, as published; else 1)")
    cross: bool = option(False, "also premises of one language with hypotheses of another")


PROTOCOL = row_protocol(
    "nli",
    "accuracy in every language of an inference classifier trained in one",
    ("premise", "hypothesis", "label"),
    run_trained(nli),
    NliOptions,
    read=read_trained,
)
