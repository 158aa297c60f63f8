"""Protocol `bucc`: mined translations among other sentences, with a threshold tuned on other data."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from typing_extensions import Unpack

from hf_xlsr.data.formats.reading import format_suffix
from hf_xlsr.encoders.encoding import Encoder, EncodingOptions
from hf_xlsr.evaluation.bucc_data import BuccData, read_bucc
from hf_xlsr.evaluation.inputs import DataOptions, Inputs
from hf_xlsr.evaluation.languages import UNKNOWN, metric_languages, pair_views
from hf_xlsr.evaluation.outcomes import Outcomes, Thresholds
from hf_xlsr.evaluation.protocols.tatoeba import embed_sides
from hf_xlsr.evaluation.protocols.xsim import margin_setting
from hf_xlsr.evaluation.registry import Options, Protocol, option
from hf_xlsr.evaluation.results import Results, measured
from hf_xlsr.evaluation.table import data_name
from hf_xlsr.utils.errors import XlsrError

if TYPE_CHECKING:
    from hf_xlsr.mining.search.both_ways import BothWays

logger = logging.getLogger(__name__)

BUCC_SETTINGS: dict[str, tuple[int, str]] = {"dual-momentum": (3, "distance"), "laser": (4, "ratio")}

NEIGHBOURS = ("forward_similarities", "forward_indices", "backward_similarities", "backward_indices")


@dataclass(frozen=True)
class BuccOptions(Options):
    gold: str | None = option(None, "pairs of ids that are translations, id-tab-id", data=True)
    tune: tuple[str, ...] = option((), "data to tune on: the threshold, the head", data=True)
    tune_gold: str | None = option(None, "pairs of ids that are translations in the data of --tune", data=True)
    k: int | None = option(None, "size of the neighbourhoods")
    margin: Literal["ratio", "distance", "absolute"] | None = option(None, "margin that scores pairs")


def bucc(
    encoder: Encoder, tune: BuccData, test: BuccData, *, k: int = 4, margin: str = "ratio", **options: Any
) -> Results:
    """`bucc_settings` with one setting; `options` are its other arguments."""
    return bucc_settings(encoder, tune, test, settings=[(k, margin)], **options)


def bucc_settings(
    encoder: Encoder,
    tune: BuccData,
    test: BuccData,
    *,
    settings: Iterable[tuple[int, str]] = tuple(BUCC_SETTINGS.values()),
    languages: tuple[str, str],
    name: str,
    protocol: str = "bucc",
    split: str = "test",
    tune_split: str = "train",
    **encoding: Unpack[EncodingOptions],
) -> Results:
    """Precision, recall and F1 of mined pairs, with a threshold that was tuned on other data.

    Each side's distinct texts are mined by margin, one to one (`extract_pairs` with `retrieval max`). A text with
    two or more ids takes part, but no pair with it counts, while gold pairs of its ids stay in the recall.
    `tune_threshold` finds the threshold on `tune`; pairs of `test` that reach it are the extracted ones. Texts are
    encoded, and neighbours searched, once for all settings.

    Args:
        settings: Pairs of `k`, the size of the neighbourhoods both ways, and `margin`, see `margin_scores`; by default
            those of the dual-momentum paper and of LASER.
        languages: Codes of the languages of sources and targets.
        protocol: First part of the protocol's name in metric keys.

    Returns:
        `precision`, `recall`, `f1`, `threshold`, `pairs` (extracted) and `gold` (gold pairs) under
        `{name}-bucc-k4-ratio/de-en/test/`, and `f1` on `tune` under `{name}-bucc-k4-ratio/de-en/train/`.

    Relations:
        LASER's `bucc.py` after mining with `--unify --retrieval max --margin ratio -k 4` (`BUCC_SETTINGS["laser"]`);
        the dual-momentum paper takes 3 neighbours and margin `distance`. mteb's BUCC has no threshold: it retrieves
        gold sentences among gold sentences, see `tatoeba_mteb`.
    """
    settings = tuple(settings)
    if tune_split == split or tune == test:
        raise XlsrError("`tune` and `tune_split` must differ from `test` and `split`: do not tune on what is tested.")
    protocols = [f"{protocol}-{margin_setting(*setting)}" for setting in settings]
    widest = max(k for k, _ in settings)
    tuned, tested = (_search(encoder, data, languages, widest, **encoding) for data in (tune, test))
    results = Results()
    for (k, margin), full_name in zip(settings, protocols, strict=True):
        threshold, tune_f1 = tune_threshold(*_candidates(tuned, k, margin)[:2], len(tune.gold))
        scores, correct, codes = _candidates(tested, k, margin)
        extracted = scores >= threshold
        right, pairs, gold = int((correct & extracted).sum()), int(extracted.sum()), len(test.gold)
        values = {
            "precision": right / max(pairs, 1),
            "recall": right / gold,
            "f1": 2 * right / (pairs + gold),
            "threshold": threshold,
            "pairs": pairs,
            "gold": gold,
        }
        # Examples that all encoders share: gold pairs, and sources with their counts of right, extracted and gold pairs.
        counted = (
            np.bincount(one // len(test.targets), minlength=len(test.sources))
            for one in (codes[extracted & correct], codes[extracted], tested.gold)
        )
        outcomes: dict[str, Outcomes | np.ndarray] = {
            "precision": correct[extracted],
            "recall": np.isin(tested.gold, codes[extracted]),
            "f1": Outcomes("micro_f1", tuple(counted)),
        }
        results |= measured(name, full_name, languages, split, values, outcomes)
        results |= measured(name, full_name, languages, tune_split, {"f1": tune_f1})
    return results


def tune_threshold(scores: np.ndarray, correct: np.ndarray, total_gold: int) -> tuple[float, float]:
    """The threshold with the best F1, halfway between the last candidate taken and the first one rejected, and that F1.

    Extraction takes all candidates that reach the threshold, so equal scores are taken together. Of several thresholds
    with the best F1 the highest is chosen. Where all candidates are taken it is the lowest score. `(0.0, 0.0)` when no
    candidate is correct. LASER's `BuccOptimize` may separate equal scores, and fails when all candidates are taken.

    Args:
        scores: Margin scores of the candidates, `(n,)`.
        correct: Whether each is a gold pair, bool, `(n,)`.
        total_gold: Number of gold pairs, among the candidates or not.

    Examples:
        >>> tune_threshold(np.array([1.2, 1.1, 1.0, 0.9]), np.array([True, True, False, False]), total_gold=3)
        (1.05, 0.8)
    """
    scores, correct = np.asarray(scores, np.float64), np.asarray(correct, bool)
    if not correct.any():
        return 0.0, 0.0
    thresholds = Thresholds.of(scores, correct)
    f1 = thresholds.f1(total_gold)
    best = f1.argmax()
    return float(thresholds.values[best]), float(f1[best])


class _Searched(NamedTuple):
    """The distinct texts of data and their neighbours; a text's row in the data, -1 where it has several."""

    neighbours: BothWays
    source_rows: np.ndarray
    target_rows: np.ndarray
    target_count: int
    gold: np.ndarray  # source row * target_count + target row


