from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mining_fakes import NumberEncoder, numbered
from sentence_transformers import SentenceTransformer

from hf_xlsr.encoders.encoding import embed
from hf_xlsr.mining import encode_stage as module
from hf_xlsr.mining.encode_stage import LazyEncoder, VectorFile, check_vectors, encode_shards, shards_of
from hf_xlsr.mining.texts import TextStore, read_texts
from hf_xlsr.utils.errors import XlsrError


@pytest.fixture(autouse=True)
def small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SMALLEST_SHARD", 8)


def side(folder: Path, sentences: Any, **options: Any) -> tuple[TextStore, VectorFile]:
    folder.mkdir(exist_ok=True)
    read_texts(sentences, folder, name=folder.name, **options)
    store = TextStore(folder, folder.name)
    return store, VectorFile(folder, len(store), shards_of(store))


def encode(parts: list[tuple[TextStore, VectorFile]], encoder: Any, **options: Any) -> list[np.ndarray]:
    encode_shards([(store, file, None) for store, file in parts], LazyEncoder(encoder), options)
    return [file.open() for _, file in parts]


def test_vectors_are_those_of_embed_in_float16(tmp_path: Path):
    sentences = numbered("en", 30)
    parts = [side(tmp_path / "source", sentences), side(tmp_path / "target", sentences[:3])]
    source, target = encode(parts, NumberEncoder())
    expected = embed(NumberEncoder(), sentences).astype(np.float16)
    np.testing.assert_array_equal(source, expected)
    np.testing.assert_array_equal(target, expected[:3])
    assert source.dtype == np.float16 and isinstance(source, np.memmap)


def test_a_shard_comes_longest_first_with_its_prompt_and_each_text_once(tmp_path: Path):
    sentences = ["three words long", "a", "bb", "a", "ccc", "bb", "a", "dddd"]
    encoder = NumberEncoder()
    (vectors,) = encode([side(tmp_path / "source", sentences, duplicates="keep")], encoder, prompt="q: ")
    assert encoder.calls == [["q: three words long", "q: dddd", "q: ccc", "q: bb", "q: a"]]
    expected = embed(NumberEncoder(), sentences, prompt="q: ").astype(np.float16)
    np.testing.assert_array_equal(vectors, expected)


def test_processes_share_the_shards_and_their_number_changes_nothing(tmp_path: Path):
    sentences = numbered("en", 50)
    (alone,) = encode([side(tmp_path / "one", sentences)], NumberEncoder())
    encoders = [NumberEncoder() for _ in range(3)]
    parts = [side(tmp_path / "many", sentences)]
    # One after the other: what those before have done must not change the others' shares.
    for index, encoder in enumerate(encoders):
        store, file = side_again(parts[0])
        encode_shards([(store, file, None)], LazyEncoder(encoder), {}, process=(index, 3))
    np.testing.assert_array_equal(parts[0][1].open(), alone)
    assert [len(encoder.calls) for encoder in encoders] == [3, 2, 2]


def side_again(part: tuple[TextStore, VectorFile]) -> tuple[TextStore, VectorFile]:
    store, file = part
    return store, VectorFile(file.path.parent, len(store), file.shards)


def test_only_what_is_missing_is_encoded_and_a_model_only_then_loaded(tmp_path: Path, monkeypatch: Any):
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
    (vectors,) = encode([side_again(part)], rest)
    assert len(rest.calls) == 4
    np.testing.assert_array_equal(vectors, embed(NumberEncoder(), part[0].texts(np.arange(50))).astype(np.float16))
    monkeypatch.setattr(module, "load_encoder", lambda *arguments: pytest.fail("the model was loaded"))
    encode([side_again(part)], str(tmp_path))


def test_a_write_that_is_cut_short_is_not_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    _, file = side(tmp_path / "source", numbered("en", 20))

    class Full:
        """A file on a disk with room for 100 bytes more."""

        room = 100

        def seek(self, start: int) -> None:
            pass

        def write(self, view: memoryview) -> int:
            if not self.room:
                raise OSError(28, "No space left on device")
            written = min(self.room, len(view))
            self.room -= written
            return written

    with pytest.raises(OSError, match="No space left"):
        module._write_all(Full(), 0, bytes(300))
    monkeypatch.setattr(module, "_write_all", lambda *arguments: module.os.write(1023, b""))
    with pytest.raises(OSError):
        file.write(0, np.ones((8, 4)))
    assert file.missing() == [0, 1, 2]


@pytest.mark.parametrize(("rows", "width"), [(1, 1), (3, 1024), (123_456_789, 4096)])
def test_the_header_is_numpys(rows: int, width: int, tmp_path: Path):
    header = module._header((rows, width))
    assert len(header) == 128
    (tmp_path / "file.npy").write_bytes(header)
    with (tmp_path / "file.npy").open("rb") as file:
        np.lib.format.read_magic(file)
        assert np.lib.format.read_array_header_1_0(file) == ((rows, width), False, np.dtype("<f2"))


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (np.nan, "the vector of line 5 of source holds NaN or infinity; check the encoder, or encode in float32."),
        (np.inf, "the vector of line 5 of source holds NaN or infinity"),
        (0.0, "the vector of line 5 of source is all zeros; leave that sentence out, or take an encoder that knows"),
    ],
)
def test_a_bad_vector_is_named_by_its_line(value: float, message: str, tmp_path: Path):
    class Bad(NumberEncoder):
        def vector(self, text: str) -> np.ndarray:
            return np.full(self.width, value) if text == "bad" else super().vector(text)

    part = side(tmp_path / "source", ["one", "", "one", "longer", "bad", "the longest of all"])
    with pytest.raises(XlsrError, match=message):
        encode([part], Bad())
    assert part[1].missing() == [0]


