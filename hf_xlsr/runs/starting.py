"""The weights that another training left."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from safetensors.torch import load_file

from hf_xlsr.encoders.places import weights_folder
from hf_xlsr.utils.errors import XlsrError, error_line


def start_from(model: Any, path: str | Path) -> dict[str, int]:
    """Gives a model the weights that a folder has under the same names; the others keep their values.

    A model's `starting_weights` may leave some out or add others: dual momentum's queues of another size or storage
    start empty, and momentum encoders that the folder lacks start as copies. Returns the numbers of tensors `loaded`,
    `kept` of the model, and `unused` of the folder.
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
