"""The losses of sentence-transformers on the pairs, encoders and settings of a dual momentum recipe, in the same time.

Reads and cleans the recipe's training pairs as the recipe's own run does, puts its encoders into a `Router`, trains with
`SentenceTransformerTrainer` under `MultipleNegativesRankingLoss` or its cached version, both ways, at the recipe's
temperature, batch size, length, learning rate, schedule and precision, with attention computed as our trainers compute
it, so that the encoders cost the same. The number of steps is what fits into the seconds of processor time given, found
in a short training before, which does not count. Processor time, because other jobs beside lengthen the wall's; threads
have to wait asleep for it (`OMP_WAIT_POLICY=passive`).

`--loss none` leaves the encoders as they are: where everything starts from.

usage: python benchmarks/dual_momentum_peers.py RECIPE --loss mnrl|cached|none --seconds 720 --output FOLDER
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from rich.console import Console
from sentence_transformers import (
    SentenceTransformer,
    SentenceTransformerTrainer,
    SentenceTransformerTrainingArguments,
)
from sentence_transformers.base.modules import Normalize, Router, Transformer
from sentence_transformers.sentence_transformer.losses import (
    CachedMultipleNegativesRankingLoss,
    MultipleNegativesRankingLoss,
)
from sentence_transformers.sentence_transformer.modules import Pooling
from single_run import the_run
from transformers import logging as transformers_logging
from turns import StopWatch

from hf_xlsr.data.cleaning import RemoveEvaluation, build_cleaner
from hf_xlsr.data.sources import as_list, open_source
from hf_xlsr.encoders.stock import DROPOUTS
from hf_xlsr.evaluation.report import results_table, save_results
from hf_xlsr.modeling.dual_momentum.configuration_dual_momentum import SHARED
from hf_xlsr.runs.methods.dual_momentum import DualMomentumMethod
from hf_xlsr.runs.methods.sentence_encoder import evaluation_sets, evaluation_texts, run_protocol
from hf_xlsr.runs.train import hardware_name
from hf_xlsr.trainers.base import attention_for
from hf_xlsr.utils.errors import XlsrError
from hf_xlsr.utils.precision import choose_precision

STEPS_TO_TIME, WARM_UP_STEPS = 15, 5


def training_pairs(recipe: dict[str, Any]) -> Iterator[dict[str, str]]:
    """The recipe's pairs, read and cleaned."""
    data = recipe["data"]
    cleaner = build_cleaner(data["cleaning"] or [], languages=list(recipe["languages"]))
    cleaner.steps.append(RemoveEvaluation(evaluation_texts(recipe, evaluation_sets(recipe))))
    sources = (
        open_source(source, languages=recipe["languages"], seed=recipe["seed"]) for source in as_list(data["train"])
    )
    for row in cleaner(chain.from_iterable(sources)):
        yield {language: row[side] for language, side in zip(recipe["languages"], ("source", "target"), strict=True)}


def attend_as_ours(transformer: Transformer, recipe: dict[str, Any]) -> None:
    """Has attention computed as our trainers compute it, so that the encoder costs the same."""
    attention = attention_for(
        transformer.model.config._attn_implementation,
        "cuda" if torch.cuda.is_available() else "cpu",
        torch.bfloat16 if choose_precision(recipe["training"].get("precision", "auto")) == "bfloat16" else None,
        recipe["data"]["max_length"],
    )
    transformer.model.set_attn_implementation(attention)


def make_model(recipe: dict[str, Any]) -> SentenceTransformer:
    """The recipe's encoders behind a router, or its shared one, with its dropout and pooling."""
    routes: dict[str, list[Any]] = {}
    for language, path in DualMomentumMethod.paths(recipe).items():
        transformer = Transformer(path, max_seq_length=recipe["data"]["max_length"])
        dropout = recipe["model"].get("dropout")
        if dropout is not None:
            for name in DROPOUTS:
                if hasattr(transformer.model.config, name):
                    setattr(transformer.model.config, name, dropout)
            for module in transformer.model.modules():
                if isinstance(module, torch.nn.Dropout):
                    module.p = dropout
                elif hasattr(module, "attention_dropout"):
                    module.attention_dropout = dropout
        attend_as_ours(transformer, recipe)
        width = transformer.get_embedding_dimension()
        routes[language] = [transformer, Pooling(width, pooling_mode=recipe["model"].get("pooling", "mean"))]
    if SHARED in routes:
        return SentenceTransformer(modules=[*routes[SHARED], Normalize()])
    return SentenceTransformer(modules=[Router(routes, default_route=recipe["languages"][0]), Normalize()])


