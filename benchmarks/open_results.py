"""The numbers of docs/results.md for an English-XX encoder: Tatoeba, Acts, sentence retrieval, zero-shot topics.

Reads text through HF_XLSR_DATA (docs/data.md). Nothing is chosen here: every set is a test set.

usage: python benchmarks/open_results.py MODEL --language fr [--output outputs/results/en-fr.json]
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from rich.console import Console

from hf_xlsr.data.sources import open_source
from hf_xlsr.encoders.loading import load_encoder
from hf_xlsr.evaluation import tatoeba, zero_shot
from hf_xlsr.evaluation.protocols.xsr import xsr_both_directions
from hf_xlsr.evaluation.report import results_table, save_results
from hf_xlsr.utils.errors import XlsrError
from hf_xlsr.utils.hashing import data_hash

ISO3 = {"ar": "ara", "bg": "bul", "de": "deu", "el": "ell", "es": "spa", "fr": "fra", "it": "ita", "ru": "rus"}
FLORES = {"en": "eng_Latn", "de": "deu_Latn", "es": "spa_Latn", "fr": "fra_Latn", "it": "ita_Latn"}
QUERIES = 2000


def pairs_of(source: dict[str, Any], language: str, split: str) -> tuple[list[str], list[str]]:
    """English and other sentences of a source."""
    rows = list(open_source(source, languages=["en", language], split=split))
    return [row["source"] for row in rows], [row["target"] for row in rows]


def topics(language: str, split: str) -> list[dict[str, str]]:
    """SIB-200 rows of a language."""
    where = {"lang": FLORES[language], "split": split}
    source = {
        "path": "${HF_XLSR_DATA}/sib200/sib200_a18.parquet",
        "columns": "label=category,text=text",
        "where": where,
    }
    return [
        {"text": row["text"], "label": str(row["label"])}
        for row in open_source(source, languages=["en", language], required=("text", "label"))
    ]


def evaluate(model: str, language: str) -> tuple[dict[str, float], dict[str, str]]:
    """All protocols; metrics, and hashes of what they were measured on."""
    encoder = load_encoder(model)
    pair = ("en", language)
    metrics: dict[str, float] = {}
    hashes: dict[str, str] = {}

    tatoeba_source = {
        "path": "${HF_XLSR_DATA}/tatoeba/tatoeba_v1_xnli15.parquet",
        "columns": "source=english,target=text",
        "where": {"src_lang": ISO3[language]},
    }
    english, other = pairs_of(tatoeba_source, language, "test")
    hashes["tatoeba"] = data_hash(english + other)
    metrics.update(tatoeba(encoder, english, other, languages=pair, name="tatoeba", batch_size=128))

    english, other = pairs_of({"corpus": "bible"}, language, "test")
    hashes["acts"] = data_hash(english + other)
    metrics.update(tatoeba(encoder, english, other, languages=pair, name="acts", batch_size=128))

    # 2,000 held-out queries among every distinct sentence of the other language in the same two files.
    help_test = {
        "path": "${HF_XLSR_DATA}/libreoffice_help/multiway.test.parquet",
        "columns": f"source=en,target={language}",
    }
    help_train = {**help_test, "path": help_test["path"].replace(".test.", ".train.")}
    package_test = {"path": f"${{HF_XLSR_DATA}}/ddtp/en-{language}.test.parquet", "columns": "source=en,target=xx"}
    package_train = {**package_test, "path": package_test["path"].replace(".test.", ".train.")}
    for name, test, train in (("libreoffice", help_test, help_train), ("ddtp", package_test, package_train)):
        english, other = pairs_of(test, language, "test")
        pool_english, pool_other = pairs_of(train, language, "train")
        pools = english + pool_english, other + pool_other
        english, other = english[:QUERIES], other[:QUERIES]
        hashes[f"{name}-xsr"] = data_hash([*english, *other, *pools[0], *pools[1]])
        metrics.update(xsr_both_directions(encoder, english, other, *pools, languages=pair, name=name, batch_size=128))

    for train_language, test_language in (pair, pair[::-1]):
        train, dev, test = (
            topics(lang, split)
            for lang, split in ((train_language, "train"), (train_language, "dev"), (test_language, "test"))
        )
        hashes[f"sib200-{train_language}-{test_language}"] = data_hash(row["text"] for row in train + dev + test)
        tests = {test_language: test, train_language: topics(train_language, "test")}
        metrics.update(
            zero_shot(encoder, train, dev, tests, train_language=train_language, name="sib200", head="linear")
        )
    return metrics, hashes


def main() -> None:
    """Evaluates, prints a table and writes the JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--language", required=True, choices=sorted(set(FLORES) - {"en"}))
    parser.add_argument("--output")
    options = parser.parse_args()
    try:
        metrics, hashes = evaluate(options.model, options.language)
    except XlsrError as error:
        raise SystemExit(f"open_results: {error}") from None
    Console().print(results_table(metrics, title=options.model))
    output = options.output or f"outputs/results/en-{options.language}.json"
    settings = {"model": Path(options.model).name, "language": options.language, "zero_shot_head": "linear"}
    save_results(output, metrics, settings=settings, data_hashes=hashes)
    print(f"written to {output}")


if __name__ == "__main__":
    main()
