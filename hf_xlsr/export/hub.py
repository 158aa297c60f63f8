"""Uploads to repositories of the Hub.

They resume, as huggingface_hub skips files that the repository or its storage has (with hf_xet, parts of files, too).
"""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from huggingface_hub import DatasetCard, HfApi, ModelCard, get_token
from huggingface_hub.errors import (  # type: ignore[attr-defined]
    HFValidationError,
    HTTPError,
    RemoteEntryNotFoundError,
)
from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]

from hf_xlsr.data.sources import as_list
from hf_xlsr.utils.access_tokens import check_no_token
from hf_xlsr.utils.errors import XlsrError, error_line
from hf_xlsr.utils.markdown import front_matter
from hf_xlsr.utils.redaction import redact_tokens

TAG = "hf-xlsr"  # in the cards of our encoders
CARD = "README.md"
EMPTY = {".gitattributes", CARD}  # files that the Hub adds to a new repository
_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+", re.ASCII)
MODEL = "model"
DATASET = "dataset"
CARDS = {MODEL: ModelCard, DATASET: DatasetCard}
WEIGHTS = ("*.safetensors", "*.safetensors.index.json", "*.onnx", "*.onnx.data", "*openvino_model*")
LONGEST = 500  # characters of an error


def is_hub_id(name: str) -> bool:
    """Whether a name has the form OWNER/NAME."""
    try:
        validate_repo_id(name)
    except HFValidationError:
        return False
    return bool(_ID.fullmatch(name))


def check_hub_ids(name: str, ids: Sequence[str]) -> None:
    """Raises an error, which names an argument, for a value without the form of an id on the Hub."""
    for hub_id in ids:
        try:
            validate_repo_id(hub_id)
        except HFValidationError:
            raise XlsrError(f"`{name}` must have ids of the Hub, such as owner/name, got '{hub_id}'.") from None


def check_repo(name: str) -> None:
    """Raises an error for an invalid repository id."""
    if not is_hub_id(name):
        raise XlsrError(f"--repo must be OWNER/NAME, such as me/my-encoder, got '{name}'.")


@contextmanager
def hub_errors(what: str) -> Iterator[None]:
    """Turns errors of huggingface_hub and the network into one `XlsrError` of one line, in which tokens are redacted."""
    try:
        yield
    except (HTTPError, OSError, RuntimeError, ValueError) as error:
        inner: BaseException | None = error
        while inner is not None and not isinstance(inner, (HTTPError, OSError)):
            inner = inner.__cause__ or inner.__context__
        cause = inner or error
        reason = error_line(f"{type(cause).__name__}: {cause}", LONGEST).rstrip(".")
        # Without the chain: errors of the network hold the whole request.
        raise XlsrError(f"Upload of {what} failed ({reason}). Run it again to resume.") from None


@dataclass(frozen=True)
class RepoUpload:
    """Files (path in the repository -> local file) and card to upload to one repository.

    `left_out` are the paths of files (of a dataset, the columns) that are not sent. An existing repository may be
    overwritten if its card has the tag; files there that match `replaces` are deleted. `kind` is `model` or `dataset`.
    """

    repo: str
    card: str
    files: Mapping[str, Path]
    private: bool = False
    tag: str = TAG
    replaces: Sequence[str] = WEIGHTS
    left_out: Sequence[str] = ()
    left_out_because: str = "they are no files of a model"
    kind: str = MODEL

    @property
    def size(self) -> int:
        """Bytes of the files and the card."""
        return sum(path.stat().st_size for path in self.files.values()) + len(self.card.encode())


@dataclass(frozen=True)
class UploadResult:
    """A repository after an upload; `files` counts the card, `size` is in bytes."""

    url: str
    private: bool
    files: int
    size: int


def push_uploads(
    uploads: Sequence[RepoUpload],
    *,
    exist_ok: bool = False,
    message: str | None = None,
) -> list[UploadResult]:
    """Uploads to repositories one after the other; all of them are checked before the first is sent.

    A missing repository is created. An existing one must be empty, or its card must have `RepoUpload.tag`, or `exist_ok`
    is set. The token is that of HF_TOKEN or `hf auth login`.
    """
    token = get_token()
    if not token:
        raise XlsrError("An access token for the Hub is missing. Run `hf auth login`, or set HF_TOKEN.")
    for upload in uploads:
        check_repo(upload.repo)
        check_no_token(upload.card, CARD)
        with hub_errors(f"the card of {upload.repo}"):
            CARDS[upload.kind](upload.card).validate()

    api = HfApi(token=token)
    private = [_create_repo(upload, api, exist_ok) for upload in uploads]
    return [_push(upload, api, is_private, message) for upload, is_private in zip(uploads, private, strict=True)]


def _create_repo(upload: RepoUpload, api: HfApi, exist_ok: bool) -> bool:
    """Creates a missing repository, or checks that it may be overwritten; returns whether it is private."""
    repo = upload.repo
    with hub_errors(repo):
        api.create_repo(repo, repo_type=upload.kind, private=upload.private or None, exist_ok=True)
        info: Any = api.dataset_info(repo) if upload.kind == DATASET else api.model_info(repo)
        names = {file.rfilename for file in info.siblings or ()}
        may_overwrite = exist_ok or names <= EMPTY or upload.tag in _tags(api, repo, upload.kind)

    if upload.private and not info.private:
        raise XlsrError(f"Repository {repo} is public. Make it private on its page, or choose another name.")
    if not may_overwrite:
        raise XlsrError(f"Repository {repo} holds other files. Choose another name, or overwrite it by --exist-ok.")
    return bool(info.private)


def _tags(api: HfApi, repo: str, kind: str) -> list[str]:
    """The tags in the card of a repository; none without a readable card."""
    try:
        with tempfile.TemporaryDirectory() as folder:
            card = Path(api.hf_hub_download(repo, CARD, repo_type=kind, local_dir=folder)).read_text("utf-8")
        return as_list(front_matter(card).get("tags"))
    except (RemoteEntryNotFoundError, ValueError):
        return []


def _push(
    upload: RepoUpload,
    api: HfApi,
    private: bool,
    message: str | None,
) -> UploadResult:
    repo = upload.repo
    with hub_errors(repo), tempfile.TemporaryDirectory() as folder:
        for name, path in upload.files.items():
            link = Path(folder) / name
            link.parent.mkdir(parents=True, exist_ok=True)
            try:
                link.symlink_to(path.resolve())
            except OSError:
                shutil.copyfile(path, link)

        (Path(folder) / CARD).write_text(upload.card, "utf-8")
        api.upload_folder(
            repo_id=repo,
            repo_type=upload.kind,
            folder_path=folder,
            commit_message=redact_tokens(message or "Push by hf-xlsr"),
            delete_patterns=list(upload.replaces) or None,
        )

    address = f"datasets/{repo}" if upload.kind == DATASET else repo
    return UploadResult(f"{api.endpoint}/{address}", private, len(upload.files) + 1, upload.size)
