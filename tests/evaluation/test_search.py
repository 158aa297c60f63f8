"""Search across languages against a naive twin, and against mteb's metrics."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from bitext_helpers import TableEncoder, cosines, unit, world
from input_helpers import write_tsv

from hf_xlsr.cli import main
from hf_xlsr.evaluation import trec as trec_module
from hf_xlsr.evaluation.protocols import search as module
from hf_xlsr.evaluation.protocols.search import search, search_documents
from hf_xlsr.evaluation.results import load_results
from hf_xlsr.evaluation.trec import has_trec, trec_metrics

LANGUAGES = ("en", "de", "fr")


def naive(encoder: TableEncoder, texts: dict[str, list[str]]) -> dict[str, float]:
    """The metrics by sorting lists, one query at a time."""
    vectors = {}
    for language, sentences in texts.items():
        for row, vector in enumerate(unit(encoder.encode(sentences))):
            vectors[language, row] = vector

    values: dict[str, list[float]] = {}
    for (language, row), query in vectors.items():
        ranking = sorted(vectors, key=lambda sentence: -float(query @ vectors[sentence]))
        for document_language in texts:
            if document_language == language:
                continue

            translation = (document_language, row)
            documents = [sentence for sentence in ranking if sentence[1] != row or sentence == translation]
            rank = documents.index(translation) + 1
            languages_above = [language_above for language_above, _ in documents[: rank - 1]]
            metrics = {
                "mrr": 1 / rank,
                "ndcg@10": 1 / math.log2(1 + rank) if rank <= 10 else 0,
                "recall@1": rank == 1,
                "recall@10": rank <= 10,
                "own_language_error": language in languages_above,
            }
            for metric, value in metrics.items():
                values.setdefault(f"{language}-{document_language}/{metric}", []).append(value)
    return {key: float(np.mean(values_of_queries)) for key, values_of_queries in values.items()}


@pytest.mark.parametrize("seed", range(3))
def test_equals_a_naive_ranking(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "QUERIES", 7)
    encoder, texts = world(40, 0.7, 1.0, seed, LANGUAGES)

    metrics = search(encoder, texts, name="x", split="dev")

    reciprocal_ranks = []
    for key, value in naive(encoder, texts).items():
        languages, metric = key.split("/")
        assert metrics[f"x-search/{languages}/dev/{metric}"] == pytest.approx(value), key
        if metric == "mrr":
            reciprocal_ranks.append(value)
    assert metrics["x-search/mean-of-6/dev/mrr"] == pytest.approx(np.mean(reciprocal_ranks))
    assert metrics.outcomes["x-search/en-de/dev/mrr"].value() == metrics["x-search/en-de/dev/mrr"]


def collection(seed: int = 0) -> tuple[TableEncoder, dict[str, str], dict[str, str], dict[str, dict[str, int]]]:
    """An encoder of a retrieval data set, and its queries, documents and relevance."""
    random = np.random.default_rng(seed)
    queries = {f"q{n}": f"query {n}" for n in range(30)}
    documents = {f"d{n}": f"document {n}" for n in range(80)}
    # Documents of eight directions, so that many tie; their products with queries are exact.
    directions = np.concatenate([np.eye(4), -np.eye(4)])
    vectors = {}
    for text in documents.values():
        vectors[text] = random.choice(directions)
    for text in queries.values():
        vectors[text] = random.normal(size=4)

    relevance = {}
    for query in queries:
        relevant = random.choice(list(documents), random.integers(1, 15))
        relevance[query] = {str(document): int(random.integers(1, 4)) for document in relevant}
    return TableEncoder(vectors), queries, documents, relevance


@pytest.mark.parametrize("ignored", [False, True])
def test_equals_mteb(ignored: bool) -> None:
    pytest.importorskip("mteb")
    from mteb._evaluators.retrieval_metrics import calculate_retrieval_scores

    encoder, queries, documents, relevance = collection()
    if ignored:  # queries are documents too, of which some are relevant for themselves
        queries = {query.replace("q", "d"): documents[query.replace("q", "d")] for query in queries}
        relevance = {query.replace("q", "d"): gains for query, gains in relevance.items()}
    metrics = search_documents(
        encoder,
        queries,
        documents,
        relevance,
        name="x",
        languages=("en", "de"),
        ignore_identical_ids=ignored,
    )

    similarities = cosines(encoder, list(queries.values()), list(documents.values())).astype(np.float32)
    scores = {}
    for query, row in zip(queries, similarities.tolist(), strict=True):
        scores[query] = dict(zip(documents, row, strict=True))
        if ignored:
            scores[query].pop(query)
    expected = calculate_retrieval_scores(scores, relevance, [1, 10, 80])
    key = "x-search-ignore-identical-ids/en-de/test" if ignored else "x-search/en-de/test"
    assert metrics[f"{key}/ndcg@10"] == pytest.approx(expected.ndcg["NDCG@10"], abs=1e-5)
    assert metrics[f"{key}/recall@10"] == pytest.approx(expected.recall["Recall@10"], abs=1e-5)
    assert metrics[f"{key}/mrr"] == pytest.approx(expected.mrr["MRR@80"], abs=1e-5)


@pytest.mark.skipif(not has_trec(), reason="pytrec-eval-terrier is not installed")
@pytest.mark.parametrize("seed", range(3))
def test_equals_trec_eval(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Query by query, with ties and graded relevance, and with fewer documents than ranks."""
    encoder, queries, documents, relevance = collection(seed)
    few = {document: documents[document] for document in ["d1", "d2", "d3"]}
    relevance_of_few = {"q1": {"d2": 2}, "q2": {"d1": 1, "d3": 3}}
    for pool, relevant in ((documents, relevance), (few, relevance_of_few)):
        by_trec = search_documents(encoder, queries, pool, relevant, name="x")
        with monkeypatch.context() as patch:
            patch.setattr(trec_module, "has_trec", lambda: False)
            ours = search_documents(encoder, queries, pool, relevant, name="x")
        assert list(by_trec) == list(ours)
        for key, outcomes in ours.outcomes.items():
            np.testing.assert_allclose(by_trec.outcomes[key].columns, outcomes.columns, atol=1e-9, err_msg=key)


