"""The command `hf-xlsr debias`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

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
    wide = "\n".join(["en\tfr", *map("\t".join, zip(ENGLISH, FRENCH, strict=True))])
    (tmp_path / "wide.tsv").write_text(wide + "\n", "utf-8")
    return {name: str(tmp_path / name) for name in ("words.en.txt", "words.fr.txt", "wide.tsv", "words.{lang}.txt")}


def fit(model: str, files: dict[str, str], output: Path, *options: str) -> list[str]:
    texts = [f"en={files['words.en.txt']}", f"fr={files['words.fr.txt']}"]
    return ["debias", "fit", model, "--texts", *texts, "--output", str(output), *options]


def test_fit_on_one_file_per_language(
    tiny_export: str, files: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(fit(tiny_export, files, tmp_path / "fit", "--components", "2", "--prompt", "red ")) == 0
    printed = capsys.readouterr().out
    assert "2 components" in printed and "20" in printed and "%" in printed
    fitted = Debias.load(tmp_path / "fit")
    expected = fit_debias(
        SentenceTransformer(tiny_export, device="cpu"), {"en": ENGLISH, "fr": FRENCH}, components=2, prompt="red "
    )
    for language in ("en", "fr"):
        np.testing.assert_allclose(fitted.fitted[language], expected.fitted[language], atol=1e-5)
    assert fitted.counts == {"en": 20, "fr": 20} and fitted.encoder == tiny_export and fitted.prompt == "red "


def test_tables_and_several_files(
    tiny_export: str, files: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = tmp_path / "plain"
    assert main(fit(tiny_export, files, plain, "--method", "mean", "--limit", "15")) == 0
    whole = Debias.load(plain)
    assert whole.method == "mean" and whole.counts == {"en": 15, "fr": 15}
    wide = [files["wide.tsv"], "--columns", "text={lang}", "--languages", "en,fr"]
    for way in (wide, [files["words.{lang}.txt"], "--languages", "en,fr"]):
        words = ["debias", "fit", tiny_export, "--texts", *way, "--method", "mean", "--limit", "15"]
        assert main([*words, "--output", str(tmp_path / "fit")]) == 0
        again = Debias.load(tmp_path / "fit")
        for language in ("en", "fr"):
            np.testing.assert_allclose(again.fitted[language], whole.fitted[language], atol=1e-6)
    # Several files of one language are read one after the other; bad lines are counted.
    (tmp_path / "more.txt").write_text("un\n\ndeux trois\n", "utf-8")
    words = ["debias", "fit", tiny_export, "--texts", f"fr={files['words.fr.txt']}", f"fr={tmp_path / 'more.txt'}"]
    capsys.readouterr()
    assert main([*words, "--output", str(tmp_path / "fit")]) == 0
    assert Debias.load(tmp_path / "fit").counts == {"fr": 22}
    assert "1 bad line was skipped (1 empty text)" in capsys.readouterr().out


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.int64])
def test_apply_to_vectors_block_by_block(
    dtype: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("hf_xlsr.cli.encode.ROWS_AT_ONCE", 7)
    debias = Debias({"fr": np.eye(6)[:, :2]}, counts={"fr": 9}, shares={"fr": 0.5})
    debias.save(tmp_path / "fit")
    vectors = (10 * np.random.default_rng(0).normal(size=(20, 6))).astype(dtype)
    np.save(tmp_path / "in.npy", vectors)
    output = tmp_path / "new" / "out.npy"
    words = ["debias", "apply", str(tmp_path / "fit"), "--vectors", str(tmp_path / "in.npy"), "--language", "fra"]
    assert main([*words, "--output", str(output)]) == 0
    assert "20 vectors in fr" in capsys.readouterr().out
    written = np.load(output)
    assert (written == debias.apply(vectors, "fr")).all() and written.dtype == debias.apply(vectors, "fr").dtype
    assert main([*words, "--output", str(output), "--normalize"]) == 0
    assert np.allclose(np.linalg.norm(np.load(output).astype(float), axis=1), 1, atol=1e-3)
    assert [path.name for path in output.parent.iterdir()] == ["out.npy"]


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


@pytest.mark.parametrize(
    ("words", "key"),
    [
        ("", "--texts"),
        ("--texts a.txt", "LANGUAGE=FILE"),
        ("--texts a.{lang}.txt", "--languages"),
        ("--texts a=b --columns source=x", "'source'"),
        ("--texts fr=gone.txt", "gone.txt"),
        ("--texts fr=gone.txt --components 0", "components"),
        ("--texts fr=words.fr.txt --components 16", "components"),
        ("--texts fr=empty.txt", "empty.txt"),
    ],
)
def test_invalid_fit(
    words: str, key: str, tiny_export: str, files: Any, tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("empty.txt").write_text("")
    assert key in failing(capsys, "debias", "fit", tiny_export, "--output", "fit", *words.split())
    assert not Path("fit").exists()


@pytest.mark.parametrize(
    ("vectors", "words", "key"),
    [
        (np.ones((3, 5)), "--language fr", "(1, 5)"),
        (np.ones((3, 6)), "", "--language"),
        (np.array([["a"]]), "--language fr", "matrix"),
        (np.where(np.arange(5000)[:, None] == 4500, np.nan, np.ones((5000, 6))), "--language fr", "4500"),
        (None, "--model MODEL", "width 6"),
        (None, "--model MODEL --language fr", "--language"),
        (None, "--vectors gone.npy --language fr", "gone.npy"),
    ],
)
def test_invalid_apply(
    vectors: Any, words: str, key: str, tiny_export: str, tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("MODEL").symlink_to(tiny_export)
    Debias({"fr": np.ones(6)}, "mean", counts={"fr": 9}, shares={"fr": 0.5}).save("fit")
    given = [] if vectors is None else ["--vectors", "in.npy"]
    np.save("in.npy", np.zeros(1) if vectors is None else vectors)
    assert key in failing(capsys, "debias", "apply", "fit", "--output", "out.npy", *given, *words.split())
    assert not Path("out.npy").exists() and not list(Path().glob("*.partial"))
