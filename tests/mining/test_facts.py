"""The file beside pairs that says how they were made, and the command in it."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mining_fakes import NumberEncoder, numbered, write_lines

from hf_xlsr.cli import main
from hf_xlsr.mining import mine_bitext, stages
from hf_xlsr.mining.facts import histogram, new_step, read_facts, write_facts
from hf_xlsr.utils.errors import XlsrError
from hf_xlsr.utils.local_paths import public_name, without_folders


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with two texts, known pairs and MODEL, a `NumberEncoder`."""
    monkeypatch.chdir(tmp_path)
    write_lines(Path("en.txt"), numbered("en", 40))
    write_lines(Path("fr.txt"), numbered("fr", 40, start=5, seed=1))
    write_lines(Path("known.tsv"), [f"en {number} word\tfr {number} word" for number in range(100, 300)])
    Path("MODEL").mkdir()
    Path("MODEL/config.json").write_text("{}")
    monkeypatch.setattr(stages, "load_encoder", lambda *options: NumberEncoder())
    return tmp_path


def run(words: str) -> None:
    assert main(shlex.split(words)) == 0


def steps_of(pairs: str) -> list[dict[str, Any]]:
    return list(read_facts(pairs).steps)


def write_step(pairs: str, verb: str, *inputs: str) -> None:
    Path(pairs).write_text(f"{verb}\tx\n", "utf-8")
    write_facts(pairs, new_step(verb, {}, {}), inputs)


def test_each_verb_continues_the_steps_of_its_input() -> None:
    write_step("a.tsv", "mine")
    write_step("b.tsv", "clean", "a.tsv")
    write_step("c.tsv", "filter", "b.tsv")
    assert [step["verb"] for step in steps_of("c.tsv")] == ["mine", "clean", "filter"]


def test_steps_of_another_content_are_not_continued(caplog: pytest.LogCaptureFixture) -> None:
    write_step("a.tsv", "mine")
    Path("a.tsv").write_text("changed\tx\n", "utf-8")
    write_step("b.tsv", "clean", "a.tsv")

    assert [step["verb"] for step in steps_of("b.tsv")] == ["clean"]
    assert "'a.tsv' has changed" in caplog.text
    with pytest.raises(XlsrError, match="'a.tsv' has changed"):
        read_facts("a.tsv")


def test_two_files_have_no_common_steps() -> None:
    write_step("a.en", "mine")
    write_step("a.de", "mine")
    write_step("b.tsv", "clean", "a.en", "a.de")
    assert [step["verb"] for step in steps_of("b.tsv")] == ["clean"]


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"format": 1, "sha256": "", "steps": []}'])
def test_torn_facts_are_named(content: str) -> None:
    write_step("a.tsv", "mine")
    Path("a.tsv.facts.json").write_text(content, "utf-8")
    with pytest.raises(XlsrError, match=r"a\.tsv\.facts\.json"):
        read_facts("a.tsv")


def test_facts_of_a_later_version_are_refused() -> None:
    write_step("a.tsv", "mine")
    content = json.loads(Path("a.tsv.facts.json").read_text("utf-8"))
    Path("a.tsv.facts.json").write_text(json.dumps({**content, "format": 7}), "utf-8")
    with pytest.raises(XlsrError, match="got 7"):
        read_facts("a.tsv")


def test_pairs_without_facts() -> None:
    Path("a.tsv").write_text("a\tb\n", "utf-8")
    assert steps_of("a.tsv") == []
    assert read_facts("a.tsv").languages is None


def test_threshold_of_zero_is_a_fact() -> None:
    step = new_step("mine", {"threshold": 0.0, "labels": {}, "estimate": None}, {"curve": None})
    assert step["threshold"] == 0.0
    assert not {"labels", "estimate", "curve"} & step.keys()


def test_histogram_counts_every_score() -> None:
    scores = np.random.default_rng(0).normal(size=500)
    assert sum(histogram(scores, "score")["counts"]) == 500
    assert histogram(np.empty(0), "score") == {}


