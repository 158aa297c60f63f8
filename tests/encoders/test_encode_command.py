"""The command `hf-xlsr encode`: files of embeddings, and the store that evaluation and mining share."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import make_pairs
from sentence_transformers import SentenceTransformer

from hf_xlsr.cli import encode as encode_module
from hf_xlsr.cli import main
from hf_xlsr.cli import options as options_module
from hf_xlsr.encoders.cache import CachedEncoder
from hf_xlsr.evaluation.rows import both_sides
from hf_xlsr.utils.tasks import InProcess, LocalPool

ENGLISH, FRENCH = both_sides(make_pairs(60, seed=8))


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    """An English and a French text."""
    english = tmp_path / "en.txt"
    english.write_text("\n".join(ENGLISH) + "\n", "utf-8")
    french = tmp_path / "fr.txt"
    french.write_text("\n".join(FRENCH) + "\n", "utf-8")
    return [str(english), str(french)]


def test_files_and_store(tiny_export: str, files: list[str], tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    english, french = files
    output = tmp_path / "out"
    store = ["--vectors", str(tmp_path / "store")]
    words = ["encode", tiny_export, "--texts", f"en={english}", f"fr={french}", *store]
    assert main([*words, "--output", str(output)]) == 0
    assert "fr: 60 texts" in capsys.readouterr().out

    model = SentenceTransformer(tiny_export, device="cpu")
    for language, sentences in (("en", ENGLISH), ("fr", FRENCH)):
        lines = (output / f"{language}.txt").read_text("utf-8").splitlines()
        assert lines == sentences
        vectors = np.load(output / f"{language}.npy")
        np.testing.assert_allclose(vectors, model.encode(lines, normalize_embeddings=True), atol=1e-5)

    # Neither evaluation nor mining encodes anything again.
    counts: list[int] = []
    encode = CachedEncoder.encode

    def counted(self: CachedEncoder, *args: Any, **options: Any) -> np.ndarray:
        vectors = encode(self, *args, **options)
        counts.append(self.encoded)
        return vectors

    monkeypatch.setattr(CachedEncoder, "encode", counted)
    mined = tmp_path / "pairs.tsv"
    plain = tmp_path / "plain.tsv"
    mine = ["mine", *files, "--model", tiny_export, "--device", "cpu"]
    assert main([*mine, "--output", str(mined), *store]) == 0
    assert set(counts) == {0}
    assert main([*mine, "--output", str(plain)]) == 0
    assert mined.read_text("utf-8") == plain.read_text("utf-8")


class OtherProcess(InProcess):
    """Runs tasks as another process would."""

    device = "cpu"

    def run(self, work: Any, tasks: Any, *, description: str = "") -> Any:
        return super().run(pickle.loads(pickle.dumps(work)), tasks)


@pytest.mark.parametrize("store", [False, True])
def test_tasks_give_the_vectors_of_one_process(
    store: bool, tiny_export: str, files: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(encode_module, "ROWS_AT_ONCE", 25)
    words = ["encode", tiny_export, "--texts", f"en={files[0]}", "--device", "cpu"]
    if store:
        words += ["--vectors", str(tmp_path / "store")]
    assert main([*words, "--output", str(tmp_path / "tasks"), "--num-proc", "1"]) == 0
    alone = np.load(tmp_path / "tasks" / "en.npy")

    monkeypatch.setattr(encode_module, "InProcess", LocalPool)
    monkeypatch.setattr(options_module, "runner_of", lambda *arguments: OtherProcess())
    assert main([*words, "--output", str(tmp_path / "tasks")]) == 0
    np.testing.assert_array_equal(np.load(tmp_path / "tasks" / "en.npy"), alone)
    assert {path.name for path in (tmp_path / "tasks").iterdir()} == {"en.npy", "en.txt"}


def test_gpus_need_a_cluster(tiny_export: str, files: list[str], tmp_path: Path, capsys: Any) -> None:
    words = ["encode", tiny_export, "--texts", f"en={files[0]}", "--output", str(tmp_path / "out"), "--num-gpus", "1"]
    assert main(words) != 0
    assert "--engine ray" in capsys.readouterr().err


@pytest.mark.parametrize("by_tasks", [False, True])
def test_a_shared_store_keeps_the_tasks_of_others(
    by_tasks: bool, tiny_export: str, files: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    others = tmp_path / "store" / ".tasks" / "of another model"
    others.mkdir(parents=True)
    (tmp_path / "store").chmod(0o700)
    if by_tasks:
        monkeypatch.setattr(encode_module, "InProcess", LocalPool)
        monkeypatch.setattr(options_module, "runner_of", lambda *arguments: OtherProcess())
    words = ["encode", tiny_export, "--texts", f"en={files[0]}", "--vectors", str(tmp_path / "store")]
    assert main(words) == 0
    assert [path.name for path in others.parent.iterdir()] == [others.name]
