"""What a plugin that chooses a transport receives, and what it returns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from astraflow_core.types.weights import Announcement


@dataclass(frozen=True, slots=True)
class TransportEnds:
    """The two ends between which weights are transferred. ``same_host``: trainer and every RaaS are on this host;
    ``shared_devices``: and take turns on the same GPUs. ``host`` is the address that other hosts reach this one by
    (``None``: there are none, or the launcher says where the trainer is). ``engine`` and ``trainer`` are the
    capabilities of both, ``transports`` those of each installed transport, by name. ``model_bytes``: the size of the
    model's tensors, if they are in a local folder.

    A process that joins a running run knows more: ``announced`` is the newest version of the policy,
    which its publisher serves to whoever has ``token``."""

    same_host: bool
    shared_devices: bool
    host: str | None
    engine: frozenset[str]
    trainer: frozenset[str]
    transports: Mapping[str, frozenset[str]]
    model_bytes: int | None = None
    announced: Announcement | None = None
    token: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class TransportChoice:
    """The transport ``use`` with its keys, and why it was chosen, in words for the header of the run."""

    use: str
    why: str
    options: Mapping[str, Any] = field(default_factory=dict)
