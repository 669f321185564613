"""Tests of ending processes: asked to end first, then killed, with all children."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from astraflow_testing.conformance._launchers.puppets import (
    DEMANDS,
    Launched,
    Puppets,
    Start,
    end_of,
    state_of,
)
from astraflow_testing.conformance._processes.footprint import Footprint
from astraflow_testing.conformance.subject import Subject, context


class EndingTests:
    """Inherited by ``LauncherConformance``, which defines the fixtures."""

    def test_stop_asks_first_and_reaches_nobody_else(
        self, launched: Launched, start: Start
    ) -> None:
        """SIGTERM, and time to clean up."""
        for name, launcher in launched():
            asked, other = start(launcher, "a", "b")
            asked.ask("obey", 7)
            launcher.stop("a", 20)
            code = state_of(launcher, "a").exit_code
            DEMANDS.that(
                code == 7,
                f"{name}: a process that cleans up at SIGTERM ended with {code}",
                "that stop asks with SIGTERM, waits until the deadline, and returns after the end",
            )
            other.ask("write", "still there\n")
            launcher.stop("a", 20)  # it has ended: nothing to do

    def test_stop_kills_at_the_deadline_with_all_children(
        self, launched: Launched, start: Start, puppets: Puppets
    ) -> None:
        """A process that ignores SIGTERM."""
        for name, launcher in launched():
            (puppet,) = start(launcher, "a")
            puppet.ask("be deaf")
            puppet.ask("have a child")
            child = puppets.arrived()
            child.ask("be deaf")
            launcher.stop("a", 0.3)
            code = state_of(launcher, "a").exit_code
            DEMANDS.that(
                code == -signal.SIGKILL, f"{name}: it ended with {code}", "SIGKILL at the deadline"
            )
            DEMANDS.that(
                child.is_gone(5), f"{name} left a child of the process", "an end of children too"
            )

    def test_close_leaves_nothing(
        self, component: Subject, tmp_path: Path, start: Start, puppets: Puppets
    ) -> None:
        """No process, no child of one that has ended, no thread and no file."""
        for name, factory in component.variants.items():
            launcher = factory(context("launcher", tmp_path))
            first, second = start(launcher, "a", "b")
            first.ask("be deaf")
            orphans = []
            for puppet in (first, second):
                puppet.ask("have a child")
                orphans.append(puppets.arrived())
            second.tell("leave", 0)
            end_of(launcher, "b")
            launcher.close()
            for process in (first, second, *orphans):
                DEMANDS.that(
                    process.is_gone(5),
                    f"{name}: {process.name!r} was left after close",
                    "that no started process is left, including the children of ended processes",
                )
            codes = [state.exit_code for state in launcher.poll()]
            DEMANDS.that(
                len(codes) == 2 and None not in codes,
                f"{name}: after close exit codes are {codes}",
                "that both processes are still reported, and have ended",
            )
            launcher.close()  # once more does nothing

    def test_nothing_of_the_launcher_is_left_after_close(
        self, component: Subject, tmp_path: Path, puppets: Puppets, start: Start
    ) -> None:
        """Threads, open files and sockets of its own."""
        for name, factory in component.variants.items():
            factory(context("launcher", tmp_path)).close()  # what is made once for all
            before = Footprint(tmp_path / "state")
            launcher = factory(context("launcher", tmp_path))
            (puppet,) = start(launcher, "a")
            launcher.close()
            puppet.close()
            left = before.left_over()
            DEMANDS.that(not left, f"{name} left {', '.join(left)} after close", "nothing")

    def test_a_terminal_reaches_the_launcher_only(self, launched: Launched, start: Start) -> None:
        """Ctrl-C reaches all processes of a session; the launcher ends those of a run itself, in order."""
        for name, launcher in launched():
            here = start(launcher, "a", "b")
            DEMANDS.that(
                os.getsid(0) not in {puppet.session for puppet in here},
                f"{name} starts processes in its own session",
                "a session of its own for each process",
            )
