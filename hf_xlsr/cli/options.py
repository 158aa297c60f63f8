"""What several verbs of the `hf-xlsr` command share: how they parse, and options and values that they take."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import langcodes
import typer
from typer.core import TyperCommand

from hf_xlsr.data.columns import PLACEHOLDER, filled, parse_columns
from hf_xlsr.data.prompts import DEFAULT, ROLES, SIDES, Prompts
from hf_xlsr.encoders.encoding import RUN_BATCH_SIZE
from hf_xlsr.utils.errors import XlsrError

if TYPE_CHECKING:
    from hf_xlsr.data.formats.quarantine import Quarantine

HELP = {"help_option_names": ["-h", "--help"]}
MODEL = "Folder of a run, a checkpoint, a saved model or an export, or a Hub id."
READING = {"rich_help_panel": "Reading data", "show_default": False}
ENCODING = {"rich_help_panel": "Encoding", "show_default": False}
REQUIRED: Any = inspect.Parameter.empty
TEXTS = typer.Option(metavar="LANG=FILE", help="Texts of each language, or FILE with {lang} and --languages.")
Texts = Annotated[list[str], TEXTS]
PROMPT_NAMES = (DEFAULT, *SIDES, *ROLES)  # besides languages
REPEATED_ONLY = ("prompt",)  # options of which each value needs the option's name: a text may follow
# Option -> its type, default, help, and what else `typer.Option` takes.
SHARED: dict[str, tuple[Any, Any, str, dict[str, Any]]] = {
    "data": (list[str] | None, None, "Files, a corpus, or the id or folder of a dataset.", READING),
    "columns": (str | None, None, "Our column=the file's column, {lang} for each language: target={lang}.", READING),
    "languages": (str | None, None, "Codes separated by commas, the source first, e.g. en,de,fr.", READING),
    "split": (str | None, "test", "Split of the data, and of metric keys.", READING),
    "where": (list[str] | None, None, "Keep rows with these values.", {**READING, "metavar": "COLUMN=VALUE"}),
    "config": (str | None, None, "Configuration of a dataset; may contain {lang}.", READING),
    "limit": (int | None, None, "Maximum number of rows of each language (pair).", {**READING, "min": 1}),
    "prompt": (
        list[str] | None,
        None,
        'Prompt of all texts, e.g. "query: " or "" for none, instead of the model\'s own; by name: de="query: ".',
        {**ENCODING, "metavar": "[NAME=]TEXT"},
    ),
    "routes": (str | None, None, "Language=route of a model with several encoders: en=source,de=target.", ENCODING),
    "batch_size": (int | None, RUN_BATCH_SIZE, "Sentences encoded at a time.", {}),
    "device": (str | None, None, "cpu, cuda, cuda:1, ...; by default the best there is.", ENCODING),
    "dtype": (str | None, None, "float32, bfloat16, float16, onnx, onnx-int8, or auto, the fastest.", ENCODING),
    "seed": (int | None, None, "Seed of everything random.", {"min": 0, "show_default": False}),
}


def keyword(name: str, kind: Any, default: Any, help: str, **more: Any) -> inspect.Parameter:
    """An option as a parameter of a function."""
    annotation: Any = Annotated[kind, typer.Option(f"--{name.replace('_', '-')}", help=help, **more)]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def shared(*names: str, **defaults: Any) -> list[inspect.Parameter]:
    """Shared options as parameters: those named, else all; with other defaults where given, or `REQUIRED`."""
    return [
        keyword(name, kind, defaults.get(name, default), text, **more)
        for name, (kind, default, text, more) in SHARED.items()
        if name in (names or SHARED)
    ]


TEXT_OPTIONS = shared("columns", "languages", "where", "config", "split", "limit", split=None)
ENCODING_OPTIONS = shared("prompt", "routes", "batch_size", "device", "dtype")


def extended(*parameters: inspect.Parameter) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorates a function whose `**given` typer is to see as named parameters."""

    def extend(function: Callable[..., Any]) -> Callable[..., Any]:
        signature = inspect.signature(function, eval_str=True)
        own = [one for one in signature.parameters.values() if one.kind is not one.VAR_KEYWORD]
        function.__signature__ = signature.replace(parameters=[*own, *parameters])  # type: ignore[attr-defined]
        return function

    return extend


def data_options(given: dict[str, Any], name: str | None = None) -> Any:
    """The `DataOptions` of a command line, taken out of `given`."""
    from hf_xlsr.evaluation.protocol import DataOptions

    values = {key: given.pop(key) for key in ("columns", "split", "config", "limit")}
    files, where = (tuple(given.pop(key) or ()) for key in ("data", "where"))
    return DataOptions(
        files=files, where=where, languages=tuple(parse_languages(given.pop("languages"))), name=name, **values
    )


def encoder_options(given: dict[str, Any]) -> Any:
    from hf_xlsr.evaluation.command import EncoderOptions

    values = {key: given.pop(key) for key in ("batch_size", "device", "dtype")}
    return EncoderOptions(
        prompt=parse_prompts(given.pop("prompt")), routes=parse_routes(given.pop("routes")), **values
    )


def labelled(sources: Iterable[str]) -> dict[str, str]:
    """Path by label, of sources written LABEL=PATH; a path alone is labelled by its name.

    Examples:
        >>> labelled(["ours=runs/a/results.json", "runs/b.json"])
        {'ours': 'runs/a/results.json', 'b': 'runs/b.json'}
    """
    sources = list(sources)
    found: dict[str, str] = {}
    for source in sources:
        label, equals, path = source.partition("=")
        if not equals or Path(source).exists():
            path = source
            stems = [Path(other).stem for other in sources]
            label = Path(source).stem if stems.count(Path(source).stem) == 1 else source
        if label in found:
            raise XlsrError(f"two sources are labelled '{label}'; write LABEL=PATH.")
        found[label] = path
    return found


