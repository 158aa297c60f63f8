"""How a file of pairs was made: a JSON file beside it, which each verb continues, and which the card of a dataset states.

A step holds what one verb did. File names have no folders, so that the file may be published.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from hf_xlsr.mining.outputs import BARS
from hf_xlsr.utils.errors import XlsrError
from hf_xlsr.utils.files import is_stream, write_json
from hf_xlsr.utils.hashing import file_sha256
from hf_xlsr.utils.local_paths import public_name
from hf_xlsr.utils.plugins import used_so_far, with_plugins

logger = logging.getLogger(__name__)

FORMAT = 1  # of the file
SIDES = ("source", "target", "source_pool", "target_pool")
COUNTS = ("lines", "sentences", "duplicates", "skipped")
ESTIMATES = ("threshold", "estimate", "labels", "scores")
Step = dict[str, Any]


@dataclass(frozen=True)
class PairFacts:
    """What is known of how pairs were made.

    Attributes:
        steps: What each verb did, the first one first; empty if nothing is known.
        page: SHA-256 of the report page beside the pairs; None if there is none.
    """

    steps: Sequence[Step] = ()
    page: str | None = field(default=None, compare=False)

    @property
    def languages(self) -> tuple[str, str] | None:
        """Source and target as the last step that knew them named them."""
        for step in reversed(self.steps):
            if step.get("languages"):
                source, target = step["languages"]
                return source, target
        return None


def facts_file(pairs: str | Path) -> Path:
    """The file of facts of a file of pairs."""
    return Path(f"{pairs}.facts.json").expanduser()


def write_facts(pairs: str | Path, step: Step, inputs: Iterable[str] = (), page: str | Path | None = None) -> None:
    """Writes the facts of a file of pairs beside it.

    Args:
        pairs: The file, which is complete.
        step: What the verb did, see `new_step`.
        inputs: Files of pairs that it read. The steps of a single one come before this step.
        page: The report page.
    """
    if is_stream(pairs):
        return
    earlier: list[Step] = []
    files = list(inputs)
    if len(files) == 1:
        earlier = _earlier_steps(files[0])
    page_hash = None
    if page is not None:
        page_hash = file_sha256(Path(page))
    content = {
        "format": FORMAT,
        "sha256": file_sha256(Path(pairs).expanduser()),
        "page": page_hash,
        "steps": [*earlier, step],
    }
    write_json(facts_file(pairs), content)


def read_facts(pairs: str | Path) -> PairFacts:
    """The facts beside a file of pairs; without such a file nothing is known.

    Raises:
        XlsrError: The facts are of another content, or cannot be read.
    """
    file = facts_file(pairs)
    if not file.is_file():
        return PairFacts()

    content = _read(file)
    if content["sha256"] != file_sha256(Path(pairs).expanduser()):
        raise XlsrError(
            f"'{pairs}' has changed since '{file}' said how it was made. Make it again, or remove that file: how the "
            "pairs were made is then unknown."
        )
    return PairFacts(content["steps"], content["page"])


def _read(file: Path) -> dict[str, Any]:
    try:
        content: dict[str, Any] = json.loads(file.read_text("utf-8"))
        is_known = content["format"] == FORMAT
        is_whole = {"sha256", "page"} <= content.keys()
        is_whole = is_whole and all(
            {"verb", "version", "command", "inputs"} <= step.keys() for step in content["steps"]
        )
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise XlsrError(
            f"'{file}' cannot be read ({type(error).__name__}). Make the pairs again, or remove it."
        ) from None
    if not is_whole:
        raise XlsrError(f"'{file}' lacks facts that this package writes. Make the pairs again, or remove it.")
    if not is_known:
        raise XlsrError(f"'{file}' must have the format {FORMAT}, got {content['format']}. Make the pairs again.")
    return content


def _earlier_steps(pairs: str) -> list[Step]:
    """The steps that made a file of pairs; none, with a warning, if the facts beside it are of another content."""
    try:
        return list(read_facts(pairs).steps) if Path(pairs).expanduser().is_file() else []
    except XlsrError as error:
        logger.warning("%s", error)
        return []


def new_step(
    verb: str,
    report: Mapping[str, Any],
    facts: Mapping[str, Any],
    *,
    command: str = "",
    languages: Sequence[str] | None = None,
) -> Step:
    """What a verb did, for `write_facts`, with the plug-ins that took part in the command.

    Args:
        verb: The verb, or the function of Python.
        report: What the verb printed, of which the step keeps the counts of its texts and the estimate.
        facts: More, by name; unknown ones are left out.
        command: What was typed, without folders; empty for a call from Python.
        languages: Source and target; None if unknown.
    """
    inputs = {}
    for side in SIDES:
        if side in report:
            counts = report[side]
            inputs[side] = {"name": public_name(counts["name"])}
            inputs[side] |= {name: counts[name] for name in COUNTS if name in counts}
            # `texts_sha256` is of texts that were read from a table, split or cleaned.
            inputs[side] |= facts.get("input_hashes", {}).get(side, {})

    step: Step = {"verb": verb, "version": version("hf-xlsr"), "command": command, "languages": None}
    if languages and set(languages) != {"und"}:
        step["languages"] = list(languages)
    step["inputs"] = inputs
    step = with_plugins(step, used_so_far())
    estimates = {name: report.get(name) for name in ESTIMATES}
    for name, value in {**estimates, **facts}.items():
        if name != "input_hashes" and value not in (None, {}, [], ""):
            step[name] = value
    return step


def scoring_facts(facts: Mapping[str, Any]) -> dict[str, Any]:
    """The encoder and the settings of scores, of facts of a job: nothing about the extraction of pairs."""
    settings = {name: facts["settings"][name] for name in ("k", "margin")}
    return {"encoder": facts.get("encoder"), "settings": settings}


def histogram(scores: np.ndarray, what: str) -> dict[str, Any]:
    """The distribution of scores, for a plot; `what` they are. Empty without scores."""
    if not len(scores):
        return {}
    counts, edges = np.histogram(scores, BARS)
    return {"of": what, "counts": counts.tolist(), "edges": edges.tolist()}


def files_facts(paths: Sequence[str]) -> list[dict[str, str]]:
    """Name and SHA-256 of files; ids of the Hub and folders have no hash."""
    facts = []
    for path in paths:
        entry = {"name": public_name(path)}
        file = Path(path).expanduser()
        if file.is_file():
            entry["sha256"] = file_sha256(file)
        facts.append(entry)
    return facts
