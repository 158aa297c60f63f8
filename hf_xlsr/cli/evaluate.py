"""The verbs `evaluate` and `plot` of the command `hf-xlsr`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from hf_xlsr.cli.values import parse_languages, parse_routes
from hf_xlsr.utils.errors import XlsrError, did_you_mean

# The options of each kind of plot beside --output.
READING = ("data", "columns", "languages", "split", "where", "config", "limit")
ENCODING = ("prompt", "routes", "batch_size", "device", "dtype")
PLOTS = {
    **dict.fromkeys(("tsne", "heatmap", "spaces"), (*READING, *ENCODING, "pairs", "seed")),
    "retrieval": ("metric", "protocol"),
    "languages": ("protocol",),
    "curves": ("metric",),
}
PAIRS = {"tsne": 15, "heatmap": 15, "spaces": 500}  # drawn unless --pairs says otherwise


def configure_evaluate(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `hf-xlsr evaluate`."""
    add = parser.add_argument
    add("model", nargs="?", help="folder or id that sentence-transformers loads")
    add("--protocol", help="name of a protocol, or several with commas that take the same data")
    add("--data", nargs="+", help="files, a corpus, the id or folder of a data set, or mteb:TASK")
    add("--list", action="store_true", help="print the protocols with their columns and options, and stop")
    _add_reading(parser)
    add("--name", help="what metric keys call the data (default: the corpus, or the file's name up to its first dot)")
    _add_protocol_options(parser)
    add_encoding(parser)
    add("--seed", type=int, help="of all that is random (default: senteval 1111, nli 159753, as published; else 1)")
    add("--output", help="write the results here, as JSON")
    add("--report", metavar="DIR", help="write a report with plots into this folder")


def evaluate(options: argparse.Namespace, rest: list[str]) -> int:
    """Runs `hf-xlsr evaluate`."""
    from rich.console import Console

    if options.list:
        Console().print(_protocols_table())
        return 0
    for name, what in (("model", "MODEL, a folder or id"), ("protocol", "--protocol NAME"), ("data", "--data FILE")):
        if not getattr(options, name):
            raise XlsrError(f"{what} is missing; see hf-xlsr evaluate --help, and --list for the protocols.")

    from hf_xlsr.evaluation.command import evaluate_files
    from hf_xlsr.evaluation.protocols.language_bias import SHARE
    from hf_xlsr.evaluation.registry import FOR_ALL, option_specs
    from hf_xlsr.evaluation.report import results_table, split_key

    metrics = evaluate_files(
        options.model,
        options.protocol,
        data_options(options),
        {name: _plain(getattr(options, name)) for name in option_specs() if name not in FOR_ALL},
        encoder=encoder_options(options),
        seed=options.seed,
        output=options.output,
        report=options.report,
    )
    # A share for each pair of languages is for the picture.
    shown = {key: value for key, value in metrics.items() if not split_key(key)[3].startswith(SHARE)}
    Console().print(results_table(shown, title=f"{options.model}, {options.protocol}"))
    return 0


def data_options(options: argparse.Namespace) -> Any:
    """The `DataOptions` of a command line."""
    from hf_xlsr.evaluation.inputs import DataOptions

    return DataOptions(
        files=tuple(options.data),
        columns=options.columns,
        languages=tuple(parse_languages(options.languages)),
        split=options.split or "test",
        where=tuple(options.where or ()),
        config=options.config,
        limit=options.limit,
        name=getattr(options, "name", None),
    )


def encoder_options(options: argparse.Namespace) -> Any:
    """The `EncoderOptions` of a command line.

    Raises:
        XlsrError: routes are not written as such.
    """
    from hf_xlsr.evaluation.command import EncoderOptions

    given = {name: getattr(options, name) for name in ("prompt", "batch_size", "device", "dtype")}
    given = {name: value for name, value in given.items() if value is not None}
    return EncoderOptions(routes=parse_routes(options.routes), **given)


