"""The code blocks of Markdown pages, and small stand-ins for the files and models that the pages name."""

from __future__ import annotations

import gzip
import json
import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from conftest import make_pairs, tiny_encoder
from result_helpers import results
from sentence_transformers import SentenceTransformer

from hf_xlsr import DualMomentumConfig, DualMomentumModel, HictlConfig, HictlForSequenceClassification
from hf_xlsr.data.tokenization import train_tokenizer
from hf_xlsr.evaluation import language_bias
from hf_xlsr.evaluation.results import save_results

FENCE = re.compile(r"^```([^\n]*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
# A recipe of a reader's own.
RECIPE = """
method: lightweight
languages: [en, es]
data: {train: {path: pairs.tsv}, max_length: 32}
tokenizer: {vocab_size: 60, algorithm: bpe}
model: {encoder: {num_hidden_layers: 1, num_attention_heads: 2, max_position_embeddings: 40}}
"""
# Languages that the pages ask for; all but English are written in the words of one.
OTHERS = ("fr", "de", "es", "zh", "sw")


@dataclass
class Block:
    """A fenced block: its page, the line of its fence, its tag, its text, and the plain text right behind it."""

    page: str
    line: int
    tag: str
    text: str
    shown: str | None = None


def blocks_of(page: Path) -> list[Block]:
    """The fenced blocks of a page, in order."""
    text, blocks, end = page.read_text("utf-8"), [], 0
    for match in FENCE.finditer(text):
        block = Block(page.name, text.count("\n", 0, match.start()) + 1, match[1].strip(), match[2])
        if blocks and block.tag == "text" and not text[end : match.start()].strip():
            blocks[-1].shown = block.text
        blocks.append(block)
        end = match.end()
    return blocks


def commands_of(text: str) -> list[list[str]]:
    """The words of each command of a shell block; lines that end in a backslash go on."""
    lines = (shlex.split(line, comments=True) for line in text.replace("\\\n", " ").splitlines())
    return [words for words in lines if words]


def write_stand_ins(folder: Path, export: str, tokenizer: Any) -> None:
    """Makes the files and models of the pages, tiny, under the names that the pages use."""
    rows = make_pairs(48, seed=5)
    wide = [{"en": row["source"], **dict.fromkeys(OTHERS, row["target"])} for row in rows]
    for write in (_texts, _tables, _bucc, _logs):
        write(folder, wide)
    _models(folder, export, tokenizer)
    texts = {language: [row[language] for row in wide] for language in ("en", "de")}
    metrics = language_bias(SentenceTransformer(export), texts, name="ntrex")
    save_results(folder / "bias.json", metrics, settings={})


def _texts(folder: Path, wide: list[dict[str, str]]) -> None:
    for language in ("en", *OTHERS):
        lines = "".join(f"{row[language]}\n" for row in wide)
        for name in (f"{language}.txt", f"wiki.{language}.txt"):
            (folder / name).write_text(lines, "utf-8")
        for name in (f"mine.{language}.gz", f"{language}.txt.gz"):
            (folder / name).write_bytes(gzip.compress(lines.encode()))
        np.save(folder / f"{language}.npy", np.random.default_rng(1).normal(size=(len(wide), 16)).astype("float32"))
    (folder / "a.txt").write_text((folder / "en.txt").read_text("utf-8"), "utf-8")
    (folder / "b.txt").write_text((folder / "de.txt").read_text("utf-8"), "utf-8")
    tsv(folder / "test.tsv", [{**row, "source": row["en"], "target": row["es"]} for row in wide])
    (folder / "mine.yaml").write_text(RECIPE, "utf-8")
    tsv(folder / "queries.tsv", wide[:20])
    tsv(folder / "questions.tsv", [{"query_id": n, "text": row["en"]} for n, row in enumerate(wide)])
    tsv(folder / "documents.tsv", [{"document_id": n, "text": row["de"]} for n, row in enumerate(wide)])
    tsv(folder / "qrels.tsv", [{"query_id": n, "document_id": n} for n in range(len(wide))])
    tsv(folder / "more.tsv", wide[20:])
    pairs = [{side: row[side] for side in ("source", "target")} for row in make_pairs(160, seed=6)]
    tsv(folder / "pairs.tsv", pairs)
    known = make_pairs(400, seed=6)
    tsv(folder / "known.tsv", [{"source": row["source"], "target": row["target"]} for row in known])
    parquet(folder / "pairs.parquet", pairs)


def _tables(folder: Path, wide: list[dict[str, str]]) -> None:
    splits = [("train", "train", "dev", "test")[n // 2 % 4] for n in range(len(wide))]
    parquet(folder / "wide.parquet", wide)
    parquet(folder / "ntrex128.parquet", wide)
    several = [{"src_lang": lang, "text": row["fr"], "english": row["en"]} for lang in ("fra", "deu") for row in wide]
    parquet(folder / "tatoeba_v1_xnli15.parquet", several)
    for name in ("sts12", "stsb", "sick"):
        graded = [{"sentence1": row["en"], "sentence2": row["en"], "score": n % 6} for n, row in enumerate(wide)]
        parquet(folder / f"{name}.parquet", [{**row, "subset": "ab"[n % 2]} for n, row in enumerate(graded)])
    for name in ("MR", "SUBJ"):
        parquet(folder / f"{name}.parquet", [{"text": row["en"], "label": n % 2} for n, row in enumerate(wide)])
    labelled = [{"label": n % 2, "split": splits[n]} for n in range(len(wide))]
    for name, columns in (("SST2", ["text"]), ("MRPC", ["sentence1", "sentence2"])):
        rows = zip(wide, labelled, strict=True)
        parquet(folder / f"{name}.parquet", [{**dict.fromkeys(columns, row["en"]), **more} for row, more in rows])
    topics = [
        {"lang": lang, "split": splits[n], "category": ("sport", "travel")[n % 2], "text": row[lang]}
        for lang in ("en", "de")
        for n, row in enumerate(wide)
    ]
    parquet(folder / "sib200.parquet", topics)
    for name, part in (("xnli_wide.dev", wide[:16]), ("mnli15k_wide.train", wide[16:])):
        premises = [{f"premise_{lang}": row[lang] for lang in ("en", "sw", "zh")} for row in part]
        for n, row in enumerate(premises):
            row.update({f"hypothesis_{lang}": part[-1 - n][lang] for lang in ("en", "sw", "zh")})
            row["label"] = n % 3
        parquet(folder / f"{name}.parquet", premises)


def _bucc(folder: Path, wide: list[dict[str, str]]) -> None:
    for names, rows in ((("test", "de-en.test"), wide[:24]), (("train", "de-en.training"), wide[24:])):
        for name in names:
            for lang in ("de", "en"):
                lines = (f"{lang}-{n}\t{row[lang]}\n" for n, row in enumerate(rows))
                (folder / f"{name}.{lang}").write_text("".join(lines), "utf-8")
            gold = (f"de-{n}\ten-{n}\n" for n in range(0, len(rows), 2))
            (folder / f"{name}.gold").write_text("".join(gold), "utf-8")


def _logs(folder: Path, wide: list[dict[str, str]]) -> None:
    for name, value in (("run-a", 0.5), ("run-b", 0.7)):
        log = folder / "outputs" / name / "training" / "log.json"
        log.parent.mkdir(parents=True)
        log.write_text(json.dumps([{"loss": value / step, "step": step} for step in (1, 2, 3)]), "utf-8")
    for name, value in (("ours", 0.75), ("e5", 0.5)):
        metrics = {f"tico19-xsr/{pair}/test/precision@1": value for pair in ("en-fr", "en-de")}
        save_results(folder / f"{name}.json", results(metrics), settings={})


def _models(folder: Path, export: str, tokenizer: Any) -> None:
    ids = ("intfloat/multilingual-e5-small", "google-bert/bert-base-uncased", "hfl/chinese-roberta-wwm-ext")
    for name in ("MODEL", *ids):
        place = folder / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.symlink_to(export, target_is_directory=True)
    torch.manual_seed(0)
    encoders = {lang: tiny_encoder(len(tokenizer)) for lang in ("en", "zh")}
    dual = DualMomentumModel(DualMomentumConfig(languages=["en", "zh"], encoder_configs=encoders, queue_size=8))
    dual.to_sentence_transformer(dict.fromkeys(encoders, tokenizer)).save(
        str(folder / "outputs/moco_bert_en_zh/model")
    )
    framed = train_tokenizer(["he is at home", "one two three"] * 9, vocab_size=30, algorithm="bpe", frame=True)
    judge = HictlForSequenceClassification(HictlConfig(text_config=tiny_encoder(len(framed)), num_labels=2))
    for part in (judge, framed):
        part.save_pretrained(folder / "outputs/hictl_glue_mrpc/model")


def tsv(path: Path, rows: list[dict[str, Any]]) -> None:
    lines = ["\t".join(rows[0]), *("\t".join(map(str, row.values())) for row in rows)]
    path.write_text("\n".join(lines) + "\n", "utf-8")


def parquet(path: Path, rows: list[dict[str, Any]]) -> None:
    pq.write_table(pa.Table.from_pylist(rows), path)
