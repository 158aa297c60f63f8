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
    last_pairs = pairs[:-31:-1]
    write("fit.en.txt", "", [(english,) for english, _ in last_pairs])
    write("fit.fr.txt", "", [(french,) for _, french in last_pairs])
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
            columns = {
                "sentence1": [english for english, _ in pairs],
                "sentence2": [french for _, french in pairs],
                "score": [number * 7 % 6 for number in range(len(pairs))],
            }
            task.dataset = {"test": Dataset.from_dict(columns)}
            task.data_loaded = True

        task.load_data = load_data
        return task

    mteb.get_task = get_task
    words = ("--data", "mteb:STSBenchmark", "--protocol")
    try:
        return {
            "mteb": evaluate(model, *words, "mteb"),
            "mteb-sts": evaluate(model, *words, "sts"),
        }
    finally:
        mteb.get_task = real


def mining() -> dict[str, Any]:
    """Pairs and scores of 2,000 x 2,000 vectors, and of two small texts."""
    import numpy as np

    from hf_xlsr.mining import mine_bitext, mine_vectors

    rng = np.random.default_rng(0)
    source = rng.normal(size=(2000, 32))
    target = rng.normal(size=(2000, 32))
    translations = rng.permutation(2000)[:1500]
    target[translations] = source[:1500] + 0.5 * rng.normal(size=(1500, 32))
    source = (source / np.linalg.norm(source, axis=1, keepdims=True)).astype(np.float32)
    target = (target / np.linalg.norm(target, axis=1, keepdims=True)).astype(np.float32)

    def mined(**options: Any) -> dict[str, Any]:
        bitext = mine_vectors(source, target, **options)
        indices = np.stack([bitext.source, bitext.target]).astype(np.int64)
        scores = np.asarray(bitext.score)
        correct = 0
        for source_row, target_row in indices.T:
            if source_row < 1500 and translations[source_row] == target_row:
                correct += 1
        return {
            "pairs": len(scores),
            "correct": correct,
            "pairs_sha256": digest(indices),
            "scores_sum": round(float(scores.sum()), 4),
            "scores_sha256": digest(scores.astype(np.float32)),
        }

    result: dict[str, Any] = {}
    for margin in ("ratio", "distance", "absolute"):
        for retrieval in ("max", "intersection", "forward", "backward"):
            result[f"{margin}/{retrieval}"] = mined(margin=margin, retrieval=retrieval)
    result["many"] = mined(one_to_one=False, k=8)
    result["threshold"] = mined(threshold=1.05, max_pairs=700)
    result["ivf"] = mined(method="ivf")

    stock = encoder()
    pairs = make_pairs(60, seed=5)
    write("mine.en", "", [(english,) for english, _ in pairs[:50]])
    french = [(french,) for _, french in pairs[:9:-1]]
    write("mine.fr", "", [*french, (pairs[20][1],)])
    bitext = mine_bitext(
        "mine.en",
        "mine.fr",
        encoder=stock,
        retrieval="intersection",
        duplicates="keep",
        device="cpu",
        folder="work",
    )
    mined_pairs = zip(bitext.source.tolist(), bitext.target.tolist(), bitext.score.tolist(), strict=True)
    result["mine_bitext"] = list(map(list, mined_pairs))

    words = ("--model", stock, "--languages", "en,fr", "--output")
    command("mine", "mine.en", "mine.fr", *words, "mined.jsonl")
    table = write("pairs_to_score.tsv", "en fr", pairs)
    command("score", table, "--columns", "source=en,target=fr", *words, "scored.jsonl")
    for name in ("mined", "scored"):
        lines = Path(f"{name}.jsonl").read_text("utf-8").splitlines()
        result[name] = list(map(json.loads, lines))
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
    folders = {name: run / "model" for name, run in train_all().items()}
    pairs = make_pairs(30, seed=6)
    write("bias.en.txt", "", [(english,) for english, _ in pairs])
    write("bias.fr.txt", "", [(french,) for _, french in pairs])

    methods_of_kind = {
        "debiased-lightweight": ("lightweight", "components"),
        "debiased-mean-lightweight": ("lightweight", "mean"),
        "debiased-dual_momentum": ("dual_momentum", "components"),
    }
    for kind, (name, method) in methods_of_kind.items():
        model = str(folders[name])
        fit = f"{kind}.fit"
        texts = ("--texts", "en=bias.en.txt", "fr=bias.fr.txt")
        command("debias", "fit", model, *texts, "--method", method, "--output", fit)
        command("debias", "apply", fit, "--model", model, "--output", kind)
        command("debias", "apply", fit, "--model", model, "--output", f"{kind}-normalized", "--normalize")
        folders[kind] = Path(kind)
        folders[f"{kind}-normalized"] = Path(f"{kind}-normalized")
    return {name: exported(folder, name) for name, folder in folders.items()}


