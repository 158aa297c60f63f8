"""CmlmModel against the paper sentence by sentence, and against a stock masked language model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from cmlm_helpers import tiny_batch, tiny_cmlm, tiny_nli_batch, tiny_pairs_batch
from model_cases import assert_same_gradients
from transformers import AutoModel, AutoModelForMaskedLM

from hf_xlsr.modeling.cmlm import CmlmConfig, CmlmModel

ROBERTA = {"model_type": "xlm-roberta", "pad_token_id": 1, "type_vocab_size": 1, "max_position_embeddings": 42}

Batch = dict[str, torch.Tensor]


def naive_projection(model: Any, vector: torch.Tensor) -> torch.Tensor:
    """Appendix C, one network after the other."""
    rows = [vector]
    for number in range(model.config.projections - 1):
        first_weight, second_weight, third_weight = [weights[number] for weights in model.projections.weights]
        first_bias, second_bias, third_bias = [biases[number, 0] for biases in model.projections.biases]
        state = torch.relu(vector @ first_weight + first_bias)
        state = torch.relu(state @ second_weight + second_bias)
        rows.append(state @ third_weight + third_bias)
    return torch.stack(rows)


def sentence(batch: Batch, side: str, row: int) -> torch.Tensor:
    """The tokens of one sentence, without padding."""
    is_token = batch[f"{side}_attention_mask"][row] == 1
    return batch[f"{side}_input_ids"][row][is_token]


def mean_state(model: Any, tokens: torch.Tensor) -> torch.Tensor:
    """Mean pooling of one sentence without padding."""
    return model.encoder(input_ids=tokens[None]).last_hidden_state[0].mean(0)


def naive_cmlm(model: CmlmModel, batch: Batch) -> torch.Tensor:
    """Sentence by sentence, without padding, logits of all positions."""
    table = model.get_input_embeddings().weight
    head = model.lm_head

    all_logits = []
    all_labels = []
    for row, labels in enumerate(batch["labels"]):
        first = sentence(batch, "first", row)
        second = sentence(batch, "second", row)
        views = naive_projection(model, mean_state(model, first))
        embeddings = torch.cat([views, table[second]])[None]
        states = model.encoder(inputs_embeds=embeddings).last_hidden_state[0, len(views) :]
        if model.skip is not None:
            flat_views = views.flatten().expand(len(states), -1)
            states = model.skip(torch.cat([states, flat_views], 1))

        hidden = head.norm(F.gelu(head.dense(states)))
        all_logits.append(F.linear(hidden, table, head.bias))
        all_labels.append(labels[: len(second)])
    return F.cross_entropy(torch.cat(all_logits), torch.cat(all_labels))


@pytest.mark.parametrize("conditioning", ["input", "skip"])
@pytest.mark.parametrize("projections", [1, 4])
def test_loss_equals_the_paper(conditioning: str, projections: int, tokenizer: Any) -> None:
    model = tiny_cmlm(len(tokenizer), conditioning=conditioning, projections=projections).double()
    batch = tiny_batch(tokenizer)
    loss = model(**batch).loss
    expected = naive_cmlm(model, batch)
    torch.testing.assert_close(loss, expected, rtol=1e-10, atol=1e-12)
    assert_same_gradients(model, loss, expected, rtol=1e-7, atol=1e-11)


def stock_masked_lm(model: Any) -> Any:
    """The stock masked LM with the same weights."""
    stock = AutoModelForMaskedLM.from_config(model.config.get_text_config()).double()
    stock.bert.load_state_dict(model.encoder.state_dict())
    transform = stock.cls.predictions.transform
    transform.dense.load_state_dict(model.lm_head.dense.state_dict())
    transform.LayerNorm.load_state_dict(model.lm_head.norm.state_dict())
    return stock.eval()


def test_without_conditioning_equals_masked_lm(tokenizer: Any) -> None:
    model = tiny_cmlm(len(tokenizer), conditioning="none").double().eval()
    batch = tiny_batch(tokenizer)
    expected = stock_masked_lm(model)(
        batch["second_input_ids"],
        attention_mask=batch["second_attention_mask"],
        labels=batch["labels"],
    )
    torch.testing.assert_close(model(**batch).loss, expected.loss, rtol=1e-10, atol=1e-12)


def test_next_sentence_equals_a_masked_lm_on_both_sentences(tokenizer: Any) -> None:
    encoder = {"type_vocab_size": 2, "max_position_embeddings": 80}
    model = tiny_cmlm(len(tokenizer), conditioning="next_sentence", encoder=encoder).double().eval()
    stock = stock_masked_lm(model)
    batch = tiny_batch(tokenizer)

    starts = []
    all_logits = []
    all_labels = []
    for row, labels in enumerate(batch["labels"]):
        first = sentence(batch, "first", row - row % 2)
        second = sentence(batch, "second", row)
        types = torch.tensor([[0] * len(first) + [1] * len(second)])
        output = stock(torch.cat([first, second])[None], token_type_ids=types, output_hidden_states=True)
        starts.append(output.hidden_states[-1][0, 0])
        all_logits.append(output.logits[0, len(first) :])
        all_labels.append(labels[: len(second)])

    follows = 1 - torch.arange(len(starts)) % 2
    expected = {
        "next_sentence": F.cross_entropy(model.next_sentence_head(torch.stack(starts)), follows),
        "cmlm": F.cross_entropy(torch.cat(all_logits), torch.cat(all_labels)),
    }
    torch.testing.assert_close(model(**batch).losses, expected)


def test_padding_changes_nothing_for_xlm_roberta(tokenizer: Any) -> None:
    """Others are covered by the naive loss; here positions depend on the padding."""
    model = tiny_cmlm(len(tokenizer), encoder=ROBERTA).double()
    batch = tiny_batch(tokenizer)
    padding = {
        "first_input_ids": tokenizer.pad_token_id,
        "first_attention_mask": 0,
        "second_input_ids": tokenizer.pad_token_id,
        "second_attention_mask": 0,
        "labels": -100,
    }
    wider = {name: F.pad(value, (0, 5), value=padding[name]) for name, value in batch.items()}
    torch.testing.assert_close(model(**batch).loss, model(**wider).loss, rtol=1e-9, atol=1e-11)


def naive_vectors(model: Any, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Sentence embeddings one by one."""
    vectors = []
    for row_ids, row_mask in zip(ids, mask, strict=True):
        vector = mean_state(model, row_ids[row_mask == 1])
        if model.config.sentence_vector == "projected":
            vector = naive_projection(model, vector).mean(0)
        vectors.append(vector)
    return torch.stack(vectors)


