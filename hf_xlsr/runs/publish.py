"""Pushing a run to the Hub: the encoder with its card, the private training state, or only adapters."""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from huggingface_hub import ModelCardData
from safetensors.torch import load_file, save_file

from hf_xlsr.encoders.loading import ADAPTERS, find_model, load_encoder
from hf_xlsr.export.card import code, one_line, part_card
from hf_xlsr.export.hub import (
    CARD,
    RepoUpload,
    UploadResult,
    check_repo,
    folder_files,
    is_hub_id,
    push_uploads,
)
from hf_xlsr.runs.card import base_models, card_for, card_of_model, licence_of, starting_points
from hf_xlsr.runs.folder import RunFolder
from hf_xlsr.runs.recipe import read_run
from hf_xlsr.trainers.base import last_whole_checkpoint
from hf_xlsr.utils.errors import XlsrError, require_choice

__all__ = ["PARTS", "UploadResult", "push_run", "push_uploads"]

PARTS = ("encoder", "training", "all")
TRAINING_TAG = "hf-xlsr-training-state"
ADAPTERS_TAG = "hf-xlsr-adapters"
TRAINING_SUFFIX = "-training"
# Pickled, holds nothing that resuming reads, and the arguments in it may hold a token.
LEFT_OUT = ("training_args.bin",)
CONFIG = "adapter_config.json"
SHARED = "shared"
_LAYER = re.compile(r"base_model\.model\.(?:encoder|encoders\.(?P<name>[\w-]+))\.(?P<rest>.+\.lora_[^.]+.*)")
LOADING = """from peft import PeftModel
from transformers import AutoModel

encoder = AutoModel.from_pretrained("{base}")
model = PeftModel.from_pretrained(encoder, "{repo}"{folder})"""


def push_run(
    run: str | Path,
    repo: str,
    *,
    what: str = "encoder",
    adapters: bool = False,
    private: bool = False,
    exist_ok: bool = False,
    message: str | None = None,
) -> list[UploadResult]:
    """Pushes what a finished run left, or the encoder of a saved model or an export.

    The encoder goes to `repo`: the sentence-transformers folder, its card, its plots. The training state goes to
    `repo` with `-training` appended, which is always private: checkpoints (queues, momentum encoders, optimiser),
    final weights, recipe, results; not the prepared text, which is prepared again from the recipe. The same call
    resumes an interrupted upload.

    Args:
        what: `encoder`, `training` or `all`.
        adapters: Push only the LoRA adapters instead of the encoder.
        private: Make the encoder's repository private too.
        exist_ok: Write to a repository that was not pushed from here.
    """
    check_repo(repo)
    require_choice("what", what, PARTS)
    folder, uploads = RunFolder(run), list[RepoUpload]()
    with tempfile.TemporaryDirectory() as scratch:
        if what != "training":
            if adapters:
                uploads.append(_adapters(folder, repo, private, Path(scratch)))
            elif what == "all" or folder.recipe.is_file():
                uploads.append(_encoder(folder, repo, private))
            else:
                uploads.append(_model(str(run), repo, private, Path(scratch) / "model"))
        if what != "encoder":
            uploads.append(_training(folder, repo))
        return push_uploads(uploads, exist_ok=exist_ok, message=message)


def _encoder(folder: RunFolder, repo: str, private: bool) -> RepoUpload:
    read_run(folder)  # an error for other folders
    card = folder.model / CARD
    if not card.is_file():
        raise XlsrError(f"run '{folder.path}' has not finished: {card} is missing; resume it with hf-xlsr train.")
    files = folder_files(folder.model, without=(CARD, *LEFT_OUT))
    files |= {name: folder.path / name for name in ("loss.png", "tsne.png") if (folder.path / name).is_file()}
    return RepoUpload(repo, card_for(card.read_text("utf-8"), repo), files, private)


def _model(name: str, repo: str, private: bool, scratch: Path) -> RepoUpload:
    """A model without a run: of a saved model, its export."""
    home = Path(find_model(name).path)
    if not home.is_dir():
        raise XlsrError(f"'{name}' must be the folder of a run, a saved model or an export.")
    card = (home / CARD).read_text("utf-8") if (home / CARD).is_file() else card_of_model(name)
    if not (home / "modules.json").is_file():
        home = scratch
        load_encoder(name, "cpu").save(str(home), create_model_card=False)
    return RepoUpload(repo, card_for(card, repo), folder_files(home, without=(CARD, *LEFT_OUT)), private)


