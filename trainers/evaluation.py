"""Loss and translation accuracy on evaluation data during training."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from hf_xlsr.data.prepared import PreparedPairs
from hf_xlsr.data.sampling import MAIN, TASK
from hf_xlsr.evaluation.protocols.tatoeba import nearest_row
from hf_xlsr.utils.pooling import normalize

if TYPE_CHECKING:
    from hf_xlsr.trainers.base import XlsrTrainer


def evaluation_batches(
    data: Any, batch_size: int, *, homogeneous: bool, processes: int = 1, rank: int = 0
) -> Iterator[list[int]]:
    """This process's rows of each batch: rows of similar length, each batch of about the same size.

    Every process has as many rows of each batch, at most `batch_size`; up to one less than `processes` are dropped.
    """
    groups = np.asarray(data.groups) if homogeneous else np.zeros(len(data), dtype=np.int64)
    for group in np.unique(groups):
        rows = np.flatnonzero(groups == group)
        rows = rows[np.argsort(np.asarray(data.lengths)[rows], kind="stable")]
        for batch in np.array_split(rows, -(-len(rows) // (batch_size * processes))):
            if share := len(batch) // processes:
                yield batch[rank::processes][:share].tolist()


@torch.no_grad()
def evaluation_loss(trainer: XlsrTrainer, data: Any, task: str = MAIN) -> float:
    """Mean loss of the rows. It draws no random numbers from those of training."""
    args, model = trainer.args, trainer.model
    options = {"processes": args.world_size, "rank": args.process_index, "homogeneous": args.homogeneous_batches}
    total = torch.zeros(2, dtype=torch.float64)
    was_training = model.training
    model.eval()
    devices = [args.device] if args.device.type == "cuda" else []
    with torch.random.fork_rng(devices):
        torch.manual_seed(trainer.args.seed_of_data)
        for rows in evaluation_batches(data, args.per_device_eval_batch_size, **options):
            features = [{TASK: task, **feature} for feature in data.__getitems__([(0, row) for row in rows])]
            inputs = trainer._prepare_inputs(trainer.data_collator(features))
            with trainer.compute_loss_context_manager():
                loss = trainer.compute_loss(model, inputs)
            total += torch.tensor([float(loss) * len(rows), len(rows)], dtype=torch.float64)
    model.train(was_training)
    if args.world_size > 1:
        total = trainer.accelerator.reduce(total.to(args.device, torch.float32)).double().cpu()
    return float(total[0] / total[1])


def translation_accuracy(encoder: Any, pairs: PreparedPairs, *, batch_size: int = 64) -> dict[str, float]:
    """Share of sentences whose nearest sentence of the other language, by cosine, is their translation.

    Equal sentences count as translations of each other's partners, as in `TranslationEvaluator` of
    sentence-transformers, whose names these are: `SOURCE-TARGET_src2trg_accuracy`, `..._trg2src_accuracy` and
    `..._mean_accuracy` of each language pair, and `accuracy`, the mean of the language pairs.
    """
    metrics: dict[str, float] = {}
    for group, languages in enumerate(pairs.language_pairs):
        rows = pairs.rows.select(np.flatnonzero(pairs.groups == group))
        vectors, texts = [], []
        for side, language in zip(("source", "target"), languages, strict=True):
            task = language if encoder.routes else None
            encoded = torch.from_numpy(encoder.encode_ids(rows[f"{side}_ids"][:], batch_size, task=task))
            vectors.append(normalize(encoded).numpy())
            texts.append(np.asarray(rows[f"{side}_text"][:]))
        name = "-".join(languages)
        forward, backward = (
            float(np.mean(texts[1 - side][nearest_row(vectors[side], vectors[1 - side])] == texts[1 - side]))
            for side in (0, 1)
        )
        metrics[f"{name}_src2trg_accuracy"], metrics[f"{name}_trg2src_accuracy"] = forward, backward
        metrics[f"{name}_mean_accuracy"] = (forward + backward) / 2
    means = [value for key, value in metrics.items() if key.endswith("_mean_accuracy")]
    return {"accuracy": float(np.mean(means)), **metrics}
