"""Dual momentum contrast: an encoder, a momentum encoder and a memory queue for each language."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import nn
from torch.nn.functional import normalize
from transformers.utils.generic import can_return_tuple

from hf_xlsr.encoders.assembly import EncoderPart, SentenceEncoder
from hf_xlsr.encoders.heads import head_config, run_head
from hf_xlsr.encoders.reading import read_encoder
from hf_xlsr.encoders.stock import encoder_from_config
from hf_xlsr.losses.combination import weighted_sum
from hf_xlsr.modeling.base import (
    PairOutput,
    XlsrPreTrainedModel,
    adopted_head,
    attention_of,
    head_inputs,
    with_dropout,
)
from hf_xlsr.modeling.encoding import Encode, encode_by_length, encode_negatives, full_mask
from hf_xlsr.modeling.heads import NliHead
from hf_xlsr.modeling.memory_queue import MemoryQueue
from hf_xlsr.utils.auto_classes import load_auto
from hf_xlsr.utils.distributed import gather_ragged
from hf_xlsr.utils.errors import XlsrError

from .configuration_dual_momentum import SHARED, DualMomentumConfig, check_same
from .contrast import direction_loss, momentum_pairs, update_averages

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

MOMENTUM = ("momentum_encoders.", "momentum_heads.")
"""Prefixes of the weights that are copies of others at the start."""


class DualMomentumModel(XlsrPreTrainedModel):
    """MoCo-BERT (Wang et al., 2021): language-specific encoders aligned by contrast with two memory queues.

    A batch contains sentence pairs of one language pair. The base encoder of a side's language computes the queries, its
    momentum encoder the keys. With `h` the unit vectors, `y_0` the translation and `y_1 .. y_K` the queue,

    ```math
    L(x, y) = -\\log \\frac{\\exp(h_x \\cdot h_{y_0} / \\tau)}{\\sum_{i=0}^K \\exp(h_x \\cdot h_{y_i} / \\tau)}
    ```

    (equation 2), and the loss is `L(x, y) + L(y, x)` (equation 3). `forward` has no side effects: the trainer's
    callbacks call `momentum_update` (equation 1) and `enqueue` once per optimiser step. In evaluation mode the loss is
    that of the batch alone: the base encoders compute the keys, and the other pairs of the batch are the negatives.

    In the `PairOutput`, `losses` are the parts of equation 3, or 5 with the auxiliary task: `source_to_target`,
    `target_to_source`, `nli`. `statistics` are `queue/filled` (share of the rows), `queue/stale` and `queue/duplicates`:
    the shares of queries whose own translation, or an exact copy of it from another pair, is in the queue. Embeddings and
    keys are unit vectors. `given` are pretrained encoders with their heads by name, by default new ones of the
    configuration.

    Examples:
        >>> from hf_xlsr.modeling.dual_momentum import DualMomentumConfig
        >>> small = {"model_type": "bert", "vocab_size": 30, "hidden_size": 8, "num_hidden_layers": 1,
        ...          "num_attention_heads": 2, "intermediate_size": 16, "max_position_embeddings": 16}
        >>> encoders = {"en": small, "zh": small}
        >>> model = DualMomentumModel(DualMomentumConfig(languages=["en", "zh"], encoder_configs=encoders, queue_size=8))
        >>> ids = torch.tensor([[3, 4], [5, 6]])
        >>> mask = torch.ones_like(ids)
        >>> numbers = {  # of the texts and pairs: equal texts are no negatives of each other
        ...     "source_texts": torch.tensor([1, 2]),
        ...     "target_texts": torch.tensor([3, 4]),
        ...     "examples": torch.tensor([0, 1]),
        ... }
        >>> output = model(ids, mask, ids + 4, mask, source_lang="en", target_lang="zh", **numbers)
        >>> bool(output.loss > 0)  # nothing is in the queues yet, but the batch has negatives
        True
        >>> model.enqueue("zh", output.target_keys, numbers["target_texts"], numbers["examples"])
        >>> model.queues["zh"].count
        2
    """

    config: DualMomentumConfig
    config_class = DualMomentumConfig
    base_model_prefix = ""
    main_input_name = "source_input_ids"
    reads_whole_table = False
    # A bfloat16 average would not move: a thousandth of a step is below its precision.
    _keep_in_fp32_modules_strict = ["momentum_encoders", "momentum_heads"]
    derived_weights = (*MOMENTUM, "queues.")

    def __init__(self, config: DualMomentumConfig, given: Mapping[str, EncoderPart] | None = None) -> None:
        super().__init__(config)
        config.fill_in_heads()

        self.encoders: Any = nn.ModuleDict()
        self.heads: Any = nn.ModuleDict()
        for name, encoder_config in config.encoder_configs.items():
            if given is None:
                self.encoders[name] = encoder_from_config(encoder_config, attn_implementation=attention_of(config))
            else:
                self.encoders[name] = given[name].encoder
        for name, head_values in (config.heads or {}).items():
            self.heads[name] = adopted_head(head_values, given[name].head if given else None)
        self.heads.requires_grad_(config.train_head)

        self.nli_head: Any = None
        if config.nli_labels:
            self.nli_head = NliHead(config.hidden_size, config.nli_hidden_size, config.nli_labels, config.nli_dropout)

        self.momentum_encoders = nn.ModuleDict()
        self.momentum_heads = nn.ModuleDict()
        if config.use_momentum:
            self.momentum_encoders = copy.deepcopy(self.encoders)
            self.momentum_heads = copy.deepcopy(self.heads)

        self.queues: Any = nn.ModuleDict()
        if config.queue_size:
            for language in config.languages:
                self.queues[language] = MemoryQueue(config.queue_size, config.hidden_size, config.queue_storage)

        # Tokens of the prompt by encoder, which a pooling with `include_prompt: false` leaves out.
        self.prompt_lengths: dict[str, int] = {}
        self.post_init()
        self.reset_momentum()  # post_init initialised new heads and their copies differently
        self.freeze_momentum()

    @classmethod
    def from_encoders(cls, encoders: Any, *, dropout: float | None = None, **options: Any) -> DualMomentumModel:
        """A model on pretrained encoders, with their heads, prompts and other settings.

        Args:
            encoders: A mapping from language to encoder; a model with a route for each language; or one encoder that all
                `languages` share. See `hf_xlsr.encoders.reading.read_encoder` for what an encoder may be.
            dropout: Of all encoders, 0.1 in the paper; by default the encoders' own.
            **options: Values of `DualMomentumConfig`, such as `queue_size`; a shared encoder needs `languages`.
        """
        read = read_encoder(encoders, "encoders")
        parts: dict[str, EncoderPart] = {}
        heads: dict[str, Any] = {}
        for route, part in read.parts.items():
            name = route or SHARED
            parts[name] = replace(part, encoder=with_dropout(part.encoder, dropout))
            if part.head is not None:
                heads[name] = head_config(part.head)

        values: dict[str, Any] = {
            "languages": list(parts),
            "encoder_configs": {name: part.encoder.config for name, part in parts.items()},
            "heads": heads,
            "transformer_options": {name: part.options for name, part in parts.items()},
            "encoder_settings": read.settings.to_dict(),
        }
        model = cls(DualMomentumConfig(**{**values, **options}), parts)
        model.given_tokenizer = {name: part.tokenizer for name, part in parts.items()}
        return model

    @classmethod
    def from_pretrained(  # type: ignore[override]  # the options pass through
        cls, path: Any, *args: Any, output_loading_info: bool = False, **kwargs: Any
    ) -> Any:
        """As `PreTrainedModel.from_pretrained`. Missing momentum encoders start as copies; all of them are frozen."""
        try:
            loaded: Any = super().from_pretrained(path, *args, output_loading_info=True, **kwargs)
        except RuntimeError as error:
            if "mismatch" in str(error):  # of the sizes of tensors
                check_queues(str(path), kwargs.get("config") or kwargs)
            raise

        model, info = loaded
        missing = set(info["missing_keys"])
        queue_names = {f"queues.{name}" for name in model.queues.state_dict()}
        if queue_names - missing:
            check_queues(str(path), model.config)  # a float32 queue would read int8 numbers as keys
        if any(name.startswith(MOMENTUM) for name in missing):
            model.reset_momentum()
        model.freeze_momentum()  # loading makes every parameter trainable
        model.heads.requires_grad_(model.config.train_head)
        return (model, info) if output_loading_info else model

    def encoder_name(self, language: str) -> str:
        return self.config.encoder_of(language)

    def trained_encoders(self) -> dict[str, list[Any]]:
        encoders = {name: [encoder] for name, encoder in self.encoders.items()}
        for name, average in self.momentum_encoders.items():
            encoders[name].append(average)
        return encoders

    def get_input_embeddings(self) -> nn.Embedding:
        """The embeddings of the first encoder."""
        table: nn.Embedding = next(iter(self.encoders.values())).get_input_embeddings()
        return table

    def resize_token_embeddings(
        self, new_num_tokens: int | None = None, *args: Any, language: str | None = None, **kwargs: Any
    ) -> Any:
        """Resizes the embeddings of one encoder and of its momentum copy, and returns them.

        Without a `language` those of all encoders, which must have one size, and returns the first.
        """
        names = list(self.encoders) if language is None else [self.config.encoder_of(language)]
        sizes = {name: self.encoders[name].get_input_embeddings().num_embeddings for name in names}
        if len(set(sizes.values())) > 1:
            raise XlsrError(
                f"`language` must be one of {', '.join(names)}: their vocabularies have the sizes {sizes}."
            )
        tables = [self._resize(name, new_num_tokens, *args, **kwargs) for name in names]
        return tables[0]

    def _resize(self, name: str, new_num_tokens: int | None, *args: Any, **kwargs: Any) -> Any:
        resized = self.encoders[name].resize_token_embeddings(new_num_tokens, *args, **kwargs)

        if self.config.use_momentum:
            average: Any = self.momentum_encoders[name]
            old_size = average.get_input_embeddings().num_embeddings
            table = average.resize_token_embeddings(new_num_tokens, *args, **kwargs)
            with torch.no_grad():
                # New rows were drawn at random, for each table anew.
                table.weight[old_size:] = resized.weight[old_size:].to(table.weight)
            self.freeze_momentum()

        self.config.encoder_configs[name].vocab_size = resized.num_embeddings
        return resized

    def freeze_momentum(self) -> None:
        """Makes the optimiser leave the momentum encoders alone."""
        self.momentum_encoders.requires_grad_(False)
        self.momentum_heads.requires_grad_(False)

    def train(self, mode: bool = True) -> DualMomentumModel:
        """Sets the mode; momentum encoders stay in evaluation mode."""
        super().train(mode)
        self.momentum_encoders.eval()
        self.momentum_heads.eval()
        return self

    def momentum_pairs(self) -> Iterator[tuple[nn.Parameter, nn.Parameter]]:
        """Pairs of a trained base parameter and its momentum counterpart, matched by name."""
        yield from momentum_pairs(self.encoders, self.momentum_encoders)
        yield from momentum_pairs(self.heads, self.momentum_heads)

    def starting_weights(self, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """The weights of another model to start training from.

        A queue of another size or storage is dropped as a whole. Encoders and heads also initialise missing momentum
        copies.
        """
        state = self.state_dict()
        weights = dict(tensors)
        for name, value in tensors.items():
            momentum_name = f"momentum_{name}"  # of encoders and heads
            if momentum_name in state:
                weights.setdefault(momentum_name, value)

        for language, queue in self.queues.items():
            names = [f"queues.{language}.{name}" for name in queue.state_dict()]
            if any(_form(state[name]) != _form(tensors.get(name)) for name in names):
                for name in names:
                    weights.pop(name, None)
        return weights

    @torch.no_grad()
    def reset_momentum(self) -> None:
        """Makes the momentum encoders copies of the base encoders."""
        if self.config.use_momentum:
            self.momentum_encoders.load_state_dict(self.encoders.state_dict())
            self.momentum_heads.load_state_dict(self.heads.state_dict())

    def momentum_update(self) -> None:
        """Equation 1: `momentum * average + (1 - momentum) * base` for each momentum parameter."""
        if self.config.use_momentum:
            update_averages(self.momentum_pairs(), self.config.momentum)

    def enqueue(self, language: str, keys: torch.Tensor, texts: torch.Tensor, examples: torch.Tensor) -> None:
        """Adds keys to the queue of a language; see `MemoryQueue.enqueue`."""
        if language in self.queues:
            self.queues[language].enqueue(keys, texts, examples)

    def _queue(self, language: str) -> MemoryQueue | None:
        """The queue of a language, if there are queues; torch.compile does not see one in a `dict` of the modules."""
        return cast(MemoryQueue, self.queues[language]) if language in self.queues else None

    def encode_sentences(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor | None = None, *, language: str, keys: bool = False
    ) -> torch.Tensor:
        """Unit sentence embeddings `h`, `(batch, width)`, float32; with `keys` those of the momentum encoder."""
        name = self.config.encoder_of(language)
        encoder = self.encoders[name]
        head = self.heads[name]
        if keys and self.config.use_momentum:
            encoder = self.momentum_encoders[name]
            head = self.momentum_heads[name]

        mask = full_mask(input_ids, attention_mask)
        states = encoder(input_ids=input_ids, attention_mask=mask).last_hidden_state
        features = head_inputs(states, input_ids, mask, self.prompt_lengths.get(name, 0))
        return normalize(run_head(head, features), dim=-1)

    @can_return_tuple  # type: ignore[untyped-decorator]
    def forward(
        self,
        source_input_ids: torch.Tensor,
        source_attention_mask: torch.Tensor,
        target_input_ids: torch.Tensor,
        target_attention_mask: torch.Tensor,
        source_lang: str,
        target_lang: str,
        source_texts: torch.Tensor | None = None,
        target_texts: torch.Tensor | None = None,
        examples: torch.Tensor | None = None,
        negative_input_ids: torch.Tensor | None = None,
        negative_attention_mask: torch.Tensor | None = None,
        negative_texts: torch.Tensor | None = None,
        nli: Mapping[str, Any] | None = None,
        matryoshka_dims: Sequence[int] | None = None,
        cache_batch_size: int | None = None,
        return_loss: bool = True,
    ) -> PairOutput:
        """Encodes a batch of pairs and computes equation 3 or 5.

        Keys of hard negatives are further candidates of all sources, and do not enter the queues. For inputs that are
        not listed see `XlsrPreTrainedModel`.

        Args:
            source_input_ids: `(batch, length)`.
            source_attention_mask: 0 for padding.
            target_input_ids: Translations, in the same order.
            target_attention_mask: Likewise.
            source_lang: Language of all sources.
            target_lang: Language of all targets.
            source_texts: Hashes of the texts, `(batch,)` int64; masks and their statistics need them and `examples`.
            target_texts: Likewise.
            examples: Numbers of the pairs, `(batch,)` int64.
            negative_texts: Hashes of the hard negatives' texts, `(negatives,)` int64. With `target_texts`, a negative
                that is a source's own translation does not count for it.
            nli: A batch of the auxiliary task, see `NliHead.loss`, and its language, `lang`.
        """
        source_batch = (source_input_ids, source_attention_mask)
        target_batch = (target_input_ids, target_attention_mask)

        def encode(language: str, *, keys: bool = False) -> Encode:
            encode = partial(self.encode_sentences, language=language, keys=keys)
            return encode_by_length(encode, cache_batch_size) if cache_batch_size else encode

        source = encode(source_lang)(*source_batch)
        target = encode(target_lang)(*target_batch)
        if not return_loss:
            return PairOutput(source_embeds=source, target_embeds=target)

        # Evaluation measures the encoders, and not how far the momentum encoders and queues have come.
        momentum = self.config.use_momentum and self.training
        source_keys = source.detach()
        target_keys = target.detach()
        with torch.no_grad():
            if momentum:
                source_keys = encode(source_lang, keys=True)(*source_batch)
                target_keys = encode(target_lang, keys=True)(*target_batch)
            encode_keys = encode(target_lang, keys=momentum)
            negatives = encode_negatives(encode_keys, target_batch, negative_input_ids, negative_attention_mask)
        if negatives is not None and target_texts is not None:
            negative_texts = gather_ragged(target_texts[:0] if negative_texts is None else negative_texts)

        in_batch = self.config.in_batch_negatives or not self.training
        source_queue = self._queue(source_lang) if self.training else None
        target_queue = self._queue(target_lang) if self.training else None
        direction = partial(direction_loss, self.config, matryoshka_dims=matryoshka_dims, in_batch=in_batch)
        source_loss, source_statistics = direction(
            source, target_keys, target_queue, target_texts, examples, negatives, negative_texts
        )
        target_loss, target_statistics = direction(target, source_keys, source_queue, source_texts, examples)
        losses = {"source_to_target": source_loss, "target_to_source": target_loss}
        if nli is not None:
            losses["nli"], _ = self.nli_head.loss(encode(nli["lang"]), nli)

        weights = {"source_to_target": 1.0, "target_to_source": 1.0, "nli": self.config.nli_weight}
        return PairOutput(
            loss=weighted_sum(losses, weights),
            losses=losses,
            statistics={name: (value + target_statistics[name]) / 2 for name, value in source_statistics.items()},
            source_embeds=source,
            target_embeds=target,
            source_keys=source_keys,
            target_keys=target_keys,
        )

    def sentence_encoder(self, tokenizers: Any) -> SentenceEncoder:
        """The encoders in training with heads and settings, one route per language; a shared encoder has no route.

        `tokenizers` are by language or by the name of the encoder, or one for a shared encoder.
        """
        config = self.config
        stored_options = config.transformer_options or {}
        routes: dict[str, EncoderPart] = {}
        for language in config.languages:
            name = config.encoder_of(language)
            tokenizer = tokenizers
            if isinstance(tokenizers, Mapping):
                tokenizer = tokenizers[language] if language in tokenizers else tokenizers.get(name)
            options = dict(stored_options.get(name) or {})
            routes[language] = EncoderPart(self.encoders[name], tokenizer, list(self.heads[name]), options)

        one_tokenizer = len({id(part.tokenizer) for part in routes.values()}) == 1
        if SHARED in self.encoders and one_tokenizer:
            routes = {"": next(iter(routes.values()))}
        return SentenceEncoder(routes, config.settings)

    def to_sentence_transformer(self, tokenizers: Any) -> SentenceTransformer:
        """A copy of the encoders as a stock sentence-transformers model; for routes see `sentence_encoder`."""
        return self.sentence_encoder(tokenizers).detached().assemble()


def check_queues(path: str, expected: Any) -> None:
    """Checks that saved queues have the size, storage and width of a configuration."""
    stored = load_auto(DualMomentumConfig, path)
    names = ("queue_size", "queue_storage", "projection_dim")
    check_same(path, {name: getattr(stored, name) for name in names}, expected)


def _form(tensor: torch.Tensor | None) -> tuple[torch.Size, torch.dtype] | None:
    """Shape and type of a tensor; None for none."""
    return None if tensor is None else (tensor.shape, tensor.dtype)
