from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cli_helpers import failing as run_failing
from conftest import make_pairs
from mining_fakes import NumberEncoder, half, numbered, write_lines
from sentence_transformers import SentenceTransformer

from hf_xlsr.cli import app as cli
from hf_xlsr.data.formats.reading import read_rows
from hf_xlsr.evaluation.rows import both_sides
from hf_xlsr.mining import mine_vectors, stages

Capture = pytest.CaptureFixture[str]
Run = Callable[[str], dict[str, Any]]
Failing = Callable[[str], str]
LABELS_HEADER = "label\tscore\tsource\ttarget"
SOURCE = numbered("en", 40)
TARGET = numbered("fr", 40, start=5, seed=1)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, interruptible: None) -> None:
    """The current folder, with two texts and MODEL, a `NumberEncoder`."""
    monkeypatch.chdir(tmp_path)
    write_lines(Path("en.txt"), SOURCE)
    write_lines(Path("fr.txt"), TARGET)
    Path("MODEL").mkdir()
    Path("MODEL/config.json").write_text("{}")
    load_encoder = stages.load_encoder

    def load(model: str, *options: Any) -> Any:
        return NumberEncoder() if model == "MODEL" else load_encoder(model, *options)

    monkeypatch.setattr(stages, "load_encoder", load)
    monkeypatch.setattr(stages, "SMALLEST_SHARD", 16)


@pytest.fixture
def run(capsys: Capture) -> Run:
    """Runs a command; returns its report."""

    def run(words: str) -> dict[str, Any]:
        assert cli.main([*words.split(), "--json"]) == 0
        return json.loads(capsys.readouterr().out)

    return run


@pytest.fixture
def failing(capsys: Capture) -> Failing:
    """Runs a command that fails; returns its error."""
    return lambda words: run_failing(capsys, *words.split())


@pytest.fixture
def mined(run: Run) -> Callable[[str], str]:
    """Mines files; returns the written table."""

    def mined(words: str) -> str:
        run(f"mine {words} --languages en,fr --output mined.tsv")
        return Path("mined.tsv").read_text("utf-8")

    return mined


def json_rows(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(name).read_text("utf-8").splitlines()]


def is_right(row: dict[str, Any]) -> bool:
    """Whether both sentences of a pair have the same number."""
    return row["source"].split()[1] == row["target"].split()[1]


def assert_page_has_estimate(report: dict[str, Any]) -> None:
    page = Path(report["page"]).read_text("utf-8")
    assert report["estimate"]["basis"] in page


def test_real_encoder_end_to_end(tiny_export: str, run: Run):
    source, target = both_sides(make_pairs(60))
    target.reverse()
    write_lines(Path("en.txt"), source)
    write_lines(Path("fr.txt"), target)

    report = run(f"mine en.txt fr.txt --model {tiny_export} --output pairs.jsonl --duplicates keep")

    encoder = SentenceTransformer(tiny_export)
    source_vectors = encoder.encode(source, normalize_embeddings=True)
    target_vectors = encoder.encode(target, normalize_embeddings=True)
    expected = mine_vectors(source_vectors, target_vectors)
    rows = json_rows("pairs.jsonl")
    scores = [row["score"] for row in rows]
    assert report["pairs"] == len(expected)
    np.testing.assert_allclose(scores, expected.score, atol=2e-3)  # other batches differ in the last digits
    for row in rows:
        assert row["source"] == source[row["source_line"] - 1]
        assert row["target"] == target[row["target_line"] - 1]

    pools = "--source-pool en.txt --target-pool fr.txt"
    report = run(f"score pairs.jsonl {pools} --model {tiny_export} --output scored.tsv")
    assert report["pairs"] == len(rows)
    scores_of_pairs = [float(row["score"]) for row in read_rows("scored.tsv")]
    np.testing.assert_allclose(scores_of_pairs, scores, atol=2e-3)


def known_pairs(mined_rows: list[dict[str, Any]]) -> list[str]:
    return [f"en {number} word\tfr {number} word" for number in range(100, 300)]


def gold_pairs(mined_rows: list[dict[str, Any]]) -> list[str]:
    return [f"{row['source']}\t{row['target']}" for row in mined_rows if is_right(row)]


