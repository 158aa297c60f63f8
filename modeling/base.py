"""Base classes of the models."""

from __future__ import annotations

import copy
import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.utils.generic import ModelOutput

from hf_xlsr.encoders.assembly import EncoderPart, SentenceEncoder
from hf_xlsr.encoders.heads import HeadConfig, build_head, head_config, run_head
from hf_xlsr.encoders.reading import read_encoder
from hf_xlsr.encoders.stock import encoder_from_config, one_sided, resized_bias, set_dropout
from hf_xlsr.modeling.heads import LmHead, TokenBias
from hf_xlsr.utils.auto_classes import hub_options, load_auto
from hf_xlsr.utils.errors import XlsrError
from hf_xlsr.utils.model_sizes import check_model_sizes, stored_shapes

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

logger = logging.getLogger(__name__)


@dataclass
class PairOutput(ModelOutput):
    """What the models of sentence pairs return.

    `losses` are the parts of the loss before weighting, `statistics` other numbers to log; each model names them. The
    embeddings are those of both sides, `(batch, width)`; dual momentum contrast also has keys, without gradient.
    """

    loss: torch.Tensor | None = None
    losses: dict[str, torch.Tensor] | None = None
    statistics: dict[str, torch.Tensor] | None = None
    source_embeds: torch.Tensor | None = None
    target_embeds: torch.Tensor | None = None
    source_keys: torch.Tensor | None = None
    target_keys: torch.Tensor | None = None


class XlsrPreTrainedModel(PreTrainedModel):
    """A model on stock encoders. It loads safetensors only, onto a single device.

    Losses use the embedding table outside of the encoder's forward pass, so all parts must be on one device. Models of
    sentence pairs share these inputs of `forward`:

    - `negative_input_ids` and `negative_attention_mask`: hard negatives of the whole batch in the language of the
      targets, `(negatives, negative_length)`. Their number may differ between processes.
    - `matryoshka_dims`: widths of truncated embeddings in contrastive losses, see `matryoshka_mean`.
    - `cache_batch_size`: sentences encoded at a time, with the gradient cache, see `encode_in_chunks`.
    - `masked_tokens`: mean number of masked tokens of a micro-batch and process in the optimiser step.
    - `return_loss`: False returns embeddings only.
    """

    base_model_prefix = "encoder"
    main_input_name = "input_ids"
    supports_gradient_checkpointing = True
    accepts_loss_kwargs = False  # the loss is a mean over the batch; Trainer must not rescale it
    _supports_sdpa = True
    _supports_flash_attn = True
    _supports_flex_attn = True
    encoder: Any
    reads_whole_table = True
    """Whether training reads the table of token embeddings by more than the ids of texts, as a language model does."""

    given_tokenizer: Any = None
    """The tokenizer of the encoder that the model was made from, or those of its encoders by name; it is not saved."""

    @classmethod
    def from_pretrained(cls, path: Any, *args: Any, **options: Any) -> Any:  # type: ignore[override]  # they pass through
        """As `PreTrainedModel.from_pretrained`, but pickled weights load only with `use_safetensors=False`.

        Raises:
            XlsrError: The configuration describes a larger model than the stored weights.
        """
        options.setdefault("use_safetensors", True)
        where = hub_options(options)
        config = options.get("config")
        if not isinstance(config, PreTrainedConfig):
            config = load_auto(cls.config_class, path if config is None else config, **where)
        check_model_sizes(cls, config, f"'{path}'", stored_shapes(str(path), **where))
        return super().from_pretrained(path, *args, **options)

    def starting_weights(self, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """The weights to start training from, of those of another model that have a name of this one."""
        return tensors

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)  # type: ignore[no-untyped-call]
        initialize: Any = getattr(module, "initialize", None)  # of modules of this package
        if initialize is not None:
            initialize()

    def post_init(self) -> None:
        """As `PreTrainedModel.post_init`, with a type."""
        super().post_init()  # type: ignore[no-untyped-call]

    def encoder_name(self, language: str) -> str:
        """The name of the encoder of a language in `trained_encoders`."""
        return ""

    def trained_encoders(self) -> dict[str, list[Any]]:
        """The encoders by name, each followed by its momentum copy, if it has one."""
        return {"": [self.encoder]}

    def get_input_embeddings(self) -> nn.Embedding:
        table: nn.Embedding = self.encoder.get_input_embeddings()
        return table

    def set_input_embeddings(self, value: nn.Module) -> None:
        self.encoder.set_input_embeddings(value)

    def resize_token_embeddings(
        self,
        new_num_tokens: int | None = None,
        pad_to_multiple_of: int | None = None,
        mean_resizing: bool = True,
    ) -> nn.Embedding:
        """Resizes the embeddings and the biases of their tokens, whose new entries are 0."""
        embeddings = super().resize_token_embeddings(new_num_tokens, pad_to_multiple_of, mean_resizing)
        for module in self.modules():
            if isinstance(module, TokenBias):
                module.bias = resized_bias(module.bias, embeddings.num_embeddings)
        return embeddings


