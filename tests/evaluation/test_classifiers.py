"""Heads on fixed embeddings and fine-tuned encoders: against loops written out, choices on dev, seeds."""

from __future__ import annotations

import copy
import random
from functools import partial
from itertools import chain, pairwise
from typing import Any

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Router
from sklearn.linear_model import LogisticRegression
from torch import nn

from hf_xlsr.evaluation import classifiers
from hf_xlsr.evaluation.classifiers import (
    Classifier,
    Labelled,
    MlpSettings,
    features_of,
    fine_tune,
    fit_linear,
    fit_mlp,
)
from hf_xlsr.evaluation.rows import LabelledTexts

Pairs = list[dict[str, str]]


def clusters(count: int, width: int, classes: int, seed: int) -> Labelled:
    """Clusters that overlap."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, classes, count)
    centres = np.random.default_rng(99).normal(size=(classes, width))
    return centres[labels] + rng.normal(size=(count, width)), labels


def random_states() -> Any:
    return torch.get_rng_state().tolist(), np.random.get_state()[1].tolist(), random.getstate()  # type: ignore[index]


def mlp_written_out(
    train: Labelled, dev: Labelled, classes: int, settings: MlpSettings, seed: int
) -> tuple[Any, float]:
    """`fit_mlp` on plain tensors, one batch at a time."""
    train_features, train_labels = map(torch.from_numpy, train)
    dev_features, dev_labels = dev
    rng = np.random.default_rng(seed)
    keep_share = 1 - settings.dropout
    widths = (train_features.shape[1], *settings.hidden, classes)
    layers = []
    for inputs, outputs in pairwise(widths):
        bound = inputs**-0.5
        weight = torch.from_numpy(rng.uniform(-bound, bound, (inputs, outputs)))
        bias = torch.from_numpy(rng.uniform(-bound, bound, outputs))
        layers.append((weight.requires_grad_(), bias.requires_grad_()))
    optimizer = torch.optim.Adam([*chain(*layers)], settings.learning_rate)

    def logits(states: torch.Tensor, masks: list[torch.Tensor] | None = None) -> torch.Tensor:
        for number, (weight, bias) in enumerate(layers):
            if number:
                states = states.tanh()
            if masks:
                states = states * masks[number] / keep_share
            states = states @ weight + bias
        return states

    def predict(features: np.ndarray) -> np.ndarray:
        return logits(torch.from_numpy(features)).argmax(1).numpy()

    best_accuracy = -1.0
    best_layers = layers
    for _ in range(settings.epochs):
        order = rng.permutation(len(train_labels))
        masks = [torch.from_numpy(rng.random((len(order), width)) < keep_share) for width in widths[:-1]]
        for batch in torch.arange(len(order)).split(settings.batch_size):
            rows = order[batch]
            batch_logits = logits(train_features[rows], [mask[batch] for mask in masks])
            optimizer.zero_grad()
            nn.functional.cross_entropy(batch_logits, train_labels[rows]).backward()
            optimizer.step()

        accuracy = float(np.mean(predict(dev_features) == dev_labels))
        if accuracy >= best_accuracy:
            best_accuracy = accuracy
            best_layers = copy.deepcopy(layers)

    layers = best_layers
    return predict, best_accuracy


@pytest.mark.parametrize(("hidden", "dropout"), [((), 0.3), ((10, 8), 0.3), ((10, 8), 0.0)])
def test_mlp_equals_plain_tensors(hidden: tuple[int, ...], dropout: float):
    train = clusters(50, 7, 3, seed=1)
    dev = clusters(40, 7, 3, seed=2)
    test, _ = clusters(2000, 7, 3, seed=3)
    settings = MlpSettings(hidden=hidden, dropout=dropout, batch_size=12, epochs=6, learning_rate=0.01)

    predict, accuracy = fit_mlp(train, dev, classes=3, settings=settings, seed=5)

    expected_predict, expected_accuracy = mlp_written_out(train, dev, 3, settings, 5)
    assert accuracy == expected_accuracy
    np.testing.assert_array_equal(predict(test), expected_predict(test))


def test_linear_strength_is_chosen_on_dev():
    rng = np.random.default_rng(4)
    vectors = (0.05 * rng.normal(size=(200, 3))).astype(np.float32)
    labels = (vectors[:, 0] > 0.03).astype(np.int64)  # rare positives: strong regularisation never predicts them

    predict, accuracy = fit_linear((vectors, labels), (vectors, labels))
    assert accuracy > 0.95
    assert accuracy == np.mean(predict(vectors) == labels)

    majority = np.zeros_like(labels)
    predict, on_majority = fit_linear((vectors, labels), (vectors, majority))
    assert on_majority == 1.0
    strongly_regularised = LogisticRegression(C=0.1).fit(vectors, labels)
    np.testing.assert_array_equal(predict(vectors), strongly_regularised.predict(vectors))


@pytest.fixture
def model(tiny_export: str) -> SentenceTransformer:
    return SentenceTransformer(tiny_export, device="cpu")


def begins_with(pairs: Pairs, start: int, count: int, side: str = "source") -> LabelledTexts:
    """Sentences, half of which got `red red` in front, and whether they did."""
    labels = np.arange(count) % 2
    front = "red red " if side == "source" else "rouge rouge "
    texts = []
    for label, pair in zip(labels, pairs[start : start + count], strict=True):
        texts.append(front * label + pair[side])
    return LabelledTexts((texts,), labels)


def run(model: Any, pairs: Pairs, **changes: Any) -> Classifier:
    options: dict[str, Any] = {
        "train": begins_with(pairs, 0, 80),
        "dev": begins_with(pairs, 80, 40),
        "language": "en",
        "classes": 2,
        "epochs": 4,
        "learning_rate": 1e-2,
    }
    return fine_tune(model, **(options | changes))


def states(module: nn.Module) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in module.state_dict().items()}


def weights_of(classifier: Classifier) -> dict[str, torch.Tensor]:
    return states(classifier.encoder.network)  # type: ignore[attr-defined]


def changed(before: dict[str, torch.Tensor], after: dict[str, torch.Tensor]) -> set[str]:
    assert before.keys() == after.keys()
    return {name for name in before if not torch.equal(before[name], after[name])}


@pytest.mark.parametrize("sides", [1, 2])
def test_fine_tuning_equals_a_loop_written_out(
    model: SentenceTransformer, pairs: Pairs, monkeypatch: pytest.MonkeyPatch, sides: int
):
    monkeypatch.setattr(classifiers, "choose_precision", lambda **_: "float32")
    sources = [pair["source"] for pair in pairs]
    texts = [sources[:50], sources[60:110]][:sides]
    labels = np.arange(50) % 3
    train = LabelledTexts(tuple(texts), labels)
    classifier = run(
        model,
        pairs,
        train=train,
        dev=train,
        classes=3,
        epochs=3,
        train_batch_size=16,
        prompt="one ",
        seed=3,
    )

    assert any(isinstance(module, nn.Dropout) and module.p > 0 for module in model.modules())
    with torch.random.fork_rng():
        torch.manual_seed(3)
        twin = copy.deepcopy(model)
        layer = nn.Linear(16 * (1 if sides == 1 else 4), 3)
        for weight in layer.parameters():
            nn.init.zeros_(weight)
        body = torch.optim.AdamW(twin.parameters(), lr=1e-2)
        head = torch.optim.AdamW(layer.parameters(), lr=1e-3)
        best_accuracy = -1.0
        best_weights: dict[str, torch.Tensor] = {}
        total = 3 * 4
        step = 0

        def logits(sides: list[torch.Tensor]) -> torch.Tensor:
            # Lengths of 4 = sqrt(16): each number of a vector is then about 1 in size, and so are products.
            features = [4 * side for side in sides]
            if len(features) == 2:
                u, v = features
                features += [abs(u - v), u * v]
            return layer(torch.cat(features, 1))

        for _ in range(3):
            twin.train()
            for rows in torch.randperm(50).split(16):
                share = min(step, (total - step) / (total - 1))  # warm-up: a tenth of 12 steps, so one
                body.param_groups[0]["lr"] = share * 1e-2
                head.param_groups[0]["lr"] = share * 1e-3

                vectors = []
                for side in texts:
                    inputs = twin.preprocess([f"one {side[row]}" for row in rows])
                    vectors.append(nn.functional.normalize(twin(inputs)["sentence_embedding"]))
                loss = nn.functional.cross_entropy(logits(vectors), torch.from_numpy(labels)[rows])
                loss.backward()
                nn.utils.clip_grad_norm_([*twin.parameters(), *layer.parameters()], 1.0)
                for optimizer in (body, head):
                    optimizer.step()
                    optimizer.zero_grad()
                step += 1

            encode = partial(twin.encode, prompt="one ", normalize_embeddings=True, convert_to_tensor=True)
            predicted = logits(list(map(encode, texts))).argmax(1).numpy()
            accuracy = np.mean(predicted == labels)
            if accuracy >= best_accuracy:
                best_accuracy = accuracy
                best_weights = states(twin)

    assert step == total
    assert best_accuracy > 0.3
    assert classifier.dev_accuracy == pytest.approx(best_accuracy)
    torch.testing.assert_close(weights_of(classifier), best_weights, rtol=1e-3, atol=1e-5)


def test_fine_tuning_repeats_with_its_seed(model: SentenceTransformer, pairs: Pairs):
    before = random_states()

    first = weights_of(run(model, pairs, epochs=1, seed=1))
    again = weights_of(run(model, pairs, epochs=1, seed=1))
    other_seed = weights_of(run(model, pairs, epochs=1, seed=2))

    assert random_states() == before
    assert not changed(first, again)
    assert changed(first, other_seed)


def test_only_the_route_of_the_language_is_trained(tiny_export: str, model: SentenceTransformer, pairs: Pairs):
    french_model = SentenceTransformer(tiny_export, device="cpu")
    router = Router({"en": list(model), "fr": list(french_model)}, default_route="fr")
    routed = SentenceTransformer(modules=[router])
    before = states(routed)

    classifier = run(routed.to("cpu"), pairs)
    assert_only_changed(before, classifier, ".en.")
    by_name = run(routed, pairs, language="de", routes={"de": "en"})
    assert not changed(weights_of(by_name), weights_of(classifier))

    french = begins_with(pairs, 80, 4, side="target")
    features = features_of(classifier.encoder, french.sides, "fr")
    expected = french_model.encode(french.sides[0], normalize_embeddings=True)
    np.testing.assert_allclose(features, expected, atol=0.02)


def assert_only_changed(before: dict[str, torch.Tensor], classifier: Classifier, part_of_name: str) -> None:
    """Some weights changed, all of which have this in their names."""
    names = changed(before, weights_of(classifier))
    assert names
    for name in names:
        assert part_of_name in name


def test_half_precision_is_trained_in_float32(model: SentenceTransformer, pairs: Pairs):
    classifier = run(model.half(), pairs, epochs=1)
    for value in weights_of(classifier).values():
        assert value.dtype == torch.float32 or not value.is_floating_point()


def test_frozen_weights_stay(model: SentenceTransformer, pairs: Pairs):
    for name, weight in model.named_parameters():
        weight.requires_grad = "layer.1." in name
    assert_only_changed(states(model), run(model, pairs, epochs=1), "layer.1.")

    head_only = run(model.requires_grad_(False), pairs, epochs=1)
    assert not changed(states(model), weights_of(head_only))
