"""Whether the Hub will take a card: its metadata, looked at before anything is sent."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from typing import Any

import yaml
from huggingface_hub import ModelCard
from huggingface_hub.utils import yaml_dump

from hf_xlsr.data.sources import as_list
from hf_xlsr.export.access_tokens import check_no_token
from hf_xlsr.export.card_values import one_line
from hf_xlsr.export.hub_errors import hub_errors
from hf_xlsr.export.hub_names import is_hub_id
from hf_xlsr.export.licences import check_licence
from hf_xlsr.utils.errors import XlsrError

HEADER = re.compile(r"\A\s*---[ \t]*\r?\n(.*?)\r?\n---[ \t]*(?:\r?\n|\Z)", re.DOTALL)
_LANGUAGE = re.compile(r"[a-z]{2,3}(-[A-Za-z0-9]{2,8})*|multilingual|code")
_TAG = re.compile(r"[^\s,][^\n,]{0,95}")


def check_card(text: str, place: str = "README.md") -> dict[str, Any]:
    """Refuses a card whose metadata the Hub would not take, or that holds an access token.

    Args:
        text: The card.
        place: What the error sentence calls it.

    Returns:
        The metadata.

    Raises:
        XlsrError: as said; the sentence names the key.

    Example:
        >>> check_card("---\\nlanguage: [en, French]\\nlicense: mit\\n---\\n# A model")
        Traceback (most recent call last):
        ...
        hf_xlsr.utils.errors.XlsrError: README.md: language has 'French'; write ISO 639 codes, such as fr.
    """
    check_no_token(text, place)
    found = HEADER.match(text)
    if found is None:
        raise XlsrError(f"{place} has no metadata between two lines of ---; make the card again with hf-xlsr card.")
    try:
        data = yaml.safe_load(found[1])
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 2}" if mark else ""
        raise XlsrError(f"{place}{line}: the metadata are no YAML; mend them, or use hf-xlsr card.") from None
    if not isinstance(data, Mapping):
        raise XlsrError(f"{place}: the metadata are no keys with values; mend them, or use hf-xlsr card.")
    for key, takes, mend in _LISTS:
        for value in as_list(data.get(key)):
            if not isinstance(value, str) or not takes(value):
                raise XlsrError(f"{place}: {key} has '{one_line(value)}'; {mend}")
    if data.get("license") is not None:
        licence = check_licence(data["license"], f"{place}: license")
        if licence == "other" and not (data.get("license_name") and data.get("license_link")):
            raise XlsrError(f"{place}: license is 'other'; say which in license_name and license_link.")
    _check_results(data, place)
    return dict(data)


def check_card_section(section: Mapping[str, Any], place: str = "card") -> None:
    """Refuses what the `card` section of a recipe cannot hold, before a long training.

    Args:
        section: `license`, `license_name` and `license_link` (of a licence `other`), `base_model`, `datasets`.
        place: What the error sentence calls it.

    Raises:
        XlsrError: the Hub knows no such licence, or a name is no id of the Hub.

    Example:
        >>> check_card_section({"license": "mit"})
    """
    if section.get("license"):
        licence = check_licence(section["license"], f"{place}.license")
        if licence == "other" and not (section.get("license_name") and section.get("license_link")):
            raise XlsrError(f"{place}.license is 'other'; say which in {place}.license_name and {place}.license_link.")
    for key in ("base_model", "datasets"):
        for name in map(str, as_list(section.get(key))):
            if not is_hub_id(name):
                raise XlsrError(f"{place}.{key} has '{one_line(name)}', which is no id of the Hub; write OWNER/NAME.")


def check_card_on_hub(text: str, place: str = "README.md") -> None:
    """Asks the Hub whether it takes a card; nothing is stored there.

    Raises:
        XlsrError: it does not, or cannot be reached.
    """
    header = yaml_dump(check_card(text, place), sort_keys=False)
    try:
        with hub_errors(place, passing=(ValueError,)):
            ModelCard(f"---\n{header}---\n").validate()
    except XlsrError:
        raise
    except ValueError as error:
        raise XlsrError(
            f"the Hub does not take {place}: {_reasons(str(error))}; mend it, or use hf-xlsr card."
        ) from None


# Key, what its values have to be, and the mend.
_LISTS: tuple[tuple[str, Callable[[str], Any], str], ...] = (
    ("language", _LANGUAGE.fullmatch, "write ISO 639 codes, such as fr."),
    ("tags", _TAG.fullmatch, "a tag is a short text on one line, without a comma."),
    ("datasets", is_hub_id, "write ids of data sets on the Hub, OWNER/NAME."),
    ("base_model", is_hub_id, "write ids of models on the Hub, OWNER/NAME."),
    ("pipeline_tag", re.compile(r"[a-z0-9-]+").fullmatch, "write a task of the Hub, such as sentence-similarity."),
    ("library_name", re.compile(r"[\w.-]+").fullmatch, "write the name of a library."),
)


def _check_results(data: Mapping[str, Any], place: str) -> None:
    """The `model-index`, as the Hub reads it."""
    index = data.get("model-index")
    if index is None:
        return
    try:
        for model in index:
            names = [model["name"]]
            for result in model["results"]:
                names += [result["task"]["type"], result["dataset"]["type"], result["dataset"]["name"]]
                for metric in result["metrics"]:
                    names.append(metric["type"])
                    value = metric["value"]
                    if isinstance(value, float) and not math.isfinite(value):
                        raise XlsrError(f"{place}: model-index has {metric['type']} {value}; give a finite number.")
    except (KeyError, TypeError) as error:
        missing = f"lacks {error}" if isinstance(error, KeyError) else "is not a list of results"
        raise XlsrError(f"{place}: model-index {missing}; make the card again with hf-xlsr card.") from None
    if not all(isinstance(name, str) and name for name in names):
        raise XlsrError(f"{place}: model-index has a name that is no text; make the card again with hf-xlsr card.")


def _reasons(answer: str) -> str:
    """What the Hub said, whose answer is text or JSON."""
    try:
        errors = json.loads(answer).get("errors", [])
        return "; ".join(one_line(error["message"]) for error in errors).rstrip(".") or one_line(answer)
    except (ValueError, AttributeError, KeyError, TypeError):
        return one_line(answer).rstrip(".")
