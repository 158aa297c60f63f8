"""Controls: sentence-transformers' own training on the pairs of a finished `hf-xlsr train` run.

mnrl, cached: MultipleNegativesRankingLoss, or its cached version, in both directions, from one shared encoder or one per
language. distillation: Reimers and Gurevych (2020), table 10 of the lightweight paper: a student like the run's encoder,
from random weights, learns the teacher's embedding of the English sentence on both sides. The learning rate decreases
linearly after a tenth of the steps. Attention is computed as our trainers compute it, so that encoders cost the same.
whitening: no training; an encoder with BERT-whitening (Su et al. 2021), fitted on the source sentences of the pairs.

usage: python -m benchmarks.papers.controls mnrl|cached|distillation|whitening --run RUN --steps N --output FOLDER
           [--encoders DIR | en=DIR fr=DIR] [--teacher DIR]
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer
from sentence_transformers.base.modules import Dense, Normalize, Router, Transformer
from sentence_transformers.sentence_transformer import losses
from sentence_transformers.sentence_transformer.modules import Pooling
from transformers import AutoModel

from benchmarks.harness import DEVICE
from benchmarks.training import NO_DROPOUT, both_directions, peer_arguments
from hf_xlsr.data.cleaning import Cleaner, RemoveEvaluation, build_steps
from hf_xlsr.data.sources import open_source
from hf_xlsr.encoders.debias import fit_debias
from hf_xlsr.evaluation.results import Results, save_results
from hf_xlsr.runs.folder import RunFolder
from hf_xlsr.runs.inputs import held_out_texts
from hf_xlsr.runs.methods import Method
from hf_xlsr.runs.recipe import read_run
from hf_xlsr.runs.train import hardware_name
from hf_xlsr.utils.devices import attention_for, choose_precision


def training_pairs(run: Path, count: int, seed: int) -> Dataset:
    """Pairs of a run's recipe, read and cleaned as the run does, shuffled, repeated when there are fewer than `count`."""
    return pairs_of(read_run(RunFolder(run)), count, seed)


def pairs_of(method: Method, count: int, seed: int) -> Dataset:
    """`training_pairs` of a resolved recipe."""
    recipe, data = method.recipe, method.recipe.data
    held_out = held_out_texts(method.sources("held_out"), languages=recipe.languages)
    removal = RemoveEvaluation(chain(method.evaluation_texts(method.evaluation_sets()), held_out))
    cleaner = Cleaner([*build_steps(data.cleaning, languages=recipe.languages), removal])
    sources = (open_source(one, languages=recipe.languages, seed=recipe.seed) for one in method.sources("train"))
    rows = [{side: row[side] for side in ("source", "target")} for row in cleaner(chain.from_iterable(sources))]
    pairs = Dataset.from_list(rows[: data.limit]).shuffle(seed=seed)
    return pairs.select([index % len(pairs) for index in range(count)])


def encoder_modules(path: str, max_length: int, dropout: float | None = None) -> list[Any]:
    """An encoder with our attention and, when given, another dropout; then mean pooling."""
    config = {} if dropout is None else dict.fromkeys(NO_DROPOUT, dropout)
    module = Transformer(path, max_seq_length=max_length, config_kwargs=config)
    dtype = torch.bfloat16 if choose_precision("auto") == "bfloat16" else None
    kind = attention_for(module.model.config._attn_implementation, DEVICE, dtype, max_length)
    module.model.set_attn_implementation(kind)
    return [module, Pooling(module.get_embedding_dimension(), pooling_mode="mean")]


def ranking(options: argparse.Namespace, pairs: Dataset) -> tuple[SentenceTransformer, Dataset, Any]:
    named = [path.rpartition("=") for path in map(os.path.expandvars, options.encoders)]
    routes = {language: encoder_modules(path, options.max_length, options.dropout) for language, _, path in named}
    if list(routes) == [""]:
        model = SentenceTransformer(modules=[*routes[""], Normalize()])
    else:
        model = SentenceTransformer(modules=[Router(routes, default_route=next(iter(routes))), Normalize()])
        pairs = pairs.rename_columns(dict(zip(("source", "target"), routes, strict=True)))
    both = both_directions(1 / options.temperature)
    if options.kind == "mnrl":
        return model, pairs, losses.MultipleNegativesRankingLoss(model, **both)
    return model, pairs, losses.CachedMultipleNegativesRankingLoss(model, mini_batch_size=128, **both)