def labelled_pairs(mined_rows: list[dict[str, Any]]) -> list[str]:
    lines = [LABELS_HEADER]
    for row in mined_rows:
        label = "accept" if is_right(row) else "reject"
        source = row["source"].replace("\t", " ")  # as the page saves it
        lines.append(f"{label}\t1\t{source}\t{row['target']}")
    return lines


@pytest.mark.parametrize(
    ("option", "basis_lines"),
    [("--known", known_pairs), ("--gold", gold_pairs), ("--labels", labelled_pairs)],
)
def test_threshold_is_chosen(option: str, basis_lines: Callable[..., list[str]], run: Run, failing: Failing):
    words = "mine en.txt fr.txt --model MODEL --output pairs.jsonl"
    if option == "--labels":
        write_lines(Path("en.txt"), [sentence.replace(" ", "\t") for sentence in SOURCE])
    everything = run(words)["pairs"]
    lines = basis_lines(json_rows("pairs.jsonl"))
    write_lines(Path("basis.tsv"), lines)

    report = run(f"{words} {option} basis.tsv --precision 0.9")

    estimate = report["estimate"]
    assert report["pairs"] <= everything
    assert report["threshold"] == estimate["threshold"]
    assert estimate["precision"] >= 0.9
    assert estimate["low"] <= estimate["high"]
    assert min(row["score"] for row in json_rows("pairs.jsonl")) >= report["threshold"]
    assert_page_has_estimate(report)

    if option == "--labels":  # of another mining, which would leave the pairs that both found
        other_labels = [f"reject\t1\ten {number}\tfr {number}" for number in range(len(lines) - 1)]
        write_lines(Path("basis.tsv"), lines + other_labels)
        assert "labels" in failing(f"{words} --labels basis.tsv --precision 0.9")


def test_labels_choose_the_threshold_of_given_pairs(run: Run, failing: Failing):
    pairs = []
    labels = [LABELS_HEADER]
    for number in range(60):
        label = "accept" if number % 3 else "reject"
        translation = number if number % 3 else number + 200
        pair = f"en {number} word\tfr {translation} word"
        pairs.append(pair)
        labels.append(f"{label}\t1\t{pair}")
    write_lines(Path("pairs.tsv"), pairs)
    write_lines(Path("labels.tsv"), labels[:41])
    words = "score pairs.tsv --model MODEL --output scored.tsv"
    assert run(words)["pairs"] == 60

    report = run(f"{words} --labels labels.tsv --precision 0.9 --labels-only-estimate")
    rows = list(read_rows("scored.tsv"))
    assert report["threshold"] == report["estimate"]["threshold"]
    assert report["pairs"] == len(rows)
    assert 30 <= len(rows) < 60
    assert sum(map(is_right, rows)) >= 0.85 * len(rows)
    assert_page_has_estimate(report)

    assert run(f"{words} --threshold {report['threshold']}")["pairs"] == len(rows)
    assert "--labels" in failing(f"{words} --precision 0.9")


