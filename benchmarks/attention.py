"""torch's fused attention (sdpa) against plain matrix products (eager): forward and backward of one encoder.

Batches have the same number of tokens at each length. `hf_xlsr.trainers.base.attention_for` follows the result.
"""

from __future__ import annotations

import torch
from transformers import AutoModel, BertConfig

from benchmarks.harness import Job, Step
from benchmarks.training import NO_DROPOUT, encoder_sizes

SIDES = ("sdpa", "eager")
DEFAULTS: Job = {"layers": 12, "width": 384, "tokens": 4096, "lengths": [16, 32, 64, 128, 256, 512]}
DEFAULTS |= {"precisions": ["bfloat16", "float32"]}
GRID = {"precision": "precisions", "length": "lengths"}
QUICK: Job = {"layers": 1, "width": 32, "tokens": 64, "lengths": [16], "precisions": ["float32"]}


def prepare(job: Job, sides: list[str]) -> Step:
    torch.manual_seed(1)
    more = {"num_attention_heads": job["width"] // 32, "max_position_embeddings": job["length"], **NO_DROPOUT}
    config = BertConfig(**{**encoder_sizes(job["width"], job["layers"], 1000), **more})
    device = "cuda" if torch.cuda.is_available() else "cpu"
    encoder = AutoModel.from_config(config).to(device).train()
    ids = torch.randint(1, 1000, (max(job["tokens"] // job["length"], 1), job["length"]), device=device)
    mask = torch.ones_like(ids)
    mask[::2, -1] = 0

    def step(side: str, warm_up: bool) -> None:
        encoder.set_attn_implementation(side)
        with torch.autocast(device, torch.bfloat16, enabled=job["precision"] == "bfloat16"):
            states = encoder(input_ids=ids, attention_mask=mask).last_hidden_state
        states.float().sum().backward()
        encoder.zero_grad()

    return step
