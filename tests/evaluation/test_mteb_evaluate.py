"""Runs of `mteb.evaluate`: scores against our own protocols, keys, routes of both columns, and the cache."""

from __future__ import annotations

import importlib
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from mteb_helpers import ENGLISH, FRENCH, routed_model, shaken, table, with_data
from sentence_transformers import SentenceTransformer

from hf_xlsr.evaluation.protocols.tatoeba_mteb import tatoeba_mteb

mteb = pytest.importorskip("mteb")

from hf_xlsr.evaluation.mteb.encoder import MtebEncoder, as_mteb_encoder  # noqa: E402
from hf_xlsr.evaluation.mteb.evaluate import evaluate_mteb  # noqa: E402

TYPES = "bitext_mining classification clustering reranking retrieval summarization"


@pytest.fixture
def encoded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The subset of each column that is encoded: what a cache saves."""
    seen: list[str] = []
    real = MtebEncoder.encode

    def encode(self: MtebEncoder, inputs: Any, **options: Any) -> Any:
        seen.append(options["hf_subset"])
        return real(self, inputs, **options)

    monkeypatch.setattr(MtebEncoder, "encode", encode)
    return seen


def tatoeba_task(french: list[str], english: list[str]) -> Any:
    """mteb's own task, its data set by hand."""
    task = mteb.get_task("Tatoeba", hf_subsets=["fra-eng"])
    return with_data(task, {"fra-eng": {"test": table(sentence1=french, sentence2=english)}})


def sides(pairs: list[dict[str, str]]) -> tuple[list[str], list[str]]:
    """French and English; no sentence twice, so that no two vectors are tied."""
    distinct = {pair["target"]: pair["source"] for pair in pairs}
    return list(distinct), list(distinct.values())


@pytest.mark.parametrize("reverse", [False, True])
def test_both_columns_take_their_routes(reverse: bool, tiny_export: str):
    # Vectors of a wrong route are far from right: identical sentences would no longer be found.
    model = routed_model(tiny_export)
    first, second, languages = FRENCH, ENGLISH, ("fr", "en")
    if reverse:
        first, second, languages = ENGLISH, FRENCH, ("en", "fr")
    found = evaluate_mteb(model, tatoeba_task(first, second))["Tatoeba-mteb/fr-en/test/f1"]
    ours = tatoeba_mteb(model, first, second, languages=languages, name="t")
    assert found == pytest.approx(ours[f"t-tatoeba-mteb/{'-'.join(languages)}/test/f1"])
    wrong = tatoeba_mteb(model, first, second, languages=languages[::-1], name="t")
    assert found != pytest.approx(wrong[f"t-tatoeba-mteb/{'-'.join(languages[::-1])}/test/f1"])


def test_cached_scores(
    tiny_export: str,
    pairs: list[dict[str, str]],
    tmp_path: Path,
    encoded: list[str],
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setenv("MTEB_CACHE", str(tmp_path / "own"))
    task = tatoeba_task(*sides(pairs[:70]))
    first = evaluate_mteb(tiny_export, task, cache=tmp_path)
    assert encoded == ["fra-eng", "fra-eng"]
    card = shutil.copytree(tiny_export, tmp_path / "tiny")
    (card / "README.md").write_text("# A new card")
    again = evaluate_mteb(card, task, cache=tmp_path)
    assert len(encoded) == 2
    assert not (tmp_path / "own").exists()
    assert again == pytest.approx(first, abs=1e-6)


def other_weights(model: SentenceTransformer, task: Any) -> tuple[Any, Any, dict[str, Any]]:
    return shaken(model, 1), task, {}


def other_prompt(model: SentenceTransformer, task: Any) -> tuple[Any, Any, dict[str, Any]]:
    return model, task, {"prompt": "query: "}


def other_data(model: SentenceTransformer, task: Any) -> tuple[Any, Any, dict[str, Any]]:
    other = tatoeba_task(FRENCH, ENGLISH)
    other.metadata = task.metadata.model_copy(update={"dataset": {"path": "elsewhere", "revision": "another"}})
    return model, other, {}


@pytest.mark.parametrize("change", [other_weights, other_prompt, other_data])
def test_no_score_is_stale(
    change: Any, tiny_export: str, pairs: list[dict[str, str]], tmp_path: Path, encoded: list[str]
):
    model, task = SentenceTransformer(tiny_export, device="cpu"), tatoeba_task(*sides(pairs[:70]))
    evaluate_mteb(model, task, cache=tmp_path)
    changed, other, options = change(model, task)
    cached = evaluate_mteb(changed, other, cache=tmp_path, **options)
    assert len(encoded) == 4
    assert cached == evaluate_mteb(changed, other, **options)


def test_results_file(tiny_export: str, tmp_path: Path):
    encoder = as_mteb_encoder(tiny_export, prompt="red ")
    task = tatoeba_task(FRENCH, ENGLISH)
    metrics = evaluate_mteb(encoder, [task], output=tmp_path / "scores.json", batch_size=3)
    content = json.loads((tmp_path / "scores.json").read_text())
    settings = content["settings"]
    assert content["metrics"] == metrics
    assert (settings["revision"], settings["prompt"]) == (encoder.mteb_model_meta.revision, "red ")
    assert (settings["tasks"], settings["batch_size"]) == (["Tatoeba"], 3)
    assert settings["data_revisions"] == {"Tatoeba": task.metadata.revision}


def test_chosen_subsets(tiny_export: str, tmp_path: Path):
    rows = table(sentence1=["a b", "c", "d e", "f"], sentence2=["a", "c", "e", "f"], score=[1, 5, 2, 4])
    for subsets in (["en-en", "ko-ko"], ["en-en"]):
        task = with_data(mteb.get_task("STS17", hf_subsets=subsets), {subset: {"test": rows} for subset in subsets})
        metrics = evaluate_mteb(tiny_export, task, cache=tmp_path)
        names = {key.rsplit("/", 1)[0] for key in metrics}
        assert names == {f"STS17-mteb/{subset[:2]}/test" for subset in subsets}


@pytest.mark.parametrize("kind", TYPES.split())
def test_text_tasks(kind: str, tiny_export: str):
    module = importlib.import_module(f"mteb.mocks.mock_tasks.{kind}")
    classes = [getattr(module, name) for name in dir(module) if name.startswith("Mock")]
    tasks = [found for found in classes if getattr(found, "metadata", None) and found.__module__ == module.__name__]
    task = next(task for task in tasks if task.metadata.modalities == ["text"])
    metrics = evaluate_mteb(tiny_export, task())
    assert metrics and all(key.startswith(f"{task.metadata.name}-mteb/") for key in metrics)
