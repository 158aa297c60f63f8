"""What a user asks `hf-xlsr evaluate` for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Request:
    """What a user asks `hf-xlsr evaluate` for; each attribute is the option of that name.

    Attributes:
        model: Folder or Hub id of a sentence encoder.
        protocol: A name of `PROTOCOLS`, or several that take the same data, with commas between.
        data: Files; the name of a corpus, the id or folder of a data set, or `mteb:TASK`.
        columns: Our column = column of the file; `{lang}` stands for each language in turn.
        languages: Codes; the first is the source's, or that of the only text.
        split: Which rows are tested, where the data has splits; named in the keys.
        where: `column=value`: only rows that have one of the values.
        config: Configuration of a data set; may hold `{lang}`.
        limit: At most so many rows of each language (pair).
        name: What keys call the data; None takes the corpus or the stem of the first file.
        pool: More candidates.
        gold: Known translations of BUCC data.
        tune: Data to choose a threshold, a strength or an epoch on.
        tune_gold: Known translations of BUCC data to tune on.
        train: Rows that a head learns from.
        train_language: Their language.
        hold_out: Column: a tenth of the training rows, by the crc32 of it, is for choosing the head.
        head: Kind of classifier.
        epochs: Of a head's training.
        learning_rate: Likewise.
        cross: Also premises of one language with hypotheses of another.
        setting: Of SentEval's classifiers.
        subsets: Also each subset's correlation.
        k: Size of the neighbourhoods.
        debias: Folder of a fitted debias, or `self`: one component fitted on the rows that are tested.
        margin: `ratio`, `distance` or `absolute`.
        seed: Of all that is random.
        prompt: Put before every sentence.
        routes: Language -> route of an encoder.
        batch_size: Sentences encoded at a time.
        device: Where the encoder runs.
        dtype: Precision of the encoder's weights; as its files hold them when None.
        output: Where the JSON goes.
        report: Folder for a report with plots.
    """

    model: str
    protocol: str
    data: tuple[str, ...]
    columns: str | None = None
    languages: tuple[str, ...] = ()
    split: str = "test"
    where: tuple[str, ...] = ()
    config: str | None = None
    limit: int | None = None
    name: str | None = None
    pool: tuple[str, ...] = ()
    gold: str | None = None
    tune: tuple[str, ...] = ()
    tune_gold: str | None = None
    train: tuple[str, ...] = ()
    train_language: str | None = None
    hold_out: str | None = None
    head: str | None = None
    epochs: int | None = None
    learning_rate: float | None = None
    cross: bool = False
    setting: str | None = None
    subsets: bool = False
    k: int | None = None
    margin: str | None = None
    debias: str | None = None
    seed: int | None = None
    prompt: str = ""
    routes: Mapping[str, str] = field(default_factory=dict)
    batch_size: int = 128
    device: str | None = None
    dtype: str | None = None
    output: str | None = None
    report: str | None = None
