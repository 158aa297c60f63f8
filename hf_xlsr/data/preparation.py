"""From sources to clean rows on disk: read here, cleaned in parallel tasks, compared and stored once for all runs.

Every row that is read is kept, dropped by a cleaning step (`cleaning` in the report), or quarantined (`rejected`). A
killed call resumes with the shards that are missing.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
from datasets import Dataset
from huggingface_hub import HfApi

from hf_xlsr.data.cleaning import BATCH_ROWS, AnyStep, Cleaner, Verdicts, identity_of, judge_rows
from hf_xlsr.data.columns import Row
from hf_xlsr.data.corpora.loading import CORPORA
from hf_xlsr.data.encoding import RowKind, row_columns
from hf_xlsr.data.formats.quarantine import Quarantine
from hf_xlsr.data.formats.reading import expand_braces, reader_origin
from hf_xlsr.data.sources import Source
from hf_xlsr.utils.errors import XlsrError
from hf_xlsr.utils.files import read_json, write_json, write_text
from hf_xlsr.utils.hashing import address_of, cached, remembered_file, remembered_sha256, set_address
from hf_xlsr.utils.runners import Processes, runner_of
from hf_xlsr.utils.tasks import InProcess, Task

logger = logging.getLogger(__name__)

FORMAT = 6
"""Version of clean rows, and of what readers and cleaning make of a file: part of every address."""
SHARD_ROWS = 20_000
_VERDICTS = "_verdicts"


@dataclass(frozen=True)
class CleanRows:
    """Clean rows of text on disk, and the report of how they were made.

    Attributes:
        rows: With the texts and languages of their kind.
        report: Counts: `cleaning` by step, `rejected` bad lines by reason, and what the kind of row adds.
        folder: Where they are in the cache; with `rejected.jsonl` if lines were bad.
    """

    rows: Dataset
    report: dict[str, Any]
    folder: Path


def clean_rows(
    kind: RowKind,
    read: Callable[[Quarantine], Iterable[Row]],
    steps: Sequence[AnyStep],
    describe: Callable[[Dataset], dict[str, Any]],
    *,
    sources: Sequence[Source],
    key: Any,
    limit: int | None = None,
    seed: int = 1,
    num_proc: Processes = 1,
) -> CleanRows:
    """Reads and cleans rows into the cache, or finds there what an earlier call made of the same.

    Args:
        read: Streams the rows of the sources; bad lines go to the quarantine.
        describe: Facts of the clean rows for the report; may raise an error.
        key: What else than sources, steps and kind the rows depend on.
        limit: Maximum number of clean rows; later ones are not read.
        seed: What `read` draws by, if it draws.
        num_proc: Processes that clean, or the engine that does, see `Processes`; this one reads. With a limit, one
            process does both.
    """
    draws = any(source.sample or source.is_template for source in sources)
    facts = [FORMAT, kind.text_features().to_dict(), list(map(identity_of, steps)), limit, key]
    address = address_of([*facts, seed if draws else None, list(map(source_content, sources))])

    def make(folder: Path) -> None:
        report = _make_rows(folder, kind, read, Cleaner(steps), limit, num_proc)
        rows = Dataset.from_file(str(folder / "text.arrow"))
        write_json(folder / "report.json", {**describe(rows), **report})
        shutil.rmtree(folder / "cleaned")

    folder = cached(address, make)
    return CleanRows(open_rows(folder / "text.arrow", address), read_json(folder / "report.json"), folder)


def open_rows(file: Path, address: str) -> Dataset:
    """The rows of an Arrow file; their address in the cache identifies them, instead of a hash of the file's name."""
    rows = Dataset.from_file(str(file))
    set_address(rows, address)
    return rows


