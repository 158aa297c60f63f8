"""Files of mined and scored pairs (TSV, JSONL, Parquet, TMX) and the report page, which people read and label."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from hashlib import sha256
from importlib.metadata import version
from importlib.resources import files
from itertools import islice
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape, quoteattr

import numpy as np

from hf_xlsr.mining.labels import band_floors, bands_of
from hf_xlsr.mining.thresholds import PrecisionCurve, pairs_at_least, score_grid
from hf_xlsr.utils.errors import XlsrError, require_choice
from hf_xlsr.utils.files import atomic_write, write_text

PAIR_COLUMNS = ("score", "source", "target", "source_line", "target_line")
SCORE_COLUMNS = ("score", "cosine", "source", "target")
TEXT_COLUMNS = ("source", "target")
NEGATIVE_COLUMN = "negative_"  # and a number: columns that losses read after the texts
LINE_COLUMNS = ("source_line", "target_line")
LABEL_COLUMNS = ["label", "score", *TEXT_COLUMNS]
ROWS_AT_ONCE = 1 << 12
SHOWN = 30  # pairs of each band of scores
BARS = 60

# Not allowed in XML 1.0, even escaped.
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")

_SPECIAL = re.compile('["\t\n\r]')  # in a field of TSV that must be quoted

Row = Mapping[str, Any]


def write_pairs(
    path: str | Path,
    rows: Iterable[Row],
    *,
    columns: Sequence[str] = PAIR_COLUMNS,
    format: str | None = None,
    languages: Sequence[str] | None = None,
) -> int:
    """Writes pairs as they come, moves the file into place when it is complete, and returns their number.

    `read_rows` reads each format back. Line numbers count from 1; TSV and TMX leave them out. In TSV a text with a tab, a
    line break or a quotation mark is quoted; in TMX a control character that XML cannot hold becomes a space.

    Args:
        path: The file; its folder is created.
        rows: Pairs, with the columns as keys.
        columns: Those of mined pairs, or of scored ones (`SCORE_COLUMNS`).
        format: `tsv`, `jsonl`, `parquet` or `tmx`; from the suffix if None.
        languages: Source and target, required by TMX.

    Examples:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     file = Path(folder) / "pairs.tsv"
        ...     count = write_pairs(file, [{"score": 1.25, "source": "good day", "target": "bonjour"}])
        ...     print(count, repr(file.read_text()))
        1 'score\\tsource\\ttarget\\n1.250000\\tgood day\\tbonjour\\n'
    """
    file = Path(path)
    kind = output_format(file, format, languages)
    count = 0

    def counted() -> Iterator[Row]:
        nonlocal count
        for row in rows:
            count += 1
            yield row

    file.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(file) as partial:
        if kind == "parquet":
            _write_parquet(partial, counted(), columns)
        else:
            with partial.open("w", encoding="utf-8", newline="") as written:
                written.writelines(LINES[kind](counted(), columns, languages or ()))
    return count


def output_format(path: str | Path, format: str | None = None, languages: Sequence[str] | None = None) -> str:
    """Format of an output file, checked before there is something to write."""
    kind = format or Path(path).suffix.lower().removeprefix(".")
    require_choice("format" if format else f"suffix of {path}", kind, FORMATS)
    if kind == "tmx" and len(set(languages or ())) != 2:
        raise XlsrError(f"`languages` of source and target are required by TMX ({path}), e.g. en,fr.")
    return kind


def _other_columns(columns: Sequence[str]) -> list[str]:
    """Scores, and what else a file of pairs may have, such as an id."""
    return [name for name in columns if name not in TEXT_COLUMNS + LINE_COLUMNS]


def _tsv(rows: Iterable[Row], columns: Sequence[str], languages: Sequence[str]) -> Iterator[str]:
    negatives = [name for name in columns if name.startswith(NEGATIVE_COLUMN)]
    scores = [name for name in _other_columns(columns) if name not in negatives]
    names = [*scores, *TEXT_COLUMNS, *negatives]
    yield "\t".join(names) + "\n"
    for row in rows:
        yield "\t".join(_quoted(_text_of(row[name])) for name in names) + "\n"


def _text_of(value: Any) -> str:
    """A value of a column as text; scores have six decimals."""
    if isinstance(value, float):
        return f"{value:.6f}"
    return "" if value is None else str(value)


def _quoted(text: str) -> str:
    """A field as programs write it that read TSV with quotation, such as `datasets` and pandas."""
    return '"' + text.replace('"', '""') + '"' if _SPECIAL.search(text) else text


def _jsonl(rows: Iterable[Row], columns: Sequence[str], languages: Sequence[str]) -> Iterator[str]:
    for row in rows:
        yield json.dumps({name: row[name] for name in columns}, ensure_ascii=False) + "\n"


def _tmx(rows: Iterable[Row], columns: Sequence[str], languages: Sequence[str]) -> Iterator[str]:
    yield (
        '<?xml version="1.0" encoding="UTF-8"?>\n<tmx version="1.4">\n'
        f'<header creationtool="hf-xlsr" creationtoolversion={quoteattr(version("hf-xlsr"))} segtype="sentence" '
        f'o-tmf="hf-xlsr" adminlang="en" srclang={quoteattr(languages[0])} datatype="plaintext"/>\n<body>\n'
    )

    for row in rows:
        unit = ""
        for name in _other_columns(columns):
            unit += f"<prop type={quoteattr(name)}>{escape(_NOT_XML.sub(' ', _text_of(row[name])))}</prop>"
        for language, side in zip(languages, TEXT_COLUMNS, strict=True):
            text = escape(_NOT_XML.sub(" ", row[side]), {"\r": "&#13;"})
            unit += f"<tuv xml:lang={quoteattr(language)}><seg>{text}</seg></tuv>"
        yield f"<tu>{unit}</tu>\n"
    yield "</body>\n</tmx>\n"


LINES: dict[str, Callable[..., Iterator[str]]] = {"tsv": _tsv, "jsonl": _jsonl, "tmx": _tmx}
FORMATS = ("tsv", "jsonl", "parquet", "tmx")


def _write_parquet(path: Path, rows: Iterable[Row], columns: Sequence[str]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    types = dict.fromkeys(TEXT_COLUMNS, pa.string())
    types |= dict.fromkeys(LINE_COLUMNS, pa.int64())
    remaining = iter(rows)
    batch = list(islice(remaining, ROWS_AT_ONCE))
    for name in columns:
        if name not in types:
            # Scores that were read from a table are texts.
            is_text = any(isinstance(row[name], str) for row in batch)
            types[name] = pa.string() if is_text else pa.float64()

    schema = pa.schema([(name, types[name]) for name in columns])
    with pq.ParquetWriter(path, schema, compression="zstd") as writer:
        while batch:
            writer.write_table(pa.Table.from_pylist(batch, schema))
            batch = list(islice(remaining, ROWS_AT_ONCE))


def write_report(
    path: str | Path,
    rows: Iterator[Mapping[str, Any]],
    scores: np.ndarray,
    curve: PrecisionCurve | None = None,
    threshold: float | None = None,
    *,
    title: str,
    languages: Sequence[str] | None = None,
) -> None:
    """Writes the page: one file that loads nothing else. Its content policy allows only its own script and style.

    It shows a sample of each band of scores, and leads through the bands in shuffled order: labels of its first pairs,
    however many, are spread over all scores.
    """
    counts, edges = np.histogram(scores, BARS)
    floors = band_floors(scores)
    bands = bands_of(scores, floors)
    grid = score_grid(scores) if len(scores) else scores
    sample, order = sampled_pairs(rows, bands, np.random.default_rng(0))
    pairs = [{name: row[name] for name in ("score", *TEXT_COLUMNS)} for row in sample]
    sampled_scores = [pair["score"] for pair in pairs]
    content = {
        "title": title,
        "languages": languages or ("", ""),
        "pairs": pairs,
        "order": order,
        "bands": {"floors": floors.tolist(), "pairs": np.bincount(bands, minlength=len(floors)).tolist()},
        "grid": {
            "threshold": grid.tolist(),
            "pairs": pairs_at_least(scores, grid).astype(int).tolist(),
            "ranks": np.searchsorted(np.sort(scores), sampled_scores).tolist(),
        },
        "histogram": {"counts": counts.tolist(), "edges": edges.tolist()},
        "total": len(scores),
        "threshold": threshold,
        "curve": curve and curve.values(),
    }
    data = json.dumps(content, ensure_ascii=False).replace("<", "\\u003c").replace("\u2028", "\\u2028")

    page = files("hf_xlsr.mining").joinpath("report.html").read_text("utf-8")
    for kind in ("style", "script"):
        rest = page.split(f"<{kind}>")[1]
        text = rest.split(f"</{kind}>")[0]
        digest = base64.b64encode(sha256(text.encode()).digest()).decode()
        page = page.replace(f"{kind.upper()}-HASH", f"sha256-{digest}")
    write_text(path, page.replace("REPORT-DATA", data))


def sampled_pairs(rows: Iterable[Row], bands: np.ndarray, rng: np.random.Generator) -> tuple[list[Row], list[int]]:
    """Some pairs of each band of scores, from best to worst, and the order in which the page shows them.

    Each round of the order has one pair of each band that has one left, in random order.
    """
    round_of: dict[int, int] = {}
    for band in range(int(bands.max(initial=-1)) + 1):
        members = rng.permutation(np.flatnonzero(bands == band))[:SHOWN]
        round_of.update(zip(members.tolist(), range(SHOWN), strict=False))

    sampled = []
    for index, row in enumerate(rows):
        if index in round_of:
            sampled.append((row, round_of[index]))
    sampled.sort(key=lambda entry: entry[0]["score"], reverse=True)

    order = rng.permutation(len(sampled)).tolist()
    order.sort(key=lambda place: sampled[place][1])
    return [pair for pair, _ in sampled], order


def read_labels(path: str | Path) -> dict[tuple[str, str], bool]:
    """Labels that the page saved: whether each pair of sentences was accepted; unsure ones are left out."""
    lines = Path(path).read_text("utf-8").rstrip("\n").split("\n")  # texts may contain other line breaks of Unicode
    rows = [line.split("\t") for line in lines]
    if rows.pop(0) != LABEL_COLUMNS or not set(map(len, rows)) <= {4}:
        raise XlsrError(f"{path} must have the columns {', '.join(LABEL_COLUMNS)}, as the report page saves them.")
    return {(source, target): label == "accept" for label, _, source, target in rows if label != "unsure"}
