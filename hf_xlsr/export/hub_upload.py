"""Sending files to a repository of the Hub: looked at first, taken up again where an earlier call stopped.

What resumes is huggingface_hub's: a file that the repository has already is left out of the commit, and a file whose
content the storage has already is not sent again. With the package hf_xet, which it brings along, that holds for parts of
large files too, and large folders are committed in several parts. Small text files go with the commit itself.
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
from hf_xlsr.export.access_tokens import check_no_token, redact_tokens
from hf_xlsr.export.hub_errors import NO_TOKEN, hub_errors
from hf_xlsr.export.hub_names import TAG, check_repo
from hf_xlsr.utils.errors import XlsrError

CARD = "README.md"
# What the Hub, or its page for a new repository, puts there by itself.
EMPTY = {".gitattributes", CARD}


@dataclass(frozen=True)
class RepoUpload:
    """Files and card to upload to one repository.

    Args:
        repo: OWNER/NAME.
        card: Its model card.
        files: Path in the repository -> file; without the card.
        private: Whether nobody else may see the repository.
        tag: What the card of a repository has to be tagged with, for it to be written to again.
        replaces: Patterns of files of the repository that go when they are not among `files`.
    """

    repo: str
    card: str
    files: Mapping[str, Path]
    private: bool = False
    tag: str = TAG
    replaces: Sequence[str] = ("*.safetensors", "*.safetensors.index.json")


@dataclass(frozen=True)
class UploadResult:
    """What a repository holds after an upload.

    Args:
        repo: OWNER/NAME.
        url: Of its page.
        private: Whether it is.
        commit: Its newest commit.
        files: How many files, the card included.
        size: Bytes of them.
    """

    repo: str
    url: str
    private: bool
    commit: str
    files: int
    size: int = field(default=0)


def check_upload(upload: RepoUpload) -> None:
    """Whatever can be known to be wrong before anything is sent, and without the Hub.

    Raises:
        XlsrError: the repository's name or a path is invalid, or the card holds an access token.
    """
    check_repo(upload.repo)
    check_no_token(upload.card, CARD)
    for name in upload.files:
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts or ".git" in path.parts:
            raise XlsrError(f"'{name}' cannot be a path in a repository; name it from the top, without '..'.")


def folder_files(folder: Path, prefix: str = "", without: Sequence[str] = ()) -> dict[str, Path]:
    """All files of a folder, by their path in a repository; hidden ones are left out.

    Args:
        folder: Whose files.
        prefix: Folder of the repository that they go to.
        without: Names of files that are left out.

    Raises:
        XlsrError: a link leads out of the folder.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = Path(folder, "config.json").write_text("{}")
        ...     list(folder_files(Path(folder), "model"))
        ['model/config.json']
    """
    root, found = folder.resolve(), {}
    for path in sorted(folder.rglob("*")):
        parts = path.relative_to(folder).parts
        if not path.is_file() or path.name in without or any(part.startswith(".") for part in parts):
            continue
        if not path.resolve().is_relative_to(root):
            raise XlsrError(f"{path} is a link to a place outside {folder}; replace it by a copy, or remove it.")
        found[str(PurePosixPath(prefix, *parts))] = path
    return found


def push_uploads(
    uploads: Sequence[RepoUpload],
    *,
    token: str | None = None,
    exist_ok: bool = False,
    message: str | None = None,
) -> list[UploadResult]:
    """Sends uploads one after the other; all of them and their repositories are looked at before the first is sent.

    A repository is made where there is none. One that is there is taken when it is empty, or when its card says that it
    was pushed from here (see `RepoUpload.tag`); one that should be private and is not is refused in any case.

    Args:
        uploads: What goes where.
        token: Access token with write access; that of HF_TOKEN or of `hf auth login` when absent.
        exist_ok: Take repositories whatever they hold.
        message: Of the commit.

    Returns:
        What is there now, in the same order.

    Raises:
        XlsrError: as `check_upload`; there is no token, or it may not write there; the Hub refuses the card, cannot be
            reached, or breaks off; a repository holds something else.
    """
    token = token or get_token()
    if not token:
        raise XlsrError(NO_TOKEN)
    for upload in uploads:
        check_upload(upload)
    for upload in uploads:
        with hub_errors(f"the card of {upload.repo}"):
            ModelCard(upload.card).validate()
    api = HfApi(token=token)
    infos = [_taken(upload, api, exist_ok) for upload in uploads]
    return [_push(upload, api, bool(info.private), message) for upload, info in zip(uploads, infos, strict=True)]


def _taken(upload: RepoUpload, api: HfApi, exist_ok: bool) -> ModelInfo:
    """What the Hub says of a repository that may be written to; made where there is none."""
    repo = upload.repo
    with hub_errors(repo):
        api.create_repo(repo, private=upload.private or None, exist_ok=True)
        info = api.model_info(repo)
        there = {file.rfilename for file in info.siblings or ()}
        if upload.private and not info.private:
            raise XlsrError(f"repository {repo} is public; make it private on its page, or choose another name.")
        if not exist_ok and there - EMPTY and upload.tag not in _tags(api, repo):
            raise XlsrError(
                f"repository {repo} holds files that were not pushed from here; choose another name, or write over it "
                "with --exist-ok."
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
    """Puts the files of a upload and its card into an empty folder, as links where the system makes them."""
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
        return list(map(str, as_list(ModelCard(card, ignore_metadata_errors=True).data.get("tags"))))
    except LocalEntryNotFoundError:  # the network, not the repository
        raise
    except (EntryNotFoundError, ValueError):
        return []
