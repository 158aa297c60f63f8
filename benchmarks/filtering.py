"""`hf-xlsr filter` on noise of kinds that it was not trained on, against thresholds of the margin and of the cosine.

Half of the lines of a test set stay, the others become bad pairs: of 14 foreign kinds (`benchmarks/foreign_noise.py`),
and in a second mixture of the kinds that the filter is trained on. The filter learns from known pairs of training data,
as `filter_bitext` does, and so do the thresholds of margin and cosine: they are chosen on the same held-out pairs.

`--split test` reports on NTREX; `--split dev` on newstest 2017, on which training noise and features are chosen. Known
pairs are newstest 2008 to 2016, of Chinese LibreOffice's help, without any sentence of an evaluation set. The nearest
other sentence is that of `--other`, an English encoder. Finished languages and seeds in `--folder` are not repeated;
the tables are in its `SPLIT.md`. Data: HF_XLSR_DATA; both encoders are folders in HF_XLSR_ENCODERS.

Intervals are bootstraps over the lines, drawn alike in all languages and seeds, of means over these. A kind is compared
with the good pairs of lines of which it could have been made.
"""

from __future__ import annotations

import json
import os
import random
import time
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from benchmarks.cleaning import columns_of, is_dev
from benchmarks.foreign_noise import NOISE, SISTERS, Material, foreign_mixture, lexicon_of
from benchmarks.harness import Job, Step
from benchmarks.ranking import line_weights, ranking, with_interval
from hf_xlsr.data.cleaning import RemoveEvaluation
from hf_xlsr.data.columns import Row
from hf_xlsr.data.edits import names_in
from hf_xlsr.data.normalization import match_key
from hf_xlsr.data.sources import parse_sources
from hf_xlsr.encoders.cache import CachedEncoder, VectorStore
from hf_xlsr.encoders.loading import encoder_facts, load_encoder
from hf_xlsr.mining.filtering.damage import DAMAGE, GOOD, damaged_mixture
from hf_xlsr.mining.filtering.pair_filter import (
    KIND,
    PART,
    TEST,
    FilterOptions,
    HeldOut,
    filter_bitext,
    training_pairs,
)
from hf_xlsr.mining.options import MiningOptions
from hf_xlsr.mining.scoring import score_bitext
from hf_xlsr.mining.thresholds import PrecisionCurve, wilson_shares
from hf_xlsr.runs.inputs import held_out_texts
from hf_xlsr.utils.errors import XlsrError
from hf_xlsr.utils.files import write_json
from hf_xlsr.utils.hashing import address_of
from hf_xlsr.utils.markdown import markdown_table

MEMORY = WARM_UP = False
DEFAULTS: Job = {
    "languages": ["de", "fr", "ru", "zh"],
    "seeds": [1, 2, 3],
    "split": "test",
    "lines": 700,
    "known": 700,
    "encoder": "e5-small",
    "prompt": "query: ",
    "other": "minilm-en",
    "resamples": 1000,
    "folder": "outputs/benchmarks/filtering",
}
QUICK: Job = {"languages": ["de"], "seeds": [1], "lines": 200, "known": 300}
SIDES = ("filter", "margin", "cosine")
HELD_OUT = Path(__file__).parent / "papers" / "recipes" / "held_out.yaml"
NEWS = "news/newstest2008_2018.train.parquet"
DEV_SET = "newstest2017"
SETS_OF_TESTS = (DEV_SET, "newstest2018")
WRONG_LANGUAGE = ("untranslated", "other language", "half English", "sister language")
"""Kinds that a language identifier sees, and the scores of an encoder of many languages do not."""
FOREIGN = "foreign"
OWN = "own"
LEXICON_PAIRS = 3000
DRAW = 1  # seed of the known pairs, which all seeds share
WANTED = (0.8, 0.9, 0.95, 0.98)
BIN_EDGES = (0.0, 0.05, 0.2, 0.4, 0.6, 0.8, 0.9, 0.95, 1.0)

Scored = dict[str, Any]
"""Of the pairs of a mixture: `kinds`, `filter`, `margin`, `cosine`, `lines`, `applies`, and the first four `held_out`."""
Cell = dict[str, Any]
"""Of a language and a seed: the mixtures `foreign` and `own`."""


def one_line(text: str) -> str:
    return " ".join(text.split())


