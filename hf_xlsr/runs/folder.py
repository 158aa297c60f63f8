"""The folder of a training run."""

from __future__ import annotations

import filecmp
import json
import logging
import shutil
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout
from transformers.trainer import TRAINER_STATE_NAME

from hf_xlsr.evaluation.results import load_results, outcomes_file
from hf_xlsr.utils.errors import XlsrError, error_line
from hf_xlsr.utils.files import atomic_write, place_beside, read_json, remove_leftovers, write_json
from hf_xlsr.utils.plugins import PLUGINS
from hf_xlsr.utils.seals import broken_seal

logger = logging.getLogger(__name__)

# Keys that may change when a run resumes: its place, and what follows training.
FREE_KEYS = ("name", "output_dir", "overwrite", "description", "evaluation", "export", "card", PLUGINS)
# Keys that may change when a run has finished.
PLACE_KEYS = ("output_dir", "overwrite", "processes", PLUGINS)


class RunFolder:
    """Paths of one run, whose recipe has `path` as `output_dir`.

    ```
    OUTPUT_DIR/
      README.md  results.json  results.npz  loss.png  tsne.png
      model/                 the exported encoder
      training/              recipe.json, prepared data, tokenizer, checkpoints, log.json, final/, merged/
    ```
    """

    preparing: Path  # where the data of a new run are, while the folder is locked

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.training = self.path / "training"
        self.recipe = self.training / "recipe.json"
        self.log = self.training / "log.json"
        self.final = self.training / "final"
        self.merged = self.training / "merged"  # the weights of a run with adapters, merged
        self.model = self.path / "model"
        self.results = self.path / "results.json"
        self.outcomes = outcomes_file(self.results)  # of single examples, for `compare`; not of every method
        self.card = self.path / "README.md"

    @property
    def processes(self) -> int:
        """How many processes train this run together."""
        return int(self._stored_recipe().get("processes") or 1)

    @property
    def started(self) -> bool:
        """Whether there are weights to go on from."""
        return self.final.exists() or any(self.training.glob("checkpoint-*"))

    @property
    def trained(self) -> bool:
        """Whether `final` is complete: the state of its training is written after the weights. A torn one is not."""
        torn = broken_seal(self.final)
        if torn:
            logger.warning("'%s' is torn; it is made again from a checkpoint.", self.final / torn)
            return False
        return (self.final / TRAINER_STATE_NAME).is_file() and any(self.final.glob("*.safetensors"))

    @property
    def outputs(self) -> list[Path]:
        """What a finished run writes outside `training`."""
        pictures = [self.path / "loss.png", self.path / "tsne.png"]
        return [self.model, self.results, self.outcomes, self.card, *pictures]

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keeps other processes from training in this folder; one that stays empty is removed."""
        self.path.mkdir(parents=True, exist_ok=True)
        lock = self.path / ".lock"
        try:
            with FileLock(lock, timeout=0):
                remove_leftovers(self.path, self.training)
                try:
                    with place_beside(self.training) as self.preparing:
                        yield
                finally:
                    if list(self.path.iterdir()) == [lock]:
                        lock.unlink()
                        self.path.rmdir()
        except Timeout:
            raise XlsrError(f"another process trains in '{self.path}'; use another --output_dir.") from None

    def reserve(self, recipe: Mapping[str, Any]) -> Path:
        """Where to prepare the data of a run: in `training` to resume it, else in `preparing`, until `claim`.

        The folder must be `locked`.

        With `overwrite`, or before its first checkpoint, an existing run is ignored; another one is an error.
        """
        if not self.recipe.is_file():
            other_files = [*self.training.glob("*"), *filter(Path.exists, self.outputs)]
            if other_files:
                raise XlsrError(f"output folder '{self.path}' holds other files; use another --output_dir.")
        elif self.started and not recipe["overwrite"]:
            keys = differing_keys(self._stored_recipe(), recipe)
            if keys:
                shown = ", ".join(keys[:4])
                raise XlsrError(f"output folder '{self.path}' has a run with other {shown}; use --overwrite true.")
            return self.training

        self.preparing.mkdir()
        return self.preparing

    def claim(self, recipe: Mapping[str, Any]) -> None:
        """Takes the folder for a new run with the data in `preparing`; an existing run is removed."""
        for old in (self.training, *self.outputs):
            if old.is_dir() and not old.is_symlink():  # of a link, the target stays
                shutil.rmtree(old)
            else:
                old.unlink(missing_ok=True)
        write_json(self.preparing / self.recipe.name, recipe)
        self.preparing.rename(self.training)

    def record_recipe(self, recipe: Mapping[str, Any]) -> None:
        """Stores the recipe, whose keys that follow training may have changed, and removes earlier results."""
        self.results.unlink(missing_ok=True)
        self.outcomes.unlink(missing_ok=True)
        write_json(self.recipe, recipe)

    def share_final(self) -> None:
        """Stores the weights of `final` once: a checkpoint with the same bytes becomes another name of their file."""
        for weights in self.final.glob("*.safetensors"):
            for stored in self.training.glob(f"checkpoint-*/{weights.name}"):
                if stored.samefile(weights):
                    break
                if filecmp.cmp(stored, weights, shallow=False):
                    # Some file systems have no further names.
                    with suppress(OSError), atomic_write(weights) as partial:
                        partial.hardlink_to(stored)
                    break

    def done(self, recipe: Mapping[str, Any]) -> bool:
        """Whether a run with this recipe has finished, in which only the place may differ."""
        if recipe["overwrite"] or not (self.recipe.is_file() and self.results.is_file()):
            return False
        try:
            load_results(self.results)
        except XlsrError:  # torn
            return False
        return not differing_keys(self._stored_recipe(), recipe, without=PLACE_KEYS)

    def _stored_recipe(self) -> dict[str, Any]:
        return read_record(self.recipe)


def read_record(file: Path) -> dict[str, Any]:
    """What a run wrote of itself to a JSON file."""
    try:
        return dict(read_json(file))
    except (ValueError, TypeError) as error:
        raise XlsrError(
            f"'{file}' is torn ({error_line(error, 100)}). Start again with --overwrite true or in another folder."
        ) from error


def differing_keys(
    stored: Mapping[str, Any],
    recipe: Mapping[str, Any],
    *,
    without: Collection[str] = FREE_KEYS,
) -> list[str]:
    """Dotted keys in which a recipe differs from a stored one, `without` some of the top.

    Examples:
        >>> differing_keys({"seed": 1, "data": {"limit": 5}, "name": "a"}, {"seed": 1, "data": {}, "name": "b"})
        ['data.limit']
    """
    recipe = json.loads(json.dumps(recipe))  # as it is stored
    differing = []
    for key in sorted({*stored, *recipe} - {*without}):
        old = stored.get(key)
        new = recipe.get(key)
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            differing += [f"{key}.{name}" for name in differing_keys(old, new, without=())]
        elif old != new:
            differing.append(key)
    return differing
