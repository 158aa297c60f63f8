"""Mined hidden translations, their data and threshold: against LASER's steps written out, and by properties."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import harmonic_mean

import numpy as np
import pytest
from bitext_helpers import TableEncoder, cosines, noisy
from hypothesis import example, given, settings
from hypothesis import strategies as st
from margin_helpers import mine_by_hand

from hf_xlsr.evaluation import BUCC_SETTINGS, BuccData, bucc, bucc_settings, hide_pairs, mining, read_bucc
from hf_xlsr.evaluation.protocols.bucc import tune_threshold
from hf_xlsr.utils.errors import XlsrError

LANGUAGES = ("de", "en")


def toy(count: int, share: float, seed: int, noise: float = 0.5) -> tuple[TableEncoder, BuccData, BuccData]:
    """An encoder, and two texts with hidden pairs that it knows."""
    encoder, sources, targets = noisy(2 * count, noise, seed=seed)
    rows = rows_of(sources, targets)
    tune = hide_pairs(rows[:count], share=share, seed=seed)
    test = hide_pairs(rows[count:], share=share, seed=seed)
    return encoder, tune, test


def rows_of(sources: Sequence[str], targets: Sequence[str]) -> list[dict[str, str]]:
    return [{"source": source, "target": target} for source, target in zip(sources, targets, strict=True)]


def numbered_rows(count: int) -> list[dict[str, str]]:
    return [{"source": f"s{n}", "target": f"t{n}"} for n in range(count)]


# The protocol


def laser_pairs(encoder: TableEncoder, data: BuccData, k: int, margin: str) -> dict[tuple[str, str], float]:
    """Candidates as LASER makes them: mined texts, back to ids."""
    sources = list(dict.fromkeys(data.sources))
    targets = list(dict.fromkeys(data.targets))
    source_ids = single_ids(data.source_ids, data.sources)
    target_ids = single_ids(data.target_ids, data.targets)

    candidates = {}
    for source, target, score in mine_by_hand(cosines(encoder, sources, targets), k, margin):
        source_id = source_ids.get(sources[source])
        target_id = target_ids.get(targets[target])
        if source_id and target_id:
            candidates[source_id, target_id] = score
    return candidates


def single_ids(ids: Sequence[str], texts: Sequence[str]) -> dict[str, str]:
    """The id of each text that has only one."""
    counts = Counter(texts)
    return {text: text_id for text_id, text in zip(ids, texts, strict=True) if counts[text] == 1}


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

    tune_candidates = laser_pairs(encoder, tune, k, margin)
    scores = np.array(list(tune_candidates.values()))
    is_gold = np.array([pair in tune.gold for pair in tune_candidates])
    threshold, tune_f1 = tune_threshold(scores, is_gold, len(tune.gold))
    assert 0.3 < tune_f1 < 0.99

    candidates = laser_pairs(encoder, doubled, k, margin)
    extracted = {pair for pair, score in candidates.items() if score >= threshold}
    right = len(extracted & doubled.gold)
    assert 0 < right < len(extracted)

    precision = right / len(extracted)
    recall = right / len(doubled.gold)
    expected = {
        "test/precision": precision,
        "test/recall": recall,
        "test/f1": harmonic_mean([precision, recall]),
        "test/threshold": threshold,
        "test/pairs": len(extracted),
        "test/gold": len(doubled.gold),
        "train/f1": tune_f1,
    }
    assert len(metrics) == len(expected)
    for key, value in expected.items():
        assert metrics[f"toy-bucc-k{k}-{margin}/de-en/{key}"] == pytest.approx(value, rel=1e-5)


def test_several_settings_equal_single_runs():
    encoder, tune, test = toy(120, share=0.3, seed=3)
    all_settings = [*BUCC_SETTINGS.values(), (2, "absolute")]
    single_runs: dict[str, float] = {}
    for k, margin in all_settings:
        single_runs |= bucc(encoder, tune, test, languages=LANGUAGES, name="toy", k=k, margin=margin)

    encoder.texts.clear()
    metrics = bucc_settings(encoder, tune, test, settings=all_settings, languages=LANGUAGES, name="toy")
    assert metrics == single_runs

    # Each text is encoded once.
    texts = [*tune.sources, *tune.targets, *test.sources, *test.targets]
    assert sorted(encoder.texts) == sorted(texts)


def test_outcomes_are_of_sources_and_gold_pairs_in_one_order():
    encoder, tune, test = toy(120, share=0.3, seed=3)
    reordered = replace(test, gold=sorted(test.gold, reverse=True))
    outcomes = bucc(encoder, tune, test, languages=LANGUAGES, name="toy").outcomes
    outcomes_of_reordered = bucc(encoder, tune, reordered, languages=LANGUAGES, name="toy").outcomes

    for key, outcome in outcomes.items():
        examples = test.gold if key.endswith("recall") else test.sources
        assert len(outcome.columns[0]) == len(examples)
        np.testing.assert_array_equal(outcome.columns, outcomes_of_reordered[key].columns)


# The threshold


def best_by_trying(scores: list[float], correct: list[bool], gold: int) -> float:
    """The best F1 of all thresholds, by extracting with each score as threshold."""
    return max([f1_at(threshold, scores, correct, gold) for threshold in scores])


def f1_at(threshold: float, scores: list[float], correct: list[bool], gold: int) -> float:
    extracted = [right for score, right in zip(scores, correct, strict=True) if score >= threshold]
    return 2 * sum(extracted) / (len(extracted) + gold)


SCORES = st.one_of(st.floats(-2, 2), st.sampled_from([0.0, 0.5, 1.0, 1.0 + 2**-52]))


@given(candidates=st.lists(st.tuples(SCORES, st.booleans()), max_size=30), missed=st.integers(0, 20))
@example(candidates=[(1.0 + 2**-52, True), (1.0, False)], missed=0)  # the middle of neighbouring floats is one of them
@example(candidates=[(1.0, False), (1.0, True), (0.5, True)], missed=1)
@settings(max_examples=300)
def test_tuned_threshold_gives_the_best_f1(candidates: list[tuple[float, bool]], missed: int):
    scores = [score for score, _ in candidates]
    correct = [right for _, right in candidates]
    gold = sum(correct) + missed

    threshold, f1 = tune_threshold(np.array(scores), np.array(correct, bool), gold)

    if any(correct):
        assert f1 == pytest.approx(f1_at(threshold, scores, correct, gold))
        assert f1 == pytest.approx(best_by_trying(scores, correct, gold))
    else:
        assert threshold == 0
        assert f1 == 0


# Data


@pytest.mark.parametrize("gold_lines", ["d1\te2\nd3\te3\n", "e2\td1\ne3\td3\n", "d1\te2\nd3\te3\n\n \n"])
def test_gold_in_either_order(tmp_path: Path, gold_lines: str):
    german = tmp_path / "de"
    german.write_bytes(b"d1\tHallo, Welt.\nd2\t Zwei \r\nd3\tmit\tTabulator")
    english = tmp_path / "en"
    english.write_text("\ufeffe1\tOne.\ne2\tHello, world.\ne3\twith\ttab\n", "utf-8")
    gold = tmp_path / "gold"
    gold.write_text(gold_lines)

    assert read_bucc(german, english, gold) == BuccData(
        ["d1", "d2", "d3"],
        ["Hallo, Welt.", "Zwei", "mit\tTabulator"],
        ["e1", "e2", "e3"],
        ["One.", "Hello, world.", "with\ttab"],
        frozenset({("d1", "e2"), ("d3", "e3")}),
    )


def test_blank_line_between_others(tmp_path: Path):
    file = tmp_path / "de"
    file.write_text("d1\tHallo.\n\nd2\tZwei.\n")
    with pytest.raises(XlsrError, match="de after 1 lines"):
        read_bucc(file, file, file)


def gold_texts(data: BuccData) -> set[tuple[str, str]]:
    sources = dict(zip(data.source_ids, data.sources, strict=True))
    targets = dict(zip(data.target_ids, data.targets, strict=True))
    return {(sources[source], targets[target]) for source, target in data.gold}


def test_hidden_pairs_of_distinct_rows():
    rows = numbered_rows(1001)
    data = hide_pairs(rows, share=0.1, seed=5)
    assert len(data.gold) == 100
    assert len(data.sources) == 100 + 450
    assert len(data.targets) == 100 + 451

    source_numbers = {text[1:] for text in data.sources}
    target_numbers = {text[1:] for text in data.targets}
    assert len(source_numbers | target_numbers) == 1001  # no row is lost
    # Rows that keep both sides are gold.
    in_both = source_numbers & target_numbers
    assert {(f"s{n}", f"t{n}") for n in in_both} == gold_texts(data)

    assert hide_pairs(rows, share=0.1, seed=5) == data
    assert hide_pairs(rows, share=0.1, seed=6) != data


def assert_spread(gold: Sequence[str], texts: Sequence[str]) -> None:
    """Gold texts stand anywhere among all texts."""
    positions = np.array([texts.index(text) for text in gold]) / len(texts)
    assert 0.4 < positions.mean() < 0.6
    assert positions.min() < 0.05
    assert positions.max() > 0.95


def test_positions_give_no_hidden_pair_away():
    data = hide_pairs(numbered_rows(1001), share=0.1, seed=5)
    gold_sources, gold_targets = zip(*gold_texts(data), strict=True)
    assert_spread(gold_sources, data.sources)
    assert_spread(gold_targets, data.targets)


@given(
    links=st.lists(st.tuples(st.integers(0, 12), st.integers(0, 12)), min_size=1, max_size=25),
    share=st.floats(0.01, 1),
    seed=st.integers(0, 3),
)
@example(links=[(0, 0), (1, 1), (0, 1)], share=1.0, seed=0)  # the third row makes one group of the first two
@settings(max_examples=200)
def test_gold_is_all_there_is_to_find(links: list[tuple[int, int]], share: float, seed: int):
    rows = [{"source": f"s{x}", "target": f"t{y}"} for x, y in links]

    data = hide_pairs(rows, share=share, seed=seed)

    assert len(set(data.sources)) == len(data.sources)
    assert len(set(data.targets)) == len(data.targets)
    findable = set()
    for row in rows:
        if row["source"] in data.sources and row["target"] in data.targets:
            findable.add((row["source"], row["target"]))
    assert findable == gold_texts(data)


# Mining of parallel sentences


def test_mining_equals_bucc_on_both_halves() -> None:
    encoder, sources, targets = noisy(200, 0.4, width=8)

    mined = mining(encoder, sources, targets, name="x", hide_pairs=0.4, k=3, margin="distance", seed=5)

    order = np.random.default_rng(5).permutation(200)
    shuffled = np.array(rows_of(sources, targets))[order]
    rows = shuffled.tolist()
    tune = hide_pairs(rows[:100], share=0.4, seed=5)
    test = hide_pairs(rows[100:], share=0.4, seed=5)
    expected = bucc(encoder, tune, test, k=3, margin="distance", languages=("en", "fr"), name="x")

    for metric in ("precision", "recall", "f1", "threshold", "pairs", "gold"):
        key = f"k3-distance/en-fr/test/{metric}"
        assert mined[f"x-mining-h0.4-{key}"] == expected[f"x-bucc-{key}"]
    assert 0.2 < mined["x-mining-h0.4-k3-distance/en-fr/test/f1"] < 1


def test_repeated_sentences_are_in_one_half_of_mining_only() -> None:
    encoder, sources, targets = noisy(200, 0.4, width=8)
    repeated = mining(encoder, sources * 3, targets * 3, name="x")
    assert repeated == mining(encoder, sources, targets, name="x")
