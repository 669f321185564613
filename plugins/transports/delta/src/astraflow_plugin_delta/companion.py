"""Makes the delta of each version while its snapshot is taken."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor

from astraflow_core.types import TensorSpec
from astraflow_core.types.weights import DTYPE_BYTES
from astraflow_plugin_delta.coding.codec import Codec, may_be_raw
from astraflow_plugin_delta.coding.frame import WIDTHS
from astraflow_plugin_delta.link import LinkHead, pack_link
from astraflow_plugin_delta.log import LinkLog
from astraflow_weights.snapshot import Snapshot

MOST_PENDING = 1 << 21
"""Changes that may wait for the packing thread, 8 bytes each; beyond that the caller packs."""
log = logging.getLogger(__name__)


class DeltaCompanion:
    """See :class:`astraflow_weights.publish.publisher.Companion`.

    The comparison runs where the snapshot is taken, on a block that is still in the cache; positions and
    steps go to a thread that packs them meanwhile. Merged links are made after publishing. ``figures``: bytes of the
    newest delta, and the share of the elements that it changes; empty if there is none.
    """

    def __init__(self, codec: Codec, history: int) -> None:
        self._codec = codec
        self._log = LinkLog(history)
        self._packing = ThreadPoolExecutor(1, "delta-pack")
        self._merging = ThreadPoolExecutor(1, "delta-merge")
        self._merged: Future[None] | None = None
        self._previous: Snapshot | None = None
        self._widths: list[int] = []
        self._frames: dict[int, Future[bytes] | bytes] = {}
        self._pending = 0
        self._changed = self._compared = 0
        self.figures: dict[str, float] = {}

    def begin(self, previous: Snapshot | None) -> None:
        """Compare with ``previous`` from now on."""
        self._frames.clear()
        self._pending = 0
        self._changed = self._compared = 0
        self.figures = {}
        self._previous = previous
        if previous is not None and not self._widths:
            manifest = previous.manifest
            self._widths = block_widths(manifest.tensors, manifest.size, manifest.block_size)

    def block(self, index: int, data: memoryview) -> None:
        """Find what changed in a block."""
        if self._previous is None:
            return
        start = index * self._previous.manifest.block_size
        with self._previous.data[start : start + len(data)] as old:
            changes = self._codec.diff(old, data, self._widths[index])
        assert changes.positions is not None
        count = len(changes.positions)
        self._changed += count
        self._compared += changes.elements
        if not count:
            return
        if may_be_raw(changes) or 2 * count > changes.elements:
            self._frames[index] = self._codec.encode(changes, data, index)
        elif self._pending + count > MOST_PENDING:
            self._drain()
            self._frames[index] = self._codec.encode(changes, None, index)
        else:
            self._pending += count
            self._frames[index] = self._packing.submit(self._codec.encode, changes, None, index)

    def objects(self, snapshot: Snapshot) -> Mapping[str, bytes]:
        """All links on offer."""
        previous, self._previous = self._previous, None
        if previous is None:
            return self._log.objects()
        manifest = snapshot.manifest
        self._drain()
        frames = [(index, _done(self._frames[index])) for index in sorted(self._frames)]
        self._frames.clear()
        head = LinkHead(
            manifest.policy,
            previous.manifest.version,
            previous.manifest.digest,
            manifest.version,
            manifest.digest,
            manifest.size,
            manifest.block_size,
            b"",
        )
        data = pack_link(head, frames)
        density = self._changed / max(self._compared, 1)
        self.figures = {"delta_bytes": float(len(data)), "delta_density": density}
        log.info(
            "policy %r: %d bytes lead from version %d to %d, %.1f %% of the whole",
            head.policy, len(data), head.base, head.version, 100 * len(data) / max(head.size, 1),
        )  # fmt: skip
        self._log.add(head, data, snapshot.data.nbytes)
        objects = self._log.objects()
        if self._merged is None or self._merged.done():
            self._merged = self._merging.submit(self._merge)
        return objects

    def close(self) -> None:
        """End the threads; closing twice is allowed."""
        self._packing.shutdown(cancel_futures=True)
        self._merging.shutdown(cancel_futures=True)
        self._frames.clear()
        self._previous = None

    def _merge(self) -> None:
        try:
            self._log.merge(self._codec)
        except Exception:  # the deltas themselves are on offer; the log has the failure
            log.exception("merging deltas failed")

    def _drain(self) -> None:
        """Wait for the packing thread, and raise what it raised."""
        for index, frame in self._frames.items():
            self._frames[index] = _done(frame)
        self._pending = 0


def _done(frame: Future[bytes] | bytes) -> bytes:
    return frame if isinstance(frame, bytes) else frame.result()


def block_widths(tensors: tuple[TensorSpec, ...], size: int, block_size: int) -> list[int]:
    """Bytes of an element in each block: the narrowest of the tensors that reach into it, so that every
    tensor in it starts and ends at an element; 1 where the block itself does not."""
    widths = [WIDTHS[-1]] * -(-size // block_size)
    for tensor in tensors:
        width = min(DTYPE_BYTES[tensor.dtype], WIDTHS[-1])
        for block in range(tensor.start // block_size, -(-tensor.end // block_size)):
            widths[block] = min(widths[block], width)
    if widths and size % widths[-1]:
        widths[-1] = 1
    return widths
