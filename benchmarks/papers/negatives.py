"""Trains a student with hard negatives, in the trainer of sentence-transformers, and measures what it mistakes.

The pairs are those of a finished run, in its cleaning; the student is its model. `hf_xlsr.mining.run_negatives` makes the
negatives with that model, once for all seeds. The loss is `AlignmentSimilarityLoss` without its second part: contrast in
the batch in both directions. Then the encoder is measured: `xsim-pp` as it is and with the kinds of edits of `TESTED`,
which training never has (the first 400 rows of NTREX), Tatoeba, and STS-B in English.

usage: python -m benchmarks.papers.negatives negatives --run RUN --steps N --output FOLDER [--per-pair 2]
           [--synthetic number,name] [--edited 2] [--split]
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer

from benchmarks.papers.controls import training_pairs
from benchmarks.training import peer_arguments
from hf_xlsr.data.sources import Source, open_source
from hf_xlsr.evaluation import Results, save_results, sts, tatoeba, xsim_pp
from hf_xlsr.mining import MiningOptions, NegativeOptions, run_negatives
from hf_xlsr.runs.train import hardware_name
from hf_xlsr.sentence_transformers import AlignmentSimilarityLoss

LANGUAGES = ("de", "en")
TESTED = ("number,name", "negation,order")
NTREX_ROWS = 400
TEMPERATURE = 0.05


def read(path: str, **options: Any) -> list[dict[str, Any]]:
    """Rows of a file of HF_XLSR_DATA."""
    source = Source.parse({"path": f"${{HF_XLSR_DATA}}/{path}.parquet", **options})
    names = [part.split("=")[0] for part in options["columns"].split(",")]
    return list(open_source(source, languages=("en", "de"), required=names, optional=()))


def with_negatives(options: argparse.Namespace) -> tuple[Dataset, dict[str, Any]]:
    """Pairs from German to English with their negatives, made once for all seeds; and what was chosen."""
    file = options.run.parent / "pairs.parquet"
    if not file.is_file():
        training_pairs(options.run, options.pairs, seed=1).to_parquet(file)
    pairs = Dataset.from_parquet(str(file))
    sources = pairs["target"][:]
    targets = pairs["source"][:]
    if not options.per_pair:
        return Dataset.from_dict({"source": sources, "target": targets}), {}

    kinds = tuple(filter(None, options.synthetic.split(",")))
    chosen = NegativeOptions(per_pair=options.per_pair, synthetic=kinds, edited=options.edited if kinds else None)
    folder = options.run.parent / "negatives" / f"{options.synthetic or 'mined'}-{options.per_pair}-{options.edited}"
    mining = MiningOptions(languages=LANGUAGES)
    run = run_negatives(sources, targets, folder, mining, chosen, encoder=str(options.run / "model"))
    return run.dataset(), dict(run.counts.chosen)


def train(options: argparse.Namespace, model: SentenceTransformer, rows: Dataset) -> float:
    """Trains for some steps; returns the seconds."""
    loss = AlignmentSimilarityLoss(
        model,
        alignment_weight=1.0,
        similarity_weight=0.0,
        alignment_temperature=TEMPERATURE,
        normalize=True,
        split_softmax=options.split,
    )
    arguments = peer_arguments(
        options.output / "training",
        options.batch,
        max_steps=options.steps,
        seed=options.seed,
        learning_rate=options.learning_rate,
        lr_scheduler_type="linear",
        warmup_steps=0.1,
        weight_decay=0.01,
        logging_strategy="steps",
        logging_steps=20,
    )
    trainer = SentenceTransformerTrainer(model=model, args=arguments, train_dataset=rows, loss=loss)
    return float(trainer.train().metrics["train_runtime"])


def measure(model: SentenceTransformer) -> Results:
    """The figures of an encoder."""
    model.eval()
    news = read("news/ntrex128_xnli.test", columns="source=de,target=en")[:NTREX_ROWS]
    sides = [[row[side] for row in news] for side in ("source", "target")]
    results = Results()
    for kinds in (None, *TESTED):
        results |= xsim_pp(model, *sides, languages=LANGUAGES, name="ntrex", kinds=kinds)

    where = {"src_lang": "deu"}
    short = read("tatoeba/tatoeba_v1_xnli15", columns="source=english,target=text", where=where)
    sides = [[row[side] for row in short] for side in ("source", "target")]
    results |= tatoeba(model, *sides, languages=("en", "de"), name="tatoeba")

    columns = "sentence1=sentence1,sentence2=sentence2,score=score"
    rows = read("sts/stsb", columns=columns, where={"split": "test"})
    results |= sts(model, {"STSBenchmark": rows}, language="en")
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=["negatives"])
    parser.add_argument("--run", type=Path, required=True, help="finished run of the student")
    parser.add_argument("--pairs", type=int, default=10_000, help="pairs among which negatives are mined")
    parser.add_argument("--per-pair", type=int, default=2, help="negatives of a pair; 0 for none")
    parser.add_argument("--synthetic", default="", help="kinds of edits, with commas")
    parser.add_argument("--edited", type=int, default=2, help="at most so many of the negatives are edits")
    parser.add_argument("--split", action="store_true", help="a softmax of their own for hard negatives")
    parser.add_argument("--steps", type=int, required=True, help="0 only measures the student")
    parser.add_argument("--batch", type=int, default=32, help="pairs")
    parser.add_argument("--learning-rate", type=float, default=2e-4)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--output", type=Path, required=True)
    options = parser.parse_args()
    options.run = Path(os.path.expandvars(options.run))
    torch.manual_seed(options.seed)

    model = SentenceTransformer(str(options.run / "model"))
    seconds = 0.0
    chosen: dict[str, Any] = {}
    started = time.monotonic()
    if options.steps:
        rows, chosen = with_negatives(options)
        seconds = train(options, model, rows.shuffle(seed=options.seed))
    results = measure(model)

    model.save(str(options.output / "model"), create_model_card=False)
    settings = {
        "control": "negatives",
        "steps": options.steps,
        "seconds": {"training": seconds, "all": time.monotonic() - started},
        "chosen": chosen,
        "hardware": hardware_name(model.device),
        "threads": torch.get_num_threads(),
    }
    save_results(options.output / "results.json", results, settings=settings)


if __name__ == "__main__":
    main()
