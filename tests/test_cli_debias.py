"""The command `hf-xlsr debias`, and the Python code of its page."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import ENGLISH, FRENCH
from sentence_transformers import SentenceTransformer

from hf_xlsr.cli import main
from hf_xlsr.encoders.debias import Debias, fit_debias

PAGE = Path(__file__).resolve().parents[1] / "docs" / "debias.md"
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), flags=re.DOTALL) if PAGE.is_file() else []


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


def failing(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    capsys.readouterr()
    assert main(list(words)) == 1
    # sentence-transformers shows a bar where a model is loaded before the mistake can be known.
    *before, error = capsys.readouterr().err.splitlines()
    assert error.startswith("hf-xlsr: ") and all("Loading weights" in line for line in before if line)
    return error


def test_fit_from_a_file_a_language(
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
        np.testing.assert_allclose(fitted.components[language], expected.components[language], atol=1e-5)
    assert fitted.counts == {"en": 20, "fr": 20} and fitted.encoder == tiny_export and fitted.prompt == "red "


def test_other_ways_to_name_texts(
    tiny_export: str, files: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = tmp_path / "plain"
    assert main(fit(tiny_export, files, plain, "--method", "mean", "--limit", "15")) == 0
    whole = Debias.load(plain)
    assert whole.method == "mean" and whole.counts == {"en": 15, "fr": 15}
    ways = [
        [files["wide.tsv"], "--columns", "text={lang}", "--languages", "en,fr"],
        [files["words.{lang}.txt"], "--languages", "en,fr"],
        [f"en={files['wide.tsv']}", f"fr={files['wide.tsv']}", "--columns", "text={lang}"],
    ]
    for way in ways:
        words = ["debias", "fit", tiny_export, "--texts", *way, "--method", "mean", "--limit", "15", "--json"]
        capsys.readouterr()
        assert main([*words, "--output", str(tmp_path / "fit")]) == 0
        assert json.loads(capsys.readouterr().out)["languages"]["fr"]["texts"] == 15
        again = Debias.load(tmp_path / "fit")
        for language in ("en", "fr"):
            np.testing.assert_allclose(again.means[language], whole.means[language], atol=1e-6)
    # Several files of one language are read one after the other; bad lines are told.
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
    monkeypatch.setattr("hf_xlsr.cli.debias.ROWS_AT_ONCE", 7)
    debias = Debias(components={"fr": np.eye(6)[:, :2]}, counts={"fr": 9}, shares={"fr": 0.5})
    debias.save(tmp_path / "fit")
    vectors = (10 * np.random.default_rng(0).normal(size=(20, 6))).astype(dtype)
    np.save(tmp_path / "in.npy", vectors)
    output = tmp_path / "new" / "out.npy"
    words = ["debias", "apply", str(tmp_path / "fit"), "--vectors", str(tmp_path / "in.npy"), "--language", "fra"]
    assert main([*words, "--output", str(output)]) == 0
    assert "20 vectors in fr" in capsys.readouterr().out
    written = np.load(output)
    assert (written == debias.apply(vectors, "fr")).all() and written.dtype == debias.apply(vectors, "fr").dtype
    assert main([*words, "--output", str(output), "--normalize", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"output": str(output), "vectors": 20, "language": "fr"}
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
    assert "a folder with files in it; give a new one" in failing(capsys, *words)


def test_mistakes_in_fits(
    tiny_export: str, files: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = str(tmp_path / "fit")

    def error(*words: str) -> str:
        return failing(capsys, "debias", "fit", tiny_export, "--output", output, *words)

    assert "--texts is missing; give texts of each language" in error()
    assert "whose language is not told; write LANGUAGE=FILE, or --columns text={lang}" in error("--texts", "a.txt")
    assert "--texts has 'fr='; write LANGUAGE=FILE" in error("--texts", "fr=")
    assert "{lang} stands for each of --languages, which is not given" in error("--texts", "a.{lang}.txt")
    assert "--columns has 'source'; hf-xlsr debias reads text" in error("--texts", "a=b", "--columns", "source=x")
    assert "gone.txt does not exist" in error("--texts", "fr=gone.txt")
    assert "got 'gpu'" in error("--texts", "fr=gone.txt", "--device", "gpu")
    assert "components is 0" in error("--texts", "fr=gone.txt", "--components", "0")
    assert "method is 'pca'" in error("--texts", "fr=gone.txt", "--method", "pca")
    assert "limit must be" in error("--texts", "fr=gone.txt", "--limit", "0")
    assert "--normalize is for hf-xlsr debias apply; leave it out" in error("--texts", "fr=x", "--normalize")
    assert "'xyzzy' is no language tag" in error("--texts", f"xyzzy={files['words.en.txt']}")
    assert "components is 16, and 'fr' has 20 texts with vectors of width 16" in error(
        "--texts", f"fr={files['words.fr.txt']}", "--components", "16"
    )
    (tmp_path / "empty.txt").write_text("")
    assert "empty.txt has no text in 'fr'; give some" in error("--texts", f"fr={tmp_path / 'empty.txt'}")
    assert not Path(output).exists()
    assert "hf-xlsr debias does not 'fitt'; did you mean 'fit'?" in failing(
        capsys, "debias", "fitt", tiny_export, "--output", output
    )
    assert "model folder './gone' does not exist" in failing(
        capsys, "debias", "fit", "./gone", "--texts", "fr=x.txt", "--output", output
    )


def test_mistakes_in_applying(tmp_path: Path, capsys: pytest.CaptureFixture[str], tiny_export: str) -> None:
    debias = Debias(means={"fr": np.ones(6)}, counts={"fr": 9}, shares={"fr": 0.5})
    folder, output = str(debias.save(tmp_path / "fit")), tmp_path / "out.npy"

    def error(vectors: Any, *words: str) -> str:
        np.save(tmp_path / "in.npy", vectors)
        given = [*words] if "--model" in words else ["--vectors", str(tmp_path / "in.npy"), *words]
        message = failing(capsys, "debias", "apply", folder, "--output", str(output), *given)
        assert not output.exists() and not list(tmp_path.glob("*.partial"))
        return message

    good, french = np.ones((3, 6)), ("--language", "fr")
    assert "the vectors have shape (1, 5) and the debias was fitted on vectors of width 6" in error(
        np.ones((3, 5)), *french
    )
    assert "language 'sw' was not fitted, only fr" in error(good, "--language", "sw")
    assert "--language is missing; say which of fr" in error(good)
    assert "holds no matrix of real numbers" in error(np.ones(6), *french)
    assert "holds no matrix of real numbers" in error(np.array([["a"]]), *french)
    bad = np.ones((5000, 6))
    bad[4500, 2] = np.nan
    assert "row 4500 of the vectors holds NaN" in error(bad, *french)
    assert "--components is for hf-xlsr debias fit" in error(good, *french, "--components", "2")
    assert "--prompt is for hf-xlsr debias fit" in error(good, *french, "--prompt", "x")
    assert "fitted on width 6" in error(good, "--model", tiny_export)
    assert "--language is for --vectors" in error(good, "--model", tiny_export, *french)
    both = failing(capsys, "debias", "apply", folder, "--output", str(output))
    assert "give either --vectors FILE with --language, or --model" in both
    gone = failing(capsys, "debias", "apply", folder, "--output", str(output), "--vectors", "gone.npy", *french)
    assert "vectors gone.npy cannot be read (No such file or directory)" in gone
    assert "holds no debias.json" in failing(capsys, "debias", "apply", str(tmp_path), "--output", str(output))


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_code_of_the_page_runs(
    number: int, tiny_export: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from hf_xlsr.data.formats.reading import read_rows  # noqa: F401  (loaded before the folder changes)

    monkeypatch.chdir(tmp_path)
    Path("MODEL").symlink_to(tiny_export)
    for language, words in (("en", ENGLISH), ("fr", FRENCH)):
        Path(f"{language}.txt").write_text("\n".join(words) + "\n", "utf-8")
    names: dict[str, Any] = {"__name__": "block"}
    for block in BLOCKS[: number + 1]:  # each goes on from the one before
        exec(compile(block, str(PAGE), "exec"), names)
    assert capsys.readouterr().out


def test_the_page_has_code() -> None:
    assert len(BLOCKS) >= 3
