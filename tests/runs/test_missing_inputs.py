from __future__ import annotations

from pathlib import Path

import pytest
from cli_helpers import failing

from hf_xlsr.data.sources import parse_sources
from hf_xlsr.runs import inputs

ENCODERS = "model: {encoders: {en: $HF_XLSR_HOMES/en, fr: ./no_encoder}}"
RECIPE = """
method: dual_momentum
languages: [en, fr]
data:
  train: [train.tsv, "no_train.{en,fr}"]
  dev: $HF_XLSR_CORPORA/dev.tsv
  test: [no_test.tsv, 'no.{lang}.tsv']
  held_out: [{path: no/*.parquet, columns: "*"}]
nli: {train: no_nli.tsv}
evaluation: {guard: owner/dataset}
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("HF_XLSR_CORPORA", "HF_XLSR_HOMES"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "train.tsv").write_text("source\ttarget\na\tb\n", "utf-8")
    return tmp_path


@pytest.mark.parametrize("verb", ["train", "prepare"])
@pytest.mark.parametrize(
    "list_of_runs", ["", "runs: [{name: one}, {name: two, set: {data: {test: no_test_two.tsv}}}]"]
)
def test_missing_inputs_are_named_together(
    list_of_runs: str, verb: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "mine.yaml").write_text(f"{RECIPE}{ENCODERS}\n{list_of_runs}\n", "utf-8")
    error = failing(capsys, verb, "mine.yaml")
    expected = "CORPORA HF_XLSR_HOMES no_train.en no_train.fr no_test.tsv no/*.parquet no_nli.tsv no_encoder".split()
    assert not [name for name in [*expected, *(["no_test_two.tsv"] if list_of_runs else [])] if name not in error]
    assert "'train.tsv'" not in error and "owner/dataset" not in error
    assert not (folder / "outputs").exists()


@pytest.mark.parametrize(
    ("words", "missing"),
    [
        (
            "train finetune --train a.tsv --dev $HF_XLSR_CORPORA/b.tsv --guard c.tsv --encoder ./d --languages en,de",
            "a.tsv HF_XLSR_CORPORA c.tsv ./d",
        ),
        ("evaluate ./m --protocol xsr --data a.tsv --pool b.tsv", "./m a.tsv b.tsv"),
        ("mine a.txt b.txt --model $HF_XLSR_HOMES/m --gold d.tsv --output c.tsv", "a.txt b.txt HF_XLSR_HOMES d.tsv"),
    ],
)
def test_missing_inputs_of_options(words: str, missing: str, capsys: pytest.CaptureFixture[str]) -> None:
    error = failing(capsys, *words.split())
    assert not [name for name in missing.split() if name not in error]


def test_held_out_corpus_is_read_in_its_own_languages(monkeypatch: pytest.MonkeyPatch) -> None:
    opened = []

    def open_source(source: object, *, languages: tuple[str, ...], **options: object) -> list[dict[str, str]]:
        opened.append(languages)
        return [{"source": "one", "target": f"one in {languages[1]}"}]

    monkeypatch.setattr(inputs, "open_source", open_source)
    texts = list(inputs.held_out_texts(parse_sources("bible"), languages=["en", "tlh", "de", "fr"]))
    assert texts == ["one", "one in de", "one", "one in fr"]


def test_hard_negatives_that_a_recipe_ignores_are_named(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    (folder / "hard.tsv").write_text("source\ttarget\tnegative_1\tnegative_2\na\tb\tc\td\n", "utf-8")
    for name in ("train.tsv", "hard.tsv", "{train,hard}.tsv", "{lang}.tsv"):
        (source,) = parse_sources(name)
        inputs.warn_of_negatives(source)
    assert len(caplog.messages) == 1
    assert "negative_1, negative_2" in caplog.messages[0]
