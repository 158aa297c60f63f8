"""How many small faults the tests notice: changes one place of the code at a time, and runs the tests of its package.

    python tests/mutants.py --count 300 --seed 1

Faults are drawn by the seed and put into a copy of the repository, so the work tree never changes. Each result is a line
of `outputs/mutants/results-SEED.jsonl`; the same command goes on where it was stopped. At the end it prints the faults
that no test noticed, and their share with its 95 % interval.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from importlib import import_module
from multiprocessing import get_context
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
OUTPUT = ROOT / "outputs" / "mutants"
TREE = OUTPUT / "tree"
PACKAGES = {
    "hf_xlsr/data": ["tests/data"],
    "hf_xlsr/export": ["tests/export"],
    "hf_xlsr/runs": [
        "tests/runs",
        "tests/recipes",
        "tests/stories",
        "tests/export",
        "tests/data/test_sources.py",
        "tests/evaluation/test_command.py",
        "tests/trainers/test_pretrained_encoder.py",
    ],
    "trainers": ["tests/trainers"],
}
"""Packages whose code is changed, and the tests that should notice."""

LINKS = {"hf_xlsr/modeling": "modeling", "hf_xlsr/trainers": "trainers", "hf_xlsr/model_cards": "model_cards"}
PRELOADED = ("torch", "transformers.trainer", "sentence_transformers", "datasets", "pandas", "sklearn.linear_model")
"""Loaded once, before the tests of each fault run in a fork of this process."""

SWAPPED: dict[type, type] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult,
    ast.And: ast.Or,
    ast.Or: ast.And,
}
TEXTS = ("description", "desc", "help", "match")
"""Arguments that only people read."""

TYPES = ("Annotated", "Callable", "Iterator", "Literal", "Mapping", "dict", "tuple")
"""What is subscripted in types."""


# --- Faults --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Fault:
    """A change of the bytes from `start` to `end` of a file."""

    path: str
    line: int
    kind: str
    start: int
    end: int
    before: str
    after: str

    def apply(self, source: bytes) -> bytes:
        return source[: self.start] + self.after.encode() + source[self.end :]

    def key(self, source: bytes) -> str:
        """The same for the same fault in the same file."""
        return hashlib.sha256(self.path.encode() + self.apply(source)).hexdigest()


class FaultFinder(ast.NodeVisitor):
    """Collects the faults that a file can have. Messages, logs and types have none."""

    def __init__(self, path: str, source: bytes) -> None:
        self.path = path
        self.source = source
        self.faults: list[Fault] = []
        sizes = [len(line) for line in source.splitlines(keepends=True)]
        self.line_starts = [sum(sizes[:number]) for number in range(len(sizes))]

    def add(self, node: Any, kind: str, after: str) -> None:
        start = self.line_starts[node.lineno - 1] + node.col_offset
        end = self.line_starts[node.end_lineno - 1] + node.end_col_offset
        before = self.source[start:end].decode()
        fault = Fault(self.path, node.lineno, kind, start, end, before, after)
        try:
            compile(fault.apply(self.source), self.path, "exec")
        except SyntaxError:  # such as an empty set
            return
        self.faults.append(fault)

    def replace(self, node: Any, kind: str, **changes: Any) -> None:
        """Adds a fault that changes some fields of an expression."""
        fields = {name: value for name, value in ast.iter_fields(node)}
        changed = type(node)(**{**fields, **changes})
        self.add(node, kind, f"({ast.unparse(ast.fix_missing_locations(changed))})")

    # Parts without faults.

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        """Positions inside of it are not known before Python 3.12."""

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)

    def visit_Subscript(self, node: ast.Subscript) -> None:
        if ast.unparse(node.value) not in TYPES:
            self.generic_visit(node)

    def visit_arguments(self, node: ast.arguments) -> None:
        for default in (*node.defaults, *node.kw_defaults):
            if default is not None:
                self.visit(default)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        self.visit(node.args)
        for statement in node.body:
            self.visit(statement)

    def visit_If(self, node: ast.If) -> None:
        if ast.unparse(node.test) == "TYPE_CHECKING":
            return
        self.add(node.test, "condition", f"(not ({ast.unparse(node.test)}))")
        self.generic_visit(node)

    # Statements.

    def visit_Expr(self, node: ast.Expr) -> None:
        text = ast.unparse(node)
        documents = isinstance(node.value, ast.Constant)
        if not documents and not text.startswith(("logger.", "print(", "yield")):
            self.add(node, "statement left out", "pass")
        if not documents and not text.startswith("logger."):
            self.generic_visit(node)

    def visit_Raise(self, node: ast.Raise) -> None:
        self.add(node, "error left out", "pass")

    def leave_out(self, node: ast.AST) -> None:
        self.add(node, "statement left out", "pass")
        self.generic_visit(node)

    visit_AugAssign = visit_Continue = visit_Break = leave_out

    # Expressions.

    def visit_Compare(self, node: ast.Compare) -> None:
        swapped = SWAPPED[type(node.ops[0])]()
        self.replace(node, "comparison", ops=[swapped, *node.ops[1:]])
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        self.replace(node, "and, or", op=SWAPPED[type(node.op)]())
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        if type(node.op) in SWAPPED:
            self.replace(node, "arithmetic", op=SWAPPED[type(node.op)]())
        self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        if isinstance(node.op, ast.Not):
            self.add(node, "not left out", f"({ast.unparse(node.operand)})")
        self.generic_visit(node)

    def visit_IfExp(self, node: ast.IfExp) -> None:
        self.replace(node, "condition", body=node.orelse, orelse=node.body)
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, bool):
            self.add(node, "constant", str(not node.value))
        elif isinstance(node.value, int | float):
            self.add(node, "constant", str(node.value + 1))

    def visit_Call(self, node: ast.Call) -> None:
        for number, keyword in enumerate(node.keywords):
            if keyword.arg not in TEXTS:
                rest = [*node.keywords[:number], *node.keywords[number + 1 :]]
                self.replace(node, "argument left out", keywords=rest)
        self.visit(node.func)
        for argument in node.args:
            self.visit(argument)
        for keyword in node.keywords:
            if keyword.arg not in TEXTS:
                self.visit(keyword.value)

    def visit_Dict(self, node: ast.Dict) -> None:
        for number in range(len(node.keys)):
            keys = [*node.keys[:number], *node.keys[number + 1 :]]
            values = [*node.values[:number], *node.values[number + 1 :]]
            self.replace(node, "item left out", keys=keys, values=values)
        self.generic_visit(node)

    def visit_items(self, node: Any) -> None:
        if len(node.elts) > 1 and isinstance(node.ctx, ast.Load):
            for number in range(len(node.elts)):
                rest = [*node.elts[:number], *node.elts[number + 1 :]]
                self.replace(node, "item left out", elts=rest)
        self.generic_visit(node)

    visit_Tuple = visit_List = visit_items


def faults_of(path: str, source: bytes) -> list[Fault]:
    """All faults that a file can have.

    Examples:
        >>> [fault.after for fault in faults_of("a.py", b"if a < 2:\\n    b()\\n")]
        ['(not (a < 2))', '(a <= 2)', '3', 'pass']
    """
    finder = FaultFinder(path, source)
    finder.visit(ast.parse(source))
    return finder.faults


def drawn_faults(packages: list[str], count: int, seed: int) -> list[Fault]:
    """Faults of some packages, each file in proportion to its code."""
    faults: list[Fault] = []
    for package in packages:
        for file in sorted((ROOT / package).rglob("*.py")):
            faults += faults_of(str(file.relative_to(ROOT)), file.read_bytes())
    return random.Random(seed).sample(faults, min(count, len(faults)))


# --- Tests ---------------------------------------------------------------------------------------------------------


def tests_of(path: str) -> list[str]:
    """The test files of a file's package, those that name its module first."""
    module = re.compile(rf"\b{Path(path).stem}\b")
    first: list[str] = []
    others: list[str] = []
    for folder in PACKAGES[package_of(path)]:
        for file in sorted((TREE / folder).glob("test_*.py")):
            group = first if module.search(file.read_text("utf-8")) else others
            group.append(str(file.relative_to(TREE)))
    return first + others


