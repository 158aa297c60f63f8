"""Methods that make a sentence encoder: how it is evaluated, exported and shown."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from rich.console import Console

from hf_xlsr.data.held_out import held_out_texts
from hf_xlsr.data.prepare import evaluation_rows
from hf_xlsr.data.sources import as_list, source_name
from hf_xlsr.encoders.encoding import embed
from hf_xlsr.evaluation.plots import plot_tsne
from hf_xlsr.evaluation.protocols.tatoeba import tatoeba
from hf_xlsr.evaluation.protocols.xsr import xsr_both_directions
from hf_xlsr.evaluation.report import results_table
from hf_xlsr.evaluation.rows import both_sides, by_pair
from hf_xlsr.export import save_export
from hf_xlsr.mining.search.extraction import mine_vectors
from hf_xlsr.runs.folder import RunFolder
from hf_xlsr.runs.methods.base import Evaluations, Finished, Method
from hf_xlsr.runs.recipe_keys import Key
from hf_xlsr.trainers.adapters import merged
from hf_xlsr.trainers.base import XlsrTrainer
from hf_xlsr.utils.errors import XlsrError
from hf_xlsr.utils.hashing import data_hash

RUN_PROTOCOLS = ("tatoeba", "xsr")
# Natural language inference as a task beside the method's own.
NLI_LABELS = 3
NLI_SECTION = {"train": Key(None, "rows of premise, hypothesis and label for the task beside", ("source",))}


class SentenceEncoderMethod(Method):
    """A method whose outcome is a sentence encoder: evaluated by retrieval, exported for sentence-transformers."""

    sections: ClassVar[dict[str, dict[str, Any]]] = {
        "evaluation": {
            "protocol": Key("tatoeba", "how the dev and test sets are searched", choices=RUN_PROTOCOLS),
            "pool": Key(None, "more candidates for `xsr` on the test set", ("source",)),
            "batch_size": Key(128, "sentences encoded together", least=1),
            "plot_pairs": Key(15, "test pairs that are drawn", least=0),
            "mined_pairs": Key(3, "pairs found in the test set that are printed", least=0),
        },
        "export": {"normalize": Key(True, "whether the exported folder gives unit vectors")},
    }
    card_template = "card.md.jinja"
    card_tags = ("sentence-transformers", "feature-extraction", "cross-lingual", "bitext-mining")
    library_name = "sentence-transformers"

    def export(self, recipe: Mapping[str, Any], trainer: XlsrTrainer, path: Path) -> Any:
        """Writes the sentence-transformers folder, and returns the encoder as that folder loads it."""
        model = merged(trainer.accelerator.unwrap_model(trainer.model))
        tokenizer = getattr(trainer, "tokenizers", None) or trainer.processing_class
        options = {"max_length": recipe["data"]["max_length"], **recipe["export"]}
        return save_export(model.to_sentence_transformer(tokenizer, **options), path)

    def sources(self, recipe: Mapping[str, Any]) -> dict[str, Any]:
        return super().sources(recipe) | {"evaluation.pool": (recipe.get("evaluation") or {}).get("pool")}

    def evaluation_sets(self, recipe: Mapping[str, Any]) -> dict[str, list[dict[str, Any]]]:
        return evaluation_sets(recipe)

    def evaluation_texts(self, recipe: Mapping[str, Any], sets: Mapping[str, Any]) -> Iterator[str]:
        return evaluation_texts(recipe, sets)

    def evaluations(self, recipe: Mapping[str, Any], sets: Mapping[str, Any]) -> Evaluations:
        dev = sets["dev"]
        return [partial(run_protocol, recipe=recipe, rows=dev, split="dev")] if dev else []

    def metric_names(self, recipe: Mapping[str, Any], sets: Mapping[str, Any]) -> list[str]:
        return list(run_protocol(_OneVector(), recipe, sets["dev"], "dev"))

    def evaluate_and_export(
        self,
        recipe: Mapping[str, Any],
        folder: RunFolder,
        trainer: XlsrTrainer,
        data: Any,
        sets: Mapping[str, Any],
        console: Console,
    ) -> Finished:
        encoder, test = self.export(recipe, trainer, folder.model), sets["test"]
        model = trainer.accelerator.unwrap_model(trainer.model)
        hashes = {"test": data_hash(text for row in test for text in (row["source"], row["target"]))}
        finished = Finished({}, [], hashes, model.config.hidden_size)
        if test:
            finished.metrics = run_protocol(encoder, recipe, test, "test")
            console.print(results_table(finished.metrics, title=f"{recipe['name']}: test"))
            languages, rows = next(iter(by_pair(test).items()))
            finished.plots += _show_alignment(recipe, folder.path / "tsne.png", encoder, rows, languages, console)
        return finished


class _OneVector:
    """Gives every sentence the same vector: what metrics there are, without a model."""

    def encode(self, sentences: Sequence[str], **_: Any) -> np.ndarray:
        return np.ones((len(sentences), 1), dtype=np.float32)


def evaluation_sets(recipe: Mapping[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """The rows of `data.dev` and `data.test`."""
    return {
        split: evaluation_rows(as_list(recipe["data"][split]), languages=recipe["languages"], split=split)
        for split in ("dev", "test")
    }


def run_protocol(encoder: Any, recipe: Mapping[str, Any], rows: list[dict[str, Any]], split: str) -> dict[str, float]:
    """Evaluates on the rows under the protocol that the recipe names, each language pair for itself.

    `xsr` searches among the other rows' sentences and, on the test set, those of `evaluation.pool`.

    Raises:
        XlsrError: the protocol is not one of `RUN_PROTOCOLS`.
    """
    protocol = recipe["evaluation"]["protocol"]
    if protocol not in RUN_PROTOCOLS:
        raise XlsrError(f"evaluation.protocol is '{protocol}'; a recipe may use {' or '.join(RUN_PROTOCOLS)}.")
    more = as_list(recipe["evaluation"]["pool"]) if protocol == "xsr" and split == "test" else []
    pool = by_pair(evaluation_rows(more, languages=recipe["languages"], split=split))
    metrics: dict[str, float] = {}
    for languages, chosen in by_pair(rows).items():
        common: dict[str, Any] = {
            "languages": languages,
            "name": source_name(as_list(recipe["data"][split])[0]),
            "split": split,
            "batch_size": recipe["evaluation"]["batch_size"],
        }
        sources, targets = both_sides(chosen)
        if protocol == "tatoeba":
            metrics.update(tatoeba(encoder, sources, targets, **common))
        else:
            pools = both_sides([*chosen, *pool.get(languages, [])])
            metrics.update(xsr_both_directions(encoder, sources, targets, *pools, **common))
    return metrics


def evaluation_texts(recipe: Mapping[str, Any], rows: Mapping[str, list[dict[str, Any]]]) -> Iterator[str]:
    """The sentences that training must not see: those of its evaluation sets and of `data.held_out`.

    Args:
        recipe: Resolved.
        rows: From `evaluation_sets`.
    """
    for split in ("dev", "test"):
        for row in rows[split]:
            yield row["source"]
            yield row["target"]
    yield from held_out_texts(as_list(recipe["data"]["held_out"]), languages=recipe["languages"])


def _show_alignment(
    recipe: Mapping[str, Any],
    plot: Path,
    encoder: Any,
    test: list[dict[str, Any]],
    languages: tuple[str, str],
    console: Console,
) -> list[Path]:
    """Mines the test text as if its order were unknown, prints the first pairs, and plots some translations.

    Returns:
        The picture; none where fewer than two pairs are to be drawn.
    """
    sources, targets = both_sides(test)
    source_vectors = embed(encoder, sources, language=languages[0])
    target_vectors = embed(encoder, targets, language=languages[1])
    mined = mine_vectors(source_vectors, target_vectors, k=4)
    shown = zip(mined.source, mined.target, mined.score, strict=True)
    for source, target, score in islice(shown, recipe["evaluation"]["mined_pairs"]):
        right = "right" if targets[target] == targets[source] else "wrong"
        console.print(f"mined, margin {score:.2f} ({right})", style="bold", highlight=False)
        for text in (sources[source], targets[target]):
            console.print(f"  {text}", highlight=False, markup=False)
    pairs = recipe["evaluation"]["plot_pairs"]
    if min(pairs, len(test)) < 2:
        return []
    plot_tsne(
        plot,
        source_vectors,
        target_vectors,
        sources,
        targets,
        languages=languages,
        pairs=pairs,
        seed=recipe["seed"],
    )
    return [plot]
