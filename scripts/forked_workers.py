"""Runs tests in workers that are forked once all tests are collected: ``--forked-workers N``.

Those of pytest-xdist import and collect all tests again, each of them. Scopes of tests are dealt out as
:class:`scheduling.LongestFirst` does it, with its records.
"""

from __future__ import annotations

import marshal
import os
import random
import signal
import sys
import time
import traceback
import warnings
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, Pipe, wait
from typing import Any, NoReturn

import pytest
import scheduling
from _pytest._io import TerminalWriter
from xdist.remote import serialize_warning_message
from xdist.workermanage import unserialize_warning_message

READY, REPORT, WARNING = "ready", "report", "warning"
"""What a worker says: it asks for a scope, or sends on what a hook of pytest was given."""
STOP_S = 10.0
"""How long a worker that is interrupted has for the teardown of its fixtures."""


@dataclass(eq=False)
class _Worker:
    name: str
    pid: int
    link: Connection
    tests: deque[int] = field(default_factory=deque)
    """Indices into the session's items: what it was given and has not ended."""


class ForkedWorkers:
    """The plugin of pytest, in the process that collects and reports."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._started = 0
        self._workers: list[_Worker] = []

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool | None:
        """Run all items of the session."""
        if session.testsfailed or session.config.option.collectonly or not session.items:
            return None
        self._session = session
        self._numbers = {item.nodeid: number for number, item in enumerate(session.items)}
        self._scopes = deque(_scopes(session.items))
        reporter = session.config.pluginmanager.getplugin("terminalreporter")
        if reporter is not None:
            reporter.showfspath = False
        session.config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined]
        try:
            for _ in range(min(self._count, len(self._scopes))):
                self._fork()
            while self._workers:
                for link in wait([worker.link for worker in self._workers]):
                    self._receive(next(worker for worker in self._workers if worker.link is link))
                    if session.shouldfail:
                        raise session.Failed(session.shouldfail)
                    if session.shouldstop:
                        raise session.Interrupted(session.shouldstop)
        finally:
            self._stop()
        return True

    def _fork(self) -> None:
        ours, theirs = Pipe()
        name = f"gw{self._started}"
        self._started += 1
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of threads, from Python 3.12 on
            pid = os.fork()
        if pid == 0:
            # A copy of another worker's link would hide that the process at its other end is gone.
            for link in (ours, *(worker.link for worker in self._workers)):
                link.close()
            _work(self._session, theirs, name)
        theirs.close()
        self._workers.append(_Worker(name, pid, ours))

    def _receive(self, worker: _Worker) -> None:
        try:
            kind, content = marshal.loads(worker.link.recv_bytes())
        except (EOFError, ConnectionResetError):
            self._ended(worker)
            return
        hook = self._session.config.hook
        if kind == READY:
            scope = self._scopes.popleft() if self._scopes else []
            worker.tests.extend(scope)
            worker.link.send_bytes(marshal.dumps(scope))
        elif kind == REPORT:
            report = hook.pytest_report_from_serializable(config=self._session.config, data=content)
            if report.when == "teardown":
                worker.tests.remove(self._numbers[report.nodeid])
            hook.pytest_runtest_logreport(report=report)
        else:
            message = unserialize_warning_message(content.pop("warning_message"))
            hook.pytest_warning_recorded.call_historic(
                kwargs={**content, "warning_message": message}
            )

    def _ended(self, worker: _Worker) -> None:
        """Its process has exited: without a test left it may have failed to tear down fixtures of the session; else the test that
        it ran has failed, and another worker continues with the others."""
        self._workers.remove(worker)
        worker.link.close()
        code = os.waitstatus_to_exitcode(os.waitpid(worker.pid, 0)[1])
        if not worker.tests:
            if code:
                said = (
                    f"{worker.name} ended with {code} after its last test; the traceback is above"
                )
                place = (worker.name, None, worker.name)
                report = pytest.TestReport(worker.name, place, {}, "failed", said, "teardown")
                self._session.config.hook.pytest_runtest_logreport(report=report)
            return
        item = self._session.items[worker.tests.popleft()]
        said = f"{worker.name} ended with {code} in {item.nodeid}"
        report = pytest.TestReport(item.nodeid, item.location, {}, "failed", said, "call")
        self._session.config.hook.pytest_runtest_logreport(report=report)
        if worker.tests:
            self._scopes.appendleft(list(worker.tests))
        if self._scopes:
            self._fork()

    def _stop(self) -> None:
        """End the workers that have not: pytest was interrupted, or has seen enough failures."""
        for worker in self._workers:
            os.kill(worker.pid, signal.SIGINT)
        until = time.monotonic() + STOP_S
        for worker in self._workers:
            while os.waitpid(worker.pid, os.WNOHANG) == (0, 0):
                if time.monotonic() > until:
                    os.kill(worker.pid, signal.SIGKILL)
                time.sleep(0.05)
            worker.link.close()
        self._workers.clear()


def _scopes(items: list[pytest.Item]) -> Iterator[list[int]]:
    """The numbers of the items of each scope, in the order in which they are dealt out."""
    found: dict[str, list[int]] = {}
    for number, item in enumerate(items):
        found.setdefault(scheduling.scope_of_file(item.nodeid), []).append(number)
    for scope in scheduling.recorded_first(items[0].config, [item.nodeid for item in items]):
        yield found[scope]


def _work(session: pytest.Session, link: Connection, name: str) -> NoReturn:
    """The life of a worker."""
    code = 1
    try:
        _become(session.config, link, name)
        for items in _given(session, link):
            for item, following in zip(items, [*items[1:], _NoItem(session)], strict=True):
                session.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        session._setupstate.teardown_exact(None)
        code = 0
    except (KeyboardInterrupt, EOFError, BrokenPipeError):  # or the process that reports is gone
        session._setupstate.teardown_exact(None)
    except BaseException:
        session.config.pluginmanager.getplugin("capturemanager").stop_global_capturing()
        traceback.print_exc()
        raise
    finally:
        os._exit(code)


def _become(config: pytest.Config, link: Connection, name: str) -> None:
    """Become a worker like those of xdist, with its own output, temporary files and random numbers."""
    os.environ["PYTEST_XDIST_WORKER"] = name
    config.workerinput = {"workerid": name}  # type: ignore[attr-defined]
    manager = config.pluginmanager
    capture = manager.getplugin("capturemanager")
    if capture is not None:  # its files are shared with the other workers
        capture.stop_global_capturing()
        capture.start_global_capturing()
        capture.suspend_global_capture(in_=True)
    reporter = manager.getplugin("terminalreporter")
    if reporter is not None:
        manager.unregister(reporter)
        manager.register(_Terminal(), "terminalreporter")
    manager.register(_SentOn(config, link))
    factory = config._tmp_path_factory  # type: ignore[attr-defined]
    factory._basetemp = factory.getbasetemp() / f"popen-{name}"
    factory._basetemp.mkdir(mode=0o700)
    random.seed()


@dataclass
class _NoItem:
    """What pytest is given as the item after the last one of a scope: only what is the session's stays set up, since which
    scope comes next is not known before this one ends."""

    session: pytest.Session

    def listchain(self) -> list[pytest.Session]:
        return [self.session]


def _given(session: pytest.Session, link: Connection) -> Iterator[list[pytest.Item]]:
    """The items of one scope after another, until there is none."""
    while True:
        link.send_bytes(marshal.dumps((READY, None)))
        numbers = marshal.loads(link.recv_bytes())
        if not numbers:
            return
        yield [session.items[number] for number in numbers]


class _Terminal:
    """What pytest-timeout writes to: it becomes output of the test that hangs."""

    def __init__(self) -> None:
        self._tw = TerminalWriter(sys.__stderr__)


class _SentOn:
    """Sends what a worker reports to the process that it was forked from."""

    def __init__(self, config: pytest.Config, link: Connection) -> None:
        self._config, self._link = config, link

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """A phase of a test has ended."""
        hook = self._config.hook
        data = hook.pytest_report_to_serializable(config=self._config, report=report)
        self._send(REPORT, data)

    def pytest_warning_recorded(
        self, warning_message: warnings.WarningMessage, when: str, nodeid: str, location: Any
    ) -> None:
        """A warning to be listed at the end."""
        message = serialize_warning_message(warning_message)
        given = {"warning_message": message, "when": when, "nodeid": nodeid, "location": location}
        self._send(WARNING, given)

    def _send(self, kind: str, content: Any) -> None:
        self._link.send_bytes(marshal.dumps((kind, content)))
