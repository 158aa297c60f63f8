"""Output of pairs: TSV, JSON lines, Parquet and TMX, streamed."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape, quoteattr

from hf_xlsr.mining.work_folder import disk_errors
from hf_xlsr.utils.errors import XlsrError, require_choice
from hf_xlsr.utils.files import atomic_write, check_writable, is_stream

logger = logging.getLogger(__name__)

PAIR_COLUMNS = ("score", "source", "target", "source_line", "target_line")
SCORE_COLUMNS = ("score", "cosine", "source", "target")
TEXT_COLUMNS, LINE_COLUMNS = ("source", "target"), ("source_line", "target_line")
ROWS_AT_ONCE = 1 << 12

_BREAKS = re.compile("[\t\n\r]+")
# Not allowed in XML 1.0, even escaped.
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")

Row = Mapping[str, Any]
# A writer takes the file, the rows, their columns and the languages, and returns the number of pairs it had to change.
Writer = Callable[[Path, Iterable[Row], Sequence[str], Sequence[str] | None], int]


def write_pairs(
    path: str | Path,
    rows: Iterable[Row],
    *,
    columns: Sequence[str] = PAIR_COLUMNS,
    format: str | None = None,
    languages: Sequence[str] | None = None,
) -> int:
    """Writes pairs as they come, moves the file into place when it is complete, and returns their number.

    `read_rows` reads each format back. Line numbers count from 1; TSV and TMX leave them out. A tab or line break in a
    text becomes a space in TSV, and a control character that XML cannot hold becomes one in TMX; their number is
    logged. TSV has a header, and scores with six decimals, as TMX has.

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
    writer = WRITERS[output_format(file, format, languages)]
    count = 0

    def counted() -> Iterator[Row]:
        nonlocal count
        for row in rows:
            count += 1
            yield row

    with disk_errors(file):
        file.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(file) as partial:
            changed = writer(partial, counted(), columns, languages)
    if changed:
        logger.warning(
            "%s: characters that the format does not allow became spaces in %s pairs; jsonl and parquet keep them.",
            file,
            f"{changed:,}",
        )
    return count


def output_format(path: str | Path, format: str | None = None, languages: Sequence[str] | None = None) -> str:
    """Format of an output file, checked before there is something to write."""
    chosen = format or Path(path).suffix.lower().removeprefix(".")
    require_choice("format" if format else f"suffix of {path}", chosen, WRITERS)
    if chosen == "tmx" and len(set(languages or ())) != 2:
        raise XlsrError(f"`languages` of source and target are required by TMX ({path}), e.g. en,fr.")
    return chosen


def check_place(path: str | Path) -> None:
    """Checks that an output file can be written, before there is something to write; leaves nothing behind."""
    if is_stream(path):
        raise XlsrError(f"{path} cannot be written: it must be a file, as mining keeps its stages next to it.")
    check_writable(path, "--output")


def _replace(pattern: re.Pattern[str], row: Row) -> tuple[str, str, bool]:
    source, target = (pattern.sub(" ", row[side]) for side in TEXT_COLUMNS)
    return source, target, source != row["source"] or target != row["target"]


def _write_tsv(path: Path, rows: Iterable[Row], columns: Sequence[str], languages: Sequence[str] | None) -> int:
    numbers = [name for name in columns if name not in TEXT_COLUMNS + LINE_COLUMNS]
    changed = 0
    with path.open("w", encoding="utf-8", newline="") as file:
        file.write("\t".join([*numbers, *TEXT_COLUMNS]) + "\n")
        for row in rows:
            source, target, differs = _replace(_BREAKS, row)
            changed += differs
            file.write("\t".join([*(f"{row[name]:.6f}" for name in numbers), source, target]) + "\n")
    return changed


def _write_jsonl(path: Path, rows: Iterable[Row], columns: Sequence[str], languages: Sequence[str] | None) -> int:
    with path.open("w", encoding="utf-8", newline="") as file:
        for row in rows:
            file.write(json.dumps({name: row[name] for name in columns}, ensure_ascii=False) + "\n")
    return 0


def _write_parquet(path: Path, rows: Iterable[Row], columns: Sequence[str], languages: Sequence[str] | None) -> int:
    import pyarrow as pa
    import pyarrow.parquet as pq

    kinds = {name: pa.string() for name in TEXT_COLUMNS} | {name: pa.int64() for name in LINE_COLUMNS}
    schema = pa.schema([(name, kinds.get(name, pa.float64())) for name in columns])
    remaining = iter(rows)
    with pq.ParquetWriter(path, schema, compression="zstd") as writer:
        while part := [{name: row[name] for name in columns} for row in islice(remaining, ROWS_AT_ONCE)]:
            writer.write_table(pa.Table.from_pylist(part, schema))
    return 0


def _write_tmx(path: Path, rows: Iterable[Row], columns: Sequence[str], languages: Sequence[str] | None) -> int:
    tags = list(languages or ())
    numbers = [name for name in columns if name not in TEXT_COLUMNS + LINE_COLUMNS]
    changed = 0
    with path.open("w", encoding="utf-8", newline="") as file:
        file.write(
            '<?xml version="1.0" encoding="UTF-8"?>\n<tmx version="1.4">\n'
            f'<header creationtool="hf-xlsr" creationtoolversion={quoteattr(version("hf-xlsr"))} segtype="sentence" '
            f'o-tmf="hf-xlsr" adminlang="en" srclang={quoteattr(tags[0])} datatype="plaintext"/>\n<body>\n'
        )
        for row in rows:
            source, target, differs = _replace(_NOT_XML, row)
            changed += differs
            props = "".join(f'<prop type="{name}">{row[name]:.6f}</prop>' for name in numbers)
            variants = "".join(
                f"<tuv xml:lang={quoteattr(tag)}><seg>{escape(text, {chr(13): '&#13;'})}</seg></tuv>"
                for tag, text in zip(tags, (source, target), strict=True)
            )
            file.write(f"<tu>{props}{variants}</tu>\n")
        file.write("</body>\n</tmx>\n")
    return changed


WRITERS: dict[str, Writer] = {
    "tsv": _write_tsv,
    "jsonl": _write_jsonl,
    "parquet": _write_parquet,
    "tmx": _write_tmx,
}
