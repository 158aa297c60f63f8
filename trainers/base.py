"""Base trainer: length-bucketed batches, named loss parts, evaluation by protocols, complete checkpoints."""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from sentence_transformers.sentence_transformer.evaluation import SequentialEvaluator
from torch import nn
from torch.utils.data import DataLoader
from transformers import AutoConfig, EarlyStoppingCallback, TrainerCallback, set_seed
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, PredictionOutput, SaveStrategy
from transformers.utils import CONFIG_NAME

from hf_xlsr.data.conversion import DataConverter
from hf_xlsr.data.encoding import TOKEN_COUNTS
from hf_xlsr.data.prepared import PreparedPairs
from hf_xlsr.data.sampling import MAIN
from hf_xlsr.evaluation.results import Results
from hf_xlsr.export.model_card import MethodFacts
from hf_xlsr.losses.cross_entropy import IGNORE
from hf_xlsr.modeling.base import attention_of
from hf_xlsr.trainers.adapters import base_model, check_checkpointing, without_task
from hf_xlsr.trainers.callbacks import GracefulStopCallback, SamplerEpochCallback
from hf_xlsr.trainers.card import step_of_weights
from hf_xlsr.trainers.checkpoints import DiskSizeCallback, check_resumable, last_whole_checkpoint
from hf_xlsr.trainers.data_flow import DataFlow, GivenData, check_stored
from hf_xlsr.trainers.guards import GuardedTrainer, GuardWatch
from hf_xlsr.trainers.hub import SlimPushes
from hf_xlsr.trainers.live_encoder import (
    EvaluationRows,
    encoding_under_autocast,
    evaluating,
    evaluation_loss,
    pair_embeddings,
    run_evaluations,
    translation_accuracy,
)
from hf_xlsr.trainers.logged_losses import LoggedLosses
from hf_xlsr.trainers.pretrained import TextSettings, model_and_tokenizer
from hf_xlsr.trainers.row_selection import check_row_ids, restore_tables, save_row_ids, select_rows
from hf_xlsr.trainers.sharding import check_sharding, fit_sharded, set_up_sharding
from hf_xlsr.utils.auto_classes import load_auto
from hf_xlsr.utils.devices import PLAIN_ATTENTION_TOKENS, attention_for, autocast_dtype_of
from hf_xlsr.utils.errors import XlsrError
from hf_xlsr.utils.files import disk_errors
from hf_xlsr.utils.memory import freed_memory_kept
from hf_xlsr.utils.seals import seal

NO_SHARDED_ROWS = "`trainable_rows` needs whole weights on every process."
SPECIAL_TOKENS = ("bos_token_id", "eos_token_id", "pad_token_id")
Evaluation = Callable[[Any], Mapping[str, float]]


