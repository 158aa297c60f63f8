"""What a user can type is declared once: each option is shown, documented and reaches the verb."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import numpy as np
import pytest
from cli_helpers import failing

from docs.command import commands, option_rows, options_of
from hf_xlsr.cli import main
from hf_xlsr.cli.app import VERBS, load_verb
from hf_xlsr.cli.encode import EncodeOptions, encode
from hf_xlsr.cli.verbs import REPEATED_ONLY
from hf_xlsr.runs.own_data import OWN_OPTIONS, OwnData
from hf_xlsr.runs.recipe import load_runs

COMMANDS = dict(commands())
OF_RECIPES = ("train", "prepare")
EVERY_COMMAND = pytest.mark.parametrize("words", COMMANDS)


def declared(words: str) -> Iterator[tuple[str, Any, Any]]:
    """Name, type and declaration of each field of a command's options."""
    options = options_of(COMMANDS[words])
    hints = get_type_hints(options, include_extras=True)
    for field in fields(options):
        hint, declaration = get_args(hints[field.name])
        yield field.name, hint, declaration


def sample(hint: Any, declaration: Any) -> tuple[list[str], Any]:
    """Words for an option of a type, and the value that they mean."""
    for kind in (hint, *get_args(hint)):
        if get_origin(kind) is Literal:
            choice = get_args(kind)[-1]
            return [choice], choice
    text = repr(hint)
    if "list[str]" in text:
        return ["one", "two=2"], ["one", "two=2"]
    if hint is bool:
        return [], True
    if "int" in text:
        number = int(declaration.min or 0) + 1
        return [str(number)], number
    if "float" in text:
        return ["0.25"], 0.25
    assert "str" in text
    return ["some text"], "some text"


@EVERY_COMMAND
def test_every_option_is_shown(
    words: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert main([*words.split(), "--help"]) == 0
    written = " ".join(capsys.readouterr().out.replace("│", " ").split())

    rows = list(option_rows(COMMANDS[words]))
    assert len(rows) == len(list(declared(words)))
    for name, _, _, meaning in rows:
        assert name.lower() in written.lower()
        assert meaning
        assert meaning[:60] in written


@EVERY_COMMAND
@pytest.mark.parametrize("spelling", ["-", "_"])
def test_every_option_reaches_the_verb(words: str, spelling: str) -> None:
    """All options in one command line, as typed, in the dataclass."""
    verb, *subcommand = words.split()
    command = load_verb(verb)
    for name in subcommand:
        command = command.commands[name]
    command.callback = options_of(command)
    parameters = {parameter.name: parameter for parameter in command.params}

    arguments: list[str] = []
    options: list[str] = []
    expected: dict[str, Any] = {}
    for name, hint, declaration in declared(words):
        texts, expected[name] = sample(hint, declaration)
        if parameters[name].param_type_name != "option":
            arguments += texts
            continue
        option = "--" + parameters[name].opts[0].removeprefix("--").replace("-", spelling)
        if name in REPEATED_ONLY:
            for text in texts:
                options += [option, text]
        else:
            options += [option, *texts]

    result = command.main([*arguments, *options], standalone_mode=False)
    for name, value in expected.items():
        assert getattr(result, name) == value


@EVERY_COMMAND
def test_defaults_are_those_of_python(words: str) -> None:
    parameters = {parameter.name: parameter for parameter in COMMANDS[words].params}
    for field in fields(options_of(COMMANDS[words])):
        parameter = parameters[field.name]
        assert parameter.required == (field.default is MISSING)
        if not parameter.required:
            assert parameter.default == field.default


@pytest.mark.parametrize("verb", VERBS)
def test_summary_is_the_first_line_of_the_help(verb: str) -> None:
    assert load_verb(verb).help.split("\n")[0] == VERBS[verb][1]


@EVERY_COMMAND
def test_help_has_an_example_that_can_be_typed(words: str) -> None:
    command = COMMANDS[words]
    _, _, example = command.help.partition("\nExample: hf-xlsr ")
    assert example.startswith(f"{words} ")
    arguments = shlex.split(example.removeprefix(words))
    command.make_context(words, arguments)


@EVERY_COMMAND
def test_an_unknown_option_is_one_short_line(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    """With few close names: of options of the verb, and of keys of a recipe."""
    start = words.split()
    if words in OF_RECIPES:
        start.append("quickstart")

    error = failing(capsys, *start, "--zzzzzz", "1")
    assert "--zzzzzz" in error
    assert len(error) < 120

    for name, *_ in option_rows(COMMANDS[words]):
        is_key = words in OF_RECIPES and name.removeprefix("--") not in OWN_OPTIONS
        if name.startswith("--") and not is_key:
            error = failing(capsys, *start, f"{name}q", "1")
            assert name in error.replace(f"{name}q", "")
            assert len(error) < 250


def test_python_takes_the_same_options(tiny_export: str, tmp_path: Path) -> None:
    file = tmp_path / "en.txt"
    file.write_text("one\ntwo\nthree\n", "utf-8")
    texts = f"en={file}"
    typed_output = tmp_path / "typed"
    called_output = tmp_path / "called"

    assert main(["encode", tiny_export, "--texts", texts, "--limit", "2", "--output", str(typed_output)]) == 0
    encode(EncodeOptions(model=tiny_export, texts=[texts], limit=2, output=str(called_output)))

    typed = np.load(typed_output / "en.npy")
    called = np.load(called_output / "en.npy")
    assert len(called) == 2
    np.testing.assert_array_equal(typed, called)


def test_own_data_of_python_and_of_words() -> None:
    words = ["--train", "[a.tsv, b.tsv]", "--dev", "null", "--languages", "en,de", "--encoder", "some/id"]
    (typed,) = load_runs("finetune", words)
    own_data = OwnData(train=["a.tsv", "b.tsv"], dev=[], languages=["en", "de"], encoder=["some/id"])
    (called,) = load_runs("finetune", own_data=own_data)

    assert typed.recipe.settings() == called.recipe.settings()
    assert called.recipe.data.dev == []
    assert called.recipe.languages == ["en", "de"]
    declared_names = {name for name, _, _ in declared("train")}
    assert declared_names >= set(OWN_OPTIONS)