def distilling(options: argparse.Namespace, pairs: Dataset) -> tuple[SentenceTransformer, Dataset, Any]:
    teacher = SentenceTransformer(os.path.expandvars(options.teacher))
    english = pairs["source"][:]
    vectors = teacher.encode(english, prompt=options.prompt, batch_size=128, normalize_embeddings=True)
    module, pooling = encoder_modules(str(options.run / "model"), options.max_length, options.dropout)
    fresh = AutoModel.from_config(module.model.config)
    module.model.load_state_dict(fresh.state_dict(), strict=False)
    dense = Dense(pooling.embedding_dimension, vectors.shape[1], activation_function=torch.nn.Identity())
    model = SentenceTransformer(modules=[module, pooling, dense])
    sides = [side for pair in zip(english, pairs["target"][:], strict=True) for side in pair]
    rows = {"sentence": sides, "label": [vector for vector in vectors for _ in range(2)]}
    return model, Dataset.from_dict(rows), losses.MSELoss(model)


def whitened(path: str, sentences: Sequence[str]) -> SentenceTransformer:
    """An encoder whose embeddings are whitened as those of some sentences are."""
    model = SentenceTransformer(path)
    mean, *rows = fit_debias(model, {"en": sentences}, method="whitening").fitted["en"]
    # Two layers: one would subtract large numbers from each other in float32.
    center = _affine(np.eye(len(mean)), -mean)
    return SentenceTransformer(modules=[*model, center, _affine(np.stack(rows), np.zeros(len(mean))), Normalize()])


def _affine(matrix: np.ndarray, offset: np.ndarray) -> Dense:
    """The layer `x @ matrix + offset`."""
    return Dense(
        *matrix.shape,
        activation_function=torch.nn.Identity(),
        init_weight=torch.from_numpy(matrix.T).float(),
        init_bias=torch.from_numpy(offset).float(),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=["mnrl", "cached", "distillation", "whitening"])
    parser.add_argument("--run", type=Path, required=True, help="finished run whose pairs are learned")
    parser.add_argument("--encoders", nargs="+", default=[])
    parser.add_argument("--teacher", default="")
    parser.add_argument("--prompt", default="", help="of the teacher")
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--batch", type=int, default=128, help="pairs")
    parser.add_argument("--learning_rate", type=float, default=5e-5)
    parser.add_argument("--temperature", type=float, default=0.04)
    parser.add_argument("--dropout", type=float)
    parser.add_argument("--max_length", type=int, default=64)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--output", type=Path, required=True)
    options = parser.parse_args()
    torch.manual_seed(options.seed)
    pairs = training_pairs(options.run, options.steps * options.batch, options.seed)
    if options.kind == "whitening":
        started = time.monotonic()
        model = whitened(os.path.expandvars(options.encoders[0]), pairs["source"][:])
        finish(options, model, time.monotonic() - started)
        return
    sides = 2 if options.kind == "distillation" else 1
    model, rows, loss = (distilling if sides == 2 else ranking)(options, pairs)
    arguments = peer_arguments(
        options.output / "training",
        sides * options.batch,
        max_steps=options.steps,
        seed=options.seed,
        learning_rate=options.learning_rate,
        lr_scheduler_type="linear",
        warmup_steps=0.1,
        max_grad_norm=10.0,
        weight_decay=0.0,
        logging_strategy="steps",
        logging_steps=50,
        disable_tqdm=False,
        router_mapping={} if len(options.encoders) < 2 else {name: name for name in rows.column_names},
    )
    trainer = SentenceTransformerTrainer(model=model, args=arguments, train_dataset=rows, loss=loss)
    seconds = trainer.train().metrics["train_runtime"]
    finish(options, model, seconds)


def finish(options: argparse.Namespace, model: SentenceTransformer, seconds: float) -> None:
    """Writes the model and the results of a control."""
    model.save(str(options.output / "model"), create_model_card=False)
    machine = {"hardware": hardware_name(model.device), "threads": torch.get_num_threads()}
    settings = {"control": options.kind, "steps": options.steps, "seconds": {"training": seconds}, **machine}
    save_results(options.output / "results.json", Results(), settings=settings)


if __name__ == "__main__":
    main()
