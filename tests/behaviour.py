"""Writes one JSON of what refactoring must not change, or compares two.

usage: behaviour.py OUTPUT [--only recipes,protocols,mining,training,exports]
       behaviour.py --compare OLD NEW [--tolerance T] [--ignore REGEX]

Everything runs on one processor thread, offline, on data made here and on stock models and tokenizers, so that the
numbers depend on the package alone. Two runs on one machine give equal files; another processor or version of torch may
change last digits and hashes.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from behaviour_cases import (
    encoder,
    make_pairs,
    protocol_cases,
    routed_encoder,
    training_rows,
    write,
    write_training_data,
)


def command(*words: str) -> None:
    """Runs `hf-xlsr WORDS`."""
    import transformers

    from hf_xlsr.cli import main

    transformers.set_seed(7)  # what an earlier command drew must not reach this one
    if status := main(list(words)):
        raise SystemExit(f"hf-xlsr {' '.join(words)}: exit status {status}")


def plain(value: Any) -> Any:
    """The same as plain JSON."""
    if hasattr(value, "model_dump"):
        value = value.model_dump()
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value if value is None or isinstance(value, (bool, int, float)) else str(value)


def digest(array: Any) -> str:
    """SHA-256 of an array's bytes."""
    return hashlib.sha256(array.tobytes()).hexdigest()


# --- Sections ----------------------------------------------------------------------------------------------------


def recipes() -> dict[str, Any]:
    """Every run of every built-in recipe, resolved."""
    from hf_xlsr.runs.recipe import load_runs, recipe_names

    return {name: [plain(getattr(run, "recipe", run)) for run in load_runs(name)] for name in recipe_names()}


def protocols() -> dict[str, Any]:
    """Metrics of every protocol by name of the case."""
    stock = encoder()
    pairs = make_pairs(60, seed=3)
    texts = {"en": [row[0] for row in pairs], "fr": [row[1] for row in pairs]}
    for language, lines in texts.items():
        write(f"fit.{language}.txt", "", [(line,) for line in lines[::-1][:30]])
    command("debias", "fit", stock, "--texts", "en=fit.en.txt", "fr=fit.fr.txt", "--output", "fitted")
    routed_encoder(stock)
    write("pool.tsv", "en fr", make_pairs(40, seed=4))
    cases = dict(protocol_cases(pairs))
    metrics = {name: evaluate(stock, *words) for name, words in cases.items()}
    routes = ("--routes", "en=first,fr=second")
    metrics["routed"] = evaluate("routed", *cases["tatoeba"], *routes)
    metrics["routed-debias"] = evaluate("routed", *cases["tatoeba-debias-self"], *routes)
    return metrics | mteb_metrics(stock, pairs)


def evaluate(model: str, *words: str) -> dict[str, float]:
    """Metrics of one command line."""
    command("evaluate", model, *words, "--output", "results.json")
    return json.loads(Path("results.json").read_text("utf-8"))["metrics"]


def mteb_metrics(model: str, pairs: list[tuple[str, str]]) -> dict[str, Any]:
    """A task of mteb with data set by hand: under mteb's own evaluation, and under ours."""
    import mteb
    from datasets import Dataset

    real = mteb.get_task

    def get_task(name: str, **options: Any) -> Any:
        task = real(name, **options)

        def load_data(**_: Any) -> None:
            sides = dict(zip(("sentence1", "sentence2"), map(list, zip(*pairs, strict=True)), strict=True))
            task.dataset = {"test": Dataset.from_dict({**sides, "score": [n * 7 % 6 for n in range(len(pairs))]})}
            task.data_loaded = True

        task.load_data = load_data
        return task

    mteb.get_task = get_task
    try:
        own, ours = (evaluate(model, "--data", "mteb:STSBenchmark", "--protocol", name) for name in ("mteb", "sts"))
    finally:
        mteb.get_task = real
    return {"mteb": own, "mteb-sts": ours}


