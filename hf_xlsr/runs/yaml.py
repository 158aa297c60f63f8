"""The YAML of recipes: what people expect where YAML 1.1 surprises them."""

from __future__ import annotations

import re
from typing import Any

import yaml

from hf_xlsr.utils.errors import XlsrError, error_line

# YAML 1.1 reads the language `no` as a boolean. Dates stay text, as names of runs and values of `where` are text.
REPLACED_TAGS = ("tag:yaml.org,2002:bool", "tag:yaml.org,2002:timestamp")
BOOLEAN = re.compile(r"^(?:true|True|TRUE|false|False|FALSE)$")
# YAML 1.1 asks for a dot and a sign: 1e-3 would be text.
SCIENTIFIC = re.compile(r"^[-+]?[0-9][0-9_]*(?:\.[0-9]*)?[eE][-+]?[0-9]+$")


class _Loader(yaml.SafeLoader):
    """`1e-3` is a number, only true and false are booleans, and a repeated key is an error."""

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        keys = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode) or key.tag == "tag:yaml.org,2002:merge":
                continue
            if (key.tag, key.value) in keys:
                problem = f"the key '{key.value}' is repeated"
                raise yaml.constructor.ConstructorError(None, None, problem, key.start_mark)
            keys.add((key.tag, key.value))
        return node


_Loader.yaml_implicit_resolvers = {
    first_letter: [resolver for resolver in resolvers if resolver[0] not in REPLACED_TAGS]
    for first_letter, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver("tag:yaml.org,2002:bool", BOOLEAN, "tTfF")
_Loader.add_implicit_resolver("tag:yaml.org,2002:float", SCIENTIFIC, "-+0123456789")


def parse_yaml(text: str | bytes, where: str) -> Any:
    """The content of a YAML text; `where` names it in errors."""
    try:
        return yaml.load(text, Loader=_Loader)  # noqa: S506 - a SafeLoader
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        position = f" line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        problem = error_line(getattr(error, "problem", error))
        raise XlsrError(f"{where}{position}: invalid YAML ({problem}).") from None