class SentenceEncoderModel(XlsrPreTrainedModel):
    """A model that trains one encoder of sentences: a stock encoder as `encoder`, and the modules behind it as `head`.

    The head's modules are those of sentence-transformers, and the configuration stores them with prompts and the other
    settings, so that what is trained, measured and exported is the same encoder. Subclasses add their parts, and call
    `post_init`.

    Args:
        config: The model's configuration.
        given: An encoder with its head; by default new ones of the configuration.
    """

    config: Any
    head: Any
    derived_weights: tuple[str, ...] = ()
    """Prefixes of the weights that loading computes from others where they are missing."""

    prompt_length = 0
    """Tokens of the prompt in each row of a batch, which a pooling with `include_prompt: false` leaves out."""

    def __init__(self, config: Any, given: EncoderPart | None = None) -> None:
        super().__init__(config)
        config.fill_in_head()
        if given is None:
            self.encoder = encoder_from_config(config.get_text_config(), attn_implementation=attention_of(config))
            self.head = build_head(config.head)
        else:
            self.encoder = given.encoder
            self.head = adopted_head(config.head, given.head)
        self.head.requires_grad_(config.train_head)

    @classmethod
    def from_encoder(cls, encoder: Any, *, dropout: Dropout = None, **options: Any) -> Any:
        """A model on a pretrained encoder, with its head, prompts and other settings.

        Args:
            encoder: Anything that `hf_xlsr.encoders.reading.read_encoder` reads: a folder, Hub id or object.
            dropout: On states and attention, or by the names of configurations; by default the encoder's.
            **options: Values of the configuration, such as `pooling`.
        """
        read = read_encoder(encoder, "encoder")
        part = read.single("encoder")
        part = replace(part, encoder=with_dropout(part.encoder, dropout))

        values = {
            **config_of_encoder(part.encoder),
            "head": None if part.head is None else head_config(part.head),
            "transformer_options": part.options,
            "encoder_settings": read.settings.to_dict(),
        }
        config_class: Any = cls.config_class
        model = cls(config_class(**{**values, **options}), part)
        model.given_tokenizer = part.tokenizer
        model.adopt(read)
        return model

    def adopt(self, read: SentenceEncoder) -> None:
        """Takes more from the place of the encoder than its weights; nothing by default."""

    @classmethod
    def from_pretrained(cls, path: Any, *args: Any, **options: Any) -> Any:  # type: ignore[override]  # they pass through
        """As `PreTrainedModel.from_pretrained`. A frozen head stays frozen."""
        loaded = super().from_pretrained(path, *args, **options)
        model = loaded[0] if isinstance(loaded, tuple) else loaded
        model.head.requires_grad_(model.config.train_head)  # loading makes every parameter trainable
        return loaded

    def get_output_embeddings(self) -> None:
        """None: the decoder of a masked-LM head is the embedding table, which counts once."""

    def embed_states(
        self, states: torch.Tensor, input_ids: torch.Tensor, attention_mask: torch.Tensor, *, normalize: bool = False
    ) -> torch.Tensor:
        """The head's embeddings of encoded sentences, `(batch, width)`, float32; see `run_head`."""
        features = head_inputs(states, input_ids, attention_mask, self.prompt_length)
        return run_head(self.head, features, normalize=normalize)

    def sentence_encoder(self, tokenizer: Any) -> SentenceEncoder:
        """The encoder in training, its head and settings, which are not copied."""
        part = EncoderPart(self.encoder, tokenizer, list(self.head), dict(self.config.transformer_options or {}))
        return SentenceEncoder({"": part}, self.config.settings)

    def to_sentence_transformer(self, tokenizer: Any) -> SentenceTransformer:
        """A copy of the encoder as a stock sentence-transformers model, on the CPU in float32."""
        return self.sentence_encoder(tokenizer).detached().assemble()


