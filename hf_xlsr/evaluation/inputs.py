"""What a protocol is run on: the sentences that a request means."""

from __future__ import annotations

import logging
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from hf_xlsr.data.columns import parse_columns
from hf_xlsr.data.formats.reading import detect_format, expand_braces, format_suffix, read_rows
from hf_xlsr.data.sources import whole_number
from hf_xlsr.data.splits import split_name
from hf_xlsr.encoders.encoding import EncodingOptions
from hf_xlsr.evaluation.input_languages import UNKNOWN, key_languages, pair_views
from hf_xlsr.evaluation.input_rows import MTEB, TAGS, Row, RowReader, data_name, is_table, parse_where
from hf_xlsr.evaluation.request import Request
from hf_xlsr.evaluation.row_groups import by_language, by_pair
from hf_xlsr.utils.errors import XlsrError, did_you_mean
from hf_xlsr.utils.hashing import data_hash

if TYPE_CHECKING:
    from hf_xlsr.encoders.debias.removal import Debias
    from hf_xlsr.evaluation.protocols.bucc_data import BuccData
    from hf_xlsr.evaluation.registry import Protocol


logger = logging.getLogger(__name__)


@dataclass
class Inputs:
    """The data of one request, read.

    Attributes:
        name: What keys call it.
        split: What keys call its part.
        rows: Rows to test on; one list, or one for each task.
        train: Rows to learn from.
        tune: Rows to choose on.
        pool: Rows that are candidates only.
        bitexts: `test` and `tune` of BUCC data.
        languages: Source and target of BUCC data.
        train_language: Language of `train`.
        revisions: Of data that mteb reads itself, by task.
        options: Choices of the user for the protocol that runs (`k`, `head`, ...), by name.
        encoding: How sentences become vectors.
        skipped: Rows that could not be used, by reason.
        debias: What is removed of each language's vectors, or `self`: what is fitted on the rows to test on.
    """

    name: str
    split: str
    rows: dict[str, list[Row]] = field(default_factory=dict)
    train: list[Row] = field(default_factory=list)
    tune: list[Row] = field(default_factory=list)
    pool: list[Row] = field(default_factory=list)
    bitexts: dict[str, BuccData] = field(default_factory=dict)
    languages: tuple[str, str] = ("", "")
    train_language: str = ""
    revisions: dict[str, str] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    encoding: EncodingOptions = field(default_factory=lambda: EncodingOptions())
    skipped: dict[str, int] = field(default_factory=dict)
    debias: Debias | Literal["self"] | None = None

    @property
    def only(self) -> list[Row]:
        """The rows of a protocol that takes one source of them."""
        return next(iter(self.rows.values()))

    @property
    def tune_languages(self) -> dict[str, str]:
        """In which language the rows are that each language is tuned on: its own, or the only one that there is.

        Raises:
            XlsrError: `tune` has several languages and lacks one of the test's.
        """
        tune = list(by_language(self.tune))
        chosen: dict[str, str] = {}
        for language in by_language(self.only) if tune else ():
            if len(tune) > 1 and language not in tune:
                raise XlsrError(
                    f"--tune has rows in {', '.join(tune)}, none in {language}; add them or give one language."
                )
            chosen[language] = language if language in tune else tune[0]
        return chosen

    @property
    def texts(self) -> dict[str, list[str]]:
        """The different sentences to test on, of each language."""
        texts: dict[str, dict[str, None]] = {}
        for row in self.only:
            for column, tag in (("source", "source_lang"), ("target", "target_lang"), ("text", "lang")):
                if column in row:
                    texts.setdefault(row[tag], {})[row[column]] = None
        return {language: list(distinct) for language, distinct in texts.items()}

    def hashes(self, columns: Sequence[str]) -> dict[str, str]:
        """`data_hash` of all that was read, by role, task and language."""
        parts = {f"data/{task}": rows for task, rows in self.rows.items()}
        parts |= {"train": self.train, "tune": self.tune, "pool": self.pool}
        cells: dict[str, list[str]] = {}
        for part, rows in parts.items():
            for row in rows:
                tags = [row[name] for name in ("source_lang", "target_lang", "lang") if name in row]
                key = f"{part}/{'-'.join(tags)}" if tags else part
                cells.setdefault(key, []).extend(str(row.get(column, "")) for column in columns)
        for part, data in self.bitexts.items():
            gold = (id_ for pair in sorted(data.gold) for id_ in pair)
            cells[part] = [*data.source_ids, *data.sources, *data.target_ids, *data.targets, *gold]
        return self.revisions | {key: data_hash(texts) for key, texts in cells.items()}


