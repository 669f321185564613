"""``astraflow balance`` for people and for programs, and the stream of reports."""

from __future__ import annotations

import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from astraflow_runtime.cli import main


def report(number: int, **pool: Any) -> dict[str, Any]:
    return {
        "number": number,
        "pool": {"size": 2, "target": 3, "branch": "grow", "held_back": 0.25, **pool},
        "policies": {
            "solver": {
                "steps": 10, "window_s": 40.0, "waiting_fraction": 0.3, "tokens_produced": 900,
                "tokens_accepted": 800, "tokens_consumed": 700, "branch": "grow", "target": 3,
            }
        },
        "raas": [
            {
                "name": "raas-0", "state": "alive", "ready": True, "draining": False, "set_aside": "",
                "tokens_per_s": 20.0, "busy_s": 300.0, "idle_s": 100.0, "speed": 2.5,
            },
            {"name": "raas-1", "state": "suspect", "ready": True, "draining": False, "set_aside": ""},
            {"name": "raas-2", "state": "alive", "ready": False, "draining": False, "set_aside": ""},
            {"name": "raas-3", "state": "alive", "ready": True, "draining": True, "set_aside": ""},
        ],
    }  # fmt: skip


BALANCE = {"report": report(4), "pool": {"size": 2}, "tasks": {"admitted": 5}}
EVENTS = "".join(
    f"id: {n}\nevent: balance\ndata: {json.dumps(report(n))}\n\n: nothing new\n\n" for n in (1, 2)
)


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        known = self.headers["authorization"] == "Bearer secret"
        body = EVENTS if self.path == "/v1/balance/events" else json.dumps(BALANCE)
        content = (body if known else '{"error": "wrong token"}').encode()
        self.send_response(200 if known else 401)
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def run_directory(tmp_path: Path) -> Iterator[Path]:
    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    url = f"http://127.0.0.1:{server.server_port}"
    (tmp_path / "dataflow.json").write_text(json.dumps({"url": url, "pid": 1}))
    (tmp_path / "token").write_text("secret")
    yield tmp_path
    server.shutdown()
    thread.join()
    server.server_close()


def test_the_report_comes_before_the_accounting(
    run_directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["balance", "--run", str(run_directory)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "report 4: grow, 2 → 3 RaaS; 25% of the episode slots were idle"
    assert lines[2].split() == [
        "solver",
        "10",
        "40.0",
        "30.0%",
        "900",
        "800",
        "700",
        "grow",
        "→",
        "3",
    ]
    assert lines[4].split() == ["raas-0", "alive", "20.0", "300.0", "100.0", "2.50"]
    assert [line.split()[1] for line in lines[5:8]] == ["suspect", "starting", "draining"]
    assert lines[-2:] == ["tasks:", "  admitted: 5"]
    assert main(["balance", "--run", str(run_directory), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == BALANCE


def test_a_pool_that_is_held_although_a_trainer_waits_is_explained(
    run_directory: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(BALANCE, "report", report(1, branch="hold", target=2, held_back=0.8))
    assert main(["balance", "--run", str(run_directory)]) == 0
    assert "max_staleness holds tasks back" in capsys.readouterr().out


def test_before_the_first_report(
    run_directory: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(BALANCE, "report", None)
    assert main(["balance", "--run", str(run_directory)]) == 0
    assert capsys.readouterr().out.startswith("no report yet; 2 RaaS are registered\n")


def test_reports_are_followed(run_directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["balance", "--run", str(run_directory), "--follow", "--json"]) == 0
    told = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert told == [report(1), report(2)]
    assert main(["balance", "--run", str(run_directory), "--follow"]) == 0
    assert "report 2: grow" in capsys.readouterr().out
    (run_directory / "token").write_text("another")
    assert main(["balance", "--run", str(run_directory), "--follow"]) == 2
    assert "wrong token" in capsys.readouterr().err


def test_more_raas_need_a_launcher(run_directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["raas", "add", "--run", str(run_directory)]) == 2
    assert "no launcher is running" in capsys.readouterr().err
    (run_directory / "launcher.lock").touch()  # of one that is gone
    assert main(["raas", "add", "--run", str(run_directory)]) == 2
    assert "start one with `astraflow raas FILE" in capsys.readouterr().err
    (run_directory / "dataflow.json").rename(run_directory / "config.toml")
    assert main(["raas", "drain", "raas-0", "--run", str(run_directory)]) == 2
    assert "is not running" in capsys.readouterr().err
