"""A Hub on this machine with one file, as fsspec reads it: its entry in the tree, and ranges of its bytes."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

COMMIT = "0" * 40


class HubOfOneFile(ThreadingHTTPServer):
    """Every repository of it has this file and no other."""

    daemon_threads = True

    def __init__(self, name: str, content: bytes) -> None:
        super().__init__(("127.0.0.1", 0), Requests)
        self.name = name
        self.content = content
        self.ranges: list[str] = []  # that were asked for
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Requests(BaseHTTPRequestHandler):
    server: HubOfOneFile
    protocol_version = "HTTP/1.1"

    def log_message(self, *arguments: Any) -> None:
        pass

    def do_GET(self) -> None:
        hub = self.server
        if "/resolve/" in self.path:
            bounds = self.headers["Range"].removeprefix("bytes=")
            hub.ranges.append(bounds)
            first, last = map(int, bounds.split("-"))
            part = hub.content[first : last + 1]
            self.answer(part, 206, f"bytes {first}-{first + len(part) - 1}/{len(hub.content)}")
        elif "/tree/" in self.path:
            entry = {"type": "file", "path": hub.name, "size": len(hub.content), "oid": COMMIT}
            self.answer(json.dumps([entry]).encode())
        else:
            self.answer(json.dumps({"id": "owner/name", "sha": COMMIT, "siblings": []}).encode())

    def answer(self, content: bytes, status: int = 200, content_range: str | None = None) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        if content_range is not None:
            self.send_header("Content-Range", content_range)
        self.end_headers()
        self.wfile.write(content)
