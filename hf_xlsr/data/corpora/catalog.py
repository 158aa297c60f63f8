"""The table of the named corpora, read from `catalog.yaml`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import resources
from typing import Any

import yaml

from hf_xlsr.data.corpora.bible import LANGUAGES as BIBLE_LANGUAGES


@dataclass(frozen=True)
class Corpus:
    """One named corpus; `catalog.yaml` explains the fields."""

    name: str
    kind: str
    licence: str
    source: str
    size: str
    languages: tuple[str, ...] = ()
    hub_id: str | None = None
    config: str | None = None
    order: str = "alphabetical"
    pairs: tuple[str, ...] = ()
    columns: Mapping[str, str] = field(default_factory=dict)
    splits: Mapping[str, str] = field(default_factory=dict)
    codes: Mapping[str, str] = field(default_factory=dict)
    note: str = ""


def _read() -> tuple[dict[str, Corpus], dict[str, dict[str, str]]]:
    table: dict[str, Any] = yaml.safe_load((resources.files(__package__) / "catalog.yaml").read_text("utf-8"))
    corpora = {}
    for name, fields in table["corpora"].items():
        lists = {key: tuple(fields.get(key, "").split()) for key in ("languages", "pairs")}
        corpora[name] = Corpus(name=name, **{**fields, **lists})
    corpora["bible"] = Corpus(name="bible", **table["corpora"]["bible"], languages=BIBLE_LANGUAGES)
    return corpora, table["glue"]


CORPORA, GLUE_TASKS = _read()
