"""Training a multilingual subword tokenizer, and trimming a vocabulary to the tokens of some text."""

from __future__ import annotations

import hashlib
import json
import re
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice, pairwise, product, repeat
from pathlib import Path
from typing import Any

import numpy as np
from datasets import Dataset
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from hf_xlsr.utils.auto_classes import load_auto
from hf_xlsr.utils.errors import XlsrError, error_line, require_choice
from hf_xlsr.utils.hashing import address_of, address_of_rows, cached

PAD, UNK, MASK = "<pad>", "<unk>", "<mask>"
FRAME = ("<s>", "</s>")
ALGORITHMS = ("unigram", "bpe")
# Options of `train_tokenizer` in a recipe.
TOKENIZER_OPTIONS = ("vocab_size", "algorithm", "lowercase", "frame")
# Changes with the tokenizer that the same rows and options give.
TRAINING_VERSION = 1
# Each mark separately, except ▁, which stands for a space and is a symbol in Unicode.
PUNCTUATION_SPLIT = Regex(r"(?!▁)[\p{P}\p{S}]")
# Difference between the scores that the unigram trainer gives to letters of unknown frequency.
LETTER_STEP = 1e-4
# Digits of a score that are kept: SentencePiece's float32 has no more, and the digits that vary come later.
SCORE_DIGITS = 6
BATCH = 1000
TRIMMED_MODELS = ("Unigram", "WordPiece", "BPE", "WordLevel")
# Prefix of a token that begins a word (SentencePiece), or that does not (WordPiece).
MARKS = ("▁", "##")


def smoothed_shares(sizes: Mapping[Any, int], exponent: float = 0.3) -> dict[Any, float]:
    r"""Sampling shares `q_l = n_l^\alpha / \sum_k n_k^\alpha` of languages of different sizes; an exponent of 0 is equal.

    Examples:
        >>> {k: round(v, 3) for k, v in smoothed_shares({"en": 1000, "sw": 10}, 0.3).items()}
        {'en': 0.799, 'sw': 0.201}
    """
    powers: dict[Any, float] = {}
    for name, size in sizes.items():
        powers[name] = size**exponent if size else 0.0
    total = sum(powers.values()) or 1.0
    return {name: power / total for name, power in powers.items()}


def smoothed_text(
    texts: Iterable[tuple[str, str]],
    sizes: Mapping[str, int],
    *,
    exponent: float = 0.3,
    limit: int = 2_000_000,
    seed: int = 1,
) -> Iterator[str]:
    """Draws training text for a tokenizer with smoothed shares of the languages, language by language.

    Large languages are subsampled, small ones repeated. The total is the size of all text, at most `limit` sentences. The
    text, pairs of language and sentence in any order, is held in memory and read once.
    """
    total = min(sum(sizes.values()), limit)
    samples: dict[str, _Sample] = {}
    num_before = 0
    for language, share in smoothed_shares(sizes, exponent).items():
        size = sizes[language]
        if size:
            passes, rest = divmod(share * total, size)
            # One random stream for all languages, one number per sentence.
            rng = np.random.Generator(np.random.PCG64(seed).advance(num_before))
            samples[language] = _Sample(int(passes), rest / size, rng)
            num_before += size

    for language, text in texts:
        samples[language].add(text)
    for sample in samples.values():
        yield from chain(*repeat(sample.every, sample.passes), sample.some)


@dataclass
class _Sample:
    """The sentences drawn of a language: each of `every` once per pass, and each of `some` once."""

    passes: int
    chance: float
    rng: np.random.Generator
    every: list[str] = field(default_factory=list)
    some: list[str] = field(default_factory=list)

    def add(self, text: str) -> None:
        if self.passes:
            self.every.append(text)
        if self.rng.random() < self.chance:
            self.some.append(text)


