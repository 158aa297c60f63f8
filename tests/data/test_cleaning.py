from __future__ import annotations

import importlib.util
import random
import threading
from collections.abc import Iterable, Iterator
from itertools import compress, islice, pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_xlsr.data.cleaning import (
    AnyStep,
    Cleaner,
    ComparingStep,
    Deduplicate,
    DropIdentical,
    FuzzyDuplicates,
    LanguageFilter,
    LengthBounds,
    NearDuplicates,
    Normalize,
    NumberMatch,
    RatioBounds,
    RemoveEvaluation,
    Sample,
    Step,
    build_steps,
    evaluation_keys,
    judge_rows,
    parse_steps,
)
from hf_xlsr.data.cleaning import cleaner as cleaner_module
from hf_xlsr.data.encoding import PAIRS as PAIRS_KIND
from hf_xlsr.data.normalization import match_key
from hf_xlsr.data.preparation import read_judged, write_judged

WORDS = st.sampled_from(["Hi", "hi!", "OK", "ok", "", " ", "?", "Да", "nein nein nein nein", "x" * 40])
PAIRS = st.builds(lambda source, target: {"source": source, "target": target}, WORDS, WORDS)


def pair(source: str | None, target: str | None, **more: Any) -> dict[str, Any]:
    return {"source": source, "target": target, **more}


def clean(step: AnyStep, rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    return list(Cleaner([step])(rows))


def test_normalize() -> None:
    unchanged = pair("a", "b", id=1)
    padded = pair(" a", "b", id=2)
    empty = [pair("a", "\u200b "), {"text": ""}, pair("a", None)]
    cleaner = Cleaner([Normalize(lowercase=True)])

    result = list(cleaner([unchanged, padded, *empty, {"first": "A", "x": 0}]))

    assert result == [unchanged, pair("a", "b", id=2), {"first": "a", "x": 0}]
    assert result[0] is unchanged
    assert padded["source"] == " a"  # rows are not changed in place
    assert cleaner.counts == {"normalize": {"in": 6, "out": 3, "changed": 2}}


@settings(max_examples=50)
@given(rows=st.lists(PAIRS, max_size=40), on=st.sampled_from(["pair", "source", "target"]), batch=st.integers(1, 7))
def test_deduplicate_equals_a_set(rows: list[dict[str, Any]], on: str, batch: int) -> None:
    columns = ("source", "target") if on == "pair" else (on,)
    first_of_key: dict[tuple[str, ...], dict[str, Any]] = {}
    for number, row in enumerate(rows):
        row["id"] = number
        key = tuple(match_key(row[column]) for column in columns)
        first_of_key.setdefault(key, row)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cleaner_module, "BATCH_ROWS", batch)
        assert clean(Deduplicate(on=on), rows) == list(first_of_key.values())


UNTRANSLATED = {**pair("Hello", "Hello"), "source_lang": "en", "target_lang": "en"}  # for a teacher
CASES: list[tuple[Step, list[dict[str, Any]], list[dict[str, Any]]]] = [
    (LengthBounds(min_chars=2, max_chars=5), [{"text": "ab"}, {"text": "a b c"}], [{"text": ""}, {"text": "abcdefg"}]),
    (LengthBounds(min_words=2), [{"text": "a b c"}], [{"text": "ab"}]),
    (LengthBounds(max_chars=3), [], [pair("abc", "abcd"), pair("abcd", "abc")]),  # either side
    (RatioBounds(max_ratio=2, slack=10), [pair("a" * 10, "b" * 30)], [pair("a" * 10, "b" * 31)]),  # 40 / 20
    (RatioBounds(max_ratio=2, slack=0), [pair("a" * 42, "漢" * 12)], [pair("a" * 42, "é" * 12)]),
    (
        NumberMatch(),
        [pair("1,5 million", "1.500.000"), pair("No number", "Keine Zahl"), pair("१२ books", "12 Bücher")],
        [pair("It cost 27 euros", "Es kostete 83 Euro"), pair("three", "3")],
    ),
    (NumberMatch(min_share=1 / 3), [pair("12", "1345")], [pair("12", "13456")]),  # one common digit of six
    (
        DropIdentical(),
        [pair("?", "!"), pair("Hello", "Hallo"), UNTRANSLATED],
        [
            pair("Hello!", "hello"),
            pair("?", "?"),
            {**UNTRANSLATED, "target_lang": "de"},
            {**UNTRANSLATED, "source_lang": "und", "target_lang": "und"},
        ],
    ),
]


