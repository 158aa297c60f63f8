"""Protocols `xsim` and `xsim-pp`: how often margin scoring picks a wrong translation among sentences and distractors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Literal, NamedTuple

import numpy as np
from typing_extensions import Unpack

from hf_xlsr.data.edits import (
    AUXILIARY_WORDS,
    CONTRACTED,
    DIGITS,
    NUMBER_WORDS,
    OPPOSITES,
    WORD,
    Editor,
    both_ways,
    check_kinds,
    entity_matches,
    like,
    names_in,
    other_number,
    replaced,
)
from hf_xlsr.data.languages import language_code
from hf_xlsr.encoders.encoding import Encoder, EncodingOptions
from hf_xlsr.evaluation.containers import parallel_lists
from hf_xlsr.evaluation.pairs import PAIR_ROLES, embed_sides, encode_pairs
from hf_xlsr.evaluation.protocol import DebiasOptions, option
from hf_xlsr.evaluation.protocol_kinds import pair_protocol
from hf_xlsr.evaluation.results import Results, measured
from hf_xlsr.utils.errors import XlsrError, require_choice, require_positive

EACH = 3  # distractors of a kind for a sentence
KINDS = ("number", "entity", "meaning")
OPPOSITE = both_ways(OPPOSITES)


@dataclass(frozen=True)
class XsimOptions(DebiasOptions):
    k: int = option(4, "size of the neighbourhoods")
    margin: Literal["ratio", "distance", "absolute"] = option("ratio", "margin that scores pairs")


@dataclass(frozen=True)
class XsimPpOptions(XsimOptions):
    seed: int = option(1, "seed of the changed words")
    kinds: str | None = option(
        None, "changes that training never has: some of number,name,negation,entity,order, instead of xsim-pp's own"
    )


def xsim(
    encoder: Encoder,
    sources: Sequence[str],
    targets: Sequence[str],
    *,
    languages: tuple[str, str],
    name: str,
    split: str = "test",
    k: int = 4,
    margin: str = "ratio",
    **encoding: Unpack[EncodingOptions],
) -> Results:
    """LASER's xSIM: share of sources whose neighbour with the best margin is not their own row.

    Each source chooses among its `k` nearest targets the one with the best margin: `ratio`, `distance` or `absolute` (the
    plain nearest neighbour, as `tatoeba_laser`), see `margin_scores`. Gives `error` and `pairs` under
    `{name}-xsim/en-fr/test/`. Where `k` and `margin` are not LASER's defaults the protocol's name has them:
    `xsim-k3-distance`, and `xsim-absolute`, where `k` has no effect.
    """
    protocol = variant_name("xsim", k, margin)
    vectors = encode_pairs(encoder, sources, targets, languages, **encoding)
    nearest = best_targets(*vectors, k=k, margin=margin)
    is_wrong = nearest != np.arange(len(nearest))
    counts = {"pairs": len(is_wrong)}
    return measured(
        name,
        protocol,
        languages,
        split,
        counts,
        {"error": is_wrong},
        candidates=len(nearest),
    )


def xsim_pp(
    encoder: Encoder,
    sources: Sequence[str],
    targets: Sequence[str],
    *,
    languages: tuple[str, str],
    name: str,
    split: str = "test",
    k: int = 4,
    margin: str = "ratio",
    seed: int = 1,
    kinds: str | Sequence[str] | None = None,
    **encoding: Unpack[EncodingOptions],
) -> Results:
    """xSIM++ (Chen et al., 2023): the error of `xsim` into English, with hard distractors among the candidates.

    Every sentence of the other language chooses among all English sentences and their `distractors`, made with `seed`.
    The paper generates its distractors with other tools and from other data, so its numbers are not comparable. Gives
    `error`, the shares of sources that find a distractor of each kind (`number_error`, `entity_error`,
    `meaning_error`), `pairs` and `distractors`, under `{name}-xsim-pp/de-en/test/`.

    With `kinds`, a list or `negation,order`, the distractors are the edits of these kinds that tests have and training
    never has (`hf_xlsr.data.edits.Editor`), at most three of a kind. The protocol's name then has them:
    `xsim-pp-negation-order`.
    """
    sources, targets = parallel_lists(sources, targets)
    source_is_english, target_is_english = (language_code(tag) == "en" for tag in languages)
    if source_is_english == target_is_english:
        raise XlsrError(f"protocol xsim-pp needs pairs with English, got {languages}.")
    roles = PAIR_ROLES
    if source_is_english:
        sources, targets = targets, sources
        languages = languages[::-1]
        roles = PAIR_ROLES[::-1]

    protocol = variant_name("xsim-pp", k, margin)
    shown_kinds: Sequence[str] = KINDS
    if kinds is None:
        changed = distractors(targets, seed=seed)
    else:
        shown_kinds = check_kinds(kinds)
        protocol = variant_name("-".join(["xsim-pp", *shown_kinds]), k, margin)
        changed = held_out_distractors(targets, shown_kinds, seed=seed)
    candidates = list(targets)
    kinds = [""] * len(targets)
    for _, kind, text in changed:
        candidates.append(text)
        kinds.append(kind)
    vectors = embed_sides(encoder, (sources, candidates), languages, roles=roles, **encoding)
    nearest = best_targets(*vectors, k=k, margin=margin)
    nearest_kinds = np.array(kinds)[nearest]

    outcomes = {"error": nearest != np.arange(len(targets))}
    for kind in shown_kinds:
        outcomes[f"{kind}_error"] = nearest_kinds == kind
    counts = {"pairs": len(targets), "distractors": len(changed)}
    return measured(name, protocol, languages, split, counts, outcomes, candidates=len(candidates))


def best_targets(sources: np.ndarray, targets: np.ndarray, *, k: int, margin: str) -> np.ndarray:
    """For each source the number of the target with the best margin among its `k` nearest, `(sources,)`."""
    from hf_xlsr.mining.search.extraction import extract_pairs
    from hf_xlsr.mining.search.neighbours import neighbours_both_ways

    neighbours = neighbours_both_ways(sources, targets, k, method="exact")
    pairs = extract_pairs(neighbours, margin=margin, retrieval="forward", one_to_one=False)
    return pairs.target[np.argsort(pairs.source)]  # pairs are sorted by score


def variant_name(protocol: str, k: int, margin: str) -> str:
    """The protocol's name, with `k` and `margin` where they are not LASER's."""
    setting = margin_setting(k, margin)
    if setting == "k4-ratio":
        return protocol
    if margin == "absolute":
        setting = margin
    return f"{protocol}-{setting}"


def margin_setting(k: int, margin: str) -> str:
    """Name of a valid mining setting in metric keys, such as `k3-distance`."""
    from hf_xlsr.mining.search.extraction import MARGINS

    require_positive("k", k)
    require_choice("margin", margin, MARGINS)
    return f"k{k}-{margin}"


class Distractor(NamedTuple):
    """A sentence with one change: the number of its original, one of `KINDS`, and the changed sentence."""

    row: int
    kind: str
    text: str


def distractors(sentences: Sequence[str], *, seed: int = 1) -> list[Distractor]:
    """English sentences with one change, up to three of each kind.

    `number`: other digits of the same length, or another number word. `entity`: a capitalised name inside the sentence,
    replaced by one of another sentence. `meaning`: a negation put in or taken out, or an opposite. The rules see words,
    not grammar, so that some distractors are clumsy. Changes that give one of the sentences are left out.

    Examples:
        >>> for distractor in distractors(["He is not here.", "He was in Paris in 1984."]):
        ...     print(distractor.row, distractor.kind, distractor.text)
        0 meaning He is here.
        1 number He was in Paris in 5579.
        1 meaning He was not in Paris in 1984.
    """
    rng = np.random.default_rng(seed)
    matches = chain.from_iterable(map(entity_matches, sentences))
    names = list(dict.fromkeys(match[0] for match in matches))
    kinds: dict[str, Callable[[str], Iterator[str]]] = {
        "number": lambda text: _numbers(text, rng),
        "entity": lambda text: _other_entities(text, names, rng),
        "meaning": _meanings,
    }

    changed: list[Distractor] = []
    used = set(sentences)
    for row, sentence in enumerate(sentences):
        for kind, changes in kinds.items():
            texts = [text for text in dict.fromkeys(changes(sentence)) if text not in used]
            drawn_texts = rng.permutation(len(texts))[:EACH]
            for number in np.sort(drawn_texts):
                changed.append(Distractor(row, kind, texts[number]))
                used.add(texts[number])
    return changed


def held_out_distractors(sentences: Sequence[str], kinds: Sequence[str], *, seed: int = 1) -> list[Distractor]:
    """English sentences with one edit that training never has, up to three of each kind; see `Editor`.

    Edits that give one of the sentences, or one that is there already, are left out.

    Examples:
        >>> held_out_distractors(["He was in Paris."], ["negation"])
        [Distractor(row=0, kind='negation', text='He was not in Paris.')]
    """
    editor = Editor("en", "test", kinds, names=names_in(sentences), seed=seed)
    changed: list[Distractor] = []
    used = set(sentences)
    for row, sentence in enumerate(sentences):
        for edit in editor(sentence, each=EACH):
            if edit.text not in used:
                changed.append(Distractor(row, edit.kind, edit.text))
                used.add(edit.text)
    return changed


def _numbers(text: str, rng: np.random.Generator) -> Iterator[str]:
    """The text with one number changed: other digits of the same length, or another number word."""
    for match in DIGITS.finditer(text):
        yield replaced(text, match, other_number(match[0], rng))

    for match in WORD.finditer(text):
        number_word = match[0].lower()
        for words in NUMBER_WORDS:
            if number_word in words:
                other_words = [word for word in words if word != number_word]
                other_word = other_words[rng.integers(len(other_words))]
                yield replaced(text, match, like(match[0], other_word))


def _other_entities(text: str, names: Sequence[str], rng: np.random.Generator) -> Iterator[str]:
    """The text with one name replaced by another."""
    other_names = [name for name in names if name not in text]
    if not other_names:
        return
    for match in entity_matches(text):
        yield replaced(text, match, other_names[rng.integers(len(other_names))])


def _meanings(text: str) -> Iterator[str]:
    """The text with one word negated, not negated any more, or replaced by its opposite."""
    for match in WORD.finditer(text):
        word = match[0].lower()
        rest = text[match.end() :]
        if word.endswith("n't"):
            positive = CONTRACTED.get(word, word[:-3])
            yield replaced(text, match, like(match[0], positive))
        elif word in AUXILIARY_WORDS and not rest.startswith(" not "):
            yield replaced(text, match, f"{match[0]} not")
        elif word == "not":
            yield text[: match.start()] + rest.removeprefix(" ")
        elif match[0] in OPPOSITE:  # in lower case: no part of a name
            yield replaced(text, match, OPPOSITE[word])


PROTOCOLS = (
    pair_protocol(
        "xsim",
        "LASER's error rate of the best margin among k neighbours",
        xsim,
        XsimOptions,
        headline="error",
        lower_is_better=True,
    ),
    pair_protocol(
        "xsim-pp",
        "xSIM++: xsim into English; each distractor changes one word",
        xsim_pp,
        XsimPpOptions,
        headline="error",
        lower_is_better=True,
    ),
)
