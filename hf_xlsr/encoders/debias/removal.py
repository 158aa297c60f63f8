"""What was fitted of each language, and its removal from vectors."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from hf_xlsr.data.languages import language_code
from hf_xlsr.encoders.encoding import unit_length
from hf_xlsr.utils.errors import XlsrError

TENSORS, FACTS = "debias.safetensors", "debias.json"
FORMAT = 1

Vectors = TypeVar("Vectors", np.ndarray, torch.Tensor)


def remove_components(vectors: Vectors, components: Vectors) -> Vectors:
    """Orthogonal projection onto the complement of some directions: `e - (e C) C^T`.

    The paper prints the projection of one component without the vector that it belongs to,
    `v - (v^T c) / ||v||`, which has no meaning for a vector and a number. The notebook of the method's authors (LIR)
    projects as here, and so does this. Nothing is brought to length 1 afterwards.

    Args:
        vectors: `(..., width)`.
        components: `C`, `(width, r)`, orthonormal columns.

    Returns:
        New vectors, `(..., width)`; the input is not written to.

    Example:
        >>> remove_components(np.array([[3.0, 4.0]]), np.array([[1.0], [0.0]]))
        array([[0., 4.]])

    References:
        Section 5.2 of *Universal Sentence Representation Learning with Conditional Masked Language Model*
        (Yang et al., 2021); *A Simple and Effective Method To Eliminate the Self Language Bias in Multilingual
        Representations* (Yang et al., 2021).
    """
    return vectors - (vectors @ components) @ components.T


def check_finite(vectors: np.ndarray, first_row: int = 0) -> None:
    """Refuses NaN and infinity.

    Args:
        vectors: `(..., width)`.
        first_row: What the first row is called in the error sentence.

    Raises:
        XlsrError: there is one.
    """
    bad = np.flatnonzero(~np.isfinite(vectors.reshape(-1, vectors.shape[-1])).all(axis=1))
    if bad.size:
        raise XlsrError(
            f"row {first_row + bad[0]} of the vectors holds NaN or infinity ({bad.size} such rows); check the encoder, "
            "or encode in float32."
        )


@dataclass(frozen=True, eq=False)
class Debias:
    """What is to be removed from the vectors of each language: its first principal components, or its mean.

    `DebiasFitter` and `fit_debias` make one, `load` reads one. Exactly one of `components` and `means` is filled.

    Attributes:
        components: Language -> its first r principal components, `(width, r)`, float64, orthonormal columns: right
            singular vectors of the uncentred matrix of its vectors.
        means: Language -> the mean of its vectors, `(width,)`, float64.
        counts: Language -> how many texts it was fitted on.
        shares: Language -> part of the mean squared length of its vectors that lies in what is removed.
        encoder: What the encoder is called.
        prompt: What stood before every text.

    Example:
        >>> debias = Debias(components={"fr": np.array([[1.0], [0.0]])}, counts={"fr": 10}, shares={"fr": 0.5})
        >>> debias.apply(np.array([[3.0, 4.0]]), "fra")
        array([[0., 4.]])
        >>> debias.apply(np.array([[3.0, 4.0]]), "fr", normalize=True)
        array([[0., 1.]])
    """

    components: Mapping[str, np.ndarray] = field(default_factory=dict)
    means: Mapping[str, np.ndarray] = field(default_factory=dict)
    counts: Mapping[str, int] = field(default_factory=dict)
    shares: Mapping[str, float] = field(default_factory=dict)
    encoder: str = ""
    prompt: str = ""

    @property
    def method(self) -> str:
        """`components` or `mean`."""
        return "components" if self.components else "mean"

    @property
    def languages(self) -> tuple[str, ...]:
        """The languages that were fitted, under the names they were fitted under."""
        return tuple(self.components or self.means)

    def content_digest(self) -> str:
        """SHA-256 of what is removed of each language, 64 hexadecimal digits."""
        digest = hashlib.sha256(self.method.encode())
        for language, array in sorted((self.components or self.means).items()):
            exact = np.ascontiguousarray(array, np.float64)
            digest.update(f"{language}\0{exact.shape}".encode() + exact.tobytes())
        return digest.hexdigest()

    @property
    def dimension(self) -> int:
        """Width of the vectors."""
        return len(next(iter((self.components or self.means).values())))

    @property
    def removed(self) -> int:
        """How many components are removed of each language; 0 where the mean is."""
        return next(iter(self.components.values())).shape[1] if self.components else 0

    @property
    def variant(self) -> str:
        """What metric keys call it: `pcr1` (principal component removal), `pcr2`, ..., or `mean`."""
        return f"pcr{self.removed}" if self.components else "mean"

    def language_of(self, language: str) -> str:
        """The name under which a language was fitted: the very same, or else another tag of the same language.

        Raises:
            XlsrError: it was not fitted.
        """
        if language in self.languages:
            return language
        code = language_code(language)
        found = next((name for name in self.languages if language_code(name) == code), None)
        if found is None:
            raise XlsrError(
                f"language '{language}' was not fitted, only {', '.join(self.languages)}; fit it, too, or name one of "
                "these."
            )
        return found

    def apply(self, vectors: Vectors, language: str, *, normalize: bool = False) -> Vectors:
        """The vectors without what was fitted of their language.

        Args:
            vectors: `(..., width)`, a NumPy array or a tensor on any device; gradients flow through.
            language: Their language.
            normalize: Bring each to length 1 afterwards (a vector of zeros stays one). The notebook of the authors
                does not, and cosines need none.

        Returns:
            New vectors of the same kind, type and device. The arithmetic is in float32, or float64 for float64.

        Raises:
            XlsrError: the language was not fitted, the vectors are of another width, or hold NaN or infinity.
        """
        name = self.language_of(language)
        if isinstance(vectors, torch.Tensor):
            return self._apply_torch(vectors, name, normalize)
        array = np.asarray(vectors)
        self._check_width(array.shape)
        check_finite(array)
        wide = array.astype(np.float64 if array.dtype == np.float64 else np.float32, copy=False)
        if self.components:
            left = remove_components(wide, self.components[name].astype(wide.dtype))
        else:
            left = wide - self.means[name].astype(wide.dtype)
        if normalize:
            left = unit_length(left)
        return left.astype(array.dtype, copy=False) if array.dtype.kind == "f" else left

    def _apply_torch(self, vectors: torch.Tensor, name: str, normalize: bool) -> torch.Tensor:
        self._check_width(tuple(vectors.shape))
        if not bool(torch.isfinite(vectors).all()):
            check_finite(vectors.detach().float().cpu().numpy())
        wide = vectors if vectors.dtype == torch.float64 else vectors.float()
        part = (self.components or self.means)[name]
        removed = torch.from_numpy(np.ascontiguousarray(part)).to(wide.device, wide.dtype)
        left = remove_components(wide, removed) if self.components else wide - removed
        if normalize:
            left = torch.nn.functional.normalize(left, dim=-1)
        return left.to(vectors.dtype) if vectors.is_floating_point() else left

    def _check_width(self, shape: tuple[int, ...]) -> None:
        if not shape or shape[-1] != self.dimension:
            of = f" for '{self.encoder}'" if self.encoder else ""
            raise XlsrError(
                f"the vectors have shape {shape} and the debias was fitted{of} on vectors of width {self.dimension}; "
                "give vectors of the encoder that it was fitted on."
            )

    def facts(self) -> dict[str, Any]:
        """What `debias.json` says: method, components, dimension, encoder, prompt, and texts and share by language."""
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
        """Writes `debias.safetensors` and `debias.json` into a folder, which is made.

        Raises:
            XlsrError: the folder cannot be written to.
        """
        home = Path(folder)
        parts = (("components", self.components), ("means", self.means))
        tensors = {f"{part}/{name}": np.ascontiguousarray(array) for part, of in parts for name, array in of.items()}
        text = json.dumps(
            {"format": FORMAT, "hf_xlsr": version("hf-xlsr"), **self.facts()}, indent=2, ensure_ascii=False
        )
        try:
            home.mkdir(parents=True, exist_ok=True)
            save_file(tensors, home / TENSORS)
            (home / FACTS).write_text(text + "\n", "utf-8")
        except (OSError, SafetensorError) as error:
            reason = getattr(error, "strerror", None) or error
            raise XlsrError(f"the debias cannot be written to {folder} ({reason}); give another place.") from error
        return home

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> Debias:
        """Reads what `save` wrote.

        Raises:
            XlsrError: a file is missing or damaged, or the two do not belong together.

        Example:
            >>> debias = Debias(means={"fr": np.ones(2)}, counts={"fr": 10}, shares={"fr": 0.5})
            >>> Debias.load(debias.save("french")).apply(np.array([[3.0, 4.0]]), "fr")
            array([[2., 3.]])
        """
        home = Path(folder)
        for name in (FACTS, TENSORS):
            if not (home / name).is_file():
                raise XlsrError(f"'{folder}' holds no {name}; give a folder that hf-xlsr debias fit wrote.")
        try:
            facts = json.loads((home / FACTS).read_text("utf-8"))
            languages, width, count = facts["languages"], facts["dimension"], facts["components"]
            counts = {name: int(entry["texts"]) for name, entry in languages.items()}
            shares = {name: float(entry["share"]) for name, entry in languages.items()}
            encoder, prompt, form = str(facts["encoder"]), str(facts["prompt"]), facts["format"]
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise XlsrError(f"{home / FACTS} is not what hf-xlsr debias fit writes; fit again.") from error
        if form != FORMAT:
            raise XlsrError(f"{home / FACTS} has format {form} and this version reads {FORMAT}; update hf-xlsr.")
        try:
            tensors = load_file(home / TENSORS)
        except (OSError, SafetensorError) as error:
            raise XlsrError(f"{home / TENSORS} cannot be read ({error}); fit again.") from error
        part, shape = ("components", (width, count)) if count else ("means", (width,))
        expected = {f"{part}/{name}": shape for name in languages}
        found = {name: tensor.shape for name, tensor in tensors.items()}
        if not expected or found != expected:
            raise XlsrError(
                f"{home / TENSORS} does not hold what {FACTS} beside it says, {len(expected)} languages of width "
                f"{width}; the two are of different fits: fit again."
            )
        if not all(np.isfinite(tensor).all() for tensor in tensors.values()):
            raise XlsrError(f"{home / TENSORS} holds NaN or infinity; fit again.")
        fitted = {name: tensors[f"{part}/{name}"].astype(np.float64) for name in languages}
        components, means = (fitted, {}) if count else ({}, fitted)
        return cls(components, means, counts, shares, encoder, prompt)
