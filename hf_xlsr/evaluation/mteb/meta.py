"""What mteb is told about a model."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

from hf_xlsr.encoders.fingerprint import content_hash
from hf_xlsr.encoders.loading import finite_length
from hf_xlsr.encoders.routing import routes_of
from hf_xlsr.evaluation.mteb.languages import langscript
from hf_xlsr.utils.errors import XlsrError

# What a model's entry in mteb repeats of `model_meta`.
_TOLD = (
    "model_type",
    "languages",
    "n_parameters",
    "n_embedding_parameters",
    "memory_usage_mb",
    "max_tokens",
    "embed_dim",
    "license",
    "open_weights",
    "public_training_code",
    "public_training_data",
    "framework",
    "use_instructions",
    "training_datasets",
)


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
        max_tokens=finite_length(loaded),
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


def register_model(model: str | os.PathLike[str], **options: Any) -> Any:
    """Makes an export known to mteb in this process: `mteb.get_model(name)` loads it as `as_mteb_encoder` does.

    mteb finds no models of other packages by itself, so this is called in each process that asks for it. What a pull
    request to mteb needs is `model_source`.

    Args:
        model: Folder or Hub id of an export.
        **options: See `as_mteb_encoder`; `name` is how mteb calls it.

    Returns:
        mteb's `ModelMeta` of the model, with what loads it.

    Raises:
        XlsrError: mteb has another model of the name, or see `as_mteb_encoder`.
    """
    from hf_xlsr.evaluation.mteb.evaluate import as_mteb_encoder

    encoder = as_mteb_encoder(model, **options)
    from mteb.models.model_implementations import MODEL_REGISTRY

    def load(name: str, revision: str | None = None, device: str | None = None, **_: Any) -> Any:
        if revision != content_hash(model):
            raise XlsrError(f"'{model}' is no longer what was registered as '{name}'; register it again.")
        loaded = as_mteb_encoder(model, **options)
        if device:
            loaded.model.to(device)
        return loaded

    meta = encoder.mteb_model_meta.model_copy(update={"loader": load})
    there = MODEL_REGISTRY.get(meta.name)
    if there is not None and getattr(there.loader, "__qualname__", "") != load.__qualname__:
        raise XlsrError(f"mteb has a model called '{meta.name}'; give another name.")
    MODEL_REGISTRY[meta.name] = meta
    return meta


def model_source(encoder: Any, *, revision: str, release_date: str) -> str:
    """The Python code that makes a model known to mteb itself: what a pull request adds to `model_implementations`.

    mteb then loads it from the Hub by sentence-transformers alone, without this package.

    Args:
        encoder: From `as_mteb_encoder`, with the id on the Hub as name.
        revision: Commit on the Hub, 40 hexadecimal digits; `content_hash` is none.
        release_date: `YYYY-MM-DD`.

    Raises:
        XlsrError: the name is no id of the Hub, the revision is no commit, or mteb alone would not encode as this
            encoder does: it has a route for each language, or puts a prompt before every text.
    """
    meta = encoder.mteb_model_meta
    if meta.name.startswith("local/"):
        raise XlsrError(f"the model's name is '{meta.name}'; give its id on the Hub as name, owner/name.")
    if not re.fullmatch(r"[0-9a-f]{40}", revision):
        raise XlsrError(f"revision is '{revision}'; give the commit on the Hub, 40 hexadecimal digits.")
    if encoder.prompt or routes_of(encoder.model):
        what = "puts a prompt before every text" if encoder.prompt else "has a route for each language"
        raise XlsrError(f"'{meta.name}' {what}, which mteb does not do by itself; use register_model.")
    told = meta.model_dump(include=set(_TOLD))
    values = {"name": meta.name, "revision": revision, "release_date": release_date, **told}
    lines = [
        "loader=SentenceTransformerEncoderWrapper",
        *(f"{name}={value!r}" for name, value in values.items()),
        f"similarity_fn_name=ScoringFunction.{meta.similarity_fn_name.name}",
        f"reference='https://huggingface.co/{meta.name}'",
    ]
    body = "".join(f"    {line},\n" for line in lines)
    variable = re.sub("[^0-9a-zA-Z]", "_", meta.name.split("/")[-1])
    if variable[0].isdigit():
        variable = f"model_{variable}"
    return (
        "from mteb.models.model_meta import ModelMeta, ScoringFunction\n"
        "from mteb.models.sentence_transformer_wrapper import SentenceTransformerEncoderWrapper\n\n"
        f"{variable} = ModelMeta(\n{body})\n"
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
