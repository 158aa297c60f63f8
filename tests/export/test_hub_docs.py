"""The Python code in docs/publish.md runs, on a Hub of this machine."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from hub_helpers import shared_hub, train, write_recipe

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "publish.md").read_text("utf-8")


@pytest.mark.slow
def test_page(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    hub, worker = shared_hub(tmp_path_factory.getbasetemp() / "hub_home")
    hub.forget()
    train(write_recipe(tmp_path), tmp_path / "outputs" / "quickstart")
    folder = f"import os; os.chdir({str(tmp_path)!r})\n"
    shell = next(re.finditer(r"```bash\n(.*?)```", PAGE, re.DOTALL))[1]
    commands = [shlex.split(line, comments=True)[1:] for line in shell.splitlines()]
    assert commands[0] == ["train", "quickstart"]
    here = Path.cwd()
    assert worker.python(folder).status == 0
    try:
        for words in commands[1:]:
            done = worker.command(*words)
            assert done.status == 0, done.err
        assert b"\nlicense: cc-by-sa-4.0\n" in hub.content("me/quickstart", "README.md")
        assert hub.repos["me/quickstart-training"].private
        for code in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL):
            done = worker.python(folder + code)
            assert done.status == 0, done.err
    finally:
        worker.python(f"import os; os.chdir({str(here)!r})")
    again = tmp_path / "outputs" / "again" / "training"
    assert (again / "recipe.json").is_file() and list(again.glob("checkpoint-*"))
