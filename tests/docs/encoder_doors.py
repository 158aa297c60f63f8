"""Which encoder goes through which door, by trying it: writes the table of `docs/encoders.md`.

`python tests/docs/encoder_doors.py docs/encoders.md` writes the page. A row is a tiny random copy of an encoder that
people use, with its architecture, pooling and modules; a column is what users do with it. A new door is a function and
its entry in `DOORS`.
"""

from __future__ import annotations

import contextlib
import io
import re
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TESTS = Path(__file__).resolve().parents[1]
sys.path += [str(TESTS / folder) for folder in (".", "encoders", "trainers", "export")]

import numpy as np  # noqa: E402
from conftest import make_pairs  # noqa: E402
from given_encoders import (  # noqa: E402
    BERT_SIZE,
    MODERN_SIZE,
    ROBERTA_SIZE,
    SENTENCES,
    T5_SIZE,
    WIDTH,
    assembled,
    dense,
    gemma,
    qwen,
    routed,
    static,
    tiny_tokenizer,
    tiny_transformer,
)
from graph_kinds import WRITERS, exact_encoder  # noqa: E402
from old_server import NotServedError, OldServer  # noqa: E402
from sentence_transformers import SentenceTransformer  # noqa: E402
from sentence_transformers.base.modules import Normalize  # noqa: E402
from sentence_transformers.sentence_transformer.modules import Pooling  # noqa: E402
from seven_trainers import arguments_of, labelled_rows  # noqa: E402
from test_given_encoders import STEP, TRAINERS  # noqa: E402
from torch import nn  # noqa: E402
from transformers import (  # noqa: E402
    BertConfig,
    DistilBertConfig,
    ModernBertConfig,
    PreTrainedConfig,
    T5Config,
    XLMRobertaConfig,
)

from hf_xlsr import (  # noqa: E402
    DistillationModel,
    HictlForConditionalGeneration,
    HictlForSequenceClassification,
    LightweightDualTransformer,
)
from hf_xlsr.cli import main as command  # noqa: E402
from hf_xlsr.encoders.encoding import embed, routes_of  # noqa: E402
from hf_xlsr.encoders.loading import load_encoder  # noqa: E402
from hf_xlsr.encoders.reading import read_encoder  # noqa: E402
from hf_xlsr.evaluation.protocols.tatoeba import tatoeba  # noqa: E402
from hf_xlsr.export.pruning import prune  # noqa: E402
from hf_xlsr.trainers import FineTuneTrainer, TranslationTrainer  # noqa: E402
from hf_xlsr.trainers.adapters import add_adapters, merged  # noqa: E402
from hf_xlsr.utils.errors import XlsrError  # noqa: E402

COMMAND = "python tests/docs/encoder_doors.py docs/encoders.md"
HEADING = "## Which encoder goes through which door"
TEXTS = [text.strip() for text in SENTENCES]
YES = "yes"
INT8_COSINE = 0.9
# The short reason of an error; an error without one is no refusal, but a fault.
REASONS = {
    r"causal": "decoder",
    r"mask token": "no mask token",
    r"width": "other width",
    r"routes|one encoder|Router": "routes",
    r"StaticEmbedding|linear layers": "static",
    r"no \w+ graph|^t5$": "T5",
}

# --- Encoders --------------------------------------------------------------------------------------------------------


@dataclass
class Row:
    """An encoder of the table: what it is, and how its tiny copy is written to a folder."""

    shape: str
    save: Callable[[Path], None]


def modules(
    shape: str, config: PreTrainedConfig, pooling: str, *behind: nn.Module, prompts: Any = None, **tokens: Any
) -> Row:
    """A row of a `Transformer` with modules behind it; `tokens` are attributes of the tokenizer."""

    def save(folder: Path) -> None:
        transformer = tiny_transformer(folder / "raw", config, tiny_tokenizer(**tokens))
        model = assembled([transformer, Pooling(WIDTH, pooling), *behind], prompts=prompts)
        model.save(str(folder / "model"))

    return Row(shape, save)


def built(shape: str, build: Callable[[Path], SentenceTransformer]) -> Row:
    return Row(shape, lambda folder: build(folder / "raw").save(str(folder / "model")))


def plain(shape: str, config: PreTrainedConfig) -> Row:
    """A row of an encoder of transformers, without modules behind it."""
    return Row(shape, lambda folder: tiny_transformer(folder / "model", config, tiny_tokenizer()) and None)


def two_layers() -> tuple[nn.Module, ...]:
    identity = nn.Identity()
    return dense(WIDTH, 4 * WIDTH, identity, bias=False), dense(4 * WIDTH, WIDTH, identity, bias=False), Normalize()


def bidirectional_gemma() -> PreTrainedConfig:
    config: Any = gemma()
    config.use_bidirectional_attention = True
    return config


