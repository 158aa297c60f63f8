"""Collators: from examples to truncated, padded and masked batches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from hf_xlsr.data.masking import MaskDrawer, counter_uniform, mask_token_id
from hf_xlsr.data.tokenization import punctuation_ids
from hf_xlsr.losses.cross_entropy import IGNORE
from hf_xlsr.utils.errors import XlsrError

Feature = Mapping[str, Any]
Features = Sequence[Feature]
Batch = dict[str, Any]

# Draws of an example of HICTL below this number order its tokens; those above choose masks.
_FIRST_MASK_DRAW = 4096


def truncate_row(ids: Sequence[int], max_length: int) -> Sequence[int]:
    """A row of at most `max_length` ids that keeps its last id."""
    return ids if len(ids) <= max_length else [*ids[: max_length - 1], ids[-1]]


def pad_rows(
    rows: Sequence[Sequence[int]], pad_id: int, multiple_of: int = 1, limit: int | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Pads rows of ids on the right: ids and attention mask, both `(rows, length)`, int64.

    The rounded length is at most `limit`, unless a row is longer: an encoder may have no more positions.
    """
    lengths = np.array([len(row) for row in rows])
    longest = max(1, int(lengths.max(initial=1)))
    width = -(-longest // multiple_of) * multiple_of
    if limit is not None:
        width = max(longest, min(width, limit))
    mask = (np.arange(width) < lengths[:, None]).astype(np.int64)
    ids = np.full((len(rows), width), pad_id, dtype=np.int64)
    ids[mask.astype(bool)] = np.concatenate([np.asarray(row, dtype=np.int64) for row in rows])
    return ids, mask


def join_sides(source: Sequence[int], target: Sequence[int], max_length: int) -> list[int]:
    """`[CLS] x [SEP] y [SEP]` of `[CLS] x [SEP]` and `[CLS] y [SEP]`.

    If both do not fit, tokens are removed one by one from the end of the longer one, before its last.
    """
    first, second = list(source), list(target[1:])
    surplus = len(first) + len(second) - max_length
    while surplus > 0 and max(len(first), len(second)) > 2:
        longer = first if len(first) >= len(second) else second
        longer.pop(-2)
        surplus -= 1
    return first + second


def _stacked(features: Features, column: str) -> torch.Tensor:
    return torch.tensor([feature[column] for feature in features])


def _keys(features: Features) -> tuple[np.ndarray, np.ndarray]:
    """Epoch and index of each example, on which its random draws depend."""
    return np.array([feature["epoch"] for feature in features]), np.array([feature["index"] for feature in features])


class _Padding:
    """Truncates rows to `max_length` ids and pads them to a multiple of `pad_to_multiple_of` (8 suits tensor cores)."""

    def __init__(self, pad_id: int, *, max_length: int = 128, pad_to_multiple_of: int = 1) -> None:
        self.pad_id, self.max_length, self.pad_to_multiple_of = pad_id, max_length, pad_to_multiple_of

    def truncated(self, ids: Sequence[int]) -> Sequence[int]:
        return truncate_row(ids, self.max_length)

    def padded(self, rows: Sequence[Sequence[int]], prefix: str = "", pad_id: int | None = None) -> Batch:
        """`PREFIXinput_ids` and `PREFIXattention_mask`, `(rows, length)`, int64."""
        pad_id = self.pad_id if pad_id is None else pad_id
        ids, mask = pad_rows(rows, pad_id, self.pad_to_multiple_of, self.max_length)
        return {f"{prefix}input_ids": torch.from_numpy(ids), f"{prefix}attention_mask": torch.from_numpy(mask)}

    def side(self, features: Features, name: str, pad_id: int | None = None) -> Batch:
        """The texts of a column `NAME_ids`, truncated and padded."""
        return self.padded([self.truncated(feature[f"{name}_ids"]) for feature in features], f"{name}_", pad_id)

    def negatives(self, features: Features, pad_id: int | None = None) -> Batch:
        """The hard negatives of all rows, row by row; rows may have any number of them."""
        found = [self.truncated(ids) for feature in features for ids in feature.get("negative_ids") or ()]
        return self.padded(found, "negative_", pad_id) if found else {}

    def masked(
        self, masks: MaskDrawer, batch: Batch, prefix: str, keys: tuple[np.ndarray, np.ndarray], first_draw: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Masked ids and labels of a part of the batch. Special tokens are never masked."""
        ids = batch[f"{prefix}input_ids"].numpy()
        allowed = (batch[f"{prefix}attention_mask"].numpy() == 1) & ~np.isin(ids, masks.special)
        masked, labels = masks(ids, allowed, *keys, first_draw + np.arange(ids.shape[1])[None, :])
        return torch.from_numpy(masked), torch.from_numpy(labels)


class PairCollator(_Padding):
    """Stacks the sources of a batch over its targets and masks them for the lightweight model's generative task.

    Features need `source_ids`, `target_ids`, `index` and `epoch`; with `identities` also `source_text` and `target_text`.

    Args:
        masking: `none`; `single`, one token on one side of each pair (SMLM, UGT); or `mlm`, 15 % of the tokens of both
            sides, at least one of each, 80 % of them replaced by `<mask>`, 10 % by a random token, 10 % kept.
        mask_punctuation: Whether `single` may mask punctuation, which it always does in a sentence of nothing else. The
            special tokens around a sentence are only masked if there are no others.
        max_length: Sentences are truncated to this many tokens; a special last token is kept.

    Returns:
        `input_ids`, `attention_mask`, `original_ids`, each `(2 * batch, length)`; with `single` also `masked_ids`
        `(2 * batch,)`, with `mlm` also `mlm_labels` `(2 * batch, length)`; -100 where nothing is masked. If rows have
        hard negatives (`negative_ids`), also `negative_input_ids` and `negative_attention_mask`, `(negatives, length)`,
        unmasked. With `identities` also `identities` `(2, batch)`. The text `source` of the rows, if they have it, is
        `source_texts`, a list.

    Examples:
        >>> from hf_xlsr.data.tokenization import train_tokenizer
        >>> tokenizer = train_tokenizer(["the cat sat", "le chat dort"] * 50, vocab_size=20, algorithm="bpe")
        >>> pair = {"source_ids": [5, 6, 7], "target_ids": [8, 9], "index": 0, "epoch": 0}
        >>> batch = PairCollator(tokenizer, masking="single")([pair])
        >>> batch["input_ids"].shape, int((batch["masked_ids"] != -100).sum())
        (torch.Size([2, 3]), 1)
    """

    def __init__(
        self,
        tokenizer: Any,
        *,
        masking: str = "single",
        mask_punctuation: bool = False,
        mlm_probability: float = 0.15,
        seed: int = 1,
        max_length: int = 200,
        pad_to_multiple_of: int = 1,
        identities: bool = False,
    ) -> None:
        super().__init__(tokenizer.pad_token_id, max_length=max_length, pad_to_multiple_of=pad_to_multiple_of)
        self.mask_id = None if masking == "none" else mask_token_id(tokenizer)
        self.masking, self.seed, self.identities = masking, seed, identities
        # The unknown token represents text, the other special tokens frame it.
        framing = list({*tokenizer.all_special_ids} - {tokenizer.unk_token_id})
        self.around = np.isin(np.arange(len(tokenizer)), framing)
        self.avoided = self.around if mask_punctuation else punctuation_ids(tokenizer)
        if masking == "mlm":
            self.masks = MaskDrawer(tokenizer, probability=mlm_probability, seed=seed)

    def __call__(self, features: Features) -> Batch:
        rows = [self.truncated(feature[side]) for side in ("source_ids", "target_ids") for feature in features]
        batch = {**self.padded(rows), **self.negatives(features)}
        batch["original_ids"] = batch["input_ids"]
        if self.masking != "none":
            ids, mask = batch["input_ids"].numpy(), batch["attention_mask"].numpy() == 1
            mask_of, labels = (
                (self._mask_single, "masked_ids") if self.masking == "single" else (self._mask_many, "mlm_labels")
            )
            batch["input_ids"], batch[labels] = map(torch.from_numpy, mask_of(ids, mask, *_keys(features)))
        if self.identities:
            batch["identities"] = torch.stack([_stacked(features, name) for name in ("source_text", "target_text")])
        if "source" in features[0]:
            batch["source_texts"] = [feature["source"] for feature in features]
        return batch

    def truncated(self, ids: Sequence[int]) -> Sequence[int]:
        ends = len(ids) > 0 and self.around[ids[-1]]
        return truncate_row(ids, self.max_length) if ends else ids[: self.max_length]

    def negatives(self, features: Features, pad_id: int | None = None) -> Batch:
        """With `identities`, leaves out hard negatives that are translations in the batch, already candidates."""
        if self.identities:
            targets = {feature["target_text"] for feature in features}
            hard = [zip(f["negative_ids"], f["negative_text"], strict=True) for f in features if f.get("negative_ids")]
            features = [{"negative_ids": [ids for ids, text in row if text not in targets]} for row in hard]
        return super().negatives(features, pad_id)

    def _mask_single(
        self, ids: np.ndarray, mask: np.ndarray, epochs: np.ndarray, examples: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Masks one token on one side of each pair, side and position drawn uniformly."""
        pairs = len(examples)
        side = counter_uniform(self.seed, epochs, examples, 0) < 0.5
        rows = np.arange(pairs) + np.where(side, 0, pairs)
        candidates = mask[rows] & ~self.avoided[ids[rows]]
        for more in (mask[rows] & ~self.around[ids[rows]], mask[rows]):
            candidates = np.where(candidates.any(1, keepdims=True), candidates, more)
        chosen = (counter_uniform(self.seed, epochs, examples, 1) * candidates.sum(1)).astype(np.int64)
        column = (candidates.cumsum(1) == (chosen + 1)[:, None]).argmax(1)
        hidden = np.full(len(ids), IGNORE, dtype=np.int64)
        hidden[rows] = ids[rows, column]
        masked = ids.copy()
        masked[rows, column] = self.mask_id
        return masked, hidden

    def _mask_many(
        self, ids: np.ndarray, mask: np.ndarray, epochs: np.ndarray, examples: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """BERT's masking of both sides."""
        rows, width = ids.shape
        side = np.repeat([0, 1], rows // 2)[:, None]
        # The first two draws of an example belong to `single`.
        position = 2 + np.arange(width)[None, :] * 2 + side
        return self.masks(ids, mask & ~self.around[ids], np.tile(epochs, 2), np.tile(examples, 2), position)


class CmlmCollator(_Padding):
    """Builds the inputs of `CmlmModel` from consecutive sentences: a sentence, and its masked neighbour.

    Features are those of `PreparedRunningText`. Half of the pairs are swapped, so that a sentence is predicted from the
    one before it or from the one after it (section 3).

    Args:
        mlm_probability: Share of the second sentence's tokens that are masked, exact but for rounding, at least one;
            80/10/10 as in BERT. Special tokens are never masked.
        seed: Determines order and masks, together with example and epoch.
        max_length: Sentences are truncated to this many tokens; the last token is kept.

    Returns:
        `first_input_ids`, `first_attention_mask`, `(batch, length)`; `second_input_ids`, `second_attention_mask` and
        `labels`, `(batch, second_length)`, -100 where nothing is masked; all int64.

    Examples:
        >>> from hf_xlsr.data.tokenization import train_tokenizer
        >>> tokenizer = train_tokenizer(["the cat sat", "the dog ran"] * 50, vocab_size=20, algorithm="bpe")
        >>> pair = {"first_ids": [5, 6], "second_ids": [7, 8, 9, 10], "index": 0, "epoch": 0}
        >>> batch = CmlmCollator(tokenizer, mlm_probability=0.5)([pair])
        >>> int((batch["labels"] != -100).sum()) in (1, 2)  # half of either side
        True
    """

    def __init__(
        self,
        tokenizer: Any,
        *,
        mlm_probability: float = 80 / 256,
        seed: int = 1,
        max_length: int = 256,
        **padding: Any,
    ) -> None:
        super().__init__(tokenizer.pad_token_id, max_length=max_length, **padding)
        self.masks, self.seed = MaskDrawer(tokenizer, probability=mlm_probability, seed=seed, exact=True), seed

    def __call__(self, features: Features) -> Batch:
        keys = _keys(features)
        # The first draw of an example is its order; three draws per position follow.
        swapped = counter_uniform(self.seed, *keys, 0) < 0.5
        turned = [
            {"first_ids": feature["second_ids"], "second_ids": feature["first_ids"]} if turn else feature
            for feature, turn in zip(features, swapped, strict=True)
        ]
        batch = {**self.side(turned, "first"), **self.side(turned, "second")}
        batch["second_input_ids"], batch["labels"] = self.masked(self.masks, batch, "second_", keys, 1)
        if (batch["labels"] == IGNORE).all():
            raise XlsrError(
                "no token of a batch can be masked. Use a tokenizer that supports the script of data.text."
            )
        return batch


class HictlCollator(_Padding):
    """Builds the inputs of `HictlForPreTraining` from pairs and single sentences (features with `text_ids`).

    Section 3.1: for a pair, y is the translation; for a single sentence it is x with its tokens in another order (the
    paper does not say how far they move; here all orders are equally likely). The language model sees
    `[CLS] x [SEP] y [SEP]` of a pair (TLM) and `[CLS] x [SEP]` of a single sentence (MLM), since the reordering would
    show the masked tokens. Everything random follows from seed, epoch and example.

    Args:
        tokenizer: Frames a sentence by a special token on each side.
        mlm_probability: Share of masked tokens, 80/10/10 as in BERT; special tokens are never masked.
        max_length: Sentences, and both together, are truncated to this many tokens.

    Returns:
        `input_ids` and `attention_mask`, `(2 * batch, length)`, all x and then all y; `lm_input_ids`,
        `lm_attention_mask` and `lm_labels`, `(batch, lm_length)`; and `joint_input_ids` and
        `joint_attention_mask`, both sentences unmasked, whose tokens are the bag of words, `(batch, joint_length)`. If
        rows have hard negatives (`negative_ids`), also `negative_input_ids` and `negative_attention_mask`,
        `(negatives, negative_length)`.
    """

    def __init__(
        self, tokenizer: Any, *, mlm_probability: float = 0.15, seed: int = 1, max_length: int = 128, **padding: Any
    ) -> None:
        framed, special = tokenizer("a")["input_ids"], set(tokenizer.all_special_ids)
        if len(framed) < 3 or framed[0] not in special or framed[-1] not in special:
            raise XlsrError(
                "hierarchical contrast needs special tokens around a sentence; set tokenizer.frame to true."
            )
        super().__init__(tokenizer.pad_token_id, max_length=max_length, **padding)
        self.masks, self.seed = MaskDrawer(tokenizer, probability=mlm_probability, seed=seed), seed

    def __call__(self, features: Features) -> Batch:
        first, second, both, seen = [], [], [], []
        for feature in features:
            paired = "target_ids" in feature
            x = list(self.truncated(feature["source_ids"] if paired else feature["text_ids"]))
            y = list(self.truncated(feature["target_ids"])) if paired else self._reordered(x, feature)
            first.append(x)
            second.append(y)
            both.append(join_sides(x, y, self.max_length))
            seen.append(both[-1] if paired else x)
        batch = {**self.padded(first + second), **self.padded(both, "joint_"), **self.padded(seen, "lm_")}
        draws = _keys(features), _FIRST_MASK_DRAW
        batch["lm_input_ids"], batch["lm_labels"] = self.masked(self.masks, batch, "lm_", *draws)
        return {**batch, **self.negatives(features)}

    def _reordered(self, ids: list[int], feature: Feature) -> list[int]:
        """The tokens between the special ones in an order that depends on the example and the epoch."""
        inner = np.array(ids[1:-1])
        draws = counter_uniform(self.seed, feature["epoch"], np.array(feature["index"]), np.arange(len(inner)))
        return [ids[0], *inner[np.argsort(draws)].tolist(), ids[-1]]


class _LanguageSides(_Padding):
    """Pads the sides of pairs; `pad_ids` is one padding token, or maps each language to that of its encoder."""

    def __init__(self, pad_ids: Mapping[str, int] | int, *, max_length: int = 200, **padding: Any) -> None:
        self.pad_ids = None if isinstance(pad_ids, int) else dict(pad_ids)
        super().__init__(pad_ids if isinstance(pad_ids, int) else 0, max_length=max_length, **padding)

    def pad_of(self, language: str) -> int:
        return self.pad_id if self.pad_ids is None else self.pad_ids[language]


class DualCollator(_LanguageSides):
    """Pads the sources and the targets of one language pair separately, for one encoder each.

    Features are those of `PreparedPairs`; `pad_ids` maps languages to their padding tokens.

    Returns:
        `source_input_ids`, `source_attention_mask`, `target_input_ids`, `target_attention_mask`, each
        `(batch, length)` with a length a side, int64; `source_texts`, `target_texts` (equal for equal texts) and
        `examples` (number of the pair in the data), each `(batch,)`, int64; `source_lang` and `target_lang`. If rows have
        hard negatives (`negative_ids` and `negative_text`, in the language of the target), also `negative_input_ids` and
        `negative_attention_mask`, `(negatives, length)`, and `negative_texts`, `(negatives,)`.
    """

    def __call__(self, features: Features) -> Batch:
        source, target = _only({(feature["source_lang"], feature["target_lang"]) for feature in features})
        batch = self.negatives(features, self.pad_of(target))
        if batch:
            texts = [text for feature in features for text in feature.get("negative_text") or ()]
            batch["negative_texts"] = torch.tensor(texts)
        return {
            **batch,
            **self.side(features, "source", self.pad_of(source)),
            **self.side(features, "target", self.pad_of(target)),
            "source_texts": _stacked(features, "source_text"),
            "target_texts": _stacked(features, "target_text"),
            "examples": _stacked(features, "index"),
            "source_lang": source,
            "target_lang": target,
        }


class NliCollator(_LanguageSides):
    """Pads premises and hypotheses, all of one language where each has its own encoder and `pad_ids` is a mapping.

    Returns:
        `premise_input_ids`, `premise_attention_mask`, `hypothesis_input_ids`, `hypothesis_attention_mask`, each
        `(batch, length)` with a length a side, int64; `labels`, `(batch,)`, int64; `lang`, where languages have an
        encoder each.
    """

    def __call__(self, features: Features) -> Batch:
        languages: Batch = {}
        if self.pad_ids is not None:
            (languages["lang"],) = _only({(feature["lang"],) for feature in features})
        pad_id = self.pad_of(languages.get("lang", ""))
        sides = {**self.side(features, "premise", pad_id), **self.side(features, "hypothesis", pad_id)}
        return {**sides, "labels": _stacked(features, "label"), **languages}


def _only(languages: set[tuple[str, ...]]) -> tuple[str, ...]:
    if len(languages) > 1:
        found = ", ".join(sorted(map("-".join, languages)))
        raise XlsrError(
            f"a batch must be in the languages of its encoders, got {found}; set homogeneous_batches to true."
        )
    return languages.pop()


class LabelledCollator(_Padding):
    """Pads rows of `input_ids` on the right, to a multiple of `pad_to_multiple_of` but at most `max_length` tokens.

    Returns:
        `input_ids`, `attention_mask` and, if the rows have them, `token_type_ids`, each `(batch, length)`, int64; if the
        rows have labels also `labels`, `(batch,)`, int64 for classes and float32 for scores.
    """

    def __call__(self, features: Features) -> Batch:
        batch = self.padded([feature["input_ids"] for feature in features])
        if "token_type_ids" in features[0]:
            types = self.padded([feature["token_type_ids"] for feature in features], pad_id=0)
            batch["token_type_ids"] = types["input_ids"]
        if "label" in features[0]:
            batch["labels"] = _stacked(features, "label")
        return batch


class TranslationCollator(_Padding):
    """Pads sources and targets of pairs, each side separately.

    Features are those of `PreparedPairs`, tokenised with a special token before and after each sentence. The first token
    of a target is not a label: the decoder starts with it.

    Returns:
        `input_ids` and `attention_mask`, `(batch, length)`; `labels`, `(batch, target length)`, -100 on padding; int64.
    """

    def __call__(self, features: Features) -> Batch:
        batch = self.padded([self.truncated(feature["source_ids"]) for feature in features])
        targets = [self.truncated(feature["target_ids"])[1:] for feature in features]
        return {**batch, "labels": self.padded(targets, pad_id=IGNORE)["input_ids"]}
