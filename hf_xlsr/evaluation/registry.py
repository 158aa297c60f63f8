"""The registry of protocols: what each measures, which columns and options it takes, and how it is run."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from hf_xlsr.evaluation import protocol_runs as runs
from hf_xlsr.evaluation.senteval.tasks import TASKS
from hf_xlsr.utils.errors import XlsrError, nearest

# Options of the command that only some protocols take, as attributes of `Request`.
DATA_OPTIONS = ("pool", "gold", "tune", "tune_gold", "train", "train_language", "hold_out", "debias")
CHOICES = ("head", "epochs", "learning_rate", "cross", "setting", "subsets", "k", "margin", "seed", "device")
# A seed and a device are no mistake with a protocol in which nothing is random, or that runs wherever the encoder does.
_FOR_ALL = ("seed", "device")

Layout = Literal["pairs", "rows", "trained", "tasks", "bitext", "mteb"]


@dataclass(frozen=True)
class Protocol:
    """One protocol.

    Attributes:
        name: What `--protocol` and metric keys call it.
        summary: What it measures, in one line.
        layout: How `--data` is taken: `pairs` (a table, or two line-aligned files), `rows` (a table), `trained` (a
            table to test on, and rows to train a head on), `tasks` (a table a task), `bitext` (two files of id, tab
            and text, with a gold file) or `mteb` (names of tasks).
        required: Columns that no row may lack.
        optional: Columns that are read where a file has them.
        options: Attributes of `Request` that it takes beside those for all.
        function: Module and name of the function behind it.
        run: Calls it.
        nullable: Required columns that may be empty in a row; the protocol itself says what that means.
        tasks: Required columns by task, where each task has its own.
    """

    name: str
    summary: str
    layout: Layout
    required: tuple[str, ...]
    optional: tuple[str, ...]
    options: tuple[str, ...]
    function: tuple[str, str]
    run: runs.Run
    nullable: tuple[str, ...] = ()
    tasks: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def data(self) -> tuple[object, ...]:
        """What its data look like: protocols for which it is equal take the same files."""
        return self.layout, self.required

    @property
    def columns(self) -> tuple[str, ...]:
        """All columns that it reads."""
        own = (name for columns in self.tasks.values() for name in columns)
        return tuple(dict.fromkeys((*self.required, *own, *self.optional)))

    @property
    def takes(self) -> str:
        """The same in words."""
        columns = "; or ".join(dict.fromkeys(map(", ".join, self.tasks.values()))) or ", ".join(self.required)
        words = {
            "pairs": f"a table with {columns}, or two line-aligned files",
            "rows": f"a table with {columns}",
            "trained": f"a table with {columns}",
            "tasks": f"a table a task with {columns}",
            "bitext": "two files of id, tab and text, and a gold file",
            "mteb": "names of mteb's tasks",
        }
        return words[self.layout]

    def columns_of(self, task: str) -> tuple[str, ...]:
        """The required columns of one of `tasks`; a name of the user's own may follow behind a dot.

        Raises:
            XlsrError: there is no such task.
        """
        front = task.partition(".")[0]
        if front not in self.tasks:
            raise XlsrError(
                f"protocol {self.name} has no task '{task}'; {nearest(front, self.tasks)} A file is called after its "
                "task, or given as TASK=FILE."
            )
        return self.tasks[front]

    def defaults(self) -> dict[str, Any]:
        """What the protocol chooses where the user says nothing, by option."""
        known = inspect.signature(runs.function(*self.function)).parameters
        return {
            option: known[option].default
            for option in self.options
            if option in known and known[option].default not in (inspect.Parameter.empty, None)
        }


_PAIR = ("source", "target")
_TEXTS = ("sentence1", "sentence2")
_TRAINED = ("train", "tune", "train_language", "hold_out", "head", "epochs", "learning_rate", "seed")


def _of_pairs(name: str, summary: str, module: str, *options: str, run: runs.Run | None = None) -> Protocol:
    place = f"protocols.{module}", name.replace("-", "_")
    optional = ("source_lang", "target_lang", "split")
    options = (*options, "debias")
    return Protocol(name, summary, "pairs", _PAIR, optional, options, place, run or runs.pairwise(*place))


def _of_rows(
    name: str,
    summary: str,
    layout: Layout,
    required: tuple[str, ...],
    options: tuple[str, ...],
    run: runs.Run | None = None,
    optional: tuple[str, ...] = (),
    nullable: tuple[str, ...] = (),
) -> Protocol:
    place = f"protocols.{name.replace('-', '_')}", name.replace("-", "_")
    optional = (*optional, "lang", "split")
    return Protocol(name, summary, layout, required, optional, options, place, run or runs.trained(*place), nullable)


_ALL = (
    _of_pairs("tatoeba", "accuracy of the nearest sentence by cosine, both ways", "tatoeba"),
    _of_pairs("tatoeba-laser", "LASER's error rate of the same, both ways", "tatoeba_variants"),
    _of_pairs(
        "tatoeba-xtreme",
        "XTREME's accuracy: English asks, the other language answers",
        "tatoeba_variants",
        run=runs.tatoeba_xtreme,
    ),
    _of_pairs("tatoeba-mteb", "mteb's weighted F1, source to target", "tatoeba_variants"),
    _of_pairs("xsim", "LASER's error rate of the best margin among k neighbours", "xsim", "k", "margin"),
    _of_pairs("xsr", "precision at 1, 5 and 10 among a pool, both ways", "xsr", "pool", run=runs.xsr),
    Protocol(
        "bucc",
        "F1 of mined hidden translations; the threshold is tuned on other data",
        "bitext",
        (),
        (),
        ("gold", "tune", "tune_gold", "k", "margin"),
        ("protocols.bucc", "bucc_settings"),
        runs.bucc,
    ),
    _of_rows(
        "sts",
        "correlation of cosines with gold scores: all, mean and wmean",
        "tasks",
        (*_TEXTS, "score"),
        ("subsets",),
        runs.sts,
        ("subset",),
        nullable=("score",),
    ),
    _of_rows(
        "pair-classification",
        "average precision of similarities; accuracy and F1 at a tuned threshold",
        "rows",
        (*_TEXTS, "label"),
        ("tune",),
        runs.pair_classification,
    ),
    _of_rows(
        "language-bias",
        "share of the query's own language among the nearest of parallel sentences, over the unbiased share",
        "rows",
        ("text",),
        ("k", "debias"),
        runs.language_bias,
    ),
    _of_rows(
        "zero-shot",
        "accuracy in every language of a classifier trained in one",
        "trained",
        ("text", "label"),
        _TRAINED,
    ),
    _of_rows(
        "nli",
        "accuracy in every language of an inference classifier trained in one",
        "trained",
        ("premise", "hypothesis", "label"),
        (*_TRAINED, "cross"),
    ),
    Protocol(
        "senteval",
        "accuracy of SentEval's classifiers on frozen vectors",
        "tasks",
        ("text", "label"),
        ("lang", "split"),
        ("setting", "seed", "device"),
        ("senteval.evaluate", "senteval"),
        runs.senteval,
        tasks={name: spec.columns for name, spec in TASKS.items()},
    ),
    Protocol(
        "mteb", "mteb's own evaluation of its tasks", "mteb", (), (), (), ("mteb.evaluate", "evaluate_mteb"), runs.mteb
    ),
)

PROTOCOLS: Mapping[str, Protocol] = {protocol.name: protocol for protocol in _ALL}


def protocols_of(names: str) -> list[Protocol]:
    """The protocols of `--protocol`.

    Args:
        names: One name or several, with commas between.

    Raises:
        XlsrError: a name is unknown or stands twice, or the protocols do not take the same data.

    Example:
        >>> [protocol.name for protocol in protocols_of("tatoeba,xsim")]
        ['tatoeba', 'xsim']
    """
    chosen: dict[str, Protocol] = {}
    for name in (piece.strip() for piece in names.split(",")):
        if name not in PROTOCOLS:
            raise XlsrError(f"protocol is '{name}'; {nearest(name, PROTOCOLS)}")
        if name in chosen:
            raise XlsrError(f"protocol '{name}' stands twice in '{names}'; name it once.")
        chosen[name] = PROTOCOLS[name]
    first, *others = chosen.values()
    for other in others:
        if other.data != first.data:
            raise XlsrError(
                f"protocols {first.name} and {other.name} take different data ({first.takes}; {other.takes}); evaluate "
                "them one at a time."
            )
    return list(chosen.values())


def check_options(given: Collection[str], protocols: Sequence[Protocol]) -> None:
    """Refuses an option that none of the protocols takes.

    Args:
        given: Those of `DATA_OPTIONS` and `CHOICES` that the user gave.
        protocols: What is to be run.

    Raises:
        XlsrError: there is such an option; the sentence names who takes it.
    """
    for option in given:
        if option in _FOR_ALL or any(option in protocol.options for protocol in protocols):
            continue
        takers = [protocol.name for protocol in PROTOCOLS.values() if option in protocol.options]
        names = ", ".join(protocol.name for protocol in protocols)
        raise XlsrError(
            f"--{option.replace('_', '-')} is for protocol {' or '.join(takers)}; leave it out with {names}."
        )
