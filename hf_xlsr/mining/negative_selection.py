"""How the negatives of a block of pairs are chosen from the nearest sentences, edits and random sentences."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from hf_xlsr.data.edits import Editor
from hf_xlsr.data.seen import hash64
from hf_xlsr.mining.negative_counts import Counts, Example
from hf_xlsr.mining.options import NegativeOptions
from hf_xlsr.mining.search.extraction import margin_scores
from hf_xlsr.mining.search.neighbours import BothWays
from hf_xlsr.mining.search.vectors import pair_products
from hf_xlsr.mining.stages import Job
from hf_xlsr.mining.texts import TextStore, on_one_line
from hf_xlsr.mining.translation_groups import TranslationGroups, text_key
from hf_xlsr.utils.errors import XlsrError

# Rules that rule out a candidate, in the order in which they are tried; number 0 is a candidate that passes all.
RULES = ("", "own", "duplicate", "known", "margin", "paraphrase", "cross-encoder")
OWN, DUPLICATE, KNOWN, MARGIN, PARAPHRASE, CROSS_ENCODER = range(1, len(RULES))
MINED = "mined"
RANDOM = "random"
NEAREST = "nearest"
DRAWS = 64  # of random sentences, until a pair has those that it lacks
ASKED = 8  # candidates of a pair that a cross-encoder scores together
SHOWN = 50  # of a block, from which examples are taken
SCHEMA = pa.schema(
    {
        "source": pa.string(),
        "target": pa.string(),
        "negatives": pa.list_(pa.string()),
        "kinds": pa.list_(pa.string()),
        "scores": pa.list_(pa.float64()),
    }
)


class Negative(NamedTuple):
    """A negative of a pair: its text, its kind (`mined`, a kind of edit, `random`), and the margin of a mined one."""

    text: str
    kind: str
    score: float | None = None
    column: int = -1  # of a mined one among the candidates


@dataclass
class SecondOpinion:
    """Further models that say whether a candidate is a translation."""

    job: Job | None = None
    cross_encoder: Any = None
    vectors: Mapping[str, np.ndarray] = field(default_factory=dict)

    def read(self) -> None:
        """Encodes both sides with the second encoder, if there is one."""
        if self.job is None:
            return
        with self.job.claimed("negatives", self.job.plan):
            stores, _ = self.job.read()
            self.vectors = self.job.encode(stores)

    def cross_scores(self, source: str, targets: Sequence[str]) -> np.ndarray:
        """The cross-encoder's scores of a source with some sentences, `(targets,)`."""
        return np.asarray(self.cross_encoder.predict([(source, target) for target in targets]), np.float64)


@dataclass
class Pools:
    """The distinct texts of both sides, their vectors and groups, and the rows that make the pairs."""

    stores: Mapping[str, TextStore]
    rows: Mapping[str, np.ndarray]
    vectors: Mapping[str, np.ndarray]
    groups: TranslationGroups


@dataclass
class Candidates:
    """The nearest targets of some sources by margin, best first, `(pairs, nearest)` each, with the rule that applies."""

    sources: np.ndarray  # rows, `(pairs,)`
    targets: np.ndarray
    own_scores: np.ndarray
    rows: np.ndarray
    scores: np.ndarray
    rules: np.ndarray
    is_chosen: np.ndarray


def limit_below(own_score: Any, share: float) -> Any:
    """The score that those of negatives must stay below: a share of the pair's own, also where that is negative.

    Examples:
        >>> limit_below(np.array([1.2, -0.5]), 0.9).round(2).tolist()
        [1.08, -0.55]
    """
    return own_score - (1 - share) * np.abs(own_score)


