"""How every verb of the command parses its arguments."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any

from typer.core import TyperCommand

HELP = {"help_option_names": ["-h", "--help"]}


def normalized(arguments: Sequence[str], known: Collection[str], several: Collection[str]) -> Iterator[str]:
    """Arguments with hyphens in option names, and with `--data A B` as `--data A --data B` for the options `several`.

    Examples:
        >>> list(normalized(["--batch_size", "8", "--data", "a", "b"], ["--batch-size", "--data"], ["--data"]))
        ['--batch-size', '8', '--data', 'a', '--data', 'b']
    """
    repeated, values = "", 0
    for word in arguments:
        if word.startswith("--"):
            name, equals, value = word.partition("=")
            hyphenated = name.replace("_", "-")
            name = hyphenated if hyphenated in known else name
            repeated, values = ("" if equals else name if name in several else ""), 0
            yield f"{name}{equals}{value}"
        else:
            if repeated and values:
                yield repeated
            values += 1
            yield word


class Verb(TyperCommand):
    """A verb: underscores are accepted in option names, and several values after one option."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        known = [name for param in self.params for name in param.opts]
        several = [name for param in self.params if getattr(param, "multiple", False) for name in param.opts]
        return super().parse_args(ctx, list(normalized(args, known, several)))
