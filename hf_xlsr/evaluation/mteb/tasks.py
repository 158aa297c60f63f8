"""mteb tasks on the user's own data: scored by our protocols under our names, or as a stock task scores its own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from datasets import Dataset
from torch.utils.data import DataLoader

from hf_xlsr.encoders.encoding import Encoder
from hf_xlsr.evaluation.bucc_data import BuccData
from hf_xlsr.evaluation.mteb.data import mteb_task, require_mteb
from hf_xlsr.evaluation.mteb.languages import langscript
from hf_xlsr.evaluation.protocols.bucc import bucc
from hf_xlsr.evaluation.protocols.sts import sts
from hf_xlsr.evaluation.protocols.xsr import xsr
from hf_xlsr.evaluation.report import split_key
from hf_xlsr.utils.errors import XlsrError
from hf_xlsr.utils.hashing import data_hash

Row = Mapping[str, Any]

# Without mteb this module still can be imported; its functions say what is missing.
_Task: Any = object
try:
    from mteb.abstasks import AbsTask

    _Task = AbsTask
except ModuleNotFoundError:
    pass


class ProtocolTask(_Task):
    """A task of mteb whose scores one of our protocols gives.

    Any encoder of mteb can take it. It is handed the sentences of a language as mteb hands over the columns of tasks
    that keep all languages in one table: the subset is the language, so that nothing needs to be identified.

    Args:
        name: The dataset; the task is called after its class and this.
        languages: Codes of the languages of both sides, or of the only one.
        split: What the data are called.
        data: What `measure` needs.
        revision: `data_hash` of all that decides the score beside the model.

    Raises:
        XlsrError: mteb does not know a language.
    """

    abstask_prompt = "Retrieve parallel sentences."
    about: Mapping[str, Any]  # fields of TaskMetadata that the class decides

    def __init__(self, name: str, languages: tuple[str, ...], split: str, data: Any, revision: str) -> None:
        self.metadata = _metadata(
            name=f"{type(self).__name__}-{name}",
            eval_langs=_eval_langs([languages]),
            eval_splits=[split],
            dataset={"path": f"local/{name}", "revision": revision},
            **self.about,
        )
        self.sides: Any = languages
        super().__init__()
        self.dataset = {"-".join(languages): {split: data}}
        self.data_loaded = True

    def measure(self, encoder: Encoder, data: Any, *, name: str, split: str) -> dict[str, float]:
        """The protocol's metrics."""
        raise NotImplementedError

    def _evaluate_subset(
        self, model: Any, data_split: Any, *, hf_split: str, encode_kwargs: dict[str, Any], **_: Any
    ) -> dict[str, float]:
        encoder = _EncoderOfMteb(model, self.metadata, hf_split, encode_kwargs, self.sides)
        metrics = self.measure(encoder, data_split, name=self.metadata.name, split=hf_split)
        parts = {split_key(key): value for key, value in metrics.items()}
        return {metric: value for (_, _, split, metric), value in parts.items() if split == hf_split}

    def _calculate_descriptive_statistics_from_split(self, split: str, **_: Any) -> Any:
        return {"num_samples": self.samples(self.dataset[self.hf_subsets[0]][split])}

    @staticmethod
    def samples(data: Any) -> int:
        """How many queries, gold pairs or rows there are."""
        raise NotImplementedError


class XlsrXSR(ProtocolTask):
    """Protocol `xsr`: precision of finding translations among a pool; main score `precision@1`."""

    about = {
        "description": "Cross-lingual sentence retrieval: precision of finding translations among other sentences.",
        "reference": "https://aclanthology.org/2021.acl-long.226",
        "type": "BitextMining",
        "main_score": "precision@1",
    }

    def measure(self, encoder: Encoder, data: Any, *, name: str, split: str) -> dict[str, float]:
        """`xsr` on queries, golds and pool."""
        return xsr(encoder, *data, name=name, languages=self.sides, split=split)

    @staticmethod
    def samples(data: Any) -> int:
        """The number of queries."""
        return len(data[0])


class XlsrBuccF1(ProtocolTask):
    """Protocol `bucc`: mining by margin with a threshold tuned on other data; main score `f1`."""

    about = {
        "description": "Translations hidden among other sentences, mined by margin; the threshold is tuned apart.",
        "reference": "https://comparable.limsi.fr/bucc2018/bucc2018-task.html",
        "type": "BitextMining",
        "main_score": "f1",
    }

    def measure(self, encoder: Encoder, data: Any, *, name: str, split: str) -> dict[str, float]:
        """`bucc` on data to tune on and data to test."""
        tune, test, options = data
        return bucc(encoder, tune, test, name=name, languages=self.sides, split=split, **options)

    @staticmethod
    def samples(data: Any) -> int:
        """The number of gold pairs."""
        return len(data[1].gold)


