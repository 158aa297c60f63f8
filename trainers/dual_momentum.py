"""Training dual momentum contrast.

Once per optimiser step, the momentum encoders are updated and the step's keys enter the queues. Neither belongs to the
forward pass, which may run twice (gradient checkpointing, evaluation).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from tqdm.auto import tqdm
from transformers import TrainerCallback
from transformers.integrations.neftune import neftune_post_forward_hook

from hf_xlsr.data.collators import DualCollator, NliCollator, pad_rows, truncate_row
from hf_xlsr.data.conversion import DataConverter
from hf_xlsr.data.raw_rows import pair_languages
from hf_xlsr.data.sampling import MultiTaskCollator
from hf_xlsr.encoders.reading import TOKENIZERS
from hf_xlsr.export.model_card import MethodFacts
from hf_xlsr.modeling import citations
from hf_xlsr.modeling.dual_momentum import DualMomentumConfig
from hf_xlsr.modeling.dual_momentum.configuration_dual_momentum import SHARED, check_same
from hf_xlsr.modeling.heads import NLI_LABELS
from hf_xlsr.trainers.adapters import base_model
from hf_xlsr.trainers.arguments import share_of_step
from hf_xlsr.trainers.base import Evaluation, XlsrTrainer
from hf_xlsr.trainers.data_flow import check_stored, inputs_by_task
from hf_xlsr.trainers.live_encoder import evaluating
from hf_xlsr.trainers.pretrained import TextSettings, check_classifier, dual_model_and_tokenizers
from hf_xlsr.trainers.step_keys import SoundStepCallback, StepCallback, StepKeys
from hf_xlsr.utils.auto_classes import load_auto
from hf_xlsr.utils.distributed import gather_rows, process_index, world_size
from hf_xlsr.utils.errors import XlsrError

PAIRS = "pairs"
NLI = "nli"
# State that a checkpoint of adapters lacks.
EXTRA_STATE_FILE = "dual_momentum_state.safetensors"
EXTRA_STATE = ("queues.", "heads.", "momentum_heads.", "nli_head.")
# Settings that a checkpoint and the resumed model must share.
KEPT_SETTINGS = ("queue_size", "queue_storage", "languages", "projection_dim", "use_momentum", "nli_labels")
LARGE = 0.9  # momentum above which a step is at most a tenth of the difference
BATCH_SIZE = 256
BATCHES_AT_ONCE = 32  # sorted by length and enqueued together; bounds memory


class MomentumCallback(StepCallback):
    """Updates the momentum encoders after each optimiser step that was not skipped, equation 1.

    Momentum encoders of half precision would not move by small updates.
    """

    def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        trained = base_model(model)
        if not trained.config.use_momentum or not LARGE <= trained.config.momentum < 1:
            return
        for _, average in trained.momentum_pairs():
            if average.dtype in (torch.bfloat16, torch.float16):
                raise XlsrError(f"Momentum encoders must be float32, got {average.dtype}. Set precision to float32.")

    def on_optimizer_step(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        if not self.keys.dropped:
            base_model(model).momentum_update()


class MemoryQueueCallback(StepCallback):
    """Enqueues the keys of all micro-batches and processes after the optimiser step.

    Every process gathers the same keys in the same order, so that queues stay equal without communication.
    """

    @torch.no_grad()
    def on_optimizer_step(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        if not self.keys.dropped:
            for language, *tensors in self.keys.waiting:
                base_model(model).enqueue(language, *map(gather_rows, tensors))
        self.keys.waiting = []


class EmbeddingNoiseCallback(TrainerCallback):
    """Adds the noise of `neftune_noise_alpha` to the embeddings of every encoder; Trainer reaches the first one only."""

    def __init__(self) -> None:
        self.hooks: list[Any] = []

    def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        _, *others = base_model(model).encoders.values()
        for encoder in others:
            embeddings = encoder.get_input_embeddings()
            embeddings.neftune_noise_alpha = args.neftune_noise_alpha
            self.hooks.append(embeddings.register_forward_hook(neftune_post_forward_hook))

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        for hook in self.hooks:
            hook.remove()
        self.hooks = []


class QueuePrefillCallback(TrainerCallback):
    """Fills empty queues with keys of random training pairs when training begins; a resume keeps its queues.

    If a language has fewer pairs than its queue has rows, each key is added once.
    """

    def __init__(self, trainer: Any) -> None:
        self.trainer = trainer

    def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        trained = base_model(model)
        if any(queue.count for queue in trained.queues.values()):
            return
        try:
            with torch.no_grad(), evaluating(trained, self.trainer.autocast_dtype):
                for number, language in enumerate(trained.queues):
                    rng = np.random.default_rng([self.trainer.args.seed_of_data, number, 2])
                    self._fill(trained, language, rng)
        except BaseException:
            # Partly filled queues, after Ctrl-C, would look like those of a resumed training.
            for queue in trained.queues.values():
                queue.clear()
            raise

    def _fill(self, model: Any, language: str, rng: np.random.Generator) -> None:
        data = self.trainer.train_dataset
        in_language = np.array(data.language_pairs) == language  # (language pairs, sides)
        of_target, examples = in_language[np.asarray(data.groups)].T.nonzero()
        drawn = rng.permutation(len(examples))[: model.config.queue_size]
        block = BATCH_SIZE * BATCHES_AT_ONCE * world_size()
        hidden = self.trainer.args.disable_tqdm or process_index() > 0
        for start in tqdm(range(0, len(drawn), block), desc=f"filling the queue of {language}", disable=hidden):
            rows = drawn[start : start + block]
            keys, texts = self._keys(model, language, examples[rows], of_target[rows])
            model.enqueue(language, keys, texts, torch.from_numpy(examples[rows]).to(keys.device))

    def _keys(
        self, model: Any, language: str, examples: np.ndarray, of_target: np.ndarray
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and text hashes in the given order; each process encodes its share, in batches of similar length."""
        trainer = self.trainer
        processes = world_size()
        order = np.argsort(-np.asarray(trainer.train_dataset.lengths)[examples], kind="stable")
        key_batches = []
        text_batches = []
        row_batches = []
        for start in range(0, len(order), BATCH_SIZE * processes):
            rows = self._own_rows(order[start : start + BATCH_SIZE * processes])
            features = trainer.train_dataset.__getitems__([(0, int(example)) for example in examples[rows]])
            sides = ["target" if is_target else "source" for is_target in of_target[rows]]
            ids = [
                truncate_row(one[f"{side}_ids"], trainer.max_length) for one, side in zip(features, sides, strict=True)
            ]
            texts = torch.tensor([one[f"{side}_text"] for one, side in zip(features, sides, strict=True)])

            padded = pad_rows(ids, trainer.tokenizers[language].pad_token_id)
            inputs = [torch.from_numpy(array).to(model.device) for array in padded]
            keys = model.encode_sentences(*inputs, language=language, keys=True).float()
            key_batches.append(gather_rows(keys))
            text_batches.append(gather_rows(texts.to(keys.device)))
            row_batches.append(gather_rows(torch.from_numpy(rows.astype(np.int64)).to(keys.device)))

        encoded_rows = torch.cat(row_batches)
        position_of_row = torch.empty(len(order), dtype=torch.long, device=encoded_rows.device)
        position_of_row[encoded_rows] = torch.arange(len(encoded_rows), device=encoded_rows.device)
        return torch.cat(key_batches)[position_of_row], torch.cat(text_batches)[position_of_row]

    @staticmethod
    def _own_rows(batch: np.ndarray) -> np.ndarray:
        """The rows of a batch that this process encodes, as many in every process: some may be encoded twice."""
        rank = process_index()
        processes = world_size()
        if rank >= len(batch):
            return batch[:1]
        return np.resize(batch[rank::processes], -(-len(batch) // processes))


class DualMomentumTrainer(XlsrTrainer):
    """`XlsrTrainer` for `DualMomentumModel`: batches of one language pair; momentum and queues once per step.

    The keys of a step's micro-batches wait in `step_keys` and enter the queues together after the optimiser step: with
    queue negatives only, four accumulated micro-batches of 256 train like one batch of 1,024. Queues and momentum
    encoders are part of the checkpoint, also with adapters. `docs/train.md` has a complete script.

    Args:
        model: `DualMomentumModel`, or one in a PEFT wrapper (see `hf_xlsr.trainers.adapters.add_adapters`). With default
            settings also a dict from language to encoder, a model with routes by language, or one encoder of all
            languages, in any form that `hf_xlsr.encoders.reading.read_encoder` takes.
        args: `DualMomentumTrainingArguments`.
        tokenizers: Fast tokenizer of each language; by default those of the encoders' places.
        train_dataset: Translation pairs, see `DataConverter.pairs`.
        nli_dataset: Inference pairs for the auxiliary task of appendix B, see `DataConverter.inference`; the model needs
            `nli_labels`.
    """

    method = MethodFacts(citations.DUAL_MOMENTUM_PAPER, citations.DUAL_MOMENTUM)
    no_reentrant = True
    no_sharding = "Momentum updates of dual momentum contrast need whole weights on every process."

    def __init__(
        self,
        model: Any = None,
        args: Any = None,
        *,
        model_init: Callable[..., Any] | None = None,
        tokenizers: Mapping[str, Any] | None = None,
        train_dataset: Any = None,
        nli_dataset: Any = None,
        eval_dataset: Any = None,
        evaluations: Sequence[Evaluation] = (),
        evaluator: Any = None,
        guards: Mapping[str, Any] | None = None,
        data_collator: Any = None,
        callbacks: list[TrainerCallback] | None = None,
        optimizers: tuple[Any, Any] = (None, None),
        optimizer_cls_and_kwargs: tuple[type, dict[str, Any]] | None = None,
    ) -> None:
        self.step_keys = StepKeys()
        super().__init__(
            model,
            args,
            model_init=model_init,
            train_dataset={PAIRS: train_dataset, NLI: nli_dataset},
            processing_class=tokenizers,
            eval_dataset=eval_dataset,
            evaluations=evaluations,
            evaluator=evaluator,
            guards=guards,
            data_collator=data_collator,
            callbacks=callbacks,
            optimizers=optimizers,
            optimizer_cls_and_kwargs=optimizer_cls_and_kwargs,
        )

    def make_callbacks(self) -> list[TrainerCallback]:
        """Also moves momentum encoders and queues after each step."""
        callbacks = super().make_callbacks()
        callbacks.append(SoundStepCallback(self.step_keys))
        callbacks.append(MomentumCallback(self.step_keys))
        callbacks.append(MemoryQueueCallback(self.step_keys))
        if self.args.queue_prefill:
            callbacks.append(QueuePrefillCallback(self))
        if self.args.neftune_noise_alpha is not None:
            callbacks.append(EmbeddingNoiseCallback())
        return callbacks

    def read_rows(self, data: Mapping[str, Any]) -> dict[str, Any]:
        """The rows of the tasks that have data."""
        rows = {task: rows for task, rows in data.items() if rows is not None}
        check_stored(self.args, {PAIRS: rows.get(PAIRS)})
        return rows

    def make_model(self, model: Any, rows: Mapping[str, Any], processing_class: Any) -> tuple[Any, dict[str, Any]]:
        """See `dual_model_and_tokenizers`; one encoder of all languages is for those of the pairs."""
        model, tokenizers = dual_model_and_tokenizers(
            model,
            processing_class,
            partial(pair_languages, rows.get(PAIRS)),
            seed=self.args.seed,
            nli_labels=NLI_LABELS if NLI in rows else 0,
        )
        trained = base_model(model)
        check_classifier(trained.config, rows.get(NLI))
        if trained.config.use_momentum:
            list(trained.momentum_pairs())  # raises for adapters without a counterpart
        if trained is not model:
            trained.reset_momentum()  # each adapter was initialised at random
            trained.freeze_momentum()
        if self.args.ddp_find_unused_parameters is None:
            # A batch of one language pair leaves the encoders of the other languages without gradient.
            unused_classifier = NLI not in rows and trained.config.nli_labels > 0
            self.args.ddp_find_unused_parameters = len(trained.encoders) > 2 or unused_classifier
        return model, tokenizers

    def make_converter(self, model: Any, rows: Mapping[str, Any]) -> DataConverter:
        """With the settings of the encoders and those of the arguments."""
        config: DualMomentumConfig = model.config
        text = TextSettings(model, self.tokenizers, self.args)
        model.prompt_lengths = {
            config.encoder_of(language) if language else SHARED: length
            for language, length in text.prompt_lengths.items()
        }
        if not isinstance(text.tokenizers, Mapping):  # a mapping refuses data in other languages
            text.tokenizers = dict.fromkeys(config.languages or (), text.tokenizers)
        return self.text_converter(text, config.languages)

    def convert(self, task: str, rows: Any) -> Any:
        """Pairs, or inference rows."""
        return self.converter.inference(rows) if task == NLI else self.converter.pairs(rows)

    def make_collator(self, model: Any) -> Any:
        """Pads each side with the token of its language; with inference, a collator of each task."""
        padding = self.padding(self.args)
        pad_ids = {language: tokenizer.pad_token_id or 0 for language, tokenizer in self.tokenizers.items()}
        pair_collator = DualCollator(pad_ids, **padding)
        if NLI not in self.features:
            return pair_collator
        return MultiTaskCollator({PAIRS: pair_collator, NLI: NliCollator(pad_ids, **padding)})

    def train_batches(self) -> tuple[Any, Any]:
        if NLI not in self.features:
            return super().train_batches()
        options: dict[str, Any] = {"seed": self.args.seed_of_data + 1, "batch_option": "nli_batch_size"}
        options |= {"homogeneous": True, "mixing": "proportional"}  # a language has its own encoder
        size = share_of_step("nli_batch_size", self.args.nli_batch_size, self.args)
        batches = {PAIRS: self.batches(self.train_dataset), NLI: self.batches(self.features[NLI], size, **options)}
        return self.join_tasks(self.features, batches)

    def compute_loss(
        self, model: Any, inputs: dict[str, Any], return_outputs: bool = False, *args: Any, **kwargs: Any
    ) -> Any:
        """The model's loss; the keys wait for the end of the step."""
        batch, nli = inputs_by_task(inputs, [NLI])
        loss, outputs = super().compute_loss(model, {**batch, **nli}, True, *args, **kwargs)
        if model.training:
            for side in ("source", "target"):
                keys = getattr(outputs, f"{side}_keys")
                self.step_keys.waiting.append((batch[f"{side}_lang"], keys, batch[f"{side}_texts"], batch["examples"]))
        return (loss, outputs) if return_outputs else loss

    def save_tokenizers(self, folder: Path) -> None:
        config = base_model(self.accelerator.unwrap_model(self.model)).config
        for language in config.languages:
            self.tokenizers[language].save_pretrained(str(folder / TOKENIZERS / config.encoder_of(language)))

    def tokenizer_of(self, language: str) -> tuple[Any, dict[str, Any]]:
        return self.tokenizers[language], {"language": language}

    def _load_best_model(self) -> None:
        super()._load_best_model()
        model = self.accelerator.unwrap_model(self.model)
        if base_model(model) is not model:
            self._load_extra_state(Path(str(self.state.best_model_checkpoint)), base_model(model))

    def _save(self, output_dir: str | None = None, state_dict: dict[str, Any] | None = None) -> None:
        super()._save(output_dir, state_dict=state_dict)
        folder = Path(output_dir or self.args.output_dir)
        if not self.args.should_save:
            return
        self.save_tokenizers(folder)
        model = self.accelerator.unwrap_model(self.model)
        trained = base_model(model)
        if trained is not model:
            settings = json.dumps({name: getattr(trained.config, name) for name in KEPT_SETTINGS})
            # One entry, as safetensors orders several at random.
            save_file(self.extra_state(), folder / EXTRA_STATE_FILE, metadata={"settings": settings})

    def extra_state(self) -> dict[str, torch.Tensor]:
        """Queues, projections and the classifier."""
        state = base_model(self.accelerator.unwrap_model(self.model)).state_dict()
        return {name: value.contiguous() for name, value in state.items() if name.startswith(EXTRA_STATE)}

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        folder = Path(resume_from_checkpoint)
        resumed = self.accelerator.unwrap_model(self.model if model is None else model)
        trained = base_model(resumed)
        if trained is not resumed:
            self._load_extra_state(folder, trained)
        else:
            stored = load_auto(DualMomentumConfig, folder)
            check_same(str(folder), {name: getattr(stored, name) for name in KEPT_SETTINGS}, trained.config)
        super()._load_from_checkpoint(resume_from_checkpoint, model)

    @staticmethod
    def _load_extra_state(folder: Path, model: Any) -> None:
        """Loads what is saved in addition to adapters: queues, projections, the classifier."""
        file = folder / EXTRA_STATE_FILE
        with safe_open(file, "pt") as content:
            stored = json.loads(content.metadata()["settings"])
            check_same(str(folder), stored, model.config)
        model.load_state_dict(load_file(file), strict=False)
