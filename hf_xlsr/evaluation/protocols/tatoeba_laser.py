"""Protocol `tatoeba-laser`: LASER's error rate of translation retrieval."""

from __future__ import annotations

from collections.abc import Sequence

from typing_extensions import Unpack

from hf_xlsr.encoders.encoding import Encoder, EncodingOptions
from hf_xlsr.evaluation.protocols.tatoeba import both_ways, encode_pairs, right_both_ways
from hf_xlsr.evaluation.registry import pair_protocol
from hf_xlsr.evaluation.results import Results, measured


def tatoeba_laser(
    encoder: Encoder,
    sources: Sequence[str],
    targets: Sequence[str],
    *,
    languages: tuple[str, str],
    name: str = "tatoeba",
    split: str = "test",
    **encoding: Unpack[EncodingOptions],
) -> Results:
    """LASER's error rate: share of sentences whose nearest neighbour by L2 on unit vectors is not their own row.

    On unit vectors the order by L2 is the order by cosine, so each rate is one minus the accuracy that `tatoeba`
    gives, with the same arguments. As in LASER's script, sentences are compared by number, not by text.

    Returns:
        `source_to_target_error`, `target_to_source_error`, `error` (their mean) and `pairs`, under
        `{name}-tatoeba-laser/en-fr/test/`.
    """
    vectors = encode_pairs(encoder, sources, targets, languages, **encoding)
    forward, backward = right_both_ways(*vectors)
    return measured(name, "tatoeba-laser", languages, split, *both_ways("error", ~forward, ~backward))


PROTOCOL = pair_protocol("tatoeba-laser", "LASER's error rate of the nearest sentence, both ways", tatoeba_laser)
