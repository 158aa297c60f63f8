"""Batches of features from streams, whose length is unknown: shuffled, mixed and bucketed by length."""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count, islice
from typing import Any, NamedTuple

import numpy as np
import torch
from datasets import IterableDataset
from torch.utils.data import IterableDataset as TorchIterableDataset
from torch.utils.data import get_worker_info

from hf_xlsr.data.columns import Row
from hf_xlsr.data.encoding import RowKind, text_identities
from hf_xlsr.data.prepared import examples_of
from hf_xlsr.data.sampling import (
    MAIN,
    TASK,
    Batching,
    LengthBucketBatchSampler,
    balanced_length_order,
    fetch_by_group,
    mixing_power,
)
from hf_xlsr.utils.errors import XlsrError

logger = logging.getLogger(__name__)

_READ = 1000  # raw rows read together
_BLOCK = 1024  # streams drawn together
_EPOCHS_OF_OTHERS = 12  # bits for the epochs that another task needs during one of the main task

Features = list[dict[str, Any]]


@dataclass
class Stream:
    """Rows of a `datasets.IterableDataset`, tokenised by `encoder.encode` when they are used."""

    data: IterableDataset
    read: Callable[[Iterable[Any]], Iterator[Row]]  # rows of text of batches of raw rows
    encoder: Any
    kind: RowKind
    size: int | None = None  # raw rows, where known
    ordered: bool = False  # rows must be read in their order


@dataclass
class StreamedRows:
    """Streams whose rows are mixed: what prepared rows are for stored data. `StreamBatches` makes batches of it."""

    streams: Sequence[Stream]


class FeatureBatches(TorchIterableDataset[Features]):
    """Batches of features, as a function of the epoch: a dataset for a `DataLoader` with `batch_size=None`.

    The workers of a data loader take turns, so that their number does not change the batches. Skipping the first `n`
    batches resumes exactly. An iteration has `epochs` epochs from the one of `set_epoch` on; None is endless.
    """

    def __init__(self, epochs: int | None = 1) -> None:
        self.epochs = epochs
        self._epoch = torch.zeros((), dtype=torch.long)
        self._epoch.share_memory_()

    def set_epoch(self, epoch: int) -> None:
        """Selects the epoch at which the next iteration starts."""
        self._epoch.fill_(epoch)

    @abstractmethod
    def draw(self, epoch: int) -> Iterator[Any]:
        """This process's batches of an epoch, at least one, before the work that one worker does for each."""

    @abstractmethod
    def fetch(self, drawn: Any) -> Features:
        """The features of a drawn batch."""

    def draw_all(self, first: int, epochs: int | None) -> Iterator[Any]:
        """The drawn batches of some epochs from `first` on; None is endless."""
        for epoch in islice(count(first), epochs):
            yield from self.draw(epoch)

    def __iter__(self) -> Iterator[Features]:
        worker = get_worker_info()
        start, step = (worker.id, worker.num_workers) if worker else (0, 1)
        batches = self.draw_all(int(self._epoch), self.epochs)
        yield from map(self.fetch, islice(batches, start, None, step))


class _Drawn(NamedTuple):
    """A row that was read, not yet tokenised."""

    stream: int
    epoch: int
    row: Row


