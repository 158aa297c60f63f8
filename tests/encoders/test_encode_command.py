"""The command `hf-xlsr encode`: files of embeddings, and the store that evaluation and mining share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import make_pairs
from sentence_transformers import SentenceTransformer

from hf_xlsr.cli import main
from hf_xlsr.encoders.cache import CachedEncoder

ROWS = make_pairs(60, seed=8)


@pytest.fixture
def texts(tmp_path: Path) -> dict[str, str]:
    for language, side in (("en", "source"), ("fr", "target")):
        lines = "".join(f"{row[side]}\n" for row in ROWS)
        (tmp_path / f"{language}.txt").write_text(lines, "utf-8")
    return {language: str(tmp_path / f"{language}.txt") for language in ("en", "fr")}


def test_files_and_store(
    tiny_export: str, texts: dict[str, str], tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    output = tmp_path / "out"
    store = ["--vectors", str(tmp_path / "store")]
    files = [f"{language}={path}" for language, path in texts.items()]
    assert main(["encode", tiny_export, "--texts", *files, *store, "--output", str(output)]) == 0
    assert "fr: 60 texts" in capsys.readouterr().out

    model = SentenceTransformer(tiny_export, device="cpu")
    for language, side in (("en", "source"), ("fr", "target")):
        lines = (output / f"{language}.txt").read_text("utf-8").splitlines()
        assert lines == [row[side] for row in ROWS]
        expected = model.encode(lines, normalize_embeddings=True)
        np.testing.assert_allclose(np.load(output / f"{language}.npy"), expected, atol=1e-5)

    # Neither evaluation nor mining encodes anything again.
    counts: list[int] = []
    encode = CachedEncoder.encode

    def counted(self: CachedEncoder, *args: Any, **options: Any) -> np.ndarray:
        vectors = encode(self, *args, **options)
        counts.append(self.encoded)
        return vectors

    monkeypatch.setattr(CachedEncoder, "encode", counted)
    mined = tmp_path / "pairs.tsv"
    plain = tmp_path / "plain.tsv"
    mine = ["mine", *texts.values(), "--model", tiny_export, "--device", "cpu"]
    assert main([*mine, "--output", str(mined), *store]) == 0
    assert set(counts) == {0}
    assert main([*mine, "--output", str(plain)]) == 0
    assert mined.read_text("utf-8") == plain.read_text("utf-8")
