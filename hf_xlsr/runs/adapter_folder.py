"""LoRA adapters of a run, rewritten for the plain encoders that they belong to."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file

from hf_xlsr.runs.starting import ADAPTERS
from hf_xlsr.utils.errors import XlsrError

CONFIG = "adapter_config.json"
_LAYER = re.compile(r"base_model\.model\.(?:encoder|encoders\.(?P<name>[^.]+))\.(?P<rest>.+\.lora_[^.]+.*)")
SHARED = "shared"


def write_encoder_adapters(
    saved: Path, folder: Path, base_models: Mapping[str, str | None] | None = None
) -> dict[str, Path]:
    """Writes the adapters of each encoder so that PEFT puts them on the stock encoder, without this package.

    Momentum copies, heads and projections are left behind: they are no part of an encoder.

    Args:
        saved: Folder with what training saved: `adapter_config.json` and `adapter_model.safetensors`.
        folder: Gets the files; those of several encoders go to a folder of the encoder's name each.
        base_models: Encoder's name, empty for an only one -> Hub id of the encoder underneath, where it has one.

    Returns:
        The files, by their path from `folder`.

    Raises:
        XlsrError: there are no adapters.
    """
    if not (saved / ADAPTERS).is_file() or not (saved / CONFIG).is_file():
        raise XlsrError(f"{saved} holds no adapters; they come of a recipe with adapters.rank above 0.")
    encoders: dict[str, dict[str, Any]] = {}
    for name, value in load_file(saved / ADAPTERS).items():
        if found := _LAYER.fullmatch(name):
            encoder = found["name"] or ""
            encoders.setdefault("" if encoder == SHARED else encoder, {})[f"base_model.model.{found['rest']}"] = value
    if not encoders:
        raise XlsrError(f"{saved / ADAPTERS} holds no adapters of an encoder; push the whole encoder instead.")
    config = json.loads((saved / CONFIG).read_text("utf-8"))
    written: dict[str, Path] = {}
    for encoder, tensors in encoders.items():
        place = folder / encoder
        place.mkdir(parents=True, exist_ok=True)
        layers = sorted({re.sub(r"\.lora_.*", "", name).removeprefix("base_model.model.") for name in tensors})
        base = (base_models or {}).get(encoder)
        own = {**config, "target_modules": layers, "modules_to_save": None, "base_model_name_or_path": base}
        own |= {"auto_mapping": None, "task_type": "FEATURE_EXTRACTION", "inference_mode": True}
        (place / CONFIG).write_text(json.dumps(own, indent=2, sort_keys=True), "utf-8")
        save_file(tensors, place / ADAPTERS, metadata={"format": "pt"})
        written |= {str(Path(encoder, name)): place / name for name in (CONFIG, ADAPTERS)}
    return written
