"""Dual momentum contrast (Wang et al., 2021) as a loss for `SentenceTransformerTrainer`."""

from __future__ import annotations

import copy
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed
from accelerate.utils import extract_model_from_parallel
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.util import batch_to_device
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from transformers import TrainerState
from transformers.trainer import TRAINER_STATE_NAME

from hf_xlsr.modeling import citations
from hf_xlsr.modeling.dual_momentum.configuration_dual_momentum import DualMomentumConfig
from hf_xlsr.modeling.dual_momentum.contrast import (
    MemoryQueue,
    SoundStepCallback,
    StepKeys,
    direction_loss,
    momentum_pairs,
    update_averages,
)
from hf_xlsr.sentence_transformers.losses import Features
from hf_xlsr.utils.distributed import gather_ragged, gather_with_gradient, world_size
from hf_xlsr.utils.errors import XlsrError
from hf_xlsr.utils.files import atomic_write
from hf_xlsr.utils.pooling import normalize

HASH_FACTOR = 6364136223846793005  # Knuth's, modulo 2^64
SIDES = ("source", "target")


class DualMomentumLoss(nn.Module):
    r"""Contrast with the keys of a momentum encoder in two memory queues, equations 1 to 3 of the paper.

    ```math
    L(x, y) = -\log \frac{\exp(h_x \cdot h_{y_0} / \tau)}{\sum_{i=0}^K \exp(h_x \cdot h_{y_i} / \tau)}
    ```

    where `h` are unit vectors, `y_0` is the translation and `y_1 .. y_K` are the queue; the loss is `L(x, y) + L(y, x)`.
    A frozen copy of the model, which follows it by `momentum`, computes the keys. Copy and queues are not saved with the
    model. Add `DualMomentumCallback(loss)` to the trainer's callbacks, which updates both once per optimiser
    step. Add adapters to the model before making the loss.

    Columns: (source, target), and any number of hard negatives, which are further candidates of all sources. With a
    `Router`, `router_mapping` of the training arguments chooses the routes. `docs/sentence-transformers.md` has a script.

    Args:
        queue_size: Keys in each queue; 0 for none.
        momentum: Of the copy; 1 keeps it as it was.
        temperature: Divides the cosines.
        queue_storage: `float32`, `bfloat16` or `int8`.
        in_batch_negatives: Also take the other keys of the batch as negatives.
        mask_stale_keys: Do not take older keys of the same pair as negatives.
        mask_duplicates: Do not take equal sentences of other pairs as negatives.
        matryoshka_dims: Numbers of dimensions of truncated embeddings, see `hf_xlsr.losses.matryoshka_mean`.
        gather_across_devices: Whether in-batch and hard negatives come from all processes; keys of the queues always do.
    """

    citation = citations.DUAL_MOMENTUM
    autocast_dtype: torch.dtype | None = None  # the trainer's

    def __init__(
        self,
        model: SentenceTransformer,
        queue_size: int = 65_536,
        momentum: float = 0.999,
        temperature: float = 0.04,
        *,
        queue_storage: str = "float32",
        in_batch_negatives: bool = False,
        mask_stale_keys: bool = False,
        mask_duplicates: bool = False,
        matryoshka_dims: Sequence[int] | None = None,
        gather_across_devices: bool = False,
    ) -> None:
        super().__init__()
        self.arguments: dict[str, Any] = {"queue_size": queue_size, "momentum": momentum, "temperature": temperature}
        self.arguments |= {"queue_storage": queue_storage, "in_batch_negatives": in_batch_negatives}
        self.arguments |= {"mask_stale_keys": mask_stale_keys, "mask_duplicates": mask_duplicates}
        self.config = DualMomentumConfig(**self.arguments)
        self.matryoshka_dims, self.gather_across_devices = matryoshka_dims, gather_across_devices
        self.model = model
        card: Any = {id(model.model_card_data): None}  # it refers to the trainer
        # Not named `model`, which the trainer replaces by the wrapped one.
        self.momentum_model = copy.deepcopy(model, card).requires_grad_(False).eval()
        if next(model.parameters()).dtype in (torch.bfloat16, torch.float16):
            self.momentum_model.float()  # small updates would be rounded away
        self.queues: Any = nn.ModuleDict()
        if queue_size:
            device = next(model.parameters()).device
            with torch.no_grad():
                first: Any = next(model.children())  # all routes of a router have embeddings of one width
                task = next(iter(first.sub_modules), None) if hasattr(first, "sub_modules") else None
                width = self._keys(batch_to_device(model.preprocess(["a"], task=task), device)).shape[1]
            self.queues.update({side: MemoryQueue(queue_size, width, queue_storage) for side in SIDES})
            self.queues.to(device)
        self.waiting: list[tuple[torch.Tensor, ...]] = []  # keys of both sides, their hashes, those of the pairs
        self.steps_end = False  # whether somebody calls `finish_step`

    def train(self, mode: bool = True) -> DualMomentumLoss:
        """Sets the mode; the momentum encoder stays in evaluation mode."""
        super().train(mode)
        self.momentum_model.eval()
        return self

    def _trained(self) -> Any:
        """The model without what the trainer wraps around it."""
        return extract_model_from_parallel(self.model, keep_torch_compile=False)

    def _autocast(self) -> torch.autocast:
        """The trainer's precision, in which accelerate runs the forward of its model alone."""
        device = self.momentum_model.device.type
        return torch.autocast(device, dtype=self.autocast_dtype, enabled=self.autocast_dtype is not None)

    def _keys(self, features: dict[str, Any]) -> torch.Tensor:
        with self._autocast():
            return _unit(self.momentum_model(dict(features))["sentence_embedding"])

    @torch.no_grad()
    def _keys_and_texts(
        self, columns: Sequence[dict[str, Any]]
    ) -> tuple[list[torch.Tensor], list[torch.Tensor], torch.Tensor]:
        """Keys and hashes of the texts of each column, and the hashes of the pairs."""
        texts = [text_hashes(features) for features in columns]
        return [self._keys(features) for features in columns], texts, texts[0] * HASH_FACTOR + texts[1]

    def _enqueue(self, keys: Sequence[torch.Tensor], texts: Sequence[torch.Tensor], pairs: torch.Tensor) -> None:
        for side, own_keys, own_texts in zip(SIDES, keys, texts, strict=True):
            self.queues[side].enqueue(own_keys, own_texts, pairs)

    def forward(self, sentence_features: Features, labels: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
        """The losses of both directions, whose sum is the loss; in training the keys wait for the end of the step."""
        columns = list(sentence_features)
        keys, texts, pairs = self._keys_and_texts(columns)
        source, target = (_unit(self.model(features)["sentence_embedding"]) for features in columns[:2])
        negatives = negative_texts = None
        if columns[2:]:
            negatives, negative_texts = torch.cat(keys[2:]), torch.cat(texts[2:])
            if self.gather_across_devices:
                negatives, negative_texts = gather_with_gradient(negatives), gather_with_gradient(negative_texts)
        options: dict[str, Any] = {"matryoshka_dims": self.matryoshka_dims, "gather": self.gather_across_devices}
        source_queue, target_queue = (self.queues[side] if self.queues else None for side in SIDES)
        hard = negatives, negative_texts
        with self._autocast():
            onward, _ = direction_loss(self.config, source, keys[1], target_queue, texts[1], pairs, *hard, **options)
            back, _ = direction_loss(self.config, target, keys[0], source_queue, texts[0], pairs, **options)
        if self.model.training and torch.is_grad_enabled():
            # Gradients that are gone show that nobody has ended the last step.
            if self.waiting and not self.steps_end and all(one.grad is None for one in self.model.parameters()):
                raise XlsrError("DualMomentumLoss needs `callbacks=[DualMomentumCallback(loss)]` in the trainer.")
            self.waiting.append((*keys[:2], *texts[:2], pairs))
        return {"source_to_target": onward, "target_to_source": back}

    @torch.no_grad()
    def finish_step(self) -> None:
        """Updates the momentum encoder and enqueues the keys, after each optimiser step; see `DualMomentumCallback`."""
        self.steps_end = True
        pairs = momentum_pairs(self._trained(), self.momentum_model)
        update_averages(pairs, self.config.momentum)
        waiting, self.waiting = self.waiting, []
        if not self.queues:
            return
        parts = [torch.cat(part) for part in zip(*waiting, strict=True)]
        if not parts:  # processes may have batches of different datasets, and so none for this loss
            queue = self.queues["source"]
            parts = [queue.values[:0].float()] * 2 + [queue.texts[:0]] * 3
        source, target, source_texts, target_texts, hashes = map(gather_ragged, parts)
        self._enqueue((source, target), (source_texts, target_texts), hashes)

    @torch.no_grad()
    def fill_queues(
        self,
        sources: Sequence[str],
        targets: Sequence[str],
        *,
        tasks: tuple[str | None, str | None] = (None, None),
        batch_size: int = 64,
    ) -> None:
        """Fills the queues with translations; `tasks` are the routes of both sides, for a `Router`."""
        for start in range(0, len(sources), batch_size):
            columns = []
            for texts, task in zip((sources, targets), tasks, strict=True):
                options = {} if task is None else {"task": task}
                features = self.momentum_model.preprocess(list(texts[start : start + batch_size]), **options)
                columns.append({**batch_to_device(features, self.momentum_model.device), **options})
            self._enqueue(*self._keys_and_texts(columns))

    def training_state(self) -> dict[str, torch.Tensor]:
        """Queues and momentum weights, which a checkpoint of the model lacks; frozen weights are those of the model."""
        momentum = dict(self.momentum_model.named_parameters())
        trained = [name for name, weight in self._trained().named_parameters() if weight.requires_grad]
        state: dict[str, torch.Tensor] = {f"momentum_model.{name}": momentum[name] for name in trained}
        return state | self.queues.state_dict(prefix="queues.")

    @torch.no_grad()
    def load_training_state(self, state: Mapping[str, torch.Tensor]) -> None:
        """Restores `training_state`."""
        own = self.training_state()
        shapes = [{name: (tuple(part.shape), part.dtype) for name, part in one.items()} for one in (own, state)]
        if shapes[0] != shapes[1]:
            differing = sorted(name for name, _ in set(shapes[0].items()) ^ set(shapes[1].items()))
            raise XlsrError(f"The checkpoint has another model, queue size or storage: {differing[0]} differs.")
        for name, part in own.items():
            part.copy_(state[name])

    def get_config_dict(self) -> dict[str, Any]:
        more = {"matryoshka_dims": self.matryoshka_dims, "gather_across_devices": self.gather_across_devices}
        return self.arguments | more


class DualMomentumCallback(SoundStepCallback):
    """Ends the optimiser steps of `DualMomentumLoss`, and keeps its queues and momentum weights in the checkpoints.

    A step whose gradient is not finite is dropped: no update, no momentum, no keys. Of a dict of losses those that are
    not a `DualMomentumLoss` are ignored.
    """

    FILE = "dual_momentum_loss.safetensors"

    def __init__(self, loss: nn.Module | Mapping[str, nn.Module]) -> None:
        super().__init__(StepKeys())
        named = loss if isinstance(loss, Mapping) else {"loss": loss}
        parts = {f"{name}.{path}": part for name, one in named.items() for path, part in one.named_modules()}
        # One loss may serve several datasets.
        found = {id(part): (name, part) for name, part in parts.items() if isinstance(part, DualMomentumLoss)}
        self.losses: dict[str, DualMomentumLoss] = dict(found.values())

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        for loss in self.losses.values():
            loss.steps_end = True
            loss.autocast_dtype = torch.bfloat16 if args.bf16 else torch.float16 if args.fp16 else None
            if world_size() > 1:  # as DDP copies the weights of the model
                for weight in loss.momentum_model.parameters():
                    torch.distributed.broadcast(weight.data, 0)
        if state.global_step:
            given = args.resume_from_checkpoint
            path = given if isinstance(given, (str, os.PathLike)) else None
            folder = Path(path or f"{args.output_dir}/checkpoint-{state.global_step}")
            saved = folder / TRAINER_STATE_NAME
            log = str(state.log_history)  # as text, because NaN != NaN
            if not saved.is_file() or str(TrainerState.load_from_json(str(saved)).log_history) != log:
                raise XlsrError(
                    f"'{folder}' is not the checkpoint that training resumes from. Also give its path as "
                    "`resume_from_checkpoint` of the training arguments, where callbacks can see it."
                )
            self._load(folder)

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        super().on_step_begin(args, state, control, **kwargs)
        for loss in self.losses.values():
            loss.waiting = []

    def on_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        for loss in self.losses.values():
            if self.keys.dropped:
                loss.waiting = []
            else:
                loss.finish_step()

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if args.should_save:
            tensors = {
                f"{name}:{key}": part.detach().contiguous()
                for name, loss in self.losses.items()
                for key, part in loss.training_state().items()
            }
            with atomic_write(Path(str(args.output_dir)) / f"checkpoint-{state.global_step}" / self.FILE) as partial:
                save_file(tensors, partial)

    def _load(self, folder: Path) -> None:
        states: dict[str, dict[str, torch.Tensor]] = {}
        for key, part in load_file(folder / self.FILE).items():
            name, _, place = key.rpartition(":")
            states.setdefault(name, {})[place] = part
        for name, loss in self.losses.items():
            loss.load_training_state(states.get(name, {}))


def _unit(vectors: torch.Tensor) -> torch.Tensor:
    return normalize(vectors if vectors.dtype == torch.float64 else vectors.float())


def text_hashes(features: Mapping[str, Any]) -> torch.Tensor:
    """A hash of each text's tokens, whatever its padding, `(batch,)` int64."""
    ids = features["input_ids"]
    if "offsets" in features:
        texts = ids.tensor_split(features["offsets"][1:].cpu())
        ids, mask = (pad_sequence(list(rows), batch_first=True) for rows in (texts, [row * 0 + 1 for row in texts]))
    else:
        mask = features.get("attention_mask", torch.ones_like(ids))
    powers = torch.full_like(ids[0], HASH_FACTOR, dtype=torch.long).cumprod(0)
    places = (mask.cumsum(1) - 1).clamp(min=0)
    return ((ids + 1) * powers[places] * mask).sum(1)
