"""Every command refuses files that are named after another language than the one in which it would read them."""

from __future__ import annotations

from pathlib import Path

import pytest
from cli_helpers import failing

CONTRADICTION = "is named after 'de' and would be read as 'en'"
COMMANDS = [
    "mine de.txt other.txt --model model --languages en,fr --output out.tsv",
    "mine de.txt en.txt --model model --languages en,de --output out.tsv",
    "score x.de.txt x.fr.txt --model model --languages en,fr --output out.tsv",
    "score pairs.tsv --model model --languages en,fr --source-pool x.de.txt --output out.tsv",
    "encode model --texts x.de.txt --languages en --output out",
    "encode model --texts en=x.de.txt --output out",
    "prune model --texts en=x.de.txt --output out",
    "debias fit model --texts en=x.de.txt --output out",
    "evaluate model --protocol tatoeba --data x.de.txt x.fr.txt --languages en,fr",
    "evaluate model --protocol language-bias --data topics.de.tsv --languages en",
]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("de.txt", "en.txt", "other.txt", "x.de.txt", "x.fr.txt"):
        Path(name).write_text("a\nb\n", "utf-8")
    Path("pairs.tsv").write_text("source\ttarget\na\tb\n", "utf-8")
    Path("topics.de.tsv").write_text("text\tlabel\na\t1\n", "utf-8")
    Path("model").mkdir()
    Path("model", "config.json").write_text('{"model_type": "bert"}', "utf-8")


@pytest.mark.parametrize("words", COMMANDS)
def test_contradiction_of_a_name_and_the_languages(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert CONTRADICTION in failing(capsys, *words.split())


@pytest.mark.parametrize(
    "words",
    [
        "mine de.txt de.txt --model model --languages en,fr --columns text=0 --output out.tsv",
        "encode model --texts en=x.de.txt --columns text=0 --output out",
        "score x.de.txt x.fr.txt --model model --languages en,fr --columns source=0,target=1 --output out.tsv",
    ],
)
def test_columns_override_the_name(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert "is named after" not in failing(capsys, *words.split())
