from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hf_xlsr.cli import main
from hf_xlsr.evaluation.comparison import compare_encoders, render_tables
from hf_xlsr.evaluation.outcomes import Outcomes
from hf_xlsr.evaluation.results import Results, load_results, measured, save_results

COUNT = 200


def encoder(shares: dict[str, float], count: int = COUNT, seed: int = 1) -> Results:
    """Results of an encoder that is right on these shares of the first examples, by language."""
    results = Results()
    for language, share in shares.items():
        right = np.random.default_rng(seed).permutation(count) < share * count
        values = {"accuracy": float(right.mean()), "pairs": count}
        results |= measured("toy", "tatoeba-xtreme", ("en", language), "test", values, {"accuracy": right})
    return results


def test_only_significant_differences_are_bold() -> None:
    strong, close, weak = (
        encoder({"de": share, "fr": other}) for share, other in ((0.9, 0.8), (0.89, 0.5), (0.5, 0.4))
    )
    (table,) = compare_encoders({"strong": strong, "close": close, "weak": weak})
    assert (table.name, table.metric, table.columns) == ("toy-tatoeba-xtreme, test", "accuracy", ["en-de", "en-fr"])
    best = {(label, column) for label, cells in table.rows.items() for column, cell in cells.items() if cell.best}
    assert best == {("strong", "en-fr")}  # 90 % and 89 % of 200 do not differ
    assert table.p_values["strong", "weak", "en-de"] < 0.05 < table.p_values["strong", "close", "en-de"]
    # Six tests are corrected together: none is below its own p-value.
    alone = compare_encoders({"strong": strong, "close": encoder({"de": 0.89})})[0].p_values
    assert alone["strong", "close", "en-de"] <= table.p_values["strong", "close", "en-de"]


def test_lower_errors_and_both_directions() -> None:
    def errors(forward: float, backward: float) -> Results:
        rows = [np.arange(COUNT) < share * COUNT for share in (forward, backward)]
        names = ("source_to_target_error", "target_to_source_error", "error")
        values = dict(zip(names, (forward, backward, (forward + backward) / 2), strict=True))
        outcomes: Any = dict(zip(names, (*rows, (rows[0] + rows[1]) / 2), strict=True))
        return measured("tatoeba", "tatoeba-laser", ("en", "de"), "test", values, outcomes)

    tables = compare_encoders({"a": errors(0.1, 0.2), "b": errors(0.4, 0.2)})
    assert [table.metric for table in tables] == ["source_to_target_error", "target_to_source_error"]
    assert [table.rows["a"]["en-de"].best for table in tables] == [True, False]
    assert "(lower is better)" in render_tables(tables)


def test_other_test_sets_are_marked_and_not_tested(tmp_path: Path) -> None:
    files = {}
    for label, count, text in (("a", COUNT, "x"), ("b", COUNT, "x"), ("c", COUNT, "y"), ("d", 100, "x")):
        files[label] = tmp_path / f"{label}.json"
        results = encoder({"de": 0.9 if label == "a" else 0.3}, count)
        save_results(files[label], results, settings={}, data_hashes={"toy": text}, predictions=True)
    (table,) = compare_encoders({label: load_results(file) for label, file in files.items()})
    assert {label for label, cells in table.rows.items() if cells["en-de"].unequal} == {"c", "d"}
    assert ("a", "b", "en-de") in table.p_values and ("a", "c", "en-de") not in table.p_values
    assert table.rows["a"]["en-de"].best and "†" in render_tables([table])


