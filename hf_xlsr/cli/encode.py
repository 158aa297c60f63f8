"""The verbs `encode`, `debias fit` and `debias apply`."""

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Literal

import typer

from hf_xlsr.cli.options import (
    MODEL,
    TEXTS,
    EncodingWorkerOptions,
    ModelOptions,
    TextOptions,
    new_folder,
    read_texts,
    read_vectors,
)
from hf_xlsr.cli.report import print_facts
from hf_xlsr.cli.verbs import HELP, add_verb
from hf_xlsr.data.columns import PLACEHOLDER
from hf_xlsr.utils.console import say, warn
from hf_xlsr.utils.errors import XlsrError
from hf_xlsr.utils.extras import require_package
from hf_xlsr.utils.files import atomic_folder, atomic_write, check_writable, path_name
from hf_xlsr.utils.tasks import InProcess, Runner

ROWS_AT_ONCE = 4096
TASKS = ".tasks"
Chunks = Iterable[tuple[Sequence[str], Any]]


@dataclass(kw_only=True)
class EncodedTexts(ModelOptions, TextOptions):
    """A model, and the texts that it encodes."""

    model: Annotated[str, typer.Argument(help=MODEL)]
    texts: Annotated[list[str], TEXTS]


@dataclass(kw_only=True)
class EncodeOptions(EncodedTexts, EncodingWorkerOptions):
    """Options of `hf-xlsr encode`."""

    vectors: Annotated[
        str | None,
        typer.Option(metavar="FOLDER", help="Embeddings that `evaluate --vectors` and `mine --vectors` share."),
    ] = None
    output: Annotated[
        str | None, typer.Option(metavar="FOLDER", help="LANG.npy, a row per text, and the texts, LANG.txt.")
    ] = None
    index: Annotated[
        Literal["faiss"] | None,
        typer.Option(help="Also LANG.faiss, an index of FAISS: flat, HNSW or IVF by the number of texts."),
    ] = None


def encode(options: EncodeOptions) -> None:
    """Encode texts: to files, or for other commands.

    Embeddings have length 1. A killed call with --vectors or several processes resumes.

    Example: hf-xlsr encode MODEL --texts en=en.txt de=de.txt --vectors vectors
    """
    from hf_xlsr.data.formats.quarantine import Quarantine

    runner = options.runner()
    outputs = _checked_outputs(options)
    quarantine = Quarantine()
    streams = read_texts(options.model, options.texts, options, quarantine, outputs)
    for language in streams:
        path_name(language, "language")
    if isinstance(runner, InProcess):
        chunks_of = _chunks_of(options, streams)
    else:
        chunks_of = _chunks_by_tasks(options, streams, runner)
    for language, chunks in chunks_of:
        if options.output:
            count = _write_files(Path(options.output) / language, chunks)
            say(f"{language}: {count:,} texts, {Path(options.output) / language}.npy")
            if options.index:
                _write_index(Path(options.output) / language)
        else:
            count = sum(len(texts) for texts, _ in chunks)
            say(f"{language}: {count:,} texts")

    rejected = quarantine.report()
    if rejected:
        warn(rejected)


def _tasks_folder(options: EncodeOptions) -> Path:
    """Where several processes leave what they encoded."""
    return Path(options.output or options.vectors or "") / TASKS


def _chunks_of(options: EncodeOptions, streams: Mapping[str, Iterable[str]]) -> Iterator[tuple[str, Chunks]]:
    """The encoded texts by language, encoded by this process."""
    from hf_xlsr.encoders.cache import CachedEncoder, VectorStore
    from hf_xlsr.encoders.loading import encoder_facts

    encoder, encoding = loaded_encoder(options)
    if options.vectors:
        store = VectorStore(options.vectors, encoder_facts(encoder, options.model))
        encoder = CachedEncoder(encoder, store)
    for language, stream in streams.items():
        yield language, encoded_chunks(encoder, language, stream, encoding)


def _chunks_by_tasks(
    options: EncodeOptions,
    streams: Mapping[str, Iterable[str]],
    runner: Runner,
) -> Iterator[tuple[str, Chunks]]:
    """The encoded texts by language, encoded by several processes."""
    from hf_xlsr.mining.stages import LazyEncoder
    from hf_xlsr.mining.text_tasks import ChunkEncoder, encoded_by_tasks

    settings = options.encoder_options()
    device = settings.device or runner.device
    encoder = LazyEncoder(options.model, device, settings.dtype, options.vectors, settings.truncate_dim)
    for language, stream in streams.items():
        work = ChunkEncoder(encoder, language, settings.encoding)
        yield language, encoded_by_tasks(work, stream, ROWS_AT_ONCE, runner, _tasks_folder(options))


def _checked_outputs(options: EncodeOptions) -> list[str]:
    """What will be written, with `{lang}` for each language."""
    if not options.vectors and not options.output:
        raise XlsrError("Give --vectors, --output, or both.")
    for name, folder in (("--vectors", options.vectors), ("--output", options.output)):
        if folder:
            check_writable(folder, name, folder=True)

    kinds = ["npy", "txt"]
    if options.index:
        if not options.output:
            raise XlsrError(f"--index {options.index} needs --output.")
        require_package("faiss")
        kinds.append("faiss")
    if not options.output:
        return []
    return [options.output, *(f"{options.output}/{PLACEHOLDER}.{kind}" for kind in kinds)]


