"""Distillation by sentence-transformers on the pairs, tokenizer and encoder of a lightweight recipe, in the same time.

Table 10 of the lightweight paper: Reimers and Gurevych (2020) train a student on both sides of each pair to give the
vector that a teacher gives the English one. The teacher is an encoder of HF_XLSR_ENCODERS; the student is the recipe's
encoder with a linear layer to the teacher's width, from random weights. Batch, length, learning rate, schedule and
precision are the recipe's. The teacher's time counts; the warm-up in which the number of steps is found does not.

usage: python benchmarks/distillation_peers.py RECIPE --teacher e5-small --seconds 180 --output FOLDER [--only RUN]
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from dual_momentum_peers import STEPS_TO_TIME, WARM_UP_STEPS, arguments, attend_as_ours, training_pairs
from peers import PEERS
from rich.console import Console
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer
from sentence_transformers.base.modules import Dense, Transformer
from sentence_transformers.sentence_transformer.losses import MSELoss
from sentence_transformers.sentence_transformer.modules import Pooling
from single_run import the_run
from transformers import logging as transformers_logging
from turns import StopWatch

from hf_xlsr.encoders.loading import load_encoder
from hf_xlsr.evaluation.report import results_table, save_results
from hf_xlsr.runs.methods import get_method
from hf_xlsr.runs.methods.sentence_encoder import evaluation_sets, run_protocol
from hf_xlsr.runs.train import hardware_name, prepare_data
from hf_xlsr.utils.errors import XlsrError
from hf_xlsr.utils.precision import choose_precision

TEACHER_SAMPLE = 512


def make_student(recipe: dict[str, Any], data: Any, width: int, folder: Path) -> SentenceTransformer:
    """The recipe's encoder from random weights, with a layer to the teacher's width."""
    model = get_method(recipe["method"]).build_model(recipe, data)
    model.encoder.save_pretrained(folder)
    data.tokenizer.save_pretrained(str(folder))
    transformer = Transformer(str(folder), max_seq_length=recipe["data"]["max_length"])
    attend_as_ours(transformer, recipe)
    own = transformer.get_embedding_dimension()
    layers = [Pooling(own, pooling_mode="mean"), Dense(own, width, activation_function=torch.nn.Identity())]
    return SentenceTransformer(modules=[transformer, *layers])


def train(
    recipe: dict[str, Any], teacher_name: str, seconds: float, folder: Path
) -> tuple[SentenceTransformer, dict[str, Any]]:
    """Distils for about so many seconds of processor time.

    Raises:
        XlsrError: the teacher is not there.
    """
    place = Path(os.environ.get("HF_XLSR_ENCODERS", "")) / teacher_name
    if teacher_name not in PEERS or not place.is_dir():
        raise XlsrError(f"teacher '{teacher_name}' is not in HF_XLSR_ENCODERS; see docs/data.md.")
    teacher = load_encoder(str(place), dtype=choose_precision("auto"))
    prompt = PEERS[teacher_name]["prompt"]
    data = prepare_data(recipe, folder / "training", evaluation_sets(recipe))
    pairs = [tuple(pair.values()) for pair in training_pairs(recipe)]
    pairs = [pairs[index] for index in np.random.default_rng(recipe["seed"]).permutation(len(pairs))]
    batch = recipe["training"]["per_device_train_batch_size"]

    def labels(chosen: list[tuple[str, ...]]) -> np.ndarray:
        vectors = teacher.encode([one for one, _ in chosen], prompt=prompt, batch_size=128, normalize_embeddings=True)
        return np.asarray(vectors, dtype=np.float32)

    def distil(steps: int, vectors: np.ndarray) -> tuple[SentenceTransformer, StopWatch]:
        torch.manual_seed(recipe["seed"])
        rows = {
            "sentence": [side for pair in pairs[: len(vectors)] for side in pair],
            "label": [vector for vector in vectors for _ in range(2)],
        }
        with tempfile.TemporaryDirectory() as scratch:
            student = make_student(recipe, data, vectors.shape[1], Path(scratch))
        options = arguments(recipe, steps, folder)
        options.per_device_train_batch_size = 2 * batch  # both sides of as many pairs
        trainer = SentenceTransformerTrainer(
            model=student,
            args=options,
            train_dataset=Dataset.from_dict(rows),
            loss=MSELoss(student),
        )
        watch = StopWatch()
        trainer.add_callback(watch)
        trainer.train()
        return student, watch

    labels(pairs[:TEACHER_SAMPLE])  # what a first call costs once is no cost of a sentence
    begun = time.process_time()
    sample = labels(pairs[:TEACHER_SAMPLE])
    teaching = (time.process_time() - begun) / TEACHER_SAMPLE
    sample = np.resize(sample, (min(len(pairs), STEPS_TO_TIME * batch), sample.shape[1]))
    watch = distil(STEPS_TO_TIME, sample)[1]
    step, before = watch.seconds_per_step(WARM_UP_STEPS), watch.seconds_before()
    steps = max(1, int((seconds - before) / (step + batch * teaching)))
    if steps * batch > len(pairs):  # the teacher sees each sentence once
        steps = max(1, int((seconds - before - len(pairs) * teaching) / step))
    begun_teaching = time.process_time()
    vectors = labels(pairs[: steps * batch])
    taught = time.process_time() - begun_teaching
    student, watch = distil(steps, vectors)
    facts = {
        "pairs": len(pairs),
        "steps": steps,
        "teacher_seconds": taught,
        "cpu_seconds": taught + watch.ends[-1] - watch.made,
    }
    return student, facts


def main() -> None:
    """Distils, evaluates on the recipe's test set, and leaves model and results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe")
    parser.add_argument("--only")
    parser.add_argument("--teacher", default="e5-small")
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--output", type=Path, required=True)
    options, more = parser.parse_known_args()
    transformers_logging.set_verbosity_error()
    try:
        recipe = the_run(options.recipe, more, options.only)
        model, facts = train(recipe, options.teacher, options.seconds, options.output)
        model.save(str(options.output / "model"), create_model_card=False)
        metrics = run_protocol(model, recipe, evaluation_sets(recipe)["test"], "test")
    except XlsrError as error:
        raise SystemExit(f"distillation_peers: {error}") from None
    Console(soft_wrap=True).print(results_table(metrics, title=f"{options.recipe}, distilled: test"))
    machine = {"hardware": hardware_name(model.device), "threads": torch.get_num_threads()}
    save_results(options.output / "results.json", metrics, settings={"recipe": recipe, **facts, **machine})


if __name__ == "__main__":
    main()
