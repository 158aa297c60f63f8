"""The verbs `mine` and `score` of the `hf-xlsr` command."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hf_xlsr.cli.options import (
    BATCH_SIZE,
    LANGUAGES,
    MODEL,
    EncodingWorkerOptions,
    ModelOptions,
    parse_prompts,
    parse_routes,
    read_vectors,
)
from hf_xlsr.cli.report import OutputOptions
from hf_xlsr.cli.reproduce import command_of
from hf_xlsr.runs.own_data import COLUMNS, comma_separated
from hf_xlsr.utils.console import say
from hf_xlsr.utils.errors import XlsrError
from hf_xlsr.utils.local_paths import public_name

if TYPE_CHECKING:
    from hf_xlsr.mining.options import MiningOptions
    from hf_xlsr.mining.pipeline import MiningRun

SEARCH: dict[str, Any] = {"rich_help_panel": "Search"}
PLAN: dict[str, Any] = {"rich_help_panel": "Plan"}
THRESHOLD: dict[str, Any] = {"rich_help_panel": "Choosing the threshold"}
OF_MODEL = ("prompt", "routes", "dtype", "truncate_dim", "vectors")  # options without effect on given vectors
VECTORS_FILE = typer.Option(metavar="FILE", help="Embeddings of this side instead of a model: .npy, a row per line.")
POOL = typer.Option(metavar="FILE", help="Sentences to compare with; by default the pairs' own.")


@dataclass(kw_only=True)
class SearchOptions(ModelOptions, EncodingWorkerOptions, OutputOptions):
    """What `mine`, `score` and `negatives` share: encoding, the search for neighbours, and the output."""

    vectors: Annotated[
        str | None, typer.Option(metavar="FOLDER", help="Embeddings that other commands share; filled as well.")
    ] = None
    vectors_dtype: Annotated[
        str | None,
        typer.Option(help="Embeddings in the work folder: float32, float16 or int8 (default float16).", **SEARCH),
    ] = None
    languages: Annotated[str | None, LANGUAGES] = None
    batch_size: Annotated[int, BATCH_SIZE] = 64
    k: Annotated[int | None, typer.Option(help="Size of the neighbourhoods (default 4).", **SEARCH)] = None
    margin: Annotated[str | None, typer.Option(help="ratio, distance or absolute (default ratio).", **SEARCH)] = None
    method: Annotated[
        str | None, typer.Option(help="exact, ivf or auto, which depends on the size (default auto).", **SEARCH)
    ] = None
    recall: Annotated[
        float | None,
        typer.Option(help="Share of neighbours that ivf must find on a sample, e.g. 0.98.", **SEARCH),
    ] = None
    memory: Annotated[
        str | None,
        typer.Option(help="Memory of each process for mining, besides the model, e.g. 4GB.", **SEARCH),
    ] = None

    def mining_options(self, **changes: Any) -> "MiningOptions":
        """The options of the library, checked; what is not given has its default there."""
        from hf_xlsr.mining.options import MiningOptions

        names = {field.name for field in fields(MiningOptions)}
        values = {name: value for name, value in vars(self).items() if name in names}
        values["languages"] = comma_separated(self.languages)
        values["prompt"] = parse_prompts(self.prompt)
        values["routes"] = parse_routes(self.routes)
        values["show_progress_bar"] = not self.json
        values |= changes
        return MiningOptions(**{name: value for name, value in values.items() if value not in (None, [], {})})


@dataclass(kw_only=True)
class ThresholdOptions(SearchOptions):
    """What `mine` and `score` share: the search, and the threshold of pairs."""

    threshold: Annotated[float | None, typer.Option(help="Lowest score to keep; by default all.", **THRESHOLD)] = None
    labels: Annotated[
        str | None,
        typer.Option(
            help="Labels saved from the report: rejected pairs are left out, accepted ones stay.", **THRESHOLD
        ),
    ] = None
    labels_only_estimate: Annotated[
        bool,
        typer.Option("--labels-only-estimate", help="Labels choose the threshold, and change no pair.", **THRESHOLD),
    ] = False
    precision: Annotated[
        float | None, typer.Option(help="Precision to reach; by default the F1 is the best.", **THRESHOLD)
    ] = None

    def check_threshold(self, *references: Any) -> None:
        """Raises an error unless at most one of the references, and of `--labels`, chooses the threshold."""
        count = sum(map(bool, (*references, self.labels)))
        if count > 1 or (self.precision is not None and not count):
            raise XlsrError("Give at most one of --known, --gold and --labels; --precision needs one of them.")
        if self.labels_only_estimate and not self.labels:
            raise XlsrError("--labels-only-estimate needs --labels.")


@dataclass(kw_only=True)
class MineOptions(ThresholdOptions):
    """Options of `hf-xlsr mine`."""

    source: Annotated[
        str, typer.Argument(help="One sentence per line, also compressed; or a table or dataset with a column `text`.")
    ] = ""
    target: Annotated[str, typer.Argument(help="The same in the other language.")] = ""
    output: Annotated[str, typer.Option(help="File of pairs: .tsv, .jsonl, .parquet or .tmx.")] = ""
    model: Annotated[str | None, typer.Option(help=MODEL)] = None
    source_vectors: Annotated[str | None, VECTORS_FILE] = None
    target_vectors: Annotated[str | None, VECTORS_FILE] = None
    known: Annotated[
        list[str] | None, typer.Option(help="Translations in any format, hidden among the sentences.", **THRESHOLD)
    ] = None
    gold: Annotated[
        list[str] | None, typer.Option(help="All translations between the two texts, in any format.", **THRESHOLD)
    ] = None
    retrieval: Annotated[
        str | None, typer.Option(help="max, intersection, forward or backward (default max).", **SEARCH)
    ] = None
    duplicates: Annotated[str | None, typer.Option(help="merge or keep equal lines (default merge).", **SEARCH)] = None
    max_pairs: Annotated[int | None, typer.Option(metavar="N", help="Number of best pairs to keep.", **SEARCH)] = None
    many: Annotated[bool, typer.Option("--many", help="Use a sentence in several pairs.", **SEARCH)] = False
    columns: Annotated[
        str | None, typer.Option(help="Column of a table: text=COLUMN; {lang} is each of --languages.")
    ] = None
    split_sentences: Annotated[bool, typer.Option("--split-sentences", help="Split documents into sentences.")] = False
    cleaning: Annotated[
        str | None,
        typer.Option(
            metavar="STEP,...",
            help='Steps as in a recipe, e.g. "normalize, language: {min_share: 0.5}, length, ratio".',
        ),
    ] = None

    plan: Annotated[
        bool,
        typer.Option("--plan", help="Only print what mining --rows by --workers takes, from a short probe.", **PLAN),
    ] = False
    rows: Annotated[str | None, typer.Option(metavar="N", help="Sentences of each side, e.g. 1e9.", **PLAN)] = None
    workers: Annotated[int, typer.Option(min=1, help="Processes of one thread each.", **PLAN)] = 1

    def check_plan(self) -> None:
        """Raises an error unless there is something to mine, or to plan."""
        if self.plan and not self.rows:
            raise XlsrError("--plan needs --rows, e.g. --rows 1e9.")
        if self.rows and not self.plan:
            raise XlsrError("--rows needs --plan.")
        if not self.plan and not (self.source and self.target and self.output):
            raise XlsrError("Give SOURCE, TARGET and --output, or --plan.")

    @property
    def steps(self) -> "list[str | dict[str, Any]]":
        """The cleaning steps."""
        from hf_xlsr.data.cleaning import parse_steps

        return parse_steps(self.cleaning)

    def needs_languages(self) -> bool:
        """Whether sentences are split or filtered by language."""
        from hf_xlsr.data.cleaning import LanguageFilter, build_steps

        steps = build_steps(self.steps, ["und"])
        return self.split_sentences or any(isinstance(step, LanguageFilter) for step in steps)


def mine(options: MineOptions) -> None:
    """Find translations in two texts.

    Example: hf-xlsr mine en.txt de.txt --model MODEL --languages en,de --known known.tsv --output pairs.tsv
    """
    from hf_xlsr.mining.pipeline import run_mining
    from hf_xlsr.runs.inputs import check_named

    options.check_plan()
    if options.plan:
        _print_plan(options)
        return
    source_vectors = options.source_vectors
    target_vectors = options.target_vectors
    if (source_vectors is None) != (target_vectors is None):
        raise XlsrError("Give both --source-vectors and --target-vectors.")
    if source_vectors:
        for name in OF_MODEL:
            if getattr(options, name) is not None:
                raise XlsrError(f"--{name.replace('_', '-')} needs --model: given vectors are used as they are.")

    options.check_threshold(options.known, options.gold)
    mining = options.mining_options(one_to_one=not options.many)
    options.check_output(mining.languages)
    sides = _sides(options, mining.languages)
    files = {
        "SOURCE": options.source,
        "TARGET": options.target,
        "--labels": options.labels,
        "--source-vectors": source_vectors,
        "--target-vectors": target_vectors,
        "--known": options.known,
        "--gold": options.gold,
    }
    check_named(options.model, files, outputs=options.written)

    with options.resumable():
        vectors = None
        if source_vectors and target_vectors:
            vectors = (read_vectors(source_vectors), read_vectors(target_vectors))
        hidden_pairs = None
        if options.known:
            hidden_pairs = _translations(options.known, mining.languages, sides, options.steps)

        source, target = sides
        run = run_mining(
            source,
            target,
            options.folder,
            mining,
            encoder=options.model,
            vectors=vectors,
            known=hidden_pairs,
            runner=options.runner(),
        )
        _finish_mining(run, sides, mining, options)


def _print_plan(options: MineOptions) -> None:
    """Prints the stages of mining with what they take."""
    from hf_xlsr.mining.plan import measured_rates, parse_count, plan_mining, plan_table
    from hf_xlsr.mining.stages import STORED_DTYPE
    from hf_xlsr.utils.devices import parse_size

    assert options.rows is not None
    mining = options.mining_options()
    rows = parse_count(options.rows)
    rates = measured_rates(options.model, options.device, options.dtype, options.truncate_dim)
    memory = parse_size(mining.memory)
    stages = plan_mining(
        rows,
        options.workers,
        rates,
        k=mining.k,
        method=mining.method,
        memory=memory,
        vectors_dtype=mining.vectors_dtype or STORED_DTYPE,
    )
    if options.json:
        plan = {"rates": vars(rates), "stages": [vars(stage) for stage in stages]}
        say(json.dumps(plan))
        return

    encoder = f"{rates.texts:,.0f} sentences a second by {rates.encoder}"
    if rates.encoder is None:
        encoder = f"{rates.texts:,.0f} sentences a second (assumed: give --model to measure)"
    say(f"{rows:,} sentences a side of width {rates.width}, {options.workers} workers of one thread.")
    say(f"Measured now on one thread of {rates.machine}, a second:")
    say(f"{rates.products / 1e9:,.1f} billion multiply-adds of the search, {rates.lines:,.0f} lines read,")
    say(f"{rates.bytes / 1e6:,.0f} MB copied, {rates.rows:,.0f} rows extracted.")
    say(f"Encoding: {encoder}.\n")
    table = plan_table(stages)
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for row in table:
        cells = [row[0].ljust(widths[0])]
        cells += [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
        say("  ".join(cells).rstrip())


def _finish_mining(
    run: "MiningRun",
    sides: list[Any],
    mining: "MiningOptions",
    options: MineOptions,
) -> None:
    """Chooses the threshold, cleans the pairs, and writes them."""
    from hf_xlsr.data.cleaning import Cleaner, build_steps
    from hf_xlsr.mining.facts import files_facts
    from hf_xlsr.mining.labels import find_labelled, label_curve
    from hf_xlsr.mining.outputs import PAIR_COLUMNS, read_labels

    languages = mining.languages
    if options.gold:
        gold = _translations(options.gold, languages, sides, options.steps)
        run = replace(run, curve=run.gold_curve(gold))
    verdicts = None
    if options.labels:
        verdicts = find_labelled(read_labels(options.labels), run.sentences())
        run = replace(run, curve=label_curve(verdicts))
    best = run.chosen(mining, options.precision)
    if verdicts and not options.labels_only_estimate:
        best = best.labelled(run, verdicts)

    report = dict(best.report)
    columns = list(PAIR_COLUMNS)
    cleaning_counts: dict[str, Any] = {}
    for name, side in zip(("source", "target"), sides, strict=True):
        reading = getattr(side, "report", {})
        report[name] = {**report[name], "bad_lines": reading.get("bad_lines", "")}
        cleaning_counts[name] = reading
        if reading:
            # Rows of a table may be skipped, split or removed: the numbers of its sentences are not those of its rows.
            columns.remove(f"{name}_line")

    source_language, target_language = languages or ("und", "und")
    cleaner = Cleaner(build_steps(options.steps, [source_language, target_language]))
    row_languages = {"source_lang": source_language, "target_lang": target_language}
    report |= options.write(cleaner(row | row_languages for row in best.sentences()), columns, languages)
    if options.steps:
        report["cleaning"] = {**cleaning_counts, "pairs": cleaner.counts}
    best = replace(best, report=report)
    step = best.step("mine", run, languages=languages, command=command_of("mine", options))
    if options.steps:
        # Counts only: sentences on bad lines name files with their folders.
        step["cleaning"] = {name: reading["cleaning"] for name, reading in cleaning_counts.items() if reading}
        step["cleaning"]["pairs"] = cleaner.counts
    for name, side in zip(("source", "target"), sides, strict=True):
        step["inputs"][name] |= files_facts([getattr(options, name)])[0]
        skipped = getattr(side, "skipped", {})
        if skipped:
            step["inputs"][name]["skipped"] = skipped
    options.finish(
        run,
        run.rows.score,
        report,
        title=f"{public_name(options.source)} and {public_name(options.target)}",
        languages=languages,
        step=step,
    )


def _sides(options: MineOptions, languages: Sequence[str] | None) -> list[Any]:
    """Both sides for `run_mining`: files read line by line, or texts of other sources."""
    from hf_xlsr.data.columns import PLACEHOLDER, parse_columns
    from hf_xlsr.data.file_languages import check_order
    from hf_xlsr.data.formats.content import refuse_markup
    from hf_xlsr.mining.texts import SourceTexts, is_plain

    if options.needs_languages() and not languages:
        raise XlsrError("--split-sentences and the cleaning step language need --languages, e.g. --languages en,de.")
    if languages and not options.columns:
        check_order((options.source, options.target), languages)

    as_it_is = not (options.columns or options.split_sentences or options.steps)
    sides: list[Any] = []
    for file, language in zip((options.source, options.target), languages or (None, None), strict=True):
        if is_plain(file) and not options.columns:
            refuse_markup(Path(file).expanduser())

        if as_it_is and is_plain(file):
            sides.append(file)
            continue

        columns = {}
        for name, column in parse_columns(options.columns).items():
            columns[name] = column.replace(PLACEHOLDER, language or "")
        source = {"path": file, "columns": columns or None, "format": "moses" if is_plain(file) else None}
        sides.append(SourceTexts(source, language, options.split_sentences, tuple(options.steps)))
    return sides


def _translations(
    paths: list[str],
    languages: Sequence[str] | None,
    sides: Sequence[Any],
    steps: "Sequence[str | dict[str, Any]]",
) -> list[tuple[str, str]]:
    """Translations, with each text in the form in which its side is read."""
    from hf_xlsr.data.cleaning import Cleaner, Normalize, build_steps

    def as_read(text: str, side: Any) -> str:
        return text if isinstance(side, str) else " ".join(text.split())

    cleaner = Cleaner(step for step in build_steps(steps, languages) if isinstance(step, Normalize))
    source, target = sides
    return [
        (as_read(row["source"], source), as_read(row["target"], target))
        for row in cleaner(pair_rows_of(paths, languages))
    ]


def pair_rows_of(paths: list[str], languages: Sequence[str] | None, **options: Any) -> Iterator[dict[str, Any]]:
    from hf_xlsr.data.formats.reading import read_rows

    return read_rows(paths[0] if len(paths) == 1 else paths, languages=languages, **options)


@dataclass(kw_only=True)
class ScoreOptions(ThresholdOptions):
    """Options of `hf-xlsr score`."""

    pairs: Annotated[list[str], typer.Argument(help="File of pairs in any supported format, or two Moses files.")]
    model: Annotated[str, typer.Option(help=MODEL)]
    columns: Annotated[str | None, typer.Option(help=f"{COLUMNS}: source=en,target=de.")] = None
    source_pool: Annotated[str | None, POOL] = None
    target_pool: Annotated[str | None, POOL] = None


def score(options: ScoreOptions) -> None:
    """Score given pairs by margin and cosine.

    Example: hf-xlsr score pairs.tsv --model MODEL --languages en,de --output scored.tsv
    """
    from itertools import compress

    import numpy as np

    from hf_xlsr.data.file_languages import text_language
    from hf_xlsr.mining.facts import files_facts, histogram, new_step, scoring_facts
    from hf_xlsr.mining.labels import find_labelled, label_curve
    from hf_xlsr.mining.outputs import SCORE_COLUMNS, read_labels
    from hf_xlsr.mining.scoring import run_scoring
    from hf_xlsr.runs.inputs import check_named

    options.check_threshold()
    mining = options.mining_options()
    options.check_output(mining.languages)
    files = {
        "PAIRS": options.pairs,
        "--labels": options.labels,
        "--source-pool": options.source_pool,
        "--target-pool": options.target_pool,
    }
    check_named(options.model, files, outputs=options.written)
    sources = PairColumn(options.pairs, options.columns, mining.languages, "source")
    targets = PairColumn(options.pairs, options.columns, mining.languages, "target")
    pools = {"source_pool": options.source_pool, "target_pool": options.target_pool}
    for pool, language in zip(pools.values(), mining.languages or (), strict=False):
        if pool:
            text_language(pool, [language])

    with options.resumable():
        run = run_scoring(
            sources, targets, pools, options.folder, mining, encoder=options.model, runner=options.runner()
        )
        threshold = mining.threshold
        estimate: dict[str, Any] = {}
        verdicts = None
        if options.labels:
            verdicts = find_labelled(read_labels(options.labels), run.sentences())
            run.curve = label_curve(verdicts)
            threshold, estimate = run.curve.chosen(threshold, options.precision)

        is_chosen = np.ones(len(run.scores.score), dtype=bool)
        if threshold is not None:
            is_chosen = run.scores.score >= threshold
        label_counts = {}
        if verdicts and not options.labels_only_estimate:
            label_counts = verdicts.counts(is_chosen)
            is_chosen = verdicts.keeps(is_chosen)

        rows = compress(run.sentences(), is_chosen)
        report = run.report | options.write(rows, SCORE_COLUMNS, mining.languages)
        report |= {"threshold": threshold, "estimate": estimate, "labels": label_counts}
        report |= {"bad_lines": sources.bad_lines}
        estimates = {name: report[name] for name in ("threshold", "estimate", "labels")}
        facts = {
            **scoring_facts(run.facts),
            "files": files_facts(options.pairs),
            "pairs": {"in": len(run.scores.score), "out": report["pairs"]},
            "histogram": histogram(run.scores.score, "margin score"),
            "curve": run.curve and run.curve.values(),
        }
        step = new_step("score", estimates, facts, command=command_of("score", options), languages=mining.languages)
        options.finish(
            run,
            run.scores.score,
            report,
            title=" and ".join(map(public_name, options.pairs)),
            languages=mining.languages,
            step=step,
            inputs=options.pairs,
        )


class PairColumn:
    """One column of the file of pairs, read again in each iteration."""

    def __init__(self, paths: list[str], columns: str | None, languages: Sequence[str] | None, name: str) -> None:
        self.paths = paths
        self.columns = columns
        self.languages = languages
        self.name = name
        self.bad_lines = ""

    def __iter__(self) -> Iterator[str]:
        from hf_xlsr.data.formats.quarantine import Quarantine

        quarantine = Quarantine()
        count = 0
        for row in pair_rows_of(self.paths, self.languages, columns=self.columns, quarantine=quarantine):
            count += 1
            yield row[self.name]
        self.bad_lines = quarantine.report()
        if not count:
            reason = self.bad_lines or "it is empty or only a header."
            raise XlsrError(f"{' + '.join(self.paths)} has no pairs: {reason}")
