"""Options of mining, scoring and hard negatives, in one place for Python, the command line and work folders."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hf_xlsr.data.edits import check_kinds
from hf_xlsr.data.prompts import Prompts
from hf_xlsr.encoders.encoding import BATCH_SIZE, EncodingOptions
from hf_xlsr.encoders.loading import DTYPES
from hf_xlsr.mining.search.extraction import MARGINS, RETRIEVALS
from hf_xlsr.mining.search.int8_rows import VECTOR_BYTES
from hf_xlsr.mining.search.neighbours import METHODS
from hf_xlsr.mining.texts import DUPLICATES
from hf_xlsr.utils.devices import parse_size, resolve_device
from hf_xlsr.utils.errors import XlsrError, require_choice, require_positive

CHOICES = {
    "margin": MARGINS,
    "retrieval": RETRIEVALS,
    "method": METHODS,
    "duplicates": DUPLICATES,
    "dtype": DTYPES,
    "vectors_dtype": tuple(VECTOR_BYTES),
}


@dataclass(frozen=True)
class MiningOptions:
    """Options of `mine_bitext` and, but for `retrieval` to `max_pairs`, of `score_bitext`.

    Attributes:
        languages: Of source and target; required by an encoder with a route for each language.
        routes: Language -> route, for an encoder whose routes are not named after languages.
        prompt: Put before sentences: one for all (`"query: "`, or `""` for none), or by language or side (`source`,
            `target`). None: the model's own prompts.
        batch_size: Sentences encoded at a time.
        dtype: Precision of an encoder given by name; as its files store it if None.
        truncate_dim: Leading dimensions that are kept, of an encoder given by name; as its files say if None.
        vectors: Folder of embeddings that `hf-xlsr encode` and other jobs share, for an encoder given by name.
        vectors_dtype: How the work folder stores embeddings for the search: `float32`, `float16` or `int8`, which takes
            half the disk of float16 (see `int8_rows`). None: those of an encoder in float16, given ones as they are.
        device: Of the search and of an encoder given by name; by default a GPU if there is one, the CPU for matrices.
        memory: Memory that each process of mining may allocate besides the encoder: bytes, or a text such as `512MB`.
        k: Size of the neighbourhoods, in both directions; at most the number of sentences on the other side.
        method: `exact`, `ivf` or `auto`, see `neighbours_both_ways`.
        recall: For `ivf`: share of true neighbours that a sample must find; raises the number of cells searched.
        margin: `ratio`, `distance` or `absolute`, see `margin_scores`.
        retrieval: `max`, `intersection`, `forward` or `backward`, see `extract_pairs`.
        threshold: Lowest score that is kept; None keeps all.
        one_to_one: Use each sentence in at most one pair.
        max_pairs: Number of best pairs to keep; None keeps all.
        duplicates: `merge` (equal lines count as one sentence, under the number of the first) or `keep` (each line
            counts, as each row of matrices always does).
        show_progress_bar: Show one for each stage.

    Examples:
        >>> MiningOptions(k=8).margin
        'ratio'
    """

    languages: Sequence[str] | None = None
    routes: Mapping[str, str] | None = None
    prompt: Prompts = None
    batch_size: int = BATCH_SIZE
    dtype: str | None = None
    truncate_dim: int | None = None
    vectors: str | None = None
    vectors_dtype: str | None = None
    device: str | None = None
    memory: int | str | None = None
    k: int = 4
    method: str = "auto"
    recall: float | None = None
    margin: str = "ratio"
    retrieval: str = "max"
    threshold: float | None = None
    one_to_one: bool = True
    max_pairs: int | None = None
    duplicates: str = "merge"
    show_progress_bar: bool = False

    def __post_init__(self) -> None:  # before hours of encoding
        for name, choices in CHOICES.items():
            value = getattr(self, name)
            if value is not None:
                require_choice(name, value, choices)
        for name in ("k", "batch_size", "max_pairs"):
            require_positive(name, getattr(self, name))

        if self.recall is not None and not 0 < self.recall <= 1:
            raise XlsrError(f"`recall` must be above 0 and at most 1, got {self.recall}.")
        if self.threshold is not None and not math.isfinite(self.threshold):
            raise XlsrError(
                f"`threshold` must be a finite number, got {self.threshold}. Leave it out to keep all pairs."
            )
        if self.languages is not None and len(self.languages) != 2:
            raise XlsrError(f"`languages` must be source and target, e.g. en,fr, got {','.join(self.languages)}.")
        if self.device is not None:
            resolve_device(self.device)
        parse_size(self.memory)

    @property
    def encoding(self) -> EncodingOptions:
        """Options of `embed`."""
        return {"prompt": self.prompt, "batch_size": self.batch_size, "routes": self.routes}

    @property
    def extraction(self) -> dict[str, Any]:
        """Options of `extract_pairs`; threshold and maximum apply to its result."""
        return {"margin": self.margin, "retrieval": self.retrieval, "one_to_one": self.one_to_one}

    @property
    def search(self) -> dict[str, Any]:
        """Options of `neighbours_both_ways` that change its result."""
        return {"k": self.k, "method": self.method, "recall": self.recall}


@dataclass(frozen=True)
class NegativeOptions:
    """Which negatives `hard_negatives` gives to a pair; what encodes and searches is in `MiningOptions`.

    Attributes:
        per_pair: Negatives of each pair.
        synthetic: Kinds of edits of the target that are negatives too, see `hf_xlsr.data.edits.Editor`.
        edited: At most this many of `per_pair` are edits; half of them by default. 0 with kinds is an error.
        nearest: Sentences of the other language that are looked at for each source.
        below: A negative's margin must be below this share of the pair's own.
        paraphrase: With a second encoder: share of the way from the mean cosine of the nearest to that of the pair,
            above which a sentence counts as a paraphrase.
        seed: Of edits and of random negatives.

    Examples:
        >>> NegativeOptions(per_pair=4, synthetic=("number", "negation")).most_edited
        2
    """

    per_pair: int = 4
    synthetic: Sequence[str] = ()
    edited: int | None = None
    nearest: int = 32
    below: float = 0.95
    paraphrase: float = 0.7
    seed: int = 1

    def __post_init__(self) -> None:
        check_kinds(self.synthetic)
        for name in ("per_pair", "nearest"):
            require_positive(name, getattr(self, name))
        for name in ("below", "paraphrase"):
            share = getattr(self, name)
            if not 0 < share <= 1:
                raise XlsrError(f"`{name}` must be above 0 and at most 1, got {share}.")
        if self.edited is not None and not 0 <= self.edited <= self.per_pair:
            raise XlsrError(f"`edited` must be from 0 to `per_pair` {self.per_pair}, got {self.edited}.")
        if bool(self.synthetic) != bool(self.most_edited):
            raise XlsrError(
                f"`edited` is {self.edited} and `synthetic` {tuple(self.synthetic)}; set both, or neither."
            )

    @property
    def most_edited(self) -> int:
        """How many of the negatives of a pair are edits, at most."""
        if self.edited is not None:
            return self.edited
        return -(-self.per_pair // 2) if self.synthetic else 0
