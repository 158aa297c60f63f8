"""mteb tasks on the user's own data: scored by our protocols under our names, or as a stock task scores its own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from datasets import Dataset
from mteb.abstasks import AbsTask
from mteb.abstasks.task_metadata import TaskMetadata
from torch.utils.data import DataLoader

from hf_xlsr.encoders.encoding import Encoder
from hf_xlsr.evaluation.bucc_data import BuccData
from hf_xlsr.evaluation.mteb.data import COLUMNS, langscript, mteb_task, their_columns
from hf_xlsr.evaluation.protocols.bucc import bucc
from hf_xlsr.evaluation.protocols.sts import sts
from hf_xlsr.evaluation.protocols.xsr import xsr
from hf_xlsr.evaluation.results import Results
from hf_xlsr.utils.errors import XlsrError
from hf_xlsr.utils.hashing import data_hash

Row = Mapping[str, Any]


class ProtocolTask(AbsTask):
    """A task of mteb that is scored by one of our protocols, for any encoder of mteb.

    It hands over the sentences of a language as mteb hands over the columns of tasks that keep all languages in one
    table: the subset is the language, so that nothing needs to be identified. `revision` is the `data_hash` of all that
    affects the score except the model; `about` are other fields of `TaskMetadata`.
    """

    abstask_prompt = "Retrieve semantically similar text."

    def __init__(
        self,
        measure: Callable[[Encoder, str, str], Results],
        *,
        languages: tuple[str, ...],
        split: str,
        samples: int,
        revision: str,
        **about: Any,
    ) -> None:
        self.metadata = TaskMetadata(
            eval_langs=_eval_langs([languages]),
            eval_splits=[split],
            dataset={"path": f"local/{about['name']}", "revision": revision},
            **about,
        )
        super().__init__()
        self.measure, self.samples, self.languages_of_sides = measure, samples, languages
        self.dataset = {"-".join(languages): {split: None}}  # `measure` holds the data
        self.data_loaded = True

    def _evaluate_subset(
        self, model: Any, data_split: Any, *, hf_split: str, encode_kwargs: Any, **_: Any
    ) -> dict[str, float]:
        encoder = _EncoderOfMteb(model, self.metadata, hf_split, encode_kwargs, self.languages_of_sides)
        records = self.measure(encoder, self.metadata.name, hf_split).records.values()
        return {record.metric: record.value for record in records if record.split == hf_split}

    def _calculate_descriptive_statistics_from_split(self, split: str, **_: Any) -> Any:
        return {"num_samples": self.samples}


def xsr_task(
    name: str,
    queries: Sequence[str],
    golds: Sequence[str],
    pool: Sequence[str],
    languages: tuple[str, str],
    *,
    split: str = "test",
) -> ProtocolTask:
    """Protocol `xsr` as a task of mteb, `XlsrXSR-{name}`, with `precision@1` as its main score."""
    sides = list(queries), list(golds), list(pool)
    return ProtocolTask(
        lambda encoder, task, split: xsr(encoder, *sides, name=task, languages=languages, split=split),
        languages=languages,
        split=split,
        samples=len(sides[0]),
        revision=data_hash([*(str(len(side)) for side in sides), *queries, *golds, *pool]),
        name=f"XlsrXSR-{name}",
        description="Cross-lingual sentence retrieval: precision of finding translations among other sentences.",
        reference="https://aclanthology.org/2021.acl-long.226",
        type="BitextMining",
        main_score="precision@1",
    )


def bucc_task(
    name: str,
    tune: BuccData,
    test: BuccData,
    languages: tuple[str, str],
    *,
    split: str = "test",
    k: int = 4,
    margin: str = "ratio",
) -> ProtocolTask:
    """Protocol `bucc` as a task of mteb, `XlsrBuccF1-{name}`, with `f1` as its main score."""
    texts = [str(k), margin]
    for data in (tune, test):
        texts += [str(len(data.sources)), str(len(data.gold))]
        texts += [*data.source_ids, *data.sources, *data.target_ids, *data.targets]
        texts += [id_ for pair in sorted(data.gold) for id_ in pair]
    return ProtocolTask(
        lambda encoder, task, split: bucc(
            encoder, tune, test, name=task, languages=languages, split=split, k=k, margin=margin
        ),
        languages=languages,
        split=split,
        samples=len(test.gold),
        revision=data_hash(texts),
        name=f"XlsrBuccF1-{name}",
        description="Translations hidden among other sentences, mined by margin with a threshold tuned on other data.",
        reference="https://comparable.limsi.fr/bucc2018/bucc2018-task.html",
        type="BitextMining",
        main_score="f1",
    )


def sts_task(
    name: str, rows: Iterable[Row], languages: str | tuple[str, ...] = "en", *, split: str = "test"
) -> ProtocolTask:
    """Protocol `sts` as a task of mteb, `XlsrSTSWeightedMean-{name}`, with `spearman_wmean` as its main score."""
    listed = [dict(row) for row in rows]
    columns = ("sentence1", "sentence2", "score", "subset")
    sides = (languages,) if isinstance(languages, str) else languages
    return ProtocolTask(
        lambda encoder, task, split: sts(
            encoder, {task: listed}, language=sides if len(sides) == 2 else sides[0], split=split
        ),
        languages=sides,
        split=split,
        samples=len(listed),
        revision=data_hash(str(row.get(column, "")) for row in listed for column in columns),
        name=f"XlsrSTSWeightedMean-{name}",
        description="Semantic textual similarity: mean of the subsets' correlations, weighted by their sizes.",
        reference="https://github.com/facebookresearch/SentEval",
        type="STS",
        main_score="spearman_wmean",
    )


def local_task(task_name: str, rows: Iterable[Row], *, split: str = "test") -> Any:
    """Local rows scored as one of mteb's tasks scores its own data; the task is called `Local` and that task's name.

    Each language or language pair becomes a subset, such as `de-en`. Rows have the columns of `COLUMNS` for a task of
    bitext, STS, pair classification or classification; the `split` of classification is `train` for training rows.
    """
    task = mteb_task(task_name)
    columns, sides = COLUMNS[task.metadata.type]
    theirs = their_columns(task)
    tables: dict[tuple[str, ...], dict[str, dict[str, list[Any]]]] = {}
    texts = []
    for row in rows:
        part = str(row["split"]) if "split" in columns else split
        table = tables.setdefault(tuple(str(row[side]) for side in sides), {}).setdefault(part, {})
        for column in columns:
            texts.append(str(row[column]))
            if column != "split":
                table.setdefault(theirs[column], []).append(row[column])
        texts += [str(row[side]) for side in sides]
    task.metadata = task.metadata.model_copy(
        update={
            "name": f"Local{task_name}",
            "description": f"Local data, scored as {task_name} scores its own.",
            "dataset": {"path": f"local/{task_name}", "revision": data_hash(texts)},
            "eval_langs": _eval_langs(tables),
            "eval_splits": [split],
            "superseded_by": None,
            "adapted_from": [task_name],
        }
    )
    task.hf_subsets = task.metadata.hf_subsets
    task.parallel_subsets = False
    task.dataset = {
        "-".join(languages): {part: Dataset.from_dict(table) for part, table in parts.items()}
        for languages, parts in tables.items()
    }
    task.data_loaded = True
    return task


def _eval_langs(pairs: Iterable[tuple[str, ...]]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for languages in pairs:
        tags = [langscript(language) for language in languages]
        if None in tags:
            raise XlsrError(
                f"mteb does not know the language '{languages[tags.index(None)]}'. Give a code such as de."
            )
        found["-".join(languages)] = [tag for tag in tags if tag]
    return found


class _EncoderOfMteb:
    """An encoder of mteb with the `encode` that our protocols call; its routes are the languages."""

    def __init__(
        self,
        model: Any,
        metadata: TaskMetadata,
        split: str,
        encode_kwargs: dict[str, Any],
        languages: tuple[str, ...],
    ) -> None:
        self.model, self.routes = model, languages
        self.metadata, self.split, self.encode_kwargs = metadata, split, encode_kwargs

    def encode(self, texts: list[str], *, task: str, **_: Any) -> np.ndarray:
        loader = DataLoader(
            Dataset.from_dict({"text": texts}),
            batch_size=self.encode_kwargs.get("batch_size", 32),
        )
        vectors = self.model.encode(
            loader, task_metadata=self.metadata, hf_split=self.split, hf_subset=task, **self.encode_kwargs
        )
        return vectors.cpu().float().numpy() if hasattr(vectors, "cpu") else np.asarray(vectors)
