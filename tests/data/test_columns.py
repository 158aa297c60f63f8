from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_xlsr.data.columns import KNOWN_COLUMNS, MissingColumn, parse_columns, resolve_columns


@pytest.mark.parametrize(
    ("given_columns", "expected"),
    [
        (None, {}),
        (" source = en , fr = target ", {"source": "en", "target": "fr"}),
        ("text=source", {"text": "source"}),  # both are ours: the left one counts
        ({"source": 0, "fr": "target"}, {"source": "0", "target": "fr"}),
        ({"source": "a=b,c"}, {"source": "a=b,c"}),
    ],
)
def test_parse_columns(given_columns, expected):
    assert parse_columns(given_columns) == expected


@settings(max_examples=50, deadline=None)
@given(
    st.dictionaries(
        st.sampled_from(sorted(KNOWN_COLUMNS)),
        st.from_regex(r"[a-z0-9_.]{1,8}", fullmatch=True).filter(lambda name: name not in KNOWN_COLUMNS),
        min_size=1,
    )
)
def test_both_directions_are_equal(mapping):
    forward = ",".join(f"{ours}={theirs}" for ours, theirs in mapping.items())
    backward = ",".join(f"{theirs}={ours}" for ours, theirs in mapping.items())
    assert parse_columns(forward) == parse_columns(backward) == parse_columns(mapping) == mapping


def test_resolve_columns():
    names = ["source", "target", "lang", "id", "translation.en"]
    assert resolve_columns({}, ["source", "target"], names, "f") == {n: n for n in ("source", "target", "lang")}
    assert resolve_columns({}, ["id"], names, "f")["id"] == "id"
    mapped = resolve_columns({"target": "translation.en"}, ["source", "target"], names, "f")
    assert mapped == {"source": "source", "target": "translation.en"}


def test_optional_columns():
    names = ["source", "target", "lang", "split", "set"]
    taken = resolve_columns({}, ["source"], names, "f", ["split", "subset"])
    assert taken == {"source": "source", "split": "split"}
    # A mapping counts before the name, and has to be right.
    assert resolve_columns({"split": "set"}, ["source"], names, "f", ["split"]) == {"source": "source", "split": "set"}
    with pytest.raises(MissingColumn, match="f has no column 'sett'") as error:
        resolve_columns({"split": "sett"}, ["source"], names, "f", ["split"])
    assert (error.value.file, error.value.ours, error.value.column) == ("f", "split", "sett")
    assert error.value.names == tuple(names)
