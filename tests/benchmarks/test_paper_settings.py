"""What the pages say of each training is read from its resolved recipe."""

from __future__ import annotations

import pytest

from benchmarks.papers.settings import Setting, is_literal, read_papers, recipe_value, resolved_rows, setting_rows
from benchmarks.papers.tables import ROOT, Table, read_tables
from hf_xlsr.runs.recipe import load_runs, recipe_names

PAPERS = read_papers()
TABLES = {table.name: table for table in read_tables(ROOT / "benchmarks/papers/tables.yaml").tables}


@pytest.fixture(autouse=True)
def in_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.delenv("HF_XLSR_ENCODERS", raising=False)  # pages need no files


def with_options(table: Table, *options: str) -> Table:
    changed = table.model_copy(update={"options": options})
    changed._places.update(table._places)
    return changed


def shown(table: Table, *rows: str) -> dict[str, str]:
    """What was run by setting, of some rows or of all."""
    methods = resolved_rows(table)
    chosen = [methods[row] for row in rows or methods]
    return {what: run for what, _, run, _ in setting_rows(PAPERS.settings[table.method], chosen)}


def test_another_option_is_another_value_on_the_page() -> None:
    table = TABLES["lightweight-contrast"]
    cosine = shown(table, "ugt-align-sim")
    options = ("--model.alignment_normalize", "false", "--training.learning_rate", "1e-3")
    inner = shown(with_options(table, *options), "ugt-align-sim")
    assert (cosine["similarity of eq. 5"], inner["similarity of eq. 5"]) == ("cosine", "inner product")
    assert (cosine["learning rate"], inner["learning rate"]) == ("0.002", "0.001")


def test_values_that_no_recipe_has_are_the_defaults_of_the_method() -> None:
    method = resolved_rows(TABLES["hictl-levels"])["lm-sentence"]
    assert "word_temperature" not in method.recipe.model
    assert recipe_value(method, "model.word_temperature") == 1.0
    assert recipe_value(method, "training.mixing") == "equal"


@pytest.mark.parametrize("name", [name for name, table in TABLES.items() if table.method])
def test_settings_are_keys_of_the_recipes(name: str) -> None:
    """A misspelt key would be missing in every row."""
    table = TABLES[name]
    of_new_encoders = {"layers", "width", "feed-forward width", "dropout", "encoder"}
    missing = {setting.what for setting in PAPERS.settings[table.method]} - shown(table).keys()
    assert missing <= of_new_encoders


def test_words_stand_for_values() -> None:
    setting = Setting(what="similarity", key="model.x", paper=False, words={"False": "inner product"})
    assert (setting.shown(False), setting.shown(2.5e-5), setting.shown(65536)) == ("inner product", "2.5e-5", "65,536")


def test_every_table_and_figure_names_recipes_and_comparisons_that_exist() -> None:
    for item in PAPERS.tables:
        assert {*item.full} <= {*recipe_names()}, item.what
        assert {*item.small} <= TABLES.keys(), item.what
    assert {table.method for table in TABLES.values()} - {""} <= PAPERS.settings.keys()


LITERAL = {
    "lightweight_literal": "lightweight",
    "moco_literal": "dual-momentum",
    "hictl_literal": "hictl",
    "cmlm_literal": "cmlm",
}


@pytest.mark.parametrize("name", LITERAL)
def test_literal_recipes_have_the_paper_s_loss_head_weights_and_optimiser(name: str) -> None:
    (run,) = load_runs(name)
    for setting in PAPERS.settings[LITERAL[name]]:
        if setting.loss:
            assert setting.shown(recipe_value(run, setting.key)) == setting.shown(setting.paper), setting.what


@pytest.mark.parametrize(
    ("name", "row", "expected"), [("hictl-xnli", "lm", True), ("lightweight-tasks", "ugt", False)]
)
def test_a_table_is_literal_by_its_rows(name: str, row: str, expected: bool) -> None:
    table = TABLES[name]
    assert is_literal(PAPERS.settings[table.method], [resolved_rows(table)[row]]) is expected
