"""What trainers are given wrongly is said where they are made, or at the latest before the first step."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from cmlm_helpers import tiny_cmlm
from conftest import make_pairs, tiny_encoder
from datasets import Dataset
from dual_momentum_runs import pairs_data, tiny_dual, tokenizers_of
from hictl_helpers import framed_tokenizer, tiny_hictl
from lightweight_trainers import arguments, model_of, trainer_of
from transformers import AutoConfig, AutoModel, TrainingArguments

from hf_xlsr import HictlConfig, HictlForConditionalGeneration, HictlForSequenceClassification
from hf_xlsr.data.preparation import tokenize_pairs
from hf_xlsr.data.prepared import PreparedPairs
from hf_xlsr.encoders.stock import check_pieces, encoder_from_config, vocab_size_of
from hf_xlsr.trainers import (
    CmlmTrainer,
    CmlmTrainingArguments,
    DualMomentumTrainer,
    DualMomentumTrainingArguments,
    FineTuneTrainer,
    FineTuneTrainingArguments,
    HictlTrainer,
    HictlTrainingArguments,
    LightweightTrainer,
    LightweightTrainingArguments,
    TranslationTrainer,
    TranslationTrainingArguments,
)
from hf_xlsr.trainers.checks import usable_length
from hf_xlsr.utils.errors import XlsrError

SENTENCE_ENDS = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}


def made(kind: str, args: Any, **options: Any) -> Any:
    """A trainer of each method, by its own model."""
    tokenizer = framed_tokenizer()
    given = {"processing_class": tokenizer, **options}
    if kind == "Lightweight":
        return LightweightTrainer(model_of(tokenizer), args, **given)
    if kind == "Hictl":
        return HictlTrainer(tiny_hictl(len(tokenizer)), args, **given)
    if kind == "Cmlm":
        return CmlmTrainer(tiny_cmlm(len(tokenizer)), args, train_dataset=pairs_data(), **given)
    if kind == "Translation":
        config = HictlConfig(text_config={**tiny_encoder(len(tokenizer)), **SENTENCE_ENDS}, decoder_layers=1)
        return TranslationTrainer(HictlForConditionalGeneration(config), args, **given)
    if kind == "DualMomentum":
        return DualMomentumTrainer(tiny_dual(), args, tokenizers=tokenizers_of(("en", "fr")))
    config = HictlConfig(text_config=tiny_encoder(len(tokenizer)), num_labels=2)
    return FineTuneTrainer(HictlForSequenceClassification(config), args, **given)


KINDS = ("Lightweight", "Hictl", "Cmlm", "DualMomentum", "FineTune", "Translation")


@pytest.mark.parametrize("kind", KINDS)
def test_arguments_of_another_kind(kind: str, tmp_path: Path) -> None:
    with pytest.raises(XlsrError, match=rf"args is None; give {kind}TrainingArguments\(output_dir="):
        made(kind, None)
    with pytest.raises(XlsrError, match=f"args is of the class TrainingArguments; give {kind}TrainingArguments"):
        made(kind, TrainingArguments(output_dir=str(tmp_path), report_to="none"))


OF_ONE_TOKENIZER = pytest.mark.parametrize(
    ("kind", "arguments_class"),
    [
        ("Lightweight", LightweightTrainingArguments),
        ("Hictl", HictlTrainingArguments),
        ("Cmlm", CmlmTrainingArguments),
        ("FineTune", FineTuneTrainingArguments),
    ],
)


@OF_ONE_TOKENIZER
def test_a_tokenizer_is_needed(kind: str, arguments_class: Any, tmp_path: Path) -> None:
    with pytest.raises(XlsrError, match="no processing_class; give it the tokenizer of its data"):
        made(kind, arguments_class(output_dir=str(tmp_path), report_to="none"), processing_class=None)


@OF_ONE_TOKENIZER
def test_a_tokenizer_with_more_pieces_than_the_model(kind: str, arguments_class: Any, tmp_path: Path) -> None:
    larger = framed_tokenizer()
    rows = len(larger)
    larger.add_tokens(["<new>"])
    with pytest.raises(
        XlsrError, match=f"^the tokenizer has {rows + 1} pieces but the encoder {rows}; give the encoder's"
    ):
        made(kind, arguments_class(output_dir=str(tmp_path), report_to="none"), processing_class=larger)


def test_a_tokenizer_of_two_with_more_pieces_than_its_encoder(tmp_path: Path) -> None:
    args = DualMomentumTrainingArguments(output_dir=str(tmp_path), report_to="none")
    model, tokenizers = tiny_dual(), deepcopy(tokenizers_of(("en", "fr")))  # which all tests share
    rows = model.encoders["fr"].get_input_embeddings().num_embeddings
    tokenizers["fr"].add_tokens([f"<{number}>" for number in range(rows)])
    with pytest.raises(XlsrError, match=f"^the tokenizer of 'fr' has [0-9]+ pieces but the encoder {rows}; "):
        DualMomentumTrainer(model, args, tokenizers=tokenizers)
    model.resize_token_embeddings(len(tokenizers["fr"]), language="fr")
    DualMomentumTrainer(model, args, tokenizers=tokenizers)


def test_tables_that_adapters_stand_around_and_encoders_without_one() -> None:
    peft = pytest.importorskip("peft")
    config = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    encoder = AutoModel.from_config(AutoConfig.for_model("bert", vocab_size=30, **config))
    adapted = peft.get_peft_model(encoder, peft.LoraConfig(target_modules=["word_embeddings"], r=2))
    assert vocab_size_of(encoder) == 30
    with pytest.raises(XlsrError, match="has 31 pieces but the encoder 30"):
        check_pieces(range(31), vocab_size_of(adapted))
    hashed = AutoModel.from_config(AutoConfig.for_model("canine", **config))
    assert vocab_size_of(hashed) is None
    check_pieces(range(31), vocab_size_of(hashed))


def test_noise_that_would_reach_one_encoder_alone(tmp_path: Path) -> None:
    args = DualMomentumTrainingArguments(output_dir=str(tmp_path), report_to="none", neftune_noise_alpha=5.0)
    with pytest.raises(
        XlsrError, match="neftune_noise_alpha would reach the encoder of one language alone; leave it out"
    ):
        DualMomentumTrainer(tiny_dual(), args, tokenizers=tokenizers_of(("en", "fr")))
    DualMomentumTrainer(tiny_dual(shared=True), args, tokenizers=tokenizers_of(("en", "fr")))


def test_data_that_do_not_tell_their_lengths(tokenizer: Any, tmp_path: Path) -> None:
    rows, _ = tokenize_pairs(Dataset.from_list(make_pairs(20)), tokenizer, max_length=32)
    with pytest.raises(
        XlsrError, match="of the class Dataset, which does not tell the lengths .*such as PreparedPairs"
    ):
        trainer_of(tokenizer, rows, tmp_path).train()


def long_pairs(tokenizer: Any, words: int) -> PreparedPairs:
    pair = {
        "source": "one red bird " * words,
        "target": "un oiseau rouge " * words,
        "source_lang": "en",
        "target_lang": "fr",
    }
    return PreparedPairs(tokenize_pairs(Dataset.from_list([pair] * 4), tokenizer, max_length=200)[0])


def test_sentences_longer_than_the_positions(tokenizer: Any, prepared: PreparedPairs, tmp_path: Path) -> None:
    positions = tiny_encoder(len(tokenizer))["max_position_embeddings"]
    message = f"sentences of [0-9]+ but the encoder has {positions} positions; lower max_length to {positions}\\.$"
    options = {"processing_class": tokenizer, "max_length": 200}
    with pytest.raises(XlsrError, match=message):
        LightweightTrainer(
            model_of(tokenizer), arguments(tmp_path), train_dataset=long_pairs(tokenizer, 30), **options
        )
    hictl = HictlTrainingArguments(output_dir=str(tmp_path), report_to="none")
    with pytest.raises(XlsrError, match=message):
        made("Hictl", hictl, train_dataset=long_pairs(framed_tokenizer(), 30), max_length=200)
    # Where no sentence is too long, nothing is lost by the encoder's own limit.
    trainer = LightweightTrainer(model_of(tokenizer), arguments(tmp_path), train_dataset=prepared, **options)
    assert trainer.data_collator.max_length == positions


def test_no_trainer_pads_beyond_the_positions(tmp_path: Path) -> None:
    options = {"output_dir": str(tmp_path), "report_to": "none"}
    hictl = made("Hictl", HictlTrainingArguments(**options), max_length=200)
    dual = made("DualMomentum", DualMomentumTrainingArguments(**options))
    for trainer, encoder in ((hictl, hictl.model.encoder), (dual, dual.model.encoders["en"])):
        assert trainer.data_collator.max_length == encoder.config.max_position_embeddings < 128


def test_positions_of_two_sentences_in_a_row() -> None:
    encoder = encoder_from_config(AutoConfig.for_model(**tiny_encoder(30)))
    positions = encoder.config.max_position_embeddings

    class Data:
        lengths = (3, positions - 2)

    assert usable_length([encoder], 200, Data) == positions
    assert usable_length([encoder], positions - 8, Data, together=2) == positions - 8
    with pytest.raises(XlsrError, match="lower max_length"):
        usable_length([encoder], 200, Data, together=2)
    assert usable_length([encoder], 200, None) == positions


@pytest.mark.parametrize(
    "arguments_class",
    [LightweightTrainingArguments, HictlTrainingArguments, CmlmTrainingArguments, DualMomentumTrainingArguments]
    + [FineTuneTrainingArguments],
)
def test_losses_without_label_smoothing(arguments_class: Any, tmp_path: Path) -> None:
    with pytest.raises(XlsrError, match="label_smoothing_factor is 0.1, but this loss has none; leave it out"):
        arguments_class(output_dir=str(tmp_path), report_to="none", label_smoothing_factor=0.1)
    translation = TranslationTrainingArguments(output_dir=str(tmp_path), report_to="none", label_smoothing_factor=0.1)
    assert translation.label_smoothing_factor == 0.1
