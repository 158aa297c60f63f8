"""Damaged files for everything that reads what others wrote: one clear error, or a result, and an end.

`PYTHONPATH=tests python tests/package/fuzz.py READER SECONDS` changes valid files at random for that long.
"""

from __future__ import annotations

import os
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from conftest import make_pairs, texts_of, tiny_encoder
from transformers import AutoConfig

from hf_xlsr.data.formats.quarantine import Quarantine
from hf_xlsr.data.formats.reading import read_rows
from hf_xlsr.data.tokenization import train_tokenizer
from hf_xlsr.encoders.cache import VectorStore
from hf_xlsr.encoders.loading import load_encoder
from hf_xlsr.encoders.stock import encoder_from_config
from hf_xlsr.evaluation.rows import both_sides
from hf_xlsr.export import save_export, to_sentence_transformer
from hf_xlsr.mining import MiningOptions, mine_bitext
from hf_xlsr.runs.recipe import load_runs
from hf_xlsr.utils.errors import XlsrError
from hf_xlsr.utils.markdown import front_matter

SOURCES, TARGETS = both_sides(make_pairs(12))
PAIRS = list(zip(SOURCES, TARGETS, strict=True))
UNITS = [
    f'<tu><tuv xml:lang="en"><seg>{source} &amp;</seg></tuv><tuv xml:lang="fr"><seg>{target}</seg></tuv></tu>\n'
    for source, target in PAIRS
]
TMX = (
    '<?xml version="1.0" encoding="UTF-8"?>\n<tmx version="1.4"><header srclang="en"/><body>\n'
    f"{''.join(UNITS)}</body></tmx>\n"
)
ENTRIES = [f'#: a.c\nmsgid "{source}"\nmsgstr "{target}"\n\n' for source, target in PAIRS]
PO = f'msgid ""\nmsgstr "Content-Type: text/plain; charset=UTF-8\\n"\n\n{"".join(ENTRIES)}'
CARD = "---\nlicense: mit\ntags: [a, b]\nlanguage:\n- en\n- fr\nmodel-index: {results: [1, 2.5, null]}\n---\n# Card\n"
# What damage is made of, besides random bytes.
WORDS = [
    *rb'" < { } [ , : - -1 1e999 NaN null &lol; ]]> <!DOCTYPE !!python/object:os.system ../ ${HOME}'.split(),
    *(b"\x00", b"\xff\xfe", b"\xef\xbb\xbf", b"\r", b"\n\n", b"\t", b"&a *a", b": ", b"- ", b"9" * 40),
    b"\xe2\x80\xa8",
]


def damaged(content: bytes, draw: random.Random) -> bytes:
    """A copy with one to eight changes."""
    data = bytearray(content)
    for _ in range(draw.randint(1, 8)):
        start = draw.randrange(len(data) + 1)
        end = min(len(data), start + draw.choice((1, 1, 2, 8, 64, 400)))
        kind = draw.randrange(6)
        if kind == 0 and data:
            data[min(start, len(data) - 1)] = draw.randrange(256)
        elif kind == 1:
            del data[start:end]
        elif kind == 2:
            data[start:start] = data[start:end] * draw.choice((1, 2, 30))
        elif kind == 3:
            data[start:start] = draw.choice(WORDS)
        elif kind == 4:
            data[start:start] = draw.randbytes(draw.randint(1, 16))
        else:
            del data[start:]
    return bytes(data)


Target = tuple[Path, Callable[[], Any]]
"""A valid file, and what reads it."""


def reading(name: str, content: bytes) -> Callable[[Path], Target]:
    def set_up(folder: Path) -> Target:
        path = folder / name
        path.write_bytes(content)
        return path, lambda: list(read_rows(path, languages=["en", "fr"], quarantine=Quarantine()))

    return set_up


def table(kind: str) -> bytes:
    frame = pd.DataFrame({"source": SOURCES, "target": TARGETS})
    if kind == "parquet":
        return frame.to_parquet(index=False)
    if kind == "jsonl":
        return frame.to_json(orient="records", lines=True, force_ascii=False).encode()
    return frame.to_csv(sep="," if kind == "csv" else "\t", index=False).encode()


