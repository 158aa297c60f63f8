"""Masked-LM heads of checkpoints, in the forms of their architectures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForMaskedLM
from translation_helpers import small_encoder

from hf_xlsr import CmlmModel, HictlForPreTraining


@pytest.mark.parametrize("model_class", [HictlForPreTraining, CmlmModel])
@pytest.mark.parametrize("kind", ["bert", "xlm-roberta", "distilbert", "modernbert"])
def test_pretrained_head_is_loaded(kind: str, model_class: Any, tmp_path: Path) -> None:
    torch.manual_seed(3)
    stock = AutoModelForMaskedLM.from_config(small_encoder(kind, initializer_range=0.3)).eval()
    with torch.no_grad():
        for name, parameter in stock.named_parameters():
            if name.endswith("bias"):
                parameter.normal_()
    stock.save_pretrained(tmp_path)

    model = model_class.from_encoder(str(tmp_path)).eval()

    ids = torch.tensor([[1, 7, 8, 9, 2]])
    hidden = model.encoder(input_ids=ids, attention_mask=torch.ones_like(ids)).last_hidden_state
    table = model.get_input_embeddings().weight
    logits = model.lm_head(hidden) @ table.T + model.lm_head.bias
    expected = stock(input_ids=ids).logits
    torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-5)
