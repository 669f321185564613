"""What goes wrong between processes that publish and fetch: every outcome is the exact version asked for, or an error
that names it.

A transport's tests inherit :class:`WeightFaults`. Publisher and receivers are processes of their own, and live
through several tests, as they do in a run; what a test kills is started again by the next.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest

from astraflow_core.errors import WeightsError
from astraflow_core.types import Announcement
from astraflow_testing.conformance._transports.link import ShapedLink, TcpLink
from astraflow_testing.conformance._transports.tensors import marker_of
from astraflow_testing.weight_peers import WeightPeer, content, expected

DEADLINE_S = 30.0
SHORT_S = 6.0
"""Deadline of fetches that must fail where a transport would try for longer."""
HELD_AT = 1 << 16
DAY_S = 86_400.0
BLOCK = 2 << 20


class TransportWorld:
    """The processes of one transport; a publisher or receiver that is not alive is started when it is asked for."""

    def __init__(self, table: dict[str, Any], folder: Path, stack: ExitStack) -> None:
        self.table, self.folder, self.stack = table, folder, stack
        self._halves: dict[str, WeightPeer] = {}
        self._version = 0

    @property
    def publisher(self) -> WeightPeer:
        """The trainer."""
        return self._half("publisher")

    @property
    def receiver(self) -> WeightPeer:
        """A RaaS."""
        return self._half("receiver")

    def start(self, half: str, name: str = "") -> WeightPeer:
        """One more process."""
        directory = self.folder / (name or half)
        directory.mkdir(exist_ok=True)
        return self.stack.enter_context(closing(WeightPeer(half, self.table, directory)))

    def next_version(self) -> int:
        """A number that was never used."""
        self._version += 1
        return self._version

    def _half(self, half: str) -> WeightPeer:
        if half not in self._halves or self._halves[half].process.poll() is not None:
            self._halves[half] = self.start(half)
        return self._halves[half]


class Slow:
    """A fetch that was begun; ``held``: it stands still until the link is released."""

    def __init__(self, receiver: WeightPeer, ended: dict[str, Any] | None = None) -> None:
        self._receiver, self._ended = receiver, ended
        self.held = ended is None

    def answer(self) -> dict[str, Any]:
        """What came of it."""
        return self._ended or self._receiver.answer()


class WeightFaults:
    """Override :meth:`table`, and what differs::

    class TestHttpFaults(WeightFaults):
        @classmethod
        def table(cls, folder):
            return {"use": "http"}
    """

    named = r"version {} of policy 'solver'"
    outlives_its_publisher: ClassVar[bool] = False
    """A version can be fetched after the death of the process that published it."""
    wired: ClassVar[bool] = True
    """Links can flip bits on the way of a version."""
    guarded: ClassVar[bool] = True
    """Receivers with another token get nothing."""
    leased_at: ClassVar[int] = 1
    """Bytes towards a receiver after which a lease is all that keeps its version: the answer that brings the manifest
    has begun, and nothing else is being sent."""
    stored_by: ClassVar[tuple[str, ...]] = ("receiver",)
    """Halves that write versions to files."""
    waits_for_room: ClassVar[bool] = False
    """A publisher without room for a version writes it when there is some, instead of saying so."""

    @classmethod
    def table(cls, folder: Path) -> dict[str, Any]:
        """The transport's table of a config; ``folder`` is empty, with a short path."""
        raise pytest.UsageError("override table(): return the transport's table of a config")

    def link(self, told: Announcement) -> ShapedLink:
        """Stands between receivers and the publisher of ``told``."""
        return TcpLink(told.endpoints)

    def rot(self, world: TransportWorld, told: Announcement, at: int) -> None:
        """Flip a bit at a byte of a version where its publisher holds it."""
        world.publisher.ask("rot", version=told.version, at=at)

    def cut(self, world: TransportWorld, told: Announcement) -> None:
        """Cut a version short in the middle of block 1 where its publisher wrote it, if it writes versions to files."""
        pytest.fail("override cut(): 'publisher' is in stored_by")

    @pytest.fixture(scope="class")
    @classmethod
    def world(cls) -> Iterator[TransportWorld]:
        """The processes, closed after the last test."""
        with tempfile.TemporaryDirectory(dir="/tmp", prefix="w-") as folder, ExitStack() as stack:
            yield TransportWorld(cls.table(Path(folder)), Path(folder), stack)

    def test_announcements_out_of_order_and_twice(self, world: TransportWorld) -> None:
        first, second, third = (world.next_version() for _ in range(3))
        kept = [first, second]
        told = {v: world.publisher.publish(v, *kept) for v in (first, second, third)}
        for version in (third, first, third, second, second, first):
            self.arrives(world.receiver.fetch(told[version]), version)

    def test_clocks_that_jump_change_nothing(self, world: TransportWorld) -> None:
        publisher, receiver = world.publisher, world.receiver
        told = publisher.publish(world.next_version())
        with closing(self.link(told)) as link:
            slow = self.begin_slowly(
                receiver, link, told, DEADLINE_S, after=self.leased_at, keep=True
            )
            # Both ways on both sides, while a lease and a deadline run.
            publisher.clock.jump(DAY_S)
            receiver.clock.jump(-DAY_S)
            publisher.publish(world.next_version())
            publisher.clock.jump(-DAY_S)
            receiver.clock.jump(DAY_S)
            newer = publisher.publish(world.next_version())
            assert abs(publisher.ask("clock")["time"] - time.time() + DAY_S) < DAY_S / 2
            link.release()
            answer = slow.answer()
            self.arrives(answer, told.version)
            assert 0 <= answer["got"][0]["seconds"] < DEADLINE_S
        assert abs(receiver.ask("clock")["time"] - time.time() - DAY_S) < DAY_S / 2
        self.arrives(receiver.fetch(newer), newer.version)
        end = time.monotonic() + DEADLINE_S  # a sweeper may take its time
        while "error" not in (answer := receiver.fetch(told, 1.0)):
            assert time.monotonic() < end, "a version without retainers or readers is still kept"
        self.refused(answer, told)
        with closing(self.link(newer)) as link:
            if link.holds:
                link.hold(HELD_AT)
                receiver.begin(replace(newer, endpoints=link.endpoints), 1.0, who=["late"])
                receiver.clock.jump(-300 * DAY_S)  # a deadline by this clock would not come today
                self.refused(receiver.answer(), newer)
        publisher.clock.jump(0.0)
        receiver.clock.jump(0.0)

    def test_a_bit_that_flips_on_the_wire(self, world: TransportWorld) -> None:
        told = world.publisher.publish(world.next_version())
        if not self.wired:
            pytest.skip("there is no wire")
        with closing(self.link(told)) as link:
            linked = replace(told, endpoints=link.endpoints)
            link.flip(marker_of(content(told.version)), 1)
            self.arrives(world.receiver.fetch(linked, who=["once"]), told.version)
            assert link.flipped == 1
            link.flip(marker_of(content(told.version)), 1_000_000)
            answer = world.receiver.fetch(linked, who=["always"])
            assert link.flipped > 1
            self.refused(answer, told, r"block \d")

    def test_a_bit_that_flips_in_the_publishers_copy(self, world: TransportWorld) -> None:
        told = world.publisher.publish(world.next_version())
        self.rot(world, told, 2 * BLOCK + 11)
        answer = world.receiver.fetch(told, who=["late"])
        self.refused(answer, told, "block 2")
        newer = world.publisher.publish(world.next_version())
        self.arrives(world.receiver.fetch(newer), newer.version)

    def test_a_version_that_was_cut_short(self, world: TransportWorld) -> None:
        if "publisher" not in self.stored_by:
            pytest.skip("no version is in a file of the publisher")
        told = world.publisher.publish(world.next_version())
        self.cut(world, told)
        self.refused(world.receiver.fetch(told, who=["late"]), told, r"block 1|has \d+ bytes")
        world.publisher.kill()  # it would use what was cut again
        newer = world.publisher.publish(world.next_version())
        self.arrives(world.receiver.fetch(newer), newer.version)

    def test_names_that_lead_out_of_the_folder(self, world: TransportWorld) -> None:
        told = world.publisher.publish(world.next_version())
        self.arrives(world.receiver.fetch(told), told.version)
        above = world.folder.parent
        before = {path for path in above.glob("*") if "up" in path.name}
        for policy in ("../up", "up/../../up", "", "solver\r\nHost: up", "\0"):
            answer = world.receiver.fetch(replace(told, policy=policy), SHORT_S, keep=True)
            assert "malformed announcement" in answer.get("error", ""), answer
        for endpoint in told.endpoints:
            for wrong in (f"{endpoint}/../../up", "file:///etc/passwd", "/etc", "../up", ""):
                elsewhere = replace(told, endpoints=(wrong,), digest="0" * 32)
                self.refused(world.receiver.fetch(elsewhere, SHORT_S, keep=True), told)
        assert {path for path in above.glob("*") if "up" in path.name} == before
        assert world.receiver.ask("look") == {"held": [expected(told.version)]}

    def test_a_publisher_killed_while_it_publishes(self, world: TransportWorld) -> None:
        told = world.publisher.publish(world.next_version())
        self.arrives(world.receiver.fetch(told), told.version)
        doomed = world.next_version()
        world.publisher.order("hang", version=doomed)
        assert world.publisher.answer() == {"exporting": True}
        never = replace(told, version=doomed)
        self.refused(world.receiver.fetch(never, SHORT_S, keep=True), never)
        world.publisher.kill()
        self.refused(world.receiver.fetch(never, SHORT_S, keep=True), never)
        assert world.receiver.ask("look") == {"held": [expected(told.version)]}
        again = world.publisher.publish(world.next_version())
        self.arrives(world.receiver.fetch(again), again.version)

    def test_a_publisher_killed_while_it_serves(self, world: TransportWorld) -> None:
        before = world.publisher.publish(world.next_version())
        self.arrives(world.receiver.fetch(before), before.version)
        told = world.publisher.publish(world.next_version())
        with closing(self.link(told)) as link:
            # Longer than a busy machine takes to begin.
            slow = self.begin_slowly(
                world.receiver, link, told, DEADLINE_S / 2, who=["late"], keep=True
            )
            world.publisher.kill()
            link.release()
        whole, answer = [expected(before.version)], slow.answer()
        if self.outlives_its_publisher or not slow.held:
            self.arrives(answer, told.version)
            whole.append(expected(told.version))
        else:
            self.refused(answer, told)
        assert world.receiver.ask("look") == {"held": whole}
        again = world.publisher.publish(world.next_version())
        self.arrives(world.receiver.fetch(again), again.version)

    def test_no_room(self, world: TransportWorld) -> None:
        told = world.publisher.publish(world.next_version())
        self.arrives(world.receiver.fetch(told), told.version)
        newer = world.publisher.publish(world.next_version(), told.version)
        if "receiver" in self.stored_by:
            world.receiver.ask("room", size=1 << 20)
            answer = world.receiver.fetch(newer, who=["full"], keep=True)
            self.refused(answer, newer, "large|no room|writing a block to disk failed")
            world.receiver.ask("room", size=None)
        assert world.receiver.ask("look") == {"held": [expected(told.version)]}
        self.arrives(world.receiver.fetch(newer, who=["full"]), newer.version)
        if "publisher" not in self.stored_by:
            return
        world.publisher.ask("room", size=1 << 20)
        if self.waits_for_room:
            later = world.publisher.publish(world.next_version())
            world.publisher.ask("room", size=None)
            self.arrives(world.receiver.fetch(later), later.version)
        else:
            retained = [newer.version]
            with pytest.raises(WeightsError, match=r"large|no room"):
                for _ in range(8):  # room that is there already may be used again first
                    retained.append(world.next_version())
                    world.publisher.publish(retained[-1], *retained)
            world.publisher.ask("room", size=None)
            for _ in retained:  # of each version that was lost in the background it is told once
                with contextlib.suppress(WeightsError):
                    world.publisher.publish(world.next_version())
        again = world.publisher.publish(world.next_version())
        self.arrives(world.receiver.fetch(again), again.version)

    def test_a_slow_receiver_across_twenty_publishes(self, world: TransportWorld) -> None:
        told = world.publisher.publish(world.next_version())
        with closing(self.link(told)) as link:
            slow = self.begin_slowly(world.receiver, link, told, 2 * DEADLINE_S, who=["slow"])
            newest = [world.publisher.publish(world.next_version()) for _ in range(20)][-1]
            link.release()
            self.arrives(slow.answer(), told.version)
        assert world.receiver.ask("look") == {"held": [expected(told.version)]}
        self.arrives(world.receiver.fetch(newest), newest.version)

    def test_one_of_eight_receivers_stalls(self, world: TransportWorld) -> None:
        told = world.publisher.publish(world.next_version())
        stopped = world.start("receiver", "stopped")
        with closing(self.link(told)) as link:
            slow = self.begin_slowly(stopped, link, told, 20 * DEADLINE_S)
            os.kill(stopped.process.pid, signal.SIGSTOP)
            link.release()
            others = [f"raas-{number}" for number in range(7)]
            self.arrives(world.receiver.fetch(told, who=others), told.version, 7)
            newer = world.publisher.publish(world.next_version())
            self.arrives(world.receiver.fetch(newer, who=others), newer.version, 7)
            os.kill(stopped.process.pid, signal.SIGCONT)
            self.arrives(slow.answer(), told.version)
            assert stopped.ask("look") == {"held": [expected(told.version)]}
        stopped.close()

    def test_another_token(self, world: TransportWorld) -> None:
        if not self.guarded:
            pytest.skip("processes of one user on one host share it")
        told = world.publisher.publish(world.next_version())
        for token in ("another", ""):
            self.refused(world.receiver.fetch(told, 10 * DEADLINE_S, token=token), told)
        self.arrives(world.receiver.fetch(told), told.version)

    def begin_slowly(
        self,
        receiver: WeightPeer,
        link: ShapedLink,
        told: Announcement,
        deadline_s: float,
        after: int = HELD_AT,
        **how: object,
    ) -> Slow:
        """Begin a fetch, which stands still in the middle if the link can hold it, and has ended if not."""
        held = link.hold(after) if link.holds else None
        receiver.begin(replace(told, endpoints=link.endpoints), deadline_s, **how)
        if held is None:
            return Slow(receiver, receiver.answer())
        assert held.wait(DEADLINE_S), "the fetch did not begin"
        return Slow(receiver)

    def arrives(self, answer: dict[str, Any], version: int, count: int = 1) -> None:
        """The answer is that the version came, ``count`` times, bit by bit."""
        assert "error" not in answer, answer["error"]
        got = [(each["version"], each["fingerprint"]) for each in answer["got"]]
        assert got == [(version, expected(version))] * count

    def refused(self, answer: dict[str, Any], told: Announcement, naming: str = "") -> None:
        """The answer is an error that names the version, and ``naming``."""
        assert "error" in answer, f"{answer} instead of an error"
        assert re.search(self.named.format(told.version), answer["error"]), answer["error"]
        assert re.search(naming, answer["error"]), answer["error"]
