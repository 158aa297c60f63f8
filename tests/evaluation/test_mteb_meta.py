"""Exports among mteb's own models: registered in a process, and as code for mteb."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mteb_helpers import routed_model
from sentence_transformers import SentenceTransformer

from hf_xlsr.utils.errors import XlsrError

mteb = pytest.importorskip("mteb")

from mteb.models.model_implementations import MODEL_REGISTRY  # noqa: E402

from hf_xlsr.evaluation.mteb.evaluate import as_mteb_encoder, content_hash, evaluate_mteb  # noqa: E402
from hf_xlsr.evaluation.mteb.meta import model_source, register_model  # noqa: E402
from hf_xlsr.evaluation.mteb.tasks import local_task  # noqa: E402

COMMIT = "0123456789" * 4


@pytest.fixture(autouse=True)
def registry(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("me/plain", "me/routed"):
        monkeypatch.setitem(MODEL_REGISTRY, name, None)
        del MODEL_REGISTRY[name]


@pytest.fixture
def folder(tiny_export: str, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_export, tmp_path / "copy"))


def test_a_registered_export_is_one_of_mtebs_models(folder: Path) -> None:
    meta = register_model(folder, name="me/plain", prompt="red ", languages=["en", "fr"])
    assert register_model(folder, name="me/plain", prompt="red ", languages=["en", "fr"]).revision == meta.revision
    assert mteb.get_model_meta("me/plain").revision == content_hash(folder)
    model = mteb.get_model("me/plain", device="cpu")
    assert (model.mteb_model_meta.name, model.prompt) == ("me/plain", "red ")
    rows = [{"source": f"maison {n}", "target": f"house {n}", "source_lang": "fr", "target_lang": "en"} for n in "abc"]
    scores = [
        evaluate_mteb(encoder, local_task("Tatoeba", rows))
        for encoder in (model, as_mteb_encoder(folder, prompt="red "))
    ]
    assert scores[0] == scores[1] and scores[0]
    (folder / "config_sentence_transformers.json").write_text("{}")
    with pytest.raises(XlsrError, match="is no longer what was registered as 'me/plain'; register it again"):
        mteb.get_model("me/plain")


def test_routes_come_along(tiny_export: str, tmp_path: Path) -> None:
    routed_model(tiny_export, ("source", "target")).save(str(tmp_path / "routed"), create_model_card=False)
    register_model(tmp_path / "routed", name="me/routed", routes={"en": "source", "fr": "target"})
    model = mteb.get_model("me/routed")
    task = mteb.get_task("Tatoeba").metadata
    found = model.encode([{"text": ["red"]}], task_metadata=task, hf_split="test", hf_subset="fra_Latn")
    expected = SentenceTransformer(str(tmp_path / "routed"), device="cpu").encode(["red"], task="target")
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)


def test_names_of_mtebs_own_models_are_kept(folder: Path) -> None:
    with pytest.raises(XlsrError, match="mteb has a model called 'intfloat/multilingual-e5-small'; give another name"):
        register_model(folder, name="intfloat/multilingual-e5-small")


def test_the_code_for_mteb_says_what_the_model_is(folder: Path, tiny_export: str) -> None:
    encoder = as_mteb_encoder(folder, name="me/tiny-model.v2", languages=["en"], training_datasets=["XNLI"])
    namespace: dict[str, Any] = {}
    exec(model_source(encoder, revision=COMMIT, release_date="2026-01-31"), namespace)
    found, ours = namespace["tiny_model_v2"], encoder.mteb_model_meta
    assert (found.name, found.revision, str(found.release_date)) == ("me/tiny-model.v2", COMMIT, "2026-01-31")
    for name in ("languages", "n_parameters", "embed_dim", "max_tokens", "similarity_fn_name", "training_datasets"):
        assert getattr(found, name) == getattr(ours, name), name
    assert found.loader.__name__ == "SentenceTransformerEncoderWrapper" and not found.loader_kwargs

    def says(encoder: Any, revision: str = COMMIT) -> str:
        with pytest.raises(XlsrError) as raised:
            model_source(encoder, revision=revision, release_date="2026-01-31")
        return str(raised.value)

    assert "name is 'local/copy'; give its id on the Hub" in says(as_mteb_encoder(folder))
    assert f"revision is '{ours.revision}'; give the commit" in says(encoder, ours.revision)
    assert "puts a prompt before every text" in says(as_mteb_encoder(folder, name="me/x", prompt="query: "))
    assert "has a route for each language" in says(as_mteb_encoder(routed_model(tiny_export), name="me/x"))


def test_the_code_for_mteb_runs_whatever_the_model_is(folder: Path) -> None:
    encoder = as_mteb_encoder(folder, name="me/2024-tiny", languages=["en"])
    encoder.mteb_model_meta.max_tokens = None  # of a static model, which cuts nothing
    namespace: dict[str, Any] = {}
    exec(model_source(encoder, revision=COMMIT, release_date="2026-01-31"), namespace)
    assert namespace["model_2024_tiny"].name == "me/2024-tiny" and namespace["model_2024_tiny"].max_tokens is None
