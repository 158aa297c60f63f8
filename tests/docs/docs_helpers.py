"""Small stand-ins for the files and models that Markdown pages name."""

from __future__ import annotations

import gzip
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from conftest import make_pairs, tiny_encoder
from result_helpers import results
from sentence_transformers import SentenceTransformer

from hf_xlsr import DualMomentumConfig, DualMomentumModel, HictlConfig, HictlForSequenceClassification
from hf_xlsr.data.tokenization import train_tokenizer
from hf_xlsr.evaluation import language_bias
from hf_xlsr.evaluation.results import save_results
from hf_xlsr.evaluation.rows import both_sides

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


def write_stand_ins(folder: Path, export: str, tokenizer: Any) -> None:
    """Makes the files and models of the pages, tiny, under the names that the pages use."""
    english, french = both_sides(make_pairs(48, seed=5))
    texts = {"en": english, **dict.fromkeys(OTHERS, french)}
    _write_texts(folder, texts)
    _write_pairs(folder, texts)
    _write_evaluation_tables(folder, texts)
    _write_bucc(folder, texts)
    _write_logs(folder)
    _write_models(folder, export, tokenizer)

    two_languages = {"en": texts["en"], "de": texts["de"]}
    metrics = language_bias(SentenceTransformer(export), two_languages, name="ntrex")
    save_results(folder / "bias.json", metrics, settings={})


def _write_texts(folder: Path, texts: dict[str, list[str]]) -> None:
    vectors = np.random.default_rng(1).normal(size=(48, 16)).astype(np.float32)
    for language, sentences in texts.items():
        content = "\n".join(sentences) + "\n"
        compressed = gzip.compress(content.encode())
        (folder / f"{language}.txt").write_text(content, "utf-8")
        (folder / f"wiki.{language}.txt").write_text(content, "utf-8")
        (folder / f"{language}.txt.gz").write_bytes(compressed)
        (folder / f"mine.{language}.gz").write_bytes(compressed)
        np.save(folder / f"{language}.npy", vectors)
    shutil.copy(folder / "en.txt", folder / "a.txt")
    shutil.copy(folder / "de.txt", folder / "b.txt")
    (folder / "mine.yaml").write_text(RECIPE, "utf-8")


def _write_pairs(folder: Path, texts: dict[str, list[str]]) -> None:
    wide = table(**texts)
    parquet(folder / "wide.parquet", wide)
    parquet(folder / "ntrex128.parquet", wide)
    tsv(folder / "queries.tsv", wide[:20])
    tsv(folder / "more.tsv", wide[20:])
    tsv(folder / "test.tsv", table(**texts, source=texts["en"], target=texts["es"]))

    sources, targets = both_sides(make_pairs(400, seed=6))
    pairs = table(source=sources, target=targets)
    tsv(folder / "known.tsv", pairs)
    tsv(folder / "pairs.tsv", pairs[:160])
    parquet(folder / "pairs.parquet", pairs[:160])

    numbers = range(48)
    tsv(folder / "questions.tsv", table(query_id=numbers, text=texts["en"]))
    tsv(folder / "documents.tsv", table(document_id=numbers, text=texts["de"]))
    tsv(folder / "qrels.tsv", table(query_id=numbers, document_id=numbers))


