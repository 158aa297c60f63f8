"""Classifiers on sentence embeddings: logistic regression, LASER's small networks, or one trained with the encoder."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, StratifiedKFold
from torch import Tensor, nn
from tqdm.auto import tqdm
from transformers import get_scheduler
from typing_extensions import Unpack

from hf_xlsr.data.prompts import PromptTable
from hf_xlsr.encoders.encoding import Encoder, EncodingOptions, embed, route_of, routes_of
from hf_xlsr.evaluation.pairs import Languages, embed_pairs, pair_features, sides_of
from hf_xlsr.evaluation.rows import LabelledTexts
from hf_xlsr.utils.devices import choose_precision
from hf_xlsr.utils.errors import require_choice

logger = logging.getLogger(__name__)

HEADS = ("linear", "mlp", "trained")
INVERSE_REGULARIZATION = (0.1, 1.0, 10.0, 100.0)
FOLDS = 5  # of the cross-validation
GRADIENT_NORM = 1.0
HEAD_LEARNING_RATE = 1e-3  # of a layer that starts from zero: at the encoder's rate it would hardly leave it
WARMUP = 0.1  # share of the steps in which the learning rates rise
MASK_NUMBERS = 2**22  # of one layer's dropout masks, drawn for many batches together: 16 MiB

Predictor = Callable[[np.ndarray], np.ndarray]
Labelled = tuple[np.ndarray, np.ndarray]  # features (n, width) and label numbers (n,)


@dataclass(frozen=True)
class MlpSettings:
    """A small tanh network, dropout before every linear layer, and its training by Adam without weight decay."""

    hidden: tuple[int, ...]
    dropout: float
    batch_size: int
    epochs: int
    learning_rate: float = 1e-3


# LASER's settings for the two datasets (tasks/mldoc/mldoc.sh, tasks/xnli/xnli.sh).
MLDOC_MLP = MlpSettings(
    hidden=(10, 8),
    dropout=0.2,
    batch_size=12,
    epochs=500,
)
XNLI_MLP = MlpSettings(
    hidden=(512, 384),
    dropout=0.3,
    batch_size=128,
    epochs=200,
)


class Classifier(NamedTuple):
    """A head `predict`, from features `(n, width)` to label numbers `(n,)`, and the encoder whose embeddings it reads.

    For head `trained` the encoder is a fine-tuned copy of the user's.
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
    """Trains a head on an encoder's embeddings, or together with a copy of the encoder.

    `dev` chooses the regularisation of head `linear` and the epoch of the others; `mlp` is the shape of head `mlp`.
    `epochs` and `learning_rate` replace the head's defaults; `linear` has none.
    """
    require_choice("head", head, HEADS)
    changes: dict[str, Any] = {}
    if epochs is not None:
        changes["epochs"] = epochs
    if learning_rate is not None:
        changes["learning_rate"] = learning_rate

    classes = int(train.labels.max()) + 1
    if head == "trained":
        return fine_tune(
            encoder,
            train,
            dev,
            language=language,
            classes=classes,
            seed=seed,
            **changes,
            **encoding,
        )

    train_rows = features_of(encoder, train.sides, language, **encoding), train.labels
    dev_rows = features_of(encoder, dev.sides, language, **encoding), dev.labels
    if head == "linear":
        return Classifier(encoder, *fit_linear(train_rows, dev_rows))

    settings = replace(mlp, **changes)
    show_progress_bar = encoding.get("show_progress_bar", False)
    predict, accuracy = fit_mlp(
        train_rows, dev_rows, classes=classes, settings=settings, seed=seed, show_progress_bar=show_progress_bar
    )
    return Classifier(encoder, predict, accuracy)


def features_of(
    encoder: Encoder, sides: Sequence[Sequence[str]], language: Languages, **encoding: Unpack[EncodingOptions]
) -> np.ndarray:
    """The input of a head, `(n, width)`: unit embeddings of texts, or `pair_features` of the two sides of pairs."""
    if len(sides) == 1:
        return embed(encoder, sides[0], language=sides_of(language)[0], **encoding)
    return pair_features(*embed_pairs(encoder, sides, language, **encoding))


def fit_linear(train: Labelled, dev: Labelled) -> tuple[Predictor, float]:
    """Logistic regression with the inverse regularisation that is best on `dev`, of equals the lowest; its accuracy."""
    models = [LogisticRegression(C=strength, max_iter=1000).fit(*train) for strength in INVERSE_REGULARIZATION]
    best = max(models, key=lambda model: model.score(*dev))
    return best.predict, float(best.score(*dev))


