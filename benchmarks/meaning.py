"""Do edits teach meaning, or only their own kinds? Heads on frozen vectors, trained with negatives of some kinds.

The encoder is `e5-small` of HF_XLSR_ENCODERS, which encodes each text once; a head of two layers behind it is all that is
trained, so that a row takes seconds. Pairs are German-English, of the recipe `negatives_student`. Each pair has two
negatives: edits of its English side, as far as they can be made, else mined ones. Then each head is measured on German to
English of NTREX, among the distractors of one kind at a time, from words, numbers and names that training never has; on
Tatoeba and on English STS-B.

usage: HF_XLSR_DATA=... HF_XLSR_ENCODERS=... python -m benchmarks meaning [--pairs 4000] [--steps 400] [--seeds 3]
           [--folder outputs/meaning]
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from torch import nn

from benchmarks.harness import Job, Step
from benchmarks.papers.controls import pairs_of
from hf_xlsr.data.sources import Source, open_source
from hf_xlsr.encoders.cache import CachedEncoder, VectorStore
from hf_xlsr.encoders.loading import encoder_facts, load_encoder
from hf_xlsr.evaluation import sts, tatoeba, xsim_pp
from hf_xlsr.losses import alignment_loss
from hf_xlsr.mining import MiningOptions, NegativeOptions, hard_negatives
from hf_xlsr.runs.recipe import load_runs
from hf_xlsr.utils.markdown import markdown_table

RECIPE = "benchmarks/papers/recipes/negatives_student.yaml"
PROMPT = "query: "
LANGUAGES = ("de", "en")
KINDS = ("number", "name", "negation", "order")
PER_PAIR = 2
MOST_PAIRS = 10_000
BATCH = 64
TEMPERATURE = 0.02
LEARNING_RATE = 1e-3
# Of each row: the kinds of edits, None for no hard negatives at all, and whether the softmax is split.
ROWS: dict[str, tuple[tuple[str, ...] | None, bool]] = {
    "no hard negatives": (None, False),
    "mined": ((), False),
    "mined, split": ((), True),
    "all kinds": (KINDS, False),
    "all kinds, split": (KINDS, True),
    "number and name, split": (("number", "name"), True),
    "negation and order, split": (("negation", "order"), True),
}
START = "e5-small"


class Head(nn.Module):
    """The vectors plus two layers of them, whose output is 0 before training."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.inner = nn.Linear(width, 2 * width)
        self.outer = nn.Linear(2 * width, width)
        nn.init.zeros_(self.outer.weight)
        nn.init.zeros_(self.outer.bias)

    def forward(self, vectors: torch.Tensor) -> torch.Tensor:
        return vectors + self.outer(nn.functional.gelu(self.inner(vectors)))


class HeadEncoder:
    """The vectors of an encoder behind a head."""

    def __init__(self, encoder: Any, head: nn.Module | None) -> None:
        self.encoder = encoder
        self.head = head

    def encode(self, texts: list[str], **_: Any) -> np.ndarray:
        vectors = vectors_of(self.encoder, texts)
        if self.head is None:
            return vectors.numpy()
        with torch.no_grad():
            return self.head(vectors).numpy()


class Vectors:
    """Vectors of texts, each encoded once in a process."""

    def __init__(self, encoder: Any) -> None:
        self.encoder = encoder
        self.known: dict[str, np.ndarray] = {}

    def encode(self, texts: list[str], **options: Any) -> np.ndarray:
        new_texts = [text for text in dict.fromkeys(texts) if text not in self.known]
        if new_texts:
            vectors = self.encoder.encode([PROMPT + text for text in new_texts], convert_to_numpy=True, batch_size=64)
            self.known.update(zip(new_texts, np.asarray(vectors, np.float32), strict=True))
        return np.stack([self.known[text] for text in texts])


def vectors_of(encoder: Any, texts: Sequence[str]) -> torch.Tensor:
    return torch.from_numpy(encoder.encode(list(texts)))


def negative_columns(
    encoder: Any, sources: list[str], targets: list[str], kinds: Sequence[str], folder: Path
) -> list[list[str]]:
    """The columns of negatives of the pairs."""
    name = "-".join(kinds) or "mined"
    options = NegativeOptions(per_pair=PER_PAIR, synthetic=kinds, edited=PER_PAIR if kinds else None)
    mining = MiningOptions(languages=LANGUAGES)
    rows = hard_negatives(sources, targets, options, encoder=encoder, mining=mining, folder=folder / name)
    return [rows[f"negative_{number}"][:] for number in range(1, PER_PAIR + 1)]