@pytest.mark.parametrize(("step", "good", "bad"), CASES)
def test_steps_by_hand(step: Step, good: list[dict[str, Any]], bad: list[dict[str, Any]]) -> None:
    assert clean(step, [*good, *bad]) == good


def test_near_duplicates_ignore_numbers_and_accents() -> None:
    texts = ["Page 3 of 10.", "page 4 of 1,200", "Page of", "Résumé", "resume", "पेज २", "पेज 3"]
    result = clean(NearDuplicates(), [{"text": text} for text in texts])
    assert [row["text"] for row in result] == ["Page 3 of 10.", "Page of", "Résumé", "पेज २"]


# Options, languages of the row, source, target, and whether the row is kept. In the rows with a share, own letters weigh
# 32 and the others 32; languages of a row come before those of the options; é is of one of its two languages.
LANGUAGE_CASES = """\
{}                                     | en ru    | Hello, world!     | Привет, мир!          | yes
{}                                     | en ru    | Привет            | Привет                | no
{}                                     | en zh    | Open a file       | Open a file           | no
{}                                     | en zh    | Open Writer       | 打开 LibreOffice      | yes
{}                                     | en hi-IN | 5 µm              | कार्यक्रम             | yes
{}                                     | en de    | 10 kΩ, 5 μm       | 10 kΩ, 5 μm           | yes
{}                                     | en hi    | ये किताबें पुरानी हैं  | कार्यक्रम             | no
{}                                     | en th    | ผู้ที่                 | ผู้ที่                 | no
{}                                     | en zh    | 茶                | 茶                    | no
{min_share: 1.0}                       | en zh    | Open Writer       | 打开 LibreOffice      | no
{languages: [en, fr], min_share: 0.5}  |          | abcdefghabcdefghabcdefghabcdefgh жж 5 | x                     | yes
{languages: [en, fr], min_share: 0.51} |          | abcdefghabcdefghabcdefghabcdefgh жж 5 | x                     | no
{languages: [en, ru]}                  |          | Да                | Hi                    | no
{languages: [en, ru]}                  | el de    | Γεια              | Hi                    | yes
{method: alphabet}                     | en fr    | The café          | L'ÉTÉ                 | yes
{method: alphabet}                     | en fr    | The señor         | Le monsieur           | no
{method: alphabet}                     | en fr    | By Muñoz          | De Muñoz              | yes
{method: alphabet, min_share: 0.5}     | en fr    | The señor         | Le monsieur           | yes
{method: alphabet}                     | en ru    | Yes               | Да                    | yes
{method: alphabet}                     | en ru    | Yes               | yes                   | no
""".splitlines()


@pytest.mark.parametrize("case", LANGUAGE_CASES)
def test_language_filter(case: str) -> None:
    options, languages, source, target, is_kept = [cell.strip() for cell in case.split("|")]
    row = pair(source, target)
    if languages:
        row["source_lang"], row["target_lang"] = languages.split()
    result = clean(LanguageFilter(**yaml.safe_load(options)), [row])
    assert bool(result) == (is_kept == "yes")


@pytest.mark.parametrize(
    ("options", "row"),
    [
        ({}, {"text": "漢字とカナ", "lang": "zh_TW"}),
        ({"languages": ["en", "ru"]}, {"text": "Γεια"}),
    ],
)
def test_text_in_a_foreign_script(options: dict[str, Any], row: dict[str, Any]) -> None:
    assert not clean(LanguageFilter(**options), [row])


@pytest.mark.skipif(importlib.util.find_spec("py3langid") is None, reason="needs the extra text")
def test_language_filter_by_identifier() -> None:
    german = "Ich habe gestern mit meinem Bruder im Garten gearbeitet."
    english = "Yesterday I worked in the garden with my brother."
    step = LanguageFilter(languages=["en", "de"], method="py3langid")
    rows = [pair(english, german), pair(german, english), pair(english, english), pair("Hi", "Na")]
    assert clean(step, rows) == [rows[0], rows[3]]  # too short to be sure of
    assert clean(step, [{"text": "Jeg heter Kari og bor i en liten by ved kysten.", "lang": "nb"}])


def fixed_probabilities(text: str) -> dict[str, float]:
    return {"deu": 0.06, "en": 0.5, "fr": 0.4} if text == "short" else {"de": 0.02, "en": 0.98}