class StreamBatches(Batching, FeatureBatches):
    """Batches of streamed rows of similar length.

    An epoch is a pure function of `(seed, epoch)`: each stream is shuffled by `IterableDataset.shuffle` and mixed with
    the others; of each `buffer_size` rows (at least four global batches), sorted by length, full batches are made and
    shuffled, and rows left over wait for the next ones. The last rows that fill no batch are dropped if rows are
    compared, else they are a smaller batch. Streams are mixed by size if all sizes are known, else with equal shares.
    `proportional` yields each row once; otherwise shorter streams start again until the longest has ended. The `index` of
    a row is a hash of its texts, the same in every epoch, process and run.

    Examples:
        >>> from hf_xlsr.data.conversion import DataConverter
        >>> from hf_xlsr.data.tokenization import train_tokenizer
        >>> tokenizer = train_tokenizer(["the cat sat", "die Katze lag"] * 50, vocab_size=30, algorithm="bpe")
        >>> rows = IterableDataset.from_generator(lambda: ({"en": "the cat", "de": "lag"} for _ in range(9)))
        >>> batches = StreamBatches(DataConverter(tokenizer).pairs(rows), batch_size=4)
        >>> [len(batch) for batch in batches], next(iter(batches))[0]["source_lang"]
        ([4, 4], 'en')
    """

    def __init__(
        self,
        data: StreamedRows,
        batch_size: int,
        *,
        buffer_size: int = 10_000,
        epochs: int | None = 1,
        **options: Any,
    ) -> None:
        Batching.__init__(self, batch_size, **options)
        FeatureBatches.__init__(self, epochs)
        self.streams = list(data.streams)
        self.buffer_size = max(buffer_size, 4 * self.global_batch)

        power = mixing_power(self.mixing, self.exponent)
        if any(stream.size is None for stream in self.streams):
            power = 0.0
        self.shares = np.array([float(stream.size or 1) ** power for stream in self.streams])

    def draw(self, epoch: int) -> Iterator[list[_Drawn]]:
        rng = np.random.default_rng([self.seed, epoch])
        rows = self._mixed(epoch)
        num_rows = 0
        waiting: dict[tuple[str, ...], list[_Drawn]] = {}
        groups_with_batches = set()
        for block in iter(lambda: list(islice(rows, self.buffer_size)), []):
            num_rows += len(block)
            for item in block:
                group = self._languages(item) if self.homogeneous else ()
                waiting.setdefault(group, []).append(item)

            batches = []
            for group, items in waiting.items():
                full_batches, waiting[group] = self._split(items, rng)
                if full_batches:
                    batches += full_batches
                    groups_with_batches.add(group)
            for number in rng.permutation(len(batches)):
                yield batches[number][self.own_rows]

        for group, items in waiting.items():
            if self.num_batches(len(items)):
                groups_with_batches.add(group)
                size = len(items) // self.num_processes
                yield items[self.process_index * size :][:size]
            elif self.homogeneous and group not in groups_with_batches and self.process_index == 0:
                logger.warning("%d rows of %s are skipped: fewer than a batch.", len(items), "-".join(group))

        if not groups_with_batches:
            what = "rows of one language pair" if self.homogeneous else "rows"
            raise XlsrError(
                f"a batch needs {self.least_rows:,} {what}, got {num_rows:,} rows in all; lower {self.batch_option}."
            )

    def fetch(self, drawn: Sequence[_Drawn]) -> Features:
        return fetch_by_group([item.stream for item in drawn], drawn, self._encode)

    def _encode(self, stream: int, drawn: Sequence[_Drawn]) -> Features:
        """The features of rows of one stream."""
        columns = self.streams[stream].encoder.encode([item.row for item in drawn])
        columns.pop("length", None)
        names = self.streams[stream].kind.texts
        contents = text_identities(["\0".join(item.row[name] for name in names) for item in drawn])
        epochs = [item.epoch for item in drawn]
        return examples_of(columns, list(zip(epochs, contents, strict=True)))

    def _languages(self, item: _Drawn) -> tuple[str, ...]:
        return tuple(str(item.row[name]) for name in self.streams[item.stream].kind.languages)

    def _split(self, items: list[_Drawn], rng: np.random.Generator) -> tuple[list[list[_Drawn]], list[_Drawn]]:
        """Full batches of rows of similar length, and the rows left over, drawn at random."""
        num_batches = len(items) // self.global_batch
        used, left = np.split(rng.permutation(len(items)), [num_batches * self.global_batch])
        if self.bucket:
            used = used[self._length_order([items[number] for number in used], rng)]

        batches = []
        for start in range(0, len(used), self.global_batch):
            # Inside a batch the order is random: processes must not get the short and the long half.
            batch = rng.permutation(used[start : start + self.global_batch])
            batches.append([items[number] for number in batch])
        return batches, [items[number] for number in left]

    def _length_order(self, items: Sequence[_Drawn], rng: np.random.Generator) -> np.ndarray:
        """An order by length in bytes, in which every stretch has each stream and language in its share."""
        lengths = []
        strata = []
        for item in items:
            texts = map(item.row.__getitem__, self.streams[item.stream].kind.texts)
            lengths.append(max(len(text.encode()) for text in texts))
            strata.append(f"{item.stream} {self._languages(item)}")
        return balanced_length_order(np.array(lengths), np.array(strata), rng)

    def _mixed(self, epoch: int) -> Iterator[_Drawn]:
        """The rows of all streams, by their shares, until each has ended."""
        rng = np.random.default_rng([self.seed, epoch, 1])
        rows = {stream: self._rows(stream, epoch, 0) for stream in range(len(self.streams))}
        turns = Counter[int]()
        unfinished = set(rows)

        while unfinished:
            streams = list(rows)
            shares = self.shares[streams]
            for stream in rng.choice(streams, _BLOCK, p=shares / shares.sum()).tolist():
                row = next(rows[stream], None)
                if row is not None:
                    yield _Drawn(stream, epoch, row)
                    continue

                unfinished.discard(stream)
                if self.mixing == "proportional":
                    del rows[stream]
                else:
                    turns[stream] += 1
                    rows[stream] = self._rows(stream, epoch, turns[stream])
                break

    def _rows(self, number: int, epoch: int, turn: int) -> Iterator[Row]:
        """The rows of a stream in a random order; `turn` counts how often it started again in the epoch."""
        stream = self.streams[number]
        seed = int(np.random.SeedSequence([self.seed, number, epoch, turn]).generate_state(1)[0])
        if stream.ordered:
            data = stream.data.with_format(None)  # a copy, whose epoch shuffles its shards alone
            data.set_epoch(1 + seed)
        else:
            # Not `set_epoch`: it would shuffle again a stream that shuffles by itself, and a `skip` or `take` behind that
            # would let through rows that another split holds out.
            data = stream.data.shuffle(seed=seed, buffer_size=self.buffer_size)
        return stream.read(data.iter(_READ))


