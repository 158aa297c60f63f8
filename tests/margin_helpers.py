"""Mining of translations by a margin, sentence by sentence from the matrix of all cosines, in float64."""

from __future__ import annotations

import numpy as np

Triple = tuple[int, int, float]


def nearest(cosines: np.ndarray, k: int) -> list[int]:
    """The columns of the highest cosines; of equal ones the first."""
    return np.argsort(-cosines, kind="stable")[:k].tolist()


def mine_by_hand(
    cosines: np.ndarray,
    k: int,
    margin: str,
    retrieval: str = "max",
    threshold: float = -np.inf,
    one_to_one: bool = True,
) -> list[Triple]:
    """Source, target and score of each pair, best first."""
    mean_of_source = [row[nearest(row, k)].mean() for row in cosines]
    mean_of_target = [column[nearest(column, k)].mean() for column in cosines.T]

    def score(pair: tuple[int, int]) -> float:
        source, target = pair
        average = (mean_of_source[source] + mean_of_target[target]) / 2
        score_of_margin = {
            "ratio": cosines[pair] / average,
            "distance": cosines[pair] - average,
            "absolute": cosines[pair],
        }
        return float(score_of_margin[margin])

    forward = set()
    for source, row in enumerate(cosines):
        pairs_of_source = [(source, target) for target in nearest(row, k)]
        forward.add(max(pairs_of_source, key=score))
    backward = set()
    for target, column in enumerate(cosines.T):
        pairs_of_target = [(source, target) for source in nearest(column, k)]
        backward.add(max(pairs_of_target, key=score))
    proposals = {
        "forward": forward,
        "backward": backward,
        "intersection": forward & backward,
        "max": forward | backward,
    }

    scored = [(*pair, score(pair)) for pair in proposals[retrieval] if score(pair) >= threshold]
    scored.sort(key=lambda triple: (-triple[2], *triple[:2]))
    return without_repeats(scored) if one_to_one else scored


def without_repeats(scored: list[Triple]) -> list[Triple]:
    """The best pair of each sentence, greedily."""
    matched: list[Triple] = []
    matched_sources = set()
    matched_targets = set()
    for source, target, score in scored:
        if source not in matched_sources and target not in matched_targets:
            matched.append((source, target, score))
            matched_sources.add(source)
            matched_targets.add(target)
    return matched
