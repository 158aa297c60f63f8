"""Suites that come with the package, on copies of their data in the layout of the Hub's repositories."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from datasets import Dataset

from hf_xlsr.data.columns import parse_columns
from hf_xlsr.evaluation.languages import UNKNOWN
from hf_xlsr.evaluation.protocol import check_options, find_protocols
from hf_xlsr.evaluation.suites import suite as suite_module
from hf_xlsr.evaluation.suites.suite import Suite, SuiteEncoder, evaluate_suite, load_suite, shipped_suites
from hf_xlsr.utils.errors import XlsrError

WORDS = "red blue house tree one two".split()


def test_shipped_suites() -> None:
    expected = {"belebele", "bouquet", "flores-plus", "hub", "mmteb-bitext", "mteb", "open", "xsim-pp"}
    assert set(shipped_suites()) == expected
    for name in shipped_suites():
        suite = load_suite(name)
        assert isinstance(suite, Suite)
        for task in suite.tasks.values():
            protocols = find_protocols(task.protocol)
            check_options(task.options, protocols)
            columns = set().union(*(protocol.columns for protocol in protocols))
            assert set(parse_columns(task.columns)) <= columns


def repository(folder: Path, rows_of: dict[str, list[dict[str, Any]]], split: str) -> None:
    """A dataset with a configuration for each language, as the Hub keeps it."""
    configs = []
    for language, rows in rows_of.items():
        file = f"data/{split}/{language}.parquet"
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        Dataset.from_list(rows).to_parquet(folder / file)
        configs.append({"config_name": language, "data_files": [{"split": split, "path": file}]})
    header = yaml.safe_dump({"configs": configs})
    (folder / "README.md").write_text(f"---\n{header}---\n# Data\n")


def sentences(language: str, count: int = 12) -> list[str]:
    return [f"{WORDS[number % 6]} {language} was not {WORDS[number % 5]} {number}" for number in range(count)]


def languages_of(suite: Suite) -> list[str]:
    (task, *_) = suite.tasks.values()
    return list(task.languages)


@pytest.fixture(autouse=True)
def no_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suite_module, "can_plot", lambda: False)


def keys_of(suite: Suite, model: str, output: Path) -> set[str]:
    suite.encoders["tiny"] = SuiteEncoder(model=model)
    columns = set()
    for table in evaluate_suite(suite, output):
        columns |= {f"{table.name.partition(',')[0]} {column}" for column in table.columns}
    return columns


@pytest.mark.parametrize("name", ["flores-plus", "xsim-pp"])
def test_suites_on_flores_plus(name: str, tiny_export: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    suite = load_suite(name)
    rows_of = {}
    for language in languages_of(suite):
        rows_of[language] = [{"id": number, "text": text} for number, text in enumerate(sentences(language))]
    repository(tmp_path / "data", rows_of, "devtest")
    monkeypatch.setenv("HF_XLSR_FLORES_PLUS", str(tmp_path / "data"))
    for task in suite.tasks.values():
        task.languages = task.languages[:2]

    keys = keys_of(suite, tiny_export, tmp_path / "out")
    if name == "xsim-pp":
        assert keys == {"flores-plus-xsim-pp ar-en"}
    else:
        assert {"flores-plus-tatoeba en-ar", "flores-plus-xsim en-ar", "flores-plus-language-bias ar"} <= keys


def test_suite_on_bouquet(tiny_export: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    suite = load_suite("bouquet")
    suite.tasks["bouquet"].languages = ("eng_Latn", "deu_Latn", "arz_Arab")
    rows_of = {}
    for language in languages_of(suite):
        texts = zip(sentences(language), sentences("eng_Latn"), strict=True)
        row = {"src_lang": language, "tgt_lang": "eng_Latn"}
        rows_of[language] = [{**row, "src_text": source, "tgt_text": target} for source, target in texts]
    repository(tmp_path / "data", rows_of, "test")
    monkeypatch.setenv("HF_XLSR_BOUQUET", str(tmp_path / "data"))

    keys = keys_of(suite, tiny_export, tmp_path / "out")
    assert keys == {f"bouquet-{name} {pair}" for name in ("tatoeba", "xsim") for pair in ("de-en", "arz-en")}


def test_suites_read_the_hub_without_a_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HF_XLSR_FLORES_PLUS", raising=False)
    asked = []

    def refuse(path: Any, config: str | None = None) -> Any:
        asked.append((str(path), config))
        raise XlsrError("offline")

    monkeypatch.setattr("hf_xlsr.data.formats.tables.open_dataset", refuse)
    with pytest.raises(XlsrError):
        load_suite("flores-plus").tasks["flores-plus"].read()
    assert asked[0][0] == "openlanguagedata/flores_plus"
    assert asked[0][1] != UNKNOWN


def test_rows_that_are_not_parallel_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    suite = load_suite("flores-plus")
    suite.tasks["flores-plus"].languages = ("eng_Latn", "deu_Latn")
    for german in (sentences("deu_Latn")[1:], ["", *sentences("deu_Latn")[1:]]):
        rows_of = {"eng_Latn": [{"text": text} for text in sentences("eng_Latn")]}
        rows_of["deu_Latn"] = [{"text": text} for text in german]
        repository(tmp_path / "data", rows_of, "devtest")
        monkeypatch.setenv("HF_XLSR_FLORES_PLUS", str(tmp_path / "data"))
        with pytest.raises(XlsrError, match="deu_Latn"):
            suite.tasks["flores-plus"].read()


@pytest.mark.slow
def test_bitext_tasks_are_those_of_the_leaderboard() -> None:
    mteb = pytest.importorskip("mteb")
    benchmark = mteb.get_benchmark("MTEB(Multilingual, v2)")
    expected = {f"mteb:{task.metadata.name}" for task in benchmark.tasks if task.metadata.type == "BitextMining"}
    tasks = load_suite("mmteb-bitext").tasks.values()
    assert {data for task in tasks for data in task.data} == expected
    assert not any(task.languages for task in tasks)
