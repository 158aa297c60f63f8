"""Search across languages against a naive twin, and against mteb's metrics."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bitext_helpers import TableEncoder, world
from input_helpers import write_tsv

from hf_xlsr.cli import main
from hf_xlsr.evaluation.protocols import search as module
from hf_xlsr.evaluation.protocols.search import search, search_documents
from hf_xlsr.evaluation.results import load_results

LANGUAGES = ("en", "de", "fr")


def naive(encoder: TableEncoder, texts: dict[str, list[str]]) -> dict[str, float]:
    """The metrics by sorting lists, one query at a time."""
    unit = {text: vector / np.linalg.norm(vector) for text, vector in encoder.table.items()}
    pool = [(language, row) for language, names in texts.items() for row in range(len(names))]
    found: dict[str, list[float]] = {}

    def note(key: str, value: float) -> None:
        found.setdefault(key, []).append(float(value))

    for language, row in pool:
        query = unit[texts[language][row]]
        others = [one for one in pool if one != (language, row)]
        ranking = sorted(others, key=lambda one: -float(query @ unit[texts[one[0]][one[1]]]))
        for other in LANGUAGES:
            if other == language:
                continue
            kept = [one for one in ranking if one[1] != row or one[0] == other]
            place = kept.index((other, row)) + 1
            note(f"{language}-{other}/mrr", 1 / place)
            note(f"{language}-{other}/ndcg@10", 1 / math.log2(1 + place) if place <= 10 else 0)
            note(f"{language}-{other}/recall@1", place == 1)
            note(f"{language}-{other}/recall@10", place <= 10)
            above = any(one[0] == language for one in kept[: place - 1])
            note(f"{language}-{other}/own_language_error", above)
    return {key: float(np.mean(values)) for key, values in found.items()}


@pytest.mark.parametrize("seed", range(3))
def test_equals_a_naive_ranking(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "QUERIES", 7)
    encoder, texts = world(40, 0.7, 1.0, seed, LANGUAGES)
    found = search(encoder, texts, name="x", split="dev")
    expected = naive(encoder, texts)
    for key, value in expected.items():
        languages, metric = key.split("/")
        assert found[f"x-search/{languages}/dev/{metric}"] == pytest.approx(value), key
    assert found["x-search/mean-of-6/dev/mrr"] == pytest.approx(
        np.mean([value for key, value in expected.items() if key.endswith("/mrr")])
    )
    assert found.outcomes["x-search/en-de/dev/mrr"].value() == found["x-search/en-de/dev/mrr"]


def collection(seed: int = 0) -> tuple[TableEncoder, dict[str, str], dict[str, str], dict[str, dict[str, int]]]:
    random = np.random.default_rng(seed)
    queries = {f"q{n}": f"query {n}" for n in range(30)}
    documents = {f"d{n}": f"document {n}" for n in range(80)}
    # Documents of eight directions, so that many tie; their products with queries are exact.
    vectors = {text: random.choice([-1, 1]) * np.eye(4)[random.integers(4)] for text in documents.values()}
    vectors |= {text: random.normal(size=4) for text in queries.values()}
    relevance = {
        query: {str(one): int(random.integers(1, 4)) for one in random.choice(list(documents), random.integers(1, 15))}
        for query in queries
    }
    return TableEncoder(vectors), queries, documents, relevance


def test_equals_mteb() -> None:
    pytest.importorskip("mteb")
    from mteb._evaluators.retrieval_metrics import calculate_retrieval_scores

    encoder, queries, documents, relevance = collection()
    found = search_documents(encoder, queries, documents, relevance, name="x", languages=("en", "de"))
    pool = encoder.encode(list(documents.values()))
    pool = (pool / np.linalg.norm(pool, axis=1, keepdims=True)).astype(np.float32)
    scores = {}
    for query, text in queries.items():
        vector = encoder.table[text] / np.linalg.norm(encoder.table[text])
        values = vector.astype(np.float32) @ pool.T
        scores[query] = {one: float(value) for one, value in zip(documents, values, strict=True)}
    theirs = calculate_retrieval_scores(scores, relevance, [1, 10, 80])
    assert found["x-search/en-de/test/ndcg@10"] == pytest.approx(theirs.ndcg["NDCG@10"], abs=1e-5)
    assert found["x-search/en-de/test/recall@10"] == pytest.approx(theirs.recall["Recall@10"], abs=1e-5)
    assert found["x-search/en-de/test/mrr"] == pytest.approx(theirs.mrr["MRR@80"], abs=1e-5)


def test_commands(tiny_export: str, tmp_path: Path, capsys: Any) -> None:
    words = ["red", "green", "blue", "one", "two", "three"]
    tables = {
        "queries": ["query_id\ttext", *(f"q{n}\t{word}" for n, word in enumerate(words))],
        "documents": ["document_id\ttext", *(f"d{n}\t{word} b" for n, word in enumerate(words))],
        "qrels": ["query_id\tdocument_id\tscore", *(f"q{n}\td{n}\t1" for n in range(len(words)))],
    }
    queries, documents, relevance = (write_tsv(tmp_path / f"{name}.tsv", lines) for name, lines in tables.items())
    command = ["evaluate", tiny_export, "--protocol", "search", "--output", str(tmp_path / "out.json")]
    command += ["--data", queries, "--documents", documents, "--languages", "en,de"]
    assert main([*command, "--relevance", relevance]) == 0
    content = load_results(tmp_path / "out.json")
    assert content["metrics"]["queries-search/en-de/test/queries"] == len(words)
    assert any(name.startswith("relevance") for name in content["data_sha256"])
    assert main(command) == 1 and "--relevance" in capsys.readouterr().err
    write_tsv(tmp_path / "qrels.tsv", [*tables["qrels"], "q0\td1\t1,5"])
    assert main([*command, "--relevance", relevance]) == 1 and "1,5" in capsys.readouterr().err


@pytest.mark.parametrize("languages", [[], ["--languages", "en"]])
def test_rows_with_languages(languages: list[str], tiny_export: str, tmp_path: Path) -> None:
    documents = ["document_id\ttext\tlang", "d0\trouge\tfr", "d1\tblue\ten", "d2\tone\ten"]
    words = ["--data", write_tsv(tmp_path / "queries.tsv", ["query_id\ttext\tlang", "q0\tred\ten"])]
    words += ["--documents", write_tsv(tmp_path / "documents.tsv", documents)]
    words += ["--relevance", write_tsv(tmp_path / "qrels.tsv", ["query_id\tdocument_id", "q0\td0"]), *languages]
    assert main(["evaluate", tiny_export, "--protocol", "search", *words, "--output", str(tmp_path / "out.json")]) == 0
    assert load_results(tmp_path / "out.json")["metrics"]["queries-search/en/test/documents"] == 3