def mining() -> dict[str, Any]:
    """Pairs and scores of 2,000 x 2,000 vectors, and of two small texts."""
    import numpy as np

    from hf_xlsr.mining import mine_bitext, mine_vectors

    rng = np.random.default_rng(0)
    source = rng.normal(size=(2000, 32))
    target = rng.normal(size=(2000, 32))
    places = rng.permutation(2000)[:1500]
    target[places] = source[:1500] + 0.5 * rng.normal(size=(1500, 32))
    source, target = ((x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float32) for x in (source, target))

    def mined(**options: Any) -> dict[str, Any]:
        found = mine_vectors(source, target, **options)
        indices = np.stack([np.asarray(side, np.int64) for side in (found.source, found.target)])
        scores = np.asarray(found.score)
        correct = sum(1 for s, t in indices.T if s < 1500 and places[s] == t)
        return {
            "pairs": len(scores),
            "correct": correct,
            "pairs_sha256": digest(indices),
            "scores_sum": round(float(scores.sum()), 4),
            "scores_sha256": digest(scores.astype(np.float32)),
        }

    result: dict[str, Any] = {
        f"{margin}/{retrieval}": mined(margin=margin, retrieval=retrieval)
        for margin in ("ratio", "distance", "absolute")
        for retrieval in ("max", "intersection", "forward", "backward")
    }
    result["many"] = mined(one_to_one=False, k=8)
    result["threshold"] = mined(threshold=1.05, max_pairs=700)
    result["ivf"] = mined(method="ivf")

    stock, pairs = encoder(), make_pairs(60, seed=5)
    write("mine.en", "", [(row[0],) for row in pairs[:50]])
    write("mine.fr", "", [(row[1],) for row in pairs[10:][::-1]] + [(pairs[20][1],)])
    found = mine_bitext(
        "mine.en", "mine.fr", encoder=stock, retrieval="intersection", duplicates="keep", device="cpu", folder="work"
    )
    result["mine_bitext"] = [
        [int(s), int(t), float(score)] for s, t, score in zip(found.source, found.target, found.score, strict=True)
    ]
    common = ("--model", stock, "--languages", "en,fr", "--output")
    command("mine", "mine.en", "mine.fr", *common, "mined.jsonl")
    command("score", write("given.tsv", "en fr", pairs), "--columns", "source=en,target=fr", *common, "scored.jsonl")
    for name in ("mined", "scored"):
        result[name] = [json.loads(line) for line in Path(f"{name}.jsonl").read_text("utf-8").splitlines()]
    return result


# --- Trainings ---------------------------------------------------------------------------------------------------


@cache
def train_all() -> dict[str, Path]:
    """Trains by every row; the folder of each run by its name."""
    import yaml

    encoder()
    write_training_data()
    training = {
        "max_steps": 12,
        "per_device_train_batch_size": 16,
        "learning_rate": 0.05,
        "optim": "sgd",  # shows a wrong scale, which Adam hides
        "logging_steps": 1,
        "save_strategy": "no",
        "precision": "float32",
        "disable_tqdm": True,
    }
    for name, row in training_rows().items():
        recipe = {"languages": ["en", "fr"], **row, "training": {**training, **row.get("training", {})}}
        Path(f"{name}.yaml").write_text(yaml.safe_dump(recipe), "utf-8")
        command("train", f"{name}.yaml", "--output_dir", f"runs/{name}")
    logs = sorted(Path("runs").rglob("training/log.json"))
    return {str(log.parents[1].relative_to("runs")): log.parents[1] for log in logs}


def training() -> dict[str, Any]:
    """Log, final weights and metrics of every run."""
    result = {}
    for name, run in train_all().items():
        log = json.loads((run / "training/log.json").read_text("utf-8"))
        timed = re.compile("runtime|_per_second|flos")
        entries = [{key: value for key, value in entry.items() if not timed.search(key)} for entry in log]
        metrics = json.loads((run / "results.json").read_text("utf-8"))["metrics"]
        result[name] = {"log": entries, "weights_sha256": weights(run / "training/final"), "metrics": metrics}
    return result


def weights(folder: Path) -> str:
    """SHA-256 of the tensors in a folder: name, kind, shape and bytes, in the order of their names."""
    import torch
    from safetensors.torch import load_file

    tensors: dict[str, torch.Tensor] = {}
    for file in folder.glob("*.safetensors"):
        tensors |= load_file(file)
    assert tensors, f"{folder} holds no weights"
    total = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name].contiguous()
        total.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        total.update(tensor.flatten().view(torch.uint8).numpy().tobytes())
    return total.hexdigest()


def exports() -> dict[str, Any]:
    """Files and vectors of every export, and of debiased ones."""
    runs = train_all()
    places = {name: run / "model" for name, run in runs.items()}
    texts = make_pairs(30, seed=6)
    for side, language in enumerate(("en", "fr")):
        write(f"bias.{language}.txt", "", [(row[side],) for row in texts])
    for name, method in (("lightweight", ()), ("lightweight", ("--method", "mean")), ("dual_momentum", ())):
        kind = f"debiased-{'mean-' if method else ''}{name}"
        files = ("en=bias.en.txt", "fr=bias.fr.txt")
        command("debias", "fit", str(places[name]), "--texts", *files, "--output", f"{kind}.fit", *method)
        for more in ((), ("--normalize",)):
            output = kind + "-normalized" * bool(more)
            command("debias", "apply", f"{kind}.fit", "--model", str(places[name]), "--output", output, *more)
            places[output] = Path(output)
    return {name: exported(place, name) for name, place in places.items()}


def exported(folder: Path, name: str) -> dict[str, Any]:
    """Files of an export; the vectors of its sentences, or the hash of its weights if it is no sentence encoder."""
    import numpy as np
    from sentence_transformers import SentenceTransformer

    files = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    if "modules.json" not in files:
        return {"files": files, "weights_sha256": weights(folder), "outputs": outputs(folder)}
    model = SentenceTransformer(str(folder), device="cpu")
    sentences = [side for pair in make_pairs(10, seed=7) for side in pair]
    tasks = ("en", "fr") if "debiased" in name or "dual_momentum" in name else ("",)
    vectors = {task or "all": model.encode(sentences, **({"task": task} if task else {})) for task in tasks}
    if "debiased" not in name:
        vectors["query"] = model.encode_query(sentences)
    return {
        "files": files,
        "vectors": {key: np.round(value.astype(np.float64), 6).tolist() for key, value in vectors.items()},
        "vectors_sha256": {key: digest(value.astype(np.float32)) for key, value in vectors.items()},
    }


