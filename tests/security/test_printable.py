"""Names and texts of others reach a terminal, a table or a picture without what a terminal or a spreadsheet obeys."""

from __future__ import annotations

import ast
import csv
import io
import logging
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from call_sites import ROOT, CallSite, call_sites, places_of
from cli_helpers import failing
from matplotlib.figure import Figure
from result_helpers import results

from hf_xlsr.cli import main
from hf_xlsr.evaluation.before_after import changes_table
from hf_xlsr.evaluation.comparison import compare_encoders
from hf_xlsr.evaluation.comparison_files import render_tables, terminal_table
from hf_xlsr.evaluation.plots.common import save_figure
from hf_xlsr.evaluation.report import results_table
from hf_xlsr.evaluation.results import Results
from hf_xlsr.export.card import code, prose
from hf_xlsr.utils.console import SafeConsole, log_printable, say
from hf_xlsr.utils.markdown import escape_markdown
from hf_xlsr.utils.printable import csv_text, printable

# Escape sequences of one and of several bytes, other control characters, marks of direction, invisible characters.
HARMFUL = "\x1b[2J\x9b31m\x07\x08\x00\x7f\x85\u202e\u2066\u200e\u200b\ufeff\U000e0041\ud800"
NAME = f"base{HARMFUL}\rline"
OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u202a-\u202e\u2060-\u2069\ufeff]")


def measured(name: str) -> Results:
    return results({f"{name}-xsim/en-fr/test/error": 0.5})


def on_console(renderable: object) -> str:
    stream = io.StringIO()
    SafeConsole(file=stream, width=200).print(renderable)
    return stream.getvalue()


def in_comparison(ending: str) -> str:
    tables = compare_encoders({NAME: {"metrics": measured("a"), "data_sha256": {}}})
    return on_console(terminal_table(tables[0])) if ending == "terminal" else render_tables(tables, ending)


WAYS: dict[str, Callable[[], str]] = {
    "text": lambda: printable(NAME),
    "console": lambda: on_console(NAME),
    "results": lambda: on_console(results_table(measured("a"), NAME)),
    "guards": lambda: on_console(changes_table({}, NAME)),
    "comparison": lambda: in_comparison("terminal"),
    "comparison.md": lambda: in_comparison(".md"),
    "comparison.csv": lambda: in_comparison(".csv").replace("\r\n", "\n"),
    "comparison.tex": lambda: in_comparison(".tex"),
    "markdown": lambda: escape_markdown(NAME),
    "card": lambda: prose(NAME),
    "card, code": lambda: code(NAME),
}


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_no_terminal_obeys(way: Callable[[], str]) -> None:
    shown = way()
    assert not OBEYED.search(shown)
    assert "base" in shown


def test_texts_stay_readable() -> None:
    text = "نمی‌خواهم \U0001f469‍\U0001f52c naïve 漢字\n\tnext"
    assert printable(text) == text


def test_print_and_log(capsys: pytest.CaptureFixture[str]) -> None:
    say(NAME)
    root = logging.getLogger()
    handlers = root.handlers
    root.handlers = []
    try:
        log_printable(logging.WARNING)
        try:
            raise ValueError(NAME)
        except ValueError:
            logging.getLogger("hf_xlsr").exception("%s failed", NAME)
    finally:
        root.handlers = handlers
    printed = capsys.readouterr()
    assert "base" in printed.out
    assert "Traceback" in printed.err
    assert not OBEYED.search(printed.out + printed.err)


def test_error_of_a_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert not OBEYED.search(failing(capsys, "train", str(tmp_path / "\x1b]0;owned\x07\u202e.yaml")))


@pytest.mark.parametrize(
    "text", ["=1+1", "+1+1", "-1+cmd|' /C calc'!A0", "@SUM(A1)", "\t=1", "\r=1", " =1", "＝1+1", "a;=1"]
)
def test_no_cell_is_a_formula(text: str) -> None:
    (cell,) = list(csv.reader(io.StringIO(csv_text([{"name": text}], header=False))))[0]
    for part in cell.split(";"):
        assert not part.strip().startswith(("=", "+", "-", "@", "＝"))


def test_numbers_stay_numbers() -> None:
    values = {"a": -0.5, "b": 3, "c": None, "d": True, "e": "-0.25"}
    assert csv_text([values]) == "a,b,c,d,e\r\n-0.5,3,,True,-0.25\r\n"


def test_picture(tmp_path: Path) -> None:
    """A vector picture holds the text that it draws."""
    figure = Figure()
    axes = figure.subplots()
    axes.set(title=NAME, ylabel=NAME)
    axes.text(0, 0, NAME)
    drawn = save_figure(figure, tmp_path / "picture.svg").read_text("utf-8")
    assert "base" in drawn
    assert not OBEYED.search(drawn)


def test_compare_prints_no_escape(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from hf_xlsr.evaluation.results import save_results

    save_results(tmp_path / "a.json", measured("\x1b[31mred"), settings={})
    assert main(["compare", f"\x1b[2J={tmp_path / 'a.json'}"]) == 0
    assert not OBEYED.search(capsys.readouterr().out)


TERMINAL = ("print", "pprint", "input", "Console", "echo", "secho", "print_exc", "print_json")
STREAMS = (
    "sys.stdout.write",
    "sys.stderr.write",
    "tqdm.write",
    "os.write",
    "logging.basicConfig",
    "logging.StreamHandler",
)


def shows(site: CallSite) -> bool:
    """Whether a call writes to the terminal by itself; every console of the package is a `SafeConsole`."""
    if site.name == "console.print" or site.name.startswith("SafeConsole("):
        return False
    return site.name in STREAMS or site.method in TERMINAL


def test_one_file_writes_to_the_terminal() -> None:
    files = {place.partition(":")[0] for place in places_of(shows)}
    assert files == {"hf_xlsr/utils/console.py", "trainers/callbacks.py"}  # that one in the handler of a signal


def test_one_file_writes_tables_of_spreadsheets() -> None:
    writers = places_of(lambda site: site.method in ("writer", "DictWriter", "to_csv", "to_excel"))
    assert writers == {"hf_xlsr/utils/printable.py:csv_text"}


def test_one_place_draws_pictures() -> None:
    assert places_of(lambda site: site.method == "savefig") == {"hf_xlsr/evaluation/plots/common.py:save_figure"}


def test_names_of_ticks_are_printable() -> None:
    """Axes write them anew, so that `save_figure` does not see them."""
    for site in call_sites():
        if (
            site.method in ("set_xticks", "set_yticks", "set_xticklabels", "set_yticklabels")
            and len(site.node.args) > 1
        ):
            source = (ROOT / site.place.partition(":")[0]).read_text("utf-8")
            names = ast.unparse(site.node.args[1])
            assert "printable_line" in names or re.search(rf"{names} = .*printable_line", source), site.place