def _search(
    encoder: Encoder, data: BuccData, languages: tuple[str, str], k: int, **encoding: Unpack[EncodingOptions]
) -> _Searched:
    from hf_xlsr.mining.search.both_ways import neighbours_both_ways

    (source_texts, source_rows), (target_texts, target_rows) = _distinct(data.sources), _distinct(data.targets)
    vectors = embed_sides(encoder, (source_texts, target_texts), languages, **encoding)
    source_of, target_of = ({id_: row for row, id_ in enumerate(ids)} for ids in (data.source_ids, data.target_ids))
    count = len(data.targets)
    gold = np.array([source_of[source] * count + target_of[target] for source, target in data.gold])
    neighbours = neighbours_both_ways(*vectors, k, method="exact")
    return _Searched(neighbours, source_rows, target_rows, count, gold)


def _distinct(sentences: Sequence[str]) -> tuple[list[str], np.ndarray]:
    """Each text once, and its row, -1 where it has several."""
    row_of: dict[str, int] = {}
    for row, text in enumerate(sentences):
        row_of[text] = -1 if text in row_of else row
    return list(row_of), np.array(list(row_of.values()))


def _candidates(searched: _Searched, k: int, margin: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of the mined pairs of texts with one id each: the score, whether it is a gold pair, and its code as in `gold`."""
    from hf_xlsr.mining.search.extraction import extract_pairs

    found = searched.neighbours
    # The nearest k are the first of the nearest however many.
    nearest = {name: getattr(found, name)[:, :k] for name in NEIGHBOURS}
    mined = extract_pairs(replace(found, **nearest), margin=margin)
    sources, targets = searched.source_rows[mined.source], searched.target_rows[mined.target]
    single = (sources >= 0) & (targets >= 0)
    codes = sources[single] * searched.target_count + targets[single]
    return mined.score[single], np.isin(codes, searched.gold), codes


def _read(protocol: Protocol, data: DataOptions, options: Mapping[str, Any]) -> Inputs:
    """Two files of id, tab and text with a gold file, to test and to tune on."""
    data.refuse("bucc", "columns", "where", "config", "limit")
    inputs = Inputs(name=data.name or data_name(data.files), split=data.split)
    parts = ("test", "data", data.files, "gold"), ("tune", "tune", options.get("tune", ()), "tune_gold")
    for part, option_name, files, gold in parts:
        if len(files) != 2 or not options.get(gold):
            raise XlsrError(
                f"protocol bucc needs --{option_name} SOURCES TARGETS and --{gold.replace('_', '-')} GOLD: it tests and "
                "tunes the threshold on different data."
            )
        inputs.bitexts[part] = read_bucc(files[0], files[1], options[gold])
    test, tune = inputs.bitexts["test"], inputs.bitexts["tune"]
    shared = [set(test.sources) & set(tune.sources), set(test.targets) & set(tune.targets)]
    if shared == [set(test.sources), set(test.targets)] == [set(tune.sources), set(tune.targets)]:
        raise XlsrError("--tune must have other texts than --data, got the same.")
    if any(shared):
        logger.warning("%d sources and %d targets of --data are also in --tune", *map(len, shared))
    first, second = (format_suffix(Path(file)).lstrip(".") for file in data.files)
    tags, _ = pair_views(data.languages, (first, second), each=False, told=())[0]
    if UNKNOWN in tags or len(data.languages) == 1:
        raise XlsrError("--languages must name the languages of sources and targets, e.g. de,en.")
    codes = metric_languages(tags)
    inputs.languages = codes[tags[0]], codes[tags[1]]
    return inputs


def _run(encoder: Encoder, inputs: Inputs, options: BuccOptions) -> Results:
    setting = options.arguments()
    run = bucc if setting else bucc_settings
    tune, test = inputs.bitexts["tune"], inputs.bitexts["test"]
    return run(encoder, tune, test, languages=inputs.languages, **inputs.common, **setting)


PROTOCOL = Protocol(
    "bucc",
    "F1 of mined hidden translations; the threshold is tuned on other data",
    "two files of id, tab and text, and a gold file",
    _read,
    _run,
    BuccOptions,
)
