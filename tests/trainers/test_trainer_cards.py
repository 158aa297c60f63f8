"""Cards that trainers write: every fact is read from the model, the data and the arguments in use."""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from conftest import make_pairs
from datasets import Dataset, DatasetInfo, load_dataset
from huggingface_hub import ModelCard, ModelCardData
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import StaticEmbedding
from seven_trainers import KINDS, documents, encoder, model_of, rows_of, trainer_of

from hf_xlsr import DistillationModel
from hf_xlsr.evaluation.before_after import Change
from hf_xlsr.evaluation.protocols.tatoeba import tatoeba
from hf_xlsr.evaluation.results import Results
from hf_xlsr.export import CardMetadata
from hf_xlsr.export.model_card import CardFacts, card_header, card_text
from hf_xlsr.trainers.card import trainer_facts

sys.path.append(str(Path(__file__).resolve().parents[1] / "export"))
from hub_helpers import Hub  # noqa: E402
from test_card_attacks import ATTACKS, MARKUP, TOKEN, bars_of_rows, outside_code  # noqa: E402

SENTENCE_KINDS = [kind for kind in KINDS if kind not in ("FineTune", "Translation")]
PAPERS = {
    "Lightweight": "mao2021lightweight",
    "Distillation": "reimers2020making",
    "DualMomentum": "wang2021aligning",
    "Hictl": "wei2021learning",
    "Cmlm": "yang2021universal",
    "FineTune": "wei2021learning",
    "Translation": "wei2021learning",
}
COMPARED = Change(0.9, 0.85, -0.05)
TASKS = {"FineTune": "text-classification", "Translation": "translation"}


def facts_of(trainer: Any) -> CardFacts:
    encoder = trainer.to_sentence_transformer() if trainer.args.trains_embeddings else None
    return trainer_facts(trainer, "title", encoder)


def card_of(trainer: Any) -> str:
    return card_text(facts_of(trainer))


def header_of(trainer: Any) -> ModelCardData:
    return card_header(facts_of(trainer))


