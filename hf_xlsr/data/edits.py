"""Small edits that change what a sentence says: synthetic negatives of training, and distractors of tests.

An edit is known by its material: the number, word or name that it puts in or takes out, or the two words that it
exchanges. `use_of` and the words of `LANGUAGES` decide which material training has and which tests have, so that no
encoder is tested on edits that it was trained on. Rules see words, not grammar: some edits are clumsy.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, combinations, islice
from typing import Literal, NamedTuple

import numpy as np

from hf_xlsr.data.languages import language_code
from hf_xlsr.data.seen import hash64
from hf_xlsr.utils.errors import XlsrError, require_choice

Use = Literal["train", "test"]
USES = ("train", "test")
KINDS = ("number", "name", "negation", "entity", "order")
MOST_NAMES = 20_000  # that replace others
DIGITS = re.compile(r"\d+")
WORD = re.compile(r"[A-Za-z]+(?:'[a-z]+)?")
LETTERS = re.compile(r"[^\W\d_]+")
ENTITY = re.compile(r"(?<=[a-z,;:] )[A-Z][a-z]+(?: [A-Z][a-z]+)*")
NOUN = re.compile(
    r"(?:(?<=\b[Tt]he )|(?<=\b[Aa] )|(?<=\b[Mm]y )|(?<=\b[Hh]is )|(?<=\b[Hh]er )|(?<=\b[Oo]ur ))[a-z]{3,}"
)
LISTED = re.compile(r"[\s,]*(?:(?:and|or|nor|&)\s+)?", re.IGNORECASE)
"""What stands between two items of a list, whose order says nothing."""

NUMBER_WORDS = [
    "one two three four five six seven eight nine ten eleven twelve".split(),
    "twenty thirty forty fifty sixty seventy eighty ninety".split(),
    "hundred thousand million billion".split(),
    "first second third fourth fifth sixth seventh eighth ninth tenth".split(),
]
"""Number words that tests put in, each in place of one of its list."""
TEENS = "thirteen fourteen fifteen sixteen seventeen eighteen nineteen".split()
LATE_ORDINALS = "eleventh twelfth thirteenth fourteenth fifteenth sixteenth seventeenth eighteenth".split()
NO_ENTITY_WORDS = frozenset(
    "I A An The He She It We They You This That These Those And But Or If In On At Mr Mrs Ms Dr".split()
)
AUXILIARY_WORDS = frozenset(
    "am are can could did do does had has have is may might must should was were will would".split()
)
CONTRACTED = {"can't": "can", "won't": "will", "shan't": "shall"}


def paired(text: str) -> list[list[str]]:
    """Pairs of words, written `one other; next other`."""
    return [pair.split() for pair in text.split(";")]


OPPOSITES = paired("""
    above below; accept reject; after before; all some; always never; arrive leave; begin end; better worse; big
    small; buy sell; cheap expensive; early late; east west; easy difficult; enemy friend; everyone nobody; fast
    slow; full empty; good bad; happy sad; hard soft; high low; higher lower; hot cold; important unimportant;
    increase decrease; increased decreased; inside outside; last first; long short; major minor; many few; maximum
    minimum; more less; most least; near far; new old; north south; often rarely; open close; possible impossible;
    public private; remember forget; rich poor; rise fall; safe dangerous; similar different; start stop; strong
    weak; success failure; true false; usually rarely; win lose; with without; won lost
""")
"""Opposites that tests put in."""
TRAINED_OPPOSITES = paired("""
    alive dead; ancient modern; beautiful ugly; bought sold; brave cowardly; bright dim; brother sister; clean
    dirty; clever stupid; day night; deep shallow; dry wet; everything nothing; father mother; gave took; give take;
    guilty innocent; healthy ill; heavy light; husband wife; king queen; knows ignores; left right; liked hated;
    likes hates; love hate; loved despised; man woman; married single; men women; morning evening; noisy quiet;
    question answer; quickly slowly; sharp blunt; son daughter; summer winter; sweet bitter; tall tiny; thick thin;
    today yesterday; together apart; under over; up down; useful useless; wide narrow; wise foolish; young elderly
