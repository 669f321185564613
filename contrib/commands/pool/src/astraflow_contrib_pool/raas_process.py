"""One RaaS of a run on a host of a pool: its process, the number of episodes that it may run, and its figures."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from pathlib import Path
from typing import IO, Any, Protocol
from urllib.parse import urlsplit

import msgspec

from astraflow_contrib_pool.messages import (
    RaasFigures,
    SeatOrder,
    SeatReport,
    SeatState,
)
from astraflow_contrib_pool.run_folder import CONFIG, OWNER, OwnedRunFolder
from astraflow_core.errors import AstraFlowError, WireError
from astraflow_runtime.launch.local import shim
from astraflow_runtime.launch.local.threads import VARIABLES
from astraflow_runtime.raas.granted_places import PLACES
from astraflow_wire.host.parent import LAUNCHER
from astraflow_wire.host.processes import look_at
from astraflow_wire.http import tls
from astraflow_wire.http.auth import is_loopback
from astraflow_wire.http.client import SyncClient

log = logging.getLogger("astraflow.pool")
STOP_S = 15.0
"""How long a RaaS that is to end may take to give its leases back."""

LOOK_S = 0.5
LAST_LOOK_S = 1.0
_STATUS_S = 2.0
_LINES, _LINE = 12, 900
_NOT_PASSED_ON = (
    "ASTRAFLOW_TOKEN", "ASTRAFLOW_DATAFLOW", tls.AUTHORITY, tls.CERTIFICATE, tls.PRIVATE_KEY, tls.CLIENT_CERTIFICATES,
)  # fmt: skip
"""Variables of this process that are of the pool: a run has its own."""


def environment_of_host() -> dict[str, str]:
    """What processes for runs have of this one's environment."""
    return {name: each for name, each in os.environ.items() if name not in _NOT_PASSED_ON}


InThread = Callable[[Callable[[], Any]], Awaitable[Any]]
Attach = Callable[[Mapping[str, Any]], Awaitable[dict[str, str]]]


class Folder(Protocol):
    """A folder of this process alone."""

    path: Path

    def close(self) -> None:
        """Remove it."""


