"""``astraflow_runtime.Run``: a run inside a program with an event loop, which follows it by its events."""

from __future__ import annotations

import asyncio
import io
import json
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

import msgspec

from astraflow_core.errors import UserError
from astraflow_core.protocols.launcher import ProcessState
from astraflow_runtime.launch.api import RunResult, result_of
from astraflow_runtime.launch.planning.prepare import Prepared, prepare
from astraflow_runtime.launch.planning.resume import resume
from astraflow_runtime.launch.results.metrics import FILE
from astraflow_runtime.launch.run import EndedRun, run_prepared
from astraflow_runtime.launch.tracking.lines import LineTail
from astraflow_runtime.launch.watch.signals import Interrupts
from astraflow_wire.status import Status

MOST_WAITING = 10_000
"""Events that are kept for a program that does not ask for them."""


@dataclass(frozen=True, slots=True)
class RunEvent:
    """Something that happened in a run.

    ``status``: state or number of steps changed, ``data`` as in ``status.json``. ``step`` and ``evaluation``: a line of
    ``metrics.jsonl``. ``message``: ``data["text"]`` is what a user would read. ``lost``: ``data["events"]`` is the number
    of events that were dropped, the oldest first, since they were not read. ``ended``: the last one, ``data`` as in ``summary.json``.
    """

    kind: Literal["status", "step", "evaluation", "message", "lost", "ended"]
    data: Mapping[str, Any]


class Run:
    """A run in the background of a program::

        async with Run("run.toml", overrides=["run.steps=20"]) as run:
            async for event in run.events():
                ...
            result = await run.result()

    The arguments are those of :func:`astraflow_runtime.run`. Entering the block starts the run, and raises
    :class:`astraflow_core.errors.UserError` before anything starts if the config is wrong. Leaving the block ends it cleanly,
    as Ctrl-C would, and waits until all its processes have exited; a cancellation during that wait ends it at once.
    If the run failed and :meth:`result` has not raised its error, leaving does. The run prints nothing.
    """

    def __init__(
        self,
        config: str | Path | Mapping[str, Any],
        *,
        workflow: Any = None,
        reward: Any = None,
        overrides: Sequence[str] = (),
    ) -> None:
        self._prepare: Callable[[], Prepared] = lambda: prepare(config, overrides, workflow, reward)
        self._prepared: Prepared | None = None
        self._waiting: deque[RunEvent] = deque()
        self._lost = 0
        self._told = False

    @classmethod
    def resume(cls, directory: str | Path) -> Self:
        """Resume the run of a directory that ended early; only new steps are events."""
        made = cls({})
        made._prepare = lambda: resume(directory)
        return made

    @property
    def directory(self) -> Path:
        """The run directory; set once the block is entered."""
        return self._started.directory

    async def events(self) -> AsyncIterator[RunEvent]:
        """The events of the run, from its start to its end; each is yielded once, even with several consumers."""
        ended = self._end
        while True:
            if self._lost:
                lost, self._lost = self._lost, 0
                yield RunEvent("lost", {"events": lost})
            while self._waiting:
                yield self._waiting.popleft()
            if ended.done():
                return
            self._news.clear()
            await self._news.wait()

    async def result(self) -> RunResult:
        """Wait for the end. Raises what :func:`astraflow_runtime.run` raises if the run failed."""
        ended = await asyncio.shield(self._end)
        self._told = True
        return result_of(ended)

    def stop(self) -> None:
        """Ask the run to end cleanly after this step, as Ctrl-C does; a second call ends it at once."""
        if not self._end.done():
            self._interrupts.ask()

    async def __aenter__(self) -> Self:
        if self._prepared is not None:
            raise UserError("a Run can be entered once; make another one, or Run.resume(directory)")
        self._prepared = await asyncio.to_thread(self._prepare)
        self._interrupts = Interrupts()
        self._loop = asyncio.get_running_loop()
        self._news = asyncio.Event()
        self._ended: asyncio.Future[EndedRun] = self._loop.create_future()
        threading.Thread(target=self._execute, name=f"run {self.directory.name}").start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()
        try:
            ended = await asyncio.shield(self._ended)
        except asyncio.CancelledError:
            self.stop()
            await asyncio.shield(self._ended)
            raise
        if ended.error is not None and error is None and not self._told:
            raise ended.error

    @property
    def _end(self) -> asyncio.Future[EndedRun]:
        assert self._started
        return self._ended

    @property
    def _started(self) -> Prepared:
        if self._prepared is None:
            raise UserError("the run has not been started: use `async with Run(...) as run:`")
        return self._prepared

    def _execute(self) -> None:
        """Run in a separate thread."""
        view = _EventView(self._started.directory, self._report)
        try:
            ended = run_prepared(self._started, None, _Lines(view.say), view, self._interrupts)
        except BaseException as error:  # noqa: BLE001 (passed to the caller that waits for the run)
            self._call(self._finish, None, error)
        else:
            self._call(self._finish, ended, None)

    def _finish(self, ended: EndedRun | None, error: BaseException | None) -> None:
        if ended is not None:
            self._add(RunEvent("ended", ended.summary))
            self._ended.set_result(ended)
        elif error is not None:
            self._ended.set_exception(error)
        self._news.set()

    def _report(self, event: RunEvent) -> None:
        self._call(self._add, event)

    def _call(self, function: Callable[..., None], *arguments: Any) -> None:
        """Call a function in the thread of the event loop."""
        try:
            self._loop.call_soon_threadsafe(function, *arguments)
        except RuntimeError:  # the loop was closed without leaving the block: the run has no reader
            self._interrupts.ask()

    def _add(self, event: RunEvent) -> None:
        if len(self._waiting) == MOST_WAITING:
            self._waiting.popleft()
            self._lost += 1
        self._waiting.append(event)
        self._news.set()


class _EventView:
    """A view that shows nothing and reports events; called in the thread of the run."""

    def __init__(self, directory: Path, report: Callable[[RunEvent], None]) -> None:
        self._report = report
        self._lines = LineTail(directory / FILE)
        self._last: tuple[str, int] | None = None
        for _ in self._lines.new():  # of a run that continues, those before it was stopped
            pass

    def show(self, status: Status, processes: Sequence[ProcessState]) -> None:
        """The newest state of the run."""
        self._read()
        now = (status.state, status.steps)
        if now != self._last:
            self._last = now
            self._report(RunEvent("status", msgspec.to_builtins(status)))

    def say(self, message: str) -> None:
        """Something happened that a person should know."""
        self._report(RunEvent("message", {"text": message}))

    def close(self) -> None:
        """The run has ended."""
        self._read()

    def _read(self) -> None:
        for text in self._lines.new():
            try:
                line = json.loads(text)
            except ValueError:
                continue  # the reader of the whole file says which lines are damaged
            if isinstance(line, dict):
                if {"policy", "step"} <= line.keys():
                    self._report(RunEvent("step", line))
                elif "eval" in line:
                    self._report(RunEvent("evaluation", line))


class _Lines(io.StringIO):
    """A stream whose lines are said; it keeps none."""

    def __init__(self, say: Callable[[str], None]) -> None:
        super().__init__()
        self._say, self._rest = say, ""

    def write(self, text: str) -> int:
        *lines, self._rest = (self._rest + text).split("\n")
        for line in lines:
            if line.strip():
                self._say(line)
        return len(text)
