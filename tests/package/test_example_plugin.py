"""The plug-in of docs/extend.md, installed: each of its names works in the command, without a change of this package."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import make_pairs
from test_core_install import pip

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = Path(__file__).parent / "example_plugin"
PAGE = ROOT / "docs" / "extend.md"
ORIGIN = "xlsr-example 1.2.0"
TINY = """
languages: [en, de]
data: {train: {path: train.blocks}, max_length: 24}
model: {encoder: {path: ENCODER}}
training: {max_steps: 2, per_device_train_batch_size: 16, logging_steps: 1, save_strategy: "no", precision: float32}
"""
DISTILLATION = "method: distillation\nteacher: {path: ENCODER}\n" + TINY.replace(
    "model: {", "model: {teacher_loss: huber, "
)
CONTRAST_ONLY = "method: contrast_only\n" + TINY
COMMANDS = """
import json, sys
from hf_xlsr.cli import main
for words in json.loads(sys.argv[1]):
    print("#", *words, flush=True)
    if main(words):
        sys.exit(1)
"""


def test_page_has_the_files() -> None:
    """Those of the sections are blocks of the page, letter for letter."""
    text = PAGE.read_text("utf-8")
    blocks = dict(re.findall(r"^`(xlsr[\w./-]+)`.*?^```\w*\n(.*?)^```", text, re.MULTILINE | re.DOTALL))
    files = {"xlsr-example/pyproject.toml": EXAMPLE / "pyproject.toml"}
    for file in (EXAMPLE / "xlsr_example").glob("*.py"):
        if file.name != "__init__.py":
            files[f"xlsr_example/{file.name}"] = file
    assert blocks.keys() == files.keys()
    for name, file in files.items():
        assert blocks[name] == file.read_text("utf-8"), name


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of packages with the plug-in."""
    folder = tmp_path_factory.mktemp("plugin")
    shutil.copytree(EXAMPLE, folder / "source", ignore=shutil.ignore_patterns("__pycache__"))
    pip("install", "--no-build-isolation", "--target", str(folder / "site"), str(folder / "source"))
    return folder / "site"


