"""Processes that are forked instead of started, as the process that wants them sees it."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import BinaryIO, NoReturn

from astraflow_core.errors import UserError
from astraflow_runtime.forking.becoming import (
    ROOM,
    ROOM_VARIABLE,
    ModuleProcess,
    is_a_fork,
    note_what_is_imported,
    show_in_proc,
)
from astraflow_runtime.forking.server import LATER, MODULE, MOST_BYTES, may_fork, serve
from astraflow_wire.host.parent import adopting_orphans, signal_at_parent_death
from astraflow_wire.host.processes import look_at

CHOICE = "ASTRAFLOW_IMPORTS"
OWN = "own"
"""``ASTRAFLOW_IMPORTS=own``: each process is started and imports its own modules."""
MODULES = ("astraflow_runtime", "astraflow_engine_host.main")
"""What may be forked."""
START_S = 120.0
"""For all imports, and then for each fork."""
_LOOK_S = 1.0
OURS = "ASTRAFLOW_"
"""Variables whose names begin so may differ between a server and its forks."""


def is_possible() -> bool:
    """Whether processes may be forks here: on Linux, unless :data:`CHOICE` forbids it. :class:`UserError` for another value of it."""
    said = os.environ.get(CHOICE, "")
    if said not in ("", OWN):
        raise UserError(
            f"{CHOICE} is {said!r}; expected {OWN}, or unset it to have processes forked"
        )
    return sys.platform == "linux" and not said


class ModuleForks:
    """Forks that run a module, made by a server and children of this process."""

    def __init__(
        self, channel: socket.socket, environment: Mapping[str, str], pid: int = 0
    ) -> None:
        self._channel: socket.socket | None = channel
        self._channel.settimeout(_LOOK_S)
        self._pid = pid
        self._environment = _shared(environment)
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None

    @classmethod
    def started(
        cls,
        config: Path,
        first: Sequence[str],
        modules: Sequence[str],
        environment: Mapping[str, str],
        log: BinaryIO,
    ) -> ModuleForks:
        """A server that imports ``modules`` and the components of a configuration; its own output goes to ``log``. The first process
        is forked when only the modules ``first`` are imported, if it is asked for by then."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        server = cls(ours, environment)
        with theirs:
            server._process = subprocess.Popen(
                [
                    *(sys.executable, "-m", MODULE, str(theirs.fileno()), ROOM, str(config)),
                    *(*first, LATER, *modules),
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**environment, ROOM_VARIABLE: ROOM},
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        server._pid = server._process.pid
        return server

    @classmethod
    def forked(cls) -> ModuleForks | None:
        """A server with what this process has imported, forked from it; None where forks are not possible, in a process that is
        none itself, which has imported little, and in one with threads or a GPU."""
        if not (is_possible() and is_a_fork() and may_fork()):
            return None
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        note_what_is_imported()
        parent = os.getpid()
        if (pid := os.fork()) == 0:
            ours.close()
            _be_a_server(theirs, parent)
        theirs.close()
        return cls(ours, os.environ, pid)

    def can_fork(self, words: Sequence[str], environment: Mapping[str, str]) -> bool:
        """Whether these words can be a fork with this environment: libraries read theirs while they are imported."""
        return (
            self._channel is not None
            and list(words[:2]) == [sys.executable, "-m"]
            and words[2] in MODULES
            and _shared(environment) == self._environment
            and _size(words) + _size(environment.values()) - _size(self._environment.values())
            < len(ROOM) // 2
        )

    def start(self, asked: ModuleProcess, streams: Sequence[int]) -> int | None:
        """Fork a process, which is a child of this one; its id. None if the server has ended or is silent: start the process
        instead. ``streams``: descriptors for standard input, output and errors."""
        message = json.dumps({"given": [fd >= 0 for fd in streams], **asdict(asked)}).encode()
        with self._lock:
            if self._channel is None or len(message) > MOST_BYTES:
                return None
            try:
                with adopting_orphans():
                    socket.send_fds(self._channel, [message], [fd for fd in streams if fd >= 0])
                    answer = self._answer(self._channel)
            except OSError:
                answer = b""
            if not answer:
                self._hang_up()
                return None
            return int(answer)

    def _answer(self, channel: socket.socket) -> bytes:
        """The reply of the server, which may have to import first; nothing if it is stopped, or does not reply for :data:`START_S`."""
        until = time.monotonic() + START_S
        while time.monotonic() < until:
            try:
                return channel.recv(MOST_BYTES)
            except TimeoutError:
                look = look_at(self._pid)
                if look is None or look.stopped:
                    break
        return b""

    def cpu_s(self) -> float:
        """CPU seconds of the server so far, as long as it runs."""
        look = look_at(self._process.pid) if self._process is not None else None
        return look.cpu_s if look is not None else 0.0

    def close(self) -> None:
        """End the server; its forks continue."""
        with self._lock:
            self._hang_up()

    def _hang_up(self) -> None:
        if self._channel is not None:
            self._channel.close()
            self._channel = None
        if self._process is not None:
            self._process.kill()
            self._process.wait()


def _be_a_server(channel: socket.socket, parent: int) -> NoReturn:
    try:
        signal_at_parent_death(signal.SIGKILL)
        show_in_proc([sys.executable, "-m", MODULE], os.environ)
        if os.getppid() == parent:
            serve(channel)
    finally:
        os._exit(0)


def _shared(environment: Mapping[str, str]) -> dict[str, str]:
    """What all processes must have alike."""
    return {name: value for name, value in environment.items() if not name.startswith(OURS)}


def _size(texts: Iterable[str]) -> int:
    return sum(len(os.fsencode(text)) + 1 for text in texts)
