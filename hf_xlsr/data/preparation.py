"""One preparation for every kind of row: read, clean, store and tokenise, once for all runs that need the same rows.

Clean rows are Arrow record batches ("shards") in one file; tokenised shards have a file each until all are there.
"""

from __future__ import annotations

import hashlib
import json
import logging
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
from datasets import Dataset, Features
from huggingface_hub import HfApi

from hf_xlsr.data.cleaning import Cleaner
from hf_xlsr.data.corpora.loading import CORPORA
from hf_xlsr.data.encoding import Row, RowEncoder, RowKind
from hf_xlsr.data.formats.quarantine import Quarantine
from hf_xlsr.data.formats.reading import expand_braces
from hf_xlsr.data.prompts import Prompts, PromptTable
from hf_xlsr.data.sources import as_list, as_source, expand
from hf_xlsr.data.tokenization import tokenizer_hash
from hf_xlsr.utils.errors import XlsrError
from hf_xlsr.utils.files import atomic_write, write_json, write_text
from hf_xlsr.utils.hashing import address_of, cache_folder, cached, content_hash
from hf_xlsr.utils.processes import run_shards

logger = logging.getLogger(__name__)

FORMAT = 3
"""Version of prepared data and of what readers and cleaning make of a file: part of every address."""
SHARD_ROWS = 20_000
BATCH_ROWS = 1000  # tokenised and stored together


def prepare_rows(
    kind: RowKind,
    read: Callable[[Quarantine], Iterable[Row]],
    *,
    sources: Sequence[Any],
    languages: Sequence[str],
    folder: str | Path,
    cleaner: Cleaner,
    tokenizers: Any,
    max_length: int = 200,
    prompts: PromptTable | Prompts = None,
    describe: Callable[[Dataset], dict[str, Any]],
    encoder: Callable[..., RowEncoder] = RowEncoder,
    key: Any = None,
    train: Callable[[Dataset], Any] | None = None,
    keep_tokenizers: bool = False,
    finish: Callable[[Iterable[Row]], Iterable[Row]] = iter,
    limit: int | None = None,
    seed: int = 1,
    num_proc: int = 1,
) -> tuple[Path, Dataset, dict[str, Any]]:
    """Reads, cleans and tokenises rows into the cache, or finds there what an earlier call made of the same.

    Every row that is read is kept, dropped by a cleaning step (`cleaning`), or quarantined (`rejected`); rows after
    `limit` are not read. This process reads and cleans, in order; at the same time others tokenise, in shards of 20,000
    rows. A killed call resumes with the shards that are missing.

    Args:
        folder: Of the run; gets copies of the report (`prepared.json`), the bad lines and the tokenizers.
        tokenizers: One tokenizer, or a mapping from language to tokenizer; None with `train`, which trains one.
        describe: The caller's part of the report, from the clean rows; may raise an error.
        key: What else the rows depend on.
        keep_tokenizers: Store the tokenizers with the rows; of one, `vocab_size` is in the report.
        finish: Changes the clean rows before they are stored.

    Returns:
        The folder in the cache, with `rejected.jsonl` for bad lines and perhaps `tokenizer/`; the rows; the report.
    """
    drawn = any(as_source(source).get("sample") or "{lang}" in str(source) for source in sources)
    cleaning = [repr(step) for step in cleaner.steps]
    columns = (kind.texts, kind.languages, dict(kind.kept), kind.identities)
    contents = [source_content(source) for source in sources]
    salt = tokenizer_hash(tokenizers)
    table = prompts if isinstance(prompts, PromptTable) else PromptTable().given(prompts)
    shown = {name: text for name, text in table.texts.items() if text}
    given = [FORMAT, columns, languages, cleaning, limit, max_length, key, shown, table.default, salt]
    address = address_of([*given, seed if drawn else None, contents])
    pointer = Path(folder) / "prepared.json"
    if pointer.is_file() and read_json(pointer)["cache"] != address:
        raise XlsrError(
            f"the data of {folder} were prepared from other files, tokenizers, options or dev and test sets; start again "
            "with --overwrite true or in another --output_dir."
        )

    def clean(place: Path) -> Iterator[int]:
        """Stores the clean rows and yields the number of each shard; the counts are written at the end."""
        number = -1
        with Quarantine(place / "rejected.jsonl") as quarantine:
            rows = islice(finish(cleaner(read(quarantine))), limit)
            for number in store_rows(rows, kind.text_features(), place / "clean.arrow"):
                yield number
            quarantine.path = place.with_suffix("") / "rejected.jsonl"  # where the folder will be
            if faults := quarantine.report():
                logger.warning("%s", faults)
            counts = {"rejected": quarantine.counts, "cleaning": cleaner.counts}
            if quarantine.repairs:
                counts["repaired"] = quarantine.repairs
        if number < 0:
            raise XlsrError(kind.empty)
        report = {**describe(Dataset.from_file(str(place / "clean.arrow"))), **counts}
        write_json(place / "clean.json", {"shards": number + 1, "report": report})

    def make(place: Path) -> None:
        cleaned, chosen = place / "clean.json", tokenizers
        shards: Iterable[int] = range(read_json(cleaned)["shards"]) if cleaned.is_file() else clean(place)
        if train is not None or num_proc == 1:
            shards = list(shards)
        if train is not None:
            chosen = train(Dataset.from_file(str(place / "clean.arrow")))
        if keep_tokenizers:  # before their first use: tokenizers keep the limits of their last call
            for language, one in chosen.items() if isinstance(chosen, Mapping) else [("", chosen)]:
                one.save_pretrained(str(place / "tokenizer" / language))
        encode = encoder(kind, chosen, max_length, table)
        work = partial(tokenize_shard, place, encode, salt if train is None else tokenizer_hash(chosen))
        run_shards(work, shards, num_proc=num_proc, description="tokenising")
        stored = read_json(cleaned)
        join_shards(place, encode, stored["shards"])
        size = {"vocab_size": len(chosen)} if keep_tokenizers and not isinstance(chosen, Mapping) else {}
        write_json(place / "report.json", {**encode.counts.report(), **size, **stored["report"]})
        for part in (*place.glob("clean.*"), *place.glob("shards/*")):
            part.unlink()
        (place / "shards").rmdir()

    path = cached(address, make)
    rows, report = Dataset.from_file(str(path / "rows.arrow")), read_json(path / "report.json")
    rows._fingerprint = address
    if not pointer.is_file():  # of several processes, one copies
        pointer.parent.mkdir(parents=True, exist_ok=True)
        if (path / "tokenizer").is_dir():
            shutil.copytree(path / "tokenizer", pointer.with_name("tokenizer"), dirs_exist_ok=True)
        if (path / "rejected.jsonl").is_file():
            shutil.copyfile(path / "rejected.jsonl", pointer.with_name("rejected.jsonl"))
        write_json(pointer, {**report, "cache": address})
    return path, rows, report


