"""The command `hf-xlsr debias`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from cli_helpers import failing
from conftest import ENGLISH, FRENCH
from sentence_transformers import SentenceTransformer

from hf_xlsr.cli import main
from hf_xlsr.encoders.debias import Debias, fit_debias


@pytest.fixture
def files(tmp_path: Path) -> dict[str, str]:
    for language, words in (("en", ENGLISH), ("fr", FRENCH)):
        (tmp_path / f"words.{language}.txt").write_text("\n".join(words) + "\n", "utf-8")
    return {name: str(tmp_path / name) for name in ("words.en.txt", "words.fr.txt")}


def fit(model: str, files: dict[str, str], output: Path, *options: str) -> list[str]:
    texts = [f"en={files['words.en.txt']}", f"fr={files['words.fr.txt']}"]
    return ["debias", "fit", model, "--texts", *texts, "--output", str(output), *options]


def test_fit_on_one_file_per_language(tiny_export: str, files: dict[str, str], tmp_path: Path) -> None:
    assert main(fit(tiny_export, files, tmp_path / "fit", "--components", "2", "--prompt", "red ")) == 0
    debias = Debias.load(tmp_path / "fit")
    assert debias.counts == {"en": 20, "fr": 20}
    assert debias.encoder == tiny_export
    assert debias.prompt == "red "

    model = SentenceTransformer(tiny_export, device="cpu")
    expected = fit_debias(model, {"en": ENGLISH, "fr": FRENCH}, components=2, prompt="red ")
    for language in ("en", "fr"):
        np.testing.assert_allclose(debias.fitted[language], expected.fitted[language], atol=1e-5)


def test_apply_to_a_model(
    tiny_export: str, files: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(fit(tiny_export, files, tmp_path / "fit")) == 0
    words = ["debias", "apply", str(tmp_path / "fit"), "--model", tiny_export, "--output", str(tmp_path / "model")]
    assert main([*words, "--normalize"]) == 0
    model = SentenceTransformer(str(tmp_path / "model"), device="cpu")
    plain = SentenceTransformer(tiny_export, device="cpu").encode(FRENCH)
    expected = Debias.load(tmp_path / "fit").apply(plain, "fr", normalize=True)
    np.testing.assert_allclose(model.encode(FRENCH, task="fr"), expected, atol=1e-6)
    assert "--output" in failing(capsys, *words)