def read_inputs(request: Request, protocol: Protocol) -> Inputs:
    """Reads all data of a request.

    Args:
        request: What the user asked for.
        protocol: The one, or the first of several that take the same data.

    Raises:
        XlsrError: the files are too few or too many, a column, language or split is not there, or no row is left.
    """
    reader = RowReader(
        protocol=protocol.name,
        required=protocol.required,
        optional=protocol.optional,
        nullable=protocol.nullable,
        columns=parse_columns(request.columns),
        where=parse_where(request.where),
        config=request.config,
        limit=None if request.limit is None else whole_number(request.limit, "limit"),
    )
    for name in reader.columns:
        if protocol.columns and name not in protocol.columns:
            raise XlsrError(
                f"--columns has '{name}', which protocol {protocol.name} does not take; "
                f"{did_you_mean(name, protocol.columns)}"
            )
    inputs = Inputs(name=request.name or data_name(request.data), split=request.split)
    if protocol.layout == "bitext":
        _read_bitexts(request, inputs)
    elif protocol.layout == "mteb":
        _name_tasks(request, inputs)
    elif protocol.layout == "tasks":
        _read_tasks(request, protocol, reader, inputs)
    else:
        _check_count(request.data, "--data", paired=reader.paired)
        inputs.rows = {inputs.name: reader.read(request.data, request.split, request.languages)}
        _check_apart(request, protocol, reader)
        if protocol.layout == "trained":
            _read_training(request, protocol, reader, inputs)
        elif request.tune:
            _check_count(request.tune, "--tune", paired=False)
            inputs.tune = reader.read(request.tune, "dev", request.languages)
            _check_rows_apart(inputs, protocol)
        if request.pool:
            inputs.pool = _read_pool(request, reader)
    _name_languages(inputs)
    if request.pool:
        _check_pool(inputs)
    inputs.skipped = reader.quarantine.counts
    if inputs.skipped:
        logger.warning("%s: %s", " ".join(request.data), reader.quarantine.report())
    return inputs


def _name_languages(inputs: Inputs) -> None:
    """Gives languages the same names in all that was read: a file alone may hold too few to tell two scripts apart."""
    rows = [*chain(*inputs.rows.values()), *inputs.train, *inputs.tune, *inputs.pool]
    tags = [row.pop(TAGS, {}) for row in rows]
    codes = key_languages({tag for names in tags for tag in names.values()})
    for row, names in zip(rows, tags, strict=True):
        row |= {column: codes[tag] for column, tag in names.items()}
    if inputs.train:
        inputs.train_language = inputs.train[0]["lang"]


def _check_count(files: Sequence[str], option: str, *, paired: bool) -> None:
    if len(files) > (2 if paired else 1):
        what = "one table, or two line-aligned files" if paired else "one table"
        raise XlsrError(f"{option} has {len(files)} files; this protocol takes {what}: join them, or take each alone.")


def _read_tasks(request: Request, protocol: Protocol, reader: RowReader, inputs: Inputs) -> None:
    if request.name:
        raise XlsrError(f"--name does not go with protocol {protocol.name}, whose keys name tasks; give NAME=FILE.")
    for task, file in _task_files(request.data).items():
        if not protocol.tasks:
            inputs.rows[task] = reader.read((file,), request.split, request.languages)
            continue
        if request.split != "test":
            raise XlsrError(
                f"--split is '{request.split}'; protocol {protocol.name} has splits of its own, leave it out."
            )
        # Data sets tell splits by name; the rows of a file need a column for them.
        required = tuple(name for name in protocol.columns_of(task) if name != "split" or is_table((file,)))
        columns = {name: column for name, column in reader.columns.items() if name in (*required, *protocol.optional)}
        inputs.rows[task] = replace(reader, required=required, columns=columns).read_all((file,), request.languages)


def _task_files(pieces: Sequence[str]) -> dict[str, str]:
    """File by task, which is named in front of it (`NAME=FILE`) or by it."""
    files: dict[str, str] = {}
    for piece in pieces:
        task, equals, file = piece.partition("=")
        if not equals or Path(piece).exists():
            task, file = data_name([piece]), piece
        if task in files:
            raise XlsrError(f"--data has two files of task '{task}'; tell them apart by NAME=FILE.")
        files[task] = file
    return files


