"""Two texts become a published corpus, and an encoder that is trained on it, by the commands of docs/mined-corpus.md."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
from conftest import ENGLISH, FRENCH, make_pairs
from hub_helpers import Hub
from page_blocks import blocks_of, commands_of
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import StaticEmbedding
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit

from hf_xlsr.cli import main
from hf_xlsr.data.formats.reading import read_rows

PAGE = Path(__file__).resolve().parents[2] / "docs" / "mined-corpus.md"
REPO = "datasets/me/en-fr-mined"
ALONE = 150  # sentences of each text without a translation
SMALL = "--max_steps 4 --queue_size 32 --max_length 32 --per_device_train_batch_size 8 --precision float32".split()


def write_lines(name: str, lines: list[str]) -> None:
    Path(name).write_text("".join(f"{line}\n" for line in lines), "utf-8")


def word_encoder() -> SentenceTransformer:
    """The mean of word vectors, which translations nearly share."""
    rng = np.random.default_rng(1)
    meanings = rng.normal(size=(len(ENGLISH), 24))
    vectors = [rng.normal(size=(1, 24))]
    for _ in range(2):
        vectors.append(meanings + 0.4 * rng.normal(size=meanings.shape))
    vocabulary = {word: number for number, word in enumerate(["[UNK]", *ENGLISH, *FRENCH])}
    tokenizer = Tokenizer(WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    embedding = StaticEmbedding(tokenizer, embedding_weights=np.concatenate(vectors).astype(np.float32))
    return SentenceTransformer(modules=[embedding], device="cpu")


@pytest.fixture
def translations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> set[tuple[str, str]]:
    """The files of the page in the current folder; the translations between the two texts."""
    monkeypatch.chdir(tmp_path)
    target_of = {pair["source"]: pair["target"] for pair in make_pairs(2400) if pair["source"].count(" ") >= 3}
    pairs = list(target_of.items())
    true = pairs[:300]
    known = pairs[300:800]
    rest = pairs[800:]
    write_lines("en.txt", [source for source, _ in true + rest[:ALONE]])
    write_lines("fr.txt", [target for _, target in reversed(true + rest[-ALONE:])])
    write_lines("known.tsv", ["en\tfr", *map("\t".join, known)])
    word_encoder().save_pretrained("MODEL")
    return set(true)


def label(pairs: str, translations: set[tuple[str, str]]) -> None:
    """Labels every fifth pair, as a person does in the report page."""
    lines = ["label\tscore\tsource\ttarget"]
    for row in list(read_rows(pairs))[::5]:
        pair = (row["source"], row["target"])
        verdict = "accept" if pair in translations else "reject"
        lines.append("\t".join([verdict, str(row.get("score", 1)), *pair]))
    write_lines("labels.tsv", lines)


def share_of(translations: set[tuple[str, str]], pairs: str) -> float:
    """Share of pairs that are translations."""
    return float(np.mean([(row["source"], row["target"]) in translations for row in read_rows(pairs)]))


@pytest.mark.slow
def test_two_texts_become_a_dataset_and_an_encoder(
    translations: set[tuple[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    hub = Hub(monkeypatch)
    load: Callable[..., Any] = datasets.load_dataset
    monkeypatch.setattr(datasets, "load_dataset", lambda name, split: load("pulled", split=split, cache_dir="cache"))

    for block in blocks_of(PAGE):
        if block.tag == "python":
            with redirect_stdout(io.StringIO()) as printed:
                exec(block.text, {})
            assert printed.getvalue().split()
            continue

        for _, verb, *words in commands_of(block.text):
            if verb == "push" and "--dry-run" not in words:
                words.append("--yes")  # a person answers the question
            if verb == "train":
                # The Hub of this test answers no ranges of bytes.
                words = [word.replace("me/en-fr-mined", "pulled") for word in words] + SMALL
            assert main([verb, *words]) == 0, block.text

            if words[-1] == "mined.tsv":
                label("mined.tsv", translations)
        if REPO in hub.repos:
            hub.pull(REPO, Path("pulled"))

    mined, labelled, filtered = (share_of(translations, f"{name}.tsv") for name in ("mined", "labelled", "filtered"))
    assert mined < labelled <= filtered
    assert labelled > 0.75

    facts = json.loads(Path("filtered.tsv.facts.json").read_text("utf-8"))
    assert [step["verb"] for step in facts["steps"]] == ["mine", "filter"]
    card = hub.repos[REPO].files["README.md"].decode()
    assert "MODEL" in card
    assert SentenceTransformer("outputs/mined/model", device="cpu").encode(["one"]).shape[0] == 1
