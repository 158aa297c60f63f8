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


@pytest.fixture(
    params=[
        # Prompts of the encoder, its default, the option, prompts of English and of French.
        ({"en": "E: ", "fr": "F: "}, None, None, "E: ", "F: "),
        ({"x": "X: "}, "x", None, "X: ", "X: "),
        ({"x": "X: "}, "x", "", "", ""),
        ({"x": "X: "}, "x", {"fr": "F: "}, "X: ", "F: "),
        ({"query": "Q: ", "document": "D: "}, None, None, "", ""),
        ({}, None, {"source": "S: ", "target": "T: "}, "S: ", "T: "),
        ({}, None, "P: ", "P: ", "P: "),
    ]
)
def case(request: pytest.FixtureRequest) -> tuple[Prompted, Any, dict[str, set[str]]]:
    """An encoder, the option `prompt`, and the prompts of each language that follow."""
    prompts, default, option, english, french = request.param
    return Prompted(prompts, default), option, {"en": {english}, "fr": {french}}


def test_prompts_of_mined_texts(case: tuple[Prompted, Any, dict[str, set[str]]]):
    encoder, prompt, expected = case
    mine_bitext(SOURCE, TARGET, encoder=encoder, languages=LANGUAGES, prompt=prompt)
    assert encoder.used == expected


def test_prompts_of_scored_pairs_and_their_pools(case: tuple[Prompted, Any, dict[str, set[str]]]):
    encoder, prompt, expected = case
    score_bitext(
        SOURCE[:5],
        TARGET[:5],
        source_pool=SOURCE[5:],
        target_pool=TARGET[5:],
        encoder=encoder,
        languages=LANGUAGES,
        prompt=prompt,
    )
    assert encoder.used == expected


def reused(folder: Path, encoder: Any, prompt: Any = None) -> list[str]:
    """The sides whose vectors are not encoded again."""
    options = MiningOptions(languages=LANGUAGES, prompt=prompt, device="cpu")
    report = run_mining(SOURCE, TARGET, folder, options, encoder=encoder).report
    return [stage for stage in report["reused"] if stage in VECTORS]


@pytest.mark.parametrize(
    ("prompt", "reused_sides"),
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
def test_only_a_changed_prompt_is_encoded_again(prompt: Any, reused_sides: list[str], tmp_path: Path):
    reused(tmp_path, Prompted({"x": "X: "}, "x"))
    assert reused(tmp_path, Prompted({"x": "X: "}, "x"), prompt) == reused_sides


@pytest.fixture
def folder(tiny_export: str, tmp_path: Path) -> str:
    folder = str(tmp_path / "model")
    model = SentenceTransformer(tiny_export, device="cpu", prompts={"x": "red "}, default_prompt_name="x")
    model.save(folder, create_model_card=False)
    return folder


@pytest.mark.parametrize(("prompt", "reused_sides"), [("red ", VECTORS), ({"fr": ""}, VECTORS[:1]), ("", [])])
def test_prompts_of_a_model_given_by_name(prompt: Any, reused_sides: list[str], folder: str, tmp_path: Path):
    work = tmp_path / "work"
    assert reused(work, folder) == []
    assert reused(work, folder, prompt) == reused_sides


def test_prompts_are_read_without_the_model(folder: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(stages_module, "load_encoder", lambda *_: pytest.fail("the model was loaded"))
    assert LazyEncoder(folder).prompts().text() == "red "


def test_shared_vectors_of_two_prompts(folder: str, tmp_path: Path):
    source = write_lines(tmp_path / "en.txt", SOURCE)
    target = write_lines(tmp_path / "fr.txt", TARGET)
    vectors = str(tmp_path / "vectors")

    for prompt in (None, "", "red "):
        options: dict[str, Any] = {"encoder": folder, "languages": LANGUAGES, "device": "cpu", "prompt": prompt}
        from_shared = mine_bitext(source, target, **options, vectors=vectors)
        from_texts = mine_bitext(source, target, **options)
        np.testing.assert_array_equal(from_shared.score, from_texts.score)
