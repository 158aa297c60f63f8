"""Filling the memory queues before the first step, which then has all negatives."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from tqdm.auto import tqdm
from transformers import TrainerCallback

from hf_xlsr.data.collators import pad_rows, truncate_row
from hf_xlsr.trainers.adapters import base_model
from hf_xlsr.utils.distributed import gather_rows, process_index, world_size

if TYPE_CHECKING:
    from hf_xlsr.trainers.dual_momentum import DualMomentumTrainer

BATCH_SIZE = 256
BATCHES_AT_ONCE = 32  # sorted by length and enqueued together; bounds memory


class QueuePrefillCallback(TrainerCallback):
    """Fills empty queues with keys of random training pairs when training begins; a resume keeps its queues.

    If a language has fewer pairs than its queue has rows, each key is added once.
    """

    def __init__(self, trainer: DualMomentumTrainer) -> None:
        self.trainer = trainer

    def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        ours = base_model(model)
        if any(queue.count for queue in ours.queues.values()):
            return
        was_training = ours.training
        ours.eval()
        try:
            for number, language in enumerate(ours.queues):
                self._fill(ours, language, np.random.default_rng([self.trainer.args.seed_of_data, number, 2]))
        except BaseException:
            # Partly filled queues, after Ctrl-C, would look like those of a resumed training.
            for queue in ours.queues.values():
                queue.clear()
            raise
        finally:
            ours.train(was_training)

    def _fill(self, model: Any, language: str, rng: np.random.Generator) -> None:
        data = self.trainer.train_dataset
        examples_of_side = [
            np.flatnonzero(
                np.isin(data.groups, [g for g, pair in enumerate(data.language_pairs) if pair[side] == language])
            )
            for side in (0, 1)
        ]
        examples = np.concatenate(examples_of_side)
        of_target = np.repeat([False, True], [len(some) for some in examples_of_side])
        drawn = rng.permutation(len(examples))[: model.config.queue_size]
        block = BATCH_SIZE * BATCHES_AT_ONCE * world_size()
        hidden = self.trainer.args.disable_tqdm or process_index() > 0
        for start in tqdm(range(0, len(drawn), block), desc=f"filling the queue of {language}", disable=hidden):
            some = drawn[start : start + block]
            keys, texts = self._keys(model, language, examples[some], of_target[some])
            model.enqueue(language, keys, texts, torch.from_numpy(examples[some]).to(keys.device))

    def _keys(
        self, model: Any, language: str, examples: np.ndarray, of_target: np.ndarray
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and text hashes in the given order; each process encodes its share, in batches of similar length."""
        order = np.argsort(-np.asarray(self.trainer.train_dataset.lengths)[examples], kind="stable")
        parts: list[tuple[torch.Tensor, ...]] = []
        step = BATCH_SIZE * world_size()
        for start in range(0, len(order), step):
            batch = order[start : start + step]
            # Every process has as many rows: the last ones may be encoded twice, but are written once.
            mine = np.resize(batch[process_index() :: world_size()], -(-len(batch) // world_size()))
            if len(batch) <= process_index():
                mine = batch[:1]
            keys, texts = self._encode(model, language, examples[mine], of_target[mine])
            rows = torch.from_numpy(mine.astype(np.int64)).to(keys.device)
            parts.append((gather_rows(keys), gather_rows(texts), gather_rows(rows)))
        keys, texts, rows = (torch.cat(part) for part in zip(*parts, strict=True))
        place = torch.empty(len(order), dtype=torch.long, device=rows.device)
        place[rows] = torch.arange(len(rows), device=rows.device)
        return keys[place], texts[place]

    def _encode(
        self, model: Any, language: str, examples: np.ndarray, of_target: np.ndarray
    ) -> tuple[torch.Tensor, torch.Tensor]:
        trainer = self.trainer
        features = trainer.train_dataset.__getitems__([(0, int(example)) for example in examples])
        sides = ["target" if target else "source" for target in of_target]
        ids = [
            truncate_row(feature[f"{side}_ids"], trainer.max_length)
            for feature, side in zip(features, sides, strict=True)
        ]
        padded = pad_rows(ids, trainer.tokenizers[language].pad_token_id)
        batch = [torch.from_numpy(array).to(model.device) for array in padded]
        dtype = trainer.autocast_dtype
        with torch.no_grad(), torch.autocast(model.device.type, dtype=dtype, enabled=dtype is not None):
            keys = model.encode_sentences(*batch, language=language, keys=True).float()
        texts = torch.tensor([feature[f"{side}_text"] for feature, side in zip(features, sides, strict=True)])
        return keys, texts.to(keys.device)
