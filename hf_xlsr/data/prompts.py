"""Which prompt stands before a text: by its role, by its language, or the default one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from hf_xlsr.data.languages import nearest_tag

Prompts = str | Mapping[str, str] | None
"""Prompts that users give: one for all texts, by name, or None for the encoder's own."""

ROLES: dict[str, tuple[str, ...]] = {"query": ("query",), "document": ("document", "passage", "corpus")}
"""Names of the prompt of each role, as in sentence-transformers."""

SIDES: dict[str, str] = {"source": "query", "target": "document"}
"""Role of each side of a translation pair, where a user gives prompts by role."""

DEFAULT = "default"


@dataclass(frozen=True)
class PromptTable:
    """The prompts of an encoder by name, and the name of the default one.

    Names are roles (see `ROLES`), sides of a pair (see `SIDES`), languages, or anything else, which is used by name only.

    Examples:
        >>> table = PromptTable({"query": "query: ", "passage": "passage: ", "de": "Text: "}, default="query")
        >>> table.text(), table.text(role="document"), table.text(language="deu")
        ('query: ', 'passage: ', 'Text: ')
        >>> table.given("").text()
        ''
    """

    texts: Mapping[str, str] = field(default_factory=dict)
    default: str | None = None
    from_user: frozenset[str] = frozenset()
    """Names that a user gave for this use; such a prompt counts even if it is empty."""

    @classmethod
    def of(cls, encoder: Any) -> PromptTable:
        """The prompts of a `SentenceTransformer`, or of anything with its attributes; empty for other encoders."""
        texts = getattr(encoder, "prompts", None) or {}
        return cls({name: text or "" for name, text in texts.items()}, getattr(encoder, "default_prompt_name", None))

    def given(self, prompts: Prompts) -> PromptTable:
        """These prompts with those that a user gives: one text replaces all, names replace or add to the own ones.

        Prompts of roles are also those of the sides of translation pairs, and the other way round.
        """
        if prompts is None:
            return self
        if isinstance(prompts, str):
            return PromptTable(dict.fromkeys((DEFAULT, *ROLES), prompts), DEFAULT)

        texts = dict(prompts)
        for side, role in SIDES.items():
            if side in texts:
                texts.setdefault(role, texts[side])
            elif role in texts:
                texts[side] = texts[role]

        default = self.default
        if DEFAULT in texts:
            default = DEFAULT
            texts = {**dict.fromkeys(ROLES, texts[DEFAULT]), **texts}
        return PromptTable({**self.texts, **texts}, default, frozenset(prompts))

    def text(self, *, role: str | None = None, language: str | None = None) -> str:
        """The prompt of a text; empty if there is none. A role is looked up before a language."""
        name = self.name(role=role, language=language)
        return "" if name is None else self.texts[name]

    def name(self, *, role: str | None = None, language: str | None = None) -> str | None:
        """The name of a text's prompt; None if there is none.

        sentence-transformers adds empty prompts `query` and `document` to every model, also to one that names its own
        `passage` or by language, and a default of ours is stored under these names too. So of the names of a role the
        first with a text of its own counts, then the language. A role with empty prompts only, in a language without a
        prompt, has no prompt, not the default one.
        """
        role = role or ""
        names_of_role = [name for name in ROLES.get(role, (role,)) if name in self.texts]
        for name in names_of_role:
            if self._tells(name):
                return name

        name_of_language = nearest_tag(language, self.texts)
        if name_of_language is not None:
            return name_of_language
        if names_of_role:
            return names_of_role[0]
        return self.default if self.default in self.texts else None

    def _tells(self, name: str) -> bool:
        """Whether the prompt of a role says more than that it is empty, or equal to the default one."""
        copied = self.texts[name] == self.texts.get(self.default or "")
        return name in self.from_user or name == self.default or bool(self.texts[name] and not copied)
