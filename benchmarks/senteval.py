"""Time of SentEval's nested cross-validation: all classifiers stacked, beside one after another.

Both learn from the same synthetic vectors, with the same weights, orders and folds at the start, in one process:

- `stacked`: `Classification.nested`, all of it (410 classifiers for 10 folds).
- `one at a time`: the same training by `torch.nn.Linear`, autograd and `torch.optim` on one thread, for a sample of the
  inner classifiers; its time for all is extrapolated from their mean. Their dev accuracies must be the stack's.

usage: python benchmarks/senteval.py [--rows 10000] [--width 768] [--settings literature fast] [--threads 2]
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from sklearn.model_selection import StratifiedKFold
from turns import check_device

from hf_xlsr.evaluation.senteval.classifier import Group, Schedule, accuracy_score, train_classifiers, with_constant
from hf_xlsr.evaluation.senteval.evaluate import SETTINGS
from hf_xlsr.evaluation.senteval.folds import NESTED_SEED, WEIGHT_DECAYS, Classification
from hf_xlsr.runs.train import hardware_name

SEED = 1111
# Both ways sum in float32, in different orders: a few of the dev rows may come out differently.
TOLERANCE = 0.005


def make_vectors(rows: int, width: int) -> tuple[np.ndarray, np.ndarray]:
    """Unit vectors whose two classes a linear layer can tell apart in nine rows of ten."""
    random = np.random.default_rng(1)
    vectors = random.normal(size=(rows, width))
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    noisy = vectors @ random.normal(size=width) + 0.3 * random.normal(size=rows)
    return vectors.astype(np.float32), (noisy > 0).astype(np.int64)


@contextmanager
def stopwatch() -> Iterator[dict[str, float]]:
    """Seconds on the clock, and of all processors together."""
    times: dict[str, float] = {}
    wall, processors = time.perf_counter(), time.process_time()
    yield times
    times.update(seconds=time.perf_counter() - wall, processor_seconds=time.process_time() - processors)


def sample_groups(labels: np.ndarray, folds: int, count: int) -> list[Group]:
    """The first inner fold of each of some outer folds."""
    splitter = StratifiedKFold(folds, shuffle=True, random_state=NESTED_SEED)
    groups = []
    for train, _ in list(splitter.split(labels, labels))[:count]:
        inner, dev = next(iter(splitter.split(train, labels[train])))
        groups.append(Group(train[inner], train[dev], WEIGHT_DECAYS))
    return groups


def train_alone(vectors: np.ndarray, labels: np.ndarray, group: Group, decay: float, schedule: Schedule) -> float:
    """One classifier as SentEval trains it; gives the best dev accuracy."""
    np.random.seed(SEED)
    torch.manual_seed(SEED)
    model = torch.nn.Linear(vectors.shape[1], int(labels.max()) + 1)
    kind = torch.optim.Adam if schedule.optimizer == "adam" else torch.optim.RMSprop
    optimizer = kind(model.parameters(), weight_decay=decay)
    inputs, targets = torch.from_numpy(vectors[group.train]), torch.from_numpy(labels[group.train])
    dev_inputs, dev_targets = torch.from_numpy(vectors[group.dev]), torch.from_numpy(labels[group.dev])
    best, misses, passes = -1.0, 0, 0
    while misses <= schedule.tenacity and passes <= schedule.max_passes:
        for _ in range(schedule.passes_per_check):
            for rows in torch.from_numpy(np.random.permutation(len(inputs))).split(schedule.batch_size):
                optimizer.zero_grad()
                F.cross_entropy(model(inputs[rows]), targets[rows]).backward()
                optimizer.step()
        passes += schedule.passes_per_check
        with torch.no_grad():
            accuracy = float((model(dev_inputs).argmax(1) == dev_targets).double().mean())
        best, misses = (accuracy, misses) if accuracy > best else (best, misses + 1)
    return best


def compare(setting: str, vectors: np.ndarray, labels: np.ndarray, options: argparse.Namespace) -> dict[str, Any]:
    """Both ways under one setting."""
    _, folds, schedule = SETTINGS[setting]
    with stopwatch() as stacked:
        task = Classification(vectors, labels, schedule=schedule, folds=folds, seed=SEED, device=options.device)
        outcome = task.nested(np.arange(len(labels)))
    total = folds * (folds * len(WEIGHT_DECAYS) + 1)
    groups = sample_groups(labels, folds, options.sample)
    torch.set_num_threads(1)  # two threads on operations as small as these are slower than one
    with stopwatch() as alone:
        scores = [
            [train_alone(vectors, labels, group, decay, schedule) for decay in WEIGHT_DECAYS] for group in groups
        ]
    torch.set_num_threads(options.threads)
    sampled = len(groups) * len(WEIGHT_DECAYS)
    features, numbers = with_constant(vectors, torch.device("cpu")), torch.from_numpy(labels)
    together = train_classifiers(
        features,
        vectors.shape[1],
        F.one_hot(numbers).to(features),
        groups,
        accuracy_score(numbers),
        schedule=schedule,
        seed=SEED,
    )
    difference = float(np.abs(np.array(scores) - np.array([one.scores for one in together])).max())
    if difference > TOLERANCE:
        raise SystemExit(f"{setting}: dev accuracies of the two ways differ by {difference:.4f}")
    extrapolated = {key: value * total / sampled for key, value in alone.items()}
    return {
        "setting": setting,
        "classifiers": total,
        "dev_accuracy": outcome.dev,
        "test_accuracy": outcome.test,
        "stacked": stacked,
        "one_at_a_time_measured": {"classifiers": sampled, **alone},
        "one_at_a_time_extrapolated": extrapolated,
        "ratio_of_seconds": extrapolated["seconds"] / stacked["seconds"],
        "ratio_of_processor_seconds": extrapolated["processor_seconds"] / stacked["processor_seconds"],
        "largest_difference_of_dev_accuracy": difference,
    }


def print_table(report: dict[str, Any]) -> None:
    """The report for people."""
    from rich.console import Console
    from rich.table import Table

    size = f"{report['rows']:,} x {report['width']}"
    table = Table(title=f"Nested cross-validation, {size}, {report['device']}, {report['threads']} threads: seconds")
    for column in ("setting", "classifiers", "stacked", "CPU", "one at a time*", "CPU", "ratio", "CPU ratio"):
        table.add_column(column, justify="left" if column == "setting" else "right")
    for row in report["settings"]:
        ways = row["stacked"], row["one_at_a_time_extrapolated"]
        times = (f"{way[key]:.1f}" for way in ways for key in ("seconds", "processor_seconds"))
        ratios = (f"{row[key]:.1f}" for key in ("ratio_of_seconds", "ratio_of_processor_seconds"))
        table.add_row(row["setting"], str(row["classifiers"]), *times, *ratios)
    console = Console()
    console.print(table)
    before, after = report["load_before"], report["load_after"]
    console.print(
        f"Load of the machine before {before:.1f} and after {after:.1f}, on {report['processors']} processors."
    )


def main() -> None:
    """Measures everything, prints the table and writes the JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=10_000)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--settings", nargs="*", choices=list(SETTINGS), default=["literature", "fast"])
    parser.add_argument("--sample", type=int, default=2, help="groups of four classifiers to train one at a time")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--device", default="cpu", help="of the stacked classifiers")
    parser.add_argument("--output", default="outputs/benchmarks/senteval.json")
    options = parser.parse_args()
    check_device(parser, options.device)
    torch.set_num_threads(options.threads)
    vectors, labels = make_vectors(options.rows, options.width)
    load_before = os.getloadavg()[0]
    report = {
        "rows": options.rows,
        "width": options.width,
        "threads": options.threads,
        "device": options.device,
        "processor": hardware_name(torch.device(options.device)),
        "processors": os.cpu_count(),
        "torch": torch.__version__,
        "load_before": load_before,
        "settings": [compare(setting, vectors, labels, options) for setting in options.settings],
    }
    report["load_after"] = os.getloadavg()[0]
    print_table(report)
    output = Path(options.output)
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps(report, indent=2))
    print(f"written to {output}")


if __name__ == "__main__":
    main()
