"""The same data, settings and seed by recipe and by Python: equal weights, exports, and tables of before and after.

A case is a trainer in a setting. Both roads train it once, and each test compares one thing that they left.
"""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from conftest import make_pairs
from datasets import ClassLabel, Dataset
from safetensors.torch import load_file
from sentence_transformers import SentenceTransformer
from transformers import AutoTokenizer, set_seed

sys.path.insert(0, str(Path(__file__).parents[1] / "encoders"))
from given_encoders import BERT_SIZE, bert, build  # noqa: E402

import hf_xlsr  # noqa: E402
from hf_xlsr.data.tokenization import train_tokenizer, trim_vocabulary  # noqa: E402
from hf_xlsr.encoders import Teacher  # noqa: E402
from hf_xlsr.evaluation.before_after import changes_between  # noqa: E402
from hf_xlsr.evaluation.protocols.pair_similarity import sts  # noqa: E402
from hf_xlsr.evaluation.protocols.tatoeba import tatoeba  # noqa: E402
from hf_xlsr.evaluation.protocols.xsim import xsim  # noqa: E402
from hf_xlsr.evaluation.results import Results  # noqa: E402
from hf_xlsr.modeling.lightweight.configuration_lightweight import paper_encoder_config  # noqa: E402
from hf_xlsr.runs.recipe import load_runs  # noqa: E402
from hf_xlsr.runs.train import train_recipe  # noqa: E402
from hf_xlsr.trainers import add_adapters, fine_tune, translation  # noqa: E402

SEED = 7
LANGUAGES = ("en", "fr")
LENGTH = 12
"""Tokens of a text for an encoder with a length of its own, which truncates some texts, and for a new encoder."""
TRAINING: dict[str, Any] = {
    "max_steps": 3,
    "per_device_train_batch_size": 8,
    "learning_rate": 1e-2,
    "precision": "float32",
    "use_cpu": True,
    "save_strategy": "no",
    "logging_strategy": "no",
    "disable_tqdm": True,
}
TASKS = ("classification", "translation")
"""Trainers of models without sentence embeddings."""

LORA = {"rank": 4, "alpha": 8}
VOCABULARY: dict[str, Any] = {"vocab_size": 80, "algorithm": "bpe", "frame": True}
NEW_ENCODER = {name: value for name, value in BERT_SIZE.items() if name != "pad_token_id"}


