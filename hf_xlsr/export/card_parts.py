"""Short model cards, for uploads without the results of a run: adapters, training state, unfinished models."""

from __future__ import annotations

from collections.abc import Sequence

from huggingface_hub import ModelCardData

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
    parts = [f"---\n{data.to_yaml()}\n---", f"# {prose(title)}", *paragraphs, code_block(code, language)]
    return "\n\n".join(parts) + "\n"
