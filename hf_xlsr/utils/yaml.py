"""The one reader of YAML: limits for files of others, and what people expect where YAML 1.1 surprises them."""

from __future__ import annotations

import re
from typing import Any

import yaml

from hf_xlsr.utils.errors import XlsrError, error_line

MOST_CHARACTERS = 1 << 20
MOST_NODES = 50_000
DEEPEST = 40
LONGEST_NUMBER = 100  # characters; numbers like 1:30:00 take quadratic time
TEXT_OF_NODE = 64  # characters of a text that count as one more node

TEXT = "tag:yaml.org,2002:str"
# YAML 1.1 reads the language `no` as a boolean. Dates stay text, as names of runs and values of `where` are text.
REPLACED_TAGS = ("tag:yaml.org,2002:bool", "tag:yaml.org,2002:timestamp")
BOOLEAN = re.compile(r"^(?:true|True|TRUE|false|False|FALSE)$")
# YAML 1.1 asks for a dot and a sign: 1e-3 would be text.
SCIENTIFIC = re.compile(r"^[-+]?[0-9][0-9_]*(?:\.[0-9]*)?[eE][-+]?[0-9]+$")


class _Loader(yaml.SafeLoader):
    """`1e-3` is a number, only true and false are booleans, and a repeated key is an error.

    Nodes are counted as if each alias were written out, as a few lines of aliases stand for gigabytes.
    """

    def __init__(self, stream: Any) -> None:
        super().__init__(stream)
        self.size = 0
        self.depth = 0
        self.deepest = 0
        self.measures: dict[int, tuple[int, int]] = {}  # size and height of finished nodes

    def compose_node(self, parent: Any, index: Any) -> Any:
        mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
        is_alias = self.check_event(yaml.AliasEvent)
        size_before = self.size
        deepest_before = self.deepest
        self.depth += 1
        self.deepest = self.depth
        self._check(mark)

        node: Any = super().compose_node(parent, index)
        if is_alias:
            if id(node) not in self.measures:
                raise yaml.composer.ComposerError(None, None, "a value contains itself", mark)
            size, height = self.measures[id(node)]
            self.size += size
            self.deepest += height
        else:
            self.size += 1
            if isinstance(node, yaml.ScalarNode):
                self.size += len(node.value) // TEXT_OF_NODE
                if node.tag != TEXT and len(node.value) > LONGEST_NUMBER:
                    raise yaml.composer.ComposerError(None, None, "a number is too long", mark)
            self.measures[id(node)] = (self.size - size_before, self.deepest - self.depth)

        self._check(mark)
        self.depth -= 1
        self.deepest = max(self.deepest, deepest_before)
        return node

    def _check(self, mark: Any) -> None:
        problem = ""
        if self.size > MOST_NODES:
            problem = f"there are more than {MOST_NODES:,} values, with aliases written out"
        elif self.deepest > DEEPEST:
            problem = f"values are nested more than {DEEPEST} deep"
        if problem:
            raise yaml.composer.ComposerError(None, None, problem, mark)

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
    """The content of a YAML text; `where` names it in errors.

    Raises:
        XlsrError: It is invalid, too long, nested too deep, or has too many values once aliases are written out.

    Examples:
        >>> parse_yaml("no: [1e-3, yes]", "recipe 'a'")
        {'no': [0.001, 'yes']}
    """
    if len(text) > MOST_CHARACTERS:
        raise XlsrError(f"{where}: the YAML has more than {MOST_CHARACTERS:,} characters.")
    try:
        return yaml.load(text, Loader=_Loader)  # noqa: S506 - a SafeLoader
    except (yaml.YAMLError, ValueError, OverflowError) as error:
        mark = getattr(error, "problem_mark", None)
        position = f" line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        problem = error_line(getattr(error, "problem", error), 200)
        raise XlsrError(f"{where}{position}: invalid YAML ({problem}).") from None
