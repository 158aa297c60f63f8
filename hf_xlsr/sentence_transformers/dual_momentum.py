"""Dual momentum contrast (Wang et al., 2021) as a loss for `SentenceTransformerTrainer`."""

from __future__ import annotations

import contextlib
import copy
import itertools
import logging
import os
import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed
from accelerate.utils import extract_model_from_parallel
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.util import batch_to_device
from torch import nn
from torch.nn.functional import normalize
from torch.nn.utils.rnn import pad_sequence
from transformers import TrainerState
from transformers.trainer import TRAINER_STATE_NAME

from hf_xlsr.data.prompts import SIDES
from hf_xlsr.encoders.encoding import BATCH_SIZE
from hf_xlsr.losses.queue_info_nce import TEMPERATURE
from hf_xlsr.modeling import citations
from hf_xlsr.modeling.dual_momentum.configuration_dual_momentum import MOMENTUM, QUEUE_SIZE, DualMomentumConfig
from hf_xlsr.modeling.dual_momentum.contrast import direction_loss, momentum_pairs, update_averages
from hf_xlsr.modeling.memory_queue import MemoryQueue
from hf_xlsr.sentence_transformers.losses import Features, LossParts
from hf_xlsr.trainers.step_keys import SoundStepCallback, StepKeys
from hf_xlsr.utils.devices import autocast_dtype_of
from hf_xlsr.utils.distributed import gather_ragged, gather_with_gradient, world_size
from hf_xlsr.utils.errors import XlsrError
from hf_xlsr.utils.files import atomic_write

logger = logging.getLogger(__name__)

HASH_FACTOR = 6364136223846793005  # Knuth's, modulo 2^64
FLAT_BORDERS = "cu_seq_lens_q"  # in the features of FlashAttention: where each text of the one row begins, and the end
MOMENTUM_MODEL = "momentum_model."  # prefix of the momentum weights in checkpoints
COPIED: weakref.WeakKeyDictionary[DualMomentumLoss, weakref.ref[nn.Module]] = weakref.WeakKeyDictionary()
"""All losses, for callbacks that are not given theirs, and the model that the momentum encoder of each is a copy of."""
_numbers = itertools.count()


HardNegatives = tuple[torch.Tensor | None, torch.Tensor | None]  # their keys and hashes of their texts
# From sources and targets to their features.
PairFeatures = Callable[[Sequence[str], Sequence[str]], list[dict[str, Any]]]


class PairKeys(NamedTuple):
    """Keys of both sides of some pairs `(batch, width)`, hashes of their texts and of the pairs `(batch,)`."""

    source_keys: torch.Tensor
    target_keys: torch.Tensor
    source_texts: torch.Tensor
    target_texts: torch.Tensor
    pairs: torch.Tensor

    @classmethod
    def of(
        cls,
        source_keys: torch.Tensor,
        target_keys: torch.Tensor,
        source_texts: torch.Tensor,
        target_texts: torch.Tensor,
    ) -> PairKeys:
        """The keys, with hashes of the pairs that the texts make."""
        pairs = source_texts * HASH_FACTOR + target_texts
        return cls(source_keys, target_keys, source_texts, target_texts, pairs)


