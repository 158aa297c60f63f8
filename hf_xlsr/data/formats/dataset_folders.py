"""Datasets of the `datasets` library: of a local folder only files inside of it, of the Hub only files of the repository.

The library itself reads whatever a folder's README names, on this machine and on others.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hf_xlsr.data.formats.parquet_files import parquet_splits
from hf_xlsr.utils.errors import XlsrError
from hf_xlsr.utils.files import inside, path_name, read_json
from hf_xlsr.utils.markdown import card_header

CARD = "README.md"
SAVED_SPLITS = "dataset_dict.json"
SAVED_ROWS = "state.json"
MODULES = ("arrow", "csv", "json", "parquet", "text")
EXTENSIONS = [".arrow", ".csv", ".json", ".jsonl", ".ndjson", ".parquet", ".tsv", ".txt", ".zip"]
# What a README may say of a configuration; the options are those of a reader, one character long.
DESCRIPTION_KEYS = {"config_name", "data_files", "data_dir", "default", "description"}
READER_OPTIONS = {"sep", "delimiter"}


def open_dataset(path: Path, config: str | None = None) -> Any:
    """The dataset of a folder, or of an id on the Hub, as a stream."""
    if not path.is_dir():
        return _open_repository(path.as_posix(), config)
    if (path / SAVED_SPLITS).is_file() or (path / SAVED_ROWS).is_file():
        return _open_saved(path)
    return _open_folder(path, config)


def _open_repository(repository: str, config: str | None) -> Any:
    import datasets
    from datasets.packaged_modules.parquet.parquet import Parquet

    builder = datasets.load_dataset_builder(repository, name=config)
    for files in (builder.config.data_files or {}).values():
        for file in files:
            if not str(file).casefold().startswith(f"hf://datasets/{repository}".casefold()):
                raise XlsrError(f"The dataset '{repository}' names a file outside of it, '{file}', which is not read.")
    if type(builder) is Parquet:
        return parquet_splits(builder.config.data_files, builder.info.features)
    return builder.as_streaming_dataset()


def _open_saved(folder: Path) -> Any:
    import datasets

    folders = [folder]
    if (folder / SAVED_SPLITS).is_file():
        folders = [folder / path_name(split, "split") for split in read_json(folder / SAVED_SPLITS)["splits"]]
    for split_folder in folders:
        for file in read_json(split_folder / SAVED_ROWS)["_data_files"]:
            path_name(file["filename"], "file")
    return datasets.load_from_disk(folder.as_posix())


def _open_folder(folder: Path, config: str | None) -> Any:
    import datasets
    from datasets.data_files import DataFilesDict, get_data_patterns, sanitize_patterns
    from datasets.load import infer_module_for_data_files

    described = _described(folder, config)
    base = (folder / inside(folder, str(described.get("data_dir") or ""))).resolve().as_posix()
    declared = described.get("data_files")
    patterns = get_data_patterns(base) if declared is None else sanitize_patterns(declared)
    for pattern in [pattern for split_patterns in patterns.values() for pattern in split_patterns]:
        if ":" in pattern:
            raise XlsrError(f"The {CARD} of '{folder}' names '{pattern}', which is not a file inside the folder.")
        inside(folder, pattern)

    files = DataFilesDict.from_patterns(patterns, base_path=base, allowed_extensions=EXTENSIONS)
    module, options = infer_module_for_data_files(files, path=folder.as_posix())
    if module not in MODULES:
        raise XlsrError(f"'{folder}' holds files of the kind '{module}'; expected {', '.join(MODULES)}.")
    options = {**options, **{name: described[name] for name in READER_OPTIONS & described.keys()}}
    data_files = {str(split): list(split_files) for split, split_files in files.items()}
    if module == "parquet":
        return parquet_splits(data_files)
    return datasets.load_dataset(module, data_files=data_files, streaming=True, **options)


def dataset_configs(path: str) -> list[str]:
    """Names of the configurations of a dataset: of a folder those that its card describes, which may be none."""
    folder = Path(path).expanduser()
    if folder.is_dir():
        return list(_configs(folder))
    import datasets

    return list(datasets.get_dataset_config_names(path))


def _configs(folder: Path) -> dict[str, Mapping[str, Any]]:
    """What the card of a folder says of each configuration."""
    card = folder / CARD
    header = card_header(card.read_text("utf-8", errors="replace")) if card.is_file() else {}
    configs = [entry for entry in header.get("configs") or () if isinstance(entry, Mapping)]
    return {str(entry.get("config_name", "default")): entry for entry in configs}


def _described(folder: Path, config: str | None) -> Mapping[str, Any]:
    """The entry of a configuration in the card of a folder, by default of the default one; empty if there is none."""
    by_name = _configs(folder)
    if not by_name:
        return {}

    name = config
    if name is None:
        defaults = [key for key, entry in by_name.items() if entry.get("default") or key == "default"]
        name = next(iter(defaults or by_name)) if defaults or len(by_name) == 1 else None
    if name not in by_name:
        raise XlsrError(f"'{folder}': `config` must be one of {', '.join(by_name)}, got {name}.")

    described = by_name[name]
    unknown = described.keys() - DESCRIPTION_KEYS - READER_OPTIONS
    long_options = [key for key in READER_OPTIONS & described.keys() if len(str(described[key])) != 1]
    if unknown or long_options:
        raise XlsrError(f"The {CARD} of '{folder}' sets `{min([*unknown, *long_options])}`, which is not read.")
    return described
