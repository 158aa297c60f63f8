"""Texts of languages on the command line: `--texts`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hf_xlsr.utils.errors import XlsrError

if TYPE_CHECKING:
    from hf_xlsr.data.formats.quarantine import Quarantine

PLACEHOLDER = "{lang}"


def read_texts(
    model: str, texts: list[str], given: dict[str, Any], quarantine: Quarantine
) -> dict[str, Iterable[str]]:
    """Language -> texts of `--texts`, read as they are asked for; the model and the files are looked for first."""
    from hf_xlsr.cli.options import parse_languages
    from hf_xlsr.data.columns import parse_columns
    from hf_xlsr.data.sources import open_source
    from hf_xlsr.evaluation.table import parse_where
    from hf_xlsr.runs.inputs import check_named

    columns = parse_columns(given["columns"])
    files = list(_files(texts, columns, given["config"], parse_languages(given["languages"])))
    check_named(model, {"--texts": [path.replace(PLACEHOLDER, language) for language, path in files]})
    where = parse_where(given["where"])
    if others := [name for name in columns if name != "text"]:
        raise XlsrError(f"--columns must be text=COLUMN, got '{others[0]}'.")

    def stream(language: str, path: str) -> Iterator[str]:
        source: dict[str, Any] = {"path": path.replace(PLACEHOLDER, language), "where": where}
        if columns:
            source["columns"] = {"text": columns["text"].replace(PLACEHOLDER, language)}
        if given["config"]:
            source["config"] = given["config"].replace(PLACEHOLDER, language)
        if given["split"]:
            source["split"] = given["split"]
        rows = open_source(source, languages=[language], required=("text",), optional=(), quarantine=quarantine)
        return (row["text"] for row in rows)

    paths: dict[str, list[str]] = {}
    for language, path in files:
        paths.setdefault(language, []).append(path)
    found: dict[str, Iterable[str]] = {}
    for language, own in paths.items():
        rows = chain.from_iterable(stream(language, path) for path in own)
        # Fails for a missing or empty file before the model is loaded.
        if (first := next(rows, None)) is None:
            raise XlsrError(f"{' and '.join(own)} has no text in '{language}'.")
        found[language] = islice(chain([first], rows), given["limit"])
    return found


def _files(
    given: list[str], columns: dict[str, str], config: str | None, languages: list[str]
) -> Iterator[tuple[str, str]]:
    """Language and path of each file."""
    for text in given:
        language, _, path = text.partition("=")
        if path and not Path(text).exists():
            yield language.strip(), path
            continue
        wide = any(PLACEHOLDER in part for part in (text, columns.get("text", ""), config or ""))
        if not languages or (len(languages) > 1 and not wide):
            raise XlsrError(
                f"the language of --texts '{text}' is unknown; write LANGUAGE=FILE, or {PLACEHOLDER} in FILE or "
                "--columns, with --languages."
            )
        yield from ((language, text) for language in languages)
