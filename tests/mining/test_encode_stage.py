from __future__ import annotations

import itertools
import pickle
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mining_fakes import NumberEncoder, numbered
from sentence_transformers import SentenceTransformer

from hf_xlsr.encoders.encoding import embed
from hf_xlsr.mining import stages as module
from hf_xlsr.mining.options import MiningOptions
from hf_xlsr.mining.stages import Job, LazyEncoder, ShardEncoder, Side
from hf_xlsr.mining.texts import TextStore, read_texts
from hf_xlsr.utils.errors import XlsrError


@pytest.fixture(autouse=True)
def small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SMALLEST_SHARD", 8)


def test_shard_is_sorted_by_length_and_has_each_text_once(tmp_path: Path):
    sentences = ["three words long", "a", "bb", "a", "ccc", "bb", "a", "dddd"]
    encoder = NumberEncoder()
    job = Job(tmp_path, MiningOptions(prompt="q: ", duplicates="keep"), {"source": sentences}, encoder, "keep")

    with job.claimed("mine", job.plan):
        stores, _ = job.read()
        vectors = job.encode(stores)["source"]

    assert encoder.calls[1:] == [["q: three words long", "q: dddd", "q: ccc", "q: bb", "q: a"]]  # after the probes
    expected = embed(NumberEncoder(), sentences, prompt="q: ").astype(np.float16)
    np.testing.assert_array_equal(vectors, expected)


def shard_work(encoder: LazyEncoder, identity: str, folder: Path) -> ShardEncoder:
    read_texts(["one", "two"], folder, "source")
    return pickle.loads(
        pickle.dumps(ShardEncoder({"source": Side(TextStore(folder, "source"), identity)}, encoder, {}))
    )


def test_worker_loads_a_model_once(tiny_export: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    loads = []
    load_encoder = module.load_encoder
    monkeypatch.setattr(module, "load_encoder", lambda *arguments: loads.append(arguments) or load_encoder(*arguments))
    encoder = LazyEncoder(tiny_export, "cpu")
    identity = encoder.identity()
    for number in range(3):
        shard_work(encoder, identity, tmp_path)(tmp_path / f"{number}.npz", ("source", 0, 2))
    assert len(loads) == 1
    np.testing.assert_array_equal(np.load(tmp_path / "0.npz")["vectors"], np.load(tmp_path / "2.npz")["vectors"])


def test_worker_with_other_files_of_the_model_is_refused(tiny_export: str, tmp_path: Path):
    folder = tmp_path / "model"
    shutil.copytree(tiny_export, folder)
    encoder = LazyEncoder(str(folder), "cpu")
    identity = encoder.identity()
    (folder / "tokenizer_config.json").write_text("{}")
    with pytest.raises(XlsrError, match="has another"):
        shard_work(encoder, identity, tmp_path)(tmp_path / "0.npz", ("source", 0, 2))


def test_loaded_model_is_not_sent_to_workers(tiny_export: str):
    encoder = LazyEncoder(SentenceTransformer(tiny_export, device="cpu"))
    with pytest.raises(XlsrError, match="folder or Hub id"):
        pickle.dumps(encoder)


def test_processors_of_several_kinds_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    names = itertools.cycle(["Processor A", "Processor B"])
    monkeypatch.setattr(module, "hardware_name", lambda device: next(names))
    job = Job(tmp_path, MiningOptions(), {"source": numbered("en", 20)}, NumberEncoder())
    with job.claimed("mine", job.plan):
        job.encode(job.read()[0])
    assert "Processor A, Processor B" in caplog.text


def test_model_of_the_hub_is_identified_by_its_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    import huggingface_hub
    from huggingface_hub.errors import LocalEntryNotFoundError

    snapshot = tmp_path / "snapshot"
    loads: list[str] = []

    def cached(model: str, **options: Any) -> str:
        if not snapshot.exists():
            raise LocalEntryNotFoundError("not cached")
        return str(snapshot)

    def download(model: str, *arguments: Any) -> NumberEncoder:
        loads.append(model)
        snapshot.mkdir()
        (snapshot / "model.bin").write_text("a")
        return NumberEncoder()

    monkeypatch.setattr(huggingface_hub, "snapshot_download", cached)
    monkeypatch.setattr(module, "load_encoder", download)

    first = LazyEncoder("owner/name").identity()
    assert LazyEncoder("owner/name").identity() == first
    assert LazyEncoder(str(snapshot)).identity() == first
    assert loads == ["owner/name"]

    (snapshot / "model.bin").write_text("b")
    changed = LazyEncoder("owner/name").identity()
    assert changed != first
    assert LazyEncoder("owner/name", dtype="bfloat16").identity() != changed


def test_loaded_models_are_identified_by_more_than_a_probe_shows(tiny_export: str) -> None:
    def loaded() -> SentenceTransformer:
        return SentenceTransformer(tiny_export, device="cpu")

    unchanged = loaded()
    other_row = loaded()
    other_row[0].model.embeddings.word_embeddings.weight.data[-1] += 1e-4
    shorter = loaded()
    shorter.max_seq_length = 7
    prompted = loaded()
    prompted.prompts["query"] = "query: "

    models = [unchanged, loaded(), other_row, shorter, prompted]
    identities = [LazyEncoder(model).identity() for model in models]
    assert identities[0] == identities[1]
    assert len(set(identities)) == 4