# --- Cases ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """A trainer in a setting.

    Attributes:
        encoder: `plain` is a folder of transformers; `own` one of sentence-transformers with prompts and a length;
            `two` is one of each, by language; `new` has no weights, and a tokenizer trained on the data.
        model: Values of the model's configuration.
        held_out: Whether some rows of the training file are the dev set.
        training: Further training arguments.
        more: `nli` and `monolingual` are further data, `lora` adapters, `trimmed` a vocabulary of the data's tokens.
        languages: Of the recipe.
    """

    trainer: str
    encoder: str
    held_out: bool = False
    model: dict[str, Any] = field(default_factory=dict, hash=False)
    training: dict[str, Any] = field(default_factory=dict, hash=False)
    more: tuple[str, ...] = ()
    languages: tuple[str, ...] = LANGUAGES
    label: str = ""

    def __str__(self) -> str:
        parts = [self.trainer, self.encoder, "held_out" if self.held_out else "", *self.more, self.label]
        return "-".join(filter(None, parts))


DUAL = {"queue_size": 24, "in_batch_negatives": True, "momentum": 0.9}
HICTL = {"negative_words": 8}

EVERY_STEP = {"eval_strategy": "steps", "eval_steps": 1}
BY_SIDE = {"source": "one: ", "target": "trois: "}

CASES = [
    Case("dual_momentum", "plain", model=DUAL),
    Case("dual_momentum", "own", model=DUAL),
    Case("dual_momentum", "two", model=DUAL),
    Case("dual_momentum", "qwen", model=DUAL),
    Case("dual_momentum", "chat", model=DUAL),
    Case("dual_momentum", "routed", model=DUAL),
    Case("dual_momentum", "own", model=DUAL, held_out=True),
    Case("dual_momentum", "own", model=DUAL, held_out=True, training=EVERY_STEP, label="evaluated"),
    Case("dual_momentum", "own", model=DUAL, training={"prompts": BY_SIDE}, label="prompts"),
    Case("dual_momentum", "plain", model=DUAL, more=("nli",), training={"nli_batch_size": 8}),
    Case("dual_momentum", "plain", model=DUAL, more=("lora",)),
    Case("dual_momentum", "plain", model={**DUAL, "projection_dim": 8}, held_out=True, label="projected"),
    Case("dual_momentum", "plain", model=DUAL, training={"queue_prefill": True}, label="prefilled"),
    Case("dual_momentum", "plain", languages=("fr", "en"), training={"queue_prefill": True}, label="by_place"),
    Case("dual_momentum", "routed", label="by_place"),
    Case("lightweight", "plain"),
    Case("lightweight", "plain", held_out=True),
    Case("lightweight", "own"),
    Case("lightweight", "own", held_out=True),
    Case("lightweight", "own", held_out=True, training=EVERY_STEP, label="evaluated"),
    Case("lightweight", "own", held_out=True, training={"prompts": "two: ", "max_length": 100}, label="prompts"),
    Case("lightweight", "new"),
    Case("lightweight", "new", held_out=True),
    Case("lightweight", "plain", training={"optimization": "released"}, label="released"),
    Case("lightweight", "plain", more=("lora",)),
    Case("distillation", "plain"),
    Case("distillation", "own"),
    Case("distillation", "own", held_out=True),
    Case("distillation", "new"),
    Case("distillation", "qwen"),
    Case("distillation", "chat"),
    Case("hictl", "plain", model=HICTL),
    Case("hictl", "own", model=HICTL),
    Case("hictl", "own", model=HICTL, held_out=True),
    Case("hictl", "plain", model=HICTL, held_out=True),
    Case("hictl", "new", model=HICTL),
    Case("hictl", "own", model=HICTL, held_out=True, training=EVERY_STEP, label="evaluated"),
    Case("hictl", "plain", model=HICTL, more=("monolingual",)),
    Case("cmlm", "plain"),
    Case("cmlm", "own"),
    Case("cmlm", "own", held_out=True),
    Case("cmlm", "new"),
    Case("cmlm", "own", held_out=True, training=EVERY_STEP, label="evaluated"),
    Case("cmlm", "own", more=("unsorted",)),
    Case("cmlm", "own", more=("nli",), training={"nli_batch_size": 8}),
    Case("cmlm", "own", training={"pack_sentences": True}, label="packed"),
    Case("classification", "plain"),
    Case("classification", "own"),
    Case("classification", "own", held_out=True),
    Case("classification", "own", held_out=True, training=EVERY_STEP, label="evaluated"),
    Case("translation", "plain"),
    Case("translation", "plain", more=("trimmed",)),
    Case("translation", "own"),
    Case("translation", "own", held_out=True),
]


# --- Data and encoders ---------------------------------------------------------------------------------------------


def distinct_pairs(count: int, seed: int) -> list[dict[str, str]]:
    """Pairs of which no two share a sentence, each of three words or more."""
    pairs: dict[str, dict[str, str]] = {}
    for pair in make_pairs(4 * count, seed):
        if len(pair["source"].split()) > 2:
            pairs.setdefault(pair["source"], {"en": pair["source"], "fr": pair["target"]})
    return list(pairs.values())[:count]


PAIRS = distinct_pairs(56, seed=3)
DEV = PAIRS[5:45:5]
HELD_OUT = {text for pair in DEV for text in pair.values()}
OTHERS = distinct_pairs(60, seed=11)
DOCUMENTS = [
    {"document": f"page {10 + number // 4}", "position": number % 4, "text": pair["en"], "lang": "en"}
    for number, pair in enumerate(PAIRS)
]
UNSORTED = [*DOCUMENTS[28:], *DOCUMENTS[:28]]
INFERENCE = [
    {"premise": pair["en"], "hypothesis": following["en"], "label": number % 3, "lang": "en"}
    for number, (pair, following) in enumerate(zip(OTHERS[:48], OTHERS[1:], strict=False))
]
SCORED = [
    {"sentence1": pair["en"], "sentence2": following["en"], "score": number % 6}
    for number, (pair, following) in enumerate(zip(OTHERS[:40], OTHERS[3:], strict=False))
]
SENTENCES = [{"text": pair["fr"], "lang": "fr"} for pair in OTHERS[:40]]
CLASSES = ("odd", "even")
LABELLED = [{"text": pair["en"], "label": CLASSES[len(pair["en"].split()) % 2], "lang": "en"} for pair in PAIRS]


def train_rows(rows: Iterable[dict[str, Any]], case: Case) -> list[dict[str, Any]]:
    """The rows that a user trains on: of all, those without a sentence of the dev set."""
    return [row for row in rows if not (case.held_out and HELD_OUT & set(row.values()))]


def write_table(path: Path, rows: list[dict[str, Any]]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), delimiter="\t", lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the files and encoders of all cases."""
    folder = tmp_path_factory.mktemp("home")
    dev_labels = [row for row in LABELLED if row["text"] in HELD_OUT]
    tables = {
        "pairs": PAIRS,
        "dev": DEV,
        "documents": DOCUMENTS,
        "unsorted": UNSORTED,
        "scored": SCORED,
        "nli": INFERENCE,
        "sentences": SENTENCES,
        "labelled": LABELLED,
        "dev_labelled": dev_labels,
    }
    for name, rows in tables.items():
        write_table(folder / f"{name}.tsv", rows)
    bert(folder / "plain")
    settings = {"query": "one two: ", "document": "three: ", "fr": "quatre: "}
    own = bert(folder / "raw", "mean", prompts=settings, default_prompt_name="query")
    own.max_seq_length = LENGTH
    own.save(str(folder / "own"), create_model_card=False)
    for name in ("qwen", "chat", "routed"):
        build(name, folder / "raw" / name).save(str(folder / name), create_model_card=False)
    return folder


