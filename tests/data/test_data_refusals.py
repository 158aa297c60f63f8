"""Invalid inputs of the package: each raises an error that names what is wrong."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizer_helpers import word_tokenizer

from hf_xlsr.data.cleaning import LanguageFilter, build_steps
from hf_xlsr.data.columns import parse_columns, resolve_columns
from hf_xlsr.data.conversion import DataConverter
from hf_xlsr.data.corpora.bible import bible_pairs
from hf_xlsr.data.corpora.loading import load_corpus
from hf_xlsr.data.formats.reading import read_rows
from hf_xlsr.data.label_tasks import LabelledTask, check_framing
from hf_xlsr.data.running_text import read_running_text
from hf_xlsr.data.sampling import LengthBucketBatchSampler
from hf_xlsr.data.sources import Source, open_source, parse_sources
from hf_xlsr.data.training_rows import clean_inference, clean_running_text, labelled_rows
from hf_xlsr.utils.errors import XlsrError

WORDS = ["one", "two"]
CLASSES = LabelledTask(labels=("a", "b"))
PAIRS: dict[str, Any] = {"path": "x.tsv"}

FILES = {
    "a.jsonl": '{"text": "One. Two.", "n": 1}\n',
    "pair.jsonl": '{"first": "a", "second": "b"}\n',
    "odd.jsonl": '{"first": "a", "second": "b", "label": 7}\n',
    "nli.jsonl": '{"premise": "a", "hypothesis": "b", "label": 3}\n',
    "nli-it.jsonl": '{"premise": "a", "hypothesis": "b", "label": 1, "lang": "it"}\n',
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


def clean(*config: Any) -> Any:
    return build_steps(config, languages=["en"])


def source(**options: Any) -> Any:
    return list(open_source(Source.parse(options), languages=["en", "fr"]))


def labelled(path: str, task: LabelledTask = CLASSES) -> Any:
    return list(labelled_rows(parse_sources(path), task, languages=["en"]))


def nli(path: str, tokenizers: Any = None, **options: Any) -> Any:
    clean = clean_inference(parse_sources({"path": path, **options}), languages=["en", "de"])
    return DataConverter(tokenizers or word_tokenizer(WORDS)).inference(clean.rows)


def running(path: str = "a.jsonl", **options: Any) -> Any:
    return list(read_running_text(parse_sources({"path": path, **options}), languages=["en"]))


def prepare_text(path: str = "lines.txt", **options: Any) -> Any:
    return clean_running_text(parse_sources(path), languages=["en"], **options)


def convert(form: str, data: Any) -> Any:
    converter = DataConverter(word_tokenizer(WORDS))
    return getattr(converter, form)(data)


def convert_by_language(rows: Any) -> Any:
    tokenizers = dict.fromkeys(("en", "fr", "zh"), word_tokenizer(WORDS))
    return DataConverter(tokenizers).pairs(rows)


REFUSALS: list[tuple[Callable[[], Any], str]] = [
    # Cleaning.
    (lambda: clean("normalise"), "normalize"),
    (lambda: clean({"language": {"languages": ["en", "qqq"]}}), "qqq"),
    (lambda: LanguageFilter().keeps({"source": "Hi", "target": "Да"}), "source_lang"),
    # Columns.
    (lambda: parse_columns("source=a=b"), "got 'source=a=b'"),
    (lambda: parse_columns("sorce=en"), "'source'"),
    (lambda: parse_columns({"source": False}), "quotes"),  # what YAML makes of `source: no`
    (lambda: resolve_columns({"source": "scource"}, ["source"], ["source"], "f"), "'scource'"),
    # Files.
    (lambda: read_rows("gone.tsv"), "gone.tsv"),  # before iteration
    (lambda: list(read_rows("c.{en,fr}")), "c.fr ends after line 1"),
    # Sources.
    (lambda: source(pth="x"), "path"),
    (lambda: source(**PAIRS, languages=["en", "fr", "de"]), "languages"),
    (lambda: source(path="${HF_XLSR_UNSET}/x.tsv"), "HF_XLSR_UNSET"),
    (lambda: load_corpus("europral", languages=["en", "fr"]), "europarl"),
    (lambda: bible_pairs("en", "fr", "Luke"), "Luke"),  # at the call, not at the first row
    # Labelled rows and inference.
    (lambda: LabelledTask(labels=("a", "b"), scores=(0, 1)), "task.scores"),
    (lambda: labelled("pair.jsonl"), "'label'"),
    (lambda: labelled("odd.jsonl"), "7"),
    (lambda: check_framing(word_tokenizer(WORDS), 2), "special token"),
    (lambda: nli("nli.jsonl"), "label 3"),
    (lambda: nli("nli-it.jsonl", {"en": word_tokenizer(WORDS), "de": word_tokenizer(WORDS)}), "'it'"),
    # Plain data.
    (lambda: convert("pairs", []), "empty"),
    (lambda: convert("pairs", [{"source": "one", "text": "two"}]), "anchor"),
    (lambda: convert_by_language([{"source": "a", "target": "b"}]), "source_lang"),
    # Running text.
    (lambda: prepare_text("apart.txt"), "consecutive"),
    # Tokenizers and batches.
    (lambda: LengthBucketBatchSampler([5] * 2, 1), "per_device_train_batch_size"),
]


@pytest.mark.parametrize(("call", "key"), REFUSALS, ids=lambda value: value if isinstance(value, str) else "")
def test_invalid_input_is_named(call: Callable[[], Any], key: str) -> None:
    with pytest.raises(XlsrError) as error:
        call()

    message = str(error.value)
    assert key in message
    assert "\n" not in message
