"""A Hub on this machine that takes uploads: the requests of `huggingface_hub` for one commit, and no others."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shutil
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote

COMMIT = "0" * 40


class Hub(ThreadingHTTPServer):
    """Repositories as folders `home/NAME/repo` of `me/NAME`; a commit is there as a whole or not at all.

    The name of a dataset begins with `datasets/`.
    """

    daemon_threads = True

    def __init__(self, home: Path) -> None:
        super().__init__(("127.0.0.1", 0), Requests)
        self.home = home
        self.large: dict[str, bytes] = {}  # contents of large files by SHA-256
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def folder(self, name: str) -> Path:
        return self.home / name / "repo"

    def files(self, name: str) -> dict[str, bytes]:
        folder = self.folder(name)
        return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}

    def commit(self, name: str, files: dict[str, bytes]) -> None:
        new = self.home / name / "new"
        shutil.rmtree(new, ignore_errors=True)
        for path, content in files.items():
            (new / path).parent.mkdir(parents=True, exist_ok=True)
            (new / path).write_bytes(content)
        shutil.rmtree(self.folder(name), ignore_errors=True)
        new.rename(self.folder(name))


def key_of(kind: str, name: str) -> str:
    """The name of a repository of `models` or `datasets`."""
    return f"datasets/{name}" if kind == "datasets" else name


def tree(files: dict[str, bytes], folder: str, *, recursive: bool) -> Iterator[dict[str, Any]]:
    """The files in a folder, and the folders, as the Hub lists them."""
    start = f"{folder}/" if folder else ""
    folders = set()
    for path, content in files.items():
        if not path.startswith(start):
            continue
        first, slash, _ = path.removeprefix(start).partition("/")
        if slash and start + first not in folders:
            folders.add(start + first)
            yield {"type": "directory", "path": start + first, "oid": COMMIT}
        if recursive or not slash:
            yield {"type": "file", "path": path, "size": len(content), "oid": COMMIT}


class Requests(BaseHTTPRequestHandler):
    """Answers by method and path."""

    server: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, *arguments: Any) -> None:
        pass

    def answer(self, content: Any, status: int = 200, **headers: str) -> None:
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        headers = {"Content-Length": str(len(body)), "X-Repo-Commit": COMMIT, **headers}
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def body(self) -> bytes:
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def do_GET(self) -> None:
        path, _, query = self.path.partition("?")
        path = unquote(path)
        if match := re.fullmatch(r"/api/(models|datasets)/me/([^/]+)/tree/[^/]+/?(.*)", path):
            files = self.server.files(key_of(match[1], match[2]))
            self.answer(list(tree(files, match[3], recursive="recursive=true" in query.lower())))
        elif match := re.fullmatch(r"/api/(models|datasets)/me/([^/]+)(/revision/.*)?", path):
            names = [{"rfilename": name} for name in self.server.files(key_of(match[1], match[2]))]
            self.answer({"id": f"me/{match[2]}", "private": False, "sha": COMMIT, "siblings": names, "tags": []})
        elif match := re.fullmatch(r"/(datasets/)?me/([^/]+)/resolve/[^/]+/(.+)", path):
            content = self.server.files(f"{match[1] or ''}{match[2]}").get(match[3])
            if content is None:
                self.answer({}, 404, X_Error_Code="EntryNotFound")
            else:
                self.answer(content, ETag=f'"{hashlib.sha256(content).hexdigest()}"')
        else:
            self.answer({}, 404, X_Error_Code="RepoNotFound")

    do_HEAD = do_GET

    def do_PUT(self) -> None:
        content = self.body()
        self.server.large[hashlib.sha256(content).hexdigest()] = content
        self.answer({})

    def do_POST(self) -> None:
        body = self.body()
        path = self.path.partition("?")[0]
        if path.endswith("/api/repos/create"):
            wanted = json.loads(body)
            prefix = "datasets/" if wanted.get("type") == "dataset" else ""
            self.answer({"url": f"{self.server.url}/{prefix}me/{wanted['name']}"})
        elif path.endswith("/api/validate-yaml"):
            self.answer({})
        elif "/preupload/" in path:
            modes = []
            for file in json.loads(body)["files"]:
                mode = "lfs" if file["path"].endswith((".safetensors", ".parquet")) else "regular"
                modes.append({"path": file["path"], "uploadMode": mode, "shouldIgnore": False})
            self.answer({"files": modes})
        elif path.endswith("/info/lfs/objects/batch"):
            objects = json.loads(body)["objects"]
            for entry in objects:
                if entry["oid"] not in self.server.large:
                    entry["actions"] = {"upload": {"href": f"{self.server.url}/large/{entry['oid']}"}}
            self.answer({"transfer": "basic", "objects": objects})
        elif match := re.fullmatch(r"/api/(models|datasets)/me/([^/]+)/commit/.*", path):
            self._commit(key_of(match[1], match[2]), body)
        else:
            self.answer({}, 404)

    def _commit(self, name: str, body: bytes) -> None:
        files = self.server.files(name)
        for line in body.splitlines():
            entry = json.loads(line)
            value = entry["value"]
            if entry["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif entry["key"] == "lfsFile":
                files[value["path"]] = self.server.large[value["oid"]]
            elif entry["key"] == "deletedFile":
                files.pop(value["path"], None)
        self.server.commit(name, files)
        prefix = "datasets/" if name.startswith("datasets/") else ""
        address = f"{self.server.url}/{prefix}me/{name.removeprefix(prefix)}"
        self.answer({"success": True, "commitUrl": f"{address}/commit/{COMMIT}", "commitOid": COMMIT})