def train_tokenizer(
    texts: Iterable[str],
    *,
    vocab_size: int = 50_000,
    algorithm: str = "unigram",
    lowercase: bool = True,
    max_length: int = 200,
    frame: bool = False,
) -> PreTrainedTokenizerFast:
    """Trains a joint subword vocabulary and wraps it as a fast tokenizer.

    Text is normalised by NFKC (and lower-cased), split at spaces with SentencePiece's `▁` mark, and every punctuation
    character is a separate token. The same text gives the same tokens, ids and scores.

    Args:
        texts: Sentences of all languages; see `smoothed_text` for several.
        vocab_size: Vocabulary size, special tokens included. 50,000 is that of the lightweight paper.
        algorithm: `unigram` or `bpe`.
        max_length: `model_max_length` of the tokenizer.
        frame: Put `<s>` before and `</s>` after each sentence, and `</s>` after each of two, for models whose sentence
            embedding is the first state.

    Returns:
        A tokenizer with `<pad>` 0, `<unk>` 1 and `<mask>` 2, then `<s>` and `</s>` with `frame`; padding on the right.

    Examples:
        >>> tokenizer = train_tokenizer(["the cat sat", "le chat dort"] * 50, vocab_size=20, algorithm="bpe")
        >>> tokenizer.convert_tokens_to_ids("<mask>")
        2
    """
    require_choice("algorithm", algorithm, ALGORITHMS)
    names = [PAD, UNK, MASK]
    if frame:
        names += FRAME
    special = [AddedToken(name, special=True, normalized=False) for name in names]
    options: dict[str, Any] = {"vocab_size": vocab_size, "special_tokens": special, "show_progress": False}
    if algorithm == "unigram":
        tokenizer = Tokenizer(models.Unigram())
        trainer: Any = trainers.UnigramTrainer(unk_token=UNK, **options)
    else:
        tokenizer = Tokenizer(models.BPE(unk_token=UNK))
        trainer = trainers.BpeTrainer(**options)

    steps: list[Any] = [normalizers.NFKC()]
    if lowercase:
        steps.append(normalizers.Lowercase())
    tokenizer.normalizer = normalizers.Sequence(steps)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Metaspace(), pre_tokenizers.Split(PUNCTUATION_SPLIT, behavior="isolated")]
    )
    tokenizer.decoder = decoders.Metaspace()

    tokenizer.train_from_iterator(texts, trainer)
    if algorithm == "unigram":
        tokenizer.model = _reproducible_model(tokenizer, len(special))

    roles = {"pad_token": PAD, "unk_token": UNK, "mask_token": MASK}
    if frame:
        start, end = FRAME
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{start} $A {end}",
            pair=f"{start} $A {end} $B {end}",
            special_tokens=[(token, tokenizer.token_to_id(token)) for token in FRAME],
        )
        roles |= {"cls_token": start, "bos_token": start, "sep_token": end, "eos_token": end}
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        **roles,
        model_max_length=max_length,
        padding_side="right",
        truncation_side="right",
        model_input_names=["input_ids", "attention_mask"],
    )


def _reproducible_model(tokenizer: Tokenizer, num_special: int) -> models.Unigram:
    """The trained unigram model with reproducible order and scores, after its `num_special` first tokens.

    The order of hash tables differs between processes. It changes the last digits of the trainer's sums, and the scores
    of letters in no learned token, which are one step apart.
    """
    model = json.loads(tokenizer.to_str())["model"]
    scores = dict(model["vocab"][num_special:])

    lowest = min(scores.values(), default=0.0)
    letters = [token for token in sorted(scores) if len(token) == 1]
    steps_of: dict[str, int] = {}
    for letter in letters:
        steps = (scores[letter] - lowest) / LETTER_STEP
        if steps < len(letters) and abs(steps - round(steps)) < 1e-6:
            steps_of[letter] = round(steps)
    for letter, rank in zip(steps_of, sorted(steps_of.values()), strict=True):
        scores[letter] = lowest + rank * LETTER_STEP

    negative_scores = [(-round(score, SCORE_DIGITS), token) for token, score in scores.items()]
    vocab = list(map(tuple, model["vocab"][:num_special]))
    for negative_score, token in sorted(negative_scores):
        vocab.append((token, -negative_score))
    return models.Unigram(vocab, model["unk_id"], model["byte_fallback"])


def punctuation_ids(tokenizer: Any) -> np.ndarray:
    """Tokens without a letter or digit: True for punctuation and special tokens, `(vocabulary,)`."""
    tokens = tokenizer.convert_ids_to_tokens(list(range(len(tokenizer))))
    has_no_letter = np.array([not any(map(str.isalnum, token)) for token in tokens], dtype=bool)
    has_no_letter[tokenizer.all_special_ids] = True
    return has_no_letter