def test_an_encoder_must_not_change_its_width(tmp_path: Path):
    class Grows(NumberEncoder):
        def encode(self, texts: Any, **options: Any) -> np.ndarray:
            self.width += 1
            return super().encode(texts, **options)

    with pytest.raises(XlsrError, match="the encoder gave vectors 26 wide after others of another width"):
        encode([side(tmp_path / "source", numbered("en", 20))], Grows())


def test_check_vectors_looks_at_every_block(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "ROWS_AT_ONCE", 4)
    vectors = np.eye(9, dtype=np.float32)
    assert check_vectors(vectors, str) and check_vectors(vectors.astype(np.float16), str)
    vectors[7] *= 1.1
    assert not check_vectors(vectors, str)
    vectors[8] = 0
    with pytest.raises(XlsrError, match="the vector of row 8 is all zeros"):
        check_vectors(vectors, lambda row: f"row {row}")


def test_float16_vectors_of_any_width_count_as_of_length_one():
    rng = np.random.default_rng(0)
    for width in (2, 64, 4096):
        vectors = rng.normal(size=(200, width))
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        assert check_vectors(vectors.astype(np.float16), str)


def test_a_model_of_the_hub_counts_by_its_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    import huggingface_hub
    from huggingface_hub.errors import LocalEntryNotFoundError

    snapshot, loads = tmp_path / "snapshot", list[str]()

    def cached(model: str, **options: Any) -> str:
        if not snapshot.exists():
            raise LocalEntryNotFoundError("not cached")
        return str(snapshot)

    def load(model: str, *arguments: Any) -> NumberEncoder:
        loads.append(model)
        return NumberEncoder()

    def fetch(model: str, *arguments: Any) -> NumberEncoder:
        snapshot.mkdir()
        (snapshot / "model.bin").write_text("a")
        return load(model)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", cached)
    monkeypatch.setattr(module, "load_encoder", load)
    assert LazyEncoder("owner/name").identity() == "owner/name"  # loaded, but from no place that is known
    monkeypatch.setattr(module, "load_encoder", fetch)
    first = LazyEncoder("owner/name").identity()
    assert loads == ["owner/name"] * 2
    assert first == LazyEncoder("owner/name").identity() == LazyEncoder(str(snapshot)).identity()
    assert len(loads) == 2  # what is cached is not loaded to be known
    (snapshot / "model.bin").write_text("b")
    assert first != LazyEncoder("owner/name").identity()


def test_encoders_are_told_apart(tmp_path: Path):
    one, other = tmp_path / "one", tmp_path / "other"
    for folder, content in ((one, "a"), (other, "b")):
        (folder / "sub").mkdir(parents=True)
        (folder / "sub" / "model.bin").write_text(content)
    first = LazyEncoder(str(one)).identity()
    assert first != LazyEncoder(str(other)).identity()
    (other / "sub" / "model.bin").write_text("a")
    assert first == LazyEncoder(str(other)).identity()
    assert first != LazyEncoder(str(one), dtype="bfloat16").identity()
    with pytest.raises(XlsrError, match="device is 'cuda' but onnx runs on the processor"):
        LazyEncoder(str(one), "cuda", "onnx").identity()  # before it is loaded
    assert LazyEncoder(NumberEncoder()).identity() == LazyEncoder(NumberEncoder()).identity()
    assert LazyEncoder(NumberEncoder()).identity() != LazyEncoder(NumberEncoder(noise=0.5)).identity()
    with pytest.raises(XlsrError, match="model folder './none' does not exist"):
        LazyEncoder("./none").identity()
    with pytest.raises(XlsrError, match="dtype is 'float8'; did you mean 'float32'?"):
        LazyEncoder("./none", dtype="float8")


def test_the_width_is_what_the_encoder_tells(tiny_export: str) -> None:
    assert LazyEncoder(tiny_export, "cpu").width() == SentenceTransformer(tiny_export, device="cpu").encode("a").size
    assert LazyEncoder(NumberEncoder()).width() is None


def test_loaded_models_are_told_apart_by_what_a_probe_does_not_see(tiny_export: str) -> None:
    def loaded() -> SentenceTransformer:
        return SentenceTransformer(tiny_export, device="cpu")

    first = LazyEncoder(loaded()).identity()
    assert first == LazyEncoder(loaded()).identity()
    (rows := loaded())[0].model.embeddings.word_embeddings.weight.data[-1] += 1e-4
    (shorter := loaded()).max_seq_length = 7
    (prompted := loaded()).prompts["query"] = "query: "
    assert len({first, *(LazyEncoder(model).identity() for model in (rows, shorter, prompted))}) == 4


def test_objects_that_cut_elsewhere_are_told_apart() -> None:
    class Cutting(NumberEncoder):
        def __init__(self, length: int) -> None:
            super().__init__()
            self.length = length

        def encode(self, texts: Sequence[str], **options: Any) -> np.ndarray:
            return super().encode([text[: self.length] for text in texts], **options)

    assert LazyEncoder(Cutting(50)).identity() != LazyEncoder(Cutting(90)).identity()
    assert LazyEncoder(Cutting(50)).identity() == LazyEncoder(Cutting(50)).identity()
