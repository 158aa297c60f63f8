"""A sentence-transformers `Router` with a route for each language, which detects the language of texts given none."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import langcodes
import torch
from sentence_transformers.base.modules import Router
from sentence_transformers.base.modules.module import Module
from torch import nn
from torch.nn.utils.rnn import pad_sequence

from hf_xlsr.data.language_identification import language_shares
from hf_xlsr.data.languages import language_code
from hf_xlsr.utils.errors import XlsrError

# Those of `encode`, `encode_query` and `encode_document`: none of them says a language.
TASKS_WITHOUT_LANGUAGE = (None, "query", "document")


def check_route_names(names: Iterable[str]) -> None:
    """Refuses names that no router with a route for each language can have.

    Raises:
        XlsrError: a name is no language tag, two name the same language, or torch keeps the name for itself.

    Example:
        >>> check_route_names(["en", "zh"])
        >>> check_route_names(["en", "eng"])
        Traceback (most recent call last):
        ...
        hf_xlsr.utils.errors.XlsrError: routes 'en' and 'eng' are the same language; give each language one route.
    """
    known: dict[str, str] = {}
    for name in names:
        if not langcodes.tag_is_valid(name):
            raise XlsrError(
                f"route '{name}' is no language tag; name each route after its language, such as en or zh."
            )
        if hasattr(nn.ModuleDict, name):
            other = langcodes.Language.get(name).to_alpha3()
            raise XlsrError(f"no route can be named '{name}', which is a method of torch's modules; write '{other}'.")
        if language_code(name) in known:
            first = known[language_code(name)]
            raise XlsrError(f"routes '{first}' and '{name}' are the same language; give each language one route.")
        known[language_code(name)] = name


class LanguageRouter(Router):
    """Sends each text to the route of its language: of the one named by `task`, else of the one it looks to be in.

    With the name of a language for `task` it does what `Router` does. Without, and for `encode_query` and
    `encode_document` where `route_mappings` leaves these to it, each text of a batch goes to the route that
    `language_shares` gives most to: by letters where the routes' languages differ in script, else by py3langid (the
    extra `langid`), among these languages only. A text that neither says anything about, such as one of digits, goes
    to the default route: the first, unless another is named.

    A folder with this class in it takes `SentenceTransformer(path, trust_remote_code=True)`; an export brings the code,
    which needs the package langcodes, and py3langid where letters do not tell the languages apart. Batches of several
    languages give `token_embeddings` only if these are of one width in all routes.

    Args:
        sub_modules: Language -> the modules that its texts go through, one after the other; all give vectors of one
            width.
        default_route: The language of texts that nothing is said about.
        allow_empty_key: Let the first route be the default one; without either such texts are refused.
        route_mappings: See `Router`.

    Raises:
        XlsrError: a route's name is no language tag, or two name the same language.

    Example:
        >>> from sentence_transformers.sentence_transformer.modules import StaticEmbedding
        >>> from tokenizers import Tokenizer, models
        >>> words = Tokenizer(models.WordLevel({"?": 0}, unk_token="?"))
        >>> router = LanguageRouter({code: [StaticEmbedding(words, embedding_dim=8)] for code in ("en", "zh")})
        >>> router.detect(["Good morning", "早上好", "8:30"])
        ['en', 'zh', 'en']
    """

    def __init__(
        self,
        sub_modules: dict[str, list[Module]],
        default_route: str | None = None,
        allow_empty_key: bool = True,
        route_mappings: dict[tuple[str | None, str | tuple[str, ...] | None], str] | None = None,
    ) -> None:
        check_route_names(sub_modules)
        super().__init__(sub_modules, default_route, allow_empty_key, route_mappings)

    def detect(self, texts: Sequence[str]) -> list[str]:
        """The route of each text, by how it reads.

        Raises:
            XlsrError: py3langid is needed and missing, or it cannot tell two of the routes' languages apart.
        """
        names = list(self.sub_modules)
        mend = f"say which with task='{names[0]}'"
        shares = language_shares(names, place="a text without a task", mend=mend)
        found = [shares(text) for text in texts]
        unsaid = str(self._resolve_route()) if None in found else ""
        return [unsaid if of_text is None else names[of_text.index(max(of_text))] for of_text in found]

    def preprocess(
        self,
        inputs: Sequence[Any],
        prompt: str | None = None,
        task: str | None = None,
        modality: Any = None,
        **kwargs: Any,
    ) -> dict[str, Any]:
        """Tokenizes each text with its route's tokenizer.

        Args:
            inputs: Texts, or what else the routes' first modules take; only texts, pairs of texts and `{"text": ...}`
                have a language to detect.
            prompt: Put before every text; the language is the text's own.
            task: A language, `query`, `document` or None.
            modality: See `Router.preprocess`.
            **kwargs: Likewise.

        Returns:
            What `Router` gives if all texts take one route. Else each route's features under `ROUTE/NAME`, and under
            `language_rows` the positions of its texts.
        """
        texts = [_text(sample) for sample in inputs] if self._detects(task) else []
        if not texts or None in texts:
            return super().preprocess(inputs, prompt=prompt, task=task, modality=modality, **kwargs)
        rows: dict[str, list[int]] = {}
        for row, route in enumerate(self.detect([text or "" for text in texts])):
            rows.setdefault(route, []).append(row)
        parts = {
            route: super(LanguageRouter, self).preprocess(
                [inputs[row] for row in of_route], prompt=prompt, task=route, modality=modality, **kwargs
            )
            for route, of_route in rows.items()
        }
        if len(parts) == 1:
            return next(iter(parts.values()))
        flat = {f"{route}/{name}": value for route, part in parts.items() for name, value in part.items()}
        return {**flat, "language_rows": rows}

    def forward(
        self, features: dict[str, Any], task: str | None = None, modality: Any = None, **kwargs: Any
    ) -> dict[str, Any]:
        """Runs each text through its route.

        Args:
            features: As `preprocess` gives them.
            task: See `Router.forward`.
            modality: Likewise.
            **kwargs: Likewise.

        Returns:
            `sentence_embedding`, `(batch, width)`, in the order of the texts; with what else the route gives if all
            texts took one, else with `token_embeddings` and `attention_mask` at most.
        """
        # The task of `encode_query` comes here again, but the features know the language by now.
        task = None if self._detects(task) else task
        rows: Mapping[str, list[int]] | None = features.get("language_rows")
        if rows is None:
            return super().forward(features, task=task, modality=modality, **kwargs)
        parts = []
        for route in rows:
            own = {
                name.removeprefix(f"{route}/"): value
                for name, value in features.items()
                if name.startswith(f"{route}/")
            }
            parts.append(super().forward(own, task=route, modality=modality, **kwargs))
        order = torch.tensor([row for of_route in rows.values() for row in of_route]).argsort()
        return _joined(parts, order)

    def _detects(self, task: str | None) -> bool:
        return task in TASKS_WITHOUT_LANGUAGE and all(mapped != task for mapped, _ in self.route_mappings)


def _text(sample: Any) -> str | None:
    """What a sample says, without a prompt; None for one that is no text."""
    if isinstance(sample, str):
        return sample
    if isinstance(sample, Mapping):
        text = sample.get("text")
        return text if isinstance(text, str) else None
    if isinstance(sample, (list, tuple)) and all(isinstance(part, str) for part in sample):
        return "\n".join(sample)
    return None


def _joined(parts: Sequence[Mapping[str, Any]], order: torch.Tensor) -> dict[str, Any]:
    """The routes' vectors in the order of the texts."""
    vectors = torch.cat([part["sentence_embedding"] for part in parts])
    joined = {"sentence_embedding": vectors[order.to(vectors.device)]}
    names = ("token_embeddings", "attention_mask")
    whole = all(name in part for part in parts for name in names)
    if whole and len({part["token_embeddings"].shape[-1] for part in parts}) == 1:
        for name in names:
            padded = pad_sequence([row for part in parts for row in part[name]], batch_first=True)
            joined[name] = padded[order.to(padded.device)]
    return joined
