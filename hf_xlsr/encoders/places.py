"""What a user names as a model: the folder of a run, a saved model, an export, or an id on the Hub."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from hf_xlsr.data.sources import expand
from hf_xlsr.utils.errors import XlsrError

ADAPTERS = "adapter_model.safetensors"


@dataclass(frozen=True)
class ModelPlace:
    """A model that a user named: its folder, or its id on the Hub.

    Args:
        architecture: Class of this package that `save_pretrained` wrote; empty for what sentence-transformers loads.
        training: Folder `training` of the run that a saved model is from; None without a run.
    """

    path: str
    architecture: str = ""
    training: Path | None = None


def find_model(name: str | Path, *, trained: bool = False) -> ModelPlace:
    """Finds a model by the folder of a run, a checkpoint, a saved model or an export, or by its id on the Hub.

    Environment variables are expanded. Of a run it is the export, or the weights before that is written; with
    `trained`, the weights, unless only the export is left.
    """
    home = Path(expand(name)).expanduser()
    of_run = (home / "training" / "recipe.json").is_file()
    if not (trained and of_run):
        for export in (home, home / "model"):
            if (export / "modules.json").is_file():
                return ModelPlace(str(export))
    folder = weights_folder(home) if of_run or (home / ADAPTERS).is_file() else home
    try:
        config = json.loads((folder / "config.json").read_text("utf-8"))
        architecture = (config.get("architectures") or [""])[0]
    except (OSError, ValueError, AttributeError):
        return ModelPlace(str(folder) if home.is_dir() else str(name))
    import hf_xlsr

    if architecture not in hf_xlsr.__all__:
        return ModelPlace(str(folder))
    return ModelPlace(str(folder), architecture, folder.parent if (folder.parent / "recipe.json").is_file() else None)


def weights_folder(path: str | Path) -> Path:
    """The folder that holds the weights of a finished run, with adapters merged, or of a saved model."""
    home = Path(expand(path))
    folders = (home / "training" / "merged", home / "training" / "final", home)
    for folder in folders:
        if any(folder.glob("model*.safetensors")):
            return folder
    found = (
        "only adapters, without the encoder" if any((one / ADAPTERS).is_file() for one in folders) else "no weights"
    )
    raise XlsrError(f"'{home}' holds {found}; expected a finished run, one of its checkpoints, or a saved model.")