@pytest.mark.parametrize("verb", ["mine en.txt fr.txt", "score scored.tsv"])
def test_labels_act_on_the_output(verb: str, run: Run):
    """A rejected pair leaves the output, an accepted one stays below the threshold."""
    words = f"{verb} --model MODEL --output out.jsonl"
    run("mine en.txt fr.txt --model MODEL --output scored.tsv")
    run(words)
    rows = sorted(json_rows("out.jsonl"), key=lambda row: row["score"], reverse=True)
    best = rows[0]
    worst = rows[-1]
    label_of = {0: "reject", len(rows) - 1: "accept"}
    labels = [LABELS_HEADER]
    for number, row in enumerate(rows):
        label = label_of.get(number, "accept" if is_right(row) else "unsure")
        labels.append(f"{label}\t1\t{row['source']}\t{row['target']}")
    write_lines(Path("labels.tsv"), labels)

    threshold = rows[len(rows) // 2]["score"]
    report = run(f"{words} --labels labels.tsv --threshold {threshold}")

    pairs = [(row["source"], row["target"]) for row in json_rows("out.jsonl")]
    assert (best["source"], best["target"]) not in pairs
    assert (worst["source"], worst["target"]) in pairs
    assert report["labels"]["rejected pairs left out"] == 1
    assert report["labels"]["accepted pairs kept below the threshold"] >= 1

    run(f"{words} --labels labels.tsv --labels-only-estimate --threshold {threshold}")
    assert min(row["score"] for row in json_rows("out.jsonl")) >= threshold


def test_gold_pairs_that_are_not_in_the_texts_are_named(run: Run):
    run("mine en.txt fr.txt --model MODEL --output pairs.jsonl")
    write_lines(Path("gold.tsv"), [*gold_pairs(json_rows("pairs.jsonl")), "en of no text\tfr of no text"])

    report = run("mine en.txt fr.txt --model MODEL --output pairs.jsonl --gold gold.tsv")

    assert report["gold"]["gold pairs that are not in the texts"] == 1
    assert report["gold"]["first"] == ["en of no text | fr of no text"]


def test_known_sentences_that_the_texts_have_are_named(run: Run):
    write_lines(Path("known.tsv"), [f"{SOURCE[0]}\tfr of no text", *known_pairs([])])

    report = run("mine en.txt fr.txt --model MODEL --output pairs.jsonl --known known.tsv")

    (count,) = [value for name, value in report["known"].items() if name not in ("given", "first")]
    assert count == 1
    assert report["known"]["first"] == [SOURCE[0]]


def test_report_escapes_texts(run: Run):
    attack = "</script><script>alert(1)</script> <img src=x onerror=alert(2)> \u2028"
    write_lines(Path("en.txt"), [f"en 1 {attack}", "en 2"])
    write_lines(Path("ar.txt"), [f"ar 1 {attack}", "ar 2"])

    report = run("mine en.txt ar.txt --model MODEL --languages en,ar --output pairs.tsv")

    page = Path(report["page"]).read_text("utf-8")
    assert page.count("<script") == 2
    assert "<img" not in page
    assert 'text.dir = "auto"' in page
    data = page.split('id="data">')[1].split("</script>")[0]
    assert attack in json.loads(data)["pairs"][0]["source"]


def test_options(run: Run):
    report = run(
        "mine en.txt fr.txt --model MODEL --output pairs.tmx --languages en,fr --k 3 --many --margin distance "
        "--retrieval forward --max-pairs 9 --memory 64GB --work work"
    )

    expected = mine_vectors(
        half(SOURCE),
        half(TARGET),
        k=3,
        margin="distance",
        retrieval="forward",
        one_to_one=False,
        max_pairs=9,
    )
    rows = list(read_rows("pairs.tmx", languages=("en", "fr")))
    assert [row["source"] for row in rows] == [SOURCE[line] for line in expected.source]
    assert [row["target"] for row in rows] == [TARGET[line] for line in expected.target]
    assert report["scores"] == [expected.score[-1], expected.score[0]]
    assert Path("work").is_dir()


def test_vectors_give_the_pairs_of_their_lines(mined: Callable[[str], str]):
    from_lines = mined("en.txt fr.txt --model MODEL")
    assert from_lines.count("\n") > 20

    np.save("en.npy", half(SOURCE))
    np.save("fr.npy", half(TARGET))
    assert mined("en.txt fr.txt --source-vectors en.npy --target-vectors fr.npy") == from_lines


def test_tables_give_the_pairs_of_their_lines(mined: Callable[[str], str]):
    for language, sentences in (("en", SOURCE), ("fr", TARGET)):
        rows = [json.dumps({"id": number, language: text}) for number, text in enumerate(sentences)]
        write_lines(Path(f"{language}.jsonl"), rows)

    from_tables = mined("en.jsonl fr.jsonl --model MODEL --columns text={lang}")
    assert from_tables == mined("en.txt fr.txt --model MODEL")


def test_rows_of_tables(capsys: Capture, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COLUMNS", "200")
    rows = [f"{number}\t{text}" for number, text in enumerate(SOURCE)]
    write_lines(Path("en.tsv"), ["id\ttext", "41\t", *rows, "42\tone\ttwo"])

    assert cli.main("mine en.tsv fr.txt --model MODEL --output pairs.jsonl".split()) == 0

    assert "2 bad lines" in capsys.readouterr().out
    for pair in json_rows("pairs.jsonl"):
        assert "source_line" not in pair
        assert pair["target_line"]


@pytest.mark.parametrize("cleaning", ["", "--cleaning normalize"])
def test_gold_texts_have_the_form_of_the_sides(cleaning: str, run: Run):
    rows = [json.dumps({"en": f"en\u00a0{n} \ufb01ne", "fr": f"fr\u00a0{n}  bon"}) for n in range(40)]
    write_lines(Path("wide.jsonl"), rows)

    options = f"--model MODEL --languages en,fr --columns text={{lang}} --gold wide.jsonl {cleaning}"
    report = run(f"mine wide.jsonl wide.jsonl {options} --output pairs.tsv")

    assert report["estimate"]["precision"] > 0.9


def test_documents_are_split(mined: Callable[[str], str]):
    for name, word in (("en", "Chapter"), ("fr", "Section")):
        sentences = [f"{word} {number} is here." for number in range(20)]
        write_lines(Path(f"{name}.txt"), sentences)
        write_lines(Path(f"{name}-document.txt"), [" ".join(sentences)])

    from_documents = mined("en-document.txt fr-document.txt --model MODEL --split-sentences")
    assert from_documents == mined("en.txt fr.txt --model MODEL")


def test_cleaning_of_texts_and_pairs(run: Run):
    long = "one two three four five six seven eight nine ten " * 4
    write_lines(Path("text.en"), [*numbered("en", 40), "дом дерево река"])
    write_lines(Path("text.fr"), [*numbered("fr", 40), f"{long} 41"])

    options = "--model MODEL --languages en,fr --cleaning normalize,language,ratio"
    report = run(f"mine text.en text.fr {options} --output pairs.jsonl")

    pairs = json_rows("pairs.jsonl")
    cleaning = report["cleaning"]
    assert cleaning["source"]["cleaning"]["language"] == {"in": 41, "out": 40, "changed": 0}
    assert cleaning["pairs"]["ratio"]["out"] == len(pairs)
    assert report["pairs"] == len(pairs)
    for pair in pairs:
        assert "дом" not in pair["source"]
        assert long not in pair["target"]


class Interrupted(NumberEncoder):
    """Presses Ctrl-C at its third call."""

    def encode(self, texts: Any, **options: Any) -> np.ndarray:
        if len(self.calls) == 2:
            os.kill(os.getpid(), signal.SIGINT)
        return super().encode(texts, **options)


def test_interrupted_and_resumed(capsys: Capture, run: Run, monkeypatch: pytest.MonkeyPatch):
    output = Path("pairs.tsv")
    words = "mine en.txt fr.txt --model MODEL --output pairs.tsv"

    monkeypatch.setattr(stages, "load_encoder", lambda *arguments: Interrupted())
    for _ in range(2):  # in the third shard, and again in the fifth
        assert cli.main(words.split()) == 130
        assert "pairs.tsv.work" in capsys.readouterr().err
        assert not output.exists()

    encoder = NumberEncoder()
    monkeypatch.setattr(stages, "load_encoder", lambda *arguments: encoder)
    run(words)
    assert output.exists()
    assert len(encoder.calls) == 2
    assert not Path("pairs.tsv.work").exists()


def test_score_of_a_file_in_any_format(run: Run):
    Path("pairs.csv").write_text('de,en\n"fr 1","en 1"\n"fr 7","en 2"\n"",lost\n"fr 1","en 1"\n')

    report = run("score pairs.csv --columns source=en,target=de --model MODEL --output scored.jsonl --k 1")
    assert report["bad_lines"] == "1 bad line was skipped (1 empty target)."
    assert report["pairs"] == 3

    first, second, third = json_rows("scored.jsonl")
    assert list(first) == ["score", "cosine", "source", "target"]
    assert (first["source"], first["target"]) == ("en 1", "fr 1")
    assert first["score"] == pytest.approx(1)
    assert (second["source"], second["target"]) == ("en 2", "fr 7")
    assert second["cosine"] < 0.9
    assert third == first


@pytest.mark.parametrize(
    ("words", "key"),
    [
        ("--output p.txt", "tsv, jsonl, parquet, tmx"),
        ("--output p.tsv", "--model"),
        ("--output p.tsv --source-vectors a.npy", "--target-vectors"),
        ("--output p.tsv --source-vectors row.npy --target-vectors row.npy", "`source`"),
        ("--output p.tsv --source-vectors en.txt --target-vectors row.npy", "en.txt"),
        ("--output en.txt/p.tsv --model .", "en.txt"),
    ],
)
def test_invalid_options_of_mine(words: str, key: str, failing: Failing):
    np.save("row.npy", np.ones(40))
    assert key in failing(f"mine en.txt fr.txt {words}")
    assert not Path("p.tsv.work").exists()
