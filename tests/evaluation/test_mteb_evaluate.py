"""Runs of `mteb.evaluate`: scores against our own protocols, routes of both columns, the cache, and the guide's code."""

from __future__ import annotations

import importlib
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from mteb_helpers import ENGLISH, FRENCH, routed_model, shaken, sides, table, with_data
from sentence_transformers import SentenceTransformer

from hf_xlsr.evaluation import tatoeba_mteb

mteb = pytest.importorskip("mteb")

from mteb.models.model_implementations import MODEL_REGISTRY  # noqa: E402

from hf_xlsr.evaluation.mteb import MtebEncoder, evaluate_mteb  # noqa: E402

PAGE = Path(__file__).resolve().parents[2] / "docs" / "mteb.md"
TYPES = "bitext_mining classification clustering reranking retrieval summarization"
Pairs = list[dict[str, str]]


@pytest.fixture
def encoded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The subset of each column that is encoded: what a cache saves."""
    subsets: list[str] = []
    real = MtebEncoder.encode

    def encode(self: MtebEncoder, inputs: Any, **options: Any) -> Any:
        subsets.append(options["hf_subset"])
        return real(self, inputs, **options)

    monkeypatch.setattr(MtebEncoder, "encode", encode)
    return subsets


def tatoeba_task(french: list[str], english: list[str]) -> Any:
    """mteb's own task, its data set by hand."""
    task = mteb.get_task("Tatoeba", hf_subsets=["fra-eng"])
    return with_data(task, {"fra-eng": {"test": table(sentence1=french, sentence2=english)}})


@pytest.mark.parametrize("reverse", [False, True])
def test_both_columns_take_their_routes(reverse: bool, tiny_export: str):
    # Vectors of a wrong route are far from right: identical sentences would no longer be found.
    model = routed_model(tiny_export)
    columns = (ENGLISH, FRENCH) if reverse else (FRENCH, ENGLISH)
    languages = ("en", "fr") if reverse else ("fr", "en")
    score = evaluate_mteb(model, tatoeba_task(*columns))["Tatoeba-mteb/fr-en/test/f1"]

    right_routes = tatoeba_mteb(model, *columns, languages=languages, name="t")
    wrong_routes = tatoeba_mteb(model, *columns, languages=languages[::-1], name="t")
    assert score == pytest.approx(right_routes[f"t-tatoeba-mteb/{'-'.join(languages)}/test/f1"])
    assert score != pytest.approx(wrong_routes[f"t-tatoeba-mteb/{'-'.join(languages[::-1])}/test/f1"])


def test_cached_scores(
    tiny_export: str, pairs: Pairs, tmp_path: Path, encoded: list[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("MTEB_CACHE", str(tmp_path / "own"))
    english, french = sides(pairs[:70])
    task = tatoeba_task(french, english)
    first = evaluate_mteb(tiny_export, task, cache=tmp_path)
    assert encoded == ["fra-eng", "fra-eng"]
    card = shutil.copytree(tiny_export, tmp_path / "tiny")
    (card / "README.md").write_text("# A new card")
    again = evaluate_mteb(card, task, cache=tmp_path)
    assert len(encoded) == 2
    assert not (tmp_path / "own").exists()
    assert again == pytest.approx(first, abs=1e-6)


@pytest.mark.parametrize("changed", ["weights", "prompt", "data"])
def test_no_score_is_stale(changed: str, tiny_export: str, pairs: Pairs, tmp_path: Path, encoded: list[str]):
    model = SentenceTransformer(tiny_export, device="cpu")
    english, french = sides(pairs[:70])
    task = tatoeba_task(french, english)
    evaluate_mteb(model, task, cache=tmp_path)

    options = {"prompt": "query: "} if changed == "prompt" else {}
    if changed == "weights":
        model = shaken(model, 1)
    if changed == "data":
        metadata = task.metadata.model_copy(update={"dataset": {"path": "elsewhere", "revision": "another"}})
        task = tatoeba_task(FRENCH, ENGLISH)
        task.metadata = metadata
    cached = evaluate_mteb(model, task, cache=tmp_path, **options)
    assert len(encoded) == 4
    assert cached == evaluate_mteb(model, task, **options)


@pytest.mark.parametrize("kind", TYPES.split())
def test_text_tasks(kind: str, tiny_export: str):
    module = importlib.import_module(f"mteb.mocks.mock_tasks.{kind}")
    classes = [getattr(module, name) for name in dir(module) if name.startswith("Mock")]
    tasks = [task for task in classes if getattr(task, "metadata", None) and task.__module__ == module.__name__]
    text_task = next(task for task in tasks if task.metadata.modalities == ["text"])
    metrics = evaluate_mteb(tiny_export, text_task())
    assert metrics
    assert all(key.startswith(f"{text_task.metadata.name}-mteb/") for key in metrics)


def test_the_code_of_the_guide_runs(tiny_export: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any):
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text("utf-8"), re.DOTALL | re.MULTILINE)
    monkeypatch.setitem(MODEL_REGISTRY, "me/my-model", None)
    del MODEL_REGISTRY["me/my-model"]  # put back as it was when the test is over
    task = tatoeba_task(FRENCH, ENGLISH)
    monkeypatch.setattr(mteb, "get_task", lambda *_, **__: task)  # with its data
    namespace: dict[str, Any] = {"MODEL": tiny_export}
    for block in blocks:
        exec(compile(block, str(PAGE), "exec"), namespace)  # as a reader would run them, one after the other
    printed = capsys.readouterr().out
    assert len(blocks) == 3
    for text in ("True\n", "ModelMeta(", "Tatoeba"):
        assert text in printed
    assert (tmp_path / "mteb-results" / "results" / "me__my-model").is_dir()