def exported(folder: Path, name: str) -> dict[str, Any]:
    """Files of an export; the vectors of its sentences, or the hash of its weights if it is no sentence encoder."""
    import numpy as np
    from sentence_transformers import SentenceTransformer

    files = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    if "modules.json" not in files:
        return {"files": files, "weights_sha256": weights(folder), "outputs": outputs(folder)}

    model = SentenceTransformer(str(folder), device="cpu")
    sentences: list[str] = []
    for pair in make_pairs(10, seed=7):
        sentences += pair
    vectors = {}
    if "debiased" in name or "dual_momentum" in name:
        vectors["en"] = model.encode(sentences, task="en")
        vectors["fr"] = model.encode(sentences, task="fr")
    else:
        vectors["all"] = model.encode(sentences)
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

    sentences = [english for english, _ in make_pairs(10, seed=7)]
    inputs = AutoTokenizer.from_pretrained(folder)(sentences, padding=True, return_tensors="pt")
    with torch.inference_mode():
        if (folder / "generation_config.json").is_file():
            translator = AutoModelForSeq2SeqLM.from_pretrained(folder).eval()
            return translator.generate(**inputs, min_new_tokens=6, max_new_tokens=8).tolist()
        classifier = AutoModelForSequenceClassification.from_pretrained(folder).eval()
        return classifier(**inputs).logits.double().round(decimals=6).tolist()


SECTIONS: dict[str, Callable[[], dict[str, Any]]] = {
    section.__name__: section for section in (recipes, protocols, mining, training, exports)
}


# --- Comparing ---------------------------------------------------------------------------------------------------


MISSING = "missing"


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
    old_leaves = dict(leaves(old))
    new_leaves = dict(leaves(new))
    differences = 0
    for key in dict.fromkeys((*old_leaves, *new_leaves)):
        if ignore and re.search(ignore, key):
            continue
        old_value = old_leaves.get(key, MISSING)
        new_value = new_leaves.get(key, MISSING)
        if not equal(old_value, new_value, tolerance):
            differences += 1
            print(f"{key}: {difference(old_value, new_value)}")
    print(f"{differences} differences in {len(old_leaves):,} values.")
    return differences


def difference(old: Any, new: Any) -> str:
    """What differs between two values, in a line."""
    if isinstance(old, list) and isinstance(new, list) and old and len(old) == len(new):
        largest = max(abs(before - after) for before, after in zip(old, new, strict=True))
        return f"{len(old)} numbers, largest difference {largest:.3g}"
    return f"{shown(old)} -> {shown(new)}"


def shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) < 90 else f"{text[:86]} ..."


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", nargs="?", type=Path)
    parser.add_argument("--only", default=",".join(SECTIONS), help="sections, with commas between")
    parser.add_argument("--compare", nargs=2, type=Path, metavar=("OLD", "NEW"))
    parser.add_argument("--tolerance", type=float, default=0.0, help="largest difference of floats (default 0)")
    parser.add_argument("--ignore", metavar="REGEX", help="of dotted keys that may differ, e.g. sha256$")
    options = parser.parse_args()
    if options.compare:
        old, new = [json.loads(path.read_text("utf-8")) for path in options.compare]
        return int(compare(old, new, options.tolerance, options.ignore) > 0)
    if options.output is None:
        parser.error("OUTPUT is missing")

    output = options.output.resolve()
    with tempfile.TemporaryDirectory() as folder:
        os.environ.update(  # before torch and its friends are imported
            HF_HOME=f"{folder}/hf_home",
            HF_MODULES_CACHE=f"{folder}/hf_modules_cache",
            MTEB_CACHE=f"{folder}/mteb_cache",
            OMP_NUM_THREADS="1",
            MKL_NUM_THREADS="1",
            OPENBLAS_NUM_THREADS="1",
            HF_HUB_OFFLINE="1",
            TOKENIZERS_PARALLELISM="false",
            CUDA_VISIBLE_DEVICES="",
        )
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
