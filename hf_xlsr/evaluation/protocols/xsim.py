"""Protocol `xsim`: how often margin scoring picks a wrong translation among parallel sentences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from typing_extensions import Unpack

from hf_xlsr.encoders.encoding import Encoder, EncodingOptions
from hf_xlsr.evaluation.protocols.tatoeba import encode_pairs
from hf_xlsr.evaluation.registry import DebiasOptions, option, pair_protocol
from hf_xlsr.evaluation.results import Results, averaged
from hf_xlsr.utils.errors import require_choice, require_positive


@dataclass(frozen=True)
class XsimOptions(DebiasOptions):
    k: int = option(4, "size of the neighbourhoods")
    margin: Literal["ratio", "distance", "absolute"] = option("ratio", "margin that scores pairs")


def xsim(
    encoder: Encoder,
    sources: Sequence[str],
    targets: Sequence[str],
    *,
    languages: tuple[str, str],
    name: str,
    split: str = "test",
    k: int = 4,
    margin: str = "ratio",
    **encoding: Unpack[EncodingOptions],
) -> Results:
    """LASER's xSIM: share of sources whose neighbour with the best margin is not their own row.

    Each source chooses among its `k` nearest targets the one with the best margin: `ratio`, `distance` or `absolute` (the
    plain nearest neighbour, the `source_to_target_error` of `tatoeba_laser`), see `margin_scores`. No threshold, no
    one-to-one. Sentences are compared by number, not by text: of equal targets the first is found. The other arguments
    are those of `tatoeba`.

    Returns:
        `error` and `pairs` under `{name}-xsim/en-fr/test/`. Where `k` and `margin` are not LASER's defaults the
        protocol's name has them: `xsim-k3-distance`, and `xsim-absolute`, where `k` has no effect.
    """
    protocol = variant_name("xsim", k, margin)
    vectors = encode_pairs(encoder, sources, targets, languages, **encoding)
    wrong = best_targets(*vectors, k=k, margin=margin) != np.arange(len(vectors[0]))
    return averaged(name, protocol, languages, split, {"error": wrong}, {"pairs": len(wrong)})


def best_targets(sources: np.ndarray, targets: np.ndarray, *, k: int, margin: str) -> np.ndarray:
    """For each source the number of the target with the best margin among its `k` nearest, `(sources,)`."""
    from hf_xlsr.mining.search.both_ways import neighbours_both_ways
    from hf_xlsr.mining.search.extraction import extract_pairs

    neighbours = neighbours_both_ways(sources, targets, k, method="exact")
    chosen = extract_pairs(neighbours, margin=margin, retrieval="forward", one_to_one=False)
    return chosen.target[np.argsort(chosen.source)]  # candidates are sorted by score


def variant_name(protocol: str, k: int, margin: str) -> str:
    """The protocol's name, with `k` and `margin` where they are not LASER's."""
    setting = margin_setting(k, margin)
    return protocol if setting == "k4-ratio" else f"{protocol}-{'absolute' if margin == 'absolute' else setting}"


def margin_setting(k: int, margin: str) -> str:
    """Name of a valid mining setting in metric keys, such as `k3-distance`."""
    from hf_xlsr.mining.search.margin import MARGINS

    require_positive("k", k)
    require_choice("margin", margin, MARGINS)
    return f"k{k}-{margin}"


PROTOCOL = pair_protocol("xsim", "LASER's error rate of the best margin among k neighbours", xsim, XsimOptions)
