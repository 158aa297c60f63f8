"""Our evaluation protocols as evaluators of sentence-transformers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.evaluation import SentenceEvaluator
from typing_extensions import Unpack

from hf_xlsr.encoders.encoding import EncodingOptions
from hf_xlsr.evaluation import BuccData, bucc, language_bias, xsim
from hf_xlsr.evaluation.pairs import both_ways, encode_pairs, right_texts_both_ways
from hf_xlsr.utils.files import atomic_write, path_name
from hf_xlsr.utils.printable import csv_text

COUNTS = ("pairs", "gold", "queries")
NEGATIVE = "negative_"  # of a metric of which lower is better, as in `negative_mse` of sentence-transformers
UNNAMED_LANGUAGES = ("source", "target")


class ProtocolEvaluator(SentenceEvaluator):
    """Runs a protocol, writes a line of CSV and stores the metrics for the model card.

    The name is the prefix of the metrics. A `Router` with a route per language needs the languages; one with other
    routes, such as `query` and `document`, needs `routes` (language -> route).
    """

    protocol: str
    primary: str
    settings: Mapping[str, Any] = MappingProxyType({})  # of the protocol, for the model card

    def __init__(self, name: str = "", *, write_csv: bool = True, **encoding: Unpack[EncodingOptions]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.greater_is_better = True  # of every primary metric
        self.name = name
        self.write_csv = write_csv
        self.encoding = encoding
        self.primary_metric = f"{name}_{self.primary}" if name else self.primary
        for part in name.split("/") if name else ():
            path_name(part, "name")
        self.csv_file = "_".join(filter(None, (self.protocol, "evaluation", name, "results.csv")))

    def measure(self, model: SentenceTransformer) -> dict[str, float]:
        """The protocol's metrics by their names here."""
        raise NotImplementedError

    def __call__(  # type: ignore[override]  # as the evaluators of that library
        self, model: SentenceTransformer, output_path: str | None = None, epoch: int = -1, steps: int = -1
    ) -> dict[str, float]:
        measured = {name: value for name, value in self.measure(model).items() if not name.endswith(COUNTS)}
        if self.primary.startswith(NEGATIVE):
            measured[self.primary] = -measured[self.primary.removeprefix(NEGATIVE)]
        if output_path is not None and self.write_csv:
            self._append_row(Path(output_path), {"epoch": epoch, "steps": steps, **measured})

        metrics: dict[str, float] = self.prefix_name_to_metrics(measured, self.name)
        self.store_metrics_in_model_card_data(model, metrics, epoch, steps)
        return metrics

    def _append_row(self, folder: Path, row: Mapping[str, float]) -> None:
        """Adds a line to the CSV file, which is created with a line of names."""
        path = folder / self.csv_file
        path.parent.mkdir(parents=True, exist_ok=True)  # a name may have a slash
        earlier_rows = b""
        if path.is_file() and not path.is_symlink():
            earlier_rows = path.read_bytes()
        with atomic_write(path) as partial:
            partial.write_bytes(earlier_rows + csv_text([row], header=not earlier_rows).encode())

    def get_config_dict(self) -> dict[str, Any]:
        """The protocol's settings and the options of encoding, for the model card."""
        return {**self.settings, **self.encoding}


class TatoebaEvaluator(ProtocolEvaluator):
    """Translation retrieval accuracy by cosine nearest neighbour.

    Metrics: `accuracy` (the primary one), `source_to_target_accuracy`, `target_to_source_accuracy`. Sources and targets
    are translations of each other, in the same order; `options` are those of `ProtocolEvaluator`.

    A sentence is right if it finds the text of its translation, as in `eval_accuracy` of our trainers and in
    `TranslationEvaluator`. The protocol `hf_xlsr.evaluation.tatoeba` compares rows, as LASER does, so that of equal
    sentences one counts as right.

    Examples:
        >>> from sentence_transformers.sentence_transformer.modules import StaticEmbedding
        >>> from tokenizers import Tokenizer, models
        >>> words = Tokenizer(models.WordLevel({"one": 0, "two": 1}, unk_token="one"))
        >>> model = SentenceTransformer(modules=[StaticEmbedding(words, embedding_dim=4)], device="cpu")
        >>> evaluator = TatoebaEvaluator(["one", "two"], ["one", "two"], name="numbers")
        >>> evaluator(model)[evaluator.primary_metric]
        1.0
    """

    protocol = "tatoeba"
    primary = "accuracy"

    def __init__(
        self,
        sources: Sequence[str],
        targets: Sequence[str],
        name: str = "",
        *,
        languages: tuple[str, str] = UNNAMED_LANGUAGES,
        **options: Any,
    ) -> None:
        super().__init__(name, **options)
        self.sources = sources
        self.targets = targets
        self.languages = languages

    def measure(self, model: SentenceTransformer) -> dict[str, float]:
        vectors = encode_pairs(model, self.sources, self.targets, self.languages, **self.encoding)
        values, _ = both_ways("accuracy", *right_texts_both_ways(*vectors, self.sources, self.targets))
        return values


