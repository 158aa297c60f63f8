"""Training dual momentum contrast."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from hf_xlsr.data.collators import DualCollator, NliCollator
from hf_xlsr.data.sampling import MultiTaskCollator
from hf_xlsr.encoders.stock import check_token_ids, vocab_size_of
from hf_xlsr.modeling.dual_momentum import DualMomentumConfig
from hf_xlsr.modeling.dual_momentum.configuration_dual_momentum import SHARED, check_same
from hf_xlsr.modeling.dual_momentum.momentum import SoundStepCallback, StepKeys
from hf_xlsr.trainers.arguments import share_of_step
from hf_xlsr.trainers.base import XlsrTrainer, converter_of, languages_of, usable_length
from hf_xlsr.trainers.live_encoder import LiveEncoder
from hf_xlsr.trainers.momentum_callbacks import MemoryQueueCallback, MomentumCallback, base_model
from hf_xlsr.trainers.pretrained import NLI_LABELS, TOKENIZERS, dual_model_and_tokenizers
from hf_xlsr.trainers.queue_prefill import QueuePrefillCallback
from hf_xlsr.utils.errors import XlsrError

PAIRS, NLI = "pairs", "nli"
# State that a checkpoint of adapters lacks.
EXTRA_STATE_FILE = "dual_momentum_state.safetensors"
EXTRA_STATE = ("queues.", "projections.", "momentum_projections.", "nli_head.")
# Settings that a checkpoint and the resumed model must share.
KEPT_SETTINGS = ("queue_size", "queue_storage", "languages", "projection_dim", "use_momentum", "nli_labels")


class DualMomentumTrainer(XlsrTrainer):
    """`XlsrTrainer` for `DualMomentumModel`: batches of one language pair; momentum and queues once per step.

    The keys of a step's micro-batches wait in `step_keys` and enter the queues together after the optimiser step: with
    queue negatives only, four accumulated micro-batches of 256 train like one batch of 1,024. Queues and momentum
    encoders are part of the checkpoint, also with adapters. `docs/train.md` has a complete script.

    Args:
        model: `DualMomentumModel`, or one in a PEFT wrapper (see `hf_xlsr.trainers.adapters.add_adapters`). With default
            settings also a dict from language to encoder, or one encoder of all languages: folders, Hub ids or
            `SentenceTransformer` objects.
        args: `DualMomentumTrainingArguments`.
        tokenizers: Fast tokenizer of each language; by default those of the encoders' places.
        train_dataset: Translation pairs, see `DataConverter.pairs`.
        nli_dataset: Inference pairs for the auxiliary task of appendix B, see `DataConverter.inference`; the model needs
            `nli_labels`.
        **kwargs: As for `XlsrTrainer`.
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
        **kwargs: Any,
    ) -> None:
        def languages(encoder: Any, tokenizer: Any) -> list[str]:
            nonlocal train_dataset
            self.converter = converter_of(args, tokenizer, [encoder])
            train_dataset = self.converted(train_dataset, args)
            return languages_of(train_dataset)

        labels = 0 if nli_dataset is None else NLI_LABELS
        model, self.tokenizers = dual_model_and_tokenizers(
            model, tokenizers, languages, seed=args.seed, nli_labels=labels
        )
        ours = base_model(model)
        config: DualMomentumConfig = ours.config
        encoders = ours.encoders.values()
        self.converter = converter_of(args, self.tokenizers, encoders, languages=config.languages)
        train_dataset = self.converted(train_dataset, args)
        with args.main_process_first(desc="tokenising"):
            self.nli_dataset = None if nli_dataset is None else self.converter.inference(nli_dataset)
        self.max_length = usable_length(ours.encoders.values(), args.max_length, train_dataset)
        for language in config.languages or ():
            tokens = vocab_size_of(ours.encoders[config.encoder_of(language)])
            check_token_ids(self.tokenizers[language], tokens, of=f" of '{language}'")
        if (nli_dataset is None) != (config.nli_labels == 0):
            raise XlsrError(
                "The auxiliary task needs both `nli_dataset` and nli_labels above 0, got only one of them."
            )
        if nli_dataset is not None:
            self.nli_rows = share_of_step("nli_batch_size", args.nli_batch_size, args)
        step = args.per_device_train_batch_size * args.world_size * args.gradient_accumulation_steps
        if 0 < config.queue_size < step:
            raise XlsrError(
                f"`queue_size` must be at least the {step:,} pairs of an optimiser step (batch size x processes x "
                f"micro-batches), got {config.queue_size:,}."
            )
        if config.use_momentum:
            list(ours.momentum_pairs())  # raises for adapters without a counterpart
        if ours is not model:
            ours.reset_momentum()  # each adapter was initialised at random
            ours.freeze_momentum()
        if args.ddp_find_unused_parameters is None:
            # A batch of one language pair leaves the encoders of the other languages without gradient.
            args.ddp_find_unused_parameters = len(ours.encoders) > 2
        if kwargs.get("data_collator") is None:
            kwargs["data_collator"] = self._collator(args)
        self.step_keys = StepKeys()
        super().__init__(model, args, train_dataset=train_dataset, **kwargs)
        self.add_callback(SoundStepCallback(self.step_keys))
        self.add_callback(MomentumCallback(self.step_keys, args.momentum_schedule))
        self.add_callback(MemoryQueueCallback(self.step_keys))
        if args.queue_prefill:
            self.add_callback(QueuePrefillCallback(self))

    def _collator(self, args: Any) -> Any:
        pads = {language: tokenizer.pad_token_id for language, tokenizer in self.tokenizers.items()}
        options = {"max_length": self.max_length, "pad_to_multiple_of": args.padding_multiple}
        pairs = DualCollator(pads, **options)
        return (
            pairs if self.nli_dataset is None else MultiTaskCollator({PAIRS: pairs, NLI: NliCollator(pads, **options)})
        )

    def train_batches(self) -> tuple[Any, Any]:
        if self.nli_dataset is None:
            return super().train_batches()
        options: dict[str, Any] = {"seed": self.args.seed_of_data + 1, "batch_option": "nli_batch_size"}
        # A language has its own encoder.
        options |= {"homogeneous": True, "mixing": "proportional"}
        nli = self.batches(self.nli_dataset, self.nli_rows, **options)
        data = {PAIRS: self.train_dataset, NLI: self.nli_dataset}
        return self.join_tasks(data, {PAIRS: self.batches(self.train_dataset), NLI: nli})

    def compute_loss(
        self,
        model: Any,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: torch.Tensor | int | None = None,
    ) -> Any:
        """The model's loss; the keys wait for the end of the step."""
        prefix = f"{NLI}_"
        batch = {name: value for name, value in inputs.items() if not name.startswith(prefix)}
        if len(batch) < len(inputs):
            batch[NLI] = {name[len(prefix) :]: inputs[name] for name in inputs if name.startswith(prefix)}
        loss, outputs = super().compute_loss(model, batch, True, num_items_in_batch)
        if model.training:
            for side in ("source", "target"):
                parts = getattr(outputs, f"{side}_keys"), batch[f"{side}_texts"], batch["examples"]
                self.step_keys.waiting.append((batch[f"{side}_lang"], *parts))
        return (loss, outputs) if return_outputs else loss

    def live_encoder(self) -> LiveEncoder:
        """The model as an encoder with a route for each language."""
        model = base_model(self.accelerator.unwrap_model(self.model))
        languages = model.config.languages
        tokenizers = {language: self.tokenizers[language] for language in languages}
        shared = languages[0] if SHARED in model.config.encoder_configs else None
        options = {"max_length": self.max_length, "prompts": self.args.prompts, "default_route": shared}
        return LiveEncoder(model, tokenizers, autocast_dtype=self.autocast_dtype, **options)

    def _load_best_model(self) -> None:
        super()._load_best_model()
        model = self.accelerator.unwrap_model(self.model)
        if base_model(model) is not model:
            self._load_extra_state(Path(str(self.state.best_model_checkpoint)), base_model(model))

    def _save(self, output_dir: str | None = None, state_dict: dict[str, Any] | None = None) -> None:
        super()._save(output_dir, state_dict=state_dict)
        folder = Path(output_dir or self.args.output_dir)
        model = self.accelerator.unwrap_model(self.model)
        for language in self.tokenizers if self.args.should_save else ():
            name = base_model(model).config.encoder_of(language)
            self.tokenizers[language].save_pretrained(str(folder / TOKENIZERS / name))
        if base_model(model) is not model and self.args.should_save:
            state = base_model(model).state_dict()
            extra = {name: value.contiguous() for name, value in state.items() if name.startswith(EXTRA_STATE)}
            settings = {name: json.dumps(getattr(base_model(model).config, name)) for name in KEPT_SETTINGS}
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