def test_gains_that_trec_eval_does_not_take() -> None:
    scores = np.array([0.9, 0.5, 0.1])
    assert trec_metrics(scores, {1: 0.5}, depth=10, ranks=(1,)) is None
    metrics = module._query_metrics(scores, {1: 0.5}, None)
    assert metrics["mrr"] == 0.5


FILES = {
    "queries.tsv": ["query_id\ttext", "q0\tred", "q1\tgreen", "q2\tblue"],
    "documents.tsv": ["document_id\ttext", "d0\tred b", "d1\tgreen b", "d2\tblue b"],
    "relevance.tsv": ["query_id\tdocument_id\tscore", "q0\td0\t1", "q1\td1\t1", "q2\td2\t1"],
    "wrong_relevance.tsv": ["query_id\tdocument_id\tscore", "q0\td1\t1,5"],
    "wide.tsv": ["en\tde", "red\trot", "blue\tblau", "one\teins"],
    "tagged_queries.tsv": ["query_id\ttext\tlang", "q0\tred\ten"],
    "tagged_documents.tsv": ["document_id\ttext\tlang", "d0\trouge\tfr", "d1\tblue\ten", "d2\tone\ten"],
    "unscored_relevance.tsv": ["query_id\tdocument_id", "q0\td0"],
}
COMMAND = "evaluate MODEL --protocol search --data queries.tsv --documents documents.tsv --languages en,de"


@pytest.fixture(autouse=True)
def folder(tiny_export: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The current folder, with retrieval data sets and a model."""
    monkeypatch.chdir(tmp_path)
    Path("MODEL").symlink_to(tiny_export)
    for name, lines in FILES.items():
        write_tsv(Path(name), lines)


def test_command() -> None:
    words = f"{COMMAND} --relevance relevance.tsv --output out.json"
    assert main(words.split()) == 0

    content = load_results("out.json")
    assert content["metrics"]["queries-search/en-de/test/queries"] == 3
    assert any(name.startswith("relevance") for name in content["data_sha256"])


@pytest.mark.parametrize(
    ("words", "key"),
    [
        (COMMAND, "--relevance"),
        (f"{COMMAND} --relevance wrong_relevance.tsv", "1,5"),
        (
            "evaluate MODEL --protocol language-bias,search --data wide.tsv --columns text={lang} --languages en,de "
            "--documents documents.tsv --relevance relevance.tsv",
            "--documents is not supported with several protocols",
        ),
    ],
)
def test_invalid_command(words: str, key: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words.split()) == 1
    assert key in capsys.readouterr().err


@pytest.mark.parametrize("languages", ["", "--languages en"])
def test_rows_with_languages(languages: str) -> None:
    data = "--data tagged_queries.tsv --documents tagged_documents.tsv --relevance unscored_relevance.tsv"
    words = f"evaluate MODEL --protocol search {data} {languages} --output out.json"
    assert main(words.split()) == 0

    metrics = load_results("out.json")["metrics"]
    assert metrics["tagged_queries-search/en/test/documents"] == 3
