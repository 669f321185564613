"""Continues a run from its image and the entries after it, or else from all entries."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import xxhash

from astraflow_core import __version__
from astraflow_core.config.models import RunConfig
from astraflow_core.installed.provenance import FILE
from astraflow_runtime.dataflow.flow import Dataflow
from astraflow_runtime.dataflow.image.file import Unusable, read_image
from astraflow_runtime.dataflow.image.schema import Image
from astraflow_runtime.dataflow.image.whole import restore_state
from astraflow_runtime.dataflow.journal.journal import Journal
from astraflow_runtime.dataflow.replay import JournalReplay

log = logging.getLogger("astraflow.dataflow")


class Continued(NamedTuple):
    """A dataflow that continues a run: ``covered`` entries are those of an image, 0 without one, and ``read`` those that
    were read after it."""

    flow: Dataflow
    covered: int
    read: int


def written_by(config: RunConfig, directory: Path | None = None) -> str:
    """Who writes images: the versions of the runtime and of the plugins of a run, and its config."""
    plugins = directory / FILE if directory is not None else None
    listed = plugins.read_bytes() if plugins is not None and plugins.exists() else b""
    table = json.dumps(config.model_dump(mode="json"), sort_keys=True).encode()
    return f"{__version__} {xxhash.xxh3_128_hexdigest(table + listed)}"


def continued(
    make: Callable[[], Dataflow], journal: Journal, set_time: Callable[[float], None], by: str
) -> Continued:
    """The dataflow after all entries of the journal. ``make`` makes a new one; ``by``: :func:`written_by`."""
    began = time.monotonic()
    try:
        image = read_image(journal.path, by)
    except Unusable as why:
        image = None
        _tell(str(why))
    if image is not None and (found := _from_image(make(), image, journal, set_time)) is not None:
        took = time.monotonic() - began
        log.info(
            "restored from an image of %d entries and %d entries after it in %.2f s",
            found.covered, found.read, took,
        )  # fmt: skip
        return found
    set_time(0.0)
    flow = make()
    count = JournalReplay(flow, journal.reader, set_time).run(journal.entries())
    if count:
        log.info("restored from %d entries in %.2f s", count, time.monotonic() - began)
    return Continued(flow, 0, count)


def _from_image(
    flow: Dataflow, image: Image, journal: Journal, set_time: Callable[[float], None]
) -> Continued | None:
    """The dataflow after the image and the entries behind it; ``None`` if that cannot be."""
    set_time(image.at_s)
    if not flow.state.records.skip_lines(image.lines):
        flow.state.close()
        _tell(f"metrics.jsonl has fewer lines than the {image.lines} that the image counts")
        return None
    try:
        restore_state(flow, image.state, journal.reader)
        tail = journal.entries(image.end, image.entries)
        read = JournalReplay(flow, journal.reader, set_time).run(tail, after=image.entries)
    except Exception as error:  # noqa: BLE001
        # Whatever it is, in code of a data policy too: the journal has everything.
        flow.state.close()
        _tell(f"{type(error).__name__}: {error}")
        return None
    return Continued(flow, image.entries, read)


def _tell(why: str) -> None:
    log.warning(
        "the image of the state is not used, and all entries of the journal are read: %s", why
    )
