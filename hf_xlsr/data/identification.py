"""Identification of a text's language, by any identifier."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from importlib.metadata import version
from math import exp
from pathlib import Path
from pickle import PicklingError
from typing import Any
from uuid import uuid4

from datasets.fingerprint import Hasher

from hf_xlsr.data.languages import language_code, own_weight, scripts_of
from hf_xlsr.utils.errors import XlsrError
from hf_xlsr.utils.extras import require_package
from hf_xlsr.utils.hashing import remembered_sha256
from hf_xlsr.utils.plugins import Registry, plugin_failures

FASTTEXT = "fasttext:"
LETTERS = ("script", "alphabet")
"""Names of what judges a language by letters, beside identifiers."""
HELIPORT_LABELS = 60
"""The most probable labels, of 220."""
HELIPORT_SCALE = 3.0
"""Of a score as an exponent; chosen like the defaults of cleaning, see docs/results/cleaning.md."""

# Labels for one language.
_SAME_LANGUAGE = (
    frozenset({"no", "nb", "nn"}),
    frozenset({"zh", "yue", "wuu"}),
    frozenset({"ar", "ary", "arz"}),
)
_SERBO_CROATIAN = "sh"
_OF_SERBO_CROATIAN = frozenset({"bs", "hr", "sr"})

Probabilities = Mapping[str, float]
"""Language -> probability, in any codes. Languages that are left out have none."""


@dataclass(frozen=True)
class Identifier:
    """What a text's languages may be, as probabilities.

    Attributes:
        name: What its answers depend on: package and version, a hash of the file or of the function.
        identify: From a text to its `Probabilities`.
        labels: All languages that it supports, as it writes them; empty where that is not known.
    """

    name: str
    identify: Callable[[str], Probabilities]
    labels: frozenset[str] = frozenset()

    def share(self, text: str, languages: tuple[str, ...]) -> float:
        """The probability of the languages, divided by the sum of it and that of the most probable other one.

        It is 1 for a text without letters, and for one about which the identifier says nothing. Unlike the probability,
        it does not fall when several languages are a little likely, as they are for short texts.
        """
        if not any(map(str.isalpha, text)):
            return 1.0
        own_codes = codes_of(languages)
        own = 0.0
        best_other = 0.0
        for label, probability in self.identify(text).items():
            if language_code(label) in own_codes:
                own += probability
            else:
                best_other = max(best_other, probability)
        return own / (own + best_other) if own or best_other else 1.0

    def check(self, languages: Sequence[str]) -> None:
        """Raises an error if it does not support one of the languages."""
        for language in languages:
            if self.codes and self.codes.isdisjoint(codes_of([language])):
                raise XlsrError(f"{self.name} does not support the language '{language}'.")

    @cached_property
    def codes(self) -> frozenset[str]:
        """The codes of `labels`."""
        return frozenset(map(language_code, self.labels))


def load_identifier(method: str | Callable[[str], Probabilities]) -> Identifier:
    """The identifier of a name of `IDENTIFIERS`, of `fasttext:FILE`, or of a function from a text to `Probabilities`.

    Examples:
        >>> load_identifier(lambda text: {"en": 0.9, "de": 0.1}).share("Hello", ("deu",))
        0.1
    """
    if isinstance(method, str) and not method.startswith(FASTTEXT):
        if method not in IDENTIFIERS:
            methods = ", ".join([*LETTERS, *IDENTIFIERS, f"{FASTTEXT}FILE"])
            raise XlsrError(f"unknown method '{method}'; use {methods} or a function. {plugin_failures()}".rstrip())
        IDENTIFIERS.find("method", method)
    return cached_identifier(method)


@cache
def cached_identifier(method: str | Callable[[str], Probabilities]) -> Identifier:
    """As `load_identifier`, of a name that is known."""
    if callable(method):
        return Identifier(_name_of_function(method), method)
    if method.startswith(FASTTEXT):
        return _fasttext(method)
    return IDENTIFIERS[method]()


def _py3langid() -> Identifier:
    identifier = py3langid_identifier()
    name = f"py3langid {version('py3langid')}"
    return Identifier(name, lambda text: dict(identifier.rank(text)), frozenset(identifier.nb_classes))


def _name_of_function(function: Callable[[str], Probabilities]) -> str:
    """A name with a hash of a function; a new one in each process for one that cannot be hashed."""
    name = getattr(function, "__qualname__", type(function).__name__)
    try:
        return f"{name}-{Hasher.hash(function)}"
    except (TypeError, PicklingError):
        return f"{name}-{uuid4().hex}"


def _heliport() -> Identifier:
    require_package("heliport")
    from heliport import Identifier as Heliport

    heliport = Heliport()

    def identify(text: str) -> Probabilities:
        """It has scores, mean negative logarithms over the n-grams of a text, instead of probabilities."""
        scores = dict(heliport.identify_topk_with_score(text, HELIPORT_LABELS))
        lowest = min(scores.values(), default=0.0)
        weights = {label: exp(HELIPORT_SCALE * (lowest - score)) for label, score in scores.items()}
        total = sum(weights.values())
        return {label: weight / total for label, weight in weights.items()}

    return Identifier(f"heliport {version('heliport')}", identify, frozenset(heliport.get_confidence_all()))


def _fasttext(method: str) -> Identifier:
    require_package("fasttext")
    import fasttext

    file = Path(method.removeprefix(FASTTEXT)).expanduser()
    if not file.is_file():
        raise XlsrError(f"Cannot find the model '{file}' of `method: {method}`. Give the path of a fastText model.")
    model = fasttext.load_model(str(file))

    def identify(text: str, threshold: float = 0.0) -> Probabilities:
        labels, probabilities = model.predict(text.replace("\n", " "), k=-1, threshold=threshold)
        codes = [label.removeprefix("__label__") for label in labels]
        return dict(zip(codes, map(float, probabilities), strict=True))

    all_labels = identify("a", threshold=-1.0)
    return Identifier(f"fasttext {remembered_sha256(file)}", identify, frozenset(all_labels))


IDENTIFIERS: Registry[Callable[[], Identifier]] = Registry(
    "language identifier", "identifiers", {"py3langid": _py3langid, "heliport": _heliport}, reserved=LETTERS
)
"""What makes each identifier that a recipe can name."""
Identify = Callable[[str], Probabilities]


def register_identifier(name: str, labels: Iterable[str] = ()) -> Callable[[Identify], Identify]:
    """A decorator: a function tells languages apart where an identifier is named, as in `language: {method: NAME}`.

    The function takes a text, and gives a probability for each language, in any codes.

    Args:
        name: Name of the identifier.
        labels: All languages that it supports, so that another one is an error; without labels, none is.
    """

    known_labels = frozenset(labels)

    def register(function: Identify) -> Identify:
        def make() -> Identifier:
            origin = IDENTIFIERS.origin(name)
            return Identifier(f"{name} ({origin})", function, known_labels)

        IDENTIFIERS.add(name, make, function)
        cached_identifier.cache_clear()
        return function

    return register


@cache
def py3langid_identifier() -> Any:
    """The identifier of py3langid, with probabilities."""
    require_package("py3langid")
    from py3langid.langid import MODEL_FILE, LanguageIdentifier

    return LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)


def codes_of(languages: Sequence[str]) -> frozenset[str]:
    """All codes by which identifiers may mean one of the languages."""
    codes: set[str] = set()
    for code in map(language_code, languages):
        codes |= _same_language(code)
        if code in _OF_SERBO_CROATIAN:
            codes.add(_SERBO_CROATIAN)
    return frozenset(codes)


def _same_language(code: str) -> frozenset[str]:
    for group in _SAME_LANGUAGE:
        if code in group:
            return group
    return frozenset({code})


def share_of_first(
    languages: tuple[str, str],
    *,
    place: str,
    advice: str,
) -> Callable[[str], float | None]:
    """A function from a text to the share of it in the first of two languages; to None for one without their letters.

    Letters decide between languages without a common script, where one in another script counts as much as four Latin
    ones; else py3langid. A language that it does not support gets what the other one leaves. Languages that it cannot
    tell apart are an error that names `place`.

    Examples:
        >>> share = share_of_first(("en", "ru"), place="a text", advice="name its language")
        >>> share("да, ok"), share("Hello!"), share("42")
        (0.2, 1.0, None)
    """
    codes = [language_code(language) for language in languages]
    labels = None if _differ_in_script(*codes) else _labels(codes, place, advice)

    def share(text: str) -> float | None:
        if not any(map(str.isalpha, text)):
            return None
        if labels is None:
            weights: list[float] = [own_weight(text, (code,)) for code in codes]
        else:
            weights = _probabilities(text, labels)
        return weights[0] / sum(weights) if any(weights) else None

    return share


def _differ_in_script(first: str, second: str) -> bool:
    try:
        return not scripts_of([first]) & scripts_of([second])
    except XlsrError:  # one whose scripts are unknown may share those of any other
        return False


def _labels(codes: Sequence[str], place: str, advice: str) -> list[frozenset[str]]:
    """The labels of py3langid for each language; an empty set where it does not support the language."""
    supported = py3langid_identifier().nb_classes
    labels = [_same_language(code).intersection(supported) for code in codes]
    if labels[0] == labels[1]:
        raise XlsrError(f"{place} is in {' or '.join(codes)}, which py3langid cannot tell apart; {advice}.")
    return labels


def _probabilities(text: str, labels: Sequence[frozenset[str]]) -> list[float]:
    """The probability of each language; one that py3langid does not support gets what the other one leaves."""
    probability_of = dict(py3langid_identifier().rank(text))
    probabilities = [sum(map(probability_of.__getitem__, labels_of_language)) for labels_of_language in labels]
    rest = max(0.0, 1.0 - sum(probabilities))
    return [value if supported else rest for value, supported in zip(probabilities, labels, strict=True)]
