"""The removal as a sentence-transformers module, which takes the language as `task`."""

from __future__ import annotations

import os
from typing import Any

import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules.module import Module

from hf_xlsr.encoders.debias.removal import Debias
from hf_xlsr.export.language_router import TASKS_WITHOUT_LANGUAGE
from hf_xlsr.utils.errors import XlsrError


class DebiasModule(Module):
    """The last module of a `SentenceTransformer`: `model.encode(texts, task="fr")` removes what was fitted of French.

    Without a language the vectors are not those that others were compared with, so `encode(texts)`, `encode_query` and
    `encode_document` raise an error that names the languages, unless `pass_through` is set.

    A folder with this class in it takes `SentenceTransformer(path, trust_remote_code=True)`, and this package unless
    `hf_xlsr.export.remote_code.carry_modules` put the code of the class beside it, as `hf-xlsr debias apply` does.

    Args:
        debias: What is removed.
        normalize: Bring each vector to length 1 afterwards. The notebook of the method's authors does not; vectors
            that came in with length 1 go out shorter, which dot products feel and cosines do not.
        pass_through: Leave texts without a language as they are (but for `normalize`).

    Example:
        >>> import numpy as np
        >>> debias = Debias(components={"fr": np.array([[1.0], [0.0]])}, counts={"fr": 9}, shares={"fr": 0.5})
        >>> DebiasModule(debias)({"sentence_embedding": torch.tensor([[3.0, 4.0]])}, task="fr")
        {'sentence_embedding': tensor([[0., 4.]])}
    """

    forward_kwargs = {"task"}
    config_keys = ["normalize", "pass_through"]

    def __init__(self, debias: Debias, normalize: bool = False, pass_through: bool = False) -> None:
        super().__init__()
        self.debias, self.normalize, self.pass_through = debias, normalize, pass_through
        self.routes = debias.languages  # what `task` may be, under the name that encoders have for it

    def forward(self, features: dict[str, Any], task: str | None = None, **kwargs: Any) -> dict[str, Any]:
        """Replaces `sentence_embedding`, `(batch, width)`.

        Args:
            features: What the modules before gave.
            task: The language of the texts.
            **kwargs: Of other modules.

        Raises:
            XlsrError: there is no language, or it was not fitted.
        """
        vectors = features["sentence_embedding"]
        if task not in TASKS_WITHOUT_LANGUAGE:
            vectors = self.debias.apply(vectors, str(task), normalize=self.normalize)
        elif not self.pass_through:
            names = self.debias.languages
            raise XlsrError(
                f"the language of the texts is not given; say encode(texts, task='{names[0]}'), one of "
                f"{', '.join(names)}."
            )
        elif self.normalize:
            vectors = torch.nn.functional.normalize(vectors, dim=-1)
        return {**features, "sentence_embedding": vectors}

    def get_embedding_dimension(self) -> int:
        """Width of the vectors."""
        return self.debias.dimension

    def content_digest(self) -> str:
        """See `Debias.content_digest`."""
        return self.debias.content_digest()

    def save(self, output_path: str | os.PathLike[str], *args: Any, **kwargs: Any) -> None:
        """Writes what is removed beside the configuration."""
        self.save_config(str(output_path))
        self.debias.save(output_path)

    @classmethod
    def load(
        cls,
        model_name_or_path: str,
        subfolder: str = "",
        token: bool | str | None = None,
        cache_folder: str | None = None,
        revision: str | None = None,
        local_files_only: bool = False,
        init_defaults: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> DebiasModule:
        """Reads what `save` wrote, from a folder or from the Hub.

        Args:
            model_name_or_path: The model.
            subfolder: The module's folder in it.
            token: For the Hub.
            cache_folder: Where files of the Hub are kept.
            revision: Of a model on the Hub.
            local_files_only: Ask no network.
            init_defaults: Passed over, as `kwargs` are: the saved configuration is whole.
            **kwargs: Of other modules.
        """
        hub: Any = {
            "token": token,
            "cache_folder": cache_folder,
            "revision": revision,
            "local_files_only": local_files_only,
        }
        config = cls.load_config(model_name_or_path, subfolder=subfolder, **hub)
        folder = cls.load_dir_path(model_name_or_path, subfolder=subfolder, **hub)
        return cls(Debias.load(str(folder)), **config)


def debias_sentence_transformer(
    model: SentenceTransformer, debias: Debias, *, normalize: bool = False, pass_through: bool = False
) -> SentenceTransformer:
    """A model with `DebiasModule` behind the modules of another, which stays as it is and shares its weights.

    Args:
        model: The model that it was fitted on.
        debias: What is removed.
        normalize: See `DebiasModule`.
        pass_through: Likewise.

    Returns:
        The model, with the prompts and settings of the other.

    Raises:
        XlsrError: the model's vectors are of another width, or are cut by its `truncate_dim`.

    Example:
        >>> import numpy as np
        >>> from sentence_transformers.sentence_transformer.modules import StaticEmbedding
        >>> from tokenizers import Tokenizer, models
        >>> words = Tokenizer(models.WordLevel({"un": 0, "deux": 1, "trois": 2}, unk_token="un"))
        >>> model = SentenceTransformer(modules=[StaticEmbedding(words, embedding_dim=8)], device="cpu")
        >>> from hf_xlsr.encoders.debias import fit_debias
        >>> debias = fit_debias(model, {"fr": ["un", "deux", "trois"]})
        >>> vectors = debias_sentence_transformer(model, debias).encode(["un", "deux"], task="fr")
        >>> bool(np.abs(vectors @ debias.components["fr"]).max() < 1e-5)
        True
    """
    if model.truncate_dim is not None:
        raise XlsrError(
            f"the model cuts its vectors to truncate_dim {model.truncate_dim}, behind all modules; load it without, fit "
            "the debias on that, and set truncate_dim of what comes out."
        )
    width = model.get_embedding_dimension()
    if width is not None and width != debias.dimension:
        raise XlsrError(
            f"the model's vectors are {width} wide and those that the debias was fitted on {debias.dimension}; fit it on "
            "this model."
        )
    prompts: Any = model.prompts
    return SentenceTransformer(
        modules=[*model.children(), DebiasModule(debias, normalize, pass_through)],
        device=str(model.device),
        prompts=prompts,
        default_prompt_name=model.default_prompt_name,
        similarity_fn_name=model.similarity_fn_name,
    )
