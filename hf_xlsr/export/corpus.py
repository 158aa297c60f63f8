"""Mined pairs as a dataset: Parquet files, a card of stored facts, plots and the report page, on disk or on the Hub."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from hf_xlsr.data.columns import Row
from hf_xlsr.export.card import card_for
from hf_xlsr.export.corpus_card import (
    CURVE_PLOT,
    FACTS,
    PAGE,
    SCORES_PLOT,
    CorpusFacts,
    CorpusMetadata,
    corpus_card,
)
from hf_xlsr.export.corpus_files import Written, are_other_languages, open_rows, write_shards
from hf_xlsr.export.hub import CARD, DATASET, RepoUpload, UploadResult, check_repo, push_uploads
from hf_xlsr.export.published_files import named_files
from hf_xlsr.mining.facts import PairFacts, read_facts
from hf_xlsr.utils.access_tokens import check_no_token
from hf_xlsr.utils.errors import XlsrError
from hf_xlsr.utils.extras import can_plot
from hf_xlsr.utils.files import atomic_folder, copy_file, write_json, write_text
from hf_xlsr.utils.hashing import file_sha256

Pairs = str | Path | Iterable[Row]
REPLACED = ("data/train-*.parquet", PAGE, FACTS, SCORES_PLOT, CURVE_PLOT)
LEFT_OUT = "they are neither texts nor scores"


def push_corpus(
    pairs: Pairs,
    repo: str,
    metadata: CorpusMetadata,
    *,
    facts: PairFacts | None = None,
    private: bool = False,
    exist_ok: bool = False,
    message: str | None = None,
) -> UploadResult:
    """Pushes pairs to a dataset repository of the Hub, without a question.

    Args:
        pairs: A file that `mine`, `score`, `filter` or `clean` wrote, or rows with `source`, `target` and scores, such as
            `MinedBitext.rows` gives.
        repo: OWNER/NAME; it is created if it is missing.
        metadata: Licence and sources.
        facts: How the pairs were made, such as `MinedBitext.facts`. By default those of `PAIRS.facts.json`, for a file.
        private: Make the repository private.
        exist_ok: Write to a repository that was not pushed from here.
        message: Of the commit.

    Raises:
        XlsrError: The file has changed since its facts were stored, the facts are of other pairs, facts or page hold an
            access token, a row is no pair, or the Hub refuses.
    """
    with corpus_uploads(pairs, repo, metadata, facts=facts, private=private) as uploads:
        (result,) = push_uploads(uploads, exist_ok=exist_ok, message=message)
    return result


def save_corpus(
    pairs: Pairs,
    folder: str | Path,
    metadata: CorpusMetadata,
    *,
    facts: PairFacts | None = None,
) -> list[str]:
    """Writes what `push_corpus` would send to a new folder, which `load_dataset` reads; returns the names of the files.

    Examples:
        >>> rows = [{"score": 1.25, "source": "good day", "target": "bonjour"}]
        >>> metadata = CorpusMetadata("cc0-1.0", {"a phrase book": "cc0-1.0"}, languages=("en", "fr"))
        >>> with tempfile.TemporaryDirectory() as place:
        ...     save_corpus(rows, Path(place) / "corpus", metadata)
        ['README.md', 'data/train-00000-of-00001.parquet']
    """
    with atomic_folder(folder) as partial:
        upload = _write(pairs, partial, metadata, facts, Path(folder).name)
        write_text(partial / CARD, upload.card)
        return sorted([CARD, *upload.files])


@contextmanager
def corpus_uploads(
    pairs: Pairs,
    repo: str,
    metadata: CorpusMetadata,
    *,
    facts: PairFacts | None = None,
    private: bool = False,
    folder: str | Path | None = None,
) -> Iterator[list[RepoUpload]]:
    """What `push_corpus` would send, one upload; the files are temporary, unless they are kept in a new `folder`."""
    check_repo(repo)
    title = repo.rpartition("/")[2]
    with tempfile.TemporaryDirectory() as scratch:
        place = Path(folder or Path(scratch) / "dataset")
        with atomic_folder(place) as partial:
            upload = _write(pairs, partial, metadata, facts, title)
            card = card_for(upload.card, repo)
            write_text(partial / CARD, card)
        files = {name: place / name for name in upload.files}
        yield [replace(upload, repo=repo, card=card, private=private, files=files)]


def _write(
    pairs: Pairs,
    folder: Path,
    metadata: CorpusMetadata,
    facts: PairFacts | None,
    title: str,
) -> RepoUpload:
    """Writes the files of a dataset into a folder; the card is text, whose code loads the dataset from no place yet."""
    if not metadata.title:
        metadata = replace(metadata, title=title)
    page = None
    made = facts or PairFacts()
    if isinstance(pairs, (str, Path)):
        pairs, page = _plain_files(Path(pairs).expanduser())
        if facts is None:
            made = read_facts(pairs)
    if page is not None and made.page != file_sha256(page):
        page = None  # of another call
    _check_tokens(made, page)

    languages = _languages(metadata, made)
    numbers: list[str] = []
    for step in made.steps:
        numbers += step.get("columns", ())
    corpus = open_rows(pairs, languages, numbers)
    written = write_shards(folder, corpus)
    if facts is not None:
        _check_number(facts, written, corpus.skipped)

    languages = languages or _named_languages(written)
    extras = _write_extras(folder, made, page)
    size = sum(file.stat().st_size for file in written.files.values())
    card_facts = CorpusFacts(
        metadata, made, corpus.features, written, size, languages, corpus.skipped, extras=list(extras)
    )
    return RepoUpload(
        title,
        corpus_card(card_facts),
        {**written.files, **extras},
        kind=DATASET,
        replaces=REPLACED,
        left_out=corpus.left_out,
        left_out_because=LEFT_OUT,
    )


def _plain_files(file: Path) -> tuple[Path, Path | None]:
    """A file of pairs and its report page, if there is one; links are refused."""
    if not file.is_file():
        raise XlsrError(f"the file of pairs '{file}' does not exist.")
    page_name = f"{file.name}.report.html"
    files = named_files(file.parent.resolve(), [file.name, page_name])
    return files[file.name], files.get(page_name)


def _check_tokens(made: PairFacts, page: Path | None) -> None:
    """Raises an error if the facts or the report page, which are sent unchanged, contain an access token."""
    check_no_token(list(made.steps), f"What is stored of the pairs ({FACTS})")
    if page is not None:
        check_no_token(page.read_text("utf-8", "replace"), f"The report page '{page.name}'")


def _check_number(facts: PairFacts, written: Written, skipped: Mapping[str, int]) -> None:
    """Raises for facts of other pairs, by the number that the last step wrote."""
    counts = facts.steps[-1].get("pairs") if facts.steps else None
    read = written.rows + sum(skipped.values())
    if counts and counts["out"] != read:
        raise XlsrError(
            f"`facts` must be of these pairs, but {facts.steps[-1]['verb']} gave {counts['out']:,} pairs, got {read:,}."
        )


def _languages(metadata: CorpusMetadata, made: PairFacts) -> Sequence[str] | None:
    """Source and target: those that were stored, and must not be stated otherwise."""
    stored = made.languages
    stated = metadata.languages
    if stored and stated and any(map(are_other_languages, stored, stated)):
        raise XlsrError(f"`languages` must be {','.join(stored)}, as stored with the pairs, got {','.join(stated)}.")
    return stated or stored


def _named_languages(written: Written) -> Sequence[str] | None:
    """Source and target, if all rows name the same ones."""
    if len(written.language_pairs) != 1:
        return None
    source, target = written.language_pairs[0]
    return (source, target) if source and target else None


def _write_extras(folder: Path, made: PairFacts, page: Path | None) -> dict[str, Path]:
    """Writes facts, plots and the report page; the files by name."""
    extras: dict[str, Path] = {}
    if made.steps:
        extras[FACTS] = folder / FACTS
        write_json(extras[FACTS], {"steps": list(made.steps)})
    if page is not None:
        extras[PAGE] = folder / PAGE
        copy_file(page, extras[PAGE])

    drawn = [step for step in made.steps if step.get("histogram")]
    if drawn and can_plot():
        from hf_xlsr.export.corpus_plots import draw_curve, draw_scores

        step = drawn[-1]
        extras[SCORES_PLOT] = folder / SCORES_PLOT
        draw_scores(step["histogram"], step.get("threshold"), extras[SCORES_PLOT])
        if step.get("curve"):
            extras[CURVE_PLOT] = folder / CURVE_PLOT
            draw_curve(step["curve"], step.get("threshold"), extras[CURVE_PLOT])
    return extras
