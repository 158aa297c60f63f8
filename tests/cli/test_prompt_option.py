"""The option `--prompt`: one text, none, or texts by name, in every command that encodes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from conftest import make_pairs
from sentence_transformers import SentenceTransformer

from hf_xlsr.cli import main
from hf_xlsr.cli.options import parse_prompts
from hf_xlsr.encoders.debias import Debias
from hf_xlsr.evaluation import tatoeba
from hf_xlsr.evaluation.results import load_results
from hf_xlsr.utils.errors import XlsrError

PAIRS = make_pairs(30, seed=9)
SOURCES = [pair["source"] for pair in PAIRS]
TARGETS = [pair["target"] for pair in PAIRS]
OWN = {"x": "blue ", "fr": "rouge "}


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (None, None),
        ([], None),
        ([""], ""),
        (["query: "], "query: "),
        (["a=b"], "a=b"),
        (["Answer in x=1: "], "Answer in x=1: "),
        (["=x"], "=x"),
        (["de=query: "], {"de": "query: "}),
        (["de="], {"de": ""}),
        (["zh-Hans=a=b", "eng_Latn=c"], {"zh-Hans": "a=b", "eng_Latn": "c"}),
        (
            ["query=q", "document=d", "source=s", "target=t", "default=x"],
            {"query": "q", "document": "d", "source": "s", "target": "t", "default": "x"},
        ),
    ],
)
def test_parsed(values: Any, expected: Any):
    assert parse_prompts(values) == expected


@pytest.mark.parametrize("values", [["a ", "b "], ["a ", "de=b "], ["de=a ", "de=b "]])
def test_contradictions_are_refused(values: list[str]):
    with pytest.raises(XlsrError, match="--prompt.*a "):
        parse_prompts(values)


@pytest.fixture
def folder(tiny_export: str, tmp_path: Path) -> Path:
    """A model with a default prompt and one for French, and files of both languages."""
    model = SentenceTransformer(tiny_export, device="cpu", prompts=OWN, default_prompt_name="x")
    model.save(str(tmp_path / "model"), create_model_card=False)
    for language, texts in (("en", SOURCES), ("fr", TARGETS)):
        (tmp_path / f"{language}.txt").write_text("\n".join(texts) + "\n", "utf-8")
    lines = ["en\tfr"]
    for source, target in zip(SOURCES, TARGETS, strict=True):
        lines.append(f"{source}\t{target}")
    (tmp_path / "pairs.tsv").write_text("\n".join(lines) + "\n", "utf-8")
    return tmp_path


CASES = [
    ([], {"en": "blue ", "fr": "rouge "}),
    (["--prompt", ""], {"en": "", "fr": ""}),
    (["--prompt="], {"en": "", "fr": ""}),
    (["--prompt", "red "], {"en": "red ", "fr": "red "}),
    (["--prompt", "fr=bleu "], {"en": "blue ", "fr": "bleu "}),
    (["--prompt", "fr=bleu ", "--prompt", "eng=red "], {"en": "red ", "fr": "bleu "}),
    (["--prompt", "default=red "], {"en": "red ", "fr": "rouge "}),
]
# What is asked for, and what results and fitted removals say of it.
ASKED: list[tuple[list[str], Any]] = [
    ([], None),
    (["--prompt", ""], ""),
    (["--prompt", "fr=bleu "], {"fr": "bleu "}),
]


@pytest.mark.parametrize(("words", "expected"), CASES)
def test_encode(words: list[str], expected: dict[str, str], folder: Path):
    texts = [f"{language}={folder / language}.txt" for language in expected]
    output = ["--output", str(folder / "out")]
    # What follows the prompt is the model, not another prompt.
    assert main(["encode", "--texts", *texts, *output, *words, str(folder / "model")]) == 0

    model = SentenceTransformer(str(folder / "model"), device="cpu")
    for language, prompt in expected.items():
        lines = (folder / f"{language}.txt").read_text("utf-8").splitlines()
        vectors = model.encode(lines, prompt=prompt, normalize_embeddings=True)
        np.testing.assert_allclose(np.load(folder / "out" / f"{language}.npy"), vectors, atol=1e-5)


@pytest.mark.parametrize(("words", "expected"), CASES)
def test_evaluate(words: list[str], expected: dict[str, str], folder: Path, tiny_export: str):
    output = folder / "results.json"
    data = ["--data", str(folder / "pairs.tsv"), "--columns", "source=en,target=fr", "--output", str(output)]
    assert main(["evaluate", *words, str(folder / "model"), "--protocol", "tatoeba,xsim", *data]) == 0

    plain = SentenceTransformer(tiny_export, device="cpu")
    wanted = tatoeba(plain, SOURCES, TARGETS, languages=("en", "fr"), name="pairs", prompt=expected)
    metrics = json.loads(output.read_text())["metrics"]
    for key, value in wanted.items():
        assert metrics[key] == pytest.approx(value)


@pytest.mark.parametrize(("words", "prompt"), ASKED)
def test_results_say_what_was_asked(words: list[str], prompt: Any, folder: Path):
    output = str(folder / "results.json")
    data = ["--data", str(folder / "pairs.tsv"), "--columns", "source=en,target=fr"]
    command = ["evaluate", str(folder / "model"), "--protocol", "tatoeba", *data, "--output", output]
    assert main([*command, *words]) == 0
    assert load_results(output)["settings"].get("prompt") == prompt


def test_mine_and_score(folder: Path, tiny_export: str):
    """By prompts that are given as by the same ones of the model."""
    files = [str(folder / "en.txt"), str(folder / "fr.txt"), "--languages", "en,fr", "--device", "cpu"]
    model = [str(folder / "model")]
    plain_model = [tiny_export, "--prompt", "en=blue ", "--prompt", "fr=rouge "]
    for verb in ("mine", "score"):
        own = folder / f"{verb}-own.tsv"
        assert main([verb, *files, "--output", str(own), "--model", *model]) == 0
        by_option = folder / f"{verb}-by-option.tsv"
        assert main([verb, *files, "--output", str(by_option), "--model", *plain_model]) == 0
        assert own.read_text("utf-8") == by_option.read_text("utf-8")


@pytest.mark.parametrize(("words", "expected"), CASES)
def test_debias_fit(words: list[str], expected: dict[str, str], folder: Path):
    texts = [f"{language}={folder / language}.txt" for language in ("en", "fr")]
    command = ["debias", "fit", str(folder / "model"), "--texts", *texts, "--method", "mean"]
    assert main([*command, "--output", str(folder / "fit"), *words]) == 0

    fitted = Debias.load(folder / "fit").fitted
    model = SentenceTransformer(str(folder / "model"), device="cpu")
    for language, lines in (("en", SOURCES), ("fr", TARGETS)):
        mean = model.encode(lines, prompt=expected[language]).mean(0)
        np.testing.assert_allclose(fitted[language], mean, atol=1e-5)


@pytest.mark.parametrize(("words", "prompt"), ASKED)
def test_debias_says_what_was_asked(words: list[str], prompt: Any, folder: Path):
    texts = ["--texts", f"fr={folder / 'fr.txt'}", "--method", "mean"]
    command = ["debias", "fit", str(folder / "model"), *texts, "--output", str(folder / "fit")]
    assert main([*command, *words]) == 0
    assert Debias.load(folder / "fit").prompt == prompt


def test_prompts_of_a_suite(folder: Path):
    """A text, a mapping and an empty text; the command's prompt is for encoders without their own."""
    model = str(folder / "model")
    prompts: dict[str, Any] = {"text": "red ", "names": {"fr": "bleu "}, "none": ""}
    encoders: dict[str, Any] = {"command": {"model": model}}
    for label, prompt in prompts.items():
        encoders[label] = {"model": model, "prompt": prompt}
    task = {"protocol": "tatoeba", "data": str(folder / "pairs.tsv"), "columns": {"source": "en", "target": "fr"}}
    suite = folder / "suite.yaml"
    suite.write_text(yaml.safe_dump({"encoders": encoders, "tasks": {"pairs": task}}), "utf-8")
    words = ["--suite", str(suite), "--output", str(folder / "out"), "--prompt", "default=red "]
    assert main(["evaluate", *words]) == 0

    loaded = SentenceTransformer(model, device="cpu")
    key = "pairs-tatoeba/en-fr/test/accuracy"
    for label, prompt in {**prompts, "command": {"default": "red "}}.items():
        results = load_results(folder / f"out/{label}/pairs.json")
        assert results["settings"].get("prompt") == prompt
        wanted = tatoeba(loaded, SOURCES, TARGETS, languages=("en", "fr"), name="pairs", prompt=prompt)
        assert results["metrics"][key] == pytest.approx(wanted[key])
