from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mining_fakes import NumberEncoder
from sentence_transformers import SentenceTransformer

from hf_xlsr.encoders.encoding import embed
from hf_xlsr.mining import stages as module
from hf_xlsr.mining.stages import LazyEncoder, Side, VectorFile, encode_shards
from hf_xlsr.mining.texts import TextStore, read_texts


@pytest.fixture(autouse=True)
def small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SMALLEST_SHARD", 8)


def side(folder: Path, sentences: Any, **options: Any) -> Side:
    folder.mkdir(exist_ok=True)
    read_texts(sentences, folder, name=folder.name, **options)
    store = TextStore(folder, folder.name)
    return Side(store, VectorFile(folder, store))


def test_shard_is_sorted_by_length_and_has_each_text_once(tmp_path: Path):
    sentences = ["three words long", "a", "bb", "a", "ccc", "bb", "a", "dddd"]
    encoder = NumberEncoder()
    source = side(tmp_path / "source", sentences, duplicates="keep")

    encode_shards([source], LazyEncoder(encoder), {"prompt": "q: "})

    assert encoder.calls == [["q: three words long", "q: dddd", "q: ccc", "q: bb", "q: a"]]
    expected = embed(NumberEncoder(), sentences, prompt="q: ").astype(np.float16)
    np.testing.assert_array_equal(source.file.open(), expected)


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
