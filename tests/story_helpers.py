"""Scripts as users write them, run in processes of their own on tiny encoders and files."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import torch
from conftest import make_pairs, tiny_encoder
from forked_command import SERVER, Command, start_workers_by_fork
from safetensors.torch import load_file
from transformers import AutoConfig

from hf_xlsr.data.tokenization import train_tokenizer
from hf_xlsr.encoders.stock import encoder_from_config
from hf_xlsr.trainers.checkpoints import last_whole_checkpoint

ENCODERS = {"encoders/en": "source", "encoders/zh": "target"}


def write_files(folder: Path, encoders: Mapping[str, str] = ENCODERS) -> None:
    """`pairs.tsv` and `dev.tsv`, with a header, and encoders with tokenizers: folder -> side whose words it knows."""
    pairs = make_pairs(240, seed=3)
    lines = [f"{pair['source']}\t{pair['target']}\n" for pair in pairs]
    (folder / "pairs.tsv").write_text("en\tzh\n" + "".join(lines[:200]), "utf-8")
    (folder / "dev.tsv").write_text("en\tzh\n" + "".join(lines[200:]), "utf-8")

    for name, side in encoders.items():
        tokenizer = train_tokenizer([pair[side] for pair in pairs], vocab_size=60, algorithm="bpe", frame=True)
        torch.manual_seed(len(name))
        encoder = encoder_from_config(AutoConfig.for_model(**tiny_encoder(len(tokenizer))))
        encoder.save_pretrained(str(folder / name))
        tokenizer.save_pretrained(str(folder / name))


def _run(script: str, folder: Path, log: Path) -> None:
    start_workers_by_fork()
    torch.set_num_threads(1)
    os.chdir(folder)
    with log.open("ab") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    sys.argv = ["script.py"]
    exec(compile(script, "script.py", "exec"), {"__name__": "__main__"})


class Script(Command):
    """A script that runs in a folder."""

    def __init__(self, script: str, folder: Path) -> None:
        self.log = folder / "log.txt"
        self.process = SERVER.Process(target=_run, args=(script, folder, self.log))
        self.process.start()


def killed_and_resumed(script: str, folder: Path, resume: tuple[str, str]) -> None:
    """Runs a script, kills it after its first checkpoint and runs it again with a change."""
    command = Script(script, folder)
    try:
        command.wait_for(lambda: last_whole_checkpoint(folder / "out"))
        time.sleep(0.05)
    finally:
        command.kill()
    assert not (folder / "out" / "model").exists(), "the script was over before it was killed"
    assert resume[0] in script
    Script(script.replace(*resume), folder).finish()


def weights(folder: Path) -> dict[str, torch.Tensor]:
    """The training state's weights at the end."""
    newest = last_whole_checkpoint(folder / "out")
    assert newest is not None
    return load_file(newest / "model.safetensors")


def assert_equal(weights: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    torch.testing.assert_close(weights, expected, rtol=0, atol=0)
