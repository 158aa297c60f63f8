from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator, Sequence
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
LABELS_HEADER = "label\tscore\tsource\ttarget"


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """Name of a model that is a `NumberEncoder`."""
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    monkeypatch.setattr(stages, "load_encoder", lambda *arguments: NumberEncoder())
    monkeypatch.setattr(stages, "SMALLEST_SHARD", 16)
    return str(tmp_path / "model")


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    source = write_lines(tmp_path / "en.txt", numbered("en", 40))
    target = write_lines(tmp_path / "fr.txt", numbered("fr", 40, start=5, seed=1))
    return [str(source), str(target)]


def lines_of(path: str | Path) -> list[str]:
    return Path(path).read_text("utf-8").splitlines()


def json_rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in lines_of(path)]


def is_right(row: dict[str, Any]) -> bool:
    """Whether both sentences of a pair have the same number."""
    return row["source"].split()[1] == row["target"].split()[1]


def run(words: Sequence[str], capsys: Capture) -> dict[str, Any]:
    assert cli.main([*words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def failing(words: Sequence[str], capsys: Capture) -> str:
    assert cli.main(words) == 1
    written = capsys.readouterr().err
    assert "Traceback" not in written
    return written.strip().splitlines()[-1]


@pytest.fixture(autouse=True)
def interruptible() -> Iterator[None]:
    """A suite in the background of a shell ignores Ctrl-C, and so would its commands."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_real_encoder_end_to_end(tiny_export: str, tmp_path: Path, capsys: Capture):
    pairs = make_pairs(60)
    source = [pair["source"] for pair in pairs]
    target = [pair["target"] for pair in pairs[::-1]]
    files = [str(write_lines(tmp_path / "en.txt", source)), str(write_lines(tmp_path / "fr.txt", target))]
    output = tmp_path / "pairs.jsonl"
    report = run(["mine", *files, "--model", tiny_export, "--output", str(output), "--duplicates", "keep"], capsys)

    model = SentenceTransformer(tiny_export)
    # Vectors of other batches differ in the last digits.
    expected = mine_vectors(
        model.encode(source, normalize_embeddings=True), model.encode(target, normalize_embeddings=True)
    )
    rows = json_rows(output)
    scores = [row["score"] for row in rows]
    assert report["pairs"] == len(rows) == len(expected)
    np.testing.assert_allclose(scores, expected.score, atol=2e-3)
    for row in rows:
        assert row["source"] == source[row["source_line"] - 1]
        assert row["target"] == target[row["target_line"] - 1]

    scored = tmp_path / "scored.tsv"
    pools = ["--source-pool", files[0], "--target-pool", files[1]]
    score = ["score", str(output), *pools, "--model", tiny_export, "--output", str(scored)]
    assert run(score, capsys)["pairs"] == len(rows)
    np.testing.assert_allclose([float(row["score"]) for row in read_rows(scored)], scores, atol=2e-3)


@pytest.mark.parametrize("choice", ["known", "gold", "labels"])
def test_threshold_is_chosen(choice: str, fake: str, files: list[str], tmp_path: Path, capsys: Capture):
    output = tmp_path / "pairs.jsonl"
    basis = tmp_path / "basis.tsv"
    words = ["mine", *files, "--model", fake, "--output", str(output)]
    if choice == "labels":  # which the page saves with spaces instead of tabs
        Path(files[0]).write_text(Path(files[0]).read_text().replace(" ", "\t"))
    everything = run(words, capsys)["pairs"]

    lines = []
    if choice == "known":
        lines = [f"en {number} word\tfr {number} word" for number in range(100, 300)]
    for row in json_rows(output):
        if choice == "labels":
            label = "accept" if is_right(row) else "reject"
            lines.append("\t".join([label, "1", row["source"].replace("\t", " "), row["target"]]))
        elif choice == "gold" and is_right(row):
            lines.append(f"{row['source']}\t{row['target']}")
    if choice == "labels":
        lines.insert(0, LABELS_HEADER)
    write_lines(basis, lines)

    report = run([*words, f"--{choice}", str(basis), "--precision", "0.9"], capsys)
    estimate = report["estimate"]
    assert report["pairs"] <= everything
    assert report["threshold"] == estimate["threshold"]
    assert estimate["precision"] >= 0.9
    assert estimate["low"] <= estimate["high"]
    assert min(row["score"] for row in json_rows(output)) >= report["threshold"]
    assert estimate["basis"] in Path(report["page"]).read_text("utf-8")

    if choice == "labels":  # of another mining, which would leave the pairs that both found
        other_labels = [f"reject\t1\ten {number}\tfr {number}" for number in range(len(lines))]
        write_lines(basis, lines + other_labels)
        assert "labels" in failing([*words, "--labels", str(basis), "--precision", "0.9"], capsys)


def test_labels_choose_the_threshold_of_given_pairs(fake: str, tmp_path: Path, capsys: Capture):
    pairs = []
    labels = []
    for number in range(60):
        label = "accept" if number % 3 else "reject"
        translation = number if number % 3 else number + 200
        pairs.append(f"en {number} word\tfr {translation} word")
        labels.append(f"{label}\t1\t{pairs[-1]}")
    pairs_file = write_lines(tmp_path / "pairs.tsv", pairs)
    labels_file = write_lines(tmp_path / "labels.tsv", [LABELS_HEADER, *labels[:40]])
    output = tmp_path / "scored.tsv"
    words = ["score", str(pairs_file), "--model", fake, "--output", str(output)]
    assert run(words, capsys)["pairs"] == 60

    report = run([*words, "--labels", str(labels_file), "--precision", "0.9"], capsys)
    rows = list(read_rows(output))
    assert report["threshold"] == report["estimate"]["threshold"]
    assert report["pairs"] == len(rows)
    assert 30 <= len(rows) < 60
    assert sum(map(is_right, rows)) >= 0.9 * len(rows)
    assert report["estimate"]["basis"] in Path(report["page"]).read_text("utf-8")

    assert run([*words, "--threshold", str(report["threshold"])], capsys)["pairs"] == len(rows)
    assert "--labels" in failing([*words, "--precision", "0.9"], capsys)


def test_report_escapes_texts(fake: str, tmp_path: Path, capsys: Capture):
    attack = "</script><script>alert(1)</script> <img src=x onerror=alert(2)> \u2028"
    files = [write_lines(tmp_path / f"{name}.txt", [f"{name} 1 {attack}", f"{name} 2"]) for name in ("en", "ar")]
    output = str(tmp_path / "pairs.tsv")
    languages = ["--languages", "en,ar"]
    report = run(["mine", *map(str, files), "--model", fake, *languages, "--output", output], capsys)
    page = Path(report["page"]).read_text("utf-8")
    assert page.count("<script") == 2
    assert "<img" not in page
    assert 'text.dir = "auto"' in page
    data = page.split('id="data">')[1].split("</script>")[0]
    assert attack in json.loads(data)["pairs"][0]["source"]


def test_options(fake: str, files: list[str], tmp_path: Path, capsys: Capture):
    output = tmp_path / "pairs.tmx"
    words = ["mine", *files, "--model", fake, "--output", str(output), "--languages", "en, fr", "--k", "3", "--many"]
    words += ["--margin", "distance", "--retrieval", "forward", "--max-pairs", "9", "--memory", "64GB"]
    words += ["--work", f"{output}.work"]
    report = run(words, capsys)

    source, target = map(lines_of, files)
    options: dict[str, Any] = {"margin": "distance", "retrieval": "forward", "one_to_one": False, "max_pairs": 9}
    expected = mine_vectors(half(source), half(target), k=3, **options)
    rows = list(read_rows(output, languages=("en", "fr")))
    assert [row["source"] for row in rows] == [source[line] for line in expected.source]
    assert [row["target"] for row in rows] == [target[line] for line in expected.target]
    assert report["scores"] == [expected.score[-1], expected.score[0]]
    assert Path(f"{output}.work").is_dir()


def mined(files: Sequence[str | Path], words: Sequence[str], tmp_path: Path, capsys: Capture) -> str:
    output = tmp_path / "mined.tsv"
    run(["mine", *map(str, files), *words, "--output", str(output)], capsys)
    return output.read_text("utf-8")


def test_other_inputs_give_the_pairs_of_their_lines(fake: str, files: list[str], tmp_path: Path, capsys: Capture):
    model = ["--model", fake, "--languages", "en,fr"]
    expected = mined(files, model, tmp_path, capsys)
    assert expected.count("\n") > 20

    vectors = []
    tables = []
    for language, file in zip(("en", "fr"), files, strict=True):
        lines = lines_of(file)
        vectors.append(str(tmp_path / f"{language}.npy"))
        np.save(vectors[-1], half(lines))
        rows = [json.dumps({"id": number, language: text}) for number, text in enumerate(lines)]
        tables.append(write_lines(tmp_path / f"{language}.jsonl", rows))
    from_vectors = ["--source-vectors", vectors[0], "--target-vectors", vectors[1]]
    assert mined(files, from_vectors, tmp_path, capsys) == expected
    assert mined(tables, [*model, "--columns", "text={lang}"], tmp_path, capsys) == expected


def test_rows_of_tables(fake: str, files: list[str], tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COLUMNS", "200")
    rows = [f"{number}\t{text}" for number, text in enumerate(lines_of(files[0]))]
    table = write_lines(tmp_path / "en.tsv", ["id\ttext", "41\t", *rows, "42\tone\ttwo"])
    output = tmp_path / "pairs.jsonl"
    assert cli.main(["mine", str(table), files[1], "--model", fake, "--output", str(output)]) == 0
    assert "2 bad lines" in capsys.readouterr().out
    for pair in json_rows(output):
        assert "source_line" not in pair
        assert pair["target_line"]


@pytest.mark.parametrize("cleaning", [[], ["--cleaning", "normalize"]])
def test_gold_texts_have_the_form_of_the_sides(cleaning: list[str], fake: str, tmp_path: Path, capsys: Capture):
    rows = [json.dumps({"en": f"en\u00a0{n} \ufb01ne", "fr": f"fr\u00a0{n}  bon"}) for n in range(40)]
    table = str(write_lines(tmp_path / "wide.jsonl", rows))
    words = f"mine {table} {table} --model {fake} --languages en,fr --columns text={{lang}} --gold {table}".split()
    assert run([*words, *cleaning, "--output", str(tmp_path / "p.tsv")], capsys)["estimate"]["precision"] > 0.9


def test_documents_are_split(fake: str, tmp_path: Path, capsys: Capture):
    files = []
    documents = []
    for word in ("Chapter", "Section"):
        sentences = [f"{word} {number} is here." for number in range(20)]
        files.append(write_lines(tmp_path / f"{word}.txt", sentences))
        documents.append(write_lines(tmp_path / f"{word}-document.txt", [" ".join(sentences)]))
    model = ["--model", fake, "--languages", "en,fr"]
    expected = mined(files, model, tmp_path, capsys)
    assert mined(documents, [*model, "--split-sentences"], tmp_path, capsys) == expected


def test_cleaning_of_texts_and_pairs(fake: str, tmp_path: Path, capsys: Capture):
    long = "one two three four five six seven eight nine ten " * 4
    source = write_lines(tmp_path / "text.en", [*numbered("en", 40), "дом дерево река"])
    target = write_lines(tmp_path / "text.fr", [*numbered("fr", 40), f"{long} 41"])
    words = ["mine", str(source), str(target), "--model", fake, "--output", str(tmp_path / "pairs.jsonl")]
    report = run([*words, "--languages", "en,fr", "--cleaning", "normalize,language,ratio"], capsys)

    pairs = list(read_rows(tmp_path / "pairs.jsonl"))
    assert report["cleaning"]["source"]["cleaning"]["language"] == {"in": 41, "out": 40, "changed": 0}
    assert report["cleaning"]["pairs"]["ratio"]["out"] == len(pairs) == report["pairs"]
    for pair in pairs:
        assert "дом" not in pair["source"]
        assert long not in pair["target"]


def test_interrupted_and_resumed(
    fake: str, files: list[str], tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
):
    output = tmp_path / "pairs.tsv"
    words = ["mine", *files, "--model", fake, "--output", str(output)]

    class Interrupted(NumberEncoder):
        def encode(self, texts: Any, **options: Any) -> np.ndarray:
            if len(self.calls) == 2:
                os.kill(os.getpid(), signal.SIGINT)
            return super().encode(texts, **options)

    for _ in range(2):  # in the third shard, and again in the fifth
        monkeypatch.setattr(stages, "load_encoder", lambda *arguments: Interrupted())
        assert cli.main(words) == 130
        assert f"{output}.work" in capsys.readouterr().err
        assert not output.exists()

    encoder = NumberEncoder()
    monkeypatch.setattr(stages, "load_encoder", lambda *arguments: encoder)
    run(words, capsys)
    assert output.exists()
    assert len(encoder.calls) == 2
    assert not Path(f"{output}.work").exists()


def test_score_of_a_file_in_any_format(fake: str, tmp_path: Path, capsys: Capture):
    table = tmp_path / "pairs.csv"
    table.write_text('de,en\n"fr 1","en 1"\n"fr 7","en 2"\n"",lost\n"fr 1","en 1"\n')
    output = tmp_path / "scored.jsonl"
    words = ["score", str(table), "--columns", "source=en,target=de", "--model", fake, "--output", str(output)]
    report = run([*words, "--k", "1"], capsys)
    assert report["bad_lines"] == "1 bad line was skipped (1 empty target)."
    assert report["pairs"] == 3

    rows = json_rows(output)
    assert [(row["source"], row["target"]) for row in rows] == [("en 1", "fr 1"), ("en 2", "fr 7"), ("en 1", "fr 1")]
    assert list(rows[0]) == ["score", "cosine", "source", "target"]
    assert rows[0] == rows[2]
    assert rows[0]["score"] == pytest.approx(1)
    assert rows[1]["cosine"] < 0.9


@pytest.mark.parametrize(
    ("words", "key"),
    [
        (["--output", "p.txt"], "tsv, jsonl, parquet, tmx"),
        (["--output", "p.tsv"], "--model"),
        (["--output", "p.tsv", "--source-vectors", "a.npy"], "--target-vectors"),
        (["--output", "p.tsv", "--source-vectors", "row.npy", "--target-vectors", "row.npy"], "`source`"),
        (["--output", "p.tsv", "--source-vectors", "en.txt", "--target-vectors", "row.npy"], "en.txt"),
        (["--output", "en.txt/p.tsv", "--model", "."], "en.txt"),
    ],
)
def test_invalid_options_of_mine(
    words: list[str], key: str, files: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
):
    monkeypatch.chdir(tmp_path)
    np.save("row.npy", np.ones(40))
    assert key in failing(["mine", *files, *words], capsys)
    assert not Path("p.tsv.work").exists()
