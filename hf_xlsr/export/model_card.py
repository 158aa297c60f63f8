"""Model cards: the facts that a run or a trainer knows, and the Markdown that states them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from importlib.metadata import version
from typing import Any

from huggingface_hub import EvalResult, ModelCardData
from jinja2 import Environment, FunctionLoader, StrictUndefined

from hf_xlsr.data.languages import language_code
from hf_xlsr.data.sources import as_list
from hf_xlsr.encoders.graphs import GRAPH_MODULES
from hf_xlsr.encoders.heads import HeadConfig, leaves_out_prompt, pooling_name
from hf_xlsr.encoders.static import module_configs
from hf_xlsr.encoders.stock import has_decoder
from hf_xlsr.evaluation.before_after import Change, change_columns, change_rows
from hf_xlsr.evaluation.protocol import PROTOCOLS
from hf_xlsr.evaluation.report import metric_unit, metric_value
from hf_xlsr.evaluation.results import Results
from hf_xlsr.export.base_models import UNKNOWN, licence_of_weights
from hf_xlsr.export.card import EXAMPLES, PLACE, code, one_line, prose, public_path, python_text, settings_block
from hf_xlsr.export.hub import TAG, check_hub_ids
from hf_xlsr.export.old_names import not_served
from hf_xlsr.utils.errors import XlsrError, did_you_mean
from hf_xlsr.utils.markdown import markdown_table
from hf_xlsr.utils.printable import printable

POOLINGS = ("mean", "max", "cls", "lasttoken")
PLOTS = {"loss.png": "Loss over training", "tsne.png": "Test pairs in two dimensions, by t-SNE"}
INTERVAL = "95 % interval"
FRAMEWORKS = ("transformers", "sentence-transformers", "torch")
# As https://huggingface.co/docs/hub/repositories-licenses spells them: the Hub refuses a card with another.
LICENCES = frozenset(
    "afl-3.0 agpl-3.0 apache-2.0 apple-amlr apple-ascl artistic-2.0 bigcode-openrail-m bigscience-bloom-rail-1.0 "
    "bigscience-openrail-m bsd bsd-2-clause bsd-3-clause bsd-3-clause-clear bsl-1.0 c-uda cc cc-by-2.0 cc-by-2.5 "
    "cc-by-3.0 cc-by-4.0 cc-by-nc-2.0 cc-by-nc-3.0 cc-by-nc-4.0 cc-by-nc-nd-3.0 cc-by-nc-nd-4.0 cc-by-nc-sa-2.0 "
    "cc-by-nc-sa-3.0 cc-by-nc-sa-4.0 cc-by-nd-4.0 cc-by-sa-3.0 cc-by-sa-4.0 cc0-1.0 cdla-permissive-1.0 "
    "cdla-permissive-2.0 cdla-sharing-1.0 creativeml-openrail-m deepfloyd-if-license ecl-2.0 epl-1.0 epl-2.0 "
    "etalab-2.0 eupl-1.1 eupl-1.2 fair-noncommercial-research-license gemma gfdl gpl gpl-2.0 gpl-3.0 grok2-community "
    "h-research intel-research isc lgpl lgpl-2.1 lgpl-3.0 lgpl-lr llama2 llama3 llama3.1 llama3.2 llama3.3 llama4 "
    "lppl-1.3c mit mpl-2.0 ms-pl ncsa odbl odc-by ofl-1.1 openmdw-1.0 openmdw-1.1 openrail openrail++ osl-3.0 other "
    "pddl postgresql unknown unlicense wtfpl zlib".split()
)


@dataclass(frozen=True)
class MethodFacts:
    """What the cards of all models of a method have in common.

    Attributes:
        paper: The paper of the method, or a description, in Markdown.
        citation: Its BibTeX entry.
        template: File of `hf_xlsr/model_cards`.
        tags: Tags on the Hub.
        task: The `pipeline_tag` on the Hub.
        library: The library that loads the model.
        settings: Values of the configuration that the method reads; by default all.
    """

    paper: str = ""
    citation: str = ""
    template: str = "card.md.jinja"
    tags: tuple[str, ...] = ("sentence-transformers", "feature-extraction", "cross-lingual", "bitext-mining")
    task: str = "sentence-similarity"
    library: str = "sentence-transformers"
    settings: tuple[str, ...] = ()


@dataclass(frozen=True)
class CardMetadata:
    """What only the author of a model knows, for the header of its card.

    Args:
        license: Licence of the weights, as the Hub spells it; by default that of the models that training started from.
        license_name: Its name, if `license` is `other`.
        license_link: Its address, if `license` is `other`.
        base_model: Hub ids; by default those of the models that training started from.
        datasets: Hub ids; by default those that the training data name.

    Raises:
        XlsrError: The Hub has no such licence, or an id has another form. It would refuse the card after the training.
    """

    license: str | None = None
    license_name: str | None = None
    license_link: str | None = None
    base_model: Sequence[str] | str | None = None
    datasets: Sequence[str] | str | None = None

    def __post_init__(self) -> None:
        licence = (self.license or UNKNOWN).strip().lower()
        if licence not in LICENCES:
            raise XlsrError(
                f"`license` must be a licence that the Hub knows, got '{licence}'; {did_you_mean(licence, LICENCES)} For "
                "another one write `other`, with license_name and license_link."
            )
        check_hub_ids("base_model", as_list(self.base_model))
        check_hub_ids("datasets", as_list(self.datasets))

    def licence(self, starts: Iterable[str]) -> str:
        """The stated licence, else that of all models that training started from, or `unknown`."""
        if self.license:
            return one_line(self.license).lower()
        return licence_of_weights(starts)


@dataclass(frozen=True)
class DataSource:
    """A source of training data: a named corpus or dataset with notes such as its licence, or files."""

    name: str = ""
    notes: tuple[str, ...] = ()
    paths: tuple[str, ...] = ()
    hub_id: str = ""

    def markdown(self) -> str:
        """The source in the cell of a table."""
        if self.paths:
            return " + ".join(code(public_path(path), cell=True) for path in self.paths)
        notes = f" ({', '.join(self.notes)})" if self.notes else ""
        return prose(f"{public_path(self.name)}{notes}")


@dataclass(frozen=True, kw_only=True)
class CardFacts:
    """What a card says. Values are plain text of anyone: `card_text` escapes them.

    Attributes:
        title: Name of the model.
        method: The method by which it was trained.
        tag: The last tag of the header, for the method.
        description: A sentence.
        recipe: Name of the recipe, if the model is that of a named one.
        trainer: Class of the trainer, without a recipe.
        languages: Languages that the training data name.
        dimension: Width of the embeddings.
        max_length: Number of tokens that texts are truncated to.
        transformer: The architecture of the encoder as `model_type`, and the options of its `Transformer`.
        head: Configuration of the modules behind the encoder.
        prompts: Prompts by name.
        prompt: The default one.
        routes: Languages that users of the model must name.
        unexported: Name of the class that loads a sentence encoder without a sentence-transformers form.
        weights: Folder of its weights inside that of the model, with a slash in front.
        text_pairs: Whether a classifier reads two texts.
        starts: Folders and Hub ids of the weights that training started from, and of a teacher.
        pretrained: Whether trained weights of the model itself are among them.
        base_models: Hub ids of these models.
        sources: Sources of the training data.
        training: Further facts of the training, by heading.
        cleaning: Lines of Markdown on the cleaning of the training data.
        scores: Results with their protocols.
        other_scores: Metrics of unknown unit, by name.
        scores_note: What the scores are, in Markdown; without scores, why there are none.
        comparison: Changes of metrics from before training to after it.
        plots: Names of files of `PLOTS`.
        settings_title: What the settings are.
        settings: The settings of the training, for a block of YAML.
        metadata: What the author stated.
    """

    title: str
    method: MethodFacts
    tag: str
    description: str = ""
    recipe: str = ""
    trainer: str = ""
    languages: Sequence[str] = ()
    dimension: int = 0
    max_length: int = 0
    transformer: Mapping[str, Any] = field(default_factory=dict)
    head: HeadConfig = field(default_factory=list)
    prompts: Mapping[str, str] = field(default_factory=dict)
    prompt: str = ""
    routes: Sequence[str] = ()
    unexported: str = ""
    weights: str = ""
    text_pairs: bool = False
    starts: Sequence[str] = ()
    pretrained: bool = False
    base_models: Sequence[str] = ()
    sources: Sequence[DataSource] = ()
    training: Mapping[str, str] = field(default_factory=dict)
    cleaning: Sequence[str] = ()
    scores: Results = field(default_factory=Results)
    other_scores: Mapping[str, float] = field(default_factory=dict)
    scores_note: str = ""
    comparison: Mapping[str, Change] = field(default_factory=dict)
    plots: Sequence[str] = ()
    settings_title: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)
    metadata: CardMetadata = CardMetadata()


def card_text(facts: CardFacts) -> str:
    """A card in Markdown with its metadata header. Its code loads the model from `PLACE`, see `card_for`.

    Markdown, HTML, YAML and templates in the facts are not rendered, access tokens are redacted, and local paths are
    shortened to their last folder.
    """
    environment = Environment(
        loader=FunctionLoader(_template),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    routes = list(map(one_line, facts.routes))
    text = environment.get_template(facts.method.template).render(
        header=card_header(facts).to_yaml(),
        title=prose(facts.title),
        description=prose(facts.description),
        languages=list(map(prose, facts.languages)),
        dimension=facts.dimension,
        trained=_training_sentence(facts),
        scores=_score_table(facts),
        scores_note=facts.scores_note,
        protocols=_protocols(facts.scores),
        comparison=_comparison_table(facts.comparison),
        training=_training_table(facts),
        cleaning="\n".join(facts.cleaning),
        plots={name: PLOTS[name] for name in facts.plots if name in PLOTS},
        settings_title=facts.settings_title,
        settings=settings_block(facts.settings),
        licence=_licence_sentence(facts),
        max_length=prose(facts.max_length),
        pretrained=facts.pretrained,
        citation=facts.method.citation,
        unexported=facts.unexported,
        weights=facts.weights,
        task=facts.method.task,
        pairs=facts.text_pairs,
        prompt=prose(python_text(facts.prompt)) if facts.prompt else "",
        examples=list(map(python_text, EXAMPLES)),
        prompted=[python_text(facts.prompt + sentence) for sentence in EXAMPLES],
        routes=list(map(prose, routes)),
        python_routes=list(map(python_text, routes)),
        stock=_stock_vectors(facts, routes),
        has_graph=_has_graph(facts),
        not_served=", ".join(not_served(facts.head, routes, facts.transformer)),
        place=PLACE,
    )
    return printable(text)


def _template(name: str) -> str:
    """A template; jinja2's own loader does not find the folder of an editable install."""
    return (resources.files("hf_xlsr.model_cards") / name).read_text("utf-8")


