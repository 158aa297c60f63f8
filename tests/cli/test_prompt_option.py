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
    for language, side in (("en", "source"), ("fr", "target")):
        (tmp_path / f"{language}.txt").write_text("".join(f"{pair[side]}\n" for pair in PAIRS), "utf-8")
    lines = ["en\tfr", *(f"{pair['source']}\t{pair['target']}" for pair in PAIRS)]
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


@pytest.mark.parametrize(("words", "expected"), CASES)
def test_encode(words: list[str], expected: dict[str, str], folder: Path):
    texts = [f"{language}={folder / language}.txt" for language in expected]
    # What follows the prompt is the model, not another prompt.
    assert main(["encode", "--texts", *texts, "--output", str(folder / "out"), *words, str(folder / "model")]) == 0
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
    sides = [pair["source"] for pair in PAIRS], [pair["target"] for pair in PAIRS]
    plain = SentenceTransformer(tiny_export, device="cpu")
    wanted = tatoeba(plain, *sides, languages=("en", "fr"), name="pairs", prompt=expected)
    metrics = json.loads(output.read_text())["metrics"]
    for key, value in wanted.items():
        assert metrics[key] == pytest.approx(value)


def test_results_say_what_was_asked(folder: Path):
    data = ["--data", str(folder / "pairs.tsv"), "--columns", "source=en,target=fr"]
    for words, asked in (([], None), (["--prompt", ""], ""), (["--prompt", "fr=bleu "], {"fr": "bleu "})):
        output = str(folder / "results.json")
        assert (
            main(["evaluate", str(folder / "model"), "--protocol", "tatoeba", *data, "--output", output, *words]) == 0
        )
        assert load_results(output)["settings"].get("prompt") == asked


def test_mine_and_score(folder: Path, tiny_export: str):
    """By prompts that are given as by the same ones of the model."""
    files = [str(folder / "en.txt"), str(folder / "fr.txt")]
    given = ["--prompt", "en=blue ", "--prompt", "fr=rouge "]
    shared = ["--languages", "en,fr", "--device", "cpu"]
    for name, words in (("own", [str(folder / "model")]), ("given", [tiny_export, *given])):
        output = str(folder / f"{name}.tsv")
        assert main(["mine", *files, "--output", output, *shared, "--model", *words]) == 0
        scored = str(folder / f"{name}-scored.tsv")
        assert main(["score", *files, "--output", scored, *shared, "--model", *words]) == 0
    for ending in (".tsv", "-scored.tsv"):
        assert (folder / f"own{ending}").read_text("utf-8") == (folder / f"given{ending}").read_text("utf-8")


def test_debias_fit(folder: Path):
    texts = [f"{language}={folder / language}.txt" for language in ("en", "fr")]
    command = ["debias", "fit", str(folder / "model"), "--texts", *texts, "--method", "mean", "--output"]
    model = SentenceTransformer(str(folder / "model"), device="cpu")
    for number, (words, expected) in enumerate(CASES):
        assert main([*command, str(folder / f"fit{number}"), *words]) == 0
        fitted = Debias.load(folder / f"fit{number}")
        for language, prompt in expected.items():
            lines = (folder / f"{language}.txt").read_text("utf-8").splitlines()
            mean = model.encode(lines, prompt=prompt).mean(0)
            np.testing.assert_allclose(fitted.fitted[language], mean, atol=1e-5)


def test_debias_says_what_was_asked(folder: Path):
    texts = ["--texts", f"fr={folder / 'fr.txt'}", "--method", "mean"]
    for words, asked in (([], None), (["--prompt", ""], ""), (["--prompt", "fr=bleu "], {"fr": "bleu "})):
        assert main(["debias", "fit", str(folder / "model"), *texts, "--output", str(folder / "fit"), *words]) == 0
        assert Debias.load(folder / "fit").prompt == asked


def test_prompts_of_a_suite(folder: Path):
    """A text, a mapping and an empty text; the command's prompt is for encoders without their own."""
    model = str(folder / "model")
    prompts: dict[str, Any] = {"text": "red ", "names": {"fr": "bleu "}, "none": "", "command": None}
    encoders = {
        label: {"model": model} | ({} if label == "command" else {"prompt": prompt})
        for label, prompt in prompts.items()
    }
    task = {"protocol": "tatoeba", "data": str(folder / "pairs.tsv"), "columns": {"source": "en", "target": "fr"}}
    (folder / "suite.yaml").write_text(yaml.safe_dump({"encoders": encoders, "tasks": {"pairs": task}}), "utf-8")
    words = ["--suite", str(folder / "suite.yaml"), "--output", str(folder / "out"), "--prompt", "default=red "]
    assert main(["evaluate", *words]) == 0
    settings = {label: load_results(folder / f"out/{label}/pairs.json")["settings"] for label in prompts}
    asked = {label: one.get("prompt") for label, one in settings.items()}
    assert asked == prompts | {"command": {"default": "red "}}
    sides = [pair["source"] for pair in PAIRS], [pair["target"] for pair in PAIRS]
    loaded = SentenceTransformer(model, device="cpu")
    for label, prompt in asked.items():
        wanted = tatoeba(loaded, *sides, languages=("en", "fr"), name="pairs", prompt=prompt)
        metrics = load_results(folder / f"out/{label}/pairs.json")["metrics"]
        assert metrics["pairs-tatoeba/en-fr/test/accuracy"] == pytest.approx(
            wanted["pairs-tatoeba/en-fr/test/accuracy"]
        )
