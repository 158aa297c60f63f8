"""HICTL's pre-training in recipes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field

from hf_xlsr.data.collators import HictlCollator
from hf_xlsr.data.seen import SeenHashes
from hf_xlsr.data.training_rows import clean_texts
from hf_xlsr.modeling.hictl import HictlConfig, HictlForPreTraining
from hf_xlsr.runs.methods.base import DROPOUT, TrainingData
from hf_xlsr.runs.methods.sentence_encoder import (
    ENCODER,
    PAIR_COLUMNS,
    FramedTokenizerSection,
    OneEncoderMethod,
    OneEncoderRecipe,
    SentenceDataSection,
)
from hf_xlsr.runs.sections import Sources, section_of
from hf_xlsr.trainers.arguments import HictlTrainingArguments
from hf_xlsr.trainers.hictl import HictlTrainer


class HictlData(SentenceDataSection):
    monolingual: Sources = Field(None, description="sentences in one language: rows of `text` and, optionally, `lang`")


class HictlRecipe(OneEncoderRecipe):
    method: Literal["hictl"]
    data: HictlData = HictlData()
    tokenizer: FramedTokenizerSection = FramedTokenizerSection()


class HictlMethod(OneEncoderMethod):
    """`method: hictl`. `data.train` holds pairs, `data.monolingual` sentences."""

    name = "hictl"
    recipe_class = HictlRecipe
    model_section = section_of(
        HictlConfig, only=("pooling", "train_head", *HictlTrainer.method.settings), dropout=DROPOUT, encoder=ENCODER
    )
    config_class = HictlConfig
    model_class = HictlForPreTraining
    arguments_class = HictlTrainingArguments
    trainer_class = HictlTrainer
    default_type = "xlm-roberta"

    recipe: HictlRecipe

    def check(self, arguments: Any, sets: Mapping[str, Any]) -> None:
        super().check(arguments, sets)
        self.check_tokenizer(HictlCollator)

    def read_data(self, evaluation_texts: SeenHashes) -> TrainingData:
        rows = {"": self.clean_pairs(evaluation_texts)}
        monolingual = self.sources("monolingual")
        if monolingual:
            cleaning = self.recipe.data.cleaning
            rows["monolingual"] = clean_texts(monolingual, cleaning=cleaning, **self.reading(evaluation_texts))
        return TrainingData(rows, self.tokenizer_for(rows[""], PAIR_COLUMNS))

    def trainer_options(self, data: TrainingData) -> dict[str, Any]:
        datasets = {task or "pairs": clean.rows for task, clean in data.rows.items()}
        return {"train_dataset": datasets, "processing_class": data.tokenizer}
