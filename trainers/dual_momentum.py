"""Training dual momentum contrast.

Once per optimiser step, the momentum encoders are updated and the step's keys enter the queues. Neither belongs to the
forward pass, which may run twice (gradient checkpointing, evaluation).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from tqdm.auto import tqdm
from transformers import TrainerCallback

from hf_xlsr.data.collators import DualCollator, NliCollator, pad_rows, truncate_row
from hf_xlsr.data.conversion import DataConverter
from hf_xlsr.data.raw_rows import pair_languages
from hf_xlsr.data.sampling import MultiTaskCollator
from hf_xlsr.encoders.reading import TOKENIZERS
from hf_xlsr.modeling.dual_momentum import DualMomentumConfig
from hf_xlsr.modeling.dual_momentum.configuration_dual_momentum import SHARED, check_same
from hf_xlsr.trainers.adapters import base_model
from hf_xlsr.trainers.arguments import share_of_step
from hf_xlsr.trainers.base import Evaluation, XlsrTrainer, check_stored
from hf_xlsr.trainers.data_flow import inputs_by_task
from hf_xlsr.trainers.live_encoder import evaluating
from hf_xlsr.trainers.pretrained import NLI_LABELS, TextSettings, check_classifier, dual_model_and_tokenizers
from hf_xlsr.trainers.step_keys import SoundStepCallback, StepCallback, StepKeys
from hf_xlsr.utils.distributed import gather_rows, process_index, world_size
from hf_xlsr.utils.errors import XlsrError

PAIRS, NLI = "pairs", "nli"
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
        ours = base_model(model)
        momentum = ours.config.momentum
        pairs = ours.momentum_pairs() if ours.config.use_momentum and LARGE <= momentum < 1 else ()
        if halved := {str(average.dtype) for _, average in pairs if average.dtype in (torch.bfloat16, torch.float16)}:
            raise XlsrError(f"Momentum encoders must be float32, got {min(halved)}. Set precision to float32.")

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
            ours = base_model(model)
            for language, *parts in self.keys.waiting:
                ours.enqueue(language, *(gather_rows(part) for part in parts))
        self.keys.waiting = []


class QueuePrefillCallback(TrainerCallback):
    """Fills empty queues with keys of random training pairs when training begins; a resume keeps its queues.

    If a language has fewer pairs than its queue has rows, each key is added once.
    """

    def __init__(self, trainer: Any) -> None:
        self.trainer = trainer

    def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        ours = base_model(model)
        if any(queue.count for queue in ours.queues.values()):
            return
        try:
            with torch.no_grad(), evaluating(ours, self.trainer.autocast_dtype):
                for number, language in enumerate(ours.queues):
                    self._fill(ours, language, np.random.default_rng([self.trainer.args.seed_of_data, number, 2]))
        except BaseException:
            # Partly filled queues, after Ctrl-C, would look like those of a resumed training.
            for queue in ours.queues.values():
                queue.clear()
            raise

    def _fill(self, model: Any, language: str, rng: np.random.Generator) -> None:
        data = self.trainer.train_dataset
        of_target, examples = (np.array(data.language_pairs) == language)[np.asarray(data.groups)].T.nonzero()
        drawn = rng.permutation(len(examples))[: model.config.queue_size]
        block = BATCH_SIZE * BATCHES_AT_ONCE * world_size()
        hidden = self.trainer.args.disable_tqdm or process_index() > 0
        for start in tqdm(range(0, len(drawn), block), desc=f"filling the queue of {language}", disable=hidden):
            some = drawn[start : start + block]
            keys, texts = self._keys(model, language, examples[some], of_target[some])
            model.enqueue(language, keys, texts, torch.from_numpy(examples[some]).to(keys.device))

    def _keys(
        self, model: Any, language: str, examples: np.ndarray, of_target: np.ndarray
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and text hashes in the given order; each process encodes its share, in batches of similar length."""
        trainer, processes, rank = self.trainer, world_size(), process_index()
        order = np.argsort(-np.asarray(trainer.train_dataset.lengths)[examples], kind="stable")
        parts: list[tuple[torch.Tensor, ...]] = []
        for start in range(0, len(order), BATCH_SIZE * processes):
            batch = order[start : start + BATCH_SIZE * processes]
            # Every process has as many rows: the last ones may be encoded twice, but are written once.
            mine = np.resize(batch[rank::processes], -(-len(batch) // processes)) if rank < len(batch) else batch[:1]
            features = trainer.train_dataset.__getitems__([(0, int(example)) for example in examples[mine]])
            sides = ["target" if target else "source" for target in of_target[mine]]
            rows = [
                (feature[f"{side}_ids"], feature[f"{side}_text"])
                for feature, side in zip(features, sides, strict=True)
            ]
            ids = [truncate_row(tokens, trainer.max_length) for tokens, _ in rows]
            padded = pad_rows(ids, trainer.tokenizers[language].pad_token_id)
            inputs = [torch.from_numpy(array).to(model.device) for array in padded]
            keys = model.encode_sentences(*inputs, language=language, keys=True).float()
            numbers = (torch.tensor([text for _, text in rows]), torch.from_numpy(mine.astype(np.int64)))
            parts.append((gather_rows(keys), *(gather_rows(some.to(keys.device)) for some in numbers)))
        keys, texts, places = (torch.cat(part) for part in zip(*parts, strict=True))
        found = torch.empty(len(order), dtype=torch.long, device=places.device)
        found[places] = torch.arange(len(places), device=places.device)
        return keys[found], texts[found]


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

    no_sharding = "Momentum updates of dual momentum contrast need whole weights on every process."

    def __init__(
        self,
        model: Any,
        args: Any,
        *,
        tokenizers: Mapping[str, Any] | None = None,
        train_dataset: Any = None,
        nli_dataset: Any = None,
        eval_dataset: Any = None,
        evaluations: Sequence[Evaluation] = (),
        evaluator: Any = None,
        data_collator: Any = None,
        callbacks: list[TrainerCallback] | None = None,
        optimizers: tuple[Any, Any] = (None, None),
        optimizer_cls_and_kwargs: tuple[type, dict[str, Any]] | None = None,
    ) -> None:
        self.step_keys = StepKeys()
        super().__init__(
            model,
            args,
            train_dataset={PAIRS: train_dataset, NLI: nli_dataset},
            processing_class=tokenizers,
            eval_dataset=eval_dataset,
            evaluations=evaluations,
            evaluator=evaluator,
            data_collator=data_collator,
            callbacks=callbacks,
            optimizers=optimizers,
            optimizer_cls_and_kwargs=optimizer_cls_and_kwargs,
        )
        self.add_callback(SoundStepCallback(self.step_keys))
        self.add_callback(MomentumCallback(self.step_keys))
        self.add_callback(MemoryQueueCallback(self.step_keys))
        if args.queue_prefill:
            self.add_callback(QueuePrefillCallback(self))

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
        ours = base_model(model)
        check_classifier(ours.config, rows.get(NLI))
        if ours.config.use_momentum:
            list(ours.momentum_pairs())  # raises for adapters without a counterpart
        if ours is not model:
            ours.reset_momentum()  # each adapter was initialised at random
            ours.freeze_momentum()
        if self.args.ddp_find_unused_parameters is None:
            # A batch of one language pair leaves the encoders of the other languages without gradient.
            unused_classifier = NLI not in rows and ours.config.nli_labels > 0
            self.args.ddp_find_unused_parameters = len(ours.encoders) > 2 or unused_classifier
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
        pad_ids = {language: tokenizer.pad_token_id for language, tokenizer in self.tokenizers.items()}
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
                parts = getattr(outputs, f"{side}_keys"), batch[f"{side}_texts"], batch["examples"]
                self.step_keys.waiting.append((batch[f"{side}_lang"], *parts))
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
        model = self.accelerator.unwrap_model(self.model)
        ours = base_model(model)
        if self.args.should_save:
            self.save_tokenizers(folder)
        if ours is not model and self.args.should_save:
            state = ours.state_dict()
            extra = {name: value.contiguous() for name, value in state.items() if name.startswith(EXTRA_STATE)}
            settings = {name: json.dumps(getattr(ours.config, name)) for name in KEPT_SETTINGS}
            save_file(extra, folder / EXTRA_STATE_FILE, metadata=settings)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        folder = Path(resume_from_checkpoint)
        chosen = self.accelerator.unwrap_model(self.model if model is None else model)
        ours = base_model(chosen)
        if ours is not chosen:
            self._load_extra_state(folder, ours)
        else:
            stored = DualMomentumConfig.from_pretrained(folder)
            check_same(str(folder), {name: getattr(stored, name) for name in KEPT_SETTINGS}, ours.config)
        super()._load_from_checkpoint(resume_from_checkpoint, model)

    @staticmethod
    def _load_extra_state(folder: Path, model: Any) -> None:
        """Loads what is saved in addition to adapters: queues, projections, the classifier."""
        file = folder / EXTRA_STATE_FILE
        with safe_open(file, "pt") as content:
            stored = {name: json.loads(text) for name, text in content.metadata().items()}
            check_same(str(folder), stored, model.config)
        model.load_state_dict(load_file(file), strict=False)
