"""Classifiers on sentence embeddings: logistic regression, LASER's small networks, or one trained with the encoder."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from sklearn.linear_model import LogisticRegression
from torch import Tensor, nn
from tqdm.auto import tqdm
from transformers import get_linear_schedule_with_warmup
from typing_extensions import Unpack

from hf_xlsr.data.prompts import PromptTable
from hf_xlsr.encoders.encoding import Encoder, EncodingOptions, embed, route_of, routes_of
from hf_xlsr.evaluation.pairs import Languages, embed_pairs, pair_features, sides_of
from hf_xlsr.evaluation.rows import LabelledTexts
from hf_xlsr.utils.devices import choose_precision
from hf_xlsr.utils.errors import require_choice

HEADS = ("linear", "mlp", "trained")
INVERSE_REGULARIZATION = (0.1, 1.0, 10.0, 100.0)
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
MLDOC_MLP = MlpSettings(hidden=(10, 8), dropout=0.2, batch_size=12, epochs=500)
XNLI_MLP = MlpSettings(hidden=(512, 384), dropout=0.3, batch_size=128, epochs=200)


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
    given = {"epochs": epochs, "learning_rate": learning_rate}
    changes: dict[str, Any] = {option: value for option, value in given.items() if value is not None}
    classes = int(train.labels.max()) + 1
    if head == "trained":
        return fine_tune(encoder, train, dev, language=language, classes=classes, seed=seed, **changes, **encoding)
    learn, choose = ((features_of(encoder, rows.sides, language, **encoding), rows.labels) for rows in (train, dev))
    if head == "linear":
        return Classifier(encoder, *fit_linear(learn, choose))
    options: dict[str, Any] = {"seed": seed, "show_progress_bar": encoding.get("show_progress_bar", False)}
    return Classifier(encoder, *fit_mlp(learn, choose, classes=classes, settings=replace(mlp, **changes), **options))


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
    features, labels = torch.from_numpy(train[0]), torch.from_numpy(train[1])
    random = np.random.default_rng(seed)
    widths = (features.shape[1], *settings.hidden, classes)
    network = _TanhNetwork(widths, random, features.dtype)
    optimizer = torch.optim.Adam(network.parameters(), lr=settings.learning_rate, fused=True)
    keep, scale = 1 - settings.dropout, train[0].dtype.type(1 / (1 - settings.dropout))
    block = max(1, MASK_NUMBERS // (max(widths) * settings.batch_size)) * settings.batch_size
    best_accuracy, best = -1.0, network.state_dict()
    for _ in tqdm(range(settings.epochs), desc="mlp head", disable=not show_progress_bar):
        for rows in torch.from_numpy(random.permutation(len(features))).split(block):
            masks = [
                torch.from_numpy((random.random((len(rows), width), dtype=scale.dtype) < keep) * scale)
                for width in widths[:-1]
            ]
            parts = (tensor.split(settings.batch_size) for tensor in (features[rows], labels[rows], *masks))
            for inputs, targets, *dropout in zip(*parts, strict=True):
                optimizer.zero_grad()
                F.cross_entropy(network(inputs, dropout), targets).backward()
                optimizer.step()
        accuracy = float((network.predict(dev[0]) == dev[1]).mean())
        if accuracy >= best_accuracy:
            best_accuracy, best = accuracy, copy.deepcopy(network.state_dict())
    network.load_state_dict(best)
    return network.predict, best_accuracy


class _TanhNetwork(nn.Module):
    """Linear layers with tanh between them, initialised like `nn.Linear` but from a NumPy generator."""

    def __init__(self, widths: Sequence[int], random: np.random.Generator, dtype: torch.dtype) -> None:
        super().__init__()
        self.layers = nn.ModuleList()
        for width, outputs in pairwise(widths):
            layer = nn.utils.skip_init(nn.Linear, width, outputs, dtype=dtype)
            bound = width**-0.5
            with torch.no_grad():
                layer.weight.copy_(torch.from_numpy(random.uniform(-bound, bound, (width, outputs))).T)
                layer.bias.copy_(torch.from_numpy(random.uniform(-bound, bound, outputs)))
            self.layers.append(layer)

    def forward(self, hidden: Tensor, masks: Sequence[Tensor] = ()) -> Tensor:
        """Logits `(n, classes)`; `masks` are what the input of each layer is multiplied with."""
        for number, layer in enumerate(self.layers):
            hidden = layer(hidden * masks[number] if masks else hidden)
            if number < len(self.layers) - 1:
                hidden = hidden.tanh()
        return hidden

    @torch.no_grad()
    def predict(self, features: np.ndarray) -> np.ndarray:
        return self(torch.from_numpy(features)).argmax(1).numpy()


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
        layer = list(student.layer.parameters())
        groups: list[dict[str, Any]] = [{"params": weights}, {"params": layer, "lr": HEAD_LEARNING_RATE}]
        optimizer = torch.optim.AdamW(groups, lr=learning_rate, fused=True)
        steps = epochs * -(-len(train.labels) // train_batch_size)
        schedule = get_linear_schedule_with_warmup(optimizer, int(WARMUP * steps), steps)
        best_accuracy, best = -1.0, student.state_dict()
        with tqdm(total=steps, desc="fine-tuning", disable=not encoding.get("show_progress_bar", False)) as bar:
            for _ in range(epochs):
                student.train()
                for rows in torch.randperm(len(train.labels)).split(train_batch_size):
                    student.loss(train, rows.tolist()).backward()
                    nn.utils.clip_grad_norm_([*weights, *layer], GRADIENT_NORM)
                    optimizer.step()
                    optimizer.zero_grad()
                    schedule.step()
                    bar.update()
                features = features_of(student, dev.sides, language, **encoding)
                accuracy = float((student.predict(features) == dev.labels).mean())
                if accuracy >= best_accuracy:
                    best_accuracy, best = accuracy, copy.deepcopy(student.state_dict())
    student.load_state_dict(best)
    return Classifier(student, student.predict, best_accuracy)


class _Student(nn.Module):
    """A sentence-transformers model, which it encodes with in the precision of the training, and a layer on top."""

    scale: Tensor

    def __init__(self, network: Any, language: str, classes: int, sides: int, encoding: EncodingOptions) -> None:
        super().__init__()
        self.network, self.routes = network, routes_of(network)
        self.prompts, self.default_prompt_name = network.prompts, network.default_prompt_name
        self.dtype = getattr(torch, choose_precision(cpu=network.device.type == "cpu"))
        self.prompt = PromptTable.of(network).given(encoding.get("prompt")).text(language=language)
        task = route_of(network, language, encoding.get("routes"))
        self.route = {} if task is None else {"task": task}
        width = embed(self, ["x"], language=language, **encoding).shape[1]
        # A unit vector's numbers are about 1 / sqrt(width) in size, those of a product of two the square of that.
        scale = torch.full((width,), width**0.5)
        self.register_buffer("scale", scale if sides == 1 else torch.cat([scale, scale, scale, scale**2]))
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
        features, *others = (self._vectors([side[row] for row in rows]) for side in data.sides)
        for other in others:
            features = torch.cat([features, other, (features - other).abs(), features * other], dim=1)
        labels = torch.from_numpy(data.labels[rows]).to(features.device)
        return F.cross_entropy(self.layer(features * self.scale), labels)

    def _vectors(self, texts: Sequence[str]) -> Tensor:
        from sentence_transformers.util import batch_to_device  # slow to load; here the model has loaded it

        batch = self.network.preprocess(list(texts), prompt=self.prompt, **self.route)
        with self.autocast():
            vectors = self.network(batch_to_device(batch, self.network.device), **self.route)["sentence_embedding"]
        return F.normalize(vectors[:, : self.network.truncate_dim].float(), dim=1)

    @torch.no_grad()
    def predict(self, features: np.ndarray) -> np.ndarray:
        return self.layer(torch.from_numpy(features).to(self.scale) * self.scale).argmax(1).cpu().numpy()
