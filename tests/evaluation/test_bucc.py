"""Mined hidden translations, their data and threshold: against LASER's steps written out, and by properties."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from bitext_helpers import TableEncoder, cosines, noisy
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hf_xlsr.evaluation import BUCC_SETTINGS, BuccData, bucc, bucc_settings, hide_pairs, mining, read_bucc
from hf_xlsr.evaluation.protocols.bucc import tune_threshold

LANGUAGES = ("de", "en")


def toy(count: int, share: float, seed: int, noise: float = 0.5) -> tuple[TableEncoder, BuccData, BuccData]:
    """An encoder, and two texts with hidden pairs that it knows."""
    encoder, sources, targets = noisy(2 * count, noise, seed=seed)
    rows = [{"source": source, "target": target} for source, target in zip(sources, targets, strict=True)]
    halves = rows[:count], rows[count:]
    return encoder, hide_pairs(halves[0], share=share, seed=seed), hide_pairs(halves[1], share=share, seed=seed)


# The protocol


def laser_pairs(encoder: TableEncoder, data: BuccData, k: int, margin: str) -> dict[tuple[str, str], float]:
    """Candidates as LASER makes them, one pair and one neighbour at a time, in float64: mined texts, back to ids."""
    sources, targets = list(dict.fromkeys(data.sources)), list(dict.fromkeys(data.targets))
    similarities = cosines(encoder, sources, targets)
    forward = np.sort(similarities, axis=1)[:, ::-1][:, :k].mean(axis=1)
    backward = np.sort(similarities, axis=0)[::-1][:k].mean(axis=0)

    def score(x: int, y: int) -> float:
        average = (forward[x] + backward[y]) / 2
        return similarities[x, y] / average if margin == "ratio" else similarities[x, y] - average

    proposals = []
    for x in range(len(sources)):
        near = np.argsort(-similarities[x], kind="stable")[:k]
        proposals.append((x, int(max(near, key=lambda y: score(x, y)))))
    for y in range(len(targets)):
        near = np.argsort(-similarities[:, y], kind="stable")[:k]
        proposals.append((int(max(near, key=lambda x: score(x, y))), y))
    used_sources, used_targets, mined = set(), set(), {}
    for x, y in sorted(proposals, key=lambda pair: -score(*pair)):
        if x not in used_sources and y not in used_targets:
            used_sources.add(x)
            used_targets.add(y)
            mined[sources[x], targets[y]] = score(x, y)
    ids = []
    for side_ids, side in ((data.source_ids, data.sources), (data.target_ids, data.targets)):
        ids.append({text: id_ for id_, text in zip(side_ids, side, strict=True) if list(side).count(text) == 1})
    return {(ids[0][s], ids[1][t]): value for (s, t), value in mined.items() if s in ids[0] and t in ids[1]}


@pytest.mark.parametrize(("share", "noise"), [(0.3, 0.8), (1.0, 1.5)], ids=["some hidden", "all parallel"])
@pytest.mark.parametrize("margin", ["ratio", "distance"])
@pytest.mark.parametrize("k", [3, 4])
def test_equals_the_naive_twin(k: int, margin: str, share: float, noise: float):
    encoder, tune, test = toy(200, share=share, seed=k, noise=noise)
    # Two texts stand under two ids each, gold pairs among them.
    doubled = BuccData(
        [*test.source_ids, "again-1", "again-2"],
        [*test.sources, test.sources[3], test.sources[8]],
        test.target_ids,
        test.targets,
        test.gold | {("again-1", test.target_ids[0])},
    )
    metrics = bucc(encoder, tune, doubled, languages=LANGUAGES, name="toy", k=k, margin=margin)
    candidates = laser_pairs(encoder, tune, k, margin)
    scores, right = np.array(list(candidates.values())), np.array([pair in tune.gold for pair in candidates])
    threshold, tune_f1 = tune_threshold(scores, right, len(tune.gold))
    extracted = {pair for pair, score in laser_pairs(encoder, doubled, k, margin).items() if score >= threshold}
    right = len(extracted & doubled.gold)
    prefix = f"toy-bucc-k{k}-{margin}/de-en"
    assert 0.3 < tune_f1 < 0.99 and 0 < right < len(extracted)
    assert metrics == {
        f"{prefix}/test/precision": pytest.approx(right / len(extracted)),
        f"{prefix}/test/recall": pytest.approx(right / len(doubled.gold)),
        f"{prefix}/test/f1": pytest.approx(2 * right / (len(extracted) + len(doubled.gold))),
        f"{prefix}/test/threshold": pytest.approx(threshold, rel=1e-5),
        f"{prefix}/test/pairs": len(extracted),
        f"{prefix}/test/gold": len(doubled.gold),
        f"{prefix}/train/f1": pytest.approx(tune_f1),
    }


def test_several_settings_equal_single_runs():
    encoder, tune, test = toy(120, share=0.3, seed=3)
    singles: dict[str, float] = {}
    both = [*BUCC_SETTINGS.values(), (2, "absolute")]
    for k, margin in both:
        singles |= bucc(encoder, tune, test, languages=LANGUAGES, name="toy", k=k, margin=margin)
    falling = replace(test, gold=sorted(test.gold, reverse=True))
    first, second = (bucc(encoder, tune, one, languages=LANGUAGES, name="toy").outcomes for one in (test, falling))
    for name, found in first.items():  # of sources and gold pairs, in an order that all encoders share
        assert len(found.columns[0]) == (len(test.gold) if name.endswith("recall") else len(test.sources))
        assert all(map(np.array_equal, found.columns, second[name].columns))
    encoder.texts.clear()
    assert bucc_settings(encoder, tune, test, settings=both, languages=LANGUAGES, name="toy") == singles
    # Each text is encoded once.
    assert sorted(encoder.texts) == sorted([*tune.sources, *tune.targets, *test.sources, *test.targets])


# The threshold


def best_by_trying(scores: list[float], correct: list[bool], gold: int) -> float:
    """The best F1 of all thresholds, by extracting with each score as threshold."""
    best = 0.0
    for threshold in scores:
        taken = [right for score, right in zip(scores, correct, strict=True) if score >= threshold]
        best = max(best, 2 * sum(taken) / (len(taken) + gold))
    return best


CANDIDATES = st.lists(
    st.tuples(st.one_of(st.floats(-2, 2), st.sampled_from([0.0, 0.5, 1.0, 1.0 + 2**-52])), st.booleans()), max_size=30
)


@given(CANDIDATES, st.integers(0, 20))
@example([(1.0 + 2**-52, True), (1.0, False)], 0)  # the middle of two neighbouring floats is one of them
@example([(1.0, False), (1.0, True), (0.5, True)], 1)
@settings(max_examples=300, deadline=None)
def test_tuned_threshold_gives_the_best_f1(candidates: list[tuple[float, bool]], missed: int):
    scores, correct = [score for score, _ in candidates], [right for _, right in candidates]
    gold = sum(correct) + missed
    threshold, f1 = tune_threshold(np.array(scores), np.array(correct, bool), gold)
    if not any(correct):
        assert (threshold, f1) == (0.0, 0.0)
        return
    taken = [right for score, right in candidates if score >= threshold]
    assert (
        f1
        == pytest.approx(2 * sum(taken) / (len(taken) + gold))
        == pytest.approx(best_by_trying(scores, correct, gold))
    )


# Data


@pytest.mark.parametrize("swap", [False, True])
def test_gold_in_either_order(tmp_path: Path, swap: bool):
    gold = "e2\td1\ne3\td3\n" if swap else "d1\te2\nd3\te3\n"
    german = "d1\tHallo, Welt.\nd2\t Zwei \r\nd3\tmit\tTabulator"
    paths = [tmp_path / name for name in ("de", "en", "gold")]
    for path, text in zip(paths, (german, "\ufeffe1\tOne.\ne2\tHello, world.\ne3\twith\ttab\n", gold), strict=True):
        path.write_text(text, encoding="utf-8", newline="")
    assert read_bucc(*paths) == BuccData(
        ["d1", "d2", "d3"],
        ["Hallo, Welt.", "Zwei", "mit\tTabulator"],
        ["e1", "e2", "e3"],
        ["One.", "Hello, world.", "with\ttab"],
        frozenset({("d1", "e2"), ("d3", "e3")}),
    )


def gold_texts(data: BuccData) -> set[tuple[str, str]]:
    sources = dict(zip(data.source_ids, data.sources, strict=True))
    targets = dict(zip(data.target_ids, data.targets, strict=True))
    return {(sources[source], targets[target]) for source, target in data.gold}


def test_hidden_pairs_of_distinct_rows():
    rows = [{"source": f"s{n}", "target": f"t{n}", "other": "x"} for n in range(1001)]
    data = hide_pairs(rows, share=0.1, seed=5)
    assert len(data.gold) == 100
    assert (len(data.sources), len(data.targets)) == (100 + 450, 100 + 451)
    kept = {text[1:] for text in data.sources}, {text[1:] for text in data.targets}
    assert kept[0] | kept[1] == {str(n) for n in range(1001)}  # no row is lost
    assert {(f"s{n}", f"t{n}") for n in kept[0] & kept[1]} == gold_texts(data)  # what is there twice is gold
    # The place in the text gives nothing away.
    for side, texts in zip(zip(*gold_texts(data), strict=True), (data.sources, data.targets), strict=True):
        places = np.array([texts.index(text) for text in side]) / len(texts)
        assert 0.4 < places.mean() < 0.6 and places.min() < 0.05 and places.max() > 0.95
    assert hide_pairs(rows, share=0.1, seed=5) == data
    assert hide_pairs(rows, share=0.1, seed=6) != data


@given(
    st.lists(st.tuples(st.integers(0, 12), st.integers(0, 12)), min_size=1, max_size=25),
    st.floats(0.01, 1),
    st.integers(0, 3),
)
@example([(0, 0), (1, 1), (0, 1)], 1.0, 0)  # the third row makes one group of the first two
@settings(max_examples=200, deadline=None)
def test_gold_is_all_there_is_to_find(links: list[tuple[int, int]], share: float, seed: int):
    rows = [{"source": f"s{x}", "target": f"t{y}"} for x, y in links]
    data = hide_pairs(rows, share=share, seed=seed)
    assert len(set(data.sources)) == len(data.sources) and len(set(data.targets)) == len(data.targets)
    pairs = {(row["source"], row["target"]) for row in rows}
    present = {(s, t) for s, t in pairs if s in data.sources and t in data.targets}
    assert present == gold_texts(data)


# Mining of parallel sentences


def test_mining_equals_bucc_on_both_halves() -> None:
    encoder, sources, targets = noisy(200, 0.4, width=8)
    found = mining(encoder, sources, targets, name="x", hide_pairs=0.4, k=3, margin="distance", seed=5)
    order = np.random.default_rng(5).permutation(200)
    rows = [{"source": sources[row], "target": targets[row]} for row in order]
    halves = [hide_pairs(half, share=0.4, seed=5) for half in (rows[:100], rows[100:])]
    expected = bucc(encoder, *halves, k=3, margin="distance", languages=("en", "fr"), name="x")
    for metric in ("precision", "recall", "f1", "threshold", "pairs", "gold"):
        key = f"k3-distance/en-fr/test/{metric}"
        assert found[f"x-mining-h0.4-{key}"] == expected[f"x-bucc-{key}"]
    assert 0.2 < found["x-mining-h0.4-k3-distance/en-fr/test/f1"] < 1
    # Repeated sentences are in one half only.
    assert mining(encoder, sources * 3, targets * 3, name="x") == mining(encoder, sources, targets, name="x")
