"""Exported sentence encoders for `AutoModel`: the source that `remote_code` writes into an export, pooling included."""

from __future__ import annotations

import copy
import os
from collections.abc import Mapping
from typing import Any

import torch
from safetensors.torch import load_file
from torch import nn
from transformers import MODEL_MAPPING, AutoConfig, PreTrainedConfig, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutputWithPooling
from transformers.utils import cached_file
from transformers.utils.generic import can_return_tuple

from hf_xlsr.encoders.stock import encoder_from_config
from hf_xlsr.modeling.cmlm.projections import SentenceProjections
from hf_xlsr.utils.pooling import normalize, pool

# What of the options of `from_pretrained` says where files come from.
HUB_OPTIONS = ("revision", "token", "cache_dir", "local_files_only", "force_download", "proxies")


class SentenceEncoder(PreTrainedModel):
    """A stock encoder that gives sentence vectors as `pooler_output`, as the sentence-transformers export does.

    `config.sentence_encoder` says how: `pooling` (mean, max or cls), `normalize` (unit vectors), and `projection`, None
    or a mapping with `kind` `linear` or `mean` (of CMLM's projections), its sizes and `folder`, which holds its weights.

    Args:
        config: Of the encoder, with `sentence_encoder`.
        add_pooling_layer: Without effect; sentence-transformers hands it on to what it takes for a stock encoder.

    Example:
        >>> from transformers import BertConfig
        >>> config = BertConfig(vocab_size=30, hidden_size=8, num_hidden_layers=1, num_attention_heads=2,
        ...                     intermediate_size=16)
        >>> config.sentence_encoder = {"pooling": "mean", "normalize": True, "projection": None}
        >>> SentenceEncoder(config)(torch.tensor([[2, 5, 3]])).pooler_output.shape
        torch.Size([1, 8])
    """

    base_model_prefix = "encoder"
    main_input_name = "input_ids"
    supports_gradient_checkpointing = True
    _supports_sdpa = True
    _supports_flash_attn = True
    _supports_flex_attn = True
    # They lie in a file of their own, as sentence-transformers keeps them.
    _keys_to_ignore_on_load_missing = [r"projection\."]

    def __init__(self, config: PreTrainedConfig, add_pooling_layer: bool = False) -> None:
        super().__init__(config)
        implementation = config._attn_implementation
        self.encoder: Any = encoder_from_config(
            config, **({"attn_implementation": implementation} if implementation else {})
        )
        self.projection = self._new_projection(**(self._section["projection"] or {}))
        self.post_init()

    @property
    def _section(self) -> dict[str, Any]:
        section: dict[str, Any] = self.config.sentence_encoder
        return section

    @staticmethod
    def _new_projection(kind: str = "", folder: str | None = None, **sizes: Any) -> nn.Module | None:
        return {"linear": nn.Linear, "mean": SentenceProjections}[kind](**sizes) if kind else None

    @classmethod
    def from_pretrained(  # type: ignore[override]  # the options pass through
        cls, path: str | os.PathLike[str], *args: Any, output_loading_info: bool = False, **kwargs: Any
    ) -> Any:
        """As of any model; `subfolder` names that of the encoder inside an export.

        Args:
            path: Folder or Hub id of the export.
            *args: See `PreTrainedModel.from_pretrained`.
            output_loading_info: Likewise.
            **kwargs: Likewise.
        """
        hub = {name: kwargs[name] for name in HUB_OPTIONS if name in kwargs}
        if kwargs.get("config") is None:
            kwargs["config"] = AutoConfig.from_pretrained(path, subfolder=kwargs.get("subfolder", ""), **hub)
        # A file of a model around the encoder, such as its masked LM, has the name of the encoder before each weight.
        around = getattr(MODEL_MAPPING.get(type(kwargs["config"]), None), "base_model_prefix", "")
        if around not in ("", "encoder", "model"):
            kwargs.setdefault("key_mapping", {rf"^{around}\.": ""})
        loaded: Any = super().from_pretrained(path, *args, output_loading_info=True, **kwargs)
        model, info = loaded
        lacking = (name for name in info["missing_keys"] if name.startswith("encoder."))
        if missing := sorted(name for name in lacking if not name.startswith("encoder.pooler.")):
            raise OSError(
                f"the weights in {path} lack {missing[0].removeprefix('encoder.')} and {len(missing) - 1} more of the "
                "encoder, or call them otherwise; save the encoder again with its own class."
            )
        projection = model._section["projection"]
        if projection and projection["folder"]:
            file = cached_file(path, f"{projection['folder']}/model.safetensors", **hub)
            weights = load_file(str(file))
            # The first part of a name is what the module of sentence-transformers calls the layer.
            model.projection.load_state_dict({name.split(".", 1)[1]: weight for name, weight in weights.items()})
            # Saved again, the model has one file for all of its weights.
            model.config.sentence_encoder = {**model._section, "projection": {**projection, "folder": None}}
        return (model, info) if output_loading_info else model

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if isinstance(module, SentenceProjections):
            module.initialize()

    def get_input_embeddings(self) -> nn.Module:
        embeddings: nn.Module = self.encoder.get_input_embeddings()
        return embeddings

    def set_input_embeddings(self, value: nn.Module) -> None:
        self.encoder.set_input_embeddings(value)

    @can_return_tuple
    def forward(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor | None = None, **kwargs: Any
    ) -> BaseModelOutputWithPooling:
        """Encodes sentences.

        Args:
            input_ids: `(batch, length)`.
            attention_mask: 1 for real pieces, `(batch, length)`; all of them when absent.
            **kwargs: For the encoder, such as `token_type_ids`.

        Returns:
            `pooler_output`, the sentence vectors, `(batch, width)`; `last_hidden_state`, the encoder's own.
        """
        mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        output = self.encoder(input_ids=input_ids, attention_mask=mask, **kwargs)
        vectors = pool(output.last_hidden_state, mask, self._section["pooling"])
        if isinstance(self.projection, SentenceProjections):
            vectors = self.projection(vectors).mean(1)
        elif isinstance(self.projection, nn.Linear):
            vectors = self.projection(vectors.to(self.projection.weight.dtype))
        return BaseModelOutputWithPooling(
            last_hidden_state=output.last_hidden_state,
            pooler_output=normalize(vectors) if self._section["normalize"] else vectors,
            hidden_states=output.get("hidden_states"),
            attentions=output.get("attentions"),
        )


