"""Encoders are read in one place: nothing else loads models or tokenizers that a user names."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LOADERS = {"AutoModel", "AutoTokenizer", "AutoConfig", "AutoModelForMaskedLM", "AutoModelForTextEncoding"}
# What else loads, and why.
ALLOWED = {
    "hf_xlsr/encoders/assembly.py": "loads and assembles models of sentence-transformers",
    "hf_xlsr/encoders/reading.py": "reads what users give",
    "hf_xlsr/encoders/stock.py": "loads plain encoders",
    "hf_xlsr/encoders/graphs.py": "reads the tokenizers next to graphs",
    "hf_xlsr/data/tokenization.py": "reads tokenizers that recipes name, and trained ones in the cache",
    "modeling/heads.py": "reads the masked-LM head of an encoder's place",
}


def loads(tree: ast.AST) -> Iterator[str]:
    """Calls that load a foreign model or tokenizer from a place; models of this package have classes of their own."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        called = ast.unparse(node.func)
        arguments = [ast.unparse(argument) for argument in node.args]
        is_auto = called.split(".")[0] in LOADERS and called.endswith("from_pretrained")
        is_foreign = called == "load_auto" and arguments[:1] != ["AutoConfig"] and arguments[0] in LOADERS
        is_assembled = called == "SentenceTransformer" and bool(arguments)  # `modules=` alone loads nothing
        if is_foreign or is_auto or is_assembled:
            yield called


def test_only_the_readers_load() -> None:
    loading_files = set()
    for folder in ("hf_xlsr", "modeling", "trainers"):
        for file in (ROOT / folder).rglob("*.py"):
            if any(loads(ast.parse(file.read_text("utf-8")))):
                loading_files.add(str(file.relative_to(ROOT)))

    other_files = loading_files - set(ALLOWED)
    assert not other_files


def test_the_scan_sees_a_door() -> None:
    for line in ("AutoModel.from_pretrained(path)", "SentenceTransformer(path)", "load_auto(AutoModel, path)"):
        assert list(loads(ast.parse(line)))
    assert not list(loads(ast.parse("SentenceTransformer(modules=[a])")))
