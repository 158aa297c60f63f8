"""`hf-xlsr push`, end to end: against a Hub on this machine."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from pathlib import Path

import pytest
import torch
from hub_helpers import Done, Worker, shared_hub, train, write_recipe
from hub_server import READER, TOKEN, HubServer, Repo
from safetensors.torch import load, load_file, save_file
from sentence_transformers import SentenceTransformer

from hf_xlsr.runs.publish import write_encoder_adapters

DUAL = """
model: {{encoders: {{en: {encoder}, fr: {encoder}}}, queue_size: 64}}
adapters: {{rank: 2}}
"""


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> tuple[HubServer, Worker]:
    return shared_hub(tmp_path_factory.getbasetemp() / "hub_home")


@pytest.fixture
def hub(both: tuple[HubServer, Worker]) -> HubServer:
    both[0].forget()
    return both[0]


@pytest.fixture(scope="module")
def worker(both: tuple[HubServer, Worker]) -> Worker:
    return both[1]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of the lightweight method."""
    folder = tmp_path_factory.mktemp("light")
    return train(write_recipe(folder), folder / "run")


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "run"))


@pytest.fixture(scope="module")
def dual(tiny_encoder_folder: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of dual momentum contrast with adapters: queues, momentum encoders."""
    folder = tmp_path_factory.mktemp("dual")
    recipe = write_recipe(folder, "dual_momentum", DUAL.format(encoder=tiny_encoder_folder))
    return train(recipe, folder / "run")


def told(done: Done) -> str:
    """The error that a command printed, on one line; retries of huggingface_hub may be logged above it."""
    assert done.status == 1 and "Traceback" not in done.err, done.err
    line = done.err.strip().splitlines()[-1]
    assert line.startswith("hf-xlsr: ")
    return line.removeprefix("hf-xlsr: ")


def pushed(done: Done) -> Done:
    assert done.status == 0, done.err
    return done


def test_pushed_encoder_loads(hub: HubServer, worker: Worker, run: Path) -> None:
    assert "/me/toy (public): " in pushed(worker.command("push", str(run), "--repo", "me/toy")).out
    here = {path.relative_to(run / "model").as_posix(): path for path in (run / "model").rglob("*") if path.is_file()}
    here |= {name: run / name for name in ("loss.png", "tsne.png")}
    assert set(hub.repos["me/toy"].files) == set(here) and set(hub.repos) == {"me/toy"}
    for name, path in here.items():
        if name != "README.md":
            there = hub.content("me/toy", name)
            assert hashlib.sha256(there).digest() == hashlib.sha256(path.read_bytes()).digest(), name
    card = hub.content("me/toy", "README.md").decode()
    assert 'SentenceTransformer("me/toy")' in card and "path/to/this/folder" not in card

    expected = SentenceTransformer(str(run / "model")).encode(["The weather is lovely today."])[0, :4].tolist()
    first, second = re.findall(r"```python\n(.*?)```", card, re.DOTALL)
    check = "np.testing.assert_allclose(st, vectors, atol=1e-5)\n"
    code = f"import numpy as np\n{first}\nst = vectors[:1]\n{second}\n{check}"
    pushed(worker.python(f"{code}np.testing.assert_allclose(st[0, :4], {expected}, atol=1e-5)"))


def test_training_state_is_private(hub: HubServer, worker: Worker, run: Path, tmp_path: Path) -> None:
    for name in ("checkpoint-6", "final"):  # as a run that was stopped: what is downloaded has to go on
        shutil.move(run / "training" / name, tmp_path / name)
    pushed(worker.command("push", str(run), "--repo", "me/toy", "--what", "all"))
    main, state = hub.repos["me/toy"], hub.repos["me/toy-training"]
    assert state.private and not main.private
    assert not [path for path in main.files if "checkpoint" in path or "optimizer" in path or "recipe" in path]
    assert "training/checkpoint-4/optimizer.pt" in state.files
    assert not [path for path in state.files if path.endswith(("training_args.bin", ".arrow", ".jsonl"))]

    pulled = tmp_path / "pulled"
    code = f"from huggingface_hub import snapshot_download as pull\npull('me/toy-training', local_dir={str(pulled)!r})"
    assert "RepositoryNotFoundError" in worker.python(code, token=READER).err
    pushed(worker.python(code))
    recipe = json.loads((pulled / "training" / "recipe.json").read_text("utf-8"))
    train(Path(recipe["data"]["train"]["path"]).parent / "lightweight_toy.yaml", pulled)
    ours, theirs = (load_file(at / "final" / "model.safetensors") for at in (tmp_path, pulled / "training"))
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_training_state_mirrors_the_folder(hub: HubServer, worker: Worker, run: Path) -> None:
    words = ("push", str(run), "--repo", "me/toy", "--what", "training")
    pushed(worker.command(*words))
    shutil.rmtree(run / "training" / "checkpoint-4")
    pushed(worker.command(*words))
    assert set(hub.repos) == {"me/toy-training"}
    files = hub.repos["me/toy-training"].files
    assert "training/checkpoint-6/optimizer.pt" in files and not any("checkpoint-4" in path for path in files)


@pytest.mark.parametrize("arrived", [1, pytest.param(4, marks=pytest.mark.slow)])
def test_interrupted_push_goes_on(hub: HubServer, worker: Worker, run: Path, arrived: int) -> None:
    words = ("push", str(run), "--repo", "me/toy", "--what", "training")
    hub.break_after = arrived
    sentence = told(worker.command(*words))
    assert "me/toy-training" in sentence and "resume" in sentence
    assert not hub.repos["me/toy-training"].commits
    hub.break_after, before = None, list(hub.uploads)
    stored = set(before)
    assert len(stored) >= min(arrived, 1)
    pushed(worker.command(*words))
    again = hub.uploads[len(before) :]
    assert again and not stored & set(again)  # nothing that had arrived was sent twice
    large = {content for content, large in hub.repos["me/toy-training"].files.values() if large}
    assert {oid.encode() for oid in stored | set(again)} == large
    count, commits = len(hub.uploads), len(hub.commits)
    pushed(worker.command(*words))
    assert (len(hub.uploads), len(hub.commits)) == (count, commits)  # a third call has nothing to send


def test_changed_run_sends_what_changed(hub: HubServer, worker: Worker, run: Path) -> None:
    pushed(worker.command("push", str(run), "--repo", "me/toy"))
    hub.repos["me/toy"].files["notes.md"] = (b"mine", False)
    hub.repos["me/toy"].files["model-00001-of-00002.safetensors"] = hub.repos["me/toy"].files["model.safetensors"]
    uploads = len(hub.uploads)
    pushed(worker.command("card", str(run), "--license", "apache-2.0"))
    pushed(worker.command("push", str(run), "--repo", "me/toy"))
    assert hub.commits[-1] == (["README.md"], ["model-00001-of-00002.safetensors"]) and len(hub.uploads) == uploads
    assert "notes.md" in hub.repos["me/toy"].files  # what others added stays
    assert b"license: apache-2.0" in hub.content("me/toy", "README.md")


def test_adapters_alone(hub: HubServer, worker: Worker, dual: Path, tiny_encoder_folder: str, finished: Path) -> None:
    pushed(worker.command("push", str(dual), "--repo", "me/toy-lora", "--adapters", "--private"))
    files = hub.repos["me/toy-lora"].files
    parts = {
        f"{language}/adapter_{part}" for language in ("en", "fr") for part in ("config.json", "model.safetensors")
    }
    assert set(files) == {"README.md", *parts} and hub.repos["me/toy-lora"].private
    for language in ("en", "fr"):
        names = load(hub.content("me/toy-lora", f"{language}/adapter_model.safetensors"))
        assert names and all(".lora_" in name and "momentum" not in name for name in names)
        config = json.loads(hub.content("me/toy-lora", f"{language}/adapter_config.json"))
        assert config["base_model_name_or_path"] is None  # a folder of this machine is nobody's business
    exported = SentenceTransformer(str(dual / "model")).encode(["red house"], task="fr")[0].tolist()
    pushed(
        worker.python(
            "import numpy as np, torch\nfrom peft import PeftModel\nfrom transformers import AutoModel, AutoTokenizer\n"
            f"base = AutoModel.from_pretrained({tiny_encoder_folder!r})\n"
            "model = PeftModel.from_pretrained(base, 'me/toy-lora', subfolder='fr').eval()\n"
            f"batch = AutoTokenizer.from_pretrained({tiny_encoder_folder!r})(['red house'], return_tensors='pt')\n"
            "batch.pop('token_type_ids', None)\n"
            "vector = torch.nn.functional.normalize(model(**batch).last_hidden_state.mean(1), dim=-1)\n"
            f"np.testing.assert_allclose(vector.detach()[0], {exported}, atol=1e-5)"
        )
    )
    assert "adapters" in told(worker.command("push", str(finished), "--repo", "me/x", "--adapters"))


def test_adapters_of_a_single_encoder(tmp_path: Path) -> None:
    layer = "encoder.layer.0.attention.self.query"
    kept = [f"encoder.{layer}.lora_{side}.weight" for side in "AB"]
    gone = ["lm_head.dense.weight", f"momentum_encoders.en.{layer}.lora_A.weight"]
    weights = {f"base_model.model.{name}": torch.ones(2, 2) for name in (*kept, *gone)}
    save_file(weights, tmp_path / "adapter_model.safetensors")
    config = {"r": 2, "target_modules": "a pattern", "modules_to_save": ["lm_head"], "base_model_name_or_path": "/me"}
    (tmp_path / "adapter_config.json").write_text(json.dumps(config), "utf-8")
    written = write_encoder_adapters(tmp_path, tmp_path / "out", {"": "intfloat/e5"})
    assert set(written) == {"adapter_config.json", "adapter_model.safetensors"}
    names = {f"base_model.model.{layer}.lora_{side}.weight" for side in "AB"}
    assert set(load_file(written["adapter_model.safetensors"])) == names
    config = json.loads(written["adapter_config.json"].read_text("utf-8"))
    assert (config["target_modules"], config["modules_to_save"]) == ([layer], None)
    assert config["base_model_name_or_path"] == "intfloat/e5"


def test_existing_repositories(hub: HubServer, worker: Worker, run: Path) -> None:
    words = ("push", str(run), "--repo", "me/toy")
    hub.repos["me/toy"] = Repo(files={".gitattributes": (b"", False), "README.md": (b"# mine", False)})
    pushed(worker.command(*words))  # an empty one, made on the website
    files = {"config.json": (b"{}", False), "README.md": (b"---\ntags: [bert]\n---\n", False)}
    hub.repos["me/toy"] = Repo(files=files)
    assert "files" in told(worker.command(*words))
    assert set(hub.repos["me/toy"].files) == {"config.json", "README.md"}
    pushed(worker.command(*words, "--exist-ok"))
    assert "public" in told(worker.command(*words, "--private"))
    hub.repos["me/toy-training"] = Repo()
    assert "me/toy-training" in told(worker.command(*words, "--what", "training", "--exist-ok"))
    assert not hub.repos["me/toy-training"].files
    # The encoder waits until its training may go, too.
    before = dict(hub.repos["me/toy"].files)
    (run / "model" / "note.txt").write_text("new", "utf-8")
    assert "me/toy-training" in told(worker.command(*words, "--what", "all", "--exist-ok"))
    assert hub.repos["me/toy"].files == before


def test_refusals(hub: HubServer, worker: Worker, run: Path, tmp_path: Path) -> None:
    words = ("push", str(run), "--repo", "me/toy")
    assert "hf auth login" in told(worker.command(*words, token=None))
    assert "401" in told(worker.command(*words, token="hf_" + "Wrong" * 7))
    assert "me/toy" in told(worker.command(*words, token=READER))
    assert "you/toy" in told(worker.command("push", str(run), "--repo", "you/toy"))
    hub.repos["you/toy"] = Repo()
    assert "you/toy" in told(worker.command("push", str(run), "--repo", "you/toy"))
    assert not hub.repos["you/toy"].files and "me/toy" not in hub.repos
    for name in ("toy", "../toy", "me/toy/more", "me/--toy"):
        assert "OWNER/NAME" in told(worker.command("push", str(run), f"--repo={name}"))
    assert "training" in told(worker.command(*words, "--what", "trainin"))
    assert "none" in told(worker.command("push", str(tmp_path / "none"), "--repo", "me/toy"))
    hub.reject_cards = '"language" must be an ISO code'
    assert '"language" must be an ISO code' in told(worker.command(*words))
    assert not hub.repos.get("me/toy") and not hub.uploads
    hub.break_after = 0
    assert "resume" in told(worker.command(*words))
    away = "import huggingface_hub.constants as c; c.ENDPOINT = 'http://127.0.0.1:9'\n"
    pushed(worker.python(away))
    assert "resume" in told(worker.command(*words))
    pushed(worker.python(f"import huggingface_hub.constants as c; c.ENDPOINT = {hub.url!r}"))


def test_invalid_run_is_not_sent(hub: HubServer, worker: Worker, run: Path) -> None:
    words = ("push", str(run), "--repo", "me/toy")
    (run / "secret").mkdir()
    (run / "secret" / "key").write_text("private", "utf-8")
    os.symlink(run / "secret" / "key", run / "model" / "key")
    assert "link" in told(worker.command(*words))
    (run / "model" / "key").unlink()
    shutil.rmtree(run / "model")
    assert "has not finished" in told(worker.command(*words))
    shutil.rmtree(run / "training" / "checkpoint-4")
    (run / "training" / "checkpoint-6" / "trainer_state.json").unlink()
    assert "checkpoint" in told(worker.command(*words, "--what", "training"))
    assert not hub.requests


def test_tokens_are_never_sent(hub: HubServer, worker: Worker, run: Path, tmp_path: Path) -> None:
    """A token in the environment, in a recipe and in arguments: no file, no answer, no request body has it."""
    other = "hf_" + "OneInTheRecipe" * 3
    recipe = tmp_path / "leaky.yaml"
    text = write_recipe(tmp_path).read_text("utf-8").replace("A toy.", f"A toy of {TOKEN} and {other}.")
    recipe.write_text(text, "utf-8")
    leaky = tmp_path / "leaky"
    done = worker.command("train", str(recipe), "--output_dir", str(leaky))
    outputs = [done.out, done.err]
    if done.status:
        assert "access token" in told(done) and not leaky.exists()
    else:  # a card hides what the recipe should not have held, and nothing of the run is sent
        texts = [(leaky / name).read_text("utf-8") for name in ("README.md", "model/README.md")]
        assert all("A toy of" in text for text in texts)
        outputs += [*texts, worker.command("push", str(leaky), "--repo", "me/x", "--what", "training").err]
        assert "holds an access token" in outputs[-1] and not hub.repos
    for words in (
        ("push", str(run), "--repo", TOKEN),
        ("push", str(run), "--repo", f"me/{other}"),
        ("push", str(run), "--repo", "me/toy", "--what", TOKEN),
        ("push", str(run), "--repo", "me/toy", "--message", f"by {TOKEN}"),
        ("card", str(run), "--license", TOKEN),
        ("card", str(run), "--base-model", other),
        ("push", str(run), "--repo", "me/toy", "--what", "all"),
    ):
        done = worker.command(*words)
        outputs += [done.out, done.err]
    assert "me/toy-training" in hub.repos
    assert not [text for text in outputs if TOKEN in text or other in text]
    assert not [body for body in hub.bodies if TOKEN.encode() in body or other.encode() in body]
    files = [path for path in run.rglob("*") if path.is_file()]
    assert not [path for path in files if TOKEN.encode() in path.read_bytes()]
