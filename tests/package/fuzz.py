"""Damaged files for everything that reads what others wrote: one clear error, or a result, and an end.

`PYTHONPATH=tests python tests/package/fuzz.py TARGET SECONDS` changes valid files at random for that long.
"""

from __future__ import annotations

import json
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
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from conftest import make_pairs, tiny_encoder
from transformers import AutoConfig

from hf_xlsr.data.formats.quarantine import Quarantine
from hf_xlsr.data.formats.reading import read_rows
from hf_xlsr.data.tokenization import train_tokenizer
from hf_xlsr.encoders.cache import VectorStore
from hf_xlsr.encoders.loading import load_encoder
from hf_xlsr.encoders.stock import encoder_from_config
from hf_xlsr.export import save_export, to_sentence_transformer
from hf_xlsr.mining import MiningOptions, mine_bitext
from hf_xlsr.runs.recipe import load_runs
from hf_xlsr.utils.errors import XlsrError
from hf_xlsr.utils.markdown import front_matter

ROWS = make_pairs(12)
TMX = (
    '<?xml version="1.0" encoding="UTF-8"?>\n<tmx version="1.4"><header srclang="en"/><body>\n'
    + "".join(
        f'<tu><tuv xml:lang="en"><seg>{row["source"]} &amp;</seg></tuv>'
        f'<tuv xml:lang="fr"><seg>{row["target"]}</seg></tuv></tu>\n'
        for row in ROWS
    )
    + "</body></tmx>\n"
)
PO = 'msgid ""\nmsgstr "Content-Type: text/plain; charset=UTF-8\\n"\n\n' + "".join(
    f'#: a.c:{n}\nmsgid "{row["source"]}"\nmsgstr "{row["target"]}"\n\n' for n, row in enumerate(ROWS)
)
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


def reading(name: str, content: bytes) -> Callable[[Path], tuple[Path, Callable[[], Any]]]:
    def set_up(folder: Path) -> tuple[Path, Callable[[], Any]]:
        path = folder / name
        path.write_bytes(content)
        return path, lambda: list(read_rows(path, languages=["en", "fr"], quarantine=Quarantine()))

    return set_up


def table(kind: str) -> bytes:
    rows = [{side: row[side] for side in ("source", "target")} for row in ROWS]
    if kind == "parquet":
        sink = pa.BufferOutputStream()
        pq.write_table(pa.Table.from_pylist(rows), sink)
        return sink.getvalue().to_pybytes()
    if kind == "jsonl":
        return "".join(f"{json.dumps(row)}\n" for row in rows).encode()
    mark = "," if kind == "csv" else "\t"
    return "".join(f"{mark.join(row)}\n" for row in [("source", "target"), *(row.values() for row in rows)]).encode()


def recipes(folder: Path) -> tuple[Path, Callable[[], Any]]:
    path = folder / "recipe.yaml"
    path.write_bytes((resources.files("hf_xlsr.recipes") / "lightweight_en_fr_small.yaml").read_bytes())
    return path, lambda: load_runs(str(path))


def cards(folder: Path) -> tuple[Path, Callable[[], Any]]:
    path = folder / "README.md"
    path.write_text(CARD, "utf-8")
    return path, lambda: front_matter(path.read_text("utf-8", errors="replace"))


def weights(folder: Path) -> tuple[Path, Callable[[], Any]]:
    texts = [row[side] for row in make_pairs(100) for side in ("source", "target")]
    tokenizer = train_tokenizer(texts, vocab_size=60, algorithm="bpe", max_length=16)
    torch.manual_seed(0)
    encoder = encoder_from_config(AutoConfig.for_model(**tiny_encoder(len(tokenizer))))
    save_export(to_sentence_transformer(encoder, tokenizer, max_length=16), folder / "model")
    return folder / "model" / "model.safetensors", lambda: load_encoder(str(folder / "model"), "cpu").encode(["one"])


class Letters:
    def encode(self, texts: list[str], **_: Any) -> np.ndarray:
        return np.array([[text.count(letter) + 0.1 for letter in "aeiourstn"] for text in texts])


def work_folder(file: str) -> Callable[[Path], tuple[Path, Callable[[], Any]]]:
    def set_up(folder: Path) -> tuple[Path, Callable[[], Any]]:
        sides = [[row[side] for row in ROWS] for side in ("source", "target")]
        options = MiningOptions(device="cpu")
        whole, place = folder / "whole", folder / "work"

        def mine(work: Path) -> list[Any]:
            return mine_bitext(*sides, options, encoder=Letters(), folder=work).score.tolist()

        expected = mine(whole)
        shutil.copytree(whole, place)

        def run() -> None:
            try:
                assert mine(place) == expected
            finally:  # the other files as they were
                shutil.rmtree(place)
                shutil.copytree(whole, place)

        return place / file, run

    return set_up


def vectors(folder: Path) -> tuple[Path, Callable[[], Any]]:
    VectorStore(folder, {"model": "a"}).add(["one", "two"], np.eye(2, dtype=np.float32))
    (path,) = (file for file in folder.rglob("*.keys.npy"))
    return path, lambda: VectorStore(folder, {"model": "a"}).find(["one", "three"])


TARGETS: dict[str, Callable[[Path], tuple[Path, Callable[[], Any]]]] = {
    **{kind: reading(f"pairs.{kind}", table(kind)) for kind in ("tsv", "csv", "jsonl", "parquet")},
    "tmx": reading("pairs.tmx", TMX.encode()),
    "po": reading("fr.po", PO.encode()),
    "recipes": recipes,
    "cards": cards,
    "weights": weights,
    "work_folder": work_folder("job.json"),
    "work_stage": work_folder("pairs/stage.json"),
    "vectors": vectors,
}


def fuzz(target: str, seconds: float, seed: int = 0) -> tuple[int, int]:
    """Runs a target on damaged files for some CPU time; returns the number of runs, and of those with an `XlsrError`."""
    draw, runs, errors = random.Random(seed), 0, 0
    with tempfile.TemporaryDirectory() as scratch:
        path, run = TARGETS[target](Path(scratch))
        content, start = path.read_bytes(), time.process_time()
        while time.process_time() - start < seconds:
            broken = damaged(content, draw)
            path.write_bytes(broken)
            runs += 1
            try:
                run()
            except XlsrError:
                errors += 1
            except BaseException:
                kept = Path(tempfile.gettempdir()) / f"fuzz-{target}-{seed}-{runs}"
                kept.write_bytes(broken)
                print(f"{target}: run {runs} failed; the file is {kept}", file=sys.stderr)
                raise
    return runs, errors


if __name__ == "__main__":
    for name in TARGETS if sys.argv[1] == "all" else [sys.argv[1]]:
        print(name, *fuzz(name, float(sys.argv[2]), int(time.time())), flush=True)
