from __future__ import annotations

import inspect
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

import hf_xlsr.evaluation as evaluation
from hf_xlsr.data.columns import KNOWN_COLUMNS
from hf_xlsr.evaluation import protocol_runs
from hf_xlsr.evaluation.inputs import Inputs
from hf_xlsr.evaluation.registry import CHOICES, DATA_OPTIONS, PROTOCOLS, check_options, protocols_of
from hf_xlsr.evaluation.request import Request
from hf_xlsr.utils.errors import XlsrError


def test_names_of_the_issue_are_all_there() -> None:
    named = "tatoeba tatoeba-laser tatoeba-xtreme tatoeba-mteb xsim xsr bucc sts senteval zero-shot nli"
    assert {*named.split(), "pair-classification"} <= set(PROTOCOLS)


@pytest.mark.parametrize("protocol", PROTOCOLS.values(), ids=PROTOCOLS)
def test_options_are_parameters_of_the_function(protocol: Any) -> None:
    parameters = inspect.signature(protocol_runs.function(*protocol.function)).parameters
    names = {name for name in protocol.options if name in CHOICES}
    if protocol.name == "bucc":  # without k and margin both published settings run
        parameters = inspect.signature(protocol_runs.function("protocols.bucc", "bucc")).parameters
    assert names <= set(parameters)
    assert set(protocol.options) <= {*DATA_OPTIONS, *CHOICES} & set(vars(Request("m", "p", ())))
    assert {*protocol.required, *protocol.optional} <= KNOWN_COLUMNS


def test_all_columns_of_a_protocol() -> None:
    assert PROTOCOLS["xsr"].columns == ("source", "target", "source_lang", "target_lang", "split")
    assert PROTOCOLS["senteval"].columns == ("text", "label", "split", "sentence1", "sentence2", "score", "lang")


def test_defaults_are_those_of_the_functions() -> None:
    assert PROTOCOLS["xsim"].defaults() == {"k": 4, "margin": "ratio"}
    assert PROTOCOLS["zero-shot"].defaults()["head"] == "linear" and PROTOCOLS["nli"].defaults()["head"] == "mlp"
    assert PROTOCOLS["senteval"].defaults() == {"setting": "literature", "seed": 1111}


def test_columns_of_sentevals_tasks_are_what_it_reads() -> None:
    from hf_xlsr.evaluation.senteval.tasks import TASKS

    tasks = PROTOCOLS["senteval"].tasks
    assert set(tasks) == set(TASKS)
    for name, kind in TASKS.items():
        texts = ("sentence1", "sentence2") if kind.pairs else ("text",)
        answer = "score" if kind.test == "relatedness" else "label"
        assert tasks[name] == (*texts, answer, *(["split"] if kind.test != "nested" else []))
    assert PROTOCOLS["senteval"].columns_of("MR.de") == ("text", "label")
    with pytest.raises(XlsrError, match="no task 'MRPX'; did you mean 'MRPC'\\? A file is called after its task"):
        PROTOCOLS["senteval"].columns_of("MRPX")


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ("tatoba", "protocol is 'tatoba'; did you mean 'tatoeba'"),
        ("tatoeba,tatoeba", "stands twice"),
        ("tatoeba,sts", "protocols tatoeba and sts take different data"),
        ("tatoeba,", "protocol is ''"),
    ],
)
def test_mistaken_protocols(names: str, message: str) -> None:
    with pytest.raises(XlsrError, match=message):
        protocols_of(names)


def test_an_option_that_does_not_apply_names_those_that_take_it() -> None:
    with pytest.raises(XlsrError, match="--tune-gold is for protocol bucc; leave it out with xsim, xsr."):
        check_options(["k", "tune_gold"], protocols_of("xsim,xsr"))
    with pytest.raises(XlsrError, match="--train-language is for protocol zero-shot or nli"):
        check_options(["train_language"], protocols_of("sts"))
    check_options(["k", "pool", "seed", "device"], protocols_of("xsim,xsr"))


def test_xtreme_asks_in_english_whichever_side_it_is() -> None:
    rows = [{"source": "Tag", "target": "day", "source_lang": "de", "target_lang": "en"}]

    class Encoder:
        def encode(self, texts: list[str], **options: Any) -> Any:
            import numpy as np

            return np.ones((len(texts), 2))

    inputs = Inputs("x", "test", rows={"x": rows})
    assert list(protocol_runs.tatoeba_xtreme(Encoder(), inputs)) == [
        "x-tatoeba-xtreme/en-de/test/accuracy",
        "x-tatoeba-xtreme/en-de/test/pairs",
    ]
    with pytest.raises(XlsrError, match="the pair de-fr has no English"):
        other = [{**rows[0], "target_lang": "fr"}]
        protocol_runs.tatoeba_xtreme(Encoder(), Inputs("x", "test", rows={"x": other}))


