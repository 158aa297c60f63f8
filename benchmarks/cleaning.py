"""What cleaning removes of clean text, how well language identifiers do, and what fuzzy duplicates cost and find.

`losses` runs every step on translations between English and 14 languages that are known to be good, and on bad pairs made
from them (`hf_xlsr.data.cleaning.cost`). Defaults are chosen with `--split dev`: the 1 % development parts of the package
descriptions (DDTP) and of LibreOffice's help. `--split test` only reports: NTREX, TICO-19, and the test files of both.

`identifiers` compares identifiers on short texts (Tatoeba) and long ones (NTREX) of 15 languages. `duplicates` runs the
steps that remove duplicates on package descriptions.

usage: python -m benchmarks.cleaning {losses,identifiers,duplicates} [--split dev|test] [--fasttext FILE] [--limit N]
Data: the folder HF_XLSR_DATA, see docs/data.md. Prints Markdown.
"""

from __future__ import annotations

import argparse
import os
import time
import zlib
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from hf_xlsr.data.cleaning import Cleaner, build_steps
from hf_xlsr.data.cleaning.cost import BAD_PAIRS, GOOD, Removed, cleaning_cost
from hf_xlsr.data.identification import FASTTEXT, codes_of, load_identifier
from hf_xlsr.data.languages import ALPHABETS, language_code
from hf_xlsr.utils.markdown import markdown_table

LANGUAGES = ("de", "fr", "es", "it", "el", "ru", "tr", "vi", "zh", "hi", "ja", "pt", "nl", "ko")
IDENTIFIED = ("en", "de", "fr", "es", "ru", "zh", "ar", "bg", "el", "tr", "vi", "th", "hi", "sw", "ur")
STEPS: dict[str, Any] = {
    "normalize": "normalize",
    "script, before: no foreign letter": {"language": {"min_share": 1.0}},
    "script": "language",
    "alphabet": {"language": {"method": "alphabet"}},
    "py3langid": {"language": {"method": "py3langid"}},
    "heliport": {"language": {"method": "heliport"}},
    "ratio": "ratio",
    "numbers": "numbers",
    "drop_identical": "drop_identical",
}
MOST_IN_DEV = 100  # one document of so many is for development
Pairs = list[dict[str, Any]]


def data_folder() -> Path:
    return Path(os.environ["HF_XLSR_DATA"])


def is_dev(key: str) -> bool:
    """Whether the documents with this key are for development, by the rule of docs/data.md."""
    return zlib.crc32(key.encode()) % MOST_IN_DEV == 0


def columns_of(file: str, *names: str) -> Iterator[tuple[Any, ...]]:
    table = pq.read_table(data_folder() / file)
    columns = [table[name].to_pylist() if name in table.column_names else [None] * len(table) for name in names]
    return zip(*columns, strict=True)


def pairs_of(rows: Iterator[tuple[Any, ...]], language: str) -> Pairs:
    languages = {"source_lang": "en", "target_lang": language}
    return [{"source": english, "target": text, **languages} for english, text in rows if english and text]


def dev_pairs(language: str) -> dict[str, Pairs]:
    """The development part of each corpus."""
    corpora = {"LibreOffice help": ("libreoffice_help/multiway.train.parquet", "doc", language)}
    packages = f"ddtp/en-{language}.train.parquet"
    if (data_folder() / packages).is_file():
        corpora["package descriptions"] = (packages, "md5", "xx")
    pairs = {}
    for corpus, (file, key, column) in corpora.items():
        rows = columns_of(file, key, "en", column)
        pairs[corpus] = pairs_of(((english, text) for name, english, text in rows if is_dev(name)), language)
    return pairs


def test_pairs(language: str) -> dict[str, Pairs]:
    """The test part of each corpus that has the language."""
    files = {
        "NTREX": ("news/ntrex128_xnli.test.parquet", language),
        "TICO-19": ("tico19/tico19_part1.test.parquet", language),
        "LibreOffice help": ("libreoffice_help/multiway.test.parquet", language),
        "package descriptions": (f"ddtp/en-{language}.test.parquet", "xx"),
    }
    pairs = {}
    for corpus, (file, column) in files.items():
        if (data_folder() / file).is_file():
            pairs[corpus] = pairs_of(columns_of(file, "en", column), language)
    return {corpus: rows for corpus, rows in pairs.items() if rows}


