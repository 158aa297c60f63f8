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


def naive_projection(model: Any, vector: torch.Tensor) -> torch.Tensor:
    """Appendix C, one network after the other."""
    rows = [vector]
    for number in range(model.config.projections - 1):
        state = vector
        for layer, (weight, bias) in enumerate(zip(model.projections.weights, model.projections.biases, strict=True)):
            state = (torch.relu(state) if layer else state) @ weight[number] + bias[number, 0]
        rows.append(state)
    return torch.stack(rows)


def naive_cmlm(model: CmlmModel, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """Sentence by sentence, without padding, logits of all positions."""
    table, head, nll, count = model.get_input_embeddings().weight, model.lm_head, [], 0
    for row in range(len(batch["labels"])):
        first, second, labels = (
            batch[name][row][batch[f"{side}_attention_mask"][row].bool()]
            for name, side in (("first_input_ids", "first"), ("second_input_ids", "second"), ("labels", "second"))
        )
        vector = model.encoder(input_ids=first[None]).last_hidden_state[0].mean(0)
        views = naive_projection(model, vector)
        embeddings = torch.cat([views, table[second]])[None]
        states = model.encoder(inputs_embeds=embeddings).last_hidden_state[0, len(views) :]
        if model.skip is not None:
            states = model.skip(torch.cat([states, views.flatten().expand(len(states), -1)], 1))
        logits = F.linear(head.norm(F.gelu(head.dense(states))), table, head.bias)
        chosen = labels != -100
        nll.append(F.cross_entropy(logits[chosen], labels[chosen], reduction="sum"))
        count += int(chosen.sum())
    return torch.stack(nll).sum() / count


@pytest.mark.parametrize("conditioning", ["input", "skip"])
@pytest.mark.parametrize("projections", [1, 4])
def test_loss_equals_the_paper(conditioning: str, projections: int, tokenizer: Any) -> None:
    model = tiny_cmlm(len(tokenizer), conditioning=conditioning, projections=projections).double()
    batch = tiny_batch(tokenizer)
    parameters = {name: value for name, value in model.named_parameters() if "pooler" not in name}
    results = []
    for loss in (model(**batch).loss, naive_cmlm(model, batch)):
        gradients = torch.autograd.grad(loss, list(parameters.values()), allow_unused=True)
        results.append((loss.detach(), gradients))
    torch.testing.assert_close(results[0][0], results[1][0], rtol=1e-10, atol=1e-12)
    for name, one, other in zip(parameters, results[0][1], results[1][1], strict=True):
        assert one is not None and other is not None, name
        torch.testing.assert_close(one, other, rtol=1e-7, atol=1e-11, msg=name)


def stock_masked_lm(model: Any) -> Any:
    """The stock masked LM with the same weights."""
    full = AutoModelForMaskedLM.from_config(AutoConfig.for_model(**model.config.get_text_config().to_dict())).double()
    full.bert.load_state_dict(model.encoder.state_dict())
    transform, head = full.cls.predictions.transform, model.lm_head
    transform.dense.load_state_dict(head.dense.state_dict())
    transform.LayerNorm.load_state_dict(head.norm.state_dict())
    return full.eval()


def test_without_conditioning_equals_masked_lm(tokenizer: Any) -> None:
    model, batch = tiny_cmlm(len(tokenizer), conditioning="none").double(), tiny_batch(tokenizer)
    ids, mask = batch["second_input_ids"], batch["second_attention_mask"]
    expected = stock_masked_lm(model)(input_ids=ids, attention_mask=mask, labels=batch["labels"]).loss
    torch.testing.assert_close(model.eval()(**batch).loss, expected, rtol=1e-10, atol=1e-12)


def test_next_sentence_equals_a_masked_lm_on_both_sentences(tokenizer: Any) -> None:
    encoder = {"type_vocab_size": 2, "max_position_embeddings": 80}
    model = tiny_cmlm(len(tokenizer), conditioning="next_sentence", encoder=encoder).double().eval()
    batch, full = tiny_batch(tokenizer), stock_masked_lm(model)
    starts, logits, labels = [], [], []
    for row in range(len(batch["labels"])):
        first, second = (
            batch[f"{side}_input_ids"][place][batch[f"{side}_attention_mask"][place] == 1]
            for side, place in (("first", row - row % 2), ("second", row))
        )
        ids, types = torch.cat([first, second])[None], torch.tensor([[0] * len(first) + [1] * len(second)])
        output = full(input_ids=ids, token_type_ids=types, output_hidden_states=True)
        starts.append(output.hidden_states[-1][0, 0])
        logits.append(output.logits[0, len(first) :])
        labels.append(batch["labels"][row, : len(second)])
    follows = torch.tensor([1 - row % 2 for row in range(len(starts))])
    found = model(**batch).losses
    torch.testing.assert_close(found["cmlm"], F.cross_entropy(torch.cat(logits), torch.cat(labels)))
    expected = F.cross_entropy(model.next_sentence_head(torch.stack(starts)), follows)
    torch.testing.assert_close(found["next_sentence"], expected)


def test_padding_changes_nothing_for_xlm_roberta(tokenizer: Any) -> None:
    """Others are covered by the naive loss; here positions depend on the padding."""
    model, batch = tiny_cmlm(len(tokenizer), encoder=ROBERTA).double(), tiny_batch(tokenizer)
    wider = {
        name: F.pad(value, (0, 5), value=-100 if name == "labels" else 0 if "mask" in name else tokenizer.pad_token_id)
        for name, value in batch.items()
    }
    torch.testing.assert_close(model(**batch).loss, model(**wider).loss, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("sentence_vector", ["pooled", "projected"])
def test_all_tasks_together(sentence_vector: str, tokenizer: Any) -> None:
    options: dict[str, Any] = {"retrieval_weight": 0.2, "nli_weight": 0.7, "nli_labels": 3}
    model = tiny_cmlm(len(tokenizer), sentence_vector=sentence_vector, **options).double()
    text, pairs, nli = tiny_batch(tokenizer), tiny_pairs_batch(tokenizer), tiny_nli_batch(tokenizer)

    def vector(ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        own = model.encoder(input_ids=ids[mask.bool()][None]).last_hidden_state[0].mean(0)
        return own if sentence_vector == "pooled" else naive_projection(model, own).mean(0)

    rows = torch.stack([vector(*row) for row in zip(pairs["input_ids"], pairs["attention_mask"], strict=True)])
    logits = rows[:4] @ rows[4:].T - 0.3 * torch.eye(4)
    retrieval = F.cross_entropy(logits, torch.arange(4)) + F.cross_entropy(logits.T, torch.arange(4))
    u, v = (
        torch.stack(
            [vector(*row) for row in zip(nli[f"{side}_input_ids"], nli[f"{side}_attention_mask"], strict=True)]
        )
        for side in ("premise", "hypothesis")
    )
    scores = F.linear(torch.cat([u, v, (u - v).abs(), u * v], 1), *model.nli_head.output.parameters())
    output = model(**text, retrieval=pairs, nli=nli)
    expected = {"cmlm": naive_cmlm(model, text), "retrieval": retrieval, "nli": F.cross_entropy(scores, nli["labels"])}
    for name, value in expected.items():
        torch.testing.assert_close(output.losses[name], value, rtol=1e-6, atol=1e-7, msg=name)
    total = output.losses["cmlm"] + 0.2 * output.losses["retrieval"] + 0.7 * output.losses["nli"]
    torch.testing.assert_close(output.loss, total)
    right = (scores.argmax(1) == nli["labels"]).float().mean()
    assert output.statistics["nli_accuracy"].item() == right.item()


@pytest.mark.parametrize("kind", ["mpnet", "deberta-v2", "modernbert"])
def test_other_architectures(kind: str, tokenizer: Any, tmp_path: Path) -> None:
    """Also those that have no fused attention, saved and loaded again."""
    values = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    special = {"pad_token_id": 1, "max_position_embeddings": 64, "vocab_size": len(tokenizer)}
    model = CmlmModel(CmlmConfig(text_config={"model_type": kind, **values, **special}, projections=2)).eval()
    loss = model(**tiny_batch(tokenizer)).loss
    loss.backward()
    model.save_pretrained(tmp_path)
    assert AutoModel.from_pretrained(tmp_path).eval()(**tiny_batch(tokenizer)).loss.item() == pytest.approx(
        loss.item()
    )
