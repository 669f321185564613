"""The RaaS that a launcher runs, as the dataflow requests more and drains others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from astraflow_core.protocols.launcher import ProcessSpec
from astraflow_wire.status import Status


class RaasPool:
    """``planned``: the RaaS of the plan. A run that continues begins with as many as it had at its end."""

    def __init__(self, planned: Sequence[ProcessSpec]) -> None:
        self._planned = list(planned)
        self._names = {spec.name for spec in planned}
        self._added = 0

    def begin(self, status: Status) -> list[ProcessSpec]:
        """What to start with, at least one."""
        self._added = status.pool.added
        size = max(1, len(self._planned) + status.pool.added - status.pool.drained)
        first = self._planned[:size]
        self._names = {spec.name for spec in first}
        return [*first, *(self._next(status) for _ in range(size - len(first)))]

    def asked_for(self, status: Status) -> Iterator[ProcessSpec]:
        """The RaaS that were requested since, under unused names."""
        while self._added < status.pool.added:
            self._added += 1
            yield self._next(status)

    def _next(self, status: Status) -> ProcessSpec:
        taken = self._names | {raas.name for raas in status.raas}
        number = next(n for n in range(len(taken) + 1) if f"raas-{n}" not in taken)
        spec = named(self._planned[0], f"raas-{number}")
        self._names.add(spec.name)
        return spec


def named(spec: ProcessSpec, name: str) -> ProcessSpec:
    """The same RaaS under another name, which ends its command line (:mod:`astraflow_runtime.launch.planning.plan`)."""
    log = spec.log.with_name(f"{name}.log")
    return replace(spec, name=name, argv=(*spec.argv[:-1], name), log=log)
