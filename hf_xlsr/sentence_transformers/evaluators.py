"""Our evaluation protocols as evaluators of sentence-transformers."""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.evaluation import SentenceEvaluator
from typing_extensions import Unpack

from hf_xlsr.encoders.encoding import EncodingOptions
from hf_xlsr.evaluation import BuccData, bucc, language_bias, tatoeba, xsim

COUNTS = ("pairs", "gold", "queries")
SIDES = ("source", "target")


class ProtocolEvaluator(SentenceEvaluator):
    """Runs a protocol, writes a line of CSV and stores the metrics for the model card.

    The name is the prefix of the metrics. A `Router` with a route per language needs the languages; one with other
    routes, such as `query` and `document`, needs `routes` (language -> route).
    """

    protocol: str
    primary: str
    greater_is_better: bool
    settings: Mapping[str, Any] = MappingProxyType({})  # of the protocol, for the model card

    def __init__(self, name: str = "", *, write_csv: bool = True, **encoding: Unpack[EncodingOptions]) -> None:
        higher = self.greater_is_better
        super().__init__()
        self.greater_is_better, self.primary_metric = higher, "_".join(filter(None, (name, self.primary)))
        self.name, self.write_csv, self.encoding = name, write_csv, encoding
        self.csv_file = "_".join(filter(None, (self.protocol, "evaluation", name, "results.csv")))

    def measure(self, model: SentenceTransformer) -> dict[str, float]:
        """The protocol's metrics by their names here."""
        raise NotImplementedError

    def __call__(  # type: ignore[override]  # as the evaluators of that library
        self, model: SentenceTransformer, output_path: str | None = None, epoch: int = -1, steps: int = -1
    ) -> dict[str, float]:
        measured = {name: value for name, value in self.measure(model).items() if name.split("_")[-1] not in COUNTS}
        if output_path is not None and self.write_csv:
            path = Path(output_path) / self.csv_file
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("a", newline="", encoding="utf-8") as file:
                writer = csv.writer(file)
                if not file.tell():
                    writer.writerow(["epoch", "steps", *measured])
                writer.writerow([epoch, steps, *measured.values()])
        metrics: dict[str, float] = self.prefix_name_to_metrics(measured, self.name)
        self.store_metrics_in_model_card_data(model, metrics, epoch, steps)
        return metrics

    def get_config_dict(self) -> dict[str, Any]:
        return {**self.settings, **self.encoding}


class TatoebaEvaluator(ProtocolEvaluator):
    """Translation retrieval accuracy by cosine nearest neighbour, see `hf_xlsr.evaluation.tatoeba`.

    Metrics: `accuracy` (the primary one), `source_to_target_accuracy`, `target_to_source_accuracy`. Sources and targets
    are translations of each other, in the same order; `options` are those of `ProtocolEvaluator`.

    Examples:
        >>> from sentence_transformers.sentence_transformer.modules import StaticEmbedding
        >>> from tokenizers import Tokenizer, models
        >>> words = Tokenizer(models.WordLevel({"one": 0, "two": 1}, unk_token="one"))
        >>> model = SentenceTransformer(modules=[StaticEmbedding(words, embedding_dim=4)], device="cpu")
        >>> evaluator = TatoebaEvaluator(["one", "two"], ["one", "two"], name="numbers")
        >>> evaluator(model)[evaluator.primary_metric]
        1.0
    """

    protocol, primary, greater_is_better = "tatoeba", "accuracy", True
    run: Callable[..., Mapping[str, float]] = staticmethod(tatoeba)

    def __init__(
        self,
        sources: Sequence[str],
        targets: Sequence[str],
        name: str = "",
        *,
        languages: tuple[str, str] = SIDES,
        **options: Any,
    ) -> None:
        super().__init__(name, **options)
        self.sources, self.targets, self.languages = sources, targets, languages

    def measure(self, model: SentenceTransformer) -> dict[str, float]:
        options: dict[str, Any] = {"languages": self.languages, **self.get_config_dict()}
        return last_parts(self.run(model, self.sources, self.targets, name="pairs", **options))


class XsimEvaluator(TatoebaEvaluator):
    """LASER's error rate of the best margin among `k` neighbours, see `hf_xlsr.evaluation.xsim`.

    Metrics: `error` (lower is better). The margin is `ratio`, `distance` or `absolute`; `options` are those of
    `TatoebaEvaluator`.
    """

    protocol, primary, greater_is_better = "xsim", "error", False
    run = staticmethod(xsim)

    def __init__(
        self,
        sources: Sequence[str],
        targets: Sequence[str],
        name: str = "",
        *,
        k: int = 4,
        margin: str = "ratio",
        **options: Any,
    ) -> None:
        super().__init__(sources, targets, name, **options)
        self.settings = {"k": k, "margin": margin}


class BuccEvaluator(ProtocolEvaluator):
    """F1 of mined hidden translations with a threshold tuned on other data, see `hf_xlsr.evaluation.bucc`.

    Metrics: `f1`, `precision`, `recall`, `threshold`, and `tune_f1` on the tuning data. The margin is `ratio`, `distance`
    or `absolute`; `options` are those of `ProtocolEvaluator`.
    """

    protocol, primary, greater_is_better = "bucc", "f1", True

    def __init__(
        self,
        tune: BuccData,
        test: BuccData,
        name: str = "",
        *,
        languages: tuple[str, str] = SIDES,
        k: int = 4,
        margin: str = "ratio",
        **options: Any,
    ) -> None:
        super().__init__(name, **options)
        self.tune, self.test, self.languages = tune, test, languages
        self.settings = {"k": k, "margin": margin}

    def measure(self, model: SentenceTransformer) -> dict[str, float]:
        options: dict[str, Any] = {"languages": self.languages, **self.get_config_dict()}
        metrics = bucc(model, self.tune, self.test, name="pairs", **options)
        tuned = {f"tune_{key.rpartition('/')[2]}": value for key, value in metrics.items() if "/train/" in key}
        return last_parts({key: value for key, value in metrics.items() if "/test/" in key}) | tuned


class LanguageBiasEvaluator(ProtocolEvaluator):
    """Preference of the nearest sentences for the query's language, 1 for none, see `hf_xlsr.evaluation.language_bias`.

    Metrics: `bias` (the mean over languages; lower is better), `with_translations_bias`, and both by language
    (`en_bias`).

    Args:
        texts: Language -> its sentences; row `i` of all languages says the same thing.
        k: Sentences retrieved for each query; by default the number of languages.
    """

    protocol, primary, greater_is_better = "language_bias", "bias", False

    def __init__(
        self, texts: Mapping[str, Sequence[str]], name: str = "", *, k: int | None = None, **options: Any
    ) -> None:
        super().__init__(name, **options)
        self.texts, self.settings = texts, {"k": k or len(texts)}

    def measure(self, model: SentenceTransformer) -> dict[str, float]:
        metrics = language_bias(model, self.texts, name="texts", **self.settings, **self.encoding)
        parts = {tuple(key.split("/")[1::2]): value for key, value in metrics.items() if key.endswith("bias")}
        means = {metric: value for (group, metric), value in parts.items() if group.startswith("mean-of")}
        return means | {f"{group}_{metric}": value for (group, metric), value in parts.items() if group in self.texts}


def last_parts(metrics: Mapping[str, float]) -> dict[str, float]:
    """Metrics by the last part of their keys: `accuracy` of `tatoeba/en-fr/test/accuracy`."""
    return {key.rpartition("/")[2]: value for key, value in metrics.items()}