def package_of(path: str) -> str:
    return next(package for package in PACKAGES if path.startswith(f"{package}/"))


def copy_tree() -> None:
    """Copies the files of the repository, with links as they are in an installation."""
    shutil.rmtree(TREE, ignore_errors=True)
    for name in repository_files():
        target = TREE / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, target)
    for link, room in LINKS.items():
        (TREE / link).symlink_to(TREE / room)


def repository_files() -> list[str]:
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    return sorted(name for name in names if (ROOT / name).is_file())


def repository_hash() -> str:
    digest = hashlib.sha256()
    for name in repository_files():
        digest.update(name.encode() + (ROOT / name).read_bytes())
    return digest.hexdigest()


def _run_pytest(tests: list[str], log: Path) -> None:
    """In a fork: runs fast tests until one fails, and exits with the status of pytest."""
    os.setsid()
    os.chdir(TREE)
    with log.open("wb") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    sys.path[0] = str(TREE)  # instead of the folder of this script
    os.environ["PYTHONPATH"] = str(TREE)
    import pytest

    flags = ["-q", "-x", "-m", "not slow", "--timeout=120", "-p", "no:cacheprovider", "--tb=line"]
    os._exit(int(pytest.main([*flags, *tests])))


def run_tests(tests: list[str], limit: float) -> tuple[str, float]:
    """Runs tests in the copy: `passed`, or the test that failed or was too slow; and the seconds it took."""
    log = OUTPUT / "log.txt"
    started = time.monotonic()
    process = get_context("fork").Process(target=_run_pytest, args=(tests, log))
    process.start()
    try:
        process.join(limit)
        stuck = process.is_alive()
    finally:
        if process.is_alive() and process.pid is not None:
            os.killpg(process.pid, signal.SIGKILL)
            process.join()

    seconds = round(time.monotonic() - started, 1)
    if process.exitcode == 0:
        return "passed", seconds
    failure = re.search(r"^(?:FAILED|ERROR) (\S+)", log.read_text("utf-8", "replace"), re.MULTILINE)
    if failure:
        return failure[1], seconds
    return "stuck" if stuck else f"status {process.exitcode}", seconds


