"""A version that two processes publish, one of which is killed while a receiver fetches."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from astraflow_core.errors import WeightsError
from astraflow_core.types import Manifest, Ranks, TensorSlice
from astraflow_weights.block_range import BlockRange
from astraflow_weights.shards.publisher import HttpShardPublisher

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

TOKEN = "a-token-of-the-run"
ROWS, COLUMNS = 4096, 2048  # 16 MiB, 9 blocks with the header
DEADLINE_S = 30.0


def slices(rank: int, version: int) -> Iterator[TensorSlice]:
    """Half of the rows."""
    whole = np.random.default_rng(version).integers(0, 2**16, (ROWS, COLUMNS), dtype=np.uint16)
    half = ROWS // 2
    rows = whole[rank * half : (rank + 1) * half]
    yield TensorSlice("a.weight", "BF16", whole.shape, rank * half * COLUMNS, rows)


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def rank_1(dies_in: int) -> None:
    """Publishes versions 1 and 2, then serves; sending its third MiB of version ``dies_in`` kills it."""

    def share(mine: bytes) -> list[bytes]:
        say(mine.hex())
        return [bytes.fromhex(said) for said in json.loads(sys.stdin.readline())]

    publisher = HttpShardPublisher(
        "solver", TOKEN, Ranks(1, 2, 1, DEADLINE_S), share,
        host="127.0.0.1", port=0, advertise=None,
    )  # fmt: skip
    doomed: list[BlockRange] = []
    sent = itertools.count(1)
    read = BlockRange.__getitem__

    def dying(part: BlockRange, wanted: slice) -> memoryview:
        if part in doomed and next(sent) == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        return read(part, wanted)

    BlockRange.__getitem__ = dying  # type: ignore[method-assign]
    for version in (1, 2):
        publisher.publish(version, lambda number=version: slices(1, number), None)  # type: ignore[misc]
        if version == dies_in:
            with publisher._store.reading(version, "") as held:
                doomed.append(held.snapshot.data)
        say("published")
    sys.stdin.read()


class Two:
    """Rank 0 here, rank 1 in a process of its own."""

    def __init__(self, dies_in: int, stack: ExitStack) -> None:
        code = f"import sys; sys.path[:] = {sys.path!r}; sys.path.insert(0, {str(Path(__file__).parent)!r})"
        code += f"; import test_ranks; test_ranks.rank_1({dies_in})"
        self.process = stack.enter_context(_running(code))
        self.publisher = stack.enter_context(
            closing(
                HttpShardPublisher(
                    "solver", TOKEN, Ranks(0, 2, 0, DEADLINE_S), self._share,
                    host="127.0.0.1", port=0, advertise=None,
                )
            )
        )  # fmt: skip

    def _share(self, mine: bytes) -> list[bytes]:
        said = [mine.hex(), self._line()]
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(said) + "\n")
        self.process.stdin.flush()
        return [bytes.fromhex(each) for each in said]

    def _line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def publish(self, version: int) -> Manifest:
        manifest = self.publisher.publish(version, lambda: slices(0, version), None)
        assert self._line() == "published"
        return manifest


@contextmanager
def _running(code: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate(timeout=10)


def content(version: int) -> bytes:
    return b"".join(np.asarray(each.data).tobytes() for r in (0, 1) for each in slices(r, version))


def test_a_rank_killed_while_a_receiver_fetches_is_named_and_the_old_version_stays(
    rig: Any, announce: Any, read: Any
) -> None:
    with ExitStack() as stack:
        two = Two(2, stack)
        receiver = rig.receiver()
        first = two.publish(1)
        old = receiver.fetch(announce(first, *two.publisher.endpoints), DEADLINE_S)
        second = two.publish(2)
        with pytest.raises(
            WeightsError,
            match=r"version 2 of policy 'solver' could not be fetched: .*source http://127\.0\.0\.1:\d+ failed: "
            r".*; blocks missing: [1-4], the first is block \d",
        ):
            receiver.fetch(announce(second, *two.publisher.endpoints), DEADLINE_S)
        assert two.process.wait(10) == -9
        assert read(old.path) == {"a.weight": content(1)}
        assert [file.name for file in old.path.parent.glob("*.part")] == []
    with ExitStack() as stack:  # both start again
        again = Two(0, stack)
        again.publish(1)
        second = again.publish(2)
        new = receiver.fetch(announce(second, *again.publisher.endpoints), DEADLINE_S)
        assert read(new.path) == {"a.weight": content(2)}
