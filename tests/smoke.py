"""What a new user does first, in an environment with the wheel; release_check.py and test_core_install.py run it.

usage: python -I smoke.py FOLDER
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import random
import subprocess
import sys
from pathlib import Path

SHOWN = ("torch", "transformers", "sentence-transformers", "accelerate", "datasets", "huggingface-hub", "numpy")
LOADED_ALONE = """
import sys
sys.modules["hf_xlsr"] = None  # an import of it would fail
from sentence_transformers import SentenceTransformer
print(SentenceTransformer(sys.argv[1]).encode(["one two"]).shape[1])
"""


def pairs(count: int) -> list[tuple[str, str]]:
    """Sentences of a made-up language and their word-by-word translations."""
    draw = random.Random(1)
    words = ["".join(draw.choices("abcdefghijklmnop", k=4)) for _ in range(60)]
    pairs = []
    for _ in range(count):
        sentence = draw.choices(words, k=5)
        translation = [word[::-1] for word in sentence]
        pairs.append((" ".join(sentence), " ".join(translation)))
    return pairs


def call(*words: str) -> str:
    """Runs `hf-xlsr` as the command that was installed."""
    command = [str(Path(sys.executable).parent / "hf-xlsr"), *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(words[:2])} ended with {done.returncode}:\n{(done.stdout + done.stderr)[-3000:]}")
    return done.stdout


def main() -> None:
    """Imports, also what extras installed, trains, loads without the package, evaluates, mines and trains an adapter."""
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True)
    import transformers

    import hf_xlsr
    from hf_xlsr.utils.extras import EXTRAS

    config = transformers.AutoConfig.for_model("lightweight_dual_transformer")
    if type(config) is not hf_xlsr.LightweightConfig:
        raise SystemExit(f"AutoConfig gives {type(config).__name__} for the lightweight model.")

    for package in EXTRAS:
        if importlib.util.find_spec(package):
            importlib.import_module(package)

    table = folder / "pairs.tsv"
    table.write_text("".join(f"{source}\t{target}\n" for source, target in pairs(400)), "utf-8")
    small = "--model.encoder.hidden_size 32 --model.encoder.num_attention_heads 2 --model.encoder.intermediate_size 64"
    text = f"--data.train.path {table} --data.train.columns source=0,target=1 --data.dev null --data.test null"
    quick = "--tokenizer.vocab_size 100 --max_steps 8 --per_device_train_batch_size 32 --save_steps 8"
    run = folder / "run"
    model = str(run / "model")
    call("train", "quickstart", *f"{text} {small} {quick} --output_dir {run}".split())

    command = [sys.executable, "-I", "-c", LOADED_ALONE, model]
    width = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    output = folder / "scores.json"
    columns = ["--data", str(table), "--columns", "source=0,target=1", "--languages", "en,fr"]
    call("evaluate", model, "--protocol", "tatoeba", *columns, "--output", str(output))
    scores = json.loads(output.read_text("utf-8"))["metrics"]

    source_file = folder / "source.txt"
    target_file = folder / "target.txt"
    mined = folder / "mined.tsv"
    source_file.write_text("".join(f"{source}\n" for source, _ in pairs(60)), "utf-8")
    target_file.write_text("".join(f"{target}\n" for _, target in pairs(60)), "utf-8")
    sides = [str(source_file), str(target_file)]
    call("mine", *sides, "--model", model, "--languages", "en,fr", "--output", str(mined))
    mined_lines = len(mined.read_text("utf-8").splitlines())

    done = f"trained, loaded alone (width {width}), {len(scores)} scores, {mined_lines} lines mined"
    if importlib.util.find_spec("peft"):
        adapted = f"{text} {small} {quick} --adapters.rank 2 --start_from {run} --output_dir {folder / 'adapted'}"
        call("train", "quickstart", *adapted.split())
        done += f", adapted with peft {importlib.metadata.version('peft')}"
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in SHOWN)
    print(f"{done}; {versions}")


if __name__ == "__main__":
    main()