def test_language_filter_by_a_function() -> None:
    step = LanguageFilter(languages=["de", "de"], method=fixed_probabilities)
    assert clean(step, [pair("short", "short"), pair("short", "long"), pair("5", "?")]) == [
        pair("short", "short"),
        pair("5", "?"),
    ]


def test_repr_of_a_function_has_a_hash_of_it() -> None:
    def identifier(probability: float) -> Any:
        return lambda text: {"de": probability}

    first, changed, same = [repr(LanguageFilter(method=identifier(value))) for value in (1.0, 0.9, 1.0)]
    assert first == same
    assert first != changed


def test_function_that_cannot_be_hashed() -> None:
    lock = threading.Lock()

    def identify(text: str) -> dict[str, float]:
        with lock:
            return {"de": 1.0}

    step = LanguageFilter(languages=["de", "de"], method=identify)
    assert clean(step, [pair("a", "b")])
    assert repr(step) != repr(LanguageFilter(languages=["en", "de"], method=fixed_probabilities))


def test_option_of_steps_has_their_options() -> None:
    assert parse_steps("normalize,length") == ["normalize", "length"]
    (step,) = build_steps(parse_steps("language: {min_share: 0.7}"), ["en", "de"])
    assert repr(step) == repr(LanguageFilter(languages=["en", "de"], min_share=0.7))


needs_rensa = pytest.mark.skipif(importlib.util.find_spec("rensa") is None, reason="needs the extra cleaning")
LONG = (
    "The committee met on Tuesday to discuss the new budget, and agreed on most of its chapters after a long debate."
)


@needs_rensa
def test_fuzzy_duplicates_differ_in_a_few_characters() -> None:
    rows = [pair(LONG, "x"), pair(f"{LONG}..", "x"), pair(LONG.replace("long", "big"), "x"), pair("Other text", "x")]
    assert clean(FuzzyDuplicates(threshold=0.7), rows) == [rows[0], rows[3]]


@needs_rensa
def test_fuzzy_duplicates_compare_source_with_source() -> None:
    rows = [pair(LONG, "y" * 40), pair("y" * 40, LONG)]
    assert clean(FuzzyDuplicates(threshold=0.5), rows) == rows


@needs_rensa
@pytest.mark.parametrize(("threshold", "num_same"), [(0.5, 60), (0.8, 75)])
def test_fuzzy_duplicates_follow_the_curve_of_their_bands(threshold: float, num_same: int) -> None:
    """Rows that share a given part of their runs are similar as often as 1 - (1 - s^r)^b says, within four deviations."""
    step = FuzzyDuplicates(threshold=threshold)
    generator = random.Random(1)
    total = 400
    num_similar = 0
    expected = 0.0
    for _ in range(total):
        letters = generator.choices("abcdefghijklmnopqrstuvwxyz", k=80)
        other = letters[:num_same] + generator.choices("abcdefghijklmnopqrstuvwxyz", k=80 - num_same)
        texts = ["".join(letters), "".join(other)]
        first, second = ({text[start : start + 4] for start in range(len(text) - 3)} for text in texts)
        share = len(first & second) / len(first | second)
        expected += 1 - (1 - share**step.band_width) ** step.num_keys
        num_similar += len(clean(step, [{"text": text} for text in texts])) == 1
    assert expected > 0.3 * total
    assert num_similar == pytest.approx(expected, abs=4 * (total / 4) ** 0.5)


@needs_rensa
def test_default_of_fuzzy_duplicates_is_as_steep_as_documented() -> None:
    step = FuzzyDuplicates()
    found = [1 - (1 - share**step.band_width) ** step.num_keys for share in (0.6, 0.8, 0.9)]
    assert found == pytest.approx([0.04, 0.63, 0.98], abs=0.01)


@needs_rensa
def test_verdicts_of_several_keys_are_stored(tmp_path: Path) -> None:
    steps: list[AnyStep] = [Deduplicate(), FuzzyDuplicates(), Deduplicate(on="source")]
    rows = [pair(f"text {number}", "x", source_lang="en", target_lang="fr") for number in range(20)]
    _, verdicts = judge_rows(steps, rows)
    write_judged(steps, PAIRS_KIND, tmp_path / "judged.arrow", rows)
    _, stored = read_judged(steps, tmp_path / "judged.arrow")
    assert {number: keys.tolist() for number, keys in stored.keys.items()} == {
        number: keys.tolist() for number, keys in verdicts.keys.items()
    }


