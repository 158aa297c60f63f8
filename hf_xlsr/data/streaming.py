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

from hf_xlsr.data.encoding import Row, RowKind
from hf_xlsr.data.sampling import MAIN, TASK, Batching, LengthBucketBatchSampler, balanced_length_order, mixing_power
from hf_xlsr.utils.errors import XlsrError

logger = logging.getLogger(__name__)

_READ = 1000  # raw rows read together
_BLOCK = 1024  # streams drawn together
# Numbers of rows in different epochs differ: a memory queue compares rows of several epochs.
_EPOCH_BITS = 40
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


class FeatureBatches(TorchIterableDataset):
    """Batches of features, as a function of the epoch: a dataset for a `DataLoader` with `batch_size=None`.

    The workers of a data loader take turns, so that their number does not change the batches. Skipping the first `n`
    batches resumes exactly. An iteration has `epochs` epochs from the one of `set_epoch` on; None is endless.
    """

    batch_option = "per_device_train_batch_size"

    def __init__(self, epochs: int | None = 1) -> None:
        self.epochs = epochs
        self._epoch = torch.zeros((), dtype=torch.long).share_memory_()  # workers may live longer than an epoch

    def set_epoch(self, epoch: int) -> None:
        """Selects the epoch at which the next iteration starts."""
        self._epoch.fill_(epoch)

    @abstractmethod
    def draw(self, epoch: int) -> Iterator[Any]:
        """This process's batches of an epoch, before the work that one worker does for each."""

    @abstractmethod
    def fetch(self, drawn: Any) -> Features:
        """The features of a drawn batch."""

    def draw_all(self, first: int, epochs: int | None) -> Iterator[Any]:
        for epoch in count(first) if epochs is None else range(first, first + epochs):
            batches = self.draw(epoch)
            try:
                yield next(batches)
            except StopIteration:
                raise XlsrError(f"the data has fewer rows than one batch; lower {self.batch_option}.") from None
            yield from batches

    def __iter__(self) -> Iterator[Features]:
        worker = get_worker_info()
        start, step = (worker.id, worker.num_workers) if worker else (0, 1)
        yield from map(self.fetch, islice(self.draw_all(int(self._epoch), self.epochs), start, None, step))


class _Drawn(NamedTuple):
    """A row that was read, not yet tokenised."""

    stream: int
    epoch: int
    number: int
    row: Row


