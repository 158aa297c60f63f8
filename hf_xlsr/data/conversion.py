"""From rows of text to what trainers read, for recipes and for Python: columns found, texts tokenised once and stored."""

from __future__ import annotations

import json
import logging
import math
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
from datasets import ClassLabel, Dataset, IterableDataset, concatenate_datasets

from hf_xlsr.data.encoding import (
    CONSECUTIVE,
    LABELLED,
    NLI,
    PAIRS,
    SENTENCES,
    TAUGHT_PAIRS,
    TEXTS,
    UNDETERMINED,
    LabelledEncoder,
    RowEncoder,
    RowKind,
    TokenCounts,
)
from hf_xlsr.data.label_tasks import check_framing
from hf_xlsr.data.preparation import open_rows
from hf_xlsr.data.prepared import ConcatenatedRows, LiveRows, PreparedPairs, PreparedRows, PreparedRunningText
from hf_xlsr.data.prompts import Prompts, PromptTable
from hf_xlsr.data.raw_rows import (
    UNNAMED,
    RowReader,
    class_names,
    has_stream,
    open_reader,
    read_once,
    unread_datasets,
    with_neighbours,
)
from hf_xlsr.data.streaming import Stream, StreamedRows
from hf_xlsr.data.tokenization import tokenizer_hash
from hf_xlsr.data.transforms import first_draw, has_transform, transformed_stream
from hf_xlsr.utils.errors import XlsrError
from hf_xlsr.utils.files import read_json, write_json
from hf_xlsr.utils.hashing import address_of, address_of_rows, cached
from hf_xlsr.utils.runners import Processes, runner_of
from hf_xlsr.utils.tasks import Task

logger = logging.getLogger(__name__)

# Changes with the columns or values that a conversion writes, so that no older cache is read.
VERSION = 2
SHARD_ROWS = 20_000  # rows of a task
BATCH_ROWS = 1000  # rows tokenised and stored together
_STREAM_SHARDS = 64  # of a stored dataset that is mixed with streams
TEXT_TYPES = ("string", "large_string")
_COUNTS = b"counts"
_KINDS = {
    "pairs": PAIRS,
    "taught pairs": TAUGHT_PAIRS,
    "texts": TEXTS,
    "inference": NLI,
    "running text": SENTENCES,
}
_PREPARED: dict[str, type[PreparedRows]] = {
    "pairs": PreparedPairs,
    "taught pairs": PreparedPairs,
    "running text": PreparedRunningText,
}


class Tokenised(NamedTuple):
    """A dataset with the columns of its kind, the counts of its tokens, and how its rows are made anew, if they are."""

    rows: Dataset
    counts: dict[str, int]
    live: LiveRows | None