def card_header(facts: CardFacts) -> ModelCardData:
    """The header of a card: what its author stated, else what the other facts say."""
    stated = facts.metadata
    scores = []
    for key, value in facts.scores.items():
        if isinstance(value, float) and 0 <= value <= 1:
            scores.append(_eval_result(key, value, facts.method.task))

    hub_ids = dict.fromkeys(source.hub_id for source in facts.sources if source.hub_id)
    return ModelCardData(
        language=hub_languages(facts.languages),
        license=stated.licence(facts.starts),
        license_name=clean(stated.license_name),
        license_link=clean(stated.license_link),
        library_name="transformers" if facts.unexported else facts.method.library,
        pipeline_tag=facts.method.task,
        tags=[*facts.method.tags, TAG, facts.tag],
        base_model=clean(as_list(stated.base_model)) or list(facts.base_models) or None,
        datasets=clean(as_list(stated.datasets)) or list(hub_ids) or None,
        model_name=one_line(facts.title) if scores else None,
        eval_results=scores or None,
    )


def hub_languages(tags: Iterable[str]) -> list[str] | None:
    """The codes of languages as the header of a card has them, without scripts and regions; None for none.

    Examples:
        >>> hub_languages(["pt-BR", "zh-Hans", "zh-Hant"])
        ['pt', 'zh']
    """
    return list(dict.fromkeys(one_line(language_code(tag)) for tag in tags)) or None


