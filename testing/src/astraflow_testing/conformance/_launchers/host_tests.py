"""Tests of launchers whose processes are on several hosts."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from astraflow_core.protocols.launcher import Launcher
from astraflow_testing.conformance._launchers.lonely_launcher import LonelyLauncher
from astraflow_testing.conformance._launchers.puppets import (
    DEMANDS,
    Launched,
    Placed,
    Puppets,
    Start,
    end_of,
    state_of,
)
from astraflow_testing.conformance.subject import Subject

Trouble = Callable[[Launcher, str], None]
"""``trouble(launcher, name)``: something happens to the host of a process, or to the way there."""


class HostTests:
    """Inherited by ``LauncherConformance``, which defines the fixtures."""

    @pytest.fixture
    def lose_host(self) -> Trouble | None:
        """Takes away the host on which a process runs; ``None`` if no test can."""
        return None

    @pytest.fixture
    def break_connection(self) -> Trouble | None:
        """Breaks the connection between the launcher and the host of a process; ``None`` if there is none."""
        return None

    @pytest.fixture
    def silence_s(self) -> float:
        """Longest time that processes outlive a launcher that has died."""
        return 30.0

    def test_a_lost_host_is_an_end_and_another_one_takes_over(
        self, launched: Launched, start: Start, puppets: Puppets, lose_host: Trouble | None
    ) -> None:
        """Its processes count as killed, those elsewhere continue, and restarted ones run on a remaining host."""
        if lose_host is None:
            pytest.skip("no host can be lost (the fixture `lose_host` is None)")
        for name, launcher in launched():
            lost, other = start(launcher, "a", "b")
            lose_host(launcher, "a")
            DEMANDS.that(lost.is_gone(30), f"{name}: a process outlived its host", "its end")
            state = end_of(launcher, "a")
            DEMANDS.that(
                (state.exit_code or 0) < 0,
                f"{name}: a process of a lost host ended with {state.exit_code}",
                "the end of a process that was killed, a negative number, so that it is restarted",
            )
            other.ask("write", "still there\n")
            launcher.start(puppets.spec("a"))
            puppets.arrived().ask("write", "elsewhere\n")
            after = state_of(launcher, "a")
            DEMANDS.that(
                (after.exit_code, after.restarts) == (None, 1),
                f"{name}: started again it is {after}",
                "that it runs, restarted once",
            )

    def test_a_broken_connection_ends_nothing(
        self, launched: Launched, start: Start, break_connection: Trouble | None
    ) -> None:
        """It is re-established, and no output is lost or repeated."""
        if break_connection is None:
            pytest.skip("there is no connection (the fixture `break_connection` is None)")
        for name, launcher in launched():
            (puppet,) = start(launcher, "a")
            puppet.ask("write", "before\n")
            launcher.logs("a", 1)
            break_connection(launcher, "a")
            puppet.ask("write", "meanwhile\n")
            until = time.monotonic() + 20
            while launcher.logs("a", 9) != ["before", "meanwhile"] and time.monotonic() < until:
                time.sleep(0.1)
            lines = launcher.logs("a", 9)
            DEMANDS.that(
                lines == ["before", "meanwhile"],
                f"{name}: after the connection broke the log is {lines}",
                "that output waits on the host and arrives once",
            )
            puppet.tell("leave", 3)
            code = end_of(launcher, "a").exit_code
            DEMANDS.that(code == 3, f"{name}: then the exit code is {code}", "3, as it was")

    def test_no_process_of_a_host_outlives_its_launcher_for_long(
        self,
        component: Subject,
        puppets: Puppets,
        placed: Placed,
        tmp_path: Any,
        silence_s: float,
    ) -> None:
        """A killed launcher cannot end processes: hosts end them after its silence."""
        # No `capability`: this does not show where processes go, so that a launcher still names a test of its own.
        if "cluster" not in component.capabilities:
            pytest.skip("does not declare cluster")
        spec = placed(puppets.spec("a"))
        for index, name in enumerate(component.variants):
            with LonelyLauncher(component, index, tmp_path, spec):
                puppet = puppets.arrived()
            DEMANDS.that(
                puppet.is_gone(silence_s),
                f"{name}: a process outlived a launcher that was killed by more than {silence_s:g} s",
                "that its host ends it when the launcher is silent",
            )
