"""A smaller encoder from a large one: the tokens of some languages, and some of the layers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from random import Random
from typing import Any

from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import WordWeights
from torch import nn

from hf_xlsr.data.prompts import PromptTable
from hf_xlsr.data.tokenization import trim_vocabulary
from hf_xlsr.encoders.assembly import SentenceEncoder
from hf_xlsr.encoders.encoding import embed
from hf_xlsr.encoders.reading import read_encoder
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
        model: One encoder with any modules behind it, which stay as they are; unchanged.
        texts: Text in all languages that the result is for. One of 50 is held out to measure the result.
        layers: Numbers of the layers to keep, from 0; by default all.
        vocab_size: Number of tokens to keep, see `trim_vocabulary`; by default all that occur.

    Returns:
        The smaller model, on the CPU in float32, and a report: `tokens`, `layers` and `parameters`, each before and
        after; and of the held-out texts `same_tokens` (share of the original's tokens that the result has, too),
        `tokens_per_text` before and after, `unknown_tokens`, and the mean `cosine` with the original.
    """
    read = read_encoder(model)
    part = read.single()
    sample = _TextSample(texts)
    prompts = [prompt for prompt in model.prompts.values() if prompt]
    tokenizer, token_ids = trim_vocabulary(part.tokenizer, sample, vocab_size=vocab_size, always=prompts)
    head = [_head_module(module, token_ids) for module in part.head or ()]
    encoder = _smaller_encoder(part.encoder, token_ids, layers)
    smaller = replace(part, encoder=encoder, tokenizer=tokenizer, head=head)
    pruned = SentenceEncoder({"": smaller}, read.settings).detached().assemble()

    held_out = sample.held_out
    cosine = None
    if held_out:
        cosine = round(float((embed(model, held_out) * embed(pruned, held_out)).sum(1).mean()), 4)
    prompt = PromptTable.of(model).text()
    before: Any = model[0]
    after: Any = pruned[0]
    return pruned, {
        "tokens": [len(before.tokenizer), len(tokenizer)],
        "layers": [before.model.config.num_hidden_layers, after.model.config.num_hidden_layers],
        "parameters": [before.model.num_parameters(), after.model.num_parameters()],
        **_compare_tokens(before.tokenizer, tokenizer, [prompt + text for text in held_out]),
        "cosine": cosine,
    }


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


def _layers(encoder: Any) -> tuple[str, nn.ModuleList]:
    """The layers of an encoder, and their name."""
    for name, module in encoder.named_modules():
        if isinstance(module, nn.ModuleList) and len(module) == encoder.config.num_hidden_layers:
            return name, module
    raise XlsrError(f"the layers of {type(encoder).__name__} were not found.")


def _smaller_encoder(encoder: Any, token_ids: list[int], layers: Sequence[int] | None) -> Any:
    """A copy of an encoder with the embeddings of some tokens, in that order, and some of its layers."""
    name, stack = _layers(encoder)
    numbers = list(range(len(stack)) if layers is None else layers)
    if not set(numbers) <= set(range(len(stack))):
        raise XlsrError(f"layers must be from 0 to {len(stack) - 1}, got {numbers}.")
    smaller = encoder_from_config(_smaller_config(encoder.config, token_ids, numbers))
    expected = smaller.state_dict().keys()

    state = encoder.state_dict()
    for position, number in enumerate(numbers):
        for key, weight in stack[number].state_dict(prefix=f"{name}.{position}.").items():
            if key not in expected:
                raise XlsrError(f"layer {numbers[0]} cannot be the first; keep layer 0.")
            state[key] = weight
    table = encoder.get_input_embeddings().weight
    for key, weight in encoder.state_dict(keep_vars=True).items():
        if weight is table:  # T5 has it twice
            state[key] = table.detach()[token_ids]

    smaller.load_state_dict({key: state[key] for key in expected})
    return smaller.float().eval()


def _smaller_config(config: Any, token_ids: list[int], layers: Sequence[int]) -> Any:
    values = config.to_dict()
    for key, value in values.items():
        if isinstance(value, list) and len(value) == config.num_hidden_layers:  # a value for each layer
            values[key] = [value[number] for number in layers]
        elif key.endswith("_token_id") and value in token_ids:
            values[key] = token_ids.index(value)
    return type(config).from_dict({**values, "vocab_size": len(token_ids), "num_hidden_layers": len(layers)})


def _head_module(module: nn.Module, token_ids: Sequence[int]) -> nn.Module:
    """A module of the head for some tokens; only `WordWeights` knows tokens."""
    if not isinstance(module, WordWeights):
        return module
    options = module.get_config_dict()
    options["vocab"] = [options["vocab"][token] for token in token_ids]
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
