"""Runs to push, and a Hub in memory to push them to."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from conftest import make_pairs
from huggingface_hub import DatasetCard, HfApi, ModelCard, get_token
from huggingface_hub.errors import HfHubHTTPError, RemoteEntryNotFoundError

from hf_xlsr.runs.recipe import load_runs
from hf_xlsr.runs.train import train_recipe

TOKEN = "hf_" + "S3cretOfThisTest" * 2 + "xy"
READER = "hf_" + "MayOnlyReadOnHere" * 2

RECIPE = """
method: {method}
description: A toy.
languages: [en, fr]
data: {{train: {{path: {train}}}, test: {{path: {test}}}, max_length: 32, cleaning: [normalize]}}
{more}
training: {{max_steps: 6, per_device_train_batch_size: 16, learning_rate: 1e-2, logging_steps: 2, save_steps: 2,
           save_total_limit: 2, precision: float32}}
evaluation: {{plot_pairs: 3}}
"""
ENCODER = """
tokenizer: {vocab_size: 80, algorithm: bpe}
model:
  encoder: {model_type: bert, hidden_size: 16, num_hidden_layers: 2, num_attention_heads: 2, intermediate_size: 32,
            max_position_embeddings: 40}
"""


def write_recipe(folder: Path, method: str = "lightweight", more: str = ENCODER) -> Path:
    for name, count, seed in (("train", 200, 1), ("test", 20, 7)):
        lines = ["{source}\t{target}\n".format_map(pair) for pair in make_pairs(count, seed)]
        (folder / f"{name}.tsv").write_text("".join(lines), "utf-8")

    path = folder / f"{method}_toy.yaml"
    text = RECIPE.format(method=method, train=folder / "train.tsv", test=folder / "test.tsv", more=more)
    path.write_text(text, "utf-8")
    return path


def train(recipe: Path, output: Path, *words: str) -> Path:
    for run in load_runs(str(recipe), ["--output_dir", str(output), *words]):
        train_recipe(run)
    return output


@dataclass
class Repo:
    private: bool = False
    files: dict[str, bytes] = field(default_factory=dict)


def refusal(status: int, message: str, kind: type[HfHubHTTPError] = HfHubHTTPError) -> HfHubHTTPError:
    response: Any = SimpleNamespace(headers={}, request=None, status_code=status)
    return kind(f"{status}: {message}", response=response)


def key_of(repo_id: str, repo_type: str | None) -> str:
    """The name of a repository in `Hub.repos`: datasets and models may have one id."""
    return f"datasets/{repo_id}" if repo_type == "dataset" else repo_id


class Hub:
    """Repositories of `me` in memory, in place of those methods of `HfApi` that send requests."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.repos: dict[str, Repo] = {}
        self.commits: list[tuple[list[str], list[str]]] = []  # paths that each changed, and that it deleted
        self.sent: list[bytes] = []  # names, messages and contents of files
        self.broken = False  # whether every connection breaks
        self.card_error = ""  # what the Hub says of every card
        for name in ("create_repo", "upload_folder", "create_commit"):
            patch.setattr(HfApi, name, self._request(getattr(self, name), writes=True))
        for name in ("model_info", "dataset_info", "hf_hub_download"):
            patch.setattr(HfApi, name, self._request(getattr(self, name)))
        for card in (ModelCard, DatasetCard):
            patch.setattr(card, "validate", self._validate)
        patch.setenv("HF_TOKEN", TOKEN)

    def _request(self, answer: Callable[..., Any], *, writes: bool = False) -> Callable[..., Any]:
        def request(api: HfApi, *arguments: Any, token: Any = None, **options: Any) -> Any:
            token = token or api.token or get_token()
            repo = arguments[0] if arguments else options["repo_id"]
            self.sent.append(f"{repo} {options}".encode())
            if self.broken:
                raise ConnectionError("the connection broke")
            if token not in (TOKEN, READER):
                raise refusal(401, "Invalid credentials")
            if writes and (token == READER or not repo.startswith("me/")):
                raise refusal(403, f"You may not write to {repo}")
            return answer(*arguments, **options)

        return request

    def _validate(self) -> None:
        if self.card_error:
            raise ValueError(self.card_error)

    def create_repo(self, repo_id: str, private: bool | None = None, repo_type: str | None = None, **_: Any) -> Any:
        self.repos.setdefault(key_of(repo_id, repo_type), Repo(bool(private)))
        return SimpleNamespace(repo_id=repo_id)

    def model_info(self, repo_id: str) -> Any:
        repo = self.repos[repo_id]
        return SimpleNamespace(private=repo.private, siblings=[SimpleNamespace(rfilename=path) for path in repo.files])

    def dataset_info(self, repo_id: str) -> Any:
        return self.model_info(key_of(repo_id, "dataset"))

    def hf_hub_download(self, repo_id: str, filename: str, local_dir: str, repo_type: str | None = None) -> str:
        files = self.repos[key_of(repo_id, repo_type)].files
        if filename not in files:
            raise refusal(404, filename, RemoteEntryNotFoundError)
        (Path(local_dir) / filename).write_bytes(files[filename])
        return str(Path(local_dir) / filename)

    def upload_folder(
        self,
        repo_id: str,
        folder_path: str,
        delete_patterns: Any = (),
        run_as_future: bool = False,
        repo_type: str | None = None,
        **_: Any,
    ) -> Any:
        paths = [path for path in Path(folder_path).rglob("*") if path.is_file()]
        files = {path.relative_to(folder_path).as_posix(): path.read_bytes() for path in paths}
        self._commit(self.repos[key_of(repo_id, repo_type)], files, delete_patterns or ())
        done: Future[Any] = Future()
        done.set_result(SimpleNamespace(oid="0" * 40))
        return done if run_as_future else done.result()

    def create_commit(self, repo_id: str, operations: Any, **_: Any) -> None:
        files = {addition.path_in_repo: Path(addition.path_or_fileobj).read_bytes() for addition in operations}
        self._commit(self.repos[repo_id], files, ())

    def _commit(self, repo: Repo, files: dict[str, bytes], delete_patterns: Any) -> None:
        deleted = []
        for path in repo.files:
            matches = any(fnmatch(path, pattern) for pattern in delete_patterns)
            if matches and path not in files:
                deleted.append(path)
        changed = sorted(path for path, content in files.items() if repo.files.get(path) != content)
        for path in deleted:
            del repo.files[path]
        repo.files |= files
        self.commits.append((changed, deleted))
        self.sent += files.values()

    def pull(self, repo_id: str, folder: Path) -> Path:
        """Writes the files of a repository to a folder."""
        for name, content in self.repos[repo_id].files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(content)
        return folder