def run(site: Path, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Python with the plug-in installed."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(site), str(ROOT)])}
    return subprocess.run(
        [sys.executable, *words], capture_output=True, text=True, cwd=folder, env=environment, check=False
    )


def write_blocks(file: Path, count: int, seed: int) -> None:
    """Pairs with a small word of each language, in the format of the plug-in's reader."""
    blocks = []
    for number, pair in enumerate(make_pairs(count, seed)):
        blocks.append(f"en: the {pair['source']} {seed} {number}\nde: das {pair['target']} {seed} {number}\n")
    file.write_text("\n".join(blocks), "utf-8")


def results_of(file: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(file.read_text("utf-8"))
    return content


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_every_name_works_in_the_command(site: Path, tmp_path: Path, tiny_export: str) -> None:
    write_blocks(tmp_path / "train.blocks", 200, 1)
    write_blocks(tmp_path / "known.blocks", 240, 2)
    with (tmp_path / "train.blocks").open("a", encoding="utf-8") as file:
        file.write("\nen: the http://a.b\nde: das http://a.b\n")
    for name, recipe in {"distillation": DISTILLATION, "contrast_only": CONTRAST_ONLY}.items():
        (tmp_path / f"{name}.yaml").write_text(recipe.replace("ENCODER", tiny_export), "utf-8")

    reading = ["--languages", "en,de"]
    evaluate = ["evaluate", tiny_export, "--protocol", "gap,xsim", "--data", "known.blocks", *reading, "--predictions"]
    steps = "no_addresses, language: {method: small-words}"
    commands = [
        [*evaluate, "--output", "a.json"],
        [*evaluate, "--output", "b.json", "--truncate-dim", "2"],
        ["compare", "a.json", "b.json", "--output", "table.md"],
        [
            "evaluate",
            f"one={tiny_export}",
            f"two={tiny_export}",
            "--protocol",
            "gap",
            "--data",
            "known.blocks",
            *reading,
        ]
        + ["--num-proc", "2", "--output", "suite"],
        ["clean", "train.blocks", *reading, "--steps", steps, "--output", "clean.tsv"],
        ["filter", "clean.tsv", "--model", tiny_export, *reading, "--known", "known.blocks"]
        + ["--identifier", "small-words", "--output", "kept.tsv"],
        ["train", "distillation.yaml", "--output_dir", "huber"],
        ["train", "contrast_only.yaml", "--output_dir", "contrast"],
        ["evaluate", "--list"],
    ]
    done = run(site, tmp_path, "-c", COMMANDS, json.dumps(commands))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "gap" in done.stdout.rpartition("--list")[2]

    content = results_of(tmp_path / "a.json")
    assert content["settings"]["plugins"] == {"protocol gap": ORIGIN, "format blocks": ORIGIN}
    assert content["metrics"]["known-gap/en-de/test/gap"] > 0
    table = (tmp_path / "table.md").read_text("utf-8")
    assert re.search(r"gap.*lower is better", table)

    assert "gap" in (tmp_path / "suite/table.md").read_text("utf-8")
    assert results_of(tmp_path / "suite/two/gap.json")["settings"]["plugins"]["protocol gap"] == ORIGIN

    facts = results_of(tmp_path / "clean.tsv.facts.json")["steps"][-1]
    assert facts["cleaning"]["pairs"]["no_addresses"] == {"in": 201, "out": 200, "changed": 0}
    assert facts["plugins"]["language identifier small-words"] == ORIGIN
    assert results_of(tmp_path / "kept.tsv.facts.json")["steps"][-1]["plugins"]["format blocks"] == ORIGIN

    assert results_of(tmp_path / "huber/results.json")["settings"]["plugins"]["teacher loss huber"] == ORIGIN
    assert results_of(tmp_path / "contrast/training/recipe.json")["plugins"]["method contrast_only"] == ORIGIN
    log = (tmp_path / "contrast/training/log.json").read_text("utf-8")
    assert "loss/alignment" in log
    assert "loss/generative" not in log
    assert rf"method contrast\_only of {ORIGIN}" in (tmp_path / "contrast/README.md").read_text("utf-8")


@pytest.mark.slow
def test_worker_processes_find_the_names(site: Path, tmp_path: Path) -> None:
    write_blocks(tmp_path / "train.blocks", 50, 1)
    steps = "no_addresses, language: {method: small-words}"
    words = ["clean", "train.blocks", "--languages", "en,de", "--steps", steps, "--num-proc", "2", "--json"]
    done = run(site, tmp_path, "-m", "hf_xlsr.cli", *words)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["pairs"] == 50


SCRIPT = """
from dataclasses import dataclass
from hf_xlsr.data.cleaning import Cleaner, Step, build_steps, register_step
from hf_xlsr.data.identification import register_identifier
from hf_xlsr.utils.tasks import LocalPool

@register_step
@dataclass(kw_only=True)
class Short(Step):
    name = "short"
    most: int = 5

    def keeps(self, row):
        return len(row["source"]) <= self.most

@register_identifier("always")
def always(text):
    return {"en": 1.0}

if __name__ == "__main__":
    rows = [{"source": "x" * n, "target": "y", "source_lang": "en", "target_lang": "en"} for n in range(1, 9)]
    steps = build_steps([{"short": {"most": 3}}, {"language": {"method": "always"}}])
    print(len(list(Cleaner(steps)(rows, runner=LocalPool(2)))))
"""


@pytest.mark.slow
def test_names_of_a_script_hold_in_its_worker_processes(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT, "utf-8")
    done = run(tmp_path, tmp_path, "script.py")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "3\n"


def test_help_imports_no_plugin(site: Path, tmp_path: Path) -> None:
    code = (
        "import sys\n"
        "from hf_xlsr.cli import main\n"
        "main(['--help'])\n"
        "from hf_xlsr.data.cleaning import build_steps\n"
        "build_steps(['normalize'])\n"
        "assert not [name for name in sys.modules if name.startswith('xlsr_example')]\n"
        "build_steps(['no_addresses'])\n"
        "assert 'xlsr_example.steps' in sys.modules and 'xlsr_example.methods' not in sys.modules\n"
    )
    done = run(site, tmp_path, "-c", code)
    assert done.returncode == 0, done.stderr
