"""Halves of a weight transport, each in a process of its own that obeys one line of JSON after another.

As a program (``python -m … JSON``) it is such a process. What a test asks of it is done by the transport's own code;
beside that it can be short of room on disk, have a bit flipped in its memory, and have a wall clock that jumps.
"""

from __future__ import annotations

import hashlib
import json
import os
import resource
import select
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path
from typing import Any

from astraflow_core.errors import WeightsError
from astraflow_core.types import Announcement, ExportedTensor
from astraflow_testing.conformance._transports import tensors
from astraflow_testing.conformance._transports.transport_rig import TOKEN, announcement, build

ANSWER_S = 60.0
_OFFSET = struct.Struct("d")


@lru_cache(maxsize=2)
def content(version: int) -> list[ExportedTensor]:
    """The tensors of a version, four blocks: one in a thousand bytes differs from those of any other."""
    return tensors.changed(_base(), version)


@lru_cache(maxsize=1)
def _base() -> list[ExportedTensor]:
    return tensors.model(0, 8)


def fingerprint(held: tensors.Contents) -> str:
    """Of names, dtypes, shapes and bytes."""
    digest = hashlib.sha256()
    for name, (dtype, shape, data) in sorted(held.items()):
        digest.update(f"{name} {dtype} {shape}".encode())
        digest.update(data)
    return digest.hexdigest()


@lru_cache(maxsize=64)
def expected(version: int) -> str:
    """The fingerprint of what a version holds."""
    return fingerprint(tensors.contents(content(version)))


class Clock:
    """The wall clock of a process; :meth:`jump` moves it while the process runs."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.write_bytes(_OFFSET.pack(0.0))

    def jump(self, seconds: float) -> None:
        """It is ``seconds`` off the true time from now on."""
        with self.path.open("r+b", buffering=0) as file:
            file.write(_OFFSET.pack(seconds))  # over the old one: there is no moment without a time


def live_by(clock: Path) -> None:
    """Make every wall clock that Python code of this process reads that of :class:`Clock`: ``time.time`` and all of
    ``time`` that takes it by default. Nothing here or below reads another one: what waits is on the monotonic
    clock, in Python and in libzmq, and no file's date is looked at."""
    file = clock.open("rb", buffering=0)
    true_time, true_gmtime, true_localtime, strftime = (
        time.time, time.gmtime, time.localtime, time.strftime,
    )  # fmt: skip

    def now() -> float:
        offset: float = _OFFSET.unpack(os.pread(file.fileno(), _OFFSET.size, 0))[0]
        return true_time() + offset

    def gmtime(seconds: float | None = None) -> time.struct_time:
        return true_gmtime(now() if seconds is None else seconds)

    def localtime(seconds: float | None = None) -> time.struct_time:
        return true_localtime(now() if seconds is None else seconds)

    def formatted(form: str, at: Any = None) -> str:
        return strftime(form, localtime() if at is None else at)

    time.time, time.gmtime, time.localtime = now, gmtime, localtime  # type: ignore[assignment]
    time.time_ns = lambda: int(now() * 1e9)
    time.strftime = formatted


class WeightPeer:
    """The process, as a test sees it. ``half`` is ``"publisher"`` or ``"receiver"``, ``table`` the transport's."""

    def __init__(self, half: str, table: dict[str, Any], directory: Path) -> None:
        self.clock = Clock(directory / f"clock-{time.monotonic_ns()}")
        order = {
            "half": half,
            "table": table,
            "directory": str(directory),
            "clock": str(self.clock.path),
            "path": sys.path,
        }
        self.process = subprocess.Popen(
            [sys.executable, "-m", __name__, json.dumps(order)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,  # a line that waits in a buffer of ours is not seen by select
        )
        self._number = 0

    def order(self, do: str, **arguments: object) -> None:
        """Begin something; :meth:`answer` returns the result."""
        self._number += 1
        line = json.dumps({"do": do, "number": self._number, **arguments}) + "\n"
        assert self.process.stdin is not None
        self.process.stdin.write(line.encode())

    def answer(self, within_s: float = ANSWER_S) -> dict[str, Any]:
        """The next thing that it says of the last order."""
        assert self.process.stdout is not None
        until = time.monotonic() + within_s
        while select.select([self.process.stdout], [], [], max(0.0, until - time.monotonic()))[0]:
            line = self.process.stdout.readline()
            if not line:
                raise EOFError(f"the process ended with {self.process.wait(10)}")
            answer: dict[str, Any] = json.loads(line)
            if answer.pop("number") == self._number:
                return answer
        raise TimeoutError(f"the process sent nothing for {within_s} s")

    def ask(self, do: str, **arguments: object) -> dict[str, Any]:
        """Do it and return the result."""
        self.order(do, **arguments)
        return self.answer()

    def publish(self, version: int, *retained: int) -> Announcement:
        """Have it publish :func:`content`, and drop what is neither the newest nor ``retained`` nor leased."""
        told = self.ask("publish", version=version, retained=retained)
        if "error" in told:
            raise WeightsError(told["error"])
        return Announcement(**(told | {"endpoints": tuple(told["endpoints"])}))

    def begin(self, told: Announcement, deadline_s: float, **how: object) -> None:
        """Have it begin a fetch; returns when it is about to."""
        self.order("fetch", wanted=asdict(told), deadline_s=deadline_s, **how)
        assert self.answer() == {"fetching": True}

    def fetch(self, told: Announcement, deadline_s: float = 30.0, **how: object) -> dict[str, Any]:
        """Have it fetch: ``{"got": [{version, fingerprint, path, seconds}]}`` or ``{"error"}``."""
        self.begin(told, deadline_s, **how)
        return self.answer()

    def kill(self) -> None:
        """Kill it, as in a crash."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(10)

    def close(self) -> None:
        """End it and its pipes."""
        self.process.kill()
        self.process.communicate(timeout=10)


class Liar:
    """A program that publishes and lies: it says first what a trainer would announce, and repeats each line that it is
    given, the lie from then on."""

    def __init__(self, program: Path, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(program), json.dumps(sys.path), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
        )
        told: dict[str, Any] = json.loads(self._line())
        self.told = Announcement(**(told | {"endpoints": tuple(told["endpoints"])}))

    def lie(self, about: str) -> Announcement:
        """Begin another lie; what to fetch."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{about}\n".encode())
        assert self._line() == f"{about}\n".encode()
        return self.told

    def close(self) -> None:
        """End it and its pipes."""
        self.process.kill()
        self.process.communicate(timeout=10)

    def _line(self) -> bytes:
        assert self.process.stdout is not None
        ready, _, _ = select.select([self.process.stdout], [], [], ANSWER_S)
        assert ready, "the lying process sent nothing"
        return self.process.stdout.readline()


