"""Builds the engines of one policy or frozen model, each in its own host, and the handles that
episodes use.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from astraflow_core.config.models import RunConfig
from astraflow_runtime.raas.engines.colocation import OWN_DEVICES, Devices
from astraflow_runtime.raas.engines.host_process import EngineHostProcess, HostSettings
from astraflow_runtime.raas.engines.replica import Replica
from astraflow_runtime.raas.engines.replicas import Replicas
from astraflow_runtime.raas.engines.supervised_engine import SupervisedEngine


def build_engines(
    config: RunConfig,
    directory: Path,
    raas: str,
    policy: str,
    token: str,
    sockets: Path,
    devices: Devices = OWN_DEVICES,
) -> list[SupervisedEngine]:
    """One engine for each replica. A host starts when its :meth:`SupervisedEngine.run` does and
    ``devices`` may be used.
    """

    async def start(settings: HostSettings, attempt: int) -> EngineHostProcess:
        async with devices.use():
            return await EngineHostProcess.start(settings, attempt)

    count = config.served[policy].engine.replicas
    engines: list[SupervisedEngine] = []
    for replica in range(count):
        settings = HostSettings(config, directory, raas, policy, token, sockets, replica)
        engine = SupervisedEngine(
            policy,
            partial(start, settings),
            replica if count > 1 else None,
            needed=lambda: all(each.host is None for each in engines),
        )
        engines.append(engine)
    return engines


def as_replicas(
    engines: Sequence[SupervisedEngine],
    serving: Callable[[int], int | None],
    pin_wait_s: float,
) -> Replicas:
    """The ``engines`` of a policy as replicas. ``serving``: number of a replica → the version that
    it serves.
    """
    members = [
        Replica(number, engine, partial(serving, number)) for number, engine in enumerate(engines)
    ]
    return Replicas(members, pin_wait_s)


def initial_version(engines: Sequence[SupervisedEngine], number: int) -> int | None:
    """The version of a replica that keeps the weights of its model's folder: 0 once its host has
    started.
    """
    return 0 if engines[number].host is not None else None