def _name_tasks(request: Request, inputs: Inputs) -> None:
    from hf_xlsr.evaluation.mteb.data import mteb_task

    for option in ("columns", "languages", "where", "config", "limit", "name"):
        if getattr(request, option):
            raise XlsrError(f"--{option} does not go with protocol mteb, whose tasks say it themselves; leave it out.")
    if request.split != "test":
        raise XlsrError(f"--split is '{request.split}'; protocol mteb tests the splits of its tasks, leave it out.")
    for name in request.data:
        if not name.startswith(MTEB):
            raise XlsrError(f"--data has '{name}'; protocol mteb runs tasks by name, give mteb:TASK.")
        task = name.removeprefix(MTEB)
        inputs.rows[task] = []
        inputs.revisions[task] = mteb_task(task).metadata.dataset["revision"]


def _read_bitexts(request: Request, inputs: Inputs) -> None:
    from hf_xlsr.evaluation.protocols.bucc_data import read_bucc

    for option in ("columns", "where", "config", "limit"):
        if getattr(request, option):
            raise XlsrError(
                f"--{option} is for tables; protocol bucc reads lines of id, tab and text, so leave it out."
            )
    if not request.tune:
        raise XlsrError(
            "--tune is missing; protocol bucc tunes its threshold on other data than it tests: --tune SOURCES TARGETS "
            "--tune-gold GOLD."
        )
    parts = ("test", "--data", request.data, request.gold), ("tune", "--tune", request.tune, request.tune_gold)
    for part, option, files, gold in parts:
        if len(files) != 2:
            raise XlsrError(f"{option} has {len(files)} file(s); protocol bucc takes two, of sources and of targets.")
        if not gold:
            name = "--gold" if part == "test" else "--tune-gold"
            raise XlsrError(f"{name} is missing; give the file of the pairs of ids that are translations in {option}.")
        inputs.bitexts[part] = read_bucc(files[0], files[1], gold)
    test, tune = inputs.bitexts["test"], inputs.bitexts["tune"]
    shared = [set(test.sources) & set(tune.sources), set(test.targets) & set(tune.targets)]
    if shared == [set(test.sources), set(test.targets)] == [set(tune.sources), set(tune.targets)]:
        raise XlsrError("--data and --tune hold the same texts; tune the threshold on other data.")
    if any(shared):
        logger.warning("%d sources and %d targets of --data stand in --tune too", *map(len, shared))
    if len(request.languages) not in (0, 2):
        raise XlsrError(
            f"--languages is {','.join(request.languages)}; give those of sources and targets, e.g. de,en."
        )
    first, second = (format_suffix(Path(file)).lstrip(".") for file in request.data)
    tags, _ = pair_views(request.languages, (first, second), each=False, told=())[0]
    if UNKNOWN in tags:
        raise XlsrError(f"{' and '.join(request.data)} do not end in their languages; say --languages de,en.")
    codes = key_languages(tags)
    inputs.languages = codes[tags[0]], codes[tags[1]]


def _read_training(request: Request, protocol: Protocol, reader: RowReader, inputs: Inputs) -> None:
    language = request.train_language or next(iter(request.languages), None)
    if language is None:
        raise XlsrError("the language that the head is trained in is not given; say --train-language, e.g. en.")
    for option, files in (("--train", request.train), ("--tune", request.tune)):
        _check_count(files, option, paired=False)
    train = request.train or request.data
    if not request.train and not reader.has_split(train, "train", (language,)):
        raise XlsrError(
            f"{' '.join(train)} does not tell rows of split 'train'; give rows to learn from by --train FILE, or say "
            "which column tells by --columns split=NAME."
        )
    inputs.train = reader.read(train, "train", (language,))
    if request.hold_out:
        if request.tune:
            raise XlsrError("--tune and --hold-out both say which rows the head is chosen on; give one of them.")
        # Looked at whole: the rows of a copy of the test would hide in the two parts.
        _check_rows_apart(inputs, protocol)
        inputs.train, inputs.tune = _held_out(inputs.train, request.hold_out)
        return
    places = [request.tune] if request.tune else list(dict.fromkeys((train, request.data)))
    tune = next((files for files in places if request.tune or reader.has_split(files, "dev", (language,))), None)
    if tune is None:
        named = " and ".join(" ".join(files) for files in places)
        raise XlsrError(
            f"no split 'dev' in {named}; give rows to choose the head on by --tune FILE, or take a tenth of the "
            "training rows by --hold-out COLUMN."
        )
    inputs.tune = reader.read(tune, "dev", (language,))
    _check_rows_apart(inputs, protocol)


