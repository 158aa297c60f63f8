"""The report of hard negatives in Markdown: what was chosen and ruled out, how many are false, and examples of each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from hf_xlsr.mining.negative_counts import Counts, Example, Share
from hf_xlsr.mining.negative_selection import MINED, NEAREST, RANDOM, RULES
from hf_xlsr.utils.markdown import escape_markdown, markdown_table

WORDS = {
    MINED: "mined: near the source, by margin",
    RANDOM: "random: where there were not enough others",
    "duplicate": "equal to the source or the target but for case and punctuation",
    "known": "linked with the pair by known translations",
    "margin": "a margin too near that of the pair",
    "paraphrase": "a paraphrase for the second encoder",
    "cross-encoder": "a translation for the cross-encoder",
    NEAREST: "the nearest sentences, without any rule",
}
UNKNOWN = (
    "How many mined negatives are translations is unknown. Give --truth, translations that are not among the pairs, or "
    "label the page and give --labels."
)


def false_negatives(counts: Counts) -> dict[str, Any]:
    """Shares of translations among the mined negatives, by truth and by labels, as far as they are known."""
    shares = {
        "by truth": counts.share(MINED),
        "nearest without rules": counts.share(NEAREST),
        "by labels": Share(counts.accepted, counts.labelled),
    }
    figures = {}
    for name, share in shares.items():
        if share.checked:
            interval = share.interval()
            figures[name] = {"share": share.value, "interval": interval, "of": share.checked}
    return figures


def report_lines(counts: Counts, pairs: int) -> Iterator[str]:
    """The lines of the report.

    Examples:
        >>> counts = Counts()
        >>> counts.chosen["mined"] = 8
        >>> print("\\n".join(list(report_lines(counts, pairs=2))[:5]))
        Negatives of 2 pairs:
        <BLANKLINE>
        | kind | negatives |
        |---|---:|
        | mined: near the source, by margin | 8 |
    """
    yield f"Negatives of {pairs:,} pairs:"
    yield ""
    rows = [[described(kind), f"{count:,}"] for kind, count in counts.chosen.most_common()]
    yield from markdown_table(["kind", "negatives"], rows, numbers_from=1)
    yield ""
    yield from _false_lines(counts)
    yield "Near sentences that are no negatives, and how many of those that the truth speaks of are translations:"
    yield ""
    rows = []
    for rule in RULES:
        if counts.ruled_out[rule]:
            rows.append([described(rule), f"{counts.ruled_out[rule]:,}", _percent(counts.share(rule))])
    yield from markdown_table(["ruled out as", "sentences", "translations"], rows, numbers_from=1)
    for kind in [*counts.chosen, *filter(counts.ruled_out.get, RULES)]:
        yield from _example_lines(kind, counts.examples.get(kind, []))


def described(kind: str) -> str:
    """A kind of negatives, or a rule, in words."""
    return WORDS.get(kind, f"{kind}: the target with one edit")


def _false_lines(counts: Counts) -> Iterator[str]:
    figures = false_negatives(counts)
    if not figures:
        yield from (UNKNOWN, "")
        return
    yield "Translations among them, which are false negatives:"
    yield ""
    rows = []
    for name, figure in figures.items():
        low, high = figure["interval"]
        rows.append([name, f"{100 * figure['share']:.2f}", f"{100 * low:.2f}-{100 * high:.2f}", f"{figure['of']:,}"])
    yield from markdown_table(["measured", "%", "95 % interval", "sentences"], rows, numbers_from=1)
    yield ""


def _percent(share: Share) -> str:
    return "-" if share.value is None else f"{100 * share.value:.1f} % of {share.checked:,}"


def _example_lines(kind: str, examples: Sequence[Example]) -> Iterator[str]:
    if not examples:
        return
    yield from ("", f"## {described(kind)}", "")
    rows = []
    for example in examples:
        score = "" if example.score is None else f"{example.score:.3f}"
        texts = [escape_markdown(text) for text in (example.source, example.target, example.negative)]
        rows.append([*texts, score])
    yield from markdown_table(["source", "target", "negative or sentence ruled out", "margin"], rows, numbers_from=3)