def store_rows(rows: Iterable[Mapping[str, Any]], features: Features, path: Path) -> Iterator[int]:
    """Writes shards of rows to an Arrow file, one record batch each, and yields the number of each."""
    stream, number = iter(rows), -1
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, features.arrow_schema) as writer:
        while shard := list(islice(stream, SHARD_ROWS)):
            columns = {name: [row[name] for row in shard] for name in features}
            writer.write_batch(pa.RecordBatch.from_pydict(columns, features.arrow_schema))
            number += 1
            yield number


def tokenize_shard(folder: Path, encoder: RowEncoder, salt: str | None, number: int) -> None:
    """Tokenises a shard of `clean.arrow` into `shards/`, unless the same text and encoder (`salt`) are there."""
    with pa.memory_map(str(folder / "clean.arrow")) as file:
        reader = pa.ipc.open_stream(file)
        for _ in range(number + 1):
            batch = reader.read_next_batch()
    digest = hashlib.sha256(str(salt).encode())
    for column in batch.columns:
        for buffer in column.buffers():
            digest.update(buffer or b"")
    target, marker = _shard_paths(folder, number)
    if marker.is_file() and read_json(marker)["content"] == digest.hexdigest():
        return
    target.parent.mkdir(exist_ok=True)
    encoder.counts.clear()
    schema = encoder.features.arrow_schema
    with (
        atomic_write(target) as partial_file,
        pa.OSFile(str(partial_file), "wb") as stream,
        pa.ipc.new_stream(stream, schema) as writer,
    ):
        for start in range(0, len(batch), BATCH_ROWS):
            columns = encoder.encode(batch.slice(start, BATCH_ROWS).to_pylist())
            writer.write_batch(pa.RecordBatch.from_pydict(columns, schema))
    write_json(marker, {"content": digest.hexdigest(), "counts": encoder.counts.counts})


def _shard_paths(folder: Path, number: int) -> tuple[Path, Path]:
    return folder / "shards" / f"{number:06d}.arrow", folder / "shards" / f"{number:06d}.json"


def join_shards(folder: Path, encoder: RowEncoder, shards: int) -> None:
    """Joins the shards in order, and their counts: a dataset of thousands of files would need as many open files."""
    encoder.counts.clear()
    with (
        atomic_write(folder / "rows.arrow") as partial_file,
        pa.OSFile(str(partial_file), "wb") as file,
        pa.ipc.new_stream(file, encoder.features.arrow_schema) as writer,
    ):
        for number in range(shards):
            part, marker = _shard_paths(folder, number)
            encoder.counts.add(read_json(marker)["counts"])
            with pa.memory_map(str(part)) as source:
                for batch in pa.ipc.open_stream(source):
                    writer.write_batch(batch)


def source_content(source: Any) -> list[Any]:
    """What a source yields depends on: its options, and hashes of its files or the revision of its data set."""
    options = as_source(source)
    content: list[Any] = [{name: value for name, value in options.items() if name != "path"}]
    if options.get("corpus") in CORPORA:
        content.append(hub_revision(CORPORA[options["corpus"]].hub_id))
    for path in as_list(expand(options["path"])) if options.get("path") else ():
        for file in expand_braces(path)[0]:
            files = sorted(part for part in file.rglob("*") if part.is_file()) if file.is_dir() else [file]
            content += [
                (part.name, content_hash(part) if part.is_file() else hub_revision(str(path))) for part in files
            ]
    return content


def hub_revision(dataset: str | None) -> str | None:
    """The newest commit of a dataset on the Hub; without a connection, the last one that this cache met."""
    if not dataset:
        return None
    known = cache_folder() / "files" / address_of(dataset)
    try:
        revision = HfApi().dataset_info(dataset, timeout=10).sha
        known.parent.mkdir(parents=True, exist_ok=True)
        write_text(known, str(revision))
    except (OSError, ValueError):  # the reader reports it
        return known.read_text("utf-8") if known.is_file() else None
    return revision


def read_json(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text("utf-8"))