class XlsrTrainer(GuardedTrainer, DataFlow, LoggedLosses, SlimPushes):
    """`transformers.Trainer` for models that return `losses` by name.

    - Data are what `hf_xlsr.data.conversion.DataConverter` takes: datasets of `datasets`, streams, lists of dicts, dicts
      of these, or converted data. Batches have sentences of similar length.
    - Each loss part is logged as `loss/NAME`, averaged since the last log and over processes, as are the model's
      `statistics` under their own names.
    - `evaluate` measures the live model and returns metrics as `eval_NAME`, for early stopping and
      `metric_for_best_model`.
    - On a CPU under bfloat16, attention is computed by plain matrix products (see `hf_xlsr.utils.devices.attention_for`).
    - Ctrl-C (SIGINT) and SIGTERM save a checkpoint before `train` raises `KeyboardInterrupt`; `stopped_early` says so.

    A trainer is made in steps, of which a trainer of another method overrides some: `read_rows`, `make_model`,
    `make_converter`, `make_features`, `make_collator`, `make_callbacks`. Rows come first, because a model may depend on
    them: on their languages, or on their labels.

    Args:
        model: Any of this package's models, with or without adapters.
        args: Training arguments of the trainer's own class.
        model_init: As for `Trainer`, instead of `model`: a function, also of a trial, that returns `model` in any form
            that the trainer takes. Each training starts from its model, as `hyperparameter_search` needs.
        train_dataset: Rows of text, or converted rows.
        processing_class: The tokenizer; by default that of the model's place.
        eval_dataset: Translation pairs in any form of `train_dataset`, or a dict of them, each measured under its name:
            `eval_loss` (of batches of `per_device_eval_batch_size` rows) and `eval_accuracy` (see
            `hf_xlsr.trainers.live_encoder.translation_accuracy`).
        evaluations: Functions from an encoder to metrics by name, run by `evaluate`.
        evaluator: One evaluator of sentence-transformers or a list of them, likewise.
        guards: Data by name on which training should not make the model worse: rows in any form, a path, or a source as
            in a recipe. They are measured before training, by `evaluate`, and after training, when `changes` has what
            changed; see `guard_limit` of the arguments. For sentence embeddings they are translation pairs (`tatoeba`
            and `xsim`), or rows of `sentence1`, `sentence2` and `score` (`sts`), also in languages without training
            data.
        data_collator: Replaces the trainer's own.
        compute_metrics: As for `Trainer`, of trainers that evaluate rows.
        callbacks: As for `Trainer`.
        optimizers: As for `Trainer`.
        optimizer_cls_and_kwargs: As for `Trainer`.
    """

    method = MethodFacts()
    # Why weights cannot be sharded over processes; empty if they can.
    no_sharding = ""
    # Whether reentrant gradient checkpointing gives wrong gradients: inputs of the encoder are made outside of it.
    no_reentrant = False
    # Key of a batch's labels of masked tokens, whose loss is a mean over the tokens of a whole step; empty without.
    token_labels = ""
    # Wider types in Trainer.
    model: Any
    model_init: Any
    processing_class: Any
    tokenizers: Any  # of all texts, or by language
    max_length: int
    features: dict[str, Any]  # what the trainer reads, by task
    _live: Any = None  # the encoder of the last evaluation

    def __init__(
        self,
        model: Any = None,
        args: Any = None,
        *,
        model_init: Callable[..., Any] | None = None,
        train_dataset: Any = None,
        processing_class: Any = None,
        eval_dataset: Any = None,
        evaluations: Sequence[Evaluation] = (),
        evaluator: Any = None,
        guards: Mapping[str, Any] | None = None,
        data_collator: Any = None,
        compute_metrics: Callable[[Any], dict[str, float]] | None = None,
        callbacks: list[TrainerCallback] | None = None,
        optimizers: tuple[Any, Any] = (None, None),
        optimizer_cls_and_kwargs: tuple[type, dict[str, Any]] | None = None,
    ) -> None:
        if compute_metrics is not None and not args.evaluates_rows:
            raise XlsrError("`compute_metrics` is not supported by this trainer. For metrics use evaluations=[...].")

        if (model is None) == (model_init is None):
            raise XlsrError("A trainer needs either `model` or `model_init`, and not both.")
        if model_init is not None and optimizers != (None, None):
            raise XlsrError("`optimizers` are those of one model; use `optimizer_cls_and_kwargs` with `model_init`.")

        self.args = args
        rows = self.read_rows(train_dataset)
        self.given_rows = rows
        self._given = GivenData(rows, processing_class, eval_dataset, data_collator, dict(guards or {}))
        self.guard_watch = GuardWatch(Path(args.output_dir), args.guard_limit)
        if model_init is not None:
            self.model_init = model_init
            set_seed(args.seed)
            model = super().call_model_init()
        model = self._prepared_model(model)

        if args.load_best_model_at_end or args.save_strategy == SaveStrategy.BEST:
            self._check_choice_of_best()

        self.evaluations = list(evaluations)
        if evaluator is not None:
            self.evaluations.append(self._evaluation_by(evaluator, model))

        super().__init__(
            model,
            args,
            data_collator=data_collator or self.make_collator(base_model(model)),
            train_dataset=next(iter(self.features.values()), None),
            # Trainer requires an eval_dataset for an eval_strategy; protocols have their own text.
            eval_dataset=self.eval_sets or self.evaluations or self.guards or None,
            processing_class=None if isinstance(self.tokenizers, Mapping) else self.tokenizers,
            compute_metrics=compute_metrics,
            callbacks=callbacks,
            optimizers=optimizers,
            optimizer_cls_and_kwargs=optimizer_cls_and_kwargs,
        )
        self.model_init = model_init

        self.measured = {}
        self.part_sums = {}
        self._graceful_stop = GracefulStopCallback()
        self._own_callbacks: list[TrainerCallback] = []
        self._set_up_model()

    def _prepared_model(self, given: Any) -> Any:
        """The model of what a user gives, and the data as it reads them."""
        rows = self._given.rows
        model, self.tokenizers = self.make_model(without_task(given), rows, self._given.processing_class)
        restore_tables(base_model(model))
        if self.no_reentrant:
            check_checkpointing(model, self.args)

        refusal = self.no_sharding or (NO_SHARDED_ROWS if self.args.trainable_rows else "")
        check_sharding(self.args, refusal=refusal, adapters=base_model(model) is not model)
        self.converter = self.make_converter(base_model(model), rows)
        self.features = self.make_features(rows)
        if self.args.trainable_rows:
            select_rows(model, self.features, self.tokenizers)
        self.eval_sets = self.converted_sets(self._given.eval_dataset)
        self.guards = {name: self.read_guard(name, data) for name, data in self._given.guards.items()}
        return model

    def _set_up_model(self) -> None:
        """Sets what the trainer does with its model, and the callbacks for it."""
        if self.is_fsdp_enabled:
            set_up_sharding(self)
        self._choose_attention()
        handler = self.callback_handler
        handler.callbacks = [callback for callback in handler.callbacks if callback not in self._own_callbacks]
        self._own_callbacks = self.make_callbacks()
        for callback in self._own_callbacks:
            self.add_callback(callback)

    def call_model_init(self, trial: Any = None) -> Any:
        """A new model by `model_init`, which the data, the evaluation and the callbacks follow.

        As `Trainer` draws its random numbers, a training is that of a trainer with this model.
        """
        self._hp_search_setup(trial)  # Trainer does this later, but a model may depend on the arguments
        set_seed(self.args.seed)
        model = self._prepared_model(super().call_model_init(trial))

        self.model = model
        self.model.config.use_cache = self.args.use_cache
        self._live = None
        self.train_dataset = next(iter(self.features.values()), None)
        self.eval_dataset = self.eval_sets or self.evaluations or self.guards or None
        self.processing_class = None if isinstance(self.tokenizers, Mapping) else self.tokenizers
        self.data_collator = self._given.data_collator or self.make_collator(base_model(model))
        self.callback_handler.model = model
        self.callback_handler.processing_class = self.processing_class
        self._set_up_model()
        if self.guards:
            self.measure_before()

        set_seed(self.args.seed)
        return model

    def hyperparameter_search(
        self,
        hp_space: Callable[[Any], dict[str, Any]] | None = None,
        compute_objective: Callable[[dict[str, float]], Any] | None = None,
        n_trials: int = 20,
        direction: str | list[str] | None = None,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        """As `Trainer.hyperparameter_search`; by default the objective is `metric_for_best_model` in its direction.

        Without such a metric it is the loss. A `compute_objective` is minimised unless `direction` says otherwise.
        """
        if compute_objective is None:
            self._check_choice_of_best()
            compute_objective = self._best_metric
            if direction is None and self.args.greater_is_better:
                direction = "maximize"
        return super().hyperparameter_search(
            hp_space, compute_objective, n_trials, direction or "minimize", *args, **kwargs
        )

    def _best_metric(self, metrics: dict[str, float]) -> float:
        """The metric that chooses the best of several models."""
        name = "eval_" + (self.args.metric_for_best_model or "loss").removeprefix("eval_")
        if name not in metrics:
            raise XlsrError(f"`metric_for_best_model` '{name}' is not measured. Metrics: {', '.join(metrics)}.")
        return metrics[name]

    def _check_choice_of_best(self) -> None:
        """Checks that the loss chooses the best model only where evaluation has one."""
        metric = self.args.metric_for_best_model or "loss"
        if metric.removeprefix("eval_") != "loss" or "" in self.eval_sets:
            return
        if not self.eval_sets:
            raise XlsrError("The choice of the best model needs an `eval_dataset`, or `metric_for_best_model`.")
        names = ", ".join(f"'{name}_loss'" for name in self.eval_sets)
        raise XlsrError(f"`metric_for_best_model` must name one of several evaluation datasets: {names}.")

    def read_rows(self, data: Any) -> dict[str, Any]:
        """The training rows by task, the main task first: what users give, of one task or of several by name."""
        rows = {} if data is None else {MAIN: data}
        check_stored(self.args, rows)
        return rows

    def make_model(self, model: Any, rows: Mapping[str, Any], processing_class: Any) -> tuple[Any, Any]:
        """The model, and the tokenizer of all texts or one for each language."""
        raise NotImplementedError

    def make_converter(self, model: Any, rows: Mapping[str, Any]) -> DataConverter:
        """What converts rows, with the tokenizers, prompts and length of the model; sets `max_length`."""
        raise NotImplementedError

    def make_features(self, rows: Mapping[str, Any]) -> dict[str, Any]:
        """The converted rows by task. The main process is the first, and fills the cache for the others."""
        with self.args.main_process_first(desc="tokenising"):
            return {task: self.convert(task, data) for task, data in rows.items()}

    def make_collator(self, model: Any) -> Any:
        """What makes batches of features."""
        raise NotImplementedError

    def make_callbacks(self) -> list[TrainerCallback]:
        """The trainer's own callbacks, which run after those that its caller gives."""
        callbacks: list[TrainerCallback] = [SamplerEpochCallback(), self._graceful_stop, DiskSizeCallback(self)]
        patience = self.args.early_stopping_patience
        if patience:
            callbacks.insert(0, EarlyStoppingCallback(patience, self.args.early_stopping_threshold))
        return callbacks

    def text_converter(self, text: TextSettings, languages: Sequence[str] | None = None) -> DataConverter:
        """A converter with the tokenizers, prompts and length of a sentence encoder."""
        self.max_length = text.max_length
        return DataConverter(
            text.tokenizers,
            languages=languages,
            max_length=text.max_length,
            prompts=text.prompts,
            num_proc=self.args.num_proc,
        )

    @property
    def token_counts(self) -> dict[str, int]:
        """Tokens of all training rows, of these unknown ones, and rows that were truncated; empty for streams."""
        counts = Counter[str]()
        for data in self.features.values():
            for rows in getattr(data, "datasets", [data]):
                report = getattr(getattr(rows, "text", rows), "report", {})
                counts.update({name: report[name] for name in TOKEN_COUNTS if name in report})
        return dict(counts)

    def _evaluation_by(self, evaluator: Any, model: Any) -> Evaluation:
        """Calls evaluators of sentence-transformers."""
        languages = getattr(base_model(model).config, "encoder_configs", None) or {}
        if len(languages) > 1 or not self.args.trains_embeddings:
            raise XlsrError(
                "`evaluator` needs an encoder of sentences for all languages, since evaluators name none. Use "
                "`eval_dataset`, or evaluations=[lambda encoder: evaluator(single_route(encoder, 'en'))] with "
                "hf_xlsr.encoders.assembly.single_route."
            )
        if isinstance(evaluator, list | tuple):
            evaluator = SequentialEvaluator(list(evaluator))

        def measure(encoder: Any) -> Mapping[str, float]:
            result = evaluator(encoder, epoch=self.state.epoch or 0, steps=self.state.global_step)
            return result if isinstance(result, Mapping) else {"evaluator": result}

        return measure

    def train(self, resume_from_checkpoint: str | bool | None = None, *args: Any, **kwargs: Any) -> Any:
        """As `Trainer.train`; `resume_from_checkpoint=True` resumes from the newest complete checkpoint.

        Raises:
            KeyboardInterrupt: After a signal, with a checkpoint of the step that it came in.
        """
        if resume_from_checkpoint is True:
            newest = last_whole_checkpoint(self.args.output_dir, self.args.world_size)
            resume_from_checkpoint = str(newest) if newest else True
        check_resumable(resume_from_checkpoint)
        if isinstance(resume_from_checkpoint, str | Path):
            check_row_ids(self.model, Path(resume_from_checkpoint))
        self.measured = {}
        self.guard_watch.resumes = bool(resume_from_checkpoint)
        if self.guards and self.model_init is None:
            self.measure_before()

        # Memory of a GPU is kept by torch.
        keeping = freed_memory_kept() if self.args.device.type == "cpu" else nullcontext()
        try:
            with keeping:
                output = super().train(resume_from_checkpoint, *args, **kwargs)
        except pickle.UnpicklingError as error:
            raise XlsrError(f"'{resume_from_checkpoint}' has pickles, which may run code. Use another.") from error
        finally:
            self._graceful_stop.restore()

        if self.guards:
            self.changes = self.compare_guards()
        return output

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        checkpoint = Path(self._get_output_dir(trial)) / f"{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}"
        with disk_errors(checkpoint):
            super()._save_checkpoint(model, trial)
            self.accelerator.wait_for_everyone()  # each process writes its random state
            if self.args.should_save:
                save_row_ids(self.model, checkpoint)
                seal(checkpoint)

    def load_checkpoint(self, folder: Path) -> None:
        """Loads the weights of a checkpoint, and what else a trainer keeps with them."""
        self._load_from_checkpoint(str(folder))
        self._take_special_tokens(folder)

    def load_best_checkpoint(self) -> None:
        """Loads the weights of the checkpoint that the trainer's state calls the best."""
        self._load_best_model()
        self._take_special_tokens(Path(str(self.state.best_model_checkpoint)))

    def _take_special_tokens(self, folder: Path) -> None:
        """Takes the special tokens that a training wrote into its configuration from that of a checkpoint."""
        if not (folder / CONFIG_NAME).is_file():  # adapters
            return
        stored = load_auto(AutoConfig, str(folder)).get_text_config()
        config = base_model(self.accelerator.unwrap_model(self.model)).config.get_text_config()
        for name in SPECIAL_TOKENS:
            setattr(config, name, getattr(stored, name, None))

    def _finalize_training(self, *args: Any, **kwargs: Any) -> Any:
        if self.stopped_early and self.state.global_step < self.state.max_steps:
            self._finish_current_push()
            raise KeyboardInterrupt  # a script must not go on as after a whole training
        return super()._finalize_training(*args, **kwargs)  # type: ignore[no-untyped-call]

    def _choose_attention(self) -> None:
        model = base_model(self.accelerator.unwrap_model(self.model))
        length = getattr(self.data_collator, "max_length", PLAIN_ATTENTION_TOKENS)
        implementation = attention_of(model.config) or "eager"
        fastest = attention_for(implementation, self.args.device.type, self.autocast_dtype, length)
        if fastest is not None and fastest != implementation:
            model.set_attn_implementation(fastest)

    def _prepare_for_training(self, *args: Any, **kwargs: Any) -> Any:
        prepared = super()._prepare_for_training(*args, **kwargs)
        if self.is_fsdp_enabled:
            fit_sharded(self.model, self.accelerator.state.fsdp_plugin.transformer_cls_names_to_wrap)
        return prepared

    def padding(self, args: Any) -> dict[str, Any]:
        """How long the collator makes sentences, as its options."""
        return {"max_length": self.max_length, "pad_to_multiple_of": args.padding_multiple}

    @property
    def stopped_early(self) -> bool:
        """Whether a signal ended the last training."""
        return bool(self.stop_signal)

    @property
    def stop_signal(self) -> int:
        """The number of the signal that ended the last training; 0 if none did."""
        return self._graceful_stop.stopped

    def get_batch_samples(self, *args: Any) -> Any:
        """The micro-batches of a step and, under accumulation, the masked tokens of all of them and all processes."""
        batches, items = super().get_batch_samples(*args)
        if len(batches) > 1 and self.token_labels in batches[0]:
            count = sum((batch[self.token_labels] != IGNORE).sum() for batch in batches)
            items = self.accelerator.gather(torch.as_tensor(count, device=self.args.device)).sum().clamp_min(1)
        return batches, items

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: torch.Tensor | int | None = None,
    ) -> Any:
        """The model's loss; its parts and statistics are accumulated for the next log."""
        if self.args.matryoshka_dims:
            inputs = {**inputs, "matryoshka_dims": self.args.matryoshka_dims}
        if self.args.cache_batch_size:
            inputs = {**inputs, "cache_batch_size": self.args.cache_batch_size}
        if self.token_labels and num_items_in_batch is not None:
            num_batches = self.current_gradient_accumulation_steps * self.args.world_size  # of the step
            inputs = {**inputs, "masked_tokens": num_items_in_batch / num_batches}

        outputs = model(**inputs)
        if model.training:
            self.add_losses(outputs)
        return (outputs.loss, outputs) if return_outputs else outputs.loss

    @property
    def autocast_dtype(self) -> torch.dtype | None:
        """Precision of the forward pass, if it is not that of the weights."""
        return autocast_dtype_of(self.args)

    def text_tokenizers(self) -> Any:
        """The tokenizer of the model, or one for each language."""
        return self.tokenizers

    def save_tokenizers(self, folder: Path) -> None:
        """Writes the tokenizers to the folder of a saved model, where `read_encoder` finds them."""
        self.processing_class.save_pretrained(str(folder))

    def extra_state(self) -> dict[str, torch.Tensor]:
        """What is saved in addition to adapters."""
        return {}

    def tokenizer_of(self, language: str) -> tuple[Any, dict[str, Any]]:
        """The tokenizer of a language's sentences, and the options with which the model encodes them."""
        return self.processing_class, {}

    def live_encoder(self) -> Any:
        """The model as a `SentenceTransformer` around the modules in training, which shares their weights.

        It is made once. Outside of `evaluate` it computes in the precision of the weights.
        """
        model = base_model(self.accelerator.unwrap_model(self.model))
        if self._live is None or self._live[0] is not model:
            encoder = model.sentence_encoder(self.text_tokenizers())
            self._live = model, encoder.assemble(model.device)
        return self._live[1]

    def evaluate(
        self, eval_dataset: Any = None, ignore_keys: list[str] | None = None, metric_key_prefix: str = "eval"
    ) -> dict[str, float]:
        """Measures the live model on `eval_dataset`, by the evaluator and by the evaluations.

        A given `eval_dataset`, in any form that the trainer takes, or the name of one of the trainer's own, is measured
        instead of all these.
        """
        sets = self.eval_sets if eval_dataset is None else self._chosen_sets(eval_dataset)
        metrics: dict[str, float] = {}
        results = Results()
        for name, data in sets.items():
            prefix = f"{metric_key_prefix}_{name}" if name else metric_key_prefix
            metrics |= self.evaluate_data(data, prefix, ignore_keys)

        if sets is self.eval_sets and self.evaluations:
            encoder = self.live_encoder()
            encoder_dtype = self.autocast_dtype if self.args.trains_embeddings else None  # others do it themselves
            with (
                evaluating(self.accelerator.unwrap_model(self.model), None),
                encoding_under_autocast(encoder, encoder_dtype),
            ):
                measured, results = run_evaluations(self.evaluations, encoder)
            metrics |= {f"{metric_key_prefix}_{name}": value for name, value in measured.items()}

        if sets is self.eval_sets:
            self.measured[step_of_weights(self)] = dict(metrics), results

        if sets is self.eval_sets and self.guards:
            for key, value in self.evaluate_guards().items():
                metrics[f"{metric_key_prefix}_{key}"] = value

        self.log(metrics)
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        if self.is_in_train and self.is_stopped_by_guard:
            self.stop_by_guard()
        return metrics

    def _chosen_sets(self, data: Any) -> dict[str, Any]:
        """The evaluation data that a user names or gives, converted."""
        if not isinstance(data, str):
            return self.converted_sets(data)
        if data not in self.eval_sets:
            names = ", ".join(repr(name) for name in self.eval_sets) or "none"
            raise XlsrError(f"`eval_dataset` '{data}' is unknown. The trainer's evaluation data are: {names}.")
        return {"": self.eval_sets[data]}

    def get_eval_dataloader(self, eval_dataset: Any = None) -> DataLoader[Any]:
        """Batches of one set of evaluation data, given as for `evaluate`; by default of the trainer's own."""
        sets = self.eval_sets if eval_dataset is None else self._chosen_sets(eval_dataset)
        if len(sets) != 1:
            raise XlsrError(f"`get_eval_dataloader` needs one dataset, got {len(sets)}. Give one, or its name.")
        (data,) = sets.values()
        rows = EvaluationRows(data, self.eval_task(data))
        batches = rows.batches(self.args.per_device_eval_batch_size, homogeneous=self.args.homogeneous_batches)
        return DataLoader(rows, batch_sampler=batches, collate_fn=self.data_collator)

    def predict(
        self, test_dataset: Any, ignore_keys: list[str] | None = None, metric_key_prefix: str = "test"
    ) -> PredictionOutput:
        """The sentence embeddings of translation pairs, sources and targets, each `(pairs, width)`, and their metrics.

        `test_dataset` is one dataset, in any form that `evaluate` takes.
        """
        sets = self._chosen_sets(test_dataset)
        data = sets.get("")
        if not self.args.trains_embeddings or not isinstance(data, PreparedPairs):
            raise XlsrError("`predict` needs one dataset of translation pairs, and a trainer of sentence embeddings.")
        metrics = self.evaluate_data(data, metric_key_prefix, ignore_keys)
        self.control = self.callback_handler.on_predict(self.args, self.state, self.control, metrics)
        predictions: Any = pair_embeddings(self, data)
        return PredictionOutput(predictions=predictions, label_ids=None, metrics=metrics)

    def evaluate_data(self, data: Any, prefix: str, ignore_keys: list[str] | None = None) -> dict[str, float]:
        """The metrics of converted rows."""
        metrics = {"loss": evaluation_loss(self, EvaluationRows(data, self.eval_task(data)))}
        if self.args.trains_embeddings and isinstance(data, PreparedPairs):
            metrics |= translation_accuracy(self, data)
        return {f"{prefix}_{name}": value for name, value in metrics.items()}

    def eval_task(self, data: Any) -> str:
        """Which task of a collator of several tasks evaluation data are."""
        return MAIN


class PairTrainer(XlsrTrainer):
    """`XlsrTrainer` for a model with one encoder, by default made from what users give."""

    model_class: Any

    def make_model(self, model: Any, rows: Mapping[str, Any], processing_class: Any) -> tuple[Any, Any]:
        """See `model_and_tokenizer`."""
        options = self.new_model_options(rows)
        return model_and_tokenizer(self.model_class, model, processing_class, seed=self.args.seed, **options)

    def new_model_options(self, rows: Mapping[str, Any]) -> dict[str, Any]:
        """Values of the configuration of a model that is made from an encoder."""
        return {}

    def room(self, model: Any, rows: Mapping[str, Any]) -> Callable[[int], int] | None:
        """Positions of a sentence in an input that has so many; None if a sentence may fill it."""
        return None

    def make_converter(self, model: Any, rows: Mapping[str, Any]) -> DataConverter:
        """With the settings of the encoder and those of the arguments."""
        text = TextSettings(model, self.tokenizers, self.args, room=self.room(model, rows))
        model.prompt_length = text.prompt_lengths[""]
        return self.text_converter(text)
