"""As much of a hub, on loopback, as ``huggingface_hub`` asks for a snapshot: what a revision is, the files of a commit, and
the files, of which large ones are redirected to and can be had in part. Errors carry the headers that the library reads."""

from __future__ import annotations

import hashlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

LARGE = 1 << 20
"""Bytes from which a file lies elsewhere."""


class Hub(ThreadingHTTPServer):
    """``models``: name → revision → commit; ``commits``: commit → path → content. ``asked``: every request, with its
    range. ``gated`` models need ``token``. A large file stops after ``stall_at`` bytes until ``go_on`` is set; with ``breaks``
    the connection ends there, once."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.models: dict[str, dict[str, str]] = {}
        self.commits: dict[str, dict[str, bytes]] = {}
        self.gated: set[str] = set()
        self.token = ""
        self.asked: list[tuple[str, str, str]] = []
        self.stall_at, self.breaks = 0, False
        self.stalled, self.go_on = threading.Event(), threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    server: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def _answer(self) -> None:
        path = unquote(urlsplit(self.path).path)
        self.server.asked.append((self.command, path, self.headers.get("Range", "")))
        if path.startswith("/cdn/"):
            _, _, commit, file = path.split("/", 3)
            return self._content(self.server.commits[commit][file], {})
        parts = path.removeprefix("/api/models").strip("/").split("/")
        name, what, revision = "/".join(parts[:2]), parts[2], parts[3]
        if name not in self.server.models:
            return self._error(401, "RepoNotFound")
        allowed = self.headers.get("Authorization") == f"Bearer {self.server.token}"
        if name in self.server.gated and not allowed:
            return self._error(403, "GatedRepo")
        commit = self.server.models[name].get(revision, revision)
        if commit not in self.server.commits:
            return self._error(404, "RevisionNotFound")
        files = self.server.commits[commit]
        if what == "revision":
            listed = [{"rfilename": each} for each in files]
            return self._json({"id": name, "sha": commit, "private": False, "siblings": listed})
        if what == "tree":
            return self._json([_listed(each, content) for each, content in files.items()])
        return self._resolve(commit, "/".join(parts[4:]))

    def _resolve(self, commit: str, file: str) -> None:
        content = self.server.commits[commit][file]
        headers = {"X-Repo-Commit": commit, "ETag": f'"{_etag(content)}"'}
        if len(content) < LARGE:
            return self._content(content, headers)
        self.send_response(302)
        linked = {"X-Linked-Size": str(len(content)), "X-Linked-Etag": headers.pop("ETag")}
        # On another host: the library does not ask that one for heads.
        elsewhere = f"http://localhost:{self.server.server_port}"
        location = {"Location": f"{elsewhere}/cdn/{commit}/{file}", "Content-Length": "0"}
        self._head(headers | linked | location)
        return None

    def _content(self, content: bytes, headers: dict[str, str]) -> None:
        first = int((self.headers.get("Range") or "bytes=0-").removeprefix("bytes=").rstrip("-"))
        self.send_response(206 if first else 200)
        if first:
            headers["Content-Range"] = f"bytes {first}-{len(content) - 1}/{len(content)}"
        self._head(headers | {"Content-Length": str(len(content) - first)})
        if self.command == "HEAD":
            return
        if (
            self.server.stall_at
            and self.command == "GET"
            and len(content) >= LARGE
            and not self.server.go_on.is_set()
        ):
            self.wfile.write(content[first : self.server.stall_at])
            self.server.stalled.set()
            if self.server.breaks:
                self.server.go_on.set()
                self.close_connection = True
                return
            self.server.go_on.wait(30)
            first = self.server.stall_at
        self.wfile.write(content[first:])

    def _json(self, value: object) -> None:
        body = json.dumps(value).encode()
        self.send_response(200)
        self._head({"Content-Type": "application/json", "Content-Length": str(len(body))})
        self.wfile.write(body)

    def _error(self, status: int, code: str) -> None:
        self.send_response(status)
        self._head({"X-Error-Code": code, "Content-Length": "0"})

    def _head(self, headers: dict[str, str]) -> None:
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()


def _etag(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _listed(path: str, content: bytes) -> dict[str, object]:
    entry: dict[str, object] = {
        "type": "file", "path": path, "size": len(content), "oid": _etag(content)[:40],
    }  # fmt: skip
    if len(content) >= LARGE:
        entry["lfs"] = {"oid": _etag(content), "size": len(content), "pointerSize": 134}
    return entry
