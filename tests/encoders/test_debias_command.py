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
def fit(tiny_export: str, tmp_path: Path) -> list[str]:
    """The command that fits into the folder `fit`."""
    english = tmp_path / "words.en.txt"
    english.write_text("\n".join(ENGLISH) + "\n", "utf-8")
    french = tmp_path / "words.fr.txt"
    french.write_text("\n".join(FRENCH) + "\n", "utf-8")
    texts = [f"en={english}", f"fr={french}"]
    return ["debias", "fit", tiny_export, "--texts", *texts, "--output", str(tmp_path / "fit")]


def test_fit_on_one_file_per_language(tiny_export: str, fit: list[str], tmp_path: Path) -> None:
    assert main([*fit, "--components", "2", "--prompt", "red "]) == 0
    debias = Debias.load(tmp_path / "fit")
    assert debias.counts == {"en": 20, "fr": 20}
    assert debias.encoder == tiny_export
    assert debias.prompt == "red "

    model = SentenceTransformer(tiny_export, device="cpu")
    expected = fit_debias(model, {"en": ENGLISH, "fr": FRENCH}, components=2, prompt="red ")
    for language in ("en", "fr"):
        np.testing.assert_allclose(debias.fitted[language], expected.fitted[language], atol=1e-5)


def test_apply_to_a_model(
    tiny_export: str, fit: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = str(tmp_path / "fit")
    output = str(tmp_path / "model")
    apply = ["debias", "apply", folder, "--model", tiny_export, "--output", output]
    assert main(fit) == 0
    assert main([*apply, "--normalize"]) == 0

    debiased = SentenceTransformer(output, device="cpu")
    plain = SentenceTransformer(tiny_export, device="cpu")
    expected = Debias.load(folder).apply(plain.encode(FRENCH), "fr", normalize=True)
    np.testing.assert_allclose(debiased.encode(FRENCH, task="fr"), expected, atol=1e-6)

    assert "--output" in failing(capsys, *apply)
