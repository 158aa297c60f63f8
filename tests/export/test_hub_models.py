"""`push_to_hub` of models, exports and trainers: slim, and checkpoints never."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hub_helpers import Worker, shared_hub
from hub_server import TOKEN, HubServer
from safetensors.torch import load

from hf_xlsr.trainers.hub import export_trainer

TESTS = Path(__file__).resolve().parents[1]
# What follows stands in front of each script.
START = f"""
import sys
sys.path[:0] = [{str(TESTS)!r}, {str(TESTS / "trainers")!r}]
from dual_momentum_runs import arguments, pairs_data, tiny_dual, tokenizers_of
from hf_xlsr.trainers import DualMomentumTrainer

def trainer_of(folder, **options):
    data, tokenizers = pairs_data(), tokenizers_of(("en", "fr"))
    args = arguments(folder, push_to_hub=True, hub_model_id="me/live", save_steps=2, **options)
    return DualMomentumTrainer(tiny_dual(), args, tokenizers=tokenizers, train_dataset=data)
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


def run(worker: Worker, code: str) -> str:
    done = worker.python(START + code)
    assert done.status == 0, done.err
    return done.out


def test_model_is_pushed_without_training_state(hub: HubServer, worker: Worker) -> None:
    out = run(
        worker,
        "model = tiny_dual(projection_dim=8)\n"
        "model.push_to_hub('me/dual')\n"
        "assert model.config.queue_size == 64 and 'save_pretrained' not in vars(model)\n"
        "import torch\nfrom transformers import AutoModel\n"
        "back = AutoModel.from_pretrained('me/dual').eval()\n"
        "ids = torch.tensor([[5, 6, 7]])\n"
        "both = [m.eval().encode_sentences(ids, language='fr') for m in (model, back)]\n"
        "print(torch.equal(*both), back.config.queue_size, len(back.queues), len(back.momentum_encoders))",
    )
    assert out.split() == ["True", "0", "0", "0"]
    names = load(hub.content("me/dual", "model.safetensors"))
    assert names and all(name.startswith(("encoders.", "projections.")) for name in names)
    assert b"hf-xlsr" in hub.content("me/dual", "README.md")


@pytest.mark.parametrize("strategy", [pytest.param("end", marks=pytest.mark.slow), "every_save"])
def test_trainer_pushes_the_export(hub: HubServer, worker: Worker, tmp_path: Path, strategy: str) -> None:
    run(
        worker,
        f"trainer = trainer_of({str(tmp_path)!r}, hub_strategy={strategy!r}, hub_token={TOKEN!r})\n"
        "trainer.train()\ntrainer.push_to_hub()\n"
        "from sentence_transformers import SentenceTransformer\nimport numpy as np\n"
        "ours = trainer.model.to_sentence_transformer(trainer.tokenizers, max_length=32)\n"
        "both = [m.encode(['red house'], task='fr') for m in (ours, SentenceTransformer('me/live'))]\n"
        "np.testing.assert_array_equal(*both)",
    )
    assert len(list(tmp_path.glob("checkpoint-*"))) == 2
    sent = {path for commit, _ in hub.commits for path in commit}
    assert "en_0_Transformer/model.safetensors" in sent and "modules.json" in sent
    assert not [path for path in sent if "checkpoint" in path or path.endswith((".pt", ".pth", ".bin"))]
    for content in hub.storage.values():
        assert not [name for name in load(content) if "momentum" in name or "queue" in name]
    assert len(hub.commits) > 1 if strategy == "every_save" else len(hub.commits) == 1
    assert not [body for body in hub.bodies if TOKEN.encode() in body]
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert [path for path in files if path.name == "training_args.bin"]
    assert not [path for path in files if TOKEN.encode() in path.read_bytes()]
    card = hub.content("me/live", "README.md").decode()
    assert "after 4 of 4 steps" in card and "language:\n- en\n- fr" in card


def test_trainer_pushes_merged_adapters(hub: HubServer, worker: Worker, tmp_path: Path) -> None:
    run(
        worker,
        "from hf_xlsr.trainers.adapters import add_adapters\n"
        f"args = arguments({str(tmp_path)!r}, push_to_hub=True, hub_model_id='me/live', hub_strategy='end')\n"
        "trainer = DualMomentumTrainer(add_adapters(tiny_dual(), rank=2), args, tokenizers=tokenizers_of(('en', 'fr')),\n"
        "                  train_dataset=pairs_data())\n"
        "trainer.train()\ntrainer.push_to_hub()\n"
        "assert any('lora' in name for name, _ in trainer.model.named_parameters())",  # training could go on
    )
    names = load(hub.content("me/live", "fr_0_Transformer/model.safetensors"))
    assert names and not [name for name in names if "lora" in name or "base_layer" in name]


def test_invalid_pushes_of_a_trainer(hub: HubServer, worker: Worker, tmp_path: Path) -> None:
    code = f"trainer_of({str(tmp_path)!r}, hub_strategy='checkpoint')"
    assert "XlsrError: hub_strategy 'checkpoint'" in worker.python(START + code).err
    code = f"trainer_of({str(tmp_path)!r}, hub_strategy='end')"
    assert "401" in worker.python(START + code, token=None).err
    hub.break_after = 0
    assert "me/live failed" in worker.python(START + code).err and not hub.repos


@pytest.mark.slow
def test_failed_background_push_is_logged(hub: HubServer, worker: Worker, tmp_path: Path) -> None:
    done = worker.python(
        START + "import logging\n"
        "logging.basicConfig(stream=sys.stderr, force=True)\n"
        f"trainer = trainer_of({str(tmp_path)!r}, hub_strategy='every_save')\n"
        "from huggingface_hub import HfApi\n"
        "def fail(*_, **__): raise ConnectionError('gone')\n"
        "HfApi.create_commit, whole = fail, HfApi.create_commit\n"
        "told = []\n"
        "class Told(logging.Handler):\n"
        "    def emit(self, record): told.append(record.getMessage())\n"
        "logging.getLogger().addHandler(Told())\n"
        "trainer.train()\n"
        "HfApi.create_commit = whole\n"
        "import time\n"
        # The message comes from the thread that sends, which may speak just after those that wait for it go on.
        "deadline = time.monotonic() + 30\n"
        "while not any('stopped' in text for text in told) and time.monotonic() < deadline: time.sleep(0.05)"
    )
    assert done.status == 0, done.err
    assert "me/live" in done.err and "Traceback" not in done.err


def test_model_that_encodes_no_sentences(tmp_path: Path, tokenizer: Any) -> None:
    from conftest import tiny_encoder

    from hf_xlsr import HictlConfig, HictlForSequenceClassification

    model = HictlForSequenceClassification(HictlConfig(text_config=tiny_encoder(len(tokenizer)), num_labels=2))
    accelerator = SimpleNamespace(unwrap_model=lambda inner: inner)
    state = SimpleNamespace(global_step=3, max_steps=9)
    trainer = SimpleNamespace(model=model, accelerator=accelerator, processing_class=tokenizer, state=state)
    card = export_trainer(trainer, tmp_path, "me/judge")
    assert "after 3 of 9 steps" in card and "library_name: transformers" in card
    assert 'HictlForSequenceClassification.from_pretrained("me/judge")' in card
    back = HictlForSequenceClassification.from_pretrained(tmp_path)
    for name, value in model.state_dict().items():
        assert torch.equal(value, back.state_dict()[name]), name
    assert (tmp_path / "tokenizer.json").is_file()
