"""What a user can type is declared once: each option is shown, documented and reaches the verb."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import numpy as np
import pytest
from cli_helpers import failing

from hf_xlsr.cli import main
from hf_xlsr.cli.app import VERBS, load_verb
from hf_xlsr.cli.encode import EncodeOptions, encode
from hf_xlsr.cli.reference import COMMAND, commands, option_rows, options_of, reference
from hf_xlsr.runs.own_data import OWN_OPTIONS, OwnData
from hf_xlsr.runs.recipe import load_runs

PAGE = Path(__file__).resolve().parents[2] / "docs" / "command.md"
COMMANDS = dict(commands())
EVERY_COMMAND = pytest.mark.parametrize("words", COMMANDS)


def declared(words: str) -> Iterator[tuple[str, Any, Any]]:
    """Name, type and declaration of each field of a command's options."""
    options = options_of(COMMANDS[words])
    hints = get_type_hints(options, include_extras=True)
    for field in fields(options):
        hint, declaration = get_args(hints[field.name])
        yield field.name, hint, declaration


def samples(hint: Any, declaration: Any) -> tuple[list[str], Any]:
    """Words for an option of a type, and the value that they mean."""
    kinds = [kind for kind in get_args(hint) or (hint,) if kind is not type(None)]
    if get_origin(hint) is Literal:
        return [kinds[-1]], kinds[-1]
    (kind,) = kinds if get_origin(hint) is not list else (hint,)
    if get_origin(kind) is list:
        return ["one", "two=2"], ["one", "two=2"]
    number = str(int(declaration.min or 0) + 1)
    texts: dict[Any, list[str]] = {bool: [], int: [number], float: ["0.25"], str: ["some text"]}
    return texts[kind], kind(*texts[kind]) if texts[kind] else True


@EVERY_COMMAND
def test_every_option_is_shown(
    words: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert main([*words.split(), "--help"]) == 0
    written = " ".join(capsys.readouterr().out.replace("│", " ").split())
    for name, _, meaning_of in declared(words):
        assert meaning_of.help, name
    for name, _, _, meaning in option_rows(COMMANDS[words]):
        assert name.lower() in written.lower()
        assert " ".join(meaning.split())[:60] in written


@EVERY_COMMAND
@pytest.mark.parametrize("spelling", ["-", "_"])
def test_every_option_reaches_the_verb(words: str, spelling: str) -> None:
    """All options in one command line, as typed, in the dataclass."""
    command = load_verb(words.split()[0])
    command = getattr(command, "commands", {}).get(words.split()[-1], command)
    command.callback = options_of(command)
    parameters = {parameter.name: parameter for parameter in command.params}
    options, arguments, expected = [], [], {}
    for name, hint, declaration in declared(words):
        texts, expected[name] = samples(hint, declaration)
        if parameters[name].param_type_name == "option":
            option = parameters[name].opts[0].removeprefix("--").replace("-", spelling)
            separate = [word for text in texts for word in (f"--{option}", text)]
            options += separate if name == "prompt" else [f"--{option}", *texts]
        else:
            arguments += texts
    found = command.main([*arguments, *options], standalone_mode=False)
    assert {name: getattr(found, name) for name in expected} == expected


@EVERY_COMMAND
def test_defaults_are_those_of_python(words: str) -> None:
    for field in fields(options_of(COMMANDS[words])):
        parameter = next(one for one in COMMANDS[words].params if one.name == field.name)
        assert parameter.required == (field.default is MISSING)
        assert parameter.default == (None if parameter.required else field.default)


def test_page_is_up_to_date() -> None:
    assert PAGE.read_text("utf-8") == reference(), f"write it again: {COMMAND}"


@pytest.mark.parametrize("verb", VERBS)
def test_summary_is_the_first_line_of_the_help(verb: str) -> None:
    assert load_verb(verb).help.split("\n")[0] == VERBS[verb][2]


@EVERY_COMMAND
def test_an_unknown_option_is_one_short_line(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    """With few close names: of options of the verb, and of keys of a recipe."""
    start = [*words.split(), "quickstart"] if words in ("train", "prepare") else words.split()
    unlike = failing(capsys, *start, "--zzzzzz", "1")
    assert "--zzzzzz" in unlike and len(unlike) < 120
    for name, *_ in option_rows(COMMANDS[words]):
        if name.startswith("--") and name not in ("--KEY VALUE", "--only", "--show", "--num-proc"):
            error = failing(capsys, *start, f"{name}q", "1")
            assert f"{name}q" in error and name in error.replace(f"{name}q", "") and len(error) < 250


def test_python_takes_the_same_options(tiny_export: str, tmp_path: Path) -> None:
    (tmp_path / "en.txt").write_text("one\ntwo\nthree\n", "utf-8")
    words = [tiny_export, "--texts", f"en={tmp_path / 'en.txt'}", "--limit", "2", "--output", str(tmp_path / "typed")]
    assert main(["encode", *words]) == 0
    texts = [f"en={tmp_path / 'en.txt'}"]
    encode(EncodeOptions(model=tiny_export, texts=texts, limit=2, output=str(tmp_path / "called")))
    typed, called = (np.load(tmp_path / folder / "en.npy") for folder in ("typed", "called"))
    assert len(called) == 2
    np.testing.assert_array_equal(typed, called)


def test_own_data_of_python_and_of_words() -> None:
    own = OwnData(train=["a.tsv", "b.tsv"], dev=["null"], languages=["en", "de"], encoder=["some/id"])
    words = ["--train", "[a.tsv, b.tsv]", "--dev", "null", "--languages", "en,de", "--encoder", "some/id"]
    typed, called = (load_runs("finetune", more, own_data=data)[0] for more, data in ((words, None), ((), own)))
    assert typed.recipe.settings() == called.recipe.settings()
    assert called.recipe.data.dev == [] and called.recipe.languages == ["en", "de"]
    assert {name for name, _, _ in declared("train")} >= set(OWN_OPTIONS)