DECODER = {"mask_token": None, "padding_side": "left"}
DISTILBERT_SIZE = {"dim": WIDTH, "n_layers": 2, "n_heads": 2, "hidden_dim": 32, "max_position_embeddings": 40}
E5_PROMPTS = {"query": "one two: ", "document": "three: "}
ROWS: dict[str, Row] = {
    "multilingual-e5": modules(
        "BERT or XLM-R, mean", BertConfig(**BERT_SIZE), "mean", Normalize(), prompts=E5_PROMPTS
    ),
    "bge-m3": modules("XLM-R, first token", XLMRobertaConfig(**ROBERTA_SIZE), "cls", Normalize()),
    "LaBSE": modules(
        "BERT, first token, `Dense`", BertConfig(**BERT_SIZE), "cls", dense(WIDTH, WIDTH, nn.Tanh()), Normalize()
    ),
    "distiluse": modules(
        "DistilBERT, mean, `Dense` to fewer dimensions",
        DistilBertConfig(**DISTILBERT_SIZE),
        "mean",
        dense(WIDTH, 12, nn.Tanh()),
    ),
    "granite R2": modules("ModernBERT, first token", ModernBertConfig(**MODERN_SIZE), "cls", Normalize()),
    "bekko": modules("ModernBERT, mean", ModernBertConfig(**MODERN_SIZE), "mean", Normalize()),
    "mmBERT": plain("ModernBERT without modules", ModernBertConfig(**MODERN_SIZE)),
    "EmbeddingGemma": modules("Gemma 3, both sides, mean, two `Dense`", bidirectional_gemma(), "mean", *two_layers()),
    "harrier 270m": modules("Gemma 3, last token", gemma(), "lasttoken", Normalize(), **DECODER),
    "Qwen3-Embedding": modules("Qwen3, last token", qwen(), "lasttoken", Normalize(), prompts=E5_PROMPTS, **DECODER),
    "sentence-t5": modules(
        "encoder of T5, mean, `Dense`",
        T5Config(**T5_SIZE),
        "mean",
        dense(WIDTH, WIDTH, nn.Identity(), bias=False),
        Normalize(),
        mask_token=None,
    ),
    "static-similarity": built("`StaticEmbedding`", static),
    "a model with routes": built("`Router` by language", routed),
}

# --- Doors -----------------------------------------------------------------------------------------------------------


@dataclass
class Try:
    """One encoder before one door.

    Attributes:
        given: Its folder.
        home: An empty folder.
    """

    given: str
    home: Path

    def load(self) -> SentenceTransformer:
        return load_encoder(self.given, "cpu")

    @property
    def has_modules(self) -> bool:
        return (Path(self.given) / "modules.json").is_file()

    def check(self, encoder: Any, tolerance: float = 1e-5) -> None:
        """Checks that an encoder gives the embeddings of the given one, of each route; new modules make unit vectors."""
        model = self.load()
        for route in routes_of(model) or ("",):
            embeddings = embed(encoder, TEXTS, language=route, normalize=not self.has_modules)
            expected = embed(model, TEXTS, language=route, normalize=not self.has_modules)
            np.testing.assert_allclose(embeddings, expected, rtol=0, atol=tolerance)

    def run(self, *words: Any) -> None:
        """A command of `hf-xlsr`; what it prints as its error is raised."""
        errors = io.StringIO()
        with contextlib.redirect_stderr(errors), contextlib.redirect_stdout(io.StringIO()):
            status = command([str(word) for word in words])
        if status:
            raise XlsrError(errors.getvalue())


def trains(kind: str) -> Callable[[Try], str]:
    def door(trial: Try) -> str:
        trainer = TRAINERS[kind](trial.given, trial.home)
        trainer.train()
        if kind == "hictl" and not trial.has_modules:
            return "new head"
        trial.check(trainer.live_encoder())
        return YES

    return door


def lightweight(trial: Try) -> str:
    try:
        return trains("lightweight")(trial)
    except XlsrError:
        model = LightweightDualTransformer.from_encoder(trial.given, generative_weight=0.0)
        trainer = TRAINERS["lightweight"](model, trial.home)
        trainer.train()
        trial.check(trainer.live_encoder())
        return "alignment only"


def adapters(trial: Try) -> str:
    read = read_encoder(trial.given)
    model = DistillationModel.from_encoder(read, teacher_dim=WIDTH)
    trial.check(merged(add_adapters(model)).to_sentence_transformer(read.single().tokenizer))
    return YES


def classifies(trial: Try) -> str:
    read = read_encoder(trial.given)
    model = HictlForSequenceClassification.from_encoder(read, num_labels=2)
    learn(FineTuneTrainer, "FineTune", model, labelled_rows(16), read.single().tokenizer, trial.home)
    return YES


def translates(trial: Try) -> str:
    read = read_encoder(trial.given)
    tokenizer = read.single().tokenizer
    model = HictlForConditionalGeneration.from_encoder(read, tokenizer=tokenizer)
    learn(TranslationTrainer, "Translation", model, make_pairs(16), tokenizer, trial.home)
    return YES