# --- Both roads ----------------------------------------------------------------------------------------------------


@dataclass
class Left:
    """What a road leaves: the weights that it trained, the exported folder, the table of before and after."""

    weights: dict[str, torch.Tensor]
    export: Path
    table: dict[str, dict[str, Any]]


def recipe_of(case: Case, home: Path, folder: Path) -> dict[str, Any]:
    """The recipe of a case."""
    model: dict[str, Any] = dict(case.model)
    data: dict[str, Any] = {"train": str(home / "pairs.tsv")}
    recipe: dict[str, Any] = {"method": case.trainer, "languages": list(case.languages), "seed": SEED}
    training = {**TRAINING, **case.training}
    elsewhere = {"prompt": training.pop("prompts", None), "max_length": training.pop("max_length", None)}
    data |= {name: value for name, value in elsewhere.items() if value is not None}
    recipe["training"] = training
    if case.held_out:
        data["dev"] = str(home / "dev.tsv")
        if case.trainer not in TASKS:
            columns = "sentence1=sentence1,sentence2=sentence2,score=score"
            recipe["evaluation"] = {"guard": {"path": str(home / "scored.tsv"), "columns": columns}}
    if case.trainer == "dual_momentum":
        model["encoders"] = encoders_of(case, home)
    elif case.trainer in TASKS:
        model["start"] = str(home / case.encoder)
    elif case.encoder == "new":
        model["encoder"] = {"model_type": "bert", **NEW_ENCODER}
        recipe["tokenizer"] = VOCABULARY
        data["max_length"] = LENGTH
    else:
        model["encoder"] = {"path": str(home / case.encoder)}
    if case.trainer == "distillation":
        recipe["teacher"] = {"path": str(home / "own")}
    if case.trainer == "cmlm":
        data["text"] = str(home / ("unsorted.tsv" if "unsorted" in case.more else "documents.tsv"))
    if "lora" in case.more:
        recipe["adapters"] = LORA
    if "trimmed" in case.more:
        recipe["vocabulary"] = {"sources": str(home / "pairs.tsv")}
    if "monolingual" in case.more:
        data["monolingual"] = str(home / "sentences.tsv")
    if "nli" in case.more:
        recipe["nli"] = {"train": str(home / "nli.tsv")}
    if case.trainer == "classification":
        recipe["languages"] = ["en"]
        recipe["task"] = {"texts": "single", "labels": list(CLASSES)}
        data = {"train": str(home / "labelled.tsv")}
        if case.held_out:
            data["dev"] = {"words": str(home / "dev_labelled.tsv")}
    return {**recipe, "data": data, "model": model, "output_dir": str(folder)}


