"""Collators: from examples to truncated, padded and masked batches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np
import torch

from hf_xlsr.data.label_tasks import check_framing
from hf_xlsr.data.masking import MaskDrawer, counter_uniform, mask_token_id
from hf_xlsr.data.tokenization import punctuation_ids
from hf_xlsr.losses.cross_entropy import IGNORE
from hf_xlsr.utils.errors import XlsrError

Feature = Mapping[str, Any]
Features = Sequence[Feature]
Batch = dict[str, Any]
Keys = tuple[np.ndarray, np.ndarray]
"""Epoch and index of each example, on which its random draws depend."""

# Draws of an example of HICTL below this number order its tokens; those above choose masks.
_FIRST_MASK_DRAW = 4096


def truncate_row(ids: Sequence[int], max_length: int) -> Sequence[int]:
    """A row of at most `max_length` ids that keeps its last id."""
    return ids if len(ids) <= max_length else [*ids[: max_length - 1], ids[-1]]


def pad_rows(
    rows: Sequence[Sequence[int]],
    pad_id: int | None,
    multiple_of: int = 1,
    limit: int | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Pads rows of ids on the right: ids and attention mask, both `(rows, length)`, int64.

    The rounded length is at most `limit`, unless a row is longer: an encoder may have no more positions. Without a
    padding token any other one will do, since the mask hides it.
    """
    lengths = np.array(list(map(len, rows)))
    longest = int(lengths.max(initial=1))
    width = -(-longest // multiple_of) * multiple_of
    if limit is not None:
        width = max(longest, min(width, limit))

    is_token = np.arange(width) < lengths[:, None]
    ids = np.full((len(rows), width), pad_id or 0, dtype=np.int64)
    ids[is_token] = np.fromiter(chain.from_iterable(rows), np.int64)
    return ids, is_token.astype(np.int64)


def join_sides(
    source: Sequence[int],
    target: Sequence[int],
    max_length: int,
) -> list[int]:
    """`[CLS] x [SEP] y [SEP]` of `[CLS] x [SEP]` and `[CLS] y [SEP]`.

    If both do not fit, tokens are removed one by one from the end of the longer one, before its last.
    """
    first = list(source)
    second = list(target[1:])
    while len(first) + len(second) > max_length and max(len(first), len(second)) > 2:
        longer = max(first, second, key=len)
        longer.pop(-2)
    return first + second


def _stacked(features: Features, column: str) -> torch.Tensor:
    return torch.tensor([feature[column] for feature in features])


def _keys(features: Features) -> Keys:
    return _stacked(features, "epoch").numpy(), _stacked(features, "index").numpy()


def _arrays(batch: Batch, prefix: str = "") -> tuple[np.ndarray, np.ndarray]:
    """Ids of a batch, and which of them are no padding."""
    return batch[f"{prefix}input_ids"].numpy(), batch[f"{prefix}attention_mask"].numpy() == 1


class _Padding:
    """Truncates rows to `max_length` ids and pads them to a multiple of `pad_to_multiple_of` (8 suits tensor cores).

    `pad_id` is the padding token; where each language has an encoder of its own, that of each.
    """

    masks: MaskDrawer

    def __init__(
        self,
        pad_id: int | Mapping[str, int],
        *,
        max_length: int = 200,
        pad_to_multiple_of: int = 1,
    ) -> None:
        self.pad_id: Any = pad_id
        self.max_length = max_length
        self.pad_to_multiple_of = pad_to_multiple_of

    def truncated(self, ids: Sequence[int]) -> Sequence[int]:
        return truncate_row(ids, self.max_length)

    def column(self, features: Features, name: str) -> list[Sequence[int]]:
        """The texts of a column of ids, truncated."""
        return [self.truncated(feature[name]) for feature in features]

    def padded(
        self,
        rows: Sequence[Sequence[int]],
        prefix: str = "",
        pad_id: int | None = None,
    ) -> Batch:
        """`PREFIXinput_ids` and `PREFIXattention_mask`, `(rows, length)`, int64."""
        if pad_id is None:
            pad_id = self.pad_id
        ids, mask = pad_rows(rows, pad_id, self.pad_to_multiple_of, self.max_length)
        return {f"{prefix}input_ids": torch.from_numpy(ids), f"{prefix}attention_mask": torch.from_numpy(mask)}

    def side(
        self,
        features: Features,
        name: str,
        pad_id: int | None = None,
    ) -> Batch:
        """The texts of a column `NAME_ids`, truncated and padded."""
        return self.padded(self.column(features, f"{name}_ids"), f"{name}_", pad_id)

    def negatives(self, features: Features, pad_id: int | None = None) -> Batch:
        """The hard negatives of all rows, row by row; rows may have any number of them."""
        rows = chain.from_iterable(feature.get("negative_ids") or () for feature in features)
        truncated = list(map(self.truncated, rows))
        return self.padded(truncated, "negative_", pad_id) if truncated else {}

    def masked(
        self,
        batch: Batch,
        prefix: str,
        features: Features,
        first_draw: int,
    ) -> Batch:
        """`PREFIXinput_ids` of a batch with masks drawn by `masks`, and `labels`. Special tokens are never masked."""
        ids, is_token = _arrays(batch, prefix)
        allowed = is_token & ~np.isin(ids, self.masks.special)
        positions = first_draw + np.arange(ids.shape[1])[None, :]

        masked_ids, labels = self.masks(ids, allowed, *_keys(features), positions)
        return {f"{prefix}input_ids": torch.from_numpy(masked_ids), "labels": torch.from_numpy(labels)}


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
        self.masking = masking
        self.seed = seed
        self.identities = identities

        # The unknown token represents text, the other special tokens frame it.
        framing = set(tokenizer.all_special_ids) - {tokenizer.unk_token_id}
        self.around = np.isin(np.arange(len(tokenizer)), list(framing))
        self.avoided = self.around if mask_punctuation else punctuation_ids(tokenizer)
        if masking == "mlm":
            self.masks = MaskDrawer(tokenizer, probability=mlm_probability, seed=seed)

    def __call__(self, features: Features) -> Batch:
        rows = self.column(features, "source_ids") + self.column(features, "target_ids")
        batch = {**self.padded(rows), **self.negatives(features)}
        batch["original_ids"] = batch["input_ids"]
        if self.masking == "single":
            masked = self._mask_single(*_arrays(batch), *_keys(features))
            batch["input_ids"], batch["masked_ids"] = map(torch.from_numpy, masked)
        elif self.masking == "mlm":
            masked = self._mask_many(*_arrays(batch), *_keys(features))
            batch["input_ids"], batch["mlm_labels"] = map(torch.from_numpy, masked)

        if self.identities:
            batch["identities"] = torch.stack([_stacked(features, "source_text"), _stacked(features, "target_text")])
        if "source" in features[0]:
            batch["source_texts"] = [feature["source"] for feature in features]
        return batch

    def truncated(self, ids: Sequence[int]) -> Sequence[int]:
        ends_in_special = len(ids) > 0 and self.around[ids[-1]]
        return truncate_row(ids, self.max_length) if ends_in_special else ids[: self.max_length]

    def negatives(self, features: Features, pad_id: int | None = None) -> Batch:
        """With `identities`, leaves out hard negatives that are translations in the batch, already candidates."""
        if not self.identities:
            return super().negatives(features, pad_id)

        targets = {feature["target_text"] for feature in features}
        new_negatives = []
        for feature in features:
            for ids, text in zip(feature.get("negative_ids") or (), feature.get("negative_text") or (), strict=True):
                if text not in targets:
                    new_negatives.append(ids)
        return super().negatives([{"negative_ids": new_negatives}], pad_id)

    def _mask_single(
        self,
        ids: np.ndarray,
        is_token: np.ndarray,
        epochs: np.ndarray,
        examples: np.ndarray,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Masks one token on one side of each pair, side and position drawn uniformly."""
        num_pairs = len(examples)
        masks_source = counter_uniform(self.seed, epochs, examples, 0) < 0.5
        rows = np.arange(num_pairs) + np.where(masks_source, 0, num_pairs)

        candidates = is_token[rows] & ~self.avoided[ids[rows]]
        for fallback in (is_token[rows] & ~self.around[ids[rows]], is_token[rows]):
            candidates = np.where(candidates.any(1, keepdims=True), candidates, fallback)

        draws = counter_uniform(self.seed, epochs, examples, 1)
        number = (draws * candidates.sum(1)).astype(np.int64)
        columns = (candidates.cumsum(1) == (number + 1)[:, None]).argmax(1)

        labels = np.full(len(ids), IGNORE, dtype=np.int64)
        labels[rows] = ids[rows, columns]
        masked_ids = ids.copy()
        masked_ids[rows, columns] = self.mask_id
        return masked_ids, labels

    def _mask_many(
        self,
        ids: np.ndarray,
        is_token: np.ndarray,
        epochs: np.ndarray,
        examples: np.ndarray,
    ) -> tuple[np.ndarray, np.ndarray]:
        """BERT's masking of both sides."""
        rows, width = ids.shape
        side = np.repeat([0, 1], rows // 2)[:, None]
        # The first two draws of an example belong to `single`.
        positions = 2 + np.arange(width)[None, :] * 2 + side
        allowed = is_token & ~self.around[ids]
        return self.masks(ids, allowed, np.tile(epochs, 2), np.tile(examples, 2), positions)


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
        pad_to_multiple_of: int = 1,
    ) -> None:
        super().__init__(tokenizer.pad_token_id, max_length=max_length, pad_to_multiple_of=pad_to_multiple_of)
        self.masks = MaskDrawer(tokenizer, probability=mlm_probability, seed=seed, exact=True)
        self.seed = seed

    def __call__(self, features: Features) -> Batch:
        first = self.column(features, "first_ids")
        second = self.column(features, "second_ids")
        # The first draw of an example is its order; three draws per position follow.
        is_swapped = counter_uniform(self.seed, *_keys(features), 0) < 0.5
        for number in np.flatnonzero(is_swapped):
            ids = first[number]
            first[number] = second[number]
            second[number] = ids

        batch = {**self.padded(first, "first_"), **self.padded(second, "second_")}
        batch |= self.masked(batch, "second_", features, first_draw=1)
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
        self,
        tokenizer: Any,
        *,
        mlm_probability: float = 0.15,
        seed: int = 1,
        max_length: int = 128,
        pad_to_multiple_of: int = 1,
    ) -> None:
        check_framing(tokenizer, 2)
        super().__init__(tokenizer.pad_token_id, max_length=max_length, pad_to_multiple_of=pad_to_multiple_of)
        self.masks = MaskDrawer(tokenizer, probability=mlm_probability, seed=seed)
        self.seed = seed

    def __call__(self, features: Features) -> Batch:
        first: list[Sequence[int]] = []
        second: list[Sequence[int]] = []
        joint: list[Sequence[int]] = []
        lm_rows: list[Sequence[int]] = []
        for feature in features:
            if "target_ids" in feature:
                x = self.truncated(feature["source_ids"])
                y = self.truncated(feature["target_ids"])
                lm_rows.append(join_sides(x, y, self.max_length))
            else:
                x = self.truncated(feature["text_ids"])
                y = self._reordered(x, feature)
                lm_rows.append(x)
            first.append(x)
            second.append(y)
            joint.append(join_sides(x, y, self.max_length))

        batch = {**self.padded(first + second), **self.padded(joint, "joint_"), **self.padded(lm_rows, "lm_")}
        batch |= self.masked(batch, "lm_", features, first_draw=_FIRST_MASK_DRAW)
        batch["lm_labels"] = batch.pop("labels")
        return {**batch, **self.negatives(features)}

    def _reordered(self, ids: Sequence[int], feature: Feature) -> list[int]:
        """The tokens between the special ones in an order that depends on the example and the epoch."""
        inner = np.array(ids[1:-1])
        draws = counter_uniform(self.seed, feature["epoch"], np.array(feature["index"]), np.arange(len(inner)))
        return [ids[0], *inner[np.argsort(draws)].tolist(), ids[-1]]


class DualCollator(_Padding):
    """Pads the sources and the targets of one language pair separately, for one encoder each.

    Features are those of `PreparedPairs`; `pad_id` maps languages to their padding tokens.

    Returns:
        `source_input_ids`, `source_attention_mask`, `target_input_ids`, `target_attention_mask`, each
        `(batch, length)` with a length a side, int64; `source_texts`, `target_texts` (equal for equal texts) and
        `examples` (the `index` of the pair), each `(batch,)`, int64; `source_lang` and `target_lang`. If rows have hard
        negatives (`negative_ids` and `negative_text`, in the language of the target), also `negative_input_ids` and
        `negative_attention_mask`, `(negatives, length)`, and `negative_texts`, `(negatives,)`.
    """

    def __call__(self, features: Features) -> Batch:
        source, target = _only({(feature["source_lang"], feature["target_lang"]) for feature in features})
        batch = self.negatives(features, self.pad_id[target])
        if batch:
            texts = chain.from_iterable(feature.get("negative_text") or () for feature in features)
            batch["negative_texts"] = torch.tensor(list(texts))

        return {
            **batch,
            **self.side(features, "source", self.pad_id[source]),
            **self.side(features, "target", self.pad_id[target]),
            "source_texts": _stacked(features, "source_text"),
            "target_texts": _stacked(features, "target_text"),
            "examples": _stacked(features, "index"),
            "source_lang": source,
            "target_lang": target,
        }


class NliCollator(_Padding):
    """Pads premises and hypotheses, all of one language where each has its own encoder and `pad_id` is a mapping.

    Returns:
        `premise_input_ids`, `premise_attention_mask`, `hypothesis_input_ids`, `hypothesis_attention_mask`, each
        `(batch, length)` with a length a side, int64; `labels`, `(batch,)`, int64; `lang`, where languages have an
        encoder each.
    """

    def __call__(self, features: Features) -> Batch:
        batch: Batch = {"labels": _stacked(features, "label")}
        pad_id = self.pad_id
        if isinstance(pad_id, Mapping):
            (batch["lang"],) = _only({(feature["lang"],) for feature in features})
            pad_id = pad_id[batch["lang"]]
        return {**self.side(features, "premise", pad_id), **self.side(features, "hypothesis", pad_id), **batch}


def _only(languages: set[tuple[str, ...]]) -> tuple[str, ...]:
    """The languages of all rows of a batch; an error if rows differ."""
    if len(languages) > 1:
        listed = ", ".join(sorted(map("-".join, languages)))
        raise XlsrError(
            f"a batch must be in the languages of its encoders, got {listed}; set homogeneous_batches to true."
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
        batch = self.padded(self.column(features, "source_ids"))
        labels = [ids[1:] for ids in self.column(features, "target_ids")]
        return {**batch, "labels": self.padded(labels, pad_id=IGNORE)["input_ids"]}
