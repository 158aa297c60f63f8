"""The card of a dataset of mined pairs: every fact is one that a verb stored, the user stated, or was counted.

What is unknown is called unknown.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from huggingface_hub import DatasetCardData

from hf_xlsr.data.cleaning.cost import cost_table, removal_table
from hf_xlsr.export.card import PLACE, code, code_block, one_line, prose, python_text
from hf_xlsr.export.corpus_files import FINDING, MEANINGS, SIDES, SPLIT, TEXT, Written
from hf_xlsr.export.hub import TAG
from hf_xlsr.export.model_card import CardMetadata, hub_languages
from hf_xlsr.mining.facts import PairFacts, Step
from hf_xlsr.utils.errors import XlsrError
from hf_xlsr.utils.markdown import SPECIAL, markdown_table
from hf_xlsr.utils.printable import printable
from hf_xlsr.utils.redaction import redact_tokens

TASKS = ["translation", "sentence-similarity"]
TAGS = ["bitext-mining", "parallel-corpus"]
SIZE_NAMES = ("1K", "10K", "100K", "1M", "10M", "100M", "1B", "10B", "100B", "1T")
PAGE = "report.html"
FACTS = "facts.json"
SCORES_PLOT = "scores.png"
CURVE_PLOT = "precision.png"
UNKNOWN = "unknown"
COUNTED = {"settings": "settings", "skipped": "lines skipped", "known": "known pairs"}  # of a step: key -> name


@dataclass(frozen=True)
class CorpusMetadata:
    """What only the publisher of pairs knows.

    Args:
        license: Licence of the pairs, as the Hub spells it.
        sources: Where the texts are from -> the licence or terms of that source, in any words.
        languages: Source and target, if the facts do not name them.
        license_name: Name of the licence, if `license` is `other`.
        license_link: Its address, if `license` is `other`.
        title: Title of the card; by default the name of the repository.

    Raises:
        XlsrError: Licence or sources are missing, or the Hub has no such licence.

    Examples:
        >>> CorpusMetadata("cc-by-sa-4.0", {"Wikipedia, 2026-05": "cc-by-sa-4.0"}).license
        'cc-by-sa-4.0'
    """

    license: str
    sources: Mapping[str, str]
    languages: Sequence[str] | None = None
    license_name: str | None = None
    license_link: str | None = None
    title: str = ""

    def __post_init__(self) -> None:
        if not self.license:
            raise XlsrError("`license` of the pairs is missing. Choose one that the sources allow, e.g. cc-by-sa-4.0.")
        CardMetadata(self.license, self.license_name, self.license_link)
        if self.licence == "other" and not (self.license_name and self.license_link):
            raise XlsrError("`license` is other: give its license_name and license_link, too.")
        if not self.sources:
            raise XlsrError(
                "`sources` of the texts are missing. Name each with its licence, e.g. Wikipedia=cc-by-sa-4.0."
            )
        for name, licence in self.sources.items():
            if not name.strip() or not licence.strip():
                raise XlsrError(f"`sources` must have a name and a licence each, got '{name}' and '{licence}'.")
        if self.languages is not None and len(self.languages) != 2:
            raise XlsrError(f"`languages` must be source and target, e.g. en,de, got {','.join(self.languages)}.")

    @property
    def licence(self) -> str:
        """The licence as the Hub spells it."""
        return self.license.strip().lower()


@dataclass(frozen=True)
class CorpusFacts:
    """What a card says.

    Attributes:
        metadata: What the publisher stated.
        made: How the pairs were made.
        features: Column -> type.
        written: What was counted while the files were written.
        size: Bytes of the files.
        languages: Source and target; None if unknown.
        skipped: Lines of the file of pairs that could not be read, by reason.
        extras: Further files of the repository, such as plots.
    """

    metadata: CorpusMetadata
    made: PairFacts
    features: Mapping[str, str]
    written: Written
    size: int
    languages: Sequence[str] | None = None
    skipped: Mapping[str, int] = field(default_factory=dict)
    extras: Sequence[str] = ()


def size_category(rows: int) -> str:
    """How the Hub names a number of rows.

    Examples:
        >>> size_category(999), size_category(1000), size_category(25_000_000)
        ('n<1K', '1K<n<10K', '10M<n<100M')
    """
    lower = ""
    for power, name in enumerate(SIZE_NAMES, 3):
        if rows < 10**power:
            return f"{lower}n<{name}"
        lower = f"{name}<"
    return f"n>{SIZE_NAMES[-1]}"


def corpus_header(facts: CorpusFacts) -> DatasetCardData:
    """The header, by which the Hub and `datasets` find files, columns and splits."""
    rows = facts.written.rows
    features = [{"name": name, "dtype": kind} for name, kind in facts.features.items()]
    split = {"name": SPLIT, "num_bytes": facts.written.size, "num_examples": rows}
    return DatasetCardData(
        language=hub_languages(facts.languages or ()),
        license=facts.metadata.licence,
        license_name=_stated(facts.metadata.license_name),
        license_link=_stated(facts.metadata.license_link),
        pretty_name=one_line(facts.metadata.title) or None,
        multilinguality="translation",
        size_categories=[size_category(rows)],
        task_categories=TASKS,
        tags=[TAG, *TAGS],
        configs=[{"config_name": "default", "data_files": [{"split": SPLIT, "path": f"data/{SPLIT}-*"}]}],
        dataset_info={
            "features": features,
            "splits": [split],
            "download_size": facts.size,
            "dataset_size": facts.written.size,
        },
    )


def _stated(text: str | None) -> str | None:
    return one_line(text) if text else None


def corpus_card(facts: CorpusFacts) -> str:
    """The card in Markdown with its header. Its code loads the dataset from `PLACE`, see `card_for`.

    Markdown, HTML and YAML in the facts are not rendered, and access tokens are redacted.
    """
    blocks = [
        f"---\n{corpus_header(facts).to_yaml()}\n---",
        f"# {prose(facts.metadata.title)}",
        _introduction(facts),
        "## Use",
        *_use(facts),
        "## Columns",
        _columns(facts),
        "## Sources and licences",
        *_licences(facts.metadata),
        "## Quality",
        *_quality(facts),
        "## How the pairs were made",
        *_steps(facts.made.steps),
        "## Reproduce",
        *_reproduction(facts.made.steps),
        "## Not known",
        "\n".join(f"- {sentence}" for sentence in _unknown(facts)),
    ]
    return printable("\n\n".join(blocks) + "\n")


def _introduction(facts: CorpusFacts) -> str:
    languages = "unknown languages"
    if facts.languages:
        languages = " and ".join(map(code, facts.languages))
    elif _rows_name_languages(facts):
        languages = "the languages of the columns `source_lang` and `target_lang`"
    verbs = dict.fromkeys(step["verb"] for step in facts.made.steps)
    mined = "mined " if set(FINDING) & set(verbs) else ""
    made = f" Made by {', '.join(map(code, verbs))} of hf-xlsr." if verbs else ""
    return f"{facts.written.rows:,} {mined}pairs of sentences in {languages}.{made}"


def _rows_name_languages(facts: CorpusFacts) -> bool:
    return any(map(any, facts.written.language_pairs))


def _use(facts: CorpusFacts) -> Iterator[str]:
    columns = [name for name, kind in facts.features.items() if kind == TEXT][: len(SIDES)]
    names = ", ".join(map(python_text, columns))
    yield code_block(
        "from datasets import load_dataset\n\n"
        f'pairs = load_dataset("{PLACE}", split="{SPLIT}")\n'
        f"texts = pairs.select_columns([{names}])  # what losses of sentence-transformers read",
        "python",
    )
    if facts.languages:  # without which training refuses it
        languages = ",".join(map(one_line, facts.languages))
        yield code_block(f'hf-xlsr train finetune --encoder ENCODER --train "{PLACE}" --languages {languages}', "sh")


def _columns(facts: CorpusFacts) -> str:
    sentences = ["sentence", "its translation"]
    verbs = {step["verb"] for step in facts.made.steps}
    rows = []
    for name, kind in facts.features.items():
        meaning, writers = MEANINGS.get(name, ("a score that the publisher added", verbs))
        if verbs.isdisjoint(writers):
            meaning = f"{name.replace('_', ' ')}, as it was given"
        if kind == TEXT:
            meaning = sentences.pop(0) if sentences else "language of the text"
        rows.append([code(name, cell=True), kind, meaning])
    return "\n".join(markdown_table(["column", "type", "meaning"], rows, 3))


def _licences(metadata: CorpusMetadata) -> Iterator[str]:
    name = f" ({prose(metadata.license_name)})" if metadata.license_name else ""
    yield f"The pairs are under {code(metadata.licence)}{name}. The texts are from:"
    rows = [[prose(source), prose(licence)] for source, licence in metadata.sources.items()]
    yield "\n".join(markdown_table(["source", "licence or terms"], rows, 2))
    yield "Sources and licences are as the publisher stated them."


def _quality(facts: CorpusFacts) -> Iterator[str]:
    written = facts.written
    columns = [name for name, kind in facts.features.items() if kind == TEXT]
    counts = [
        ["pairs", f"{written.rows:,}"],
        ["pairs that are equal to an earlier one", f"{written.repeated:,}"],
    ]
    for column, count in zip(columns, written.distinct.values(), strict=False):
        counts.append([f"distinct texts in {code(column, cell=True)}", f"{count:,}"])
    if facts.skipped:
        counts.append(["lines that could not be read, left out", _counted(facts.skipped)])
    yield "\n".join(markdown_table(["counted in this dataset", ""], counts))

    rows = [_estimate_row(step) for step in facts.made.steps if step.get("estimate")]
    if rows:
        yield "Estimates of the pairs above the threshold of a step, with 95 % intervals:"
        yield "\n".join(markdown_table(["step", "threshold", "precision", "recall", "estimated from"], rows, 5))
        yield "\n".join(_estimate_notes(facts.made.steps))
    else:
        yield "Precision and recall were not estimated."

    labels = [step for step in facts.made.steps if step.get("labels")]
    for step in labels:
        yield f"Labels by hand that changed what {code(step['verb'])} wrote: {prose(_counted(step['labels']))}."
    if facts.made.steps and not labels:
        yield "No labels by hand changed the pairs in these steps."
    yield from _pictures(facts)


def _pictures(facts: CorpusFacts) -> Iterator[str]:
    """The plots, which are of the last step that scored pairs, and the report page."""
    scored = [step["verb"] for step in facts.made.steps if step.get("histogram")]
    captions = {
        SCORES_PLOT: "Scores of all pairs that {} looked at, and its threshold",
        CURVE_PLOT: "Precision and recall of {} by threshold, with 95 % intervals",
    }
    for name, caption in captions.items():
        if name in facts.extras:
            yield f"![{caption.format(prose(scored[-1]))}]({name})"
    if PAGE in facts.extras:
        yield (
            f"[{PAGE}]({PAGE}) shows samples of all pairs that the last step looked at, also below the threshold. "
            "Download it and open it: it needs no server."
        )


def _estimate_row(step: Step) -> list[str]:
    estimate = step["estimate"]
    threshold = step.get("threshold")
    return [
        code(step["verb"], cell=True),
        UNKNOWN if threshold is None else f"{threshold:.4f}",
        _share(estimate, "precision", "low", "high"),
        _share(estimate, "recall", "recall_low", "recall_high"),
        prose(estimate.get("basis", UNKNOWN)),
    ]


def _share(estimate: Mapping[str, Any], name: str, low: str, high: str) -> str:
    if estimate.get(name) is None:
        return UNKNOWN
    return f"{estimate[name]:.1%} ({estimate[low]:.1%} to {estimate[high]:.1%})"


def _estimate_notes(steps: Sequence[Step]) -> Iterator[str]:
    """What estimates are not: those of a step that changed the pairs afterwards, and those of `filter`."""
    estimated = [number for number, step in enumerate(steps) if step.get("estimate")]
    estimators = [steps[number] for number in estimated]
    later_steps = steps[estimated[-1] + 1 :]
    if any(map(_may_change, later_steps)):
        yield "Later steps may have changed the pairs, and nothing was estimated after them."
    if any(step.get("cleaning", {}).get("pairs") for step in estimators):
        yield "The estimate of a step that also cleans its pairs is of the pairs before this cleaning."
    if any(step.get("labels") for step in estimators):
        yield "Where labels by hand changed the pairs, the estimate is of those before."
    if any(step.get("held_out") for step in estimators):
        yield (
            "The estimate of `filter` was measured on held-out known pairs, half of them good, the others damaged in the "
            "ways that it was trained on. Where most pairs are good, more of those that it keeps are. Noise of other "
            "kinds lowers the precision, also far below the interval."
        )


def _may_change(step: Step) -> bool:
    """Whether a step may have left out pairs or changed their texts."""
    counts = step.get("pairs")
    return bool(step.get("cleaning")) or not counts or counts["in"] != counts["out"]


def _steps(steps: Sequence[Step]) -> Iterator[str]:
    if not steps:
        yield "Unknown: nothing was stored beside the pairs."
    for number, step in enumerate(steps, 1):
        yield f"### {number}. {code(step['verb'])}"
        rows = [[prose(name), value] for name, value in _step_rows(step)]
        yield "\n".join(markdown_table(["", ""], rows, 2))
        for side, counts in step.get("cleaning", {}).items():
            what = "pairs" if side == "pairs" else f"texts of the {side}"
            yield f"Removed by cleaning of the {what}:"
            yield "\n".join(removal_table(_escaped(counts)))
        if step.get("cost"):
            yield "What each step of cleaning, alone, removes of known good pairs, and of bad ones made from them:"
            yield "\n".join(cost_table(_escaped(step["cost"])))


def _escaped(by_name: Mapping[str, Any]) -> dict[str, Any]:
    return {prose(name): value for name, value in by_name.items()}


def _step_rows(step: Step) -> Iterator[tuple[str, str]]:
    """Facts of a step by name, in Markdown."""
    if step.get("languages"):
        yield "languages", ", ".join(code(language, cell=True) for language in step["languages"])
    yield from _read_rows(step)
    yield from _encoder_rows(step.get("encoder") or {})
    if step.get("threshold") is not None:
        yield "threshold", f"{step['threshold']:.4f}"
    if step.get("pairs"):
        yield "pairs", f"{step['pairs']['in']:,} found or read, {step['pairs']['out']:,} written"
    for key, name in COUNTED.items():
        if step.get(key):
            yield name, prose(_counted(step[key]))
    if step.get("held_out"):
        kept = {kind: f"{count:,} of {total:,}" for kind, (count, total) in step["held_out"].items()}
        yield "held-out pairs that it keeps", prose(_counted(kept))


def _read_rows(step: Step) -> Iterator[tuple[str, str]]:
    """The texts that were mined, or the files of pairs that were read."""
    for side, text in step.get("inputs", {}).items():
        counts = {name: text[name] for name in ("lines", "sentences", "duplicates") if name in text}
        shown = f"{code(text['name'], cell=True)}: {prose(_counted(counts))}"
        if text.get("skipped"):
            shown += f", skipped: {prose(_counted(text['skipped']))}"
        yield side, shown + _hash(text)
    for file in step.get("files", ()):
        yield "read", code(file["name"], cell=True) + _hash(file)


def _encoder_rows(encoder: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    if not encoder:
        return
    revision = encoder.get("revision")
    prompts = [f"{prose(side)} {_quoted(text)}" for side, text in encoder.get("prompts", {}).items()]
    yield "encoder", code(encoder["name"], cell=True)
    yield "revision on the Hub", code(revision, cell=True) if revision else UNKNOWN
    yield "hash of the encoder", code(encoder["hash"], cell=True)
    yield "prompts", ", ".join(prompts) or "none"


def _quoted(text: str) -> str:
    """A text in quotes, in Markdown, with all its white space: another prompt gives other embeddings."""
    return SPECIAL.sub(r"\\\1", json.dumps(redact_tokens(text), ensure_ascii=False))


def _hash(entry: Mapping[str, Any]) -> str:
    return f", SHA-256 {code(entry['sha256'], cell=True)}" if entry.get("sha256") else ""


def _counted(values: Mapping[str, Any]) -> str:
    """Names and values in words; what is None or empty is left out."""
    words = []
    for name, value in values.items():
        if value is None or value == "":
            continue
        if isinstance(value, bool):
            shown = "yes" if value else "no"
        else:
            shown = f"{value:,}" if isinstance(value, int) else str(value)
        words.append(f"{name.replace('_', ' ')} {shown}")
    return ", ".join(words)


def _reproduction(steps: Sequence[Step]) -> Iterator[str]:
    lines = []
    for step in steps:
        command = redact_tokens(step.get("command", ""))  # with its white space: a prompt may have two spaces
        lines.append(command or f"# {one_line(step['verb'])}: a call from Python")
    if not lines:
        yield "Unknown."
        return
    versions = dict.fromkeys(str(step["version"]) for step in steps)
    yield f"With hf-xlsr {', '.join(map(code, versions))}; files are named without their folders:"
    yield code_block("\n".join(lines), "sh")
    yield f"[{FACTS}]({FACTS}) has these facts for programs."


def _unknown(facts: CorpusFacts) -> Iterator[str]:
    """A sentence for each fact that is unknown."""
    steps = facts.made.steps
    if not facts.languages and not _rows_name_languages(facts):
        yield "The languages: nothing names them."
    if not steps:
        yield "How the pairs were made, by which encoder, and above which threshold."
    elif steps[0]["verb"] not in FINDING:
        yield f"How the pairs that {code(steps[0]['verb'])} read were made."
    for step in steps:
        verb = code(step["verb"])
        if step["verb"] in FINDING and not step.get("encoder"):
            yield f"The encoder: {verb} was given embeddings."
        elif step.get("encoder") and not step["encoder"].get("revision"):
            yield f"From which revision on the Hub the encoder of {verb} is, if from any."
        if step.get("cleaning") and not step.get("cost"):
            yield f"How many good pairs the cleaning of {verb} removed: no known pairs measured it."
    if not any(step.get("estimate") for step in steps):
        yield "Precision and recall of the pairs."
    elif not any((step.get("estimate") or {}).get("recall") is not None for step in steps):
        yield "The share of translations in the texts that was found (recall)."
    yield "Whether the texts have personal data or offensive content: nothing looked for them."
