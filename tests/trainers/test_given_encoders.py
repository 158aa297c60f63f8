"""Trainers on given encoders: what is given, trained, measured live, saved and exported are the same encoder."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import make_pairs
from sentence_transformers import SentenceTransformer

sys.path.insert(0, str(Path(__file__).parents[1] / "encoders"))
from given_encoders import FAST, GIVEN, SENTENCES, WIDTH, build, vectors  # noqa: E402
from test_reading import assert_unchanged, facts  # noqa: E402

from hf_xlsr import DistillationModel, DualMomentumModel, HictlForPreTraining  # noqa: E402
from hf_xlsr.cli import main  # noqa: E402
from hf_xlsr.encoders.assembly import EncoderSettings  # noqa: E402
from hf_xlsr.encoders.reading import read_encoder  # noqa: E402
from hf_xlsr.trainers import (  # noqa: E402
    CmlmTrainer,
    CmlmTrainingArguments,
    DistillationTrainer,
    DualMomentumTrainer,
    DualMomentumTrainingArguments,
    HictlTrainer,
    HictlTrainingArguments,
    LightweightTrainer,
    LightweightTrainingArguments,
)
from hf_xlsr.utils.errors import XlsrError  # noqa: E402

STEP: dict[str, Any] = {
    "max_steps": 1,
    "per_device_train_batch_size": 4,
    "learning_rate": 0.0,
    "precision": "float32",
    "report_to": "none",
    "save_strategy": "no",
    "disable_tqdm": True,
    "use_cpu": True,
}


class Teacher:
    """An encoder of the students' width that knows the length of a text."""

    def encode(self, texts: list[str], **options: Any) -> Any:
        return torch.tensor([[float(len(text))] + [1.0] * (WIDTH - 1) for text in texts]).numpy()