def lines_of(language: str, split: str, count: int) -> tuple[list[Row], list[str | None]]:
    """Good pairs of a test or dev set in the order of their documents, and translations into a sister language."""
    sister = SISTERS.get(language, "")
    if split == "test":
        lines = columns_of("news/ntrex128_xnli.test.parquet", "en", language, sister)
    else:
        news = columns_of(NEWS, "lang", "set", "en", "xx")
        lines = ((en, xx, None) for lang, name, en, xx in news if (lang, name) == (language, DEV_SET))

    rows: list[Row] = []
    sisters: list[str | None] = []
    seen: set[str] = set()
    languages = {"source_lang": "en", "target_lang": language}
    for english, text, sister_text in lines:
        if not english or not text or len(rows) == count:
            continue
        keys = {f"en {match_key(english)}", f"xx {match_key(text)}"}
        if not keys & seen:
            seen |= keys
            rows.append({"source": one_line(english), "target": one_line(text), **languages, "line": len(rows)})
            sisters.append(one_line(sister_text) if sister_text else None)
    if not rows:
        raise XlsrError(f"the {split} set has no lines of '{language}'. Leave it out of --languages.")
    return rows, sisters


@cache
def removal() -> RemoveEvaluation:
    """Removes what occurs in the evaluation sets that the papers' comparisons hold out."""
    options = yaml.safe_load(os.path.expandvars(HELD_OUT.read_text("utf-8")))
    sources = parse_sources(options["data"]["held_out"])
    return RemoveEvaluation(held_out_texts(sources, languages=("en", *SISTERS)))


def known_pairs(language: str, count: int, folder: Path) -> dict[str, Any]:
    """`known` pairs, `more` pairs for the lexicon, and how many are `removed` because evaluation sets have them."""
    file = folder / f"known-{language}-{count}.json"
    if file.is_file():
        stored: dict[str, Any] = json.loads(file.read_text("utf-8"))
        return stored

    news = columns_of(NEWS, "lang", "set", "en", "xx")
    pairs = [(en, xx) for lang, name, en, xx in news if lang == language and name not in SETS_OF_TESTS]
    if not pairs:
        helps = columns_of("libreoffice_help/multiway.train.parquet", "doc", "en", language)
        pairs = [(en, xx) for doc, en, xx in helps if not is_dev(doc)]
    rows = [{"source": one_line(en), "target": one_line(xx)} for en, xx in pairs if en and xx]
    random.Random(DRAW).shuffle(rows)
    rows = rows[: 2 * (count + LEXICON_PAIRS)]
    allowed = [row for row in removal().apply(rows) if row is not None]
    known = {
        "known": allowed[:count],
        "more": allowed[count : count + LEXICON_PAIRS],
        "removed": len(rows) - len(allowed),
    }
    write_json(file, known)
    return known


