"""Both directions with real processes; the config is that of the README."""

from __future__ import annotations

import json
import pickle
import re
import subprocess
import sys
import threading
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from queue import Queue
from typing import Any

import pytest

from astraflow_testing.runs import TABLE_RUN, User
from astraflow_tiny_model.folder import write_tiny_model

HERE = Path(__file__).resolve().parent
README = HERE.parent / "README.md"
EXAMPLE = HERE.parents[3] / "examples" / "custom_raas"
EVALUATED = """
[eval]
every = 4

[eval.sets.held_out]
use = "digits"
digits = 2
size = 4
"""


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_run_learns_with_a_foreign_raas_alone(user: User) -> None:
    (config,) = re.findall(r"```toml\n(.*?)```", README.read_text("utf-8"), re.DOTALL)
    assert config.count(":8000") == 1
    file = user.write("table.toml", TABLE_RUN + EVALUATED)
    door = user.write("compat.toml", config.replace(":8000", ":0"))
    directory = user.directory / "run"
    user.environment["ASTRAFLOW_TOKEN"] = "of this test"
    flow = user.start("dataflow", file, "--directory", directory)
    place = directory / "dataflow.json"
    user.wait_for(place.is_file, 60)
    user.environment["ASTRAFLOW_DATAFLOW"] = json.loads(place.read_text())["url"]
    adapter = user.start("compat", "raas", file, door, "--directory", directory)
    trainer = user.start("trainer", file, "--directory", directory, "--policy", "solver")
    address = directory / "state" / "compat.json"
    user.wait_for(address.is_file, 60)
    model = write_tiny_model(user.directory / "m", hidden=8, layers=1, heads=1, kv_heads=1)
    key = (user.directory / "compat.key").read_text().strip()
    base = f"{json.loads(address.read_text())['url']}/{key}"
    raas = subprocess.Popen(
        [sys.executable, str(HERE / "foreign_raas.py"), str(model), base, "foreign"]
    )
    try:
        assert user.end(trainer, 120).exit_code == 0
        assert user.end(adapter, 60).exit_code == 0
        assert raas.wait(60) == 0  # the adapter has asked for it
        assert user.end(flow, 60).exit_code == 0
    finally:
        raas.kill()
        raas.wait()
    status = json.loads((directory / "status.json").read_text())
    assert status["steps"] == status["steps_total"] == 8
    assert [each["name"] for each in status["raas"]] == ["foreign"]
    assert status["invariants_ok"]
    policy = status["policies"]["solver"]
    assert policy["max_staleness_seen"] <= 2 and policy["trained"] == 8 * 32
    evaluated = [
        line for line in (directory / "metrics.jsonl").read_text().splitlines() if '"eval' in line
    ]
    assert len(evaluated) >= 2


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_our_raas_works_for_a_public_dataflow(user: User) -> None:
    """The processes are real: `astraflow raas` behind `astraflow compat dataflow`; the public side is this test."""
    model = user.directory / "model"
    ended = subprocess.run([sys.executable, EXAMPLE / "table_engine.py", model], timeout=60)
    assert ended.returncode == 0
    text = re.sub(r"(?m)^model = .*$", f'model = "{model}"', TABLE_RUN)
    file = user.write("table.toml", text)
    (config,) = re.findall(r"```toml\n(.*?)```", README.read_text("utf-8"), re.DOTALL)
    user.environment["ASTRAFLOW_TOKEN"] = "of this test"
    registered: Queue[dict[str, Any]] = Queue()

    class Pool(BaseHTTPRequestHandler):
        def log_message(self, *_: Any) -> None:
            pass

        def do_POST(self) -> None:
            registered.put(json.loads(self.rfile.read(int(self.headers["content-length"]))))
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b'{"ok": true, "pool_size": 1}')

    with ThreadingHTTPServer(("127.0.0.1", 0), Pool) as pool:
        threading.Thread(target=pool.serve_forever, daemon=True).start()
        register = f'register_at = "http://127.0.0.1:{pool.server_port}"\ntensors = false\n'
        door = user.write("compat.toml", register + config.replace(":8000", ":0"))
        directory = user.directory / "run"
        adapter = user.start("compat", "dataflow", file, door, "--directory", directory)
        address = directory / "state" / "compat-dataflow.json"
        user.wait_for(address.is_file, 60)
        user.environment["ASTRAFLOW_DATAFLOW"] = json.loads(address.read_text())["raas_url"]
        raas = user.start("raas", file, "--directory", directory, "--name", "raas-0")
        told = registered.get(timeout=60)
        pool.shutdown()
    assert told["uid"] == "astraflow"

    def post(path: str, body: Any) -> Any:
        request = urllib.request.Request(told["raas_url"] + path, pickle.dumps(body))
        with urllib.request.urlopen(request, timeout=30) as response:
            answer = pickle.loads(response.read())
        assert answer["ok"]
        return answer["result"]

    overrides = {"n_samples": 4, "max_new_tokens": 3, "temperature": 1.0}
    workflow = {"workflow_id": "a", "workflow_cls": "digits", "gconfig_overrides": overrides}
    post("/register_workflow", workflow)
    post("/submit", {"data": {"prompt": "12", "answer": "12"}, "workflow_id": "a"})
    items: list[Any] = []
    while not items:
        items = post("/pull", {"max_items": 8, "timeout": 1.0})
    result = items[0]["result"]
    assert result["n_trajs"] == len(result["rewards"]) == len(result["trajectories"]) == 4
    assert post("/shutdown", {}) == "shutting down"
    assert user.end(raas, 60).exit_code == 0
    assert user.end(adapter, 60).exit_code == 0