@pytest.mark.parametrize(
    ("b", "c", "unequal", "best"),
    [
        ({"pool/en-de": "x"}, {}, {"b en-de"}, {"c en-de", "b en-fr"}),  # candidates that only one has
        ({}, {"data/toy/en-fr": "y"}, {"c en-fr"}, {"b en-de", "b en-fr"}),
        ({"data/toy/en-de": "y"}, {"data/toy/en-de": "z"}, {"b en-de", "c en-de"}, {"b en-fr"}),
    ],
)
def test_each_column_compares_equal_test_sets(b: Any, c: Any, unequal: set[str], best: set[str]) -> None:
    results, same = {}, {"data/toy/en-de": "x", "data/toy/en-fr": "x"}
    for label, share, other in (("a", 0.5, {}), ("b", 0.95, b), ("c", 0.7, c)):
        results[label] = {"metrics": encoder({"de": share, "fr": share}), "data_sha256": same | other}
    (table,) = compare_encoders(results)
    cells = {f"{label} {column}": cell for label, row in table.rows.items() for column, cell in row.items()}
    assert {name for name, cell in cells.items() if cell.unequal} == unequal
    assert {name for name, cell in cells.items() if cell.best} == best
    assert unequal.isdisjoint(f"{label} {column}" for *both, column in table.p_values for label in both)


def test_results_keep_their_own_outcomes(tmp_path: Path) -> None:
    for name, share in (("v1.0", 0.9), ("v1.5", 0.3)):
        save_results(tmp_path / name, encoder({"de": share}), settings={}, predictions=True)
    found = [load_results(tmp_path / name)["metrics"].outcomes for name in ("v1.0", "v1.5")]
    assert [one.value() for outcomes in found for one in outcomes.values()] == [0.9, 0.3]


def test_outcomes_are_saved_on_request(tmp_path: Path) -> None:
    results = encoder({"de": 0.9})
    results |= measured(
        "s", "sts", "en", "test", {"spearman_all": 0.5}, {"spearman_all": Outcomes("spearman", (X, X))}
    )
    save_results(tmp_path / "with.json", results, settings={}, predictions=True)
    save_results(tmp_path / "without.json", results, settings={})
    loaded = load_results(tmp_path / "with.json")["metrics"]
    assert loaded == results and loaded.outcomes.keys() == results.outcomes.keys()
    for key, outcomes in results.outcomes.items():
        assert loaded.outcomes[key].statistic == outcomes.statistic
        np.testing.assert_array_equal(loaded.outcomes[key].columns, outcomes.columns)
    assert load_results(tmp_path / "without.json")["metrics"].outcomes == {}
    assert sorted(file.name for file in tmp_path.iterdir()) == ["with.json", "with.npz", "without.json"]


X = np.random.default_rng(2).normal(size=30)


def test_tasks_across() -> None:
    results = Results()
    for task, value in (("STS12", 0.5), ("SICK-R", 0.75)):
        results |= measured(task, "sts", "en", "test", {"spearman_all": value, "pairs": 9})
    results |= measured("average-of-2", "sts", "en", "test", {"spearman_all": 0.6})
    (table,) = compare_encoders({"a_b": results})
    assert table.name == "sts, test" and table.columns == ["STS12", "SICK-R"]
    assert "| a\\_b | 50.0 | 75.0 | 62.5 |" in render_tables([table])


def test_command_writes_all_formats(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for label, share in (("good_one", 0.9), ("poor", 0.5)):
        save_results(tmp_path / f"{label}.json", encoder({"de": share}), settings={}, predictions=True)
    words = ["compare", str(tmp_path / "good_one.json"), f"second={tmp_path / 'poor.json'}"]
    assert main([*words, "--plots", str(tmp_path / "plots")]) == 0
    assert "| good\\_one | **90.0**" in capsys.readouterr().out
    assert [file.name for file in (tmp_path / "plots").iterdir()] == ["toy-tatoeba-xtreme-test-accuracy.png"]
    for ending in (".csv", ".tex", ".json"):
        assert main([*words, "--output", str(tmp_path / f"table{ending}")]) == 0
    rows = list(csv.DictReader((tmp_path / "table.csv").open()))
    assert [(row["encoder"], row["value"], row["best"]) for row in rows] == [
        ("good_one", "0.9", "True"),
        ("second", "0.5", "False"),
    ]
    (content,) = json.loads((tmp_path / "table.json").read_text())
    assert content["encoders"]["second"]["en-de"]["value"] == 0.5 and content["tests"][0]["p"] < 0.05
    tex = (tmp_path / "table.tex").read_text()
    assert r"good\_one & \textbf{90.0}" in tex
