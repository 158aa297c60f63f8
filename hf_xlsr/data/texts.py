"""Monolingual sentences, tokenised once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from datasets import Dataset, Features, Value, load_from_disk
from datasets import Sequence as ListOf

from hf_xlsr.data.cleaning import RemoveEvaluation, build_text_cleaner
from hf_xlsr.data.formats.quarantine import Quarantine
from hf_xlsr.data.piece_counts import PieceCounts
from hf_xlsr.data.prepare import prepare_once, vocabulary_hash
from hf_xlsr.data.prepared import (
    PreparedByLanguage,
    check_tokenizers,
    map_rows,
    store_rows,
)
from hf_xlsr.data.seen import SeenHashes
from hf_xlsr.data.sources import as_list, as_source, open_source

_FEATURES = Features({"text": Value("string"), "lang": Value("string")})


class PreparedTexts(PreparedByLanguage):
    """Tokenised sentences, fetched by the `(epoch, index)` keys of `LengthBucketBatchSampler`.

    Each is a mapping with `text_ids`, `lang`, `index` and `epoch`.

    Args:
        tokenised: What `prepare_texts` writes.
        report: Its counts: `texts`, `languages` (the language of each group), `cleaning`, `rejected` (bad lines by
            reason), `truncated_sides`, `pieces`.

    Attributes:
        lengths: Pieces of each sentence, `(n,)`.
        groups: Group of each sentence, by language, `(n,)`.

    Raises:
        XlsrError: the data was tokenised by a version that kept less of it.

    Example:
        >>> rows = {"text_ids": [[4, 5]], "length": [2], "group": [0]}
        >>> PreparedTexts(Dataset.from_dict(rows), {"languages": ["sw"]})[0, 0]["lang"]
        'sw'
    """

    def __init__(self, tokenised: Dataset, report: Mapping[str, Any]) -> None:
        super().__init__(tokenised, report, ["text_ids"])


def prepare_texts(
    sources: Any,
    *,
    languages: Sequence[str],
    tokenizers: Any,
    folder: str | Path,
    evaluation_texts: Iterable[str] | SeenHashes,
    cleaning: Any = ("normalize", "deduplicate"),
    max_length: int = 200,
    seed: int = 1,
) -> PreparedTexts:
    """Reads, cleans and tokenises sentences into `folder`, or takes what a finished call left there.

    Args:
        sources: One source or several, as in a recipe: rows of `text` and, if a file has it, `lang`. A source whose
            rows do not name their language says it in its `languages`.
        languages: Languages of the recipe; the first is that of a source which says nothing.
        tokenizers: Language -> tokenizer, or one tokenizer for all.
        folder: Gets `data/`, `rejected.jsonl` and, last of all, `prepared.json`. Not the folder of the pairs.
        evaluation_texts: Sentences that are removed, or their keys from `evaluation_keys`.
        cleaning: Steps, as in a recipe; those that compare two sides are left out.
        max_length: Longest sentence kept whole, in pieces.
        seed: Chooses the rows of a source with `sample`.

    Returns:
        The sentences, with their counts.

    Raises:
        XlsrError: what readers raise; a language without tokenizer; no sentence is left.
    """
    folder, sources = Path(folder), as_list(sources)

    def make() -> dict[str, Any]:
        cleaner = build_text_cleaner(cleaning or [], languages=list(languages))
        cleaner.steps.append(RemoveEvaluation(evaluation_texts))
        with Quarantine(folder / "rejected.jsonl") as quarantine:
            rows = store_rows(
                cleaner(_rows(sources, languages, seed, quarantine)),
                _FEATURES,
                folder / "rows",
                empty="no monolingual sentence is left: none was read, or all are in evaluation sets; check "
                "data.monolingual.",
            )
            rejected = dict(quarantine.counts)
        tokenised, counts = _tokenize(rows, tokenizers, max_length)
        tokenised.save_to_disk(str(folder / "data"))
        return {**counts, "cleaning": dict(cleaner.counts), "rejected": rejected}

    report = prepare_once(folder, sources, make, vocabulary_hash(tokenizers))
    return PreparedTexts(load_from_disk(str(folder / "data")), report)


def _rows(
    sources: Sequence[Any], languages: Sequence[str], seed: int, quarantine: Quarantine
) -> Iterator[dict[str, Any]]:
    for source in sources:
        default = str((as_list(as_source(source).get("languages")) or languages)[0])
        rows = open_source(
            source, languages=[default], required=("text",), optional=("lang",), quarantine=quarantine, seed=seed
        )
        for row in rows:
            yield {"text": row["text"], "lang": row.get("lang") or default}


def _tokenize(rows: Dataset, tokenizers: Any, max_length: int) -> tuple[Dataset, dict[str, Any]]:
    """Rows as ids, with the counts of `PreparedTexts`."""
    languages = sorted({lang for batch in rows.select_columns(["lang"]).iter(10_000) for lang in batch["lang"]})
    check_tokenizers(tokenizers, languages)
    groups = {language: number for number, language in enumerate(languages)}
    counts = PieceCounts(tokenizers, max_length)

    def encode(batch: dict[str, list[Any]]) -> dict[str, list[Any]]:
        ids = counts.tokenize(batch["text"], batch["lang"])
        return {
            "text_ids": ids,
            "length": list(map(len, ids)),
            "group": [groups[language] for language in batch["lang"]],
        }

    features = {"text_ids": ListOf(Value("int32")), "length": Value("int32"), "group": Value("int32")}
    tokenised = map_rows(rows, encode, features)
    return tokenised, {"texts": len(rows), **counts.report(), "languages": languages}
