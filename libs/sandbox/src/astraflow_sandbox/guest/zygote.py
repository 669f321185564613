"""Forks a process for each program: one at a time, each begun from the same state, with nothing left of the last one."""

from __future__ import annotations

import os
import select
import signal
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from astraflow_sandbox.guest import frames, program
from astraflow_sandbox.guest.descendants import Used, end_all

_PIECE = 1 << 16
_LOOK_S = 0.5
"""How often the processor time of all processes of a program is looked at."""
_KILLED_FOR_CPU = 0.7
"""Part of its processor time after which a program that was killed was killed for that: the kernel counts in ticks."""


class CallerGone(Exception):
    """The parent process has exited."""


@dataclass
class ForkedProgram:
    """A process that waits for its program, or runs it."""

    pid: int
    pidfd: int
    channel: socket.socket
    out: int
    err: int
    kept: dict[int, bytearray] = field(default_factory=dict)

    def close(self) -> None:
        """Close what leads to it."""
        self.channel.close()
        for each in (self.pidfd, self.out, self.err):
            os.close(each)


class Zygote:
    """Answers requests on ``control`` until its end. ``confine`` is called in each child, ``clean`` after each program,
    when all processes of it have ended; ``waited`` returns the seconds for which a process could have run and did not, ``cpu_of_all`` the
    processor time of all processes of a program, 0 where that is not known."""

    def __init__(
        self,
        control: socket.socket,
        settings: dict[str, Any],
        *,
        first_of_namespace: bool,
        confine: Callable[[], None],
        clean: Callable[[], None],
        waited: Callable[[int], float],
        cpu_of_all: Callable[[], float],
    ) -> None:
        self._control, self._settings = control, settings
        self._first, self._confine, self._clean = first_of_namespace, confine, clean
        self._waited, self._cpu_of_all = waited, cpu_of_all
        self._child: ForkedProgram | None = None
        self._in_cells = False

    def serve(self) -> None:
        """Serve until the caller has disconnected."""
        try:
            while True:
                child = self._child = self._child or self._fork()
                request = frames.receive(self._control)
                if request is None:
                    return
                self._control.sendall(self._answer(child, *request))
        except CallerGone:
            pass
        finally:
            end_all(self._first)

    def _answer(self, child: ForkedProgram, header: dict[str, Any], body: bytes) -> bytes:
        """Run a program or a cell, or end the process of cells."""
        if header["mode"] == "end":
            return self._reply(child, "exited", self._end(child))
        keeps = header.get("keeps", False)
        child.kept = {child.out: bytearray(), child.err: bytearray()}
        if not self._in_cells and child.channel.recv(1) != program.READY:
            ended = self._end(child)
            return self._reply(child, "failed", ended)
        self._in_cells = header["mode"] == "cell"
        header["cpu_s"] = self._settings["cpu_s"]
        with suppress(BrokenPipeError, ConnectionResetError):  # it has ended, which shows below
            child.channel.sendall(frames.pack(header, body))
        ending = self._until_end(child)
        if ending in ("cell", "raised"):
            return self._reply(child, "cell", (int(ending == "raised"), 0.0))
        waited_s = self._waited(child.pid) if ending == "deadline" else 0.0
        return self._reply(child, ending, self._end(child, keeps), waited_s)

    def _reply(
        self, child: ForkedProgram, ending: str, ended: tuple[int, float], waited_s: float = 0.0
    ) -> bytes:
        code, cpu_s = ended
        killed_for_cpu = cpu_s >= _KILLED_FOR_CPU * self._settings["cpu_s"]
        if ending == "exited" and (
            code == 128 + signal.SIGXCPU or (code == 128 + signal.SIGKILL and killed_for_cpu)
        ):
            ending = "cpu"
        most = self._settings["output_bytes"]
        out, err = (child.kept.get(each, bytearray())[:most] for each in (child.out, child.err))
        header = {
            "code": code,
            "ending": ending,
            "cpu_s": cpu_s,
            "waited_s": waited_s,
            "out": len(out),
        }
        return frames.pack(header, bytes(out + err))

    def _fork(self) -> ForkedProgram:
        ours, theirs = socket.socketpair()
        (out, out_theirs), (err, err_theirs) = os.pipe(), os.pipe()
        pid = os.fork()
        if not pid:
            for source, target in (
                (out_theirs, 1),
                (err_theirs, 2),
                (theirs.detach(), program.CHANNEL),
            ):
                os.dup2(source, target)
            program.become(self._confine)
        theirs.close()
        for each in (out_theirs, err_theirs):
            os.close(each)
        for each in (out, err):
            os.set_blocking(each, False)
        return ForkedProgram(pid, os.pidfd_open(pid), ours, out, err)

    def _until_end(self, child: ForkedProgram) -> str:
        """Read what it writes until it ends, or is to end."""
        until = time.monotonic() + self._settings["deadline_s"]
        waiting = select.poll()
        watched = {self._control.fileno(), child.pidfd, child.out, child.err}
        watched |= {child.channel.fileno()} if self._in_cells else set()
        for each in watched:
            waiting.register(each, select.POLLIN)
        while True:
            left = until - time.monotonic()
            if left <= 0:
                return "deadline"
            found = waiting.poll(1000 * min(left, _LOOK_S))
            if not found and self._cpu_of_all() > self._settings["cpu_s"] + _LOOK_S:
                return "cpu"
            for ready, _ in found:
                if ready == self._control.fileno():
                    raise CallerGone
                if ready in child.kept:
                    if not self._read(child, ready):
                        waiting.unregister(ready)
                    if len(child.kept[ready]) > self._settings["output_bytes"]:
                        return "output"
                elif ready == child.channel.fileno():
                    said = child.channel.recv(1)
                    if said in (program.CELL_ENDED, program.CELL_RAISED):
                        self._drain(child)
                        return "raised" if said == program.CELL_RAISED else "cell"
                    waiting.unregister(ready)
                else:
                    return "exited"

    def _read(self, child: ForkedProgram, descriptor: int) -> bool:
        """Keep what there is to read; false at the end."""
        try:
            piece = os.read(descriptor, _PIECE)
        except BlockingIOError:
            return True
        child.kept[descriptor] += piece
        return bool(piece)

    def _drain(self, child: ForkedProgram) -> None:
        """Read what is left; no more than is wanted, since who writes may be alive."""
        for descriptor, kept in child.kept.items():
            before = -1
            while before < len(kept) <= self._settings["output_bytes"]:
                before = len(kept)
                self._read(child, descriptor)

    def _end(self, child: ForkedProgram, keeps: bool = False) -> tuple[int, float]:
        """Code and processor time of a child that has ended or ends now, with all that it started; ``keeps``: its files
        stay for the next one."""
        signal.pidfd_send_signal(child.pidfd, signal.SIGKILL)
        _, status, usage = os.wait4(child.pid, 0)
        used = Used(usage.ru_utime + usage.ru_stime)
        end_all(self._first, used)
        self._drain(child)
        code = os.waitstatus_to_exitcode(status)
        child.close()
        self._child, self._in_cells = None, False
        if not keeps:
            self._clean()
        return code if code >= 0 else 128 - code, used.cpu_s