@pytest.mark.parametrize("sentence_vector", ["pooled", "projected"])
def test_all_tasks_together(sentence_vector: str, tokenizer: Any) -> None:
    options: dict[str, Any] = {"retrieval_weight": 0.2, "nli_weight": 0.7, "nli_labels": 3}
    model = tiny_cmlm(len(tokenizer), sentence_vector=sentence_vector, **options).double()
    text = tiny_batch(tokenizer)
    pairs = tiny_pairs_batch(tokenizer)
    nli = tiny_nli_batch(tokenizer)

    output = model(**text, retrieval=pairs, nli=nli)

    source, target = naive_vectors(model, pairs["input_ids"], pairs["attention_mask"]).chunk(2)
    logits = source @ target.T - 0.3 * torch.eye(4)
    rows = torch.arange(4)
    u = naive_vectors(model, nli["premise_input_ids"], nli["premise_attention_mask"])
    v = naive_vectors(model, nli["hypothesis_input_ids"], nli["hypothesis_attention_mask"])
    features = torch.cat([u, v, (u - v).abs(), u * v], 1)
    scores = model.nli_head.output(features)
    expected = {
        "cmlm": naive_cmlm(model, text),
        "retrieval": F.cross_entropy(logits, rows) + F.cross_entropy(logits.T, rows),
        "nli": F.cross_entropy(scores, nli["labels"]),
    }
    torch.testing.assert_close(output.losses, expected, rtol=1e-6, atol=1e-7)

    total = output.losses["cmlm"] + 0.2 * output.losses["retrieval"] + 0.7 * output.losses["nli"]
    torch.testing.assert_close(output.loss, total)
    is_right = scores.argmax(1) == nli["labels"]
    assert output.statistics["nli_accuracy"] == is_right.float().mean()


@pytest.mark.parametrize("kind", ["mpnet", "deberta-v2", "modernbert"])
def test_other_architectures(kind: str, tokenizer: Any, tmp_path: Path) -> None:
    """Also those that have no fused attention, saved and loaded again."""
    encoder = {
        "model_type": kind,
        "hidden_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 16,
        "pad_token_id": 1,
        "max_position_embeddings": 64,
        "vocab_size": len(tokenizer),
    }
    model = CmlmModel(CmlmConfig(text_config=encoder, projections=2)).eval()

    batch = tiny_batch(tokenizer)
    loss = model(**batch).loss
    loss.backward()

    model.save_pretrained(tmp_path)
    loaded = AutoModel.from_pretrained(tmp_path).eval()
    assert loaded(**batch).loss.item() == pytest.approx(loss.item())