def losses(split: str, seed: int, fasttext: str | None) -> None:
    """Prints what each step removes of each language's clean text, and what it catches over all languages."""
    steps = dict(STEPS)
    if fasttext:
        steps[Path(fasttext).name] = {"language": {"method": f"{FASTTEXT}{fasttext}"}}
    read = dev_pairs if split == "dev" else test_pairs
    pairs = {language: read(language) for language in LANGUAGES}
    lost: dict[str, list[str]] = {name: [] for name in steps}
    caught: dict[str, dict[str, list[Removed]]] = {}
    for name in steps:
        caught[name] = {kind: [] for kind in BAD_PAIRS}
    by_corpus: dict[str, dict[str, list[Removed]]] = {name: {} for name in steps}
    for language, corpora in pairs.items():
        known = list(chain.from_iterable(corpora.values()))
        for name, step in steps.items():
            if name == "alphabet" and language not in ALPHABETS:
                lost[name].append("-")
                continue
            cost, _ = cleaning_cost(build_steps([step], ["en", language]), known, seed=seed).values()
            lost[name].append(f"{cost[GOOD].share:.2%}")
            for kind, kinds in caught[name].items():
                kinds.append(cost[kind])
            for corpus, rows in corpora.items():
                (good, *_) = cleaning_cost(build_steps([step], ["en", language]), rows, seed=seed).values()
                by_corpus[name].setdefault(corpus, []).append(good[GOOD])

    numbers = [f"{sum(map(len, corpora.values())):,}" for corpora in pairs.values()]
    print(f"Clean pairs that each step removes, {split} parts, seed {seed}:\n")
    rows = [["pairs", *numbers], *([name, *shares] for name, shares in lost.items())]
    print("\n".join(markdown_table(["step", *LANGUAGES], rows)))

    names = list(dict.fromkeys(chain.from_iterable(corpora for corpora in pairs.values())))
    print("\nBy corpus, all languages, with the 95 % interval; and the language that loses most:\n")
    cells = [[name, *(summary(by_corpus[name].get(corpus, [])) for corpus in names)] for name in steps]
    print("\n".join(markdown_table(["step", *names], cells)))

    print("\nBad pairs that each step removes, all languages:\n")
    cells = [[name, *(f"{total(kinds).share:.1%}" for kinds in caught[name].values())] for name in steps]
    print("\n".join(markdown_table(["step", *BAD_PAIRS], cells)))


def total(removed: Sequence[Removed]) -> Removed:
    return Removed(sum(part.count for part in removed), sum(part.total for part in removed))


def summary(removed: Sequence[Removed]) -> str:
    overall = total(removed)
    low, high = overall.interval()
    return f"{overall.share:.2%} ({low:.2%}-{high:.2%}), {max(part.share for part in removed):.1%}"


def identifiers(fasttext: str | None, limit: int) -> None:
    """Prints accuracy and time of each identifier."""
    table = columns_of("tatoeba/tatoeba_v1_xnli15.parquet", "src_lang", "text", "english")
    short: dict[str, list[str]] = {language: [] for language in IDENTIFIED}
    for language, text, english in table:
        if language_code(language) in short:
            short[language_code(language)].append(text)
            short["en"].append(english)
    long = {
        language: [text for (text,) in columns_of("news/ntrex128_xnli.test.parquet", language)]
        for language in IDENTIFIED
    }

    methods = ["py3langid", "heliport"]
    if fasttext:
        methods.append(f"{FASTTEXT}{fasttext}")
    rows = []
    for method in methods:
        identifier = load_identifier(method)
        cells = [Path(method).name if fasttext and method.endswith(fasttext) else method]
        for texts_by_language in (short, long):
            shares = []
            num_texts = 0
            started = time.perf_counter()
            for language, texts in texts_by_language.items():
                texts = [text for text in texts[:limit] if text]
                num_right = sum(is_right(identifier.identify(text), language) for text in texts)
                shares.append((num_right / len(texts), language))
                num_texts += len(texts)
            seconds = time.perf_counter() - started
            worst, lowest = min(shares)
            mean = sum(share for share, _ in shares) / len(shares)
            cells += [f"{mean:.1%}", f"{worst:.1%} ({lowest})", f"{1e6 * seconds / num_texts:.0f}"]
        rows.append(cells)
    header = ["identifier", "short, mean", "worst", "us a text", "long, mean", "worst", "us a text"]
    print("\n".join(markdown_table(header, rows)))


def is_right(probabilities: Any, language: str) -> bool:
    """Whether the most probable language is the text's; no answer counts as wrong."""
    if not probabilities:
        return False
    return language_code(max(probabilities, key=probabilities.get)) in codes_of([language])


def duplicates(language: str, limit: int) -> None:
    """Prints what the steps that remove duplicates take and remove."""
    rows = pairs_of(columns_of(f"ddtp/en-{language}.train.parquet", "en", "xx"), language)[:limit]
    cells = []
    for step in ("deduplicate", "near_duplicates", "fuzzy_duplicates", {"fuzzy_duplicates": {"threshold": 0.6}}):
        steps = build_steps([step], ["en", language])
        started = time.perf_counter()
        remaining = sum(1 for _ in Cleaner(steps)(rows))
        seconds = time.perf_counter() - started
        name = str(step).replace("'", "")
        cells.append([name, f"{1 - remaining / len(rows):.2%}", f"{1e6 * seconds / len(rows):.0f}"])
    print(f"{len(rows):,} package descriptions, en-{language}:\n")
    print("\n".join(markdown_table(["step", "removed", "us a pair"], cells)))


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=("losses", "identifiers", "duplicates"))
    parser.add_argument("--split", choices=("dev", "test"), default="dev")
    parser.add_argument("--fasttext", help="a model of fastText, such as lid.176.ftz")
    parser.add_argument("--language", default="de")
    parser.add_argument("--limit", type=int, default=1_000_000, help="texts of each language, or pairs")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)
    if options.part == "losses":
        losses(options.split, options.seed, options.fasttext)
    elif options.part == "identifiers":
        identifiers(options.fasttext, options.limit)
    else:
        duplicates(options.language, options.limit)


if __name__ == "__main__":
    main()
