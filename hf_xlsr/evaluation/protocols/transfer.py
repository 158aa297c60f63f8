"""Protocols `zero-shot` and `nli`: a classifier of texts or pairs, trained in one language and tested in others."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from typing_extensions import Unpack

from hf_xlsr.encoders.encoding import Encoder, EncodingOptions
from hf_xlsr.evaluation.protocol import Options, option
from hf_xlsr.evaluation.protocol_kinds import row_protocol
from hf_xlsr.evaluation.reading import TrainedInputs, read_trained
from hf_xlsr.evaluation.results import Results, measured
from hf_xlsr.evaluation.rows import LabelledTexts, Row, by_language, read_labelled
from hf_xlsr.utils.errors import XlsrError


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
        encoder: Anything with a sentence-transformers style `encode`. Head `trained` needs a sentence-transformers model,
            of which it trains a copy.
        train: Training rows `{"text": ..., "label": ...}`; `dev` are those to choose on, in the same `train_language`.
        tests: Rows to test on, by language.
        head: `linear`, logistic regression; `mlp`, LASER's network for MLDoc (see `fit_mlp`); `trained`, a linear layer
            trained together with the encoder (see `fine_tune`).
        epochs: Passes over `train`; by default 500 for `mlp` and 3 for `trained`.
        learning_rate: By default 1e-3 for `mlp` and 2e-5 for `trained`.

    Returns:
        For head `linear` trained on `en`: `accuracy` and `documents` under `{name}-zero-shot-linear/en-fr/{split}/`
        for each test language `fr`, and `accuracy` on `dev` under `{name}-zero-shot-linear/en-en/dev/`.
    """
    from hf_xlsr.evaluation.classifiers import MLDOC_MLP

    return _transfer(
        encoder,
        read_labelled(train, dev, tests, texts=["text"]),
        encoding,
        (name, f"zero-shot-{head}", split),
        count="documents",
        language=train_language,
        head=head,
        mlp=MLDOC_MLP,
        epochs=epochs,
        learning_rate=learning_rate,
        seed=seed,
    )


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
            or 0, 1, 2. Rows with `-`, -1 or an empty label are dropped and counted.
        head: As in `zero_shot`; `mlp` is LASER's network for XNLI (hidden widths 512 and 384, dropout 0.3, batches of
            128, by default 200 epochs; see `fit_mlp`).
        seed: Of weights, dropout and order of pairs, by default the number in LASER's script.

    Returns:
        For head `mlp` trained on `en`: `accuracy` and `pairs` under `{name}-nli-mlp/en-de/{split}/` for each test
        language `de`, and `accuracy` on `dev` under `{name}-nli-mlp/en-en/dev/`; `dropped` where test rows had no label.
    """
    from hf_xlsr.evaluation.classifiers import XNLI_MLP

    return _transfer(
        encoder,
        read_labelled(train, dev, tests, texts=["premise", "hypothesis"], clean=_relation),
        encoding,
        (name, f"nli-{head}", split),
        count="pairs",
        language=train_language,
        head=head,
        mlp=XNLI_MLP,
        epochs=epochs,
        learning_rate=learning_rate,
        seed=seed,
    )


def _relation(label: Any, row: int, name: str) -> str | None:
    """The name of a label of natural language inference, which may be a number; None for no label."""
    from hf_xlsr.data.label_tasks import NLI_TASK

    with suppress(ValueError):
        number = NLI_TASK.value(label)
        return None if number is None else NLI_TASK.labels[int(number)]
    raise XlsrError(f"Row {row} of {name} has label {label!r:.40}, not entailment, neutral, contradiction, 0, 1 or 2.")


def _transfer(
    encoder: Encoder,
    rows: tuple[LabelledTexts, LabelledTexts, dict[str, LabelledTexts]],
    encoding: EncodingOptions,
    key: tuple[str, str, str],
    *,
    count: str,
    language: str,
    **training: Any,
) -> Results:
    """Trains a head in a language and tests it in each language; `key` is the data's name, the protocol and the split."""
    from hf_xlsr.evaluation.classifiers import features_of, learn_classifier

    train, dev, tests = rows
    name, protocol, split = key
    classifier = learn_classifier(
        encoder,
        train,
        dev,
        language=language,
        **training,
        **encoding,
    )
    results = measured(name, protocol, (language, language), "dev", {"accuracy": classifier.dev_accuracy})
    for test_language, texts in tests.items():
        features = features_of(classifier.encoder, texts.sides, test_language, **encoding)
        is_right = classifier.predict(features) == texts.labels

        languages = (language, test_language)
        counts = {count: len(is_right)}
        if texts.dropped:
            counts["dropped"] = texts.dropped
        results |= measured(name, protocol, languages, split, counts, {"accuracy": is_right})

    return results


SEED = "seed of everything random (default: senteval 1111, nli 159753, as published; else 1)"


@dataclass(frozen=True)
class TrainedOptions(Options):
    """Options of a protocol that trains a head in one language; `head` and `seed` have defaults of the protocol."""

    train: tuple[str, ...] = option(
        (), "rows to train a head on (default: split train of --data)", data=True, files=True
    )
    tune: tuple[str, ...] = option((), "data to tune on: the threshold, the head", data=True, files=True)
    train_language: str | None = option(None, "language of --train (default: the first of --languages)", data=True)
    hold_out: str | None = option(
        None, "column: choose the head on a tenth of the training rows, by crc32 of this column", data=True
    )
    epochs: int | None = option(None, "epochs of the head's training")
    learning_rate: float | None = option(None, "learning rate of the head's training")


@dataclass(frozen=True)
class ZeroShotOptions(TrainedOptions):
    head: Literal["linear", "mlp", "trained"] = option("linear", "classifier")
    seed: int = option(1, SEED)


@dataclass(frozen=True)
class NliOptions(TrainedOptions):
    head: Literal["linear", "mlp", "trained"] = option("mlp", "classifier")
    seed: int = option(159753, SEED)


def _run(
    function: Callable[..., Results], encoder: Encoder, inputs: TrainedInputs, options: TrainedOptions
) -> Results:
    return function(
        encoder,
        inputs.train,
        inputs.tune,
        by_language(inputs.rows),
        train_language=inputs.train_language,
        **inputs.common,
        **options.arguments(),
    )


PROTOCOLS = (
    row_protocol(
        "zero-shot",
        "accuracy in every language of a classifier trained in one",
        ("text", "label"),
        read_trained,
        partial(_run, zero_shot),
        ZeroShotOptions,
        headline="accuracy",
    ),
    row_protocol(
        "nli",
        "accuracy in every language of an inference classifier trained in one",
        ("premise", "hypothesis", "label"),
        read_trained,
        partial(_run, nli),
        NliOptions,
        headline="accuracy",
    ),
)
