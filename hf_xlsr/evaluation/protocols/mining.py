"""Protocol `mining`: translations mined from any parallel file, hidden among sentences without one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from typing_extensions import Unpack

from hf_xlsr.encoders.encoding import Encoder, EncodingOptions
from hf_xlsr.evaluation import bucc_data
from hf_xlsr.evaluation.protocols.bucc import bucc_settings
from hf_xlsr.evaluation.registry import Options, option, pair_protocol
from hf_xlsr.evaluation.results import Results
from hf_xlsr.utils.errors import XlsrError

LEAST_PAIRS = 20


@dataclass(frozen=True)
class MiningOptions(Options):
    hide_pairs: float = option(0.2, "share of the pairs that keep both sides; the others lose one")
    k: int | None = option(None, "size of the neighbourhoods")
    margin: Literal["ratio", "distance", "absolute"] | None = option(None, "margin that scores pairs")
    seed: int | None = option(None, "seed of the halves and of what is hidden")


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
    the pairs keep both sides, and each other pair loses one side (see `hf_xlsr.evaluation.hide_pairs`). `k` and `margin`
    are those of `bucc`. It needs 20 pairs of distinct sentences.

    Returns:
        The metrics of `bucc`, under `{name}-mining-k4-ratio/en-fr/test/`, and `f1` of the tuning half under `tune`. A
        share other than 0.2 is part of the name (`mining-h0.5-k4-ratio`).

    Examples:
        >>> class Words:
        ...     def encode(self, texts, **kwargs):
        ...         return np.stack([np.random.default_rng(int(text.split()[1])).normal(size=8) for text in texts])
        >>> numbers = range(100)
        >>> sides = [f"one {n}" for n in numbers], [f"un {n}" for n in numbers]
        >>> round(mining(Words(), *sides, name="numbers")["numbers-mining-k4-ratio/en-fr/test/f1"], 2)
        0.87
    """
    if not 0 < hide_pairs <= 1:
        raise XlsrError(f"`hide_pairs` must be above 0 and at most 1, got {hide_pairs}.")
    pairs = bucc_data.independent_pairs(list(zip(sources, targets, strict=True)))
    if len(pairs) < LEAST_PAIRS:
        raise XlsrError(f"{name} has {len(pairs)} pairs of distinct sentences; protocol mining needs {LEAST_PAIRS}.")
    order = np.random.default_rng(seed).permutation(len(pairs))
    tune, test = (
        bucc_data.hide_pairs(
            [{"source": pairs[row][0], "target": pairs[row][1]} for row in half], share=hide_pairs, seed=seed
        )
        for half in np.array_split(order, 2)
    )
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


PROTOCOL = pair_protocol(
    "mining", "F1 of translations that are hidden among sentences without one", mining, MiningOptions
)
