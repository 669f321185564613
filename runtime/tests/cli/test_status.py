"""``status``, ``waits`` and ``balance`` ask the dataflow of a run directory or of an address."""

from __future__ import annotations

import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import pytest

from astraflow_runtime.cli import main
from astraflow_runtime.cli.running import status

ANSWERS = {
    "/v1/status": {
        "state": "running",
        "policies": {"solver": {"version": 3, "reward": 0.123456}},
        "raas": [{"name": "raas-0", "serving": {"solver": 3}}],
        "eval": {"history": [{"version": version} for version in range(6)], "waiting": [1, 2]},
    },
    "/v1/waits": [],
    "/v1/balance": {"tasks": {"admitted": 5}},
}


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        known = self.headers["authorization"] == "Bearer secret"
        body = json.dumps(ANSWERS[self.path] if known else {"error": "wrong token"}).encode()
        self.send_response(200 if known else 401)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def url() -> Iterator[str]:
    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def run_directory(tmp_path: Path, url: str) -> Path:
    (tmp_path / "dataflow.json").write_text(json.dumps({"url": url, "pid": 1}))
    (tmp_path / "token").write_text("secret")
    return tmp_path


def test_by_run_directory(run_directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "--run", str(run_directory), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == ANSWERS["/v1/status"]
    assert main(["status", "--run", str(run_directory)]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "state: running",
        "policies:",
        "  solver:",
        "    version: 3",
        "    reward: 0.1235",
        "raas:",
        "  - name raas-0, serving solver=3",
        "eval:",
        "  history, last 4 of 6:",
        *(f"    - version {version}" for version in range(2, 6)),
        "  waiting:",
        "    - 1",
        "    - 2",
    ]
    assert main(["waits", "--run", str(run_directory)]) == 0
    assert capsys.readouterr().out == "no waits\n"


def test_where_episodes_are_taken(run_directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    online = run_directory / "online"
    online.mkdir()
    (online / "token").write_text("of-the-gateway")
    said = {"url": "http://127.0.0.1:8765", "token": str(online / "token"), "pid": 1}
    (online / "raas-0.json").write_text(json.dumps(said))
    assert main(["status", "--run", str(run_directory)]) == 0
    told = capsys.readouterr().out
    assert f"online:\n  - raas raas-0, url {said['url']}, token {said['token']}\n" in told
    assert "of-the-gateway" not in told
    assert main(["status", "--run", str(run_directory), "--json"]) == 0
    del said["pid"]
    assert json.loads(capsys.readouterr().out)["online"] == [{"raas": "raas-0", **said}]
    (online / "raas-0.json").write_text("{")
    assert main(["status", "--run", str(run_directory)]) == 2
    assert "raas-0.json does not contain the address for episodes" in capsys.readouterr().err


def test_a_run_that_was_started_process_by_process_has_its_token_in_the_environment(
    run_directory: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (run_directory / "token").unlink()
    monkeypatch.setenv("ASTRAFLOW_TOKEN", "secret")
    assert main(["waits", "--run", str(run_directory)]) == 0
    assert capsys.readouterr().out == "no waits\n"


def test_by_address_and_environment(
    url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ASTRAFLOW_TOKEN", "secret")
    assert main(["balance", "--dataflow", url]) == 0
    monkeypatch.setenv("ASTRAFLOW_DATAFLOW", url)
    assert main(["balance"]) == 0
    assert capsys.readouterr().out == "tasks:\n  admitted: 5\n" * 2
    monkeypatch.setenv("ASTRAFLOW_TOKEN", "wrong")
    assert main(["balance"]) == 2
    assert "refused the request: wrong token (401)" in capsys.readouterr().err


def test_what_is_missing_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for variable in ("ASTRAFLOW_TOKEN", "ASTRAFLOW_DATAFLOW"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "a").mkdir(parents=True)
    (tmp_path / "runs" / "a" / "dataflow.json").write_text("{}")
    assert main(["status", "--run", "runs/a"]) == 2
    assert "does not contain the address of the dataflow" in capsys.readouterr().err
    (tmp_path / "runs" / "a" / "summary.json").write_text("{}")
    (tmp_path / "runs" / "a" / "dataflow.json").write_text('{"url": "http://127.0.0.1:1"}')
    assert main(["status", "--run", "a"]) == 2
    assert "the run in runs/a has ended; `astraflow report --run runs/a`" in capsys.readouterr().err
    assert main(["status", "--dataflow", "http://127.0.0.1:1"]) == 2
    assert "no token" in capsys.readouterr().err
    for content, told in (
        (b"", "is empty"),
        (b"\xe9", "not a single line of ASCII"),
        (b"a\nb", "not a single"),
    ):
        (tmp_path / "token").write_bytes(content)
        at = ["--dataflow", "http://127.0.0.1:1", "--token-file", str(tmp_path / "token")]
        assert main(["status", *at]) == 2
        assert told in capsys.readouterr().err


def test_a_dataflow_that_is_gone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ASTRAFLOW_TOKEN", "secret")
    monkeypatch.setattr(status, "_DEADLINE_S", 0.2)
    assert main(["status", "--dataflow", "http://127.0.0.1:1"]) == 2
    assert "no dataflow answers at http://127.0.0.1:1" in capsys.readouterr().err


def test_a_terminal_obeys_no_text_of_a_service(
    run_directory: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    raas = {"name": "raas-\x1b[2J\x9b", "reason": "\x1b]0;t\x07"}
    monkeypatch.setitem(ANSWERS, "/v1/status", {"state": "running", "raas": [raas]})
    for arguments in ((), ("--json",)):
        assert main(["status", "--run", str(run_directory), *arguments]) == 0
        output = capsys.readouterr().out
        assert r"raas-\u001b[2J\u009b" in output
        assert not [c for c in output if c != "\n" and not c.isprintable()]
    assert json.loads(output)["raas"] == [raas]
