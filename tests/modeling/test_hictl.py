from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from conftest import tiny_encoder
from hictl_helpers import framed_tokenizer, tiny_batch, tiny_hictl
from transformers import AutoConfig, AutoModelForMaskedLM

from hf_xlsr.encoders.stock import encoder_from_config
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

    x, y = model.projection(states("")[:, 0]).chunk(2)
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
        for piece in positives:
            right = F.cosine_similarity(query[i], table[piece], dim=0)
            logits = torch.cat([right[None], wrong]) / config.word_temperature
            word = word - logits.log_softmax(0)[0] / len(positives) / count
    return {"lm": lm, "sentence": total / count, "word": word}


@pytest.mark.parametrize("word_query", ["plain", "masked"])
def test_losses_and_gradients_are_those_of_the_equations(word_query: str, framed: Any) -> None:
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


@pytest.mark.parametrize("part", ["lm", "sentence", "word"])
def test_a_part_without_weight_is_not_computed(part: str, framed: Any) -> None:
    model = tiny_hictl(len(framed), **{f"{part}_weight": 0.0})
    output = model(**tiny_batch(framed))
    assert set(output.losses) == {"lm", "sentence", "word"} - {part}
    output.loss.backward()
    assert all(parameter.grad is not None for parameter in model.parameters())  # DDP waits for each


def test_masked_queries_need_one_pass_less(framed: Any) -> None:
    passes = {}
    for query in ("plain", "masked"):
        model = tiny_hictl(len(framed), word_query=query)
        calls: list[int] = []
        model.encoder.register_forward_hook(lambda *_, calls=calls: calls.append(1))
        model(**tiny_batch(framed))
        passes[query] = len(calls)
    assert passes == {"plain": 3, "masked": 2}


def test_a_decoder_of_its_own(framed: Any) -> None:
    model = tiny_hictl(len(framed), tie_word_embeddings=False)
    assert "lm_head.decoder.weight" in model.state_dict()
    assert "lm_head.decoder.weight" not in tiny_hictl(len(framed)).state_dict()
    model(**tiny_batch(framed)).loss.backward()
    assert model.lm_head.decoder.weight.grad.abs().sum() > 0


@pytest.mark.parametrize("kind", ["bert", "xlm-roberta", "distilbert"])
def test_a_pretrained_head_is_taken_over(kind: str, framed: Any, tmp_path: Path) -> None:
    values = tiny_encoder(len(framed))
    names = {"dim": 16, "n_layers": 2, "n_heads": 2, "hidden_dim": 32, "vocab_size": len(framed)}
    values.pop("model_type")
    config = AutoConfig.for_model(kind, **(names if kind == "distilbert" else values))
    torch.manual_seed(3)
    stock = AutoModelForMaskedLM.from_config(config).eval()
    with torch.no_grad():
        for name, parameter in stock.named_parameters():
            if name.endswith("bias"):
                parameter.normal_()
    stock.save_pretrained(tmp_path)
    model = HictlForPreTraining.from_encoder(str(tmp_path)).eval()
    ids = torch.tensor([[3, 7, 8, 9, 4]])
    hidden = model.encoder(input_ids=ids, attention_mask=torch.ones_like(ids)).last_hidden_state
    logits = F.linear(model.lm_head(hidden), model.get_input_embeddings().weight, model.lm_head.bias)
    torch.testing.assert_close(logits, stock(input_ids=ids).logits)


def test_without_a_head_there_a_new_one_is_made(framed: Any, tmp_path: Path) -> None:
    torch.manual_seed(0)
    encoder_from_config(AutoConfig.for_model(**tiny_encoder(len(framed)))).save_pretrained(tmp_path)
    model = HictlForPreTraining.from_encoder(str(tmp_path), negative_words=8)
    assert model.lm_head.bias.abs().sum() == 0
    model(**tiny_batch(framed)).loss.backward()


def test_the_export_gives_the_models_own_vectors(framed: Any, tmp_path: Path) -> None:
    model = tiny_hictl(len(framed)).eval()
    exported = model.to_sentence_transformer(framed, max_length=32)
    sentences = ["red house tree", "un deux"]
    batch = framed(sentences, return_tensors="pt", padding=True)
    with torch.no_grad():
        expected = F.normalize(model.encode_sentences(batch["input_ids"], batch["attention_mask"]), dim=-1)
    torch.testing.assert_close(torch.from_numpy(exported.encode(sentences)), expected, rtol=1e-4, atol=1e-5)
