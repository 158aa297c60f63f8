"""HictlForPreTraining against the equations with loops and whole matrices."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hictl_helpers import framed_tokenizer, tiny_batch, tiny_hictl
from model_cases import assert_same_gradients

from hf_xlsr.losses import bags_of_words, draw_negative_words
from hf_xlsr.modeling.hictl import HictlForPreTraining

SEED = 11  # of the negative words

Batch = dict[str, torch.Tensor]


@pytest.fixture(scope="module")
def framed() -> Any:
    return framed_tokenizer()


def states(model: HictlForPreTraining, batch: Batch, name: str = "") -> torch.Tensor:
    output = model.encoder(input_ids=batch[f"{name}input_ids"], attention_mask=batch[f"{name}attention_mask"])
    return output.last_hidden_state


def naive_sentence_loss(model: HictlForPreTraining, batch: Batch) -> torch.Tensor:
    """Equations 2 to 4."""
    sources, targets = model.head[1].linear(states(model, batch)[:, 0]).chunk(2)
    total = sources.new_zeros(())
    for queries, translations in ((sources, targets), (targets, sources)):
        for row, query in enumerate(queries):
            same_language = torch.cat([queries[:row], queries[row + 1 :]])
            candidates = torch.cat([translations, same_language])
            logits = F.cosine_similarity(query, candidates) / model.config.sentence_temperature
            total = total - logits.log_softmax(0)[row]
    return total / len(sources)


def naive_language_model_loss(model: HictlForPreTraining, batch: Batch) -> torch.Tensor:
    head = model.lm_head
    assert head is not None
    hidden = head.norm(F.gelu(head.dense(states(model, batch, "lm_"))))
    logits = F.linear(hidden, model.get_input_embeddings().weight, head.bias)
    return F.cross_entropy(logits.flatten(0, 1), batch["lm_labels"].flatten(), ignore_index=-100)


def naive_word_loss(model: HictlForPreTraining, batch: Batch) -> torch.Tensor:
    """Equations 5 and 6."""
    config = model.config
    table = model.get_input_embeddings().weight
    queries = states(model, batch, "joint_" if config.word_query == "plain" else "lm_")[:, 0]
    bags = bags_of_words(batch["joint_input_ids"], batch["joint_attention_mask"], batch["special_ids"])

    torch.manual_seed(SEED)
    negatives = draw_negative_words(
        queries, table, bags, count=config.negative_words, special_ids=batch["special_ids"]
    )

    total = queries.new_zeros(())
    for row, query in enumerate(queries):
        cosines = F.cosine_similarity(query, table)
        words = bags[1][bags[0] == row]
        for word in words:
            candidates = torch.cat([word[None], negatives[row]])
            logits = cosines[candidates] / config.word_temperature
            total = total - logits.log_softmax(0)[0] / len(words)
    return total / len(queries)


@pytest.mark.parametrize("word_query", ["plain", "masked"])
def test_loss_equals_the_equations(word_query: str, framed: Any) -> None:
    options: dict[str, Any] = {"sentence_temperature": 0.5, "word_temperature": 0.2, "word_query": word_query}
    model = tiny_hictl(len(framed), **options).double()
    batch = tiny_batch(framed)

    torch.manual_seed(SEED)
    output = model(**batch)

    expected = {
        "sentence": naive_sentence_loss(model, batch),
        "lm": naive_language_model_loss(model, batch),
        "word": naive_word_loss(model, batch),
    }
    torch.testing.assert_close(output.losses, expected, rtol=1e-9, atol=1e-10)
    expected_loss = torch.stack(list(expected.values())).sum()
    torch.testing.assert_close(output.loss, expected_loss)
    assert_same_gradients(model, output.loss, expected_loss, rtol=1e-7, atol=1e-10)
