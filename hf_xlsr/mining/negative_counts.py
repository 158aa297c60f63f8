"""What is counted while hard negatives are chosen: kinds, what was ruled out, false negatives, and examples."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from hf_xlsr.data.seen import hash64
from hf_xlsr.mining.labels import wilson_interval

EXAMPLES = 20  # of each kind
METADATA = b"counts"


class Example(NamedTuple):
    """A pair with a negative, or with what was ruled out, and its margin; None for one that was not mined."""

    source: str
    target: str
    negative: str
    score: float | None


class Share(NamedTuple):
    """How many of some sentences are translations."""

    false: int
    checked: int

    @property
    def value(self) -> float | None:
        """The share, None of nothing."""
        return self.false / self.checked if self.checked else None

    def interval(self) -> tuple[float, float] | None:
        """Its 95 % interval by Wilson's formula.

        Examples:
            >>> [round(bound, 3) for bound in Share(2, 100).interval()]
            [0.006, 0.07]
        """
        if not self.checked:
            return None
        return wilson_interval(self.false / self.checked, self.checked)


@dataclass
class Counts:
    """Counts of some pairs.

    Attributes:
        chosen: Negatives by kind: `mined`, the kinds of edits, `random`.
        ruled_out: Candidates by the rule that ruled them out.
        translations: Of those, by rule, the ones that the truth knows as translations; `mined` and `nearest` (the
            nearest candidates as they come, of which only the pair's own translation is left out) likewise.
        checked: How many of each of these the truth speaks of.
        labelled: Mined negatives that have a label.
        accepted: Those that a person took for translations.
        examples: Some of each kind and rule.
    """

    chosen: Counter[str] = field(default_factory=Counter)
    ruled_out: Counter[str] = field(default_factory=Counter)
    translations: Counter[str] = field(default_factory=Counter)
    checked: Counter[str] = field(default_factory=Counter)
    labelled: int = 0
    accepted: int = 0
    examples: dict[str, list[Example]] = field(default_factory=dict)

    def add(self, other: Counts) -> None:
        """Adds the counts of other pairs."""
        for name in ("chosen", "ruled_out", "translations", "checked"):
            getattr(self, name).update(getattr(other, name))
        self.labelled += other.labelled
        self.accepted += other.accepted
        for kind, examples in other.examples.items():
            self.show(kind, examples)

    def show(self, kind: str, examples: Sequence[Example]) -> None:
        """Keeps some of the examples, chosen by a hash of their texts."""
        together = [*self.examples.get(kind, []), *examples]
        if len(together) > EXAMPLES:
            together.sort(key=lambda example: hash64(f"{example.source}\t{example.negative}"))
        self.examples[kind] = together[:EXAMPLES]

    def share(self, name: str) -> Share:
        """How many of the checked negatives, or of what a rule ruled out, are translations."""
        return Share(self.translations[name], self.checked[name])

    def write(self, path: Path, table: pa.Table) -> None:
        """Writes a table of the pairs with these counts in its metadata."""
        content = json.dumps(vars(self)).encode()
        table = table.replace_schema_metadata({METADATA: content})
        with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
            writer.write_table(table)

    @classmethod
    def load(cls, path: Path) -> Counts:
        """The counts that `write` stored."""
        with pa.memory_map(str(path)) as file:
            metadata = pa.ipc.open_file(file).schema.metadata
        content: dict[str, Any] = json.loads(metadata[METADATA])
        for name in ("chosen", "ruled_out", "translations", "checked"):
            content[name] = Counter(content[name])
        examples = content["examples"]
        content["examples"] = {kind: [Example(*values) for values in rows] for kind, rows in examples.items()}
        return cls(**content)
