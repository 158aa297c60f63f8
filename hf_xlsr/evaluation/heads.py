"""Classifiers on sentence vectors: logistic regression, LASER's small networks, or one trained with the encoder."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from sklearn.linear_model import LogisticRegression
from tqdm.auto import tqdm
from typing_extensions import Unpack

from hf_xlsr.encoders.encoding import Encoder, EncodingOptions, embed
from hf_xlsr.evaluation.pairs import embed_pairs, pair_features
from hf_xlsr.evaluation.rows import LabelledTexts
from hf_xlsr.utils.errors import XlsrError, did_you_mean

logger = logging.getLogger(__name__)

HEADS = ("linear", "mlp", "trained")
INVERSE_REGULARIZATION = (0.1, 1.0, 10.0, 100.0)
MEAN_DECAY, SQUARE_DECAY, EPSILON = 0.9, 0.999, 1e-8  # Adam's
NUMBERS_AT_ONCE = 2**22  # of one layer's dropout masks, drawn for many batches together: 16 MiB

Predictor = Callable[[np.ndarray], np.ndarray]
Labelled = tuple[np.ndarray, np.ndarray]  # features (n, width) and label numbers (n,)


@dataclass(frozen=True)
class MlpSettings:
    """A small tanh network and how it learns; dropout stands before every layer, the first and the last included.

    Attributes:
        hidden: Widths of the hidden layers.
        dropout: Probability.
        batch_size: Rows per step.
        epochs: Passes over the rows.
        learning_rate: Of Adam, which has no weight decay.
    """

    hidden: tuple[int, ...]
    dropout: float
    batch_size: int
    epochs: int
    learning_rate: float = 1e-3


# What LASER's scripts set for the two data sets (tasks/mldoc/mldoc.sh, tasks/xnli/xnli.sh).
MLDOC_MLP = MlpSettings(hidden=(10, 8), dropout=0.2, batch_size=12, epochs=500)
XNLI_MLP = MlpSettings(hidden=(512, 384), dropout=0.3, batch_size=128, epochs=200)


class Classifier(NamedTuple):
    """A head that has learnt.

    Attributes:
        encoder: Gives the vectors that the head reads; for head `trained` a changed copy of the user's encoder.
        predict: From features `(n, width)` to label numbers `(n,)`.
        dev_accuracy: On the rows that it was chosen on.
    """

    encoder: Encoder
    predict: Predictor
    dev_accuracy: float


def learn_classifier(
    encoder: Encoder,
    train: LabelledTexts,
    dev: LabelledTexts,
    *,
    language: str,
    head: str,
    mlp: MlpSettings,
    epochs: int | None = None,
    learning_rate: float | None = None,
    seed: int = 1,
    **encoding: Unpack[EncodingOptions],
) -> Classifier:
    """Learns a head on an encoder's vectors, or together with a copy of the encoder.

    Args:
        encoder: Anything with a sentence-transformers style `encode`; for head `trained` a sentence-transformers model.
        train: Rows to learn from.
        dev: Rows to choose on: the strength of `linear`, the epoch of the others.
        language: Of `train` and `dev`.
        head: `linear` (see `fit_linear`), `mlp` (`fit_mlp`) or `trained` (`fine_tune`).
        mlp: Shape of head `mlp`.
        epochs: Other than the head's own; `linear` has none.
        learning_rate: Likewise.
        seed: Of weights, dropout and the order of rows.
        encoding: See `EncodingOptions`; the progress bar is also of the learning.

    Returns:
        The head, on features as `features_of` gives them.

    Raises:
        XlsrError: `head` is unknown, an option is out of range or means nothing for it, or the encoder cannot be
            trained.
    """
    check_head(head, epochs, learning_rate)
    chosen = {"epochs": epochs, "learning_rate": learning_rate}
    changes: dict[str, Any] = {option: value for option, value in chosen.items() if value is not None}
    classes = int(train.labels.max()) + 1
    if head == "trained":
        from hf_xlsr.evaluation.fine_tuning import fine_tune

        return fine_tune(encoder, train, dev, language=language, classes=classes, seed=seed, **changes, **encoding)
    learn, choose = (
        (features_of(encoder, rows.sides, (language,) * len(rows.sides), **encoding), rows.labels)
        for rows in (train, dev)
    )
    if head == "linear":
        return Classifier(encoder, *fit_linear(learn, choose))
    progress = encoding.get("show_progress_bar", False)
    settings = replace(mlp, **changes)
    return Classifier(
        encoder, *fit_mlp(learn, choose, classes=classes, settings=settings, seed=seed, show_progress_bar=progress)
    )


def check_head(head: str, epochs: int | None = None, learning_rate: float | None = None) -> None:
    """Checks a head's name and options, before anything is read or encoded.

    Raises:
        XlsrError: one of them is not right.
    """
    if head not in HEADS:
        raise XlsrError(f"head is '{head}'; {did_you_mean(head, HEADS)}")
    for option, value in (("epochs", epochs), ("learning_rate", learning_rate)):
        if value is not None and head == "linear":
            raise XlsrError(f"{option} is {value}, but head 'linear' has none; leave it out or take head 'mlp'.")
    if epochs is not None and epochs < 1:
        raise XlsrError(f"epochs is {epochs}; head '{head}' needs 1 or more.")
    if learning_rate is not None and not learning_rate > 0:
        raise XlsrError(f"learning_rate is {learning_rate}; give a number above 0.")


def features_of(
    encoder: Encoder, sides: Sequence[Sequence[str]], languages: Sequence[str], **encoding: Unpack[EncodingOptions]
) -> np.ndarray:
    """What a head reads: unit vectors of texts, or `pair_features` of those of both sentences.

    Args:
        encoder: Anything with a sentence-transformers style `encode`.
        sides: One list of texts, or two of equal length.
        languages: Of each of them.
        encoding: See `EncodingOptions`.

    Returns:
        `(n, width)` or `(n, 4 * width)`, float32.
    """
    if len(sides) == 1:
        return embed(encoder, sides[0], language=languages[0], **encoding)
    return pair_features(*embed_pairs(encoder, sides[0], sides[1], (languages[0], languages[1]), **encoding))


def fit_linear(train: Labelled, dev: Labelled) -> tuple[Predictor, float]:
    """Logistic regression; its inverse regularisation strength is the one of 0.1, 1, 10, 100 that is best on `dev`.

    Args:
        train: Features `(n, width)` and label numbers `(n,)` to learn from.
        dev: Likewise, to choose on; a tie goes to the stronger regularisation.

    Returns:
        A function from features to label numbers, and the accuracy on `dev`.
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
    settings: MlpSettings = MLDOC_MLP,
    seed: int = 1,
    show_progress_bar: bool = False,
) -> tuple[Predictor, float]:
    """A small tanh network, by default LASER's for MLDoc; the weights of the epoch that is best on `dev` are kept.

    Written in NumPy: the layers are so small that a step in PyTorch is nearly all overhead, and many times worse where
    its threads have to share processors with other programs. Learns in the precision of the features.

    Args:
        train: Features `(n, width)` and label numbers `(n,)` to learn from.
        dev: Likewise, to choose the epoch on; a tie goes to the later epoch.
        classes: Number of labels.
        settings: Shape, dropout, batches, epochs, learning rate.
        seed: Of weights, dropout and the order of the rows.
        show_progress_bar: Show one over the epochs.

    Returns:
        A function from features to label numbers, and the accuracy on `dev`.

    Raises:
        XlsrError: `settings.epochs` is below 1.
    """
    if settings.epochs < 1:
        raise XlsrError(f"epochs is {settings.epochs}; the mlp head needs 1 or more.")
    features, labels = train
    random = np.random.default_rng(seed)
    network = TanhNetwork((features.shape[1], *settings.hidden, classes), random, features.dtype)
    targets = np.eye(classes, dtype=features.dtype)[labels]
    batch, keep = settings.batch_size, 1 - settings.dropout
    at_once = max(1, NUMBERS_AT_ONCE // (max(network.widths) * batch)) * batch
    best_accuracy, best_weights = -1.0, network.weights
    for _ in tqdm(range(settings.epochs), desc="mlp head", disable=not show_progress_bar):
        order = random.permutation(len(features))
        for start in range(0, len(order), at_once):
            rows = order[start : start + at_once]
            masks = [
                (random.random((len(rows), width), dtype=features.dtype) < keep) * features.dtype.type(1 / keep)
                for width in network.widths[:-1]
            ]
            inputs, wanted = features[rows] * masks[0], targets[rows]
            for first in range(0, len(rows), batch):
                part = slice(first, first + batch)
                inner = [mask[part] for mask in masks[1:]]
                network.learn(inputs[part], wanted[part], inner, settings.learning_rate)
        accuracy = float((network.predict(dev[0]) == dev[1]).mean())
        if accuracy >= best_accuracy:
            best_accuracy, best_weights = accuracy, network.weights.copy()
    network.weights[:] = best_weights
    return network.predict, best_accuracy


class TanhNetwork:
    """Linear layers with tanh between them, softmax cross-entropy, Adam: all weights in one array.

    Args:
        widths: Of the input, the hidden layers, the output.
        random: Weights and biases are drawn uniformly from `-1 / sqrt(n)` to `1 / sqrt(n)`, n the width of the layer's
            input, as `torch.nn.Linear` does.
        dtype: Precision.

    Attributes:
        weights: All of them, `(total,)`.
        layers: Weight `(input, output)` and bias `(output,)` of each layer: views of `weights`.
    """

    def __init__(self, widths: Sequence[int], random: np.random.Generator, dtype: np.dtype) -> None:
        self.widths = tuple(widths)
        shapes = list(zip(widths[:-1], widths[1:], strict=True))
        self.weights = np.empty(sum((wide + 1) * narrow for wide, narrow in shapes), dtype)
        self._gradient, self._buffer = np.empty_like(self.weights), np.empty_like(self.weights)
        self._mean, self._square, self._steps = np.zeros_like(self.weights), np.zeros_like(self.weights), 0
        self.layers, self._gradients = self._views(self.weights, shapes), self._views(self._gradient, shapes)
        for weight, bias in self.layers:
            bound = len(weight) ** -0.5
            for part in (weight, bias):
                part[:] = random.uniform(-bound, bound, part.shape)

    @staticmethod
    def _views(flat: np.ndarray, shapes: Sequence[tuple[int, int]]) -> list[tuple[np.ndarray, np.ndarray]]:
        views, start = [], 0
        for wide, narrow in shapes:
            bias = start + wide * narrow
            views.append((flat[start:bias].reshape(wide, narrow), flat[bias : bias + narrow]))
            start = bias + narrow
        return views

    def predict(self, features: np.ndarray) -> np.ndarray:
        """Label numbers `(n,)` of features `(n, width)`, without dropout."""
        *hidden, (weight, bias) = self.layers
        for inner_weight, inner_bias in hidden:
            features = np.tanh(features @ inner_weight + inner_bias)
        return (features @ weight + bias).argmax(axis=1)

    def learn(
        self, inputs: np.ndarray, targets: np.ndarray, masks: Sequence[np.ndarray], learning_rate: float
    ) -> None:
        """One step of Adam on the mean cross-entropy of a batch.

        Args:
            inputs: `(batch, width)`, dropout done.
            targets: One-hot labels, `(batch, classes)`.
            masks: What the output of each hidden layer is multiplied with: 0, or 1 / (1 - dropout).
            learning_rate: Of Adam.
        """
        received, activations = [inputs], []
        for (weight, bias), mask in zip(self.layers[:-1], masks, strict=True):
            output = received[-1] @ weight
            output += bias
            np.tanh(output, out=output)
            activations.append(output)
            received.append(output * mask)
        weight, bias = self.layers[-1]
        change = received[-1] @ weight
        change += bias
        change -= change.max(axis=1, keepdims=True)
        np.exp(change, out=change)
        change /= change.sum(axis=1, keepdims=True)
        change -= targets
        change /= len(inputs)  # now the gradient of the loss by the logits
        for layer in range(len(self.layers) - 1, -1, -1):
            weight_gradient, bias_gradient = self._gradients[layer]
            np.matmul(received[layer].T, change, out=weight_gradient)
            change.sum(axis=0, out=bias_gradient)
            if layer:
                change = change @ self.layers[layer][0].T
                change *= masks[layer - 1]
                change *= 1 - activations[layer - 1] ** 2
        self._step(learning_rate)

    def _step(self, learning_rate: float) -> None:
        """Adam, in the form and with the constants of `torch.optim.Adam`."""
        self._steps += 1
        gradient, buffer = self._gradient, self._buffer
        self._mean *= MEAN_DECAY
        np.multiply(gradient, 1 - MEAN_DECAY, out=buffer)
        self._mean += buffer
        self._square *= SQUARE_DECAY
        np.multiply(gradient, gradient, out=buffer)
        buffer *= 1 - SQUARE_DECAY
        self._square += buffer
        np.sqrt(self._square, out=buffer)
        buffer /= (1 - SQUARE_DECAY**self._steps) ** 0.5
        buffer += EPSILON
        np.divide(self._mean, buffer, out=buffer)
        buffer *= learning_rate / (1 - MEAN_DECAY**self._steps)
        self.weights -= buffer
