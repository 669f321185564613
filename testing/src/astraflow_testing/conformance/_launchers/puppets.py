"""Processes that a launcher starts and a test directs: the port to which they connect, and their commands."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from astraflow_core.protocols.launcher import Launcher, ProcessSpec, ProcessState, Role
from astraflow_testing.conformance._checks import Demands
from astraflow_testing.conformance._launchers.puppet import DEADLINE_S, command

DEMANDS = Demands("protocols/launcher")
LOOK_S = 0.2


class Stranger(Exception):
    """The process that connected is not ours: the port was another's before, such as that of a server of Ray."""


class Puppet:
    """One process that has connected: its own description, and the connection to it."""

    def __init__(self, connection: socket.socket) -> None:
        connection.settimeout(DEADLINE_S)
        self._connection = connection
        self._talk = connection.makefile("rw", encoding="utf-8")
        try:
            said = json.loads(self._talk.readline())
        except ValueError as error:
            connection.close()
            raise Stranger from error
        self.name, self.arguments = said["name"], said["arguments"]
        self.pid, self.session, self.host = said["pid"], said["session"], said["host"]

    def tell(self, *words: Any) -> None:
        """Give a command of ``_puppet.COMMANDS`` after which there is not an answer."""
        self._talk.write(json.dumps(words) + "\n")
        self._talk.flush()

    def ask(self, *words: Any) -> Any:
        """Give a command and wait until it is done."""
        with suppress(ConnectionError):
            self.tell(*words)
            if answer := self._talk.readline():
                return json.loads(answer)
        pytest.fail(f"process {self.name!r} ended\nexpected that it runs until it is asked to end")

    def is_gone(self, within_s: float = DEADLINE_S) -> bool:
        """Whether its process ends in time."""
        self._connection.settimeout(within_s)
        try:
            return self._talk.readline() == ""
        except TimeoutError:
            return False
        except ConnectionError:
            return True

    def close(self) -> None:
        """Hang up, which ends it."""
        self._talk.close()
        self._connection.close()


class Puppets:
    """Listens on ``host``; processes with its specs connect there and log into ``folder``."""

    def __init__(self, host: str, folder: Path) -> None:
        self._server = socket.create_server((host, 0))
        self._server.settimeout(LOOK_S)
        self._folder, self._there = folder, list[Puppet]()

    def spec(
        self,
        name: str,
        arguments: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        role: Role = "raas",
    ) -> ProcessSpec:
        """A process to start."""
        host, port = self._server.getsockname()[:2]
        argv = command(host, port, name, *arguments)
        return ProcessSpec(name, role, argv, environment or {}, self._folder / f"{name}.log")

    def arrived(self, launcher: Launcher | None = None) -> Puppet:
        """The next process that connects; the test fails if none does, at once if a process of ``launcher`` ends."""

        def dialled() -> Puppet | None:
            with suppress(TimeoutError, Stranger):
                return Puppet(self._server.accept()[0])
            for state in launcher.poll() if launcher else ():
                if state.exit_code is not None:
                    pytest.fail(
                        f"process {state.name!r} ended with {state.exit_code} before it connected: "
                        f"{' | '.join(state.last_lines)}\nexpected that its command runs as it is given"
                    )
            return None

        puppet: Puppet = until(dialled, "a started process connected")
        self._there.append(puppet)
        return puppet

    def close(self) -> None:
        """Hang up on all."""
        for puppet in self._there:
            puppet.close()
        self._server.close()


Launched = Callable[[], Iterator[tuple[str, Launcher]]]
"""``launched()``: (label, fresh launcher) of each configuration."""
Placed = Callable[[ProcessSpec], ProcessSpec]
Start = Callable[..., list[Puppet]]
"""``start(launcher, *names)``: processes that were started and have connected."""


def until(holds: Callable[[], Any], what: str) -> Any:
    """The result of ``holds()`` once it is true; the test fails if it does not become true in time."""
    end = time.monotonic() + DEADLINE_S
    while not (found := holds()):
        if time.monotonic() > end:
            pytest.fail(f"{what} not within {DEADLINE_S:g} s")
        time.sleep(0.01)
    return found


def state_of(launcher: Launcher, name: str) -> ProcessState:
    """The state of a process as reported by the launcher."""
    found = [state for state in launcher.poll() if state.name == name]
    if len(found) != 1:
        pytest.fail(f"poll reported {len(found)} processes {name!r}\nexpected one that was started")
    return found[0]


def end_of(launcher: Launcher, name: str) -> ProcessState:
    """The reported state once the process has ended."""

    def ended() -> ProcessState | None:
        state = state_of(launcher, name)
        return None if state.exit_code is None else state

    found: ProcessState = until(ended, f"poll reported the end of {name!r}")
    return found
