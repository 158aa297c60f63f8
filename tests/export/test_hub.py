"""`hf-xlsr card` and `hf-xlsr push`, end to end, to a Hub in memory."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from cli_helpers import failing
from hub_helpers import READER, TOKEN, Hub, Repo, train, write_recipe
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer

from hf_xlsr.cli import main


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Hub:
    return Hub(monkeypatch)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of the lightweight method."""
    folder = tmp_path_factory.mktemp("light")
    return train(write_recipe(folder), folder / "run")


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "run"))


def push(run: Path, *words: str, repo: str = "me/toy") -> None:
    assert main(["push", "--yes", str(run), f"--repo={repo}", *words]) == 0


def pythons_of(text: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", text, re.DOTALL)


def test_export_and_figures_are_pushed(hub: Hub, run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    push(run)
    assert "/me/toy (public): " in capsys.readouterr().out
    assert hub.repos.keys() == {"me/toy"}

    expected = {name: (run / name).read_bytes() for name in ("loss.png", "tsne.png")}
    for path in (run / "model").rglob("*"):
        if path.is_file():
            expected[path.relative_to(run / "model").as_posix()] = path.read_bytes()
    pushed = dict(hub.repos["me/toy"].files)
    del pushed["README.md"], expected["README.md"]
    assert pushed == expected


def test_code_of_the_pushed_card_runs(hub: Hub, run: Path, tmp_path: Path) -> None:
    push(run)
    card = hub.repos["me/toy"].files["README.md"].decode()
    assert 'SentenceTransformer("me/toy")' in card
    assert "path/to/this/folder" not in card

    pulled = str(hub.pull("me/toy", tmp_path / "pulled"))
    vectors = []
    for code in pythons_of(card):
        namespace: dict[str, Any] = {}
        exec(code.replace("me/toy", pulled), namespace)
        vectors.append(namespace["vectors"])

    by_sentence_transformers, by_transformers = vectors
    expected = SentenceTransformer(str(run / "model")).encode(["The weather is lovely today."])
    np.testing.assert_allclose(by_transformers, by_sentence_transformers, atol=1e-5)
    np.testing.assert_allclose(by_sentence_transformers[:1], expected, atol=1e-5)


def test_training_state_is_private(hub: Hub, run: Path, tmp_path: Path) -> None:
    for name in ("checkpoint-6", "final"):  # as a run that was stopped: what is downloaded has to go on
        shutil.move(run / "training" / name, tmp_path / name)
    push(run, "--what", "all")

    encoder = hub.repos["me/toy"]
    assert not encoder.private
    assert not re.search("checkpoint|optimizer|recipe", " ".join(encoder.files))
    state = hub.repos["me/toy-training"]
    assert state.private
    assert "training/checkpoint-4/optimizer.pt" in state.files
    assert not any(path.endswith(("training_args.bin", ".arrow", ".jsonl")) for path in state.files)

    pulled = hub.pull("me/toy-training", tmp_path / "pulled")
    recipe = json.loads((pulled / "training" / "recipe.json").read_text("utf-8"))
    train(Path(recipe["data"]["train"]["path"]).parent / "lightweight_toy.yaml", pulled)
    expected = load_file(tmp_path / "final" / "model.safetensors")
    resumed = load_file(pulled / "training" / "final" / "model.safetensors")
    torch.testing.assert_close(resumed, expected, rtol=0, atol=0)


def test_broken_connection(hub: Hub, run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    hub.broken = True
    assert "resume" in failing(capsys, "push", "--yes", str(run), "--repo=me/toy")


def test_changed_run_is_mirrored(hub: Hub, run: Path) -> None:
    push(run, "--what", "all")
    files = hub.repos["me/toy"].files
    files["notes.md"] = b"mine"
    files["model-00001-of-00002.safetensors"] = files["model.safetensors"]
    for name in ("onnx/model.onnx", "openvino/openvino_model.bin"):
        files[name] = b"old"
    shutil.rmtree(run / "training" / "checkpoint-4")
    assert main(["card", str(run), "--license", "apache-2.0"]) == 0

    push(run, "--what", "all")

    of_encoder, of_state = hub.commits[-2:]
    old_weights = ["model-00001-of-00002.safetensors", "onnx/model.onnx", "openvino/openvino_model.bin"]
    assert of_encoder == (["README.md"], old_weights)
    assert "notes.md" in files  # what others added stays
    assert b"license: apache-2.0" in files["README.md"]

    changed, deleted = of_state
    assert changed == []
    assert deleted
    assert all("checkpoint-4" in path for path in deleted)


def test_empty_repository_is_filled(hub: Hub, run: Path) -> None:
    hub.repos["me/toy"] = Repo(files={".gitattributes": b"", "README.md": b"# mine"})
    push(run)  # as one made on the website


def test_existing_repository(hub: Hub, run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("push", "--yes", str(run), "--repo=me/toy")
    files = {"config.json": b"{}", "README.md": b"---\ntags: [bert]\n---\n"}
    hub.repos["me/toy"] = Repo(files=dict(files))
    assert "files" in failing(capsys, *words)
    assert hub.repos["me/toy"].files == files

    push(run, "--exist-ok")
    assert "public" in failing(capsys, *words, "--private")


def test_public_repository_gets_no_training_state(hub: Hub, run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    state = hub.repos["me/toy-training"] = Repo()
    words = ("push", "--yes", str(run), "--repo=me/toy", "--what", "training", "--exist-ok")
    assert "me/toy-training" in failing(capsys, *words)
    assert not state.files


@pytest.mark.parametrize(
    ("words", "token", "card_error", "key"),
    [
        ("--repo=me/toy", "", "", "hf auth login"),
        ("--repo=me/toy", "hf_" + "Wrong" * 7, "", "401"),
        ("--repo=me/toy", READER, "", "me/toy"),
        ("--repo=you/toy", TOKEN, "", "you/toy"),
        ("--repo=../toy", TOKEN, "", "OWNER/NAME"),
        ("--repo=me/toy", TOKEN, "language is no ISO code", "language is no ISO code"),
    ],
)
def test_refusals(
    words: str, token: str, card_error: str, key: str, hub: Hub, finished: Path, monkeypatch: Any, capsys: Any
) -> None:
    monkeypatch.setenv("HF_TOKEN", token)
    hub.card_error = card_error
    assert key in failing(capsys, "push", "--yes", str(finished), *words.split())
    assert not hub.repos


def test_missing_run(hub: Hub, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "none" in failing(capsys, "push", "--yes", str(tmp_path / "none"), "--repo=me/toy")


def test_unfinished_run_is_not_sent(hub: Hub, run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.rmtree(run / "model")
    assert "has not finished" in failing(capsys, "push", "--yes", str(run), "--repo=me/toy")
    assert not hub.sent


def test_export_with_other_vectors_is_not_sent(hub: Hub, run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = run / "model" / "model.safetensors"
    weights = load_file(file)
    name = max(weights, key=lambda key: weights[key].numel())
    weights[name][:, 0] += 0.1
    save_file(weights, file, metadata={"format": "pt"})
    assert f"'{run / 'model'}' must give the embeddings of" in failing(capsys, "push", str(run), "--repo=me/toy")
    assert not hub.sent


@pytest.mark.parametrize("name", ["model.safetensors", "modules.json", "config.json", "tokenizer.json"])
def test_torn_export_is_not_sent(name: str, hub: Hub, run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = run / "model" / name
    os.truncate(file, file.stat().st_size // 2)
    assert str(run / "model") in failing(capsys, "push", str(run), "--repo=me/toy")
    assert not hub.sent


def test_tokens_are_never_sent(hub: Hub, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A token in the environment, in a recipe and in arguments: no file, no message, nothing that is sent has it."""
    recipe_token = "hf_" + "OneInTheRecipe" * 3
    recipe = write_recipe(tmp_path)
    text = recipe.read_text("utf-8")
    recipe.write_text(text.replace("A toy.", f"A toy of {TOKEN} and {recipe_token}."), "utf-8")
    assert main(["train", str(recipe), "--output_dir", str(tmp_path / "leaky")]) == 1
    assert not (tmp_path / "leaky").exists()

    for words in (
        ("push", "--yes", str(run), "--repo", TOKEN),
        ("push", "--yes", str(run), "--repo", f"me/{recipe_token}"),
        ("push", "--yes", str(run), "--repo", "me/toy", "--what", TOKEN),
        ("push", "--yes", str(run), "--repo", "me/toy", "--message", f"by {TOKEN}"),
        ("card", str(run), "--license", TOKEN),
        ("card", str(run), "--base-model", recipe_token),
        ("push", "--yes", str(run), "--repo", "me/toy", "--what", "all"),
    ):
        main(words)

    printed = capsys.readouterr()
    assert "me/toy-training" in hub.repos
    assert "access token" in printed.err
    files = [path.read_bytes() for path in run.rglob("*") if path.is_file()]
    for content in [*hub.sent, *files, printed.out.encode(), printed.err.encode()]:
        assert TOKEN.encode() not in content
        assert recipe_token.encode() not in content


def test_card_is_written_again(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = [run / "README.md", run / "model" / "README.md"]
    before = paths[0].read_text("utf-8")
    for path in paths:
        path.unlink()

    assert main(["card", str(run)]) == 0

    assert [path.read_text("utf-8") for path in paths] == [before, before]
    assert capsys.readouterr().out.split() == list(map(str, paths))
    assert "62.5 %" in before or "test-tatoeba/en-fr/test/accuracy" in before


@pytest.mark.slow
def test_commands_of_the_page(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train(write_recipe(tmp_path), tmp_path / "outputs" / "quickstart")
    monkeypatch.chdir(tmp_path)
    page = (Path(__file__).resolve().parents[2] / "docs" / "publish.md").read_text("utf-8")
    shell = re.findall(r"```bash\n(.*?)```", page, re.DOTALL)[0]
    first, *rest = shell.splitlines()
    assert first.split("#")[0].split() == ["hf-xlsr", "train", "quickstart"]
    for line in rest:
        _, *command = shlex.split(line, comments=True)
        assert main([*command, "--yes"] if command[0] == "push" else command) == 0

    assert b"\nlicense: cc-by-sa-4.0\n" in hub.repos["me/quickstart"].files["README.md"]
    assert hub.repos["me/quickstart-training"].private
    exec(pythons_of(page)[-1], {})
