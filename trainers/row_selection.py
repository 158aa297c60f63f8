"""Training only those rows of the tables of token embeddings that the training data contain."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from rich.filesize import decimal
from safetensors.torch import load_file, save_file

from hf_xlsr.data.prepared import PreparedRows
from hf_xlsr.encoders.trainable_rows import is_plain_table, restore_table, tables_of, train_rows
from hf_xlsr.trainers.adapters import base_model
from hf_xlsr.utils.errors import XlsrError

FILE = "trainable_rows.safetensors"
ROWS_AT_ONCE = 50_000
NOTABLE_SHARE = 0.25  # of a model's weights, from which on its tables are worth a sentence
KEPT_OF_ADAM = 3  # the gradient and two averages of each trained value


def select_rows(model: Any, features: Mapping[str, Any], tokenizers: Any) -> None:
    """Trains only the rows of the tables of a model that the features contain, and those of special tokens.

    Args:
        model: A model that reads its tables by token id alone.
        features: Converted rows by task.
        tokenizers: One tokenizer, or one for each language.
    """
    if base_model(model) is not model:
        raise XlsrError("`trainable_rows` has no effect with adapters, which leave the tables alone. Remove it.")
    if model.reads_whole_table:
        fix = ", or set `generative_weight` to 0" if hasattr(model.config, "generative_weight") else ""
        raise XlsrError(
            f"`trainable_rows` has no effect on {type(model).__name__}, whose language model trains the whole table. "
            f"Remove it{fix}."
        )

    languages = tokenizers if isinstance(tokenizers, Mapping) else {"": tokenizers}
    ids_of_encoder: dict[str, list[np.ndarray]] = defaultdict(list)
    for language, tokenizer in languages.items():
        ids_of_encoder[model.encoder_name(language)].append(np.array(tokenizer.all_special_ids, np.int64))
    for data in features.values():
        for language, ids in _ids_of(data):
            ids_of_encoder[model.encoder_name(language)].append(ids)

    for name, encoders in model.trained_encoders().items():
        train_rows(encoders, torch.from_numpy(np.unique(np.concatenate(ids_of_encoder[name]))))


def restore_tables(model: Any) -> None:
    """Gives a model plain tables again, of which an earlier training has selected rows."""
    for encoders in model.trained_encoders().values():
        for encoder in encoders:
            restore_table(encoder)


def _ids_of(data: Any) -> Iterator[tuple[str, np.ndarray]]:
    """A language, or an empty name, and distinct token ids of its texts, for each column of converted rows."""
    if not _is_known(data):
        raise XlsrError(
            "`trainable_rows` needs stored rows without a transform: their tokens must be known in advance."
        )
    for part in getattr(data, "datasets", [data]):
        for rows in part.rows.with_format("arrow").iter(ROWS_AT_ONCE):
            for name in rows.column_names:
                if name.endswith("_ids"):
                    yield from _ids_of_column(rows, name)


def _is_known(data: Any) -> bool:
    """Whether the tokens of converted rows are known in advance."""
    parts = getattr(data, "datasets", [data])
    return all(isinstance(part, PreparedRows) and not part.live for part in parts)


def _ids_of_column(rows: pa.Table, name: str) -> Iterator[tuple[str, np.ndarray]]:
    """The distinct ids of a column in each language; the language is empty if rows have none."""
    side = "source_lang" if name.startswith("source") else "target_lang"
    language_column = side if side in rows.column_names else "lang"
    if language_column not in rows.column_names:
        yield "", _distinct(rows[name])
        return
    languages = rows[language_column]
    for language in pc.unique(languages).to_pylist():
        yield language, _distinct(rows[name].filter(pc.equal(languages, language)))


def _distinct(column: pa.ChunkedArray) -> np.ndarray:
    """The distinct numbers in nested lists."""
    while pa.types.is_list(column.type) or pa.types.is_large_list(column.type):
        column = pc.list_flatten(column)
    return np.asarray(pc.unique(column), np.int64)


def save_row_ids(model: Any, folder: Path) -> None:
    """Writes to a checkpoint which rows are trained, if not all are."""
    trained = row_ids(model)
    if trained:
        save_file(trained, folder / FILE)


def check_row_ids(model: Any, folder: Path) -> None:
    """Checks that a checkpoint and a model train the same rows: the optimiser's state is of these."""
    stored = load_file(folder / FILE) if (folder / FILE).is_file() else {}
    trained = row_ids(model)
    is_same = stored.keys() == trained.keys() and all(torch.equal(stored[name], trained[name]) for name in trained)
    if not is_same:
        raise XlsrError(
            f"'{folder}' trains other rows of the token embeddings (`trainable_rows`) than this training. Resume with "
            "the same data and the same value."
        )


def row_ids(model: Any) -> dict[str, torch.Tensor]:
    """The token ids whose rows are trained, by number of the encoder; none where all are."""
    trained = {}
    for number, (encoder, *_) in enumerate(base_model(model).trained_encoders().values()):
        for table in islice(tables_of(encoder), 1):
            trained[str(number)] = table.ids.cpu()
    return trained


def rows_hint(trainer: Any) -> str:
    """What `trainable_rows` would save, for a model with large tables; empty where it is set or has little effect."""
    model = base_model(trainer.model)
    if trainer.args.trainable_rows or model is not trainer.model or model.reads_whole_table:
        return ""
    encoders = model.trained_encoders().values()
    is_served = all(is_plain_table(own[0].get_input_embeddings()) for own in encoders)
    if trainer.is_fsdp_enabled or not is_served or not all(map(_is_known, trainer.features.values())):
        return ""
    tables = sum(own[0].get_input_embeddings().weight.nbytes * len(own) for own in encoders)
    whole = sum(weight.nbytes for weight in model.parameters())
    if tables < NOTABLE_SHARE * whole:
        return ""
    copies = sum(own[0].get_input_embeddings().weight.nbytes * (KEPT_OF_ADAM + len(own) - 1) for own in encoders)
    return (
        f"Token embeddings are {tables / whole:.0%} of the model. `--training.trainable_rows true` trains only those in "
        f"your data, and needs up to {decimal(copies)} less memory."
    )
