"""Launchers with one mistake each; run by test_mutants.py."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest

from astraflow_core.errors import PreflightError
from astraflow_core.protocols.launcher import ProcessSpec
from astraflow_runtime.launch.local.launcher import LocalLauncher
from astraflow_testing.conformance._launchers.puppet import command
from astraflow_testing.conformance.launcher import LauncherConformance
from astraflow_testing.conformance.subject import Subject


class OfLocal(LauncherConformance):
    """The local launcher with ``mistake`` in the place of its class."""

    mistake: ClassVar[type[Any]] = LocalLauncher
    capabilities: ClassVar[frozenset[str]] = frozenset({"local"})

    @pytest.fixture
    def component(self) -> Subject:
        return Subject({"local": lambda context: self.mistake(None, context)}, self.capabilities)


class ThreePlaces(LocalLauncher):
    def prepare(self, specs: Any) -> None:
        if len(specs) > 3:
            raise PreflightError(f"there are three places, and none for {specs[3].name}")


class TestHealthy(OfLocal):
    mistake = ThreePlaces

    @pytest.fixture
    def too_much(self) -> Any:
        return [[_spec(f"raas-{n}") for n in range(4)]]


def _spec(name: str) -> ProcessSpec:
    return ProcessSpec(name, "raas", command("127.0.0.1", 1, name), {}, Path(f"{name}.log"))


class TestTakesAll(OfLocal):
    wrong = "has a place for everything, and fails later"
    caught_by = "test_what_cannot_be_placed_is_refused"

    @pytest.fixture
    def too_much(self) -> Any:
        return [[_spec(f"raas-{n}") for n in range(4)]]


class Sorted(LocalLauncher):
    def poll(self) -> Any:
        return sorted(super().poll(), key=lambda state: state.name)


class TestSorted(OfLocal):
    wrong = "reports processes in the order of their names"
    caught_by = "test_processes_are_reported_in_order_of_start"
    mistake = Sorted


class ByShell(LocalLauncher):
    def _command(self, spec: Any) -> Any:
        return ["/bin/sh", "-c", "exec " + " ".join(f'"{word}"' for word in spec.argv)]


class TestByShell(OfLocal):
    wrong = "passes arguments through a shell, quoted by hand"
    caught_by = "test_arguments_and_environment_arrive_as_they_are"
    mistake = ByShell


class BareEnvironment(LocalLauncher):
    def _environment(self, spec: Any) -> Any:
        return {"PATH": os.environ["PATH"], **spec.environment}


class TestBareEnvironment(OfLocal):
    wrong = "gives the environment of the spec alone"
    caught_by = "test_arguments_and_environment_arrive_as_they_are"
    mistake = BareEnvironment


class ByEnv(LocalLauncher):
    def _command(self, spec: Any) -> Any:
        given = [f"{key}={value}" for key, value in spec.environment.items()]
        wait = "import subprocess, sys; sys.exit(subprocess.call(sys.argv[1:]))"
        return [sys.executable, "-S", "-c", wait, "env", *given, *spec.argv]


class TestByEnv(OfLocal):
    wrong = "sets the environment on a command line, where everybody reads the token"
    caught_by = "test_the_environment_is_on_no_command_line"
    mistake = ByEnv


class Twice(LocalLauncher):
    def start(self, spec: Any) -> None:
        with contextlib.suppress(ValueError):
            super().start(spec)


class TestTwice(OfLocal):
    wrong = "says nothing when it starts what runs already"
    caught_by = "test_a_process_is_not_started_twice"
    mistake = Twice


class Forgets(LocalLauncher):
    def start(self, spec: Any) -> None:
        known = self._children.get(spec.name)
        if known is not None and known.reap():
            del self._children[spec.name]
        super().start(spec)


class TestForgets(OfLocal):
    wrong = "forgets at a restart what was before"
    caught_by = "test_a_process_starts_anew_after_its_end"
    mistake = Forgets


class NewLog(LocalLauncher):
    def start(self, spec: Any) -> None:
        spec.log.unlink(missing_ok=True)
        super().start(spec)


class TestNewLog(OfLocal):
    wrong = "begins the log again at a restart, which loses why it was needed"
    caught_by = "test_a_process_starts_anew_after_its_end"
    mistake = NewLog


class Nameless(LocalLauncher):
    def start(self, spec: Any) -> None:
        if not os.access(spec.argv[0], os.X_OK):
            raise OSError("cannot start the process")
        super().start(spec)


class TestNameless(OfLocal):
    wrong = "does not say which command is not there"
    caught_by = "test_a_missing_command_is_named"
    mistake = Nameless


class ShellCodes(LocalLauncher):
    def poll(self) -> Any:
        return [
            replace(s, exit_code=128 - s.exit_code) if (s.exit_code or 0) < 0 else s
            for s in super().poll()
        ]


class TestShellCodes(OfLocal):
    wrong = "tells signals as a shell does, 137 for SIGKILL"
    caught_by = "test_an_end_is_reported_with_exit_code_and_last_lines"
    mistake = ShellCodes


class OutputOnly(LocalLauncher):
    def _command(self, spec: Any) -> Any:
        return ["/bin/sh", "-c", f"exec {shlex.join(spec.argv)} 2>/dev/null"]


class TestOutputOnly(OfLocal):
    wrong = "keeps standard output and not standard error"
    caught_by = "test_an_end_is_reported_with_exit_code_and_last_lines"
    mistake = OutputOnly


class FirstLines(LocalLauncher):
    def logs(self, name: str, lines: int) -> list[str]:
        text = self._children[name].spec.log.read_bytes().decode("utf-8", "ignore")
        return text.splitlines()[:lines]


class TestFirstLines(OfLocal):
    wrong = "gives the first lines of a log"
    caught_by = "test_output_is_in_the_log_at_once"
    mistake = FirstLines


class WaitsForStopped(LocalLauncher):
    def stop(self, name: str, deadline_s: float) -> None:
        child = self._children[name]
        if not self._ended(child):
            os.kill(child.pid, signal.SIGTERM)
        self._wait(child, time.monotonic() + min(deadline_s, 1))


class TestWaitsForStopped(OfLocal):
    wrong = "asks a stopped process to end without letting it continue"
    caught_by = "test_a_stopped_process_is_seen_and_can_be_ended"
    mistake = WaitsForStopped


class KillsAtOnce(LocalLauncher):
    def stop(self, name: str, deadline_s: float) -> None:
        self._children[name].kill_group()
        super().stop(name, deadline_s)


class TestKillsAtOnce(OfLocal):
    wrong = "kills without asking"
    caught_by = "test_stop_asks_first_and_reaches_nobody_else"
    mistake = KillsAtOnce


class StopsAll(LocalLauncher):
    def stop(self, name: str, deadline_s: float) -> None:
        for each in self._children:
            super().stop(each, 1.0)


class TestStopsAll(OfLocal):
    wrong = "stops all processes for one"
    caught_by = "test_stop_asks_first_and_reaches_nobody_else"
    mistake = StopsAll


class LeavesChildren(LocalLauncher):
    def start(self, spec: Any) -> None:
        super().start(spec)
        child = self._children[spec.name]

        def kill_alone() -> None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child.pid, signal.SIGKILL)

        child.kill_group = kill_alone  # type: ignore[method-assign]


class TestLeavesChildren(OfLocal):
    wrong = "kills a process and not its children"
    caught_by = "test_stop_kills_at_the_deadline_with_all_children"
    mistake = LeavesChildren


class TestLeavesOrphans(OfLocal):
    wrong = "leaves children of processes that have ended"
    caught_by = "test_close_leaves_nothing"
    mistake = LeavesChildren


class KeepsAThread(LocalLauncher):
    def __init__(self, config: Any, context: Any) -> None:
        super().__init__(config, context)
        self.ended = threading.Event()
        name = f"watcher-{id(self)}"
        threading.Thread(target=self.ended.wait, args=(15,), name=name, daemon=True).start()


class TestKeepsAThread(OfLocal):
    wrong = "leaves a thread of its own after close"
    caught_by = "test_nothing_of_the_launcher_is_left_after_close"
    mistake = KeepsAThread


class EmptyAfterClose(LocalLauncher):
    closed = False

    def poll(self) -> Any:
        return [] if self.closed else super().poll()

    def close(self) -> None:
        super().close()
        self.closed = True


class TestEmptyAfterClose(OfLocal):
    wrong = "no longer reports its processes once it is closed"
    caught_by = "test_close_leaves_nothing"
    mistake = EmptyAfterClose


class OwnSession(LocalLauncher):
    def start(self, spec: Any) -> None:
        begin = subprocess.Popen.__init__

        def within(self: Any, *args: Any, **more: Any) -> None:
            begin(self, *args, **{**more, "start_new_session": False, "process_group": 0})

        subprocess.Popen.__init__ = within  # type: ignore[method-assign,assignment]
        try:
            super().start(spec)
        finally:
            subprocess.Popen.__init__ = begin  # type: ignore[method-assign]


class TestOwnSession(OfLocal):
    wrong = "starts processes in its own session, where Ctrl-C reaches them"
    caught_by = "test_a_terminal_reaches_the_launcher_only"
    mistake = OwnSession


class Endless(LocalLauncher):
    restarts: Any = -1


class TestEndless(OfLocal):
    wrong = "says -1 for as often as one likes"
    caught_by = "test_restarts_are_a_count"
    mistake = Endless


class PidOfAWrapper(LocalLauncher):
    def _command(self, spec: Any) -> Any:
        wait = "import subprocess, sys; sys.exit(subprocess.call(sys.argv[1:]))"
        return [sys.executable, "-S", "-c", wait, *spec.argv]


class TestPidOfAWrapper(OfLocal):
    wrong = "tells the pid of a wrapper"
    caught_by = "test_processes_are_on_this_host"
    mistake = PidOfAWrapper


class Outlived(LocalLauncher):
    def _command(self, spec: Any) -> Any:
        return list(spec.argv)


class TestOutlived(OfLocal):
    wrong = "leaves processes behind when it is killed"
    caught_by = "test_processes_end_with_a_launcher_that_is_killed"
    mistake = Outlived


class TestUnshownCluster(OfLocal):
    wrong = "declares a cluster, and no test shows one"
    caught_by = "test_every_declared_capability_is_tested"
    capabilities = frozenset({"local", "cluster"})
