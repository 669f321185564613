"""Collects the facts of this host, and answers the hook."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from astraflow_core.errors import PluginError
from astraflow_core.types import RunInfo, TransportChoice, TransportEnds
from astraflow_plugin_auto.choice import Facts, choose
from astraflow_plugin_auto.earlier import Measured, measured

BANDWIDTH = "ASTRAFLOW_BANDWIDTH_MB_S"
_SHARED = Path("/dev/shm")  # noqa: S108 (asked how much is free)
_GPU = Path("/dev/nvidiactl")


def answer(run: RunInfo, engine: str, trainer: str, ends: TransportEnds) -> TransportChoice:
    """The choice for a policy with these components; raises :class:`PluginError` if nothing fits."""
    known = _said()
    if known is None and ends.host is not None:
        known = measured(run.directory.parent, ends.host)
    facts = Facts(
        engine,
        trainer,
        ends,
        gpus=_GPU.exists(),
        shared_bytes=shutil.disk_usage(_SHARED).free if _SHARED.is_dir() else 0,
        bandwidth=known,
    )
    chosen = choose(facts)
    if isinstance(chosen, TransportChoice):
        return chosen
    raise PluginError(
        f"transport 'auto' finds none that fits ({'; '.join(chosen)}); name a transport and its keys"
    )


def _said() -> Measured | None:
    text = os.environ.get(BANDWIDTH)
    if not text:
        return None
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise PluginError(f"{BANDWIDTH}={text!r}: expected MB/s, a number above 0")
    return Measured(value, f"as {BANDWIDTH} says")
