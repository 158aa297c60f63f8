"""The lightweight dual transformer in recipes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig

from hf_xlsr.data.prepare import PreparedData, prepare
from hf_xlsr.errors import XlsrError
from hf_xlsr.export import export_sentence_transformer
from hf_xlsr.methods.base import Method, encoder_keys, one_line, own_fields
from hf_xlsr.modeling.encoders import encoder_from_pretrained
from hf_xlsr.modeling.lightweight import LightweightConfig, LightweightDualTransformer
from hf_xlsr.modeling.lightweight.configuration_lightweight import paper_encoder_config
from hf_xlsr.trainers.arguments import LightweightTrainingArguments
from hf_xlsr.trainers.base import XlsrTrainer
from hf_xlsr.trainers.lightweight import LightweightTrainer


class LightweightMethod(Method):
    """`method: lightweight`. `model.encoder` describes the shared encoder, or names a pretrained one by `path`."""

    name = "lightweight"
    paper = "*Lightweight Cross-Lingual Sentence Representation Learning* (Mao et al., ACL 2021)"
    citation = """@inproceedings{mao2021lightweight,
  title     = {Lightweight Cross-Lingual Sentence Representation Learning},
  author    = {Mao, Zhuoyuan and Gupta, Prakhar and Wang, Pei and Chu, Chenhui and Jaggi, Martin and Kurohashi, Sadao},
  booktitle = {Proceedings of ACL-IJCNLP},
  year      = {2021}
}"""
    config_class = LightweightConfig
    arguments_class = LightweightTrainingArguments
    sections = {
        "tokenizer": {
            "path": None,
            "vocab_size": 50_000,
            "algorithm": "unigram",
            "lowercase": True,
            "smoothing": 0.3,
        }
    }

    def model_keys(self, recipe: Mapping[str, Any]) -> dict[str, list[str]]:
        model = [name for name in own_fields(LightweightConfig) if name != "text_config"]
        return {"model": [*model, "encoder"], "model.encoder": [*encoder_keys(_model_type(recipe)), "path"]}

    def complete(self, recipe: dict[str, Any]) -> None:
        encoder_path = ((recipe["model"] or {}).get("encoder") or {}).get("path")
        if encoder_path and not recipe["tokenizer"]["path"]:
            recipe["tokenizer"]["path"] = encoder_path  # its embeddings mean nothing under another vocabulary

    def prepare(self, recipe: Mapping[str, Any], folder: Path, evaluation_texts: Iterator[str]) -> PreparedData:
        return prepare(
            data=recipe["data"],
            tokenizer=recipe["tokenizer"],
            languages=recipe["languages"],
            evaluation_texts=evaluation_texts,
            folder=folder,
            seed=recipe["seed"],
        )

    def build_model(self, recipe: Mapping[str, Any], data: PreparedData) -> LightweightDualTransformer:
        """The model that a recipe describes, on the vocabulary of its data.

        Raises:
            XlsrError: a value does not fit, or the positions are fewer than `data.max_length`.
        """
        options = dict(recipe["model"])
        encoder = dict(options.pop("encoder", None) or {})
        path, kind = encoder.pop("path", None), encoder.pop("model_type", "bert")
        try:
            if path:
                text_config = AutoConfig.from_pretrained(path, **encoder)
            else:
                sizes = {"vocab_size": len(data.tokenizer), "pad_token_id": data.tokenizer.pad_token_id, **encoder}
                text_config = paper_encoder_config(**sizes) if kind == "bert" else AutoConfig.for_model(kind, **sizes)
            config = LightweightConfig(text_config=text_config, **options)
        except OSError:
            raise XlsrError(f"model.encoder.path '{path}' holds no encoder that loads; check it.") from None
        except (TypeError, ValueError) as error:
            raise XlsrError(f"recipe '{recipe['name']}', model: {one_line(error)}") from None
        positions = getattr(text_config, "max_position_embeddings", None)
        if positions is not None and positions < recipe["data"]["max_length"]:
            raise XlsrError(
                f"data.max_length is {recipe['data']['max_length']} pieces but the encoder has {positions} positions; "
                "lower the one or raise model.encoder.max_position_embeddings."
            )
        if len(data.tokenizer) > text_config.vocab_size:
            raise XlsrError(
                f"the tokenizer has {len(data.tokenizer):,} pieces but the encoder {text_config.vocab_size:,}; give "
                "tokenizer.path and model.encoder.path that belong together."
            )
        model = LightweightDualTransformer(config)
        if path:
            loaded = encoder_from_pretrained(path, place="model.encoder.path")
            model.encoder.load_state_dict(loaded.state_dict(), strict=False)
        return model

    def build_trainer(
        self, recipe: Mapping[str, Any], folder: Path, data: PreparedData, evaluations: Sequence[Callable[..., Any]]
    ) -> XlsrTrainer:
        arguments = self.arguments(recipe, folder, evaluations)
        torch.manual_seed(recipe["seed"])
        return LightweightTrainer(
            self.build_model(recipe, data),
            arguments,
            train_dataset=data.train,
            processing_class=data.tokenizer,
            max_length=recipe["data"]["max_length"],
            evaluations=evaluations,
        )

    def export(self, recipe: Mapping[str, Any], trainer: XlsrTrainer, data: PreparedData, path: Path) -> Any:
        model = trainer.accelerator.unwrap_model(trainer.model)
        return export_sentence_transformer(
            model.encoder,
            data.tokenizer,
            path,
            pooling=model.config.pooling,
            normalize=recipe["export"]["normalize"],
            max_length=recipe["data"]["max_length"],
        )

    def facts(self, recipe: Mapping[str, Any], report: Mapping[str, Any]) -> dict[str, str]:
        return {"architecture": _model_type(recipe), "vocabulary": f"{report['vocab_size']:,} pieces"}


def _model_type(recipe: Mapping[str, Any]) -> str:
    content: Any = recipe
    for part in ("model", "encoder", "model_type"):
        content = content.get(part) if isinstance(content, Mapping) else None
    return content or "bert"
