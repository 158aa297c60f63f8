"""What leaves a folder is decided in one place: no link is followed, and only files of a model are sent or copied."""

from __future__ import annotations

import io
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from call_sites import call_sites, places_of
from cli_helpers import failing

from hf_xlsr.cli import main
from hf_xlsr.cli.export import _write_card
from hf_xlsr.encoders.reading import ModelPlace
from hf_xlsr.export.published_files import list_files
from hf_xlsr.runs.publish import uploads_of
from hf_xlsr.runs.recipe import load_runs
from hf_xlsr.utils.errors import XlsrError

SECRETS = ("id_rsa", "secrets.json", "aws_config.json", "notes.txt", "training_args.bin", "evil.py", "data/rows.jsonl")


@pytest.fixture
def run(tiny_export: str, tmp_path: Path) -> Path:
    """What a finished run leaves, as far as a push reads it."""
    home = tmp_path / "run"
    shutil.copytree(tiny_export, home / "model")
    (home / "model" / "README.md").write_text("# A model\n", "utf-8")
    for name in ("loss.png", "results.json"):
        (home / name).write_text("{}", "utf-8")

    (method,) = load_runs("quickstart")
    for folder in ("final", "checkpoint-2"):
        shutil.copytree(tiny_export, home / "training" / folder)
        for name in ("trainer_state.json", "rng_state.pth", "optimizer.pt"):
            (home / "training" / folder / name).write_text("{}", "utf-8")
    (home / "training" / "final" / "model.safetensors").unlink()  # with which an export is compared
    (home / "training" / "recipe.json").write_text(json.dumps(method.recipe.settings()), "utf-8")
    return home


def as_link(path: Path) -> None:
    """Moves a file or folder out of its place, and puts a link there."""
    target = path.with_name(f"{path.name} elsewhere")
    path.rename(target)
    path.symlink_to(target)


OF_THE_MODEL = ("", "model", "model/README.md", "model/config.json", "model/1_Pooling", "loss.png")
OF_THE_TRAINING = ("training", "training/recipe.json", "training/final", "training/final/config.json", "results.json")
OF_THE_TRAINING += ("training/checkpoint-2", "training/checkpoint-2/optimizer.pt")


@pytest.mark.parametrize("place", OF_THE_MODEL + OF_THE_TRAINING)
def test_push_follows_no_link(place: str, run: Path) -> None:
    as_link(run / place)
    with pytest.raises(XlsrError, match="is a link"), uploads_of(run, "me/model", what="all"):
        pass


