"""Every verb of the `hf-xlsr` command with its options: `docs/command.md`."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args, get_type_hints

from docs.recipes import Row, shown_default, shown_hint, table
from hf_xlsr.cli.app import VERBS, load_verb

COMMAND = "python -m docs.command docs/command.md"
INTRODUCTION = f"""# Options of the command

`{COMMAND}` writes this page from the options that the verbs declare. `hf-xlsr VERB --help`
prints the same. Verbs that need more words than a table have a page: [train](train.md), [evaluate](evaluate.md),
[mine](mine.md), [debias](debias.md), [export](export.md), [prune](distill.md), [push and card](publish.md).

Options may have hyphens or underscores. Several values may follow an option of type `list`, as in
`--data a.tsv b.tsv`; only `--prompt` and `--query` have to be repeated."""


def commands() -> Iterator[tuple[str, Any]]:
    """Each command by its words, such as `plot tsne`."""
    for verb in VERBS:
        command = load_verb(verb)
        subcommands = getattr(command, "commands", None)
        if subcommands is None:
            yield verb, command
            continue
        for name, subcommand in subcommands.items():
            yield f"{verb} {name}", subcommand


def options_of(command: Any) -> type:
    """The dataclass that declares what a user of a command can type."""
    return inspect.unwrap(command.callback)


def option_rows(command: Any) -> Iterator[Row]:
    """Name, type, default and meaning of each argument and then of each option, panel by panel of `--help`."""
    hints = get_type_hints(options_of(command), include_extras=True)
    for parameter in sorted(command.params, key=_position):
        hint, declared = get_args(hints[parameter.name])
        bounds = []
        if declared.min is not None:
            bounds.append(f" >= {declared.min:g}")
        if declared.max is not None:
            bounds.append(f" <= {declared.max:g}")
        default = "required" if parameter.required else shown_default(parameter.default)
        meaning = parameter.help.replace("\\[", "[")  # escaped for rich
        yield _name(parameter), shown_hint(hint) + ",".join(bounds), default, meaning


def _position(parameter: Any) -> tuple[bool, str]:
    return parameter.param_type_name == "option", parameter.rich_help_panel or ""


def _name(parameter: Any) -> str:
    if parameter.param_type_name == "option":
        return parameter.opts[0]
    return parameter.metavar or parameter.name.upper()


def reference() -> str:
    """The page of all options, in Markdown."""
    page = [INTRODUCTION]
    for words, command in commands():
        help_text = re.sub(r"^(Example:) (.+)", r"\1 `\2`", command.help, flags=re.MULTILINE)
        page += [f"## `hf-xlsr {words}`", help_text, table(option_rows(command), heading="option")]
    return "\n\n".join(page) + "\n"


def main(arguments: list[str]) -> int:
    """Writes the page into the file that is named."""
    Path(arguments[0]).write_text(reference(), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
