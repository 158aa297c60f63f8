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
from mining_fakes import NumberEncoder, in_child, numbered, write_lines
from sentence_transformers import SentenceTransformer

from hf_xlsr.cli import app as cli
from hf_xlsr.data.formats.reading import read_rows
from hf_xlsr.mining import encode_stage
from hf_xlsr.mining.search.both_ways import METHODS
from hf_xlsr.mining.search.extraction import RETRIEVALS, mine_vectors
from hf_xlsr.mining.search.margin import MARGINS
from hf_xlsr.mining.texts import DUPLICATES


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """The name of a model that is a `NumberEncoder`."""
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    monkeypatch.setattr(encode_stage, "load_encoder", lambda *arguments: NumberEncoder())
    monkeypatch.setattr(encode_stage, "SMALLEST_SHARD", 16)
    return str(tmp_path / "model")


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    sides = numbered("en", 40), numbered("fr", 40, start=5, seed=1)
    return [str(write_lines(tmp_path / f"{name}.txt", side)) for name, side in zip(("en", "fr"), sides, strict=True)]


def run(words: Sequence[str], capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    assert cli.main([*words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def failing(words: Sequence[str], capsys: pytest.CaptureFixture[str]) -> str:
    assert cli.main(words) == 1
    written = capsys.readouterr().err
    assert "Traceback" not in written
    return written.strip().splitlines()[-1]


@pytest.fixture(autouse=True)
def interruptible() -> Iterator[None]:
    """A suite that runs in the background of a shell ignores Ctrl-C, and so would its commands."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_a_real_encoder_end_to_end(tiny_export: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    pairs = make_pairs(60)
    source, target = [pair["source"] for pair in pairs], [pair["target"] for pair in pairs[::-1]]
    files = [str(write_lines(tmp_path / name, side)) for name, side in (("en.txt", source), ("fr.txt", target))]
    output = tmp_path / "pairs.jsonl"
    report = run(["mine", *files, "--model", tiny_export, "--output", str(output), "--duplicates", "keep"], capsys)
    model = SentenceTransformer(tiny_export)
    # Sentences of other batches have vectors that differ in the last digits.
    vectors = [model.encode(side, normalize_embeddings=True) for side in (source, target)]
    expected = mine_vectors(*vectors)
    rows = [json.loads(line) for line in output.read_text("utf-8").splitlines()]
    assert report["pairs"] == len(rows) == len(expected)
    np.testing.assert_allclose([row["score"] for row in rows], expected.score, atol=2e-3)
    for row in rows:
        assert row["source"] == source[row["source_line"] - 1] and row["target"] == target[row["target_line"] - 1]
    assert not (tmp_path / "pairs.jsonl.work").exists()
    scored = tmp_path / "scored.tsv"
    pools = ["--source-pool", files[0], "--target-pool", files[1]]
    score = ["score", str(output), *pools, "--model", tiny_export, "--output", str(scored)]
    assert run(score, capsys)["pairs"] == len(rows)
    np.testing.assert_allclose(
        [float(row["score"]) for row in read_rows(scored)], [row["score"] for row in rows], atol=2e-3
    )


def test_the_summary_is_short_and_says_what_was_done(
    fake: str, files: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    with open(files[0], "ab") as file:
        file.write(b"\n\xff\nen 99 word .\nen 99 word .\n")
    output = str(tmp_path / "pairs.tsv")
    words = ["mine", *files, "--model", fake, "--output", output, "--threshold", "1.05", "--work"]
    assert cli.main([*words, str(tmp_path / "work")]) == 0
    written = capsys.readouterr()
    lines = [" ".join(line.replace("│", " ").split()) for line in written.out.splitlines()]
    assert len(lines) < 25
    text = "\n".join(lines)
    for part in (
        "41 sentences of 44 lines",
        "1 equal to others",
        "1 skipped, blank: 41",
        "1 skipped, invalid UTF-8: 42",
    ):
        assert part in text
    assert "search exact, k 4" in text and "threshold 1.05" in text and "encode" in text
    first = list(read_rows(output))[:3]
    assert [line for line in lines if line.startswith("1.")][:3] == [
        " ".join(f"{float(row['score']):.4f} {row['source']} {row['target']}".split()) for row in first
    ]
    skipped = [json.loads(line) for line in Path(f"{output}.source.skipped.jsonl").read_text().splitlines()]
    assert [entry["line"] for entry in skipped] == [41, 42]
    assert (tmp_path / "work").is_dir()
    capsys.readouterr()
    report = run([*words, str(tmp_path / "work"), "--threshold", "1.0"], capsys)
    assert "source.vectors" in report["reused"] and report["skipped_lines"]["source"].endswith("source.skipped.jsonl")


def test_brackets_in_names_are_no_markup(
    fake: str, files: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("COLUMNS", "1000")
    output = tmp_path / "d[/b]" / "pairs[x].tsv"
    output.parent.mkdir(parents=True)
    assert cli.main(["mine", *files, "--model", fake, "--output", str(output)]) == 0
    assert f"pairs in {output}" in capsys.readouterr().out


@pytest.mark.parametrize("suffix", ["tsv", "parquet", "tmx"])
def test_options_reach_the_mining(
    suffix: str, fake: str, files: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    output = tmp_path / f"pairs.{suffix}"
    words = ["mine", *files, "--model", fake, "--output", str(output), "--languages", "en,fr", "--k", "3", "--many"]
    words += ["--margin", "distance", "--retrieval", "forward", "--max-pairs", "9", "--memory", "64GB", "--keep-work"]
    report = run(words, capsys)
    rows = list(read_rows(output, languages=("en", "fr")))
    sides = [[line.rstrip("\n") for line in open(file, encoding="utf-8")] for file in files]
    expected = mine_vectors(
        *(encode_stage.embed(NumberEncoder(), side).astype(np.float16) for side in sides),
        k=3,
        margin="distance",
        retrieval="forward",
        one_to_one=False,
        max_pairs=9,
    )
    assert [(row["source"], row["target"]) for row in rows] == [
        (sides[0][x], sides[1][y]) for x, y in zip(expected.source, expected.target, strict=True)
    ]
    assert report["scores"] == [expected.score[-1], expected.score[0]]
    assert Path(f"{output}.work").is_dir()


def test_vectors_instead_of_a_model(fake: str, files: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    sides = [Path(file).read_text().splitlines() for file in files]
    for name, side in zip("ab", sides, strict=True):
        np.save(tmp_path / f"{name}.npy", encode_stage.embed(NumberEncoder(), side).astype(np.float16))
    with_model = run(["mine", *files, "--model", fake, "--output", str(tmp_path / "1.tsv")], capsys)
    options = ["--source-vectors", str(tmp_path / "a.npy"), "--target-vectors", str(tmp_path / "b.npy")]
    with_vectors = run(["mine", *files, *options, "--output", str(tmp_path / "2.tsv")], capsys)
    assert (tmp_path / "1.tsv").read_text() == (tmp_path / "2.tsv").read_text()
    assert with_model["pairs"] == with_vectors["pairs"] > 20


def test_vectors_that_are_no_matrix_of_numbers_are_told(
    fake: str, files: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)
    np.save("good.npy", np.ones((40, 3)))
    np.savez("a.npz", vectors=np.ones((40, 3)))
    Path("broken.npz").write_bytes(b"PK\x03\x04 and no more")
    for name, array in {
        "text": np.full((40, 3), "x"),
        "complex": np.ones((40, 3)) + 1j,
        "row": np.ones(40),
        "times": np.full((40, 3), np.datetime64("2020-01-01")),
    }.items():
        np.save(f"{name}.npy", array)
    broken = (
        "vectors broken.npz cannot be read (it is no .npy file with a matrix of numbers); save them with numpy.save."
    )
    messages = {
        "a.npz": "vectors a.npz are an archive (.npz); save its matrix alone as .npy, with numpy.save.",
        "broken.npz": broken,
    }
    messages |= {
        f"{name}.npy": f"{name}.npy holds no matrix of real numbers with one row a text; save one with numpy.save."
        for name in ("text", "complex", "row", "times")
    }
    for name, message in messages.items():
        for given in ((name, name), ("good.npy", name)):
            words = ["--source-vectors", given[0], "--target-vectors", given[1], "--output", "p.tsv"]
            for model in ([], ["--model", fake]):
                assert failing(["mine", *files, *words, *model], capsys) == f"hf-xlsr: {message}"
    np.save("flags.npy", np.eye(40, dtype=bool))
    words = ["--source-vectors", "flags.npy", "--target-vectors", "flags.npy", "--output", "p.tsv"]
    assert run(["mine", *files, *words], capsys)["pairs"] == 40
    assert "there are vectors and an encoder as well" in failing(["mine", *files, *words, "--model", fake], capsys)


def test_languages_in_the_other_order_than_the_files_are_refused(
    fake: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    files = [str(write_lines(tmp_path / f"c.{code}", numbered(code, 9))) for code in ("en", "de")]
    words = ["mine", *files, "--model", fake, "--output", str(tmp_path / "o.tmx"), "--languages"]
    message = f"languages says that source is in 'de', but its file {files[0]} is called by the other language, 'en'; "
    assert message in failing([*words, "de,en"], capsys)
    assert not (tmp_path / "o.tmx").exists()
    run([*words, "en,de"], capsys)
    assert '<tuv xml:lang="en"><seg>en ' in (tmp_path / "o.tmx").read_text()


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("", "it is empty, or has a header alone"),
        ("source\ttarget\n", "it is empty, or has a header alone"),
        ("source\ttarget\nlost\t\n", "1 bad line was skipped (1 empty target)"),
    ],
)
def test_a_file_without_pairs_is_named(
    content: str, why: str, fake: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    (table := tmp_path / "p.tsv").write_text(content)
    words = ["score", str(table), "--model", fake, "--output", str(tmp_path / "s.tsv")]
    assert failing(words, capsys) == f"hf-xlsr: {table} has no pair: {why}; give another file."
    files = [str(write_lines(tmp_path / name, [])) for name in ("c.en", "c.de")]
    told = failing([*words[:1], *files, *words[2:]], capsys)
    assert told == f"hf-xlsr: {' + '.join(files)} has no pair: it is empty, or has a header alone; give another file."


def test_interrupted_it_says_so_and_goes_on(
    fake: str, files: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    output = tmp_path / "pairs.tsv"
    words = ["mine", *files, "--model", fake, "--output", str(output)]

    class Interrupted(NumberEncoder):
        def encode(self, texts: Any, **options: Any) -> np.ndarray:
            if len(self.calls) == 2:
                os.kill(os.getpid(), signal.SIGINT)
            return super().encode(texts, **options)

    def interrupted() -> None:
        encode_stage.load_encoder = lambda *arguments: Interrupted()  # type: ignore[assignment]
        os._exit(cli.main(words))

    assert in_child(interrupted) == (130, "")
    with monkeypatch.context() as patch:
        patch.setattr(encode_stage, "load_encoder", lambda *arguments: Interrupted())
        assert cli.main(words) == 130  # goes on with the third shard, and is stopped in the fifth
    assert f"hf-xlsr: interrupted; the same command goes on from {output}.work." in capsys.readouterr().err
    assert not output.exists()
    encoder = NumberEncoder()
    monkeypatch.setattr(encode_stage, "load_encoder", lambda *arguments: encoder)
    run(words, capsys)
    assert output.exists() and len(encoder.calls) == 2
    assert not Path(f"{output}.work").exists()


def test_a_file_of_pairs_in_any_format_is_scored(fake: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    table = tmp_path / "pairs.csv"
    table.write_text('de,en\n"fr 1","en 1"\n"fr 7","en 2"\n"",lost\n"fr 1","en 1"\n')
    output = tmp_path / "scored.jsonl"
    words = ["score", str(table), "--columns", "source=en,target=de", "--model", fake, "--output", str(output)]
    report = run([*words, "--k", "1"], capsys)
    rows = [json.loads(line) for line in output.read_text().splitlines()]
    assert [(row["source"], row["target"]) for row in rows] == [("en 1", "fr 1"), ("en 2", "fr 7"), ("en 1", "fr 1")]
    assert report["bad_lines"] == "1 bad line was skipped (1 empty target)."
    assert report["pairs"] == 3 and list(rows[0]) == ["score", "cosine", "source", "target"]
    assert rows[0] == rows[2] and rows[0]["score"] == pytest.approx(1) and rows[1]["cosine"] < 0.9
    assert not Path(f"{output}.work").exists()
    assert cli.main([*words, "--margin", "absolute"]) == 0
    written = capsys.readouterr().out
    assert "3 pairs in" in written and "1 bad line was skipped" in written


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--output", "p.txt"], "output p.txt has none of the suffixes .tsv, .jsonl, .parquet, .tmx"),
        (["--output", "p.tmx"], "output p.tmx is TMX, which notes two languages; give them as --languages en,fr."),
        (
            ["--output", "p.tsv"],
            "texts become vectors by an encoder, but none is given; give one (--model), or",
        ),
        (["--output", "p.tsv", "--model", "./none"], "model folder './none' does not exist"),
        (
            ["--output", "p.tsv", "--source-vectors", "a.npy"],
            "vectors of one side only are given; give --source-vectors",
        ),
        (
            ["--output", "p.tsv", "--source-vectors", "a.npy", "--target-vectors", "a.npy"],
            "vectors a.npy cannot be read",
        ),
        (
            ["--output", "p.tsv", "--model", ".", "--routes", "de"],
            "--routes has 'de'; write LANGUAGE=ROUTE,..., e.g. en=source,de=target.",
        ),
        (
            ["--output", "p.tsv", "--model", ".", "--languages", "de"],
            "languages is de; give source and target, e.g.",
        ),
        (["--output", "en.txt/p.tsv", "--model", "./none"], "en.txt/p.tsv cannot be written (Not a directory"),
        (["--output", "/proc/none/p.tsv"], "/proc/none/p.tsv cannot be written (No such file or directory: /proc)"),
        (["--output", "p.tsv", "--model", ".", "--work", "en.txt/w"], "en.txt/w cannot be written (Not a directory"),
        (["--output", "p.tsv", "--model", ".", "--memory", "lots"], "lots"),
        (["--output", "p.tsv", "--model", ".", "--device", "gpu9"], "device is 'gpu9', which torch cannot use here"),
        (["--output", "p.tsv", "--model", ".", "--dtype", "float8"], "dtype is 'float8'; did you mean 'float32'?"),
    ],
)
def test_mistakes_are_one_sentence(
    words: list[str],
    message: str,
    files: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    monkeypatch.chdir(tmp_path)
    assert message in failing(["mine", *files, *words], capsys)
    assert not Path("p.tsv.work").exists()


@pytest.mark.parametrize(("name", "header"), [("p.tsv", "en\tfr"), ("p.csv", '"en","fr"'), ("p.tsv", "eng_Latn\tde")])
def test_a_header_of_languages_is_no_pair(
    name: str, header: str, fake: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    gap = "," if name.endswith("csv") else "\t"
    table = tmp_path / name
    table.write_text(f"{header}\nen 1{gap}fr 1\n")
    source, target = header.replace('"', "").split(gap)
    words = ["score", str(table), "--model", fake, "--output", str(tmp_path / "s.tsv")]
    message = f"'{source}' and '{target}', looks like a header; set columns to source={source},target={target}, or"
    assert message in failing(words, capsys)
    assert run([*words, "--columns", f"source={source},target={target}"], capsys)["pairs"] == 1
    assert run([*words, "--columns", "source=0,target=1"], capsys)["pairs"] == 2


@pytest.mark.parametrize("lines", ["source\ttarget\nhi\tno\n", "hi\thi\n", "hi\tbonjour\n", "en 1\tfr 1\nhi\tno\n"])
def test_a_short_pair_is_no_header(lines: str, fake: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "p.tsv").write_text(lines)
    words = ["score", str(tmp_path / "p.tsv"), "--model", fake, "--output", str(tmp_path / "s.tsv")]
    assert run(words, capsys)["pairs"] == lines.count("\n") - lines.startswith("source")


def test_languages_may_stand_apart(fake: str, files: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    output = tmp_path / "p.tmx"
    run(["mine", *files, "--model", fake, "--output", str(output), "--languages", "en, de"], capsys)
    assert 'xml:lang="de"' in output.read_text()


def test_score_takes_a_method_and_tells_it(fake: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    table = write_lines(tmp_path / "p.tsv", [f"en {number}\tfr {number}" for number in range(40)])
    words = ["score", str(table), "--model", fake, "--output", str(tmp_path / "s.tsv")]
    assert run(words, capsys)["method"] == "exact"
    report = run([*words, "--method", "ivf", "--keep-work"], capsys)
    assert report["method"] == "ivf" and 0 < report["recall"] <= 1
    assert cli.main([*words, "--method", "ivf"]) == 0
    assert f"ivf, k 4, recall {report['recall']:.4f} on a sample" in capsys.readouterr().out


def test_score_needs_a_model_and_files_that_are_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    words = ["score", str(tmp_path / "none.tsv"), "--output", str(tmp_path / "s.tsv")]
    assert "none is given; give --model." in failing(words, capsys)
    assert "does not exist" in failing([*words, "--model", str(tmp_path)], capsys)


def test_help_names_every_choice(capsys: pytest.CaptureFixture[str]):
    for verb, choices in (("mine", [*MARGINS, *RETRIEVALS, *DUPLICATES, *METHODS]), ("score", [*MARGINS, *METHODS])):
        with pytest.raises(SystemExit):
            cli.main([verb, "--help"])
        words = capsys.readouterr().out.replace(",", " ").split()
        assert set(choices) <= set(words)
