"""Invalid inputs of the package: each raises an error that names what is wrong."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datasets import Dataset
from tokenizer_helpers import word_tokenizer

from hf_xlsr.data.cleaning import LanguageFilter, build_cleaner
from hf_xlsr.data.collators import CmlmCollator, DualCollator, HictlCollator, NliCollator, PairCollator
from hf_xlsr.data.columns import parse_columns, resolve_columns
from hf_xlsr.data.corpora.bible import bible_pairs
from hf_xlsr.data.corpora.loading import load_corpus
from hf_xlsr.data.formats.reading import read_rows
from hf_xlsr.data.labelled import LabelledTask, check_tokenizer, labelled_rows, prepare_nli, read_sets
from hf_xlsr.data.pairs import pair_facts, prepare
from hf_xlsr.data.plain import DataConverter
from hf_xlsr.data.running_text import prepare_running_text, read_running_text
from hf_xlsr.data.sampling import LengthBucketBatchSampler
from hf_xlsr.data.sources import open_source
from hf_xlsr.data.tokenization import train_tokenizer, trim_vocabulary
from hf_xlsr.runs.inputs import held_out_texts
from hf_xlsr.utils.errors import XlsrError

WORDS = ["one", "two"]
TEXTS = ["the cat sat", "le chat dort"] * 40
TRANSLATION = [{"translation": {"en": "one", "de": "two"}}]
CLASSES = LabelledTask(labels=("a", "b"))
PAIRS: dict[str, Any] = {"path": "x.tsv"}
WIDE = {"en": "english", "de": "de", "fr": "fr"}
CROSSED = "premise=p_{lang},hypothesis=h_{lang},label=label"

FILES = {
    "a.jsonl": '{"text": "One. Two.", "n": 1}\n',
    "label.jsonl": '{"label": 1, "name": "x"}\n',
    "pair.jsonl": '{"first": "a", "second": "b"}\n',
    "odd.jsonl": '{"first": "a", "second": "b", "label": 7}\n',
    "bare.jsonl": '{"first": "a", "second": "b", "label": -1}\n',
    "nli.jsonl": '{"premise": "a", "hypothesis": "b", "label": 3}\n',
    "nli-it.jsonl": '{"premise": "a", "hypothesis": "b", "label": 1, "lang": "it"}\n',
    "wide.jsonl": json.dumps({"p_en": "a", "p_de": "b", "h_en": "c", "h_de": "d", "label": 1}) + "\n",
    "two.tsv": "source\ttarget\none\ttwo\n",
    "plain.csv": "one,eins\ntwo,zwei\n",
    "a.tvs": "",
    "lines.txt": "one\ntwo\n",
    "apart.txt": "one\n\ntwo\n",
    "c.en": "a\na\n",
    "c.fr": "b\n",
}


@pytest.fixture(autouse=True)
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, text in FILES.items():
        Path(name).write_text(text, "utf-8")
    pq.write_table(pa.table({"text": ["a"], "lang": ["en"]}), "table.parquet")


def clean(*config: Any) -> Any:
    return build_cleaner(config, languages=["en"])


def source(**options: Any) -> Any:
    return list(open_source(options, languages=["en", "fr"]))


def held_out(**options: Any) -> Any:
    return list(held_out_texts([{"columns": "*", **options}], languages=["en"]))


def labelled(path: str, task: LabelledTask = CLASSES) -> Any:
    return list(labelled_rows([path], task, languages=["en"]))


def nli(path: str, tokenizers: Any = None, **options: Any) -> Any:
    tokenizers = tokenizers or word_tokenizer(WORDS)
    more: dict[str, Any] = {"folder": "nli", "evaluation_texts": (), "languages": ["en", "de"]}
    return prepare_nli({"path": path, **options}, tokenizers=tokenizers, **more)


def running(path: str = "a.jsonl", **options: Any) -> Any:
    return list(read_running_text({"path": path, **options}, languages=["en"]))


def prepare_text(path: str = "lines.txt", **options: Any) -> Any:
    given = {"languages": ["en"], "evaluation_texts": [], "tokenizers": word_tokenizer(WORDS), **options}
    return prepare_running_text(path, folder="text", **given)


def pairs(**options: Any) -> Any:
    data = {"train": "gone.tsv", "cleaning": [], "fraction": 1.0, "limit": None, "max_length": 16}
    given = {"tokenizer": None, "languages": ["en", "fr"], "evaluation_texts": (), **options}
    return prepare(data=data, folder="out", seed=1, **given)


def sampler(count: int, size: int, **options: Any) -> LengthBucketBatchSampler:
    return LengthBucketBatchSampler([5] * count, size, **options)


def maskless() -> Any:
    tokenizer = copy.deepcopy(train_tokenizer(TEXTS, vocab_size=20, algorithm="bpe"))
    tokenizer.mask_token = None
    return tokenizer


def convert(form: str, data: Any) -> Any:
    return getattr(DataConverter(word_tokenizer(WORDS)), form)(data)


def convert_by_language(rows: Any, key: str = "") -> Any:
    return DataConverter(dict.fromkeys(("en", "fr", "zh"), word_tokenizer(WORDS))).pairs({key: rows})


def dual(*languages: tuple[str, str]) -> Any:
    texts = {"source_ids": [1], "target_ids": [2], "source_text": 1, "target_text": 2, "index": 0}
    rows = [{**texts, "source_lang": one, "target_lang": other} for one, other in languages]
    return DualCollator({"en": 0, "zh": 9})(rows)


def inference(*languages: str) -> Any:
    rows = [{"premise_ids": [1], "hypothesis_ids": [2], "label": 0, "lang": language} for language in languages]
    return NliCollator({"en": 0, "zh": 9})(rows)


REFUSALS: list[tuple[Callable[[], Any], str]] = [
    # Cleaning.
    (lambda: clean("normalise"), "normalize"),
    (lambda: clean({"length": {"max_char": 3}}), "max_char"),
    (lambda: clean("sample"), "fraction"),
    (lambda: clean({"language": {"languages": ["en", "qqq"]}}), "qqq"),
    (lambda: clean({"language": {"languages": ["en", "pl"], "method": "alphabet"}}), "pl"),
    (lambda: LanguageFilter().keeps({"source": "Hi", "target": "Да"}), "source_lang"),
    # Columns.
    *(
        (lambda text=text: parse_columns(text), key)
        for text, key in [
            ("source=a=b", "'a', 'b'"),
            ("source=en,source=fr", "'source' twice"),
            ("sorce=en", "'source'"),
            ({"source": False}, "quotes"),  # what YAML makes of `source: no`
        ]
    ),
    (lambda: resolve_columns({"source": "scource"}, ["source"], ["source"], "f"), "'scource'"),
    # Files.
    (lambda: read_rows("gone.tsv"), "gone.tsv"),  # before iteration
    (lambda: read_rows("a.tvs"), "'.tsv'"),
    (lambda: read_rows("two.tsv", format="json"), "jsonl"),
    (lambda: read_rows("two.tsv", split="train"), "split"),
    (lambda: list(read_rows("plain.csv", columns="source=oen,target=eins")), "'one'"),
    (lambda: list(read_rows("plain.csv", columns="source=0,target=2")), "'2'"),
    (lambda: list(read_rows("c.{en,fr}")), "c.en has 2 and c.fr has 1 lines"),
    (lambda: list(read_rows("c.{en,fr}", columns="source=de,target=en")), "'de'"),
    (lambda: list(read_rows("c.{en,fr}", required=("text",))), "2 file"),
    # Sources.
    (lambda: source(pth="x"), "path"),
    (lambda: source(corpus="bible", hash_split="rest", hash_key="id"), "hash_split"),
    (lambda: source(**PAIRS, source_version="k"), "source_version"),
    (lambda: source(**PAIRS, languages=["en", "fr", "de"]), "languages"),
    (lambda: source(**PAIRS, parallel=WIDE, columns="source=en,target=fr"), "parallel"),
    (lambda: source(**PAIRS, parallel={"en": "english"}), "parallel"),
    (lambda: source(**PAIRS, parallel=WIDE, languages=["en", "it"]), "it"),
    (lambda: source(path="${XLSR_UNSET}/x.tsv"), "XLSR_UNSET"),
    (lambda: held_out(path="table.parquet", where={"lang": "xx"}), "table.parquet"),
    (lambda: load_corpus("europral", languages=["en", "fr"]), "europarl"),
    (lambda: load_corpus("un-pc", languages=["en", "de"]), "'de'"),
    (lambda: load_corpus("europarl", languages=["en"]), "two languages"),
    (lambda: load_corpus("tanzil", languages=["en", "ar"]), "as a path"),
    (lambda: bible_pairs("en", "fr", "Luke"), "Luke"),  # at the call, not at the first row
    (lambda: bible_pairs("en", "en"), "source_version"),
    (lambda: bible_pairs("en", "fr", target_version="4"), "version '4'"),
    # Labelled rows and inference.
    (lambda: LabelledTask(labels=("a", "b"), scores=(0, 1)), "task.scores"),
    (lambda: LabelledTask(labels=("a", "A ")), "task.labels"),
    (lambda: LabelledTask(labels=("a", "b"), metrics=("pearson",)), "pearson"),
    (lambda: LabelledTask(labels=("a", "b", "c"), metrics=("f1",)), "f1"),
    (lambda: labelled("pair.jsonl"), "'label'"),
    (lambda: labelled("odd.jsonl"), "7"),
    (lambda: read_sets({"toy": "bare.jsonl"}, CLASSES, languages=["en"], split="test"), "data.test.toy"),
    (lambda: check_tokenizer(word_tokenizer(WORDS), CLASSES), "special token"),
    (lambda: nli("nli.jsonl"), "label 3"),
    (lambda: nli("nli-it.jsonl", {"en": word_tokenizer(WORDS), "de": word_tokenizer(WORDS)}), "'it'"),
    (lambda: nli("wide.jsonl", columns=CROSSED, languages=["en"]), "languages"),
    (lambda: nli("wide.jsonl", columns=CROSSED.replace("_{lang}", "_en", 1)), "columns"),
    (lambda: nli("wide.jsonl", dict.fromkeys(("en", "de"), word_tokenizer(WORDS)), columns=CROSSED), "own encoder"),
    (lambda: nli("gone.jsonl", {"en": 1}, languages=["it"]), "'it'"),  # before reading
    # Plain data.
    (lambda: convert("pairs", []), "empty"),
    (lambda: convert("pairs", {"en-de": Dataset.from_dict({"source": [], "target": []})}), "en-de"),
    (lambda: convert("texts", [{"text": ""}]), "texts"),
    (lambda: convert("pairs", [{"source": "one", "text": "two"}]), "anchor"),
    (lambda: convert("pairs", [{"translation": {"en": "a", "de": "b", "fr": "c"}}]), "languages"),
    (lambda: convert("pairs", dict.fromkeys(("train", "test"), TRANSLATION)), "test"),
    (lambda: convert("pairs", "pairs.tsv"), "str"),
    (lambda: convert("texts", [{"text": 3}]), "strings"),
    (lambda: convert("inference", [{"premise": "a", "hypothesis": "b"}]), "label"),
    (lambda: convert("inference", [{"premise": "a", "hypothesis": "b", "label": 7}]), "7"),
    (lambda: convert_by_language([{"source": "a", "target": "b"}]), "source_lang"),
    (lambda: convert_by_language(TRANSLATION), "'de'"),
    (lambda: convert_by_language([{"source": "a", "target": "b"}], "en-sw"), "'sw'"),
    (lambda: convert_by_language([{"source": "a", "target": "b", "source_lang": "en", "target_lang": "de"}]), "'de'"),
    # Running text.
    (lambda: running("label.jsonl"), "'text'"),
    (lambda: running(columns={"text": "text", "position": "n"}), "'document'"),
    (lambda: running(columns="document=n", sample=3), "'sample'"),
    (lambda: running("lines.txt", distinct=True), "'distinct'"),
    (lambda: prepare_text("apart.txt"), "consecutive"),
    (lambda: prepare_text(cleaning=[{"sample": {"fraction": 0.5}}]), "'sample'"),
    (lambda: prepare_text(tokenizers={"fr": word_tokenizer(WORDS)}), "'en'"),
    (lambda: prepare_text(tokenizers={"path": "missing/folder"}), "missing/folder"),
    # Tokenizers and batches.
    (lambda: pairs(tokenizers={"en": "gone", "fr": "gone"}), "tokenizers"),
    (lambda: pairs(tokenizer={"path": "gone"}), "tokenizer.path"),
    (lambda: pair_facts(Dataset.from_list([{"source_lang": "en", "target_lang": "en"}])), "en"),
    (lambda: train_tokenizer(TEXTS, vocab_size=5000, algorithm="bpe"), "vocab_size"),
    (lambda: train_tokenizer(TEXTS, algorithm="wordpiece"), "wordpiece"),
    (lambda: trim_vocabulary(train_tokenizer(TEXTS, vocab_size=20), TEXTS, vocab_size=3), "vocab_size"),
    (lambda: trim_vocabulary(train_tokenizer(TEXTS, vocab_size=20), []), "no text"),
    (lambda: sampler(2, 1), "per_device_train_batch_size"),
    (lambda: sampler(3, 4, batch_option="nli_batch_size"), "nli_batch_size"),
    (lambda: sampler(12, 4, groups=[0, 1, 2, 3] * 3, homogeneous=True), "homogeneous_batches"),
    (lambda: dual(("en", "zh"), ("zh", "en")), "homogeneous_batches"),
    (lambda: inference("en", "zh"), "en, zh"),
    (lambda: PairCollator(maskless()), "mask token"),
    (lambda: CmlmCollator(maskless()), "mask token"),
    (lambda: HictlCollator(maskless()), "tokenizer.frame"),
]


@pytest.mark.parametrize(("call", "key"), REFUSALS, ids=lambda value: value if isinstance(value, str) else "")
def test_invalid_input_is_named(call: Callable[[], Any], key: str) -> None:
    with pytest.raises(XlsrError) as error:
        call()
    assert key in str(error.value) and "\n" not in str(error.value)