def trim_vocabulary(
    tokenizer: Any,
    texts: Iterable[str],
    *,
    vocab_size: int | None = None,
    always: Iterable[int] = (),
) -> tuple[Any, list[int]]:
    """A tokenizer with the tokens that occur in texts of all languages; it splits these texts like the original.

    Special tokens are kept, and the single letters of the kept tokens, so that other words in the same scripts are split
    into smaller tokens; letters of other scripts become the unknown token.

    Args:
        tokenizer: A fast one: Unigram (XLM-R, E5), WordPiece (multilingual BERT), BPE (ModernBERT, Llama) or WordLevel.
        vocab_size: Number of tokens to keep, the most frequent ones: words with a rarer token are then split into
            smaller tokens. Letters, special tokens and the parts of BPE tokens are always kept.
        always: Token ids that are kept first.

    Returns:
        The new tokenizer, of the same class and with the same options, and the old ids of its tokens in the new order:
        the rows of the embedding table to keep.

    Examples:
        >>> whole = train_tokenizer(["red birds", "blue fish", "old stone"] * 50, vocab_size=18)
        >>> small, ids = trim_vocabulary(whole, ["red birds"])
        >>> whole.convert_ids_to_tokens(ids) == small.convert_ids_to_tokens(range(len(small)))
        True
    """
    if not getattr(tokenizer, "is_fast", False):
        raise XlsrError(f"the tokenizer must be a fast one, got a {type(tokenizer).__name__}.")
    spec = json.loads(tokenizer.backend_tokenizer.to_str())
    require_choice("tokenizer model", spec["model"]["type"], TRIMMED_MODELS)

    first = Counter(always)
    used = _used_tokens(tokenizer, texts)
    if not used:
        raise XlsrError("the sources of the vocabulary have no text.")
    rows = sorted(_tokens_to_keep(tokenizer, spec, first, first + used, vocab_size))

    new_ids = {old: new for new, old in enumerate(rows)}
    spec["model"] = _trimmed_model(spec["model"], new_ids)
    for token in spec["added_tokens"]:
        token["id"] = new_ids[token["id"]]
    _renumber(spec["post_processor"], new_ids)
    spec["padding"] = None
    spec["truncation"] = None
    return _of_same_class(Tokenizer.from_str(json.dumps(spec)), tokenizer), rows


def _of_same_class(backend: Tokenizer, original: Any) -> Any:
    """A tokenizer like the one that its backend was made from, of its class if that loads the backend as it is."""
    with tempfile.TemporaryDirectory() as folder:
        original.save_pretrained(folder)
        backend.save(str(Path(folder) / "tokenizer.json"))
        tokenizer = load_auto(type(original), folder)
    tokenizer.name_or_path = original.name_or_path
    forget_loading(tokenizer)

    specs = [json.loads(spec) for spec in (tokenizer.backend_tokenizer.to_str(), backend.to_str())]
    return tokenizer if specs[0] == specs[1] else _fast_tokenizer(backend, original)


def _fast_tokenizer(backend: Tokenizer, original: Any, **changes: Any) -> PreTrainedTokenizerFast:
    """A tokenizer with the length, sides and special tokens of the one that its backend was made from, but for `changes`.

    Classes of single models would make their own backend when they are loaded.
    """
    options = {
        "model_max_length": original.model_max_length,
        "padding_side": original.padding_side,
        "truncation_side": original.truncation_side,
        "chat_template": getattr(original, "chat_template", None),
        **original.special_tokens_map,
    }
    return PreTrainedTokenizerFast(tokenizer_object=backend, **{**options, **changes})


def prompting_tokenizer(tokenizer: Any, prompt: str, *, pairs: bool = False) -> PreTrainedTokenizerFast:
    """A copy of a fast tokenizer that puts a prompt before every text.

    With `pairs`, both texts of a pair are framed like single texts, the second has the token type 1, and the length is
    that of two texts.

    Raises:
        XlsrError: The tokenizer is not a fast one, or would read the prompt in another way.

    Examples:
        >>> plain = train_tokenizer(["query red bird"] * 20, vocab_size=40, algorithm="bpe", frame=True)
        >>> prompting = prompting_tokenizer(plain, "query ")
        >>> prompting("red bird")["input_ids"] == plain("query red bird")["input_ids"]
        True
    """
    if not getattr(tokenizer, "is_fast", False):
        raise XlsrError(f"the tokenizer must be a fast one, got a {type(tokenizer).__name__}.")
    backend = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
    backend.no_truncation()  # each call sets these two
    backend.no_padding()
    if prompt:
        steps = [normalizers.Prepend(prompt)]
        if backend.normalizer is not None:
            steps.append(backend.normalizer)
        backend.normalizer = normalizers.Sequence(steps)

    changes: dict[str, Any] = {"model_input_names": list(tokenizer.model_input_names)}
    if pairs:
        backend.post_processor = _pair_frame(tokenizer)
        changes |= {
            "model_input_names": ["input_ids", "token_type_ids", "attention_mask"],
            "model_max_length": 2 * tokenizer.model_max_length,
        }

    prompting = _fast_tokenizer(backend, tokenizer, **changes)
    if prompting("a")["input_ids"] != tokenizer(f"{prompt}a")["input_ids"]:
        raise XlsrError(f"the tokenizer must read the prompt {prompt!r} as text; it may hold no special token.")
    return prompting


