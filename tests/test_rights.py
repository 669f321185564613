"""Tokens of a real run: each process has only its own, a viewer looks, and a revoked RaaS comes back with a new one."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path

import pytest

from astraflow_core.shared_secret import shared_secret
from astraflow_testing.runs import User, live_processes

pytestmark = [
    pytest.mark.timeout(240),
    pytest.mark.slow,
    pytest.mark.skipif(
        sys.platform != "linux", reason="reads the environment of processes in /proc"
    ),
]


def given_to(pid: int) -> str:
    """The token in the environment of a process."""
    lines = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    return next(
        line.partition(b"=")[2].decode() for line in lines if line.startswith(b"ASTRAFLOW_TOKEN=")
    )


def test_a_run_with_less_than_all_rights(user: User, tmp_path: Path) -> None:
    process = user.start(*user.table_arguments("run.steps=100000", "raas.replicas=1"))
    directory = user.wait_for_steps(3)
    token = (directory / "token").read_text().strip()
    raas = directory / "state" / "raas-0" / "raas.json"
    pid = json.loads(raas.read_text())["pid"]
    own = given_to(pid)
    assert own.startswith("af1.raas.raas-0.0.0.") and own.endswith("~" + shared_secret(token))
    dataflow = json.loads((directory / "dataflow.json").read_text())
    having = {
        each
        for each in live_processes(user.marker)
        if token in Path(f"/proc/{each}/environ").read_text("latin-1")
    }
    assert having == {dataflow["pid"]}

    viewer = tmp_path / "ada.token"
    made = user.astraflow("token", "--run", directory, "--role", "viewer", "--name", "ada")
    viewer.write_text(made.out)
    asked = ("--dataflow", dataflow["url"], "--token-file", viewer)
    assert json.loads(user.astraflow("status", "--json", *asked).out)["state"] == "running"
    refused = user.astraflow("token", "revoke", "--role", "raas", "--name", "raas-0", *asked)
    assert refused.exit_code == 2
    assert "the token of viewer 'ada' does not include POST /v1/access/revoke" in refused.err

    operator = tmp_path / "bob.token"
    made = user.astraflow("token", "--run", directory, "--role", "operator", "--name", "bob")
    operator.write_text(made.out)
    drain = ("raas", "drain", "raas-0", "--dataflow", dataflow["url"], "--token-file")
    assert "does not include POST /v1/raas/drain" in user.astraflow(*drain, viewer).err
    assert "the last RaaS" in user.astraflow(*drain, operator).err
    add = ("raas", "add", "--run", directory, "--token-file")
    assert "does not include POST /v1/raas/add" in user.astraflow(*add, viewer).err
    swap = ("data-policy", "swap", "solver", "nowhere", '{ use = "replay" }', *drain[3:])
    assert "does not include POST" in user.astraflow(*swap, viewer).err
    wrong = user.astraflow(*swap, operator).err
    assert "refused the request" in wrong and "does not include" not in wrong

    revoke = ("token", "revoke", "--run", directory, "--role")
    assert user.astraflow(*revoke, "viewer", "--name", "ada").exit_code == 0
    late = user.astraflow("status", *asked)
    assert late.exit_code == 2 and "(401)" in late.err
    assert user.astraflow(*revoke, "raas", "--name", "raas-0").exit_code == 0
    user.wait_for(lambda: json.loads(raas.read_text())["pid"] != pid, 60)
    again = given_to(json.loads(raas.read_text())["pid"])
    assert again.startswith("af1.raas.raas-0.1.0.")
    before = (directory / "metrics.jsonl").read_text().count('"step"')
    user.wait_for(
        lambda: (directory / "metrics.jsonl").read_text().count('"step"') > before + 5, 60
    )
    process.send_signal(signal.SIGINT)
    ended = user.end(process, 60)
    assert ended.exit_code == 130, ended.text
    acts = [json.loads(line) for line in (directory / "audit.jsonl").read_text().splitlines()]
    refused, *done = [(act["name"], act["outcome"]) for act in acts if "revoke" in act["request"]]
    assert refused[0] == "ada" and refused[1].startswith("refused: ")
    assert done == [("", "done"), ("", "done")]
    assert token not in ended.text and own not in ended.text
