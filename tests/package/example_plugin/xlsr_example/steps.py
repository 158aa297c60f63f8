"""A cleaning step that removes rows with web addresses."""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import ConfigDict
from pydantic.dataclasses import dataclass

from hf_xlsr.data.cleaning import Step, register_step, texts_of


@register_step
@dataclass(kw_only=True, config=ConfigDict(extra="forbid"))
class NoAddresses(Step):
    """Removes rows of which a text has the mark of an address."""

    name: ClassVar[str] = "no_addresses"
    mark: str = "://"

    def keeps(self, row: dict[str, Any]) -> bool:
        return not any(self.mark in text for text in texts_of(row))
