"""Prompts of mining and scoring: each side has its own, and a changed one is encoded again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mining_fakes import SOURCE, TARGET, NumberEncoder, write_lines
from sentence_transformers import SentenceTransformer

from hf_xlsr.mining import MiningOptions, mine_bitext, score_bitext
from hf_xlsr.mining import stages as stages_module
from hf_xlsr.mining.pipeline import run_mining
from hf_xlsr.mining.stages import LazyEncoder

VECTORS = ["source.vectors", "target.vectors"]
LANGUAGES = ("en", "fr")


class Prompted(NumberEncoder):
    """Remembers the prompts of each language."""

    def __init__(self, prompts: dict[str, str], default: str | None = None) -> None:
        super().__init__()
        self.prompts = prompts
        self.default_prompt_name = default
        self.used: dict[str, set[str]] = {"en": set(), "fr": set()}

    def encode(self, texts: Any, *, prompt: str | None = None, **options: Any) -> np.ndarray:
        if prompt is None:
            prompt = self.prompts[self.default_prompt_name] if self.default_prompt_name else ""
        for text in texts:
            self.used.get(text[:2], set()).add(prompt)
        return super().encode(texts)


CASES: list[tuple[dict[str, str], str | None, Any, dict[str, set[str]]]] = [
    ({"en": "E: ", "fr": "F: "}, None, None, {"en": {"E: "}, "fr": {"F: "}}),
    ({"x": "X: "}, "x", None, {"en": {"X: "}, "fr": {"X: "}}),
    ({"x": "X: "}, "x", "", {"en": {""}, "fr": {""}}),
    ({"x": "X: "}, "x", {"fr": "F: "}, {"en": {"X: "}, "fr": {"F: "}}),
    ({"query": "Q: ", "document": "D: "}, None, None, {"en": {""}, "fr": {""}}),
    ({}, None, {"source": "S: ", "target": "T: "}, {"en": {"S: "}, "fr": {"T: "}}),
    ({}, None, "P: ", {"en": {"P: "}, "fr": {"P: "}}),
]


@pytest.mark.parametrize(("own", "default", "given", "expected"), CASES)
def test_prompts_of_mined_texts(own: dict[str, str], default: str | None, given: Any, expected: Any):
    encoder = Prompted(own, default)
    mine_bitext(SOURCE, TARGET, encoder=encoder, languages=LANGUAGES, prompt=given)
    assert encoder.used == expected


@pytest.mark.parametrize(("own", "default", "given", "expected"), CASES)
def test_prompts_of_scored_pairs_and_their_pools(own: Any, default: str | None, given: Any, expected: Any):
    encoder = Prompted(own, default)
    pools: dict[str, Any] = {"source_pool": SOURCE[5:], "target_pool": TARGET[5:]}
    options: dict[str, Any] = {"languages": LANGUAGES, "prompt": given}
    score_bitext(SOURCE[:5], TARGET[:5], encoder=encoder, **pools, **options)
    assert encoder.used == expected


def reused(folder: Path, encoder: Any, prompt: Any = None) -> list[str]:
    """The sides whose vectors are not encoded again."""
    options = MiningOptions(languages=LANGUAGES, prompt=prompt, device="cpu")
    report = run_mining(SOURCE, TARGET, folder, options, encoder=encoder).report
    return [stage for stage in report["reused"] if stage in VECTORS]


@pytest.mark.parametrize(
    ("prompt", "kept"),
    [
        (None, VECTORS),
        ("X: ", VECTORS),
        ({"default": "X: "}, VECTORS),
        ({"en": "X: "}, VECTORS),
        ({"fr": "F: "}, VECTORS[:1]),
        ({"source": "S: "}, VECTORS[1:]),
        ("", []),
        ("F: ", []),
    ],
)
def test_only_a_changed_prompt_is_encoded_again(prompt: Any, kept: list[str], tmp_path: Path):
    reused(tmp_path, Prompted({"x": "X: "}, "x"))
    assert reused(tmp_path, Prompted({"x": "X: "}, "x"), prompt) == kept


@pytest.fixture
def folder(tiny_export: str, tmp_path: Path) -> str:
    model = SentenceTransformer(tiny_export, device="cpu", prompts={"x": "red "}, default_prompt_name="x")
    model.save(str(tmp_path / "model"), create_model_card=False)
    return str(tmp_path / "model")


@pytest.mark.parametrize(("prompt", "kept"), [("red ", VECTORS), ({"fr": ""}, VECTORS[:1]), ("", [])])
def test_prompts_of_a_model_given_by_name(prompt: Any, kept: list[str], folder: str, tmp_path: Path):
    assert reused(tmp_path / "work", folder) == []
    assert reused(tmp_path / "work", folder, prompt) == kept


def test_prompts_are_read_without_the_model(folder: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(stages_module, "load_encoder", lambda *_: pytest.fail("the model was loaded"))
    assert LazyEncoder(folder).prompts().text() == "red "


def test_shared_vectors_of_two_prompts(folder: str, tmp_path: Path):
    files = write_lines(tmp_path / "en.txt", SOURCE), write_lines(tmp_path / "fr.txt", TARGET)
    options: dict[str, Any] = {"encoder": folder, "languages": LANGUAGES, "device": "cpu"}
    for prompt in (None, "", "red "):
        shared = mine_bitext(*files, **options, prompt=prompt, vectors=str(tmp_path / "vectors"))
        alone = mine_bitext(*files, **options, prompt=prompt)
        np.testing.assert_array_equal(shared.score, alone.score)
