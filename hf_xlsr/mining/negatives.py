"""Hard negatives across languages: near sentences that are no translation, and translations with one small edit."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from datasets import Dataset

from hf_xlsr.data.edits import Editor, names_in
from hf_xlsr.encoders.encoding import Encoder
from hf_xlsr.mining.negative_counts import Counts
from hf_xlsr.mining.negative_selection import BlockSelection, Pools, SecondOpinion
from hf_xlsr.mining.options import MiningOptions, NegativeOptions
from hf_xlsr.mining.search.block_search import SIDES
from hf_xlsr.mining.stages import Job, job_folder
from hf_xlsr.mining.texts import Sentences, TextStore, counted
from hf_xlsr.mining.translation_groups import TranslationGroups, hash_links
from hf_xlsr.mining.work_folder import JOB
from hf_xlsr.utils.errors import XlsrError
from hf_xlsr.utils.hashing import data_hash
from hf_xlsr.utils.tasks import InProcess, Runner, Task

PAIRS_OF_A_TASK = 4096
NAME_SENTENCES = 100_000  # of which the names of edits are taken
NEGATIVES = "negatives"
JOBS = ("first", "second")  # work folders of the encoder and of the second one


@dataclass
class NegativesRun:
    """Result of `run_negatives`.

    Attributes:
        files: Arrow files of the pairs with their negatives, in order: `source`, `target`, and the lists `negatives`,
            `kinds` and `scores` (the margin of a mined one, else None).
        counts: What was chosen and ruled out, with examples.
        report: Facts of the run by name.
    """

    files: list[Path]
    counts: Counts
    report: dict[str, Any]
    per_pair: int = 0

    @property
    def columns(self) -> list[str]:
        """The columns of `rows`."""
        return ["source", "target", *(f"negative_{number}" for number in range(1, self.per_pair + 1))]

    def stored(self) -> Iterator[dict[str, Any]]:
        """The pairs with lists of negatives, kinds and scores."""
        for file in self.files:
            with pa.memory_map(str(file)) as stored:
                yield from pa.ipc.open_file(stored).read_all().to_pylist()

    def rows(self) -> Iterator[dict[str, str]]:
        """The pairs with their negatives, one column each."""
        for row in self.stored():
            yield dict(zip(self.columns, [row["source"], row["target"], *row["negatives"]], strict=True))

    def mined(self) -> Iterator[dict[str, Any]]:
        """Sources with each of their mined negatives as `target`, and its margin as `score`."""
        for row in self.stored():
            for negative, kind, score in zip(row["negatives"], row["kinds"], row["scores"], strict=True):
                if kind == "mined":
                    yield {"score": score, "source": row["source"], "target": negative}

    def dataset(self) -> Dataset:
        """The rows as a dataset in memory."""
        columns: dict[str, list[str]] = {name: [] for name in self.columns}
        for row in self.rows():
            for name, text in row.items():
                columns[name].append(text)
        return Dataset.from_dict(columns)


@dataclass(frozen=True)
class Knowledge:
    """What is known of translations besides the pairs themselves.

    Attributes:
        known: Further translations, also in other languages: none of them, nor what they link, becomes a negative.
        truth: Translations that only measure: negatives among them are false.
        labels: Sources and negatives -> whether a person took them for translations, see `read_labels`.
    """

    known: Iterable[tuple[str, str]] = ()
    truth: Iterable[tuple[str, str]] = ()
    labels: dict[tuple[str, str], bool] = field(default_factory=dict)


def hard_negatives(
    sources: Sentences,
    targets: Sentences,
    options: NegativeOptions | None = None,
    *,
    encoder: Encoder | str,
    mining: MiningOptions | None = None,
    second_encoder: Encoder | str | None = None,
    cross_encoder: Any = None,
    known: Iterable[tuple[str, str]] = (),
    folder: str | os.PathLike[str] | None = None,
    **changes: Any,
) -> Dataset:
    """Pairs with hard negatives: sentences in the language of the target that are near the source and no translation.

    Candidates are the nearest targets of each source, ranked by margin. Ruled out are those that may be translations:
    linked with the pair by the given or `known` pairs, however far; equal to the source, the target or another negative
    but for case and punctuation; with a margin too near the pair's own; and those that a second encoder or a
    cross-encoder takes for one. Edits of the target follow (`synthetic`), and random targets where there are not enough.

    Args:
        sources: Source of each pair: a list, or a file with one sentence per line.
        targets: The translations, in the same order.
        options: The defaults if None.
        encoder: Anything with a sentence-transformers style `encode`, or the folder or Hub id of a model.
        mining: How texts are encoded and searched; `languages` are needed for edits.
        second_encoder: Another encoder of both languages, whose opinion on paraphrases is asked.
        cross_encoder: A `CrossEncoder`, or anything with its `predict`, that scores translations highest.
        known: Further translations.
        folder: Work folder of the stages, from which a stopped call resumes; a temporary one if None.
        **changes: Fields of `NegativeOptions` that replace those of `options`.

    Returns:
        `source`, `target`, `negative_1`, ...: columns that `DualMomentumTrainer`, the losses of this package and those
        of sentence-transformers read.

    Examples:
        >>> class Letters:
        ...     def encode(self, texts, **kwargs):
        ...         return np.array([[text.count(letter) + 0.1 for letter in "abcd"] for text in texts])
        >>> rows = hard_negatives(["aab", "bc", "d"], ["baa", "cb", "dd"], encoder=Letters(), per_pair=1)
        >>> rows[0]
        {'source': 'aab', 'target': 'baa', 'negative_1': 'cb'}
    """
    options = replace(options or NegativeOptions(), **changes)
    with job_folder(folder) as work:
        run = run_negatives(
            sources,
            targets,
            work,
            mining or MiningOptions(),
            options,
            encoder=encoder,
            second_encoder=second_encoder,
            cross_encoder=cross_encoder,
            knowledge=Knowledge(known=known),
        )
        return run.dataset()


def run_negatives(
    sources: Sentences,
    targets: Sentences,
    folder: str | os.PathLike[str],
    mining: MiningOptions,
    options: NegativeOptions,
    *,
    encoder: Encoder | str,
    second_encoder: Encoder | str | None = None,
    cross_encoder: Any = None,
    knowledge: Knowledge | None = None,
    runner: Runner | None = None,
) -> NegativesRun:
    """`hard_negatives` with a report, and with access to what was ruled out as long as the folder exists.

    The stages (read, encode, neighbours, groups of translations, blocks of pairs) save their results in `folder`, and
    the same call resumes after a stop. Memory is bounded by `memory` of the mining options, and some 100 bytes a pair.
    """
    knowledge = knowledge or Knowledge()
    if options.synthetic:
        if mining.languages is None:
            raise XlsrError("`synthetic` negatives need `languages`, e.g. languages=['de', 'en'] (--languages de,en).")
        Editor(mining.languages[1], "train", options.synthetic)  # raises before hours of encoding

    texts = {"source": sources, "target": targets}
    wide = replace(mining, k=max(mining.k, options.nearest + 1))  # one of the nearest is the translation
    job = Job(Path(folder) / JOBS[0], wide, texts, encoder, runner=runner)
    known = hash_links(knowledge.known)
    truth = hash_links(knowledge.truth)
    opinion, opinion_settings = _opinion(folder, wide, texts, second_encoder, cross_encoder, runner)

    def plan() -> tuple[dict[str, Any], dict[str, Any]]:
        inputs, stages = job.plan()
        vectors = [stages[f"{side}.vectors"] for side in SIDES]
        stages["neighbours"] = {"vectors": vectors, **wide.search}
        stages["groups"] = {"texts": [stages[f"{side}.text"] for side in SIDES], "known": known.digest}
        stages[NEGATIVES] = {
            **{name: stages[name] for name in ("neighbours", "groups")},
            **asdict(options),
            "k": mining.k,
            "margin": mining.margin,
            "languages": mining.languages,
            "truth": truth.digest,
            "labels": data_hash(map(repr, sorted(knowledge.labels.items()))),
            "opinion": opinion_settings,
        }
        return inputs, stages

    with job.claimed("negatives", plan):
        stores, report = job.read()
        for side in SIDES:
            if report[side]["skipped"]:
                raise XlsrError(f"Remove pairs whose {side} is invalid: {counted(report[side]['skipped'])}.")
        rows = {side: store.rows_of_lines(job.memory) for side, store in stores.items()}
        if len(rows["source"]) != len(rows["target"]):
            raise XlsrError(
                f"Pairs need as many targets as sources, got {len(rows['source']):,} and {len(rows['target']):,}."
            )
        vectors = job.encode(stores)
        with job.timed("neighbours"):
            neighbours = job.search("neighbours", vectors["source"], vectors["target"])

        opinion.read()
        run = NegativesRun([], Counts(), report, options.per_pair)
        job["neighbours"].finish(**neighbours.figures)
        with job.timed("groups"):
            groups = TranslationGroups.of(job.folder("groups"), stores, rows, known)
            truth_groups = TranslationGroups.of(None, stores, rows, truth) if truth else None
        pools = Pools(stores, rows, vectors, groups)
        with job.timed(NEGATIVES):
            selection = BlockSelection(
                pools,
                neighbours,
                options,
                margin=mining.margin,
                k=mining.k,
                target_language=(mining.languages or ("", ""))[1],
                names=_names(stores["target"], options),
                truth=truth_groups,
                labels=knowledge.labels,
                opinion=opinion,
            )
            run.files = _selected(job.folder(NEGATIVES), selection, len(rows["source"]))
        job[NEGATIVES].finish()
        for file in run.files:
            run.counts.add(Counts.load(file))
        missing = len(knowledge.labels) - run.counts.labelled
        if missing > len(knowledge.labels) // 10:
            raise XlsrError(f"{missing} labels are of other negatives. Save the labels from this run's report.")

    run.report = report | {"pairs": len(rows["source"]), **neighbours.figures, **job.report()}
    return run


def remove_jobs(folder: Path) -> None:
    """Removes the work folders in a folder, and the folder if it holds nothing else."""
    for name in JOBS:
        if (folder / name / JOB).is_file():
            shutil.rmtree(folder / name)
    with suppress(OSError):  # it holds files of others
        folder.rmdir()


def _opinion(
    folder: str | os.PathLike[str],
    mining: MiningOptions,
    texts: dict[str, Sentences],
    second_encoder: Encoder | str | None,
    cross_encoder: Any,
    runner: Runner | None,
) -> tuple[SecondOpinion, dict[str, Any]]:
    """The second encoder and the cross-encoder, and what identifies them."""
    opinion = SecondOpinion(cross_encoder=cross_encoder)
    settings: dict[str, Any] = {}
    if second_encoder is not None:
        job = Job(
            Path(folder) / JOBS[1],
            replace(mining, prompt=None, routes=None, truncate_dim=None),
            texts,
            second_encoder,
            runner=runner,
        )
        opinion.job = job
        settings["second"] = job.encoder and job.encoder.identity((mining.languages or (None,))[0])
    if cross_encoder is not None:
        scores = cross_encoder.predict([("One sentence.", "Un phrase."), ("One sentence.", "Two cats.")])
        settings["cross"] = [type(cross_encoder).__qualname__, *np.asarray(scores, float).tolist()]
    return opinion, settings


def _names(targets: TextStore, options: NegativeOptions) -> list[str]:
    """The names that edits put in."""
    if "name" not in options.synthetic:
        return []
    count = min(len(targets), NAME_SENTENCES)
    return names_in(targets.texts(np.arange(count)))


def _selected(folder: Path, selection: BlockSelection, pairs: int) -> list[Path]:
    """The files of all blocks of pairs, of which those that exist stay as they are."""
    tasks = []
    for start in range(0, pairs, PAIRS_OF_A_TASK):
        stop = min(start + PAIRS_OF_A_TASK, pairs)
        tasks.append(Task(folder / f"{start:010d}.arrow", (start, stop)))
    done = InProcess().run(selection, tasks, description="choosing negatives")
    return [task.output for task in done]