def trained(
    source: torch.Tensor, target: torch.Tensor, negatives: Sequence[torch.Tensor], split: bool, steps: int, seed: int
) -> Head:
    """A head trained on the vectors of pairs and negatives."""
    torch.manual_seed(seed)
    head = Head(source.shape[1])
    optimizer = torch.optim.AdamW(head.parameters(), lr=LEARNING_RATE, weight_decay=0.01)
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = LEARNING_RATE * (1 - step / steps)
        rows = torch.randint(len(source), (BATCH,))
        hard = head(torch.cat([column[rows] for column in negatives])) if negatives else None
        options: dict[str, Any] = {"temperature": TEMPERATURE, "normalize": True, "split_softmax": split}
        loss = alignment_loss(head(source[rows]), head(target[rows]), hard, **options)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return head.eval()


def read(path: str, **options: Any) -> list[dict[str, Any]]:
    """Rows of a file of HF_XLSR_DATA."""
    source = Source.parse({"path": f"${{HF_XLSR_DATA}}/{path}.parquet", **options})
    names = [part.split("=")[0] for part in options["columns"].split(",")]
    return list(open_source(source, languages=("en", "de"), required=names, optional=()))


def measure(encoder: HeadEncoder, ntrex_rows: int) -> dict[str, float]:
    """Errors by kind of edit, and in percent like them retrieval and English similarity."""
    news = read("news/ntrex128_xnli.test", columns="source=de,target=en")[:ntrex_rows]
    sides = [[row[side] for row in news] for side in ("source", "target")]
    figures: dict[str, float] = {}
    for kind in KINDS:
        metrics = xsim_pp(encoder, *sides, languages=LANGUAGES, name="ntrex", kinds=kind)
        (figures[kind],) = [value for key, value in metrics.items() if key.endswith("/error")]

    short = read("tatoeba/tatoeba_v1_xnli15", columns="source=english,target=text", where={"src_lang": "deu"})
    sides = [[row[side] for row in short] for side in ("source", "target")]
    figures["Tatoeba"] = tatoeba(encoder, *sides, languages=("en", "de"))["tatoeba/en-de/test/accuracy"]

    columns = "sentence1=sentence1,sentence2=sentence2,score=score"
    rows = read("sts/stsb", columns=columns, where={"split": "test"})
    figures["STS-B"] = sts(encoder, {"STSBenchmark": rows})["STSBenchmark-sts/en/test/spearman_all"]
    return {name: 100 * value for name, value in figures.items()}


SIDES = (START, *ROWS)
DEFAULTS: Job = {"pairs": 4000, "ntrex_rows": 300, "steps": 400, "seeds": 3, "folder": "outputs/meaning"}
QUICK: Job = {"pairs": 200, "ntrex_rows": 20, "steps": 10, "seeds": 1}
MEMORY = WARM_UP = False
ROUNDS = 1


def prepare(job: Job, sides: list[str]) -> Step:
    folder = Path(job["folder"])
    path = str(Path(os.environ["HF_XLSR_ENCODERS"]) / "e5-small")
    loaded = load_encoder(path)
    store = VectorStore(str(folder / "vectors"), encoder_facts(loaded, path))
    encoder = Vectors(CachedEncoder(loaded, store))

    file = folder / "pairs.parquet"
    if not file.is_file():
        (method,) = load_runs(RECIPE)
        pairs_of(method, MOST_PAIRS, seed=1).to_parquet(file)
    pairs = Dataset.from_parquet(str(file)).select(range(job["pairs"]))
    sources = pairs["target"][:]
    targets = pairs["source"][:]
    source = vectors_of(encoder, sources)
    target = vectors_of(encoder, targets)

    def step(side: str, warm_up: bool) -> dict[str, list[float]]:
        if side == START:
            return of_seeds([measure(HeadEncoder(encoder, None), job["ntrex_rows"])])

        kinds, split = ROWS[side]
        negatives = []
        if kinds is not None:
            for column in negative_columns(encoder, sources, targets, kinds, folder):
                negatives.append(vectors_of(encoder, column))
        figures = []
        for seed in range(1, job["seeds"] + 1):
            head = trained(source, target, negatives, split, job["steps"], seed)
            figures.append(measure(HeadEncoder(encoder, head), job["ntrex_rows"]))
        return of_seeds(figures)

    return step


def of_seeds(figures: Sequence[dict[str, float]]) -> dict[str, list[float]]:
    """The values of all seeds by name."""
    return {name: [values[name] for values in figures] for name in figures[0]}


def page(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Means over seeds, with their range."""
    names = [name for name, values in rows[0].items() if isinstance(values, list) and name != "range"]
    lines = []
    for row in rows:
        cells = [row["side"]]
        for name in names:
            values = row[name]
            spread = f" ({min(values):.1f}-{max(values):.1f})" if len(values) > 1 else ""
            cells.append(f"{fmean(values):.1f}{spread}")
        lines.append(cells)
    return markdown_table(["", *names], lines)
