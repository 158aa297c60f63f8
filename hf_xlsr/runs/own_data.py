"""The options with which a user brings data, languages and encoders to a recipe."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Annotated, Any

import typer

from hf_xlsr.data.sources import as_list
from hf_xlsr.utils.yaml import parse_yaml

PANEL: dict[str, Any] = {"rich_help_panel": "Your data and encoder, instead of the recipe's"}
# What an option is, wherever a verb has it.
LANGUAGES = "Codes separated by commas, the source first, e.g. en,de,fr."
COLUMNS = "Our column=the file's column"


def comma_separated(text: str | None) -> list[str]:
    """The values of an option such as `--languages`.

    Examples:
        >>> comma_separated("en, de,"), comma_separated(None)
        (['en', 'de'], [])
    """
    values = map(str.strip, (text or "").split(","))
    return list(filter(None, values))


@dataclass(kw_only=True)
class OwnData:
    """What a user brings to a recipe. Each option may be repeated; None leaves what the recipe has.

    A value is text as typed: a path, the name of a corpus, or in brackets a source or list as in a recipe.
    """

    train: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FILE",
            help="Training data: a file, Moses files such as mine.{en,de}, a corpus, or a source as in a recipe, "
            '"{path: mine.tsv, limit: 1000}". Replaces all data of the recipe.',
            **PANEL,
        ),
    ] = None
    dev: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FILE",
            help="Data to measure on during training; null: none. By default a tenth of --train, at most 1,000 pairs.",
            **PANEL,
        ),
    ] = None
    test: Annotated[
        list[str] | None,
        typer.Option(metavar="FILE", help="Data to measure on at the end.", **PANEL),
    ] = None
    guard: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FILE",
            help="Data on which training should not make the encoder worse: pairs of other languages, "
            "or rows of sentence1, sentence2 and score.",
            **PANEL,
        ),
    ] = None
    languages: Annotated[
        list[str] | None,
        typer.Option(metavar="CODES", help=LANGUAGES, **PANEL),
    ] = None
    encoder: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ID",
            help="Id or folder of an encoder to start from; en=ID and de=ID for an encoder of each language.",
            **PANEL,
        ),
    ] = None
    columns: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAMES",
            help=f"{COLUMNS}, for --train, --dev and --test: source=english,target=german. "
            "Not needed for columns named source and target, or after the languages.",
            **PANEL,
        ),
    ] = None

    def language_codes(self) -> list[str]:
        """The codes of `languages`."""
        return comma_separated(",".join(map(str, own_values("languages", self.languages))))


OWN_OPTIONS = tuple(field.name for field in fields(OwnData))


def take_own_data(
    options: Iterable[tuple[str, str]], own: OwnData | None = None
) -> tuple[OwnData, list[tuple[str, str]]]:
    """The own data of `own` and of options, and the options that are none of its fields.

    Examples:
        >>> own, overrides = take_own_data([("train", "a.tsv"), ("seed", "2"), ("train", "b.tsv")])
        >>> own.train, overrides
        (['a.tsv', 'b.tsv'], [('seed', '2')])
    """
    values: dict[str, Any] = {name: getattr(own, name, None) for name in OWN_OPTIONS}
    overrides = []
    for name, text in options:
        if name in OWN_OPTIONS:
            values[name] = [*(values[name] or ()), text]
        else:
            overrides.append((name, text))
    return OwnData(**values), overrides


def own_values(name: str, texts: Sequence[Any] | None) -> list[Any]:
    """The values of an option of `OwnData`: texts, or YAML in brackets; `null` alone is no value.

    Examples:
        >>> own_values("languages", ["[en, de]", "fr"]), own_values("dev", ["null"])
        (['en', 'de', 'fr'], [])
    """
    values: list[Any] = []
    for value in texts or ():
        if isinstance(value, str) and (value == "null" or value[:1] + value[-1:] in ("[]", "{}")):
            value = parse_yaml(value, f"--{name}")
        values += [item for item in as_list(value) if item is not None]
    return values