def learn(make: Any, kind: str, model: Any, rows: Any, tokenizer: Any, folder: Path) -> None:
    trainer = make(model, arguments_of(kind, folder, **STEP), train_dataset=rows, processing_class=tokenizer)
    assert trainer.train().training_loss > 0


def evaluates(trial: Try) -> str:
    encoder = trial.load()
    trial.check(encoder)
    languages = routes_of(encoder)[:2] or ("en", "fr")
    assert tatoeba(encoder, TEXTS, TEXTS, languages=languages)
    return YES


def debiases(trial: Try) -> str:
    texts = trial.home / "texts.txt"
    texts.write_text("\n".join(TEXTS * 20), "utf-8")
    trial.run("debias", "fit", trial.given, "--texts", f"en={texts}", f"fr={texts}", "--output", trial.home / "fitted")
    trial.run("debias", "apply", trial.home / "fitted", "--model", trial.given, "--output", trial.home / "out")

    output = load_encoder(str(trial.home / "out"), "cpu")
    kept = embed(output, TEXTS, language="und")  # the route that removes nothing
    np.testing.assert_allclose(kept, embed(trial.load(), TEXTS), rtol=0, atol=1e-5)
    return YES


def prunes(trial: Try) -> str:
    pruned, _ = prune(trial.load(), TEXTS * 20)
    trial.check(pruned)
    return YES


def exports(trial: Try, *options: str) -> str:
    trial.run("export", trial.given, "--output", trial.home / "out", *options)
    trial.check(SentenceTransformer(str(trial.home / "out"), device="cpu"))
    return YES


def is_served(trial: Try) -> str:
    exports(trial)
    try:
        vectors = OldServer(trial.home / "out").embed(TEXTS)
    except NotServedError as error:
        raise XlsrError(str(error)) from error
    np.testing.assert_allclose(vectors, embed(trial.load(), TEXTS), rtol=0, atol=1e-5)
    return YES


def graphs(kind: str) -> Callable[[Try], str]:
    def door(trial: Try) -> str:
        exports(trial)
        report = WRITERS[kind](trial.home / "out", int8=True)
        trial.check(exact_encoder(trial.home / "out", kind), tolerance=2e-6)
        trial.check(exact_encoder(trial.home / "out", f"{kind}-int8"), tolerance=1.0)
        assert min(numbers["cosine_int8"]["lowest"] for numbers in report.values()) > INT8_COSINE
        return YES

    return door


DOORS: dict[str, Callable[[Try], str]] = {
    "dual momentum": trains("dual"),
    "distillation": trains("distillation"),
    "lightweight": lightweight,
    "HICTL": trains("hictl"),
    "CMLM": trains("cmlm"),
    "adapters": adapters,
    "classification": classifies,
    "translation": translates,
    "evaluate, mine": evaluates,
    "debias": debiases,
    "prune": prunes,
    "export": exports,
    "ONNX, int8": graphs("onnx"),
    "OpenVINO, int8": graphs("openvino"),
    "text-embeddings-inference": is_served,
}

# --- Page ------------------------------------------------------------------------------------------------------------


def cell(name: str, door: str, folder: Path) -> str:
    """What happens to an encoder at a door: `yes`, another word for a part of it, or the reason of its refusal."""
    given = folder / name
    if not given.is_dir():
        given.mkdir(parents=True)
        ROWS[name].save(given)
    home = folder / f"{name} {door}"
    home.mkdir()
    try:
        return DOORS[door](Try(str(given / "model"), home))
    except XlsrError as error:
        return reason(str(error))


def reason(message: str) -> str:
    for pattern, words in REASONS.items():
        if re.search(pattern, message):
            return f"no: {words}"
    raise AssertionError(f"an error without a short reason: {message}")


def written_cells(page: str) -> dict[str, dict[str, str]]:
    """The cells of a page by encoder and column."""
    _, table, _ = split_page(page)
    header, _, *rows = [[words.strip() for words in line.strip("|").split("|")] for line in table.splitlines()]
    return {row[0]: dict(zip(header, row, strict=True)) for row in rows}


def table_of(cells: Mapping[str, Mapping[str, str]]) -> str:
    """The table in Markdown."""
    header = ["encoder", "modules", *DOORS]
    lines = [header, ["---"] * len(header)]
    for name, row in cells.items():
        lines.append([name, ROWS[name].shape, *row.values()])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def split_page(text: str) -> tuple[str, str, str]:
    """What is before the table of a page, the table, and what is behind it."""
    start = text.index("| encoder |", text.index(HEADING))
    end = text.index("\n\n", start)
    return text[:start], text[start:end], text[end:]


def main(arguments: list[str]) -> int:
    """Writes the table into the page that is named."""
    page = Path(arguments[0])
    before, _, behind = split_page(page.read_text("utf-8"))
    with tempfile.TemporaryDirectory() as folder:
        cells = {name: {door: cell(name, door, Path(folder)) for door in DOORS} for name in ROWS}
    page.write_text(before + table_of(cells) + behind, "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