def test_mining_stores_its_facts() -> None:
    run("mine en.txt fr.txt --model MODEL --languages en,fr --known known.tsv --output mined.tsv --json")
    (step,) = steps_of("mined.tsv")

    (written,) = [len(Path("mined.tsv").read_text("utf-8").splitlines()) - 1]
    assert step["pairs"]["out"] == written
    assert step["encoder"]["hash"].startswith("sha256:")
    assert step["inputs"]["source"]["name"] == "en.txt"
    assert step["inputs"]["source"]["sentences"] == 40
    assert step["estimate"]["low"] <= step["estimate"]["precision"] <= step["estimate"]["high"]
    assert step["threshold"] == step["estimate"]["threshold"]
    assert step["settings"]["k"] == 4
    assert read_facts("mined.tsv").languages == ("en", "fr")


def test_given_embeddings_have_no_encoder() -> None:
    vectors = np.random.default_rng(0).normal(size=(40, 8)).astype(np.float32)
    np.save("en.npy", vectors)
    np.save("fr.npy", vectors)
    run("mine en.txt fr.txt --source-vectors en.npy --target-vectors fr.npy --output mined.tsv --json")
    (step,) = steps_of("mined.tsv")
    assert "encoder" not in step
    assert step["languages"] is None


def test_scoring_stores_its_facts() -> None:
    run("mine en.txt fr.txt --model MODEL --output mined.tsv --json")
    run("score mined.tsv --model MODEL --output scored.tsv --threshold 1.1 --json")
    first, second = steps_of("scored.tsv")
    assert [first["verb"], second["verb"]] == ["mine", "score"]
    assert second["threshold"] == 1.1
    assert second["pairs"]["in"] == first["pairs"]["out"]


def test_python_has_the_facts_too() -> None:
    mined = mine_bitext("en.txt", "fr.txt", encoder=NumberEncoder(), languages=("en", "fr"), threshold=1.0)
    assert mined.facts is not None
    (step,) = mined.facts.steps
    assert step["pairs"]["out"] == len(mined)
    assert step["encoder"]["name"] == "NumberEncoder"
    assert step["inputs"]["target"]["name"] == "fr.txt"


def test_command_is_that_of_the_call(folder: Path) -> None:
    words = f"mine {folder}/en.txt fr.txt --model {folder}/MODEL --prompt 'query: ' --k 3 --many --work {folder}/work"
    run(f"{words} --cleaning 'normalize, length: {{max_chars: 9000}}' --output {folder}/out/mined.tsv --json")
    (step,) = steps_of("out/mined.tsv")

    typed = shlex.split(step["command"])
    assert typed[:4] == ["hf-xlsr", "mine", "en.txt", "fr.txt"]
    assert "--many" in typed
    options = dict(zip(typed[:-1], typed[1:], strict=True))
    assert options["--prompt"] == "query: "
    assert options["--k"] == "3"
    assert options["--model"] == "MODEL"
    assert options["--output"] == "mined.tsv"
    assert options["--cleaning"] == "normalize, length: {max_chars: 9000}"
    assert not {"--work", "--json", "--batch-size"} & set(typed)
    assert str(folder) not in Path("out/mined.tsv.facts.json").read_text("utf-8")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("~/someone/lid.ftz", "lid.ftz"),
        ("~/texts/en.txt", "en.txt"),
        ("../../someone/en.txt", "en.txt"),
        ("C:\\Users\\someone\\en.txt", "en.txt"),
        ("{method: fasttext:models/someone/lid.ftz, min_share: 0.5}", "{method: fasttext:lid.ftz, min_share: 0.5}"),
        ("https://example.org/a/b", "https://example.org/a/b"),
        ("and / or, a/b", "and / or, a/b"),
    ],
)
def test_folders_are_left_out(text: str, expected: str) -> None:
    assert without_folders(text) == expected


def test_names_are_public() -> None:
    Path("sub").mkdir()
    assert public_name("sub/en.txt") == "en.txt"
    assert public_name("owner/name") == "owner/name"
    assert public_name("MODEL/") == "MODEL"