class KeyedBatches(FeatureBatches):
    """The batches of a stored dataset, fetched by a sampler's keys, for a task next to a stream."""

    def __init__(
        self,
        data: Any,
        sampler: LengthBucketBatchSampler,
        epochs: int | None = 1,
    ) -> None:
        super().__init__(epochs)
        self.data = data
        self.sampler = sampler

    def draw(self, epoch: int) -> Iterator[list[Any]]:
        self.sampler.set_epoch(epoch)
        return iter(self.sampler)

    def fetch(self, drawn: Any) -> Features:
        return list(self.data.__getitems__(drawn))


class MultiTaskBatches(FeatureBatches):
    """Batches of several tasks, any of which is streamed: each has a batch of the main task and one of every other.

    The main task sets the epoch, and the others start again when they end. An iteration from epoch `e` starts them at
    epochs that no other iteration uses. Features have their task under `TASK`, for `MultiTaskCollator`.
    """

    def __init__(
        self,
        main: FeatureBatches,
        others: Mapping[str, FeatureBatches],
        epochs: int | None = 1,
    ) -> None:
        super().__init__(epochs)
        self.tasks = {MAIN: main, **others}

    def draw(self, epoch: int) -> Iterator[dict[str, Any]]:
        return self.draw_all(epoch, 1)

    def draw_all(self, first: int, epochs: int | None) -> Iterator[dict[str, Any]]:
        main, *others = self.tasks.values()
        of_others = [task.draw_all(first << _EPOCHS_OF_OTHERS, None) for task in others]
        for drawn in zip(main.draw_all(first, epochs), *of_others, strict=False):
            yield dict(zip(self.tasks, drawn, strict=True))

    def fetch(self, drawn: Mapping[str, Any]) -> Features:
        features: Features = []
        for task, batch in drawn.items():
            features += [{TASK: task, **feature} for feature in self.tasks[task].fetch(batch)]
        return features
