"""Commands and recipes of docs/scale.md are taken by the launchers and by the check of recipes."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from accelerate.commands.launch import launch_command_parser
from torch.distributed.run import get_args_parser

from hf_xlsr.runs.recipe import load_runs, parse_yaml

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "scale.md").read_text("utf-8")
COMMANDS = [line for block in re.findall(r"```bash\n(.*?)```", PAGE, flags=re.DOTALL) for line in block.splitlines()]
PARTS = re.findall(r"```yaml\n(.*?)```", PAGE, flags=re.DOTALL)


@pytest.mark.parametrize("command", COMMANDS)
def test_launchers_take_the_commands(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_XLSR_DATA", "data")
    program, *words = shlex.split(command)
    parser = get_args_parser() if program == "torchrun" else launch_command_parser()
    parsed = parser.parse_args(words if program == "torchrun" else words[1:])
    assert parsed.training_script == "train.py"
    recipe, *options = parsed.training_script_args
    assert (ROOT / recipe).is_file() and load_runs(str(ROOT / recipe), options)


@pytest.mark.parametrize("part", PARTS)
def test_parts_of_recipes_fit(part: str, tmp_path: Path) -> None:
    recipe = tmp_path / "mine.yaml"
    recipe.write_text(f"base: quickstart\n{part}", "utf-8")
    (resolved,) = load_runs(str(recipe))
    for section, content in parse_yaml(part, "part").items():
        if isinstance(content, dict):
            assert content.items() <= resolved[section].items()
        else:
            assert resolved[section] == content


def test_every_method_stands_in_the_table() -> None:
    from hf_xlsr.runs.methods import METHODS

    assert all(f"| `{name}` |" in PAGE for name in METHODS)
