"""Help of `hf-xlsr train`: the keys of recipes."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from hf_xlsr.utils.errors import XlsrError


class KeysHelp(argparse.Action):
    """`--help` with the keys of recipes behind the options; behind a method's or a recipe's name, all of its keys."""

    def __init__(self, option_strings: list[str], dest: str, **options: Any) -> None:
        super().__init__(option_strings, argparse.SUPPRESS, nargs=0, default=argparse.SUPPRESS, **options)

    def __call__(self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, *_: Any) -> None:
        from hf_xlsr.runs.reference import keys_help

        try:
            keys = keys_help(getattr(namespace, "recipe", None))
        except XlsrError as error:
            print(f"hf-xlsr: {error}", file=sys.stderr)
            parser.exit(1)
        parser.print_help()
        print(f"\n{keys}")
        parser.exit()


def add_keys_help(parser: argparse.ArgumentParser) -> None:
    """Has a parser's `--help` show the keys of recipes too.

    Args:
        parser: With a first argument `recipe`.
    """
    group = parser.add_argument_group("keys", conflict_handler="resolve")
    group.add_argument("-h", "--help", action=KeysHelp, help="show this and the keys; NAME --help: those of NAME")
