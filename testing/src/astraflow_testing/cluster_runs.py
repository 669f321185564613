"""A run of two policies and three RaaS for tests of launchers, in which everything except the models is real."""

from __future__ import annotations

import json
import os
import signal
import socket
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from astraflow_testing.runs import TABLE_RUN, User, live_commands

_WORKFLOW = '''
from astraflow_core.types import Trajectory


class Both:
    """Every policy completes the same prompt."""

    def __init__(self, config, context):
        self.names = context.run.policies

    async def run_episode(self, engines, prompt):
        sequences, completions = [], []
        for name in self.names:
            engine = engines[name]
            tokens = engine.tokenizer.encode(prompt.data["prompt"])
            result = await engine.generate(tokens)
            if result.finish_reason == "abort":
                return None
            sequences.append(engine.sequence(tokens, result))
            completions.append(engine.completion(result))
        return Trajectory(tuple(sequences), tuple(completions))
'''
_SOLVER = TABLE_RUN[TABLE_RUN.index("[policies.solver]") : TABLE_RUN.index("[raas]")]
CLUSTER_RUN = TABLE_RUN.replace('use = "single_turn"', 'use = "both:Both"').replace(
    "replicas = 1", "replicas = 3"
) + _SOLVER.replace("solver", "verifier")
"""Without its launcher, which a test adds. The workflow is what :func:`start` writes."""


def start(user: User, launcher: str, *overrides: str) -> Any:
    """Start :data:`CLUSTER_RUN` with the table ``[launcher]`` in TOML."""
    user.write("both.py", _WORKFLOW)
    config = f"{CLUSTER_RUN}\n[launcher]\n{launcher}\n"
    return user.start(*user.table_arguments(*overrides, config=config))


def check_encrypted(user: User, launcher: str, addresses: Sequence[str], hosts: int) -> None:
    """A run with ``[tls]`` and client certificates ends well under the launcher. Each of ``addresses``, those by which hosts are
    reached, and the host of the launcher have a certificate of their own, made by ``astraflow certs``."""
    names = dict.fromkeys((socket.gethostname(), *addresses))
    made = user.astraflow("certs", "certs", *(word for name in names for word in ("--host", name)))
    assert made.exit_code == 0, made.text
    tls = (
        '[tls]\nauthority = "certs/authority.pem"\ncertificate = "certs/{host}.pem"\n'
        'private_key = "certs/{host}.key"\nclient_certificates = true\n'
    )
    process = start(user, f"{launcher}\n{tls}", "run.steps=10")
    ended = user.end(process, 150)
    assert ended.exit_code == 0, f"{ended.text}\n{user.last_words()}"
    directory = ended.run_directory
    assert json.loads((directory / "status.json").read_text())["invariants_ok"]
    assert len(set(placement(directory).values())) >= hosts, placement(directory)
    url = urlsplit(json.loads((directory / "dataflow.json").read_text())["url"])
    assert url.scheme == "https" and url.hostname in addresses, url
    assert not user.left_running()


def placement(directory: Path) -> dict[str, str]:
    """Process → host, of a run."""
    rows: Mapping[str, Any] = json.loads((directory / "placement.json").read_text())
    return {name: str(row["host"]) for name, row in rows.items()}


def kill_process(user: User, name: str) -> None:
    """SIGKILL to the RaaS ``name`` of the user's run, on whatever host of this machine it is."""
    for pid, command in live_commands(user.marker).items():
        if command[-2:-1] == [name] and "raas" in command and "become" not in command:
            os.kill(pid, signal.SIGKILL)
            return
    raise AssertionError(f"no process of {name} is running\n{user.last_words()}")


def check(
    user: User,
    launcher: str,
    trouble: Callable[[User, Path], None],
    hosts: int,
    deadline_s: float = 150,
) -> Path:
    """A run of 40 steps survives ``trouble`` after its fifth: it ends well with all rows accounted for, has used
    ``hosts`` hosts, and leaves no process. Returns its directory."""
    process = start(user, launcher, "run.steps=40", "checkpoint.every=5")
    directory = user.wait_for_steps(5, deadline_s)
    trouble(user, directory)
    ended = user.end(process, deadline_s)
    assert ended.exit_code == 0, f"{ended.text}\n{user.last_words()}"
    status = json.loads((directory / "status.json").read_text())
    assert status["invariants_ok"], status
    assert "(restart 1 of 3)" in ended.text, ended.text
    assert len(set(placement(directory).values())) >= hosts, placement(directory)
    for log in ("dataflow", "trainer-solver", "trainer-verifier", "raas-0", "raas-2"):
        assert (directory / "logs" / f"{log}.log").stat().st_size > 0
    token = (directory / "token").read_text().strip()
    for file in directory.rglob("*"):
        if file.is_file() and file.name != "token" and "launcher" not in file.parts:
            assert token.encode() not in file.read_bytes(), file
    assert not user.left_running()
    return directory
