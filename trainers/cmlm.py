"""Training of CMLM: conditional masked language modelling, bitext retrieval, natural language inference."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from transformers import TrainerCallback

from hf_xlsr.data.collators import CmlmCollator, NliCollator, PairCollator
from hf_xlsr.data.conversion import DataConverter
from hf_xlsr.data.prepared import PackedRunningText, PreparedPairs, PreparedRunningText
from hf_xlsr.data.sampling import MAIN, MultiTaskCollator
from hf_xlsr.export.model_card import MethodFacts
from hf_xlsr.modeling import citations
from hf_xlsr.modeling.cmlm import CmlmModel
from hf_xlsr.modeling.heads import NLI_LABELS
from hf_xlsr.trainers.arguments import CmlmTrainingArguments, share_of_step
from hf_xlsr.trainers.base import Evaluation, PairTrainer
from hf_xlsr.trainers.data_flow import inputs_by_task
from hf_xlsr.trainers.pretrained import check_classifier
from hf_xlsr.utils.errors import XlsrError

TEXT = "text"
RETRIEVAL = "retrieval"
NLI = "nli"
WEIGHTS = {TEXT: "cmlm_weight", RETRIEVAL: "retrieval_weight", NLI: "nli_weight"}


def lamb_options(args: CmlmTrainingArguments) -> tuple[type, dict[str, Any]]:
    """The LAMB optimiser and its options for Trainer."""
    from pytorch_optimizer import Lamb

    class UnclampedLamb(Lamb):
        """The package clamps weight norms at 10, below those of most matrices of a large encoder."""

        clamp = float("inf")

    betas = (args.adam_beta1, args.adam_beta2)
    # Algorithm 2 of You et al. (2020): weight decay inside the update that the trust ratio scales. Its bias correction
    # cancels in the ratio; the package's own would not.
    options = {"lr": args.learning_rate, "betas": betas, "eps": args.adam_epsilon}
    return UnclampedLamb, {**options, "weight_decouple": False, "adam_debias": True}


class CmlmTrainer(PairTrainer):
    """`XlsrTrainer` for `CmlmModel`: a batch of every task in each step.

    Tasks need data and, in the model, a weight. The first of running text, translations and inference defines an epoch;
    the others run in parallel. `docs/train.md` has a complete script.

    Args:
        model: The model, with or without adapters; or, with default settings, an encoder in any form that
            `hf_xlsr.encoders.reading.read_encoder` takes.
        args: `CmlmTrainingArguments`.
        processing_class: The tokenizer; by default that of the model's place.
        train_dataset: Documents for conditional masked language modelling, see `DataConverter.running_text`.
        retrieval_dataset: Translation pairs for bitext retrieval, see `DataConverter.pairs`.
        nli_dataset: Inference pairs, see `DataConverter.inference`; the model needs `nli_labels`.
    """

    method = MethodFacts(citations.CMLM_PAPER, citations.CMLM)
    model_class = CmlmModel

    no_reentrant = True

    def __init__(
        self,
        model: Any = None,
        args: Any = None,
        *,
        model_init: Callable[..., Any] | None = None,
        train_dataset: Any = None,
        retrieval_dataset: Any = None,
        nli_dataset: Any = None,
        processing_class: Any = None,
        eval_dataset: Any = None,
        evaluations: Sequence[Evaluation] = (),
        evaluator: Any = None,
        guards: Mapping[str, Any] | None = None,
        data_collator: Any = None,
        callbacks: list[TrainerCallback] | None = None,
        optimizers: tuple[Any, Any] = (None, None),
        optimizer_cls_and_kwargs: tuple[type, dict[str, Any]] | None = None,
    ) -> None:
        if args.optimizer == "lamb" and optimizer_cls_and_kwargs is None:
            optimizer_cls_and_kwargs = lamb_options(args)

        super().__init__(
            model,
            args,
            model_init=model_init,
            train_dataset={TEXT: train_dataset, RETRIEVAL: retrieval_dataset, NLI: nli_dataset},
            processing_class=processing_class,
            eval_dataset=eval_dataset,
            evaluations=evaluations,
            evaluator=evaluator,
            guards=guards,
            data_collator=data_collator,
            callbacks=callbacks,
            optimizers=optimizers,
            optimizer_cls_and_kwargs=optimizer_cls_and_kwargs,
        )

    def read_rows(self, data: Mapping[str, Any]) -> dict[str, Any]:
        """The rows of the tasks that have data."""
        return {task: rows for task, rows in data.items() if rows is not None}

    def new_model_options(self, rows: Mapping[str, Any]) -> dict[str, Any]:
        """A classifier if there are inference rows."""
        return {"nli_labels": NLI_LABELS} if NLI in rows else {}

    def room(self, model: Any, rows: Mapping[str, Any]) -> Callable[[int], int] | None:
        """A masked sentence shares its positions with the vectors of its neighbour."""
        return model.config.room if TEXT in rows and model.config.cmlm_weight > 0 else None

    def make_converter(self, model: Any, rows: Mapping[str, Any]) -> DataConverter:
        """As the base, and sets what depends on the tasks."""
        config = model.config
        self.active_tasks = [task for task in rows if getattr(config, WEIGHTS[task])]
        if not self.active_tasks:
            raise XlsrError("No task has both data and a weight (cmlm_weight, retrieval_weight, nli_weight) above 0.")
        check_classifier(config, rows.get(NLI) if NLI in self.active_tasks else None)
        if self.args.ddp_find_unused_parameters is None:
            all_tasks = {TEXT, RETRIEVAL}
            if config.nli_labels:
                all_tasks.add(NLI)
            self.args.ddp_find_unused_parameters = set(self.active_tasks) != all_tasks or not config.conditioned
        if TEXT in self.active_tasks:
            self.token_labels = "labels"  # those of inference are classes
        return super().make_converter(model, rows)

    def make_features(self, rows: Mapping[str, Any]) -> dict[str, Any]:
        """The converted rows of the tasks that have a weight; running text may be packed."""
        features = super().make_features({task: rows[task] for task in self.active_tasks})
        if self.args.pack_sentences and TEXT in features:
            if not isinstance(features[TEXT], PreparedRunningText):
                raise XlsrError("`pack_sentences` needs a stored `train_dataset` of running text, not a stream.")
            features[TEXT] = PackedRunningText(features[TEXT], self.tokenizers, self.max_length)
        return features

    def convert(self, task: str, rows: Any) -> Any:
        """The features of the rows of a task."""
        converter = self.converter
        converts = {TEXT: converter.running_text, RETRIEVAL: converter.pairs, NLI: converter.inference}
        name = "train_dataset" if task == TEXT else f"{task}_dataset"
        return converts[task](rows, name)

    def make_collator(self, model: Any) -> MultiTaskCollator:
        """A collator of each task."""
        tokenizer = self.tokenizers
        padding = self.padding(self.args)
        collators: dict[str, Any] = {}
        if TEXT in self.features:
            masking = {"mlm_probability": model.config.mlm_probability, "seed": self.args.seed_of_data}
            collators[TEXT] = CmlmCollator(tokenizer, **masking, **padding)
        if NLI in self.features:
            collators[NLI] = NliCollator(int(tokenizer.pad_token_id), **padding)
        # Also for evaluation.
        collators[RETRIEVAL] = PairCollator(tokenizer, masking="none", **padding)
        return MultiTaskCollator({task: collators[task] for task in (*self.features, RETRIEVAL)})

    def train_batches(self) -> tuple[Any, Any]:
        """Batches of the first task, each with a batch of every other task."""
        batches: dict[str, Any] = {}
        for number, (task, data) in enumerate(self.features.items()):
            options: dict[str, Any] = {"seed": self.args.seed_of_data + number, "contrast": task == RETRIEVAL}
            name = f"{task}_batch_size"
            size = getattr(self.args, name, None)
            if size is not None:
                size = share_of_step(name, size, self.args)
                options["batch_option"] = name
            batches[task] = self.batches(data, size, **options)
        return self.join_tasks(self.features, batches)

    def convert_eval(self, rows: Any) -> Any:
        """Translation pairs, or documents if they are trained on."""
        if TEXT in self.features:
            return self.converter.pairs_or_running_text(rows, "eval_dataset")
        return self.converter.pairs(rows, "eval_dataset")

    def eval_task(self, data: Any) -> str:
        task = RETRIEVAL if isinstance(data, PreparedPairs) else TEXT
        return MAIN if task == next(iter(self.features)) else task

    def compute_loss(self, model: Any, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        """Splits the batch by task."""
        main = next(iter(self.features))
        batch, other_batches = inputs_by_task(inputs, [task for task in WEIGHTS if task != main])
        if main != TEXT and batch:
            batch = {main: batch}
        return super().compute_loss(model, {**batch, **other_batches}, *args, **kwargs)
