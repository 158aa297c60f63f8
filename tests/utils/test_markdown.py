from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from markdown_it.token import Token

from hf_xlsr.utils.markdown import escape_markdown, markdown_table

MARKDOWN = MarkdownIt("commonmark").enable("table")


def inline(token: Token) -> str:
    """What a reader sees; bold as **."""
    marks = {"strong_open": "**", "strong_close": "**"}
    return "".join(marks.get(child.type, child.content) for child in token.children or [])


def tables(text: str) -> list[list[list[str]]]:
    """The cells of each table, as a parser sees them."""
    cells: list[list[list[str]]] = []
    previous = ""
    for token in MARKDOWN.parse(text):
        if token.type == "table_open":
            cells.append([])
        elif token.type == "tr_open":
            cells[-1].append([])
        elif token.type == "inline" and previous in ("th_open", "td_open"):
            cells[-1][-1].append(inline(token))
        previous = token.type
    return cells


@settings(max_examples=150)
@given(text=st.text(st.sampled_from("ab1 |\\`*_{}[]<>#~$&;!()+-.:/\"'é你"), max_size=20))
def test_text_in_a_cell(text: str):
    lines = markdown_table(["head", escape_markdown(text)], [[escape_markdown(text), "x"]])
    plain = " ".join(text.split())
    assert tables("\n".join(lines)) == [[["head", plain], [plain, "x"]]]