class RaasProcess:
    """Starts the RaaS of an order, in the running event loop. ``changed`` is called when it is ready, and when it ended.
    ``tokens_s``: most tokens in a second. ``attach`` is asked with the config of the run for variables of the RaaS. If the
    process that runs this is killed, the RaaS ends too."""

    def __init__(
        self,
        order: SeatOrder,
        folder: Folder,
        threads: int,
        tokens_s: float,
        in_thread: InThread,
        changed: Callable[[], None],
        attach: Attach | None = None,
    ) -> None:
        self._attach, self._attached = attach, dict[str, str]()
        self._order, self._in_thread, self._changed = order, in_thread, changed
        self._directory = Path(order.directory)
        self._files = OwnedRunFolder(order.directory)
        self._threads = threads
        self._fifo = folder.path / f"places-{order.start}"
        os.mkfifo(self._fifo, 0o600)
        # Open for reading too: the RaaS opens its end later.
        self._pipe = os.open(self._fifo, os.O_RDWR | os.O_NONBLOCK)
        self._places = -1
        self._state: SeatState = "starting"
        self._pid, self._exit_code, self._said = 0, 0, list[str]()
        self._running, self._tokens, self._episodes, self._cpu_s = 0, 0.0, 0.0, 0.0
        self._line: SyncClient | None = None
        self._began, self._tokens_s = time.monotonic(), tokens_s
        self._complained = False
        self._stop = asyncio.Event()
        self._life = asyncio.create_task(self._live())
        self.grant(order.places)

    def report(self) -> SeatReport:
        """Its state."""
        return SeatReport(
            run=self._order.run,
            raas=self._order.raas,
            start=self._order.start,
            state=self._state,
            pid=self._pid,
            running=self._running,
            tokens=self._tokens,
            episodes=self._episodes,
            cpu_s=self._cpu_s,
            exit_code=self._exit_code,
            last_lines=[line[:_LINE] for line in self._said],
        )

    def grant(self, places: int) -> None:
        """Let it run that many episodes at once."""
        if places != self._places and self._state != "ended":
            # A RaaS that reads nothing hangs, which its figures show.
            with contextlib.suppress(BlockingIOError):
                os.write(self._pipe, b"%d\n" % places)
                self._places = places

    def stop(self) -> None:
        """Have it end: it gives its leases back, for which it has :data:`STOP_S`."""
        self._stop.set()

    def kill(self) -> None:
        """End it now, with all that it has started."""
        if self._pid and self._state != "ended":
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._pid, signal.SIGKILL)

    async def ended(self) -> None:
        """Wait for its end."""
        await self._life

    async def _live(self) -> None:
        try:
            self._exit_code = await self._process()
        except (OSError, ValueError) as error:
            self._exit_code = 2
            self._said = [f"it cannot be started on this host: {error}"]
        finally:
            self._state, self._running = "ended", 0
            os.close(self._pipe)
            self._fifo.unlink(missing_ok=True)
            self._changed()

    def _open_log(self) -> IO[bytes] | None:
        """The log, if the folder is that of the run; else why not is in ``_said``."""
        try:
            self._files.check_config()
        except FileNotFoundError:
            self._said = [
                f"{self._directory} has no {CONFIG} on this host: put [run] directory into a folder that all hosts share"
            ]
            return None
        if not self._files.is_of(self._order.launcher):
            self._said = [
                f"{self._directory} belongs to another launcher than that of run {self._order.run}: its {OWNER} says so"
            ]
            return None
        return self._files.open_log(self._order.raas)

    async def _process(self) -> int:
        output = await self._in_thread(self._open_log)
        if output is None:
            return 2
        with output:
            if self._attach is not None and not await self._attaches(self._attach):
                return 0
            process = await asyncio.create_subprocess_exec(
                *self._command(),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=asyncio.subprocess.STDOUT,
                env=self._environment(),
                start_new_session=True,
            )
        self._pid = process.pid
        figures = asyncio.create_task(self._follow())
        waiting = asyncio.create_task(process.wait())
        stopping = asyncio.create_task(self._stop.wait())
        try:
            await asyncio.wait({waiting, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if not waiting.done():
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(LAST_LOOK_S):
                        await self._look()
                with contextlib.suppress(ProcessLookupError):
                    # One that was stopped (SIGSTOP) could not end.
                    os.kill(process.pid, signal.SIGCONT)
                    process.terminate()
                await asyncio.wait({waiting}, timeout=STOP_S)
            self.kill()
            code = await waiting
            text = await self._in_thread(partial(self._files.end_of_log, self._order.raas))
            self._said = text.splitlines()[-_LINES:]
            return code
        finally:
            stopping.cancel()
            figures.cancel()
            await asyncio.gather(figures, stopping, return_exceptions=True)
            if self._line is not None:
                self._line.close()

    async def _attaches(self, attach: Attach) -> bool:
        """Ask for engines that others share; whether the RaaS is still to start."""
        config = await self._in_thread(self._files.config)
        asking = asyncio.ensure_future(attach(config))
        stopping = asyncio.create_task(self._stop.wait())
        try:
            await asyncio.wait({asking, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if asking.done():
                self._attached = asking.result()
            return not self._stop.is_set()
        finally:
            asking.cancel()
            stopping.cancel()
            await asyncio.gather(asking, stopping, return_exceptions=True)

    def _command(self) -> list[str]:
        argv = [
            *(sys.executable, "-m", "astraflow_runtime", "raas"),
            *(str(self._directory / "config.toml"), "--directory", str(self._directory)),
            *("--name", self._order.raas),
        ]
        if sys.platform != "linux":
            return argv
        return [sys.executable, "-I", "-S", str(shim.__file__), str(os.getpid()), *argv]

    def _environment(self) -> dict[str, str]:
        ours = environment_of_host()
        fixed = {LAUNCHER: str(os.getpid()), "PYTHONUNBUFFERED": "1", PLACES: str(self._fifo)}
        return (
            dict.fromkeys(VARIABLES, str(self._threads))
            | ours
            | fixed
            | self._order.environment
            | self._attached
        )

    async def _follow(self) -> None:
        """Poll its figures until it ends."""
        while True:
            await self._look()
            look = look_at(self._pid)
            self._cpu_s = look.cpu_s if look else self._cpu_s
            await asyncio.sleep(LOOK_S)

    async def _look(self) -> None:
        if self._line is None:
            try:
                self._line = await self._in_thread(self._client)
            except (OSError, ValueError, AstraFlowError) as error:
                if (
                    not self._complained
                ):  # it may be just being written; its tenant may have written anything
                    self._complained = True
                    what = f"{self._order.raas} of run {self._order.run}"
                    log.warning("the address of %s is not read: %s", what, str(error)[:_LINE])
        if self._line is not None:
            ask = partial(self._line.get_json, "/v1/status", deadline_s=_STATUS_S)
            with contextlib.suppress(AstraFlowError):  # the next look may succeed
                self._note(await self._in_thread(ask))

    def _client(self) -> SyncClient | None:
        """Of its server on loopback, once it has one."""
        place = self._files.address(self._order.raas)
        if place is None or place.pid != self._pid:  # not written yet, or by a process before
            return None
        parts = urlsplit(place.url)
        if not parts.port or not is_loopback(parts.hostname or ""):
            raise ValueError(f"{place.url!r} is not an address of this host")
        token = self._order.environment.get("ASTRAFLOW_TOKEN", "")
        return SyncClient(place.url, token, tls=self._files.tls())

    def _note(self, status: Any) -> None:
        try:
            figures = msgspec.convert(status, RaasFigures)
        except msgspec.ValidationError as error:
            raise WireError(
                f"{self._order.raas} of run {self._order.run} answers: {error}"
            ) from error
        self._running = figures.episodes_running
        # More than that it cannot have generated, and the pool would refuse the report of the whole host.
        most = self._tokens_s * (time.monotonic() - self._began)
        self._tokens = max(self._tokens, min(most, figures.metric("tokens_generated")))
        self._episodes = max(self._episodes, figures.metric("episodes"))
        if figures.ready and self._state == "starting":
            self._state = "ready"
            self._changed()
