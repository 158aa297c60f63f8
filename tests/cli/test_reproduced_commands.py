"""The command that facts state is the one that was typed, without folders."""

from __future__ import annotations

import shlex

import pytest

from hf_xlsr.cli.filter import FilterVerbOptions
from hf_xlsr.cli.mine import MineOptions
from hf_xlsr.cli.reproduce import command_of


def words_of(options: MineOptions | FilterVerbOptions, verb: str) -> list[str]:
    return shlex.split(command_of(verb, options))[2:]


def test_files_of_one_name_stay_different() -> None:
    options = MineOptions(source="in/a/text.txt", target="in/b/text.txt", output="in/../in/a/text.txt")
    assert words_of(options, "mine") == ["text.txt", "2-text.txt", "--output", "text.txt"]


def test_names_of_outputs_are_no_ids_of_the_hub() -> None:
    options = MineOptions(source="owner/en", target="owner/de", output="acme/mined.tsv", model="owner/model")
    words = words_of(options, "mine")
    assert words[:2] == ["owner/en", "owner/de"]
    assert words[words.index("--output") + 1] == "mined.tsv"
    assert words[words.index("--model") + 1] == "owner/model"


@pytest.mark.parametrize(
    "step",
    [
        "language: {method: 'fasttext:~/some one/lid.ftz'}",
        r"language: {method: \\server\someone\lid.ftz}",
        "language: {method: file:///mnt/someone/lid.ftz}",
    ],
)
def test_no_folder_of_a_step_is_left(step: str) -> None:
    command = command_of("mine", MineOptions(source="a", target="b", output="c", cleaning=step))
    assert "lid.ftz" in command
    assert "some" not in command
