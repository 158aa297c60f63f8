"""Attacks: recipes, suites and paths that name variables of the environment, such as an access token."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest
import yaml
from cli_helpers import failing

from hf_xlsr.evaluation.suites.suite import evaluate_suite, load_suite
from hf_xlsr.utils.errors import XlsrError, error_line
from hf_xlsr.utils.variables import expand, variables_of

ROOT = Path(__file__).resolve().parents[2]
SECRET = "a-secret-of-the-environment"
TOKEN = "hf_" + "Q" * 34
PLACES = [
    "output_dir",
    "start_from",
    "tokenizer.path",
    "model.encoder.path",
    "data.train.path",
    "data.dev.path",
    "evaluation.guard.path",
]


@pytest.fixture(autouse=True)
def secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BANK_PIN", SECRET)
    monkeypatch.setenv("HF_TOKEN", TOKEN)


def recipe_with(place: str, value: str, pairs: str) -> dict[str, Any]:
    """A recipe whose value at a dotted key is this one."""
    recipe: dict[str, Any] = {"method": "lightweight", "languages": ["en", "fr"], "data": {"train": {"path": pairs}}}
    section = recipe
    *outer, last = place.split(".")
    for name in outer:
        section = section.setdefault(name, {})
    section[last] = value
    return recipe


@pytest.mark.parametrize("variable", ["$BANK_PIN", "${HF_TOKEN}"])
@pytest.mark.parametrize("place", PLACES)
def test_recipe_does_not_read_the_environment(
    place: str,
    variable: str,
    write_pairs: Any,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    pairs = str(write_pairs(tmp_path / "pairs.tsv"))
    file = tmp_path / "recipe.yaml"
    file.write_text(yaml.safe_dump(recipe_with(place, f"./{variable}/x", pairs)))

    error = failing(capsys, "train", str(file))

    assert variable.strip("${}") in error
    assert SECRET not in error
    assert sorted(path.name for path in tmp_path.iterdir()) == ["pairs.tsv", "recipe.yaml"]


@pytest.mark.parametrize("place", ["model", "data", "options"])
def test_suite_does_not_read_the_environment(place: str, tiny_export: str, tmp_path: Path) -> None:
    values = {"model": tiny_export, "data": "pairs.tsv", "options": "ids.txt", place: "./$BANK_PIN"}
    task = {"protocol": "bucc", "data": [values["data"]], "options": {"gold": values["options"]}}
    file = tmp_path / "suite.yaml"
    file.write_text(yaml.safe_dump({"encoders": {"m": {"model": values["model"]}}, "tasks": {"t": task}}))

    with pytest.raises(XlsrError, match="BANK_PIN") as error:
        evaluate_suite(load_suite(file), tmp_path / "results")

    assert SECRET not in str(error.value)


def test_own_variables_are_expanded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_XLSR_DATA", "/corpora")
    assert expand(["$HF_XLSR_DATA/a", "${HF_XLSR_DATA}b", "5$", "$5"]) == ["/corpora/a", "/corporab", "5$", "$5"]


def test_variable_that_holds_a_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_XLSR_RUN", TOKEN)
    with pytest.raises(XlsrError, match="access token"):
        expand("outputs/$HF_XLSR_RUN")


def test_variables_are_named_once() -> None:
    assert variables_of(["$A/${B}", "$A/$1/${", Path("$C")]) == ["A", "B", "C"]


def test_errors_show_no_token() -> None:
    assert TOKEN not in str(XlsrError(f"'{TOKEN}' is missing."))


@pytest.mark.parametrize("longest", range(20, 60))
def test_truncated_errors_show_no_part_of_a_token(longest: int) -> None:
    assert TOKEN[:8] not in error_line(f"refused for the user {TOKEN} today", longest)


@pytest.mark.parametrize("package", ["hf_xlsr", "modeling", "trainers"])
def test_environment_is_read_by_fixed_names(package: str) -> None:
    """Only one function reads a variable whose name comes from elsewhere."""
    places = []
    for file in (ROOT / package).rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if reads_a_variable(node):
                places.append(file.relative_to(ROOT).as_posix())

    allowed = {"hf_xlsr/utils/variables.py", "hf_xlsr/utils/redaction.py"}
    assert set(places) <= allowed


def reads_a_variable(node: ast.AST) -> bool:
    """Whether code expands variables, or looks up one whose name is neither written there nor a constant."""
    match node:
        case ast.Attribute(attr="expandvars" | "environb"):
            return True
        case ast.Subscript(value=ast.Attribute(attr="environ"), slice=name):
            return not (isinstance(name, ast.Constant) or ast.unparse(name).isupper())
        case ast.Call(func=ast.Attribute(value=ast.Attribute(attr="environ"), attr="get"), args=[name, *_]):
            return not (isinstance(name, ast.Constant) or ast.unparse(name).isupper())
        case ast.Call(func=ast.Attribute(attr="getenv"), args=[name, *_]):
            return not (isinstance(name, ast.Constant) or ast.unparse(name).isupper())
    return False


def test_scan_finds_a_new_place() -> None:
    code = "os.path.expandvars(path); os.environ[name]; os.environ.get(name, ''); os.getenv(name)"
    found = [node for node in ast.walk(ast.parse(code)) if reads_a_variable(node)]
    assert len(found) == 4
