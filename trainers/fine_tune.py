"""Fine-tuning of classifiers, with metrics by language during and after training."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from sklearn.metrics import f1_score, matthews_corrcoef
from torch.utils.data import DataLoader
from tqdm.auto import tqdm
from transformers import Trainer, set_seed
from transformers.trainer_utils import PredictionOutput

from hf_xlsr.data.collators import LabelledCollator
from hf_xlsr.data.conversion import DataConverter
from hf_xlsr.data.encoding import row_columns
from hf_xlsr.data.label_tasks import LabelledSet
from hf_xlsr.data.raw_rows import class_names
from hf_xlsr.data.sampling import MAIN
from hf_xlsr.encoders.reading import read_encoder
from hf_xlsr.encoders.stock import check_token_ids, usable_length, vocab_size_of
from hf_xlsr.evaluation.outcomes import pearson, spearman
from hf_xlsr.evaluation.results import Results, mean_over_languages, measured
from hf_xlsr.modeling.hictl.modeling_classification import HictlForSequenceClassification
from hf_xlsr.trainers.adapters import base_model
from hf_xlsr.trainers.arguments import XlsrTrainingArguments
from hf_xlsr.trainers.base import XlsrTrainer
from hf_xlsr.trainers.live_encoder import EvaluationRows, LiveModel, batches_by_length, evaluating
from hf_xlsr.trainers.pretrained import is_own, own_tokenizer
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

    @torch.no_grad()
    def logits(self, data: LabelledSet) -> np.ndarray:
        """Logits of each row, `(rows, outputs)`, float32."""
        rows = data.features(self.tokenizer, self.max_length)
        collate = LabelledCollator(self.tokenizer.pad_token_id)
        batches = batches_by_length([row["input_ids"] for row in rows], self.batch_size)
        result = torch.zeros(len(rows), base_model(self.model).config.num_labels, device=self.model.device)
        with evaluating(self.model, self.autocast_dtype) as device:
            for numbers in tqdm(batches, desc=data.name, disable=not self.progress, leave=False):
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


class FineTuneTrainer(XlsrTrainer):
    """`XlsrTrainer` for `HictlForSequenceClassification`, with evaluation of named sets by language.

    `docs/fine-tune.md` has a complete script.

    Args:
        model: The classifier, or one in a PEFT wrapper; or, for a new output layer that fits the labels, an encoder in
            any form that `hf_xlsr.encoders.reading.read_encoder` takes.
        args: `FineTuneTrainingArguments`.
        train_dataset: Labelled rows: those of `DataConverter.labelled`; or datasets of `datasets` (streams are read
            into memory), lists of dicts, or a dict of these by language, with the columns `text`, `text` and `text_pair`,
            `premise` and `hypothesis`, or `sentence1` and `sentence2`, and `label`.
        eval_dataset: Likewise, or a `LabelledSet`; `compute_metrics` gets its outputs.
        processing_class: The tokenizer; by default that of the encoder's place.
        evaluations: Functions from a `LiveClassifier` to metrics by name, such as
            `partial(evaluate_sets, sets=[...], protocol="fine-tuning")`.
    """

    contrast = False

    def make_model(self, model: Any, rows: Mapping[str, Any], processing_class: Any) -> tuple[Any, Any]:
        """The model, or a new output layer for the labels of the rows on a given encoder."""
        labels = class_names(rows[MAIN]) if rows else []
        num_outputs = len(labels) or 1

        if is_own(model):
            tokenizer = processing_class or own_tokenizer(model)
            check_token_ids(tokenizer, vocab_size_of(base_model(model).encoder))
        else:
            read = read_encoder(model)
            tokenizer = processing_class or read.single().required_tokenizer()
            check_token_ids(tokenizer, vocab_size_of(read.single().encoder))
            set_seed(self.args.seed)
            names: dict[str, Any] = {}
            if not all(map(str.isdigit, labels)):
                names["id2label"] = dict(enumerate(labels))
                names["label2id"] = {label: number for number, label in enumerate(labels)}
            model = HictlForSequenceClassification.from_encoder(read, num_labels=num_outputs, **names)

        num_labels = base_model(model).config.num_labels
        if rows and (num_labels < num_outputs or (num_labels > 1) != bool(labels)):
            kind = "classes (integers)" if labels else "scores (floats)"
            raise XlsrError(f"`num_labels` must be {num_outputs} for these {kind}, got {num_labels}.")
        return model, tokenizer

    def make_converter(self, model: Any, rows: Mapping[str, Any]) -> DataConverter:
        """Without prompts, which a classifier does not have."""
        self.max_length = usable_length([model.encoder], self.tokenizers.model_max_length, self.args.max_length)
        return DataConverter(self.tokenizers, max_length=self.max_length, num_proc=self.args.num_proc)

    def convert(self, task: str, rows: Any) -> Any:
        """Labelled rows."""
        return rows if hasattr(rows, "lengths") else self.converter.labelled(rows)

    def convert_eval(self, rows: Any, keep_unlabelled: bool = False) -> Any:
        """The rows of labelled data for `LabelledCollator`."""
        if isinstance(rows, LabelledSet):
            return rows.features(self.tokenizers, self.max_length)
        if isinstance(rows, list) and rows and "input_ids" in rows[0]:
            return rows
        if not hasattr(rows, "lengths"):
            rows = self.converter.labelled(rows, "eval_dataset", keep_unlabelled=keep_unlabelled)
        return rows.rows

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
