"""The caller's half of a sandboxed interpreter: its process, and the socket over which programs go in and results come out."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from astraflow_sandbox.code_runner import Ending, ProgramResult, SandboxFailed
from astraflow_sandbox.guest import frames

START_DEADLINE_S = 60.0
END_DEADLINE_S = 10.0
GRACE_S = 30.0
"""The maximum time that a zygote may take for its work other than running a program, on a busy machine."""
MOST_HEADER_BYTES = 1 << 16
_SOURCES = str(Path(__file__).parents[1])
_COMMAND = (
    "import sys; sys.path.insert(0, sys.argv[1]); from astraflow_sandbox.guest.main import start; "
    "start(sys.argv[2:])"
)


class IsolationRefused(Exception):
    """This host lacks layers without which no program is run."""


class Gone(SandboxFailed):
    """The sandboxed interpreter has ended, or does not answer."""


@dataclass(frozen=True, slots=True)
class SandboxReport:
    """The layers that hold on this host, and why others do not."""

    active: tuple[str, ...]
    missing: Mapping[str, str] = field(default_factory=dict)


class GuestProcess:
    """One sandboxed interpreter, which runs one program at a time. It is no longer ``usable`` once a call of it was
    abandoned, or failed: its answer may still arrive."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        """Start it, and wait until it is confined: blocks. :class:`IsolationRefused`, :class:`Gone`."""
        ours, theirs = socket.socketpair()
        self._socket, self._settings = ours, settings
        self.used, self.in_session = 0, False
        self.usable = True
        self._waiting = threading.Lock()
        settings = {**settings, "folder": tempfile.gettempdir()}
        # Without user site, script folder and environment; hashes are the same in each, and so is what a program does.
        flags = ["-P", "-s", "-S", "-B", "-X", "utf8", "-c", _COMMAND]
        command = [sys.executable, *flags, _SOURCES, str(theirs.fileno()), json.dumps(settings)]
        variables = {"PYTHONHASHSEED": "0", "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
        try:
            with theirs:
                self._process = subprocess.Popen(
                    command,
                    env=variables,
                    pass_fds=(theirs.fileno(),),
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.PIPE,
                    start_new_session=True,
                )
        except OSError as error:
            ours.close()
            raise Gone(f"no process for a program: {error}") from error
        try:
            self.report = self._started()
        except BaseException:
            self.end()
            raise
        self._socket.setblocking(False)

    def _started(self) -> SandboxReport:
        self._socket.settimeout(START_DEADLINE_S)
        try:
            told = frames.receive(self._socket)
        except OSError as error:
            raise Gone(f"the sandbox did not start a program: {error}") from error
        if told is None:
            assert self._process.stderr is not None
            self.end()
            said = self._process.stderr.read(4096).decode("utf-8", "replace").strip()
            raise Gone(f"the sandbox did not start a program: {said[-500:] or 'it ended'}")
        header, _ = told
        if header["refusal"]:
            raise IsolationRefused(header["refusal"])
        return SandboxReport(tuple(header["active"]), header["missing"])

    async def run(
        self, program: str, stdin: str = "", *, mode: str = "program", keeps: bool = False
    ) -> ProgramResult:
        """Run a program, or a cell of a session; its result. ``keeps``: the files of a program stay for the next one.
        No other call is allowed meanwhile."""
        source, given = (text.encode("utf-8", "replace") for text in (program, stdin))
        self.used += 1
        asked = {"mode": mode, "program": len(source), "keeps": keeps}
        header, body = await self._request(asked, source + given)
        if header["ending"] == "failed":
            said = body.decode("utf-8", "replace")
            raise Gone(f"the sandbox did not start a program: {said[-500:]}")
        self.in_session = header["ending"] == "cell"
        ending: Ending = "exited" if self.in_session else header["ending"]
        out, err = body[: header["out"]], body[header["out"] :]
        return ProgramResult(
            header["code"],
            out.decode("utf-8", "replace"),
            err.decode("utf-8", "replace"),
            ending,
            header["cpu_s"],
            header["waited_s"],
            header["waited_s"] > self._settings["deadline_s"] / 3,
        )

    async def end_session(self) -> None:
        """End the process of the cells, and all it has started."""
        if self.in_session and self.usable:
            await self._request({"mode": "end"})
            self.in_session = False

    async def remove_files(self) -> None:
        """Remove what programs have kept; a process that is not usable takes it with it."""
        if self.usable:
            await self._request({"mode": "end"})

    async def _request(
        self, header: dict[str, Any], body: bytes = b""
    ) -> tuple[dict[str, Any], bytes]:
        loop = asyncio.get_running_loop()
        if not self.usable:
            raise Gone("the sandbox was interrupted in the middle of a call")
        self.usable = False
        try:
            async with asyncio.timeout(self._settings["deadline_s"] + GRACE_S):
                await loop.sock_sendall(self._socket, frames.pack(header, body))
                sizes = frames.HEAD.unpack(await self._exactly(loop, frames.HEAD.size))
                if sizes[0] > MOST_HEADER_BYTES or sizes[1] > 2 * self._settings["output_bytes"]:
                    raise Gone(f"the sandbox returned {sizes} bytes, more than it may")
                text = await self._exactly(loop, sizes[0])
                found = json.loads(text), await self._exactly(loop, sizes[1])
                self.usable = True
                return found
        except TimeoutError as error:
            raise Gone("the sandbox did not answer") from error
        except OSError as error:
            raise Gone(f"the sandbox ended: {error}") from error

    async def _exactly(self, loop: asyncio.AbstractEventLoop, size: int) -> bytes:
        found = b""
        while len(found) < size:
            piece = await loop.sock_recv(self._socket, size - len(found))
            if not piece:
                raise Gone("the sandbox ended")
            found += piece
        return found

    def end(self) -> None:
        """Let it end, with all that programs have started: blocks until that is so."""
        with self._waiting:
            self._socket.close()
            if self._process.returncode is not None:
                return
            try:
                self._process.wait(END_DEADLINE_S)
            except subprocess.TimeoutExpired:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self._process.pid, signal.SIGKILL)
                self._process.wait()
