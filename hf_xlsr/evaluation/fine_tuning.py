"""A classifier learnt together with the encoder: a linear layer on the vectors, and a copy of the encoder under it."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from sentence_transformers.util import batch_to_device
from torch import nn
from tqdm.auto import tqdm
from transformers import get_linear_schedule_with_warmup
from typing_extensions import Unpack

from hf_xlsr.encoders.encoding import EncodingOptions, default_prompt, embed
from hf_xlsr.encoders.routing import route_of, routes_of
from hf_xlsr.evaluation.heads import Classifier, Predictor, features_of
from hf_xlsr.evaluation.rows import LabelledTexts
from hf_xlsr.utils.errors import XlsrError
from hf_xlsr.utils.precision import choose_precision

GRADIENT_NORM = 1.0


def fine_tune(
    model: Any,
    train: LabelledTexts,
    dev: LabelledTexts,
    *,
    language: str,
    classes: int,
    epochs: int = 3,
    learning_rate: float = 2e-5,
    head_learning_rate: float = 1e-3,
    train_batch_size: int = 32,
    warmup_ratio: float = 0.1,
    seed: int = 1,
    **encoding: Unpack[EncodingOptions],
) -> Classifier:
    """Trains a copy of an encoder together with a softmax layer on its vectors; the model itself stays as it was.

    The layer reads the unit vector of a text, or `pair_features` of those of two sentences, brought to the scale that
    a layer norm would give them. AdamW; the learning rates rise over the first tenth of the steps and fall linearly to
    0; gradients are cut at norm 1; autocast in bfloat16 where the machine computes it fast. The weights of the epoch
    that is best on `dev` are kept, of equals the later. The global random state is left as it was.

    Args:
        model: A sentence-transformers model on any device, also one with a route for each language.
        train: Rows to learn from.
        dev: Rows to choose the epoch on.
        language: Of `train` and `dev`.
        classes: Number of labels.
        epochs: Passes over `train`.
        learning_rate: Of the encoder.
        head_learning_rate: Of the layer, which starts from zero: at the encoder's rate it would hardly leave it.
        train_batch_size: Rows per step.
        warmup_ratio: Share of the steps in which the learning rates rise.
        seed: Of dropout and the order of rows.
        encoding: See `EncodingOptions`; `batch_size` is of encoding `dev`, the progress bar is over the steps too.

    Returns:
        The copy as an encoder, the layer as a function of `features_of` that encoder, and the accuracy on `dev`.

    Raises:
        XlsrError: the model cannot be trained: it is no sentence-transformers model, or all its weights are frozen.
    """
    if not isinstance(model, nn.Module) or not hasattr(model, "preprocess"):
        raise XlsrError(
            f"head 'trained' trains the encoder, and a {type(model).__name__} cannot be trained; give a "
            "sentence-transformers model, or take head 'linear' or 'mlp'."
        )
    network: Any = copy.deepcopy(model).float()  # half-precision weights would not take small steps
    weights = [weight for weight in network.parameters() if weight.requires_grad]
    if not weights:
        raise XlsrError("head 'trained' has nothing to train: all weights of the encoder are frozen; unfreeze some.")
    with _own_random_state(network.device, seed):
        student = _Student(network, language, classes, len(train.sides), encoding)
        layer = list(student.layer.parameters())
        groups: list[dict[str, Any]] = [{"params": weights}, {"params": layer, "lr": head_learning_rate}]
        optimizer = torch.optim.AdamW(groups, lr=learning_rate, fused=True)
        steps = epochs * -(-len(train.labels) // train_batch_size)
        schedule = get_linear_schedule_with_warmup(optimizer, int(warmup_ratio * steps), steps)
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
                accuracy = student.accuracy(dev)
                if accuracy >= best_accuracy:
                    best_accuracy = accuracy
                    best = {name: value.clone() for name, value in student.state_dict().items()}
    student.load_state_dict(best)
    return Classifier(student.encoder, student.predictor(), best_accuracy)


class _Encoder:
    """A model's `encode` in the precision that it is trained in."""

    def __init__(self, network: Any) -> None:
        self.network, self.routes = network, routes_of(network)
        self.default_prompt_name = default_prompt(network)
        self.dtype = getattr(torch, choose_precision(cpu=network.device.type == "cpu"))

    def autocast(self) -> torch.autocast:
        return torch.autocast(self.network.device.type, self.dtype, enabled=self.dtype != torch.float32)

    def encode(self, *args: Any, **kwargs: Any) -> Any:
        with self.autocast():
            return self.network.encode(*args, **kwargs)


class _Student(nn.Module):
    """The copy of the encoder with the layer that learns on its vectors."""

    scale: torch.Tensor

    def __init__(self, network: Any, language: str, classes: int, sides: int, encoding: EncodingOptions) -> None:
        super().__init__()
        self.network, self.encoder = network, _Encoder(network)
        self.language, self.encoding = language, encoding
        task = route_of(network, language, encoding.get("routes"))
        self.route = {} if task is None else {"task": task}
        width = embed(self.encoder, ["x"], language=language, **encoding).shape[1]
        # A unit vector's numbers are about 1 / sqrt(width) in size, those of a product of two the square of that.
        scale = torch.full((width,), width**0.5)
        self.register_buffer("scale", scale if sides == 1 else torch.cat([scale, scale, scale, scale**2]))
        self.layer = nn.Linear(len(self.scale), classes)
        nn.init.zeros_(self.layer.weight)
        nn.init.zeros_(self.layer.bias)
        self.to(network.device)

    def loss(self, data: LabelledTexts, rows: Sequence[int]) -> torch.Tensor:
        """Mean cross-entropy of rows."""
        vectors = [self._vectors([side[row] for row in rows]) for side in data.sides]
        if len(vectors) == 1:
            features = vectors[0]
        else:
            u, v = vectors
            features = torch.cat([u, v, (u - v).abs(), u * v], dim=1)
        labels = torch.from_numpy(data.labels[rows]).to(features.device)
        return F.cross_entropy(self.layer(features * self.scale), labels)

    def _vectors(self, texts: Sequence[str]) -> torch.Tensor:
        prompt = self.encoding.get("prompt", "")
        if not prompt and (name := default_prompt(self.network)):
            prompt = self.network.prompts[name]  # as `encode` does
        batch = self.network.preprocess([prompt + text for text in texts], **self.route)
        with self.encoder.autocast():
            vectors = self.network(batch_to_device(batch, self.network.device), **self.route)["sentence_embedding"]
        return F.normalize(vectors[:, : self.network.truncate_dim].float(), dim=1)

    def predictor(self) -> Predictor:
        """The layer as it stands, on features as `features_of` gives them."""
        weight = (self.layer.weight * self.scale).detach().cpu().numpy().T.copy()
        bias = self.layer.bias.detach().cpu().numpy().copy()
        return lambda features: (features @ weight + bias).argmax(axis=1)

    def accuracy(self, data: LabelledTexts) -> float:
        features = features_of(self.encoder, data.sides, (self.language,) * len(data.sides), **self.encoding)
        return float((self.predictor()(features) == data.labels).mean())


@contextmanager
def _own_random_state(device: torch.device, seed: int) -> Iterator[None]:
    """Seeds the CPU and, if it is used, the CUDA device; afterwards both are as they were."""
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices):
        torch.default_generator.manual_seed(seed)  # torch.manual_seed would also reseed other accelerators
        if devices:
            with torch.cuda.device(device):
                torch.cuda.manual_seed(seed)
        yield
