"""A Hub on this machine: its API for models, with large files, as far as pushing and loading need it.

Everything is kept in memory. Tests reach it through `HF_ENDPOINT`, which is read at import, from processes of their own.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import re
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

import yaml

OWNER, TOKEN = "me", "hf_" + "S3cretOfThisTest" * 2 + "xy"
READER = "hf_" + "MayOnlyReadOnHere" * 2
LARGE = (".safetensors", ".pt", ".pth", ".bin", ".onnx", ".png", ".arrow")
REVISIONS = r"(?P<revision>main|[0-9a-f]{40}|refs%2F[^/]+)"


@dataclass
class Repo:
    """One repository: its files and the history of its commits."""

    private: bool = False
    files: dict[str, tuple[bytes, bool]] = field(default_factory=dict)  # path -> content, whether large
    commits: list[str] = field(default_factory=list)

    @property
    def head(self) -> str:
        return self.commits[-1] if self.commits else "0" * 40


class Answer(Exception):
    """An answer that ends a request: status, JSON and headers."""

    def __init__(self, status: int, body: Any = None, **headers: str) -> None:
        super().__init__(status)
        self.status, self.body = status, body
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}


class HubServer:
    """The server, and what it has seen."""

    def __init__(self) -> None:
        self.forget()
        self._lock = threading.Lock()
        hub = self

        class Handler(_Handler):
            server_hub = hub

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)

    def __enter__(self) -> HubServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def forget(self) -> None:
        self.repos: dict[str, Repo] = {}
        self.storage: dict[str, bytes] = {}  # large files by their SHA-256
        self.uploads: list[str] = []  # SHA-256 of every large file whose content came in, once for each time
        self.commits: list[tuple[list[str], list[str]]] = []  # paths that each sent, and that it deleted
        self.break_after: int | None = None  # large files, after which every connection breaks
        self.reject_cards = ""  # what `validate-yaml` says of every card
        self.requests: list[tuple[str, str, int]] = []  # method, path and status; 0 where the connection broke
        self.bodies: list[bytes] = []

    @property
    def broken(self) -> bool:
        return self.break_after is not None and len(self.uploads) >= self.break_after

    def content(self, repo: str, path: str) -> bytes:
        content, large = self.repos[repo].files[path]
        return self.storage[content.decode()] if large else content

    # What the routes do.

    def create(self, who: str, body: dict[str, Any]) -> Any:
        owner = body.get("organization") or who
        name = f"{owner}/{body['name']}"
        if owner != who:
            raise Answer(403, {"error": "You don't have the rights to create a model under this namespace"})
        with self._lock:
            if name in self.repos:
                raise Answer(409, {"error": "You already created this model repo", "url": f"{self.url}/{name}"})
            self.repos[name] = Repo(private=body.get("visibility") == "private" or bool(body.get("private")))
        return {"url": f"{self.url}/{name}", "name": name, "id": name}

    def info(self, name: str, repo: Repo) -> Any:
        siblings = [{"rfilename": path} for path in repo.files]
        return {
            "id": name,
            "modelId": name,
            "private": repo.private,
            "sha": repo.head,
            "siblings": siblings,
            "tags": [],
        }

    def entry(self, path: str, repo: Repo) -> dict[str, Any]:
        content, large = repo.files[path]
        whole = self.storage[content.decode()] if large else content
        entry: dict[str, Any] = {"type": "file", "path": path, "size": len(whole), "oid": _git_hash(content)}
        if large:
            entry["lfs"] = {"oid": content.decode(), "size": len(whole), "pointerSize": 130}
        return entry

    def preupload(self, repo: Repo, body: dict[str, Any]) -> Any:
        files = []
        for file in body["files"]:
            large = file["path"].endswith(LARGE) or file["size"] > 10_000_000
            there = repo.files.get(file["path"])
            oid = None if there is None else there[0].decode() if there[1] else _git_hash(there[0])
            mode = "lfs" if large else "regular"
            files.append({"path": file["path"], "uploadMode": mode, "shouldIgnore": False, "oid": oid})
        return {"files": files}

    def batch(self, name: str, body: dict[str, Any]) -> Any:
        objects = []
        for wanted in body["objects"]:
            entry = {"oid": wanted["oid"], "size": wanted["size"]}
            if wanted["oid"] not in self.storage:
                place = f"{self.url}/lfs/{name}/{wanted['oid']}"
                entry["actions"] = {"upload": {"href": place}, "verify": {"href": f"{place}/verify"}}
            objects.append(entry)
        return {"transfer": "basic", "objects": objects}

    def store(self, oid: str, content: bytes) -> None:
        if hashlib.sha256(content).hexdigest() != oid:
            raise Answer(422, {"error": "the content is not what its hash says"})
        with self._lock:
            self.uploads.append(oid)
            self.storage[oid] = content

    def verify(self, oid: str, body: dict[str, Any]) -> Any:
        if body["oid"] != oid or len(self.storage.get(oid, b"")) != body["size"]:
            raise Answer(422, {"error": "object not found"})
        return {}

    def commit(self, name: str, repo: Repo, text: bytes) -> Any:
        lines = [json.loads(line) for line in text.splitlines() if line.strip()]
        sent, gone = [], []
        for line in lines:
            value = line["value"]
            if line["key"] == "file":
                repo.files[value["path"]] = (base64.b64decode(value["content"]), False)
            elif line["key"] == "lfsFile":
                if value["oid"] not in self.storage:
                    raise Answer(400, {"error": f"LFS object {value['oid']} does not exist"})
                repo.files[value["path"]] = (value["oid"].encode(), True)
            elif line["key"] == "deletedFile":
                del repo.files[value["path"]]
                gone.append(value["path"])
                continue
            else:
                continue
            sent.append(value["path"])
        repo.commits.append(hashlib.sha1(text + repo.head.encode()).hexdigest())
        self.commits.append((sent, gone))
        return {"success": True, "commitOid": repo.head, "commitUrl": f"{self.url}/{name}/commit/{repo.head}"}

    def validate(self, body: dict[str, Any]) -> Any:
        header = re.match(r"\s*---\r?\n(.*?)\r?\n---", body["content"], re.DOTALL)
        try:
            data = yaml.safe_load(header[1]) if header else {}
        except yaml.YAMLError as error:
            data, self_said = {}, str(error)
        else:
            self_said = self.reject_cards or ("" if isinstance(data, dict) else "metadata are no mapping")
        if self_said:
            raise Answer(400, {"errors": [{"message": self_said}], "warnings": []})
        return {"errors": [], "warnings": []}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_hub: HubServer

    def log_message(self, *_: object) -> None:
        """Nothing: the server keeps `requests`."""

    def do_GET(self) -> None:
        self._serve()

    do_HEAD = do_POST = do_PUT = do_GET

    def _serve(self) -> None:
        hub = self.server_hub
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.headers.get("Transfer-Encoding") == "chunked":
            body = b"".join(iter(self._chunk, b""))
        path = urlsplit(self.path).path
        if hub.broken:
            hub.requests.append((self.command, path, 0))
            self.close_connection = True
            with contextlib.suppress(OSError):
                self.connection.shutdown(2)
            return
        if path.startswith("/lfs/") or path.startswith("/api/"):
            hub.bodies.append(body)
        try:
            status, answer, headers = self._route(path, body)
        except Answer as error:
            status, answer, headers = error.status, error.body, error.headers
        hub.requests.append((self.command, path, status))
        payload = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
        self.send_response(status)
        for name, value in {"Content-Type": "application/json", "Content-Length": len(payload), **headers}.items():
            self.send_header(name, str(value))
        self.end_headers()
        if self.command != "HEAD":
            with contextlib.suppress(OSError):
                self.wfile.write(payload)

    def _chunk(self) -> bytes:
        size = int(self.rfile.readline().split(b";")[0], 16)
        chunk = self.rfile.read(size)
        self.rfile.readline()
        return chunk

    @property
    def _who(self) -> str | None:
        """Whose token came along: the owner's, a reader's, or nobody's."""
        given = (self.headers.get("Authorization") or "").removeprefix("Bearer ")
        if given and given not in (TOKEN, READER):
            raise Answer(401, {"error": "Invalid credentials in Authorization header"}, **_said("Invalid credentials"))
        return {TOKEN: OWNER, READER: "reader"}.get(given)

    def _writer(self) -> str:
        if self._who is None:
            raise Answer(401, {"error": "Invalid username or password."})
        if self._who != OWNER:
            raise Answer(403, {"error": "no write access"}, X_Error_Message="you may not write here")
        return OWNER

    def _repo(self, name: str, write: bool = False) -> Repo:
        repo = self.server_hub.repos.get(name)
        if repo is None or (repo.private and self._who != OWNER):
            status = 404 if self._who else 401
            raise Answer(status, {"error": "Repository not found"}, X_Error_Code="RepoNotFound")
        if write:
            self._writer()
            if not name.startswith(f"{OWNER}/"):
                raise Answer(403, {"error": "no write access"}, X_Error_Message="you may not write here")
        return repo

    def _route(self, path: str, body: bytes) -> tuple[int, Any, dict[str, str]]:
        hub, post = self.server_hub, self.command == "POST"
        if path == "/api/whoami-v2":
            return 200, {"type": "user", "name": self._who or self._writer(), "orgs": []}, {}
        if path == "/api/validate-yaml":
            return 200, hub.validate(json.loads(body)), {}
        if path == "/api/repos/create":
            who = self._writer() if self._who in (None, OWNER) else str(self._who)
            return 200, hub.create(who, json.loads(body)), {}
        if found := re.fullmatch(r"/(?P<name>[^/]+/[^/]+)\.git/info/lfs/objects/batch", path):
            self._repo(found["name"], write=True)
            return 200, hub.batch(found["name"], json.loads(body)), {"Content-Type": "application/vnd.git-lfs+json"}
        if found := re.fullmatch(r"/lfs/(?P<name>[^/]+/[^/]+)/(?P<oid>[0-9a-f]{64})(?P<verify>/verify)?", path):
            if found["verify"]:
                self._repo(found["name"], write=True)
                return 200, hub.verify(found["oid"], json.loads(body)), {}
            hub.store(found["oid"], body)  # as a signed address of a storage: no token comes along
            return 200, {}, {}
        if found := re.fullmatch(r"/api/models/(?P<name>[^/]+/[^/]+)(?P<rest>/.*)?", path):
            return 200, self._api(found["name"], found["rest"] or "", body, post), {}
        if found := re.fullmatch(rf"/(?P<name>[^/]+/[^/]+)/resolve/{REVISIONS}/(?P<path>.+)", path):
            return self._resolve(found["name"], unquote(found["path"]))
        raise Answer(404, {"error": f"no such route: {self.command} {path}"})

    def _api(self, name: str, rest: str, body: bytes, post: bool) -> Any:
        hub = self.server_hub
        if post and re.fullmatch(rf"/preupload/{REVISIONS}", rest):
            return hub.preupload(self._repo(name, write=True), json.loads(body))
        if post and re.fullmatch(rf"/commit/{REVISIONS}", rest):
            return hub.commit(name, self._repo(name, write=True), body)
        repo = self._repo(name)
        if rest == "" or re.fullmatch(rf"/revision/{REVISIONS}", rest):
            return hub.info(name, repo)
        if rest == "/refs":
            head = {"name": "main", "ref": "refs/heads/main", "targetCommit": repo.head}
            return {"branches": [head], "tags": [], "converts": []}
        if post and re.fullmatch(rf"/paths-info/{REVISIONS}", rest):
            paths = json.loads(body)["paths"]
            return [hub.entry(path, repo) for path in paths if path in repo.files]
        if found := re.fullmatch(rf"/tree/{REVISIONS}(?P<folder>/.*)?", rest):
            folder = unquote(found["folder"] or "").strip("/")
            inside = [path for path in repo.files if not folder or path.startswith(f"{folder}/")]
            if folder and not inside:
                raise Answer(404, {"error": "not found"}, X_Error_Code="EntryNotFound")
            return [hub.entry(path, repo) for path in inside]
        raise Answer(404, {"error": f"no such route: {rest}"})

    def _resolve(self, name: str, path: str) -> tuple[int, Any, dict[str, str]]:
        hub, repo = self.server_hub, self._repo(name)
        if path not in repo.files:
            raise Answer(404, {"error": "Entry not found"}, X_Error_Code="EntryNotFound", X_Repo_Commit=repo.head)
        content, large = repo.files[path]
        whole = hub.content(name, path)
        headers = {"X-Repo-Commit": repo.head, "ETag": f'"{_git_hash(content)}"', "Accept-Ranges": "bytes"}
        if large:
            headers |= {"X-Linked-Etag": f'"{content.decode()}"', "X-Linked-Size": str(len(whole))}
        return 200, whole, headers


def _said(text: str) -> dict[str, str]:
    return {"X_Error_Message": f"{text} in Authorization header"}


def _git_hash(content: bytes) -> str:
    """As git names the content of a file."""
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