class DualMomentumLoss(nn.Module):
    r"""Contrast with the keys of a momentum encoder in two memory queues, equations 1 to 3 of the paper.

    ```math
    L(x, y) = -\log \frac{\exp(h_x \cdot h_{y_0} / \tau)}{\sum_{i=0}^K \exp(h_x \cdot h_{y_i} / \tau)}
    ```

    where `h` are unit vectors, `y_0` is the translation and `y_1 .. y_K` are the queue; the loss is `L(x, y) + L(y, x)`.
    In evaluation the negatives are the other pairs of the batch, and the model computes the keys itself: `eval_loss`
    measures the model, and depends on `per_device_eval_batch_size`.
    A frozen copy of the model, which follows it by `momentum`, computes the keys. Copy and queues are not saved with the
    model. Add `DualMomentumCallback(loss)` to the trainer's callbacks, which updates both once per optimiser
    step. Add adapters to the model before making the loss.

    Columns: (source, target), and any number of hard negatives, which are further candidates of all sources. With a
    `Router`, `router_mapping` of the training arguments chooses the routes. `docs/sentence-transformers.md` has a script.

    Args:
        queue_size: Keys in each queue; 0 for none.
        momentum: Of the copy; 1 keeps it as it was. As of all settings, the default suits some thousands of pairs; the
            paper has 409,600 keys, momentum 0.999, and none of the next three settings.
        temperature: Divides the cosines.
        queue_storage: `float32`, `bfloat16` or `int8`.
        in_batch_negatives: Also take the other keys of the batch as negatives.
        mask_stale_keys: Do not take older keys of the same pair as negatives.
        mask_duplicates: Do not take equal sentences of other pairs as negatives.
        split_softmax: Normalise hard negatives apart from queue and batch.
        matryoshka_dims: Numbers of dimensions of truncated embeddings, see `hf_xlsr.losses.matryoshka_mean`.
        gather_across_devices: Whether in-batch and hard negatives come from all processes; keys of the queues always do.
    """

    citation = citations.DUAL_MOMENTUM
    autocast_dtype: torch.dtype | None = None  # the trainer's

    def __init__(
        self,
        model: SentenceTransformer,
        queue_size: int = QUEUE_SIZE,
        momentum: float = MOMENTUM,
        temperature: float = TEMPERATURE,
        *,
        queue_storage: str = "float32",
        in_batch_negatives: bool = True,
        mask_stale_keys: bool = True,
        mask_duplicates: bool = True,
        split_softmax: bool = False,
        matryoshka_dims: Sequence[int] | None = None,
        gather_across_devices: bool = False,
    ) -> None:
        super().__init__()
        self.arguments: dict[str, Any] = {
            "queue_size": queue_size,
            "momentum": momentum,
            "temperature": temperature,
            "queue_storage": queue_storage,
            "in_batch_negatives": in_batch_negatives,
            "mask_stale_keys": mask_stale_keys,
            "mask_duplicates": mask_duplicates,
            "split_softmax": split_softmax,
        }
        self.config = DualMomentumConfig(**self.arguments)
        self.matryoshka_dims = matryoshka_dims
        self.gather_across_devices = gather_across_devices

        self.model = model
        self.number = next(_numbers)  # of all losses, in the order in which they were made
        self.steps_end = False  # whether somebody calls `finish_step`
        self._filled_with: dict[str, Any] = {}  # arguments of `fill_queues`
        self._start()

    def _start(self) -> None:
        """Makes the momentum encoder, a copy of the model, and empty queues."""
        model = self._trained()
        first_weight = next(model.parameters())
        self.half_dtype: torch.dtype | None = None
        if first_weight.dtype in (torch.bfloat16, torch.float16):
            self.half_dtype = first_weight.dtype

        # Not named `model`, which the trainer replaces by the wrapped one.
        model_card: Any = {id(model.model_card_data): None}  # not copied, since it refers to the trainer
        self.momentum_model = copy.deepcopy(model, model_card).requires_grad_(False).eval()
        if self.half_dtype is not None:
            self.momentum_model.float()  # small updates would be rounded away

        self.queues: Any = nn.ModuleDict()
        if self.config.queue_size:
            width = self._embedding_width()
            for side in SIDES:
                self.queues[side] = MemoryQueue(self.config.queue_size, width, self.config.queue_storage)
            self.queues.to(first_weight.device)

        self.waiting: list[PairKeys] = []  # of the micro-batches of this step
        self._batch: tuple[torch.Tensor, PairKeys] | None = None  # tokens and keys of the last batch
        COPIED[self] = weakref.ref(model)

    def follow_model(self) -> None:
        """Starts again where the trainer has replaced the model by another one, as it does with `model_init`."""
        copied = COPIED.setdefault(self, weakref.ref(self._trained()))
        if copied() is self._trained():
            return
        self._start()
        if self._filled_with:
            self.fill_queues(**self._filled_with)

    def train(self, mode: bool = True) -> DualMomentumLoss:
        """Sets the mode; the momentum encoder stays in evaluation mode."""
        super().train(mode)
        self.momentum_model.eval()
        return self

    def _trained(self) -> Any:
        """The model without what the trainer wraps around it."""
        return extract_model_from_parallel(self.model, keep_torch_compile=False)

    def _autocast(self, dtype: torch.dtype | None) -> contextlib.AbstractContextManager[Any]:
        """Computes in a precision; without one, in that of the code around it."""
        if dtype is None:
            return contextlib.nullcontext()
        return torch.autocast(self.momentum_model.device.type, dtype=dtype)

    @torch.no_grad()
    def _embedding_width(self) -> int:
        """The number of dimensions of an embedding, measured on one text."""
        first_module: Any = next(self.momentum_model.children())
        routes = getattr(first_module, "sub_modules", [None])  # of a router; they have embeddings of one width
        features = self._preprocess(["a"], task=next(iter(routes), None))

        # FlashAttention reads half precision only, and nobody knows yet which one the trainer will use.
        precision = torch.bfloat16 if FLAT_BORDERS in features else None
        with self._autocast(precision):
            return self._keys(features).shape[1]

    def _preprocess(
        self, texts: Sequence[str], *, prompt: str | None = None, task: str | None = None
    ) -> dict[str, Any]:
        """Features of texts, as the trainer's collator makes them."""
        features = self.momentum_model.preprocess(list(texts), prompt=prompt, task=task)
        features = batch_to_device(features, self.momentum_model.device)
        if task is not None:
            features["task"] = task
        return features

    def _keys(self, features: Mapping[str, Any]) -> torch.Tensor:
        """Keys of the texts, in the precision of the trained model, `(batch, width)`."""
        # Accelerate runs the forward of the trainer's model alone in the trainer's precision.
        with self._autocast(self.autocast_dtype or self.half_dtype):
            return _unit(self.momentum_model(dict(features))["sentence_embedding"])

    @torch.no_grad()
    def _pair_keys(self, source: Mapping[str, Any], target: Mapping[str, Any]) -> PairKeys:
        return PairKeys.of(self._keys(source), self._keys(target), text_hashes(source), text_hashes(target))

    @torch.no_grad()
    def _hard_negatives(self, columns: Sequence[Mapping[str, Any]]) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys of all hard negatives, and hashes of their texts."""
        keys = torch.cat([self._keys(features) for features in columns])
        texts = torch.cat([text_hashes(features) for features in columns])
        if self.gather_across_devices:
            return gather_with_gradient(keys), gather_with_gradient(texts)
        return keys, texts

    def _enqueue(self, keys: PairKeys) -> None:
        self.queues["source"].enqueue(keys.source_keys, keys.source_texts, keys.pairs)
        self.queues["target"].enqueue(keys.target_keys, keys.target_texts, keys.pairs)

    def forward(self, sentence_features: Features, labels: torch.Tensor | None = None) -> LossParts:
        """The losses of both directions, whose sum is the loss; in training the keys wait for the end of the step."""
        columns = list(sentence_features)
        if not self.model.training:
            return self._evaluation_losses(columns)
        keys, is_new = self._keys_of_batch(columns)
        negatives: HardNegatives = (None, None)
        if columns[2:]:
            negatives = self._hard_negatives(columns[2:])

        source = _unit(self.model(columns[0])["sentence_embedding"])
        target = _unit(self.model(columns[1])["sentence_embedding"])

        with self._autocast(self.autocast_dtype):
            losses = self._direction_losses(
                source,
                target,
                keys,
                negatives,
                queues=self.queues,
                in_batch=self.config.in_batch_negatives,
                gather=self.gather_across_devices,
            )

        if is_new and torch.is_grad_enabled():
            self.waiting.append(keys)
        return losses

    def _direction_losses(
        self,
        source: torch.Tensor,
        target: torch.Tensor,
        keys: PairKeys,
        negatives: HardNegatives,
        *,
        queues: Any,
        in_batch: bool,
        gather: bool,
    ) -> LossParts:
        """The losses of sources among the targets' keys and of targets among the sources'; there may be no queues."""
        source_queue = queues["source"] if queues else None
        target_queue = queues["target"] if queues else None
        direction = partial(
            direction_loss, self.config, matryoshka_dims=self.matryoshka_dims, in_batch=in_batch, gather=gather
        )
        onward, _ = direction(source, keys.target_keys, target_queue, keys.target_texts, keys.pairs, *negatives)
        back, _ = direction(target, keys.source_keys, source_queue, keys.source_texts, keys.pairs)
        return LossParts(source_to_target=onward, target_to_source=back)

    def _check_steps(self) -> None:
        """Ends the last step, with a warning, if gradients that are gone show that nobody else has."""
        if self.waiting and not self.steps_end and all(weight.grad is None for weight in self.model.parameters()):
            logger.warning(
                "DualMomentumLoss ends its steps itself. Add DualMomentumCallback() to the callbacks of the trainer, "
                "which also keeps queues and momentum encoder in checkpoints."
            )
            self.finish_step()
            self.steps_end = False

    def _keys_of_batch(self, columns: Sequence[Mapping[str, Any]]) -> tuple[PairKeys, bool]:
        """The keys of a batch, and whether it is a new one: losses around this one call it several times for a batch."""
        token_ids = columns[0]["input_ids"]
        if self._batch is not None and self._batch[0] is token_ids:
            return self._batch[1], False
        self.follow_model()
        self._check_steps()
        keys = self._pair_keys(*columns[:2])
        self._batch = (token_ids, keys)
        return keys, True

    def _evaluation_losses(self, columns: Sequence[dict[str, Any]]) -> LossParts:
        """The losses of both directions over a batch alone, which measure the model and not the state of training.

        The model itself computes the keys, and the other pairs of the batch are the negatives.
        """
        source, target, *negatives = (_unit(self.model(features)["sentence_embedding"]) for features in columns)
        source_texts, target_texts, *negative_texts = (text_hashes(features) for features in columns)
        hard_negatives: HardNegatives = (None, None)
        if negatives:
            hard_negatives = (torch.cat(negatives), torch.cat(negative_texts))

        keys = PairKeys.of(source, target, source_texts, target_texts)
        return self._direction_losses(source, target, keys, hard_negatives, queues=None, in_batch=True, gather=False)

    def check_shapes(self) -> None:
        """Checks that the model still has the weights that its momentum copy was made of."""
        averages = dict(self.momentum_model.named_parameters())
        for name, weight in self._trained().named_parameters():
            if name in averages and averages[name].shape != weight.shape:
                raise XlsrError(
                    f"'{name}' has the shape {tuple(weight.shape)}, and had {tuple(averages[name].shape)} when "
                    "DualMomentumLoss was made. Make the loss after tokens or layers are changed."
                )

    @torch.no_grad()
    def finish_step(self) -> None:
        """Updates the momentum encoder and enqueues the keys, after each optimiser step; see `DualMomentumCallback`."""
        self.steps_end = True
        weights = momentum_pairs(self._trained(), self.momentum_model)
        update_averages(weights, self.config.momentum)

        waiting = self.waiting
        self.waiting = []
        self._batch = None
        if not self.queues:
            return

        if not waiting:  # processes may have batches of different datasets, and so none for this loss
            queue = self.queues["source"]
            no_keys = queue.values[:0].float()
            no_hashes = queue.texts[:0]
            waiting = [PairKeys(no_keys, no_keys, no_hashes, no_hashes, no_hashes)]

        own_keys = [torch.cat(batches) for batches in zip(*waiting, strict=True)]
        self._enqueue(PairKeys(*map(gather_ragged, own_keys)))

    @torch.no_grad()
    def fill_queues(
        self,
        sources: Sequence[str],
        targets: Sequence[str],
        *,
        prompts: tuple[str | None, str | None] = (None, None),
        tasks: tuple[str | None, str | None] = (None, None),
        batch_size: int = BATCH_SIZE,
    ) -> None:
        """Fills the queues with translations, before training.

        If training reads texts in another way, by its own `prompts` or `router_mapping`, `DualMomentumCallback` fills
        them again as training does, so that training knows these texts.

        Args:
            sources: Texts of the first side.
            targets: Their translations.
            prompts: Of both sides, as `prompts` of the training arguments has them. The trainer does not use the
                model's default prompt, so this does not either.
            tasks: Routes of both sides, for a `Router`.
            batch_size: Pairs that are encoded at once.
        """

        def features(first: Sequence[str], second: Sequence[str]) -> list[dict[str, Any]]:
            sides = zip((first, second), prompts, tasks, strict=True)
            return [self._preprocess(texts, prompt=prompt, task=task) for texts, prompt, task in sides]

        texts = {"sources": sources, "targets": targets}
        self._filled_with = {**texts, "prompts": prompts, "tasks": tasks, "batch_size": batch_size}
        self._fill(features)

    def _fill(self, features: PairFeatures) -> None:
        """Enqueues the keys of the texts that the queues are filled with."""
        texts = self._filled_with
        for start in range(0, len(texts["sources"]), texts["batch_size"]):
            rows = slice(start, start + texts["batch_size"])
            self._enqueue(self._pair_keys(*features(texts["sources"][rows], texts["targets"][rows])))

    @torch.no_grad()
    def refill_queues(self, collate: Callable[[list[dict[str, str]]], dict[str, Any]], columns: Sequence[str]) -> None:
        """Fills the queues again if the collator of training reads their texts in another way than `fill_queues` did."""
        sources = self._filled_with.get("sources", ())
        targets = self._filled_with.get("targets", ())
        if not len(sources):
            return

        def features(first: Sequence[str], second: Sequence[str]) -> list[dict[str, Any]]:
            rows = [dict(zip(columns, pair, strict=False)) for pair in zip(first, second, strict=True)]
            batch = batch_to_device(collate(rows), self.momentum_model.device)
            sides = []
            for column in columns[:2]:
                prefix = f"{column}_"
                names = [name for name in batch if name.startswith(prefix)]
                sides.append({name.removeprefix(prefix): batch[name] for name in names})
            return sides

        last = len(sources) - 1
        newest = [text_hashes(side) for side in features(sources[last:], targets[last:])]
        if all(text in self.queues[side].texts for side, text in zip(SIDES, newest, strict=True)):
            return
        for queue in self.queues.values():
            queue.clear()
        self._fill(features)

    def training_state(self) -> dict[str, torch.Tensor]:
        """Queues and momentum weights, which a checkpoint of the model lacks.

        Momentum weights that are left out are those of the model: they have never been trained.
        """
        momentum_weights = dict(self.momentum_model.named_parameters())
        state: dict[str, torch.Tensor] = {}
        for name, weight in self._trained().named_parameters():
            average = momentum_weights[name]
            if weight.requires_grad or not torch.equal(weight.to(average), average):  # it may have been trained before
                state[f"{MOMENTUM_MODEL}{name}"] = average
        state.update(self.queues.state_dict(prefix="queues."))
        return state

    @torch.no_grad()
    def load_training_state(self, state: Mapping[str, torch.Tensor]) -> None:
        """Restores `training_state`, whichever weights are frozen now; those that it lacks are the model's."""
        averages = dict(self.momentum_model.named_parameters(prefix=MOMENTUM_MODEL.rstrip(".")))
        own_tensors: dict[str, torch.Tensor] = {**averages, **self.queues.state_dict(prefix="queues.")}
        own_shapes = _shapes(own_tensors)
        differing = {name for name, *_ in _shapes(state) - own_shapes}
        differing |= {name for name in own_tensors if name not in averages and name not in state}
        if differing:
            raise XlsrError(f"The checkpoint has another model, queue size or storage: {min(differing)} differs.")

        weights = dict(self._trained().named_parameters(prefix=MOMENTUM_MODEL.rstrip(".")))
        for name, tensor in own_tensors.items():
            tensor.copy_(state[name] if name in state else weights[name])

    def get_config_dict(self) -> dict[str, Any]:
        return {
            **self.arguments,
            "matryoshka_dims": self.matryoshka_dims,
            "gather_across_devices": self.gather_across_devices,
        }


