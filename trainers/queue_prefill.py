"""Filling the memory queues before the first step, so that it already has all its negatives."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from tqdm.auto import tqdm
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from hf_xlsr.data.collators import pad_rows
from hf_xlsr.distributed import gather_rows, process_index, world_size
from hf_xlsr.trainers.momentum_callbacks import base_model

if TYPE_CHECKING:
    from hf_xlsr.trainers.dual_momentum import DualMomentumTrainer


class QueuePrefillCallback(TrainerCallback):
    """Fills empty queues with keys of random training sentences when a training begins; a resumed one keeps its own.

    A language that has fewer sentences than its queue has rows gives each of them once.

    Args:
        trainer: Whose model, data and tokenizers.
    """

    def __init__(self, trainer: DualMomentumTrainer) -> None:
        self.trainer = trainer

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, model: Any = None, **kwargs: Any
    ) -> None:
        ours = base_model(model)
        if any(queue.count for queue in ours.queues.values()):
            return
        for number, language in enumerate(ours.queues):
            self._fill(ours, language, np.random.default_rng([self.trainer.data_seed, number, 2]))

    def _fill(self, model: Any, language: str, rng: np.random.Generator) -> None:
        data, size, batch_size = self.trainer.train_dataset, model.config.queue_size, 256
        pairs = data.language_pairs
        rows_of_side = [
            np.flatnonzero(np.isin(data.groups, [group for group, pair in enumerate(pairs) if pair[side] == language]))
            for side in (0, 1)
        ]
        places = np.concatenate(rows_of_side)
        of_target = np.repeat([False, True], [len(rows) for rows in rows_of_side])
        chosen = rng.permutation(len(places))[:size]
        # Longest first and dealt out in turn, so that every process has batches of like length.
        order = chosen[np.argsort(-np.asarray(data.lengths)[places[chosen]], kind="stable")]
        was_training, device = model.training, model.device
        model.eval()
        parts: list[tuple[torch.Tensor, ...]] = []
        step = batch_size * world_size()
        hidden = self.trainer.args.disable_tqdm or process_index() > 0
        for start in tqdm(range(0, len(order), step), desc=f"filling the queue of {language}", disable=hidden):
            mine = order[start : start + step][process_index() :: world_size()]
            wanted = -(-len(order[start : start + step]) // world_size())
            mine = np.resize(mine, wanted) if len(mine) else order[start : start + 1].repeat(wanted)
            parts.append(self._encode(model, language, data, places[mine], of_target[mine], mine, device))
        model.train(was_training)
        keys, texts, examples, positions = (torch.cat(part) for part in zip(*parts, strict=True))
        # In the order drawn, not by length: the oldest keys, which leave first, must be random ones.
        rank = np.empty(len(places), dtype=np.int64)
        rank[positions.cpu().numpy()] = np.arange(len(positions))
        rows = torch.from_numpy(rank[chosen]).to(keys.device)
        model.enqueue(language, keys[rows], texts[rows], examples[rows])

    def _encode(
        self,
        model: Any,
        language: str,
        data: Any,
        places: np.ndarray,
        of_target: np.ndarray,
        mine: np.ndarray,
        device: Any,
    ) -> tuple[torch.Tensor, ...]:
        features = data.__getitems__([(0, int(place)) for place in places])
        sides = ["target" if target else "source" for target in of_target]
        limit, pad = self.trainer.max_length, self.trainer.tokenizers[language].pad_token_id
        rows = [feature[f"{side}_ids"][:limit] for feature, side in zip(features, sides, strict=True)]
        batch = [torch.from_numpy(array).to(device) for array in pad_rows(rows, pad)]
        dtype = self.trainer.autocast_dtype
        with torch.no_grad(), torch.autocast(device.type, dtype=dtype, enabled=dtype is not None):
            keys = model.encode_sentences(*batch, language=language, keys=True).float()
        texts = torch.tensor([feature[f"{side}_text"] for feature, side in zip(features, sides, strict=True)])
        numbers = torch.from_numpy(np.stack([places, mine]).astype(np.int64))
        local = (keys, texts.to(device), numbers[0].to(device), numbers[1].to(device))
        return tuple(gather_rows(part) for part in local)