def test_evaluation_keys_are_of_all_texts() -> None:
    rows = [pair("Good morning", "Bonjour"), {"text": " "}, {"premise": "", "hypothesis": "Tschüss"}]
    assert len(evaluation_keys(rows)) == 3


@pytest.mark.parametrize(
    "texts", [evaluation_keys([pair("Good morning", "Bonjour")]), iter(["Good morning", "Bonjour", "", " "])]
)
def test_remove_evaluation(texts: Iterable[Any]) -> None:
    of_evaluation = [
        pair("Good morning.", "Bonjour."),
        pair("Other", "BONJOUR"),
        {"text": "good MORNING"},
        {"first": "x", "second": "Bonjour!"},
    ]
    others = [pair("Other", "Autre"), {"text": ""}, {"text": "!"}, {"note": "Bonjour"}]
    cleaner = Cleaner([RemoveEvaluation(texts)])

    assert list(cleaner([*of_evaluation, *others])) == others
    assert cleaner.counts == {"remove_evaluation": {"in": 8, "out": 4, "changed": 0}}


def test_sample_is_nested_and_stable() -> None:
    rows = [pair(f"row {number}", f"ligne {number}") for number in range(8_000)]
    quarter = clean(Sample(fraction=0.25), rows)
    eighth = clean(Sample(fraction=0.125), rows)
    assert len(quarter) == pytest.approx(2_000, abs=160)  # four standard deviations
    assert len(eighth) == pytest.approx(1_000, abs=125)
    assert [row for row in quarter if row in eighth] == eighth

    assert clean(Sample(fraction=0.25), reversed(rows)) == quarter[::-1]

    later_rows = rows[4_000:]
    assert clean(Sample(fraction=0.25), later_rows) == [row for row in quarter if row in later_rows]


def one_by_one(
    steps: list[AnyStep], counts: list[list[int]], rows: Iterable[dict[str, Any]]
) -> Iterator[dict[str, Any]]:
    """A naive twin of `Cleaner`: one row at a time through every step."""
    keys_before: list[set[str]] = [set() for _ in steps]
    for row in rows:
        current: dict[str, Any] | None = row
        for step, count, keys in zip(steps, counts, keys_before, strict=True):
            if current is None:
                break
            before = current
            if isinstance(step, ComparingStep):
                key = step.key(current)
                current = None if key in keys else current
                keys.add(key)
            else:
                current = step.apply([current])[0]

            count[0] += 1
            count[1] += current is not None
            count[2] += current is not None and current != before
        if current is not None:
            yield current


def make_steps() -> list[AnyStep]:
    return [
        Normalize(lowercase=True),
        RatioBounds(max_ratio=1.5),
        Deduplicate(),
        DropIdentical(),
        Sample(fraction=0.7),
    ]


@settings(max_examples=50)
@given(rows=st.lists(PAIRS, max_size=60), batch=st.integers(1, 70))
def test_cleaner_equals_row_by_row(rows: list[dict[str, Any]], batch: int) -> None:
    cleaner = Cleaner(make_steps())
    twin_counts = [[0, 0, 0] for _ in cleaner.steps]
    twin = list(one_by_one(make_steps(), twin_counts, rows))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cleaner_module, "BATCH_ROWS", batch)
        assert list(cleaner(rows)) == twin

    assert [list(count.values()) for count in cleaner.counts.values()] == twin_counts
    for before, after in pairwise(cleaner.counts.values()):
        assert before["out"] == after["in"]


@settings(max_examples=50)
@given(rows=st.lists(PAIRS, max_size=60), limit=st.integers(1, 20))
def test_a_limit_ends_rows_and_counts_at_the_last_row_that_is_kept(rows: list[dict[str, Any]], limit: int) -> None:
    steps = make_steps()
    cleaner = Cleaner(steps)
    judged_rows, verdicts = judge_rows(steps, rows)
    clean_rows = list(compress(judged_rows, cleaner.keeps(verdicts, limit)))

    twin_counts = [[0, 0, 0] for _ in steps]
    assert clean_rows == list(islice(one_by_one(make_steps(), twin_counts, rows), limit))
    assert [list(count.values()) for count in cleaner.counts.values()] == twin_counts
