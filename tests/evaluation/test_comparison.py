from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hf_xlsr.cli import main
from hf_xlsr.evaluation.comparison import ComparisonTable, compare_encoders
from hf_xlsr.evaluation.comparison_files import render_tables
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
    cells = set()
    for column in table.columns:
        for label, cell in table.cells(column).items():
            if getattr(cell, mark):
                cells.add(f"{label} {column}")
    return cells


def test_only_significant_differences_are_bold() -> None:
    encoders = {
        "strong": encoder({"de": 0.9, "fr": 0.8}),
        "close": encoder({"de": 0.89, "fr": 0.5}),
        "weak": encoder({"de": 0.5, "fr": 0.4}),
    }
    (table,) = compare_encoders(encoders)
    assert table.name == "toy-tatoeba-xtreme, test"
    assert table.metric == "accuracy"
    assert table.columns == ["en-de", "en-fr"]
    assert marked(table, "best") == {"strong en-fr"}  # 90 % and 89 % of 200 do not differ
    assert table.p_values["strong", "weak", "en-de"] < 0.05
    close_p_value = table.p_values["strong", "close", "en-de"]
    assert close_p_value > 0.05

    # Six tests are corrected together: none is below its own p-value.
    (single_test,) = compare_encoders({"strong": encoders["strong"], "close": encoder({"de": 0.89})})
    assert single_test.p_values["strong", "close", "en-de"] <= close_p_value


def test_lower_errors_and_both_directions() -> None:
    def errors(forward: float, backward: float) -> Results:
        values = {
            "source_to_target_error": forward,
            "target_to_source_error": backward,
            "error": (forward + backward) / 2,
        }
        outcomes = {metric: np.arange(COUNT) < share * COUNT for metric, share in values.items()}
        return measured("tatoeba", "tatoeba-laser", ("en", "de"), "test", values, outcomes)

    forward, backward = compare_encoders({"a": errors(0.1, 0.2), "b": errors(0.4, 0.2)})
    assert forward.metric == "source_to_target_error"
    assert forward.rows["a"]["en-de"].best
    assert backward.metric == "target_to_source_error"
    assert not backward.rows["a"]["en-de"].best
    assert "(lower is better)" in render_tables([forward, backward])


def test_other_test_sets_are_marked_and_not_tested(tmp_path: Path) -> None:
    def saved(share: float, count: int, text: str) -> Any:
        file = tmp_path / "results.json"
        save_results(file, encoder({"de": share}, count), settings={}, data_hashes={"toy": text}, predictions=True)
        return load_results(file)

    results = {
        "a": saved(0.9, COUNT, "x"),
        "b": saved(0.3, COUNT, "x"),
        "c": saved(0.3, COUNT, "y"),
        "d": saved(0.3, 100, "x"),
    }
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
    def results(share: float, hashes: dict[str, str]) -> dict[str, Any]:
        metrics = encoder({"de": share, "fr": share})
        return {"metrics": metrics, "data_sha256": {"data/toy/en-de": "x", "data/toy/en-fr": "x", **hashes}}

    encoders = {
        "a": results(0.5, {}),
        "b": results(0.95, b),
        "c": results(0.7, c),
    }
    (table,) = compare_encoders(encoders)

    assert marked(table, "unequal") == unequal
    assert marked(table, "best") == best
    for first, second, column in table.p_values:
        assert unequal.isdisjoint([f"{first} {column}", f"{second} {column}"])


@pytest.mark.parametrize(("first", "second"), [("zho-Hans", "zho-Hant"), ("zh-Hans", "zh-Hant"), ("deu", "fra")])
def test_tags_of_hashes_are_languages_of_columns(first: str, second: str) -> None:
    def results(share: float, text: str) -> dict[str, Any]:
        hashes = {f"data/toy/en-{first}": "x", f"data/toy/en-{second}": text}
        return {"metrics": encoder({first: share, second: share}), "data_sha256": hashes}

    (table,) = compare_encoders({"a": results(0.5, "x"), "b": results(0.9, "y")})
    equal, other = table.columns
    assert marked(table, "unequal") == {f"b {other}"}
    assert marked(table, "best") == {f"b {equal}"}


def test_results_keep_their_own_outcomes(tmp_path: Path) -> None:
    share_of_file = {"v1.0": 0.9, "v1.5": 0.3}
    for name, share in share_of_file.items():
        save_results(tmp_path / name, encoder({"de": share}), settings={}, predictions=True)

    for name, share in share_of_file.items():
        (outcomes,) = load_results(tmp_path / name)["metrics"].outcomes.values()
        assert outcomes.value() == share


def test_outcomes_are_saved_on_request(tmp_path: Path) -> None:
    column = np.random.default_rng(2).normal(size=30)
    correlation = Outcomes("spearman", (column, column))
    results = encoder({"de": 0.9})
    results |= measured("s", "sts", "en", "test", {"spearman_all": 0.5}, {"spearman_all": correlation})
    with_outcomes = tmp_path / "with.json"
    without_outcomes = tmp_path / "without.json"

    save_results(with_outcomes, results, settings={}, predictions=True)
    save_results(without_outcomes, results, settings={})

    loaded = load_results(with_outcomes)["metrics"]
    assert loaded == results
    assert loaded.outcomes.keys() == results.outcomes.keys()
    for key, outcomes in results.outcomes.items():
        assert loaded.outcomes[key].statistic == outcomes.statistic
        np.testing.assert_array_equal(loaded.outcomes[key].columns, outcomes.columns)
    assert load_results(without_outcomes)["metrics"].outcomes == {}
    assert set(tmp_path.iterdir()) == {with_outcomes, without_outcomes, tmp_path / "with.npz"}


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
    good = tmp_path / "good_one.json"
    poor = tmp_path / "poor.json"
    plots = tmp_path / "plots"
    save_results(good, encoder({"de": 0.9}), settings={}, predictions=True)
    save_results(poor, encoder({"de": 0.5}), settings={}, predictions=True)
    words = ["compare", str(good), f"second={poor}"]

    assert main([*words, "--plots", str(plots)]) == 0
    assert "| good\\_one | **90.0**" in capsys.readouterr().out
    assert list(plots.iterdir()) == [plots / "toy-tatoeba-xtreme-test-accuracy.png"]

    def written(name: str) -> str:
        output = tmp_path / name
        assert main([*words, "--output", str(output)]) == 0
        return output.read_text()

    first, second = csv.DictReader(written("table.csv").splitlines())
    assert (first["encoder"], first["value"], first["best"]) == ("good_one", "0.9", "True")
    assert (second["encoder"], second["value"], second["best"]) == ("second", "0.5", "False")
    (content,) = json.loads(written("table.json"))
    assert content["encoders"]["second"]["en-de"]["value"] == 0.5
    assert content["tests"][0]["p"] < 0.05
    assert r"good\_one & \textbf{90.0}" in written("table.tex")
