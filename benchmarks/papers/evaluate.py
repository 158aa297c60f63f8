"""Encoders under the protocols of `evaluations.yaml`, each a call of `hf-xlsr evaluate`; finished ones are skipped.

Texts and encoders are read from the folders that HF_XLSR_DATA and HF_XLSR_ENCODERS name (docs/data.md).

usage: python -m benchmarks.papers.evaluate MODEL [--languages en-fr+de] [--units tatoeba bucc ...] [--prompt "query: "]
           [--pooling mean|cls] [--output outputs/evaluations/NAME]
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import subprocess
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from benchmarks.papers.tables import ROOT
from hf_xlsr.data.sources import Source, open_source
from hf_xlsr.evaluation.bitexts import hide_pairs

UNITS: dict[str, dict[str, Any]] = yaml.safe_load((ROOT / "benchmarks/papers/evaluations.yaml").read_text("utf-8"))
PROMPTS = {"e5-small": "query: "}  # of encoders in HF_XLSR_ENCODERS
MADE = ROOT / "outputs" / "papers" / "made"


def read(path: str, columns: str, **options: Any) -> list[dict[str, Any]]:
    names = [part.split("=")[0] for part in columns.split(",")]
    source = {"path": f"${{HF_XLSR_DATA}}/{path}.parquet", "columns": columns, **options}
    return list(open_source(Source.parse(source), languages=("en", "fr"), required=names))


def make_bucc(language: str, folder: Path) -> None:
    """Hides a fifth of newstest's pairs of 2017 and 2018 among halves of the others, in the format of BUCC."""
    for year in (2017, 2018):
        where = {"lang": language, "set": f"newstest{year}"}
        rows = read("news/newstest2008_2018.train", "source=xx,target=en", where=where)
        data = hide_pairs(rows, share=0.2, seed=1)
        sides = ((language, data.source_ids, data.sources), ("en", data.target_ids, data.targets))
        for name, ids, texts in sides:
            lines = (f"{one}\t{text}\n" for one, text in zip(ids, texts, strict=True))
            (folder / f"{year}.{name}").write_text("".join(lines), "utf-8")
        (folder / f"{year}.gold").write_text("".join(f"{a}\t{b}\n" for a, b in sorted(data.gold)), "utf-8")


def make_paraphrases(language: str, folder: Path) -> None:
    """Splits PAWS-X by the crc32 of the first sentence: a tenth tunes the threshold, the others are tested."""
    rows = read(f"pawsx/pawsx_{language}.dev", "sentence1=sentence1,sentence2=sentence2,label=label")
    for part in ("tune", "test"):
        chosen = [row for row in rows if (zlib.crc32(row["sentence1"].encode()) % 10 == 0) == (part == "tune")]
        (folder / f"pawsx.{part}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in chosen), "utf-8")


MAKERS = {"bucc": make_bucc, "paraphrase": make_paraphrases}


def calls(unit: str, languages: str) -> Iterator[tuple[str, list[str]]]:
    """Name of the results and arguments of each `hf-xlsr evaluate` of a unit."""
    entry, number = UNITS[unit], 0
    others = languages.partition("-")[2].split("+")
    chosen = [one for one in others if one in entry["languages"].split()] if "languages" in entry else [""]
    if unit.startswith("zero-shot") and not chosen:
        chosen = ["en"]
    for run in entry["runs"] if chosen else ():
        once = not re.search(r"(?<!\{)\{(lang|made)\}", run)
        for language in chosen[:1] if once else chosen:
            langs = ",".join(dict.fromkeys(["en", *chosen]))
            text = run.format(lang=language, langs=langs, made=MADE / unit / language, HF_XLSR_DATA="{HF_XLSR_DATA}")
            for variant in entry.get("variants", [""]):
                number += 1
                yield f"{unit}-{number}", shlex.split(os.path.expandvars(f"{text} {variant}"))


def evaluate(model: Path, units: list[str], languages: str, output: Path, prompt: str | None = None) -> None:
    """Runs the evaluations whose results are missing or older than the model."""
    changed = max(file.stat().st_mtime for file in model.rglob("*") if file.is_file())
    for unit in units:
        for name, arguments in calls(unit, languages):
            file = output / f"{name}.json"
            if file.is_file() and file.stat().st_mtime > changed:
                continue
            for language in (one for one in languages.partition("-")[2].split("+") if unit in MAKERS):
                folder = MADE / unit / language
                if str(folder) in " ".join(arguments) and not folder.is_dir():
                    folder.mkdir(parents=True)
                    MAKERS[unit](language, folder)
            command = [sys.executable, "-m", "hf_xlsr.cli", "evaluate", str(model), *arguments, "--output", str(file)]
            subprocess.run(command if prompt is None else [*command, "--prompt", prompt], cwd=ROOT, check=True)


def pooled(model: Path, pooling: str, folder: Path) -> Path:
    """Saves the transformer of an encoder with another pooling and nothing after it."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.base.modules import Normalize
    from sentence_transformers.sentence_transformer.modules import Pooling

    states = SentenceTransformer(str(model))[0]
    pool = Pooling(states.get_embedding_dimension(), pooling_mode=pooling)
    SentenceTransformer(modules=[states, pool, Normalize()]).save(str(folder), create_model_card=False)
    return folder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="folder, or a name in HF_XLSR_ENCODERS")
    parser.add_argument("--languages", default="en-de+fr+es+it+zh+ru+ar+bg+el+tr+vi+hi+ur+th+sw")
    usual = [unit for unit in UNITS if unit not in ("removal", "open")]
    parser.add_argument("--units", nargs="+", default=usual, choices=UNITS)
    parser.add_argument("--prompt")
    parser.add_argument("--pooling", choices=["mean", "cls"])
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    model = Path(options.model)
    if not model.is_dir():
        model = Path(os.environ.get("HF_XLSR_ENCODERS", "")) / options.model
    prompt = PROMPTS.get(options.model) if options.prompt is None else options.prompt
    output = options.output or ROOT / "outputs" / "evaluations" / options.model.strip("/").replace("/", "-")
    if options.pooling:
        model = pooled(model.resolve(), options.pooling, output / options.pooling)
    evaluate(model.resolve(), options.units, options.languages, output.resolve(), prompt)


if __name__ == "__main__":
    main()
