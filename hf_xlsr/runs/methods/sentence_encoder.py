"""Methods that make a sentence encoder; those with one encoder for all languages, new or pretrained."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar, Literal, TypeVar

import torch
from pydantic import Field
from rich.console import Console
from transformers import CONFIG_MAPPING, AutoConfig, PreTrainedConfig

from hf_xlsr.data.encoding import PAIRS
from hf_xlsr.data.evaluation_sets import evaluation_pairs
from hf_xlsr.data.preparation import CleanRows
from hf_xlsr.data.prompts import Prompts
from hf_xlsr.data.seen import SeenHashes
from hf_xlsr.data.sources import parse_sources
from hf_xlsr.data.tokenization import load_tokenizer, trained_tokenizer
from hf_xlsr.encoders.assembly import SentenceEncoder
from hf_xlsr.encoders.cache import CachedEncoder
from hf_xlsr.encoders.encoding import RUN_BATCH_SIZE, embed
from hf_xlsr.encoders.reading import read_encoder, weights_folder
from hf_xlsr.encoders.stock import check_token_ids, set_dropout
from hf_xlsr.evaluation.before_after import changes_between, changes_table, measure_rows
from hf_xlsr.evaluation.protocols.tatoeba import tatoeba, xsr_both_directions
from hf_xlsr.evaluation.report import results_table
from hf_xlsr.evaluation.results import Results, with_intervals
from hf_xlsr.evaluation.rows import both_sides, by_pair, random_rows
from hf_xlsr.export import save_export
from hf_xlsr.runs.folder import RunFolder
from hf_xlsr.runs.methods.base import NEW_LENGTH, Evaluations, Finished, Method, TrainingData
from hf_xlsr.runs.sections import DataSection, EvaluationSection, Recipe, Sources
from hf_xlsr.trainers.adapters import base_model, merged
from hf_xlsr.trainers.base import XlsrTrainer
from hf_xlsr.utils.errors import XlsrError, did_you_mean
from hf_xlsr.utils.extras import can_plot
from hf_xlsr.utils.hashing import data_hash
from hf_xlsr.utils.validation import Section
from hf_xlsr.utils.variables import expand

# Each side of a pair with the column of its language.
PAIR_COLUMNS = [(side, f"{side}_lang") for side in PAIRS.texts]


class NliSection(Section):
    """Natural language inference as a second task."""

    train: Sources = Field(None, description="rows of premise, hypothesis and label for the second task")


class RetrievalSection(EvaluationSection):
    protocol: Literal["tatoeba", "xsr"] = Field("tatoeba", description="how translations are retrieved")
    guard: Sources = Field(
        None,
        description="sets that training should not make worse: pairs of other languages, or rows of `sentence1`, "
        "`sentence2` and `score` (mapped by `columns`)",
    )
    pool: Sources = Field(None, description="further candidates for `xsr` on the test set")
    batch_size: int = Field(RUN_BATCH_SIZE, ge=1, description="sentences encoded together")
    plot_pairs: int = Field(15, ge=0, description="test pairs to plot")


class SentenceDataSection(DataSection):
    prompt: str | dict[str, str] | None = Field(
        None,
        description="text before every sentence, also in the exported model, such as `query: `, or texts by role "
        "(`source`, `target`) or language; by default the encoder's own, and none if it is empty",
    )


class ExportSection(Section):
    normalize: bool | None = Field(
        None,
        description="whether the exported model gives unit vectors; by default as the encoder that training starts from, "
        "and true for a new one",
    )


class SentenceEncoderRecipe(Recipe):
    data: SentenceDataSection = SentenceDataSection()
    evaluation: RetrievalSection = RetrievalSection()
    export: ExportSection = ExportSection()


class SentenceEncoderMethod(Method):
    """A method that makes a sentence encoder: evaluated by retrieval, exported for sentence-transformers."""

    recipe: SentenceEncoderRecipe

    @property
    def config_options(self) -> dict[str, Any]:
        return {**super().config_options, **self.recipe.export.model_dump(exclude_none=True)}

    def more_arguments(self) -> dict[str, Any]:
        return {"prompts": self.recipe.data.prompt}

    def read_given(self) -> SentenceEncoder | None:
        """The pretrained encoder of the recipe, read anew; None if it describes a new one."""
        return None

    def export(self, trainer: XlsrTrainer, path: Path) -> Any:
        """Writes the sentence-transformers folder, and returns the encoder as that folder loads it."""
        model = merged(trainer.accelerator.unwrap_model(trainer.model))
        return save_export(model.to_sentence_transformer(trainer.text_tokenizers()), path)

    @property
    def pretrained(self) -> bool:
        """Whether the recipe starts from trained weights, with which the result can be compared."""
        return True

    def start_encoder(self, trainer: XlsrTrainer, data: TrainingData, folder: str) -> Any:
        """The encoder that training starts from, exported to `folder` with the settings of the trained one."""
        torch.manual_seed(self.recipe.seed)  # as before training, for weights that are new
        model = merged(self.build_model(data))
        trained = base_model(trainer.accelerator.unwrap_model(trainer.model)).config
        model.config.encoder_settings = trained.encoder_settings
        model.config.transformer_options = trained.transformer_options
        return save_export(model.to_sentence_transformer(trainer.text_tokenizers()), Path(folder))

    def compared(self, encoder: Any, sets: Mapping[str, Any], prompt: Prompts = None) -> Results:
        """What is measured before and after training: dev and test by retrieval, and the guards."""
        encoding: dict[str, Any] = {"batch_size": self.recipe.evaluation.batch_size, "prompt": prompt}
        results = Results()
        for split in ("dev", "test"):
            if sets[split]:
                name = self.set_name(split)
                results |= measure_rows(encoder, sets[split], name=name, split=split, **encoding)
        for name, rows in sets["guard"].items():
            results |= measure_rows(encoder, rows, name=name, **encoding)
        return results

    def compared_teacher(self, sets: Mapping[str, Any]) -> Results | None:
        """The same of the teacher of a distillation."""
        return None

    def evaluations(self, sets: Mapping[str, Any]) -> Evaluations:
        if not sets["dev"]:
            return []
        return [partial(self.evaluate, rows=sets["dev"], split="dev")]

    def evaluate(self, encoder: Any, rows: list[dict[str, Any]], split: str) -> Results:
        """Metrics of an encoder under the recipe's protocol, for each language pair of the rows.

        `xsr` searches among the other rows' sentences and, on the test set, those of `evaluation.pool`.
        """
        settings = self.recipe.evaluation
        pool_sources = []
        if settings.protocol == "xsr" and split == "test":
            pool_sources = parse_sources(settings.pool)
        pool = by_pair(evaluation_pairs(pool_sources, languages=self.recipe.languages, split=split))

        common: dict[str, Any] = {"name": self.set_name(split), "split": split, "batch_size": settings.batch_size}
        results = Results()

        for pair, pair_rows in by_pair(rows).items():
            sides = both_sides(pair_rows)
            if settings.protocol == "tatoeba":
                results |= tatoeba(encoder, *sides, languages=pair, **common)
            else:
                pools = both_sides([*pair_rows, *pool.get(pair, [])])
                results |= xsr_both_directions(encoder, *sides, *pools, languages=pair, **common)
        return results

    def evaluate_and_export(
        self,
        folder: RunFolder,
        trainer: XlsrTrainer,
        data: TrainingData,
        sets: Mapping[str, Any],
        console: Console,
    ) -> Finished:
        encoder = CachedEncoder(self.export(trainer, folder.model))
        model = trainer.accelerator.unwrap_model(trainer.model)
        test = sets["test"]
        hashes = {"test": hash_of_pairs(test)}
        finished = Finished(Results(), [], hashes, model.config.hidden_size)

        if test:
            finished.metrics = with_intervals(self.evaluate(encoder, test, "test"))
            console.print(results_table(finished.metrics, title=f"{self.recipe.name}: test"))
            languages, rows = next(iter(by_pair(test).items()))
            finished.plots += self._plot_pairs(folder.path / "tsne.png", encoder, rows, languages)

        if self.pretrained and (sets["dev"] or test or sets["guard"]):
            after = self.compared(encoder, sets)
            with TemporaryDirectory() as start_folder:
                before = self.compared(CachedEncoder(self.start_encoder(trainer, data, start_folder)), sets)
            finished.comparison = changes_between(before, after, self.compared_teacher(sets))
            console.print(changes_table(finished.comparison, title=f"{self.recipe.name}: before and after"))
        return finished

    def _plot_pairs(
        self,
        plot: Path,
        encoder: Any,
        test: list[dict[str, Any]],
        languages: tuple[str, str],
    ) -> list[Path]:
        rows = random_rows(test, min(self.recipe.evaluation.plot_pairs, 100), self.recipe.seed)
        if len(rows) < 2 or not can_plot():
            return []
        from hf_xlsr.evaluation.plots import plot_tsne

        texts = both_sides(rows)
        vectors = [embed(encoder, side, language=language) for side, language in zip(texts, languages, strict=True)]
        plot_tsne(plot, *vectors, *texts, languages=languages, seed=self.recipe.seed)
        return [plot]


def hash_of_pairs(rows: Sequence[Mapping[str, Any]]) -> str:
    """A hash of the texts of translation pairs, in their order."""
    return data_hash(row[side] for row in rows for side in PAIRS.texts)


OneEncoderT = TypeVar("OneEncoderT", bound="OneEncoderMethod")
ENCODER = (
    dict[str, Any] | None,
    Field(None, description="values of the encoder's configuration, or `path`: folder or id of a pretrained encoder"),
)


class TokenizerSection(Section):
    path: str | None = Field(
        None,
        description="a trained tokenizer; by default that of a pretrained encoder or of `start_from`, else a new one is "
        "trained",
    )
    vocab_size: int = Field(50_000, ge=1, description="vocabulary size of a new tokenizer")
    algorithm: Literal["unigram", "bpe"] = Field("unigram", description="algorithm of a new tokenizer")
    lowercase: bool = Field(True, description="whether a new tokenizer lowercases")
    smoothing: float = Field(
        0.3, ge=0, description="exponent of the languages' shares in the text that a new tokenizer is trained on"
    )
    frame: bool = Field(False, description="whether a new tokenizer puts special tokens around a sentence")


class FramedTokenizerSection(TokenizerSection):
    """The tokenizer of a model that needs special tokens around a sentence."""

    frame: bool = Field(True, description="whether a new tokenizer puts special tokens around a sentence")


class OneEncoderRecipe(SentenceEncoderRecipe):
    tokenizer: TokenizerSection = TokenizerSection()


class OneEncoderMethod(SentenceEncoderMethod):
    """A method whose `model.encoder` describes an encoder, or names a pretrained one by `path`."""

    # Architecture where the recipe names none.
    default_type: ClassVar[str] = "bert"
    # The model; with `from_encoder`, unless `build_model` is another.
    model_class: ClassVar[Any]
    # Values of a pretrained encoder that a recipe may change, as no weights depend on them.
    free_values: ClassVar[tuple[str, ...]] = ()

    recipe: OneEncoderRecipe

    @classmethod
    def bind(cls: type[OneEncoderT], content: Mapping[str, Any]) -> OneEncoderT:
        method = super().bind(content)
        valid_keys = [key.rsplit(".", 1)[-1] for key in cls.nested_keys(content)]
        for key in method.encoder_section:
            if key not in valid_keys:
                name = method.recipe.name
                raise XlsrError(f"recipe '{name}': unknown key 'model.encoder.{key}'; {did_you_mean(key, valid_keys)}")
        return method

    @classmethod
    def nested_keys(cls, content: Mapping[str, Any]) -> list[str]:
        kind = cls.default_type
        model = content.get("model")
        if isinstance(model, Mapping) and isinstance(model.get("encoder"), Mapping):
            kind = model["encoder"].get("model_type") or kind
        if kind not in CONFIG_MAPPING:
            raise XlsrError(f"model.encoder.model_type is '{kind}'; {did_you_mean(str(kind), CONFIG_MAPPING)}")
        return [f"model.encoder.{key}" for key in ("path", *AutoConfig.for_model(kind).to_dict())]

    @property
    def encoder_section(self) -> dict[str, Any]:
        return dict(self.recipe.model.get("encoder") or {})

    @property
    def encoder_path(self) -> str | None:
        """The pretrained encoder that `model.encoder` names; None for a new one."""
        path = self.encoder_section.get("path")
        return expand(path) if path else None

    @property
    def pretrained(self) -> bool:
        return bool(self.encoder_path or self.recipe.start_from)

    def read_given(self) -> SentenceEncoder | None:
        if self.encoder_path is None:
            return None
        return read_encoder(self.encoder_path, "model.encoder.path")

    @cached_property
    def given_tokenizer(self) -> Any:
        """The tokenizer that the recipe names, of the pretrained encoder or of `start_from`; None if one is trained.

        A new tokenizer would give every token the embedding of another one.
        """
        if self.recipe.tokenizer.path:
            return load_tokenizer(expand(self.recipe.tokenizer.path), "tokenizer.path")
        encoder = self.read_given()
        if encoder is not None:
            return encoder.single().required_tokenizer()

        if not self.recipe.start_from:
            return None
        folder = weights_folder(self.recipe.start_from)
        if not (folder / "tokenizer.json").is_file():
            raise XlsrError(f"start_from '{folder}' has no tokenizer next to its weights; set tokenizer.path.")
        return load_tokenizer(str(folder), "tokenizer.path")

    def tokenizer_for(self, clean: CleanRows, columns: Sequence[tuple[str, str]]) -> Any:
        """The given tokenizer, or one that is trained on the rows; `columns` are each text with its language."""
        if self.given_tokenizer is not None:
            return self.given_tokenizer
        return trained_tokenizer(
            clean.rows,
            self.recipe.tokenizer.model_dump(),
            columns=columns,
            max_length=self.max_length or NEW_LENGTH,
            seed=self.recipe.seed,
        )

    @property
    def max_length(self) -> int | None:
        """That of the recipe; a new encoder has no length of its own."""
        default = None if self.encoder_path else NEW_LENGTH
        return super().max_length or default

    def check_tokenizer(self, needs: Callable[[Any], Any]) -> None:
        """Runs a check of a collator on a given tokenizer, before data are prepared with it."""
        if self.given_tokenizer is not None:
            with self.explained("tokenizer.path"):
                needs(self.given_tokenizer)

    def check(self, arguments: Any, sets: Mapping[str, Any]) -> None:
        super().check(arguments, sets)
        self.pretrained_config()

    def read_data(self, evaluation_texts: SeenHashes) -> TrainingData:
        pairs = self.clean_pairs(evaluation_texts)
        return TrainingData({"": pairs}, self.tokenizer_for(pairs, PAIR_COLUMNS))

    def build_model(self, data: TrainingData) -> Any:
        return self.initialize(self.model_on_encoder(data.tokenizer))

    def pretrained_config(self) -> PreTrainedConfig | None:
        """The configuration of the pretrained encoder; None if the recipe describes a new one."""
        path = self.encoder_path
        if path is None:
            return None

        values = self.encoder_section
        del values["path"]
        config = copy.deepcopy(self.given_config)
        for name, value in values.items():
            if name in self.free_values:
                setattr(config, name, value)
            stored_value = getattr(config, name, None)
            if stored_value != value:
                raise XlsrError(
                    f"recipe '{self.recipe.name}': model.encoder.{name} is {value!r}, but the encoder in '{path}' has "
                    f"{stored_value!r}. Remove it; dropout is set by model.dropout, where a method has it."
                )
        return config

    @cached_property
    def given_config(self) -> PreTrainedConfig:
        """The configuration of the pretrained encoder as it was read."""
        with self.explained("model.encoder.path"):
            encoder: Any = self.read_given()
            config: PreTrainedConfig = encoder.single().encoder.config
        return config

    def new_config(self, model_type: str, **values: Any) -> PreTrainedConfig:
        return AutoConfig.for_model(model_type, **values)

    def encoder_config(self, tokenizer: Any) -> PreTrainedConfig:
        """The configuration that `model.encoder` describes, for the vocabulary of the data."""
        config = self.pretrained_config()
        if config is None:
            values: dict[str, Any] = {"vocab_size": len(tokenizer), "pad_token_id": tokenizer.pad_token_id}
            values |= self.encoder_section
            kind = values.pop("model_type", None) or self.default_type
            with self.explained("model.encoder"):
                config = self.new_config(kind, **values)
        check_token_ids(tokenizer, config.vocab_size)
        return config

    def dropout(self, text_config: PreTrainedConfig) -> Any:
        """Dropout of the encoder, or several by name; None leaves that of its configuration."""
        return self.recipe.model.get("dropout")

    def model_on_encoder(self, tokenizer: Any, **options: Any) -> Any:
        """The model of the recipe, on its pretrained encoder or on a new one.

        `options` are values of its configuration that the recipe does not have.
        """
        text_config = self.encoder_config(tokenizer)
        options = {**self.config_options, **options}
        with self.explained("model"):
            encoder = self.read_given()
            if encoder is not None:
                return self.model_class.from_encoder(encoder, dropout=self.dropout(text_config), **options)
            set_dropout(text_config, self.recipe.model.get("dropout"))
            return self.model_class(self.config_class(text_config=text_config, **options))
