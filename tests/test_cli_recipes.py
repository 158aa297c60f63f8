from __future__ import annotations

import argparse

import pytest

from hf_xlsr.cli.recipes import add_keys_help


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="hf-xlsr train")
    parser.add_argument("recipe")
    parser.add_argument("--show", action="store_true")
    add_keys_help(parser)
    return parser


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--help"], "  max_length (a whole number; 200)"),
        (["translation", "--help"], "  max_length (a whole number; 128)"),
        (["hictl_open", "-h"], "  negative_words (a whole number; 512)"),
    ],
)
def test_help_shows_the_keys(words: list[str], expected: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parser().parse_args(words)
    shown = capsys.readouterr().out
    assert ended.value.code in (0, None) and expected in shown and "--show" in shown


def test_help_of_what_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parser().parse_args(["translatoin", "--help"])
    assert ended.value.code == 1 and "did you mean 'translation'" in capsys.readouterr().err
