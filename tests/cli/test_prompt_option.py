"""The option `--prompt`: one text, none, or texts by name, in every command that encodes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import make_pairs
from sentence_transformers import SentenceTransformer

from hf_xlsr.cli import main
from hf_xlsr.cli.options import parse_prompts
from hf_xlsr.encoders.debias import Debias
from hf_xlsr.evaluation import tatoeba
from hf_xlsr.evaluation.results import load_results
from hf_xlsr.evaluation.rows import both_sides
from hf_xlsr.utils.errors import XlsrError

SOURCES, TARGETS = both_sides(make_pairs(30, seed=9))
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

    rows = [f"{source}\t{target}" for source, target in zip(SOURCES, TARGETS, strict=True)]
    lines_of_file = {"en.txt": SOURCES, "fr.txt": TARGETS, "pairs.tsv": ["en\tfr", *rows]}
    for name, lines in lines_of_file.items():
        (tmp_path / name).write_text("\n".join(lines) + "\n", "utf-8")
    return tmp_path


def data_of(folder: Path) -> list[str]:
    return ["--data", str(folder / "pairs.tsv"), "--columns", "source=en,target=fr"]


def texts_in(folder: Path) -> list[str]:
    return ["--texts", f"en={folder / 'en.txt'}", f"fr={folder / 'fr.txt'}"]


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


@pytest.mark.sample(3)
@pytest.mark.parametrize(("words", "expected"), CASES)
def test_encode(words: list[str], expected: dict[str, str], folder: Path):
    output = folder / "out"
    # What follows the prompt is the model, not another prompt.
    assert main(["encode", *texts_in(folder), "--output", str(output), *words, str(folder / "model")]) == 0

    model = SentenceTransformer(str(folder / "model"), device="cpu")
    for language, texts in (("en", SOURCES), ("fr", TARGETS)):
        vectors = np.load(output / f"{language}.npy")
        expected_vectors = model.encode(texts, prompt=expected[language], normalize_embeddings=True)
        np.testing.assert_allclose(vectors, expected_vectors, atol=1e-5)


@pytest.mark.sample(3)
@pytest.mark.parametrize(("words", "expected"), CASES)
def test_evaluate(words: list[str], expected: dict[str, str], folder: Path, tiny_export: str):
    output = folder / "results.json"
    command = ["evaluate", *words, str(folder / "model"), "--protocol", "tatoeba,xsim", *data_of(folder)]
    assert main([*command, "--output", str(output)]) == 0

    plain = SentenceTransformer(tiny_export, device="cpu")
    expected_metrics = tatoeba(plain, SOURCES, TARGETS, languages=("en", "fr"), name="pairs", prompt=expected)
    metrics = json.loads(output.read_text())["metrics"]
    for key, value in expected_metrics.items():
        assert metrics[key] == pytest.approx(value)


@pytest.mark.parametrize(("words", "prompt"), ASKED)
def test_results_say_what_was_asked(words: list[str], prompt: Any, folder: Path):
    output = str(folder / "results.json")
    command = ["evaluate", str(folder / "model"), "--protocol", "tatoeba", *data_of(folder), "--output", output]
    assert main([*command, *words]) == 0
    assert load_results(output)["settings"].get("prompt") == prompt


@pytest.mark.parametrize("verb", ["mine", "score"])
def test_mine_and_score(verb: str, folder: Path, tiny_export: str):
    """By prompts that are given as by the same ones of the model."""
    files = [str(folder / "en.txt"), str(folder / "fr.txt"), "--languages", "en,fr", "--device", "cpu"]

    def table(*model: str) -> str:
        output = folder / "table.tsv"
        assert main([verb, *files, "--output", str(output), "--model", *model]) == 0
        return output.read_text("utf-8")

    by_model = table(str(folder / "model"))
    by_option = table(tiny_export, "--prompt", "en=blue ", "--prompt", "fr=rouge ")
    assert by_option == by_model


@pytest.mark.sample(3)
@pytest.mark.parametrize(("words", "expected"), CASES)
def test_debias_fit(words: list[str], expected: dict[str, str], folder: Path):
    command = ["debias", "fit", str(folder / "model"), *texts_in(folder), "--method", "mean"]
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


SUITE = """
encoders:
  command: ./model
  text: {model: ./model, prompt: "red "}
  names: {model: ./model, prompt: {fr: "bleu "}}
  none: {model: ./model, prompt: ""}
tasks:
  pairs: {protocol: tatoeba, data: pairs.tsv, columns: {source: en, target: fr}}
"""


def test_prompts_of_a_suite(folder: Path, monkeypatch: pytest.MonkeyPatch):
    """A text, a mapping and an empty text; the command's prompt is for encoders without their own."""
    suite = folder / "suite.yaml"
    suite.write_text(SUITE, "utf-8")
    monkeypatch.chdir(folder)
    assert main(["evaluate", "--suite", "suite.yaml", "--output", "out", "--prompt", "default=red "]) == 0

    model = SentenceTransformer(str(folder / "model"), device="cpu")
    key = "pairs-tatoeba/en-fr/test/accuracy"
    prompts: dict[str, Any] = {"command": {"default": "red "}, "text": "red ", "names": {"fr": "bleu "}, "none": ""}
    for label, prompt in prompts.items():
        results = load_results(folder / f"out/{label}/pairs.json")
        assert results["settings"].get("prompt") == prompt
        expected = tatoeba(model, SOURCES, TARGETS, languages=("en", "fr"), name="pairs", prompt=prompt)
        assert results["metrics"][key] == pytest.approx(expected[key])
