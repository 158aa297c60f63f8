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


@pytest.mark.parametrize(
    ("columns", "languages"),
    [((FRENCH, ENGLISH), ("fr", "en")), ((ENGLISH, FRENCH), ("en", "fr"))],
)
def test_both_columns_take_their_routes(
    columns: tuple[list[str], list[str]], languages: tuple[str, str], tiny_export: str
):
    # Vectors of a wrong route are far from right: identical sentences would no longer be found.
    model = routed_model(tiny_export)
    score = evaluate_mteb(model, tatoeba_task(*columns))["Tatoeba-mteb/fr-en/test/f1"]

    def f1(*routes: str) -> float:
        metrics = tatoeba_mteb(model, *columns, languages=routes, name="t")
        return metrics[f"t-tatoeba-mteb/{'-'.join(routes)}/test/f1"]

    first, second = languages
    assert score == pytest.approx(f1(first, second))
    assert score != pytest.approx(f1(second, first))


def test_cached_scores(
    tiny_export: str, pairs: Pairs, tmp_path: Path, encoded: list[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("MTEB_CACHE", str(tmp_path / "own"))
    english, french = sides(pairs[:70])
    task = tatoeba_task(french, english)
    first = evaluate_mteb(tiny_export, task, cache=tmp_path)
    assert encoded == ["fra-eng", "fra-eng"]

    with_other_card = shutil.copytree(tiny_export, tmp_path / "tiny")
    (with_other_card / "README.md").write_text("# A new card")
    again = evaluate_mteb(with_other_card, task, cache=tmp_path)
    assert len(encoded) == 2
    assert not (tmp_path / "own").exists()
    assert again == pytest.approx(first, abs=1e-6)


@pytest.mark.parametrize("changed", ["weights", "prompt", "width", "data"])
def test_no_score_is_stale(changed: str, tiny_export: str, pairs: Pairs, tmp_path: Path, encoded: list[str]):
    model = SentenceTransformer(tiny_export, device="cpu")
    english, french = sides(pairs[:70])
    task = tatoeba_task(french, english)
    evaluate_mteb(model, task, cache=tmp_path)

    options: dict[str, Any] = {}
    if changed == "weights":
        model = shaken(model, 1)
    elif changed == "prompt":
        options["prompt"] = "query: "
    elif changed == "width":
        options["encode_kwargs"] = {"truncate_dim": 4}
    else:
        metadata = task.metadata.model_copy(update={"dataset": {"path": "elsewhere", "revision": "another"}})
        task = tatoeba_task(FRENCH, ENGLISH)
        task.metadata = metadata

    cached = evaluate_mteb(model, task, cache=tmp_path, **options)
    assert len(encoded) == 4
    assert cached == evaluate_mteb(model, task, **options)


@pytest.mark.parametrize("kind", TYPES.split())
def test_text_tasks(kind: str, tiny_export: str):
    task = mock_task(kind)
    metrics = evaluate_mteb(tiny_export, task())

    assert metrics
    for key in metrics:
        assert key.startswith(f"{task.metadata.name}-mteb/")


def mock_task(kind: str) -> Any:
    """The first of mteb's own mock tasks of this kind that has texts only."""
    module = importlib.import_module(f"mteb.mocks.mock_tasks.{kind}")
    for name, task in vars(module).items():
        is_defined_here = name.startswith("Mock") and task.__module__ == module.__name__
        if is_defined_here and getattr(task, "metadata", None) and task.metadata.modalities == ["text"]:
            return task


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

    assert len(blocks) == 3
    printed = capsys.readouterr().out
    for text in ("True\n", "ModelMeta(", "Tatoeba"):
        assert text in printed
    assert (tmp_path / "mteb-results" / "results" / "me__my-model").is_dir()
