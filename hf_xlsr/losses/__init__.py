"""Losses as pure functions of tensors; each names the equation it computes."""

from __future__ import annotations

from hf_xlsr.losses.additive_margin import additive_margin_loss
from hf_xlsr.losses.alignment import alignment_loss
from hf_xlsr.losses.combination import encode_in_chunks, matryoshka_mean, weighted_sum
from hf_xlsr.losses.cross_entropy import masked_lm_loss, sparse_target_cross_entropy
from hf_xlsr.losses.distillation import matching_loss, register_teacher_loss, teacher_loss
from hf_xlsr.losses.generative import generative_loss
from hf_xlsr.losses.queue_info_nce import (
    STORAGES,
    QuantizedRows,
    matching_pairs,
    quantize_rows,
    queue_info_nce,
    truncate_rows,
)
from hf_xlsr.losses.sentence_contrast import sentence_contrast_loss
from hf_xlsr.losses.similarity import similarity_loss
from hf_xlsr.losses.word_contrast import bags_of_words, draw_negative_words, hard_word_share, word_contrast_loss

__all__ = [
    "STORAGES",
    "QuantizedRows",
    "additive_margin_loss",
    "alignment_loss",
    "bags_of_words",
    "draw_negative_words",
    "encode_in_chunks",
    "generative_loss",
    "hard_word_share",
    "masked_lm_loss",
    "matching_loss",
    "matching_pairs",
    "matryoshka_mean",
    "quantize_rows",
    "queue_info_nce",
    "register_teacher_loss",
    "sentence_contrast_loss",
    "similarity_loss",
    "sparse_target_cross_entropy",
    "teacher_loss",
    "truncate_rows",
    "weighted_sum",
    "word_contrast_loss",
]