def test_each_language_is_tuned_on_its_own_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []

    def record(encoder: Any, rows: Any, *, language: Any, **options: Any) -> dict[str, float]:
        tune = options.get("tune")
        seen.append((language, tune and tune[0]["sentence1"], options.get("tune_language")))
        return {}

    monkeypatch.setattr(protocol_runs, "function", lambda module, name: record)

    def rows(*languages: str) -> list[dict[str, Any]]:
        return [{"sentence1": language, "lang": language} for language in languages]

    run: Any = protocol_runs.pair_classification
    run(None, Inputs("x", "test", rows={"x": rows("de", "fr")}, tune=rows("fr", "de")))
    run(None, Inputs("x", "test", rows={"x": rows("de", "en+fr")}, tune=rows("en")))
    run(None, Inputs("x", "test", rows={"x": rows("de")}))
    run(None, Inputs("x", "test", rows={"x": rows("de")}, tune=rows("en+fr")))
    assert seen == [
        *[("de", "de", "de"), ("fr", "fr", "fr"), ("de", "en", "en"), (("en", "fr"), "en", "en")],
        *[("de", None, None), ("de", "en+fr", ("en", "fr"))],
    ]
    with pytest.raises(XlsrError, match="--tune has rows in en, fr, none in de"):
        run(None, Inputs("x", "test", rows={"x": rows("de")}, tune=rows("en", "fr")))


def test_pool_joins_the_pair_of_its_languages(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    monkeypatch.setattr(
        protocol_runs, "function", lambda module, name: lambda *sides, **_: seen.append(sides[1:]) or {}
    )

    def row(source: str, target: str, other: str) -> dict[str, str]:
        return {"source": source, "target": target, "source_lang": "en", "target_lang": other}

    rows = [row("a", "A", "de"), row("b", "B", "fr")]
    turned = {"source": "E", "target": "e", "source_lang": "de", "target_lang": "en"}
    pool = [row("c", "C", "fr"), {"target": "D"}, turned]
    protocol_runs.xsr(SimpleNamespace(encode=None), Inputs("x", "test", rows={"x": rows}, pool=pool))
    assert seen == [(["a"], ["A"], ["a", "e"], ["A", "D", "E"]), (["b"], ["B"], ["b", "c"], ["B", "C", "D"])]


def test_functions_are_not_hidden_by_their_modules() -> None:
    import hf_xlsr.evaluation.protocols.bucc
    import hf_xlsr.evaluation.protocols.sts
    import hf_xlsr.evaluation.protocols.tatoeba  # noqa: F401

    for name in evaluation.__all__:
        assert not inspect.ismodule(getattr(evaluation, name)), name
    assert evaluation.tatoeba.__module__ == "hf_xlsr.evaluation.protocols.tatoeba"
    assert set(evaluation.__all__) <= set(dir(evaluation))
    with pytest.raises(AttributeError, match="no attribute 'tatoba'"):
        _ = evaluation.tatoba  # type: ignore[attr-defined]


def test_importing_the_package_imports_no_protocol() -> None:
    code = (
        "import sys\n"
        "import hf_xlsr\n"
        "before = set(sys.modules)\n"
        "import hf_xlsr.evaluation\n"
        "new = set(sys.modules) - before\n"
        "assert new == {'hf_xlsr.evaluation'}, new\n"
        "import hf_xlsr.evaluation.protocols.tatoeba\n"
        "from hf_xlsr.evaluation import tatoeba\n"
        "assert callable(tatoeba) and 'matplotlib.figure' not in sys.modules\n"
        "import hf_xlsr.evaluation.registry\n"
        "assert 'mteb' not in sys.modules and 'hf_xlsr.evaluation.senteval.evaluate' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_both_directions_of_two_languages_are_one_set(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    monkeypatch.setattr(
        protocol_runs, "function", lambda module, name: lambda *sides, **_: seen.append(sides[1:]) or {}
    )
    rows = [
        {"source": "a", "target": "A", "source_lang": "en", "target_lang": "de"},
        {"source": "B", "target": "b", "source_lang": "de", "target_lang": "en"},
        {"source": "c", "target": "C", "source_lang": "en", "target_lang": "fr"},
    ]
    inputs = Inputs("x", "test", rows={"x": rows})
    protocol_runs.xsr(SimpleNamespace(encode=None), inputs)
    assert seen == [(["a", "b"], ["A", "B"], ["a", "b"], ["A", "B"]), (["c"], ["C"], ["c"], ["C"])]
    seen.clear()
    protocol_runs.tatoeba_xtreme(SimpleNamespace(encode=None), Inputs("x", "test", rows={"x": rows[1::-1]}))
    assert seen == [(["b", "a"], ["B", "A"])]
