"""Uploads to repositories of the Hub.

They resume, as huggingface_hub skips files that the repository or its storage has (with hf_xet, parts of files, too).
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from huggingface_hub import HfApi, ModelCard, ModelInfo, get_token
from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError

from hf_xlsr.data.sources import as_list
from hf_xlsr.export.hub_errors import hub_errors
from hf_xlsr.export.hub_names import TAG, check_repo
from hf_xlsr.utils.access_tokens import check_no_token, redact_tokens
from hf_xlsr.utils.errors import XlsrError
from hf_xlsr.utils.front_matter import front_matter

CARD = "README.md"
# Files that the Hub adds to a new repository.
EMPTY = {".gitattributes", CARD}


@dataclass(frozen=True)
class RepoUpload:
    """Files (path in the repository -> local file) and card to upload to one repository.

    An existing one may be overwritten if its card has the tag; files there that match `replaces` are deleted.
    """

    repo: str
    card: str
    files: Mapping[str, Path]
    private: bool = False
    tag: str = TAG
    replaces: Sequence[str] = ("*.safetensors", "*.safetensors.index.json")


@dataclass(frozen=True)
class UploadResult:
    """A repository after an upload; `files` counts the card, `size` is in bytes."""

    repo: str
    url: str
    private: bool
    commit: str
    files: int
    size: int = field(default=0)


def check_upload(upload: RepoUpload) -> None:
    """Checks an upload before anything is sent."""
    check_repo(upload.repo)
    check_no_token(upload.card, CARD)
    for name in upload.files:
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts or ".git" in path.parts:
            raise XlsrError(f"Paths in a repository must be relative, without '..' and '.git', got '{name}'.")


def folder_files(folder: Path, prefix: str = "", without: Sequence[str] = ()) -> dict[str, Path]:
    """All files of a folder by path in a repository, without hidden ones and those named in `without`."""
    root, found = folder.resolve(), {}
    for path in sorted(folder.rglob("*")):
        parts = path.relative_to(folder).parts
        if not path.is_file() or path.name in without or any(part.startswith(".") for part in parts):
            continue
        if not path.resolve().is_relative_to(root):
            raise XlsrError(f"{path} is a link out of {folder}. Replace it by a copy, or remove it.")
        found[str(PurePosixPath(prefix, *parts))] = path
    return found


def push_uploads(
    uploads: Sequence[RepoUpload],
    *,
    token: str | None = None,
    exist_ok: bool = False,
    message: str | None = None,
) -> list[UploadResult]:
    """Uploads to repositories one after the other; all of them are checked before the first is sent.

    A missing repository is created. An existing one must be empty, or its card must have `RepoUpload.tag`, or `exist_ok`
    is set. The token is by default that of HF_TOKEN or `hf auth login`.
    """
    token = token or get_token()
    if not token:
        raise XlsrError("An access token for the Hub is missing. Run `hf auth login`, or set HF_TOKEN.")
    for upload in uploads:
        check_upload(upload)
    for upload in uploads:
        with hub_errors(f"the card of {upload.repo}"):
            ModelCard(upload.card).validate()
    api = HfApi(token=token)
    infos = [_repository(upload, api, exist_ok) for upload in uploads]
    return [_push(upload, api, bool(info.private), message) for upload, info in zip(uploads, infos, strict=True)]


def _repository(upload: RepoUpload, api: HfApi, exist_ok: bool) -> ModelInfo:
    """The repository of an upload, created if missing, after a check that it may be overwritten."""
    repo = upload.repo
    with hub_errors(repo):
        api.create_repo(repo, private=upload.private or None, exist_ok=True)
        info = api.model_info(repo)
        there = {file.rfilename for file in info.siblings or ()}
        if upload.private and not info.private:
            raise XlsrError(f"Repository {repo} is public. Make it private on its page, or choose another name.")
        if not exist_ok and there - EMPTY and upload.tag not in _tags(api, repo):
            raise XlsrError(
                f"Repository {repo} holds other files. Choose another name, or overwrite it by --exist-ok."
            )
    return info


def _push(upload: RepoUpload, api: HfApi, private: bool, message: str | None) -> UploadResult:
    repo = upload.repo
    with hub_errors(repo), tempfile.TemporaryDirectory() as folder:
        gather(upload, Path(folder))
        commit = api.upload_folder(
            repo_id=repo,
            folder_path=folder,
            commit_message=redact_tokens(message or "Push by hf-xlsr"),
            delete_patterns=list(upload.replaces) or None,
        )
    size = sum(path.stat().st_size for path in upload.files.values()) + len(upload.card.encode())
    url = f"{api.endpoint}/{repo}"
    return UploadResult(repo, url, private, str(commit.oid), len(upload.files) + 1, size)


def gather(upload: RepoUpload, folder: Path) -> None:
    """Links (or copies) the files of an upload to an empty folder, and writes its card."""
    for name, path in upload.files.items():
        place = folder / name
        place.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.symlink(path.resolve(), place)
        except OSError:
            shutil.copyfile(path, place)
    (folder / CARD).write_text(upload.card, "utf-8")


def _tags(api: HfApi, repo: str) -> list[str]:
    try:
        with tempfile.TemporaryDirectory() as folder:
            card = Path(api.hf_hub_download(repo, CARD, local_dir=folder)).read_text("utf-8")
        return as_list(front_matter(card).get("tags"))
    except LocalEntryNotFoundError:  # a network error
        raise
    except (EntryNotFoundError, ValueError):
        return []