class XsimEvaluator(TatoebaEvaluator):
    """LASER's error rate of the best margin among `k` neighbours, see `hf_xlsr.evaluation.xsim`.

    Metrics: `error`, and `negative_error`, the primary one, of which higher is better. The margin is `ratio`, `distance`
    or `absolute`; `options` are those of `TatoebaEvaluator`.
    """

    protocol = "xsim"
    primary = "negative_error"

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

    def measure(self, model: SentenceTransformer) -> dict[str, float]:
        options: dict[str, Any] = {"languages": self.languages, **self.get_config_dict()}
        metrics = xsim(model, self.sources, self.targets, name="pairs", **options)
        return {last_part(key): value for key, value in metrics.items()}


class BuccEvaluator(ProtocolEvaluator):
    """F1 of mined hidden translations with a threshold tuned on other data, see `hf_xlsr.evaluation.bucc`.

    Metrics: `f1`, `precision`, `recall`, `threshold`, and `tune_f1` on the tuning data. The margin is `ratio`, `distance`
    or `absolute`; `options` are those of `ProtocolEvaluator`.
    """

    protocol = "bucc"
    primary = "f1"

    def __init__(
        self,
        tune: BuccData,
        test: BuccData,
        name: str = "",
        *,
        languages: tuple[str, str] = UNNAMED_LANGUAGES,
        k: int = 4,
        margin: str = "ratio",
        **options: Any,
    ) -> None:
        super().__init__(name, **options)
        self.tune = tune
        self.test = test
        self.languages = languages
        self.settings = {"k": k, "margin": margin}

    def measure(self, model: SentenceTransformer) -> dict[str, float]:
        options: dict[str, Any] = {"languages": self.languages, **self.get_config_dict()}
        metrics = bucc(model, self.tune, self.test, name="pairs", **options)
        on_test = {last_part(key): value for key, value in metrics.items() if "/test/" in key}
        on_tuning_data = {f"tune_{last_part(key)}": value for key, value in metrics.items() if "/train/" in key}
        return on_test | on_tuning_data


class LanguageBiasEvaluator(ProtocolEvaluator):
    """Preference of the nearest sentences for the query's language, 1 for none, see `hf_xlsr.evaluation.language_bias`.

    Metrics: `bias` (the mean over languages), `with_translations_bias`, and both by language (`en_bias`), of all of which
    lower is better; and `negative_bias`, the primary one, of which higher is better.

    Args:
        texts: Language -> its sentences; row `i` of all languages says the same thing.
        k: Sentences retrieved for each query; by default the number of languages.
    """

    protocol = "language_bias"
    primary = "negative_bias"

    def __init__(
        self, texts: Mapping[str, Sequence[str]], name: str = "", *, k: int | None = None, **options: Any
    ) -> None:
        super().__init__(name, **options)
        self.texts = texts
        self.settings = {"k": k or len(texts)}

    def measure(self, model: SentenceTransformer) -> dict[str, float]:
        means: dict[str, float] = {}
        by_language: dict[str, float] = {}
        metrics = language_bias(model, self.texts, name="texts", **self.settings, **self.encoding)
        for key, value in metrics.items():
            _, group, *_, metric = key.split("/")
            if metric.endswith("bias") and group.startswith("mean-of"):
                means[metric] = value
            elif metric.endswith("bias") and group in self.texts:
                by_language[f"{group}_{metric}"] = value
        return means | by_language


def last_part(key: str) -> str:
    """The metric in a key: `accuracy` of `tatoeba/en-fr/test/accuracy`."""
    return key.rpartition("/")[2]
