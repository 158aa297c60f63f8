"""Training a copy of the encoder: against a loop written out, and what must stay as it was."""

from __future__ import annotations

import copy
import random
from typing import Any

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Router
from torch import nn

from hf_xlsr.evaluation import fine_tuning
from hf_xlsr.evaluation.fine_tuning import fine_tune
from hf_xlsr.evaluation.heads import Classifier, features_of
from hf_xlsr.evaluation.rows import LabelledTexts
from hf_xlsr.utils.errors import XlsrError

Pairs = list[dict[str, str]]


@pytest.fixture
def model(tiny_export: str) -> SentenceTransformer:
    return SentenceTransformer(tiny_export, device="cpu")


@pytest.fixture
def exact(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fine_tuning, "choose_precision", lambda **_: "float32")


def begins_with(pairs: Pairs, start: int, count: int, side: str = "source") -> LabelledTexts:
    """Sentences, half of which got `red red` in front, and whether they did."""
    texts = [pairs[number][side] for number in range(start, start + count)]
    front = "red red " if side == "source" else "rouge rouge "
    return LabelledTexts(
        ([front + text if number % 2 else text for number, text in enumerate(texts)],), np.arange(count) % 2
    )


def run(model: Any, pairs: Pairs, **changes: Any) -> Classifier:
    arguments: dict[str, Any] = {
        "train": begins_with(pairs, 0, 80),
        "dev": begins_with(pairs, 80, 40),
        "language": "en",
        "classes": 2,
        "epochs": 4,
        "learning_rate": 1e-2,
        **changes,
    }
    return fine_tune(model, arguments.pop("train"), arguments.pop("dev"), **arguments)


def states(module: nn.Module) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in module.state_dict().items()}


def equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def weights_of(classifier: Classifier) -> dict[str, torch.Tensor]:
    return states(classifier.encoder.network)  # type: ignore[attr-defined]


def test_a_copy_learns_and_the_model_stays(model: SentenceTransformer, pairs: Pairs):
    before = states(model.train())
    classifier = run(model, pairs)
    assert classifier.dev_accuracy > 0.9
    assert equal(states(model), before) and model.training
    assert all(weight.grad is None for weight in model.parameters())
    after = weights_of(classifier)
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert {name for name, _ in model.named_parameters()} >= changed
    assert any("embeddings" in name for name in changed) and any("encoder" in name for name in changed)
    test = begins_with(pairs, 120, 40)
    predicted = classifier.predict(features_of(classifier.encoder, test.sides, ("en",)))
    assert (predicted == test.labels).mean() > 0.9


@pytest.mark.parametrize("sides", [1, 2])
def test_equals_a_loop_written_out(model: SentenceTransformer, pairs: Pairs, exact: None, sides: int):
    count, epochs, batch = 50, 3, 16
    texts = [[pairs[number]["source"] for number in range(start, start + count)] for start in (0, 60)][:sides]
    labels = np.arange(count) % 3
    train = LabelledTexts(tuple(texts), labels)
    ours = run(
        model, pairs, train=train, dev=train, classes=3, epochs=epochs, train_batch_size=batch, prompt="one ", seed=3
    )

    assert any(isinstance(part, nn.Dropout) and part.p > 0 for part in model.modules())
    with torch.random.fork_rng():
        torch.manual_seed(3)
        twin = copy.deepcopy(model)
        layer = nn.Linear(16 * (1 if sides == 1 else 4), 3)
        for weight in layer.parameters():
            nn.init.zeros_(weight)
        body = torch.optim.AdamW(twin.parameters(), lr=1e-2)
        head = torch.optim.AdamW(layer.parameters(), lr=1e-3)
        best, total, step = (-1.0, {}), epochs * 4, 0
        for _ in range(epochs):
            twin.train()
            for rows in torch.randperm(count).split(batch):
                share = step / 1 if step < 1 else (total - step) / (total - 1)  # warm-up: a tenth of 12 steps, so one
                body.param_groups[0]["lr"], head.param_groups[0]["lr"] = share * 1e-2, share * 1e-3
                # Lengths of 4 = sqrt(16): each number of a vector is then about 1 in size, and so are products.
                u, *v = (
                    4
                    * nn.functional.normalize(
                        twin(twin.preprocess([f"one {side[row]}" for row in rows]))["sentence_embedding"]
                    )
                    for side in texts
                )
                features = torch.cat([u, v[0], abs(u - v[0]), u * v[0]], 1) if v else u
                loss = nn.functional.cross_entropy(layer(features), torch.from_numpy(labels)[rows])
                loss.backward()
                nn.utils.clip_grad_norm_([*twin.parameters(), *layer.parameters()], 1.0)
                for optimizer in (body, head):
                    optimizer.step()
                    optimizer.zero_grad()
                step += 1
            u, *v = (
                4 * torch.from_numpy(twin.encode([f"one {text}" for text in side], normalize_embeddings=True))
                for side in texts
            )
            features = torch.cat([u, v[0], abs(u - v[0]), u * v[0]], 1) if v else u
            right = float((layer(features).argmax(1).numpy() == labels).mean())
            if right >= best[0]:
                best = right, states(twin)
    assert step == total and best[0] > 0.3
    assert ours.dev_accuracy == pytest.approx(best[0])
    for name, value in weights_of(ours).items():
        torch.testing.assert_close(value, best[1][name], rtol=1e-3, atol=1e-5)