def documents() -> list[dict[str, Any]]:
    sentences = [pair["source"] for pair in make_pairs(16)]
    return [{"text": text, "document": number // 4, "lang": "en"} for number, text in enumerate(sentences)]


def dual(given: Any, folder: Path, **options: Any) -> DualMomentumTrainer:
    args = DualMomentumTrainingArguments(str(folder), **{**STEP, **options})
    return DualMomentumTrainer(given, args, train_dataset=make_pairs(16))


def lightweight(given: Any, folder: Path, **options: Any) -> LightweightTrainer:
    args = LightweightTrainingArguments(str(folder), **{**STEP, **options})
    return LightweightTrainer(given, args, train_dataset=make_pairs(16))


def distillation(given: Any, folder: Path, **options: Any) -> DistillationTrainer:
    args = LightweightTrainingArguments(str(folder), **{**STEP, **options})
    return DistillationTrainer(given, args, teacher=Teacher(), train_dataset=make_pairs(16))


def hictl(given: Any, folder: Path, **options: Any) -> HictlTrainer:
    args = HictlTrainingArguments(str(folder), **{**STEP, **options})
    read = read_encoder(given)  # fewer negative words than by default: the vocabulary is small
    model = HictlForPreTraining.from_encoder(read, negative_words=8)
    return HictlTrainer(model, args, train_dataset=make_pairs(16), processing_class=read.single().tokenizer)


def cmlm(given: Any, folder: Path, **options: Any) -> CmlmTrainer:
    args = CmlmTrainingArguments(str(folder), **{**STEP, **options})
    return CmlmTrainer(given, args, train_dataset=documents(), retrieval_dataset=make_pairs(16))


TRAINERS: dict[str, Callable[..., Any]] = {
    "dual": dual,
    "lightweight": lightweight,
    "distillation": distillation,
    "hictl": hictl,
    "cmlm": cmlm,
}
CAUSAL = {"qwen", "gemma", "chat"}
NO_MASK = {"t5"}
OTHER_WIDTH = {"labse", "two_dense", "bert_two_modes"}
STATIC, ROUTED = {"static", "static_words"}, {"routed"}
# The encoders that each trainer refuses, with a word that the error must contain.
REFUSED: dict[str, dict[str, str]] = {
    "dual": {},
    "distillation": dict.fromkeys(ROUTED, "routes"),
    "lightweight": {
        **dict.fromkeys(STATIC, "each token alone|width"),
        **dict.fromkeys(ROUTED, "routes"),
        **dict.fromkeys(CAUSAL, "causal"),
        **dict.fromkeys(NO_MASK, "mask"),
        **dict.fromkeys(OTHER_WIDTH, "width"),
    },
    "hictl": {
        **dict.fromkeys(STATIC, "each token alone|width"),
        **dict.fromkeys(ROUTED, "routes"),
        **dict.fromkeys(CAUSAL, "causal"),
        **dict.fromkeys(NO_MASK, "mask"),
    },
}
REFUSED["cmlm"] = {**REFUSED["hictl"], **dict.fromkeys(OTHER_WIDTH, "width")}


def cases(names: dict[str, list[str]], fast: Collection[str] = FAST) -> list[Any]:
    """Trainers with encoders as parameters; those with encoders that are not in `fast` are slow."""
    marks: dict[bool, Any] = {True: (), False: pytest.mark.slow}
    return [pytest.param(kind, name, marks=marks[name in fast]) for kind, own in names.items() for name in sorted(own)]


SERVED = cases({kind: [name for name in GIVEN if name not in REFUSED[kind]] for kind in TRAINERS})
DOORS = cases(
    {
        **dict.fromkeys(TRAINERS, ["bert_prompts", "prompt_left_out", "layer_norm", "xlmr_no_limit"]),
        **dict.fromkeys(("dual", "distillation"), ["bert_prompts", "prompt_left_out", "layer_norm", "static_words"]),
    },
    ["bert_prompts", "static_words"],
)


@pytest.mark.sample(4)
@pytest.mark.parametrize(("kind", "name"), SERVED)
def test_a_step_of_size_0_leaves_the_encoder_that_was_given(kind: str, name: str, tmp_path: Path) -> None:
    given = build(name, tmp_path / "raw")
    before, expected = facts(given), vectors(given)

    trainer = TRAINERS[kind](given, tmp_path / "run")
    trainer.train()

    assert_unchanged(given, before)
    live = trainer.live_encoder()
    assert type(live) is SentenceTransformer
    assert torch.allclose(vectors(live), expected, atol=1e-5)
    trainer.save_sentence_transformer(tmp_path / "export")
    exported = SentenceTransformer(str(tmp_path / "export"), device="cpu")
    assert torch.equal(vectors(exported), vectors(live))
    assert EncoderSettings.of(exported) == EncoderSettings.of(live)
    for method in ("encode_query", "encode_document"):
        encoded = [torch.as_tensor(getattr(model, method)(SENTENCES)) for model in (given, live, exported)]
        assert torch.allclose(encoded[0], encoded[1], atol=1e-5)
        assert torch.equal(encoded[1], encoded[2])


@pytest.mark.parametrize(("kind", "name"), cases({kind: list(REFUSED[kind]) for kind in TRAINERS}, FAST | {"t5"}))
def test_what_a_method_cannot_train_is_refused_in_one_sentence(kind: str, name: str, tmp_path: Path) -> None:
    given = build(name, tmp_path / "raw")
    with pytest.raises(XlsrError, match=REFUSED[kind][name]) as raised:
        TRAINERS[kind](given, tmp_path / "run")
    assert "\n" not in str(raised.value)


@pytest.mark.sample(2)
@pytest.mark.parametrize(("kind", "name"), DOORS)
def test_every_save_has_modules_and_settings(kind: str, name: str, tmp_path: Path) -> None:
    given = build(name, tmp_path / "raw")
    given.save(str(tmp_path / "given"))
    trainer = TRAINERS[kind](str(tmp_path / "given"), tmp_path / "run", save_strategy="steps", save_steps=1)
    trainer.train()
    trainer.save_model(str(tmp_path / "saved"))
    trainer.save_sentence_transformer(tmp_path / "ours")

    ours = content(tmp_path / "ours")
    for place in (tmp_path / "saved", tmp_path / "run" / "checkpoint-1"):
        output = tmp_path / f"export of {place.name}"
        assert main(["export", str(place), "--output", str(output)]) == 0
        assert content(output) == ours
        assert use_of(output) == use_of(tmp_path / "ours")


def use_of(folder: Path) -> str:
    """What a card says of how the model is used; only a trainer knows the training."""
    card = (folder / "README.md").read_text("utf-8")
    return card.partition("## Use")[2].partition("## Measured results")[0]


def content(folder: Path) -> dict[str, bytes]:
    """The files of an export by name, without the card."""
    files = [path for path in folder.rglob("*") if path.is_file() and path.name != "README.md"]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


@pytest.mark.sample(2)
@pytest.mark.parametrize("kind", TRAINERS)
def test_arguments_replace_the_settings_of_the_encoder(kind: str, tmp_path: Path) -> None:
    given = build("bert_prompts", tmp_path / "raw")
    trainer = TRAINERS[kind](given, tmp_path / "run", prompts="five ", max_length=12)
    trainer.train()
    trainer.save_sentence_transformer(tmp_path / "export")
    exported = SentenceTransformer(str(tmp_path / "export"), device="cpu")
    assert exported.max_seq_length == 12
    assert torch.equal(
        *(torch.as_tensor(one) for one in (exported.encode(SENTENCES), exported.encode_query(SENTENCES)))
    )
    given.max_seq_length = 12
    assert torch.allclose(vectors(exported), vectors(given, prompt="five "), atol=1e-5)


@pytest.mark.parametrize("kind", ["dual", "cmlm"])
def test_prompts_that_pooling_leaves_out_have_equally_many_tokens(kind: str, tmp_path: Path) -> None:
    given = build("prompt_left_out", tmp_path / "raw")
    TRAINERS[kind](
        given, tmp_path / "run", prompts={"source": "one two ", "target": "two one ", "default": "one two "}
    )
    for prompts in ({"source": "one ", "target": "one two "}, {"default": "one ", "fr": "one two "}):
        with pytest.raises(XlsrError, match="include_prompt"):
            TRAINERS[kind](given, tmp_path / "run", prompts=prompts)


@pytest.mark.parametrize("kind", TRAINERS)
def test_max_length_above_the_positions_is_lowered(
    kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    given = build("xlmr_no_limit", tmp_path / "raw")
    trainer = TRAINERS[kind](given, tmp_path / "run", max_length=1000)
    positions = 41  # 42 less the one of padding
    assert trainer.max_length == positions - (15 if kind == "cmlm" else 0)
    assert "1000" in caplog.text


@pytest.mark.parametrize("kind", TRAINERS)
def test_training_reads_the_tokens_that_encode_reads(kind: str, tmp_path: Path) -> None:
    given = build("bert_prompts", tmp_path / "raw")
    if kind == "cmlm":
        pytest.skip("its rows of running text are cut into sentences")
    trainer = TRAINERS[kind](given, tmp_path / "run")
    row = trainer.train_dataset[0, 0]
    texts = {side: make_pairs(16)[0][side] for side in ("source", "target")}
    prompts = {"source": "one two: ", "target": "quatre: "}  # the default, and that of the language
    for side, text in texts.items():
        expected = given.preprocess([text], prompt=prompts[side])["input_ids"][0].tolist()
        assert list(row[f"{side}_ids"]) == expected


def test_a_decoder_of_messages_is_trained_on_messages(tmp_path: Path) -> None:
    given = build("chat", tmp_path / "raw")
    row = dual(given, tmp_path / "run").train_dataset[0, 0]
    expected = given.preprocess([make_pairs(16)[0]["source"]])["input_ids"][0].tolist()
    assert list(row["source_ids"]) == expected
    assert expected != given.tokenizer(make_pairs(16)[0]["source"])["input_ids"]


def test_one_object_for_two_languages_trains_and_saves(tmp_path: Path) -> None:
    given = build("bert_cls", tmp_path / "raw")
    before = facts(given)
    trainer = dual({"en": given, "fr": given}, tmp_path / "run", learning_rate=1e-2, max_steps=3)
    trainer.train()
    trainer.save_model(str(tmp_path / "saved"))
    assert_unchanged(given, before)
    encoders = trainer.model.encoders
    assert not torch.equal(*(encoders[name].embeddings.word_embeddings.weight for name in ("en", "fr")))


def test_a_frozen_head_is_not_trained(tmp_path: Path) -> None:
    given = build("labse", tmp_path / "raw")
    args = DualMomentumTrainingArguments(str(tmp_path / "run"), **{**STEP, "learning_rate": 0.1, "max_steps": 2})
    moved = {}
    for trained in (False, True):
        model = DualMomentumModel.from_encoders(
            {"en": given, "fr": given}, queue_size=64, in_batch_negatives=True, train_head=trained
        )
        tokenizers = dict.fromkeys(("en", "fr"), given.tokenizer)
        DualMomentumTrainer(model, args, tokenizers=tokenizers, train_dataset=make_pairs(16)).train()
        moved[trained] = not torch.equal(model.heads["en"][1].linear.weight, given[2].linear.weight)
    assert moved == {False: False, True: True}


def test_a_frozen_head_stays_frozen_after_loading(tmp_path: Path) -> None:
    model = DistillationModel.from_encoder(build("labse", tmp_path / "raw"), train_head=False, generative_weight=0.0)
    model.save_pretrained(tmp_path / "saved")
    loaded = DistillationModel.from_pretrained(tmp_path / "saved")
    assert not any(weight.requires_grad for weight in loaded.head.parameters())
    assert all(weight.requires_grad for weight in loaded.encoder.parameters())