def encoders_of(case: Case, home: Path) -> dict[str, str]:
    if case.encoder == "two":
        return {"en": str(home / "own"), "fr": str(home / "plain")}
    return {"shared": str(home / case.encoder)}


def by_recipe(case: Case, home: Path, folder: Path) -> Left:
    """Trains as a recipe does."""
    file = folder.with_suffix(".yaml")
    file.write_text(yaml.safe_dump(recipe_of(case, home, folder)), "utf-8")
    (method,) = load_runs(str(file))

    train_recipe(method)

    results = json.loads((folder / "results.json").read_text("utf-8"))
    weights = weights_of(folder / "training" / "final")
    return Left(weights, folder / "model", results["settings"].get("comparison") or {})


def weights_of(folder: Path) -> dict[str, torch.Tensor]:
    """All tensors that a trainer saved."""
    return {name: value for file in sorted(folder.glob("*.safetensors")) for name, value in load_file(file).items()}


def by_python(case: Case, home: Path, folder: Path) -> Left:
    """Trains as a user does, by the documentation."""
    trainer = PYTHON[case.trainer](case, home, folder)
    encodes = trainer.args.trains_embeddings
    before = measure(trainer.to_sentence_transformer()) if encodes and case.held_out else Results()

    trainer.train()

    trainer.save_model(str(folder / "saved"))
    weights = weights_of(folder / "saved")
    if not encodes:
        return Left(weights, folder / "saved", {})
    trainer.save_sentence_transformer(folder / "model")
    if not case.held_out:
        return Left(weights, folder / "model", {})

    after = measure(SentenceTransformer(str(folder / "model"), device="cpu"))
    teacher = measure(trainer.teacher.encoder) if case.trainer == "distillation" else None
    changes = changes_between(before, after, teacher)
    return Left(weights, folder / "model", {key: asdict(change) for key, change in changes.items()})


def measure(encoder: Any) -> Results:
    """The metrics of the dev set and of the guard that recipes compare."""
    sides = [pair["en"] for pair in DEV], [pair["fr"] for pair in DEV]
    options: dict[str, Any] = {"languages": LANGUAGES, "name": "dev", "split": "dev"}
    scores = sts(encoder, {"scored": SCORED}, language="en", split="guard")
    key = "scored-sts/en/guard/spearman_all"
    spearman = Results([scores.records[key]], {key: scores.outcomes[key]})
    return tatoeba(encoder, *sides, **options) | xsim(encoder, *sides, **options) | spearman


def options_of(case: Case, folder: Path) -> dict[str, Any]:
    """Training arguments of a case."""
    length = {"max_length": LENGTH} if case.encoder == "new" else {}
    return {
        "output_dir": str(folder / "out"),
        "seed": SEED,
        "report_to": "none",
        **TRAINING,
        **length,
        **case.training,
    }


def pairs_of(case: Case) -> Dataset:
    return Dataset.from_list(train_rows(PAIRS, case)).select_columns(list(case.languages))


def evaluation_of(case: Case) -> dict[str, Any]:
    """The dev set, if it is measured during training."""
    if "eval_strategy" not in case.training:
        return {}
    if case.trainer != "classification":
        return {"eval_dataset": Dataset.from_list(DEV)}
    rows = [row for row in LABELLED if row["text"] in HELD_OUT]
    return {"eval_dataset": Dataset.from_list(rows).cast_column("label", ClassLabel(names=list(CLASSES)))}


def new_tokenizer(texts: list[str]) -> Any:
    return train_tokenizer(texts, max_length=LENGTH, **VOCABULARY)


def model_of(case: Case, model_class: Any, home: Path) -> Any:
    """The model of a case: the place of its encoder, or a model with values of its configuration."""
    if not case.model and "lora" not in case.more:
        return str(home / case.encoder)
    set_seed(SEED)
    return adapted(case, model_class.from_encoder(str(home / case.encoder), **case.model))


def adapted(case: Case, model: Any) -> Any:
    return add_adapters(model, **LORA) if "lora" in case.more else model