class DualMomentumCallback(SoundStepCallback):
    """Ends the optimiser steps of `DualMomentumLoss`, and keeps its queues and momentum weights in the checkpoints.

    A step whose gradient is not finite is dropped: no update, no momentum, no keys. `loss` is that of the trainer, a dict
    of several, or a loss around others; those that are not a `DualMomentumLoss` are ignored. By default, and where `loss`
    is a function that makes the loss, it is each `DualMomentumLoss` of the model in training.
    """

    FILE = "dual_momentum_loss.safetensors"

    def __init__(self, loss: Callable[..., Any] | Mapping[str, Callable[..., Any]] | None = None) -> None:
        super().__init__(StepKeys())
        named_losses: Mapping[str, Any] = loss if isinstance(loss, Mapping) else {"loss": loss}
        self.finds_losses = not all(isinstance(outer_loss, nn.Module) for outer_loss in named_losses.values())
        if self.finds_losses:
            named_losses = {}

        # A loss may stand inside another one, and it may serve several datasets: then its last name counts.
        names: dict[DualMomentumLoss, str] = {}
        for name, outer_loss in named_losses.items():
            for path, module in outer_loss.named_modules():
                if isinstance(module, DualMomentumLoss):
                    names[module] = f"{name}.{path}"
        self.losses = {name: queue_loss for queue_loss, name in names.items()}

    def on_train_begin(
        self, args: Any, state: Any, control: Any, model: Any = None, train_dataloader: Any = None, **kwargs: Any
    ) -> None:
        if self.finds_losses:
            trained = extract_model_from_parallel(model, keep_torch_compile=False)
            losses = [loss for loss in COPIED if loss._trained() is trained]  # noqa: SLF001  # of this file
            losses.sort(key=lambda loss: loss.number)
            self.losses = {f"loss{number}": loss for number, loss in enumerate(losses)}
            if not self.losses:
                raise XlsrError(
                    "DualMomentumCallback() needs a DualMomentumLoss that was made for the trainer's model."
                )

        for loss in self.losses.values():
            loss.follow_model()
            loss.check_shapes()
            loss.steps_end = True
            loss.autocast_dtype = autocast_dtype_of(args)
            if world_size() > 1:  # as DDP copies the weights of the model
                for weight in loss.momentum_model.parameters():
                    torch.distributed.broadcast(weight.data, 0)

        if state.global_step:
            self._load(self._resumed_checkpoint(args, state))
            return
        columns = getattr(getattr(train_dataloader, "dataset", None), "column_names", None)
        if columns and len(columns) >= len(SIDES):
            for loss in self.losses.values():
                loss.refill_queues(train_dataloader.collate_fn, columns)

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
        if not args.should_save:
            return
        tensors: dict[str, torch.Tensor] = {}
        for name, loss in self.losses.items():
            for key, tensor in loss.training_state().items():
                tensors[f"{name}:{key}"] = tensor.detach().contiguous()

        checkpoint = Path(str(args.output_dir)) / f"checkpoint-{state.global_step}"
        with atomic_write(checkpoint / self.FILE) as partial:
            save_file(tensors, partial)

    @staticmethod
    def _resumed_checkpoint(args: Any, state: Any) -> Path:
        """The checkpoint that training resumes from, which the trainer does not tell its callbacks."""
        checkpoint = Path(args.output_dir) / f"checkpoint-{state.global_step}"
        if isinstance(args.resume_from_checkpoint, (str, os.PathLike)) and args.resume_from_checkpoint:
            checkpoint = Path(args.resume_from_checkpoint)

        saved_state = checkpoint / TRAINER_STATE_NAME
        log = str(state.log_history)  # as text, because NaN != NaN
        if not saved_state.is_file() or str(TrainerState.load_from_json(str(saved_state)).log_history) != log:
            raise XlsrError(
                f"'{checkpoint}' is not the checkpoint that training resumes from. Also give its path as "
                "`resume_from_checkpoint` of the training arguments, where callbacks can see it."
            )
        return checkpoint

    def _load(self, checkpoint: Path) -> None:
        states: dict[str, dict[str, torch.Tensor]] = {}
        for name_and_key, tensor in load_file(checkpoint / self.FILE).items():
            name, _, key = name_and_key.rpartition(":")
            states.setdefault(name, {})[key] = tensor

        for name, loss in self.losses.items():
            loss.load_training_state(states.get(name, {}))


