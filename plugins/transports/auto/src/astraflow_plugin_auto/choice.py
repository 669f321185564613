"""The decision: from facts to a transport and the reason, or the reasons why none fits. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from astraflow_core.types import Link, TransportChoice, TransportEnds
from astraflow_plugin_auto.estimate import delta_s, whole_is_quicker, whole_s

LEAST_SHARED = 1 << 30
"""Free bytes of shared memory below which it is not used; a container has 64 MiB unless told otherwise."""
WHOLE_TOO = ("delta", "collective", "cuda_ipc")
"""Transports whose publishers serve whole versions to a receiver of ``http`` too."""


@dataclass(frozen=True, slots=True)
class TransportFacts:
    """What a choice depends on. ``shared_bytes`` are free in /dev/shm. ``link`` is the connection between publisher
    and receivers as far as it is known, and ``how`` says how it was measured, or why it was not."""

    engine: str
    trainer: str
    ends: TransportEnds
    gpus: bool = False
    shared_bytes: int = 0
    link: Link | None = None
    how: str = "it has not been measured"


@dataclass(frozen=True, slots=True)
class Rule:
    """A transport by ``flag`` or by ``name``; ``hindrance`` is empty if it fits, ``why`` is why it is best."""

    name: str
    hindrance: str
    why: str


def choose(facts: TransportFacts) -> TransportChoice | list[str]:
    """The first rule that holds; else what is in the way of each."""
    ends = facts.ends
    if not ends.same_host and ends.host is None and ends.announced is None:
        return ["the launcher has not placed the trainer yet"]
    hindrances = []
    for rule in _rules(facts):
        hindrance = _unusable(rule.name, ends) or rule.hindrance
        if not hindrance:
            return TransportChoice(rule.name, rule.why, _options(rule.name, ends))
        hindrances.append(f"{rule.name}: {hindrance}")
    return hindrances


def _rules(facts: TransportFacts) -> Iterator[Rule]:
    ends, engine = facts.ends, facts.engine
    here = "" if ends.same_host else "other hosts take part"
    gpus = here or ("" if facts.gpus else "there is no GPU here")
    path = _lacks(engine, ends, "weights.path")
    shared = "" if ends.shared_devices else "trainer and engine do not share devices"
    own = "trainer and engine share devices" if ends.shared_devices else ""
    yield Rule(
        _first_with("ipc", ends) or "cuda_ipc",
        gpus or shared or _lacks(engine, ends, "weights.ipc"),
        f"trainer and engine share the GPUs of this host and {engine!r} maps device memory",
    )
    yield Rule(
        _first_with("collective", ends) or "collective",
        gpus or own or _lacks(engine, ends, "weights.collective"),
        f"the GPUs are on this host and {engine!r} takes part in collectives",
    )
    room = facts.shared_bytes >= LEAST_SHARED
    little = f"/dev/shm has {facts.shared_bytes >> 20} MiB free, {LEAST_SHARED >> 20} are needed"  # noqa: S108 (a name in a sentence)
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
    known = _described(facts)
    whole = facts.link is not None and whole_is_quicker(_megabytes(ends), facts.link)
    yield Rule(
        "delta",
        away or path or (f"whole versions are quicker over links {known}" if whole else ""),
        f"RaaS may be on other hosts, over links {known}",
    )
    yield Rule("http", away or path, f"RaaS may be on other hosts, over links {known}")
    yield Rule("zmq", path, "it is the installed transport that fits")


def _described(facts: TransportFacts) -> str:
    """The link in words, and what a version would cost over it."""
    link, megabytes = facts.link, _megabytes(facts.ends)
    if link is None:
        return f"of unknown bandwidth ({facts.how})"
    trip = f" and {_short(1000 * link.round_trip_s)} ms" if link.round_trip_s else ""
    text = f"of at least {_short(link.mb_s)} MB/s{trip} ({facts.how})"
    if megabytes is None:
        return text
    size = f"{_short(megabytes / 1000)} GB" if megabytes >= 1000 else f"{_short(megabytes)} MB"
    whole, delta = _short(whole_s(megabytes, link)), _short(delta_s(megabytes, link))
    return f"{text}: {size} take at most {whole} s whole and about {delta} s by a delta"


def _short(value: float) -> str:
    return f"{value:.0f}" if value >= 10 else f"{value:.2g}"


def _megabytes(ends: TransportEnds) -> float | None:
    size = ends.announced.size if ends.announced else ends.model_bytes
    return None if size is None else size / 1e6


def _unusable(name: str, ends: TransportEnds) -> str:
    flags = ends.transports.get(name)
    if flags is None:
        return f"not installed (pip install astraflow-plugin-{name.replace('_', '-')})"
    if "lora" in ends.trainer and "adapter" not in flags:
        return "it sends no adapters, which the trainer may make"
    if ends.announced and name not in _served(ends.announced.transport):
        return f"the publisher uses {ends.announced.transport!r}"
    return ""


def _served(transport: str) -> tuple[str, ...]:
    """What a receiver may be when the publisher is this."""
    return (transport, "http") if transport in WHOLE_TOO else (transport,)


def _first_with(flag: str, ends: TransportEnds) -> str:
    return min((name for name, flags in ends.transports.items() if flag in flags), default="")


def _lacks(engine: str, ends: TransportEnds, flag: str) -> str:
    return "" if flag in ends.engine else f"engine {engine!r} lacks {flag}"


def _options(name: str, ends: TransportEnds) -> dict[str, str]:
    """Keys of a publisher that other hosts reach."""
    if ends.same_host or ends.host is None or name not in ("http", "delta", "zmq"):
        return {}
    return {"host": "0.0.0.0", "advertise": ends.host}  # noqa: S104 (the run listens beyond loopback)