def new_model(case: Case, model_class: Any, tokenizer: Any, config: Callable[..., Any], **options: Any) -> Any:
    """A model on a new encoder for a tokenizer."""
    encoder = config(vocab_size=len(tokenizer), pad_token_id=tokenizer.pad_token_id, **NEW_ENCODER)
    set_seed(SEED)
    return model_class(model_class.config_class(text_config=encoder, **case.model, **options))


def dual_momentum(case: Case, home: Path, folder: Path) -> Any:
    places = encoders_of(case, home)
    model: Any = places.get("shared", places)
    if case.model:
        values: dict[str, Any] = {**case.model, "nli_labels": 3 if "nli" in case.more else 0}
        set_seed(SEED)
        model = adapted(case, hf_xlsr.DualMomentumModel.from_encoders(model, languages=list(LANGUAGES), **values))
    return hf_xlsr.DualMomentumTrainer(
        model=model,
        args=hf_xlsr.DualMomentumTrainingArguments(**options_of(case, folder)),
        train_dataset=pairs_of(case),
        nli_dataset=Dataset.from_list(INFERENCE) if "nli" in case.more else None,
        **evaluation_of(case),
    )


def lightweight(case: Case, home: Path, folder: Path) -> Any:
    args = hf_xlsr.LightweightTrainingArguments(**options_of(case, folder))
    pairs = pairs_of(case)
    if case.encoder != "new":
        model = model_of(case, hf_xlsr.LightweightDualTransformer, home)
        return hf_xlsr.LightweightTrainer(model, args, train_dataset=pairs, **evaluation_of(case))
    tokenizer = new_tokenizer([*pairs["en"], *pairs["fr"]])
    model = new_model(case, hf_xlsr.LightweightDualTransformer, tokenizer, paper_encoder_config)
    return hf_xlsr.LightweightTrainer(model, args, train_dataset=pairs, processing_class=tokenizer)


def distillation(case: Case, home: Path, folder: Path) -> Any:
    args = hf_xlsr.LightweightTrainingArguments(**options_of(case, folder))
    pairs, teacher = pairs_of(case), Teacher(str(home / "own"))
    if case.encoder != "new":
        model = model_of(case, hf_xlsr.DistillationModel, home)
        return hf_xlsr.DistillationTrainer(model, args, teacher=teacher, train_dataset=pairs)
    tokenizer = new_tokenizer([*pairs["en"], *pairs["fr"]])

    def without_dropout(**values: Any) -> Any:
        return paper_encoder_config(**values, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)

    model = new_model(case, hf_xlsr.DistillationModel, tokenizer, without_dropout, teacher_dim=teacher.dim)
    return hf_xlsr.DistillationTrainer(model, args, teacher=teacher, train_dataset=pairs, processing_class=tokenizer)


def bert_config(**values: Any) -> dict[str, Any]:
    return {"model_type": "bert", **values}


def hictl(case: Case, home: Path, folder: Path) -> Any:
    args = hf_xlsr.HictlTrainingArguments(**options_of(case, folder))
    pairs = pairs_of(case)
    data: Any = {"en-fr": pairs, "fr": Dataset.from_list(SENTENCES)} if "monolingual" in case.more else pairs
    if case.encoder != "new":
        model = model_of(case, hf_xlsr.HictlForPreTraining, home)
        return hf_xlsr.HictlTrainer(model, args, train_dataset=data, **evaluation_of(case))
    tokenizer = new_tokenizer([*pairs["en"], *pairs["fr"]])
    model = new_model(case, hf_xlsr.HictlForPreTraining, tokenizer, bert_config)
    return hf_xlsr.HictlTrainer(model, args, train_dataset=data, processing_class=tokenizer)


def cmlm(case: Case, home: Path, folder: Path) -> Any:
    args = hf_xlsr.CmlmTrainingArguments(**options_of(case, folder))
    sentences = Dataset.from_list(train_rows(UNSORTED if "unsorted" in case.more else DOCUMENTS, case))
    data: dict[str, Any] = {"train_dataset": sentences, "retrieval_dataset": pairs_of(case)}
    if "nli" in case.more:
        data["nli_dataset"] = Dataset.from_list(INFERENCE)
    if case.encoder != "new":
        return hf_xlsr.CmlmTrainer(model_of(case, hf_xlsr.CmlmModel, home), args, **data, **evaluation_of(case))
    tokenizer = new_tokenizer(sentences["text"])
    model = new_model(case, hf_xlsr.CmlmModel, tokenizer, bert_config)
    return hf_xlsr.CmlmTrainer(model, args, processing_class=tokenizer, **data)


