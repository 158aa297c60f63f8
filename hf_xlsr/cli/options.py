"""Options that several verbs of the `hf-xlsr` command share, and the values that they are written in."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import langcodes
import typer

from hf_xlsr.data.columns import PLACEHOLDER, parse_columns
from hf_xlsr.data.prompts import DEFAULT, ROLES, SIDES, Prompts
from hf_xlsr.runs import own_data
from hf_xlsr.runs.own_data import comma_separated
from hf_xlsr.utils.errors import XlsrError, require_choice
from hf_xlsr.utils.runners import RAY, Processes, runner_of
from hf_xlsr.utils.tasks import Runner

if TYPE_CHECKING:
    from hf_xlsr.data.formats.quarantine import Quarantine
    from hf_xlsr.evaluation.command import EncoderOptions
    from hf_xlsr.evaluation.protocol import DataOptions

MODEL = "Folder of a run, a checkpoint, a saved model or an export, or a Hub id."
READING: dict[str, Any] = {"rich_help_panel": "Reading data", "show_default": False}
ENCODING: dict[str, Any] = {"rich_help_panel": "Encoding", "show_default": False}
WORKERS: dict[str, Any] = {"rich_help_panel": "Processes"}
DATA = typer.Option(help="Files, a corpus, or the id or folder of a dataset.", show_default=False)
TEXTS = typer.Option(metavar="LANG=FILE", help="Texts of each language, or FILE with {lang} and --languages.")
BATCH_SIZE = typer.Option(help="Sentences encoded at a time.", rich_help_panel="Encoding")
LANGUAGES = typer.Option(help=own_data.LANGUAGES, **READING)
SEED = typer.Option(help="Seed of everything random.", min=0, show_default=False)
PROMPT_NAMES = (DEFAULT, *SIDES, *ROLES)  # besides languages


@dataclass(kw_only=True)
class ReadingOptions:
    """Which rows of the data are read, and how."""

    columns: Annotated[
        str | None,
        typer.Option(help=f"{own_data.COLUMNS}, {PLACEHOLDER} for each language: target={PLACEHOLDER}.", **READING),
    ] = None
    languages: Annotated[str | None, LANGUAGES] = None
    where: Annotated[
        list[str] | None, typer.Option(metavar="COLUMN=VALUE", help="Keep rows with these values.", **READING)
    ] = None
    config: Annotated[
        str | None,
        typer.Option(help="Configuration of a dataset; may contain {lang}.", **READING),
    ] = None
    format: Annotated[
        str | None,
        typer.Option(
            help="Format of the files, by default as suffix and content say: tsv, tsv-quoted, ...", **READING
        ),
    ] = None


@dataclass(kw_only=True)
class TextOptions(ReadingOptions):
    """Which texts of the files of `--texts` are read, and how."""

    split: Annotated[str | None, typer.Option(help="Split of the data.", **READING)] = None
    limit: Annotated[
        int | None, typer.Option(min=1, help="Maximum number of texts of each language: the first.", **READING)
    ] = None


@dataclass(kw_only=True)
class RowOptions(ReadingOptions):
    """Which rows of the files of `--data` are read, and how."""

    split: Annotated[str, typer.Option(help="Split of the data, and of metric keys.", **READING)] = "test"
    limit: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Maximum number of rows of each language (pair), drawn by their content: the same for all models.",
            **READING,
        ),
    ] = None

    def data_options(self, files: Iterable[str], name: str | None = None) -> "DataOptions":
        from hf_xlsr.evaluation.protocol import DataOptions

        return DataOptions(
            files=tuple(files),
            columns=self.columns,
            languages=tuple(comma_separated(self.languages)),
            split=self.split,
            where=tuple(self.where or ()),
            config=self.config,
            format=self.format,
            limit=self.limit,
            name=name,
        )


@dataclass(kw_only=True)
class ModelOptions:
    """How a model is loaded, and how it encodes."""

    prompt: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[NAME=]TEXT",
            help='Prompt of all texts, e.g. "query: " or "" for none, instead of the model\'s own; by name: '
            'de="query: ".',
            **ENCODING,
        ),
    ] = None
    routes: Annotated[
        str | None,
        typer.Option(help="Language=route of a model with several encoders: en=source,de=target.", **ENCODING),
    ] = None
    batch_size: Annotated[int, BATCH_SIZE] = 128
    device: Annotated[
        str | None, typer.Option(help="cpu, cuda, cuda:1, ...; by default the best there is.", **ENCODING)
    ] = None
    dtype: Annotated[
        str | None,
        typer.Option(
            help="float32, bfloat16, float16, onnx, onnx-int8, openvino, openvino-int8, or auto, the fastest.",
            **ENCODING,
        ),
    ] = None
    truncate_dim: Annotated[
        int | None,
        typer.Option(min=1, help="Leading dimensions of embeddings to keep; by default as stored.", **ENCODING),
    ] = None

    def encoder_options(self) -> "EncoderOptions":
        from hf_xlsr.evaluation.command import EncoderOptions

        return EncoderOptions(
            prompt=parse_prompts(self.prompt),
            routes=parse_routes(self.routes),
            batch_size=self.batch_size,
            device=self.device,
            dtype=self.dtype,
            truncate_dim=self.truncate_dim,
        )


@dataclass(kw_only=True)
class WorkerOptions:
    """Which processes do the work: some of this machine, or those of a Ray cluster."""

    num_proc: Annotated[
        int,
        typer.Option(help="Processes on this machine; several encode on its CPU by default.", min=1, **WORKERS),
    ] = 1
    engine: Annotated[
        str,
        typer.Option(help="local, or ray: the workers of a Ray cluster, which see the folder of the work.", **WORKERS),
    ] = "local"
    address: Annotated[
        str | None,
        typer.Option(
            metavar="auto|HOST:PORT",
            help="Head of the Ray cluster; by default one starts on this machine.",
            **WORKERS,
        ),
    ] = None

    @property
    def processes(self) -> Processes:
        """What does the work, as `runner_of` takes it."""
        require_choice("--engine", self.engine, ("local", RAY))
        if self.engine == RAY:
            if self.num_proc > 1:
                raise XlsrError(f"--num-proc {self.num_proc} is for this machine: a Ray cluster decides by its cores.")
            return f"{RAY}:{self.address}" if self.address else RAY
        if self.address:
            raise XlsrError("--address needs --engine ray.")
        return self.num_proc

    def runner(self) -> Runner:
        """What runs the tasks."""
        return runner_of(self.processes)


@dataclass(kw_only=True)
class EncodingWorkerOptions(WorkerOptions):
    """Which processes encode texts, and on what."""

    num_gpus: Annotated[
        float, typer.Option(min=0, help="GPUs of each task on the Ray cluster, also a share of one.", **WORKERS)
    ] = 0

    def runner(self) -> Runner:
        """What runs the tasks."""
        if self.num_gpus and self.engine != RAY:
            raise XlsrError("--num-gpus needs --engine ray.")
        return runner_of(self.processes, self.num_gpus)


def labelled(sources: Sequence[str]) -> dict[str, str]:
    """Path by label, of sources written LABEL=PATH; a path alone is labelled by its name.

    Examples:
        >>> labelled(["ours=runs/a/results.json", "runs/b.json"])
        {'ours': 'runs/a/results.json', 'b': 'runs/b.json'}
    """
    stems = [Path(source).stem for source in sources]
    paths: dict[str, str] = {}
    for source, stem in zip(sources, stems, strict=True):
        label, equals, path = source.partition("=")
        if not equals or Path(source).exists():
            path = source
            label = stem if stems.count(stem) == 1 else source
        if label in paths:
            raise XlsrError(f"two sources are labelled '{label}'; write LABEL=PATH.")
        paths[label] = path
    return paths


def load_labelled(results: Sequence[str]) -> dict[str, Any]:
    """Content of results files by label."""
    from hf_xlsr.evaluation.results import load_results

    return {label: load_results(path) for label, path in labelled(results).items()}


def parse_named(texts: Iterable[str], option: str) -> dict[str, str]:
    """Values by language, of texts written LANGUAGE=VALUE.

    Examples:
        >>> parse_named(["en=source", " de=target"], "--routes")
        {'en': 'source', 'de': 'target'}
    """
    values = {}
    for text in texts:
        language, _, value = text.partition("=")
        if not language.strip() or not value.strip():
            raise XlsrError(f"`{option}` must be LANGUAGE=VALUE, got '{text}'.")
        values[language.strip()] = value.strip()
    return values


def parse_routes(text: str | None) -> dict[str, str]:
    return parse_named(text.split(","), "--routes") if text else {}


def parse_prompts(values: Sequence[str] | None) -> Prompts:
    """The prompts of `--prompt`: one text for all, or texts by name, each written NAME=TEXT; None if none is given.

    A name is a language tag or one of `PROMPT_NAMES`; any other text with an equals sign is a prompt itself.

    Examples:
        >>> parse_prompts(["query: "]), parse_prompts([""]), parse_prompts(["de=Frage: ", "query=q: "])
        ('query: ', '', {'de': 'Frage: ', 'query': 'q: '})
        >>> parse_prompts(["Answer with x=1: "])
        'Answer with x=1: '
    """
    if not values:
        return None

    by_name: dict[str, str] = {}
    for value in values:
        name, equals, text = value.partition("=")
        is_named = equals and (name in PROMPT_NAMES or langcodes.tag_is_valid(name))
        if not is_named and len(values) == 1:
            return value
        if not is_named:
            raise XlsrError(
                f"`--prompt '{value}'` is for all texts. To combine it with others, write default={value}."
            )
        if name in by_name:
            raise XlsrError(f"`--prompt` has two texts for '{name}', '{by_name[name]}' and '{text}'.")
        by_name[name] = text

    return by_name


def new_folder(path: str) -> Path:
    """The folder of `--output`, which must be new or empty."""
    from hf_xlsr.utils.files import check_writable

    check_writable(path, "--output", folder=True)
    folder = Path(path)
    if folder.is_symlink():
        raise XlsrError(f"--output '{path}' is a link. Name the folder that it points to.")
    if folder.is_dir() and any(folder.iterdir()):
        raise XlsrError(f"--output '{path}' must be a new or empty folder.")
    return folder


def read_vectors(file: str) -> Any:
    """The matrix of a `.npy` file, memory-mapped; archives and pickles are not loaded."""
    import numpy as np

    try:
        return np.lib.format.open_memmap(file, mode="r")
    except ValueError:
        raise XlsrError(f"{file} must be a .npy file with a matrix of real numbers, one row per text.") from None


def read_texts(
    model: str,
    texts: list[str],
    options: TextOptions,
    quarantine: "Quarantine",
    outputs: Sequence[str] = (),
) -> dict[str, Iterable[str]]:
    """The texts of `--texts` by language, read as they are asked for; model and files are looked for first.

    `outputs` will be written, with `{lang}` for each language; one that is read is an error.
    """
    from hf_xlsr.data.sources import Source, open_source
    from hf_xlsr.evaluation.table import parse_where
    from hf_xlsr.runs.inputs import check_named

    columns = parse_columns(options.columns)
    for name in columns:
        if name != "text":
            raise XlsrError(f"--columns must be text=COLUMN, got '{name}'.")
    files = list(_files_of(texts, columns, options))
    paths = [path.replace(PLACEHOLDER, language) for language, path in files]
    written = [output.replace(PLACEHOLDER, language) for output in outputs for language, _ in files]
    check_named(model, {"--texts": paths}, outputs=written)
    keys = {"columns": columns, "config": options.config, "where": parse_where(options.where), "split": options.split}
    keys["format"] = options.format
    given_keys = {key: value for key, value in keys.items() if value}
    sources: dict[str, list[Source]] = {}
    for language, path in files:
        source = Source.parse({"path": path, **given_keys})
        sources.setdefault(language, []).append(source.in_language(language))

    def stream(language: str) -> Iterator[str]:
        for source in sources[language]:
            rows = open_source(
                source,
                languages=[language],
                required=("text",),
                optional=(),
                quarantine=quarantine,
            )
            for row in rows:
                yield row["text"]

    streams: dict[str, Iterable[str]] = {}
    for language in sources:
        rows = stream(language)
        # Fails for a missing or empty file before the model is loaded.
        first = next(rows, None)
        if first is None:
            raise XlsrError(f"--texts has no text in '{language}'.")
        streams[language] = islice(chain([first], rows), options.limit)
    return streams


def _files_of(texts: list[str], columns: dict[str, str], options: TextOptions) -> Iterator[tuple[str, str]]:
    """Language and path of each file of `--texts`."""
    from hf_xlsr.data.file_languages import language_of_file, text_language
    from hf_xlsr.data.languages import language_code

    languages = comma_separated(options.languages)
    for text in texts:
        language, _, path = text.partition("=")
        if path and not Path(text).exists():
            if not columns:
                text_language(path.replace(PLACEHOLDER, language), [language.strip()], folder=False)
            yield language.strip(), path
            continue

        has_placeholder = PLACEHOLDER in f"{text} {columns.get('text')} {options.config}"
        is_file = Path(text).is_file() and not (has_placeholder or columns)
        named = language_of_file(text, languages) if is_file else None
        if named:
            yield text_language(text, languages or [language_code(named)]), text
            continue

        if not languages or (len(languages) > 1 and not has_placeholder):
            raise XlsrError(f"the language of --texts '{text}' is unknown; write LANGUAGE=FILE, or give --languages.")
        for language in languages:
            yield language, text
