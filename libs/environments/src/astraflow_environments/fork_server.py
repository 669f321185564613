"""The process that worker processes are forked from: it imports an environment once, and plays nothing itself.

``python -m astraflow_environments.fork_server PARENT REQUESTS REPORTS``: two sockets. On the first come the spec and then,
for each worker, a number and a descriptor, the worker's socket; on the second it reports their fate. What a worker leaves
ends with it: processes, those of other sessions included, and its folder for temporary files.
"""

from __future__ import annotations

import contextlib
import os
import resource
import select
import shutil
import signal
import socket
import struct
import sys
import tempfile
import time
from pathlib import Path
from typing import NoReturn

import msgspec

from astraflow_core.errors import AstraFlowError, UserError
from astraflow_engine_host.failures import describe
from astraflow_environments.building import ChosenEnvironment
from astraflow_environments.messages import (
    EndedWorker,
    EnvironmentSpec,
    ForkedWorker,
    ServerFailed,
    ServerReady,
    ServerSays,
)
from astraflow_environments.worker import play, play_many
from astraflow_wire.host.parent import adopt_orphans, signal_at_parent_death
from astraflow_wire.host.worker_channel import read_message, say

SEAT = struct.Struct("<i")
SHARED = -1
"""In the place of a seat: a worker for instances of several seats, which it is asked to build."""
_LOOK_EVERY_S = 1.0
"""Where no signal says that the parent has died."""
_ENDING_S = 2.0
"""How long the end of what workers have started is waited for; they have been killed."""


class ForkServer:
    """Forks a worker for each request, and reaps them."""

    def __init__(self, parent: int, requests: socket.socket, reports: socket.socket) -> None:
        self._parent, self._requests, self._reports = parent, requests, reports
        self._workers: set[int] = set()
        self._temporary: Path
        self._chosen: ChosenEnvironment
        self._spec: EnvironmentSpec

    def prepare(self) -> bool:
        """Import what the spec names; whether that worked is reported."""
        body = read_message(self._requests)
        try:
            self._spec = msgspec.msgpack.decode(body, type=EnvironmentSpec)
            sys.path[:] = self._spec.path or sys.path
            self._chosen = ChosenEnvironment.of(self._spec.table, self._spec.component_context)
            self._chosen.selected.load(self._chosen.selected.component.target)
        except AstraFlowError as error:
            self._report(ServerFailed(str(error), isinstance(error, UserError)))
            return False
        except Exception as error:  # noqa: BLE001 - the pool raises it again
            self._report(ServerFailed(describe(error)))
            return False
        self._report(ServerReady())
        return True

    def serve(self) -> None:
        """Serve until the last client has disconnected; no worker is left then."""
        self._temporary = Path(tempfile.mkdtemp(prefix="astraflow-environments-"))
        woken, wakes = socket.socketpair()
        for end in (woken, wakes):
            end.setblocking(False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wakes.fileno(), warn_on_full_buffer=False)
        try:
            while os.getppid() == self._parent:
                ready, _, _ = select.select([self._requests, woken], [], [], _LOOK_EVERY_S)
                if woken in ready:
                    woken.recv(4096)
                self._reap()
                if self._requests in ready:
                    seat, descriptors, _, _ = socket.recv_fds(self._requests, SEAT.size, 1)
                    if not descriptors:
                        return
                    self._fork(SEAT.unpack(seat)[0], descriptors[0])
        finally:
            self._end()

    def _end(self) -> None:
        """Kill workers and what they have started, and remove their files."""
        until = time.monotonic() + _ENDING_S
        workers, self._workers = self._workers, set()
        for pid in workers:
            _kill(pid)
        while _children() and time.monotonic() < until:
            self._reap()
            time.sleep(0.005)
        shutil.rmtree(self._temporary, ignore_errors=True)

    def _fork(self, seat: int, descriptor: int) -> None:
        server = os.getpid()
        pid = os.fork()
        if pid == 0:
            self._work(seat, descriptor, server)
        os.close(descriptor)
        self._workers.add(pid)
        self._report(ForkedWorker(pid))

    def _reap(self) -> None:
        with contextlib.suppress(ChildProcessError):  # there is none
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if not pid:
                    break
                if pid in self._workers:
                    self._workers.discard(pid)
                    _kill(pid)  # what it has started
                    shutil.rmtree(self._folder_of(pid), ignore_errors=True)
                    self._report(EndedWorker(pid, status))
        # Workers adopt their orphans, so that those of this process are of workers that have ended.
        for pid in _children() - self._workers:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _folder_of(self, worker: int) -> Path:
        """The folder of a worker for temporary files."""
        return self._temporary / str(worker)

    def _report(self, message: ServerSays) -> None:
        say(self._reports, msgspec.msgpack.encode(message))

    def _work(self, seat: int, descriptor: int, server: int) -> NoReturn:
        code = 1
        try:
            os.setsid()
            adopt_orphans()
            signal_at_parent_death(signal.SIGKILL)
            if os.getppid() != server:
                os._exit(1)
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            self._requests.close()
            self._reports.close()
            folder = self._folder_of(os.getpid())
            folder.mkdir()
            tempfile.tempdir = os.environ["TMPDIR"] = str(folder)
            if self._spec.memory_mb:
                limit = self._spec.memory_mb << 20
                resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
            with socket.socket(fileno=descriptor) as connection:
                if seat == SHARED:
                    play_many(self._chosen, connection)
                else:
                    play(self._chosen, seat, connection)
            code = 0
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)


def _children() -> set[int]:
    """Processes whose parent this process is; without ``/proc`` none are seen."""
    try:
        text = Path(f"/proc/self/task/{os.getpid()}/children").read_text(encoding="ascii")
    except OSError:
        return set()
    return set(map(int, text.split()))


def _kill(leader: int) -> None:
    try:
        os.killpg(leader, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):  # it is empty
        return


def main() -> int:
    """The process's entry point."""
    parent, requests, reports = map(int, sys.argv[1:])
    signal_at_parent_death(signal.SIGKILL)
    server = ForkServer(parent, socket.socket(fileno=requests), socket.socket(fileno=reports))
    if os.getppid() != parent or not server.prepare():
        return 1
    # From now on it detects the end of its parent itself, and also ends what workers have started.
    adopt_orphans()
    signal_at_parent_death(0)
    server.serve()
    return 0


if __name__ == "__main__":
    sys.exit(main())