def _pair_frame(tokenizer: Any) -> processors.TemplateProcessing:
    """A frame of both texts of a pair, each as the tokenizer frames a single text."""
    encoded = tokenizer("a", return_special_tokens_mask=True)
    ids = encoded["input_ids"]
    is_special = encoded["special_tokens_mask"]
    start = is_special.index(0)
    end = len(ids) - is_special[::-1].index(0)

    names = tokenizer.convert_ids_to_tokens(ids)
    first = [*names[:start], "$A", *names[end:]]
    second = [*names[:start], "$B", *names[end:]]
    pair = [f"{piece}:0" for piece in first] + [f"{piece}:1" for piece in second]
    special_tokens = [(names[number], ids[number]) for number in (*range(start), *range(end, len(ids)))]
    return processors.TemplateProcessing(single=first, pair=pair, special_tokens=list(dict.fromkeys(special_tokens)))


def _tokens_to_keep(
    tokenizer: Any,
    spec: Mapping[str, Any],
    first: Iterable[int],
    used: Counter[int],
    vocab_size: int | None,
) -> set[int]:
    """Special tokens, single letters, and the tokens `first` and `used` as far as there is room for them."""
    model = spec["model"]
    unknown = model["unk_id"] if "unk_id" in model else model["vocab"].get(model.get("unk_token"))
    tokens = set(tokenizer.all_special_ids) | {token["id"] for token in spec["added_tokens"]}
    if unknown is not None:
        tokens.add(unknown)
    pad = tokenizer.pad_token_id or 0
    if pad < len(tokens):  # RoBERTa's positions start after it, one of the first tokens
        tokens |= set(range(pad + 1))

    names = tokenizer.convert_ids_to_tokens(range(len(tokenizer)))
    letters = set(chain.from_iterable(names[token] for token in used))
    marked_letters = set(map("".join, product(("", *MARKS), letters)))
    byte_level = "ByteLevel" in json.dumps(spec["pre_tokenizer"])
    for token, name in enumerate(names):
        is_byte = re.fullmatch("<0x[0-9A-F]{2}>", name) or (byte_level and len(name) == 1)
        if is_byte or name in marked_letters:
            tokens.add(token)

    ranks = {pair: rank for rank, pair in enumerate(_merges(model))}
    by_frequency = sorted(used, key=used.__getitem__, reverse=True)
    for token in (*first, *by_frequency):
        needed = {token}
        if ranks:
            merged_names = _merged(names[token], ranks) & model["vocab"].keys()
            needed.update(map(model["vocab"].__getitem__, merged_names))
        needed -= tokens
        if vocab_size is None or len(tokens) + len(needed) <= vocab_size:
            tokens |= needed

    return tokens


def _trimmed_model(model: Mapping[str, Any], new_ids: Mapping[int, int]) -> dict[str, Any]:
    """The model of a tokenizer with the tokens in `new_ids` (old id -> new id, in the order of both)."""
    if model["type"] == "Unigram":
        vocab = [model["vocab"][old] for old in new_ids if old < len(model["vocab"])]
        return {**model, "unk_id": new_ids.get(model["unk_id"]), "vocab": vocab}

    vocab_ids = {name: new_ids[old] for name, old in model["vocab"].items() if old in new_ids}
    trimmed = {**model, "vocab": vocab_ids}
    if model["type"] == "BPE":
        merges = _merges(model)
        trimmed["merges"] = [
            (left, right) for left, right in merges if {left, right, left + right} <= vocab_ids.keys()
        ]
    return trimmed


