"""Agents connect to their launcher, start processes, and end with it."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from astraflow_core.errors import PreflightError
from astraflow_core.protocols.launcher import ProcessSpec, ProcessState
from astraflow_core.types import ComponentContext, RunInfo
from astraflow_launching import agent
from astraflow_launching.dial_in import DialIn
from astraflow_launching.keys import HostKeys, ProcessKeys, RemoteKeys
from astraflow_launching.launcher import AgentLauncher
from astraflow_launching.link import Open
from astraflow_wire.host.private_folder import remove_orphans

DEADLINE_S = 30.0


class Dialling(AgentLauncher):
    """One host, whose agent is a child of this process."""

    def __init__(self, directory: Path, connect_s: float = DEADLINE_S) -> None:
        run = RunInfo("test", 0, 1, 1, ("solver",), directory)
        keys = RemoteKeys(silence_s=2.0, connect_s=connect_s, raas=ProcessKeys(cpus=1))
        super().__init__(keys, ComponentContext(run, "launcher", "", 0, directory / "state"))
        self.dial_in = DialIn(directory, 2.0)
        self.agents: list[subprocess.Popen[bytes]] = []
        self.lie = False
        self.python: str | None = None

    def hosts(self, specs: Sequence[ProcessSpec]) -> Mapping[HostKeys, Open]:
        self._loop.call(self.dial_in.open("127.0.0.1"), "this host", "a port", DEADLINE_S)
        file = self.dial_in.describe("first")
        assert file.stat().st_mode & 0o777 == 0o600
        if self.lie:
            file.write_text(json.dumps(json.loads(file.read_text()) | {"secret": "guessed"}))
        command = [sys.executable, "-I", "-S", agent.__file__, "dial", str(file)]
        self.agents.append(subprocess.Popen(command, stderr=subprocess.DEVNULL))
        return {HostKeys(name="here", python=self.python): self.dial_in.way_to("first")}

    async def last(self) -> None:
        await self.dial_in.close()

    def release(self) -> None:
        self.dial_in.remove_files()
        for each in self.agents:
            each.wait(DEADLINE_S)


@pytest.fixture
def launcher(tmp_path: Path) -> Iterator[Dialling]:
    made = Dialling(tmp_path)
    yield made
    made.close()


def spec(directory: Path, code: str) -> ProcessSpec:
    argv = (sys.executable, "-I", "-S", "-c", code)
    return ProcessSpec("raas-0", "raas", argv, {"SECRET": "kept"}, directory / "raas-0.log")


def ended(launcher: Dialling) -> ProcessState:
    end = time.monotonic() + DEADLINE_S
    while (state := launcher.poll()[0]).exit_code is None:
        assert time.monotonic() < end
        time.sleep(0.02)
    return state


def test_a_process_runs_on_a_host_that_dials_in(launcher: Dialling, tmp_path: Path) -> None:
    code = "import os; print(os.environ['SECRET'], os.environ['ASTRAFLOW_HOST_ADDRESS']); raise SystemExit(3)"
    process = spec(tmp_path, code)
    launcher.prepare([process])
    assert not (tmp_path / "launcher" / "key.pem").exists()
    launcher.start(process)
    state = ended(launcher)
    assert (state.exit_code, state.last_lines) == (3, ("kept 127.0.0.1",))
    launcher.close()
    assert not (tmp_path / "launcher").exists()
    assert [each.returncode for each in launcher.agents] == [0]


def test_an_agent_that_dies_takes_its_processes_along(
    launcher: Dialling, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    process = spec(tmp_path, "import time; print('here', flush=True); time.sleep(60)")
    launcher.prepare([process])
    launcher.start(process)
    remove_orphans(temporary, "astraflow-")
    (folder,) = temporary.iterdir()
    launcher.agents[0].kill()
    state = ended(launcher)
    assert state.exit_code == -9 and "was lost" in state.last_lines[-1]
    assert (folder / "0.out").exists()
    remove_orphans(temporary, "astraflow-")  # as the next service on this host does
    assert not folder.exists()


def test_an_agent_without_the_secret_is_refused(tmp_path: Path) -> None:
    launcher = Dialling(tmp_path, connect_s=1.5)
    launcher.lie = True
    try:
        with pytest.raises(PreflightError, match="host 'here'"):
            launcher.prepare([spec(tmp_path, "pass")])
        assert launcher.poll() == []
    finally:
        launcher.close()


def test_a_wrong_python_of_a_host_is_named_with_its_key(launcher: Dialling, tmp_path: Path) -> None:
    launcher.python = "/nowhere/python"
    process = spec(tmp_path, "pass")
    launcher.prepare([process])
    launcher.start(process)
    (line,) = ended(launcher).last_lines
    assert "cannot start '/nowhere/python'" in line
    assert "host 'here'; set python of this host in [launcher] hosts" in line


def test_an_unknown_process_is_refused_before_a_host_is_reached(tmp_path: Path) -> None:
    launcher = Dialling(tmp_path)
    launcher._keys = RemoteKeys(processes={"trainer-nobody": ProcessKeys(gpus=100)})
    with pytest.raises(PreflightError, match="no process 'trainer-nobody'; this run has raas-0"):
        launcher.prepare([spec(tmp_path, "pass")])
    assert not launcher.agents
    launcher.close()
