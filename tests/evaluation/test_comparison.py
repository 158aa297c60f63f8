from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hf_xlsr.cli import main
from hf_xlsr.evaluation.comparison import ComparisonTable, compare_encoders, render_tables
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


def marked(table: ComparisonTable, mark: str) -> set[str]:
    """The encoders and columns whose value is `best` or `unequal`."""
    cells: set[str] = set()
    for column in table.columns:
        cells.update(f"{label} {column}" for label, cell in table.cells(column).items() if getattr(cell, mark))
    return cells


def test_only_significant_differences_are_bold() -> None:
    strong = encoder({"de": 0.9, "fr": 0.8})
    close = encoder({"de": 0.89, "fr": 0.5})
    weak = encoder({"de": 0.5, "fr": 0.4})
    (table,) = compare_encoders({"strong": strong, "close": close, "weak": weak})
    assert table.name == "toy-tatoeba-xtreme, test"
    assert table.metric == "accuracy"
    assert table.columns == ["en-de", "en-fr"]
    assert marked(table, "best") == {"strong en-fr"}  # 90 % and 89 % of 200 do not differ
    assert table.p_values["strong", "weak", "en-de"] < 0.05 < table.p_values["strong", "close", "en-de"]

    # Six tests are corrected together: none is below its own p-value.
    (alone,) = compare_encoders({"strong": strong, "close": encoder({"de": 0.89})})
    assert alone.p_values["strong", "close", "en-de"] <= table.p_values["strong", "close", "en-de"]


def test_lower_errors_and_both_directions() -> None:
    def errors(forward: float, backward: float) -> Results:
        values = {
            "source_to_target_error": forward,
            "target_to_source_error": backward,
            "error": (forward + backward) / 2,
        }
        outcomes = {metric: np.arange(COUNT) < share * COUNT for metric, share in values.items()}
        return measured("tatoeba", "tatoeba-laser", ("en", "de"), "test", values, outcomes)

    tables = compare_encoders({"a": errors(0.1, 0.2), "b": errors(0.4, 0.2)})
    assert [table.metric for table in tables] == ["source_to_target_error", "target_to_source_error"]
    assert [table.rows["a"]["en-de"].best for table in tables] == [True, False]
    assert "(lower is better)" in render_tables(tables)


def test_other_test_sets_are_marked_and_not_tested(tmp_path: Path) -> None:
    results = {}
    for label, share, count, text in (
        ("a", 0.9, COUNT, "x"),
        ("b", 0.3, COUNT, "x"),
        ("c", 0.3, COUNT, "y"),
        ("d", 0.3, 100, "x"),
    ):
        file = tmp_path / f"{label}.json"
        save_results(file, encoder({"de": share}, count), settings={}, data_hashes={"toy": text}, predictions=True)
        results[label] = load_results(file)

    (table,) = compare_encoders(results)
    assert marked(table, "unequal") == {"c en-de", "d en-de"}
    assert list(table.p_values) == [("a", "b", "en-de")]
    assert marked(table, "best") == {"a en-de"}
    assert "†" in render_tables([table])


@pytest.mark.parametrize(
    ("b", "c", "unequal", "best"),
    [
        ({"pool/en-de": "x"}, {}, {"b en-de"}, {"c en-de", "b en-fr"}),  # candidates that only one has
        ({}, {"data/toy/en-fr": "y"}, {"c en-fr"}, {"b en-de", "b en-fr"}),
        ({"data/toy/en-de": "y"}, {"data/toy/en-de": "z"}, {"b en-de", "c en-de"}, {"b en-fr"}),
    ],
)
def test_each_column_compares_equal_test_sets(b: Any, c: Any, unequal: set[str], best: set[str]) -> None:
    results = {}
    for label, share, hashes in (("a", 0.5, {}), ("b", 0.95, b), ("c", 0.7, c)):
        data_hashes = {"data/toy/en-de": "x", "data/toy/en-fr": "x", **hashes}
        results[label] = {"metrics": encoder({"de": share, "fr": share}), "data_sha256": data_hashes}

    (table,) = compare_encoders(results)
    assert marked(table, "unequal") == unequal
    assert marked(table, "best") == best
    for first, second, column in table.p_values:
        assert unequal.isdisjoint([f"{first} {column}", f"{second} {column}"])


def test_results_keep_their_own_outcomes(tmp_path: Path) -> None:
    for name, share in (("v1.0", 0.9), ("v1.5", 0.3)):
        save_results(tmp_path / name, encoder({"de": share}), settings={}, predictions=True)
    for name, share in (("v1.0", 0.9), ("v1.5", 0.3)):
        (outcomes,) = load_results(tmp_path / name)["metrics"].outcomes.values()
        assert outcomes.value() == share


def test_outcomes_are_saved_on_request(tmp_path: Path) -> None:
    column = np.random.default_rng(2).normal(size=30)
    correlation = Outcomes("spearman", (column, column))
    results = encoder({"de": 0.9})
    results |= measured("s", "sts", "en", "test", {"spearman_all": 0.5}, {"spearman_all": correlation})
    save_results(tmp_path / "with.json", results, settings={}, predictions=True)
    save_results(tmp_path / "without.json", results, settings={})

    loaded = load_results(tmp_path / "with.json")["metrics"]
    assert loaded == results
    assert loaded.outcomes.keys() == results.outcomes.keys()
    for key, outcomes in results.outcomes.items():
        assert loaded.outcomes[key].statistic == outcomes.statistic
        np.testing.assert_array_equal(loaded.outcomes[key].columns, outcomes.columns)
    assert load_results(tmp_path / "without.json")["metrics"].outcomes == {}
    assert sorted(file.name for file in tmp_path.iterdir()) == ["with.json", "with.npz", "without.json"]


def test_tasks_across() -> None:
    results = Results()
    for task, value in (("STS12", 0.5), ("SICK-R", 0.75)):
        results |= measured(task, "sts", "en", "test", {"spearman_all": value, "pairs": 9})
    results |= measured("average-of-2", "sts", "en", "test", {"spearman_all": 0.6})
    (table,) = compare_encoders({"a_b": results})
    assert table.name == "sts, test"
    assert table.columns == ["STS12", "SICK-R"]
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
    assert [row["encoder"] for row in rows] == ["good_one", "second"]
    assert [row["value"] for row in rows] == ["0.9", "0.5"]
    assert [row["best"] for row in rows] == ["True", "False"]
    (content,) = json.loads((tmp_path / "table.json").read_text())
    assert content["encoders"]["second"]["en-de"]["value"] == 0.5
    assert content["tests"][0]["p"] < 0.05
    tex = (tmp_path / "table.tex").read_text()
    assert r"good\_one & \textbf{90.0}" in tex