def _plain(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _add_protocol_options(parser: argparse.ArgumentParser) -> None:
    from hf_xlsr.evaluation.registry import FOR_ALL, option_specs

    group = parser.add_argument_group("options of some protocols (--list says which)").add_argument
    for spec in option_specs().values():
        option = f"--{spec.name.replace('_', '-')}"
        text = f"{spec.help}; {', '.join(spec.choices)}" if spec.choices else spec.help
        if spec.name in FOR_ALL:
            continue
        if spec.type is bool:
            group(option, action="store_true", help=text)
        else:
            group(option, type=spec.type, nargs="+" if spec.several else None, help=text)


def configure_plot(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `hf-xlsr plot`."""
    add = parser.add_argument
    add("kind", help="of models: tsne, heatmap, spaces; of results: retrieval, languages; of training runs: curves")
    add("sources", nargs="+", help="models; results files; or folders of runs. LABEL=PATH names one in the picture")
    add("--output", required=True, help="the picture: .png, .pdf or .svg")
    add("--data", nargs="+", help="tsne, heatmap, spaces: translation pairs, as evaluate takes them")
    add("--pairs", type=int, help="likewise: so many random pairs (default 15; of spaces 500 of each two languages)")
    add("--metric", help="retrieval, curves: last part of the keys to draw, e.g. precision@5")
    add("--protocol", help="retrieval, languages: first parts of the keys to draw, with commas, e.g. tico19-xsr")
    _add_reading(parser)
    add_encoding(parser)
    add("--seed", type=int, help="tsne, heatmap, spaces: of the choice of pairs (default 1)")
    # None tells what was given from what was not.
    parser.set_defaults(prompt=None, batch_size=None, split=None)


def plot(options: argparse.Namespace, rest: list[str]) -> int:
    """Runs `hf-xlsr plot`."""
    if options.kind not in PLOTS:
        raise XlsrError(f"there is no plot '{options.kind}'; {did_you_mean(options.kind, PLOTS)}")
    for name in dict.fromkeys(chain.from_iterable(PLOTS.values())):
        if name not in PLOTS[options.kind] and getattr(options, name) is not None:
            takers = " or ".join(kind for kind, names in PLOTS.items() if name in names)
            raise XlsrError(f"--{name.replace('_', '-')} is for plot {takers}; leave it out with {options.kind}.")

    from hf_xlsr.evaluation.plots.common import check_picture
    from hf_xlsr.evaluation.report import check_writable

    check_picture(options.output)
    check_writable(options.output, "--output")
    of_results = {"retrieval": _plot_retrieval, "languages": _plot_languages, "curves": _plot_curves}
    draw = of_results.get(options.kind, _plot_vectors)
    print(draw(options))
    return 0


def _plot_vectors(options: argparse.Namespace) -> Path:
    from hf_xlsr.encoders.loading import check_choice, load_encoder
    from hf_xlsr.evaluation import plots
    from hf_xlsr.evaluation.command_report import random_rows
    from hf_xlsr.evaluation.inputs import read_inputs
    from hf_xlsr.evaluation.plots.spaces import FEWEST_SENTENCES, MOST_ROWS, MOST_SENTENCES, check_panels
    from hf_xlsr.evaluation.protocols.tatoeba import encode_pairs
    from hf_xlsr.evaluation.registry import PROTOCOLS
    from hf_xlsr.evaluation.rows import both_sides, by_pair

    of_spaces = options.kind == "spaces"
    models = _labelled(options.sources) if of_spaces else {source: source for source in options.sources}
    if len(options.sources) != 1 and not of_spaces:
        raise XlsrError(f"{options.kind} draws one model, and {len(options.sources)} are given; draw each alone.")
    if len(models) > MOST_ROWS:
        raise XlsrError(f"spaces draws {MOST_ROWS} models at most, and {len(models)} are given; leave some out.")
    if not options.data:
        raise XlsrError(f"--data is missing; {options.kind} draws translation pairs, give a file of them.")
    count = PAIRS[options.kind] if options.pairs is None else options.pairs
    if count < 2:
        raise XlsrError(f"--pairs is {count}; draw 2 or more.")
    if of_spaces and not FEWEST_SENTENCES <= count <= MOST_SENTENCES:
        raise XlsrError(f"--pairs is {count}; spaces draws {FEWEST_SENTENCES} to {MOST_SENTENCES:,}.")
    chosen_encoder, seed = encoder_options(options), 1 if options.seed is None else options.seed
    for model in models.values():
        check_choice(model, options.device, options.dtype)
    groups = by_pair(read_inputs(PROTOCOLS["tatoeba"], data_options(options)).only)
    if len(groups) > 1 and not of_spaces:
        named = ", ".join("-".join(languages) for languages in groups)
        raise XlsrError(f"the data hold the pairs {named}; choose one by --languages.")
    chosen = {languages: random_rows(rows, count, seed) for languages, rows in groups.items()}
    texts = {languages: both_sides(rows) for languages, rows in chosen.items()}
    if of_spaces:
        check_panels(dict.fromkeys(models, {pair: (len(rows), len(rows)) for pair, rows in chosen.items()}))
    spaces = {}
    for label, model in models.items():
        encoder = load_encoder(model, options.device, options.dtype)
        spaces[label] = {
            pair: encode_pairs(encoder, *sides, pair, **chosen_encoder.encoding) for pair, sides in texts.items()
        }
    if of_spaces:
        return plots.plot_spaces(options.output, spaces, seed=seed)
    draw = plots.plot_tsne if options.kind == "tsne" else plots.plot_heatmap
    ((languages, vectors),) = spaces[options.sources[0]].items()
    return draw(options.output, *vectors, *texts[languages], languages, pairs=count, seed=seed)


def _plot_retrieval(options: argparse.Namespace) -> Path:
    from hf_xlsr.evaluation.plots import plot_retrieval
    from hf_xlsr.evaluation.report import load_results

    results = {label: load_results(path) for label, path in _labelled(options.sources).items()}
    protocols = options.protocol.split(",") if options.protocol else None
    return plot_retrieval(options.output, results, metric=options.metric, protocols=protocols)


def _plot_languages(options: argparse.Namespace) -> Path:
    from hf_xlsr.evaluation.plots.languages import plot_languages
    from hf_xlsr.evaluation.report import load_results

    results = {label: load_results(path) for label, path in _labelled(options.sources).items()}
    return plot_languages(options.output, results, options.protocol.split(",") if options.protocol else None)


def _plot_curves(options: argparse.Namespace) -> Path:
    from hf_xlsr.evaluation.plots import plot_curves, plot_loss_curves

    runs = {label: _log_history(path) for label, path in _labelled(options.sources).items()}
    metrics = options.metric.split(",") if options.metric else None
    if len(runs) == 1 and metrics is None:
        return plot_loss_curves(options.output, *runs.values())
    return plot_curves(options.output, runs, metrics=metrics)


def _log_history(path: str) -> list[dict[str, Any]]:
    """The log of a run of ours, of a Trainer's checkpoint, or of the file itself."""
    import json

    places = [Path(path), *(Path(path) / name for name in ("training/log.json", "log.json", "trainer_state.json"))]
    file = next((place for place in places if place.is_file()), None)
    if file is None:
        raise XlsrError(f"'{path}' holds no log of training; give a folder that hf-xlsr train wrote, or its log.json.")
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise XlsrError(f"the log {file} cannot be read ({str(error).splitlines()[0]}); check the file.") from error
    history = content.get("log_history") if isinstance(content, dict) else content
    if not isinstance(history, list) or not all(isinstance(entry, dict) for entry in history):
        raise XlsrError(f"{file} holds no log of training; give log.json of a run, or trainer_state.json.")
    return history


def _labelled(sources: Sequence[str]) -> dict[str, str]:
    """Path by label; a path without one is called by its name, by its folder where names are the same."""
    labelled: dict[str, str] = {}
    for source in sources:
        label, equals, path = source.partition("=")
        if not equals or Path(source).exists():
            path = source
            stems = [Path(other).stem for other in sources]
            label = Path(source).stem if stems.count(Path(source).stem) == 1 else source
        if label in labelled:
            raise XlsrError(f"two sources are called '{label}'; tell them apart by LABEL=PATH.")
        labelled[label] = path
    return labelled


def _add_reading(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("reading data").add_argument
    add("--columns", help="our column = column of the file; {lang} stands for each language: source=en,target={lang}")
    add("--languages", help="codes with commas; of pairs the source's first, e.g. en,de,fr")
    add("--split", default="test", help="split of the data, and of metric keys (default test)")
    add("--where", nargs="+", help="keep rows with these values: COLUMN=VALUE ...")
    add("--config", help="configuration of a data set; may hold {lang}")
    add("--limit", type=int, help="at most so many rows of each language (pair)")


def add_encoding(parser: argparse.ArgumentParser) -> None:
    """Adds the options that say how sentences become vectors."""
    add = parser.add_argument_group("encoding").add_argument
    add("--prompt", default="", help='put before each sentence, e.g. "query: "')
    add("--routes", help="language=route of a model with several encoders, e.g. en=source,de=target")
    add("--batch-size", type=int, default=128, help="sentences encoded at a time (default 128)")
    add("--device", help="cpu, cuda, cuda:1, ... (default: the best there is)")
    add("--dtype", help="float32, bfloat16, float16 (default: as the model's files), onnx or onnx-int8")


def _protocols_table() -> Any:
    from rich.table import Table

    from hf_xlsr.evaluation.registry import PROTOCOLS, specs_of

    table = Table("protocol", "what it measures, and on what", show_lines=True)
    table.columns[0].no_wrap = True
    for protocol in PROTOCOLS.values():
        lines = [protocol.summary, f"data: {protocol.data}"]
        if protocol.optional:
            lines.append(f"columns read where there are: {', '.join(protocol.optional)}")
        if specs := specs_of(protocol.options):
            lines.append("options: " + " ".join(f"--{option.replace('_', '-')}" for option in specs))
        table.add_row(protocol.name, "\n".join(lines))
    return table
