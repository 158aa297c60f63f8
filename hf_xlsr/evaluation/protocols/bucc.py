"""Protocols `bucc` and `mining`: mined translations among other sentences, with a threshold tuned on other data."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from typing_extensions import Unpack

from hf_xlsr.data.file_languages import UNKNOWN, check_order, languages_of_files
from hf_xlsr.encoders.encoding import Encoder, EncodingOptions
from hf_xlsr.evaluation.bitexts import BuccData, hidden_bitext, independent_pairs, read_bucc
from hf_xlsr.evaluation.containers import parallel_lists
from hf_xlsr.evaluation.languages import metric_languages, pair_views
from hf_xlsr.evaluation.outcomes import Outcomes, Thresholds
from hf_xlsr.evaluation.pairs import embed_sides
from hf_xlsr.evaluation.protocol import DataOptions, Inputs, Options, Protocol, option
from hf_xlsr.evaluation.protocol_kinds import pair_protocol
from hf_xlsr.evaluation.protocols.xsim import margin_setting
from hf_xlsr.evaluation.results import Results, measured
from hf_xlsr.evaluation.table import data_name
from hf_xlsr.utils.errors import XlsrError
from hf_xlsr.utils.hashing import data_hash

if TYPE_CHECKING:
    from hf_xlsr.mining.search.neighbours import BothWays

logger = logging.getLogger(__name__)


BUCC_SETTINGS: dict[str, tuple[int, str]] = {"dual-momentum": (3, "distance"), "laser": (4, "ratio")}


def bucc(
    encoder: Encoder,
    tune: BuccData,
    test: BuccData,
    *,
    languages: tuple[str, str],
    name: str,
    k: int = 4,
    margin: str = "ratio",
    split: str = "test",
    tune_split: str = "train",
    **encoding: Unpack[EncodingOptions],
) -> Results:
    """`bucc_settings` with one setting."""
    return bucc_settings(
        encoder,
        tune,
        test,
        settings=[(k, margin)],
        languages=languages,
        name=name,
        split=split,
        tune_split=tune_split,
        **encoding,
    )


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
    for role, bitext in (("tune", tune), ("test", test)):
        if not isinstance(bitext, BuccData):
            raise XlsrError(f"`{role}` must be `BuccData`, as `read_bucc` and `hide_pairs` give, got {bitext!r:.40}.")
    same_sources = set(tune.sources) == set(test.sources)
    same_targets = set(tune.targets) == set(test.targets)
    if tune_split == split or (same_sources and same_targets):
        raise XlsrError("`tune` and `tune_split` must differ from `test` and `split`: do not tune on what is tested.")
    settings = list(settings)
    names = [f"{protocol}-{margin_setting(k, margin)}" for k, margin in settings]
    widest = max(k for k, _ in settings)
    tuned = _search(encoder, tune, languages, widest, **encoding)
    tested = _search(encoder, test, languages, widest, **encoding)

    results = Results()
    for (k, margin), full_name in zip(settings, names, strict=True):
        tune_scores, tune_codes = _candidates(tuned, k, margin)
        is_gold = np.isin(tune_codes, tuned.gold)
        threshold, tune_f1 = tune_threshold(tune_scores, is_gold, len(tuned.gold))

        scores, codes = _candidates(tested, k, margin)
        extracted = codes[scores >= threshold]
        values = {"threshold": threshold, "pairs": len(extracted), "gold": len(tested.gold)}
        outcomes = _outcomes(tested, extracted)
        results |= measured(
            name,
            full_name,
            languages,
            split,
            values,
            outcomes,
            candidates=len(test.targets),
        )
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
    pairs = independent_pairs(list(zip(*parallel_lists(sources, targets), strict=True)))
    order = np.random.default_rng(seed).permutation(len(pairs))
    tune_rows, test_rows = np.array_split(order, 2)
    tune = hidden_bitext([pairs[row] for row in tune_rows], hide_pairs, seed)
    test = hidden_bitext([pairs[row] for row in test_rows], hide_pairs, seed)

    return bucc_settings(
        encoder,
        tune,
        test,
        settings=[(k, margin)],
        languages=languages,
        name=name,
        protocol="mining" if hide_pairs == MiningOptions.hide_pairs else f"mining-h{hide_pairs:g}",
        split=split,
        tune_split="tune",
        **encoding,
    )


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
    """The distinct texts of a bitext and their neighbours.

    A pair of a source and a target row has the code `source row * number of targets + target row`.

    Attributes:
        neighbours: Of the distinct texts.
        source_rows: Row in the bitext of each distinct source, -1 where it has several; likewise `target_rows`.
        shape: Numbers of sources and targets in the bitext.
        gold: Codes of the gold pairs.
    """

    neighbours: BothWays
    source_rows: np.ndarray
    target_rows: np.ndarray
    shape: tuple[int, int]
    gold: np.ndarray


def _search(
    encoder: Encoder, data: BuccData, languages: tuple[str, str], k: int, **encoding: Unpack[EncodingOptions]
) -> _Searched:
    from hf_xlsr.mining.search.neighbours import neighbours_both_ways

    source_row_of = _single_rows(data.sources)
    target_row_of = _single_rows(data.targets)
    vectors = embed_sides(encoder, (list(source_row_of), list(target_row_of)), languages, **encoding)

    row_of_source_id = {source_id: row for row, source_id in enumerate(data.source_ids)}
    row_of_target_id = {target_id: row for row, target_id in enumerate(data.target_ids)}
    gold_codes = []
    for source_id, target_id in sorted(data.gold):
        row_start = row_of_source_id[source_id] * len(data.targets)
        gold_codes.append(row_start + row_of_target_id[target_id])

    return _Searched(
        neighbours=neighbours_both_ways(*vectors, k, method="exact"),
        source_rows=np.array(list(source_row_of.values())),
        target_rows=np.array(list(target_row_of.values())),
        shape=(len(data.sources), len(data.targets)),
        gold=np.array(gold_codes),
    )


def _single_rows(sentences: Sequence[str]) -> dict[str, int]:
    """The row of each distinct text, -1 where it has several."""
    row_of: dict[str, int] = {}
    for row, text in enumerate(sentences):
        row_of[text] = -1 if text in row_of else row
    return row_of


def _candidates(searched: _Searched, k: int, margin: str) -> tuple[np.ndarray, np.ndarray]:
    """Scores and codes of the mined pairs of texts with one id each."""
    from hf_xlsr.mining.search.block_search import RESULTS
    from hf_xlsr.mining.search.extraction import extract_pairs

    # The nearest k are the first of the nearest however many.
    columns = {name: getattr(searched.neighbours, name)[:, :k] for name in RESULTS}
    mined = extract_pairs(replace(searched.neighbours, **columns), margin=margin)

    sources = searched.source_rows[mined.source]
    targets = searched.target_rows[mined.target]
    is_single = (sources >= 0) & (targets >= 0)
    codes = sources[is_single] * searched.shape[1] + targets[is_single]
    return mined.score[is_single], codes


def _outcomes(searched: _Searched, extracted: np.ndarray) -> dict[str, Outcomes | np.ndarray]:
    """Precision, recall and F1 of extracted pairs, from their codes.

    Their examples are the same for all encoders: gold pairs, or sources, each with its numbers of pairs.
    """
    source_count, target_count = searched.shape

    def count_by_source(codes: np.ndarray) -> np.ndarray:
        return np.bincount(codes // target_count, minlength=source_count)

    right_counts = count_by_source(extracted[np.isin(extracted, searched.gold)])
    extracted_counts = count_by_source(extracted)
    gold_counts = count_by_source(searched.gold)
    return {
        "precision": Outcomes("share", (right_counts, extracted_counts)),
        "recall": np.isin(searched.gold, extracted),
        "f1": Outcomes("micro_f1", (right_counts, extracted_counts, gold_counts)),
    }


@dataclass(kw_only=True)
class BitextInputs(Inputs):
    """A bitext to test on and one to tune on, in these languages."""

    test: BuccData
    tune: BuccData
    languages: tuple[str, str]


@dataclass(frozen=True)
class MiningOptions(Options):
    hide_pairs: float = option(0.2, "share of the pairs that keep both sides; the others lose one")
    k: int | None = option(None, "size of the neighbourhoods")
    margin: Literal["ratio", "distance", "absolute"] | None = option(None, "margin that scores pairs")
    seed: int | None = option(None, "seed of the halves and of what is hidden")


@dataclass(frozen=True)
class BuccOptions(Options):
    gold: str | None = option(None, "pairs of ids that are translations, id-tab-id", data=True, files=True)
    tune: tuple[str, ...] = option((), "data to tune on: the threshold, the head", data=True, files=True)
    tune_gold: str | None = option(
        None, "pairs of ids that are translations in the data of --tune", data=True, files=True
    )
    k: int | None = option(None, "size of the neighbourhoods")
    margin: Literal["ratio", "distance", "absolute"] | None = option(None, "margin that scores pairs")


def _read(protocol: Protocol, data: DataOptions, options: Mapping[str, Any]) -> BitextInputs:
    """Reads two files of id, tab and text with a gold file, to test and to tune on."""
    data.refuse("bucc", "columns", "where", "config", "format", "limit")
    test = _read_bitext("data", data.files, "gold", options)
    tune = _read_bitext("tune", options.get("tune", ()), "tune_gold", options)
    shared_sources = set(test.sources) & set(tune.sources)
    shared_targets = set(test.targets) & set(tune.targets)
    if shared_sources or shared_targets:
        counts = len(shared_sources), len(shared_targets)
        logger.warning("%d sources and %d targets of --data are also in --tune", *counts)

    source_name, target_name = (tag or "" for tag in languages_of_files(data.files, data.languages))
    views = pair_views(data.languages, (source_name, target_name), each=False, mapped=())
    (source_tag, target_tag), _ = views[0]
    if UNKNOWN in (source_tag, target_tag) or len(data.languages) == 1:
        raise XlsrError("--languages must name the languages of sources and targets, e.g. de,en.")

    check_order(data.files, [source_tag, target_tag])
    codes = metric_languages([source_tag, target_tag], asked=data.languages)
    return BitextInputs(
        name=data.name or data_name(data.files),
        split=data.split,
        hashes={"test": data_hash(test.texts), "tune": data_hash(tune.texts)},
        test=test,
        tune=tune,
        languages=(codes[source_tag], codes[target_tag]),
    )


def _read_bitext(option_name: str, files: Sequence[str], gold_option: str, options: Mapping[str, Any]) -> BuccData:
    gold_file = options.get(gold_option)
    if len(files) != 2 or not gold_file:
        gold_name = gold_option.replace("_", "-")
        raise XlsrError(f"protocol bucc needs two files as --{option_name}, and --{gold_name} FILE.")
    return read_bucc(files[0], files[1], gold_file)


def _run(encoder: Encoder, inputs: BitextInputs, options: BuccOptions) -> Results:
    setting = options.arguments()
    run = bucc if setting else bucc_settings
    return run(
        encoder,
        inputs.tune,
        inputs.test,
        languages=inputs.languages,
        **inputs.common,
        **setting,
    )


PROTOCOLS = (
    Protocol(
        "bucc",
        "F1 of mined hidden translations; the threshold is tuned on other data",
        "two files of id, tab and text, and a gold file",
        _read,
        _run,
        BuccOptions,
        headlines=("f1",),
    ),
    pair_protocol(
        "mining",
        "F1 of translations that are hidden among sentences without one",
        mining,
        MiningOptions,
        headline="f1",
    ),
)
