"""What a filter knows of a pair: numbers from its texts, and its margins and cosine."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from math import log, nan

import numpy as np
from tqdm import tqdm

from hf_xlsr.data.cleaning.steps import digit_share
from hf_xlsr.data.columns import Row
from hf_xlsr.data.identification import load_identifier
from hf_xlsr.data.languages import script_share
from hf_xlsr.data.normalization import match_key, width
from hf_xlsr.mining.filtering.negation import num_negations
from hf_xlsr.mining.scoring import ScoringRun
from hf_xlsr.utils.errors import XlsrError

FEATURES = (
    *("length_ratio", "script_source", "script_target", "language_source", "language_target", "negation", "numbers"),
    *("names", "overlap", "identical", "ending", "sentences", "repeats_source", "repeats_target"),
    *("margin", "cosine", "above_source", "above_target"),
)
"""What is computed of every pair."""
MORE_IS_BETTER = frozenset(
    "script_source script_target language_source language_target numbers names "
    "margin cosine above_source above_target".split()
)
"""Features of which more never makes a pair less probable to be good in the trees; in the regression it may."""
SCRIPT = "script"
SLACK = 10.0  # characters added to both lengths, as in the cleaning step `ratio`
SHINGLE = 3

_IN_ADDRESSES = re.compile(r"[@/_\\\d]")
_CAPITAL = re.compile(r"[^\W\d_a-zß-öø-ÿ]")  # or a letter of a script without them
_PUNCTUATION = "\"'()[].,;:!?…"
_END = re.compile(r"[.!?。！？।؟:;…]")
_SENTENCES = re.compile(r"[.!?。！？।؟]+(?=\s|$)|[。！？।]")


class TextFeatures:
    """Features of the texts of pairs.

    Args:
        languages: Source and target.
        identifier: How languages are told apart: `py3langid`, `heliport`, `fasttext:FILE`, or `script` for letters alone.

    Examples:
        >>> features = TextFeatures(("en", "de"), identifier="script")
        >>> row = features.of({"source": "Two of 3.", "target": "Zwei von 3."})
        >>> row["numbers"], row["identical"]
        (1.0, 0.0)
    """

    def __init__(self, languages: tuple[str, str], identifier: str = "py3langid") -> None:
        self.languages = languages
        self.identifier = None
        if identifier != SCRIPT:
            self.identifier = load_identifier(identifier)
            self.identifier.check(languages)

    def of(self, row: Row) -> dict[str, float]:
        """Name -> value for the texts of one pair; NaN for what they do not tell."""
        source = row["source"]
        target = row["target"]
        source_language, target_language = self.languages
        features = {
            "length_ratio": log((width(source) + SLACK) / (width(target) + SLACK)),
            "script_source": script_share(source, (source_language,)),
            "script_target": script_share(target, (target_language,)),
            "numbers": digit_share(source, target),
            "names": _shared_names(source, target),
            "overlap": _overlap(match_key(source), match_key(target)),
            "identical": float(match_key(source) == match_key(target)),
            "ending": float(bool(_END.match(source[-1:])) == bool(_END.match(target[-1:]))),
            "sentences": float(abs(len(_SENTENCES.findall(source)) - len(_SENTENCES.findall(target)))),
        }

        negations = (num_negations(source, source_language), num_negations(target, target_language))
        features["negation"] = nan
        if negations[0] is not None and negations[1] is not None:
            features["negation"] = float(bool(negations[0]) != bool(negations[1]))
        if self.identifier is not None:
            features["language_source"] = self.identifier.share(source, (source_language,))
            features["language_target"] = self.identifier.share(target, (target_language,))
        return features


def _names(text: str) -> set[str]:
    """Words with a number or a sign of addresses, and those with a capital that do not begin a sentence."""
    names = set()
    begins = True
    for word in text.split():
        if _IN_ADDRESSES.search(word) or (not begins and _CAPITAL.search(word)):
            names.add(word.strip(_PUNCTUATION).lower())
        begins = word[-1] in ".!?…"
    return names


def _shared_names(source: str, target: str) -> float:
    """Share of what is written alike in many languages that both sides have: names, addresses, numbers; NaN for none."""
    source_names = _names(source)
    target_names = _names(target)
    if not source_names or not target_names:
        return nan if source_names == target_names else 0.0
    return 2 * len(source_names & target_names) / (len(source_names) + len(target_names))


def _overlap(source: str, target: str) -> float:
    """Share of runs of three characters that both sides have."""
    runs = []
    for text in (source, target):
        runs.append({text[start : start + SHINGLE] for start in range(max(1, len(text) - SHINGLE + 1))})
    return len(runs[0] & runs[1]) / len(runs[0] | runs[1])


def feature_matrix(
    rows: Sequence[Row], texts: TextFeatures, run: ScoringRun, columns: Sequence[str] = (), *, progress: bool = False
) -> tuple[list[str], np.ndarray]:
    """Names of the features, and their values, `(pairs, features)`, float64.

    Args:
        rows: The pairs, `source` and `target`, and `columns`.
        texts: What is computed from the texts.
        run: The scores of these pairs, in their order.
        columns: Columns of numbers that are features, too, such as a score of COMET. An empty value is NaN.
        progress: Show a progress bar.

    Raises:
        XlsrError: A value of one of the `columns` is not a number.
    """
    counts = {side: Counter(match_key(row[side]) for row in rows) for side in ("source", "target")}
    values = []
    for number, row in enumerate(tqdm(rows, desc="features", disable=not progress)):
        features = texts.of(row)
        for side in ("source", "target"):
            features[f"repeats_{side}"] = log(counts[side][match_key(row[side])])
        for column in columns:
            features[column] = _number(row, column, number)
        values.append(features)

    names = list(values[0])
    matrix = np.array([list(features.values()) for features in values])
    margins = run.margins()
    return [*names, *margins], np.column_stack([matrix, *margins.values()])


def _number(row: Row, column: str, number: int) -> float:
    value = row.get(column)
    if value is None or value == "":
        return nan
    try:
        return float(value)
    except ValueError:
        raise XlsrError(f"Column '{column}' of pair {number + 1} must be a number, got '{value}'.") from None
