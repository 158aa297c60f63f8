"""Starting a training from the weights that another one left."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from safetensors import safe_open

from hf_xlsr.data.sources import expand
from hf_xlsr.runs.folder import RunFolder
from hf_xlsr.utils.errors import XlsrError

ADAPTERS = "adapter_model.safetensors"


def weights_folder(path: str | Path) -> Path:
    """Where the weights of a run, or of a saved model, lie.

    Args:
        path: `output_dir` of a run that was trained to its end, or a folder of `save_pretrained`. Environment variables
            are filled in.

    Raises:
        XlsrError: neither is there.
    """
    given = Path(str(expand(path)))
    for folder in (RunFolder(given).merged, RunFolder(given).final, given):
        if (folder / ADAPTERS).is_file():
            raise XlsrError(
                f"start_from '{folder}' holds adapters alone, without the weights that they belong to; name the "
                "output_dir of a run that has ended, or a saved model."
            )
        if any(folder.glob("*.safetensors")):
            return folder
    raise XlsrError(
        f"start_from '{given}' holds no trained weights; name the output_dir of a run that has ended, or a saved model."
    )


def start_from(model: Any, path: str | Path) -> dict[str, int]:
    """Gives a model the weights that a folder has under the same names; the rest stays as it is.

    A model may leave some out, or give others along (its `starting_weights`): dual momentum's queues of another size or
    storage begin empty, and momentum encoders that the folder lacks begin as copies.

    Args:
        model: To be filled.
        path: See `weights_folder`.

    Returns:
        How many tensors were `loaded`, how many of the model's `kept` their start, how many of the folder's are
        `unused`.

    Raises:
        XlsrError: nothing fits, or a tensor has another shape.
    """
    folder = weights_folder(path)
    own, found, unused = model.state_dict(), {}, 0
    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, "pt") as content:
            for name in content.keys():  # noqa: SIM118 - it is no mapping
                if name in own:
                    found[name] = content.get_tensor(name)
                else:
                    unused += 1
    loaded = model.starting_weights(found)
    for name, value in loaded.items():
        if value.shape != own[name].shape:
            raise XlsrError(
                f"start_from '{folder}' has {name} of shape {tuple(value.shape)} but the model has "
                f"{tuple(own[name].shape)}; use the same encoder and vocabulary in both."
            )
    if not loaded:
        raise XlsrError(f"start_from '{folder}' has no weight that the model knows; give one of the same method.")
    model.load_state_dict(loaded, strict=False)
    if hasattr(model, "tie_weights"):
        model.tie_weights()
    return {
        "loaded": len(loaded),
        "kept": len(own) - len(loaded),
        "unused": unused + len(found.keys() - loaded.keys()),
    }
