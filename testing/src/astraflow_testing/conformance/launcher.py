"""Conformance of a launcher: it starts processes as specified, reports them correctly, and leaves none."""

from __future__ import annotations

import signal
import socket
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from astraflow_core.errors import AstraFlowError, PreflightError
from astraflow_core.protocols.launcher import Launcher, ProcessSpec
from astraflow_testing.conformance._checks import Claims, assert_whole, capability
from astraflow_testing.conformance._launchers.ending_tests import EndingTests
from astraflow_testing.conformance._launchers.host_tests import HostTests
from astraflow_testing.conformance._launchers.puppets import (
    DEMANDS,
    Launched,
    Placed,
    Puppet,
    Puppets,
    Start,
    end_of,
    state_of,
    until,
)
from astraflow_testing.conformance._processes.apart import apart
from astraflow_testing.conformance.subject import Conformance, Subject, context

ODD_ARGUMENTS = (
    "two words", "", "it's", '"quoted"', "$HOME `id` $(id)", "a;b && c | d > e", "a\nb", "é☃", "*", "\\", "--x=1",
)  # fmt: skip
SECRET = "a secret; $PATH 'of' the suite"
POLL_S = 0.5
MUCH = 1 << 20


class LauncherConformance(Conformance, Claims, EndingTests, HostTests):
    """Requirements of every launcher, with real processes that a test directs.

    Required fixture ``component``: the launcher under test, in the configurations worth testing::

        class TestMine(LauncherConformance):
            @pytest.fixture
            def component(self) -> Subject:
                return installed("launcher", "mine", {})

    A launcher that can run out of places gives ``too_much``; one that needs to be told where a process goes overrides
    ``placed``; one whose processes are on other hosts overrides ``address``, which they dial, ``silence_s``,
    ``lose_host`` and ``break_connection``.
    """

    @pytest.fixture
    def component(self) -> Subject:
        """Required: the launcher, its configurations and its capabilities."""
        pytest.fail(
            "define the fixture `component`: return installed('launcher', NAME, keys, more_keys …) or a Subject of "
            "your own"
        )

    @pytest.fixture
    def address(self) -> str:
        """An address of this host that processes can connect to."""
        return "127.0.0.1"

    @pytest.fixture
    def placed(self) -> Placed:
        """``placed(spec)``: the same process with the resources that the launcher needs to place it."""
        return lambda spec: spec

    @pytest.fixture
    def too_much(self) -> list[Sequence[ProcessSpec]]:
        """Runs that cannot be placed. By default none: a launcher without limited resources refuses nothing."""
        return []

    @pytest.fixture
    def puppets(self, address: str, tmp_path: Path) -> Iterator[Puppets]:
        """Processes that connect and obey the test."""
        made = Puppets(address, tmp_path / "logs")
        yield made
        made.close()

    @pytest.fixture
    def launched(self, component: Subject, tmp_path: Path) -> Iterator[Launched]:
        """``launched()``: (label, fresh launcher) of each configuration; they are closed in the end."""
        opened: list[Launcher] = []

        def made() -> Iterator[tuple[str, Launcher]]:
            for name, factory in component.variants.items():
                opened.append(factory(context("launcher", tmp_path)))
                yield name, opened[-1]

        yield made
        for launcher in opened:
            launcher.close()

    @pytest.fixture
    def start(self, puppets: Puppets, placed: Placed) -> Start:
        """``start(launcher, *names)``: the started processes, which have connected."""

        def started(launcher: Launcher, *names: str, **more: Any) -> list[Puppet]:
            specs = [placed(puppets.spec(name, **more)) for name in names]
            launcher.prepare(specs)
            here = []
            for spec in specs:
                launcher.start(spec)
                here.append(puppets.arrived(launcher if len(specs) == 1 else None))
            return here

        return started

    def test_the_suite_is_whole(self, request: pytest.FixtureRequest) -> None:
        """Known capabilities, and fixtures that do not skip."""
        fixtures = ("address", "placed", "too_much", "lose_host", "break_connection", "silence_s")
        assert_whole("launcher", request, fixtures)

    # --- starting ------------------------------------------------------------------------------

    def test_processes_are_reported_in_order_of_start(
        self, launched: Launched, puppets: Puppets, placed: Placed
    ) -> None:
        """All started processes; a running one has no exit code."""
        for name, launcher in launched():
            specs = [placed(puppets.spec(each)) for each in ("b", "a", "never")]
            launcher.prepare(specs)
            DEMANDS.that(launcher.poll() == [], f"{name} reports processes before a start", "none")
            for spec in specs[:2]:
                launcher.start(spec)
                puppets.arrived()
            told = [(s.name, s.exit_code, s.restarts, s.stopped) for s in launcher.poll()]
            DEMANDS.that(
                told == [("b", None, 0, False), ("a", None, 0, False)],
                f"{name}: for two running processes poll returns {told} (name, exit code, restarts, stopped)",
                "each process that was started, in the order of first starts, exit code None while it runs",
            )

    def test_arguments_and_environment_arrive_as_they_are(
        self, launched: Launched, start: Start, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """No shell interprets them."""
        monkeypatch.setenv("ASTRAFLOW_SUITE_OWN", "of the launcher")
        for name, launcher in launched():
            (puppet,) = start(
                launcher, "a", arguments=ODD_ARGUMENTS, environment={"ASTRAFLOW_SUITE": SECRET}
            )
            for sent, came in zip(ODD_ARGUMENTS, puppet.arguments, strict=False):
                DEMANDS.that(
                    sent == came, f"{name}: the argument {sent!r} arrived as {came!r}", "the same"
                )
            DEMANDS.that(
                len(puppet.arguments) == len(ODD_ARGUMENTS),
                f"{name}: of {len(ODD_ARGUMENTS)} arguments {len(puppet.arguments)} arrived",
                "argv as it is: quote it (shlex.join) where a shell is on the way",
            )
            for key, value in {
                "ASTRAFLOW_SUITE": SECRET, "ASTRAFLOW_SUITE_OWN": "of the launcher",
            }.items():  # fmt: skip
                came = puppet.ask("environment", key)
                DEMANDS.that(
                    came == value,
                    f"{name}: the variable {key} is {came!r} there",
                    f"{value!r}: environment of the spec, added to the launcher's own",
                )

    def test_the_environment_is_on_no_command_line(
        self, launched: Launched, start: Start, tmp_path: Path
    ) -> None:
        """It contains the run's token, and anybody can read command lines and logs."""
        for name, launcher in launched():
            (puppet,) = start(launcher, "a", environment={"ASTRAFLOW_SUITE": SECRET})
            lines = puppet.ask("command lines")
            logs = [file.read_text(errors="replace") for file in tmp_path.rglob("*.log")]
            DEMANDS.that(
                not any(SECRET in text for text in (*lines, *logs)),
                f"{name} puts the environment of a process on a command line or into a log",
                "that it is passed as environment, on standard input or in a file with mode 0600",
            )

    def test_a_process_is_not_started_twice(
        self, launched: Launched, puppets: Puppets, placed: Placed
    ) -> None:
        """While it runs, a second start is an error, and the first continues."""
        for name, launcher in launched():
            spec = placed(puppets.spec("a"))
            launcher.prepare([spec])
            launcher.start(spec)
            puppet = puppets.arrived()
            try:
                launcher.start(spec)
            except Exception as error:  # noqa: BLE001 - of any kind, as long as it says which
                DEMANDS.that(
                    "'a'" in str(error),
                    f"{name}: the error says only: {error}",
                    "an error with the process's name in quotes: 'a'",
                )
            else:
                DEMANDS.broken(f"{name} started a process that is already running", "an error")
            puppet.ask("write", "still there\n")

    def test_a_process_starts_anew_after_its_end(
        self, launched: Launched, puppets: Puppets, placed: Placed
    ) -> None:
        """In place of the ended one; restarts are counted, CPU time is kept and the log is continued."""
        for name, launcher in launched():
            specs = [placed(puppets.spec(each)) for each in ("a", "b")]
            launcher.prepare(specs)
            for spec in specs:
                launcher.start(spec)
                puppet = puppets.arrived()
                puppet.ask("write", f"first of {spec.name}\n")
                puppet.ask("use the CPU", 0.1)
                if spec.name == "a":
                    puppet.tell("leave", 1)
            before = end_of(launcher, "a")
            launcher.start(specs[0])
            puppets.arrived().ask("write", "second of a\n")
            after = state_of(launcher, "a")
            facts = {
                "order": ([s.name for s in launcher.poll()], ["a", "b"]),
                "restarts": (after.restarts, 1),
                "exit code": (after.exit_code, None),
                "log": (launcher.logs("a", 9)[-2:], ["first of a", "second of a"]),
            }
            for what, (found, expected) in facts.items():
                DEMANDS.that(
                    found == expected, f"{name}: after a restart {what} is {found}", str(expected)
                )
            DEMANDS.that(
                after.cpu_s >= before.cpu_s,
                f"{name}: CPU seconds went from {before.cpu_s:.2f} to {after.cpu_s:.2f} with a restart",
                "CPU seconds of all starts together",
            )

    def test_a_missing_command_is_named(
        self, launched: Launched, puppets: Puppets, placed: Placed
    ) -> None:
        """By an error, or by an exit whose last lines name it."""
        for name, launcher in launched():
            spec = placed(replace(puppets.spec("a"), argv=("/nowhere/python", "-V")))
            launcher.prepare([spec])
            try:
                launcher.start(spec)
            except (AstraFlowError, OSError) as error:
                said = str(error)
            else:
                state = end_of(launcher, "a")
                said = "\n".join(state.last_lines) if state.exit_code else "ended with exit code 0"
            DEMANDS.that(
                "/nowhere/python" in said,
                f"{name}: a command that does not exist {said!r:.200}",
                "an error, or last lines and an exit code other than 0, that name the command",
            )

    def test_what_cannot_be_placed_is_refused(
        self, launched: Launched, too_much: list[Sequence[ProcessSpec]]
    ) -> None:
        """Before anything starts, with the name of a process that has no place."""
        if not too_much:
            pytest.skip("shares out nothing (the fixture `too_much` is empty)")
        for name, launcher in launched():
            for specs in too_much:
                demanded = "a PreflightError from prepare that names a process without a place"
                try:
                    launcher.prepare(specs)
                except PreflightError as error:
                    named = any(spec.name in str(error) for spec in specs)
                    DEMANDS.that(named, f"{name}: the error says only: {error}", demanded)
                else:
                    DEMANDS.broken(f"{name} has a place for {len(specs)} processes", demanded)

    # --- watching ------------------------------------------------------------------------------

    @pytest.mark.parametrize("expected", [0, 3, -signal.SIGKILL], ids=["good", "bad", "killed"])
    def test_an_end_is_reported_with_exit_code_and_last_lines(
        self, expected: int, launched: Launched, start: Start
    ) -> None:
        """Also for later polls; a signal is a negative number."""
        for name, launcher in launched():
            (puppet,) = start(launcher, "a")
            puppet.ask("write", "one\n")
            puppet.ask("complain", "two\n")
            puppet.tell(*(("leave", expected) if expected >= 0 else ("signal yourself", -expected)))
            end_of(launcher, "a")
            state = state_of(launcher, "a")
            DEMANDS.that(
                state.exit_code == expected,
                f"{name}: the exit code is {state.exit_code}",
                f"{expected}",
            )
            DEMANDS.that(
                state.last_lines[-2:] == ("one", "two"),
                f"{name}: the last lines are {state.last_lines}",
                "its last output, on standard output and error",
            )

    def test_output_is_in_the_log_at_once(
        self, launched: Launched, start: Start, tmp_path: Path
    ) -> None:
        """In the file of the spec, for any content and size."""
        for name, launcher in launched():
            (puppet,) = start(launcher, "a")
            launcher.logs("a", 5)
            puppet.ask("write bytes", b"no UTF-8: \xff\xc3(\n".hex())
            puppet.ask("write", "x" * MUCH + "\n")
            puppet.ask("complain", "the end\n")
            log = tmp_path / "logs" / "a.log"
            until(
                lambda: log.exists() and log.read_bytes().endswith(b"the end\n"),  # noqa: B023
                f"{name}: the output is in {log}",
            )
            DEMANDS.that(
                launcher.logs("a", 1) == ["the end"],
                f"{name}: the last line is {launcher.logs('a', 1)}",
                "the last lines of the log",
            )
            DEMANDS.that(
                log.read_bytes().count(b"x") >= MUCH,
                f"{name} lost output",
                "all output in the log of the spec",
            )

    def test_a_stopped_process_is_seen_and_can_be_ended(
        self, launched: Launched, start: Start
    ) -> None:
        """A stopped process (SIGSTOP) is reported, never waited for, and can be ended."""
        for name, launcher in launched():
            (puppet,) = start(launcher, "a")
            puppet.ask("obey", 7)
            puppet.tell("signal yourself", int(signal.SIGSTOP))
            until(lambda: state_of(launcher, "a").stopped, f"{name}: `stopped` of a process")  # noqa: B023
            taken = []
            for _ in range(3):
                began = time.monotonic()
                launcher.poll()
                taken.append(time.monotonic() - began)
            DEMANDS.that(
                min(taken) < POLL_S, f"{name}: poll took {min(taken):.1f} s", "that it never blocks"
            )
            launcher.stop("a", 20)
            code = state_of(launcher, "a").exit_code
            DEMANDS.that(
                code == 7,
                f"{name}: a stopped process that was asked to end has the exit code {code}",
                "that it is resumed and first asked to end: SIGCONT, SIGTERM",
            )

    def test_restarts_are_a_count(self, launched: Launched) -> None:
        """How often an ended process is restarted."""
        for name, launcher in launched():
            restarts: object = launcher.restarts
            DEMANDS.that(
                isinstance(restarts, int) and restarts >= 0,
                f"{name}: restarts is {restarts!r}",
                "a number of 0 or more",
            )

    # --- flags ---------------------------------------------------------------------------------

    @capability("local")
    def test_processes_are_on_this_host(
        self, component: Subject, launched: Launched, start: Start
    ) -> None:
        """The pid is that of the process itself, so that people and tools can look at it."""
        for name, launcher in launched():
            (puppet,) = start(launcher, "a")
            told = (state_of(launcher, "a").pid, socket.gethostname())
            DEMANDS.that(
                told == (puppet.pid, puppet.host),
                f"{name} says pid and host {told}; the process is {(puppet.pid, puppet.host)}",
                "the process's own pid, on this host",
            )

    @capability("local")
    def test_processes_end_with_a_launcher_that_is_killed(
        self, component: Subject, puppets: Puppets, placed: Placed, tmp_path: Path
    ) -> None:
        """Nothing else would end them."""
        if sys.platform != "linux":
            return  # there the services watch for it
        spec = placed(puppets.spec("a"))
        for name, factory in component.variants.items():

            def work(factory: Any = factory) -> Iterator[str]:
                launcher = factory(context("launcher", tmp_path))
                launcher.prepare([spec])
                launcher.start(spec)
                yield "started"
                time.sleep(60)

            living = apart(work, 30)
            next(living)
            puppet = puppets.arrived()
            with suppress(GeneratorExit):
                living.close()  # type: ignore[attr-defined]
            DEMANDS.that(
                puppet.is_gone(10),
                f"{name}: a process outlived a launcher that was killed",
                "that the kernel ends it (PR_SET_PDEATHSIG), or that it watches for the launcher",
            )
