"""Of a data folder only files inside of it are read, whatever its card says, and nothing is asked of other machines."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import datasets
import pytest

from hf_xlsr.data.formats.reading import read_rows

ROW = {"source": "a", "target": "b"}
TABLE = "source,target\na,b\n"


@pytest.fixture(autouse=True)
def no_network(monkeypatch):
    def refused(*_: Any) -> None:
        raise AssertionError("a connection")

    monkeypatch.setattr(socket.socket, "connect", refused)
    monkeypatch.setattr(socket, "getaddrinfo", refused)


def folder_with(tmp_path: Path, card: str, **files: str) -> Path:
    """A data folder beside a file that it must not read."""
    (tmp_path / "secret.csv").write_text("source,target\nsecret,geheim\n", "utf-8")
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "README.md").write_text(card, "utf-8")
    for name, text in {"train.csv": TABLE, **files}.items():
        (folder / name).write_text(text, "utf-8")
    return folder


def card_of(*configs: dict[str, Any]) -> str:
    return f"---\nconfigs: {json.dumps(configs)}\n---\n"


@pytest.mark.parametrize(
    "files",
    [
        "../secret.csv",
        "{tmp}/secret.csv",
        "http://127.0.0.1:9/x.csv",
        "zip://x.csv::http://127.0.0.1:9/x.zip",
        "hf://datasets/owner/name/x.csv",
        "file:///etc/passwd",
        ["train.csv", "../secret.csv"],
        [{"split": "train", "path": "train.csv"}, {"split": "dev", "path": "https://127.0.0.1:9/x.csv"}],
        {"train": ["train.csv"], "dev": "../*.csv"},
    ],
    ids=str,
)
def test_files_elsewhere(tmp_path, files):
    text = card_of({"config_name": "default", "data_files": files}).replace("{tmp}", str(tmp_path))
    folder = folder_with(tmp_path, text)
    with pytest.raises(ValueError, match="inside of it|not a file inside"):
        list(read_rows(folder))


def test_data_elsewhere(tmp_path):
    folder = folder_with(tmp_path, card_of({"config_name": "default", "data_dir": ".."}))
    with pytest.raises(ValueError, match="inside of it"):
        list(read_rows(folder))


@pytest.mark.parametrize("name", [".huggingface.yaml", "dataset_infos.json"])
def test_other_descriptions_are_not_read(tmp_path, name):
    described = {"configs": [{"config_name": "default", "data_files": "../secret.csv"}]}
    assert list(read_rows(folder_with(tmp_path, "", **{name: json.dumps(described)}))) == [ROW]


def test_a_card_with_a_bomb(tmp_path):
    lines = [f"a{number}: &a{number} [{', '.join([f'*a{number - 1}'] * 9)}]" for number in range(1, 30)]
    card = "\n".join(["---", "a0: &a0 x", *lines, "---"])
    assert list(read_rows(folder_with(tmp_path, card))) == [ROW]


def test_files_and_options_of_a_card(tmp_path):
    configs = [
        {"config_name": "en", "data_files": "en.csv", "sep": ";"},
        {"config_name": "fr", "data_files": [{"split": "train", "path": "f*.csv"}]},
    ]
    folder = folder_with(tmp_path, card_of(*configs), **{"en.csv": "source;target\na;b\n", "fr.csv": TABLE})
    assert list(read_rows(folder, config="en")) == [ROW]
    assert list(read_rows(folder, config="fr")) == [ROW]
    with pytest.raises(ValueError, match="one of en, fr"):
        list(read_rows(folder))


@pytest.mark.parametrize("option", [{"sep": "(a+)+"}, {"storage_options": {}}, {"engine": "python"}], ids=str)
def test_other_options_of_a_card(tmp_path, option):
    folder = folder_with(tmp_path, card_of({"config_name": "default", "data_files": "*.csv", **option}))
    with pytest.raises(ValueError, match=f"`{next(iter(option))}`"):
        list(read_rows(folder))


def test_saved_rows_elsewhere(tmp_path):
    datasets.Dataset.from_list([ROW]).save_to_disk(tmp_path / "other")
    datasets.Dataset.from_list([ROW]).save_to_disk(tmp_path / "data")
    file = tmp_path / "data" / "state.json"
    state = json.loads(file.read_text("utf-8"))
    state["_data_files"] = [{"filename": f"../other/{entry['filename']}"} for entry in state["_data_files"]]
    file.write_text(json.dumps(state), "utf-8")
    with pytest.raises(ValueError, match="part of a path"):
        list(read_rows(tmp_path / "data"))


def test_saved_splits_elsewhere(tmp_path):
    datasets.DatasetDict(train=datasets.Dataset.from_list([ROW])).save_to_disk(tmp_path / "data")
    (tmp_path / "data" / "dataset_dict.json").write_text(json.dumps({"splits": ["../x"]}), "utf-8")
    with pytest.raises(ValueError, match="part of a path"):
        list(read_rows(tmp_path / "data"))


def test_a_repository_that_names_a_local_file(monkeypatch):
    files = {"train": ["hf://datasets/owner/name@main/a.csv", "/etc/passwd"]}
    builder = SimpleNamespace(config=SimpleNamespace(data_files=files))
    monkeypatch.setattr(datasets, "load_dataset_builder", lambda path, **_: builder)
    with pytest.raises(ValueError, match="/etc/passwd"):
        list(read_rows("owner/name"))