class _Half:
    """What both halves can be told."""

    def __init__(self, order: dict[str, Any]) -> None:
        self._order, self._number = order, 0

    def obey(self) -> None:
        for line in sys.stdin:
            given = json.loads(line)
            self._number = given.pop("number")
            try:
                self.say(**getattr(self, f"do_{given.pop('do')}")(**given))
            except WeightsError as error:
                self.say(error=str(error))

    def say(self, **facts: object) -> None:
        sys.stdout.write(json.dumps({"number": self._number, **facts}) + "\n")
        sys.stdout.flush()

    def do_room(self, size: int | None) -> dict[str, Any]:
        """No file may be larger than ``size``, as on a disk that is full; None: no limit."""
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        most = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
        resource.setrlimit(resource.RLIMIT_FSIZE, (most if size is None else size, most))
        return {}

    def do_clock(self) -> dict[str, Any]:
        return {"time": time.time(), "date": time.strftime("%Y-%m-%d", time.gmtime())}

    def do_peak(self) -> dict[str, Any]:
        """The most memory that the process ever had, in bytes."""
        return {"peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10}


class _Publishing(_Half):
    def __init__(self, order: dict[str, Any], stack: ExitStack) -> None:
        super().__init__(order)
        made = build(order["table"], Path(order["directory"]), "trainer").publisher()
        self._publisher: Any = stack.enter_context(closing(made))

    def do_publish(self, version: int, retained: list[int]) -> dict[str, Any]:
        return self._publish(version, content(version), frozenset(retained))

    def do_hang(self, version: int) -> dict[str, Any]:
        """Publish, but stand still in the middle of the export until the next line comes."""

        def export() -> Iterator[ExportedTensor]:
            first, *others = content(version)
            yield first
            self.say(exporting=True)
            sys.stdin.readline()
            yield from others

        return self._publish(version, export(), frozenset())

    def do_rot(self, version: int, at: int) -> dict[str, Any]:
        """Flip a bit of a version that is held in the memory of this process."""
        with self._publisher._store.reading(version, "") as held:
            held.snapshot.data[at] ^= 16
        return {}

    def _publish(
        self, version: int, export: Iterable[ExportedTensor], retained: frozenset[int]
    ) -> dict[str, Any]:
        publisher = self._publisher
        manifest = publisher.publish(version, export, version - 1 or None)
        publisher.retain(retained)
        return asdict(announcement(manifest, publisher.endpoints))


class _Receiving(_Half):
    def __init__(self, order: dict[str, Any], stack: ExitStack) -> None:
        super().__init__(order)
        self._stack = stack
        self._receivers: dict[tuple[str, str], Any] = {}
        self._held: list[tuple[Any, Any]] = []

    def do_fetch(
        self,
        wanted: dict[str, Any],
        deadline_s: float,
        who: Sequence[str] = ("raas",),
        token: str = TOKEN,
        keep: bool = False,
    ) -> dict[str, Any]:
        """By several receivers at once; what any had before is released, unless it is to be kept."""
        told = Announcement(**(wanted | {"endpoints": tuple(wanted["endpoints"])}))
        receivers = [self._receiver(name, token) for name in who]
        self.say(fetching=True)
        with ThreadPoolExecutor(len(receivers)) as pool:
            sources = list(pool.map(lambda each: each.fetch(told, deadline_s), receivers))
        if not keep:
            self.do_release()
        self._held += zip(receivers, sources, strict=True)
        return {
            "got": [
                {
                    "version": source.version,
                    "fingerprint": fingerprint(tensors.read(source.path)),
                    "path": str(source.path),
                    "seconds": source.seconds,
                }
                for source in sources
            ]
        }

    def do_look(self) -> dict[str, Any]:
        """What is held now, as it is now."""
        return {"held": [fingerprint(tensors.read(source.path)) for _, source in self._held]}

    def do_release(self) -> dict[str, Any]:
        """Let go of all that is held."""
        while self._held:
            receiver, source = self._held.pop()
            receiver.release(source)
        return {}

    def _receiver(self, name: str, token: str) -> Any:
        if (name, token) not in self._receivers:
            directory = Path(self._order["directory"])
            made = build(self._order["table"], directory, name, token).receiver()
            self._receivers[name, token] = self._stack.enter_context(closing(made))
        return self._receivers[name, token]


def main() -> None:
    """Be one half until standard input ends."""
    order = json.loads(sys.argv[1])
    sys.path[:] = order["path"]
    live_by(Path(order["clock"]))
    with ExitStack() as stack:
        half = _Publishing if order["half"] == "publisher" else _Receiving
        half(order, stack).obey()


if __name__ == "__main__":
    main()
