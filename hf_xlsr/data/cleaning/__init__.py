"""Cleaning of streams of rows by steps that keep, change or drop rows."""

from __future__ import annotations

from hf_xlsr.data.cleaning.cleaner import BATCH_ROWS, Cleaner
from hf_xlsr.data.cleaning.duplicates import Deduplicate, FuzzyDuplicates, NearDuplicates
from hf_xlsr.data.cleaning.evaluation_texts import (
    RemoveEvaluation,
    RemoveEvaluationRows,
    evaluation_keys,
    row_text,
)
from hf_xlsr.data.cleaning.language_filter import LanguageFilter
from hf_xlsr.data.cleaning.recipe_steps import STEPS, build_steps, build_text_steps, parse_steps, register_step
from hf_xlsr.data.cleaning.steps import (
    TEXT_COLUMNS,
    AnyStep,
    ComparingStep,
    DropIdentical,
    LengthBounds,
    NoLabel,
    Normalize,
    NumberMatch,
    RatioBounds,
    Sample,
    Step,
    identity_of,
    text_columns,
    texts_of,
)
from hf_xlsr.data.cleaning.verdicts import Verdicts, judge_rows

__all__ = [
    "BATCH_ROWS",
    "STEPS",
    "TEXT_COLUMNS",
    "AnyStep",
    "Cleaner",
    "ComparingStep",
    "Deduplicate",
    "DropIdentical",
    "FuzzyDuplicates",
    "LanguageFilter",
    "LengthBounds",
    "NearDuplicates",
    "NoLabel",
    "Normalize",
    "NumberMatch",
    "RatioBounds",
    "RemoveEvaluation",
    "RemoveEvaluationRows",
    "Sample",
    "Step",
    "Verdicts",
    "build_steps",
    "build_text_steps",
    "evaluation_keys",
    "identity_of",
    "judge_rows",
    "parse_steps",
    "register_step",
    "row_text",
    "text_columns",
    "texts_of",
]