def _training(folder: RunFolder, repo: str) -> RepoUpload:
    recipe = read_run(folder).recipe
    newest = last_whole_checkpoint(folder.training, folder.processes)
    if newest is None:
        raise XlsrError(f"run '{folder.path}' has no complete checkpoint to push.")
    single = (folder.recipe, folder.log, folder.training / "seconds.json", folder.results)
    files = {str(path.relative_to(folder.path)): path for path in single if path.is_file()}
    whole = [path for path in folder.training.glob("checkpoint-*") if _step(path) <= _step(newest)]
    for part in (*whole, folder.final, folder.merged):
        if part.is_dir():
            files |= folder_files(part, f"training/{part.name}", LEFT_OUT)
    name = one_line(recipe.name)
    data = ModelCardData(
        language=list(map(one_line, recipe.languages)), license=licence_of(recipe), tags=[TRAINING_TAG]
    )
    card = part_card(
        data,
        title=f"{name}: training state",
        paragraphs=[
            f"Checkpoints to resume a run of the recipe {code(name)} of hf-xlsr, with optimiser, queues and momentum "
            f"encoders, and the final weights. The encoder for use is in {code(repo)}.",
            "Download it into the folder of the run and run the same command; the data are prepared again.",
        ],
        example=f"hf download {repo}{TRAINING_SUFFIX} --local-dir RUN\nhf-xlsr train RECIPE --output_dir RUN",
        language="sh",
    )
    return RepoUpload(repo + TRAINING_SUFFIX, card, files, private=True, tag=TRAINING_TAG, replaces=("*",))


def _step(checkpoint: Path) -> int:
    number = checkpoint.name.rsplit("-", 1)[1]
    return int(number) if number.isdigit() else 1 << 62


def _adapters(folder: RunFolder, repo: str, private: bool, scratch: Path) -> RepoUpload:
    method = read_run(folder)
    recipe = method.recipe
    if not (folder.final / ADAPTERS).is_file():
        raise XlsrError(f"run '{folder.path}' has no adapters; push its encoder, without --adapters.")
    named = recipe.model.get("encoders")
    starts = named if isinstance(named, Mapping) else {"": next(iter(starting_points(recipe)), "")}
    # Adapters of a later stage belong to the weights of the stage before, whatever encoder that one started from.
    earlier = bool(recipe.start_from)
    ids = {name: None if earlier or not is_hub_id(path) else path for name, path in starts.items()}
    on_hub = {"" if name == SHARED else name: path for name, path in ids.items()}
    files = write_encoder_adapters(folder.final, scratch, on_hub)
    data = ModelCardData(
        language=list(map(one_line, recipe.languages)),
        license=licence_of(recipe),
        library_name="peft",
        base_model=None if earlier else base_models(recipe) or None,
        tags=[ADAPTERS_TAG, "lora", "feature-extraction", recipe.method],
    )
    first = min(str(Path(name).parent) for name in files)
    place = "" if first == "." else f', subfolder="{first}"'
    base = on_hub.get("" if first == "." else first) or "path/to/the/encoder/that/training/started/from"
    card = part_card(
        data,
        title=f"{one_line(recipe.name)}: adapters",
        paragraphs=[
            f"LoRA adapters of the recipe {code(recipe.name)} of hf-xlsr, by the method of "
            f"{method.paper}. They belong to the encoder that training started from"
            + (", which is that of an earlier stage" if earlier else "")
            + ("; each language has its own, in a folder of its name." if place else "."),
            "Sentence embeddings are pooled as in training; projections after the pooling are not among the adapters.",
        ],
        example=LOADING.format(base=base, repo=repo, folder=place),
    )
    return RepoUpload(repo, card, files, private, tag=ADAPTERS_TAG)


def write_encoder_adapters(
    saved: Path, folder: Path, base_models: Mapping[str, str | None] | None = None
) -> dict[str, Path]:
    """Writes the adapters of each encoder so that PEFT adds them to the stock encoder, without this package.

    Momentum copies, heads and projections are left out. Several encoders get a folder of their name each. Returns the
    files by their path from `folder`.
    """
    encoders: dict[str, dict[str, Any]] = {}
    for name, value in load_file(saved / ADAPTERS).items():
        if found := _LAYER.fullmatch(name):
            encoder = "" if found["name"] in (None, SHARED) else found["name"]
            encoders.setdefault(encoder, {})[f"base_model.model.{found['rest']}"] = value
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
