from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import pytest
from input_helpers import read, write_tsv

from hf_xlsr.utils.errors import XlsrError


def bucc_files(tmp_path: Path) -> dict[str, Any]:
    for part in ("train", "test"):
        write_tsv(tmp_path / f"{part}.de", [f"{part}-de-{n}\tde {part} {n}" for n in range(3)])
        write_tsv(tmp_path / f"{part}.en", [f"{part}-en-{n}\ten {part} {n}" for n in range(3)])
        write_tsv(tmp_path / f"{part}.gold", [f"{part}-de-0\t{part}-en-1"])
    places = {
        f"{part}.{end}": str(tmp_path / f"{part}.{end}") for part in ("train", "test") for end in ("de", "en", "gold")
    }
    return {
        "data": (places["test.de"], places["test.en"]),
        "gold": places["test.gold"],
        "tune": (places["train.de"], places["train.en"]),
        "tune_gold": places["train.gold"],
    }


def test_bucc_files_and_their_languages(tmp_path: Path) -> None:
    files = bucc_files(tmp_path)
    inputs = read("bucc", *files.pop("data"), **files)
    assert inputs.languages == ("de", "en")
    assert inputs.bitexts["test"].gold == {("test-de-0", "test-en-1")}
    assert inputs.bitexts["tune"].sources[0] == "de train 0"
    assert set(inputs.hashes(())) == {"test", "tune"}


def test_languages_stand_before_the_suffix_of_a_compression(tmp_path: Path) -> None:
    files = bucc_files(tmp_path)
    packed = []
    for name in files.pop("data"):
        packed.append(f"{name}.gz")
        Path(packed[-1]).write_bytes(gzip.compress(Path(name).read_bytes()))
    assert read("bucc", *packed, **files).languages == ("de", "en")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tune": ()}, "--tune is missing; protocol bucc tunes its threshold on other data"),
        ({"gold": None}, "--gold is missing"),
        ({"tune_gold": None}, "--tune-gold is missing"),
        ({"data": ("a.de",)}, "--data has 1 file\\(s\\); protocol bucc takes two"),
        ({"tune": ("a", "b", "c")}, "--tune has 3 file\\(s\\)"),
        ({"columns": "source=x"}, "--columns is for tables"),
        ({"languages": ("de",)}, "give those of sources and targets"),
    ],
)
def test_mistakes_with_bucc(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    files = bucc_files(tmp_path) | change
    with pytest.raises(XlsrError, match=message):
        read("bucc", *files.pop("data"), **files)


def test_bucc_files_without_a_language_in_their_names(tmp_path: Path) -> None:
    files = bucc_files(tmp_path)
    plain = tuple(str(Path(file).rename(Path(file).with_suffix(f".{n}"))) for n, file in enumerate(files.pop("data")))
    with pytest.raises(XlsrError, match="do not end in their languages; say --languages de,en"):
        read("bucc", *plain, **files)


def test_bucc_is_not_tuned_on_a_copy(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    files = bucc_files(tmp_path)
    read("bucc", *files["data"], **{key: value for key, value in files.items() if key != "data"})
    assert not caplog.messages
    for end in ("de", "en"):  # the texts of the test under the ids of the training part
        lines = [f"train-{end}-{n}\t{end} test {n}" for n in range(3)]
        write_tsv(tmp_path / f"train.{end}", lines)
        if end == "de":
            read("bucc", *files["data"], **{key: value for key, value in files.items() if key != "data"})
            assert caplog.messages == ["3 sources and 0 targets of --data stand in --tune too"]
    write_tsv(tmp_path / "train.gold", ["train-de-2\ttrain-en-2"])
    with pytest.raises(XlsrError, match="--data and --tune hold the same texts; tune the threshold on other data"):
        read("bucc", *files.pop("data"), **files)
