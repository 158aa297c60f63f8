"""The folder of a training run."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hf_xlsr.utils.errors import XlsrError
from hf_xlsr.utils.files import atomic_write

# Keys that may change when a run resumes: its place, and what follows training.
FREE_KEYS = {"name", "output_dir", "overwrite", "description", "evaluation", "export", "card"}


class RunFolder:
    """Paths of one run.

    ```
    OUTPUT_DIR/
      README.md  results.json  loss.png  tsne.png
      model/                 the exported encoder
      training/              recipe.json, prepared data, tokenizer, checkpoints, log.json, final/, merged/
    ```

    Args:
        path: `output_dir` of the recipe.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.training = self.path / "training"
        self.recipe = self.training / "recipe.json"
        self.log = self.training / "log.json"
        self.final = self.training / "final"
        self.merged = self.training / "merged"  # the weights of a run with adapters, merged
        self.model = self.path / "model"
        self.results = self.path / "results.json"
        self.card = self.path / "README.md"

    @property
    def processes(self) -> int:
        """Number of processes of the run."""
        return int(json.loads(self.recipe.read_text("utf-8")).get("processes") or 1)

    def claim(self, recipe: Mapping[str, Any]) -> None:
        """Takes the folder for a new run of `recipe`, or for resuming the same run.

        Args:
            recipe: A resolved recipe; with `overwrite` true, an existing run is removed first.

        Raises:
            XlsrError: the folder holds another run, or other files.
        """
        outputs = [self.model, self.results, self.card, self.path / "loss.png", self.path / "tsne.png"]
        if recipe["overwrite"] and self.recipe.is_file():
            for old in (self.training, *outputs):
                # Of a link, the target stays.
                shutil.rmtree(old) if old.is_dir() and not old.is_symlink() else old.unlink(missing_ok=True)
        if self.recipe.is_file():
            there = json.loads(self.recipe.read_text("utf-8"))
            if different := differing_keys(there, json.loads(json.dumps(recipe))):
                raise XlsrError(
                    f"output folder '{self.path}' holds a run with other {', '.join(different[:4])}; use another "
                    "--output_dir, or --overwrite true."
                )
            return
        training_taken = self.training.is_dir() and any(self.training.iterdir())
        if self.path.is_file() or training_taken or any(path.exists() for path in outputs):
            raise XlsrError(f"output folder '{self.path}' holds other files; use another --output_dir.")
        self.training.mkdir(parents=True, exist_ok=True)
        self._write(recipe)

    def record_recipe(self, recipe: Mapping[str, Any]) -> None:
        """Stores the recipe for export and evaluation, and removes earlier results.

        Args:
            recipe: That of `claim`; keys that follow training may have changed.
        """
        self.results.unlink(missing_ok=True)
        self._write(recipe)

    def done(self, recipe: Mapping[str, Any]) -> bool:
        """Whether a run of this recipe, with its evaluation, is finished."""
        if recipe["overwrite"] or not (self.recipe.is_file() and self.results.is_file()):
            return False
        there = json.loads(self.recipe.read_text("utf-8"))
        here = json.loads(json.dumps(recipe))
        there.pop("processes", None)
        return all(there.get(key) == here.get(key) for key in {*there, *here} - {"output_dir", "overwrite"})

    def _write(self, recipe: Mapping[str, Any]) -> None:
        with atomic_write(self.recipe) as file:
            file.write_text(json.dumps(recipe, indent=2, ensure_ascii=False), "utf-8")


def differing_keys(one: Mapping[str, Any], other: Mapping[str, Any], prefix: str = "") -> list[str]:
    """Dotted keys in which two recipes differ, without `FREE_KEYS`.

    Example:
        >>> differing_keys({"seed": 1, "data": {"limit": 2}}, {"seed": 2, "data": {"limit": 2}})
        ['seed']
    """
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
