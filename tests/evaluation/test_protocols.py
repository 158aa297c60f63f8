"""The registry of protocols, and how each is run on what was read."""

from __future__ import annotations

import inspect
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import hf_xlsr.evaluation as evaluation
from hf_xlsr.data.columns import KNOWN_COLUMNS
from hf_xlsr.evaluation.protocol import PROTOCOLS, Protocol, specs_of
from hf_xlsr.evaluation.protocols import load_module
from hf_xlsr.evaluation.reading import PairInputs


@pytest.mark.parametrize("protocol", PROTOCOLS.values(), ids=PROTOCOLS)
def test_declaration(protocol: Protocol) -> None:
    assert {*protocol.required, *protocol.optional, *protocol.nullable} <= KNOWN_COLUMNS
    assert PROTOCOLS[protocol.name] is protocol
    assert protocol.summary
    if protocol.name == "mteb":
        return

    function = getattr(load_module(protocol.name), protocol.name.replace("-", "_"))
    parameters = inspect.signature(function).parameters
    for option, value in protocol.options().arguments().items():
        assert parameters[option].default == value

    options = {spec.name for spec in specs_of(protocol.options).values()}
    of_data = {"pool", "gold", "tune", "tune_gold", "train", "train_language", "hold_out", "debias"}
    of_data |= {"documents", "relevance", "document_columns", "relevance_columns", "ignore_identical_ids"}
    assert options - of_data <= set(parameters)


class Ones:
    """An encoder that records what it encodes."""

    def __init__(self) -> None:
        self.texts: list[list[str]] = []

    def encode(self, texts: list[str], **options: Any) -> Any:
        self.texts.append(list(texts))
        return np.random.default_rng(len(self.texts)).random((len(texts), 2))


def pair(source: str, target: str, source_lang: str, target_lang: str) -> dict[str, str]:
    return {
        "source": source,
        "target": target,
        "source_lang": source_lang,
        "target_lang": target_lang,
    }


def run(name: str, rows: list[dict[str, Any]], **inputs: Any) -> tuple[list[str], list[list[str]]]:
    """The keys of the metrics, and the texts that the protocol encodes."""
    encoder = Ones()
    protocol = PROTOCOLS[name]
    metrics = protocol.run(encoder, PairInputs("x", "test", rows=rows, **inputs), protocol.options())
    return list(metrics), encoder.texts


def test_xtreme_swaps_pairs_to_english_first() -> None:
    keys, texts = run("tatoeba-xtreme", [pair("B", "b", "de", "en"), pair("a", "A", "en", "de")])
    assert keys == ["x-tatoeba-xtreme/en-de/test/accuracy", "x-tatoeba-xtreme/en-de/test/pairs"]
    assert texts == [["b", "a"], ["B", "A"]]


def test_xsr_joins_both_directions_and_the_pool() -> None:
    rows = [pair("a", "A", "en", "de"), pair("B", "b", "de", "en"), pair("c", "C", "en", "fr")]
    pool = [pair("d", "D", "en", "fr"), pair("E", "e", "de", "en")]

    keys, texts = run("xsr", rows, pool=pool)

    assert {key.split("/")[1] for key in keys} == {"en-de", "de-en", "en-fr", "fr-en"}
    assert texts[:4] == [["a", "b"], ["A", "B", "E"], ["A", "B"], ["a", "b", "e"]]
    assert texts[4:] == [["c"], ["C", "D"], ["C"], ["c", "d"]]


def test_functions_are_not_hidden_by_their_modules() -> None:
    for name in evaluation.__all__:
        assert not inspect.ismodule(getattr(evaluation, name)), name


def test_protocols_are_imported_on_first_use() -> None:
    code = (
        "import sys\n"
        "import hf_xlsr.evaluation\n"
        "from hf_xlsr.evaluation.protocol import PROTOCOLS, option_specs\n"
        "assert 'tatoeba' in PROTOCOLS and not [name for name in sys.modules if 'protocols.' in name]\n"
        "PROTOCOLS['tatoeba']\n"
        "assert 'hf_xlsr.evaluation.protocols.transfer' not in sys.modules\n"
        "option_specs()\n"
        "heavy = {'mteb', 'sacrebleu', 'matplotlib', 'torch', 'sklearn', 'transformers'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
