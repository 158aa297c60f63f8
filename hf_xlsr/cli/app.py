"""The `hf-xlsr` command. Each verb is imported when it is called."""

import logging
from collections.abc import Sequence
from importlib import import_module
from importlib.metadata import version
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from hf_xlsr.cli.ending import Signals, unexpected
from hf_xlsr.cli.verbs import HELP, Verb, add_verb
from hf_xlsr.utils.console import log_printable, say, warn
from hf_xlsr.utils.errors import XlsrError, did_you_mean, error_line
from hf_xlsr.utils.files import is_full
from hf_xlsr.utils.plugins import recorded

# Verb -> module whose function or `Typer` has its name, and a summary.
VERBS: dict[str, tuple[str, str]] = {
    "train": ("train", "Train by a recipe, evaluate, export, write the card."),
    "prepare": ("train", "Prepare the data of a recipe ahead of its training."),
    "clean": ("clean", "Clean pairs, and measure what that costs."),
    "evaluate": ("evaluate", "Evaluate any sentence encoder under a protocol, or several under a suite."),
    "compare": ("evaluate", "Compare encoders: tables with intervals, and tests of the differences."),
    "submit": ("submit", "Make results of mteb's tasks ready for its leaderboard."),
    "plot": ("plot", "Plot translation pairs or retrieved languages."),
    "encode": ("encode", "Encode texts: to files, or for other commands."),
    "nearest": ("nearest", "List the nearest sentences of a query in each language, with their cosines."),
    "mine": ("mine", "Find translations in two texts."),
    "score": ("mine", "Score given pairs by margin and cosine."),
    "filter": ("filter", "Give each pair its probability to be good, and keep the probable ones."),
    "negatives": ("negatives", "Add hard negatives to translation pairs."),
    "prune": ("export", "Make an encoder smaller: the tokens of some texts, and some of its layers."),
    "export": ("export", "Export an encoder: sentence-transformers, AutoModel, ONNX, OpenVINO."),
    "push": ("push", "Push a run, a model or pairs to the Hub, after a question."),
    "card": ("export", "Write the card of a run or a model."),
    "debias": ("encode", "Remove language bias from sentence embeddings."),
    "recipes": ("train", "List the recipes by method, with what they read."),
    "corpora": ("train", "List the named corpora by kind."),
}
# Public in neither typer nor click since typer brings its own click.
UsageError: Any = typer.BadParameter.__base__
INTERRUPTED = 130  # of typer, for any signal
RUST = "pyo3_runtime"
"""Module of the exception for a panic of Rust, in the tokenizers for example, which is no `Exception`."""


class VerbGroup(TyperGroup):
    """A group of verbs: the same spelling of options in each, modules imported on use."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """A command with only the summary, which is enough for `--help`."""
        _, summary = VERBS[cmd_name]
        return Verb(cmd_name, help=summary)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, *rest = args
        if name not in VERBS:
            raise XlsrError(f"No such command '{name}'; {did_you_mean(name, VERBS)}")
        return name, load_verb(name), rest


def load_verb(name: str) -> Any:
    """The command of a verb, with its module imported."""
    module, _ = VERBS[name]
    verb = getattr(import_module(f"hf_xlsr.cli.{module}"), name)
    group = verb
    if not isinstance(verb, typer.Typer):
        group = typer.Typer(add_completion=False)
        add_verb(group, verb)
    return typer.main.get_command(group)


app = typer.Typer(
    cls=VerbGroup, context_settings=HELP, help="Train, evaluate and use cross-lingual sentence encoders."
)


def _print_version(value: bool) -> None:
    if value:
        say(f"hf-xlsr {version('hf-xlsr')}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _start(
    context: typer.Context,
    show_version: Annotated[
        bool, typer.Option("--version", help="Print the version.", is_eager=True, callback=_print_version)
    ] = False,
) -> None:
    if context.invoked_subcommand is None:
        say(context.get_help())


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one verb.

    The exit status is 0 for success, 1 for an error (one sentence on standard error), 130 for a stop by Ctrl-C, 143 for
    one by SIGTERM. The traceback of an error that is neither invalid input nor a file that cannot be read or written goes
    to a log, which the sentence names; with `HF_XLSR_DEBUG=1` it is raised.
    """
    log_printable(logging.WARNING)
    with Signals() as signals, recorded():
        try:
            status: int = typer.main.get_command(app)(arguments, prog_name="hf-xlsr", standalone_mode=False) or 0
        except KeyboardInterrupt:
            status = INTERRUPTED
        except UsageError as error:
            return _say(error.format_message())
        except BaseException as error:
            if not isinstance(error, Exception) and type(error).__module__ != RUST:
                raise
            if not signals.received:
                is_expected = isinstance(error, XlsrError | OSError) and not is_full(error)
                return _say(str(error) if is_expected else unexpected(error))
            # A library that the signal interrupted may raise an error of its own, as an import in C does.
            status = INTERRUPTED

        if status == INTERRUPTED:  # typer's, too
            _say(signals.sentence())
            return signals.status
        return status


def _say(message: str) -> int:
    """Prints one sentence on standard error; returns the status of an error."""
    warn(f"hf-xlsr: {error_line(message)}")
    return 1