class DataConverter:
    """Converts the data that users have to what trainers read.

    Each method takes a `Dataset`, a list of dicts, an `IterableDataset` (nothing is written to disk), or a dict of
    these, whose rows are mixed; converted data is returned as it is. Tokenised rows are stored in the cache under the
    address of data, tokenizers, `max_length` and `prompts`. A transform of a dataset is applied at each access. Rows
    with an empty text are skipped, with a warning that counts them.

    The language of a row comes from, in this order: the row (`source_lang` and `target_lang`, or `lang`; names of
    columns; keys of `translation`); the key of the dataset in its dict (`en-de`, or `en`); `languages`.

    Args:
        tokenizers: One tokenizer, or a mapping from language to tokenizer.
        languages: Languages of the model. Of two, the first is that of sources, and the second that of targets.
        max_length: Longer texts are truncated to this many tokens, special tokens included.
        prompts: Text before every text; or by role (`source`, `target`, `text`, `premise`, `hypothesis`) or language; or
            the prompts of an encoder.
        num_proc: Processes that tokenise, or the engine that does, see `Processes`.

    Examples:
        >>> from hf_xlsr.data.tokenization import train_tokenizer
        >>> tokenizer = train_tokenizer(["the cat sat", "die Katze lag"] * 50, vocab_size=30, algorithm="bpe")
        >>> convert = DataConverter(tokenizer, languages=("en", "de"), max_length=32)
        >>> pairs = convert.pairs([{"anchor": "the cat", "positive": "die Katze", "negative": "lag"}])
        >>> pairs.language_pairs, tokenizer.decode(pairs[0, 0]["negative_ids"][0])
        ([('en', 'de')], 'lag')
    """

    def __init__(
        self,
        tokenizers: Any,
        *,
        languages: Sequence[str] | None = None,
        max_length: int = 200,
        prompts: PromptTable | Prompts = None,
        num_proc: Processes = None,
    ) -> None:
        self.tokenizers = tokenizers
        self.max_length = max_length
        self.num_proc = num_proc
        self.prompts = prompts if isinstance(prompts, PromptTable) else PromptTable().given(prompts)

        if not languages and isinstance(tokenizers, Mapping):
            languages = list(tokenizers)
        self.languages = tuple(languages or ())

    def pairs(self, data: Any, name: str = "train_dataset") -> Any:
        """Translation pairs: `PreparedPairs`, or `StreamedRows` of streams; errors name `name`.

        Columns: `source` and `target`, `anchor` and `positive`, or `english` and `non_english` (with `source_lang` and
        `target_lang`); `translation`, a dict from language to text; or two named by languages. Columns `negative`,
        `negative_1`, ... are hard negatives in the language of the target; rows may lack some.
        """
        return self._convert(data, name, "pairs")

    def taught_pairs(self, data: Any, name: str = "train_dataset") -> Any:
        """As `pairs`, with the text of the source in a column `source`."""
        return self._convert(data, name, "taught pairs")

    def texts(self, data: Any, name: str = "train_dataset") -> Any:
        """Single sentences: `PreparedRows` or `StreamedRows`. Columns: `text` (and `lang`)."""
        return self._convert(data, name, "texts")

    def pairs_and_texts(self, data: Any, name: str = "train_dataset") -> Any:
        """Translation pairs, single sentences, or a dict with both: also `ConcatenatedRows`, pairs first."""
        return self._convert(data, name, "pairs", "texts")

    def inference(self, data: Any, name: str = "nli_dataset") -> Any:
        """Natural language inference: `PreparedRows` or `StreamedRows`.

        Columns: `premise` and `hypothesis`, or `sentence1` and `sentence2`; `label` (and `lang`). Labels are 0
        entailment, 1 neutral, 2 contradiction, these words, or numbers of a `ClassLabel` with these names; rows with -1
        are skipped.
        """
        return self._convert(data, name, "inference")

    def running_text(self, data: Any, name: str = "train_dataset") -> Any:
        """Pairs of consecutive sentences: `PreparedRunningText` or `StreamedRows`.

        Columns: `text` with a document, which is split into sentences; or `text` with a sentence and `document`, in order
        or, unless streamed, sorted by `position`; or with `place`, see `read_running_text`; each with `lang`. Numbers
        missing in `position` and empty sentences are gaps.
        """
        return self._convert(data, name, "running text")

    def pairs_or_running_text(self, data: Any, name: str = "eval_dataset") -> Any:
        """Translation pairs or running text."""
        return self._convert(data, name, "pairs", "running text")

    def labelled(
        self,
        data: Any,
        name: str = "train_dataset",
        *,
        keep_unlabelled: bool = False,
        classes: Sequence[str] = (),
    ) -> PreparedRows:
        """Labelled texts, each row tokenised as one sequence: `PreparedRows`; streams are read into memory.

        Columns: `text`, `text` and `text_pair`, `premise` and `hypothesis`, or `sentence1` and `sentence2`; `label`: a
        `ClassLabel`, an integer, a text or, of a regression, a float (and `lang`). The report has the `labels` of a
        classification. Rows without a label, or of class -1, are skipped; `keep_unlabelled` keeps them, and drops the
        labels of all if there are any. `classes` are the names that a model has, see `class_names`.
        """
        readers, names = labelled_readers(data, name, keep_unlabelled=keep_unlabelled, classes=classes)
        tokenised = []
        for source, dataset, reader in readers:
            check_framing(self.tokenizers, len(reader.kind.texts))
            tokenised.append(self._tokenise(source, dataset, reader))

        rows, counts, live = _joined(tokenised)
        warn_of_skipped(len(rows), [dataset for _, dataset, _ in readers])

        if keep_unlabelled and any(value < 0 or math.isnan(value) for value in rows["label"]):
            rows = rows.remove_columns("label")
        return PreparedRows(rows, {**counts, "labels": dict.fromkeys(names, 0)}, live)

    def _convert(self, data: Any, name: str, *forms: str) -> Any:
        if hasattr(data, "lengths") or isinstance(data, StreamedRows):
            return data

        datasets: dict[str, list[tuple[Any, RowReader]]] = {form: [] for form in forms}
        for key, dataset in unread_datasets(data, name):
            form, reader = self._open(key, first_draw(dataset), forms, name)
            datasets[form].append((dataset, reader))

        if has_stream(data):
            streams = chain.from_iterable(datasets.values())
            return StreamedRows([self._stream(dataset, reader) for dataset, reader in streams])

        converted: list[PreparedRows] = []
        for form in forms:
            if datasets[form]:
                rows = self._prepare(form, datasets[form])
                if len(rows):
                    converted.append(rows)

        if not converted:
            raise XlsrError(f"no row of `{name}` is usable: they have empty texts or no label.")
        return ConcatenatedRows(converted) if len(converted) > 1 else converted[0]

    def _prepare(self, form: str, datasets: Sequence[tuple[Dataset, RowReader]]) -> PreparedRows:
        """The rows of all datasets of one form."""
        tokenised = [self._tokenise(dataset, first_draw(dataset), reader) for dataset, reader in datasets]
        rows, counts, live = _joined(tokenised)
        if form != "running text":
            warn_of_skipped(len(rows), [dataset for dataset, _ in datasets])
        return _PREPARED.get(form, PreparedRows)(rows, counts, live)

    def _open(
        self,
        key: str,
        data: Dataset | IterableDataset,
        forms: Sequence[str],
        name: str,
    ) -> tuple[str, RowReader]:
        """The form of a dataset, and a reader of its rows."""
        shown_name = f"`{name}` ('{key}')" if key else f"`{name}`"
        first_row: Mapping[str, Any] = next(iter(data), {})
        label = (data.features or {}).get("label")
        label_names = label.names if isinstance(label, ClassLabel) else ()

        for form in forms:
            reader = open_reader(_KINDS[form], first_row, key=key, languages=self.languages, label_names=label_names)
            if reader:
                self._require_languages(reader, first_row, shown_name)
                return form, reader

        raise _unexpected_columns(shown_name, first_row, [_KINDS[form] for form in forms])

    def _require_languages(self, reader: RowReader, first_row: Mapping[str, Any], shown_name: str) -> None:
        """Raises where each language has a tokenizer and nothing names the languages of the rows."""
        if not isinstance(self.tokenizers, Mapping) or reader.columns == ("translation",):
            return
        for column, default in zip(reader.kind.languages, reader.languages, strict=True):
            is_unnamed = column not in first_row and default in (*UNNAMED, UNDETERMINED)
            if is_unnamed and default not in self.tokenizers:
                raise XlsrError(
                    f"{shown_name} names no languages, but each has its own tokenizer. Add columns (`source_lang` and "
                    "`target_lang`, or `lang`), or use a dict such as {'en-de': dataset}."
                )

    def _tokenise(self, source: Dataset, data: Dataset, reader: RowReader) -> Tokenised:
        """The rows that were read from a source, from the cache or made there."""
        encoder = self._encoder(reader, reader.kind)
        # Also empty prompts: one that a user names counts more than the default one.
        prompts = [dict(self.prompts.texts), self.prompts.default, sorted(self.prompts.from_user)]
        facts = [VERSION, address_of_rows(data), repr(reader), self._identity, self.max_length, prompts]
        address = address_of(facts)

        def make(folder: Path) -> None:
            rows = with_neighbours(data) if reader.ordered else data
            tokenise_rows(rows, reader, encoder, folder, self.num_proc)

        folder = cached(address, make)
        rows = open_rows(folder / "rows.arrow", address)
        live = None
        if has_transform(source):
            if reader.is_running_text:
                logger.warning("A transform of running text is applied once, not in every epoch.")
            else:
                live = LiveRows(source, data, reader, encoder)
        return Tokenised(rows, read_json(folder / "report.json"), live)

    def _stream(self, data: Dataset | IterableDataset, reader: RowReader) -> Stream:
        kind = CONSECUTIVE if reader.kind == SENTENCES else reader.kind
        size = None
        if isinstance(data, Dataset):
            size = len(data)
            data = transformed_stream(data, min(size, _STREAM_SHARDS))
        return Stream(data, reader.stream, self._encoder(reader, kind), kind, size, reader.ordered)

    def _encoder(self, reader: RowReader, kind: RowKind) -> RowEncoder:
        encoder_class = LabelledEncoder if kind.is_sequence else RowEncoder
        return encoder_class(kind, self.tokenizers, self.max_length, self.prompts, bool(reader.negatives))

    @cached_property
    def _identity(self) -> str | None:
        return tokenizer_hash(self.tokenizers)


