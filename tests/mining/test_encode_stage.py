from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mining_fakes import NumberEncoder, numbered
from sentence_transformers import SentenceTransformer

from hf_xlsr.encoders.encoding import embed
from hf_xlsr.mining import stages as module
from hf_xlsr.mining.stages import LazyEncoder, VectorFile, encode_shards
from hf_xlsr.mining.texts import TextStore, read_texts
from hf_xlsr.utils.errors import XlsrError


@pytest.fixture(autouse=True)
def small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SMALLEST_SHARD", 8)


Side = tuple[TextStore, VectorFile]


def side(folder: Path, sentences: Any, **options: Any) -> Side:
    folder.mkdir(exist_ok=True)
    read_texts(sentences, folder, name=folder.name, **options)
    store = TextStore(folder, folder.name)
    return store, VectorFile.of(folder, store)


def again(part: Side) -> Side:
    """The side, as another process opens it."""
    store, file = part
    return store, VectorFile.of(file.path.parent, store)


def encode(parts: list[Side], encoder: Any, **options: Any) -> list[np.ndarray]:
    encode_shards([(store, file, None) for store, file in parts], LazyEncoder(encoder), options)
    return [file.open() for _, file in parts]


def test_shard_is_sorted_by_length_and_has_each_text_once(tmp_path: Path):
    sentences = ["three words long", "a", "bb", "a", "ccc", "bb", "a", "dddd"]
    encoder = NumberEncoder()
    (vectors,) = encode([side(tmp_path / "source", sentences, duplicates="keep")], encoder, prompt="q: ")
    assert encoder.calls == [["q: three words long", "q: dddd", "q: ccc", "q: bb", "q: a"]]
    expected = embed(NumberEncoder(), sentences, prompt="q: ").astype(np.float16)
    np.testing.assert_array_equal(vectors, expected)


def test_number_of_processes_changes_nothing(tmp_path: Path):
    sentences = numbered("en", 50)
    (alone,) = encode([side(tmp_path / "one", sentences)], NumberEncoder())
    encoders = [NumberEncoder() for _ in range(3)]
    part = side(tmp_path / "many", sentences)
    # One after the other: finished shards must not change the shares of later processes.
    for index, encoder in enumerate(encoders):
        encode_shards([(*again(part), None)], LazyEncoder(encoder), {}, process=(index, 3))
    np.testing.assert_array_equal(part[1].open(), alone)
    assert [len(encoder.calls) for encoder in encoders] == [3, 2, 2]


def test_only_missing_shards_are_encoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    part = side(tmp_path / "source", numbered("en", 50))

    class Stops(NumberEncoder):
        def encode(self, texts: Any, **options: Any) -> np.ndarray:
            if len(self.calls) == 3:
                raise KeyboardInterrupt
            return super().encode(texts, **options)

    with pytest.raises(KeyboardInterrupt):
        encode([part], Stops())
    assert part[1].missing() == [3, 4, 5, 6]
    rest = NumberEncoder()
    (vectors,) = encode([again(part)], rest)
    assert len(rest.calls) == 4
    np.testing.assert_array_equal(vectors, embed(NumberEncoder(), part[0].texts(np.arange(50))).astype(np.float16))
    monkeypatch.setattr(module, "load_encoder", lambda *arguments: pytest.fail("the model was loaded"))
    encode([again(part)], str(tmp_path))


def test_encoder_must_not_change_its_width(tmp_path: Path):
    class Grows(NumberEncoder):
        def encode(self, texts: Any, **options: Any) -> np.ndarray:
            self.width += 1
            return super().encode(texts, **options)

    with pytest.raises(XlsrError, match="width"):
        encode([side(tmp_path / "source", numbered("en", 20))], Grows())


def test_model_of_the_hub_is_identified_by_its_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    import huggingface_hub
    from huggingface_hub.errors import LocalEntryNotFoundError

    snapshot, loads = tmp_path / "snapshot", list[str]()

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
    assert first == LazyEncoder("owner/name").identity() == LazyEncoder(str(snapshot)).identity()
    assert loads == ["owner/name"]
    (snapshot / "model.bin").write_text("b")
    assert first != LazyEncoder("owner/name").identity()
    assert LazyEncoder("owner/name").identity() != LazyEncoder("owner/name", dtype="bfloat16").identity()


class Truncating(NumberEncoder):
    def __init__(self, length: int) -> None:
        super().__init__()
        self.length = length

    def encode(self, texts: Sequence[str], **options: Any) -> np.ndarray:
        return super().encode([text[: self.length] for text in texts], **options)


def test_objects_are_identified_by_their_vectors():
    encoders = [NumberEncoder(), NumberEncoder(noise=0.5), Truncating(50), Truncating(90)]
    assert len({LazyEncoder(encoder).identity() for encoder in encoders}) == 4
    assert LazyEncoder(NumberEncoder()).identity() == LazyEncoder(NumberEncoder()).identity()


def test_loaded_models_are_identified_by_more_than_a_probe_shows(tiny_export: str) -> None:
    def loaded() -> SentenceTransformer:
        return SentenceTransformer(tiny_export, device="cpu")

    first = LazyEncoder(loaded()).identity()
    assert first == LazyEncoder(loaded()).identity()
    (rows := loaded())[0].model.embeddings.word_embeddings.weight.data[-1] += 1e-4
    (shorter := loaded()).max_seq_length = 7
    (prompted := loaded()).prompts["query"] = "query: "
    assert len({first, *(LazyEncoder(model).identity() for model in (rows, shorter, prompted))}) == 4
