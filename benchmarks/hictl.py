"""A HICTL pre-training step against the same encoder with full logits, forward and backward.

All compute equation 7 on the same random pairs, with the same encoder, head, attention and precision. ours:
`HictlForPreTraining`, which decodes masked positions alone and draws negative words; ours, one pass: with
`word_query: masked`, without the third encoder pass; full logits: transformers' masked LM decodes all positions, and all
other words of the vocabulary are negatives.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from transformers import AutoConfig, AutoModelForMaskedLM

from benchmarks.harness import DEVICE, Job, Step, loss_step
from benchmarks.training import NO_DROPOUT, encoder_sizes
from hf_xlsr import HictlConfig, HictlForPreTraining
from hf_xlsr.encoders.assembly import EncoderPart
from hf_xlsr.losses import bags_of_words, sentence_contrast_loss
from hf_xlsr.utils.devices import attention_for, choose_precision

DEFAULTS: Job = {"layers": 12, "width": 384, "batch": 8, "length": 64, "vocabulary": 250_002}
QUICK: Job = {"layers": 1, "width": 64, "batch": 2, "length": 8, "vocabulary": 1000}
SIDES = ("ours", "ours, one pass", "full logits")
FIRST, END, MASK, WORDS_FROM = 0, 2, 3, 5
HALF = choose_precision("auto") == "bfloat16"  # autocast


def masked_lm(job: Job, positions: int) -> Any:
    """transformers' masked LM with random weights."""
    torch.manual_seed(1)
    sizes = encoder_sizes(job["width"], job["layers"], job["vocabulary"]) | {"type_vocab_size": 1, **NO_DROPOUT}
    config = AutoConfig.for_model("xlm-roberta", max_position_embeddings=positions + 2, **sizes)
    attention = attention_for("sdpa", DEVICE, torch.bfloat16 if HALF else None, positions)
    return AutoModelForMaskedLM.from_config(config, attn_implementation=attention).to(DEVICE)


def share_head(ours: Any, full: Any) -> None:
    head = ours.lm_head
    head.dense, head.norm, head.bias = full.lm_head.dense, full.lm_head.layer_norm, full.lm_head.bias


def batch_of(job: Job, rows: int, length: int) -> dict[str, torch.Tensor]:
    """Random pairs of one length in the form of `HictlCollator`."""
    generator = torch.Generator().manual_seed(1)
    sentences = torch.randint(WORDS_FROM, job["vocabulary"], (2 * rows, length), generator=generator)
    sentences[:, 0], sentences[:, -1] = FIRST, END
    source, target = sentences.chunk(2)
    both = torch.cat([source, target[:, 1:]], 1)
    hidden = (torch.rand(both.shape, generator=generator) < 0.15) & (both >= WORDS_FROM)
    hidden[:, 1] = True
    masked, labels = both.masked_fill(hidden, MASK), both.masked_fill(~hidden, -100)
    batch = {"input_ids": sentences, "joint_input_ids": both, "lm_input_ids": masked, "lm_labels": labels}
    return {name: ids.to(DEVICE) for name, ids in (batch | {"special_ids": torch.arange(WORDS_FROM)}).items()}


def full_word_contrast(full: Any, query: torch.Tensor, both: torch.Tensor, special: torch.Tensor) -> torch.Tensor:
    """Equation 5 with all other words as negatives, all cosines at once."""
    rows, words = bags_of_words(both, torch.ones_like(both), special)
    logits = (F.normalize(query) @ F.normalize(full.get_input_embeddings().weight).T).float()  # (batch, vocabulary)
    excluded = torch.zeros_like(logits, dtype=torch.bool)
    excluded[:, special] = True
    excluded[rows, words] = True
    others = logits.masked_fill(excluded, -torch.inf).logsumexp(1)[rows]
    positives = logits[rows, words]
    losses = torch.logaddexp(others, positives) - positives
    return (losses / rows.bincount()[rows]).sum() / len(query)


def prepare(job: Job, sides: list[str]) -> Step:
    full = masked_lm(job, 2 * job["length"])
    given = EncoderPart(full.base_model, tokenizer=None)
    ours = HictlForPreTraining(HictlConfig(text_config=full.base_model.config), given).to(DEVICE).train()
    share_head(ours, full)
    few, many = batch_of(job, 2, 4), batch_of(job, job["batch"], job["length"])

    def losses_of(side: str, warm_up: bool) -> dict[str, torch.Tensor]:
        batch = few if warm_up else many
        if side != "full logits":
            ours.config.word_query = "masked" if side == "ours, one pass" else "plain"
            return ours(**batch).losses
        source, target = ours.encode_sentences(batch["input_ids"]).chunk(2)
        query = ours.first_states(batch["joint_input_ids"])
        return {
            "sentence": sentence_contrast_loss(source, target),
            "lm": full(input_ids=batch["lm_input_ids"], labels=batch["lm_labels"]).loss,
            "word": full_word_contrast(full, query, batch["joint_input_ids"], batch["special_ids"]),
        }

    return loss_step(losses_of, [*full.parameters(), *ours.parameters()], HALF, keep=False)
