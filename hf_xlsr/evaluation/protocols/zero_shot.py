"""Protocol `zero-shot`: a classifier of documents, trained in one language and tested in others."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from typing_extensions import Unpack

from hf_xlsr.encoders.encoding import Encoder, EncodingOptions
from hf_xlsr.evaluation.inputs import read_trained
from hf_xlsr.evaluation.registry import TrainedOptions, option, row_protocol, run_trained
from hf_xlsr.evaluation.results import Results, averaged, measured
from hf_xlsr.evaluation.rows import Row, read_labelled


def zero_shot(
    encoder: Encoder,
    train: Iterable[Row],
    dev: Iterable[Row],
    tests: Mapping[str, Iterable[Row]],
    *,
    train_language: str,
    name: str,
    head: str = "linear",
    split: str = "test",
    epochs: int | None = None,
    learning_rate: float | None = None,
    seed: int = 1,
    **encoding: Unpack[EncodingOptions],
) -> Results:
    """Accuracy in each test language of a head trained in one language.

    The regularisation of the `linear` head and the epoch of the others are chosen on `dev`, which is in the training
    language: no labelled text of another language is seen before the test.

    Args:
        encoder: Anything with a sentence-transformers style `encode`; a document is encoded as one text. Head
            `trained` needs a sentence-transformers model, of which it trains a copy.
        train: Training rows `{"text": ..., "label": ...}`.
        dev: Rows in the training language to choose on.
        tests: Rows to test on, by language.
        train_language: The language of `train` and `dev`.
        head: `linear`, logistic regression; `mlp`, LASER's network for MLDoc (see `fit_mlp`); `trained`, a linear layer
            trained together with the encoder (see `fine_tune`).
        epochs: Passes over `train`; by default 500 for `mlp` and 3 for `trained`.
        learning_rate: By default 1e-3 for `mlp` and 2e-5 for `trained`.

    Returns:
        For head `linear` trained on `en`: `accuracy` and `documents` under `{name}-zero-shot-linear/en-fr/{split}/`
        for each test language `fr`, and `accuracy` on `dev` under `{name}-zero-shot-linear/en-en/dev/`.
    """
    from hf_xlsr.evaluation.classifiers import MLDOC_MLP, features_of, learn_classifier

    learn, choose, judge = read_labelled(train, dev, tests, texts=["text"])
    protocol = f"zero-shot-{head}"
    training: dict[str, Any] = {"epochs": epochs, "learning_rate": learning_rate, "seed": seed, **encoding}
    classifier = learn_classifier(
        encoder, learn, choose, language=train_language, head=head, mlp=MLDOC_MLP, **training
    )
    results = measured(name, protocol, (train_language,) * 2, "dev", {"accuracy": classifier.dev_accuracy})
    for language, (texts, truth) in judge.items():
        predicted = classifier.predict(features_of(classifier.encoder, texts, (language,), **encoding))
        right = predicted == truth
        pair = train_language, language
        results |= averaged(name, protocol, pair, split, {"accuracy": right}, {"documents": len(truth)})
    return results


@dataclass(frozen=True)
class ZeroShotOptions(TrainedOptions):
    head: Literal["linear", "mlp", "trained"] = option("linear", "classifier")
    seed: int = option(1, "seed of everything random (default: senteval 1111, nli 159753, as published; else 1)")


PROTOCOL = row_protocol(
    "zero-shot",
    "accuracy in every language of a classifier trained in one",
    ("text", "label"),
    run_trained(zero_shot),
    ZeroShotOptions,
    read=read_trained,
)
