"""Transport ``disk`` keeps what every transport promises."""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any, ClassVar

import pytest

from astraflow_core.protocols.transport import Publisher
from astraflow_plugin_disk.publisher import DiskPublisher
from astraflow_testing.conformance._transports import tensors
from astraflow_testing.conformance._transports.transport_checks import arrives
from astraflow_testing.conformance._transports.transport_rig import TransportRig
from astraflow_testing.conformance.transport import ShapedLink, TransportConformance

_NUMBERS = itertools.count()


class MirrorLink:
    """A mirror of a publisher's folder, of hard links; its leases are the publisher's own.

    While it holds, all parts but the first are missing in it, as they are on a network file system that lags.
    What the publisher has removed in the meantime does not come back.
    """

    holds = True

    def __init__(self, publisher: Publisher) -> None:
        assert isinstance(publisher, DiskPublisher)
        publisher.finish()
        self._real = Path(publisher.endpoints[0])
        self._mirror = self._real.with_name(f"mirror-{next(_NUMBERS)}")
        self._stop = threading.Event()
        self._watcher: threading.Thread | None = None
        self.flipped = 0
        (self._real / "readers").mkdir(exist_ok=True)
        self._mirror.mkdir()
        (self._mirror / "readers").symlink_to(self._real / "readers")
        self._link()

    @property
    def endpoints(self) -> tuple[str, ...]:
        return (str(self._mirror),)

    def _link(self) -> None:
        for folder in os.listdir(self._real):
            if not folder.startswith("v"):
                continue
            (self._mirror / folder).mkdir(exist_ok=True)
            with suppress(FileNotFoundError):  # the publisher has removed the version meanwhile
                for name in os.listdir(self._real / folder):
                    with suppress(FileExistsError):
                        os.link(self._real / folder / name, self._mirror / folder / name)

    def flip(self, marker: bytes, times: int) -> None:
        for path in self._mirror.rglob("data-*"):
            data = bytearray(path.read_bytes())
            position = data.find(marker)
            if position >= 0:
                data[position] ^= 1
                path.unlink()
                path.write_bytes(data)
                self.flipped += 1

    def hold(self, after: int) -> threading.Event:
        for path in self._mirror.rglob("data-*"):
            if path.name != "data-00000":
                path.unlink()
        held = threading.Event()

        def watch() -> None:
            while not self._stop.wait(0.01):
                if any(not path.suffix for path in (self._real / "readers").iterdir()):
                    held.set()
                    return

        self._watcher = threading.Thread(target=watch, daemon=True)
        self._watcher.start()
        return held

    def release(self) -> None:
        self._link()

    def close(self) -> None:
        self._stop.set()
        if self._watcher is not None:
            self._watcher.join()
        for path in self._mirror.rglob("v*/*"):
            path.unlink()
        (self._mirror / "readers").unlink(missing_ok=True)


class TestDisk(TransportConformance):
    expected_failures: ClassVar[dict[str, str]] = {
        "test_a_killed_publisher_is_an_error_in_time": "a version in a store is as good after its publisher's death"
    }

    @pytest.fixture
    def table(self, tmp_path: Path) -> dict[str, Any]:
        return {"use": "disk", "url": str(tmp_path / "store"), "part_mb": 2, "give_up_after_s": 0.2}

    @pytest.fixture
    def link(self) -> Iterator[Callable[[Publisher], ShapedLink]]:
        with ExitStack() as stack:
            yield lambda publisher: stack.enter_context(closing(MirrorLink(publisher)))

    def test_a_version_outlives_its_publisher(self, rig: TransportRig) -> None:
        peer, told = rig.publishing_peer()
        arrives(rig.receiver("raas-early"), told, tensors.model(1))
        peer.kill()
        arrives(rig.receiver("raas-late"), told, tensors.model(1))