def outputs(folder: Path) -> Any:
    """Logits of a classifier, or translations by beam search as ids."""
    import torch
    from transformers import AutoModelForSeq2SeqLM, AutoModelForSequenceClassification, AutoTokenizer

    import hf_xlsr  # noqa: F401 - registers the models

    generates = (folder / "generation_config.json").is_file()
    kind = AutoModelForSeq2SeqLM if generates else AutoModelForSequenceClassification
    model = kind.from_pretrained(folder).eval()
    sentences = [english for english, _ in make_pairs(10, seed=7)]
    inputs = AutoTokenizer.from_pretrained(folder)(sentences, padding=True, return_tensors="pt")
    with torch.inference_mode():
        found = (
            model.generate(**inputs, min_new_tokens=6, max_new_tokens=8)
            if generates
            else model(**inputs).logits.double()
        )
    return [[round(value, 6) for value in row] for row in found.tolist()]


SECTIONS: dict[str, Callable[[], dict[str, Any]]] = {
    section.__name__: section for section in (recipes, protocols, mining, training, exports)
}


# --- Comparing ---------------------------------------------------------------------------------------------------


def is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def leaves(value: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted keys and their values; a list of numbers is one value."""
    if not isinstance(value, (dict, list)) or not value or (isinstance(value, list) and all(map(is_number, value))):
        yield key, value
        return
    for name, item in value.items() if isinstance(value, dict) else enumerate(value):
        yield from leaves(item, f"{key}.{name}" if key else str(name))


def equal(old: Any, new: Any, tolerance: float) -> bool:
    """Whether two values are the same; floats up to `tolerance`, relative above 1."""
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        return all(equal(*both, tolerance) for both in zip(old, new, strict=True))
    if is_number(old) and is_number(new) and isinstance(old + new, float):
        both_nan = math.isnan(old) and math.isnan(new)
        return both_nan or math.isclose(old, new, rel_tol=tolerance, abs_tol=tolerance)
    return bool(old == new and isinstance(old, bool) == isinstance(new, bool))


def compare(old: Any, new: Any, tolerance: float = 0.0, ignore: str | None = None) -> int:
    """Prints every difference under its dotted key and returns their number."""
    here, there = dict(leaves(old)), dict(leaves(new))
    count = 0
    for key in dict.fromkeys((*here, *there)):
        if ignore and re.search(ignore, key):
            continue
        if key in here and key in there and equal(here[key], there[key], tolerance):
            continue
        count += 1
        sides = here.get(key), there.get(key)
        if all(isinstance(side, list) and side for side in sides) and len(sides[0]) == len(sides[1]):
            largest = max(abs(left - right) for left, right in zip(*sides, strict=True))
            print(f"{key}: {len(sides[0])} numbers, largest difference {largest:.3g}")
            continue
        shown = [repr(side[key]) if key in side else "missing" for side in (here, there)]
        print(f"{key}: {' -> '.join(text if len(text) < 90 else f'{text[:86]} ...' for text in shown)}")
    print(f"{count} differences in {len(here):,} values.")
    return count


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", nargs="?", type=Path)
    parser.add_argument("--only", default=",".join(SECTIONS), help="sections, with commas between")
    parser.add_argument("--compare", nargs=2, type=Path, metavar=("OLD", "NEW"))
    parser.add_argument("--tolerance", type=float, default=0.0, help="largest difference of floats (default 0)")
    parser.add_argument("--ignore", metavar="REGEX", help="of dotted keys that may differ, e.g. sha256$")
    options = parser.parse_args()
    if options.compare:
        old, new = (json.loads(path.read_text("utf-8")) for path in options.compare)
        return int(compare(old, new, options.tolerance, options.ignore) > 0)
    if options.output is None:
        parser.error("OUTPUT is missing")
    output = options.output.resolve()
    with tempfile.TemporaryDirectory() as folder:
        caches = {name: f"{folder}/{name.lower()}" for name in ("HF_HOME", "HF_MODULES_CACHE", "MTEB_CACHE")}
        threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
        offline = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "CUDA_VISIBLE_DEVICES": ""}
        os.environ.update(**caches, **threads, **offline)  # before torch and its friends are imported
        import torch

        torch.set_num_threads(1)
        os.chdir(folder)
        result = {}
        for name in options.only.split(","):
            started = time.monotonic()
            result[name] = SECTIONS[name]()
            print(f"behaviour: {name}, {time.monotonic() - started:.0f} s", file=sys.stderr, flush=True)
        os.chdir("/")
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps(result, indent=1, sort_keys=True, ensure_ascii=False) + "\n", "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