""")


@dataclass(frozen=True)
class Words:
    """The words of a language that edits need, by kind.

    Attributes:
        numbers: Number words that are replaced, by one of a list of the same use.
        new_numbers: For each of these lists, the words that replace them, by use.
        negators: Words that negate, by use: put in after an auxiliary, or taken out.
        auxiliaries: Words after which a negator may stand.
        opposites: Words and their opposites, both ways, by use.
        entities: Lists of days, countries and the like, each of which replaces another of its list.
    """

    numbers: Sequence[Sequence[str]] = ()
    new_numbers: dict[str, Sequence[Sequence[str]]] = field(default_factory=dict)
    negators: dict[str, Sequence[str]] = field(default_factory=dict)
    auxiliaries: frozenset[str] = frozenset()
    opposites: dict[str, dict[str, str]] = field(default_factory=dict)
    entities: Sequence[Sequence[str]] = ()

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of edits that this language has."""
        if self.auxiliaries:
            return KINDS
        return ("number", "entity", "order") if self.entities else ("number", "order")


def both_ways(pairs: Iterable[Sequence[str]]) -> dict[str, str]:
    """Each word -> its opposite."""
    pairs = list(pairs)
    return {second: first for first, second in pairs} | {first: second for first, second in pairs}


LANGUAGES: dict[str, Words] = {
    "en": Words(
        numbers=[*NUMBER_WORDS, TEENS, LATE_ORDINALS],
        new_numbers={
            "test": [*NUMBER_WORDS, [], []],
            "train": [TEENS, TEENS, [], LATE_ORDINALS, TEENS, LATE_ORDINALS],
        },
        negators={"test": ["not"], "train": ["hardly", "no longer", "scarcely"]},
        auxiliaries=AUXILIARY_WORDS,
        # `never` would be near the negators of training.
        opposites={
            "test": both_ways(pair for pair in OPPOSITES if "never" not in pair),
            "train": both_ways(TRAINED_OPPOSITES),
        },
        entities=[
            "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split(),
            "January February March April June July August September October November December".split(),
            "America Australia Austria Brazil Canada China Egypt England France Germany Greece India Iran Iraq Ireland "
            "Israel Italy Japan Kenya Mexico Norway Poland Portugal Russia Spain Sweden Switzerland Turkey".split(),
            "American Arabic Australian Brazilian British Canadian Chinese Dutch English French German Greek Indian "
            "Italian Japanese Korean Mexican Polish Portuguese Russian Spanish Swedish Turkish".split(),
        ],
    ),
    "de": Words(
        entities=[
            "Montag Dienstag Mittwoch Donnerstag Freitag Samstag Sonntag".split(),
            "Januar Februar März April Juni Juli August September Oktober November Dezember".split(),
            "Amerika Australien Brasilien China Deutschland England Frankreich Griechenland Indien Italien Japan Kanada "
            "Mexiko Norwegen Polen Portugal Russland Schweden Spanien Österreich".split(),
        ]
    ),
    "es": Words(
        entities=[
            "lunes martes miércoles jueves viernes sábado domingo".split(),
            "enero febrero marzo abril mayo junio julio agosto septiembre octubre noviembre diciembre".split(),
            "Alemania América Australia Brasil Canadá China España Francia Grecia India Inglaterra Italia Japón México "
            "Noruega Polonia Portugal Rusia Suecia".split(),
        ]
    ),
    "fr": Words(
        entities=[
            "lundi mardi mercredi jeudi vendredi samedi dimanche".split(),
            "janvier février mars avril mai juin juillet août septembre octobre novembre décembre".split(),
        ]
    ),
}
"""Languages with words; all others have edits of digits."""


class Edit(NamedTuple):
    """A sentence with one edit: one of `KINDS`, the changed sentence, and the material of the edit."""

    kind: str
    text: str
    material: str


