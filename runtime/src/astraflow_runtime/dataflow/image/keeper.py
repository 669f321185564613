"""Writes images of the state while the run continues."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import NamedTuple

from astraflow_core.errors import RunFailed
from astraflow_runtime.dataflow.flow import Dataflow
from astraflow_runtime.dataflow.image.file import digest_before, write_image
from astraflow_runtime.dataflow.image.schema import Image
from astraflow_runtime.dataflow.image.whole import save_state
from astraflow_runtime.dataflow.journal.flushed import read_flushed
from astraflow_runtime.dataflow.journal.journal import Journal
from astraflow_runtime.dataflow.state import FlowState

log = logging.getLogger("astraflow.dataflow")

EVERY = 20_000
"""Entries after which another image is due: a restart reads some seconds of these."""
SHARE = 0.02
"""The most of the time that is spent on images."""
ROLLOUTS_S = 10.0
"""How long an image waits until the rollouts that it counts are stored."""
CLOSING_S = 10.0


class Written(NamedTuple):
    """An image: its ``size`` in bytes, for how long the dataflow ``stood`` still, and how long it took in all, in seconds."""

    size: int
    stood_s: float
    took_s: float


class ImageKeeper:
    """Keeps the image of ``flow`` next to its ``journal``. ``written_by``: see
    :class:`~astraflow_runtime.dataflow.image.schema.Image`; ``covered``: entries of the existing image, 0 without
    one. ``last``: what the last image took.
    """

    def __init__(self, flow: Dataflow, journal: Journal, written_by: str, covered: int) -> None:
        self._flow, self._journal, self._written_by = flow, journal, written_by
        self._covered = covered
        self._due_s = 0.0
        self._thread: threading.Thread | None = None
        self._stopped = ""
        self.last: Written | None = None

    def look(self) -> None:
        """Begin an image if one is due: copy the state, and write it on a thread. Called by the thread that changes the
        state, between two calls."""
        if self._thread is not None and self._thread.is_alive():
            return
        self._thread = None
        count = self._journal.count - self._covered
        if self._stopped or count < EVERY or time.monotonic() < self._due_s:
            return
        if self._flow.state.progress.ending or self._journal.trouble:
            return
        self._thread = threading.Thread(target=self._begin(), name="image", daemon=True)
        self._thread.start()

    def write_now(self) -> bool:
        """Write an image at once, while nothing changes the state; returns whether it is written."""
        self._begin()()
        return self._covered == self._journal.count

    def close(self) -> None:
        """Wait until the image that is being written is done."""
        if self._thread is not None:
            self._thread.join(CLOSING_S)

    def _begin(self) -> Callable[[], None]:
        """Copy the state; the function that is returned writes the image."""
        began, state, journal = time.monotonic(), self._flow.state, self._journal
        if name := remembering(state):
            self._stop(f"data policy {name!r} has a state and no state_dict")
            return lambda: None
        try:
            finish = save_state(self._flow)
        except Exception as error:  # noqa: BLE001
            # Code of data policies: an image only saves time, and must not end a run.
            self._stop(f"{type(error).__name__}: {error}")
            return lambda: None
        end, count, at_s, lines = journal.size, journal.count, state.clock(), state.records.lines
        rollouts, stood_s = state.rollouts.mark(), time.monotonic() - began

        def write() -> None:
            try:
                journal.sync()
                flushed = read_flushed(journal.path).entries
                if flushed < end:
                    log.info("no image of the state now: the disk has no room for the journal")
                    return
                if not state.rollouts.wait(rollouts, ROLLOUTS_S):
                    log.info("no image of the state now: rollouts wait to be stored")
                    return
                image = Image(
                    written_by=self._written_by,
                    end=end,
                    entries=count,
                    at_s=at_s,
                    lines=lines,
                    before=digest_before(journal.path, end),
                    state=finish(),
                )
                size = write_image(journal.path, image)
            except (OSError, RunFailed) as error:
                log.warning(
                    "no image of the state was written (the journal has everything): %s", error
                )
            except Exception as error:  # noqa: BLE001
                # States of data policies that are not JSON-like, as above.
                self._stop(f"{type(error).__name__}: {error}")
            else:
                self._covered = count
                self.last = Written(size, stood_s, time.monotonic() - began)
                log.debug("image of %d entries: %s", count, self.last)
            finally:
                self._due_s = time.monotonic() + (time.monotonic() - began) / SHARE

        return write

    def _stop(self, why: str) -> None:
        self._stopped = why
        log.warning(
            "no images of the state are written, so that a restart reads the whole journal: %s", why
        )


def remembering(state: FlowState) -> str:
    """The name of a data policy that has a state and cannot give it away; empty if there is none."""
    found = [chain.remembering for chain in state.chains_by_place().values()]
    if state.balance.rule_remembers:
        found.append(state.config.balance.use)
    return next(filter(None, found), "")
