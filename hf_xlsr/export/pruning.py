"""A smaller encoder from a large one: the tokens of some languages, and some of the layers."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import WordWeights
from torch import nn

from hf_xlsr.data.tokenization import trim_vocabulary
from hf_xlsr.encoders.assembly import SentenceEncoder
from hf_xlsr.encoders.encoding import embed
from hf_xlsr.encoders.reading import read_encoder
from hf_xlsr.encoders.stock import encoder_from_config
from hf_xlsr.utils.errors import XlsrError

# One text of 50, drawn at random, at most 2,000 in all, measures what is lost and does not choose tokens.
HELD_OUT_SHARE, MAX_HELD_OUT = 0.02, 2000


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
    transformer: Any = model[0]
    held: list[str] = []
    options: dict[str, Any] = {"vocab_size": vocab_size, "always": [*filter(None, model.prompts.values())]}
    small, kept = trim_vocabulary(part.tokenizer, _without(texts, held), **options)
    prompt = model.prompts.get(model.default_prompt_name or "") or ""
    before = transformer.model
    head = [_for_tokens(module, kept) for module in part.head or ()]
    smaller = replace(part, encoder=_smaller_copy(part.encoder, kept, layers), tokenizer=small, head=head)
    pruned = SentenceEncoder({"": smaller}, read.settings).detached().assemble()
    after: Any = pruned[0]
    return pruned, {
        "tokens": [len(transformer.tokenizer), len(small)],
        "layers": [len(_layers(encoder)[1]) for encoder in (before, after.model)],
        "parameters": [sum(part.numel() for part in encoder.parameters()) for encoder in (before, after.model)],
        **_compared(transformer.tokenizer, small, [prompt + text for text in held]),
        "cosine": round(float((embed(model, held) * embed(pruned, held)).sum(1).mean()), 4) if held else None,
    }


def _without(texts: Iterable[str], held: list[str]) -> Iterator[str]:
    """The texts that are not held out; `held` gets a random sample of the others."""
    draw, seen = random.Random(1), 0
    for text in texts:
        if draw.random() >= HELD_OUT_SHARE:
            yield text
            continue
        seen += 1
        place = draw.randrange(seen)
        if len(held) < MAX_HELD_OUT:
            held.append(text)
        elif place < MAX_HELD_OUT:
            held[place] = text


def _layers(encoder: Any) -> tuple[str, nn.ModuleList]:
    """The layers of an encoder, and their name."""
    count = encoder.config.num_hidden_layers
    for name, module in encoder.named_modules():
        if isinstance(module, nn.ModuleList) and len(module) == count:
            return name, module
    raise XlsrError(f"the layers of {type(encoder).__name__} were not found.")


def _smaller_copy(encoder: Any, kept: Sequence[int], layers: Sequence[int] | None) -> Any:
    name, stack = _layers(encoder)
    chosen = list(range(len(stack)) if layers is None else layers)
    if not set(chosen) <= set(range(len(stack))):
        raise XlsrError(f"layers must be from 0 to {len(stack) - 1}, got {', '.join(map(str, chosen))}.")
    values: dict[str, Any] = {"vocab_size": len(kept), "num_hidden_layers": len(chosen)}
    for key, value in encoder.config.to_dict().items():
        if isinstance(value, list) and len(value) == len(stack):  # a value for each layer
            values[key] = [value[number] for number in chosen]
        elif key.endswith("_token_id") and value in kept:
            values[key] = list(kept).index(value)
    config = type(encoder.config).from_dict({**encoder.config.to_dict(), **values})
    moved: dict[str, Any] = {}
    for number, layer in enumerate(chosen):
        moved |= {f"{name}.{number}.{key}": value for key, value in stack[layer].state_dict().items()}
    state = encoder.state_dict() | moved
    table = encoder.get_input_embeddings().weight
    for key, weight in encoder.state_dict(keep_vars=True).items():
        if weight is table:  # T5 has it twice
            state[key] = table.detach()[torch.tensor(kept)]
    smaller = encoder_from_config(config)
    wanted = smaller.state_dict()
    if not set(moved) <= set(wanted):
        raise XlsrError(f"layer {chosen[0]} of {type(encoder).__name__} cannot be the first; keep layer 0.")
    smaller.load_state_dict({key: state[key] for key in wanted})
    return smaller.float().eval()


def _for_tokens(module: nn.Module, kept: Sequence[int]) -> nn.Module:
    """A module of the head for the tokens that are kept; only `WordWeights` knows tokens."""
    if not isinstance(module, WordWeights):
        return module
    options = module.get_config_dict()
    return WordWeights(**{**options, "vocab": [options["vocab"][token] for token in kept]})


def _compared(before: Any, after: Any, texts: Sequence[str]) -> dict[str, Any]:
    """How held-out texts are split before and after."""
    if not texts:
        return {}
    same = total = now = unknown = 0
    for text in texts:
        old, new = Counter(before.tokenize(text)), Counter(after.tokenize(text))
        same, total, now = same + (old & new).total(), total + old.total(), now + new.total()
        unknown += new[after.unk_token] - old[before.unk_token]
    return {
        "held_out_texts": len(texts),
        "same_tokens": round(same / max(1, total), 5),
        "tokens_per_text": [round(count / len(texts), 2) for count in (total, now)],
        "unknown_tokens": unknown,
    }
