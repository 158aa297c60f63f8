"""One page to look at pairs: histogram of the scores, precision by threshold, and pairs to accept or reject."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from hf_xlsr.mining.thresholds import PrecisionCurve
from hf_xlsr.utils.errors import XlsrError
from hf_xlsr.utils.files import atomic_write

BANDS = 20  # of the scores, shown from best to worst
SHOWN = 30  # pairs of each band
BARS = 60
RIGHT_TO_LEFT = {"ar", "arc", "ckb", "dv", "fa", "he", "ku", "ps", "sd", "ug", "ur", "yi"}


def write_report(
    path: str | Path,
    rows: Iterator[Mapping[str, Any]],
    scores: np.ndarray,
    *,
    title: str,
    languages: Sequence[str] | None = None,
    curve: PrecisionCurve | None = None,
    threshold: float | None = None,
    seed: int = 0,
) -> None:
    """Writes the page: one file that loads nothing else. Its content policy allows only its own script and style."""
    order = np.argsort(-scores, kind="stable")
    rng = np.random.default_rng(seed)
    bands = [
        band if len(band) <= SHOWN else np.sort(rng.choice(band, SHOWN, replace=False))
        for band in np.array_split(order, min(BANDS, max(len(order), 1)))
        if len(band)
    ]
    wanted = {int(index) for band in bands for index in band}
    found = [
        {"score": float(scores[index]), "source": row["source"], "target": row["target"]}
        for index, row in enumerate(rows)
        if index in wanted
    ]
    counts, edges = np.histogram(scores, BARS) if len(scores) else (np.zeros(1, int), np.array([0.0, 1.0]))
    tags = [
        {"lang": tag, "dir": "rtl" if tag.split("-")[0] in RIGHT_TO_LEFT else "auto"} for tag in languages or ("", "")
    ]
    content = {
        "title": title,
        "languages": tags,
        "pairs": sorted(found, key=lambda pair: -pair["score"]),
        "histogram": {"counts": counts.tolist(), "edges": edges.tolist()},
        "total": len(scores),
        "threshold": threshold,
        "curve": None if curve is None else curve.values(),
    }
    data = json.dumps(content, ensure_ascii=False).replace("<", "\\u003c").replace("\u2028", "\\u2028")
    page = files("hf_xlsr.mining").joinpath("report.html").read_text("utf-8")
    for kind in ("style", "script"):
        text = page.split(f"<{kind}>")[1].split(f"</{kind}>")[0]
        digest = base64.b64encode(sha256(text.encode("utf-8")).digest()).decode("ascii")
        page = page.replace(f"{kind.upper()}-HASH", f"sha256-{digest}")
    with atomic_write(Path(path)) as partial:
        partial.write_text(page.replace("REPORT-DATA", data), "utf-8")


def read_labels(path: str | Path) -> dict[tuple[str, str], bool]:
    """Labels that the page saved: whether each pair of sentences was accepted; unsure ones are left out."""
    labels: dict[tuple[str, str], bool] = {}
    lines = Path(path).read_text("utf-8").splitlines()
    for number, line in enumerate(lines[1:], 2):
        parts = line.split("\t")
        if len(parts) != 4 or parts[0] not in ("accept", "reject", "unsure"):
            raise XlsrError(
                f"{path}, line {number}: expected label, score, source and target, as report.html saves them."
            )
        if parts[0] != "unsure":
            labels[parts[2], parts[3]] = parts[0] == "accept"
    return labels
