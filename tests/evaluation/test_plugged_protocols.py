"""Protocols of plug-ins: what they declare is what tables, plots and trainers take."""

from __future__ import annotations

import pickle
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import pytest
from protocol_cases import Prompted

from hf_xlsr.evaluation import Options, option, register_protocol
from hf_xlsr.evaluation.comparison import compare_encoders
from hf_xlsr.evaluation.comparison_files import render_tables
from hf_xlsr.evaluation.pairs import encode_pairs
from hf_xlsr.evaluation.protocol import FOR_ALL, PROTOCOLS, RESERVED_OPTIONS, option_specs
from hf_xlsr.evaluation.reading import RowInputs
from hf_xlsr.evaluation.report import higher_is_better, lower_is_better, metric_unit
from hf_xlsr.evaluation.results import Results
from hf_xlsr.utils.errors import XlsrError


@pytest.fixture(autouse=True)
def only_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test registers is gone after it."""
    monkeypatch.setattr(PROTOCOLS, "_added", {})


@dataclass(frozen=True)
class PowerOptions(Options):
    power: int | None = option(1, "exponent of the distances")


@dataclass(frozen=True)
class PlainOptions(Options):
    plain: int = 3


@dataclass(frozen=True)
class OtherOptions(Options):
    k: float | None = option(None, "a share; elsewhere a number of neighbours")


@dataclass(frozen=True)
class SwitchedOnOptions(Options):
    signed: bool = option(True, "could not be switched off")


@dataclass(frozen=True)
class FileOptions(Options):
    lists: tuple[str, ...] | None = option(None, "files", files=True)


def register_gap(name: str = "gap", **declared: Any) -> Any:
    """A protocol of distances; more pairs with large ones are worse."""

    @register_protocol(name, **{"headline": "unlikeness", "lower_is_better": True, "unit": "", **declared})
    def gap(encoder: Any, sources: Any, targets: Any, *, languages: Any, power: int = 1, **encoding: Any) -> Any:
        """How far apart vectors are.

        More.
        """
        first, second = encode_pairs(encoder, sources, targets, languages, **encoding)
        distances = np.linalg.norm(first - second, axis=1) ** power
        return {"unlikeness": distances, "pairs": len(sources), "candidates": 7, "largest": distances.max()}

    return gap


def run(name: str, encoder: Any, rows: list[dict[str, str]], **options: Any) -> Results:
    protocol = PROTOCOLS[name]
    inputs = RowInputs(name="set", split="test", rows=rows)
    return protocol.run(encoder, inputs, protocol.options.of(options))


PAIRS = [{"source": f"one {n}", "target": f"eins {n}", "source_lang": "en", "target_lang": "de"} for n in range(30)]
TEXTS = [{"text": f"one {n}", "lang": language} for n in range(9) for language in ("en", "de")]


def test_results_have_the_key_the_counts_and_the_outcomes() -> None:
    register_gap()
    results = run("gap", Prompted({}), PAIRS)
    record = results.records["set-gap/en-de/test/unlikeness"]
    assert (record.n, record.candidates) == (30, 7)
    assert results.outcomes[record.key].statistic == "unbounded_mean"
    assert PROTOCOLS["gap"].summary == "How far apart vectors are"


def test_another_process_gets_it_by_its_name() -> None:
    register_gap()
    assert pickle.loads(pickle.dumps(PROTOCOLS["gap"])) is PROTOCOLS["gap"]


def test_options_are_a_part_of_the_key() -> None:
    register_gap(options=PowerOptions)
    assert "set-gap-power2/en-de/test/unlikeness" in run("gap", Prompted({}), PAIRS, power=2)
    assert "set-gap/en-de/test/unlikeness" in run("gap", Prompted({}), PAIRS, power=1)
    assert option_specs()["power"].protocols == ("gap",)


def test_rows_are_given_by_language() -> None:
    @register_protocol("count", headline="length", columns=("text",))
    def count(encoder: Any, rows: Any, *, language: str, **encoding: Any) -> Any:
        return {"length": np.array([len(row["text"]) for row in rows]), "rows": len(rows)}

    results = run("count", Prompted({}), TEXTS)
    assert results["set-count/en/test/length"] == results["set-count/de/test/length"] == 5


@pytest.mark.parametrize("lower", [True, False])
def test_declared_direction_holds_everywhere(lower: bool) -> None:
    register_gap(lower_is_better=lower)
    key = "eval_dev-gap-power2/en-de/dev/unlikeness"
    assert higher_is_better(key) is not lower
    assert lower_is_better("unlikeness") is lower

    class Far(Prompted):
        @staticmethod
        def vector_of(text: str) -> np.ndarray:
            return Prompted.vector_of(text[::-1])

    results = {"near": run("gap", Prompted({}), PAIRS), "far": run("gap", Far({}), PAIRS)}
    (table,) = compare_encoders(results)
    assert table.metric == "unlikeness"
    assert table.higher_is_better is not lower
    assert ("lower is better" in render_tables([table])) is lower


@pytest.mark.parametrize("unit", ["%", "×100", ""])
def test_declared_unit_is_that_of_tables(unit: str) -> None:
    register_gap(unit=unit)
    assert metric_unit("unlikeness") == unit
    assert metric_unit("source_to_target_unlikeness") == unit
    assert metric_unit("accuracy") == "%"


def test_missing_headline_is_an_error() -> None:
    register_gap(headline="gap")
    with pytest.raises(XlsrError, match="'gap' must give 'gap', got unlikeness"):
        run("gap", Prompted({}), PAIRS)


@dataclass(frozen=True)
class TakenOptions(Options):
    device: str | None = option(None, "a name of the command")


@pytest.mark.parametrize(
    ("declared", "part"),
    [
        ({"name": "xsim"}, "'xsim'"),
        ({"name": "xsim-k3"}, "'xsim-k3'.*'xsim'"),
        ({"columns": ("txt",)}, "'txt'.*'text'"),
        ({"options": TakenOptions}, "'device'"),
        ({"options": PlainOptions}, "'plain'"),
        ({"options": OtherOptions}, "'k'"),
        ({"options": SwitchedOnOptions}, "'signed'"),
        ({"columns": ("source", "target", "score")}, "source and target"),
        ({"headline": "spearman"}, "'spearman'.*'×100'"),
    ],
)
def test_declaration_is_refused(declared: dict[str, Any], part: str) -> None:
    with pytest.raises(XlsrError, match=part):
        register_gap(**declared)


def test_reserved_options_are_those_of_the_command() -> None:
    from hf_xlsr.cli.evaluate import PROTOCOL_OPTIONS, EvaluateOptions

    own = {field.name for field in fields(EvaluateOptions)} - {spec.name for spec in PROTOCOL_OPTIONS}
    assert own | set(FOR_ALL) | {"help", "list", "protocol_options"} == RESERVED_OPTIONS


def test_a_file_is_in_the_key_without_its_folder() -> None:
    @register_protocol("listed", headline="largest_gap", options=FileOptions)
    def listed(encoder: Any, sources: Any, targets: Any, *, languages: Any, lists: Any = (), **encoding: Any) -> Any:
        return {"largest_gap": 1, "pairs": len(sources)}

    results = run("listed", Prompted({}), PAIRS, lists=("/data/one.tsv", "/data/two.tsv"))
    assert "set-listed-listsone.tsv+two.tsv/en-de/test/largest_gap" in results.records


def test_a_whole_number_as_headline_is_no_count() -> None:
    @register_protocol("whole", headline="largest_gap")
    def whole(encoder: Any, sources: Any, targets: Any, *, languages: Any, **encoding: Any) -> Any:
        return {"largest_gap": 1, "pairs": len(sources)}

    records = run("whole", Prompted({}), PAIRS).records
    assert isinstance(records["set-whole/en-de/test/largest_gap"].value, float)


@pytest.mark.parametrize("value", [float("nan"), "high", [[1.0]]])
def test_what_is_no_number_is_refused(value: Any) -> None:
    @register_protocol("wrong", headline="largest_gap")
    def wrong(encoder: Any, sources: Any, targets: Any, *, languages: Any, **encoding: Any) -> Any:
        return {"largest_gap": value}

    with pytest.raises(XlsrError, match=r"'wrong'.*'largest_gap'"):
        run("wrong", Prompted({}), PAIRS)


def test_the_longest_name_in_a_key_counts() -> None:
    register_gap()
    register_gap("norm-gap", lower_is_better=False)
    assert higher_is_better("set-norm-gap/en-de/test/unlikeness") is True
    assert higher_is_better("set-gap/en-de/test/unlikeness") is False
