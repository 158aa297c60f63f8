from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hictl_helpers import framed_tokenizer, tiny_batch, tiny_hictl

from hf_xlsr.losses import bags_of_words, draw_negative_words
from hf_xlsr.modeling.hictl import HictlForPreTraining


@pytest.fixture(scope="module")
def framed() -> Any:
    return framed_tokenizer()


def naive_losses(model: HictlForPreTraining, batch: dict[str, torch.Tensor], seed: int) -> dict[str, torch.Tensor]:
    """Equations 2 to 7 with loops and whole matrices."""
    config, table = model.config, model.encoder.get_input_embeddings().weight

    def states(name: str) -> torch.Tensor:
        mask = batch[f"{name}attention_mask"]
        return model.encoder(input_ids=batch[f"{name}input_ids"], attention_mask=mask).last_hidden_state

    x, y = model.head[1].linear(states("")[:, 0]).chunk(2)
    count, total = len(x), torch.zeros((), dtype=x.dtype)
    for own, other in ((x, y), (y, x)):
        for i in range(count):
            cosine = [F.cosine_similarity(own[i], other[j], dim=0) for j in range(count)]
            cosine += [F.cosine_similarity(own[i], own[j], dim=0) for j in range(count) if j != i]
            logits = torch.stack(cosine) / config.sentence_temperature
            total = total - logits.log_softmax(0)[i]
    hidden = states("lm_")
    head = model.lm_head
    assert head is not None
    logits = F.linear(head.norm(F.gelu(head.dense(hidden))), table, head.bias)
    lm = F.cross_entropy(logits.flatten(0, 1), batch["lm_labels"].flatten(), ignore_index=-100)
    query = states("joint_")[:, 0] if config.word_query == "plain" else hidden[:, 0]
    bags = bags_of_words(batch["joint_input_ids"], batch["joint_attention_mask"], batch["special_ids"])
    torch.manual_seed(seed)
    negatives = draw_negative_words(query, table, bags, count=config.negative_words, special_ids=batch["special_ids"])
    word = torch.zeros((), dtype=x.dtype)
    for i in range(count):
        positives = bags[1][bags[0] == i]
        wrong = torch.stack([F.cosine_similarity(query[i], table[j], dim=0) for j in negatives[i]])
        for token in positives:
            right = F.cosine_similarity(query[i], table[token], dim=0)
            logits = torch.cat([right[None], wrong]) / config.word_temperature
            word = word - logits.log_softmax(0)[0] / len(positives) / count
    return {"lm": lm, "sentence": total / count, "word": word}


@pytest.mark.parametrize("word_query", ["plain", "masked"])
def test_loss_equals_the_equations(word_query: str, framed: Any) -> None:
    temperatures = {"sentence_temperature": 0.5, "word_temperature": 0.2}
    model = tiny_hictl(len(framed), word_query=word_query, **temperatures).double()
    batch = tiny_batch(framed)
    torch.manual_seed(11)
    output = model(**batch)
    expected = naive_losses(model, batch, 11)
    for name, value in expected.items():
        torch.testing.assert_close(output.losses[name], value, rtol=1e-9, atol=1e-10, msg=name)
    torch.testing.assert_close(output.loss, sum(expected.values()))
    parameters = dict(model.named_parameters())
    ours = torch.autograd.grad(output.loss, list(parameters.values()))
    naive = torch.autograd.grad(sum(expected.values()), list(parameters.values()))
    for name, one, other in zip(parameters, ours, naive, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-7, atol=1e-10, msg=name)
