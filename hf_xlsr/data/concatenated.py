"""Several sets of tokenised examples as one, grouped by language over all of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from torch.utils.data import Dataset as TorchDataset

from hf_xlsr.data.prepared import PreparedPairs
from hf_xlsr.data.sampling import ExampleKey
from hf_xlsr.data.texts import PreparedTexts


def group_languages(part: PreparedPairs | PreparedTexts) -> list[str]:
    """The language that each group of a part counts for: its own, or that of a pair's second side.

    Corpora of pairs come as English and another language, so the second is the one that tells them apart.

    Raises:
        ValueError: the part does not know its language pairs.
    """
    if isinstance(part, PreparedTexts):
        return part.languages
    if part.language_pairs is None:
        raise ValueError("the pairs do not say their languages; give PreparedPairs its language_pairs")
    return [target for _, target in part.language_pairs]


class ConcatenatedExamples(TorchDataset):
    """The examples of several parts one after the other; groups are languages, so that languages can be drawn alike.

    Args:
        parts: `PreparedPairs` and `PreparedTexts`, in order. The index of an example counts over all of them.

    Attributes:
        languages: Language of each group.
        lengths: Length of each example, in pieces, `(n,)`.
        groups: Group of each example, `(n,)`.

    Example:
        >>> from datasets import Dataset
        >>> rows = {"text_ids": [[4, 5], [6]], "length": [2, 1], "group": [0, 1]}
        >>> texts = PreparedTexts(Dataset.from_dict(rows), {"languages": ["en", "sw"]})
        >>> both = ConcatenatedExamples([texts, texts])
        >>> len(both), both.groups.tolist(), both[0, 3]["text_ids"], both[0, 3]["index"]
        (4, [0, 1, 0, 1], [6], 3)
    """

    def __init__(self, parts: Sequence[PreparedPairs | PreparedTexts]) -> None:
        self.parts = list(parts)
        self.starts = np.cumsum([0, *(len(part) for part in self.parts)])
        names = [group_languages(part) for part in self.parts]
        self.languages = sorted({language for part in names for language in part})
        numbers = {language: number for number, language in enumerate(self.languages)}
        self.lengths = np.concatenate([part.lengths for part in self.parts])
        self.groups = np.concatenate(
            [
                np.array([numbers[language] for language in part_names])[part.groups]
                for part, part_names in zip(self.parts, names, strict=True)
            ]
        )

    def __len__(self) -> int:
        return int(self.starts[-1])

    def __getitem__(self, key: ExampleKey) -> dict[str, Any]:
        return self.__getitems__([key])[0]

    def __getitems__(self, keys: Sequence[ExampleKey]) -> list[dict[str, Any]]:
        whole = np.searchsorted(self.starts, [index for _, index in keys], side="right") - 1
        found: list[dict[str, Any]] = [{} for _ in keys]
        for number, part in enumerate(self.parts):
            places = np.flatnonzero(whole == number).tolist()
            start = int(self.starts[number])
            if places:
                for place, feature in zip(
                    places, part.__getitems__([(keys[i][0], keys[i][1] - start) for i in places]), strict=True
                ):
                    found[place] = {**feature, "index": feature["index"] + start}
        return found
