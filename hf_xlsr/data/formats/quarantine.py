"""Bad lines: counted by reason and kept in a side file, so that they are never lost and never stop a job."""

from __future__ import annotations

import json
from collections import Counter
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TextIO

MAX_TEXT = 1000


class Quarantine(AbstractContextManager["Quarantine"]):
    """Collects the lines that a reader cannot use; without a path it only counts them.

    The side file is JSONL with the fields `file`, `line`, `reason` and `text`, written from the first bad line on. That
    of an earlier run is removed at once.

    Examples:
        >>> bad = Quarantine()
        >>> bad.reject("corpus.tsv", 7, "wrong column count", "one column only")
        >>> dict(bad.counts), bad.report()
        ({'wrong column count': 1}, '1 bad line was skipped (1 wrong column count).')
    """

    def __init__(self, path: Path | str | None = None) -> None:
        self.path = None if path is None else Path(path)
        self.counts: Counter[str] = Counter()
        self.repairs: Counter[str] = Counter()
        self.notes: dict[str, str] = {}
        self._unusual: list[str] = []
        self._file: TextIO | None = None
        if self.path is not None:
            self.path.unlink(missing_ok=True)

    @property
    def total(self) -> int:
        """Bad lines so far."""
        return self.counts.total()

    def reject(
        self,
        file: Path | str,
        line_number: int,
        reason: str,
        text: str | bytes,
    ) -> None:
        """Counts a bad line and keeps its first 1,000 characters, undecodable bytes as backslash escapes.

        Lines have numbers from 1; rows where a format has no lines. All lines with one fault have the same reason.
        """
        self.counts[reason] += 1
        if self.path is None:
            return

        if self._file is None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            # Written line by line, so that a killed job keeps them.
            self._file = self.path.open("a", encoding="utf-8", buffering=1)

        if isinstance(text, str):
            text = text[:MAX_TEXT].encode("utf-8", "backslashreplace")
        text = text[: 4 * MAX_TEXT].decode("utf-8", "backslashreplace")[:MAX_TEXT]
        entry = {"file": str(file), "line": line_number, "reason": reason, "text": text}
        self._file.write(json.dumps(entry, ensure_ascii=False) + "\n")

    def repair(self, fault: str, count: int) -> None:
        """Counts faults that a reader repaired or ignored in lines it could use."""
        if count:
            self.repairs[fault] += count

    def note(self, file: str, how: str, *, unusual: bool = False) -> None:
        """Keeps how a file is read; the report says it where that is unusual."""
        if unusual and file not in self.notes:
            self._unusual.append(file)
        self.notes[file] = how

    def report(self) -> str:
        """The number of bad lines, their reasons and their file, and of repairs, and unusual files; empty for none."""
        sentences = []
        if self.counts:
            reasons = ", ".join(f"{count:,} {reason}" for reason, count in self.counts.most_common())
            lines = "1 bad line was" if self.total == 1 else f"{self.total:,} bad lines were"
            action = "skipped" if self.path is None else f"written to {self.path}"
            sentences.append(f"{lines} {action} ({reasons}).")

        if self.repairs:
            repaired = ", ".join(f"{fault}: {count:,}" for fault, count in self.repairs.items())
            sentences.append(f"Repaired or ignored: {repaired}.")
        for file in self._unusual:
            sentences.append(f"{file} was read as: {self.notes[file]}.")
        return " ".join(sentences)

    def close(self) -> None:
        """Closes the side file; a later `reject` appends to it."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def __exit__(self, *error: object) -> None:
        self.close()
