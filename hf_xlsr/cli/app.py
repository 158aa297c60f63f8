"""The `hf-xlsr` command: thin, every verb a call into the package."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Callable, Sequence
from typing import Any

from hf_xlsr.cli.debias import configure_debias, debias
from hf_xlsr.cli.evaluate import configure_evaluate, configure_plot, evaluate, plot
from hf_xlsr.cli.export import configure_export, export
from hf_xlsr.cli.mine import configure_mine, configure_score, mine, score
from hf_xlsr.cli.publish import card, configure_card, configure_push, push
from hf_xlsr.cli.recipes import add_keys_help
from hf_xlsr.utils.errors import XlsrError, did_you_mean


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one verb.

    Args:
        arguments: Words of the command line; `sys.argv` when absent.

    Returns:
        Exit status: 0 done, 1 a mistake in the input (one sentence on standard error), 130 stopped by a signal.
    """
    parser = argparse.ArgumentParser(
        prog="hf-xlsr", description="Train, evaluate and use cross-lingual sentence encoders."
    )
    verbs = parser.add_subparsers(dest="verb", metavar="VERB")
    for name, (summary, configure, _) in VERBS.items():
        configure(verbs.add_parser(name, help=summary, description=summary))
    words = list(sys.argv[1:] if arguments is None else arguments)
    if not words:
        parser.print_help()
        return 0
    if not words[0].startswith("-") and words[0] not in VERBS:
        print(f"hf-xlsr: unknown command '{words[0]}'; {did_you_mean(words[0], VERBS)}", file=sys.stderr)
        return 1
    options, rest = parser.parse_known_args(words)
    if options.verb is None:
        print(f"hf-xlsr: '{words[0]}' is no command; {did_you_mean(words[0], VERBS)}", file=sys.stderr)
        return 1
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    if rest and options.verb != "train":
        print(
            f"hf-xlsr {options.verb}: unknown option '{rest[0]}'; see hf-xlsr {options.verb} --help.", file=sys.stderr
        )
        return 1
    try:
        return VERBS[options.verb][2](options, rest)
    except XlsrError as error:
        from hf_xlsr.export.access_tokens import redact_tokens

        print(f"hf-xlsr: {redact_tokens(str(error))}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("hf-xlsr: interrupted.", file=sys.stderr)
        return 130


def _configure_train(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("recipe", help="name of a recipe that comes with the package, or path of a YAML file")
    parser.add_argument("--only", nargs="+", metavar="RUN", help="only these runs of a list of ablations")
    parser.add_argument("--show", action="store_true", help="print the resolved recipe and stop")
    parser.epilog = "Any key of the recipe may follow as --key value, e.g. --seed 2 or --training.learning_rate 1e-3."
    add_keys_help(parser)


def _train(options: argparse.Namespace, rest: list[str]) -> int:
    from hf_xlsr.runs.recipe import load_runs

    runs = load_runs(options.recipe, rest, only=options.only)
    if options.show:
        import yaml

        print(yaml.safe_dump_all([run.recipe.settings() for run in runs], sort_keys=False, allow_unicode=True), end="")
        return 0
    from hf_xlsr.runs.folder import RunFolder
    from hf_xlsr.runs.train import train_recipe

    for run in runs:
        if len(runs) > 1 and RunFolder(run.recipe.output_dir).done(run.recipe.settings()):
            print(f"{run.recipe.name} is done: {run.recipe.output_dir}")
        elif train_recipe(run).stopped:
            return 130
    return 0


def _configure_list(parser: argparse.ArgumentParser) -> None:
    """A list takes no options."""


def _recipes(options: argparse.Namespace, rest: list[str]) -> int:
    from hf_xlsr.runs.recipe import read_recipe, recipe_names

    recipes = [read_recipe(name) for name in recipe_names()]
    rows = [
        {
            "recipe": recipe["name"],
            "languages": " ".join(recipe.get("languages") or []),
            "runs": len(recipe.get("runs") or []) or 1,
            "description": " ".join(str(recipe.get("description", "")).split()),
        }
        for recipe in recipes
    ]
    return _print_rows(rows)


def _corpora(options: argparse.Namespace, rest: list[str]) -> int:
    from hf_xlsr.data.corpora.loading import corpora_table

    return _print_rows(corpora_table())


def _print_rows(rows: list[dict[str, Any]]) -> int:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table(*rows[0], show_lines=False)
    for row in rows:
        values = (" ".join(map(str, v)) if isinstance(v, (list, tuple)) else str(v or "") for v in row.values())
        table.add_row(*map(escape, values))
    Console().print(table)
    return 0


def _configure_tokenizer(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("recipe", help="recipe whose data and tokenizer sections are used")
    parser.add_argument("--output", required=True, help="folder for the tokenizer")


def _tokenizer(options: argparse.Namespace, rest: list[str]) -> int:
    from hf_xlsr.evaluation.report import check_writable
    from hf_xlsr.runs.recipe import load_runs
    from hf_xlsr.runs.train import train_tokenizer_of

    check_writable(options.output, "--output", folder=True)
    print(train_tokenizer_of(load_runs(options.recipe)[0], options.output))
    return 0


VERBS: dict[
    str,
    tuple[str, Callable[[argparse.ArgumentParser], None], Callable[[argparse.Namespace, list[str]], int]],
] = {
    "train": ("Train by a recipe, evaluate, export, write the card.", _configure_train, _train),
    "evaluate": ("Evaluate any sentence encoder under a named protocol.", configure_evaluate, evaluate),
    "plot": ("Draw translation pairs, retrieval results, languages retrieved or training runs.", configure_plot, plot),
    "mine": ("Find translations in two texts.", configure_mine, mine),
    "score": ("Score given pairs by margin and cosine.", configure_score, score),
    "export": ("Write a run's encoder for others: sentence-transformers, AutoModel, ONNX.", configure_export, export),
    "push": ("Push a run to the Hub.", configure_push, push),
    "card": ("Make the card of a run again.", configure_card, card),
    "debias": ("Remove what tells the language from sentence vectors.", configure_debias, debias),
    "tokenizer": ("Train the tokenizer of a recipe and save it.", _configure_tokenizer, _tokenizer),
    "recipes": ("List the recipes.", _configure_list, _recipes),
    "corpora": ("List the named corpora.", _configure_list, _corpora),
}
