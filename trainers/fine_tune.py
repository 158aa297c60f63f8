"""Fine-tuning of classifiers, with metrics by language during and after training."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.metrics import f1_score, matthews_corrcoef
from torch.utils.data import DataLoader
from tqdm.auto import tqdm
from transformers import Trainer, set_seed
from transformers.trainer_utils import PredictionOutput
from transformers.utils import CONFIG_NAME

from hf_xlsr.data.collators import LabelledCollator
from hf_xlsr.data.conversion import DataConverter
from hf_xlsr.data.encoding import UNDETERMINED, row_columns
from hf_xlsr.data.label_tasks import LabelledSet
from hf_xlsr.data.raw_rows import class_names, is_numbered
from hf_xlsr.data.sampling import MAIN
from hf_xlsr.encoders.stock import check_token_ids, usable_length, vocab_size_of
from hf_xlsr.evaluation.outcomes import Outcomes, pearson, spearman
from hf_xlsr.evaluation.results import Results, mean_over_languages, measured
from hf_xlsr.export.model_card import MethodFacts
from hf_xlsr.modeling import citations
from hf_xlsr.modeling.hictl.configuration_hictl import HictlConfig
from hf_xlsr.modeling.hictl.modeling_classification import HictlForSequenceClassification
from hf_xlsr.trainers.adapters import base_model
from hf_xlsr.trainers.arguments import XlsrTrainingArguments
from hf_xlsr.trainers.base import XlsrTrainer
from hf_xlsr.trainers.guards import source_rows
from hf_xlsr.trainers.live_encoder import EvaluationRows, LiveModel, batches_by_length, evaluating
from hf_xlsr.trainers.pretrained import own_tokenizer, trained_model
from hf_xlsr.utils.auto_classes import load_auto
from hf_xlsr.utils.distributed import process_index
from hf_xlsr.utils.errors import XlsrError

# Of outputs, `(rows, outputs)`, and gold labels, `(rows,)`.
METRICS: dict[str, Callable[[np.ndarray, np.ndarray], float]] = {
    "accuracy": lambda logits, gold: float((logits.argmax(1) == gold).mean()),
    "f1": lambda logits, gold: float(f1_score(gold, logits.argmax(1), pos_label=1, zero_division=0.0)),
    "matthews": lambda logits, gold: float(matthews_corrcoef(gold, logits.argmax(1))),
    "pearson": lambda logits, gold: float(pearson(logits[:, 0].astype(np.float64), gold)),
    "spearman": lambda logits, gold: float(spearman(logits[:, 0], gold)),
}


@dataclass
class FineTuneTrainingArguments(XlsrTrainingArguments):
    """Arguments of `FineTuneTrainer`, with the paper's values: Adam at 2.5e-5, linear decay, batches of 32.

    The paper gives no number of epochs and no warm-up: these are the defaults of `transformers.TrainingArguments`.
    """

    evaluates_rows = True
    trains_embeddings = False

    learning_rate: float = field(default=2.5e-5, metadata={"help": "at the start"})
    per_device_train_batch_size: int = field(default=32, metadata={"help": "rows per step and process"})
    per_device_eval_batch_size: int = field(default=128, metadata={"help": "rows evaluated together"})


@dataclass(eq=False, repr=False, kw_only=True)
class LiveClassifier(LiveModel):
    """A model in training as a classifier for evaluation."""

    batch_size: int = 128

    def logits(self, data: LabelledSet) -> np.ndarray:
        """Logits of each row, `(rows, outputs)`, float32."""
        return self.logits_of(data.features(self.tokenizer, self.max_length), data.name)

    @torch.no_grad()
    def logits_of(self, rows: Sequence[Any], name: str) -> np.ndarray:
        """Logits of each tokenised row, `(rows, outputs)`, float32; `name` is shown by the progress bar."""
        collate = LabelledCollator(self.tokenizer.pad_token_id)
        batches = batches_by_length([row["input_ids"] for row in rows], self.batch_size)
        result = torch.zeros(len(rows), base_model(self.model).config.num_labels, device=self.model.device)
        with evaluating(self.model, self.autocast_dtype) as device:
            for numbers in tqdm(batches, desc=name, disable=not self.progress, leave=False):
                batch = collate([rows[number] for number in numbers])
                inputs = {name: value.to(device) for name, value in batch.items()}
                result[numbers] = self.model(**inputs).logits.float()
        return result.cpu().numpy()


def evaluate_sets(classifier: LiveClassifier, sets: Sequence[LabelledSet], *, protocol: str) -> Results:
    """Metrics of the sets' task in each language, and their unweighted means over languages, as in the paper's table 2.

    Keys are `{set}-{protocol}/{language}/{split}/{metric}`, the number of rows `.../rows`, and
    `{set}-{protocol}/mean-of-{n}/{split}/{metric}`. `protocol` is how the classifier was trained, as
    `cross-lingual-test`.
    """
    results = Results()
    for data in sets:
        logits = classifier.logits(data)
        if not np.isfinite(logits).all():
            raise XlsrError(f"Outputs on {data.name} are not finite. Lower the learning rate.")

        columns = row_columns(data.rows, ("lang", "label"))
        languages = np.array(columns["lang"])
        gold = np.array(columns["label"])

        for language in dict.fromkeys(columns["lang"]):
            is_in_language = languages == language
            values: dict[str, float] = {}
            for name in data.task.metrics:
                values[name] = METRICS[name](logits[is_in_language], gold[is_in_language])
            values["rows"] = int(is_in_language.sum())
            results |= measured(data.name, protocol, language, data.split, values)
    return mean_over_languages(results)


def metric_keys(sets: Sequence[LabelledSet], *, protocol: str) -> list[str]:
    """Keys of `evaluate_sets`, means included: valid values of `metric_for_best_model`."""
    scores = Results()
    for data in sets:
        for language in dict.fromkeys(row["lang"] for row in data.rows):
            scores |= measured(data.name, protocol, language, data.split, dict.fromkeys(data.task.metrics, 0.0))
    return list(mean_over_languages(scores))


def own_class_names(config: Any) -> list[str]:
    """The names of a model's classes; none if it has only those that transformers makes up."""
    names = [config.id2label[number] for number in range(config.num_labels)]
    return [] if names == [f"LABEL_{number}" for number in range(len(names))] else names