def nearest_rows(rows: Sequence[Row], encoder: Any) -> list[int]:
    """Of each row, the number of the row whose English is nearest by an encoder, and not the same."""
    vectors = np.asarray(encoder.encode([row["source"] for row in rows], convert_to_numpy=True), np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    cosines = vectors @ vectors.T
    np.fill_diagonal(cosines, -np.inf)
    return cosines.argmax(axis=1).tolist()


class Encoders:
    """Both encoders; the vectors of their texts stay for the next run."""

    def __init__(self, job: Job) -> None:
        self.folder = Path(job["folder"]) / "vectors"
        self.prompt = job["prompt"]
        self.main = self._stored(job["encoder"])
        self.other = self._stored(job["other"])

    def _stored(self, name: str) -> CachedEncoder:
        path = os.path.join(os.path.expandvars("$HF_XLSR_ENCODERS"), name)
        encoder = load_encoder(path)
        return CachedEncoder(encoder, VectorStore(str(self.folder), encoder_facts(encoder, path)))


def measured_cell(
    material: Material, known: Sequence[Row], encoder: Any, prompt: str, seed: int, identifier: str = "py3langid"
) -> Cell:
    """The scores of both mixtures of a language and a seed, and of the held-out pairs."""
    target_language = material.rows[0]["target_lang"]
    languages = ("en", target_language)
    filtering = FilterOptions(languages, identifier, seed=seed)
    mining = MiningOptions(languages=languages, prompt=prompt, batch_size=32)

    foreign = foreign_mixture(material, seed)
    own = damaged_mixture(material.rows, seed)
    mixtures: dict[str, Scored] = {
        FOREIGN: {"rows": foreign.rows, "kinds": foreign.kinds, "applies": foreign.applies},
        OWN: {"rows": [row for row, _ in own], "kinds": [kind for _, kind in own], "applies": {}},
    }
    cell: Cell = {}
    for name, mixture in mixtures.items():
        pairs = mixture.pop("rows")
        training, _ = training_pairs(pairs, known, filtering)
        result = filter_bitext(pairs, training, filtering, mining, encoder=encoder)
        every = [*pairs, *training]
        sides = [[row[side] for row in every] for side in ("source", "target")]
        scores = score_bitext(*sides, mining, encoder=encoder)
        count = len(pairs)
        mixture["lines"] = [row["line"] for row in pairs]
        mixture |= {"filter": result.probability.tolist()}
        mixture |= {"margin": scores.score[:count].tolist(), "cosine": scores.cosine[:count].tolist()}
        is_held_out = np.array([row[PART] == TEST for row in training])
        mixture["held_out"] = {
            "kinds": [row[KIND] for row in training if row[PART] == TEST],
            "filter": result.held_out.probability.tolist(),
            "margin": scores.score[count:][is_held_out].tolist(),
            "cosine": scores.cosine[count:][is_held_out].tolist(),
        }
        cell[name] = mixture
    return cell


def cells_of(job: Job) -> dict[tuple[str, int], Cell]:
    """Every language and seed; those that are finished with these settings are read, whatever the code was."""
    folder = Path(job["folder"])
    folder.mkdir(parents=True, exist_ok=True)
    cells = {}
    encoders = None
    for language in job["languages"]:
        material = None
        for seed in job["seeds"]:
            settings = {name: job[name] for name in ("encoder", "other", "prompt", "split", "lines", "known")}
            file = folder / f"{language}-{seed}-{address_of(settings)}.json"
            if not file.is_file():
                started = time.process_time()
                encoders = encoders or Encoders(job)
                if material is None:
                    rows, sisters = lines_of(language, job["split"], job["lines"])
                    known = known_pairs(language, job["known"], folder)
                    names = names_in(row["source"] for row in known["more"])
                    lexicon = lexicon_of([*known["known"], *known["more"]])
                    material = Material(rows, nearest_rows(rows, encoders.other), sisters, lexicon, names)
                cell = measured_cell(material, known["known"], encoders.main, job["prompt"], seed)
                facts = {"known": len(known["known"]), "removed": known["removed"]}
                cell |= facts | {"cpu_seconds": time.process_time() - started}
                write_json(file, cell)
            cells[language, seed] = json.loads(file.read_text("utf-8"))
    return cells


def kinds_in(cells: Mapping[Any, Cell], name: str) -> list[str]:
    """The kinds of noise of a mixture, in the order of their definition."""
    kinds = set()
    for cell in cells.values():
        kinds |= set(cell[name]["kinds"])
    return [kind for kind in (*NOISE, *DAMAGE) if kind in kinds]


class Rankings:
    """Area and average precision of the sides, by mixture and kind, means over languages and seeds, with resamples."""

    def __init__(self, cells: Mapping[tuple[str, int], Cell], resamples: int, seed: int = 0) -> None:
        self.cells = cells
        num_lines = 1 + max(max(cell[FOREIGN]["lines"]) for cell in cells.values())
        self.weights = line_weights(num_lines, resamples, seed)

    def of(
        self,
        side: str,
        name: str,
        kind: str | None = None,
        language: str | None = None,
        without: Collection[str] = (),
    ) -> np.ndarray:
        """Area and average precision, `(2, 1 + resamples)`; of a kind, or all but some, in one language or all."""
        values = []
        for (cell_language, _), cell in self.cells.items():
            scored = cell[name]
            if language not in (None, cell_language) or (kind and kind not in scored["kinds"]):
                continue
            kinds = np.array(scored["kinds"])
            is_good = kinds == GOOD
            is_bad = ~is_good & ~np.isin(kinds, list(without))
            if kind:
                is_bad = kinds == kind
                is_good &= np.array(scored["applies"].get(kind, [True] * len(kinds)))
            weights = self.weights[:, scored["lines"]]
            values.append(ranking(np.array(scored[side]), weights * is_good, weights * is_bad))
        return np.mean(values, axis=0)


def percent(value: tuple[float, float, float]) -> str:
    middle, low, high = (100 * number for number in value)
    return f"{middle:.1f} ({low:.1f} to {high:.1f})"


def signed(value: tuple[float, float, float]) -> str:
    middle, low, high = (100 * number for number in value)
    return f"{middle:+.1f} ({low:+.1f} to {high:+.1f})"


def ranking_table(rankings: Rankings, name: str) -> list[str]:
    """Area by kind for each side, how much the filter is above the margin, and average precision."""
    kinds = kinds_in(rankings.cells, name)
    groups: dict[str, tuple[str | None, Collection[str]]] = {"**all**": (None, ())}
    groups["**all in the right language**"] = (None, WRONG_LANGUAGE)
    groups |= {kind: (kind, ()) for kind in kinds}
    counts = Counter(kind for cell in rankings.cells.values() for kind in cell[name]["kinds"])

    rows = []
    for title, (kind, without) in groups.items():
        by_side = {side: rankings.of(side, name, kind, without=without) for side in SIDES}
        number = counts[kind] if kind else sum(counts[one] for one in kinds if one not in without)
        areas = [percent(with_interval(by_side[side][0])) for side in SIDES]
        precisions = [f"{100 * by_side[side][1][0]:.1f}" for side in SIDES]
        above = signed(with_interval(by_side["filter"][0] - by_side["margin"][0]))
        rows.append([title, f"{number:,}", *areas, above, *precisions])
    titles = [*(f"{side}, area" for side in SIDES), "filter - margin", *(f"{side}, AP" for side in SIDES)]
    return markdown_table(["noise", "bad pairs", *titles], rows)


def language_table(rankings: Rankings) -> list[str]:
    """Area over all kinds by language."""
    rows = []
    for language in dict.fromkeys(language for language, _ in rankings.cells):
        for name, without in product((FOREIGN, OWN), ((), WRONG_LANGUAGE)):
            by_side = {side: rankings.of(side, name, language=language, without=without)[0] for side in SIDES}
            above = signed(with_interval(by_side["filter"] - by_side["margin"]))
            areas = [percent(with_interval(by_side[side])) for side in SIDES]
            title = f"{name} kinds, right language" if without else f"{name} kinds"
            rows.append([f"en-{language}", title, *areas, above])
    return markdown_table(["pair", "noise", *SIDES, "filter - margin"], rows, numbers_from=2)


Curves = dict[tuple[Any, str, str], PrecisionCurve]
"""Language and seed, mixture and side -> the table that `filter` prints of the held-out pairs."""


def held_out_curves(cells: Mapping[Any, Cell]) -> Curves:
    """What the held-out pairs say of the thresholds of each side."""
    curves = {}
    for (key, cell), name, side in product(cells.items(), (OWN, FOREIGN), SIDES):
        held_out = cell[name]["held_out"]
        curves[key, name, side] = HeldOut(np.array(held_out[side]), held_out["kinds"]).curve()
    return curves


def threshold_figures(
    cells: Mapping[Any, Cell], curves: Curves, name: str, side: str, wanted: float
) -> dict[str, Any]:
    """What the printed table promises for a precision, and what a mixture gives: means over the cells that reach it."""
    figures: dict[str, list[float]] = {}
    covered = 0
    for key, cell in cells.items():
        try:
            threshold, printed = curves[key, name, side].chosen(None, wanted)
        except XlsrError:
            continue  # no threshold reaches the precision
        is_kept = np.array(cell[name][side]) >= threshold
        is_good = np.array([kind == GOOD for kind in cell[name]["kinds"]])
        precision = float(is_good[is_kept].mean()) if is_kept.any() else 1.0
        figures.setdefault("printed precision", []).append(printed["precision"])
        figures.setdefault("printed recall", []).append(printed["recall"])
        figures.setdefault("precision", []).append(precision)
        figures.setdefault("recall", []).append(float(is_kept[is_good].mean()))
        covered += bool(printed["low"] <= precision <= printed["high"])

    means: dict[str, Any] = {title: float(np.mean(values)) for title, values in figures.items()}
    return means | {"cells": len(figures.get("recall", ())), "covered": covered}


def threshold_table(cells: Mapping[Any, Cell], curves: Curves) -> list[str]:
    """Printed against true precision and recall of each side."""
    rows = []
    for name, side, wanted in product((OWN, FOREIGN), SIDES, WANTED):
        figures = threshold_figures(cells, curves, name, side, wanted)
        count = figures["cells"]
        row = [f"{name} kinds", side, f"{wanted:.0%}", f"{count} of {len(cells)}"]
        if count:
            row.append(f"{figures['printed precision']:.1%}, {figures['printed recall']:.1%}")
            row.append(f"{figures['precision']:.1%}, {figures['recall']:.1%}")
            row.append(f"{figures['covered']} of {count}")
        rows.append([*row, *["-"] * (7 - len(row))])
    header = ["noise", "score", "wanted", "reached", "printed precision, recall", "true", "inside the interval"]
    return markdown_table(header, rows, numbers_from=2)


def reliability_table(cells: Mapping[Any, Cell]) -> list[str]:
    """Share of good pairs by probability, of held-out pairs and of both mixtures, and the expected calibration error."""
    columns = {}
    errors = []
    parts = {
        "held-out pairs": [cell[FOREIGN]["held_out"] for cell in cells.values()],
        "own kinds, other lines": [cell[OWN] for cell in cells.values()],
        "foreign kinds": [cell[FOREIGN] for cell in cells.values()],
    }
    for name, scored in parts.items():
        probability = np.concatenate([part["filter"] for part in scored])
        kinds = [kind for part in scored for kind in part["kinds"]]
        is_good = np.array([kind == GOOD for kind in kinds])
        bins = np.digitize(probability, BIN_EDGES[1:-1])
        column = []
        error = 0.0
        for number in range(len(BIN_EDGES) - 1):
            members = bins == number
            count = int(members.sum())
            if not count:
                column.append("-")
                continue
            share, low, high = wilson_shares(np.array([is_good[members].sum()]), count)
            mean = probability[members].mean()
            error += count / len(bins) * abs(mean - share[0])
            column.append(f"{mean:.1%} of {count:,}: {share[0]:.1%} ({low[0]:.1%} to {high[0]:.1%})")
        columns[name] = column
        errors.append(f"{100 * error:.1f}")
    rows = []
    for number in range(len(BIN_EDGES) - 1):
        title = f"{BIN_EDGES[number]:.0%} to {BIN_EDGES[number + 1]:.0%}"
        rows.append([title, *(column[number] for column in columns.values())])
    rows.append(["mean error, points", *errors])
    return markdown_table(["probability", *columns], rows)


def kept_table(cells: Mapping[Any, Cell], curves: Curves) -> list[str]:
    """Share of the good pairs and of each kind that the filter keeps at 0.5, and the others at thresholds like it.

    Those of margin and cosine are the highest with at least its recall of held-out pairs.
    """
    kept: dict[str, dict[str, list[bool]]] = {}
    for key, cell in cells.items():
        recall = curves[key, FOREIGN, "filter"].chosen(0.5)[1]["recall"]
        thresholds = {"filter": 0.5}
        for side in ("margin", "cosine"):
            curve = curves[key, FOREIGN, side]
            assert curve.recall is not None
            thresholds[side] = float(curve.threshold[curve.recall >= recall][-1])
        for side, threshold in thresholds.items():
            for kind, score in zip(cell[FOREIGN]["kinds"], cell[FOREIGN][side], strict=True):
                kept.setdefault(kind, {}).setdefault(side, []).append(score >= threshold)

    rows = []
    for kind in (GOOD, *kinds_in(cells, FOREIGN)):
        shares = [f"{np.mean(kept[kind][side]):.1%}" for side in SIDES]
        rows.append([kind, *shares])
    return markdown_table(["kept pairs", *SIDES], rows)


def report_lines(job: Job, cells: Mapping[tuple[str, int], Cell], rankings: Rankings) -> Iterator[str]:
    """The page of tables."""
    seconds = sum(cell["cpu_seconds"] for cell in cells.values())
    curves = held_out_curves(cells)
    yield f"{job['split']}: {json.dumps(job)}; {seconds:,.0f} seconds of CPU time\n"
    for (language, seed), cell in cells.items():
        yield f"- en-{language}, seed {seed}: {cell['known']:,} known pairs, {cell['removed']:,} removed"
    for title, lines in (
        ("Foreign kinds", ranking_table(rankings, FOREIGN)),
        ("Own kinds", ranking_table(rankings, OWN)),
        ("Languages", language_table(rankings)),
        ("Thresholds", threshold_table(cells, curves)),
        ("Reliability", reliability_table(cells)),
        ("Kept", kept_table(cells, curves)),
    ):
        yield f"\n## {title}\n"
        yield from lines


def prepare(job: Job, sides: list[str]) -> Step:
    cells = cells_of(job)
    rankings = Rankings(cells, job["resamples"])
    curves = held_out_curves(cells)
    page = Path(job["folder"]) / f"{job['split']}.md"
    page.write_text("\n".join(report_lines(job, cells, rankings)) + "\n", "utf-8")

    def step(side: str, warm_up: bool) -> dict[str, Any]:
        figures: dict[str, Any] = {}
        for name in (FOREIGN, OWN):
            area, precision = rankings.of(side, name)
            figures[f"{name} area"] = percent(with_interval(area))
            figures[f"{name} AP"] = percent(with_interval(precision))
        figures["precision for 95%"] = threshold_figures(cells, curves, FOREIGN, side, 0.95).get("precision", "-")
        return figures

    return step