@pytest.mark.parametrize("place", ["", "model", "model/README.md", "model/tokenizer.json", "model/1_Pooling"])
def test_export_follows_no_link(place: str, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.rmtree(run / "training")
    as_link(run / place)
    assert "is a link" in failing(capsys, "export", str(run), "--output", str(tmp_path / "out"))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("place", ["", "model", "model/README.md", "loss.png"])
def test_export_copies_no_card_behind_a_link(place: str, run: Path, tmp_path: Path) -> None:
    as_link(run / place)
    with pytest.raises(XlsrError, match="is a link"):
        _write_card(ModelPlace(str(run)), run, None, tmp_path)  # type: ignore[arg-type]


def test_only_files_of_a_model_are_listed(tiny_export: str, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(tiny_export, tmp_path / "model"))
    whole = list_files(folder)
    assert not whole.left_out

    for name in (*SECRETS, ".env"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("secret", "utf-8")
    listing = list_files(folder)

    assert listing.files == whole.files
    assert set(listing.left_out) == set(SECRETS)


def test_pipe_is_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "config.json")
    with pytest.raises(XlsrError, match="plain file"):
        list_files(tmp_path)


@pytest.fixture
def snapshot(tiny_export: str, tmp_path: Path) -> Path:
    """A model in a cache of the Hub: links to files named by their content."""
    repo = tmp_path / "models--me--model"
    (repo / "blobs").mkdir(parents=True)
    folder = repo / "snapshots" / "abc"
    for number, file in enumerate(path for path in sorted(Path(tiny_export).rglob("*")) if path.is_file()):
        blob = repo / "blobs" / str(number)
        shutil.copyfile(file, blob)
        link = folder / file.relative_to(tiny_export)
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(os.path.relpath(blob, link.parent))
    return folder


def test_cache_of_the_hub_is_exported(snapshot: Path, tmp_path: Path) -> None:
    assert main(["export", str(snapshot), "--output", str(tmp_path / "out")]) == 0
    assert (tmp_path / "out" / "model.safetensors").read_bytes() == (snapshot / "model.safetensors").read_bytes()


@pytest.mark.parametrize(
    "attack", ["a link out of the cache", "a link in place of a blob", "a link in place of blobs"]
)
def test_folder_like_a_cache(attack: str, snapshot: Path, tmp_path: Path) -> None:
    blobs = snapshot.parents[1] / "blobs"
    secret = tmp_path / "secret"
    secret.write_text("private", "utf-8")
    if attack == "a link out of the cache":
        (snapshot / "README.md").symlink_to(secret)
    elif attack == "a link in place of a blob":
        (blobs / "0").unlink()
        (blobs / "0").symlink_to(secret)
    else:
        as_link(blobs)
    with pytest.raises(XlsrError, match="is a link"):
        list_files(snapshot)


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What is given to the Hub."""
    uploads: list[Any] = []
    monkeypatch.setattr("hf_xlsr.export.hub.push_uploads", lambda given, **_: uploads.extend(given) or [])
    return uploads


def test_push_without_a_terminal(run: Path, sent: list[Any], capsys: pytest.CaptureFixture[str]) -> None:
    assert "--yes" in failing(capsys, "push", str(run), "--repo", "me/model")
    assert not sent


@pytest.mark.parametrize(("answer", "count"), [("n\n", 0), ("", 0), ("\n", 0), ("y\n", 1)])
def test_push_asks(answer: str, count: int, run: Path, sent: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = io.StringIO(answer)
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr("sys.stdin", terminal)
    main(["push", str(run), "--repo", "me/model"])
    assert len(sent) == count


def test_dry_run_shows_files_and_card(
    run: Path, sent: list[Any], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HF_TOKEN", raising=False)
    (run / "model" / "notes.txt").write_text("mine", "utf-8")
    assert main(["push", str(run), "--repo", "me/model", "--what", "all", "--dry-run"]) == 0
    printed = capsys.readouterr().out
    for text in ("me/model (public)", "model.safetensors", "loss.png", "# A model", "me/model-training (private)"):
        assert text in printed
    assert "Not sent, as they are no files of a model: notes.txt" in printed
    assert not sent


# Where the package sends files; each takes them from `list_files`.
SENDING = {"hf_xlsr/export/hub.py:_push", "trainers/hub.py:SlimPushes.push_to_hub"}


def test_nothing_else_sends_files() -> None:
    sends = {"upload_folder", "upload_file", "upload_large_folder", "create_commit", "CommitOperationAdd"}
    assert places_of(lambda site: site.method in sends) == SENDING
    listing = places_of(lambda site: site.method in ("list_files", "named_files"))
    assert listing >= {"trainers/hub.py:SlimPushes.push_to_hub", "hf_xlsr/cli/export.py:export"}
    assert {
        "hf_xlsr/runs/publish.py:_encoder",
        "hf_xlsr/runs/publish.py:_model",
        "hf_xlsr/runs/publish.py:_training",
        "hf_xlsr/export/corpus.py:_plain_files",
    } <= listing
    assert places_of(lambda site: site.method == "RepoUpload") == {
        "hf_xlsr/export/corpus.py:_write",  # what it wrote itself, from the file that the user named
        "hf_xlsr/runs/publish.py:_upload",
        "hf_xlsr/runs/publish.py:_training",
    }


def test_no_folder_is_copied_whole() -> None:
    assert not [site.place for site in call_sites() if site.method in ("copytree", "make_archive")]