def framework_versions(versions: Mapping[str, str]) -> str:
    """The versions of the frameworks: the given ones, and those of the installed packages for the others."""
    return ", ".join(f"{name} {versions.get(name) or version(name)}" for name in FRAMEWORKS)


def clean(value: Any) -> Any:
    """A text or a list of texts of a user, on one line each; None for an empty text."""
    if isinstance(value, list):
        return list(map(one_line, value))
    return one_line(value) if value else None


def encoder_facts_of(config: Any) -> dict[str, Any]:
    """Encoder, head and prompts of a trained sentence encoder by its configuration; empty for other models."""
    if hasattr(config, "heads"):
        name, encoder = next(iter(config.encoder_configs.items()))
        head = (config.heads or {}).get(name)
        options = (config.transformer_options or {}).get(name)
    else:
        encoder = config.get_text_config()
        head = getattr(config, "head", None)
        options = getattr(config, "transformer_options", None)
    if head is None:
        return {}
    settings = config.settings
    return {
        "transformer": {"model_type": encoder.model_type, **(options or {})},
        "head": module_configs(encoder, head),
        "prompts": dict(settings.prompts),
        "prompt": settings.prompts.get(settings.default_prompt_name, ""),
    }


def _training_sentence(facts: CardFacts) -> str:
    recipe = f"the recipe {code(facts.recipe)} of " if facts.recipe else ""
    trainer = f" ({code(facts.trainer)})" if facts.trainer else ""
    paper = f", by the method of {facts.method.paper}" if facts.method.paper else ""
    return f"Trained with {recipe}hf-xlsr{trainer}{paper}."


def _shown(metric: str, value: float) -> str:
    if isinstance(value, int):
        return f"{value:,}"
    shown = metric_value(metric, value)
    return f"{shown} %" if metric_unit(metric) == "%" else shown


