"""Protocol `zero-shot`: a classifier learnt on frozen vectors of one language, tested on others."""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from sklearn.linear_model import LogisticRegression
from torch import nn
from tqdm.auto import tqdm
from typing_extensions import Unpack

from hf_xlsr.errors import XlsrError, nearest
from hf_xlsr.evaluation.encoding import Encoder, EncodingOptions, embed
from hf_xlsr.evaluation.report import metric_prefix

logger = logging.getLogger(__name__)

HEADS = ("linear", "mlp")
INVERSE_REGULARIZATION = (0.1, 1.0, 10.0, 100.0)

Row = Mapping[str, Any]
Predictor = Callable[[np.ndarray], np.ndarray]
Labelled = tuple[np.ndarray, np.ndarray]  # vectors (n, width) and label numbers (n,)


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
    epochs: int = 500,
    seed: int = 1,
    **encoding: Unpack[EncodingOptions],
) -> dict[str, float]:
    """Accuracy in each test language of a head trained in one language, on an encoder that stays as it is.

    Whatever is chosen (strength of the `linear` head, epoch of the `mlp` head) is chosen on `dev`, which is in the
    training language: no labelled text of another language is seen before the test.

    Args:
        encoder: Anything with a sentence-transformers style `encode`; a document is encoded as one text.
        train: Rows `{"text": ..., "label": ...}` to learn from.
        dev: Rows in the training language to choose on.
        tests: Rows to test on, by language.
        train_language: The language of `train` and `dev`.
        name: The dataset.
        head: `linear`, logistic regression, or `mlp`, LASER's for MLDoc (see `fit_mlp`).
        split: The part of the dataset that `tests` are.
        epochs: Passes over `train` of the `mlp` head.
        seed: Of the `mlp` head's weights, dropout and order of documents.
        encoding: See `EncodingOptions`; the progress bar is also of the `mlp` head's learning.

    Returns:
        For a head trained on `en`: `accuracy` and `documents` under `{name}-zero-shot/en-fr/{split}/` for each test
        language `fr`, and `accuracy` on `dev` under `{name}-zero-shot/en-en/dev/`.

    Raises:
        XlsrError: a row lacks a column, a label was not seen in training, `train` has one label only, or `head` is
            unknown.
    """
    if head not in HEADS:
        raise XlsrError(f"head is '{head}'; {nearest(head, HEADS)}")
    numbers: dict[Hashable, int] = {}
    train_texts, train_labels = _columns(train, "train")
    for label in sorted(set(train_labels), key=lambda label: (str(type(label)), label)):
        numbers[label] = len(numbers)
    if len(numbers) < 2:
        raise XlsrError(f"train has {len(numbers)} different label(s); a classifier needs two or more.")

    def vectors(texts: Sequence[str], language: str) -> np.ndarray:
        return embed(encoder, texts, language=language, **encoding)

    # All rows are read before anything is encoded: a wrong label in the last language should not cost the wait.
    dev_texts, dev_labels = _columns(dev, "dev", numbers)
    read = {language: _columns(rows, f"tests['{language}']", numbers) for language, rows in tests.items()}
    learn = vectors(train_texts, train_language), np.array([numbers[label] for label in train_labels])
    choose = vectors(dev_texts, train_language), np.array([numbers[label] for label in dev_labels])
    if head == "linear":
        predict, dev_accuracy = fit_linear(learn, choose)
    else:
        predict, dev_accuracy = fit_mlp(
            learn,
            choose,
            classes=len(numbers),
            epochs=epochs,
            seed=seed,
            show_progress_bar=encoding.get("show_progress_bar", False),
        )
    chosen_on = metric_prefix(name, "zero-shot", f"{train_language}-{train_language}", "dev")
    metrics: dict[str, float] = {f"{chosen_on}/accuracy": dev_accuracy}
    for language, (texts, labels) in read.items():
        prefix = metric_prefix(name, "zero-shot", f"{train_language}-{language}", split)
        truth = np.array([numbers[label] for label in labels])
        metrics[f"{prefix}/accuracy"] = float((predict(vectors(texts, language)) == truth).mean())
        metrics[f"{prefix}/documents"] = len(texts)
    return metrics


