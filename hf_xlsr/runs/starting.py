"""The weights that another training left."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from safetensors.torch import load_file

from hf_xlsr.data.sources import expand
from hf_xlsr.runs.folder import RunFolder
from hf_xlsr.utils.errors import XlsrError, error_line

ADAPTERS = "adapter_model.safetensors"


def weights_folder(path: str | Path) -> Path:
    """The folder that holds the weights of a finished run, with adapters merged, or of a saved model.

    Args:
        path: `output_dir` of a run, or a folder of `save_pretrained`. Environment variables are expanded.

    Raises:
        XlsrError: there are no weights.
    """
    run = RunFolder(expand(path))
    folders = (run.merged, run.final, run.path)
    for folder in folders:
        if any(folder.glob("model*.safetensors")):
            return folder
    found = (
        "only adapters, without the encoder" if any((one / ADAPTERS).is_file() for one in folders) else "no weights"
    )
    raise XlsrError(f"'{run.path}' holds {found}; expected a finished run, one of its checkpoints, or a saved model.")


def start_from(model: Any, path: str | Path) -> dict[str, int]:
    """Gives a model the weights that a folder has under the same names; the others keep their values.

    A model's `starting_weights` may leave some out or add others: dual momentum's queues of another size or storage
    start empty, and momentum encoders that the folder lacks start as copies.

    Args:
        model: The model.
        path: See `weights_folder`.

    Returns:
        Numbers of tensors: `loaded`, `kept` of the model, `unused` of the folder.

    Raises:
        XlsrError: no name is the same, or a tensor has another shape.
    """
    folder, own = weights_folder(path), model.state_dict()
    files = sorted(folder.glob("model*.safetensors"))
    stored = {name: value for file in files for name, value in load_file(file).items()}
    loaded = model.starting_weights({name: value for name, value in stored.items() if name in own})
    if not loaded:
        raise XlsrError(f"start_from '{folder}' has no weight of this model; expected a run of the same method.")
    try:
        model.load_state_dict(loaded, strict=False)
    except RuntimeError as error:
        raise XlsrError(
            f"start_from '{folder}' needs the same encoder and vocabulary ({error_line(error, 300)})."
        ) from None
    if hasattr(model, "tie_weights"):
        model.tie_weights()
    return {"loaded": len(loaded), "kept": len(own) - len(loaded), "unused": len(stored.keys() - loaded.keys())}
