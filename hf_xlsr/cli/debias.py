"""The verb `debias` of the `hf-xlsr` command."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hf_xlsr.cli.evaluate import add_encoding
from hf_xlsr.cli.values import parse_languages, parse_routes, read_vectors
from hf_xlsr.utils.errors import XlsrError, did_you_mean
from hf_xlsr.utils.files import atomic_write

if TYPE_CHECKING:
    from hf_xlsr.data.formats.quarantine import Quarantine

ROWS_AT_ONCE = 4096
PLACEHOLDER = "{lang}"
# What each of the two asks for, and what belongs to the other.
FIT = ("texts", "components", "method", "columns", "languages", "where", "config", "split", "limit")
APPLY = ("vectors", "language", "model", "normalize")
ENCODING = ("prompt", "routes", "batch_size", "dtype")


def configure_debias(parser: argparse.ArgumentParser) -> None:
    """Adds the words and options of `hf-xlsr debias`."""
    parser.add_argument("action", help="fit or apply")
    parser.add_argument("place", help="fit: the model, a folder or id; apply: the folder that fit wrote")
    parser.add_argument("--output", required=True, help="folder; of vectors a file, .npy")
    parser.add_argument("--json", action="store_true", help="print JSON")
    fit = parser.add_argument_group("fit").add_argument
    fit("--texts", nargs="+", metavar="LANG=FILE", help="texts of each language, or FILE with {lang} and --languages")
    fit("--components", type=int, help="principal components to remove of each language (default 1)")
    fit("--method", help="components, or mean: subtract the mean (default components)")
    fit("--columns", help="text = column of the file; {lang} stands for each language: text={lang}")
    fit("--languages", help="codes with commas that {lang} stands for, e.g. en,de,fr")
    fit("--where", nargs="+", help="keep rows with these values: COLUMN=VALUE ...")
    fit("--config", help="configuration of a data set; may hold {lang}")
    fit("--split", help="split of a data set (default train)")
    fit("--limit", type=int, help="at most so many texts of each language")
    apply = parser.add_argument_group("apply").add_argument
    apply("--vectors", metavar="FILE", help="vectors of one language, .npy, one row a text")
    apply("--language", help="their language")
    apply("--model", help="instead of vectors: write this model with the removal behind it")
    apply("--normalize", action="store_true", help="bring vectors to length 1 afterwards")
    add_encoding(parser)
    # None tells what was given from what was not; the function below has the values.
    parser.set_defaults(prompt=None, batch_size=None)


def debias(options: argparse.Namespace, rest: list[str]) -> int:
    """Runs `hf-xlsr debias`."""
    actions: dict[str, tuple[Callable[[argparse.Namespace], dict[str, Any]], tuple[str, ...]]] = {
        "fit": (_fit, APPLY),
        "apply": (_apply, (*FIT, *ENCODING)),
    }
    if options.action not in actions:
        raise XlsrError(f"hf-xlsr debias does not '{options.action}'; {did_you_mean(options.action, actions)}")
    run, foreign = actions[options.action]
    for name in foreign:
        if getattr(options, name) not in (None, False):
            other = "apply" if options.action == "fit" else "fit"
            raise XlsrError(f"--{name.replace('_', '-')} is for hf-xlsr debias {other}; leave it out.")
    report = run(options)
    if options.json:
        print(json.dumps(report, indent=2, ensure_ascii=False))
    else:
        _print_report(report)
    return 0


def _fit(options: argparse.Namespace) -> dict[str, Any]:
    from hf_xlsr.data.formats.quarantine import Quarantine
    from hf_xlsr.encoders.debias.fitting import check_method, fit_debias
    from hf_xlsr.encoders.loading import check_choice, load_encoder
    from hf_xlsr.evaluation.report import check_writable

    components = 1 if options.components is None else options.components
    method = options.method or "components"
    check_method(components, method)
    check_writable(options.output, "--output", folder=True)
    check_choice(options.place, options.device, options.dtype)
    quarantine = Quarantine()
    texts = _texts(options, quarantine)
    encoder = load_encoder(options.place, options.device, options.dtype)
    fitted = fit_debias(
        encoder,
        texts,
        components=components,
        method=method,
        prompt=options.prompt or "",
        batch_size=128 if options.batch_size is None else options.batch_size,
        routes=parse_routes(options.routes) or None,
        show_progress_bar=not options.json and sys.stderr.isatty(),
        name=options.place,
    )
    fitted.save(options.output)
    return {"output": options.output, **fitted.facts(), "bad_lines": quarantine.report()}


def _texts(options: argparse.Namespace, quarantine: Quarantine) -> dict[str, Iterable[str]]:
    """Language -> its texts, read as they are asked for."""
    from hf_xlsr.data.columns import parse_columns
    from hf_xlsr.data.sources import open_source, whole_number
    from hf_xlsr.evaluation.table import parse_where

    if not options.texts:
        raise XlsrError("--texts is missing; give texts of each language, e.g. --texts fr=french.txt de=german.txt.")
    limit = None if options.limit is None else whole_number(options.limit, "limit")
    columns, where = parse_columns(options.columns), parse_where(options.where)
    for ours in columns:
        if ours != "text":
            raise XlsrError(f"--columns has '{ours}'; hf-xlsr debias reads text, so write text={columns[ours]}.")

    def stream(language: str, path: str) -> Iterator[str]:
        source: dict[str, Any] = {"path": path.replace(PLACEHOLDER, language), "where": where}
        if columns:
            source["columns"] = {"text": columns["text"].replace(PLACEHOLDER, language)}
        if options.config:
            source["config"] = options.config.replace(PLACEHOLDER, language)
        if options.split:
            source["split"] = options.split
        rows = open_source(source, languages=[language], required=("text",), optional=(), quarantine=quarantine)
        return (row["text"] for row in rows)

    paths: dict[str, list[str]] = {}
    for language, path in _files(options.texts, columns, options.config, parse_languages(options.languages)):
        paths.setdefault(language, []).append(path)
    texts: dict[str, Iterable[str]] = {}
    for language, files in paths.items():
        rows = chain.from_iterable(stream(language, path) for path in files)
        # A file that is missing or empty is met now, not when the model has been loaded.
        first = next(rows, None)
        if first is None:
            raise XlsrError(
                f"{' and '.join(files)} has no text in '{language}'; give some, or leave the language out."
            )
        texts[language] = islice(chain([first], rows), limit)
    return texts


def _files(
    pieces: list[str], columns: dict[str, str], config: str | None, languages: list[str]
) -> Iterator[tuple[str, str]]:
    """Language and path of each file that is meant."""
    for piece in pieces:
        language, equals, path = piece.partition("=")
        if equals and not Path(piece).exists():
            if not path:
                raise XlsrError(f"--texts has '{piece}'; write LANGUAGE=FILE, e.g. fr=french.txt.")
            yield language.strip(), path
            continue
        wide = any(PLACEHOLDER in text for text in (piece, columns.get("text", ""), config or ""))
        if not wide and len(languages) != 1:
            raise XlsrError(
                f"--texts has '{piece}', whose language is not told; write LANGUAGE=FILE, or --columns text={{lang}} "
                "with --languages en,de for a table with a column a language."
            )
        if not languages:
            raise XlsrError(
                f"{PLACEHOLDER} stands for each of --languages, which is not given; say --languages en,de."
            )
        yield from ((language, piece) for language in languages)


def _apply(options: argparse.Namespace) -> dict[str, Any]:
    from hf_xlsr.encoders.debias.removal import Debias

    fitted = Debias.load(options.place)
    if (options.vectors is None) == (options.model is None):
        raise XlsrError("give either --vectors FILE with --language, or --model; hf-xlsr debias apply takes one.")
    if options.model is not None:
        if options.language:
            raise XlsrError("--language is for --vectors; a model is told it at each call, as task, so leave it out.")
        return _apply_to_model(fitted, options)
    if not options.language:
        raise XlsrError(f"--language is missing; say which of {', '.join(fitted.languages)} the vectors are of.")
    return _apply_to_vectors(fitted, options)


def _apply_to_model(fitted: Any, options: argparse.Namespace) -> dict[str, Any]:
    from hf_xlsr.encoders.loading import load_encoder
    from hf_xlsr.evaluation.report import check_writable
    from hf_xlsr.export import debias_sentence_transformer

    check_writable(options.output, "--output", folder=True)
    home = Path(options.output)
    if home.is_dir() and any(home.iterdir()):
        raise XlsrError(f"--output is '{home}', a folder with files in it; give a new one.")
    encoder = load_encoder(options.model, options.device or "cpu")
    model = debias_sentence_transformer(encoder, fitted, normalize=options.normalize)
    model.save(str(home), create_model_card=False)
    return {"output": options.output, "model": options.model, **fitted.facts()}


def _apply_to_vectors(fitted: Any, options: argparse.Namespace) -> dict[str, Any]:
    import numpy as np
    from tqdm import tqdm

    from hf_xlsr.encoders.debias.removal import check_finite
    from hf_xlsr.evaluation.report import check_writable

    check_writable(options.output, "--output")
    vectors = read_vectors(options.vectors)
    fitted.apply(np.asarray(vectors[:1]), options.language)  # a wrong width or language, before anything is written
    output = Path(options.output)
    kind = vectors.dtype if vectors.dtype.kind == "f" else np.dtype(np.float32)
    hidden = options.json or not sys.stderr.isatty()
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        bar = tqdm(total=len(vectors), desc="removing", unit=" vectors", disable=hidden)
        with atomic_write(output) as partial, bar:
            written = np.lib.format.open_memmap(partial, mode="w+", dtype=kind, shape=vectors.shape)
            for start in range(0, len(vectors), ROWS_AT_ONCE):
                block = np.asarray(vectors[start : start + ROWS_AT_ONCE])
                check_finite(block, start)
                done = fitted.apply(block, options.language, normalize=options.normalize)
                written[start : start + len(block)] = done
                bar.update(len(block))
            written.flush()
            del written
    except OSError as error:
        raise XlsrError(f"vectors {output} cannot be written ({error.strerror}); give another place.") from error
    return {"output": options.output, "vectors": len(vectors), "language": fitted.language_of(options.language)}


def _print_report(report: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    if "languages" not in report:
        Console().print(escape(f"{report['vectors']:,} vectors in {report['language']}: {report['output']}"))
        return
    count = report["components"]
    what = "the mean" if report["method"] == "mean" else f"{count} component{'s' if count > 1 else ''}"
    table = Table(title=escape(f"{report['output']}: removes {what} of each language, width {report['dimension']}"))
    table.add_column("language")
    table.add_column("texts", justify="right")
    table.add_column("share of squared length removed", justify="right")
    for language, fitted in report["languages"].items():
        table.add_row(language, f"{fitted['texts']:,}", f"{100 * fitted['share']:.1f} %")
    Console().print(table)
    if report.get("bad_lines"):
        Console().print(escape(report["bad_lines"]))