def tokenise_rows(
    rows: Dataset,
    reader: RowReader,
    encoder: RowEncoder,
    folder: Path,
    num_proc: Processes = None,
) -> None:
    """Tokenises rows in tasks of `SHARD_ROWS` into `rows.arrow`, and their counts into `report.json`.

    One file at the end: a dataset of thousands of files would need as many open files.
    """
    shards = folder / "shards"
    shards.mkdir(exist_ok=True)
    schema = encoder.features.arrow_schema
    work = partial(write_tokens, rows, reader, encoder)

    with pa.OSFile(str(folder / "rows.arrow"), "wb") as file, pa.ipc.new_stream(file, schema) as writer:
        total = TokenCounts(encoder.counts.tokenizers, encoder.counts.max_length)
        for task in runner_of(num_proc).run(work, _token_tasks(shards, len(rows)), description="tokenising"):
            batches, counts = read_tokens(task.output)
            for batch in batches:
                writer.write_batch(batch)
            total.add(counts)

    write_json(folder / "report.json", total.report())
    shutil.rmtree(shards)


def _token_tasks(folder: Path, num_rows: int) -> Iterator[Task]:
    for number, start in enumerate(range(0, num_rows, SHARD_ROWS)):
        yield Task(folder / f"{number:06d}.arrow", range(start, min(start + SHARD_ROWS, num_rows)))


