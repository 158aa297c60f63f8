"""What mteb is told about a model."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

from hf_xlsr.errors import XlsrError
from hf_xlsr.evaluation.content_hash import content_hash
from hf_xlsr.evaluation.mteb_languages import langscript
from hf_xlsr.evaluation.routing import routes_of


def model_meta(
    model: str | os.PathLike[str] | Any,
    loaded: Any,
    *,
    name: str | None = None,
    prompt: str = "",
    routes: Mapping[str, str] | None = None,
    languages: Sequence[str] | None = None,
    training_datasets: Iterable[str] | None = None,
) -> Any:
    """mteb's `ModelMeta` of a model.

    Args:
        model: Folder, Hub id or the loaded model.
        loaded: The loaded `SentenceTransformer`.
        name: How mteb files it, `owner/name`; by default the id on the Hub, or `local/` and the folder's name.
        prompt: Put before every text.
        routes: Language -> route.
        languages: What the model is for; by default what its card or its routes say.
        training_datasets: Tasks of mteb that it was trained on; None: not known.

    Raises:
        XlsrError: mteb does not know a language.
    """
    from mteb.models import ModelMeta
    from mteb.models.model_meta import ScoringFunction
    from mteb.types import Licenses
    from transformers import PreTrainedModel

    card = _card(model)
    if unknown := [language for language in languages or () if langscript(language) is None]:
        raise XlsrError(f"languages has '{unknown[0]}', which mteb does not know; give codes such as de or zh-Hant.")
    told = languages or card.get("language") or routes_of(loaded)
    tags = [tag for language in ([told] if isinstance(told, str) else told) if (tag := langscript(language))]
    encoders: list[Any] = [module for module in loaded.modules() if isinstance(module, PreTrainedModel)]
    tables = {id(table): table.numel() for table in (encoder.get_input_embeddings().weight for encoder in encoders)}
    parameters = list(loaded.parameters())
    return ModelMeta(
        loader=None,
        name=_name(model, name),
        revision=content_hash(model),
        release_date=None,
        languages=tags or None,
        n_parameters=sum(parameter.numel() for parameter in parameters),
        n_embedding_parameters=sum(tables.values()) if tables else None,
        memory_usage_mb=sum(parameter.numel() * parameter.element_size() for parameter in parameters) / 2**20,
        max_tokens=loaded.max_seq_length,
        embed_dim=loaded.get_embedding_dimension(),
        license=card.get("license") if card.get("license") in get_args(Licenses) else None,
        open_weights=True,
        public_training_code=None,
        public_training_data=None,
        framework=["Sentence Transformers", "PyTorch"],
        similarity_fn_name=ScoringFunction(loaded.similarity_fn_name or "cosine"),
        use_instructions=bool(prompt),
        training_datasets=None if training_datasets is None else set(training_datasets),
        experiment_kwargs=_experiment(prompt, routes),
    )


def _experiment(prompt: str, routes: Mapping[str, str] | None) -> dict[str, Any] | None:
    """What decides the vectors beside the model: mteb files the scores of each of them apart."""
    options: dict[str, Any] = {"prompt": prompt} if prompt else {}
    options.update({"routes": dict(routes)} if routes else {})
    # mteb writes an underscore for many signs in the names of its folders, so that two prompts may look the same.
    digest = hashlib.sha256(json.dumps(options, sort_keys=True).encode()).hexdigest()[:12]
    return {**options, "digest": digest} if options else None


def _name(model: Any, name: str | None) -> str:
    if name is None and isinstance(model, (str, os.PathLike)):
        name = Path(model).resolve().name if Path(model).is_dir() else str(model)
    name = name or "sentence-transformer"
    return name if "/" in name else f"local/{name}"


def _card(model: Any) -> dict[str, Any]:
    """The header of a folder's card."""
    from huggingface_hub import ModelCard

    file = Path(model) / "README.md" if isinstance(model, (str, os.PathLike)) else None
    return ModelCard.load(file, ignore_metadata_errors=True).data.to_dict() if file and file.is_file() else {}