class EncoderWithLmHead(SentenceEncoderModel):
    """A sentence encoder with a masked-LM head tied to its embeddings, or None, as `lm_head`.

    Subclasses set `lm_head` by `make_lm_head` and call `post_init`.
    """

    lm_head: LmHead | None

    def make_lm_head(self) -> LmHead:
        """A new head with the encoder's width, vocabulary and activation."""
        text_config = self.config.get_text_config()
        eps = getattr(text_config, "norm_eps", 1e-12)
        return LmHead(
            text_config.hidden_size,
            text_config.vocab_size,
            activation=getattr(text_config, "hidden_act", "gelu"),
            eps=getattr(text_config, "layer_norm_eps", eps),
        )

    def adopt(self, read: SentenceEncoder) -> None:
        """Loads the masked-LM head of the encoder's place, if it has one; refuses encoders that cannot predict masks."""
        model = type(self).__name__
        kind = type(self.encoder).__name__
        tokenizer = read.single("encoder").tokenizer
        reading = one_sided(self.encoder)
        if reading:
            raise XlsrError(
                f"{model} needs an encoder that reads both sides of a masked token, got {kind}, {reading}."
            )
        if tokenizer is not None and tokenizer.mask_token_id is None:
            raise XlsrError(f"{model} needs a tokenizer with a mask token, and that of this {kind} has none.")

        if self.lm_head is None or not read.origin:
            return
        if not self.lm_head.load_pretrained(read.origin):
            logger.warning("'%s' has no masked-LM head of a known form; this model's head is new.", read.origin)


def attention_of(config: Any) -> str | None:
    """The attention implementation that a configuration names; transformers has no public name for it."""
    implementation: str | None = config._attn_implementation  # noqa: SLF001
    return implementation


Dropout = float | Mapping[str, float] | None
"""Dropout on states and attention: one for all, by the names of configurations, or the encoder's own."""


def with_dropout(encoder: Any, dropout: Dropout) -> Any:
    """An encoder with another dropout; the same object if it has that dropout already.

    Layers read their dropout when they are made, and some leave it out where it is 0.
    """
    config = copy.deepcopy(encoder.config)
    if isinstance(dropout, Mapping):
        for name, value in dropout.items():
            setattr(config, name, value)
    else:
        set_dropout(config, dropout)
    if config.to_dict() == encoder.config.to_dict():
        return encoder

    with torch.random.fork_rng(devices=[]):
        changed = encoder_from_config(config, attn_implementation=attention_of(encoder.config))
    changed.load_state_dict(encoder.state_dict())
    return changed


def head_inputs(
    states: torch.Tensor, input_ids: torch.Tensor, attention_mask: torch.Tensor, prompt_length: int = 0
) -> dict[str, Any]:
    """The features of sentence-transformers that a head reads."""
    features: dict[str, Any] = {
        "token_embeddings": states,
        "input_ids": input_ids,
        "attention_mask": attention_mask,
    }
    if prompt_length:
        features["prompt_length"] = prompt_length
    return features


def zero_of(module: nn.Module) -> torch.Tensor | float:
    """0, for a loss that does not use a module: DDP waits for a gradient of each of its parameters."""
    return 0.0 * sum(parameter.sum() for parameter in module.parameters())


def adopted_head(config: HeadConfig, given: list[nn.Module] | None) -> nn.ModuleList:
    """The head of a configuration, with the weights of the given modules that are a part of it.

    A configuration may have another pooling than the given head, or more or less at its end.
    """
    head = build_head(config)
    waiting = [module for module in given or () if list(module.parameters())]
    for module in head:
        if not waiting or head_config([module]) != head_config(waiting[:1]):
            continue
        module.load_state_dict(waiting.pop(0).state_dict())
        submodule: Any
        for submodule in module.modules():
            submodule._is_hf_initialized = True  # noqa: SLF001  # else `post_init` draws it anew
    return head


def config_of_encoder(encoder: Any) -> dict[str, Any]:
    """Values of a configuration for a loaded encoder, whose attention a new configuration would reset."""
    return {"text_config": encoder.config, "attn_implementation": attention_of(encoder.config)}