def _interval(metric: str, low: float | None, high: float | None) -> str:
    ends = [metric_value(metric, end) for end in (low, high) if end is not None]
    return " to ".join(ends)


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table without the columns that are empty in every row; empty without rows."""
    columns = [column for column in zip(header, *rows, strict=True) if any(column[1:])]
    header, *filled_rows = zip(*columns, strict=True) if columns else [()]
    return "\n".join(markdown_table(header, filled_rows, len(header))) if filled_rows else ""


def _score_table(facts: CardFacts) -> str:
    rows = []
    for name, value in facts.other_scores.items():
        shown = f"{value:,}" if isinstance(value, int) else f"{value:.4f}"
        rows.append((code(name, cell=True), shown, ""))
    for key, record in facts.scores.records.items():
        interval = _interval(record.metric, record.low, record.high)
        rows.append((code(key, cell=True), _shown(record.metric, record.value), interval))
    return _table(("metric", "value", INTERVAL), rows)


def _comparison_table(changes: Mapping[str, Change]) -> str:
    rows = [[code(key, cell=True), *values] for key, *values in change_rows(changes)]
    columns = change_columns(changes)
    return "\n".join(markdown_table(columns, rows, len(columns))) if rows else ""


def _training_table(facts: CardFacts) -> str:
    sources = dict.fromkeys(source.markdown() for source in facts.sources)
    rows = [("training data", "; ".join(sources) or UNKNOWN)]
    for name, value in {**facts.training, **_encoder_rows(facts)}.items():
        rows.append((prose(name), prose(public_path(value))))
    return "\n".join(["| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows)])


def _encoder_rows(facts: CardFacts) -> dict[str, str]:
    """The head of a sentence encoder, and its prompts if there are others than the default one."""
    rows = {}
    if facts.head:
        rows["head"] = ", ".join(_module_name(module) for module in facts.head)
    if any(text != facts.prompt for text in facts.prompts.values()):
        rows["prompts"] = ", ".join(f"{name}: {python_text(text)}" for name, text in facts.prompts.items())
    return rows


def _module_name(module: Mapping[str, Any]) -> str:
    pooling = pooling_name([module])
    return f"{module['kind']} ({pooling})" if pooling else str(module["kind"])


def _protocols(scores: Results) -> dict[str, str]:
    names = dict.fromkeys(record.protocol for record in scores.records.values())
    return {code(name): PROTOCOLS[name].summary.rstrip(".") for name in names if name in PROTOCOLS}


def _stock_vectors(facts: CardFacts, routes: Sequence[str]) -> dict[str, Any] | None:
    """Pooling, class and folder for code with transformers alone; None if the vectors need more than that."""
    kinds = [module["kind"] for module in facts.head]
    pooling = pooling_name(facts.head)
    is_stock = kinds in (["Pooling"], ["Pooling", "Normalize"]) and pooling in POOLINGS
    if not is_stock or not _reads_plain_tokens(facts):
        return None

    folder = None
    if routes:
        folder = python_text(f"{routes[0]}_0_Transformer")  # as sentence-transformers names the parts of a router
    auto_class = "AutoModelForTextEncoding" if has_decoder(facts.transformer.get("model_type", "")) else "AutoModel"
    return {"pooling": pooling, "normalize": "Normalize" in kinds, "folder": folder, "auto_class": auto_class}


def _has_graph(facts: CardFacts) -> bool:
    """Whether the ONNX files of the model need nothing but the tokens of a text."""
    kinds = {module["kind"] for module in facts.head}
    has_encoder = not has_decoder(facts.transformer.get("model_type", ""))
    return has_encoder and kinds <= set(GRAPH_MODULES) and _reads_plain_tokens(facts)


def _reads_plain_tokens(facts: CardFacts) -> bool:
    """Whether the encoder reads a text by its tokens only: not as a message of a chat, nor by those of the prompt."""
    return "message" not in facts.transformer.get("modality_config", ()) and not leaves_out_prompt(facts.head)


def _licence_sentence(facts: CardFacts) -> str:
    licence = facts.metadata.licence(facts.starts)
    if licence == UNKNOWN:
        return (
            "No licence was chosen for the weights. The licences of the training text and of the models that training "
            "started from apply."
        )
    reason = ""
    if not facts.metadata.license:
        starts = ", ".join(code(public_path(start)) for start in facts.starts)
        reason = f", the licence of the models that training started from ({starts})"
    return f"The weights are under {code(licence)}{reason}. The licences of the training text may apply too."


def _eval_result(key: str, value: float, task_type: str) -> EvalResult:
    task, _, metric = one_line(key).rpartition("/")
    name, config, split, *_ = [*task.split("/"), None, None]
    return EvalResult(
        task_type=task_type,
        dataset_type=str(name),
        dataset_name=task,
        dataset_config=config,
        dataset_split=split,
        metric_type=metric,
        metric_value=round(value, 4),
    )