def _held_out(rows: list[Row], column: str) -> tuple[list[Row], list[Row]]:
    """Rows without and with those whose column has a crc32 that ten divides: equal texts stay together."""
    if column not in rows[0]:
        raise XlsrError(
            f"--hold-out is '{column}', which is none of the columns read; {did_you_mean(column, rows[0])}"
        )
    held = [zlib.crc32(str(row[column]).encode()) % 10 == 0 for row in rows]
    parts = [[row for row, out in zip(rows, held, strict=True) if out == wanted] for wanted in (False, True)]
    if not all(parts):
        raise XlsrError(
            f"--hold-out {column} leaves all {len(rows)} rows on one side; give rows to choose on by --tune."
        )
    return parts[0], parts[1]


def _check_apart(request: Request, protocol: Protocol, reader: RowReader) -> None:
    """What is tested is not to be learnt from or chosen on."""
    split = split_name(request.split)
    if protocol.layout == "trained" and split in ("train", "dev"):
        raise XlsrError(
            f"--split is '{request.split}'; protocol {protocol.name} learns on train and chooses on dev, so test another "
            "split, or leave it out where a file has none."
        )
    for option, files, role in (("--train", request.train, "train"), ("--tune", request.tune, "dev")):
        if _places(files) != _places(request.data):
            continue
        if role == split or not reader.tells_splits(files, request.languages):
            raise XlsrError(
                f"{option} and --data would be the same rows of {' '.join(files)}; give other rows, or a column 'split' "
                "that tells them apart."
            )


def _check_rows_apart(inputs: Inputs, protocol: Protocol) -> None:
    """Refuses texts to learn from or to choose on that are those of the test; warns where some are.

    Labels, languages and order do not count: a copy of the test file is no other data for being called otherwise.
    """
    columns = [name for name in protocol.required if name != "label"]

    def texts(rows: Iterable[Row]) -> list[tuple[str, ...]]:
        return [tuple(str(row[name]) for name in columns) for row in rows]

    tested = {language: texts(rows) for language, rows in by_language(inputs.only).items()}
    for option, role, rows in (("--train", "learnt from", inputs.train), ("--tune", "chosen on", inputs.tune)):
        for language, group in by_language(rows).items():
            seen = set(texts(group))
            same = next((other for other, test in tested.items() if set(test) == seen), None)
            if same is not None:
                raise XlsrError(
                    f"the {len(group)} rows in {language} to be {role} have the same texts as those in {same} to be "
                    f"tested; give other rows by {option}."
                )
            shared = sum(text in seen for test in tested.values() for text in test)
            if shared:
                total = sum(map(len, tested.values()))
                logger.warning(
                    "%d of %d rows of the test stand among those in %s that are %s", shared, total, language, role
                )


def _check_pool(inputs: Inputs) -> None:
    """Refuses a pool that nothing would be taken from, and lines that would be in several languages."""
    if not inputs.pool:
        raise XlsrError("--pool has no sentence; leave it out, or give one that has.")
    pairs = by_pair(inputs.only)
    targets = list(dict.fromkeys(target for _, target in pairs))
    if "source_lang" not in inputs.pool[0]:
        if len(targets) > 1:
            raise XlsrError(
                f"--pool is lines of one language, and --data has targets in {', '.join(targets)}; evaluate one language "
                "at a time, or give pairs."
            )
        return
    present = by_pair(inputs.pool)
    alone = [pair for pair in pairs if pair not in present and pair[::-1] not in present]
    if len(alone) == len(pairs):
        has, wanted = (", ".join(map("-".join, groups)) for groups in (present, pairs))
        raise XlsrError(f"--pool has pairs in {has} and --data in {wanted}; give a pool in the languages of --data.")
    if alone:
        logger.warning(
            "--pool has nothing in %s, whose candidates are those of --data", ", ".join(map("-".join, alone))
        )


def _places(files: Sequence[str]) -> list[str]:
    return [str(Path(file).resolve()) if Path(file).exists() else file for file in files]


def _read_pool(request: Request, reader: RowReader) -> list[Row]:
    _check_count(request.pool, "--pool", paired=True)
    reader = replace(reader, limit=None)  # all of it: with fewer candidates retrieval is another, easier test
    if not is_table(request.pool):
        return reader.read(request.pool, request.split, request.languages)
    paths = expand_braces(request.pool[0])[0]
    if len(request.pool) == len(paths) == 1 and detect_format(paths) == "moses":
        # The lines of one file are targets without sources.
        return list(read_rows(paths[0], required=("target",), quarantine=reader.quarantine))
    return reader.read(request.pool, None, request.languages)
