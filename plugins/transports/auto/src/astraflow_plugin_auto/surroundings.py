"""Collects the facts of this host, and answers the hook."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from astraflow_core.errors import PluginError, WeightsError
from astraflow_core.types import Link, RunInfo, TransportChoice, TransportEnds
from astraflow_plugin_auto.choice import TransportFacts, choose
from astraflow_plugin_auto.earlier import measured
from astraflow_weights.fetch.probe import probe

BANDWIDTH = "ASTRAFLOW_BANDWIDTH_MB_S"
_SHARED = Path("/dev/shm")  # noqa: S108 (asked how much is free)
_GPU = Path("/dev/nvidiactl")


def answer(run: RunInfo, engine: str, trainer: str, ends: TransportEnds) -> TransportChoice:
    """The choice for a policy with these components; raises :class:`PluginError` if nothing fits."""
    link, how = _link(run, ends)
    facts = TransportFacts(
        engine,
        trainer,
        ends,
        gpus=_GPU.exists(),
        shared_bytes=shutil.disk_usage(_SHARED).free if _SHARED.is_dir() else 0,
        link=link,
        how=how,
    )
    chosen = choose(facts)
    if isinstance(chosen, TransportChoice):
        return chosen
    raise PluginError(
        f"transport 'auto' finds no transport that fits ({'; '.join(chosen)}); name a transport and its keys"
    )


def _link(run: RunInfo, ends: TransportEnds) -> tuple[Link | None, str]:
    """The link between publisher and receivers, and who measured it or why it is unknown: as configured, else as
    measured now, else as earlier runs have measured it."""
    said = _from_environment()
    if said is not None or ends.same_host:
        return said, f"as {BANDWIDTH} says"
    trouble = "no version is announced yet, so there is no peer to measure"
    if ends.announced is not None:
        try:
            return probe(ends.announced, ends.token), "measured now"
        except WeightsError as error:
            trouble = f"not measured: {error}"
    earlier = None if ends.host is None else measured(run.directory.parent, ends.host)
    return (
        (None, f"{trouble}; no run before this one has measured it") if earlier is None else earlier
    )


def _from_environment() -> Link | None:
    text = os.environ.get(BANDWIDTH)
    if not text:
        return None
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise PluginError(f"{BANDWIDTH}={text!r}: expected MB/s, a number above 0")
    return Link(value, 0.0)
