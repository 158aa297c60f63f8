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
from hf_xlsr.export.access_tokens import check_no_token_in_files, hide_tokens
from hf_xlsr.export.card_check import check_card, check_card_on_hub
from hf_xlsr.export.hub_errors import NO_TOKEN, hub_errors
from hf_xlsr.export.hub_names import TAG, check_repo
from hf_xlsr.utils.errors import XlsrError

CARD = "README.md"
# What the Hub, or its page for a new repository, puts there by itself.
EMPTY = {".gitattributes", CARD}


@dataclass(frozen=True)
class Shipment:
    """What is to be sent to one repository.

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
class Pushed:
    """What a repository holds of a shipment now.

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


def check_shipment(shipment: Shipment) -> None:
    """Whatever can be known to be wrong before anything is sent, and without the Hub.

    Raises:
        XlsrError: the name of the repository, the card or a path does not do; a file is missing, holds an access token
            or is a link to a place outside its folder.
    """
    check_repo(shipment.repo)
    check_card(shipment.card)
    for name in shipment.files:
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts or ".git" in path.parts:
            raise XlsrError(f"'{name}' cannot be a path in a repository; name it from the top, without '..'.")
    check_no_token_in_files(shipment.files)


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


def push_shipments(
    shipments: Sequence[Shipment],
    *,
    token: str | None = None,
    exist_ok: bool = False,
    message: str | None = None,
) -> list[Pushed]:
    """Sends shipments one after the other; all of them and their repositories are looked at before the first is sent.

    A repository is made where there is none. One that is there is taken when it is empty, or when its card says that it
    was pushed from here (see `Shipment.tag`); one that should be private and is not is refused in any case.

    Args:
        shipments: What goes where.
        token: Access token with write access; that of HF_TOKEN or of `hf auth login` when absent.
        exist_ok: Take repositories whatever they hold.
        message: Of the commit.

    Returns:
        What is there now, in the same order.

    Raises:
        XlsrError: as `check_shipment`; there is no token, or it may not write there; the Hub refuses the card, cannot be
            reached, or breaks off; a repository holds something else.
    """
    token = token or get_token()
    if not token:
        raise XlsrError(NO_TOKEN)
    for shipment in shipments:
        check_shipment(shipment)
    for shipment in shipments:
        check_card_on_hub(shipment.card)
    api = HfApi(token=token)
    infos = [_taken(shipment, api, exist_ok) for shipment in shipments]
    return [_push(shipment, api, bool(info.private), message) for shipment, info in zip(shipments, infos, strict=True)]


def _taken(shipment: Shipment, api: HfApi, exist_ok: bool) -> ModelInfo:
    """What the Hub says of a repository that may be written to; made where there is none."""
    repo = shipment.repo
    with hub_errors(repo):
        api.create_repo(repo, private=shipment.private or None, exist_ok=True)
        info = api.model_info(repo)
        there = {file.rfilename for file in info.siblings or ()}
        if shipment.private and not info.private:
            raise XlsrError(f"repository {repo} is public; make it private on its page, or choose another name.")
        if not exist_ok and there - EMPTY and shipment.tag not in _tags(api, repo):
            raise XlsrError(
                f"repository {repo} holds files that were not pushed from here; choose another name, or write over it "
                "with --exist-ok."
            )
    return info


def _push(shipment: Shipment, api: HfApi, private: bool, message: str | None) -> Pushed:
    repo = shipment.repo
    with hub_errors(repo), tempfile.TemporaryDirectory() as folder:
        gather(shipment, Path(folder))
        commit = api.upload_folder(
            repo_id=repo,
            folder_path=folder,
            commit_message=hide_tokens(message or "Push by hf-xlsr"),
            delete_patterns=list(shipment.replaces) or None,
        )
    size = sum(path.stat().st_size for path in shipment.files.values()) + len(shipment.card.encode())
    url = f"{api.endpoint}/{repo}"
    return Pushed(repo, url, private, str(commit.oid), len(shipment.files) + 1, size)


def gather(shipment: Shipment, folder: Path) -> None:
    """Puts the files of a shipment and its card into an empty folder, as links where the system makes them."""
    for name, path in shipment.files.items():
        place = folder / name
        place.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.symlink(path.resolve(), place)
        except OSError:
            shutil.copyfile(path, place)
    (folder / CARD).write_text(shipment.card, "utf-8")


def _tags(api: HfApi, repo: str) -> list[str]:
    try:
        with tempfile.TemporaryDirectory() as folder:
            card = Path(api.hf_hub_download(repo, CARD, local_dir=folder)).read_text("utf-8")
        return list(map(str, as_list(ModelCard(card, ignore_metadata_errors=True).data.get("tags"))))
    except LocalEntryNotFoundError:  # the network, not the repository
        raise
    except (EntryNotFoundError, ValueError):
        return []
