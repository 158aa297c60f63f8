"""How each protocol is run on what was read: language by language, with the options that the user gave."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from hf_xlsr.encoders.encoding import Encoder
from hf_xlsr.evaluation.input_rows import Row
from hf_xlsr.evaluation.inputs import Inputs
from hf_xlsr.evaluation.row_groups import both_sides, by_language, by_pair, by_pair_either_way, pool_of
from hf_xlsr.utils.errors import XlsrError

Metrics = dict[str, float]
Run = Callable[[Encoder, Inputs], Metrics]


def function(module: str, name: str) -> Callable[..., Metrics]:
    """The function behind a protocol; only now is its module imported, with what it needs."""
    return getattr(import_module(f"hf_xlsr.evaluation.{module}"), name)


def _common(inputs: Inputs) -> dict[str, Any]:
    return {"name": inputs.name, "split": inputs.split, **inputs.options, **inputs.encoding}


def pairwise(module: str, name: str) -> Run:
    """A protocol whose function takes sources and targets of one pair of languages."""

    def run(encoder: Encoder, inputs: Inputs) -> Metrics:
        metrics: Metrics = {}
        for languages, rows in by_pair(inputs.only).items():
            sides = both_sides(rows)
            metrics |= function(module, name)(encoder, *sides, languages=languages, **_common(inputs))
        return metrics

    return run


def tatoeba_xtreme(encoder: Encoder, inputs: Inputs) -> Metrics:
    """Turns the pairs round, so that English comes first."""
    metrics: Metrics = {}
    for languages, rows in by_pair_either_way(inputs.only).items():
        if "en" not in languages:
            raise XlsrError(f"the pair {'-'.join(languages)} has no English, in which protocol tatoeba-xtreme asks.")
        english, foreign = ("source", "target") if languages[0] == "en" else ("target", "source")
        sides = ([row[side] for row in rows] for side in (english, foreign))
        other = languages[1] if languages[0] == "en" else languages[0]
        run = function("protocols.tatoeba_variants", "tatoeba_xtreme")
        metrics |= run(encoder, *sides, languages=("en", other), **_common(inputs))
    return metrics


def xsr(encoder: Encoder, inputs: Inputs) -> Metrics:
    """Each pair of languages among its own sentences and those of the pool in its languages, in either order."""
    metrics: Metrics = {}
    for languages, rows in by_pair_either_way(inputs.only).items():
        pool = pool_of(inputs.pool, languages)
        sides = both_sides(rows)
        # A pool of lines has targets only.
        pools = [[row[side] for row in (*rows, *pool) if side in row] for side in ("source", "target")]
        run = function("protocols.xsr", "xsr_both_directions")
        metrics |= run(encoder, *sides, *pools, languages=languages, **_common(inputs))
    return metrics


def bucc(encoder: Encoder, inputs: Inputs) -> Metrics:
    """One setting if the user says which, else both published ones."""
    run = function("protocols.bucc", "bucc" if inputs.options else "bucc_settings")
    data = inputs.bitexts
    return run(encoder, data["tune"], data["test"], languages=inputs.languages, **_common(inputs))


def sts(encoder: Encoder, inputs: Inputs) -> Metrics:
    """All tasks of a language together, for their average."""
    metrics: Metrics = {}
    for language, tasks in _tasks_by_language(inputs).items():
        run = function("protocols.sts", "sts")
        metrics |= run(
            encoder, tasks, language=_sides(language), split=inputs.split, **inputs.options, **inputs.encoding
        )
    return metrics


def senteval(encoder: Encoder, inputs: Inputs) -> Metrics:
    """All tasks of a language together, for their average."""
    metrics: Metrics = {}
    for language, tasks in _tasks_by_language(inputs).items():
        run = function("senteval.evaluate", "senteval")
        metrics |= run(encoder, tasks, language=language, **inputs.options, **inputs.encoding)
    return metrics


def _sides(language: str) -> str | tuple[str, str]:
    """The languages of a pair of sentences: one, or two as rows name them (`en+de`)."""
    first, plus, second = language.partition("+")
    return (first, second) if plus else first


def _tasks_by_language(inputs: Inputs) -> dict[str, dict[str, list[Row]]]:
    languages: dict[str, dict[str, list[Row]]] = {}
    for task, rows in inputs.rows.items():
        for language, group in by_language(rows).items():
            languages.setdefault(language, {})[task] = group
    return languages


def pair_classification(encoder: Encoder, inputs: Inputs) -> Metrics:
    """Each language with the rows to tune on that `Inputs.tune_languages` says."""
    tune, tune_languages = by_language(inputs.tune), inputs.tune_languages
    metrics: Metrics = {}
    for language, rows in by_language(inputs.only).items():
        tuning: dict[str, Any] = {}
        if tune:
            tuned_in = tune_languages[language]
            tuning = {"tune": tune[tuned_in], "tune_language": _sides(tuned_in)}
        run = function("protocols.pair_classification", "pair_classification")
        metrics |= run(encoder, rows, language=_sides(language), **tuning, **_common(inputs))
    return metrics


def language_bias(encoder: Encoder, inputs: Inputs) -> Metrics:
    """All languages together, before and after the removal that the user asked for."""
    if inputs.skipped:
        count = sum(inputs.skipped.values())
        raise XlsrError(
            f"{count} rows of {inputs.name} cannot be used, so that the sentences of the languages do not stand beside "
            "each other; leave these rows out in every language."
        )
    texts = {language: [row["text"] for row in rows] for language, rows in by_language(inputs.only).items()}
    run = function("protocols.language_bias", "language_bias")
    return run(encoder, texts, debias=inputs.debias, **_common(inputs))


def trained(module: str, name: str) -> Run:
    """A protocol whose function trains a head in one language and tests it in all."""

    def run(encoder: Encoder, inputs: Inputs) -> Metrics:
        language, tests = inputs.train_language, by_language(inputs.only)
        run = function(module, name)
        return run(encoder, inputs.train, inputs.tune, tests, train_language=language, **_common(inputs))

    return run


def mteb(encoder: Encoder, inputs: Inputs) -> Metrics:
    """mteb's own evaluation of its tasks."""
    options = {key: value for key, value in inputs.encoding.items() if value not in (None, "")}
    return function("mteb.evaluate", "evaluate_mteb")(encoder, list(inputs.rows), **options)