class StreamBatches(Batching, FeatureBatches):
    """Batches of streamed rows of similar length.

    An epoch is a pure function of `(seed, epoch)`: each stream is shuffled by `IterableDataset.shuffle` and mixed with
    the others; of each `buffer_size` rows (at least four global batches), sorted by length, full batches are made and
    shuffled, and rows left over wait for the next ones. The last rows that fill no batch are dropped. Streams are mixed
    by size if all sizes are known, else with equal shares. `proportional` yields each row once; otherwise shorter
    streams start again until the longest has ended.

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
        self, data: StreamedRows, batch_size: int, *, buffer_size: int = 10_000, epochs: int | None = 1, **options: Any
    ) -> None:
        Batching.__init__(self, batch_size, **options)
        FeatureBatches.__init__(self, epochs)
        self.streams, self.buffer_size = list(data.streams), max(buffer_size, 4 * self.global_batch)
        sizes, power = [stream.size for stream in self.streams], mixing_power(self.mixing, self.exponent)
        self.shares = np.array([1.0 if None in sizes else float(size or 0) ** power for size in sizes])

    def draw(self, epoch: int) -> Iterator[list[_Drawn]]:
        rng = np.random.default_rng([self.seed, epoch])
        rows, more = self._mixed(epoch), True
        waiting: dict[Any, list[_Drawn]] = {}
        made = Counter[Any]()
        while more:
            read = list(islice(rows, self.buffer_size))
            more = len(read) == self.buffer_size
            for one in read:
                waiting.setdefault(self._languages(one) if self.homogeneous else (), []).append(one)
            batches = []
            for group in waiting:
                found, waiting[group] = self._split(waiting[group], rng)
                batches += found
                made[group] += len(found)
            for place in rng.permutation(len(batches)):
                yield batches[place][self.own]
        for group, rest in waiting.items():
            if self.homogeneous and not made[group] and self.process_index == 0:
                logger.warning("%d rows of %s are skipped: fewer than a batch.", len(rest), "-".join(group))

    def fetch(self, drawn: Sequence[_Drawn]) -> Features:
        features: Features = [{} for _ in drawn]
        for number in {one.stream for one in drawn}:
            places = [place for place, one in enumerate(drawn) if one.stream == number]
            columns = self.streams[number].encoder.encode([drawn[place].row for place in places])
            columns.pop("length", None)
            for place, *values in zip(places, *columns.values(), strict=True):
                numbers = {"index": drawn[place].number, "epoch": drawn[place].epoch}
                features[place] = {**dict(zip(columns, values, strict=True)), **numbers}
        return features

    def _languages(self, one: _Drawn) -> tuple[str, ...]:
        return tuple(str(one.row[name]) for name in self.streams[one.stream].kind.languages)

    def _split(self, rows: list[_Drawn], rng: np.random.Generator) -> tuple[list[list[_Drawn]], list[_Drawn]]:
        order = rng.permutation(len(rows))
        whole = len(rows) // self.global_batch
        used, rest = np.split(order, [whole * self.global_batch])
        if self.bucket:
            drawn = [rows[place] for place in used]
            numbers: dict[Any, int] = {}
            strata = [numbers.setdefault((one.stream, self._languages(one)), len(numbers)) for one in drawn]
            texts = [[one.row[name] for name in self.streams[one.stream].kind.texts] for one in drawn]
            lengths = np.array([max(len(text.encode()) for text in some) for some in texts])  # bytes
            used = used[balanced_length_order(lengths, np.array(strata), lambda: rng)]
        # Inside a batch the order is random: processes must not get the short and the long half.
        batches = [rng.permutation(part) for part in np.split(used, whole)] if whole else []
        return [[rows[place] for place in batch] for batch in batches], [rows[place] for place in rest]

    def _mixed(self, epoch: int) -> Iterator[_Drawn]:
        rng, numbers = np.random.default_rng([self.seed, epoch, 1]), count(epoch << _EPOCH_BITS)
        rows = {stream: self._rows(stream, epoch, 0) for stream in range(len(self.streams))}
        turns, unfinished = Counter[int](), set(rows)
        while unfinished:
            shares = self.shares[list(rows)]
            for stream in rng.choice(list(rows), _BLOCK, p=shares / shares.sum()).tolist():
                row = next(rows[stream], None)
                if row is not None:
                    yield _Drawn(stream, epoch, next(numbers), row)
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
            data = stream.data.shuffle(seed=seed, buffer_size=self.buffer_size)
            data.set_epoch(epoch)
        return stream.read(data.iter(_READ))


class KeyedBatches(FeatureBatches):
    """The batches of a stored dataset, fetched by a sampler's keys, for a task next to a stream."""

    def __init__(self, data: Any, sampler: LengthBucketBatchSampler, epochs: int | None = 1) -> None:
        super().__init__(epochs)
        self.data, self.sampler = data, sampler

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

    def __init__(self, main: FeatureBatches, others: Mapping[str, FeatureBatches], epochs: int | None = 1) -> None:
        super().__init__(epochs)
        self.parts = {MAIN: main, **others}

    def draw(self, epoch: int) -> Iterator[dict[str, Any]]:
        return self.draw_all(epoch, 1)

    def draw_all(self, first: int, epochs: int | None) -> Iterator[dict[str, Any]]:
        main, *others = self.parts.values()
        parts = [main.draw_all(first, epochs), *(other.draw_all(first << _EPOCHS_OF_OTHERS, None) for other in others)]
        return (dict(zip(self.parts, drawn, strict=True)) for drawn in zip(*parts, strict=False))

    def fetch(self, drawn: Mapping[str, Any]) -> Features:
        return [{TASK: task, **feature} for task, batch in drawn.items() for feature in self.parts[task].fetch(batch)]
