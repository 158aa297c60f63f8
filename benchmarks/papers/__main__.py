"""Trains and evaluates what `tables.yaml` compares and has no figures yet, and writes its part of docs/results.md.

Text and encoders are read from the folders that HF_XLSR_DATA and HF_XLSR_ENCODERS name (docs/data.md). Ctrl-C stops the
training at its next checkpoint; the same command resumes there. To train a row again, remove its entry in
docs/figures.json and its run.

usage: python -m benchmarks.papers [--only TABLE ...] [--seed 1] [--output outputs/papers] [--report] [-- --max_steps 2]
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

from benchmarks.papers.evaluate import PROMPTS, evaluate
from benchmarks.papers.figures import Figures
from benchmarks.papers.report import picture_of, write_report
from benchmarks.papers.tables import ROOT, Row, Table, read_tables

STOPPED = 130  # exit status of `hf-xlsr train` after Ctrl-C


def train(table: Table, row: Row, seed: int, home: Path, more: list[str]) -> Path:
    """Trains a row's run unless it has ended, after the runs that it starts from; returns its folder."""
    folder = table.folder(row, seed, home)
    if row.encoder or (folder / "results.json").is_file():
        return folder
    for other_table, other in table.starts(row):
        train(other_table, other, seed if seed in other_table.seeds(other) else 1, home, more)
    if row.control:
        module = "negatives" if row.control[0] == "negatives" else "controls"
        command = ["-m", f"benchmarks.papers.{module}", *table.filled(row.control, seed, home)]
        command += ["--seed", str(seed), "--output", str(folder)]
    else:
        output = folder.parent if row.run or row.stage else folder
        command = ["train.py", row.recipe or table.recipe, *(["--only", row.run] if row.run else [])]
        command += [*table.filled((*table.options, *row.options), seed, home), "--seed", str(seed), *more]
        command += ["--output_dir", str(output)]
    subprocess.run([sys.executable, *command], cwd=ROOT, check=True)
    return folder


def measure(table: Table, row: Row, seed: int, home: Path, more: list[str]) -> Path:
    folder = train(table, row, seed, home, more)
    model = table.encoder(row) if row.encoder else folder / "model"
    if table.units and not row.hidden:
        results = folder / "evaluations" / table.languages
        evaluate(model, list(table.units), table.languages, results, PROMPTS.get(row.encoder, ""))
    return folder


def draw(table: Table, home: Path, images: Path) -> None:
    if table.tsne and (tsne := table.folder(table.row(table.tsne), 1, home) / "tsne.png").is_file():
        shutil.copyfile(tsne, picture_of(table, images, "tsne"))
    for picture in table.pictures:
        words = [os.path.expandvars(word) for word in table.filled(picture.command, 1, home)]
        if all(Path(word.partition("=")[2]).exists() for word in words if f"={home}" in word):
            command = [sys.executable, "-m", "hf_xlsr.cli", "plot", *words]
            subprocess.run([*command, "--output", str(picture_of(table, images, picture.kind))], cwd=ROOT, check=True)


def main() -> int:
    """Runs what is missing and writes the page; returns 1 when a training or an evaluation failed."""
    words = sys.argv[1:]
    split = words.index("--") if "--" in words else len(words)
    more = words[split + 1 :]  # options of every recipe
    book = read_tables(ROOT / "benchmarks" / "papers" / "tables.yaml")
    names = [table.name for table in book.tables]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=names, default=names, metavar="TABLE")
    parser.add_argument("--seed", type=int, help="only this seed")
    parser.add_argument("--output", type=Path, default=Path("outputs/papers"), help="folder of the runs")
    parser.add_argument("--docs", type=Path, default=ROOT / "docs", help="folder of results.md and figures.json")
    parser.add_argument("--report", action="store_true", help="only write the page from the figures that are kept")
    options = parser.parse_args(words[:split])
    kept, home, images = Figures(options.docs / "figures.json"), options.output.resolve(), options.docs / "images"
    images.mkdir(exist_ok=True)
    (options.docs / "results").mkdir(exist_ok=True)
    # A handler, not SIG_IGN, which the training would inherit: it alone answers Ctrl-C, and leaves a checkpoint.
    signal.signal(signal.SIGINT, lambda *_: None)
    failed = 0
    for table in [] if options.report else [one for one in book.tables if one.name in options.only]:
        wanted = [(row, seed) for row in table.rows if not row.hidden for seed in table.seeds(row)]
        for row, seed in sorted(wanted, key=lambda one: one[1]):
            if kept.has(table, row, seed) or options.seed not in (None, seed):
                continue
            try:
                kept.add(table, row, seed, measure(table, row, seed, home, more))
                kept.save()
            except subprocess.CalledProcessError as error:
                if error.returncode in (STOPPED, -signal.SIGINT):
                    return STOPPED
                print(f"{table.name}, {row.name}, seed {seed} failed: {error}", file=sys.stderr)
                failed += 1
        draw(table, home, images)
    write_report(book, kept, options.docs)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