def _unit(vectors: torch.Tensor) -> torch.Tensor:
    """Vectors of length 1, in float32 at least."""
    return normalize(vectors if vectors.dtype == torch.float64 else vectors.float(), dim=-1)


def _shapes(state: Mapping[str, torch.Tensor]) -> set[tuple[str, torch.Size, torch.dtype]]:
    return {(name, tensor.shape, tensor.dtype) for name, tensor in state.items()}


def text_hashes(features: Mapping[str, Any]) -> torch.Tensor:
    """A hash of the tokens of each text, `(batch,)` int64; the same in padded rows, in one flat row and in a bag."""
    token_ids, mask = _token_rows(features)
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    powers = torch.full_like(token_ids[0], HASH_FACTOR, dtype=torch.long).cumprod(0)
    return ((token_ids + 1) * powers[positions] * mask).sum(1)


def _token_rows(features: Mapping[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
    """The tokens of each text, `(batch, length)`, and a mask that is 0 for padding.

    FlashAttention and `StaticEmbedding` get the texts of a batch one behind the other, and where each begins.
    """
    token_ids = features["input_ids"]
    if FLAT_BORDERS in features:
        starts = features[FLAT_BORDERS][:-1]
    elif "offsets" in features:
        starts = features["offsets"]
    else:
        return token_ids, features.get("attention_mask", torch.ones_like(token_ids))

    texts = token_ids.flatten().tensor_split(starts[1:].tolist())
    rows = pad_sequence(list(texts), batch_first=True, padding_value=-1)
    return rows, rows >= 0
