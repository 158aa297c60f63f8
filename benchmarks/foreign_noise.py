"""Bad pairs of kinds that `hf-xlsr filter` is not trained on, made from good pairs between English and another language.

The trained kinds are in `hf_xlsr.mining.filtering.damage`. These are mistakes of other origins:

- of aligners and miners: another sentence that is near in meaning or in place, two lines joined, halves exchanged;
- of machine translation: a phrase repeated, word for word, half left in English, a language next to the right one;
- of scanners and web pages: damaged letters, a menu behind the text;
- a meaning that is changed inside a right pair: a clause dropped, words shuffled, names or roles exchanged.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import chain

from hf_xlsr.data.columns import Row
from hf_xlsr.data.edits import Editor
from hf_xlsr.data.normalization import width
from hf_xlsr.mining.filtering.damage import GOOD

UNSPACED = ("ja", "th", "zh")
SISTERS = {"de": "nl", "fr": "es", "ru": "bg", "zh": "ja"}
"""Language -> one that is near it, or is written alike."""
MENUS = {
    "de": ("Weiterlesen | Teilen | Drucken", "Alle Rechte vorbehalten.", "Startseite » Nachrichten » Archiv"),
    "fr": ("Lire la suite | Partager | Imprimer", "Tous droits réservés.", "Accueil » Actualités » Archives"),
    "ru": ("Читать далее | Поделиться | Печать", "Все права защищены.", "Главная » Новости » Архив"),
    "zh": ("阅读全文 | 分享 | 打印", "版权所有，保留所有权利。", "首页 » 新闻 » 存档"),
}
"""Menu items and other boilerplate of web pages."""

_CLAUSE = re.compile(r"(?<=[,;:，、；：])\s*(?=\S)")
_WORD = re.compile(r"[^\W\d_]+")
_SMALLEST_CLAUSE = 0.2  # of the text
_FEWEST_CHARACTERS = 12  # of a text whose parts are exchanged or repeated


@dataclass(frozen=True)
class Material:
    """What noise is made from.

    Attributes:
        rows: Good pairs in the order of their documents: `source` in English, `target`, their languages, and `line`.
        nearest: Of each row, the number of another row whose source another encoder takes for the nearest.
        sisters: Of each row, its translation into a language near that of the target; None where there is none.
        lexicon: The translation of each English word in lower case.
        names: What replaces names in English.
    """

    rows: Sequence[Row]
    nearest: Sequence[int]
    sisters: Sequence[str | None] = ()
    lexicon: Mapping[str, str] = field(default_factory=dict)
    names: Sequence[str] = ()


Maker = Callable[[Material, int, random.Random], Row | None]
"""Makes noise of the row with a number; None where the kind does not apply."""


def _words(row: Row, side: str = "target") -> tuple[list[str], str]:
    """The words of a side, or its characters where words are not spaced, and what stands between them."""
    text = row[side]
    if row[f"{side}_lang"] in UNSPACED:
        return list(text), ""
    return text.split(), " "


def _with_target(row: Row, target: str) -> Row | None:
    if not target or target == row["target"]:
        return None
    return {**row, "target": target}


def _nearest_other(material: Material, number: int, generator: random.Random) -> Row | None:
    """The target of the row whose source is nearest to this one."""
    return _with_target(material.rows[number], material.rows[material.nearest[number]]["target"])


def _same_passage(material: Material, number: int, generator: random.Random) -> Row | None:
    """The target of a row two to six lines away."""
    other = number + generator.choice((-1, 1)) * generator.randrange(2, 7)
    return _with_target(material.rows[number], material.rows[other % len(material.rows)]["target"])


def _next_joined(material: Material, number: int, generator: random.Random) -> Row | None:
    """The target, and that of the next row behind it."""
    row = material.rows[number]
    _, space = _words(row)
    following = material.rows[(number + 1) % len(material.rows)]["target"]
    return _with_target(row, f"{row['target']}{space}{following}")


def _half_exchanged(material: Material, number: int, generator: random.Random) -> Row | None:
    """The first half of the target, and the second half of that of the next row."""
    row = material.rows[number]
    words, space = _words(row)
    other_words, _ = _words(material.rows[(number + 1) % len(material.rows)])
    if min(len(words), len(other_words)) < 2 or width(row["target"]) < _FEWEST_CHARACTERS:
        return None
    halves = [*words[: len(words) // 2], *other_words[len(other_words) // 2 :]]
    return _with_target(row, space.join(halves))


def _clause_dropped(material: Material, number: int, generator: random.Random) -> Row | None:
    """One side without a clause, but the last one: a text whose end is missing is a trained kind."""
    row = material.rows[number]
    shortened = []
    for side in ("source", "target"):
        clauses = _CLAUSE.split(row[side])
        _, space = _words(row, side)
        for place, clause in enumerate(clauses[:-1]):
            if width(clause) >= _SMALLEST_CLAUSE * width(row[side]):
                shortened.append((side, space.join(clauses[:place] + clauses[place + 1 :])))
    if not shortened:
        return None
    side, text = generator.choice(shortened)
    return {**row, side: text}


def _words_shuffled(material: Material, number: int, generator: random.Random) -> Row | None:
    """The words of the target in random order, or pieces of two characters where words have no spaces between them."""
    row = material.rows[number]
    words, space = _words(row)
    if not space:
        words = [row["target"][start : start + 2] for start in range(0, len(row["target"]), 2)]
    generator.shuffle(words)
    return _with_target(row, space.join(words))


def _edited(material: Material, number: int, generator: random.Random, kinds: Sequence[str]) -> Row | None:
    """The English side with an edit."""
    row = material.rows[number]
    edits = _editor(tuple(kinds), tuple(material.names))(row["source"], each=3)
    return {**row, "source": generator.choice(edits).text} if edits else None


@cache
def _editor(kinds: tuple[str, ...], names: tuple[str, ...]) -> Editor:
    """An editor of English, which takes long to make of many names."""
    return Editor("en", "test", kinds, names=names)


def _name_exchanged(material: Material, number: int, generator: random.Random) -> Row | None:
    """Another name, day, month, country or language in the English side."""
    return _edited(material, number, generator, ("name", "entity"))


def _roles_exchanged(material: Material, number: int, generator: random.Random) -> Row | None:
    """Two names, nouns or numbers of the English side in each other's place."""
    return _edited(material, number, generator, ("order",))


