"""Protocol `tatoeba-xtreme`: XTREME's accuracy of translation retrieval."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from typing_extensions import Unpack

from hf_xlsr.data.languages import language_code
from hf_xlsr.encoders.encoding import Encoder, EncodingOptions
from hf_xlsr.evaluation.inputs import Inputs
from hf_xlsr.evaluation.protocols.tatoeba import encode_pairs, nearest_row
from hf_xlsr.evaluation.registry import Options, pair_protocol
from hf_xlsr.evaluation.results import Results, averaged
from hf_xlsr.evaluation.rows import both_sides, by_pair_either_way, in_order
from hf_xlsr.utils.errors import XlsrError


def tatoeba_xtreme(
    encoder: Encoder,
    english: Sequence[str],
    foreign: Sequence[str],
    *,
    languages: tuple[str, str],
    name: str = "tatoeba",
    split: str = "test",
    **encoding: Unpack[EncodingOptions],
) -> Results:
    """XTREME's accuracy: English queries among the foreign sentences, one way only.

    It is the `source_to_target_accuracy` that `tatoeba` gives with English as source. XTREME takes its vectors from
    a middle layer (7 of mBERT, 13 of XLM-R large); here the encoder decides. Arguments are those of `tatoeba`, English
    first.

    Returns:
        `accuracy` and `pairs` under `{name}-tatoeba-xtreme/en-fr/test/`.
    """
    if language_code(languages[0]) != "en":
        raise XlsrError(f"tatoeba-xtreme has English queries; `languages` must start with en, got {languages}.")
    nearest = nearest_row(*encode_pairs(encoder, english, foreign, languages, **encoding))
    right = nearest == np.arange(len(english))
    return averaged(name, "tatoeba-xtreme", languages, split, {"accuracy": right}, {"pairs": len(english)})


def _run(encoder: Encoder, inputs: Inputs, options: Options) -> Results:
    """Swaps pairs so that English is first."""
    results = Results()
    for languages, rows in by_pair_either_way(inputs.only).items():
        if languages[1] == "en":
            languages = languages[::-1]
        sides = both_sides(in_order(rows, languages))
        results |= tatoeba_xtreme(encoder, *sides, languages=languages, **inputs.common)
    return results


PROTOCOL = pair_protocol(
    "tatoeba-xtreme", "XTREME's accuracy: English queries, answers in the other language", tatoeba_xtreme, run=_run
)
