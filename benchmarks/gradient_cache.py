"""A contrastive step with the gradient cache against sentence-transformers' CachedMultipleNegativesRankingLoss.

Forward and backward on the same encoder and random pairs of ragged length, both directions, chunks of `chunk` sentences.
whole batch: sentence-transformers' MultipleNegativesRankingLoss, up to `whole_up_to` pairs.
"""

from __future__ import annotations

import torch

from benchmarks.harness import DEVICE, Job, Step, loss_step
from benchmarks.training import NO_DROPOUT, both_directions, encoder_sizes
from hf_xlsr import CmlmConfig, CmlmModel

GRID = {"batch": "batches"}
DEFAULTS: Job = {"batches": [64, 512, 4096], "layers": 6, "width": 384, "length": 16, "chunk": 32}
DEFAULTS |= {"vocabulary": 50_000, "whole_up_to": 512, "precision": "float32"}
QUICK: Job = {"batches": [8], "layers": 1, "width": 64, "length": 8, "chunk": 4, "vocabulary": 100}
OURS, WHOLE, CACHED = "ours", "whole batch", "CachedMultipleNegativesRankingLoss"
SCALE = 20.0


def sides(job: Job) -> list[str]:
    return [OURS, *([WHOLE] if job["batch"] <= job["whole_up_to"] else []), CACHED]


def pairs_of(job: Job, pairs: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Sentences, then their translations, and their mask; half to all of `length` tokens."""
    generator = torch.Generator().manual_seed(1)
    lengths = torch.randint(job["length"] // 2, job["length"] + 1, (2 * pairs, 1), generator=generator)
    mask = (torch.arange(job["length"]) < lengths).long()
    ids = torch.randint(1, job["vocabulary"], mask.shape, generator=generator) * mask
    return ids.to(DEVICE), mask.to(DEVICE)


def prepare(job: Job, chosen: list[str]) -> Step:
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer import losses

    torch.manual_seed(1)
    encoder = {"model_type": "bert", **encoder_sizes(job["width"], job["layers"], job["vocabulary"])}
    encoder |= NO_DROPOUT  # so that losses can be compared
    config = CmlmConfig(text_config=encoder, retrieval_normalize=True, retrieval_margin=0.0, retrieval_scale=SCALE)
    ours = CmlmModel(config).to(DEVICE).train()

    class Encoder(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder = ours.encoder

        def forward(self, features: dict[str, torch.Tensor], **_: object) -> dict[str, torch.Tensor]:
            features["sentence_embedding"] = ours.encode_sentences(features["input_ids"], features["attention_mask"])
            return features

    model = SentenceTransformer(modules=[Encoder()], device=DEVICE)
    both = both_directions(SCALE)
    peers = {
        CACHED: losses.CachedMultipleNegativesRankingLoss(model, mini_batch_size=job["chunk"], **both),
        WHOLE: losses.MultipleNegativesRankingLoss(model, **both),
    }
    few, many = pairs_of(job, 8), pairs_of(job, job["batch"])

    def losses_of(side: str, warm_up: bool) -> dict[str, torch.Tensor]:
        ids, mask = few if warm_up else many
        if side == OURS:
            batch = {"input_ids": ids, "attention_mask": mask}
            return {"loss": ours(retrieval=batch, cache_batch_size=job["chunk"]).losses["retrieval"] / 2}  # a sum
        halves = zip(ids.chunk(2), mask.chunk(2), strict=True)
        return {"loss": peers[side]([{"input_ids": part, "attention_mask": own} for part, own in halves], None)}

    return loss_step(losses_of, list(ours.parameters()), job["precision"] == "bfloat16", keep=True)
