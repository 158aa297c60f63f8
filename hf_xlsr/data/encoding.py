"""The kinds of rows, and how their texts become token ids."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

import numpy as np
from datasets import Features, Value
from datasets import Sequence as ListOf

from hf_xlsr.data.columns import Row
from hf_xlsr.data.prompts import PromptTable
from hf_xlsr.data.seen import hash_keys
from hf_xlsr.utils.errors import XlsrError

logger = logging.getLogger(__name__)

UNDETERMINED = "und"
"""Language of texts that nothing names, as in ISO 639-2."""

# Shares of unknown tokens in a language. Good vocabularies stay below 1 %, also in Chinese; where a vocabulary lacks a
# script, nearly all tokens but spaces are unknown.
_WARN_SHARE = 0.05
_MAX_SHARE = 0.3
_MIN_TOKENS = 1000  # fewer tokens of a language are no evidence
_ENCODING: dict[str, Any] = {"add_special_tokens": True, "return_attention_mask": False, "verbose": False}


_IDS = ListOf(Value("int32"))


@dataclass(frozen=True)
class RowKind:
    """The columns of one kind of row; `texts` are tokenised, each to `TEXT_ids`."""

    texts: tuple[str, ...]
    languages: tuple[str, ...] = ("lang",)  # of each text, or one for all
    kept: Mapping[str, str] = field(default_factory=dict)  # further columns, stored as they are, and their types
    identities: bool = False  # also store `TEXT_text`, the signed `hash64` of each text
    names: tuple[tuple[str, ...], ...] = ()  # other names of `texts` in data of users
    # For errors: all columns that data of users may have, and what to do when no row is left.
    accepted: str = ""
    empty: str = (
        "no row is left: none was read or has a label, or cleaning and the evaluation sets removed all; check the "
        "sources, their columns, and the steps of data.cleaning."
    )

    def columns_of(self, names: Collection[str]) -> tuple[str, ...] | None:
        """The first of `texts` and `names` that data with these columns has; None also where one of `kept` is missing."""
        required = set(self.kept) - {"continues", "place", *self.texts}
        if not required.issubset(names):
            return None
        for text_names in (self.texts, *self.names):
            if set(text_names).issubset(names):
                return text_names
        return None

    @property
    def is_sequence(self) -> bool:
        """Whether a row is tokenised as one sequence, because a label is that of all its texts."""
        return "label" in self.kept and self.texts != NLI.texts

    def text_features(self) -> Features:
        """Columns of a row before tokenisation."""
        return _features({**dict.fromkeys((*self.texts, *self.languages), "string"), **self.kept})

    def token_features(self, negatives: bool = False) -> Features:
        """Columns of a tokenised row, perhaps with hard negatives; `length` is that of its longest text."""
        features: dict[str, Any] = {f"{text}_ids": _IDS for text in self.texts}
        features |= _features({**self.kept, **dict.fromkeys(self.languages, "string"), "length": "int32"})
        if self.identities:
            for text in self.texts:
                features[f"{text}_text"] = Value("int64")
        if negatives:
            features |= {"negative_ids": ListOf(_IDS), "negative_text": ListOf(Value("int64"))}
        return Features(features)


def _features(dtypes: Mapping[str, str]) -> Features:
    return Features({name: Value(dtype) for name, dtype in dtypes.items()})


def row_columns(rows: Sequence[Row], names: Iterable[str]) -> dict[str, list[Any]]:
    """Some columns of rows: the values of all rows by name."""
    columns = {}
    for name in names:
        columns[name] = [row[name] for row in rows]
    return columns


def column_rows(columns: Mapping[str, Sequence[Any]]) -> Iterator[Row]:
    """The rows of columns of equal length."""
    for values in zip(*columns.values(), strict=True):
        yield dict(zip(columns, values, strict=True))


PAIRS = RowKind(
    ("source", "target"),
    ("source_lang", "target_lang"),
    identities=True,
    names=(("anchor", "positive"), ("english", "non_english")),
    accepted="`source` and `target`, `anchor` and `positive` (also `negative`, `negative_1`, ...), `english` and "
    "`non_english`, `translation` ({'en': ..., 'de': ...}), or two columns named by languages",
)
TAUGHT_PAIRS = replace(PAIRS, kept={"source": "string"})
"""Pairs with the text of the source, for a teacher."""
TEXTS = RowKind(("text",), accepted="`text` (also `lang`)")
NLI = RowKind(
    ("premise", "hypothesis"),
    kept={"label": "int32"},
    names=(("sentence1", "sentence2"),),
    accepted="`premise`, `hypothesis` and `label`, or `sentence1`, `sentence2` and `label` (also `lang`)",
)
SENTENCES = RowKind(
    ("text",),
    kept={"continues": "bool"},
    accepted="`text` with a document, or `document` and `text` with a sentence (also `position`, `lang`)",
    empty="no two consecutive sentences are left: none were read, every document has one sentence, or cleaning and the "
    "evaluation sets removed the neighbours; check the sources and their columns.",
)
PLACED_SENTENCES = replace(SENTENCES, kept={"place": "int64"})
"""Sentences in document order, whose `place` grows by one from a sentence to the next one of its document."""
CONSECUTIVE = RowKind(("first", "second"))
"""Two consecutive sentences of running text in one row, as streams have them."""
LABELLED = {
    "pair": RowKind(
        ("first", "second"),
        kept={"label": "int32"},
        names=(("premise", "hypothesis"), ("sentence1", "sentence2"), ("text", "text_pair")),
        accepted="`premise` and `hypothesis`, `sentence1` and `sentence2`, or `text` and `text_pair`, and `label`",
    ),
    "single": RowKind(("text",), kept={"label": "int32"}, accepted="`text` and `label`"),
}
"""Labelled texts and pairs of texts, each row tokenised as one sequence; labels of regressions are `float32`."""


class RowEncoder:
    """Tokenises rows of text, each text with the tokenizer of its language, and counts tokens.

    `prompts` are put before texts, see `PromptTable`; roles are `source`, `target`, `text`, ... With `negatives`, rows
    have `negatives`, texts in the language of the target.
    """

    def __init__(
        self,
        kind: RowKind,
        tokenizers: Any,
        max_length: int,
        prompts: PromptTable,
        negatives: bool,
    ) -> None:
        self.kind = kind
        self.negatives = negatives
        self.prompts = prompts
        self.counts = TokenCounts(tokenizers, max_length)

    @property
    def features(self) -> Features:
        return self.kind.token_features(self.negatives)

    def encode(self, rows: Sequence[Row]) -> dict[str, Any]:
        """Columns of `features`."""
        kind = self.kind
        columns = row_columns(rows, (*kind.kept, *kind.languages))
        language_columns = kind.languages * (len(kind.texts) // len(kind.languages))

        ids_by_role = []
        for role, language_column in zip(kind.texts, language_columns, strict=True):
            texts = [row[role] for row in rows]
            ids = self._ids(texts, columns[language_column], role)
            ids_by_role.append(ids)
            columns[f"{role}_ids"] = ids
            if kind.identities:
                columns[f"{role}_text"] = text_identities(texts)

        columns["length"] = [max(map(len, ids_of_row)) for ids_of_row in zip(*ids_by_role, strict=True)]

        if self.negatives:
            texts = []
            languages = []
            for row in rows:
                texts += row["negatives"]
                languages += [row["target_lang"]] * len(row["negatives"])
            all_ids = iter(self._ids(texts, languages, "target"))
            columns["negative_ids"] = [list(islice(all_ids, len(row["negatives"]))) for row in rows]
            columns["negative_text"] = [text_identities(row["negatives"]) for row in rows]
        return columns

    def _ids(self, texts: Sequence[str], languages: Sequence[str], role: str) -> list[list[int]]:
        prompts = {language: self.prompts.text(role=role, language=language) for language in set(languages)}
        ids = self.counts.tokenize(texts, languages, prompts)
        # Running text keeps empty sentences, which are gaps.
        return [row if text else [] for row, text in zip(ids, texts, strict=True)]


class LabelledEncoder(RowEncoder):
    """Tokenises the texts of a row as one sequence."""

    @property
    def features(self) -> Features:
        ids = dict.fromkeys(_id_columns(self.counts.tokenizers), _IDS)
        return Features({**ids, **_features({**self.kind.kept, "lang": "string", "length": "int32"})})

    def encode(self, rows: Sequence[Row]) -> dict[str, Any]:
        texts = list(row_columns(rows, self.kind.texts).values())
        columns, num_truncated = encode_texts(texts, self.counts.tokenizers, self.counts.max_length)
        lengths = list(map(len, columns["input_ids"]))
        self.counts.counts["truncated"][""] += num_truncated
        self.counts.counts["tokens"][""] += sum(lengths)
        return {**columns, **row_columns(rows, ("label", "lang")), "length": lengths}


def encode_texts(
    sides: Sequence[Sequence[str]],
    tokenizer: Any,
    max_length: int,
) -> tuple[dict[str, list[list[int]]], int]:
    """Tokenises texts, or pairs of texts as one sequence each; the longer text of a pair is truncated first.

    Returns:
        `input_ids` and, where the tokenizer has them, `token_type_ids`; and how many rows were truncated.
    """
    columns = _id_columns(tokenizer)
    options = {"return_attention_mask": False, "return_token_type_ids": len(columns) == 2, "verbose": False}
    encoded = tokenizer(*map(list, sides), truncation="longest_first", max_length=max_length, **options)

    num_truncated = 0
    full = _full_rows(encoded["input_ids"], max_length)
    if full:
        full_sides = [[side[number] for number in full] for side in sides]
        whole = tokenizer(*full_sides, truncation=False, **options)["input_ids"]
        num_truncated = _num_longer(whole, max_length)
    return {name: encoded[name] for name in columns}, num_truncated


def _id_columns(tokenizer: Any) -> list[str]:
    return [name for name in ("input_ids", "token_type_ids") if name in tokenizer.model_input_names]


def text_identities(texts: Sequence[str]) -> list[int]:
    """`hash64` of each text as a signed number of 64 bits, to find equal texts."""
    identities: list[int] = hash_keys(texts).view(np.int64).tolist()
    return identities


def check_tokenizers(tokenizers: Any, languages: Iterable[str]) -> None:
    """Raises an error for a language without a tokenizer, where each language has its own."""
    if not isinstance(tokenizers, Mapping):
        return
    for language in languages:
        if language not in tokenizers:
            raise XlsrError(f"language '{language}' of the training data has no tokenizer.")


TOKEN_COUNTS = ("num_truncated", "tokens", "unknown_tokens")
"""Names of the counts in a report."""


class TokenCounts:
    """Tokenises texts, batch by batch, with one tokenizer or that of their language, and counts tokens."""

    def __init__(self, tokenizers: Any, max_length: int) -> None:
        self.tokenizers = tokenizers
        self.max_length = max_length
        # By name and language; `framing` are the special tokens around the texts.
        self.counts = {name: Counter[str]() for name in ("truncated", "tokens", "framing", "unknown")}

    def clear(self) -> None:
        """Counts from 0 again."""
        for counter in self.counts.values():
            counter.clear()

    def add(self, counts: Mapping[str, Mapping[str, int]]) -> None:
        """Adds the `counts` of another object."""
        for name, counter in self.counts.items():
            counter.update(counts.get(name, {}))

    def tokenize(
        self,
        texts: Sequence[str],
        languages: Sequence[str],
        prompts: Mapping[str, str] | None = None,
    ) -> list[list[int]]:
        """Token ids of texts with the prompts of their languages; a truncated text keeps its special tokens.

        Mostly unknown tokens are an error.
        """
        check_tokenizers(self.tokenizers, set(languages))
        batches: dict[tuple[int, str], list[int]] = {}  # by tokenizer and prompt, the numbers of its texts
        for number, language in enumerate(languages):
            prompt = (prompts or {}).get(language, "")
            batches.setdefault((id(self._tokenizer(language)), prompt), []).append(number)

        result: list[Any] = [None] * len(texts)
        for (_, prompt), numbers in batches.items():
            tokenizer = self._tokenizer(languages[numbers[0]])
            batch = [texts[number] for number in numbers]
            ids = token_ids(tokenizer, batch, prompt, self.max_length)
            self._count(tokenizer, ids, [languages[number] for number in numbers])

            full = _full_rows(ids, self.max_length)
            if full:
                whole = token_ids(tokenizer, [batch[number] for number in full], prompt, None)
                self.counts["truncated"][""] += _num_longer(whole, self.max_length)
            for number, row in zip(numbers, ids, strict=True):
                result[number] = row

        for language in set(languages):
            if self.counts["tokens"][language] >= _MIN_TOKENS and self._share(language) > _MAX_SHARE:
                raise XlsrError(
                    f"more than {_MAX_SHARE:.0%} of the tokens in '{language}' are unknown to the tokenizer; use a "
                    "tokenizer of that language, or train one on text that includes it."
                )

        return result

    def _tokenizer(self, language: str) -> Any:
        return self.tokenizers[language] if isinstance(self.tokenizers, Mapping) else self.tokenizers

    def _count(self, tokenizer: Any, ids: Sequence[list[int]], languages: Sequence[str]) -> None:
        frame = [] if hasattr(tokenizer, "message_ids") else token_ids(tokenizer, [""], "", None)[0]
        unknown = tokenizer.unk_token_id
        for row, language in zip(ids, languages, strict=True):
            self.counts["tokens"][language] += len(row)
            self.counts["framing"][language] += len(frame)
            if unknown is not None:  # some tokenizers frame sentences with the unknown token
                self.counts["unknown"][language] += max(0, row.count(unknown) - frame.count(unknown))

    def report(self) -> dict[str, int]:
        """`num_truncated`, `tokens` and `unknown_tokens` so far; warns of languages with many unknown tokens."""
        for language in self.counts["unknown"]:
            share = self._share(language)
            if share > _WARN_SHARE:
                logger.warning("%.0f %% of the tokens in '%s' are unknown to the tokenizer.", 100 * share, language)
        return {
            "num_truncated": self.counts["truncated"].total(),
            "tokens": self.counts["tokens"].total(),
            "unknown_tokens": self.counts["unknown"].total(),
        }

    def _share(self, language: str) -> float:
        words = self.counts["tokens"][language] - self.counts["framing"][language]
        return self.counts["unknown"][language] / max(1, words)


def token_ids(
    tokenizer: Any,
    texts: Sequence[str],
    prompt: str,
    max_length: int | None,
) -> list[list[int]]:
    """Token ids of texts with a prompt, as the encoder of the tokenizer reads them; None does not truncate."""
    if hasattr(tokenizer, "message_ids"):  # the encoder reads messages of a chat
        ids = tokenizer.message_ids(texts, prompt, max_length)
    else:
        prompted_texts = [prompt + text for text in texts]
        encoded = tokenizer(prompted_texts, truncation=max_length is not None, max_length=max_length, **_ENCODING)
        ids = encoded["input_ids"]
    return list(map(list, ids))


def _full_rows(ids: Sequence[Sequence[int]], max_length: int) -> list[int]:
    """The numbers of the truncated rows that may have been longer, which tokenizers do not report."""
    return [number for number, row in enumerate(ids) if len(row) == max_length]


def _num_longer(ids: Iterable[Sequence[int]], max_length: int) -> int:
    return sum(len(row) > max_length for row in ids)
