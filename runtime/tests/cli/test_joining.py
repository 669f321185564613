"""What a process that joins a run hears from its dataflow, or does not."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from astraflow_core.errors import UserError
from astraflow_core.shared_secret import shared_secret
from astraflow_core.types import Announcement
from astraflow_runtime.cli.running import joining
from astraflow_runtime.cli.running.joining import joined
from astraflow_testing.tls_files import write_tls
from astraflow_wire.http.tls import AUTHORITY

TOKEN = "a-token-of-the-run"
pytestmark = pytest.mark.timeout(60)


@contextmanager
def dataflow(status: dict[str, Any]) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            known = self.headers["Authorization"] == f"Bearer {TOKEN}"
            body = json.dumps(status if known else {"error": "who are you"}).encode()
            self.send_response(200 if known else 401)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


def test_the_newest_version_of_each_policy_that_has_one() -> None:
    said = {
        "policy": "solver",
        "version": 7,
        "transport": "delta",
        "endpoints": ["http://10.0.0.7:1"],
        "digest": "d",
        "size": 9,
    }
    policies = {"solver": {"announced": said}, "verifier": {"announced": None}, "judge": {}}
    with dataflow({"policies": policies}) as url:
        found = joined(url, TOKEN)
        assert joined(url, "another").announced == {}
    told = Announcement("solver", 7, "delta", ("http://10.0.0.7:1",), "d", 9)
    assert (found.announced, found.token) == ({"solver": told}, shared_secret(TOKEN))
    assert TOKEN not in repr(found)


def test_a_dataflow_that_is_not_there_or_hangs_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(joining, "ASK_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        assert joined(url, TOKEN).announced == {}
    assert joined(url, TOKEN).announced == {}


def test_a_dataflow_that_cannot_be_trusted_is_no_silent_one(tmp_path: Path) -> None:
    with (
        dataflow({}) as url,
        pytest.raises(UserError, match="clear text"),
        pytest.MonkeyPatch.context() as patched,
    ):
        patched.setenv(AUTHORITY, str(write_tls(tmp_path).authority))
        joined(url, TOKEN)
