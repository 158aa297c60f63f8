"""HICTL's pre-training in recipes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from hf_xlsr.data.collators import HictlCollator
from hf_xlsr.data.pairs import PreparedData, prepare, prepare_texts
from hf_xlsr.data.prepared import ConcatenatedRows
from hf_xlsr.data.sources import as_list
from hf_xlsr.modeling import citations
from hf_xlsr.modeling.hictl import HictlConfig, HictlForPreTraining
from hf_xlsr.runs.methods.base import DROPOUT
from hf_xlsr.runs.methods.sentence_encoder import (
    ENCODER,
    FramedTokenizerSection,
    OneEncoderMethod,
    OneEncoderRecipe,
    SentenceDataSection,
)
from hf_xlsr.runs.sections import Sources, section_of
from hf_xlsr.trainers.arguments import HictlTrainingArguments
from hf_xlsr.trainers.hictl import HictlTrainer

HICTL_PAPER = "*On Learning Universal Representations Across Languages* (Wei et al., ICLR 2021)"
# Values of the configuration that only other models of the family read.
_DECODER = ("decoder_layers", "word_similarity")
_OTHER_MODELS = ("classifier_dropout", *_DECODER)


class HictlData(SentenceDataSection):
    monolingual: Sources = Field(None, description="sentences in one language: rows of `text` and, optionally, `lang`")


class HictlRecipe(OneEncoderRecipe):
    method: Literal["hictl"]
    data: HictlData = HictlData()
    tokenizer: FramedTokenizerSection = FramedTokenizerSection()


class HictlMethod(OneEncoderMethod):
    """`method: hictl`. `data.train` holds pairs, `data.monolingual` sentences."""

    name = "hictl"
    paper, citation = HICTL_PAPER, citations.HICTL
    recipe_class = HictlRecipe
    model_section = section_of(HictlConfig, without=_OTHER_MODELS, dropout=DROPOUT, encoder=ENCODER)
    config_class = HictlConfig
    model_class = HictlForPreTraining
    arguments_class = HictlTrainingArguments
    trainer_class = HictlTrainer
    default_type = "xlm-roberta"

    recipe: HictlRecipe

    def check(self, arguments: Any, sets: Mapping[str, Any]) -> None:
        super().check(arguments, sets)
        self.check_tokenizer(HictlCollator)

    def prepare(self, folder: Path, evaluation_texts: Iterator[str]) -> PreparedData:
        section = self.recipe.data
        common = {"max_length": self.max_length, **self.reading(evaluation_texts)}
        tokenizer = self.tokenizer_or_section()
        data = prepare(data=section.model_dump(), tokenizer=tokenizer, folder=folder, **common)
        parts = [data.train]
        if sources := as_list(section.monolingual):
            common["cleaning"] = section.cleaning
            texts = prepare_texts(sources, tokenizers=data.tokenizer, folder=folder / "monolingual", **common)
            data.report["monolingual"] = texts.report
            parts.append(texts)
        data.train = ConcatenatedRows(parts)  # grouped by language, not by language pair
        return data
