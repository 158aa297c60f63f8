"""Runs to push, and processes that push them to a Hub of this machine."""

from __future__ import annotations

import atexit
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from conftest import make_pairs
from hub_server import TOKEN, HubServer

from hf_xlsr.runs.recipe import load_runs
from hf_xlsr.runs.train import train_recipe

# What reads the address of the Hub does so at import: whatever talks to the server runs in a process of its own, which is
# kept, since importing takes longer than all tests together. Waits between attempts take no time there.
WORKER = """
import contextlib, io, json, os, sys, time, traceback
real = sys.stdout
sys.stdout = sys.stderr
import huggingface_hub.utils._http as http
http.time = type("time", (), {**vars(time), "sleep": staticmethod(lambda seconds: None)})
from hf_xlsr.cli import main
import hf_xlsr.runs.publish
def hf_xlsr_command(*words):
    return main(list(words))
for line in sys.stdin:
    job = json.loads(line)
    os.environ.pop("HF_TOKEN", None)
    os.environ.update(job["env"])
    out, err, status = io.StringIO(), io.StringIO(), 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            status = eval(job["code"]) if job["mode"] == "eval" else exec(job["code"], {"__name__": "job"}) or 0
        except BaseException:
            traceback.print_exc()
            status = -1
    print(json.dumps({"status": status, "out": out.getvalue(), "err": err.getvalue()}), file=real, flush=True)
"""

RECIPE = """
method: {method}
description: A toy.
languages: [en, fr]
data: {{train: {{path: {train}}}, test: {{path: {test}}}, max_length: 32, cleaning: [normalize]}}
{more}
training: {{max_steps: 6, per_device_train_batch_size: 16, learning_rate: 1e-2, logging_steps: 2, save_steps: 2,
           save_total_limit: 2, precision: float32}}
evaluation: {{plot_pairs: 3, mined_pairs: 1}}
"""
ENCODER = """
tokenizer: {vocab_size: 80, algorithm: bpe}
model:
  encoder: {model_type: bert, hidden_size: 16, num_hidden_layers: 2, num_attention_heads: 2, intermediate_size: 32,
            max_position_embeddings: 40}
"""


def write_recipe(folder: Path, method: str = "lightweight", more: str = ENCODER) -> Path:
    for name, count, seed in (("train", 200, 1), ("test", 20, 7)):
        rows = (f"{pair['source']}\t{pair['target']}\n" for pair in make_pairs(count, seed))
        (folder / f"{name}.tsv").write_text("".join(rows), "utf-8")
    path = folder / f"{method}_toy.yaml"
    text = RECIPE.format(method=method, train=folder / "train.tsv", test=folder / "test.tsv", more=more)
    path.write_text(text, "utf-8")
    return path


def train(recipe: Path, output: Path, *words: str) -> Path:
    for run in load_runs(str(recipe), ["--output_dir", str(output), *words]):
        train_recipe(run)
    return output


@cache
def shared_hub(home: Path) -> tuple[HubServer, Worker]:
    """A Hub and a process that reaches it, for all tests of this session."""
    server = HubServer().__enter__()
    worker = Worker(server.url, home)
    atexit.register(worker.close)
    return server, worker


@dataclass
class Done:
    """What a job left."""

    status: Any
    out: str
    err: str


class Worker:
    """A process that reaches the Hub at `url` and knows nothing of this user's login."""

    def __init__(self, url: str, home: Path) -> None:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "HUGGING"))}
        switches = ("DISABLE_XET", "DISABLE_PROGRESS_BARS", "DISABLE_TELEMETRY")
        own = {"HF_ENDPOINT": url, "HF_HOME": str(home), **{f"HF_HUB_{name}": "1" for name in switches}}
        pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self._process: Any = subprocess.Popen([sys.executable, "-c", WORKER], env={**kept, **own}, **pipes)

    def command(self, *words: str, token: str | None = TOKEN) -> Done:
        """Runs `hf-xlsr` with these words."""
        return self._do("eval", f"hf_xlsr_command(*{list(words)!r})", token)

    def python(self, code: str, token: str | None = TOKEN) -> Done:
        """Runs a script; its status is 0, or -1 with the traceback in `err`."""
        return self._do("exec", code, token)

    def close(self) -> None:
        self._process.kill()  # an orderly end takes seconds
        self._process.communicate()

    def _do(self, mode: str, code: str, token: str | None) -> Done:
        job = {"mode": mode, "code": code, "env": {"HF_TOKEN": token} if token else {}}
        self._process.stdin.write(json.dumps(job) + "\n")
        self._process.stdin.flush()
        return Done(**json.loads(self._process.stdout.readline()))
