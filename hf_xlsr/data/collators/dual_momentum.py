"""Batches of two encoders: both sides of translation pairs, and of pairs of natural language inference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from hf_xlsr.data.collators.padding import negatives_of, pad_rows, truncate_row
from hf_xlsr.utils.errors import XlsrError

Feature = dict[str, Any]


class _SideCollator:
    """Pads the sides of pairs, each with the padding of its language."""

    def __init__(
        self, pad_ids: Mapping[str, int] | int, *, max_length: int = 200, pad_to_multiple_of: int = 1
    ) -> None:
        self.pad_id = pad_ids if isinstance(pad_ids, int) else None
        self.pad_ids = {} if isinstance(pad_ids, int) else dict(pad_ids)
        self.max_length, self.pad_to_multiple_of = max_length, pad_to_multiple_of

    def _pad(self, features: Sequence[Feature], side: str, language: str = "") -> dict[str, torch.Tensor]:
        pad_id = self.pad_ids[language] if self.pad_id is None else self.pad_id
        rows = [truncate_row(feature[f"{side}_ids"], self.max_length) for feature in features]
        ids, mask = pad_rows(rows, pad_id, self.pad_to_multiple_of, self.max_length)
        return {f"{side}_input_ids": torch.from_numpy(ids), f"{side}_attention_mask": torch.from_numpy(mask)}


class DualCollator(_SideCollator):
    """Pads the sources and the targets of one language pair separately, for one encoder each.

    Features are those of `PreparedPairs`; `pad_ids` maps languages to their padding tokens.

    Returns:
        `source_input_ids`, `source_attention_mask`, `target_input_ids`, `target_attention_mask`, each
        `(batch, length)` with a length a side, int64; `source_texts`, `target_texts` (equal for equal texts) and
        `examples` (number of the pair in the data), each `(batch,)`, int64; `source_lang` and `target_lang`. If rows have
        hard negatives (`negative_ids` and `negative_text`, in the language of the target), also `negative_input_ids` and
        `negative_attention_mask`, `(negatives, length)`, and `negative_texts`, `(negatives,)`.
    """

    def __call__(self, features: Sequence[Feature]) -> dict[str, Any]:
        source_lang, target_lang = _only({(feature["source_lang"], feature["target_lang"]) for feature in features})
        negatives = [{"negative_ids": ids} for ids in negatives_of(features)]
        more = self._pad(negatives, "negative", target_lang) if negatives else {}
        if negatives:
            more["negative_texts"] = torch.tensor(negatives_of(features, "negative_text"))
        return {
            **more,
            **self._pad(features, "source", source_lang),
            **self._pad(features, "target", target_lang),
            "source_texts": torch.tensor([feature["source_text"] for feature in features]),
            "target_texts": torch.tensor([feature["target_text"] for feature in features]),
            "examples": torch.tensor([feature["index"] for feature in features]),
            "source_lang": source_lang,
            "target_lang": target_lang,
        }


class NliCollator(_SideCollator):
    """Pads premises and hypotheses, all of one language where each has its own encoder and `pad_ids` is a mapping.

    Returns:
        `premise_input_ids`, `premise_attention_mask`, `hypothesis_input_ids`, `hypothesis_attention_mask`, each
        `(batch, length)` with a length a side, int64; `labels`, `(batch,)`, int64; `lang`, where languages have an
        encoder each.
    """

    def __call__(self, features: Sequence[Feature]) -> dict[str, Any]:
        labels = torch.tensor([feature["label"] for feature in features])
        if self.pad_id is not None:
            return {**self._pad(features, "premise"), **self._pad(features, "hypothesis"), "labels": labels}
        (language,) = _only({(feature["lang"],) for feature in features})
        return {
            **self._pad(features, "premise", language),
            **self._pad(features, "hypothesis", language),
            "labels": labels,
            "lang": language,
        }


def _only(languages: set[tuple[str, ...]]) -> tuple[str, ...]:
    if len(languages) > 1:
        found = ", ".join(sorted(map("-".join, languages)))
        raise XlsrError(
            f"a batch must be in the languages of its encoders, got {found}; set homogeneous_batches to true."
        )
    return languages.pop()
