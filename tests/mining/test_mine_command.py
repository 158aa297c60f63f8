from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import make_pairs
from mining_fakes import NumberEncoder, half, numbered, write_lines
from sentence_transformers import SentenceTransformer

from hf_xlsr.cli import app as cli
from hf_xlsr.data.formats.reading import read_rows
from hf_xlsr.mining import mine_vectors, stages

Capture = pytest.CaptureFixture[str]
Run = Callable[..., dict[str, Any]]
LABELS_HEADER = "label\tscore\tsource\ttarget"


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """Name of a model that is a `NumberEncoder`."""
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    monkeypatch.setattr(stages, "load_encoder", lambda *arguments: NumberEncoder())
    monkeypatch.setattr(stages, "SMALLEST_SHARD", 16)
    return str(folder)


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    source = write_lines(tmp_path / "en.txt", numbered("en", 40))
    target = write_lines(tmp_path / "fr.txt", numbered("fr", 40, start=5, seed=1))
    return [source, target]


@pytest.fixture
def run(capsys: Capture) -> Run:
    """Runs a command; returns its report."""

    def run(*words: object) -> dict[str, Any]:
        assert cli.main([*map(str, words), "--json"]) == 0
        return json.loads(capsys.readouterr().out)

    return run


@pytest.fixture
def failing(capsys: Capture) -> Callable[..., str]:
    """Runs a command that fails; returns the last line of its error."""

    def failing(*words: object) -> str:
        assert cli.main(list(map(str, words))) == 1
        written = capsys.readouterr().err
        assert "Traceback" not in written
        return written.strip().splitlines()[-1]

    return failing


@pytest.fixture
def mined(run: Run, tmp_path: Path) -> Callable[..., str]:
    """Mines files; returns the written table."""

    def mined(*words: object) -> str:
        output = tmp_path / "mined.tsv"
        run("mine", *words, "--languages", "en,fr", "--output", output)
        return output.read_text("utf-8")

    return mined


def lines_of(path: Path) -> list[str]:
    return path.read_text("utf-8").splitlines()


def json_rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in lines_of(path)]


def is_right(row: dict[str, Any]) -> bool:
    """Whether both sentences of a pair have the same number."""
    return row["source"].split()[1] == row["target"].split()[1]


def assert_page_has_estimate(report: dict[str, Any]) -> None:
    page = Path(report["page"]).read_text("utf-8")
    assert report["estimate"]["basis"] in page