def cross_validated(features: np.ndarray, labels: np.ndarray, *, seed: int = 1) -> LogisticRegression:
    """Logistic regression with the inverse regularisation of the lowest log loss in folds of these rows.

    There are at most 5 folds, and as many as the rarest class has rows; with a single row there is nothing to choose by,
    and scikit-learn's default is used, with a warning.

    Args:
        features: `(n, width)`.
        labels: Numbers of the classes, each of which has a row, `(n,)`.
        seed: Of the folds.
    """
    folds = min(FOLDS, int(np.bincount(labels).min()))
    model = LogisticRegression(max_iter=1000)
    if folds < 2:
        logger.warning("A class has a single row, so the regularisation is the default: C=%g.", model.C)
        return model.fit(features, labels)

    splits = StratifiedKFold(folds, shuffle=True, random_state=seed)
    search = GridSearchCV(model, {"C": INVERSE_REGULARIZATION}, scoring="neg_log_loss", cv=splits)
    best: LogisticRegression = search.fit(features, labels).best_estimator_
    return best


def fit_mlp(
    train: Labelled,
    dev: Labelled,
    *,
    classes: int,
    settings: MlpSettings = MLDOC_MLP,
    seed: int = 1,
    show_progress_bar: bool = False,
) -> tuple[Predictor, float]:
    """A small tanh network and its accuracy on `dev`; keeps the epoch that is best on `dev`, of equals the later.

    Trains on the CPU in the precision of the features, with Adam on the cross-entropy. All random numbers come from
    one NumPy generator, so that results do not depend on PyTorch's.
    """
    features, labels = map(torch.from_numpy, train)
    random = np.random.default_rng(seed)
    widths = (features.shape[1], *settings.hidden, classes)
    network = _TanhNetwork(widths, random, features.dtype)
    optimizer = torch.optim.Adam(network.parameters(), lr=settings.learning_rate, fused=True)
    keep_share = 1 - settings.dropout
    scale = train[0].dtype.type(1 / keep_share)
    batches_per_block = max(1, MASK_NUMBERS // (max(widths) * settings.batch_size))
    best_accuracy = -1.0
    best_state = network.state_dict()

    for _ in tqdm(range(settings.epochs), desc="mlp head", disable=not show_progress_bar):
        order = torch.from_numpy(random.permutation(len(features)))
        for rows in torch.split(order, batches_per_block * settings.batch_size):
            tensors = [features[rows], labels[rows]]
            for width in widths[:-1]:
                is_kept = random.random((len(rows), width), dtype=scale.dtype) < keep_share
                tensors.append(torch.from_numpy(is_kept * scale))

            batches = [torch.split(tensor, settings.batch_size) for tensor in tensors]
            for inputs, targets, *masks in zip(*batches, strict=True):
                optimizer.zero_grad()
                loss = F.cross_entropy(network(inputs, masks), targets)
                torch.autograd.backward(loss)
                optimizer.step()

        dev_features, dev_labels = dev
        accuracy = float((network.predict(dev_features) == dev_labels).mean())
        if accuracy >= best_accuracy:
            best_accuracy = accuracy
            best_state = copy.deepcopy(network.state_dict())

    network.load_state_dict(best_state)
    return network.predict, best_accuracy


class _TanhNetwork(nn.Module):
    """Linear layers with tanh between them, initialised like `nn.Linear` but from a NumPy generator."""

    def __init__(self, widths: Sequence[int], random: np.random.Generator, dtype: torch.dtype) -> None:
        super().__init__()
        self.layers = nn.ModuleList()
        for width, outputs in pairwise(widths):
            layer = nn.Linear(width, outputs, device="meta", dtype=dtype).to_empty(device="cpu")
            bound = width**-0.5
            weight = random.uniform(-bound, bound, (width, outputs))
            bias = random.uniform(-bound, bound, outputs)
            with torch.no_grad():
                layer.weight.copy_(torch.from_numpy(weight).T)
                layer.bias.copy_(torch.from_numpy(bias))
            self.layers.append(layer)

    def forward(self, hidden: Tensor, masks: Sequence[Tensor] = ()) -> Tensor:
        """Logits `(n, classes)`; `masks` are what the input of each layer is multiplied with."""
        for number, layer in enumerate(self.layers):
            if number > 0:
                hidden = hidden.tanh()
            if masks:
                hidden = hidden * masks[number]
            hidden = layer(hidden)
        return hidden

    @torch.no_grad()
    def predict(self, features: np.ndarray) -> np.ndarray:
        """Label numbers `(n,)` of features `(n, width)`."""
        logits: Tensor = self(torch.from_numpy(features))
        return logits.argmax(1).numpy()


def fine_tune(
    model: Any,
    train: LabelledTexts,
    dev: LabelledTexts,
    *,
    language: str,
    classes: int,
    epochs: int = 3,
    learning_rate: float = 2e-5,
    train_batch_size: int = 32,
    seed: int = 1,
    **encoding: Unpack[EncodingOptions],
) -> Classifier:
    """Trains a copy of an encoder together with a softmax layer on its embeddings; the model itself stays unchanged.

    AdamW; the learning rates, `learning_rate` of the encoder, rise over the first tenth of the steps and fall linearly to
    0; gradients are clipped at norm 1; autocast in bfloat16 where the machine computes it fast. The weights of the epoch
    that is best on `dev` are kept, of equals the later. The global random state is left as it was.
    """
    network: Any = copy.deepcopy(model).float()  # half-precision weights would not take small steps
    weights = [weight for weight in network.parameters() if weight.requires_grad]
    with torch.random.fork_rng([network.device] if network.device.type == "cuda" else []):
        torch.manual_seed(seed)
        student = _Student(network, language, classes, len(train.sides), encoding)
        head_weights = list(student.layer.parameters())
        groups: list[dict[str, Any]] = [{"params": weights}, {"params": head_weights, "lr": HEAD_LEARNING_RATE}]
        optimizer = torch.optim.AdamW(groups, lr=learning_rate, fused=True)
        steps = epochs * -(-len(train.labels) // train_batch_size)
        schedule = get_scheduler("linear", optimizer, int(WARMUP * steps), steps)

        best_accuracy = -1.0
        best_state = student.state_dict()
        with tqdm(total=steps, desc="fine-tuning", disable=not encoding.get("show_progress_bar", False)) as bar:
            for _ in range(epochs):
                student.train()
                for rows in torch.split(torch.randperm(len(train.labels)), train_batch_size):
                    loss = student.loss(train, rows.tolist())
                    torch.autograd.backward(loss)
                    nn.utils.clip_grad_norm_([*weights, *head_weights], GRADIENT_NORM)
                    optimizer.step()
                    optimizer.zero_grad()
                    schedule.step()
                    bar.update()

                features = features_of(student, dev.sides, language, **encoding)
                accuracy = float((student.predict(features) == dev.labels).mean())
                if accuracy >= best_accuracy:
                    best_accuracy = accuracy
                    best_state = copy.deepcopy(student.state_dict())

    student.load_state_dict(best_state)
    return Classifier(student, student.predict, best_accuracy)


class _Student(nn.Module):
    """A sentence-transformers model, which it encodes with in the precision of the training, and a layer on top."""

    scale: Tensor

    def __init__(self, network: Any, language: str, classes: int, sides: int, encoding: EncodingOptions) -> None:
        super().__init__()
        self.network = network
        self.routes = routes_of(network)
        self.prompts = network.prompts
        self.default_prompt_name = network.default_prompt_name
        self.dtype = getattr(torch, choose_precision(cpu=network.device.type == "cpu"))
        prompts = PromptTable.of(network).given(encoding.get("prompt"))
        self.prompt = prompts.text(language=language)
        task = route_of(network, language, encoding.get("routes"))
        self.route = {} if task is None else {"task": task}

        width = network.get_embedding_dimension()
        # A unit vector's numbers are about 1 / sqrt(width) in size, those of a product of two the square of that.
        scale = torch.full((width,), width**0.5)
        if sides == 2:
            scale = torch.cat([scale, scale, scale, scale**2])
        self.register_buffer("scale", scale)
        self.layer = nn.Linear(len(self.scale), classes)
        nn.init.zeros_(self.layer.weight)
        nn.init.zeros_(self.layer.bias)
        self.to(network.device)

    def autocast(self) -> torch.autocast:
        return torch.autocast(self.network.device.type, self.dtype, enabled=self.dtype != torch.float32)

    def encode(self, *args: Any, **kwargs: Any) -> Any:
        with self.autocast():
            return self.network.encode(*args, **kwargs)

    def loss(self, data: LabelledTexts, rows: Sequence[int]) -> Tensor:
        """Cross-entropy of the classes of some rows."""
        features, *second_vectors = [self._vectors([side[row] for row in rows]) for side in data.sides]
        for second in second_vectors:
            distances = (features - second).abs()
            products = features * second
            features = torch.cat([features, second, distances, products], dim=1)
        labels = torch.from_numpy(data.labels[rows]).to(features.device)
        return F.cross_entropy(self.layer(features * self.scale), labels)

    def _vectors(self, texts: Sequence[str]) -> Tensor:
        from sentence_transformers.util import batch_to_device  # slow to load; here the model has loaded it

        batch = self.network.preprocess(list(texts), prompt=self.prompt, **self.route)
        batch = batch_to_device(batch, self.network.device)
        with self.autocast():
            vectors = self.network(batch, **self.route)["sentence_embedding"]
        return F.normalize(vectors[:, : self.network.truncate_dim].float(), dim=1)

    @torch.no_grad()
    def predict(self, features: np.ndarray) -> np.ndarray:
        """Label numbers `(n,)` of features `(n, width)`."""
        scaled_features = torch.from_numpy(features).to(self.scale) * self.scale
        logits: Tensor = self.layer(scaled_features)
        return logits.argmax(1).cpu().numpy()
