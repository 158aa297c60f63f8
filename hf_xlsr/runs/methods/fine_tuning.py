"""Fine-tuning on classification and translation in recipes."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import cached_property, partial
from itertools import chain
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, model_validator
from rich.console import Console
from transformers import AutoConfig

from hf_xlsr.data.cleaning import row_text, texts_of
from hf_xlsr.data.evaluation_sets import labelled_sets
from hf_xlsr.data.label_tasks import LabelledSet, LabelledTask, check_framing
from hf_xlsr.data.preparation import source_content
from hf_xlsr.data.seen import SeenHashes
from hf_xlsr.data.sources import as_list, open_source, parse_sources
from hf_xlsr.data.tokenization import load_tokenizer, tokenizer_hash, trim_vocabulary
from hf_xlsr.data.training_rows import clean_labelled
from hf_xlsr.encoders.reading import encoder_folder
from hf_xlsr.evaluation.before_after import Change, changes_table
from hf_xlsr.evaluation.bleu import bleu_rows, check_bleu_tokenizer, default_tokenizer
from hf_xlsr.evaluation.report import results_table
from hf_xlsr.evaluation.results import Results
from hf_xlsr.modeling.base import attention_of
from hf_xlsr.modeling.hictl.configuration_hictl import HictlConfig
from hf_xlsr.modeling.hictl.modeling_classification import HictlForSequenceClassification
from hf_xlsr.modeling.hictl.modeling_generation import HictlForConditionalGeneration, sentence_ends
from hf_xlsr.runs.folder import RunFolder
from hf_xlsr.runs.methods.base import DROPOUT, Evaluations, Finished, Method, TrainingData
from hf_xlsr.runs.methods.sentence_encoder import hash_of_pairs
from hf_xlsr.runs.sections import DataSection, EvaluationSection, NamedSources, Recipe, Sources, section_of
from hf_xlsr.trainers.adapters import merged
from hf_xlsr.trainers.base import XlsrTrainer
from hf_xlsr.trainers.fine_tune import FineTuneTrainer, FineTuneTrainingArguments, evaluate_sets, metric_keys
from hf_xlsr.trainers.translation import TranslationTrainer, TranslationTrainingArguments
from hf_xlsr.utils.auto_classes import load_auto
from hf_xlsr.utils.errors import XlsrError
from hf_xlsr.utils.files import atomic_folder, write_text
from hf_xlsr.utils.hashing import address_of, cached, data_hash
from hf_xlsr.utils.validation import Section

START = (
    str | None,
    Field(None, description="an encoder, a HICTL model or the folder of a run: a path or an id on the Hub"),
)


class FineTuningMethod(Method):
    """A method whose `model.start` names an encoder, a HICTL model or a run."""

    config_class = HictlConfig

    @classmethod
    def encoder_keys(cls, encoders: Mapping[str, str]) -> dict[str, Any]:
        return {"start": super().encoder_keys(encoders)["encoder"]["path"]}

    @property
    def start(self) -> str:
        return encoder_folder(self.recipe.model["start"])

    @cached_property
    def start_tokenizer(self) -> Any:
        """The tokenizer of the encoder."""
        return load_tokenizer(self.start, "model.start")

    def from_encoder(self, model_class: Any, **options: Any) -> Any:
        """The model of the recipe on its encoder, with further values of its configuration."""
        values = dict(self.recipe.model)
        start = values.pop("start")
        with self.explained("model"):
            model = model_class.from_encoder(start, **values, **options)
        return self.initialize(model)

    def save(self, folder: RunFolder, trainer: XlsrTrainer, tokenizer: Any) -> Any:
        """Writes the trained model, with adapters merged, and its tokenizer to `folder.model`; loads it from there."""
        model = merged(trainer.accelerator.unwrap_model(trainer.model))
        with atomic_folder(folder.model, merge=True) as partial:
            model.save_pretrained(partial)
            tokenizer.save_pretrained(str(partial))
        # As in training: on a CPU bfloat16 rounds differently with another implementation.
        attention = {"attn_implementation": attention_of(model.config)}
        return load_auto(type(model), folder.model, **attention).to(trainer.args.device)

    def guard_changes(self, trainer: XlsrTrainer, console: Console) -> Mapping[str, Change]:
        """What the guards measured before and after training."""
        if not trainer.guards:
            return {}
        changes = trainer.changes or trainer.compare_guards()  # a training that had ended is not compared yet
        console.print(changes_table(changes, title=f"{self.recipe.name}: before and after"))
        return changes


class ClassificationDataSection(DataSection):
    dev: NamedSources = Field(None, description="sets by name, measured during training")
    test: NamedSources = Field(None, description="sets by name, measured at the end")
    cleaning: list[Any] | dict[str, Any] | None = Field([], description="steps, by name or as `{name: options}`")
    max_length: int | None = Field(
        None, ge=1, description="rows are truncated to this many tokens; by default the encoder's own number"
    )
    overlap: Literal["text", "row"] = Field("text", description="what of dev and test is not trained on")


class TaskSection(Section):
    texts: Literal["pair", "single"] = Field("pair", description="what a row holds")
    labels: list[Any] | str | None = Field(None, description="names of the classes, in the order of their numbers")
    scores: list[Any] | None = Field(None, description="smallest and largest score, of a task without classes")
    metrics: list[str] | str | None = Field(None, description="what is measured; by default what suits the task")


class ClassificationEvaluation(EvaluationSection):
    protocol: str = Field("fine-tuning", pattern="^[^/]+$", description="name of the training setting in metric keys")
    guard: NamedSources = Field(None, description="sets by name that training should not make worse")


class ClassificationRecipe(Recipe):
    method: Literal["classification"]
    data: ClassificationDataSection = ClassificationDataSection()
    task: TaskSection = TaskSection()
    evaluation: ClassificationEvaluation = ClassificationEvaluation()

    @model_validator(mode="after")
    def _check_task(self) -> ClassificationRecipe:
        _ = self.labelled_task
        return self

    @property
    def labelled_task(self) -> LabelledTask:
        task = self.task
        return LabelledTask(
            texts=task.texts,
            labels=tuple(map(str, as_list(task.labels))),
            scores=None if task.scores is None else tuple(task.scores),
            metrics=tuple(map(str, as_list(task.metrics))),
        )


class ClassificationMethod(FineTuningMethod):
    """`method: classification`. `model.start` names an encoder, a HICTL model or a run; `task` says what rows hold."""

    name = "classification"
    recipe_class = ClassificationRecipe
    model_section = section_of(HictlConfig, only=FineTuneTrainer.method.settings, start=START, dropout=DROPOUT)
    arguments_class = FineTuneTrainingArguments
    trainer_class = FineTuneTrainer

    recipe: ClassificationRecipe

    @property
    def task(self) -> LabelledTask:
        return self.recipe.labelled_task

    def evaluation_sets(self) -> dict[str, Any]:
        data = self.recipe.data
        guards = self._labelled_sets(self.recipe.evaluation.guard, "dev")
        return {
            "dev": self._labelled_sets(data.dev, "dev"),
            "test": self._labelled_sets(data.test, "test"),
            "guard": {guard.name: guard for guard in guards},
        }

    def _labelled_sets(self, named_sources: Mapping[str, Any] | None, split: str) -> list[LabelledSet]:
        recipe = self.recipe
        sources = {name: parse_sources(sources) for name, sources in (named_sources or {}).items()}
        return labelled_sets(sources, self.task, languages=recipe.languages, split=split, seed=recipe.seed)

    def evaluation_texts(self, sets: Mapping[str, Any]) -> Iterator[str]:
        labelled = chain(sets["dev"], sets["test"], sets["guard"].values())
        rows = chain.from_iterable(labelled_set.rows for labelled_set in labelled)
        if self.recipe.data.overlap == "text":
            yield from chain.from_iterable(map(texts_of, rows))
            return
        for row in rows:
            yield row_text(row)
            if "second" in row:  # a pair is the same pair the other way round
                yield row_text({"first": row["second"], "second": row["first"]})

    def evaluations(self, sets: Mapping[str, Any]) -> Evaluations:
        if not sets["dev"]:
            return []
        return [partial(evaluate_sets, sets=sets["dev"], protocol=self.recipe.evaluation.protocol)]

    def metric_names(self, sets: Mapping[str, Any]) -> list[str]:
        return metric_keys(sets["dev"], protocol=self.recipe.evaluation.protocol)

    def check(self, arguments: Any, sets: Mapping[str, Any]) -> None:
        super().check(arguments, sets)
        check_framing(self.start_tokenizer, len(self.task.columns))

    def read_data(self, evaluation_texts: SeenHashes) -> TrainingData:
        data = self.recipe.data
        clean = clean_labelled(
            self.sources("train"),
            self.task,
            cleaning=data.cleaning,
            fraction=data.fraction,
            limit=data.limit,
            whole_rows=data.overlap == "row",
            **self.reading(evaluation_texts),
        )
        return TrainingData({"": clean}, self.start_tokenizer)

    def build_model(self, data: TrainingData) -> Any:
        task = self.task
        options: dict[str, Any] = {"place": "model.start", "num_labels": task.num_labels}
        if task.labels:
            names = dict(enumerate(task.labels))
            options["id2label"] = names
            options["label2id"] = {name: number for number, name in names.items()}
        return self.from_encoder(HictlForSequenceClassification, **options)

    def evaluate_and_export(
        self, folder: RunFolder, trainer: XlsrTrainer, data: TrainingData, sets: Mapping[str, Any], console: Console
    ) -> Finished:
        classifier: Any = trainer.live_encoder()
        classifier.model = self.save(folder, trainer, data.tokenizer)
        all_sets = [*sets["dev"], *sets["test"]]
        metrics = evaluate_sets(classifier, all_sets, protocol=self.recipe.evaluation.protocol)
        if metrics:
            console.print(results_table(metrics, title=self.recipe.name))
        hashes = {f"{rows.name}/{rows.split}": data_hash(rows.texts()) for rows in all_sets}
        changes = self.guard_changes(trainer, console)
        return Finished(metrics, [], hashes, classifier.model.config.hidden_size, changes)

    def card_facts(self, report: Mapping[str, Any]) -> dict[str, str]:
        classes = ", ".join(f"{name} {count:,}" for name, count in report["labels"].items())
        languages = {"languages of the training rows": ", ".join(report["languages"])}
        return {**super().card_facts(report), **languages, "labels": classes or self.task.allowed}


RANDOM = (bool, Field(False, description="new weights in the shape of `start`: the Transformer of table 4"))
SHAPE = (
    dict[str, Any] | None,
    Field(
        None, description="values of the encoder's configuration other than those of `start`; needs `random_weights`"
    ),
)


class TranslationData(DataSection):
    # NFKC would replace full-width punctuation of the targets, which no reference has.
    cleaning: list[Any] | dict[str, Any] | None = Field(
        [{"normalize": {"form": "NFC"}}, "deduplicate"], description="steps, by name or as `{name: options}`"
    )
    max_length: int | None = Field(
        None, ge=1, description="sentences are truncated to this many tokens; by default the encoder's own number"
    )


class VocabularySection(Section):
    sources: Sources = Field(None, description="text to whose tokens the vocabulary is reduced")


class TranslationEvaluation(EvaluationSection):
    name: str | None = Field(None, description="name of the sets in metric keys; by default that of their source")
    tokenize: str | list[str] | None = Field(
        None, description="tokenizers of sacrebleu; by default those of the target language"
    )
    num_beams_in_training: int = Field(1, ge=1, description="beams on the dev set during training")
    batch_size: int = Field(32, ge=1, description="sentences decoded together")
    guard: Sources = Field(None, description="translation pairs that training should not make worse, by mean chrF")


class TranslationRecipe(Recipe):
    method: Literal["translation"]
    data: TranslationData = TranslationData()
    vocabulary: VocabularySection = VocabularySection()
    evaluation: TranslationEvaluation = TranslationEvaluation()

    @model_validator(mode="after")
    def _check_tokenizers(self) -> TranslationRecipe:
        for tokenizer in as_list(self.evaluation.tokenize):
            check_bleu_tokenizer(tokenizer)
        return self


def _has_random_weights(run: RunFolder) -> bool:
    """Whether a run began with new weights, as an earlier stage may have."""
    if not run.recipe.is_file():
        return False
    recipe = json.loads(run.recipe.read_text("utf-8"))
    return bool(recipe["model"].get("random_weights"))


class TranslationMethod(FineTuningMethod):
    """`method: translation`. `model.start` names an encoder, a HICTL model or a run; pairs go from source to target.

    `vocabulary.sources` reduces the vocabulary (see `trim_vocabulary`); consecutive stages must reduce it alike.
    """

    name = "translation"
    recipe_class = TranslationRecipe
    model_section = section_of(
        HictlConfig,
        only=TranslationTrainer.method.settings,
        start=START,
        dropout=DROPOUT,
        random_weights=RANDOM,
        shape=SHAPE,
    )
    arguments_class = TranslationTrainingArguments
    trainer_class = TranslationTrainer

    recipe: TranslationRecipe

    @classmethod
    def nested_keys(cls, content: Mapping[str, Any]) -> list[str]:
        return [f"model.shape.{key}" for key in AutoConfig.for_model("xlm-roberta").to_dict()]

    def check(self, arguments: Any, sets: Mapping[str, Any]) -> None:
        super().check(arguments, sets)
        self._check_weights(arguments)

    def _check_weights(self, arguments: Any) -> None:
        """Raises if new weights would stay as they are, or would be replaced, or have a shape that trained ones lack."""
        name = self.recipe.name
        model = self.recipe.model
        start = self.recipe.start_from
        rank = self.recipe.adapters.rank
        if not model.get("random_weights"):
            if model.get("shape"):
                raise XlsrError(f"recipe '{name}': model.shape needs model.random_weights true, got {model['shape']}.")
            return

        if start and not _has_random_weights(RunFolder(start)):
            raise XlsrError(
                f"recipe '{name}': start_from '{start}' would replace those of model.random_weights true. Set one of "
                "them to null."
            )
        frozen_by = {"training.freeze_encoder true": arguments.freeze_encoder, f"adapters.rank {rank}": rank > 0}
        for option, is_set in frozen_by.items():
            if is_set and not start:
                raise XlsrError(
                    f"recipe '{name}': {option} would keep the random weights of model.random_weights true. Train all "
                    "weights, or a trained encoder."
                )

    def evaluation_sets(self) -> dict[str, Any]:
        sets = super().evaluation_sets()
        if not self.recipe.evaluation.tokenize:
            rows = chain(sets["dev"], sets["test"])
            for language in sorted({row["target_lang"] for row in rows}):
                check_bleu_tokenizer(default_tokenizer(language))  # before the training, as it may need a package
        return sets

    def _scoring(self, split: str) -> dict[str, Any]:
        evaluation = self.recipe.evaluation
        return {
            "name": evaluation.name or self.set_name(split),
            "split": split,
            "tokenize": as_list(evaluation.tokenize) or None,
            "batch_size": evaluation.batch_size,
        }

    def evaluations(self, sets: Mapping[str, Any]) -> Evaluations:
        if not sets["dev"]:
            return []

        def score(translator: Any) -> Results:
            num_beams = self.recipe.evaluation.num_beams_in_training
            return bleu_rows(translator, sets["dev"], num_beams=num_beams, **self._scoring("dev")).results

        return [score]

    def read_data(self, evaluation_texts: SeenHashes) -> TrainingData:
        tokenizer = self._tokenizer()
        return TrainingData({"": self.clean_pairs(evaluation_texts)}, tokenizer)

    def _tokenizer(self) -> Any:
        """The encoder's tokenizer; if the vocabulary is reduced, a smaller one from the cache."""
        recipe = self.recipe
        sentence_ends(self.start_tokenizer)  # fails before hours of reading
        sources = parse_sources(recipe.vocabulary.sources)
        if not sources:
            return self.start_tokenizer

        def texts() -> Iterator[str]:
            for source in sources:
                for row in open_source(source, languages=recipe.languages, seed=recipe.seed):
                    yield from (row["source"], row["target"])

        def make(folder: Path) -> None:
            smaller, _ = trim_vocabulary(self.start_tokenizer, texts())
            smaller.save_pretrained(str(folder))

        contents = list(map(source_content, sources))
        identity = tokenizer_hash(self.start_tokenizer)
        address = address_of(["vocabulary", identity, recipe.languages, recipe.seed, contents])
        return load_tokenizer(str(cached(address, make)), "the reduced tokenizer")

    def build_model(self, data: TrainingData) -> Any:
        tokenizer = data.tokenizer
        tokens = None
        if self.recipe.vocabulary.sources:
            names = tokenizer.convert_ids_to_tokens(range(len(tokenizer)))
            tokens = self.start_tokenizer.convert_tokens_to_ids(names)
        return self.from_encoder(HictlForConditionalGeneration, tokenizer=tokenizer, tokens=tokens)

    def evaluate_and_export(
        self, folder: RunFolder, trainer: XlsrTrainer, data: TrainingData, sets: Mapping[str, Any], console: Console
    ) -> Finished:
        model = self.save(folder, trainer, data.tokenizer)
        test = sets["test"]
        changes = self.guard_changes(trainer, console)
        finished = Finished(Results(), dimension=model.config.hidden_size, comparison=changes)

        if test:
            translator: Any = trainer.live_encoder()
            translator.model = model
            translator.progress = not trainer.args.disable_tqdm

            num_beams = model.generation_config.num_beams
            scored = bleu_rows(translator, test, num_beams=num_beams, **self._scoring("test"))
            finished.metrics = scored.results
            console.print(results_table(finished.metrics, title=f"{self.recipe.name}: test"))
            for key, signature in scored.signatures.items():
                console.print(f"{key}: {signature}", markup=False, highlight=False)

            finished.data_hashes["test"] = hash_of_pairs(test)
            finished.facts["bleu_signatures"] = scored.signatures
            write_text(folder.training / "translations.txt", "".join(f"{text}\n" for text in scored.texts))
        return finished

    def card_facts(self, report: Mapping[str, Any]) -> dict[str, str]:
        facts = super().card_facts(report)
        facts["directions"] = ", ".join(map("-".join, report["language_pairs"]))
        signatures = report.get("bleu_signatures")
        if signatures:
            facts["BLEU"] = f"sacrebleu, {'; '.join(signatures.values())}"
        return facts
