"""A sentence-transformers module for CMLM's sentence vectors of the variant `proj`."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

from sentence_transformers.base.modules.module import Module

from hf_xlsr.modeling.cmlm.projections import SentenceProjections


class ProjectedMean(Module):
    """The mean of a sentence vector's projections, in place of the vector.

    A folder with this class in it takes `SentenceTransformer(path, trust_remote_code=True)`; an export brings the code.

    Args:
        width: Of the vectors.
        count: Projections, the vector itself among them.

    Example:
        >>> import torch
        >>> ProjectedMean(4, 3)({"sentence_embedding": torch.ones(2, 4)})["sentence_embedding"].shape
        torch.Size([2, 4])
    """

    config_keys = ["width", "count"]

    def __init__(self, width: int, count: int) -> None:
        super().__init__()
        self.width, self.count = width, count
        self.projections = SentenceProjections(width, count)

    @classmethod
    def of(cls, projections: SentenceProjections) -> ProjectedMean:
        """A copy of a model's projections, on the processor, in float32."""
        module = cls(projections.width, projections.count)
        module.projections.load_state_dict(projections.state_dict())
        return module

    def forward(self, features: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        """Replaces `sentence_embedding`, `(batch, width)`."""
        features["sentence_embedding"] = self.projections(features["sentence_embedding"]).mean(1)
        return features

    def get_embedding_dimension(self) -> int:
        """Width of the vectors."""
        return self.width

    def save(self, output_path: str, *args: Any, safe_serialization: bool = True, **kwargs: Any) -> None:
        """Writes configuration and weights."""
        self.save_config(output_path)
        code = sys.modules[type(self).__module__].__file__
        if code and type(self).__module__.startswith("transformers_modules."):
            # The class came with a model. sentence-transformers puts its file here, but looks for it one folder above.
            shutil.copy(code, Path(output_path).parent)
        self.save_torch_weights(output_path, safe_serialization=safe_serialization)

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
    ) -> ProjectedMean:
        """Reads what `save` wrote."""
        place: dict[str, Any] = {
            "model_name_or_path": model_name_or_path,
            "subfolder": subfolder,
            "token": token,
            "cache_folder": cache_folder,
            "revision": revision,
            "local_files_only": local_files_only,
        }
        return cls.load_torch_weights(model=cls(**cls.load_config(**place)), **place)
