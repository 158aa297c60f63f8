"""What was fitted of each language, and its removal from embeddings."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from hf_xlsr.data.languages import language_code
from hf_xlsr.encoders.encoding import default_prompt, unit_length
from hf_xlsr.encoders.routing import route_of
from hf_xlsr.utils.errors import XlsrError
from hf_xlsr.utils.vectors import check_finite

TENSORS, FACTS = "debias.safetensors", "debias.json"
FORMAT = 1
PARTS = {"components": "components", "mean": "means", "whitening": "whitenings"}  # of `Debias` and its file, by method

Vectors = TypeVar("Vectors", np.ndarray, torch.Tensor)


def remove_components(vectors: Vectors, components: Vectors) -> Vectors:
    """Orthogonal projection onto the complement of some directions: `e - (e C) C^T`, `C` with orthonormal columns.

    The paper prints `v - (v^T c) / ||v||`, which subtracts a number from a vector. The notebook of the method's authors
    (LIR) projects as here. The result is not normalised.

    Examples:
        >>> remove_components(np.array([[3.0, 4.0]]), np.array([[1.0], [0.0]]))
        array([[0., 4.]])
    """
    return vectors - (vectors @ components) @ components.T


def whiten(vectors: Vectors, affine: Vectors) -> Vectors:
    """Subtracts a mean and multiplies by the inverse square root of a covariance: `(e - m) W`.

    `affine` is `m`, then `W`, `(1 + width, width)`.

    Examples:
        >>> whiten(np.array([[3.0, 4.0]]), np.array([[1.0, 4.0], [0.5, 0.0], [0.0, 0.1]]))
        array([[1., 0.]])
    """
    return (vectors - affine[0]) @ affine[1:]


@dataclass(frozen=True, eq=False)
class Debias:
    """What is removed from the embeddings of each language: its first principal components, mean, or covariance.

    Exactly one of `components`, `means` and `whitenings` is filled.

    Attributes:
        components: Language -> its first r principal components, `(width, r)`, float64, orthonormal columns: right
            singular vectors of the uncentred matrix of its embeddings.
        means: Language -> mean of its embeddings, `(width,)`, float64.
        whitenings: Language -> mean and whitening matrix of its embeddings, `(1 + width, width)`, float64, see `whiten`.
        counts: Language -> number of texts it was fitted on.
        shares: Language -> share of the mean squared length of its embeddings that is removed.

    Examples:
        >>> debias = Debias(components={"fr": np.array([[1.0], [0.0]])}, counts={"fr": 10}, shares={"fr": 0.5})
        >>> debias.apply(np.array([[3.0, 4.0]]), "fra")
        array([[0., 4.]])
        >>> debias.apply(np.array([[3.0, 4.0]]), "fr", normalize=True)
        array([[0., 1.]])
    """

    components: Mapping[str, np.ndarray] = field(default_factory=dict)
    means: Mapping[str, np.ndarray] = field(default_factory=dict)
    whitenings: Mapping[str, np.ndarray] = field(default_factory=dict)
    counts: Mapping[str, int] = field(default_factory=dict)
    shares: Mapping[str, float] = field(default_factory=dict)
    encoder: str = ""
    prompt: str = ""

    @property
    def method(self) -> str:
        return "components" if self.components else "whitening" if self.whitenings else "mean"

    @property
    def fitted(self) -> Mapping[str, np.ndarray]:
        return self.components or self.whitenings or self.means

    @property
    def languages(self) -> tuple[str, ...]:
        return tuple(self.fitted)

    def content_digest(self) -> str:
        """SHA-256 of what is removed of each language, 64 hexadecimal digits."""
        digest = hashlib.sha256(self.method.encode())
        for language, array in sorted(self.fitted.items()):
            exact = np.ascontiguousarray(array, np.float64)
            digest.update(f"{language}\0{exact.shape}".encode() + exact.tobytes())
        return digest.hexdigest()

    @property
    def dimension(self) -> int:
        return next(iter(self.fitted.values())).shape[-1 if self.whitenings else 0]

    @property
    def removed(self) -> int:
        """Number of components removed of each language; 0 for the other methods."""
        return next(iter(self.components.values())).shape[1] if self.components else 0

    @property
    def variant(self) -> str:
        """Its name in metric keys: `pcr1` (principal component removal), `pcr2`, ..., `mean` or `whitening`."""
        return f"pcr{self.removed}" if self.components else self.method

    def language_of(self, language: str | None) -> str:
        """The tag under which a language was fitted: this one, or another of the same language."""
        if language in self.fitted:
            return str(language)
        code = language_code(language) if language else None
        found = next((name for name in self.languages if language_code(name) == code), None)
        if found is None:
            raise XlsrError(f"`language` must be one of the fitted {', '.join(self.languages)}, got '{language}'.")
        return found

    def apply(self, vectors: Vectors, language: str, *, normalize: bool = False) -> Vectors:
        """Removes what was fitted of a language from its embeddings, `(..., width)`.

        An array or a tensor on any device gives the same kind, type and device; gradients flow through. The arithmetic
        is in float32, or float64 for float64. With `normalize` the result has length 1 (a zero vector stays zero); the
        notebook of the authors does not normalise, and cosines do not depend on it.
        """
        name = self.language_of(language)
        if isinstance(vectors, torch.Tensor):
            return self._apply_torch(vectors, name, normalize)
        array = np.asarray(vectors)
        self._check_width(array.shape)
        check_finite(array, "the embeddings")
        wide = array.astype(np.float64 if array.dtype == np.float64 else np.float32, copy=False)
        left = self._remove(wide, self.fitted[name].astype(wide.dtype))
        if normalize:
            left = unit_length(left)
        return left.astype(array.dtype, copy=False) if array.dtype.kind == "f" else left

    def _apply_torch(self, vectors: torch.Tensor, name: str, normalize: bool) -> torch.Tensor:
        self._check_width(tuple(vectors.shape))
        if not bool(torch.isfinite(vectors).all()):
            check_finite(vectors.detach().float().cpu().numpy(), "the embeddings")
        wide = vectors if vectors.dtype == torch.float64 else vectors.float()
        left = self._remove(
            wide, torch.from_numpy(np.ascontiguousarray(self.fitted[name])).to(wide.device, wide.dtype)
        )
        if normalize:
            left = torch.nn.functional.normalize(left, dim=-1)
        return left.to(vectors.dtype) if vectors.is_floating_point() else left

    def _remove(self, vectors: Vectors, fitted: Vectors) -> Vectors:
        if self.components:
            return remove_components(vectors, fitted)
        return whiten(vectors, fitted) if self.whitenings else vectors - fitted

    def _check_width(self, shape: tuple[int, ...]) -> None:
        if not shape or shape[-1] != self.dimension:
            of = f" of '{self.encoder}'" if self.encoder else ""
            raise XlsrError(f"Embeddings{of} must be {self.dimension} wide, as those fitted on, got shape {shape}.")

    def facts(self) -> dict[str, Any]:
        """Content of `debias.json`: method, components, dimension, encoder, prompt, and texts and share by language."""
        return {
            "method": self.method,
            "components": self.removed,
            "dimension": self.dimension,
            "encoder": self.encoder,
            "prompt": self.prompt,
            "languages": {
                name: {"texts": int(self.counts[name]), "share": float(self.shares[name])} for name in self.languages
            },
        }

    def save(self, folder: str | os.PathLike[str]) -> Path:
        """Writes `debias.safetensors` and `debias.json` to a folder, which is created."""
        home = Path(folder)
        part = PARTS[self.method]
        tensors = {f"{part}/{name}": np.ascontiguousarray(array) for name, array in self.fitted.items()}
        facts = {"format": FORMAT, "hf_xlsr": version("hf-xlsr"), **self.facts()}
        home.mkdir(parents=True, exist_ok=True)
        save_file(tensors, home / TENSORS)
        (home / FACTS).write_text(json.dumps(facts, indent=2, ensure_ascii=False) + "\n", "utf-8")
        return home

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> Debias:
        home = Path(folder)
        try:
            facts = json.loads((home / FACTS).read_text("utf-8"))
            tensors = load_file(home / TENSORS)
            languages, part = facts["languages"], PARTS[facts["method"]]
            counts = {name: int(entry["texts"]) for name, entry in languages.items()}
            shares = {name: float(entry["share"]) for name, entry in languages.items()}
            fitted = {name: tensors[f"{part}/{name}"].astype(np.float64) for name in languages}
            encoder, prompt, form = str(facts["encoder"]), str(facts["prompt"]), facts["format"]
        except (OSError, ValueError, LookupError, TypeError, AttributeError, SafetensorError) as error:
            raise XlsrError(f"{home} must hold {FACTS} and {TENSORS} of `hf-xlsr debias fit`: {error!r}.") from error
        if form != FORMAT:
            raise XlsrError(f"{home / FACTS} is of format {form} instead of {FORMAT}. Fit again.")
        return cls(**{part: fitted}, counts=counts, shares=shares, encoder=encoder, prompt=prompt)


class DebiasedEncoder:
    """Wraps an encoder; the language of the texts is given as `task`.

    Its `routes` are the fitted languages, so protocols and mining pass the language. `routes` names those of the
    encoder that are not named after languages.
    """

    def __init__(self, encoder: Any, debias: Debias, routes: Mapping[str, str] | None = None) -> None:
        self.encoder, self.debias = encoder, debias
        self.routes = debias.languages
        self.default_prompt_name = default_prompt(encoder)
        self._routes = routes

    def encode(
        self, texts: Sequence[str], *, task: str | None = None, normalize_embeddings: bool = False, **options: Any
    ) -> np.ndarray:
        """Embeddings of texts of the language `task`, `(texts, width)`, float32, normalised after the removal."""
        language = self.debias.language_of(task)
        route = route_of(self.encoder, task, self._routes)
        if route is not None:
            options["task"] = route
        # Fitted on embeddings that were not normalised, so it is removed from such.
        options["convert_to_numpy"] = True
        vectors = np.asarray(self.encoder.encode(list(texts), normalize_embeddings=False, **options), np.float32)
        return self.debias.apply(vectors, language, normalize=normalize_embeddings)