class XlsrSTSWeightedMean(ProtocolTask):
    """Protocol `sts`: correlation of cosines with gold scores; main score `spearman_wmean`."""

    abstask_prompt = "Retrieve semantically similar text."
    about = {
        "description": "Semantic textual similarity: mean of the subsets' correlations, weighted by their sizes.",
        "reference": "https://github.com/facebookresearch/SentEval",
        "type": "STS",
        "main_score": "spearman_wmean",
    }

    def measure(self, encoder: Encoder, data: Any, *, name: str, split: str) -> dict[str, float]:
        """`sts` of the one task."""
        return sts(encoder, {name: data}, language=self.sides if len(self.sides) == 2 else self.sides[0], split=split)

    @staticmethod
    def samples(data: Any) -> int:
        """The number of rows."""
        return len(data)


def xsr_task(
    name: str,
    queries: Sequence[str],
    golds: Sequence[str],
    pool: Sequence[str],
    languages: tuple[str, str],
    *,
    split: str = "test",
) -> Any:
    """Protocol `xsr` as a task of mteb, `XlsrXSR-{name}`.

    Args:
        name: The dataset.
        queries: Sentences of the first language.
        golds: Their translations, in the same order.
        pool: Sentences of the second language; they may include golds.
        languages: Codes of the two languages.
        split: The part of the dataset.

    Raises:
        XlsrError: mteb is not installed or does not know a language. What `xsr` raises, it raises in `mteb.evaluate`.
    """
    require_mteb()
    data = list(queries), list(golds), list(pool)
    sizes = [str(len(side)) for side in data]
    return XlsrXSR(name, languages, split, data, data_hash([*sizes, *queries, *golds, *pool]))


def bucc_task(
    name: str,
    tune: BuccData,
    test: BuccData,
    languages: tuple[str, str],
    *,
    split: str = "test",
    k: int = 4,
    margin: str = "ratio",
) -> Any:
    """Protocol `bucc` as a task of mteb, `XlsrBuccF1-{name}`.

    Args:
        name: The dataset.
        tune: What the threshold is tuned on.
        test: What is measured.
        languages: Codes of the languages of sources and targets.
        split: What `test` is called.
        k: Size of the neighbourhoods.
        margin: `ratio`, `distance` or `absolute`.

    Raises:
        XlsrError: mteb is not installed or does not know a language. What `bucc` raises, it raises in `mteb.evaluate`.
    """
    require_mteb()
    texts = [str(k), margin]
    for data in (tune, test):
        texts += [str(len(data.sources)), str(len(data.gold))]
        texts += [*data.source_ids, *data.sources, *data.target_ids, *data.targets]
        texts += [id_ for pair in sorted(data.gold) for id_ in pair]
    return XlsrBuccF1(name, languages, split, (tune, test, {"k": k, "margin": margin}), data_hash(texts))


def sts_task(name: str, rows: Iterable[Row], languages: str | tuple[str, ...] = "en", *, split: str = "test") -> Any:
    """Protocol `sts` as a task of mteb, `XlsrSTSWeightedMean-{name}`.

    Args:
        name: The dataset.
        rows: `{"sentence1": ..., "sentence2": ..., "score": ..., "subset": ...}`.
        languages: Code of the language, or of the languages of first and second sentence.
        split: The part of the dataset.

    Raises:
        XlsrError: mteb is not installed or does not know a language. What `sts` raises, it raises in `mteb.evaluate`.
    """
    require_mteb()
    listed = [dict(row) for row in rows]
    columns = ("sentence1", "sentence2", "score", "subset")
    revision = data_hash(str(row.get(column, "")) for row in listed for column in columns)
    sides = (languages,) if isinstance(languages, str) else languages
    return XlsrSTSWeightedMean(name, sides, split, listed, revision)


