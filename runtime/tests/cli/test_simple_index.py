"""``astraflow plugins index`` of a simple index: pages of HTML and JSON, digests, and bounds."""

from __future__ import annotations

import hashlib
import json
import threading
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest

from astraflow_runtime.cli import main
from astraflow_runtime.cli.installation.plugin_index import simple_index


class SimpleIndex(BaseHTTPRequestHandler):
    pages: ClassVar[dict[str, tuple[str, bytes]]] = {}

    def do_GET(self) -> None:
        kind, body = self.pages.get(self.path, ("", b""))
        self.send_response(200 if kind else 404)
        self.send_header("Content-Type", kind or "text/plain")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *told: Any) -> None:
        pass


@pytest.fixture
def simple(monkeypatch: pytest.MonkeyPatch, reports: Path) -> Iterator[str]:
    """Two distributions, by HTML and by JSON: one wheel has a report, one has none, and one is not what the page says."""
    wheel = reports / "later-1.0-py3-none-any.whl"
    other = reports / "other-1.0-py3-none-any.whl"
    with zipfile.ZipFile(other, "w") as empty:
        empty.writestr(
            "other-1.0.dist-info/METADATA", "Metadata-Version: 2.4\nName: other\nVersion: 1.0\n"
        )
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    html = f"<a href='../'>up</a><a href='../files/{wheel.name}#sha256={digest}'>x</a><a href='later-1.0.tar.gz'>y</a>"
    files = [
        {"filename": other.name, "url": f"/files/{other.name}", "hashes": {"sha256": "0" * 64}},
        {"filename": "other-2.0-py3-none-any.whl", "url": f"/files/{other.name}", "hashes": {}},
        {"filename": "../../up-1.0-py3-none-any.whl", "url": f"/files/{other.name}", "hashes": {}},
        {"filename": "gone-1.0-py3-none-any.whl", "url": "/gone", "hashes": {}},
        {"filename": "file-1.0-py3-none-any.whl", "url": "file:///etc/passwd", "hashes": {}},
    ]
    kind = "application/vnd.pypi.simple.v1+json"
    pages = {
        "/": (
            "text/html",
            b"<a href='/'>self</a><a href='Later/'>Later</a><a href='other/'>other</a>",
        ),
        "/Later/": ("text/html", html.encode()),
        "/later/": ("text/html", html.encode()),
        "/other/": (kind, json.dumps({"files": files}).encode()),
        "/wheels/": (
            "text/html",
            f"<a href='/'>up</a><a href='../files/{wheel.name}'>x</a>".encode(),
        ),
        "/json/": (kind, json.dumps({"projects": [{"name": "La.ter"}]}).encode()),
        "/json/la-ter/": (kind, b"{}"),
        f"/files/{wheel.name}": ("application/zip", wheel.read_bytes()),
        f"/files/{other.name}": ("application/zip", other.read_bytes()),
    }
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setattr(SimpleIndex, "pages", pages)
    serving = HTTPServer(("127.0.0.1", 0), SimpleIndex)
    thread = threading.Thread(target=serving.serve_forever, args=(0.01,))
    thread.start()
    yield f"http://127.0.0.1:{serving.server_port}"
    serving.shutdown()
    thread.join(10)
    serving.server_close()


def test_an_index_is_made_of_a_simple_index(
    simple: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert main(["plugins", "index", simple, "--out", str(out)]) == 0
    said = capsys.readouterr().out
    for part in (
        "other-1.0-py3-none-any.whl: its SHA-256 is not the one that the index has",
        "other-2.0-py3-none-any.whl: the wheel has no astraflow_report.json in its package",
        f"gone-1.0-py3-none-any.whl: {simple}/gone: HTTP Error 404",
        "file-1.0-py3-none-any.whl: its address 'file:///etc/passwd' is not one of http or https",
    ):
        assert f"left out: {part}" in said
    assert said.count("left out") == 4 and "index.json: 1 report" in said
    (entry,) = json.loads((out / "index.json").read_text())["distributions"]
    assert (entry["name"], entry["version"]) == ("later", "1.0")
    assert (
        main(["plugins", "index", f"{simple}/", "--distribution", "Later", "--out", str(out)]) == 0
    )
    assert "left out" not in capsys.readouterr().out
    assert main(["plugins", "index", f"{simple}/wheels", "--out", str(tmp_path / "of_wheels")]) == 0
    made = tmp_path / "of_wheels" / "index.json"
    assert made.read_bytes() == (out / "index.json").read_bytes()


def test_a_simple_index_is_bounded(
    simple: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def refused(place: str, *more: str) -> str:
        assert main(["plugins", "index", place, *more, "--out", str(tmp_path / "out")]) == 2
        return capsys.readouterr().err

    assert "is not a page of a simple index: KeyError('files')" in refused(f"{simple}/json")
    assert "404" in refused(simple, "--distribution", "nothing")
    assert "chooses from a simple index" in refused(str(tmp_path), "--distribution", "later")
    monkeypatch.setattr(simple_index, "MOST_DISTRIBUTIONS", 1)
    assert "lists 2 distributions, more than 1; name those that you want" in refused(simple)
    monkeypatch.setattr(simple_index, "MOST_DISTRIBUTIONS", 2)
    monkeypatch.setattr(simple_index, "MOST_WHEELS", 1)
    assert "name fewer distributions: --distribution NAME" in refused(simple)
    monkeypatch.setattr(simple_index, "LARGEST_WHEEL", 10)
    assert "has no report that can be used" in refused(simple, "--distribution", "later")
