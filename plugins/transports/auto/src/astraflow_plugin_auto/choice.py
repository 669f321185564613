"""The decision: from facts to a transport and the reason, or the reasons why none fits. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from astraflow_core.types import TransportChoice, TransportEnds
from astraflow_plugin_auto.earlier import Measured

LEAST_SHARED = 1 << 30
"""Free bytes of shared memory below which it is not used; a container has 64 MiB unless told otherwise."""
FAST_MB_S = 500.0
"""Bandwidth from which whole versions arrive sooner than deltas are made and applied."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What a choice depends on. ``shared_bytes`` are free in /dev/shm, ``bandwidth`` was measured by
    somebody, or is ``None``."""

    engine: str
    trainer: str
    ends: TransportEnds
    gpus: bool = False
    shared_bytes: int = 0
    bandwidth: Measured | None = None


@dataclass(frozen=True, slots=True)
class Rule:
    """A transport by ``flag`` or by ``name``; ``hindrance`` is empty if it fits, ``why`` is why it is best."""

    name: str
    hindrance: str
    why: str


def choose(facts: Facts) -> TransportChoice | list[str]:
    """The first rule that holds; else what is in the way of each."""
    ends = facts.ends
    if not ends.same_host and ends.host is None:
        return ["the launcher says only later where the trainer will be"]
    hindrances = []
    for rule in _rules(facts):
        hindrance = _unusable(rule.name, ends) or rule.hindrance
        if not hindrance:
            return TransportChoice(rule.name, rule.why, _options(rule.name, ends))
        hindrances.append(f"{rule.name}: {hindrance}")
    return hindrances


def _rules(facts: Facts) -> Iterator[Rule]:
    ends, engine = facts.ends, facts.engine
    here = "" if ends.same_host else "other hosts take part"
    gpus = here or ("" if facts.gpus else "there is no GPU here")
    path = _lacks(engine, ends, "weights.path")
    shared = "" if ends.shared_devices else "trainer and engine do not share devices"
    own = "trainer and engine share devices" if ends.shared_devices else ""
    yield Rule(
        _with("ipc", ends) or "cuda_ipc",
        gpus or shared or _lacks(engine, ends, "weights.ipc"),
        f"trainer and engine share the GPUs of this host and {engine!r} maps device memory",
    )
    yield Rule(
        _with("collective", ends) or "collective",
        gpus or own or _lacks(engine, ends, "weights.collective"),
        f"the GPUs are on this host and {engine!r} takes part in collectives",
    )
    room = facts.shared_bytes >= LEAST_SHARED
    little = f"/dev/shm has {facts.shared_bytes >> 20} MiB free, {LEAST_SHARED >> 20} are wanted"  # noqa: S108 (a name in a sentence)
    yield Rule(
        "shm",
        here or path or ("" if room else little),
        f"trainer and RaaS are on this host, and {engine!r} opens weights by path",
    )
    yield Rule(
        "http",
        here or path,
        "trainer and RaaS are on this host, where a delta costs more than it saves",
    )
    away = "" if not ends.same_host else "nothing leaves this host"
    speed = facts.bandwidth
    fast = speed is not None and speed.mb_s >= FAST_MB_S
    known = "of unknown bandwidth"
    if speed is not None:
        known = f"of {speed.mb_s:.0f} MB/s ({speed.how})"
    yield Rule(
        "delta",
        away or path or (f"{known} is enough for whole versions" if fast else ""),
        f"RaaS may be on other hosts, over links {known}",
    )
    yield Rule("http", away or path, f"RaaS may be on other hosts, over links {known}")
    yield Rule("zmq", path, "it is what is installed and fits")


def _unusable(name: str, ends: TransportEnds) -> str:
    flags = ends.transports.get(name)
    if flags is None:
        return f"not installed (pip install astraflow-plugin-{name.replace('_', '-')})"
    if "lora" in ends.trainer and "adapter" not in flags:
        return "it sends no adapters, which the trainer may make"
    return ""


def _with(flag: str, ends: TransportEnds) -> str:
    return min((name for name, flags in ends.transports.items() if flag in flags), default="")


def _lacks(engine: str, ends: TransportEnds, flag: str) -> str:
    return "" if flag in ends.engine else f"engine {engine!r} lacks {flag}"


def _options(name: str, ends: TransportEnds) -> dict[str, str]:
    """Keys of a publisher that other hosts reach."""
    if ends.same_host or ends.host is None or name not in ("http", "delta", "zmq"):
        return {}
    return {"host": "0.0.0.0", "advertise": ends.host}  # noqa: S104 (the run listens beyond loopback)
