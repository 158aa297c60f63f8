"""Breaks commands on purpose and compares their results with those of undisturbed runs.

Each case runs in processes of its own, on synthetic text: SIGKILL at random moments, several times in one run, which is
then finished by the same call; a full disk (no file grows beyond a random size); an output folder that cannot be written;
each written file torn to half of its size, and the call repeated.

A run that ends must give the results of the undisturbed run: `equal`, else `DIFFERENT`. A run that cannot end must say
so: `refused`. Results are tables, pairs, embeddings, prepared rows and weights, compared by their SHA-256.

usage: python -m benchmarks.faults [--cases mining,suite] [--kills 12] [--torn 12] [--seed 1] [--output FILE]
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import hashlib
import json
import multiprocessing
import os
import random
import resource
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import yaml
from transformers import AutoModel, AutoTokenizer

from benchmarks.training import make_material, read_pairs
from hf_xlsr.export import to_sentence_transformer

SIZE = {"width": 32, "layers": 1, "vocabulary": 500, "words": 8, "batch": 32, "steps": 40}
TRAINING: dict[str, Any] = {"max_steps": 40, "per_device_train_batch_size": 32, "learning_rate": 1e-3}
TRAINING |= {"save_steps": 4, "save_total_limit": 2, "disable_tqdm": True}
KILLS_A_RUN = 3


def make_inputs(folder: Path) -> None:
    """Pairs, two texts, an encoder of random weights, a recipe and a suite."""
    make_material(folder, SIZE)
    encoder, tokenizer = (loader.from_pretrained(folder / "encoder") for loader in (AutoModel, AutoTokenizer))
    to_sentence_transformer(encoder, tokenizer, pooling="mean").save_pretrained(str(folder / "model"))
    rows = read_pairs(folder).to_pandas()
    for side, language in (("source", "en"), ("target", "fr")):
        rows[side][300:].to_csv(folder / f"{language}.txt", header=False, index=False)
    rows[:300].to_csv(folder / "test.tsv", sep="\t", index=False)
    recipe = {
        "method": "lightweight",
        "languages": ["en", "fr"],
        "data": {"train": {"path": f"{folder}/pairs.tsv"}, "max_length": 32},
        "tokenizer": {"path": f"{folder}/encoder"},
        "model": {"encoder": {"path": f"{folder}/encoder"}, "similarity_weight": 0.0},
        "training": {**TRAINING, "precision": "float32", "cache_batch_size": 8, "eval_strategy": "no"},
    }
    (folder / "recipe.yaml").write_text(yaml.safe_dump(recipe), "utf-8")
    task = {"protocol": "tatoeba,xsim,mining", "data": f"{folder}/test.tsv", "languages": "en,fr"}
    encoders = {"a": f"{folder}/model", "b": {"model": f"{folder}/model", "prompt": "x "}}
    (folder / "suite.yaml").write_text(yaml.safe_dump({"encoders": encoders, "tasks": {"pairs": task}}), "utf-8")


def resumed(trainer: Any, run: Path) -> None:
    """Trains from the last checkpoint, if there is one."""
    from hf_xlsr.trainers.base import last_whole_checkpoint

    checkpoint = last_whole_checkpoint(run)
    trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)


def streaming(folder: Path, out: Path) -> None:
    from datasets import load_dataset

    from hf_xlsr import LightweightTrainer, LightweightTrainingArguments

    kept: dict[str, Any] = {"split": "train", "cache_dir": str(out / "hf")}
    stream = load_dataset("csv", data_files=str(folder / "test.tsv"), sep="\t", streaming=True, **kept)
    options = {"max_length": 32, "use_cpu": True, "precision": "float32", **TRAINING}
    args = LightweightTrainingArguments(output_dir=str(out / "run"), **options)
    trainer = LightweightTrainer(model=str(folder / "encoder"), args=args, train_dataset=stream)
    resumed(trainer, out / "run")
    trainer.save_sentence_transformer(out / "model")


def queue_loss(folder: Path, out: Path) -> None:
    from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer
    from sentence_transformers import SentenceTransformerTrainingArguments as Arguments

    from hf_xlsr.sentence_transformers import DualMomentumCallback, DualMomentumLoss

    model = SentenceTransformer(str(folder / "model"), device="cpu")
    loss = DualMomentumLoss(model, queue_size=64, momentum=0.9)
    args, callbacks = Arguments(str(out / "run"), use_cpu=True, **TRAINING), [DualMomentumCallback(loss)]
    trainer = SentenceTransformerTrainer(model, args, train_dataset=read_pairs(folder), loss=loss, callbacks=callbacks)
    resumed(trainer, out / "run")
    model.save_pretrained(str(out / "model"))


ENCODE = "encode {folder}/model --texts=en={folder}/en.txt --texts=fr={folder}/fr.txt --vectors {out}/vectors"
MINE = "mine {folder}/en.txt {folder}/fr.txt --model {folder}/model --languages en,fr --known {folder}/test.tsv"
# What each case runs, calls of `hf-xlsr` or a function, and compares: patterns of files below its output folder.
CASES: dict[str, tuple[Any, tuple[str, ...]]] = {
    "shared cache": (["prepare {folder}/recipe.yaml --num-proc 2"], ("cache/**/*.arrow",)),
    "gradient cache": (["train {folder}/recipe.yaml --output_dir {out}/run"], ("run/model/**/*.safetensors",)),
    "streaming": (streaming, ("model/**/*.safetensors",)),
    "queue loss": (queue_loss, ("model/**/*.safetensors",)),
    "encode": ([ENCODE, f"{ENCODE} --output {{out}}/files"], ("files/*",)),
    "suite": (["evaluate --suite {folder}/suite.yaml --output {out}/results"], ("results/table.*", "results/plots/*")),
    "mining": ([f"{MINE} --work {{out}}/work --output {{out}}/pairs.tsv"], ("pairs.tsv",)),
}
SPAWNED = multiprocessing.get_context("forkserver")
SPAWNED.set_forkserver_preload(
    "torch transformers datasets sentence_transformers hf_xlsr.cli hf_xlsr.runs.train".split()
)


def run_job(job: Any, folder: Path, out: Path, log: Path, limits: dict[str, int]) -> None:
    """The work of one process; its output goes to `log`."""
    from hf_xlsr.cli import main

    with log.open("ab") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    os.setsid()  # a kill reaches its workers, too
    multiprocessing.set_start_method("fork", force=True)
    if "file_bytes" in limits:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limits["file_bytes"],) * 2)
    if "user" in limits:
        os.seteuid(limits["user"])
    os.environ["HF_XLSR_CACHE"] = str(out / "cache")
    if callable(job):
        return job(folder, out)
    for words in job:
        if status := main([word.format(folder=folder, out=out) for word in words.split()]):
            sys.exit(status)


class Case:
    """A case of `CASES`: its undisturbed run, and the runs that are disturbed, with faults drawn from `chance`."""

    def __init__(self, name: str, folder: Path, chance: random.Random) -> None:
        self.job, self.patterns = CASES[name]
        self.folder, self.chance, self.name = folder, chance, name
        self.scratch = folder / name.replace(" ", "_")
        self.whole = self.new("whole")
        start = time.monotonic()
        if status := self.run(self.whole):
            log = self.whole.with_name("whole.log").read_text("utf-8", "replace")
            raise RuntimeError(f"{name}: the undisturbed run failed with status {status}:\n{log[-2000:]}")
        self.seconds = time.monotonic() - start
        self.expected = self.results(self.whole)
        self.outcomes: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)

    def new(self, name: str) -> Path:
        out = self.scratch / name
        out.mkdir(parents=True)
        return out

    def run(self, out: Path, kill_after: float | None = None, **limits: int) -> int | None:
        """The exit status, or None for a run that was killed."""
        log = out.with_name(f"{out.name}.log")
        process = SPAWNED.Process(target=run_job, args=(self.job, self.folder, out, log, limits))
        process.start()
        process.join(kill_after)
        if process.is_alive():
            with contextlib.suppress(ProcessLookupError):  # before it has a group of its own
                os.killpg(process.pid, 9)
            process.kill()
            process.join()
            return None
        return process.exitcode

    def results(self, out: Path) -> set[tuple[str, str]]:
        files = [path for pattern in self.patterns for path in out.glob(pattern) if path.is_file()]
        return {(path.name, hashlib.sha256(path.read_bytes()).hexdigest()) for path in files}

    def judge(self, fault: str, out: Path, status: int | None) -> None:
        equal = self.results(out) == self.expected
        verdict = "refused" if status else "equal" if equal else "DIFFERENT"
        self.outcomes[fault][verdict] += 1
        if verdict == "equal":
            shutil.rmtree(out)

    def kills(self, count: int) -> None:
        """Kills runs at random moments until `count` kills have hit, and lets each run end."""
        hit, run = 0, 0
        while hit < count:
            run += 1
            out = self.new(f"kill{run}")
            for _ in range(KILLS_A_RUN):
                hit += self.run(out, kill_after=self.chance.uniform(0.02, self.seconds)) is None
            self.judge("killed", out, self.run(out))
        self.outcomes["kills"]["hit"] = hit

    def full_disk(self, count: int) -> None:
        """Files stop growing at a random size; then the call is repeated with room."""
        largest = max(path.stat().st_size for path in self.whole.rglob("*") if path.is_file())
        for number in range(count):
            out = self.new(f"full{number}")
            status = self.run(out, file_bytes=int(largest * self.chance.random()))
            if status == 0:
                self.judge("full disk", out, status)
                continue
            self.outcomes["full disk"]["refused"] += 1
            self.judge("full disk, then room", out, self.run(out))

    def read_only(self) -> None:
        """The output folder belongs to somebody else."""
        out = self.new("readonly")
        out.chmod(0o555)
        limits = {"user": 65534} if os.geteuid() == 0 else {}
        self.judge("read-only", out, self.run(out, **limits))
        out.chmod(0o755)

    def torn(self, count: int) -> None:
        """Each written file in turn, or `count` of them, has half of its bytes; the call is repeated."""
        files = sorted(path.relative_to(self.whole) for path in self.whole.rglob("*") if path.is_file())
        for name in sorted(self.chance.sample(files, min(count, len(files)))):
            out = self.scratch / "torn"
            shutil.copytree(self.whole, out)
            os.truncate(out / name, (out / name).stat().st_size // 2)
            status = self.run(out)
            before = self.outcomes["torn"]["DIFFERENT"]
            self.judge("torn", out, status)
            if status or self.outcomes["torn"]["DIFFERENT"] > before:
                last = out.with_name("torn.log").read_text("utf-8", "replace").strip().splitlines()[-1:]
                print(f"{self.name}: torn {name}: status {status} {last}", file=sys.stderr)
            shutil.rmtree(out, ignore_errors=True)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.faults", description=__doc__.split("\n")[0])
    parser.add_argument("--cases", default=",".join(CASES), help="default: all")
    parser.add_argument("--kills", type=int, default=12, help="of each case")
    parser.add_argument("--torn", type=int, default=12, help="files of each case")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--output", type=Path, help="JSON file of the counts")
    options = parser.parse_args()
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        make_inputs(folder)
        # The imports of the server of processes take longer than most cases.
        warm_up = SPAWNED.Process(target=time.sleep, args=(0,))
        warm_up.start()
        warm_up.join()
        for case_name in options.cases.split(","):
            case = Case(case_name, folder, random.Random(f"{options.seed} {case_name}"))
            case.kills(options.kills)
            case.full_disk(3)
            case.read_only()
            case.torn(options.torn)
            found[case_name] = {"seconds": round(case.seconds, 1), **case.outcomes}
            print(case_name, json.dumps(found[case_name]), flush=True)
            if options.output:
                options.output.write_text(json.dumps(found, indent=2) + "\n", "utf-8")
    counts = (counts for case in found.values() for counts in case.values() if isinstance(counts, dict))
    sys.exit(any("DIFFERENT" in verdicts for verdicts in counts))


if __name__ == "__main__":
    main()