def local_task(task_name: str, rows: Iterable[Row], *, split: str = "test") -> Any:
    """Local rows scored as one of mteb's tasks scores its own data; the task is called `Local` and that task's name.

    Each language or pair of languages becomes a subset, such as `de-en`.

    Args:
        task_name: A task of bitext, STS, pair classification or classification, as mteb calls it.
        rows: Bitext: `source`, `target`, `source_lang`, `target_lang`. STS: `sentence1`, `sentence2`, `score`, `lang`.
            Pair classification: `sentence1`, `sentence2`, `label` (0 or 1), `lang`. Classification: `text`, `label`,
            `lang` and `split`, which is `train` for the rows to learn from.
        split: What is tested; of classification, the rows with this split.

    Raises:
        XlsrError: mteb is not installed, has no such task or does not know a language; the task is of another type; a
            row lacks a column; or there is no row to test or to learn from.
    """
    task = mteb_task(task_name)
    kind = task.metadata.type
    if kind not in _COLUMNS:
        raise XlsrError(f"mteb's task {task_name} is of type {kind}; local data can stand for {', '.join(_COLUMNS)}.")
    columns, sides = _COLUMNS[kind]
    theirs = {"source": "sentence1", "target": "sentence2"} | _names_of(task)
    tables: dict[tuple[str, ...], dict[str, dict[str, list[Any]]]] = {}
    texts = []
    for number, row in enumerate(rows):
        missing = [column for column in (*columns, *sides) if row.get(column) is None]
        if missing:
            raise XlsrError(f"row {number} has no '{missing[0]}'; mteb's task {task_name} needs it.")
        part = str(row["split"]) if "split" in columns else split
        table = tables.setdefault(tuple(str(row[side]) for side in sides), {}).setdefault(part, {})
        for column in columns:
            texts.append(str(row[column]))
            if column != "split":
                table.setdefault(theirs.get(column, column), []).append(row[column])
        texts += [str(row[side]) for side in sides]
    needed = (split, task.train_split) if kind == "Classification" else (split,)
    for languages, parts in tables.items() or [((), {})]:
        for part in needed:
            if part not in parts:
                raise XlsrError(
                    f"there is no row of split '{part}'{' in ' if languages else ''}{'-'.join(languages)}."
                )
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


# Type of task -> our columns, and the columns that name the languages.
_COLUMNS = {
    "BitextMining": (("source", "target"), ("source_lang", "target_lang")),
    "STS": (("sentence1", "sentence2", "score"), ("lang",)),
    "PairClassification": (("sentence1", "sentence2", "label"), ("lang",)),
    "Classification": (("text", "label", "split"), ("lang",)),
}


def _names_of(task: Any) -> dict[str, str]:
    """Our column -> what the task calls it."""
    if task.metadata.type == "STS":
        return dict(zip(("sentence1", "sentence2"), task.column_names, strict=True))
    if task.metadata.type == "PairClassification":
        names = (task.input1_column_name, task.input2_column_name, task.label_column_name)
        return dict(zip(("sentence1", "sentence2", "label"), names, strict=True))
    if task.metadata.type == "Classification":
        return {"text": task.input_column_name, "label": task.label_column_name}
    return {}


def _eval_langs(pairs: Iterable[tuple[str, ...]]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for languages in pairs:
        tags = []
        for language in languages:
            tag = langscript(language)
            if tag is None:
                raise XlsrError(
                    f"language '{language}' is not one that mteb knows; give a code such as de or zh-Hant."
                )
            tags.append(tag)
        found["-".join(languages)] = tags
    return found


def _metadata(**fields: Any) -> Any:
    from mteb.abstasks.task_metadata import TaskMetadata

    return TaskMetadata(
        category="t2t",
        modalities=["text"],
        date=None,
        domains=[],
        task_subtypes=[],
        license="not specified",
        annotations_creators="derived",
        dialect=[],
        sample_creation="found",
        bibtex_citation="",
        **fields,
    )


class _EncoderOfMteb:
    """An encoder of mteb with the `encode` that our protocols call; its routes are the languages."""

    def __init__(
        self, model: Any, metadata: Any, split: str, encode_kwargs: dict[str, Any], languages: tuple[str, ...]
    ) -> None:
        self.model = model
        self.metadata = metadata
        self.split = split
        self.encode_kwargs = encode_kwargs
        self.routes = languages

    def encode(self, texts: list[str], *, task: str, **_: Any) -> np.ndarray:
        """Vectors of texts in the language `task`; batches and progress are as mteb was told."""
        loader = DataLoader(
            Dataset.from_dict({"text": texts}),
            batch_size=self.encode_kwargs.get("batch_size", 32),
        )
        vectors = self.model.encode(
            loader, task_metadata=self.metadata, hf_split=self.split, hf_subset=task, **self.encode_kwargs
        )
        return vectors.cpu().float().numpy() if hasattr(vectors, "cpu") else np.asarray(vectors)
