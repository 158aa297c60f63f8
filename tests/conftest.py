"""What every test shares: no network, few threads, a tiny tokenizer and tiny pairs made on the spot."""

from __future__ import annotations

import atexit
import gc
import os
import shutil
import tempfile

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Code that an export brings is copied there by whoever loads it with trust: a folder for each process of the suite.
if "HF_MODULES_CACHE" not in os.environ or "PYTEST_XDIST_WORKER" in os.environ:
    os.environ["HF_MODULES_CACHE"] = tempfile.mkdtemp(prefix="hf-xlsr-modules-")
    atexit.register(shutil.rmtree, os.environ["HF_MODULES_CACHE"], ignore_errors=True)
if "HF_XLSR_CACHE" not in os.environ or "PYTEST_XDIST_WORKER" in os.environ:
    os.environ["HF_XLSR_CACHE"] = tempfile.mkdtemp(prefix="hf-xlsr-cache-")
    atexit.register(shutil.rmtree, os.environ["HF_XLSR_CACHE"], ignore_errors=True)

import random  # noqa: E402
import signal  # noqa: E402
from collections import defaultdict  # noqa: E402
from collections.abc import Iterator  # noqa: E402
from hashlib import sha256  # noqa: E402
from operator import itemgetter  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402

import pytest  # noqa: E402
import torch  # noqa: E402
from hypothesis import settings  # noqa: E402
from transformers import AutoConfig  # noqa: E402

from hf_xlsr import LightweightConfig, LightweightDualTransformer  # noqa: E402
from hf_xlsr.data.conversion import DataConverter  # noqa: E402
from hf_xlsr.data.prepared import PreparedPairs  # noqa: E402
from hf_xlsr.data.tokenization import train_tokenizer  # noqa: E402
from hf_xlsr.encoders.stock import encoder_from_config  # noqa: E402
from hf_xlsr.export import save_export  # noqa: E402
from hf_xlsr.runs.recipe import load_runs  # noqa: E402

ENGLISH = (
    "one two three four five six seven eight nine ten red green blue house tree river stone bird fish king".split()
)
FRENCH = (
    "un deux trois quatre cinq six sept huit neuf dix rouge vert bleu maison arbre fleuve pierre oiseau poisson roi"
).split()

torch.set_num_threads(1)
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")


@pytest.hookimpl(tryfirst=True)  # before pytest leaves out what is slow
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Makes all but some cases of each test with the mark `sample` slow; the hashes of their names choose."""
    samples = defaultdict(list)
    for item in items:
        if item.get_closest_marker("sample") and not item.get_closest_marker("slow"):
            test = item.nodeid.partition("[")[0]
            samples[test].append((sha256(item.nodeid.encode()).digest(), item))

    for cases in samples.values():
        cases.sort(key=itemgetter(0))
        (count,) = cases[0][1].get_closest_marker("sample").args
        for _, item in cases[count:]:
            item.add_marker("slow")


@pytest.fixture(autouse=True, scope="module")
def imports_out_of_collections() -> None:
    """The end of each training collects garbage, and looks at every object of every library unless they are frozen."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True, scope="module")
def cache_of_this_file(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Prepared data of one test file are never those of another: their addresses may be equal."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_XLSR_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


def loaded(name: str, *arguments: Any, **options: Any) -> list[dict[str, Any]]:
    """The recipes of `load_runs` as plain values, which `resolve` binds again."""
    return [run.recipe.settings() for run in load_runs(name, *arguments, **options)]


def make_pairs(count: int, seed: int = 1) -> list[dict[str, str]]:
    """Word-for-word translations of random word strings: small, and learnable."""
    rng = random.Random(seed)
    pairs = []
    for _ in range(count):
        numbers = [rng.randrange(len(ENGLISH)) for _ in range(rng.randint(2, 7))]
        pair = {
            "source": " ".join(ENGLISH[number] for number in numbers),
            "target": " ".join(FRENCH[number] for number in numbers),
            "source_lang": "en",
            "target_lang": "fr",
        }
        pairs.append(pair)
    return pairs


def texts_of(pairs: list[dict[str, str]]) -> list[str]:
    """Each source and the target behind it."""
    texts = []
    for pair in pairs:
        texts += [pair["source"], pair["target"]]
    return texts


@pytest.fixture(scope="session")
def pairs() -> list[dict[str, str]]:
    return make_pairs(200)


@pytest.fixture(scope="session")
def tokenizer(pairs: list[dict[str, str]]) -> Any:
    return train_tokenizer(texts_of(pairs), vocab_size=80, algorithm="bpe", max_length=32)


@pytest.fixture(scope="session")
def prepared(pairs: list[dict[str, str]], tokenizer: Any) -> PreparedPairs:
    return DataConverter(tokenizer, max_length=32).pairs(pairs)


@pytest.fixture
def tiny_model(tokenizer: Any) -> LightweightDualTransformer:
    torch.manual_seed(0)
    return LightweightDualTransformer(LightweightConfig(text_config=tiny_encoder(len(tokenizer))))


def tiny_encoder(vocab_size: int) -> dict[str, Any]:
    return {
        "model_type": "bert",
        "vocab_size": vocab_size,
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 32,
        "max_position_embeddings": 40,
    }


@pytest.fixture
def interruptible() -> Iterator[None]:
    """A suite in the background of a shell ignores Ctrl-C, and so would its commands."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(scope="session")
def tiny_encoder_folder(tokenizer: Any, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A pretrained encoder as folders of the Hub hold them, with its tokenizer."""
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("encoder")
    encoder_from_config(AutoConfig.for_model(**tiny_encoder(len(tokenizer)))).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


@pytest.fixture
def write_pairs(tmp_path: Path) -> Any:
    """Writes tiny pairs as TSV and gives the path."""

    def write(name: str = "pairs.tsv", count: int = 200, seed: int = 1) -> Path:
        path = tmp_path / name
        lines = [f"{pair['source']}\t{pair['target']}\n" for pair in make_pairs(count, seed)]
        path.write_text("".join(lines), "utf-8")
        return path

    return write


@pytest.fixture(scope="session")
def tiny_export(tokenizer: Any, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A folder that sentence-transformers loads: a tiny random encoder, mean pooling."""
    torch.manual_seed(0)
    model = LightweightDualTransformer(LightweightConfig(text_config=tiny_encoder(len(tokenizer))))
    folder = tmp_path_factory.mktemp("export") / "tiny"
    save_export(model.to_sentence_transformer(tokenizer), folder)
    return str(folder)


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The figures that matplotlib saves from now on."""
    from matplotlib.figure import Figure

    saved: list[Any] = []
    save = Figure.savefig

    def record(figure: Figure, *args: Any, **kwargs: Any) -> None:
        saved.append(figure)
        save(figure, *args, **kwargs)

    monkeypatch.setattr(Figure, "savefig", record)
    return saved
