"""What the cards of the models that a training starts from say: their licences and base models."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from huggingface_hub import try_to_load_from_cache

from hf_xlsr.data.sources import as_list
from hf_xlsr.encoders.assembly import MODULES_FILE
from hf_xlsr.export.hub import CARD, is_hub_id
from hf_xlsr.utils.markdown import front_matter
from hf_xlsr.utils.variables import expand

UNKNOWN = "unknown"
"""Licence of weights where none was chosen and none follows from the base models."""


def on_hub(path: str) -> bool:
    """Whether a path is the id of a repository on the Hub, and not a folder here."""
    return is_hub_id(path) and not Path(path).exists()


def licence_of_weights(starts: Iterable[str]) -> str:
    """The licence of all models that a training starts from, by their cards; `unknown` if one says none or another."""
    licences = {str(card_data(start).get("license") or UNKNOWN) for start in starts}
    return licences.pop() if len(licences) == 1 else UNKNOWN


def base_models_of(starts: Iterable[str], folders: Iterable[str | None] = ()) -> list[str]:
    """Hub ids of the models that a training starts from; for folders, those that their cards name.

    Args:
        starts: Folders and Hub ids.
        folders: Those that are folders, even if they look like an id.
    """
    names: list[str] = []
    for start in starts:
        if on_hub(start) and start not in folders:
            names.append(start)
        else:
            names += map(str, as_list(card_data(start).get("base_model")))
    return list(filter(is_hub_id, dict.fromkeys(names)))


def card_data(start: str) -> Mapping[str, Any]:
    """Metadata of the local card next to the weights; empty if it is missing or invalid."""
    for card in _cards(start):
        with suppress(OSError, ValueError):
            return front_matter(card.read_text("utf-8"))
    return {}


def _cards(start: str) -> Iterator[Path]:
    """Where the card of a model may be."""
    if on_hub(start):
        cached = try_to_load_from_cache(start, CARD)
        if isinstance(cached, str):
            yield Path(cached)
        return
    folder = Path(expand(start))
    yield folder / CARD
    if (folder.parent / MODULES_FILE).is_file():  # the encoder of a model of sentence-transformers
        yield folder.parent / CARD
    yield folder.parent.parent / CARD  # of a run: training/final
