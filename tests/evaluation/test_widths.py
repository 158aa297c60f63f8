"""Matryoshka widths: `truncate_dim` of a command, and of a suite's encoders."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from conftest import make_pairs
from input_helpers import write_tsv
from sentence_transformers import SentenceTransformer

from hf_xlsr.cli import main
from hf_xlsr.encoders.encoding import embed
from hf_xlsr.encoders.loading import load_encoder
from hf_xlsr.evaluation import EncoderOptions, evaluate_files, tatoeba
from hf_xlsr.evaluation.protocol import DataOptions
from hf_xlsr.evaluation.results import load_results
from hf_xlsr.evaluation.rows import both_sides
from hf_xlsr.utils.errors import XlsrError

WIDTH = 6


@pytest.fixture
def table(tmp_path: Path) -> str:
    lines = [f"{row['source']}\t{row['target']}" for row in make_pairs(30, seed=3)]
    return write_tsv(tmp_path / "pairs.tsv", ["en\tfr", *lines])


def narrow(export: str) -> SentenceTransformer:
    return SentenceTransformer(export, device="cpu", truncate_dim=WIDTH)


@pytest.mark.parametrize("dtype", [None, "bfloat16"])
def test_a_loaded_encoder(tiny_export: str, dtype: str | None) -> None:
    whole = load_encoder(tiny_export, "cpu", dtype).encode(["one", "two"])
    truncated = load_encoder(tiny_export, "cpu", dtype, WIDTH)
    np.testing.assert_allclose(truncated.encode(["one", "two"]), whole[:, :WIDTH])


@pytest.mark.parametrize("width", [0, 1000])
def test_a_width_that_the_model_does_not_have(tiny_export: str, width: int) -> None:
    with pytest.raises(XlsrError, match=rf"truncate_dim.*got {width}"):
        load_encoder(tiny_export, "cpu", None, width)


def test_a_stored_width_is_replaced(tiny_export: str, tmp_path: Path) -> None:
    narrow(tiny_export).save(str(tmp_path / "stored"))
    vectors = load_encoder(str(tmp_path / "stored"), "cpu", None, WIDTH + 2).encode(["one"])
    assert vectors.shape == (1, WIDTH + 2)


@pytest.mark.parametrize("vectors", [None, "vectors"])
def test_evaluation(vectors: str | None, table: str, tiny_export: str, tmp_path: Path) -> None:
    folder = str(tmp_path / vectors) if vectors else None
    data = DataOptions((table,), columns="source=en,target=fr")

    def evaluated(width: int | None) -> dict[str, float]:
        encoder = EncoderOptions(truncate_dim=width, device="cpu")
        return dict(evaluate_files(tiny_export, "tatoeba", data, encoder=encoder, vectors=folder))

    whole = evaluated(None)
    truncated = evaluated(WIDTH)

    expected = tatoeba(narrow(tiny_export), *both_sides(make_pairs(30, seed=3)), name="pairs")
    assert truncated == pytest.approx(dict(expected))
    assert truncated != whole


def test_widths_of_a_suite(table: str, tiny_export: str, tmp_path: Path) -> None:
    suite = tmp_path / "suite.yaml"
    suite.write_text(
        f"""
encoders:
  whole: {tiny_export}
  narrow: {{model: {tiny_export}, truncate_dim: {WIDTH}}}
tasks:
  pairs: {{protocol: tatoeba, data: {table}, columns: {{source: en, target: fr}}}}
""",
        "utf-8",
    )
    output = tmp_path / "results"
    assert main(["evaluate", "--suite", str(suite), "--output", str(output)]) == 0

    expected = tatoeba(narrow(tiny_export), *both_sides(make_pairs(30, seed=3)), name="pairs")
    content = load_results(output / "narrow" / "pairs.json")
    assert dict(content["metrics"]) == pytest.approx(dict(expected))
    assert content["settings"]["encoder"]["truncate_dim"] == WIDTH
    assert dict(load_results(output / "whole" / "pairs.json")["metrics"]) != pytest.approx(dict(expected))


def test_encoded_files(table: str, tiny_export: str, tmp_path: Path) -> None:
    texts = ["--texts", table, "--columns", "text={lang}", "--languages", "en"]
    output = tmp_path / "vectors"
    assert main(["encode", tiny_export, *texts, "--truncate-dim", str(WIDTH), "--output", str(output)]) == 0

    sources, _ = both_sides(make_pairs(30, seed=3))
    np.testing.assert_allclose(np.load(output / "en.npy"), embed(narrow(tiny_export), sources), atol=1e-6)


def test_mining_knows_the_width(table: str, tiny_export: str, tmp_path: Path) -> None:
    sources, targets = both_sides(make_pairs(30, seed=3))
    source = write_tsv(tmp_path / "a.en.txt", sources)
    target = write_tsv(tmp_path / "a.fr.txt", targets)

    def mined(*options: str) -> str:
        output = tmp_path / f"mined{len(options)}.tsv"
        words = ["mine", source, target, "--model", tiny_export, "--languages", "en,fr", "--output", str(output)]
        assert main([*words, *options]) == 0
        return output.read_text("utf-8")

    assert mined() != mined("--truncate-dim", str(WIDTH))
