"""Protocols `bucc` and `mining`: mined translations among other sentences, with a threshold tuned on other data."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from typing_extensions import Unpack

from hf_xlsr.data.formats.lines import BadLine, BrokenFile, decode, iter_lines, open_binary
from hf_xlsr.data.formats.reading import format_suffix
from hf_xlsr.encoders.encoding import Encoder, EncodingOptions
from hf_xlsr.evaluation.bitexts import BuccData, hidden_bitext, independent_pairs, read_bucc
from hf_xlsr.evaluation.languages import UNKNOWN, metric_languages, pair_views
from hf_xlsr.evaluation.outcomes import Outcomes, Thresholds
from hf_xlsr.evaluation.pairs import embed_sides
from hf_xlsr.evaluation.protocol import DataOptions, Inputs, Options, Protocol, option
from hf_xlsr.evaluation.protocol_kinds import pair_protocol
from hf_xlsr.evaluation.protocols.xsim import margin_setting
from hf_xlsr.evaluation.results import Results, measured
from hf_xlsr.evaluation.table import data_name
from hf_xlsr.utils.errors import XlsrError

if TYPE_CHECKING:
    from hf_xlsr.mining.search.neighbours import BothWays

logger = logging.getLogger(__name__)

BUCC_SETTINGS: dict[str, tuple[int, str]] = {"dual-momentum": (3, "distance"), "laser": (4, "ratio")}
NEIGHBOURS = ("forward_similarities", "forward_indices", "backward_similarities", "backward_indices")


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
            those of the dual-momentum paper and of LASER (its `bucc.py` after `--unify --retrieval max`).
        protocol: First part of the protocol's name in metric keys.

    Returns:
        `precision`, `recall`, `f1`, `threshold`, `pairs` (extracted) and `gold` (gold pairs) under
        `{name}-bucc-k4-ratio/de-en/test/`, and `f1` on `tune` under `{name}-bucc-k4-ratio/de-en/train/`. mteb's BUCC
        has no threshold: it retrieves gold sentences among gold sentences, see `tatoeba_mteb`.
    """
    same = set(tune.sources) == set(test.sources) and set(tune.targets) == set(test.targets)
    if tune_split == split or same:
        raise XlsrError("`tune` and `tune_split` must differ from `test` and `split`: do not tune on what is tested.")
    named = {setting: f"{protocol}-{margin_setting(*setting)}" for setting in settings}
    widest = max(k for k, _ in named)
    tuned, tested = (_search(encoder, data, languages, widest, **encoding) for data in (tune, test))
    results = Results()
    for setting, full_name in named.items():
        threshold, tune_f1 = tune_threshold(*_candidates(tuned, *setting)[:2], len(tune.gold))
        scores, correct, codes = _candidates(tested, *setting)
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
        counted = tuple(
            np.bincount(one // len(test.targets), minlength=len(test.sources))
            for one in (codes[extracted & correct], codes[extracted], tested.gold)
        )
        outcomes: dict[str, Outcomes | np.ndarray] = {
            "precision": Outcomes("share", counted[:2]),
            "recall": np.isin(tested.gold, codes[extracted]),
            "f1": Outcomes("micro_f1", counted),
        }
        results |= measured(name, full_name, languages, split, values, outcomes)
        results |= measured(name, full_name, languages, tune_split, {"f1": tune_f1})
    return results


def mining(
    encoder: Encoder,
    sources: Sequence[str],
    targets: Sequence[str],
    *,
    name: str,
    languages: tuple[str, str] = ("en", "fr"),
    split: str = "test",
    hide_pairs: float = 0.2,
    k: int = 4,
    margin: str = "ratio",
    seed: int = 1,
    **encoding: Unpack[EncodingOptions],
) -> Results:
    """Precision, recall and F1 of mined pairs, as `bucc`, from parallel sentences.

    The pairs are divided into two random halves, one to tune the threshold and one to test. In each half `hide_pairs` of
    the pairs keep both sides, and each other pair loses one side (see `hf_xlsr.evaluation.hide_pairs`). Gives the metrics
    of `bucc`, under `{name}-mining-k4-ratio/en-fr/test/`, and `f1` of the tuning half under `tune`. A share other than
    0.2 is part of the name (`mining-h0.5-k4-ratio`).

    Examples:
        >>> class Words:
        ...     def encode(self, texts, **kwargs):
        ...         return np.stack([np.random.default_rng(int(text.split()[1])).normal(size=8) for text in texts])
        >>> numbers = range(100)
        >>> sides = [f"one {n}" for n in numbers], [f"un {n}" for n in numbers]
        >>> round(mining(Words(), *sides, name="numbers")["numbers-mining-k4-ratio/en-fr/test/f1"], 2)
        0.87
    """
    pairs = independent_pairs(list(zip(sources, targets, strict=True)))
    halves = np.array_split(np.random.default_rng(seed).permutation(len(pairs)), 2)
    tune, test = (hidden_bitext([pairs[row] for row in half], hide_pairs, seed) for half in halves)
    protocol = "mining" if hide_pairs == MiningOptions.hide_pairs else f"mining-h{hide_pairs:g}"
    options: dict[str, Any] = {"split": split, "tune_split": "tune", "languages": languages, "name": name, **encoding}
    return bucc_settings(encoder, tune, test, settings=[(k, margin)], protocol=protocol, **options)


def tune_threshold(scores: np.ndarray, correct: np.ndarray, total_gold: int) -> tuple[float, float]:
    """The threshold with the best F1, halfway between the last candidate taken and the first one rejected, and that F1.

    `scores` are margin scores of candidates, `(n,)`, `correct` says whether each is a gold pair; some of the `total_gold`
    pairs may be no candidates. Equal scores are taken together. Of several best thresholds the highest is chosen; where
    all candidates are taken it is the lowest score. `(0.0, 0.0)` when no candidate is correct. LASER's `BuccOptimize`
    may separate equal scores, and fails when all candidates are taken.
    """
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


def _search(encoder: Encoder, data: BuccData, languages: tuple[str, str], k: int, **encoding: Any) -> _Searched:
    from hf_xlsr.mining.search.neighbours import neighbours_both_ways

    (source_texts, source_rows), (target_texts, target_rows) = _distinct(data.sources), _distinct(data.targets)
    vectors = embed_sides(encoder, (source_texts, target_texts), languages, **encoding)
    source_of, target_of = ({id_: row for row, id_ in enumerate(ids)} for ids in (data.source_ids, data.target_ids))
    count = len(data.targets)
    gold = np.array([source_of[source] * count + target_of[target] for source, target in sorted(data.gold)])
    return _Searched(neighbours_both_ways(*vectors, k, method="exact"), source_rows, target_rows, count, gold)


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


@dataclass(frozen=True)
class MiningOptions(Options):
    hide_pairs: float = option(0.2, "share of the pairs that keep both sides; the others lose one")
    k: int | None = option(None, "size of the neighbourhoods")
    margin: Literal["ratio", "distance", "absolute"] | None = option(None, "margin that scores pairs")
    seed: int | None = option(None, "seed of the halves and of what is hidden")


@dataclass(frozen=True)
class BuccOptions(Options):
    gold: str | None = option(None, "pairs of ids that are translations, id-tab-id", data=True)
    tune: tuple[str, ...] = option((), "data to tune on: the threshold, the head", data=True)
    tune_gold: str | None = option(None, "pairs of ids that are translations in the data of --tune", data=True)
    k: int | None = option(None, "size of the neighbourhoods")
    margin: Literal["ratio", "distance", "absolute"] | None = option(None, "margin that scores pairs")


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


PROTOCOLS = (
    Protocol(
        "bucc",
        "F1 of mined hidden translations; the threshold is tuned on other data",
        "two files of id, tab and text, and a gold file",
        _read,
        _run,
        BuccOptions,
    ),
    pair_protocol("mining", "F1 of translations that are hidden among sentences without one", mining, MiningOptions),
)