class FineTuneTrainer(XlsrTrainer):
    """`XlsrTrainer` for `HictlForSequenceClassification`, with evaluation of named sets by language.

    `docs/fine-tune.md` has a complete script.

    Args:
        model: The classifier, its folder, or one in a PEFT wrapper; or, for a new output layer that fits the labels, an
            encoder in any form that `hf_xlsr.encoders.reading.read_encoder` takes.
        args: `FineTuneTrainingArguments`.
        train_dataset: Labelled rows: those of `DataConverter.labelled`; or datasets of `datasets` (streams are read
            into memory), lists of dicts, or a dict of these by language, with the columns `text`, `text` and `text_pair`,
            `premise` and `hypothesis`, or `sentence1` and `sentence2`, and `label`. A model without names of its classes
            gets those of a `ClassLabel`, or of labels of text in alphabetical order, and saves them.
        eval_dataset: Likewise, or a `LabelledSet`; `compute_metrics` gets its outputs.
        processing_class: The tokenizer; by default that of the model.
        guards: Labelled rows by name, as `eval_dataset`, or paths: accuracy, or Spearman's correlation of a regression.
        evaluations: Functions from a `LiveClassifier` to metrics by name, such as
            `partial(evaluate_sets, sets=[...], protocol="fine-tuning")`.
    """

    method = MethodFacts(
        citations.HICTL_PAPER,
        citations.HICTL,
        template="card_task.md.jinja",
        tags=("text-classification", "cross-lingual"),
        task="text-classification",
        library="transformers",
        settings=("classifier_dropout",),
    )
    contrast = False

    def make_model(self, model: Any, rows: Mapping[str, Any], processing_class: Any) -> tuple[Any, Any]:
        """The model, or a new output layer on a given encoder, for the labels of the rows and with their names."""
        own = trained_model(HictlForSequenceClassification, model, processing_class)
        known = [] if own is None else own_class_names(base_model(own[0]).config)
        names = class_names(rows[MAIN], known=known) if rows else []
        num_outputs = len(names) or 1

        if own is None:
            set_seed(self.args.seed)
            model = HictlForSequenceClassification.from_encoder(model, num_labels=num_outputs, place="model")
            own = model, processing_class or own_tokenizer(model)

        model, tokenizer = own
        check_token_ids(tokenizer, vocab_size_of(base_model(model).encoder))
        config = base_model(model).config
        if config.problem_type == "multi_label_classification":
            raise XlsrError(
                f"`problem_type` must be a class or a score for each row, got {config.problem_type}. Train the model in "
                "transformers' Trainer, or use a binary classifier for each class."
            )
        if rows and (config.num_labels < num_outputs or (config.num_labels > 1) != bool(names)):
            kind = "classes (integers)" if names else "scores (floats)"
            raise XlsrError(f"`num_labels` must be {num_outputs} for these {kind}, got {config.num_labels}.")
        if not is_numbered(names):
            config.id2label = {**config.id2label, **dict(enumerate(names))}
            config.label2id = {label: number for number, label in config.id2label.items()}
        return model, tokenizer

    def make_converter(self, model: Any, rows: Mapping[str, Any]) -> DataConverter:
        """Without prompts, which a classifier does not have."""
        self.class_names = own_class_names(model.config)
        self.max_length = usable_length([model.encoder], self.tokenizers.model_max_length, self.args.max_length)
        return DataConverter(self.tokenizers, max_length=self.max_length, num_proc=self.args.num_proc)

    def convert(self, task: str, rows: Any) -> Any:
        """Labelled rows."""
        return rows if hasattr(rows, "lengths") else self.converter.labelled(rows, classes=self.class_names)

    def convert_eval(self, rows: Any, keep_unlabelled: bool = False) -> Any:
        """The rows of labelled data for `LabelledCollator`."""
        if isinstance(rows, LabelledSet):
            return rows.features(self.tokenizers, self.max_length)
        if isinstance(rows, list) and rows and "input_ids" in rows[0]:
            return rows
        if hasattr(rows, "lengths"):
            class_names(rows, "eval_dataset", self.class_names)  # raises if the classes have other names
        else:
            options: dict[str, Any] = {"keep_unlabelled": keep_unlabelled, "classes": self.class_names}
            rows = self.converter.labelled(rows, "eval_dataset", **options)
        return rows.rows

    def read_guard(self, name: str, data: Any) -> tuple[Any, np.ndarray, list[str]]:
        """Features, labels and languages of the rows of a guard."""
        if isinstance(data, LabelledSet):
            columns = row_columns(data.rows, ("lang", "label"))
            features: Any = data.features(self.tokenizers, self.max_length)
            return features, np.array(columns["label"]), columns["lang"]

        rows = source_rows(data, self.converter.languages)
        labelled = self.converter.labelled(rows, f"guards['{name}']", classes=self.class_names).rows
        languages = labelled["lang"][:] if "lang" in labelled.column_names else [UNDETERMINED] * len(labelled)
        return labelled.remove_columns("label"), np.array(labelled["label"]), languages

    def measure_guard(self, encoder: Any, name: str, rows: Any) -> Results:
        """Accuracy in each language, or Spearman's correlation of a regression."""
        features, gold, languages = rows
        logits = encoder.logits_of(features, name)
        results = Results()
        for language in dict.fromkeys(languages):
            is_in_language = np.array(languages) == language
            outputs = logits[is_in_language]
            labels = gold[is_in_language]
            if outputs.shape[1] > 1:
                outcomes = {"accuracy": Outcomes("mean", (outputs.argmax(1) == labels,))}
            else:
                outcomes = {"spearman": Outcomes("spearman", (outputs[:, 0], labels))}
            results |= measured(name, "fine-tuning", language, "guard", {"rows": len(labels)}, outcomes)
        return results

    def make_collator(self, model: Any) -> LabelledCollator:
        """Pads rows."""
        return LabelledCollator(self.tokenizers.pad_token_id, **self.padding(self.args))

    def evaluate_data(self, data: Any, prefix: str, ignore_keys: list[str] | None = None) -> dict[str, float]:
        metrics = super().evaluate_data(data, prefix, ignore_keys)
        if self.compute_metrics is None:
            return metrics

        loader = DataLoader(
            EvaluationRows(data),
            batch_size=self.args.eval_batch_size,
            collate_fn=self.data_collator,
            generator=torch.Generator(),  # without one, a loader draws from the random numbers of training
        )
        outputs = self.evaluation_loop(
            self.accelerator.prepare(loader), "Evaluation", ignore_keys=ignore_keys, metric_key_prefix=prefix
        )
        return {**(outputs.metrics or {}), **metrics}

    def predict(
        self, test_dataset: Any, ignore_keys: list[str] | None = None, metric_key_prefix: str = "test"
    ) -> PredictionOutput:
        """As `Trainer.predict`, for every row. Metrics need a label in every row."""
        rows = self.convert_eval(test_dataset, keep_unlabelled=True)
        return Trainer.predict(self, rows, ignore_keys, metric_key_prefix)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        folder = Path(resume_from_checkpoint)
        if (folder / CONFIG_NAME).is_file():  # adapters have none
            stored = own_class_names(load_auto(HictlConfig, folder))
            if stored and stored != self.class_names:
                raise XlsrError(
                    f"'{folder}' has the classes {', '.join(stored)}, but this training has "
                    f"{', '.join(self.class_names)}. Resume with the same rows."
                )
        super()._load_from_checkpoint(resume_from_checkpoint, model)

    def live_encoder(self) -> Any:
        """The model as a classifier."""
        return LiveClassifier(
            self.accelerator.unwrap_model(self.model),
            self.processing_class,
            max_length=self.max_length,
            batch_size=self.args.per_device_eval_batch_size,
            autocast_dtype=self.autocast_dtype,
            progress=not self.args.disable_tqdm and process_index() == 0,
        )
