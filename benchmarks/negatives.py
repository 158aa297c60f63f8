"""Hard negatives of `hf-xlsr negatives` against `mine_hard_negatives` of sentence-transformers: time and false negatives.

The pairs are German-English of Tatoeba, chosen so that false negatives are possible: an English sentence shares a French,
Spanish or Italian translation with another one of the pairs. These links are the truth, which no side knows. A negative
is false if it is linked with the source, however far. `sentence-transformers` has its defaults, `range 10` skips the ten
nearest as users do, and `relative margin` demands five percent below the pair's cosine. Each side encodes by itself.
"""

from __future__ import annotations

import os
from collections import defaultdict
from typing import Any

import torch
from datasets import Dataset
from sentence_transformers import SentenceTransformer
from sentence_transformers.util import mine_hard_negatives

from benchmarks.harness import Job, Step
from hf_xlsr.data.sources import Source, open_source
from hf_xlsr.mining import MiningOptions, NegativeOptions
from hf_xlsr.mining.negatives import Knowledge, run_negatives
from hf_xlsr.mining.stages import job_folder

MEMORY = WARM_UP = False
DEFAULTS: Job = {"model": "e5-small", "prompt": "query: ", "size": 2000, "per_pair": 4, "links": ["fr", "es", "it"]}
QUICK: Job = {"size": 200}
SIDES = [
    "hf-xlsr",
    "hf-xlsr, below 0.9",
    "sentence-transformers, range 10",
    "sentence-transformers, relative margin",
    "sentence-transformers",
]
PEER_OPTIONS: dict[str, dict[str, Any]] = {
    "sentence-transformers": {},
    "sentence-transformers, range 10": {"range_min": 10},
    "sentence-transformers, relative margin": {"relative_margin": 0.05},
}


def read(language: str) -> list[tuple[str, str]]:
    """English sentences of Tatoeba with their translations."""
    source = Source.parse(
        {"path": f"${{HF_XLSR_DATA}}/tatoeba_train/en-{language}.parquet", "columns": "source=en,target=xx"}
    )
    rows = open_source(source, languages=("en", language))
    return [(row["source"], row["target"]) for row in rows]


def paraphrased(size: int, languages: list[str]) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """Pairs from German to English whose English has a paraphrase among them, and the links that say so."""
    german = dict(read("de"))  # a translation of each English sentence
    linked: dict[tuple[str, str], list[str]] = defaultdict(list)
    for language in languages:
        for english, other in read(language):
            if english in german:
                linked[language, other].append(english)

    pairs: dict[str, str] = {}
    links = []
    for (language, other), sentences in linked.items():
        distinct = list(dict.fromkeys(sentences))
        if len(distinct) > 1 and len(pairs) < size:
            pairs |= {english: german[english] for english in distinct}
            links += [(f"{language}: {other}", english) for english in distinct]
    return [(target, english) for english, target in pairs.items()], links


class Groups:
    """Which texts are linked, however far: a naive union of sets."""

    def __init__(self, links: list[tuple[str, str]]) -> None:
        self.parents: dict[str, str] = {}
        for first, second in links:
            self.parents[self.root(first)] = self.root(second)

    def root(self, text: str) -> str:
        self.parents.setdefault(text, text)
        while self.parents[text] != text:
            text = self.parents[text]
        return text


def prepare(job: Job, sides: list[str]) -> Step:
    pairs, links = paraphrased(job["size"], job["links"])
    sources, targets = map(list, zip(*pairs, strict=True))
    groups = Groups([*pairs, *links])
    path = os.path.join(os.path.expandvars("$HF_XLSR_ENCODERS"), job["model"])

    def ours(below: float) -> list[tuple[str, str]]:
        mining = MiningOptions(languages=("de", "en"), prompt=job["prompt"], dtype="float32")
        options = NegativeOptions(per_pair=job["per_pair"], below=below)
        with job_folder(None) as folder:
            run = run_negatives(sources, targets, folder, mining, options, encoder=path, knowledge=Knowledge())
            return [(row["source"], row["target"]) for row in run.mined()]

    def theirs(options: dict[str, Any]) -> list[tuple[str, str]]:
        model = SentenceTransformer(path, device="cuda" if torch.cuda.is_available() else "cpu")
        rows = mine_hard_negatives(
            Dataset.from_dict({"anchor": sources, "positive": targets}),
            model,
            num_negatives=job["per_pair"],
            query_prompt=job["prompt"],
            corpus_prompt=job["prompt"],
            output_format="triplet",
            verbose=False,
            **options,
        )
        return list(zip(rows["anchor"][:], rows["negative"][:], strict=True))

    def step(side: str, warm_up: bool) -> dict[str, Any]:
        if side.startswith("hf-xlsr"):
            negatives = ours(0.9 if side.endswith("0.9") else 0.95)
        else:
            negatives = theirs(PEER_OPTIONS[side])
        false = sum(groups.root(source) == groups.root(negative) for source, negative in negatives)
        return {
            "pairs": len(pairs),
            "negatives": len(negatives),
            "false": false,
            "false %": 100 * false / max(1, len(negatives)),
        }

    return step