def fit_linear(train: Labelled, dev: Labelled) -> tuple[Predictor, float]:
    """Logistic regression; its inverse regularisation strength is the one of 0.1, 1, 10, 100 that is best on `dev`.

    Args:
        train: Vectors `(n, width)` and label numbers `(n,)` to learn from.
        dev: Likewise, to choose on; a tie goes to the stronger regularisation.

    Returns:
        A function from vectors to label numbers, and the accuracy on `dev`.
    """
    models = [LogisticRegression(C=strength, max_iter=1000).fit(*train) for strength in INVERSE_REGULARIZATION]
    accuracies = [float(model.score(*dev)) for model in models]
    best = int(np.argmax(accuracies))
    logger.info("linear head: C=%s, %.2f %% of dev right", INVERSE_REGULARIZATION[best], 100 * accuracies[best])
    return models[best].predict, accuracies[best]


def fit_mlp(
    train: Labelled,
    dev: Labelled,
    *,
    classes: int,
    hidden: Sequence[int] = (10, 8),
    dropout: float = 0.2,
    learning_rate: float = 1e-3,
    batch_size: int = 12,
    epochs: int = 500,
    seed: int = 1,
    show_progress_bar: bool = False,
) -> tuple[Predictor, float]:
    """A small tanh network, by default LASER's for MLDoc; the weights of the epoch that is best on `dev` are kept.

    Dropout stands before every linear layer, the output layer included. Adam without weight decay. Learns on the CPU
    and leaves the global random state as it was.

    Args:
        train: Vectors `(n, width)` and label numbers `(n,)` to learn from.
        dev: Likewise, to choose the epoch on; a tie goes to the later epoch.
        classes: Number of labels.
        hidden: Widths of the hidden layers.
        dropout: Probability.
        learning_rate: Of Adam.
        batch_size: Documents per step.
        epochs: Passes over `train`.
        seed: Of weights, dropout and the order of the documents.
        show_progress_bar: Show one over the epochs.

    Returns:
        A function from vectors to label numbers, and the accuracy on `dev`.

    Raises:
        XlsrError: `epochs` is below 1.
    """
    if epochs < 1:
        raise XlsrError(f"epochs is {epochs}; the mlp head needs 1 or more.")
    features, labels = torch.from_numpy(train[0]), torch.from_numpy(train[1])
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)  # torch.manual_seed would also reseed accelerators
        widths = [features.shape[1], *hidden, classes]
        layers: list[nn.Module] = []
        for wide, narrow in zip(widths, widths[1:], strict=False):
            layers += [nn.Dropout(dropout), nn.Linear(wide, narrow), nn.Tanh()]
        network = nn.Sequential(*layers[:-1])
        optimizer = torch.optim.Adam(network.parameters(), lr=learning_rate)

        def predict(vectors: np.ndarray) -> np.ndarray:
            with torch.inference_mode():
                return network.eval()(torch.from_numpy(vectors)).argmax(1).numpy()

        best_accuracy, best_state = -1.0, network.state_dict()
        for _ in tqdm(range(epochs), desc="mlp head", disable=not show_progress_bar):
            network.train()
            for rows in torch.randperm(len(features)).split(batch_size):
                optimizer.zero_grad()
                F.cross_entropy(network(features[rows]), labels[rows]).backward()
                optimizer.step()
            accuracy = float((predict(dev[0]) == dev[1]).mean())
            if accuracy >= best_accuracy:
                best_accuracy = accuracy
                best_state = {key: value.clone() for key, value in network.state_dict().items()}
    network.load_state_dict(best_state)
    return predict, best_accuracy


def _columns(
    rows: Iterable[Row], name: str, known: Mapping[Hashable, int] | None = None
) -> tuple[list[str], list[Hashable]]:
    """Texts and labels of the rows; labels have to be among the known ones."""
    texts: list[str] = []
    labels: list[Hashable] = []
    for number, row in enumerate(rows):
        for column, values in (("text", texts), ("label", labels)):
            if column not in row:
                raise XlsrError(f"row {number} of {name} has no column '{column}'; give each row a text and a label.")
            values.append(row[column])
        if known is not None and labels[-1] not in known:
            raise XlsrError(
                f"row {number} of {name} has label {labels[-1]!r}, which train does not have; "
                f"its labels are {', '.join(map(repr, known))}."
            )
    if not texts:
        raise XlsrError(f"{name} has no rows; give at least one.")
    return texts, labels
