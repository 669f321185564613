"""The hosts that a run asks a scheduler for: groups of equal hosts. Pure: no scheduler is asked."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from astraflow_core.protocols.launcher import ProcessSpec
from astraflow_launching.keys import ProcessKeys, ResourceKeys
from astraflow_launching.placement import HostResources

_ORDER = {"trainer": 0, "raas": 1, "dataflow": 2}


@dataclass
class HostGroup:
    """``hosts`` lists the processes of each host. Every host has ``cpus`` and ``gpus``, and ``memory_gb``, in 10^9
    bytes: ``None`` if a process does not state how much it needs."""

    labels: tuple[str, ...]
    spot: bool
    hosts: list[list[str]] = field(default_factory=list)
    cpus: int = 1
    gpus: int = 0
    memory_gb: float | None = None

    @property
    def names(self) -> list[str]:
        """All processes."""
        return [name for host in self.hosts for name in host]

    def size(self, needs: Mapping[str, ProcessKeys]) -> None:
        """Request what the fullest host needs."""
        each = [[needs[name] for name in host] for host in self.hosts]
        self.cpus = max(math.ceil(sum(keys.cpus or 1 for keys in host)) for host in each)
        self.gpus = max(sum(keys.gpus for keys in host) for host in each)
        amounts = [[keys.memory_gb for keys in host] for host in each]
        if all(amount is not None for host in amounts for amount in host):
            self.memory_gb = max(math.fsum(amount or 0 for amount in host) for host in amounts)

    def resources(self, name: str) -> HostResources:
        """The resources of a host of the group, under the name ``name``. Memory that no role requested is shared
        without counting it."""
        return HostResources(
            name,
            self.cpus,
            math.inf if self.memory_gb is None else self.memory_gb,
            tuple(map(str, range(self.gpus))),
            frozenset(self.labels),
            self.spot,
        )


def host_groups(keys: ResourceKeys, specs: Iterable[ProcessSpec]) -> list[HostGroup]:
    """Processes with the same GPUs, labels and ``spot`` share a group, on ``count`` hosts (default: one). A process
    that asks for none of them joins the first, and the dataflow is on the first host of its group, which comes first."""
    ordered = sorted(specs, key=lambda spec: _ORDER[spec.role])
    needs = {spec.name: keys.needs(spec.name, spec.role) for spec in ordered}
    groups: dict[tuple[object, ...], list[ProcessSpec]] = {}
    plain: list[ProcessSpec] = []
    for spec in ordered:
        need = needs[spec.name]
        if need.gpus or need.labels or need.spot or need.count:
            group = (need.gpus, sorted_labels(need), need.spot, need.count)
            groups.setdefault(group, []).append(spec)
        else:
            plain.append(spec)
    steady = [group for group in groups if not group[2]]
    if plain and not steady:  # what does not say spot = true is not put on a spot host
        groups = {(0, (), False, None): plain, **groups}
    elif plain:
        groups[steady[0]] += plain
    found = [_group(members, needs) for members in groups.values()]
    return sorted(found, key=lambda group: "dataflow" not in group.names)


def sorted_labels(keys: ProcessKeys) -> tuple[str, ...]:
    """Labels, each once."""
    return tuple(sorted(set(keys.labels)))


def _group(members: Sequence[ProcessSpec], needs: Mapping[str, ProcessKeys]) -> HostGroup:
    first = needs[members[0].name]
    count = min(first.count or 1, len(members))
    hosts: list[list[str]] = [[] for _ in range(count)]
    for index, spec in enumerate(members):
        hosts[0 if spec.role == "dataflow" else index % count].append(spec.name)
    found = HostGroup(sorted_labels(first), first.spot, hosts)
    found.size(needs)
    return found