def _write_evaluation_tables(folder: Path, texts: dict[str, list[str]]) -> None:
    english = texts["en"]
    labels = [0, 1] * 24
    splits = ["train", "train", "train", "train", "dev", "dev", "test", "test"] * 6

    tags = ["fra"] * 48 + ["deu"] * 48
    several = table(src_lang=tags, text=texts["fr"] * 2, english=english * 2)
    parquet(folder / "tatoeba_v1_xnli15.parquet", several)

    graded = table(sentence1=english, sentence2=english, score=[0, 1, 2, 3, 4, 5] * 8, subset=["a", "b"] * 24)
    for name in ("sts12", "stsb", "sick"):
        parquet(folder / f"{name}.parquet", graded)

    single = table(text=english, label=labels)
    parquet(folder / "MR.parquet", single)
    parquet(folder / "SUBJ.parquet", single)
    parquet(folder / "SST2.parquet", table(text=english, label=labels, split=splits))
    parquet(folder / "MRPC.parquet", table(sentence1=english, sentence2=english, label=labels, split=splits))

    topics = table(
        lang=["en"] * 48 + ["de"] * 48,
        split=splits * 2,
        category=["sport", "travel"] * 48,
        text=english + texts["de"],
    )
    parquet(folder / "sib200.parquet", topics)

    inference: dict[str, Any] = {"label": [0, 1, 2] * 16}
    for language in ("en", "sw", "zh"):
        inference[f"premise_{language}"] = texts[language]
        inference[f"hypothesis_{language}"] = texts[language][::-1]
    rows = table(**inference)
    parquet(folder / "xnli_wide.dev.parquet", rows[:16])
    parquet(folder / "mnli15k_wide.train.parquet", rows[16:])


def _write_bucc(folder: Path, texts: dict[str, list[str]]) -> None:
    rows_of_name = {
        "test": range(24),
        "de-en.test": range(24),
        "train": range(24, 48),
        "de-en.training": range(24, 48),
    }
    for name, rows in rows_of_name.items():
        for language in ("de", "en"):
            lines = [f"{language}-{row}\t{texts[language][row]}\n" for row in rows]
            (folder / f"{name}.{language}").write_text("".join(lines), "utf-8")
        gold = [f"de-{row}\ten-{row}\n" for row in rows[::2]]
        (folder / f"{name}.gold").write_text("".join(gold), "utf-8")


def _write_logs(folder: Path) -> None:
    for name, value in (("run-a", 0.5), ("run-b", 0.7)):
        log = folder / "outputs" / name / "training" / "log.json"
        log.parent.mkdir(parents=True)
        entries = [{"loss": value / step, "step": step} for step in (1, 2, 3)]
        log.write_text(json.dumps(entries), "utf-8")

    for name, value in (("ours", 0.75), ("e5", 0.5)):
        metrics = {
            "tico19-xsr/en-fr/test/precision@1": value,
            "tico19-xsr/en-de/test/precision@1": value,
        }
        save_results(folder / f"{name}.json", results(metrics), settings={})


def _write_models(folder: Path, export: str, tokenizer: Any) -> None:
    hub_ids = ("intfloat/multilingual-e5-small", "google-bert/bert-base-uncased", "hfl/chinese-roberta-wwm-ext")
    for name in ("MODEL", *hub_ids):
        shutil.copytree(export, folder / name)

    torch.manual_seed(0)
    encoders = dict.fromkeys(("en", "zh"), tiny_encoder(len(tokenizer)))
    dual = DualMomentumModel(DualMomentumConfig(languages=["en", "zh"], encoder_configs=encoders, queue_size=8))
    exported = dual.to_sentence_transformer({"en": tokenizer, "zh": tokenizer})
    exported.save(str(folder / "outputs/moco_bert_en_zh/model"))

    framed = train_tokenizer(["he is at home", "one two three"] * 9, vocab_size=30, algorithm="bpe", frame=True)
    judge = HictlForSequenceClassification(HictlConfig(text_config=tiny_encoder(len(framed)), num_labels=2))
    judge.save_pretrained(folder / "outputs/hictl_glue_mrpc/model")
    framed.save_pretrained(folder / "outputs/hictl_glue_mrpc/model")


def table(**columns: Any) -> list[dict[str, Any]]:
    """Rows of columns."""
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def tsv(path: Path, rows: list[dict[str, Any]]) -> None:
    pd.DataFrame(rows).to_csv(path, sep="\t", index=False)


def parquet(path: Path, rows: list[dict[str, Any]]) -> None:
    pd.DataFrame(rows).to_parquet(path)
