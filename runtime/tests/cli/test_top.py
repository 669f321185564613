"""``top`` shows a running run until it ends."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import pytest

from astraflow_runtime.cli import main

CONFIG = """
[run]
name = "table"
steps = 3
max_staleness = 2
directory = "runs"
[prompts]
use = "digits"
[policies.solver]
model = "tiny"
trainer = { use = "table" }
algorithm = { use = "grpo" }
engine = { use = "table" }
transport = { use = "disk" }
batch_sequences = 4
"""


class Dataflow(HTTPServer):
    """Answers with one status after the other, the last again and again; ``None`` answers nothing any more."""

    answers: list[dict[str, object] | None]
    at_silence: Callable[[], object] = bool

    class Handler(BaseHTTPRequestHandler):
        server: Dataflow

        def do_GET(self) -> None:
            answers = self.server.answers
            answer = answers.pop(0) if len(answers) > 1 else answers[0]
            if answer is None:
                self.server.at_silence()
            body = json.dumps(answer).encode()
            self.send_response(200 if answer is not None else 503)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass


@pytest.fixture
def dataflow(tmp_path: Path) -> Iterator[Dataflow]:
    """That of the run in ``tmp_path``."""
    server = Dataflow(("127.0.0.1", 0), Dataflow.Handler)
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    url = f"http://127.0.0.1:{server.server_port}"
    (tmp_path / "dataflow.json").write_text(json.dumps({"url": url, "pid": 1}))
    (tmp_path / "token").write_text("secret")
    (tmp_path / "config.toml").write_text(CONFIG)
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def status(steps: int, state: str = "running") -> dict[str, object]:
    policy = {"version": steps, "updates": steps, "reward": steps / 4}
    raas = {"name": "raas-0", "state": "alive", "serving": {"solver": steps}}
    return {
        "run": "table",
        "state": state,
        "steps": steps,
        "policies": {"solver": policy},
        "raas": [raas],
    }


def test_it_shows_steps_until_the_run_has_ended(
    dataflow: Dataflow, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dataflow.answers = [status(1), status(2), status(3, "finished")]
    assert main(["top", "--run", str(tmp_path), "--every", "0.1"]) == 0
    out = capsys.readouterr().out
    assert "step 1/3 | solver: reward 0.250" in out and "step 3/3" in out
    assert out.endswith(
        f"the run has ended; `astraflow report --run {tmp_path}` shows its results\n"
    )


def test_a_run_that_ends_between_two_pictures_is_no_error(
    dataflow: Dataflow,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("astraflow_runtime.cli.running.top._DEADLINE_S", 0.3)
    dataflow.answers = [status(1), None]

    dataflow.at_silence = partial((tmp_path / "summary.json").write_text, "{}")
    assert main(["top", "--run", str(tmp_path), "--every", "0.1"]) == 0
    assert "the run has ended" in capsys.readouterr().out


def test_a_dataflow_that_is_lost_is_an_error(
    dataflow: Dataflow,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("astraflow_runtime.cli.running.top._DEADLINE_S", 0.3)
    dataflow.answers = [status(1), None]
    assert main(["top", "--run", str(tmp_path), "--every", "0.1"]) == 2
    assert "check that the run is still running" in capsys.readouterr().err


def test_bad_input_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top", "--run", str(tmp_path)]) == 2
    assert "neither a run directory" in capsys.readouterr().err
    assert main(["top", "--every", "0"]) == 2
    assert "is not between 0.1 and 3600" in capsys.readouterr().err
    (tmp_path / "config.toml").write_text("[run]\nsteps = 0\n")
    assert main(["top", "--run", str(tmp_path)]) == 2
    assert "is not a config of this version" in capsys.readouterr().err
