"""Groups of sentences that known translations link, however far: none of a group is a negative of another."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from hf_xlsr.data.normalization import match_key
from hf_xlsr.data.seen import hash_keys
from hf_xlsr.mining.texts import TextStore
from hf_xlsr.mining.work_folder import load_arrays, save_arrays
from hf_xlsr.utils.hashing import array_hash

TEXTS_AT_ONCE = 1 << 14
NO_GROUP = -1
GROUPS = "groups.npz"


def text_key(text: str) -> str:
    """A text without what copies differ in: case, spaces and punctuation."""
    return match_key(text) or text


def text_keys(texts: Iterable[str]) -> np.ndarray:
    """A number for each text, equal for texts that differ in case, spaces and punctuation alone; `(texts,)`, uint64."""
    return hash_keys(list(map(text_key, texts)))


@dataclass(frozen=True)
class Links:
    """Translations by the `text_keys` of their sides, `(links, 2)`."""

    keys: np.ndarray

    def __len__(self) -> int:
        return len(self.keys)

    @property
    def digest(self) -> str:
        """A hash of them all."""
        return array_hash(self.keys)


def hash_links(pairs: Iterable[Sequence[str]]) -> Links:
    """The links of pairs of texts, which are read once; 16 bytes each."""
    blocks = [np.empty((0, 2), np.uint64)]
    remaining = iter(pairs)
    for batch in iter(lambda: list(islice(remaining, TEXTS_AT_ONCE)), []):
        sides = [text_keys(pair[side] for pair in batch) for side in (0, 1)]
        blocks.append(np.stack(sides, axis=1))
    return Links(np.concatenate(blocks))


@dataclass(frozen=True)
class TranslationGroups:
    """The group of each sentence of both sides: those that pairs and links connect.

    A text is known by its `text_keys`, in whichever language: a link between two other languages joins the texts that
    its own sides link, as multi-way data do.

    Attributes:
        source: Position in `keys` of each row of the sources, `(rows,)`, int64.
        target: Likewise of the targets.
        keys: `text_keys` of all texts, sorted.
        groups: The group of each key.
        linked: Whether each group has a link besides the pairs.
    """

    source: np.ndarray
    target: np.ndarray
    keys: np.ndarray
    groups: np.ndarray
    linked: np.ndarray

    @classmethod
    def of(
        cls,
        folder: Path | None,
        stores: Mapping[str, TextStore],
        rows: Mapping[str, np.ndarray],
        links: Links,
    ) -> TranslationGroups:
        """The groups by pairs (`rows` of both sides) and links, saved in the folder, if there is one."""
        if folder is not None and (folder / GROUPS).is_file():
            return cls(**load_arrays(folder / GROUPS))

        side_keys = [_store_keys(stores[side]) for side in ("source", "target")]
        keys, positions = np.unique(np.concatenate([*side_keys, links.keys.ravel()]), return_inverse=True)
        sizes = np.cumsum([len(side_keys[0]), len(side_keys[1])])
        source, target, link_ends = np.split(positions, sizes)
        link_ends = link_ends.reshape(-1, 2)
        groups = _components(
            len(keys),
            np.concatenate([source[rows["source"]], link_ends[:, 0]]),
            np.concatenate([target[rows["target"]], link_ends[:, 1]]),
        )
        linked = np.zeros(len(keys), bool)
        linked[groups[link_ends[:, 0]]] = True

        made = cls(source, target, keys, groups, linked)
        if folder is not None:
            save_arrays(folder / GROUPS, **vars(made))
        return made

    def of_texts(self, texts: Sequence[str]) -> np.ndarray:
        """The group of each text, `NO_GROUP` for one that is not known, `(texts,)`."""
        wanted = text_keys(texts)
        positions = np.searchsorted(self.keys, wanted).clip(max=len(self.keys) - 1)
        is_known = self.keys[positions] == wanted
        return np.where(is_known, self.groups[positions], NO_GROUP)


def _store_keys(store: TextStore) -> np.ndarray:
    blocks = []
    for start in range(0, len(store), TEXTS_AT_ONCE):
        stop = min(start + TEXTS_AT_ONCE, len(store))
        blocks.append(text_keys(store.texts(np.arange(start, stop))))
    return np.concatenate(blocks)


def _components(nodes: int, first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """The number of the connected component of each node, `(nodes,)`, int32."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    edges: Any = coo_array((np.ones(len(first), bool), (first, second)), shape=(nodes, nodes))
    _, components = connected_components(edges, directed=False)
    return np.asarray(components, np.int32)
