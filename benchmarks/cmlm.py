"""A CMLM step against transformers' own masked LM on one sentence, forward and backward.

All fill in the same share of the tokens of the same random sentences, with the same encoder, head, attention and
precision. ours: `CmlmModel`, with the first sentence's vectors before the second; ours, one sentence: with
`conditioning: none`; full logits: transformers' masked LM on the second sentence, which decodes all positions.
"""

from __future__ import annotations

import torch

from benchmarks.harness import DEVICE, Job, Step, loss_step
from benchmarks.hictl import END, FIRST, HALF, MASK, WORDS_FROM, masked_lm, share_head
from hf_xlsr import CmlmConfig, CmlmModel
from hf_xlsr.encoders.assembly import EncoderPart

SIDES = ("ours", "ours, one sentence", "full logits")
DEFAULTS: Job = {"layers": 12, "width": 384, "batch": 16, "length": 64, "vocabulary": 250_002, "projections": 15}
QUICK: Job = {"layers": 1, "width": 64, "batch": 2, "length": 8, "vocabulary": 100, "projections": 2}
SHARE = 80 / 256  # of the tokens, masked


def batch_of(job: Job, rows: int, length: int) -> dict[str, torch.Tensor]:
    """Random pairs of sentences of one length in the form of `CmlmCollator`."""
    generator = torch.Generator().manual_seed(1)
    first, second = torch.randint(WORDS_FROM, job["vocabulary"], (2, rows, length), generator=generator)
    for sentences in (first, second):
        sentences[:, 0], sentences[:, -1] = FIRST, END
    chosen = torch.rand(second.shape, generator=generator).argsort(1).argsort(1) < round(SHARE * length)
    hidden = chosen & (second >= WORDS_FROM)
    hidden[:, 1] = True
    batch = {
        "first_input_ids": first,
        "first_attention_mask": torch.ones_like(first),
        "second_input_ids": second.masked_fill(hidden, MASK),
        "second_attention_mask": torch.ones_like(second),
        "labels": second.masked_fill(~hidden, -100),
    }
    return {name: tensor.to(DEVICE) for name, tensor in batch.items()}


def prepare(job: Job, sides: list[str]) -> Step:
    full = masked_lm(job, job["length"] + job["projections"])
    config = CmlmConfig(text_config=full.base_model.config, projections=job["projections"])
    ours = CmlmModel(config, EncoderPart(full.base_model, tokenizer=None)).to(DEVICE).train()
    share_head(ours, full)
    few, many = batch_of(job, 2, 4), batch_of(job, job["batch"], job["length"])

    def losses_of(side: str, warm_up: bool) -> dict[str, torch.Tensor]:
        batch = few if warm_up else many
        if side == "full logits":
            ids, mask = batch["second_input_ids"], batch["second_attention_mask"]
            return {"loss": full(input_ids=ids, attention_mask=mask, labels=batch["labels"]).loss}
        ours.config.conditioning = "none" if side == "ours, one sentence" else "input"
        return {"loss": ours(**batch).loss}

    return loss_step(losses_of, [*full.parameters(), *ours.parameters()], HALF, keep=False)