def _merges(model: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The merges of a BPE model; none of another one."""
    return list(map(tuple, model.get("merges", ())))


def _merged(name: str, ranks: Mapping[tuple[str, str], int]) -> set[str]:
    """The tokens that a BPE tokenizer makes on its way to a token, which cannot be made without them."""
    symbols = list(name)
    tokens = {name}
    while True:
        pair_ranks = [ranks.get(pair, len(ranks)) for pair in pairwise(symbols)]
        best = min(pair_ranks, default=len(ranks))
        if best == len(ranks):
            return tokens
        position = pair_ranks.index(best)
        symbols[position : position + 2] = ["".join(symbols[position : position + 2])]
        tokens.add(symbols[position])


def _used_tokens(tokenizer: Any, texts: Iterable[str]) -> Counter[int]:
    used: Counter[int] = Counter()
    stream = iter(texts)
    for batch in iter(lambda: list(islice(stream, BATCH)), []):
        ids = tokenizer(batch, add_special_tokens=False, return_attention_mask=False, verbose=False)["input_ids"]
        used.update(chain.from_iterable(ids))
    return used


def _renumber(processor: Any, new_ids: Mapping[int, int]) -> None:
    """Sets the new ids of the special tokens of a post-processor."""
    processor = processor or {}
    for step in processor.get("processors", ()):
        _renumber(step, new_ids)
    for token in processor.get("special_tokens", {}).values():
        token["ids"] = [new_ids[old] for old in token["ids"]]
    for end in {"cls", "sep"} & processor.keys():
        name, old = processor[end]
        processor[end] = [name, new_ids[old]]


def tokenizer_hash(tokenizers: Any) -> str | None:
    """A short hash of what one tokenizer makes of text, or one for each language; None for None."""
    if tokenizers is None:
        return None
    by_language = tokenizers if isinstance(tokenizers, Mapping) else {"": tokenizers}
    states: dict[int, Any] = {}
    states_by_language = []
    for language in sorted(by_language):
        tokenizer = by_language[language]
        if id(tokenizer) not in states:  # languages may share a tokenizer, whose state takes long
            states[id(tokenizer)] = _tokenizer_state(tokenizer)
        states_by_language.append((language, states[id(tokenizer)]))
    return address_of(states_by_language)


def _tokenizer_state(tokenizer: Any) -> Any:
    options = [tokenizer.model_input_names, tokenizer.truncation_side, tokenizer.special_tokens_map]
    if hasattr(tokenizer, "message_ids"):  # the template of messages frames a text
        options.append(tokenizer.chat_template)
    if not tokenizer.is_fast:
        return type(tokenizer).__name__, options, sorted(tokenizer.get_vocab().items())
    backend = tokenizer.backend_tokenizer
    backend.no_truncation()  # each call sets these two
    backend.no_padding()
    return options, hashlib.sha256(backend.to_str().encode()).hexdigest()


def check_tokenizer_files(tokenizer: Any) -> None:
    """Raises for a tokenizer without words: transformers makes one of its special tokens where the files are missing."""
    if tokenizer is not None and len(tokenizer.get_vocab()) - len(tokenizer.get_added_vocab()) <= 1:
        raise XlsrError("the files of the tokenizer are missing.")


def load_tokenizer(path: str, place: str = "tokenizer") -> Any:
    """The tokenizer of a folder or Hub id; `place` names the option in errors."""
    try:
        tokenizer = load_auto(AutoTokenizer, path)
        check_tokenizer_files(tokenizer)
    except (OSError, ValueError, KeyError) as error:
        raise XlsrError(f"`{place}`: no tokenizer loads from '{path}' ({error_line(error, 200)}).") from error
    forget_loading(tokenizer)
    return tokenizer


def forget_loading(tokenizer: Any) -> None:
    """Removes how a tokenizer was loaded, and code that its folder names, which its saved files would repeat."""
    for name in ("is_local", "local_files_only", "auto_map"):
        tokenizer.init_kwargs.pop(name, None)


def trained_tokenizer(
    rows: Dataset,
    options: Mapping[str, Any],
    *,
    columns: Sequence[tuple[str, str]] = (("text", "lang"),),
    max_length: int = 200,
    seed: int = 1,
) -> Any:
    """A tokenizer trained on stored rows, or found in the cache.

    Args:
        options: Of a recipe's `tokenizer` section, see `smoothed_text` and `train_tokenizer`.
        columns: Each text column with its language column.
    """

    def make(folder: Path) -> None:
        sizes: Counter[str] = Counter()
        for batch in rows.select_columns([language for _, language in columns]).iter(batch_size=10_000):
            for languages in batch.values():
                sizes.update(languages)
        texts = smoothed_text(
            _texts_with_languages(rows, columns),
            dict(sorted(sizes.items())),
            exponent=options.get("smoothing", 0.3),
            seed=seed,
        )
        training = {name: options[name] for name in TOKENIZER_OPTIONS if name in options}
        train_tokenizer(texts, **training, max_length=max_length).save_pretrained(str(folder))

    facts = [TRAINING_VERSION, address_of_rows(rows), dict(options), columns, max_length, seed]
    return load_auto(AutoTokenizer, str(cached(address_of(facts), make)))


def _texts_with_languages(rows: Dataset, columns: Sequence[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    for batch in rows.iter(batch_size=1_000):
        for text, language in columns:
            yield from zip(batch[language], batch[text], strict=True)
