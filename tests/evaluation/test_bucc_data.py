from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hf_xlsr.evaluation import BuccData, hide_pairs, read_bucc


def write(folder: Path, **files: str) -> list[Path]:
    paths = []
    for name, content in files.items():
        paths.append(folder / f"{name}.txt")
        paths[-1].write_text(content, encoding="utf-8", newline="")
    return paths


# The files


@pytest.mark.parametrize("swap", [False, True])
def test_gold_in_either_order(tmp_path: Path, swap: bool):
    gold = "e2\td1\ne3\td3\n" if swap else "d1\te2\nd3\te3\n"
    paths = write(
        tmp_path,
        de="d1\tHallo, Welt.\nd2\t Zwei \r\nd3\tmit\tTabulator",
        en="\ufeffe1\tOne.\ne2\tHello, world.\ne3\twith\ttab\n",
        gold=gold,
    )
    assert read_bucc(*paths) == BuccData(
        ["d1", "d2", "d3"],
        ["Hallo, Welt.", "Zwei", "mit\tTabulator"],
        ["e1", "e2", "e3"],
        ["One.", "Hello, world.", "with\ttab"],
        frozenset({("d1", "e2"), ("d3", "e3")}),
    )


# Hidden pairs


def translations(rows: list[dict[str, str]]) -> set[tuple[str, str]]:
    return {(row["source"], row["target"]) for row in rows}


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


@pytest.mark.parametrize(("count", "share", "gold"), [(1, 0.5, 1), (10, 0.001, 1), (7, 1.0, 7), (2, 0.5, 1)])
def test_small_and_whole_shares(count: int, share: float, gold: int):
    data = hide_pairs([{"source": f"s{n}", "target": f"t{n}"} for n in range(count)], share=share)
    assert len(data.gold) == gold
    assert len(data.sources) + len(data.targets) == count + gold


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
    present = {(s, t) for s, t in translations(rows) if s in data.sources and t in data.targets}
    assert present == gold_texts(data)