def classification(case: Case, home: Path, folder: Path) -> Any:
    args = fine_tune.FineTuneTrainingArguments(**options_of(case, folder))
    rows = Dataset.from_list(train_rows(LABELLED, case)).cast_column("label", ClassLabel(names=list(CLASSES)))
    model = model_of(case, hf_xlsr.HictlForSequenceClassification, home)
    return fine_tune.FineTuneTrainer(model, args, train_dataset=rows, **evaluation_of(case))


def translate(case: Case, home: Path, folder: Path) -> Any:
    args = translation.TranslationTrainingArguments(**options_of(case, folder))
    pairs = pairs_of(case)
    if "trimmed" not in case.more:
        model = model_of(case, hf_xlsr.HictlForConditionalGeneration, home)
        return translation.TranslationTrainer(model, args, train_dataset=pairs)
    place = str(home / case.encoder)
    small, kept = trim_vocabulary(AutoTokenizer.from_pretrained(place), [*pairs["en"], *pairs["fr"]])
    set_seed(SEED)
    model = hf_xlsr.HictlForConditionalGeneration.from_encoder(place, tokenizer=small, tokens=kept)
    return translation.TranslationTrainer(model, args, train_dataset=pairs, processing_class=small)


PYTHON: dict[str, Callable[[Case, Path, Path], Any]] = {
    "dual_momentum": dual_momentum,
    "lightweight": lightweight,
    "distillation": distillation,
    "hictl": hictl,
    "cmlm": cmlm,
    "classification": classification,
    "translation": translate,
}


# --- Tests ---------------------------------------------------------------------------------------------------------

FAST = {"dual_momentum-own-held_out", "lightweight-own", "hictl-plain-held_out"}
"""The cases of the fast suite."""


def cases(chosen: Iterable[Case] = CASES) -> list[Any]:
    """Cases as parameters, slow but for a few."""
    parameters = []
    for case in chosen:
        marks = [] if str(case) in FAST else [pytest.mark.slow]
        parameters.append(pytest.param(case, id=str(case), marks=marks))
    return parameters


@pytest.fixture(scope="module")
def roads(home: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[Case], tuple[Left, Left]]:
    """Both roads of a case, each trained once."""
    trained: dict[str, tuple[Left, Left]] = {}

    def both(case: Case) -> tuple[Left, Left]:
        name = str(case)
        if name not in trained:
            folder = tmp_path_factory.mktemp(name)
            trained[name] = by_recipe(case, home, folder / "recipe"), by_python(case, home, folder / "python")
        return trained[name]

    return both


Roads = Callable[[Case], tuple[Left, Left]]


@pytest.mark.sample(1)
@pytest.mark.parametrize("case", cases())
def test_weights(case: Case, roads: Roads) -> None:
    recipe, python = roads(case)
    assert recipe.weights.keys() == python.weights.keys()
    different = [name for name, value in recipe.weights.items() if not torch.equal(value, python.weights[name])]
    assert different == []


@pytest.mark.parametrize("case", cases())
def test_export(case: Case, roads: Roads) -> None:
    recipe, python = (files_of(left.export) for left in roads(case))
    assert recipe.keys() == python.keys()
    different = [name for name, content in recipe.items() if content != python[name]]
    assert different == []


def files_of(folder: Path) -> dict[str, bytes]:
    """The files of an exported folder by name, without the card and the pickled arguments of a trainer."""
    files = (file for file in folder.rglob("*") if file.is_file())
    left_out = ("README.md", "training_args.bin")
    return {str(file.relative_to(folder)): file.read_bytes() for file in files if file.name not in left_out}


COMPARED = [case for case in CASES if case.held_out and case.trainer not in TASKS and case.encoder != "new"]


@pytest.mark.parametrize("case", cases(COMPARED))
def test_table_of_before_and_after(case: Case, roads: Roads) -> None:
    recipe, python = roads(case)
    assert recipe.table
    assert recipe.table == python.table