def python_blocks(text: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


def missing(facts: list[str], text: str) -> list[str]:
    return [fact for fact in facts if fact not in text]


def evaluation_rows(kind: str) -> list[dict[str, Any]]:
    return make_pairs(8, 7) if kind == "Cmlm" else rows_of(kind, 8, 7)


def named_dataset(rows: list[dict[str, Any]], **info: Any) -> Dataset:
    """A dataset as `load_dataset` gives it, of a repository on the Hub."""
    revision = "a1b2c3d4" * 5
    file = f"hf://datasets/someone/pairs@{revision}/data/train.parquet"
    facts = {
        "dataset_name": "pairs",
        "license": "cc-by-4.0",
        "download_checksums": {file: {}},
        **info,
    }
    return Dataset.from_list(rows, info=DatasetInfo(**facts), split="train")


@pytest.mark.sample(2)
@pytest.mark.parametrize("kind", KINDS)
def test_push_has_the_whole_card(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub = Hub(monkeypatch)
    settings = {"hub_model_id": "me/model", "max_steps": 2}
    trainer = trainer_of(kind, tmp_path, eval_dataset=evaluation_rows(kind), settings=settings)
    trainer.train()
    loss = trainer.evaluate()["eval_loss"]

    trainer.push_to_hub()

    text = hub.repos["me/model"].files["README.md"].decode()
    header = ModelCard(text).data
    facts = [
        PAPERS[kind],
        f"`{kind}Trainer`",
        f"| `eval_loss` | {loss:.4f} |",
        "| evaluation rows | 8",
        "| steps | 2 of 2 |",
        "licence are unknown",
        "learning_rate: 0.01",
        "24 tokens",
        '"me/model"',
    ]
    false_claims = [
        "recipe",
        "was removed from the training data",
        "path/to/this/folder",
    ]
    assert header.pipeline_tag == TASKS.get(kind, "sentence-similarity")
    assert header.tags[-2:] == ["hf-xlsr", trainer.model.config.model_type]
    assert header.license == "unknown"
    assert not missing(facts, text)
    assert missing(false_claims, text) == false_claims
    for block in python_blocks(text):
        compile(block, "card", "exec")


@pytest.mark.sample(2)
@pytest.mark.parametrize("kind", SENTENCE_KINDS)
def test_save_sentence_transformer_writes_the_card(kind: str, tmp_path: Path) -> None:
    trainer = trainer_of(kind, tmp_path / "run")

    folder = tmp_path / "my-encoder"

    trainer.save_sentence_transformer(folder)

    text = (folder / "README.md").read_text("utf-8")
    loaded = SentenceTransformer(str(folder), device="cpu")
    dimension = loaded.get_embedding_dimension()
    facts = [
        "\n# my-encoder\n",
        f"{dimension}-dimensional",
        "the model is not trained yet",
        "Not measured",
    ]
    assert not missing(facts, text)
    assert ModelCard(text).data.library_name == "sentence-transformers"


def test_encoder_without_an_export_is_pushed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub = Hub(monkeypatch)
    model = model_of("Cmlm", sentence_vector="projected")
    trainer = trainer_of("Cmlm", tmp_path, model=model, settings={"hub_model_id": "me/model"})

    trainer.push_to_hub()

    files = hub.repos["me/model"].files
    assert {"model.safetensors", "tokenizer.json"} <= set(files)
    card = files["README.md"].decode()
    assert 'CmlmModel.from_pretrained("me/model")' in card
    assert ModelCard(card).data.library_name == "transformers"


@pytest.mark.sample(2)
@pytest.mark.parametrize("read", [str, partial(SentenceTransformer, device="cpu")], ids=["folder", "object"])
@pytest.mark.parametrize("kind", ["Lightweight", "DualMomentum", "FineTune"])
def test_base_model_and_licence_are_those_of_the_encoder(kind: str, read: Any, tmp_path: Path) -> None:
    folder = tmp_path / "private" / "base"
    encoder().save(str(folder), create_model_card=False)
    (folder / "README.md").write_text("---\nlicense: mit\nbase_model: org/older\n---\n# Base", "utf-8")

    trainer = trainer_of(kind, tmp_path / "run", model=read(str(folder)))

    header = header_of(trainer)
    assert header.license == "mit"
    assert header.base_model == ["org/older"]
    text = card_of(trainer)
    assert ".../private/base" in text
    assert str(tmp_path) not in text


def test_author_states_what_nothing_else_knows(tmp_path: Path) -> None:
    trainer = trainer_of("Lightweight", tmp_path)
    trainer.card = CardMetadata(
        license="Apache-2.0",
        base_model="org/base",
        datasets=["org/one", "org/two"],
    )

    header = header_of(trainer)

    assert header.license == "apache-2.0"
    assert header.base_model == ["org/base"]
    assert header.datasets == ["org/one", "org/two"]


@pytest.mark.parametrize("kind", ["Lightweight", "Hictl", "Translation"])
def test_datasets_say_where_they_are_from(kind: str, tmp_path: Path) -> None:
    pairs = named_dataset(make_pairs(16), config_name="en-fr").filter(lambda row: len(row["source"]) > 0)
    more = Dataset.from_list(make_pairs(8))

    trainer = trainer_of(kind, tmp_path, rows={"en-fr": pairs, "fr-en": more})

    assert header_of(trainer).datasets == ["someone/pairs"]
    text = card_of(trainer)
    assert "someone/pairs (en-fr, split train, revision a1b2c3d4, cc-by-4.0); rows whose source" in text
    assert "| training rows | 24 (en-fr 24) |" in text


@pytest.mark.parametrize("streaming", [False, True])
def test_files_are_called_files(streaming: bool, tmp_path: Path) -> None:
    file = tmp_path / "pairs.parquet"
    Dataset.from_list(make_pairs(16)).to_parquet(file)
    files = {"train": str(file)}
    data = load_dataset("parquet", data_files=files, split="train", streaming=streaming, cache_dir=tmp_path / "cache")

    text = card_of(trainer_of("Lightweight", tmp_path, rows=data))

    assert "| training data | parquet files (split train, licence unknown) |" in text


def test_data_of_every_task_are_named(tmp_path: Path) -> None:
    text_rows = named_dataset(documents(16), dataset_name="stories", download_checksums={}, license="")
    trainer = trainer_of("Cmlm", tmp_path, rows=text_rows, retrieval_dataset=named_dataset(make_pairs(16)))

    text = card_of(trainer)

    assert "stories (split train, licence unknown); someone/pairs (split train" in text
    assert "| training rows of the task text | 12 (en 12) |" in text
    assert "| training rows of the task retrieval | 16 (en-fr 16) |" in text


def test_streams_are_not_counted(tmp_path: Path) -> None:
    stream = Dataset.from_list(make_pairs(16)).to_iterable_dataset()
    stream.info.dataset_name = "pairs"

    text = card_of(trainer_of("Lightweight", tmp_path, rows=stream))

    assert "| training data | pairs (licence unknown) |" in text
    assert "a stream, whose rows are not counted" in text
    assert "The training data name no languages." in text


def test_prompts_and_head_are_those_of_the_model(tmp_path: Path) -> None:
    prompts = {"source": "query: ", "target": "passage: "}
    model = model_of("Lightweight", pooling="cls", normalize=False)
    trainer = trainer_of("Lightweight", tmp_path, model=model, settings={"prompts": prompts})

    text = card_of(trainer)

    facts = [
        '"query: "',
        '"passage: "',
        "| head | Pooling (cls) |",
        "states[torch.arange(len(states)), positions]",
    ]
    assert not missing(facts, text)


def test_a_static_embedding_has_code_for_sentence_transformers_only(tmp_path: Path) -> None:
    tokenizer = encoder().tokenizer.backend_tokenizer
    given = SentenceTransformer(modules=[StaticEmbedding(tokenizer, embedding_dim=8)], device="cpu")
    model = DistillationModel.from_encoder(given, teacher_dim=16)

    text = card_of(trainer_of("Distillation", tmp_path, model=model))

    assert not missing(["| head | StaticEmbedding |", "SentenceTransformer("], text)
    for name in ("AutoModel", "Pooling", "transformers.js"):
        assert name not in text


def test_frozen_weights_are_not_called_trained(tmp_path: Path) -> None:
    trainer = trainer_of("Translation", tmp_path, settings={"freeze_encoder": True})
    trained = trainer.model.num_parameters(only_trainable=True)

    assert trained < trainer.model.num_parameters()
    assert f"| trained parameters | {trained:,} |" in card_of(trainer)


def scored(encoder: Any, name: str = "bible") -> Results:
    """A protocol, whose results have outcomes of single examples."""
    rows = make_pairs(20, 7)
    sources = [row["source"] for row in rows]
    targets = [row["target"] for row in rows]
    return tatoeba(
        encoder,
        sources,
        targets,
        languages=("en", "fr"),
        name=name,
        split="test",
    )


def test_results_have_intervals_and_protocols(tmp_path: Path) -> None:
    trainer = trainer_of("Lightweight", tmp_path, evaluations=[scored, lambda _: {"quality": 12.5}])
    key = "bible-tatoeba/en-fr/test/accuracy"

    metrics = trainer.evaluate()

    text = card_of(trainer)
    assert "Protocol `tatoeba`" in text
    assert "| `eval_quality` | 12.5000 |" in text  # its unit is unknown

    row = re.search(rf"\| `{key}` \| ([\d.]+) % \| ([\d.]+) to ([\d.]+) \|", text)
    assert row
    value, low, high = map(float, row.groups())
    assert value == pytest.approx(100 * metrics[f"eval_{key}"], abs=0.06)
    assert low <= value <= high


def test_header_has_the_results_of_protocols_only(tmp_path: Path) -> None:
    trainer = trainer_of("Lightweight", tmp_path, evaluations=[scored, lambda _: {"quality": 0.5}])

    metrics = trainer.evaluate()

    results = {}
    for result in header_of(trainer).eval_results:
        results[result.metric_type] = result
    assert results["accuracy"].dataset_type == "bible-tatoeba"
    assert results["accuracy"].metric_value == pytest.approx(
        metrics["eval_bible-tatoeba/en-fr/test/accuracy"], abs=1e-4
    )
    assert "quality" not in results


def falling(trainer: list[Any]) -> Any:
    """A metric that is lower at every later step of training, and 0 after it."""
    return lambda _: {"quality": 1 / trainer[0].state.global_step if trainer[0].is_in_train else 0.0}


def best_at_first(folder: Path, made: list[Any]) -> Any:
    """A trainer that loads its checkpoint of step 2 after four steps; `made` gets it."""
    settings = {
        "eval_strategy": "steps",
        "eval_steps": 2,
        "save_strategy": "steps",
        "save_steps": 2,
        "load_best_model_at_end": True,
        "metric_for_best_model": "quality",
        "greater_is_better": True,
    }
    made.append(trainer_of("Lightweight", folder, evaluations=[falling(made)], settings=settings))
    return made[0]


def test_scores_are_those_of_the_best_checkpoint(tmp_path: Path) -> None:
    trainer = best_at_first(tmp_path, [])
    trainer.train()

    assert "| `eval_quality` | 0.5000 |" in card_of(trainer)
    assert "the weights are those of step 2" in card_of(trainer)
    trainer.evaluate()
    assert "| `eval_quality` | 0.0000 |" in card_of(trainer)


def test_scores_are_known_after_a_resume(tmp_path: Path) -> None:
    best_at_first(tmp_path, []).train()

    resumed = best_at_first(tmp_path, [])
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-4"))

    assert "| `eval_quality` | 0.5000 |" in card_of(resumed)


def test_scores_of_other_weights_are_left_out(tmp_path: Path) -> None:
    trainer = trainer_of("Lightweight", tmp_path, evaluations=[lambda _: {"quality": 1.0}], settings={"max_steps": 1})
    trainer.train()
    trainer.evaluate()
    assert "eval_quality" in card_of(trainer)

    trainer.train()  # anew, up to a step of the same number

    assert "eval_quality" not in card_of(trainer)
    assert "Not measured" in card_of(trainer)


def test_scores_on_other_data_are_left_out(tmp_path: Path) -> None:
    trainer = trainer_of("Lightweight", tmp_path, eval_dataset=make_pairs(8, 7))
    loss = trainer.evaluate()["eval_loss"]

    other = trainer.evaluate(make_pairs(8, 9))["eval_loss"]

    assert other != loss
    assert f"| `eval_loss` | {loss:.4f} |" in card_of(trainer)


@pytest.mark.parametrize("kind", ["Lightweight", "Translation"])
def test_changes_of_guards_are_shown(kind: str, tmp_path: Path) -> None:
    guards = {"other": make_pairs(8, 9)}
    trainer = trainer_of(kind, tmp_path, guards=guards, settings={"max_steps": 1})

    trainer.train()

    text = card_of(trainer)
    assert trainer.changes
    for key, change in trainer.changes.items():
        before = 100 * change.before
        assert f"| `{key}` | 8 | {before:.1f} |" in text


def test_arguments_of_a_card_of_transformers_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Hub(monkeypatch)
    trainer = trainer_of("Lightweight", tmp_path, settings={"hub_model_id": "me/model"})
    with pytest.raises(TypeError, match="dataset"):
        trainer.push_to_hub(dataset="mine")


@pytest.fixture(scope="module")
def trainers_by_kind(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("attacked")
    trainers = {}
    for kind in KINDS:
        trainers[kind] = trainer_of(kind, folder / kind, eval_dataset=evaluation_rows(kind))
    return trainers


def attacked_card(trainer: Any, text: str) -> str:
    """The card of a trainer whose names, data, metrics and prompts have a text of an attacker."""
    info = {
        "dataset_name": text,
        "license": text,
        "config_name": text,
        "download_checksums": {f"hf://datasets/{text}@main/file": {}},
    }
    (evaluation_data,) = trainer.eval_sets.values()
    results = scored(encoder(), name=text)
    metrics = {f"eval_{key}": value for key, value in results.items()}
    metrics[f"eval_{text}"] = 0.5

    trainer.given_rows = {"a": named_dataset(make_pairs(2), **info)}
    trainer.eval_sets = {text: evaluation_data}
    trainer.class_names = [text]
    trainer.args.run_name = TOKEN
    trainer.args.hub_token = TOKEN
    trainer.args.lr_scheduler_kwargs = {text: [text]}
    trainer.measured = {0: (metrics, results)}
    trainer.changes = {f"{text}/accuracy": COMPARED}

    for part in trainer.model.modules():
        if hasattr(part, "name_or_path"):
            part.name_or_path = text
    if trainer.args.trains_embeddings:
        trainer.model.config.encoder_settings = {
            "prompts": {text: text},
            "default_prompt_name": text,
        }
    return card_text(replace(facts_of(trainer), title=text))


@pytest.mark.sample(2)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS)
def test_names_stay_text(attack: str, kind: str, trainers_by_kind: dict[str, Any]) -> None:
    trainer = trainers_by_kind[kind]

    text = attacked_card(trainer, attack)

    plain = attacked_card(trainer, "plain name")
    header = ModelCard(text).data.to_dict()
    assert header.keys() == ModelCard(plain).data.to_dict().keys()
    assert header["license"] == "unknown"

    body = outside_code(text)
    plain_body = outside_code(plain)
    assert body.count("\n#") == plain_body.count("\n#")
    assert bars_of_rows(body) == bars_of_rows(plain_body)
    for markup in MARKUP:
        assert not re.search(rf"(?<!\\){re.escape(markup)}", body), markup

    secrets = [TOKEN, "\x00", "\u202e"]
    assert missing(secrets, text) == secrets
    for block in python_blocks(text):
        compile(block, "card", "exec")


def test_languages_stay_text(tmp_path: Path) -> None:
    evil = 'fr"); import os; os.system("id"); ("'
    rows = [{**row, "target_lang": evil} for row in make_pairs(32)]

    text = card_of(trainer_of("Lightweight", tmp_path, rows=rows))

    assert ModelCard(text).data.language == ["en"]
    for block in python_blocks(text):
        assert "os.system" not in block


def test_languages_may_have_a_script(tmp_path: Path) -> None:
    rows = [{**row, "target_lang": "zh-Hans"} for row in make_pairs(32)]

    trainer = trainer_of("Lightweight", tmp_path, rows=rows)

    assert header_of(trainer).language == ["en", "zh"]
    assert "| training rows | 32 (en-zh-Hans 32) |" in card_of(trainer)


def test_folders_of_this_machine_are_shortened(tmp_path: Path) -> None:
    trainer = trainer_of("Distillation", tmp_path)
    trainer.model.encoder.name_or_path = "/people/ann/secret-project/encoder"
    trainer.args.resume_from_checkpoint = "/people/ann/runs/checkpoint-1"
    trainer.args.lr_scheduler_kwargs = {"file": "/people/ann/secret-project/rates.json"}

    text = card_of(trainer)

    assert "ann" not in text.replace("language", "")
    assert ".../secret-project/encoder" in text
    assert str(tmp_path) not in text
