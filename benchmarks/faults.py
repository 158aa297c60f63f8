"""Breaks every verb on purpose and compares its results with those of undisturbed runs.

Each case runs in processes of its own, on synthetic text: SIGKILL at random moments, several times in one run, which is
then finished by the same call; SIGTERM and SIGINT; a full disk (no file grows beyond a random size); an output folder
that cannot be written. Then each written file is torn, to half of its size, to none, or to zeros, and the call repeated.

Cases that are calls of Python, no verbs, are only killed.

A run that ends must give the results of the undisturbed run: `equal`, else `LOST`. A run that cannot end must say so in
one sentence that names the file or its folder: `refused`, else `unnamed`; a traceback counts as `TRACEBACK`. A stopped
run must leave each result whole or not at all, else `HALF`, and end with status 143 or 130, else `STATUS`.

usage: python -m benchmarks.faults [--cases mine,evaluate] [--tears run] [--kills 5] [--signals 2] [--full 2] [--torn 99]
           [--seed 1] [--output FILE]
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import ctypes
import hashlib
import json
import multiprocessing
import os
import random
import re
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from transformers import AutoModel, AutoTokenizer

from benchmarks.loopback_hub import Hub
from benchmarks.training import make_material, read_pairs
from hf_xlsr.export import to_sentence_transformer

SIZE = {"width": 32, "layers": 1, "vocabulary": 500, "words": 8, "batch": 32, "steps": 40}
TRAINING: dict[str, Any] = {"max_steps": 16, "per_device_train_batch_size": 32, "learning_rate": 1e-3}
TRAINING |= {"save_steps": 4, "save_total_limit": 2, "disable_tqdm": True}
KILLS_A_RUN = 3
SMALLEST_FILE = 700  # bytes


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


ENCODE = "encode {folder}/model --texts=en={folder}/en.txt --texts=fr={folder}/fr.txt"
TEXTS = "--texts=en={folder}/en.txt --texts=fr={folder}/fr.txt"
MINE = "mine {folder}/en.txt {folder}/fr.txt --model {folder}/model --languages en,fr --known {folder}/test.tsv"
SCORE = "score {folder}/test.tsv --model {folder}/model --languages en,fr"
CLEAN = "clean {folder}/pairs.tsv --languages en,fr --known {folder}/test.tsv"
TSNE = "plot tsne {folder}/model --data {folder}/test.tsv --languages en,fr"
TRAIN = "train {folder}/recipe.yaml --output_dir {out}/run"
EVALUATE = "evaluate {folder}/model --protocol tatoeba --data {folder}/test.tsv --languages en,fr --predictions"
COMPARE = "compare a={folder}/results/a.json b={folder}/results/b.json"
WEIGHTS = ("run/model/**/*.safetensors", "run/model/**/*.json")
# What each case runs, calls of `hf-xlsr` or a function, and compares: patterns of files below its output folder.
CASES: dict[str, tuple[Any, tuple[str, ...]]] = {
    "train": ([TRAIN], WEIGHTS),
    "prepare": (["prepare {folder}/recipe.yaml --num-proc 2"], ("cache/*/*.arrow",)),
    "evaluate": (["evaluate --suite {folder}/suite.yaml --output {out}/suite"], ("suite/table.*", "suite/plots/*")),
    "compare": ([f"{COMPARE} --output {{out}}/table.md --plots {{out}}/plots"], ("table.md", "plots/*")),
    "plot": ([f"{TSNE} --output {{out}}/plot.png"], ("plot.png",)),
    "encode": ([f"{ENCODE} --vectors {{out}}/vectors --output {{out}}/files"], ("files/*",)),
    "mine": ([f"{MINE} --work {{out}}/work --output {{out}}/pairs.tsv"], ("pairs.tsv",)),
    "score": ([f"{SCORE} --work {{out}}/work --output {{out}}/scores.tsv"], ("scores.tsv",)),
    "clean": ([f"{CLEAN} --output {{out}}/clean.tsv --report {{out}}/report.md"], ("clean.tsv", "report.md")),
    "prune": ([f"prune {{folder}}/model {TEXTS} --output {{out}}/small"], ("small/**/*",)),
    "export": (["export {folder}/trained --output {out}/export"], ("export/**/*",)),
    "push": (["push --yes {folder}/trained --repo me/{name}"], ("repo/**/*.safetensors", "repo/**/*.json")),
    "card": (["card {folder}/model --output {out}/card.md"], ("card.md",)),
    "debias fit": ([f"debias fit {{folder}}/model {TEXTS} --output {{out}}/bias"], ("bias/*",)),
    "debias apply": (["debias apply {folder}/bias --model {folder}/model --output {out}/model"], ("model/**/*",)),
    "streaming": (streaming, ("model/**/*.safetensors",)),
    "queue loss": (queue_loss, ("model/**/*.safetensors",)),
}


@dataclass(frozen=True)
class Tear:
    """Files to tear: what writes them, what is removed before, what reads them, and what must be equal afterwards."""

    written: Any
    files: tuple[str, ...]
    reading: Any
    results: tuple[str, ...]
    removed: tuple[str, ...] = ()


ENDS = ("run/training/final", "run/model", "run/README.md", "run/results.json", "run/*.png", "run/training/log.json")
TEARS: dict[str, Tear] = {
    "run": Tear([TRAIN], ("run/**/*",), [TRAIN], WEIGHTS),
    "checkpoint": Tear([TRAIN], ("run/training/checkpoint-16/*",), [TRAIN], WEIGHTS, ENDS),
    "cache": Tear(CASES["prepare"][0], ("cache/**/*",), CASES["prepare"][0], CASES["prepare"][1]),
    "mining folder": Tear(
        CASES["mine"][0], ("work/**/*",), CASES["mine"][0], ("pairs.tsv",), ("work/pairs", "pairs.tsv*")
    ),
    "vectors": Tear(CASES["encode"][0], ("vectors/**/*",), CASES["encode"][0], ("files/*",)),
    "results": Tear(
        [f"{EVALUATE} --output {{out}}/a.json"],
        ("a.*",),
        ["compare a={out}/a.json b={folder}/results/b.json --output {out}/table.md"],
        ("table.md",),
    ),
    "suite": Tear(CASES["evaluate"][0], ("suite/**/*",), CASES["evaluate"][0], CASES["evaluate"][1]),
    "export": Tear(
        ["export {folder}/trained --output {out}/export"],
        ("export/**/*",),
        [ENCODE.replace("{folder}/model", "{out}/export") + " --output {out}/files"],
        ("files/*",),
    ),
    "debias": Tear(
        CASES["debias fit"][0],
        ("bias/*",),
        ["debias apply {out}/bias --model {folder}/model --output {out}/model"],
        ("model/**/*",),
    ),
}
DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "half": lambda content: content[: len(content) // 2],
    "empty": lambda content: b"",
    "zeros": lambda content: bytes(len(content)),
}
STATUS = {signal.SIGTERM: 143, signal.SIGINT: 130}
SPAWNED = multiprocessing.get_context("forkserver")
SPAWNED.set_forkserver_preload(
    "torch transformers datasets sentence_transformers hf_xlsr.cli hf_xlsr.runs.train".split()
)


def forget_root() -> None:
    """Takes from root what lets it write to folders that are read-only."""
    libc = ctypes.CDLL(None)
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)
    capabilities = (ctypes.c_uint32 * 6)()
    libc.capget(header, capabilities)
    for index in range(3):  # effective, permitted, inheritable
        capabilities[index] &= ~0b110  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH
    libc.capset(header, capabilities)


def run_job(job: Any, folder: Path, out: Path, log: Path, limits: dict[str, int]) -> None:
    """The work of one process; its output goes to `log`."""

    from hf_xlsr.cli import main

    with log.open("wb") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    os.setsid()  # a kill reaches its workers, too
    multiprocessing.set_start_method("fork", force=True)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if "file_bytes" in limits:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limits["file_bytes"],) * 2)
    if "plain_user" in limits:
        forget_root()
    os.environ["HF_XLSR_CACHE"] = str(out / "cache")
    if callable(job):
        return job(folder, out)
    for words in job:
        if status := main([word.format(folder=folder, out=out, name=out.name) for word in words.split()]):
            sys.exit(status)


class Bench:
    """Runs jobs of one case in folders of their own, and judges how they end."""

    def __init__(self, name: str, folder: Path, chance: random.Random, patterns: tuple[str, ...]) -> None:
        self.name, self.folder, self.chance, self.patterns = name, folder, chance, patterns
        self.scratch = folder / name.replace(" ", "_")
        self.expected: set[tuple[str, str]] = set()
        self.outcomes: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)

    def new(self, name: str) -> Path:
        out = self.scratch / name
        out.mkdir(parents=True)
        return out

    def run(self, job: Any, out: Path, *, after: float | None = None, number: int = 9, **limits: int) -> int | None:
        """The exit status, negative for a signal that killed; a signal is sent `after` seconds, None if in time."""
        log = self.log(out)
        process = SPAWNED.Process(target=run_job, args=(job, self.folder, out, log, limits))
        process.start()
        process.join(after)
        if not process.is_alive():
            return process.exitcode
        if number == 9:
            with contextlib.suppress(ProcessLookupError):  # before it has a group of its own
                os.killpg(process.pid, 9)
        os.kill(process.pid, number)
        process.join()
        return process.exitcode

    def log(self, out: Path) -> Path:
        return out.with_name(f"{out.name}.log")

    def text(self, out: Path) -> str:
        log = self.log(out)  # missing after an early kill
        return log.read_text("utf-8", "replace").replace("\r", "\n") if log.is_file() else ""

    def whole(self, job: Any) -> tuple[Path, float]:
        """The undisturbed run and its seconds."""
        out = self.new("whole")
        start = time.monotonic()
        if status := self.run(job, out):
            raise RuntimeError(
                f"{self.name}: the undisturbed run failed with status {status}:\n{self.text(out)[-2000:]}"
            )
        return out, time.monotonic() - start

    def results(self, out: Path) -> set[tuple[str, str]]:
        files = []
        for pattern in self.patterns:
            # A kill may leave unfinished files, with other names.
            files += [path for path in out.glob(pattern) if path.is_file() and ".partial" not in str(path)]
        return {(str(path.relative_to(out)), hashlib.sha256(path.read_bytes()).hexdigest()) for path in files}

    def is_half(self, out: Path) -> bool:
        return not self.results(out) <= self.expected

    def count(self, fault: str, verdict: str, out: Path) -> None:
        """Counts a verdict; bad ones are printed with the end of the log."""
        self.outcomes[fault][verdict] += 1
        if verdict not in ("equal", "refused", "in time"):
            print(f"{self.name}: {fault}: {verdict}: {self.text(out)[-1500:]}", file=sys.stderr, flush=True)
        shutil.rmtree(out, ignore_errors=True)

    def verdict(self, out: Path, status: int | None, names: tuple[str, ...] = ()) -> str:
        """How a run ended; an error must name one of the `names`."""
        text = self.text(out)
        if "Traceback (most recent call" in text or "unexpected" in text.split("hf-xlsr:")[-1]:
            return "TRACEBACK"
        if status == 0:
            return "equal" if self.results(out) == self.expected else "LOST"
        if self.is_half(out):
            return "HALF"
        last = text.strip().splitlines()[-1:]
        is_named = last and last[0].startswith("hf-xlsr:") and any(name in last[0] for name in names)
        return "refused" if is_named else "unnamed"


class Case(Bench):
    """A case of `CASES`: its undisturbed run, and the runs that are disturbed, with faults drawn from `chance`."""

    def __init__(self, name: str, folder: Path, chance: random.Random) -> None:
        self.job, patterns = CASES[name]
        super().__init__(name, folder, chance, patterns)
        out, self.seconds = self.whole(self.job)
        self.seconds = max(self.seconds, 0.5)
        self.expected = self.results(out)
        self.largest = max((path.stat().st_size for path in out.rglob("*") if path.is_file()), default=0)

    def kills(self, count: int) -> None:
        """Kills runs at random moments until `count` kills have hit, and lets each run end."""
        hit, run = 0, 0
        while hit < count:
            run += 1
            out = self.new(f"kill{run}")
            for _ in range(KILLS_A_RUN):
                status = self.run(self.job, out, after=self.chance.uniform(0.02, self.seconds))
                if status == 0:
                    break
                hit += 1
                if self.is_half(out):
                    self.outcomes["killed"]["HALF"] += 1
            if status:
                status = self.run(self.job, out)
            self.count("killed", self.verdict(out, status), out)
        self.outcomes["kills"]["hit"] = hit

    def signals(self, count: int) -> None:
        """Sends SIGTERM and SIGINT; a run that does not end in time ends with their status, and then by the same call."""
        for number, expected in STATUS.items():
            name = f"{number.name}, {expected}"
            for attempt in range(4 * count):
                if self.outcomes[name].total() >= count:
                    break
                out = self.new(f"{number.name}{attempt}")
                status = self.run(self.job, out, after=self.chance.uniform(0.02, self.seconds), number=number)
                has_begun = self.text(out) != "" or status in (expected, -number)
                if status == 0 or not has_begun:
                    shutil.rmtree(out)
                    continue
                # Before it has handlers of its own, the signal kills.
                if status not in (expected, -number) or "Traceback (most recent call" in self.text(out):
                    self.count(name, "STATUS", out)
                elif self.is_half(out):
                    self.count(name, "HALF", out)
                else:
                    self.count(name, self.verdict(out, self.run(self.job, out)), out)

    def full_disk(self, count: int) -> None:
        """Files stop growing at a random size; then the call is repeated with room."""
        for number in range(count):
            out = self.new(f"full{number}")
            # The log must have room for the sentence.
            file_bytes = max(SMALLEST_FILE, int(self.largest * self.chance.uniform(0, 0.9)))
            status = self.run(self.job, out, file_bytes=file_bytes)
            verdict = self.verdict(out, status, (str(out), tempfile.gettempdir()))
            if status == 0 or verdict != "refused":
                self.count("full disk", verdict, out)
                continue
            self.outcomes["full disk"]["refused"] += 1
            self.count("full disk, then room", self.verdict(out, self.run(self.job, out)), out)

    def read_only(self) -> None:
        """The output folder belongs to somebody else."""
        out = self.new("readonly")
        out.chmod(0o555)
        status = self.run(self.job, out, plain_user=1)
        self.count("read-only", self.verdict(out, status, (str(out),)), out)

    def disturb(self, options: argparse.Namespace) -> dict[str, Any]:
        self.kills(options.kills)
        if not callable(self.job):  # an exception of Python needs no sentence
            self.signals(options.signals)
            self.full_disk(options.full)
            if self.name != "push":  # writes nothing here
                self.read_only()
        return {"seconds": round(self.seconds, 1), **self.outcomes}


class TornCase(Bench):
    """A case of `TEARS`: each kind of written file in turn is damaged in each way, and read."""

    def __init__(self, name: str, folder: Path, chance: random.Random) -> None:
        self.tear = TEARS[name]
        super().__init__(f"torn {name}", folder, chance, self.tear.results)
        self.base, _ = self.whole(self.tear.written)
        for pattern in self.tear.removed:
            for path in self.base.glob(pattern):
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        read = self.copy("read")
        if status := self.run(self.tear.reading, read):
            raise RuntimeError(f"{name}: reading failed with status {status}:\n{self.text(read)[-2000:]}")
        self.expected = self.results(read)

    def copy(self, name: str) -> Path:
        out = self.scratch / name
        shutil.copytree(self.base, out)
        return out

    def disturb(self, options: argparse.Namespace) -> dict[str, Any]:
        kinds: dict[str, Path] = {}
        for pattern in self.tear.files:
            for path in sorted(self.base.glob(pattern)):
                if path.is_file() and path.stat().st_size:
                    name = path.relative_to(self.base)
                    kinds.setdefault(re.sub(r"[0-9a-f]{16,}|\d+", "*", str(name)), name)
        for kind, name in list(kinds.items())[: options.torn]:
            for damage, change in DAMAGES.items():
                out = self.copy("torn")
                content = (out / name).read_bytes()
                (out / name).unlink()  # it may be a hard link
                (out / name).write_bytes(change(content))
                status = self.run(self.tear.reading, out)
                names = (name.name, str((out / name).parent))
                self.count(f"{kind} | {damage}", self.verdict(out, status, names), out)
        return {fault: dict(verdicts) for fault, verdicts in self.outcomes.items()}


def table(found: dict[str, Any]) -> str:
    """The counts as Markdown: a row a case, and a row a torn file."""
    lines = []
    faults = [f"{number.name}, {status}" for number, status in STATUS.items()]
    faults = ["kills", "killed", *faults, "full disk", "full disk, then room", "read-only"]
    rows = {name: counts for name, counts in found.items() if not name.startswith("torn ")}
    if rows:
        lines += [f"| case | {' | '.join(faults)} |", "|---|" + "---|" * len(faults)]
    for name, counts in rows.items():
        cells = [
            ", ".join(f"{count} {verdict}" for verdict, count in counts.get(fault, {}).items()) for fault in faults
        ]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    rows = {name: counts for name, counts in found.items() if name.startswith("torn ")}
    if rows:
        lines += ["", f"| torn file | {' | '.join(DAMAGES)} |", "|---|" + "---|" * len(DAMAGES)]
    for counts in rows.values():
        for kind in dict.fromkeys(fault.split(" | ")[0] for fault in counts):
            cells = [", ".join(counts.get(f"{kind} | {damage}", {})) for damage in DAMAGES]
            lines.append(f"| `{kind}` | {' | '.join(cells)} |")
    return "\n".join(lines)


def prepare_others(folder: Path) -> None:
    """What some verbs read: a run, results of two models, and a fitted bias."""
    jobs = ["train {folder}/recipe.yaml --output_dir {folder}/trained"]
    jobs += [f"{EVALUATE} --name {name} --output {{folder}}/results/{name}.json" for name in ("a", "b")]
    jobs += [f"debias fit {{folder}}/model {TEXTS} --output {{folder}}/bias"]
    out = folder / "others"
    out.mkdir()
    process = SPAWNED.Process(target=run_job, args=(jobs, folder, out, folder / "others.log", {}))
    process.start()
    process.join()
    if process.exitcode:
        raise RuntimeError((folder / "others.log").read_text("utf-8", "replace")[-2000:])


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.faults", description=__doc__.split("\n")[0])
    parser.add_argument("--cases", default=",".join(CASES), help="default: all; `none` for none")
    parser.add_argument("--tears", default=",".join(TEARS), help="default: all; `none` for none")
    parser.add_argument("--kills", type=int, default=5, help="of each case")
    parser.add_argument("--signals", type=int, default=2, help="of each case and signal")
    parser.add_argument("--full", type=int, default=2, help="full disks of each case")
    parser.add_argument("--torn", type=int, default=99, help="files of each case")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--output", type=Path, help="JSON file of the counts")
    options = parser.parse_args()
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        # Before the server of processes imports huggingface_hub.
        hub = Hub(folder / "push")
        os.environ |= {"HF_ENDPOINT": hub.url, "HF_TOKEN": f"hf_{'x' * 34}", "HF_HUB_DISABLE_XET": "1"}
        os.environ["HF_HUB_OFFLINE"] = "0"  # the Hub is this process
        make_inputs(folder)
        prepare_others(folder)
        chosen = [(Case, case) for case in options.cases.split(",") if case in CASES]
        chosen += [(TornCase, case) for case in options.tears.split(",") if case in TEARS]
        for kind, case_name in chosen:
            case = kind(case_name, folder, random.Random(f"{options.seed} {case_name}"))
            found[case.name] = case.disturb(options)
            print(case.name, json.dumps(found[case.name]), flush=True)
            shutil.rmtree(case.scratch, ignore_errors=True)
            if options.output:
                options.output.write_text(json.dumps(found, indent=2) + "\n", "utf-8")
    print(table(found))
    counts = (counts for case in found.values() for counts in case.values() if isinstance(counts, dict))
    sys.exit(any(verdict.isupper() or verdict == "unnamed" for verdicts in counts for verdict in verdicts))


if __name__ == "__main__":
    main()
