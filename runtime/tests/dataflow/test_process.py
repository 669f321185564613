"""The dataflow as a process of its own."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import textwrap
import time

import pytest

from astraflow_runtime.trainer.upstream import DataflowClient
from astraflow_wire.http.client import SyncClient
from astraflow_wire.messages import (
    Done,
    RegisterTrainer,
    StopRun,
    TrainerFailed,
    TrainerRegistered,
)

TOKEN = "secret"
DEADLINE_S = 20.0

PARTS = """
from astraflow_core.types import Prompt

class Prompts:
    def __init__(self, config, context):
        self.context = context
    def __len__(self):
        return 3
    def __getitem__(self, index):
        return Prompt(str(index))

class Nothing(Prompts):
    def __len__(self):
        return 0
"""

PROGRAM = """
import json, sys
from pathlib import Path
from astraflow_core.config.models import RunConfig
from astraflow_runtime.dataflow.main import serve
config = RunConfig.model_validate(json.loads(sys.argv[1]))
sys.exit(serve(config, Path(sys.argv[2]), "secret", stay=sys.argv[3] == "stay"))
"""


@pytest.fixture
def dataflow(config, tmp_path):
    """Starts dataflow processes; none is left behind."""
    (tmp_path / "my_parts.py").write_text(textwrap.dedent(PARTS))
    started = []

    def start(prompts="my_parts:Prompts", port=0, stay=False):
        part = {"use": "my_parts:Prompts"}  # never built here, but it must exist
        parts = {
            f"policy__{kind}": part for kind in ("trainer", "algorithm", "engine", "transport")
        }
        model = config(prompts__use=prompts, dataflow__port=port, launcher__use="local", **parts)
        made = model.model_dump(mode="json")
        path = [str(tmp_path), os.environ.get("PYTHONPATH")]
        process = subprocess.Popen(
            [
                *(sys.executable, "-c", PROGRAM, json.dumps(made), str(tmp_path / "run")),
                "stay" if stay else "leave",
            ],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, path))},
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        process.communicate(timeout=DEADLINE_S)


def listening(process, directory):
    file = directory / "run" / "dataflow.json"
    until = time.monotonic() + DEADLINE_S
    while not file.exists():
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < until
        time.sleep(0.02)
    facts = json.loads(file.read_text())
    assert facts["pid"] == process.pid
    return SyncClient(facts["url"], TOKEN)


def end_of(process):
    _, errors = process.communicate(timeout=DEADLINE_S)
    assert "Traceback" not in errors
    return process.returncode, errors


@pytest.mark.slow
def test_sigterm_ends_it_cleanly(dataflow, tmp_path):
    process = dataflow()
    client = listening(process, tmp_path)
    assert client.get_json("/v1/health", deadline_s=DEADLINE_S)["state"] == "starting"
    process.send_signal(signal.SIGTERM)
    assert end_of(process)[0] == 0
    status = json.loads((tmp_path / "run" / "status.json").read_text())
    assert (status["state"], status["reason"]) == ("stopped", "the dataflow received SIGTERM")


@pytest.mark.slow
def test_a_dataflow_with_stay_answers_processes_that_come_after_the_end(dataflow, tmp_path):
    """A trainer that is still importing when the run is stopped would otherwise try to connect until its deadline."""
    process = dataflow(stay=True)
    client = listening(process, tmp_path)
    client.post("/v1/stop", StopRun(reason="enough"), Done, deadline_s=DEADLINE_S)
    assert client.get_json("/v1/health", deadline_s=DEADLINE_S)["state"] == "stopped"
    trainer = DataflowClient(client, "solver", DEADLINE_S)
    assert trainer.register([0], DEADLINE_S).updates == 0
    assert trainer.next_batch(-1).ended
    trainer.release(0)
    assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    assert end_of(process)[0] == 0
    status = json.loads((tmp_path / "run" / "status.json").read_text())
    assert (status["state"], status["reason"]) == ("stopped", "enough")


@pytest.mark.slow
def test_a_failed_run_exits_with_1_and_the_reason(dataflow, tmp_path):
    process = dataflow()
    client = listening(process, tmp_path)
    hello = RegisterTrainer(policy="solver", pid=1, host="h")
    here = client.post("/v1/trainers/register", hello, TrainerRegistered, deadline_s=DEADLINE_S)
    failure = TrainerFailed(policy="solver", error="the loss is NaN", incarnation=here.incarnation)
    client.post("/v1/trainers/failed", failure, Done, deadline_s=DEADLINE_S)
    code, errors = end_of(process)
    assert code == 1
    assert "the trainer of 'solver' failed: the loss is NaN" in errors


@pytest.mark.slow
def test_an_empty_prompt_source_is_the_users_mistake(dataflow):
    code, errors = end_of(dataflow(prompts="my_parts:Nothing"))
    assert code == 2
    assert "[prompts] has no prompts" in errors


@pytest.mark.slow
def test_a_port_in_use_is_the_users_mistake(dataflow):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        code, errors = end_of(dataflow(port=taken.getsockname()[1]))
    assert code == 2
    assert "choose another port" in errors
