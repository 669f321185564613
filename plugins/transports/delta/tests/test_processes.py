"""Trainer and RaaS in processes of their own, with what goes wrong between them."""

from __future__ import annotations

import hashlib
import json
import select
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from astraflow_core.errors import WeightsError
from astraflow_core.types import Announcement
from astraflow_testing.conformance.transport import TcpLink

pytestmark = pytest.mark.slow
TOKEN = "a-token-of-the-run"
DEADLINE_S = 30.0


class Trainer:
    """The process of ``peer.py``."""

    def __init__(self, folder: Path, blocks: int) -> None:
        self.process = subprocess.Popen(
            [
                sys.executable,
                str(Path(__file__).with_name("peer.py")),
                str(folder),
                TOKEN,
                str(blocks),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.sha256: dict[int, str] = {}

    def publish(self, density: float = 0.01) -> Announcement:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(f"publish {density}\n")
        self.process.stdin.flush()
        ready, _, _ = select.select([self.process.stdout], [], [], 50)
        told: dict[str, Any] = json.loads(self.process.stdout.readline() if ready else "{}")
        self.sha256[told["version"]] = told.pop("sha256")
        return Announcement(**(told | {"endpoints": tuple(told["endpoints"])}))

    def check(self, source: Any, version: int) -> None:
        """The source holds what the trainer says it published, bit by bit."""
        data = source.path.read_bytes()
        header = 8 + int.from_bytes(data[:8], "little")
        assert source.version == version
        assert hashlib.sha256(data[header:]).hexdigest() == self.sha256[version]

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate(timeout=10)


@pytest.fixture
def trainer(tmp_path: Path) -> Iterator[Callable[[int], Trainer]]:
    started: list[Trainer] = []

    def start(blocks: int = 3) -> Trainer:
        started.append(Trainer(tmp_path, blocks))
        return started[-1]

    yield start
    for each in started:
        each.kill()


def test_a_receiver_follows_and_catches_up_from_five_versions_behind(
    rig: Any, trainer: Any
) -> None:
    peer, steady, late = trainer(), rig.receiver(), rig.receiver()
    held = None
    moved = {}
    for version in range(1, 11):
        told = peer.publish()
        source = steady.fetch(told, DEADLINE_S)
        peer.check(source, version)
        moved[version] = source.bytes_received
        if held is not None:
            steady.release(held)
        held = source
        if version in (4, 9):
            caught_up = late.fetch(told, DEADLINE_S)
            peer.check(caught_up, version)
            moved["late", version] = caught_up.bytes_received
    whole, one = moved[1], moved[10]
    assert all(moved[version] < whole / 50 for version in range(2, 11))
    assert moved["late", 4] == pytest.approx(whole, rel=0.01)
    assert moved["late", 9] < 5.5 * one


def test_a_flipped_bit_of_a_delta_on_its_way_costs_a_second_try_or_a_block(
    rig: Any, trainer: Any
) -> None:
    peer = trainer()
    told = peer.publish()
    for times, at_most in ((1, 0.05), (1_000_000, 0.7)):
        receiver = rig.receiver()
        receiver.fetch(told, DEADLINE_S)
        told = peer.publish()
        link = objects(told)[f"link-{told.version - 1}-{told.version}"]
        with closing(TcpLink(told.endpoints)) as bad:
            bad.flip(link[len(link) // 2 :][:32], times)
            source = receiver.fetch(replace(told, endpoints=bad.endpoints), DEADLINE_S)
            assert bad.flipped >= 1
        peer.check(source, told.version)
        assert source.bytes_received < at_most * told.size


def test_a_trainer_killed_in_the_middle_of_a_delta_is_an_error_and_nothing_is_torn(
    rig: Any, trainer: Any
) -> None:
    peer, receiver = trainer(), rig.receiver()
    first = receiver.fetch(peer.publish(), DEADLINE_S)
    told = peer.publish(0.3)
    with closing(TcpLink(told.endpoints)) as link, ThreadPoolExecutor(1) as pool:
        held = link.hold(100_000)
        fetching = pool.submit(receiver.fetch, replace(told, endpoints=link.endpoints), 5.0)
        assert held.wait(20)
        peer.kill()
        link.release()
        with pytest.raises(WeightsError, match="version 2 of policy 'solver'"):
            fetching.result(40)
    peer.check(first, 1)
    assert [p.name for p in rig.folder.rglob("*.part")] == []


def test_a_slow_receiver_gets_its_version_while_twenty_more_are_published(
    rig: Any, trainer: Any
) -> None:
    peer, receiver = trainer(), rig.receiver()
    receiver.fetch(peer.publish(), DEADLINE_S)
    told = peer.publish(0.3)
    with closing(TcpLink(told.endpoints)) as link, ThreadPoolExecutor(1) as pool:
        held = link.hold(100_000)
        fetching = pool.submit(receiver.fetch, replace(told, endpoints=link.endpoints), 50.0)
        assert held.wait(20)
        for _ in range(20):
            newest = peer.publish(0.001)
        link.release()
        source = fetching.result(50)
    peer.check(source, 2)
    assert source.bytes_received < told.size / 4
    peer.check(receiver.fetch(newest, DEADLINE_S), 22)


def test_receivers_in_step_and_behind_fetch_at_once(rig: Any, trainer: Any) -> None:
    peer = trainer()
    receivers = [rig.receiver() for _ in range(4)]
    told = peer.publish()
    for receiver in receivers:
        receiver.fetch(told, DEADLINE_S)
    for _ in range(3):
        told = peer.publish()
        receivers[0].fetch(told, DEADLINE_S)
    together = threading.Barrier(len(receivers))

    def fetch(receiver: Any) -> Any:
        together.wait(20)
        return receiver.fetch(told, DEADLINE_S)

    with ThreadPoolExecutor(len(receivers)) as pool:
        for source in pool.map(fetch, receivers):
            peer.check(source, 4)
            assert source.bytes_received < told.size / 10


def objects(told: Announcement) -> dict[str, bytes]:
    """The deltas of a version, fetched without any code of the plugin's."""
    from urllib.request import Request, urlopen

    base = f"{told.endpoints[0]}/v1/weights/solver/{told.version}/objects"

    def get(name: str) -> bytes:
        request = Request(f"{base}/{name}", headers={"Authorization": f"Bearer {TOKEN}"})
        with urlopen(request, timeout=10) as response:
            return bytes(response.read())

    import msgspec

    listed = msgspec.msgpack.decode(get("links")[16:])
    return {f"link-{entry[0]}-{entry[2]}": get(f"link-{entry[0]}-{entry[2]}") for entry in listed}