def recipes(folder: Path) -> Target:
    path = folder / "recipe.yaml"
    path.write_bytes((resources.files("hf_xlsr.recipes") / "lightweight_en_fr_small.yaml").read_bytes())
    return path, lambda: load_runs(str(path))


def cards(folder: Path) -> Target:
    path = folder / "README.md"
    path.write_text(CARD, "utf-8")
    return path, lambda: front_matter(path.read_text("utf-8", errors="replace"))


def weights(folder: Path) -> Target:
    tokenizer = train_tokenizer(texts_of(make_pairs(100)), vocab_size=60, algorithm="bpe", max_length=16)
    torch.manual_seed(0)
    encoder = encoder_from_config(AutoConfig.for_model(**tiny_encoder(len(tokenizer))))
    model = folder / "model"
    save_export(to_sentence_transformer(encoder, tokenizer, max_length=16), model)
    return model / "model.safetensors", lambda: load_encoder(str(model), "cpu").encode(["one"])


class Letters:
    def encode(self, texts: list[str], **_: Any) -> np.ndarray:
        rows = [[text.count(letter) for letter in "aeiourstn"] for text in texts]
        return np.array(rows) + 0.1


def work_folder(file: str) -> Callable[[Path], Target]:
    def set_up(folder: Path) -> Target:
        whole = folder / "whole"
        damaged_folder = folder / "work"

        def mine(work: Path) -> list[Any]:
            options = MiningOptions(device="cpu")
            return mine_bitext(SOURCES, TARGETS, options, encoder=Letters(), folder=work).score.tolist()

        expected = mine(whole)
        shutil.copytree(whole, damaged_folder)

        def run() -> None:
            try:
                assert mine(damaged_folder) == expected
            finally:  # the other files as they were
                shutil.rmtree(damaged_folder)
                shutil.copytree(whole, damaged_folder)

        return damaged_folder / file, run

    return set_up


def vectors(folder: Path) -> Target:
    VectorStore(folder, {"model": "a"}).add(["one", "two"], np.eye(2, dtype=np.float32))
    (path,) = folder.rglob("*.keys.npy")
    return path, lambda: VectorStore(folder, {"model": "a"}).find(["one", "three"])


READERS: dict[str, Callable[[Path], Target]] = {
    "tsv": reading("pairs.tsv", table("tsv")),
    "csv": reading("pairs.csv", table("csv")),
    "jsonl": reading("pairs.jsonl", table("jsonl")),
    "parquet": reading("pairs.parquet", table("parquet")),
    "tmx": reading("pairs.tmx", TMX.encode()),
    "po": reading("fr.po", PO.encode()),
    "recipes": recipes,
    "cards": cards,
    "weights": weights,
    "work_folder": work_folder("job.json"),
    "work_stage": work_folder("pairs/stage.json"),
    "vectors": vectors,
}


def cpu_seconds() -> float:
    """CPU time of this process and of those that it started, such as the readers of Parquet."""
    return sum(os.times()[:4])


def fuzz(reader: str, seconds: float, seed: int = 0) -> tuple[int, int]:
    """Runs a reader on damaged files for some CPU time; returns the number of runs, and of those with an `XlsrError`."""
    draw = random.Random(seed)
    runs = 0
    errors = 0
    with tempfile.TemporaryDirectory() as scratch:
        path, run = READERS[reader](Path(scratch))
        content = path.read_bytes()
        end = cpu_seconds() + seconds
        while cpu_seconds() < end:
            broken = damaged(content, draw)
            path.write_bytes(broken)
            runs += 1
            try:
                run()
            except XlsrError:
                errors += 1
            except BaseException:
                copy = Path(tempfile.gettempdir()) / f"fuzz-{reader}-{seed}-{runs}"
                copy.write_bytes(broken)
                print(f"{reader}: run {runs} failed; the file is {copy}", file=sys.stderr)
                raise
    return runs, errors


if __name__ == "__main__":
    _, name, seconds = sys.argv
    for reader in READERS if name == "all" else [name]:
        print(reader, *fuzz(reader, float(seconds), int(time.time())), flush=True)
