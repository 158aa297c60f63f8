"""CmlmModel against the paper sentence by sentence, and against a stock masked language model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from cmlm_helpers import tiny_batch, tiny_cmlm, tiny_nli_batch, tiny_pairs_batch
from transformers import AutoConfig, AutoModel, AutoModelForMaskedLM

from hf_xlsr.modeling.cmlm import CmlmConfig, CmlmModel

ROBERTA = {"model_type": "xlm-roberta", "pad_token_id": 1, "type_vocab_size": 1, "max_position_embeddings": 42}

Batch = dict[str, torch.Tensor]


def naive_projection(model: Any, vector: torch.Tensor) -> torch.Tensor:
    """Appendix C, one network after the other."""
    rows = [vector]
    layers = list(zip(model.projections.weights, model.projections.biases, strict=True))
    for number in range(model.config.projections - 1):
        state = vector
        for layer, (weight, bias) in enumerate(layers):
            if layer:
                state = torch.relu(state)
            state = state @ weight[number] + bias[number, 0]
        rows.append(state)
    return torch.stack(rows)


def mean_state(model: Any, tokens: torch.Tensor) -> torch.Tensor:
    """Mean pooling of one sentence without padding."""
    return model.encoder(input_ids=tokens[None]).last_hidden_state[0].mean(0)


def naive_cmlm(model: CmlmModel, batch: Batch) -> torch.Tensor:
    """Sentence by sentence, without padding, logits of all positions."""
    table = model.get_input_embeddings().weight
    head = model.lm_head

    all_logits = []
    all_labels = []
    for row in range(len(batch["labels"])):
        in_second = batch["second_attention_mask"][row] == 1
        first = batch["first_input_ids"][row][batch["first_attention_mask"][row] == 1]
        second = batch["second_input_ids"][row][in_second]

        views = naive_projection(model, mean_state(model, first))
        embeddings = torch.cat([views, table[second]])[None]
        states = model.encoder(inputs_embeds=embeddings).last_hidden_state[0, len(views) :]
        if model.skip is not None:
            states = model.skip(torch.cat([states, views.flatten().expand(len(states), -1)], 1))
        all_logits.append(F.linear(head.norm(F.gelu(head.dense(states))), table, head.bias))
        all_labels.append(batch["labels"][row][in_second])
    return F.cross_entropy(torch.cat(all_logits), torch.cat(all_labels), ignore_index=-100)


@pytest.mark.parametrize("conditioning", ["input", "skip"])
@pytest.mark.parametrize("projections", [1, 4])
def test_loss_equals_the_paper(conditioning: str, projections: int, tokenizer: Any) -> None:
    model = tiny_cmlm(len(tokenizer), conditioning=conditioning, projections=projections).double()
    batch = tiny_batch(tokenizer)
    loss = model(**batch).loss
    expected = naive_cmlm(model, batch)
    torch.testing.assert_close(loss, expected, rtol=1e-10, atol=1e-12)

    names, parameters = zip(*model.named_parameters(), strict=True)
    gradients = torch.autograd.grad(loss, parameters)
    expected_gradients = torch.autograd.grad(expected, parameters)
    for name, gradient, expected_gradient in zip(names, gradients, expected_gradients, strict=True):
        torch.testing.assert_close(gradient, expected_gradient, rtol=1e-7, atol=1e-11, msg=name)


def stock_masked_lm(model: Any) -> Any:
    """The stock masked LM with the same weights."""
    full = AutoModelForMaskedLM.from_config(AutoConfig.for_model(**model.config.get_text_config().to_dict())).double()
    full.bert.load_state_dict(model.encoder.state_dict())
    transform = full.cls.predictions.transform
    transform.dense.load_state_dict(model.lm_head.dense.state_dict())
    transform.LayerNorm.load_state_dict(model.lm_head.norm.state_dict())
    return full.eval()


def test_without_conditioning_equals_masked_lm(tokenizer: Any) -> None:
    model = tiny_cmlm(len(tokenizer), conditioning="none").double().eval()
    batch = tiny_batch(tokenizer)
    stock = stock_masked_lm(model)
    expected = stock(batch["second_input_ids"], attention_mask=batch["second_attention_mask"], labels=batch["labels"])
    torch.testing.assert_close(model(**batch).loss, expected.loss, rtol=1e-10, atol=1e-12)


def test_next_sentence_equals_a_masked_lm_on_both_sentences(tokenizer: Any) -> None:
    encoder = {"type_vocab_size": 2, "max_position_embeddings": 80}
    model = tiny_cmlm(len(tokenizer), conditioning="next_sentence", encoder=encoder).double().eval()
    stock = stock_masked_lm(model)
    batch = tiny_batch(tokenizer)

    starts = []
    logits = []
    labels = []
    for row in range(len(batch["labels"])):
        first_row = row - row % 2
        in_second = batch["second_attention_mask"][row] == 1
        first = batch["first_input_ids"][first_row][batch["first_attention_mask"][first_row] == 1]
        second = batch["second_input_ids"][row][in_second]

        types = torch.tensor([[0] * len(first) + [1] * len(second)])
        output = stock(torch.cat([first, second])[None], token_type_ids=types, output_hidden_states=True)
        starts.append(output.hidden_states[-1][0, 0])
        logits.append(output.logits[0, len(first) :])
        labels.append(batch["labels"][row][in_second])

    follows = 1 - torch.arange(len(starts)) % 2
    expected = {
        "next_sentence": F.cross_entropy(model.next_sentence_head(torch.stack(starts)), follows),
        "cmlm": F.cross_entropy(torch.cat(logits), torch.cat(labels)),
    }
    torch.testing.assert_close(model(**batch).losses, expected)


def test_padding_changes_nothing_for_xlm_roberta(tokenizer: Any) -> None:
    """Others are covered by the naive loss; here positions depend on the padding."""
    model = tiny_cmlm(len(tokenizer), encoder=ROBERTA).double()
    batch = tiny_batch(tokenizer)
    padding = {"labels": -100, "first_attention_mask": 0, "second_attention_mask": 0}
    wider = {
        name: F.pad(value, (0, 5), value=padding.get(name, tokenizer.pad_token_id)) for name, value in batch.items()
    }
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
    u = naive_vectors(model, nli["premise_input_ids"], nli["premise_attention_mask"])
    v = naive_vectors(model, nli["hypothesis_input_ids"], nli["hypothesis_attention_mask"])
    scores = F.linear(torch.cat([u, v, (u - v).abs(), u * v], 1), *model.nli_head.output.parameters())
    expected = {
        "cmlm": naive_cmlm(model, text),
        "retrieval": F.cross_entropy(logits, torch.arange(4)) + F.cross_entropy(logits.T, torch.arange(4)),
        "nli": F.cross_entropy(scores, nli["labels"]),
    }
    torch.testing.assert_close(output.losses, expected, rtol=1e-6, atol=1e-7)

    total = output.losses["cmlm"] + 0.2 * output.losses["retrieval"] + 0.7 * output.losses["nli"]
    torch.testing.assert_close(output.loss, total)
    accuracy = (scores.argmax(1) == nli["labels"]).float().mean()
    assert output.statistics["nli_accuracy"].item() == accuracy.item()


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
