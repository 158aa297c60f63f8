"""HICTL's pre-training in recipes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from huggingface_hub.errors import StrictDataclassError

from hf_xlsr.data.cleaning import evaluation_keys
from hf_xlsr.data.collators.hictl import HictlCollator
from hf_xlsr.data.pairs import PreparedData, load_tokenizer, prepare, prepare_texts
from hf_xlsr.data.prepared import ConcatenatedRows, PreparedRows
from hf_xlsr.data.sources import as_list, expand
from hf_xlsr.modeling.hictl import HictlConfig, HictlForPreTraining
from hf_xlsr.runs.methods.base import ADAPTERS_SECTION, DROPOUT, own_keys
from hf_xlsr.runs.methods.encoder_section import (
    ENCODER,
    FRAMED_TOKENIZER_SECTION,
    check_given_tokenizer,
    check_positions,
    complete_tokenizer,
    encoder_config,
    encoder_path,
    encoder_section_keys,
    model_on_encoder,
    pretrained_config,
    tokenizer_options,
)
from hf_xlsr.runs.methods.sentence_encoder import SentenceEncoderMethod
from hf_xlsr.runs.recipe_keys import Key
from hf_xlsr.trainers.arguments import HictlTrainingArguments
from hf_xlsr.trainers.hictl import HictlTrainer
from hf_xlsr.utils.errors import XlsrError, error_line

HICTL_PAPER = "*On Learning Universal Representations Across Languages* (Wei et al., ICLR 2021)"
HICTL_CITATION = """@inproceedings{wei2021learning,
  title     = {On Learning Universal Representations Across Languages},
  author    = {Wei, Xiangpeng and Weng, Rongxiang and Hu, Yue and Xing, Luxi and Yu, Heng and Luo, Weihua},
  booktitle = {International Conference on Learning Representations},
  year      = {2021}
}"""
# Of the configuration: what other models of the family read.
_OTHER_MODELS = {
    "text_config",
    "classifier_dropout",
    "decoder_layers",
    "decoder_attention_heads",
    "decoder_ffn_dim",
    "word_similarity",
}


class HictlMethod(SentenceEncoderMethod):
    """`method: hictl`. `model.encoder` describes the encoder, or names a pretrained one by `path`.

    `data.train` holds pairs, `data.monolingual` sentences (rows of `text`, and `lang` or the source's `languages`).
    """

    name = "hictl"
    paper, citation = HICTL_PAPER, HICTL_CITATION
    config_class = HictlConfig
    arguments_class = HictlTrainingArguments
    trainer_class = HictlTrainer
    sections = {
        "data": {
            "monolingual": Key(
                None, "sentences in one language: rows of text and, if there is one, lang", ("source",)
            ),
        },
        "tokenizer": FRAMED_TOKENIZER_SECTION,
        "adapters": ADAPTERS_SECTION,
    }

    def sources(self, recipe: Mapping[str, Any]) -> dict[str, Any]:
        return super().sources(recipe) | {"data.monolingual": (recipe.get("data") or {}).get("monolingual")}

    def model_keys(self, recipe: Mapping[str, Any]) -> dict[str, dict[str, Key]]:
        return {
            "model": {**own_keys(HictlConfig, *_OTHER_MODELS), "dropout": DROPOUT, "encoder": ENCODER},
            "model.encoder": encoder_section_keys(recipe, "xlm-roberta"),
        }

    def validate(self, recipe: dict[str, Any]) -> None:
        complete_tokenizer(recipe)
        try:  # what can be said before data are prepared for it
            HictlConfig(**self._options(recipe))
        except (XlsrError, StrictDataclassError) as error:
            raise XlsrError(f"recipe '{recipe['name']}', model: {error_line(error)}") from None

    @staticmethod
    def _options(recipe: Mapping[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in recipe["model"].items() if name not in ("encoder", "dropout")}

    def check_training(self, recipe: Mapping[str, Any], folder: Path, sets: Mapping[str, Any]) -> None:
        super().check_training(recipe, folder, sets)
        pretrained_config(recipe)
        check_given_tokenizer(recipe, HictlCollator)

    def prepare(self, recipe: Mapping[str, Any], folder: Path, evaluation_texts: Iterator[str]) -> PreparedData:
        kept_out = evaluation_keys({"text": text} for text in evaluation_texts)
        common: dict[str, Any] = {
            "languages": recipe["languages"],
            "evaluation_texts": kept_out,
            "seed": recipe["seed"],
        }
        sources = as_list(recipe["data"]["monolingual"])
        if sources and not as_list(recipe["data"]["train"]):
            return self._prepare_monolingual(recipe, sources, folder, common)
        data = prepare(data=recipe["data"], tokenizer=tokenizer_options(recipe), folder=folder, **common)
        if sources:
            texts = self._texts(recipe, sources, data.tokenizer, folder, common)
            data.train = ConcatenatedRows([data.train, texts])
            data.report = {**data.report, "monolingual": texts.report}
        else:
            data.train = ConcatenatedRows([data.train])  # grouped by language, not by language pair
        return data

    @staticmethod
    def _texts(
        recipe: Mapping[str, Any], sources: Sequence[Any], tokenizer: Any, folder: Path, common: Mapping[str, Any]
    ) -> PreparedRows:
        return prepare_texts(
            sources,
            tokenizers=tokenizer,
            folder=folder / "monolingual",
            cleaning=recipe["data"]["cleaning"],
            max_length=recipe["data"]["max_length"],
            **common,
        )

    def _prepare_monolingual(
        self, recipe: Mapping[str, Any], sources: Sequence[Any], folder: Path, common: Mapping[str, Any]
    ) -> PreparedData:
        """Data without pairs: each sentence and its reorderings."""
        path = tokenizer_options(recipe)["path"]
        if not path:
            raise XlsrError(
                f"recipe '{recipe['name']}' has data.monolingual but no data.train, on which a tokenizer is trained; "
                "name one in tokenizer.path, start from a run that has one, or give pairs."
            )
        tokenizer = load_tokenizer(expand(path), "tokenizer.path")
        tokenizer.save_pretrained(str(folder / "tokenizer"))
        texts = self._texts(recipe, sources, tokenizer, folder, common)
        report = {"pairs": 0, "vocab_size": len(tokenizer), "monolingual": texts.report}
        counts = {name: texts.report[name] for name in ("cleaning", "rejected", "num_truncated", "tokens")}
        return PreparedData(ConcatenatedRows([texts]), tokenizer, {**counts, **report})

    def describe_data(self, report: Mapping[str, Any]) -> str:
        pairs = super().describe_data(report)
        texts = report.get("monolingual")
        return pairs + (f" {texts['texts']:,} monolingual sentences." if texts else "")

    def build_model(self, recipe: Mapping[str, Any], data: PreparedData) -> Any:
        """The model that a recipe describes, on the vocabulary of its data.

        Raises:
            XlsrError: a value does not fit, the encoder does not load, or it has too few positions.
        """
        text_config = encoder_config(recipe, data.tokenizer, default="xlm-roberta")
        model = model_on_encoder(recipe, HictlForPreTraining, text_config, self._options(recipe))
        check_positions(model.encoder, recipe)
        return self.initialize(recipe, model)

    def card_facts(self, recipe: Mapping[str, Any], report: Mapping[str, Any]) -> dict[str, str]:
        path = encoder_path(recipe)
        started = {"started from": Path(path).name} if path else {}
        texts = report.get("monolingual")
        return {
            **started,
            **({"monolingual sentences": f"{texts['texts']:,}"} if texts else {}),
            "vocabulary": f"{report['vocab_size']:,} pieces",
        }