def load_labelled(results: Iterable[str]) -> dict[str, Any]:
    """Content of results files by label."""
    from hf_xlsr.evaluation.results import load_results

    return {label: load_results(path) for label, path in labelled(results).items()}


def parse_languages(text: str | None) -> list[str]:
    return [code.strip() for code in (text or "").split(",") if code.strip()]


def parse_named(parts: Iterable[str], option: str) -> dict[str, str]:
    """Values by language, of parts written LANGUAGE=VALUE.

    Examples:
        >>> parse_named(["en=source", " de=target"], "--routes")
        {'en': 'source', 'de': 'target'}
    """
    found = {}
    for part in parts:
        language, _, value = (text.strip() for text in part.partition("="))
        if not (language and value):
            raise XlsrError(f"`{option}` must be LANGUAGE=VALUE, got '{part}'.")
        found[language] = value
    return found


def parse_routes(text: str | None) -> dict[str, str]:
    return parse_named(text.split(",") if text else (), "--routes")


def parse_prompts(values: Sequence[str] | None) -> Prompts:
    """The prompts of `--prompt`: one text for all, or texts by name, each written NAME=TEXT; None if none is given.

    A name is a language tag or one of `PROMPT_NAMES`; any other text with an equals sign is a prompt itself.

    Examples:
        >>> parse_prompts(["query: "]), parse_prompts([""]), parse_prompts(["de=Frage: ", "query=q: "])
        ('query: ', '', {'de': 'Frage: ', 'query': 'q: '})
        >>> parse_prompts(["Answer with x=1: "])
        'Answer with x=1: '
    """
    named: dict[str, str] = {}
    for_all: list[str] = []
    for value in values or ():
        name, equals, text = value.partition("=")
        if not equals or not (name in PROMPT_NAMES or langcodes.tag_is_valid(name)):
            for_all.append(value)
        elif name in named:
            raise XlsrError(f"`--prompt` has two texts for '{name}', '{named[name]}' and '{text}'.")
        else:
            named[name] = text
    if not for_all:
        return named or None
    if len(for_all) > 1 or named:
        raise XlsrError(
            f"`--prompt '{for_all[0]}'` applies to all texts. "
            f"To combine it with other prompts, write default={for_all[0]}."
        )
    return for_all[0]


def new_folder(path: str) -> Path:
    """The folder of `--output`, which must be new or empty."""
    from hf_xlsr.utils.files import check_writable

    check_writable(path, "--output", folder=True)
    folder = Path(path)
    if folder.is_dir() and any(folder.iterdir()):
        raise XlsrError(f"--output '{path}' must be a new or empty folder.")
    return folder


def read_vectors(file: str) -> Any:
    """The matrix of a `.npy` file, memory-mapped; archives and pickles are not loaded."""
    import numpy as np

    vectors = None
    with suppress(ValueError):
        vectors = np.lib.format.open_memmap(file, mode="r")
    if vectors is None or vectors.ndim != 2 or vectors.dtype.kind not in "fiub" or not len(vectors):
        raise XlsrError(f"{file} must be a .npy file with a matrix of real numbers, one row per text.")
    return vectors


def read_texts(
    model: str, texts: list[str], given: dict[str, Any], quarantine: Quarantine
) -> dict[str, Iterable[str]]:
    """Language -> texts of `--texts`, read as they are asked for; the model and the files are looked for first."""
    from hf_xlsr.data.sources import Source, open_source
    from hf_xlsr.evaluation.table import parse_where
    from hf_xlsr.runs.inputs import check_named

    columns = parse_columns(given["columns"])
    files = list(_files(texts, columns, given["config"], parse_languages(given["languages"])))
    check_named(model, {"--texts": [path.replace(PLACEHOLDER, language) for language, path in files]})
    where = parse_where(given["where"])
    if others := [name for name in columns if name != "text"]:
        raise XlsrError(f"--columns must be text=COLUMN, got '{others[0]}'.")

    def stream(language: str, path: str) -> Iterator[str]:
        source = filled({"path": path, "columns": columns, "config": given["config"]}, language)
        source |= {"where": where, "split": given["split"]}
        given_source = Source.parse({name: value for name, value in source.items() if value})
        rows = open_source(given_source, languages=[language], required=("text",), optional=(), quarantine=quarantine)
        return (row["text"] for row in rows)

    paths: dict[str, list[str]] = {}
    for language, path in files:
        paths.setdefault(language, []).append(path)
    found: dict[str, Iterable[str]] = {}
    for language, own in paths.items():
        rows = chain.from_iterable(map(partial(stream, language), own))
        # Fails for a missing or empty file before the model is loaded.
        if (first := next(rows, None)) is None:
            raise XlsrError(f"{' and '.join(own)} has no text in '{language}'.")
        found[language] = islice(chain([first], rows), given["limit"])
    return found


def _files(
    given: list[str], columns: dict[str, str], config: str | None, languages: list[str]
) -> Iterator[tuple[str, str]]:
    for text in given:
        language, _, path = text.partition("=")
        if path and not Path(text).exists():
            yield language.strip(), path
            continue
        wide = any(PLACEHOLDER in part for part in (text, columns.get("text", ""), config or ""))
        if not languages or (len(languages) > 1 and not wide):
            raise XlsrError(f"the language of --texts '{text}' is unknown; write LANGUAGE=FILE, or give --languages.")
        yield from ((language, text) for language in languages)


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
        repeated = [param for param in self.params if getattr(param, "multiple", False)]
        several = [name for param in repeated if param.name not in REPEATED_ONLY for name in param.opts]
        return super().parse_args(ctx, list(normalized(args, known, several)))