def loaded_encoder(options: EncodedTexts) -> tuple[Any, dict[str, Any]]:
    """The loaded model, and how `embed` calls it."""
    encoder = options.encoder_options()
    return encoder.load(options.model), dict(encoder.encoding)


def encoded_chunks(
    encoder: Any,
    language: str,
    texts: Iterable[str],
    encoding: dict[str, Any],
) -> Iterator[tuple[Sequence[str], Any]]:
    """Texts with their vectors, `ROWS_AT_ONCE` at a time."""
    from tqdm import tqdm

    from hf_xlsr.encoders.encoding import embed

    rows = iter(texts)
    with tqdm(desc=language, unit=" texts", disable=not sys.stderr.isatty()) as bar:
        while chunk := list(islice(rows, ROWS_AT_ONCE)):
            vectors = embed(encoder, chunk, language=language, **encoding)
            bar.update(len(chunk))
            yield chunk, vectors


def _write_files(path: Path, chunks: Iterable[tuple[Sequence[str], Any]]) -> int:
    """Writes the texts to PATH.txt and their vectors to PATH.npy; returns their number."""
    from hf_xlsr.mining.work_folder import npy_header

    count = 0
    dimension = 0
    with _writing(f"{path}.npy") as matrix, _writing(f"{path}.txt") as lines:
        for texts, vectors in chunks:
            if not count:
                dimension = vectors.shape[1]
                matrix.write(npy_header((0, dimension), "<f4"))
            count += len(texts)
            matrix.write(vectors.astype("<f4").tobytes())
            for text in texts:
                lines.write((" ".join(text.split()) + "\n").encode())

        # NumPy pads headers, so that one for more rows takes the same place.
        matrix.seek(0)
        matrix.write(npy_header((count, dimension), "<f4"))
        Path(f"{path}.npy").unlink(missing_ok=True)  # embeddings of an earlier call would not belong to the new texts
    return count


def _write_index(path: Path) -> None:
    """Writes the index of PATH.npy to PATH.faiss."""
    from hf_xlsr.mining.faiss_index import build_index, index_kind, store_index

    vectors = read_vectors(f"{path}.npy")
    store_index(build_index(vectors), f"{path}.faiss")
    say(f"{path}.faiss: {index_kind(len(vectors))}")


@contextmanager
def _writing(path: str) -> Iterator[BinaryIO]:
    """A file that is there once it is whole."""
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path) as partial, partial.open("wb") as file:
        yield file


@dataclass(kw_only=True)
class FitOptions(EncodedTexts):
    """Options of `hf-xlsr debias fit`."""

    output: Annotated[str, typer.Option(help="Folder for what is found.")]
    components: Annotated[int, typer.Option(help="Principal components of each language to remove.")] = 1
    method: Annotated[
        Literal["components", "mean", "whitening"], typer.Option(help="Remove components or the mean, or whiten.")
    ] = "components"


def fit(options: FitOptions) -> None:
    """Find the language bias of a model.

    Example: hf-xlsr debias fit MODEL --texts en=en.txt de=de.txt --output debias
    """
    from hf_xlsr.data.formats.quarantine import Quarantine
    from hf_xlsr.encoders.debias import FACTS, TENSORS, check_method, fit_debias

    check_method(options.components, options.method)
    check_writable(options.output, "--output", folder=True)

    quarantine = Quarantine()
    outputs = [options.output, *(f"{options.output}/{name}" for name in (FACTS, TENSORS))]
    texts = read_texts(options.model, options.texts, options, quarantine, outputs)
    encoder, encoding = loaded_encoder(options)
    fitted = fit_debias(
        encoder,
        texts,
        components=options.components,
        method=options.method,
        show_progress_bar=sys.stderr.isatty(),
        name=options.model,
        **encoding,
    )
    fitted.save(options.output)
    print_facts({"output": options.output, **fitted.facts(), "bad_lines": quarantine.report()})


@dataclass(kw_only=True)
class ApplyOptions:
    """Options of `hf-xlsr debias apply`."""

    fitted: Annotated[str, typer.Argument(help="Folder that `fit` wrote.")]
    model: Annotated[str, typer.Option(help=MODEL)]
    output: Annotated[str, typer.Option(help="Folder for the model.")]
    normalize: Annotated[bool, typer.Option("--normalize", help="Scale to length 1 afterwards.")] = False


def apply(options: ApplyOptions) -> None:
    """Remove the language bias from a model.

    Example: hf-xlsr debias apply debias --model MODEL --output debiased-model
    """
    from hf_xlsr.encoders.debias import Debias
    from hf_xlsr.encoders.loading import load_encoder
    from hf_xlsr.export import debias_sentence_transformer
    from hf_xlsr.export.sentence_transformer import write_export
    from hf_xlsr.runs.inputs import check_named

    check_named(options.model, {}, outputs=[options.output])
    removal = Debias.load(options.fitted)
    folder = new_folder(options.output)
    encoder = load_encoder(options.model, "cpu")
    debiased = debias_sentence_transformer(encoder, removal, normalize=options.normalize)
    with atomic_folder(folder) as partial:
        write_export(debiased, partial)
    print_facts({"output": options.output, **removal.facts()})


debias = typer.Typer(
    help="Remove language bias from sentence embeddings.", context_settings=HELP, add_completion=False
)
add_verb(debias, fit)
add_verb(debias, apply)