def arguments(recipe: dict[str, Any], steps: int, folder: Path) -> SentenceTransformerTrainingArguments:
    """The recipe's settings, for so many steps."""
    training = recipe["training"]
    names = (
        *("per_device_train_batch_size", "learning_rate", "lr_scheduler_type", "max_grad_norm", "weight_decay"),
        *("adam_beta1", "adam_beta2", "adam_epsilon"),
    )
    warmup = training.get("warmup_steps", 0)
    precision = choose_precision(training.get("precision", "auto"))
    shared = SHARED in recipe["model"].get("encoders", {SHARED: None})
    return SentenceTransformerTrainingArguments(
        output_dir=str(folder / "training"),
        max_steps=steps,
        seed=recipe["seed"],
        **{name: training[name] for name in names if name in training},
        # The same share of the training as in the recipe.
        warmup_steps=warmup / training["max_steps"] if warmup >= 1 else warmup,
        bf16=precision == "bfloat16",
        fp16=precision == "float16",
        use_cpu=not torch.accelerator.is_available(),
        dataloader_drop_last=True,
        save_strategy="no",
        logging_steps=50,
        report_to="none",
        router_mapping={} if shared else {name: name for name in recipe["languages"]},
    )


def train(
    recipe: dict[str, Any], loss: str, seconds: float, folder: Path
) -> tuple[SentenceTransformer, dict[str, Any]]:
    """Trains for about so many seconds of processor time."""
    if loss == "none":
        return make_model(recipe), {}
    pairs = Dataset.from_list(list(training_pairs(recipe)))
    pairs = pairs.select(np.random.default_rng(recipe["seed"]).permutation(len(pairs)))
    scale = 1 / recipe["model"]["temperature"]
    both: Any = {"scale": scale, "directions": ("query_to_doc", "doc_to_query"), "partition_mode": "per_direction"}

    def run(steps: int) -> tuple[SentenceTransformer, StopWatch]:
        torch.manual_seed(recipe["seed"])
        model = make_model(recipe)
        chosen = (
            MultipleNegativesRankingLoss(model, **both)
            if loss == "mnrl"
            else CachedMultipleNegativesRankingLoss(model, mini_batch_size=128, **both)
        )
        trainer = SentenceTransformerTrainer(
            model=model, args=arguments(recipe, steps, folder), train_dataset=pairs, loss=chosen
        )
        watch = StopWatch()
        trainer.add_callback(watch)
        trainer.train()
        return model, watch

    steps = run(STEPS_TO_TIME)[1].steps_within(seconds, WARM_UP_STEPS)
    model, watch = run(steps)
    spent = watch.ends[-1] - watch.made
    return model, {"pairs": len(pairs), "steps": steps, "cpu_seconds": spent, "cpu_seconds_per_step": spent / steps}


def main() -> None:
    """Trains, evaluates on the recipe's test set, and leaves model and results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe")
    parser.add_argument("--only")
    parser.add_argument("--loss", choices=("mnrl", "cached", "none"), required=True)
    parser.add_argument("--seconds", type=float, default=0.0, help="of training, processor time")
    parser.add_argument("--batch", type=int, help="instead of the recipe's")
    parser.add_argument("--output", type=Path, required=True)
    options, more = parser.parse_known_args()
    console = Console(soft_wrap=True)
    transformers_logging.set_verbosity_error()
    try:
        recipe = the_run(options.recipe, more, options.only)
        if not recipe["training"].get("max_steps"):
            raise XlsrError(f"recipe '{options.recipe}' has no training.max_steps; give one: --max_steps 600.")
        if options.batch:
            recipe["training"]["per_device_train_batch_size"] = options.batch
        model, facts = train(recipe, options.loss, options.seconds, options.output)
        model.save(str(options.output / "model"), create_model_card=False)
        metrics = run_protocol(model, recipe, evaluation_sets(recipe)["test"], "test")
    except XlsrError as error:
        raise SystemExit(f"dual_momentum_peers: {error}") from None
    console.print(results_table(metrics, title=f"{options.recipe}, {options.loss}: test"))
    machine = {"hardware": hardware_name(model.device), "threads": torch.get_num_threads()}
    settings = {"loss": options.loss, "recipe": recipe, **facts, **machine}
    save_results(options.output / "results.json", metrics, settings=settings)
    console.print(json.dumps(facts))


if __name__ == "__main__":
    main()