def use_of(material: str) -> str:
    """Whether training or tests may put in a number or a name, or exchange two words: decided by a hash of its text.

    Examples:
        >>> use_of("1984"), use_of("1985"), use_of("Paris"), use_of("paris")
        ('train', 'test', 'train', 'train')
    """
    return USES[hash64(f"edit:{material.lower()}") % 2]


def words_of(language: str) -> Words:
    """The words of a language; none for one that is not listed."""
    return LANGUAGES.get(language_code(language), Words())


def check_kinds(kinds: str | Iterable[str]) -> tuple[str, ...]:
    """The kinds of edits, a list or one text with commas, each of which must be one of `KINDS`.

    Examples:
        >>> check_kinds("negation, order")
        ('negation', 'order')
    """
    if isinstance(kinds, str):
        kinds = filter(None, map(str.strip, kinds.split(",")))
    chosen = tuple(dict.fromkeys(kinds))
    for kind in chosen:
        require_choice("kinds", kind, KINDS)
    return chosen


def names_in(sentences: Iterable[str]) -> list[str]:
    """The names inside English sentences: each once, as it first comes, at most `MOST_NAMES`.

    Examples:
        >>> names_in(["We met Anna in Paris.", "It was Anna."])
        ['Anna', 'Paris']
    """
    matches = chain.from_iterable(map(entity_matches, sentences))
    return list(islice(dict.fromkeys(match[0] for match in matches), MOST_NAMES))


def entity_matches(text: str) -> list[re.Match[str]]:
    """The capitalised names inside a sentence."""
    return [match for match in ENTITY.finditer(text) if match[0] not in NO_ENTITY_WORDS]


