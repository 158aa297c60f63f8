"""Training of CMLM: conditional masked language modelling, bitext retrieval, natural language inference."""

from __future__ import annotations

import logging
from typing import Any

from hf_xlsr.data.collators import CmlmCollator, NliCollator, PairCollator
from hf_xlsr.data.prepared import PackedRunningText, PreparedPairs, PreparedRunningText
from hf_xlsr.data.sampling import MAIN, MultiTaskCollator
from hf_xlsr.modeling.cmlm import CmlmModel
from hf_xlsr.trainers.adapters import base_model
from hf_xlsr.trainers.arguments import CmlmTrainingArguments, share_of_step
from hf_xlsr.trainers.base import XlsrTrainer, converter_of
from hf_xlsr.trainers.data_flow import inputs_by_task
from hf_xlsr.trainers.pretrained import NLI_LABELS, TextSettings, check_classifier, model_and_tokenizer
from hf_xlsr.utils.errors import XlsrError
from hf_xlsr.utils.extras import require_package

TEXT, RETRIEVAL, NLI = "text", "retrieval", "nli"
WEIGHTS = {TEXT: "cmlm_weight", RETRIEVAL: "retrieval_weight", NLI: "nli_weight"}

logger = logging.getLogger(__name__)


def lamb_options(args: CmlmTrainingArguments) -> tuple[type, dict[str, Any]] | None:
    """The LAMB optimiser and its options for Trainer; None, with a warning, if its package is missing."""
    try:
        require_package("pytorch_optimizer")
    except XlsrError as error:
        logger.warning("%s Training uses `optim`, for which LAMB's learning rate is high.", error)
        return None
    from pytorch_optimizer import Lamb

    class UnclampedLamb(Lamb):
        """The package clamps weight norms at 10, below those of most matrices of a large encoder."""

        clamp = float("inf")

    betas = (args.adam_beta1, args.adam_beta2)
    # Algorithm 2 of You et al. (2020): weight decay inside the update that the trust ratio scales. Its bias correction
    # cancels in the ratio; the package's own would not.
    options = {"lr": args.learning_rate, "betas": betas, "eps": args.adam_epsilon}
    return UnclampedLamb, {**options, "weight_decouple": False, "adam_debias": True}


class CmlmTrainer(XlsrTrainer):
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

    def __init__(
        self,
        model: Any,
        args: Any,
        *,
        processing_class: Any = None,
        train_dataset: Any = None,
        retrieval_dataset: Any = None,
        nli_dataset: Any = None,
        **kwargs: Any,
    ) -> None:
        labels = 0 if nli_dataset is None else NLI_LABELS
        model, processing_class = model_and_tokenizer(
            CmlmModel, model, processing_class, seed=args.seed, nli_labels=labels
        )
        ours = base_model(model)
        config = ours.config
        conditions = train_dataset is not None and config.cmlm_weight > 0
        text = TextSettings(ours, processing_class, args, room=config.room if conditions else None)
        ours.prompt_length = text.prompt_lengths[""]
        self.max_length = text.max_length
        self.converter = converter_of(args, text)
        converts = {TEXT: self.converter.running_text, RETRIEVAL: self.converter.pairs, NLI: self.converter.inference}
        given = {TEXT: train_dataset, RETRIEVAL: retrieval_dataset, NLI: nli_dataset}
        with args.main_process_first(desc="tokenising"):
            self.datasets = {
                task: converts[task](data, "train_dataset" if task == TEXT else f"{task}_dataset")
                for task, data in given.items()
                if data is not None and getattr(config, WEIGHTS[task])
            }
        if args.pack_sentences and TEXT in self.datasets:
            if not isinstance(self.datasets[TEXT], PreparedRunningText):
                raise XlsrError("`pack_sentences` needs a stored `train_dataset` of running text, not a stream.")
            self.datasets[TEXT] = PackedRunningText(self.datasets[TEXT], processing_class, self.max_length)
        if not self.datasets:
            raise XlsrError("No task has both data and a weight (cmlm_weight, retrieval_weight, nli_weight) above 0.")
        check_classifier(config, self.datasets.get(NLI))
        if args.ddp_find_unused_parameters is None:
            whole = set(given) if config.nli_labels else {TEXT, RETRIEVAL}
            args.ddp_find_unused_parameters = set(self.datasets) != whole or not config.conditioned
        if kwargs.get("data_collator") is None:
            kwargs["data_collator"] = self._collator(processing_class, config, args)
        if args.optimizer == "lamb" and (options := lamb_options(args)):
            kwargs["optimizer_cls_and_kwargs"] = options
        self.token_labels = "labels" if TEXT in self.datasets else ""  # those of inference are classes
        main = next(iter(self.datasets.values()))
        super().__init__(model, args, processing_class=processing_class, train_dataset=main, **kwargs)

    def _collator(self, tokenizer: Any, config: Any, args: Any) -> MultiTaskCollator:
        collators: dict[str, Any] = {}
        if TEXT in self.datasets:
            options = {"mlm_probability": config.mlm_probability, "seed": args.seed_of_data}
            collators[TEXT] = CmlmCollator(tokenizer, **options, **self.padding(args))
        if NLI in self.datasets:
            collators[NLI] = NliCollator(int(tokenizer.pad_token_id), **self.padding(args))
        # Also for evaluation.
        collators[RETRIEVAL] = PairCollator(tokenizer, masking="none", **self.padding(args))
        return MultiTaskCollator({task: collators[task] for task in (*self.datasets, RETRIEVAL)})

    def train_batches(self) -> tuple[Any, Any]:
        """Batches of the first task, each with a batch of every other task."""
        batches: dict[str, Any] = {}
        for number, (task, data) in enumerate(self.datasets.items()):
            name = f"{task}_batch_size"
            size = getattr(self.args, name, None)
            options: dict[str, Any] = {} if size is None else {"batch_option": name}
            size = None if size is None else share_of_step(name, size, self.args)
            options |= {"seed": self.args.seed_of_data + number, "contrast": task == RETRIEVAL}
            batches[task] = self.batches(data, size, **options)
        return self.join_tasks(self.datasets, batches)

    def convert_eval(self, data: Any) -> Any:
        """Translation pairs, or documents if they are trained on."""
        convert = self.converter.pairs_or_running_text if TEXT in self.datasets else self.converter.pairs
        return convert(data, "eval_dataset")

    def eval_task(self, data: Any) -> str:
        task = RETRIEVAL if isinstance(data, PreparedPairs) else TEXT
        return MAIN if task == next(iter(self.datasets)) else task

    def compute_loss(self, model: Any, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        """Splits the batch by task."""
        main = next(iter(self.datasets))
        batch, others = inputs_by_task(inputs, [task for task in WEIGHTS if task != main])
        if main != TEXT and batch:
            batch = {main: batch}
        return super().compute_loss(model, {**batch, **others}, *args, **kwargs)