@pytest.fixture(autouse=True)
def interruptible() -> Iterator[None]:
    """A suite in the background of a shell ignores Ctrl-C, and so would its commands."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_real_encoder_end_to_end(tiny_export: str, tmp_path: Path, run: Run):
    pairs = make_pairs(60)
    source = [pair["source"] for pair in pairs]
    target = [pair["target"] for pair in pairs[::-1]]
    source_file = write_lines(tmp_path / "en.txt", source)
    target_file = write_lines(tmp_path / "fr.txt", target)
    output = tmp_path / "pairs.jsonl"
    model = ["--model", tiny_export]

    report = run("mine", source_file, target_file, *model, "--output", output, "--duplicates", "keep")

    encoder = SentenceTransformer(tiny_export)
    source_vectors = encoder.encode(source, normalize_embeddings=True)
    target_vectors = encoder.encode(target, normalize_embeddings=True)
    expected = mine_vectors(source_vectors, target_vectors)
    rows = json_rows(output)
    scores = [row["score"] for row in rows]
    assert report["pairs"] == len(expected)
    np.testing.assert_allclose(scores, expected.score, atol=2e-3)  # other batches differ in the last digits
    for row in rows:
        assert row["source"] == source[row["source_line"] - 1]
        assert row["target"] == target[row["target_line"] - 1]

    scored = tmp_path / "scored.tsv"
    pools = ["--source-pool", source_file, "--target-pool", target_file]
    report = run("score", output, *pools, *model, "--output", scored)
    assert report["pairs"] == len(rows)
    scores_of_pairs = [float(row["score"]) for row in read_rows(scored)]
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
def test_threshold_is_chosen(
    option: str,
    basis_lines: Callable[[list[dict[str, Any]]], list[str]],
    fake: str,
    files: list[Path],
    tmp_path: Path,
    run: Run,
    failing: Callable[..., str],
):
    output = tmp_path / "pairs.jsonl"
    words = ["mine", *files, "--model", fake, "--output", output]
    if option == "--labels":
        files[0].write_text(files[0].read_text().replace(" ", "\t"))
    everything = run(*words)["pairs"]
    lines = basis_lines(json_rows(output))
    basis = write_lines(tmp_path / "basis.tsv", lines)

    report = run(*words, option, basis, "--precision", "0.9")

    estimate = report["estimate"]
    assert report["pairs"] <= everything
    assert report["threshold"] == estimate["threshold"]
    assert estimate["precision"] >= 0.9
    assert estimate["low"] <= estimate["high"]
    assert min(row["score"] for row in json_rows(output)) >= report["threshold"]
    assert_page_has_estimate(report)

    if option == "--labels":  # of another mining, which would leave the pairs that both found
        other_labels = [f"reject\t1\ten {number}\tfr {number}" for number in range(len(lines) - 1)]
        write_lines(basis, lines + other_labels)
        assert "labels" in failing(*words, "--labels", basis, "--precision", "0.9")


def test_labels_choose_the_threshold_of_given_pairs(fake: str, tmp_path: Path, run: Run, failing: Callable[..., str]):
    pairs = []
    labels = [LABELS_HEADER]
    for number in range(60):
        label = "accept" if number % 3 else "reject"
        translation = number if number % 3 else number + 200
        pair = f"en {number} word\tfr {translation} word"
        pairs.append(pair)
        labels.append(f"{label}\t1\t{pair}")
    pairs_file = write_lines(tmp_path / "pairs.tsv", pairs)
    labels_file = write_lines(tmp_path / "labels.tsv", labels[:41])
    output = tmp_path / "scored.tsv"
    words = ["score", pairs_file, "--model", fake, "--output", output]
    assert run(*words)["pairs"] == 60

    report = run(*words, "--labels", labels_file, "--precision", "0.9")
    rows = list(read_rows(output))
    assert report["threshold"] == report["estimate"]["threshold"]
    assert report["pairs"] == len(rows)
    assert 30 <= len(rows) < 60
    assert sum(map(is_right, rows)) >= 0.9 * len(rows)
    assert_page_has_estimate(report)

    assert run(*words, "--threshold", report["threshold"])["pairs"] == len(rows)
    assert "--labels" in failing(*words, "--precision", "0.9")


def test_report_escapes_texts(fake: str, tmp_path: Path, run: Run):
    attack = "</script><script>alert(1)</script> <img src=x onerror=alert(2)> \u2028"
    source = write_lines(tmp_path / "en.txt", [f"en 1 {attack}", "en 2"])
    target = write_lines(tmp_path / "ar.txt", [f"ar 1 {attack}", "ar 2"])

    words = ["mine", source, target, "--model", fake, "--languages", "en,ar"]
    report = run(*words, "--output", tmp_path / "pairs.tsv")

    page = Path(report["page"]).read_text("utf-8")
    assert page.count("<script") == 2
    assert "<img" not in page
    assert 'text.dir = "auto"' in page
    data = page.split('id="data">')[1].split("</script>")[0]
    assert attack in json.loads(data)["pairs"][0]["source"]


def test_options(fake: str, files: list[Path], tmp_path: Path, run: Run):
    output = tmp_path / "pairs.tmx"
    work = tmp_path / "work"
    words = ["mine", *files, "--model", fake, "--output", output, "--languages", "en, fr", "--k", "3", "--many"]
    words += ["--margin", "distance", "--retrieval", "forward", "--max-pairs", "9", "--memory", "64GB"]
    report = run(*words, "--work", work)

    source, target = map(lines_of, files)
    expected = mine_vectors(
        half(source),
        half(target),
        k=3,
        margin="distance",
        retrieval="forward",
        one_to_one=False,
        max_pairs=9,
    )
    rows = list(read_rows(output, languages=("en", "fr")))
    assert [row["source"] for row in rows] == [source[line] for line in expected.source]
    assert [row["target"] for row in rows] == [target[line] for line in expected.target]
    assert report["scores"] == [expected.score[-1], expected.score[0]]
    assert work.is_dir()


def test_vectors_give_the_pairs_of_their_lines(
    fake: str, files: list[Path], tmp_path: Path, mined: Callable[..., str]
):
    from_lines = mined(*files, "--model", fake)
    assert from_lines.count("\n") > 20

    vectors = [tmp_path / "en.npy", tmp_path / "fr.npy"]
    for file, vectors_file in zip(files, vectors, strict=True):
        np.save(vectors_file, half(lines_of(file)))
    from_vectors = mined(*files, "--source-vectors", vectors[0], "--target-vectors", vectors[1])
    assert from_vectors == from_lines


def test_tables_give_the_pairs_of_their_lines(fake: str, files: list[Path], tmp_path: Path, mined: Callable[..., str]):
    tables = []
    for language, file in zip(("en", "fr"), files, strict=True):
        rows = [json.dumps({"id": number, language: text}) for number, text in enumerate(lines_of(file))]
        tables.append(write_lines(tmp_path / f"{language}.jsonl", rows))

    from_tables = mined(*tables, "--model", fake, "--columns", "text={lang}")
    assert from_tables == mined(*files, "--model", fake)


def test_rows_of_tables(
    fake: str, files: list[Path], tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("COLUMNS", "200")
    source, target = files
    rows = [f"{number}\t{text}" for number, text in enumerate(lines_of(source))]
    table = write_lines(tmp_path / "en.tsv", ["id\ttext", "41\t", *rows, "42\tone\ttwo"])
    output = tmp_path / "pairs.jsonl"

    words = ["mine", table, target, "--model", fake, "--output", output]
    assert cli.main(list(map(str, words))) == 0

    assert "2 bad lines" in capsys.readouterr().out
    for pair in json_rows(output):
        assert "source_line" not in pair
        assert pair["target_line"]


@pytest.mark.parametrize("cleaning", [[], ["--cleaning", "normalize"]])
def test_gold_texts_have_the_form_of_the_sides(cleaning: list[str], fake: str, tmp_path: Path, run: Run):
    rows = [json.dumps({"en": f"en\u00a0{n} \ufb01ne", "fr": f"fr\u00a0{n}  bon"}) for n in range(40)]
    table = write_lines(tmp_path / "wide.jsonl", rows)
    columns = ["--languages", "en,fr", "--columns", "text={lang}"]

    words = ["mine", table, table, "--model", fake, *columns, "--gold", table, *cleaning]
    report = run(*words, "--output", tmp_path / "pairs.tsv")

    assert report["estimate"]["precision"] > 0.9


def test_documents_are_split(fake: str, tmp_path: Path, mined: Callable[..., str]):
    files = []
    documents = []
    for word in ("Chapter", "Section"):
        sentences = [f"{word} {number} is here." for number in range(20)]
        files.append(write_lines(tmp_path / f"{word}.txt", sentences))
        documents.append(write_lines(tmp_path / f"{word}-document.txt", [" ".join(sentences)]))

    from_documents = mined(*documents, "--model", fake, "--split-sentences")
    assert from_documents == mined(*files, "--model", fake)


def test_cleaning_of_texts_and_pairs(fake: str, tmp_path: Path, run: Run):
    long = "one two three four five six seven eight nine ten " * 4
    source = write_lines(tmp_path / "text.en", [*numbered("en", 40), "дом дерево река"])
    target = write_lines(tmp_path / "text.fr", [*numbered("fr", 40), f"{long} 41"])
    output = tmp_path / "pairs.jsonl"

    words = ["mine", source, target, "--model", fake, "--output", output, "--languages", "en,fr"]
    report = run(*words, "--cleaning", "normalize,language,ratio")

    pairs = json_rows(output)
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


def test_interrupted_and_resumed(
    fake: str, files: list[Path], tmp_path: Path, capsys: Capture, run: Run, monkeypatch: pytest.MonkeyPatch
):
    output = tmp_path / "pairs.tsv"
    work = Path(f"{output}.work")
    words = ["mine", *map(str, files), "--model", fake, "--output", str(output)]

    monkeypatch.setattr(stages, "load_encoder", lambda *arguments: Interrupted())
    for _ in range(2):  # in the third shard, and again in the fifth
        assert cli.main(words) == 130
        assert str(work) in capsys.readouterr().err
        assert not output.exists()

    encoder = NumberEncoder()
    monkeypatch.setattr(stages, "load_encoder", lambda *arguments: encoder)
    run(*words)
    assert output.exists()
    assert len(encoder.calls) == 2
    assert not work.exists()


def test_score_of_a_file_in_any_format(fake: str, tmp_path: Path, run: Run):
    table = tmp_path / "pairs.csv"
    table.write_text('de,en\n"fr 1","en 1"\n"fr 7","en 2"\n"",lost\n"fr 1","en 1"\n')
    output = tmp_path / "scored.jsonl"

    words = ["score", table, "--columns", "source=en,target=de", "--model", fake, "--output", output]
    report = run(*words, "--k", "1")
    assert report["bad_lines"] == "1 bad line was skipped (1 empty target)."
    assert report["pairs"] == 3

    first, second, third = json_rows(output)
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
def test_invalid_options_of_mine(
    words: str,
    key: str,
    files: list[Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    failing: Callable[..., str],
):
    monkeypatch.chdir(tmp_path)
    np.save("row.npy", np.ones(40))
    assert key in failing("mine", *files, *words.split())
    assert not Path("p.tsv.work").exists()