@dataclass
class BlockSelection:
    """Chooses the negatives of the pairs from `start` to `stop` and writes them to a file: the work of a task."""

    pools: Pools
    neighbours: BothWays
    options: NegativeOptions
    margin: str
    k: int
    target_language: str
    names: Sequence[str]
    truth: TranslationGroups | None
    labels: Mapping[tuple[str, str], bool]
    opinion: SecondOpinion

    def __post_init__(self) -> None:
        options = self.options
        self.editor: Editor | None = None
        if options.synthetic:
            kinds = list(options.synthetic)
            self.editor = Editor(self.target_language, "train", kinds, names=self.names, seed=options.seed)

    def __call__(self, path: Path, span: tuple[int, int]) -> None:
        start, stop = span
        candidates = self._candidates(start, stop)
        sources = self.pools.stores["source"].texts(candidates.sources)
        targets = self.pools.stores["target"].texts(candidates.targets)
        counts = Counts()
        chosen: list[list[Negative]] = []
        for pair, (source, target) in enumerate(zip(sources, targets, strict=True)):
            negatives = self._negatives(start + pair, source, target, pair, candidates)
            chosen.append(negatives)
            self._count_chosen(source, negatives, counts)
            if pair < SHOWN:
                for negative in negatives:
                    counts.show(negative.kind, [Example(source, target, negative.text, negative.score)])

        self._count_rules(candidates, sources, targets, counts)
        self._count_translations(candidates, counts)
        columns = {
            "negatives": [[negative.text for negative in negatives] for negatives in chosen],
            "kinds": [[negative.kind for negative in negatives] for negatives in chosen],
            "scores": [[negative.score for negative in negatives] for negatives in chosen],
        }
        counts.write(path, pa.table({"source": sources, "target": targets, **columns}, schema=SCHEMA))

    def _candidates(self, start: int, stop: int) -> Candidates:
        """The candidates of some pairs, with the rules that need no texts."""
        neighbours = self.neighbours
        sources = self.pools.rows["source"][start:stop]
        targets = self.pools.rows["target"][start:stop]
        rows = np.asarray(neighbours.forward_indices[sources])
        cosines = np.asarray(neighbours.forward_similarities[sources])
        source_means = cosines[:, : self.k].mean(axis=1, dtype=np.float64)
        scores = margin_scores(cosines, source_means[:, None], self._target_means(rows), self.margin)

        vectors = self.pools.vectors
        own_cosines = pair_products(vectors["source"], sources, vectors["target"], targets)
        own_scores = margin_scores(own_cosines, source_means, self._target_means(targets), self.margin)

        order = np.argsort(-scores, axis=1, kind="stable")
        rows = np.take_along_axis(rows, order, axis=1)
        scores = np.take_along_axis(scores, order, axis=1)
        rules = np.zeros(rows.shape, np.int8)
        candidates = Candidates(sources, targets, own_scores, rows, scores, rules, rules > 0)
        self._apply_rules(candidates)
        return candidates

    def _target_means(self, rows: np.ndarray) -> np.ndarray:
        """Mean cosine of targets with their `k` nearest sources, of the shape of their rows."""
        similarities = np.asarray(self.neighbours.backward_similarities[rows.ravel(), : self.k])
        means: np.ndarray = similarities.mean(axis=1, dtype=np.float64)
        return means.reshape(rows.shape)

    def _apply_rules(self, candidates: Candidates) -> None:
        """Sets the rules of all candidates; the first that applies counts."""
        groups = self.pools.groups
        source_keys = groups.source[candidates.sources][:, None]
        target_keys = groups.target[candidates.targets][:, None]
        keys = groups.target[candidates.rows]
        limits = limit_below(candidates.own_scores, self.options.below)[:, None]
        applies = {
            MARGIN: candidates.scores >= limits,
            KNOWN: groups.groups[keys] == groups.groups[source_keys],
            DUPLICATE: (keys == source_keys) | (keys == target_keys),
            OWN: candidates.rows == candidates.targets[:, None],
        }
        if self.opinion.vectors:
            applies = {PARAPHRASE: self._paraphrases(candidates), **applies}
        for rule, is_ruled_out in applies.items():  # the strongest last
            candidates.rules[is_ruled_out] = rule

    def _paraphrases(self, candidates: Candidates) -> np.ndarray:
        """Candidates that the second encoder puts most of the way from the mean of the nearest to the translation."""
        vectors = self.opinion.vectors
        shape = candidates.rows.shape
        sources = np.repeat(candidates.sources, shape[1])
        cosines = pair_products(vectors["source"], sources, vectors["target"], candidates.rows.ravel()).reshape(shape)
        own_cosines = pair_products(vectors["source"], candidates.sources, vectors["target"], candidates.targets)
        means = cosines.mean(axis=1)
        limits = means + self.options.paraphrase * (own_cosines - means)
        is_paraphrase: np.ndarray = cosines >= limits[:, None]
        return is_paraphrase

    def _negatives(self, number: int, source: str, target: str, pair: int, candidates: Candidates) -> list[Negative]:
        """As many negatives of a pair as are wanted: mined, then edits, then random ones; all texts differ."""
        group = self.pools.groups.groups[self.pools.groups.source[candidates.sources[pair]]]
        edits = self._edits(target, group)
        used = {text_key(text) for text in (source, target, *(edit.text for edit in edits))}
        negatives: list[Negative] = []
        for negative in self._mined(source, target, pair, candidates):
            if len(negatives) + len(edits) == self.options.per_pair:
                break
            if text_key(negative.text) not in used:
                negatives.append(negative)
                used.add(text_key(negative.text))
                candidates.is_chosen[pair, negative.column] = True

        negatives += edits
        missing = self.options.per_pair - len(negatives)
        if missing:
            negatives += self._random(number, group, missing, used)
        return negatives

    def _mined(self, source: str, target: str, pair: int, candidates: Candidates) -> Iterator[Negative]:
        """The candidates that no rule rules out, best first; of equal ones the first."""
        (allowed,) = np.nonzero(candidates.rules[pair] == 0)
        keys = self.pools.groups.target[candidates.rows[pair, allowed]]
        _, first = np.unique(keys, return_index=True)
        allowed = allowed[np.sort(first)]
        for start in range(0, len(allowed), ASKED):
            columns = allowed[start : start + ASKED]
            texts = self.pools.stores["target"].texts(candidates.rows[pair, columns])
            is_translation = np.zeros(len(texts), bool)
            if self.opinion.cross_encoder is not None:
                own_score, *scores = self.opinion.cross_scores(source, [target, *texts])
                is_translation = np.array(scores) >= limit_below(own_score, self.options.below)
                candidates.rules[pair, columns[is_translation]] = CROSS_ENCODER

            for column, text, is_out in zip(columns.tolist(), texts, is_translation, strict=True):
                if not is_out:
                    yield Negative(text, MINED, float(candidates.scores[pair, column]), column)

    def _edits(self, target: str, group: int) -> list[Negative]:
        """Edits of a target, as many as are wanted, one of each kind before a second of any; no known translation."""
        if self.editor is None:
            return []
        made = self.editor(target, each=self.options.most_edited)
        groups = self.pools.groups.of_texts([edit.text for edit in made])
        ranks: Counter[str] = Counter()
        ranked: list[tuple[int, float, Negative]] = []
        rng = np.random.default_rng([self.options.seed, hash64(target)])
        for edit, edit_group in zip(made, groups, strict=True):
            if edit_group != group:
                # Kinds take turns, in an order that differs between sentences.
                ranked.append((ranks[edit.kind], rng.random(), Negative(edit.text, edit.kind)))
                ranks[edit.kind] += 1
        ranked.sort(key=lambda item: item[:2])
        return [negative for _, _, negative in ranked[: self.options.most_edited]]

    def _random(self, number: int, group: int, count: int, used: set[str]) -> list[Negative]:
        """Targets of other groups, drawn at random."""
        groups = self.pools.groups
        rng = np.random.default_rng([self.options.seed, number])
        drawn: dict[str, None] = {}
        for _ in range(DRAWS):
            rows = rng.integers(len(groups.target), size=2 * count)
            is_other = groups.groups[groups.target[rows]] != group
            drawn |= dict.fromkeys(self.pools.stores["target"].texts(rows[is_other]))
            new_texts = list({text_key(text): text for text in drawn if text_key(text) not in used}.values())
            if len(new_texts) >= count:
                return [Negative(text, RANDOM) for text in new_texts[:count]]
        raise XlsrError(f"`per_pair` is {self.options.per_pair}, but the targets have too few other sentences.")

    def _count_chosen(self, source: str, negatives: Sequence[Negative], counts: Counts) -> None:
        """Counts negatives by kind, and the labels of the mined ones."""
        for negative in negatives:
            counts.chosen[negative.kind] += 1
            label = (
                self.labels.get((on_one_line(source), on_one_line(negative.text))) if negative.kind == MINED else None
            )
            if label is not None:
                counts.labelled += 1
                counts.accepted += label

    def _count_rules(
        self, candidates: Candidates, sources: Sequence[str], targets: Sequence[str], counts: Counts
    ) -> None:
        """Counts what was ruled out, with examples."""
        for rule in range(DUPLICATE, len(RULES)):
            is_ruled_out = candidates.rules == rule
            counts.ruled_out[RULES[rule]] += int(is_ruled_out.sum())
            for pair, column in np.argwhere(is_ruled_out)[:SHOWN]:
                (text,) = self.pools.stores["target"].texts(candidates.rows[pair, [column]])
                score = float(candidates.scores[pair, column])
                counts.show(RULES[rule], [Example(sources[pair], targets[pair], text, score)])

    def _count_translations(self, candidates: Candidates, counts: Counts) -> None:
        """Counts the translations that the truth knows: among the chosen, what was ruled out, and the nearest."""
        truth = self.truth
        if truth is None:
            return
        groups = truth.groups[truth.source[candidates.sources]]
        is_translation = truth.groups[truth.target[candidates.rows]] == groups[:, None]
        is_spoken_of = np.broadcast_to(truth.linked[groups][:, None], is_translation.shape)
        is_other = candidates.rules != OWN
        sets = {
            MINED: candidates.is_chosen,
            NEAREST: is_other & (is_other.cumsum(axis=1) <= self.options.per_pair),
        }
        for rule in range(DUPLICATE, len(RULES)):
            sets[RULES[rule]] = candidates.rules == rule
        for name, is_member in sets.items():
            counts.checked[name] += int((is_member & is_spoken_of).sum())
            counts.translations[name] += int((is_member & is_spoken_of & is_translation).sum())
