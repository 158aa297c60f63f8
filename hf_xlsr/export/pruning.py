"""A smaller encoder from a large one: the tokens of some languages, and some of the layers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import WordWeights
from torch import nn

from hf_xlsr.data.encoding import token_ids
from hf_xlsr.data.prompts import PromptTable
from hf_xlsr.data.tokenization import trim_vocabulary
from hf_xlsr.encoders.assembly import SentenceEncoder, text_tokenizer
from hf_xlsr.encoders.encoding import embed
from hf_xlsr.encoders.reading import read_encoder
from hf_xlsr.encoders.static import tokenizer_of
from hf_xlsr.encoders.stock import encoder_from_config
from hf_xlsr.utils.errors import XlsrError

# One text of 50, drawn at random, at most 2,000 in all, measures what is lost and does not choose tokens.
HELD_OUT_SHARE = 0.02
MAX_HELD_OUT = 2000


def prune(
    model: SentenceTransformer,
    texts: Iterable[str],
    *,
    layers: Sequence[int] | None = None,
    vocab_size: int | None = None,
) -> tuple[SentenceTransformer, dict[str, Any]]:
    """Reduces the vocabulary of an encoder to the tokens of some texts, and drops layers.

    Without `layers` the embedding of a text changes only where its tokens do. With fewer layers the result is the
    starting point of a training, see `docs/distill.md`.

    Args:
        model: One encoder, also a static embedding, with any modules behind it, which stay as they are; unchanged.
        texts: Text in all languages that the result is for. One of 50 is held out to measure the result.
        layers: Increasing numbers of the layers to keep, from 0; by default all.
        vocab_size: Number of tokens to keep, see `trim_vocabulary`; by default all that occur.

    Returns:
        The smaller model, on the CPU in float32, and a report: `tokens`, `layers` and `parameters`, each before and
        after; and of the held-out texts `same_tokens` (share of the original's tokens that the result has, too),
        `tokens_per_text` before and after, `unknown_tokens`, and the mean `cosine` with the original.

    Raises:
        XlsrError: The tokenizer is not a fast one; the model has routes; `layers` are given for an encoder without a
            list of layers, such as ALBERT or a static embedding.
    """
    sample = _TextSample(texts)
    pruned = _pruned(model, sample, layers, vocab_size)

    held_out = sample.held_out
    cosine = None
    if held_out:
        cosine = round(float((embed(model, held_out) * embed(pruned, held_out)).sum(1).mean()), 4)
    before = _Sizes.of(model)
    after = _Sizes.of(pruned)
    prompt = PromptTable.of(model).text()
    return pruned, {
        "tokens": [len(before.tokenizer), len(after.tokenizer)],
        "layers": [before.layers, after.layers],
        "parameters": [before.parameters, after.parameters],
        **_compare_tokens(before.tokenizer, after.tokenizer, [prompt + text for text in held_out]),
        "cosine": cosine,
    }


def _pruned(
    model: SentenceTransformer,
    texts: Iterable[str],
    layers: Sequence[int] | None,
    vocab_size: int | None,
) -> SentenceTransformer:
    read = read_encoder(model)
    part = read.single()
    prompts = _prompts(model)
    reader = text_tokenizer(part)
    always = []
    for prompt in ("", *prompts):  # with what a chat puts around a text
        (ids,) = token_ids(reader, [""], prompt, None)
        always += ids

    texts = _in_use(texts, prompts)
    tokenizer, kept_ids = trim_vocabulary(part.tokenizer, texts, vocab_size=vocab_size, always=always)
    head = [_head_module(module, kept_ids) for module in part.head or ()]
    encoder = _smaller_encoder(part.encoder, kept_ids, layers)
    smaller = replace(part, encoder=encoder, tokenizer=tokenizer, head=head)
    return SentenceEncoder({"": smaller}, read.settings).detached().assemble()


def _prompts(model: SentenceTransformer) -> list[str]:
    return [prompt for prompt in model.prompts.values() if prompt]


def _in_use(texts: Iterable[str], prompts: Sequence[str]) -> Iterator[str]:
    """Texts, and their first words after the end of a prompt, where some tokenizers make other tokens of them."""
    ends = sorted({prompt[-1] for prompt in prompts})
    for text in texts:
        yield text
        first_word = text.strip().partition(" ")[0]
        for end in ends:
            yield end + first_word


@dataclass
class _Sizes:
    """What pruning reduces; a static embedding has 0 layers."""

    tokenizer: Any
    layers: int
    parameters: int

    @classmethod
    def of(cls, model: SentenceTransformer) -> _Sizes:
        first: Any = model[0]
        encoder = getattr(first, "model", first)
        layers = encoder.config.num_hidden_layers if hasattr(encoder, "config") else 0
        return cls(tokenizer_of(first), layers, sum(weight.numel() for weight in encoder.parameters()))


class _TextSample:
    """The texts that choose tokens, one after the other; afterwards `held_out` is a random sample of the others."""

    def __init__(self, texts: Iterable[str]) -> None:
        self.texts = texts
        self.held_out: list[str] = []

    def __iter__(self) -> Iterator[str]:
        random = Random(1)
        num_skipped = 0
        for text in self.texts:
            if random.random() >= HELD_OUT_SHARE:
                yield text
                continue

            num_skipped += 1
            position = random.randrange(num_skipped)
            if len(self.held_out) < MAX_HELD_OUT:
                self.held_out.append(text)
            elif position < MAX_HELD_OUT:
                self.held_out[position] = text


def _layer_lists(encoder: Any) -> dict[str, nn.ModuleList]:
    """The lists with an entry for each layer, by name; XLM has one for attention, one for each normalisation, ..."""
    lists: dict[str, nn.ModuleList] = {}
    for name, module in encoder.named_modules():
        is_inside = name.startswith(tuple(f"{other}." for other in lists))
        if isinstance(module, nn.ModuleList) and len(module) == encoder.config.num_hidden_layers and not is_inside:
            lists[name] = module
    if not lists or hasattr(encoder.config, "num_hidden_groups"):  # ALBERT's layers share their weights
        raise XlsrError(
            f"`layers` is unsupported for '{encoder.config.model_type}', which has no list of separate layers."
        )
    return lists


def _layer_numbers(encoder: Any, layers: Sequence[int]) -> list[int]:
    """The numbers of the layers to keep; an error if a layer is missing, repeated or moved."""
    count = encoder.config.num_hidden_layers
    numbers = list(layers)
    if count == 0:
        raise XlsrError(f"`layers` must not be given for a static embedding, which has none, got {numbers}.")
    if not numbers or numbers != sorted(set(numbers) & set(range(count))):
        raise XlsrError(f"`layers` must be increasing numbers from 0 to {count - 1}, got {numbers}.")
    return numbers


def _smaller_encoder(encoder: Any, kept_ids: list[int], layers: Sequence[int] | None) -> Any:
    """A copy of an encoder with the embeddings of some tokens, in that order, and some of its layers."""
    numbers = list(range(encoder.config.num_hidden_layers))
    lists: dict[str, nn.ModuleList] = {}
    if layers is not None:
        numbers = _layer_numbers(encoder, layers)
        lists = _layer_lists(encoder)
    smaller = encoder_from_config(_smaller_config(encoder.config, kept_ids, numbers))
    expected = smaller.state_dict().keys()

    state = encoder.state_dict()
    for name, stack in lists.items():
        for position, number in enumerate(numbers):
            for key, weight in stack[number].state_dict(prefix=f"{name}.{position}.").items():
                if key not in expected:
                    raise XlsrError(f"layer {numbers[0]} cannot be the first; keep layer 0.")
                state[key] = weight
    table = encoder.get_input_embeddings().weight
    for key, weight in encoder.state_dict(keep_vars=True).items():
        if weight is table:  # T5 has it twice
            state[key] = table.detach()[kept_ids]

    smaller.load_state_dict({key: state[key] for key in expected})
    return smaller.float().eval()


def _smaller_config(config: Any, kept_ids: list[int], layers: Sequence[int]) -> Any:
    values = config.to_dict()
    for key, value in values.items():
        if isinstance(value, list) and len(value) == config.num_hidden_layers:  # a value for each layer
            values[key] = [value[number] for number in layers]
        elif key.endswith("_token_id") and value in kept_ids:
            values[key] = kept_ids.index(value)
    return type(config).from_dict({**values, "vocab_size": len(kept_ids), "num_hidden_layers": len(layers)})


def _head_module(module: nn.Module, kept_ids: Sequence[int]) -> nn.Module:
    """A module of the head for some tokens; only `WordWeights` knows tokens."""
    if not isinstance(module, WordWeights):
        return module
    options = module.get_config_dict()
    options["vocab"] = [options["vocab"][token] for token in kept_ids]
    return WordWeights(**options)


def _compare_tokens(before: Any, after: Any, texts: Sequence[str]) -> dict[str, Any]:
    """How two tokenizers split texts."""
    if not texts:
        return {}

    common = 0
    tokens_before = Counter[str]()
    tokens_after = Counter[str]()
    for text in texts:
        of_text_before = _tokens(before, text)
        of_text_after = _tokens(after, text)
        common += (of_text_before & of_text_after).total()
        tokens_before += of_text_before
        tokens_after += of_text_after

    return {
        "held_out_texts": len(texts),
        "same_tokens": round(common / max(1, tokens_before.total()), 5),
        "tokens_per_text": [round(tokens.total() / len(texts), 2) for tokens in (tokens_before, tokens_after)],
        "unknown_tokens": tokens_after[after.unk_token] - tokens_before[before.unk_token],
    }


def _tokens(tokenizer: Any, text: str) -> Counter[str]:
    """The tokens of a text. `tokenize` gives the letters of an unknown token where the model is Unigram."""
    ids = tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
    return Counter(tokenizer.convert_ids_to_tokens(ids))
