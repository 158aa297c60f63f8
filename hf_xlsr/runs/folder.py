"""The folder of a training run."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from hf_xlsr.utils.errors import XlsrError
from hf_xlsr.utils.files import write_json

# Keys that may change when a run resumes: its place, and what follows training.
FREE_KEYS = {"name", "output_dir", "overwrite", "description", "evaluation", "export", "card"}


class RunFolder:
    """Paths of one run, whose recipe has `path` as `output_dir`.

    ```
    OUTPUT_DIR/
      README.md  results.json  loss.png  tsne.png
      model/                 the exported encoder
      training/              recipe.json, prepared data, tokenizer, checkpoints, log.json, final/, merged/
    ```
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.training = self.path / "training"
        self.preparing = self.path / "training.partial"  # until the data of a new run are prepared
        self.recipe = self.training / "recipe.json"
        self.log = self.training / "log.json"
        self.final = self.training / "final"
        self.merged = self.training / "merged"  # the weights of a run with adapters, merged
        self.model = self.path / "model"
        self.results = self.path / "results.json"
        self.card = self.path / "README.md"

    @property
    def processes(self) -> int:
        return int(json.loads(self.recipe.read_text("utf-8")).get("processes") or 1)

    @property
    def started(self) -> bool:
        return self.final.exists() or any(self.training.glob("checkpoint-*"))

    @property
    def outputs(self) -> list[Path]:
        """What a finished run writes outside `training`."""
        return [self.model, self.results, self.card, self.path / "loss.png", self.path / "tsne.png"]

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keeps other processes from training in this folder; one that stays empty is removed."""
        self.path.mkdir(parents=True, exist_ok=True)
        try:
            with FileLock(lock := self.path / ".lock", timeout=0):
                try:
                    yield
                finally:
                    shutil.rmtree(self.preparing, ignore_errors=True)
                    if list(self.path.iterdir()) == [lock]:
                        lock.unlink()
                        self.path.rmdir()
        except Timeout:
            raise XlsrError(f"another process trains in '{self.path}'; use another --output_dir.") from None

    def reserve(self, recipe: Mapping[str, Any]) -> Path:
        """Where to prepare the data of a run: in `training` to resume it, else in `preparing`, until `claim`.

        With `overwrite`, or before its first checkpoint, an existing run is ignored; another one is an error.
        """
        shutil.rmtree(self.preparing, ignore_errors=True)
        if not self.recipe.is_file():
            training_taken = self.training.is_dir() and any(self.training.iterdir())
            if training_taken or any(path.exists() for path in self.outputs):
                raise XlsrError(f"output folder '{self.path}' holds other files; use another --output_dir.")
        elif self.started and not recipe["overwrite"]:
            there = json.loads(self.recipe.read_text("utf-8"))
            if different := differing_keys(there, json.loads(json.dumps(recipe))):
                keys = ", ".join(different[:4])
                raise XlsrError(f"output folder '{self.path}' has a run with other {keys}; use --overwrite true.")
            return self.training
        self.preparing.mkdir()
        return self.preparing

    def claim(self, recipe: Mapping[str, Any]) -> None:
        """Takes the folder for a new run with the data in `preparing`; an existing run is removed."""
        for old in (self.training, *self.outputs):
            # Of a link, the target stays.
            shutil.rmtree(old) if old.is_dir() and not old.is_symlink() else old.unlink(missing_ok=True)
        write_json(self.preparing / self.recipe.name, recipe)
        self.preparing.rename(self.training)

    def record_recipe(self, recipe: Mapping[str, Any]) -> None:
        """Stores the recipe, whose keys that follow training may have changed, and removes earlier results."""
        self.results.unlink(missing_ok=True)
        write_json(self.recipe, recipe)

    def done(self, recipe: Mapping[str, Any]) -> bool:
        if recipe["overwrite"] or not (self.recipe.is_file() and self.results.is_file()):
            return False
        there = json.loads(self.recipe.read_text("utf-8"))
        here = json.loads(json.dumps(recipe))
        there.pop("processes", None)
        return all(there.get(key) == here.get(key) for key in {*there, *here} - {"output_dir", "overwrite"})


def differing_keys(one: Mapping[str, Any], other: Mapping[str, Any], prefix: str = "") -> list[str]:
    """Dotted keys in which two recipes differ, without `FREE_KEYS`."""
    different = []
    for key in sorted({*one, *other}):
        if not prefix and key in FREE_KEYS:
            continue
        left, right = one.get(key), other.get(key)
        if isinstance(left, Mapping) and isinstance(right, Mapping):
            different += differing_keys(left, right, f"{prefix}{key}.")
        elif left != right:
            different.append(f"{prefix}{key}")
    return different
