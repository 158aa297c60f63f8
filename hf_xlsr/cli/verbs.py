"""How a function of one dataclass becomes a verb of the `hf-xlsr` command: its fields are what a user can type."""

from collections.abc import Callable, Collection, Iterator, Sequence
from functools import wraps
from typing import Any, get_type_hints

import typer
from typer.core import TyperCommand

HELP = {"help_option_names": ["-h", "--help"]}
REPEATED_ONLY = ("prompt", "query")  # options of which each value needs the option's name: a text may follow


def add_verb(app: typer.Typer, verb: Callable[[Any], Any]) -> None:
    """Adds the command of a verb.

    Args:
        app: What the command becomes a part of.
        verb: A function of `options`, a dataclass each of whose fields is annotated with `typer.Option` or
            `typer.Argument`. Options that a field `overrides` takes may have any name.
    """
    options = get_type_hints(verb)["options"]

    @wraps(options, updated=())
    def run(**values: Any) -> Any:
        return verb(options(**values))

    settings = {**HELP, "ignore_unknown_options": hasattr(options, "overrides")}
    app.command(verb.__name__, cls=Verb, help=verb.__doc__, context_settings=settings)(run)


class Verb(TyperCommand):
    """A command in which option names may have underscores, and several values may follow one option."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        names = []
        repeatable = []
        for parameter in self.params:
            names += parameter.opts
            if getattr(parameter, "multiple", False) and parameter.name not in REPEATED_ONLY:
                repeatable += parameter.opts
        return super().parse_args(ctx, list(normalized(args, names, repeatable)))


def normalized(arguments: Sequence[str], names: Collection[str], repeatable: Collection[str]) -> Iterator[str]:
    """Arguments with hyphens in the option `names`, and with `--data A B` as `--data A --data B`, if repeatable.

    Examples:
        >>> list(normalized(["--batch_size", "8", "--data", "a", "b"], ["--batch-size", "--data"], ["--data"]))
        ['--batch-size', '8', '--data', 'a', '--data', 'b']
    """
    option = ""  # a repeatable one, whose values the next words are
    has_value = False
    for word in arguments:
        if word.startswith("--"):
            name, equals, value = word.partition("=")
            hyphenated = name.replace("_", "-")
            if hyphenated in names:
                name = hyphenated
            option = name if name in repeatable and not equals else ""
            has_value = False
            yield f"{name}{equals}{value}"
        else:
            if option and has_value:
                yield option
            has_value = True
            yield word