def write_tokens(
    rows: Dataset,
    reader: RowReader,
    encoder: RowEncoder,
    path: Path,
    numbers: range,
) -> None:
    """Writes the tokenised rows of some numbers to an Arrow file; each batch has the counts of the file so far."""
    schema = encoder.features.arrow_schema
    encoder.counts.clear()
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, schema) as writer:
        for start in range(numbers.start, numbers.stop, BATCH_ROWS):
            text_rows = list(reader(rows[start : min(start + BATCH_ROWS, numbers.stop)]))
            if text_rows:
                batch = pa.RecordBatch.from_pydict(encoder.encode(text_rows), schema)
                writer.write_batch(batch, custom_metadata={_COUNTS: json.dumps(encoder.counts.counts)})


def read_tokens(path: Path) -> tuple[list[pa.RecordBatch], dict[str, dict[str, int]]]:
    """The batches that `write_tokens` wrote, and the counts of all of them."""
    batches: list[pa.RecordBatch] = []
    counts: dict[str, dict[str, int]] = {}
    with pa.memory_map(str(path)) as file:
        for batch, metadata in pa.ipc.open_stream(file).iter_batches_with_custom_metadata():
            batches.append(batch)
            counts = json.loads(metadata[_COUNTS])
    return batches, counts


def _unexpected_columns(shown_name: str, columns: Iterable[str], kinds: Iterable[RowKind]) -> XlsrError:
    """The error for a dataset with other columns than those of some kinds of rows."""
    expected = " or: ".join(kind.accepted for kind in kinds)
    return XlsrError(
        f"{shown_name} has the columns {', '.join(columns) or '(none: it is empty)'}; expected {expected}."
    )


def _joined(tokenised: Sequence[Tokenised]) -> tuple[Dataset, dict[str, int], dict[range, LiveRows]]:
    """Several tokenised datasets one after the other, the sums of their counts, and where rows are live."""
    all_rows: list[Dataset] = []
    total = Counter[str]()
    live: dict[range, LiveRows] = {}
    start = 0
    for part in tokenised:
        all_rows.append(part.rows)
        total.update(part.counts)
        end = start + len(part.rows)
        if part.live is not None:
            live[range(start, end)] = part.live
        start = end
    return concatenate_datasets(all_rows), dict(total), live


def labelled_readers(
    data: Any, name: str, *, keep_unlabelled: bool = False, classes: Sequence[str] = ()
) -> tuple[list[tuple[Any, Dataset, RowReader]], list[str]]:
    """The datasets of labelled data, each also with its transform applied once and its reader; the names of the classes.

    See `DataConverter.labelled`.
    """
    datasets: list[tuple[str, Any, Dataset]] = []
    for key, source in unread_datasets(data, name):
        dataset = read_once(source)
        if keep_unlabelled and "label" not in dataset.column_names:
            dataset = dataset.add_column("label", [-1] * len(dataset))
        datasets.append((key, source, dataset))

    drawn = {str(number): dataset for number, (_, _, dataset) in enumerate(datasets)}
    names = class_names(drawn, name, classes)
    readers = []
    for key, source, dataset in datasets:
        reader = _labelled_reader(key, dataset, name, keep_unlabelled)
        if dataset.features["label"].dtype in TEXT_TYPES:
            reader = replace(reader, label_names=tuple(names))
        readers.append((source, dataset, reader))
    return readers, names


def _labelled_reader(key: str, data: Dataset, name: str, keep_unlabelled: bool) -> RowReader:
    for kind in LABELLED.values():
        reader = open_reader(kind, dict.fromkeys(data.column_names), key=key, keeps_unlabelled=keep_unlabelled)
        if reader is None or not len(data):
            continue

        if data.features["label"].dtype.startswith("float"):
            reader = replace(reader, kind=replace(kind, kept={"label": "float32"}))
        return reader

    raise _unexpected_columns(f"`{name}`", data.column_names if len(data) else (), LABELLED.values())


def warn_of_skipped(num_rows: int, datasets: Iterable[Dataset]) -> None:
    """Warns if fewer rows are used than datasets have."""
    num_read = sum(map(len, datasets))
    if num_rows < num_read:
        logger.warning("%d of %d rows are skipped: an empty text, or no label.", num_read - num_rows, num_read)