def _make_rows(
    folder: Path,
    kind: RowKind,
    read: Callable[[Quarantine], Iterable[Row]],
    cleaner: Cleaner,
    limit: int | None,
    num_proc: Processes,
) -> dict[str, Any]:
    """Writes the clean rows to `folder / "text.arrow"`, and returns the counts of the report."""
    (folder / "cleaned").mkdir(exist_ok=True)
    shard_rows = SHARD_ROWS
    runner = runner_of(num_proc)
    if limit is not None:
        # No more rows are read than a batch beyond the limit, whatever the number of processes.
        shard_rows = BATCH_ROWS
        runner = InProcess()

    schema = kind.text_features().arrow_schema
    num_rows = 0

    with Quarantine(folder / "rejected.jsonl") as quarantine:
        tasks = _cleaning_tasks(folder / "cleaned", read(quarantine), shard_rows)
        work = partial(write_judged, cleaner.steps, kind)

        with pa.OSFile(str(folder / "text.arrow"), "wb") as file, pa.ipc.new_stream(file, schema) as writer:
            for task in runner.run(work, tasks, description="cleaning"):
                judged_rows, verdicts = read_judged(cleaner.steps, task.output)
                is_kept = cleaner.keeps(verdicts, None if limit is None else limit - num_rows)
                batch = judged_rows.slice(0, len(is_kept)).filter(pa.array(is_kept)).select(schema.names)
                writer.write_batch(pa.RecordBatch.from_arrays(batch.columns, schema=schema))
                num_rows += len(batch)
                if num_rows == limit:
                    break

        quarantine.path = folder.with_suffix("") / "rejected.jsonl"  # where the folder will be
        faults = quarantine.report()
        if faults:
            logger.warning("%s", faults)

    if not num_rows:
        raise XlsrError(kind.empty)

    report: dict[str, Any] = {"rejected": quarantine.counts, "cleaning": cleaner.counts}
    if quarantine.repairs:
        report["repaired"] = quarantine.repairs
    if quarantine.notes:
        report["tables"] = quarantine.notes
    return report


def _cleaning_tasks(folder: Path, rows: Iterable[Row], shard_rows: int) -> Iterator[Task]:
    stream = iter(rows)
    number = 0
    while shard := list(islice(stream, shard_rows)):
        yield Task(folder / f"{number:06d}.judged.arrow", shard)
        number += 1


def write_judged(
    steps: Sequence[AnyStep],
    kind: RowKind,
    path: Path,
    rows: list[Row],
) -> None:
    """Writes rows as the steps change them, with the verdicts of the steps, to an Arrow file."""
    judged_rows, verdicts = judge_rows(steps, rows)
    features = kind.text_features()
    batch = pa.RecordBatch.from_pydict(row_columns(judged_rows, features), features.arrow_schema)

    table = verdicts.table()
    batch = batch.append_column(_VERDICTS, pa.FixedSizeListArray.from_arrays(table.ravel(), table.shape[1]))
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, batch.schema) as writer:
        writer.write_batch(batch)


def read_judged(steps: Sequence[AnyStep], path: Path) -> tuple[pa.RecordBatch, Verdicts]:
    """The rows and the verdicts that `write_judged` wrote."""
    with pa.memory_map(str(path)) as file:
        batch = pa.ipc.open_stream(file).read_next_batch()

    table = batch[_VERDICTS].flatten().to_numpy().reshape(len(batch), -1)
    return batch, Verdicts.of_table(steps, table)


def source_content(source: Source) -> list[Any]:
    """What a source yields depends on: its options, and hashes of its files or the revision of its dataset."""
    content: list[Any] = [source.model_dump(exclude={"path"}, exclude_defaults=True)]
    reader = reader_origin(source.paths, source.format)
    if reader:
        content.append(reader)
    if source.corpus is not None:
        content.append(hub_revision(CORPORA[source.corpus].hub_id))
    for path, file in source_files(source):
        if file is None:
            content.append((Path(path).name, hub_revision(path)))
        else:
            content.append((file.name, remembered_sha256(file)))
    return content


def source_files(source: Source) -> Iterator[tuple[str, Path | None]]:
    """The paths of a source with the files of each, those of folders too; None for a dataset of the Hub."""
    for path in source.paths:
        for file in expand_braces(path)[0]:
            if file.is_dir():
                for member in sorted(filter(Path.is_file, file.rglob("*"))):
                    yield path, member
            else:
                yield path, file if file.is_file() else None


def hub_revision(dataset: str | None) -> str | None:
    """The newest commit of a dataset on the Hub; without a connection, the last one that this cache met."""
    if dataset is None:
        return None
    remembered = remembered_file(dataset)
    try:
        write_text(remembered, str(HfApi().dataset_info(dataset, timeout=10).sha))
    except (OSError, ValueError):  # the reader reports it
        if not remembered.is_file():
            return None
    return remembered.read_text("utf-8")