class Editor:
    """Makes edits of sentences in one language.

    - `number`: other digits of the same length, or another number word.
    - `name`: a capitalised name inside an English sentence, replaced by one of `names`.
    - `negation`: a negation put in or taken out, or an opposite (English).
    - `entity`: another day, month, country or language (English, German, Spanish; French: days and months).
    - `order`: two numbers, or in English two names or nouns, that change places, unless they are items of a list.

    Args:
        language: Of the sentences.
        use: `train` or `test`: which material is put in.
        kinds: Those wanted, in their order; a kind that the language lacks is an error.
        names: What `name` puts in, such as `names_in` of the sentences.
        seed: Of what is drawn; the edits of a sentence depend on nothing else.

    Examples:
        >>> editor = Editor("en", "train", ["number", "negation", "order"], seed=2)
        >>> for edit in editor("The dog was near the house in 1984."):
        ...     print(edit.kind, edit.text)
        number The dog was near the house in 5912.
        negation The dog was scarcely near the house in 1984.
        order The house was near the dog in 1984.
    """

    def __init__(
        self,
        language: str,
        use: Use,
        kinds: Sequence[str] = KINDS,
        *,
        names: Sequence[str] = (),
        seed: int = 1,
    ) -> None:
        require_choice("use", use, USES)
        self.words = words_of(language)
        self.use = use
        self.kinds = check_kinds(kinds)
        self.seed = seed
        lacking = [kind for kind in self.kinds if kind not in self.words.kinds]
        if lacking:
            raise XlsrError(
                f"language '{language}' has no edits of kind '{lacking[0]}'; it has {', '.join(self.words.kinds)}."
            )
        self.names = [name for name in names if use_of(name) == use]
        self._makers: dict[str, Callable[[str, np.random.Generator], Iterator[Edit]]] = {
            "number": self._numbers,
            "name": self._names,
            "negation": self._negations,
            "entity": self._entities,
            "order": self._orders,
        }

    def __call__(self, sentence: str, *, each: int = 1) -> list[Edit]:
        """The edits of a sentence, at most `each` of a kind, all different."""
        rng = np.random.default_rng([self.seed, zlib.crc32(sentence.encode("utf-8", "surrogatepass"))])
        edits: list[Edit] = []
        used = {sentence}
        for kind in self.kinds:
            made = {edit.text: edit for edit in self._makers[kind](sentence, rng) if edit.text not in used}
            texts = list(made)
            for number in np.sort(rng.permutation(len(texts))[:each]):
                edits.append(made[texts[number]])
                used.add(texts[number])
        return edits

    def _numbers(self, text: str, rng: np.random.Generator) -> Iterator[Edit]:
        for match in DIGITS.finditer(text):
            number = other_number(match[0], rng, self.use)
            yield Edit("number", replaced(text, match, number), number)

        for match in WORD.finditer(text):
            for words, new_words in zip(self.words.numbers, self.words.new_numbers.get(self.use, ()), strict=False):
                other_words = [word for word in new_words if word != match[0].lower()]
                if match[0].lower() in words and other_words:
                    word = other_words[rng.integers(len(other_words))]
                    yield Edit("number", replaced(text, match, like(match[0], word)), word)

    def _names(self, text: str, rng: np.random.Generator) -> Iterator[Edit]:
        if not self.names:
            return
        for match in entity_matches(text):
            name = self.names[rng.integers(len(self.names))]
            if name not in text:
                yield Edit("name", replaced(text, match, name), name)

    def _negations(self, text: str, rng: np.random.Generator) -> Iterator[Edit]:
        negators = self.words.negators.get(self.use, ())
        opposites = self.words.opposites.get(self.use, {})
        for negator in negators:
            for match in re.finditer(rf" {negator}\b", text):
                yield Edit("negation", replaced(text, match, ""), negator)

        for match in WORD.finditer(text):
            word = match[0].lower()
            if word.endswith("n't"):
                if self.use == "test":
                    positive = CONTRACTED.get(word, word[:-3])
                    yield Edit("negation", replaced(text, match, like(match[0], positive)), word)
            elif word in self.words.auxiliaries and negators and not _negated(text[match.end() :]):
                negator = negators[int(rng.integers(len(negators)))]
                yield Edit("negation", replaced(text, match, f"{match[0]} {negator}"), negator)
            elif match[0] in opposites:  # in lower case: no part of a name
                yield Edit("negation", replaced(text, match, opposites[word]), opposites[word])

    def _entities(self, text: str, rng: np.random.Generator) -> Iterator[Edit]:
        for match in LETTERS.finditer(text):
            for words in self.words.entities:
                if match[0] in words:
                    others = [word for word in words if word != match[0] and use_of(word) == self.use]
                    word = others[rng.integers(len(others))]
                    yield Edit("entity", replaced(text, match, word), word)

    def _orders(self, text: str, rng: np.random.Generator) -> Iterator[Edit]:
        kinds_of_items = [list(DIGITS.finditer(text))]
        if self.words.auxiliaries:
            kinds_of_items += [entity_matches(text), list(NOUN.finditer(text))]

        for items in kinds_of_items:
            for first, second in combinations(items, 2):
                is_list = LISTED.fullmatch(text, first.end(), second.start())
                material = " ".join(sorted([first[0].lower(), second[0].lower()]))
                if first[0] != second[0] and not is_list and use_of(material) == self.use:
                    between = text[first.end() : second.start()]
                    changed = text[: first.start()] + second[0] + between + first[0] + text[second.end() :]
                    yield Edit("order", changed, material)


def _negated(rest: str) -> bool:
    """Whether what follows an auxiliary begins with a negation, of training or of tests."""
    negators = chain.from_iterable(LANGUAGES["en"].negators.values())
    return rest.startswith(tuple(f" {word}" for word in (*negators, "never")))


def other_number(digits: str, rng: np.random.Generator, use: Use | None = None) -> str:
    """Other digits of the same length, the first above 0; of one use, or of any."""
    number = digits
    while number == digits or (use is not None and use_of(number) != use):
        first_digit = rng.integers(1, 10)
        more_digits = rng.integers(0, 10, len(digits) - 1)
        number = "".join(map(str, [first_digit, *more_digits]))
    return number


def replaced(text: str, match: re.Match[str], word: str) -> str:
    """The text with another word where the match is."""
    return text[: match.start()] + word + text[match.end() :]


def like(model: str, word: str) -> str:
    """The word, capitalised where the model is."""
    return word.capitalize() if model[0].isupper() else word
