"""Fine-tuning on translation: first the decoder, then everything, with BLEU during training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from tqdm.auto import tqdm
from transformers import GenerationConfig, set_seed

from hf_xlsr.data.collators import TranslationCollator, pad_rows
from hf_xlsr.data.conversion import DataConverter
from hf_xlsr.encoders.reading import read_encoder
from hf_xlsr.encoders.stock import check_token_ids, usable_length
from hf_xlsr.evaluation.bleu import sentence_chrf
from hf_xlsr.evaluation.results import Results, measured
from hf_xlsr.evaluation.rows import both_sides, by_pair
from hf_xlsr.export.model_card import MethodFacts
from hf_xlsr.modeling import citations
from hf_xlsr.modeling.hictl.modeling_generation import HictlForConditionalGeneration, sentence_ends
from hf_xlsr.trainers.adapters import base_model
from hf_xlsr.trainers.arguments import XlsrTrainingArguments
from hf_xlsr.trainers.base import XlsrTrainer
from hf_xlsr.trainers.live_encoder import LiveModel, batches_by_length, evaluating
from hf_xlsr.trainers.pretrained import trained_model
from hf_xlsr.utils.errors import XlsrError


@dataclass
class TranslationTrainingArguments(XlsrTrainingArguments):
    """Arguments of `TranslationTrainer`, with the paper's values: 2e-5 at the start, inverse square root decay.

    After the warm-up the rate is `learning_rate * sqrt(timescale / (timescale + step))`; `timescale` is `warmup_steps` if
    set and 10,000 otherwise (`lr_scheduler_kwargs` overrides it). The paper gives no warm-up, batch size or label
    smoothing, for which there is `label_smoothing_factor`.

    Args:
        freeze_encoder: Train the decoder alone: the paper's first step.
        generation_num_beams: Beams with which the saved model translates.
        generation_length_penalty: Length penalty of these beams; above 0 it favours long translations.
    """

    smooths_labels = True
    trains_embeddings = False
    learning_rate: float = field(default=2e-5, metadata={"help": "at the start"})
    lr_scheduler_type: str = field(default="inverse_sqrt", metadata={"help": "of transformers"})
    freeze_encoder: bool = False
    generation_num_beams: int = field(default=5, metadata={"help": "of the saved model, and on the test set"})
    generation_length_penalty: float = field(default=1.0, metadata={"help": "above 0 it favours long translations"})


class LiveTranslator(LiveModel):
    """Translates with the current weights."""

    @torch.no_grad()
    def translate(
        self, sentences: Sequence[str], *, batch_size: int = 32, num_beams: int = 1, **options: Any
    ) -> list[str]:
        """A translation of each sentence, in the given order; `options` are those of `generate`."""
        if not sentences:
            return []

        ids = self.tokenizer(
            list(sentences),
            truncation=True,
            max_length=self.max_length,
            return_attention_mask=False,
            verbose=False,
        )["input_ids"]

        result = [""] * len(ids)
        with (
            evaluating(self.model, self.autocast_dtype) as device,
            tqdm(total=len(ids), desc="translating", disable=not self.progress) as bar,
        ):
            for numbers in batches_by_length(ids, batch_size):
                batch, mask = pad_rows([ids[number] for number in numbers], self.tokenizer.pad_token_id)
                generated = self.model.generate(
                    input_ids=torch.from_numpy(batch).to(device),
                    attention_mask=torch.from_numpy(mask).to(device),
                    max_length=self.max_length,
                    num_beams=num_beams,
                    **options,
                )
                texts = self.tokenizer.batch_decode(generated, skip_special_tokens=True)
                for number, text in zip(numbers, texts, strict=True):
                    result[number] = text.strip()
                bar.update(len(numbers))

        return result


class TranslationTrainer(XlsrTrainer):
    """`XlsrTrainer` for `HictlForConditionalGeneration`.

    The loss of a step is the mean over all its target tokens in all micro-batches and processes, whose numbers do not
    change it. `evaluate` passes a `LiveTranslator` to the evaluations. `docs/translate.md` has a complete script.

    Args:
        model: `HictlForConditionalGeneration`, or one in a PEFT wrapper; or, for a new decoder, an encoder in any form
            that `hf_xlsr.encoders.reading.read_encoder` takes.
        args: `TranslationTrainingArguments`.
        train_dataset: Translation pairs, source to target, see `DataConverter.pairs`; step one uses all language pairs
            together.
        processing_class: The encoder's tokenizer; by default that of its place.
        guards: Translation pairs by name, or paths: mean chrF of the sentences, translated with one beam.
    """

    method = MethodFacts(
        citations.HICTL_PAPER,
        citations.HICTL,
        template="card_task.md.jinja",
        tags=("translation", "cross-lingual"),
        task="translation",
        library="transformers",
        settings=("decoder_layers", "word_similarity", "logits_chunk_size"),
    )
    contrast = False

    def make_model(self, model: Any, rows: Mapping[str, Any], processing_class: Any) -> tuple[Any, Any]:
        """The model, or a new decoder on a given encoder."""
        own = trained_model(HictlForConditionalGeneration, model, processing_class)
        if own is not None:
            model, tokenizer = own
        else:
            read = read_encoder(model)
            tokenizer = processing_class or read.single().required_tokenizer()
            set_seed(self.args.seed)
            model = HictlForConditionalGeneration.from_encoder(read, tokenizer=tokenizer)
        _check_tokenizer(base_model(model), tokenizer)
        if self.args.freeze_encoder:
            base_model(model).freeze_encoder()
        return model, tokenizer

    def make_converter(self, model: Any, rows: Mapping[str, Any]) -> DataConverter:
        """Without prompts, which a translation does not have."""
        own_length = self.tokenizers.model_max_length
        self.max_length = usable_length([model.encoder, model.decoder], own_length, self.args.max_length)
        model.generation_config = self._generation_config(model)
        return DataConverter(self.tokenizers, max_length=self.max_length, num_proc=self.args.num_proc)

    def _generation_config(self, model: Any) -> GenerationConfig:
        """How users of the saved model translate."""
        given = model.generation_config
        new_config: Any = GenerationConfig  # untyped
        config: GenerationConfig = new_config(
            bos_token_id=given.bos_token_id,
            eos_token_id=given.eos_token_id,
            pad_token_id=given.pad_token_id,
            num_beams=self.args.generation_num_beams,
            length_penalty=self.args.generation_length_penalty,
            max_length=self.max_length,
        )
        return config

    def make_collator(self, model: Any) -> TranslationCollator:
        """Pads sources and targets."""
        return TranslationCollator(self.tokenizers.pad_token_id, **self.padding(self.args))

    def compute_loss(
        self,
        model: Any,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: torch.Tensor | int | None = None,
    ) -> Any:
        """The model's loss, of which each process computes its part."""
        smoothing = self.args.label_smoothing_factor
        batch = {**inputs, "label_smoothing": smoothing, "num_items_in_batch": num_items_in_batch}
        loss, outputs = super().compute_loss(model, batch, True, num_items_in_batch)
        if num_items_in_batch is not None and self.args.average_tokens_across_devices:
            loss = loss * self.accelerator.num_processes  # the processes' gradients are averaged, but these are shares
        return (loss, outputs) if return_outputs else loss

    def measure_guard(self, encoder: Any, name: str, rows: Any) -> Results:
        """Mean chrF of the sentences of each language pair, translated with one beam."""
        results = Results()
        for languages, pair_rows in by_pair(rows).items():
            sources, references = both_sides(pair_rows)
            scores = sentence_chrf(encoder.translate(sources), references)
            results |= measured(name, "chrf", languages, "guard", {"sentences": len(scores)}, {"chrf": scores})
        return results

    def live_encoder(self) -> Any:
        return LiveTranslator(
            self.accelerator.unwrap_model(self.model),
            self.processing_class,
            max_length=self.max_length,
            autocast_dtype=self.autocast_dtype,
        )


def _check_tokenizer(model: Any, tokenizer: Any) -> None:
    config = model.config.get_text_config()
    check_token_ids(tokenizer, config.vocab_size)
    ends = sentence_ends(tokenizer)
    model_ends = (config.bos_token_id, config.eos_token_id)
    if ends != model_ends:
        raise XlsrError(
            f"The tokenizer's first and last special tokens must be {model_ends}, as in the model, got {ends}. Give "
            "HictlForConditionalGeneration.from_encoder this tokenizer."
        )
