"""A trainer's process that has the run's token and serves wrong deltas: those of version 2 have the fault that its
input names, and its blocks are damaged too, so that the receiver cannot fall back to them. Prints the announcement of
version 2, and repeats each line of its input once that fault is active. ``first`` is version 1, correct and
complete."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import xxhash

from astraflow_plugin_delta import link as links
from astraflow_plugin_delta.coding.codec import Codec
from astraflow_plugin_delta.coding.frame import RAW, STEPS, Head, seal
from astraflow_plugin_delta.coding.kernel_numpy import NumpyKernel
from astraflow_plugin_delta.companion import DeltaCompanion
from astraflow_plugin_delta.link import INDEX, LinkEntry, entry_of, open_index, open_link, pack_link
from astraflow_testing.conformance._transports.transport_rig import TOKEN, announcement
from astraflow_testing.weight_peers import content
from astraflow_weights.publish.publisher import HttpPublisher

BLOCK = 2 << 20


class Lies:
    """Side objects of version 2, by fault."""

    def __init__(self, honest: dict[str, Any]) -> None:
        self._honest = honest
        (self._entry,) = [e for e in open_index(bytes(honest[INDEX])) if e.base == 1]
        self._link = bytes(honest[self._entry.name])
        opened = open_link(memoryview(self._link), self._entry)
        self._head = opened.head
        self._frames = [(b, bytes(f)) for b, fs in opened.frames.items() for f in fs]

    def of(self, lie: str) -> dict[str, Any]:
        elements = BLOCK // 2
        zeros, ones = bytes(4 << 20), b"\xff" * (elements // 8)
        gaps = Head(STEPS, 2, elements, elements, gap_bytes=len(zeros))
        magnitudes = Head(
            STEPS, 2, elements, elements, elements, gap_bytes=len(ones), magnitude_bytes=len(ones)
        )
        far = Head(RAW, 2, elements, elements, rice=26, gap_bytes=(1 << 32) - 1)
        lies: dict[str, Callable[[], dict[str, Any]]] = {
            "honest deltas": lambda: self._honest,
            "gaps without end": lambda: self._linked([(0, seal(gaps, zeros, 0))]),
            "magnitudes without end": lambda: self._linked(
                [(0, seal(magnitudes, ones + zeros, 0))]
            ),
            "four gigabytes of gaps": lambda: self._linked([(0, seal(far, b"", 0))]),
            "a million frames": lambda: self._table(np.zeros(1_000_000, "<u4"), 0),
            "a million blocks": lambda: self._table(np.arange(1_000_000, dtype="<u4"), 0),
            "frames of four gigabytes": lambda: self._table(np.zeros(1, "<u4"), (1 << 32) - 1),
            "a link of petabytes": lambda: self._announcement(self._link, size=1 << 50),
            "a list without end": lambda: {INDEX: bytes(64 << 20)},
            "a list of four billion": lambda: self._list(b"\xdd\xff\xff\xff\xff"),
            "a list of noise": lambda: self._list(bytes(range(256)) * 3000),
            "steps of another base": lambda: self._linked(
                [(b, f) for b, f in self._frames if b] + [(0, self._other_base())]
            ),
        }
        return lies[lie]()

    def _other_base(self) -> bytes:
        """Valid steps of block 0 whose base is weights that no receiver has."""
        codec = Codec(NumpyKernel())
        old, new = (np.full(BLOCK // 2, value, np.uint16) for value in (1, 2))
        before, after = old.data.cast("B"), new.data.cast("B")
        return codec.encode(codec.diff(before, after, 2), None, 0)

    def _linked(self, frames: list[tuple[int, bytes]]) -> dict[str, Any]:
        return self._announcement(pack_link(self._head, frames))

    def _table(self, blocks: Any, length: int) -> dict[str, Any]:
        """A link that is a table of frames, which all have this length."""
        table = np.zeros(len(blocks), links._TABLE)
        table["block"], table["length"] = blocks, length
        head = msgspec.structs.replace(self._head, table=table.tobytes())
        packed = msgspec.msgpack.encode(head)
        start = links._START.pack(links._MAGIC, len(packed), xxhash.xxh3_64_intdigest(packed))
        return self._announcement(start + packed)

    def _announcement(self, link: bytes, **changes: Any) -> dict[str, Any]:
        entry = entry_of(self._head, link)
        fields = {name: getattr(entry, name) for name in LinkEntry.__struct_fields__} | changes
        index = self._list(msgspec.msgpack.encode([LinkEntry(**fields)]))
        return {**index, entry.name: link}

    def _list(self, body: bytes) -> dict[str, Any]:
        return {INDEX: xxhash.xxh3_128_digest(body) + body}


def main() -> None:
    """Serve until standard input ends."""
    companion = DeltaCompanion(Codec(NumpyKernel()), 16)
    publisher = HttpPublisher(
        "solver", TOKEN, host="127.0.0.1", port=0, advertise=None, companion=companion
    )
    first = announcement(publisher.publish(1, content(1)), publisher.endpoints)
    second = announcement(publisher.publish(2, content(2), 1), publisher.endpoints)
    held = publisher._store._held[2]
    lies = Lies(dict(held.objects))
    for block in range(len(held.snapshot.manifest.blocks)):
        held.snapshot.data[block * BLOCK + 9] ^= 1
    Path(sys.argv[2]).write_text(json.dumps(asdict(first)))
    sys.stdout.write(json.dumps(asdict(second)) + "\n")
    sys.stdout.flush()
    for line in sys.stdin:
        objects = lies.of(line.strip())
        held.objects = {name: memoryview(data).cast("B") for name, data in objects.items()}
        sys.stdout.write(line)
        sys.stdout.flush()


if __name__ == "__main__":
    sys.path[:] = json.loads(sys.argv[1])
    main()