def _letters_damaged(material: Material, number: int, generator: random.Random) -> Row | None:
    """One of four to ten characters of the target lost, doubled or replaced by another one of the text."""
    row = material.rows[number]
    rate = generator.uniform(0.1, 0.25)
    letters = []
    for letter in row["target"]:
        if letter.isspace() or generator.random() >= rate:
            letters.append(letter)
        else:
            letters.append(generator.choice(("", 2 * letter, generator.choice(row["target"]))))
    return _with_target(row, " ".join("".join(letters).split()))


def _menu_behind(material: Material, number: int, generator: random.Random) -> Row | None:
    """The target with the menu of a web page behind it."""
    row = material.rows[number]
    if row["target_lang"] not in MENUS:
        return None
    return _with_target(row, f"{row['target']} {generator.choice(MENUS[row['target_lang']])}")


def _half_english(material: Material, number: int, generator: random.Random) -> Row | None:
    """The first half of the target, and the second half of the source."""
    row = material.rows[number]
    words, space = _words(row)
    english_words, _ = _words(row, "source")
    if min(len(words), len(english_words)) < 2:
        return None
    first = space.join(words[: len(words) // 2])
    return _with_target(row, f"{first} {' '.join(english_words[len(english_words) // 2 :])}")


def _phrase_repeated(material: Material, number: int, generator: random.Random) -> Row | None:
    """The first third of the target three times, as translators loop."""
    row = material.rows[number]
    words, space = _words(row)
    if len(words) < 3 or width(row["target"]) < _FEWEST_CHARACTERS:
        return None
    return _with_target(row, space.join(3 * words[: len(words) // 3]))


def _word_for_word(material: Material, number: int, generator: random.Random) -> Row | None:
    """Each English word by the word that most often stands in its translations."""
    row = material.rows[number]
    if row["target_lang"] in UNSPACED or not material.lexicon:
        return None
    target = _WORD.sub(lambda match: material.lexicon.get(match[0].lower(), match[0]), row["source"])
    return None if target == row["source"] else _with_target(row, target)


def _sister_language(material: Material, number: int, generator: random.Random) -> Row | None:
    """The right translation in a language near the right one."""
    text = material.sisters[number] if material.sisters else None
    return _with_target(material.rows[number], text) if text else None


NOISE: dict[str, Maker] = {
    "nearest other": _nearest_other,
    "same passage": _same_passage,
    "next line joined": _next_joined,
    "half exchanged": _half_exchanged,
    "clause dropped": _clause_dropped,
    "words shuffled": _words_shuffled,
    "name exchanged": _name_exchanged,
    "roles exchanged": _roles_exchanged,
    "letters damaged": _letters_damaged,
    "menu behind": _menu_behind,
    "half English": _half_english,
    "phrase repeated": _phrase_repeated,
    "word for word": _word_for_word,
    "sister language": _sister_language,
}
"""Kind of noise -> what makes it."""


@dataclass(frozen=True)
class Mixture:
    """Good and bad pairs, each line once.

    Attributes:
        rows: The pairs, with the `line` that each is made from.
        kinds: Of each, `good` or the kind of noise.
        applies: Kind -> whether it could have been made of the line of each pair.
    """

    rows: list[Row]
    kinds: list[str]
    applies: dict[str, list[bool]]


def foreign_mixture(material: Material, seed: int) -> Mixture:
    """Half of the rows as they are, the others as noise in equal parts, as far as the kinds apply; in random order.

    The kinds that apply to the fewest rows choose first.

    Args:
        material: The rows, and what noise is made from.
        seed: Of the order and of the noise.
    """
    made: dict[str, list[Row | None]] = {}
    for kind, maker in NOISE.items():
        noise = [
            maker(material, number, random.Random(f"{seed} {kind} {number}")) for number in range(len(material.rows))
        ]
        if any(noise):
            made[kind] = noise

    generator = random.Random(seed)
    numbers = list(range(len(material.rows)))
    generator.shuffle(numbers)
    half = len(numbers) // 2
    chosen = [(number, GOOD, material.rows[number]) for number in numbers[:half]]
    remaining = numbers[half:]
    share = len(remaining) // len(made)
    for kind in sorted(made, key=lambda kind: sum(bool(made[kind][number]) for number in remaining)):
        usable = [number for number in remaining if made[kind][number]][:share]
        chosen += [(number, kind, made[kind][number] or {}) for number in usable]
        used = set(usable)
        remaining = [number for number in remaining if number not in used]

    generator.shuffle(chosen)
    applies = {kind: [bool(noise[number]) for number, _, _ in chosen] for kind, noise in made.items()}
    return Mixture([row for _, _, row in chosen], [kind for _, kind, _ in chosen], applies)


def lexicon_of(pairs: Iterable[Row]) -> dict[str, str]:
    """The translation of each English word in lower case: the word with the highest Dice coefficient in these pairs.

    Examples:
        >>> pairs = [("the house", "das Haus"), ("the dog", "der Hund"), ("a house", "ein Haus")]
        >>> lexicon_of({"source": source, "target": target} for source, target in pairs)["house"]
        'Haus'
    """
    source_counts: Counter[str] = Counter()
    target_counts: Counter[str] = Counter()
    pair_counts: Counter[tuple[str, str]] = Counter()
    for pair in pairs:
        source_words = set(_WORD.findall(pair["source"].lower()))
        target_words = set(_WORD.findall(pair["target"]))
        source_counts.update(source_words)
        target_counts.update(target_words)
        pair_counts.update(chain.from_iterable([(word, other) for other in target_words] for word in source_words))

    best: dict[str, tuple[float, str]] = {}
    for (word, other), count in pair_counts.items():
        dice = 2 * count / (source_counts[word] + target_counts[other])
        best[word] = max(best.get(word, (0.0, "")), (dice, other))
    return {word: other for word, (_, other) in best.items()}