def preload() -> None:
    """Imports what tests need but this package, whose code is changed."""
    modules = tempfile.mkdtemp(prefix="hf-xlsr-modules-")
    os.environ.update(HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false", OMP_NUM_THREADS="1")
    os.environ["HF_MODULES_CACHE"] = modules
    sys.dont_write_bytecode = True  # files that change within a second have the same time
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    for name in PRELOADED:
        import_module(name)


# --- Results -------------------------------------------------------------------------------------------------------


class Results:
    """What is known of each fault, as lines of a file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.by_key: dict[str, dict[str, Any]] = {}
        if path.is_file():
            *lines, _ = path.read_text("utf-8").split("\n")  # a killed process may have left the last one incomplete
            path.write_text("".join(f"{line}\n" for line in lines), "utf-8")
            self.by_key = {row["key"]: row for row in map(json.loads, lines)}

    def add(self, key: str, **values: Any) -> None:
        self.by_key[key] = {"key": key, **values}
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(self.by_key[key]) + "\n")


def check_baseline(package: str, results: Results) -> float:
    """Seconds of a package's tests without a fault; an error if one fails."""
    key = f"{package} {repository_hash()}"
    if key not in results.by_key:
        outcome, seconds = run_tests(tests_of(f"{package}/none.py"), limit=3600)
        if outcome != "passed":
            raise SystemExit(f"{outcome} fails without any fault; see {OUTPUT / 'log.txt'}.")
        results.add(key, seconds=seconds)
    return float(results.by_key[key]["seconds"])


def try_fault(fault: Fault, limit: float) -> tuple[str, float]:
    """Runs the tests with a fault in the copy, which is taken out again."""
    source = (ROOT / fault.path).read_bytes()
    target = TREE / fault.path
    target.write_bytes(fault.apply(source))
    try:
        return run_tests(tests_of(fault.path), limit)
    finally:
        target.write_bytes(source)


def summary(rows: list[dict[str, Any]]) -> str:
    """The faults that were not noticed, and their share."""
    from scipy.stats import binomtest

    survivors = [row for row in rows if row["outcome"] == "passed"]
    survivors.sort(key=lambda row: (row["path"], row["line"]))
    lines = []
    for row in survivors:
        before = " ".join(row["before"].split())[:70]
        after = " ".join(row["after"].split())[:70]
        lines.append(f"{row['path']}:{row['line']}: {row['kind']}: {before} -> {after}")
    if rows:
        interval = binomtest(len(survivors), len(rows)).proportion_ci(method="wilson")
        share = len(survivors) / len(rows)
        ends = f"{interval.low:.1%} to {interval.high:.1%}"
        lines.append(f"{len(survivors)} of {len(rows)} faults survived: {share:.1%}, 95 % interval {ends} (Wilson)")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=300, help="faults to draw")
    parser.add_argument("--package", choices=PACKAGES, help="draw faults of one package")
    parser.add_argument("--seed", type=int, default=1, help="draws the faults")
    parser.add_argument("--survivors", action="store_true", help="try those again that no test noticed")
    options = parser.parse_args()
    packages = [options.package] if options.package else list(PACKAGES)

    OUTPUT.mkdir(parents=True, exist_ok=True)
    results = Results(OUTPUT / f"results-{options.seed}.jsonl")
    faults = drawn_faults(packages, options.count, options.seed)
    keys = {fault: fault.key((ROOT / fault.path).read_bytes()) for fault in faults}

    def is_open(fault: Fault) -> bool:
        result = results.by_key.get(keys[fault])
        return result is None or (options.survivors and result["outcome"] == "passed")

    waiting = [fault for fault in faults if is_open(fault)]
    if waiting:
        copy_tree()
        preload()
    for number, fault in enumerate(waiting, 1):
        limit = 60 + 3 * check_baseline(package_of(fault.path), results)
        outcome, seconds = try_fault(fault, limit)
        results.add(keys[fault], outcome=outcome, seconds=seconds, **asdict(fault))
        print(f"{number}/{len(waiting)} {fault.path}:{fault.line} {fault.kind}: {outcome} ({seconds} s)", flush=True)
    print(summary([results.by_key[keys[fault]] for fault in faults]))


if __name__ == "__main__":
    main()