def test_repeats_with_its_seed_and_leaves_global_randomness_alone(model: SentenceTransformer, pairs: Pairs):
    random_states = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()  # type: ignore[index]
    runs = [run(model, pairs, epochs=1, seed=seed) for seed in (1, 1, 2)]
    assert equal(weights_of(runs[0]), weights_of(runs[1]))
    assert not equal(weights_of(runs[0]), weights_of(runs[2]))
    assert torch.equal(torch.get_rng_state(), random_states[0])
    assert np.random.get_state()[1].tolist() == random_states[1]  # type: ignore[index]
    assert random.getstate() == random_states[2]


def test_the_best_epoch_is_kept_and_of_equals_the_later(
    model: SentenceTransformer, pairs: Pairs, monkeypatch: pytest.MonkeyPatch
):
    accuracies, seen = [0.5, 0.9, 0.9, 0.3], []

    def accuracy(student: Any, data: LabelledTexts) -> float:
        seen.append((states(student.network), student.layer.weight.detach().clone()))
        return accuracies[len(seen) - 1]

    monkeypatch.setattr(fine_tuning._Student, "accuracy", accuracy)
    classifier = run(model, pairs)
    assert classifier.dev_accuracy == 0.9
    assert equal(weights_of(classifier), seen[2][0]) and not equal(seen[1][0], seen[2][0])
    features = np.random.default_rng(0).normal(size=(200, 16)).astype(np.float32)
    assert (classifier.predict(features) == (features @ seen[2][1].numpy().T).argmax(1)).mean() > 0.8


def test_the_accuracy_is_that_of_the_head_on_dev(model: SentenceTransformer, pairs: Pairs):
    dev = begins_with(pairs, 80, 40)
    classifier = run(model, pairs, dev=dev, epochs=1, prompt="two ")
    predicted = classifier.predict(features_of(classifier.encoder, dev.sides, ("en",), prompt="two "))
    assert classifier.dev_accuracy == (predicted == dev.labels).mean()


def test_only_the_route_of_the_language_is_trained(tiny_export: str, model: SentenceTransformer, pairs: Pairs):
    other = SentenceTransformer(tiny_export, device="cpu")
    routed = SentenceTransformer(modules=[Router({"en": list(model), "fr": list(other)}, default_route="fr")])
    before = states(routed)
    classifier = run(routed.to("cpu"), pairs)
    changed = {name for name, value in weights_of(classifier).items() if not torch.equal(value, before[name])}
    assert changed and all(".en." in name for name in changed)
    by_name = run(routed, pairs, language="de", routes={"de": "en"})
    assert equal(weights_of(by_name), weights_of(classifier))
    french = begins_with(pairs, 80, 4, side="target")
    expected = other.encode(french.sides[0], normalize_embeddings=True)
    np.testing.assert_allclose(features_of(classifier.encoder, french.sides, ("fr",)), expected, atol=0.02)
    with pytest.raises(XlsrError, match="'de'"):
        run(routed, pairs, language="de")


def test_half_precision_and_frozen_weights(model: SentenceTransformer, pairs: Pairs):
    classifier = run(copy.deepcopy(model).half(), pairs, epochs=1)
    assert {value.dtype for value in weights_of(classifier).values() if value.is_floating_point()} == {torch.float32}
    for name, weight in model.named_parameters():
        weight.requires_grad = "layer.1." in name
    before = states(model)
    after = weights_of(run(model, pairs, epochs=1))
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed and all("layer.1." in name for name in changed)


def test_bfloat16_where_it_is_chosen(model: SentenceTransformer, pairs: Pairs, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(fine_tuning, "choose_precision", lambda **_: "bfloat16")
    classifier = run(model, pairs)
    assert classifier.dev_accuracy > 0.9
    assert {weight.dtype for weight in classifier.encoder.network.parameters()} == {torch.float32}  # type: ignore[attr-defined]
    monkeypatch.setattr(fine_tuning, "choose_precision", lambda **_: "float32")
    assert not equal(weights_of(run(model, pairs)), weights_of(classifier))


def test_mistakes_are_named(model: SentenceTransformer, pairs: Pairs):
    class OnlyEncodes:
        def encode(self, texts: list[str], **kwargs: Any) -> np.ndarray:
            return np.ones((len(texts), 2))

    with pytest.raises(XlsrError, match="an? OnlyEncodes cannot be trained; give a sentence-transformers model"):
        run(OnlyEncodes(), pairs)
    with pytest.raises(XlsrError, match="all weights of the encoder are frozen; unfreeze some"):
        run(model.requires_grad_(False), pairs)