class RoutedSentenceEncoderConfig(PreTrainedConfig):
    """Which encoder each language takes.

    Args:
        routes: Language -> the subfolder of its encoder and its tokenizer.
        encoders: Subfolder -> the configuration of its encoder, as a mapping.

    Example:
        >>> RoutedSentenceEncoderConfig(routes={"en": "en_0_Transformer"}).routes
        {'en': 'en_0_Transformer'}
    """

    model_type = "routed_sentence_encoder"

    routes: dict | None = None
    encoders: dict | None = None


class RoutedSentenceEncoder(PreTrainedModel):
    """A sentence encoder for each language; `language` says at each call which one is meant.

    Args:
        config: The configuration.
        encoders: Ready encoders by subfolder; made from the configuration when absent.

    Example:
        >>> small = {"model_type": "bert", "vocab_size": 30, "hidden_size": 8, "num_hidden_layers": 1,
        ...          "num_attention_heads": 2, "intermediate_size": 16,
        ...          "sentence_encoder": {"pooling": "mean", "normalize": True, "projection": None}}
        >>> routes = {"en": "en_0_Transformer", "zh": "zh_0_Transformer"}
        >>> config = RoutedSentenceEncoderConfig(routes=routes, encoders=dict.fromkeys(routes.values(), small))
        >>> RoutedSentenceEncoder(config)(torch.tensor([[2, 5, 3]]), language="zh").pooler_output.shape
        torch.Size([1, 8])
    """

    config: RoutedSentenceEncoderConfig
    config_class = RoutedSentenceEncoderConfig
    main_input_name = "input_ids"
    supports_gradient_checkpointing = True
    _supports_sdpa = True
    _supports_flash_attn = True
    _supports_flex_attn = True

    def __init__(
        self, config: RoutedSentenceEncoderConfig, encoders: Mapping[str, SentenceEncoder] | None = None
    ) -> None:
        super().__init__(config)
        if encoders is None:
            configs = {name: dict(values) for name, values in (config.encoders or {}).items()}
            encoders = {
                name: SentenceEncoder(AutoConfig.for_model(values.pop("model_type"), **values))
                for name, values in configs.items()
            }
        self.encoders = nn.ModuleDict(dict(encoders))
        self.post_init()

    @classmethod
    def from_pretrained(  # type: ignore[override]  # the options pass through
        cls,
        path: str | os.PathLike[str],
        *args: Any,
        config: Any = None,
        output_loading_info: bool = False,
        **kwargs: Any,
    ) -> Any:
        """Loads each encoder from its subfolder.

        Args:
            path: Folder or Hub id of the export.
            *args: See `PreTrainedModel.from_pretrained`.
            config: Likewise.
            output_loading_info: Likewise; weights are told with their place in this model.
            **kwargs: Likewise; they hold for each encoder.
        """
        hub = {name: kwargs[name] for name in HUB_OPTIONS if name in kwargs}
        chosen = config if config is not None else cls.config_class.from_pretrained(path, **hub)
        loaded = {
            name: SentenceEncoder.from_pretrained(path, *args, subfolder=name, output_loading_info=True, **kwargs)
            for name in dict.fromkeys((chosen.routes or {}).values())
        }
        encoders = {name: encoder for name, (encoder, _) in loaded.items()}
        chosen.encoders = {name: encoder.config.to_dict() for name, encoder in encoders.items()}
        model = cls(chosen, encoders).eval()
        if not output_loading_info:
            return model
        info: dict[str, Any] = {
            "missing_keys": set(),
            "unexpected_keys": set(),
            "mismatched_keys": set(),
            "error_msgs": [],
        }
        for name, (_, own) in loaded.items():
            place = f"encoders.{name}."
            for kind in ("missing_keys", "unexpected_keys"):
                info[kind] |= {place + key for key in own[kind]}
            info["mismatched_keys"] |= {(place + key, *shapes) for key, *shapes in own["mismatched_keys"]}
            info["error_msgs"] += own["error_msgs"]
        return model, info

    def save_pretrained(self, save_directory: str | os.PathLike[str], **kwargs: Any) -> None:  # type: ignore[override]
        """Writes the configuration, and each encoder into its subfolder.

        Args:
            save_directory: The folder.
            **kwargs: See `PreTrainedModel.save_pretrained`.
        """
        config = copy.deepcopy(self.config)
        config.encoders = None
        config.save_pretrained(save_directory)
        for name, encoder in self.encoders.items():
            if isinstance(encoder, SentenceEncoder):
                encoder.save_pretrained(os.path.join(save_directory, name), **kwargs)

    def get_input_embeddings(self) -> nn.Module:
        """The embeddings of the first encoder."""
        first: Any = next(iter(self.encoders.values()))
        embeddings: nn.Module = first.get_input_embeddings()
        return embeddings

    @can_return_tuple
    def forward(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor | None = None, language: str = "", **kwargs: Any
    ) -> BaseModelOutputWithPooling:
        """Encodes sentences of one language.

        Args:
            input_ids: `(batch, length)`, by the language's tokenizer.
            attention_mask: 1 for real pieces, `(batch, length)`; all of them when absent.
            language: One of `config.routes`.
            **kwargs: For the encoder.

        Returns:
            See `SentenceEncoder.forward`.

        Raises:
            ValueError: no encoder takes the language.
        """
        routes = self.config.routes or {}
        if language not in routes:
            raise ValueError(f"language is {language!r}; give one of {', '.join(routes)}.")
        output: BaseModelOutputWithPooling = self.encoders[routes[language]](input_ids, attention_mask, **kwargs)
        return output
