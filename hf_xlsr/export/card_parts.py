"""Short model cards, for uploads without the results of a run: adapters, training state, unfinished models."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import resources

from huggingface_hub import ModelCardData
from jinja2 import Environment, StrictUndefined

from hf_xlsr.export.card_values import code_block, prose


def part_card(
    data: ModelCardData, *, title: str, paragraphs: Sequence[str], code: str, language: str = "python"
) -> str:
    """A card with metadata, a title, paragraphs and an example.

    Args:
        data: Metadata.
        title: Plain text.
        paragraphs: Markdown.
        code: Example of use.
        language: Language of the example.

    Example:
        >>> card = part_card(ModelCardData(tags=["lora"]), title="a", paragraphs=["b"], code="c")
        >>> print(card)
        ---
        tags:
        - lora
        ---
        <BLANKLINE>
        # a
        <BLANKLINE>
        b
        <BLANKLINE>
        ```python
        c
        ```
        <BLANKLINE>
    """
    template = (resources.files("hf_xlsr.model_cards") / "card_part.md.jinja").read_text("utf-8")
    return (
        Environment(undefined=StrictUndefined, trim_blocks=True, keep_trailing_newline=True)
        .from_string(template)
        .render(card_data=data.to_yaml(), title=prose(title), paragraphs=paragraphs, code=code_block(code, language))
    )
