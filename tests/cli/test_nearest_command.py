"""`hf-xlsr nearest` lists what exact search finds, in each language."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer

from hf_xlsr.cli import main

ENGLISH = ["red house", "blue tree", "stone bird", "red tree"]
FRENCH = ["maison rouge", "arbre bleu", "maison rouge"]


def test_neighbours_in_each_language_without_the_query(
    tiny_export: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["nearest", tiny_export, "--query", "red house", "--query", "unseen", "--k", "2", "--texts"]
    for language, texts in (("en", ENGLISH), ("fr", FRENCH)):
        path = tmp_path / f"{language}.txt"
        path.write_text("\n".join(texts) + "\n", "utf-8")
        words.append(f"{language}={path}")
    assert main(words) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if line.startswith("query: ")] == ["query: red house", "query: unseen"]

    listed = [line.split("  ") for line in lines[1 : lines.index("query: unseen")]]
    assert [language for _, language, _ in listed] == ["en", "en", "fr", "fr"]
    assert {text for _, language, text in listed if language == "fr"} == set(FRENCH)

    model = SentenceTransformer(tiny_export)
    query = model.encode(["red house"], normalize_embeddings=True)
    others = [text for text in ENGLISH if text != "red house"]
    cosines = (query @ model.encode(others, normalize_embeddings=True).T)[0]
    best = np.argsort(-cosines)[:2]
    assert [text for _, _, text in listed[:2]] == [others[row] for row in best]
    assert [float(cosine) for cosine, _, _ in listed[:2]] == pytest.approx(cosines[best], abs=0.002)
