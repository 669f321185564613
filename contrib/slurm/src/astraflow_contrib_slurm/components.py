"""The nodes that a run asks for: components of a heterogeneous job. Pure: Slurm is not asked."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from astraflow_contrib_slurm.config import SlurmConfig
from astraflow_core.protocols.launcher import ProcessSpec
from astraflow_launching.keys import ProcessKeys

_ORDER = {"trainer": 0, "raas": 1, "dataflow": 2}
_MIB = 1 << 20


@dataclass
class JobComponent:
    """``nodes`` lists the processes of each node. Every node has ``cpus`` and ``gpus``, and ``memory_mb`` of 2^20
    bytes: ``None`` if a process does not say how much it needs."""

    labels: tuple[str, ...]
    spot: bool
    nodes: list[list[str]] = field(default_factory=list)
    cpus: int = 1
    gpus: int = 0
    memory_mb: int | None = None

    @property
    def names(self) -> list[str]:
        """All processes."""
        return [name for node in self.nodes for name in node]

    def size(self, needs: dict[str, ProcessKeys]) -> None:
        """Ask for what the fullest node needs."""
        each = [[needs[name] for name in node] for node in self.nodes]
        self.cpus = max(math.ceil(sum(keys.cpus or 1 for keys in node)) for node in each)
        self.gpus = max(sum(keys.gpus for keys in node) for node in each)
        amounts = [[keys.memory_gb for keys in node] for node in each]
        if all(amount is not None for node in amounts for amount in node):
            most = max(math.fsum(amount or 0 for amount in node) for node in amounts)
            self.memory_mb = math.ceil(most * 1e9 / _MIB)

    def options(self, config: SlurmConfig) -> list[str]:
        """Options of sbatch that ask for it."""
        partition = (self.spot and config.spot_partition) or config.partition
        found = [
            f"--nodes={len(self.nodes)}",
            "--ntasks-per-node=1",
            f"--cpus-per-task={self.cpus}",
        ]
        found += [f"--gres=gpu:{self.gpus}"] if self.gpus else []
        found += [] if self.memory_mb is None else [f"--mem={self.memory_mb}M"]
        found += [f"--constraint={'&'.join(self.labels)}"] if self.labels else []
        found += [f"--partition={partition}"] if partition else []
        found += [f"--account={config.account}"] if config.account else []
        found += [f"--time={config.time_limit}"] if config.time_limit else []
        return [*found, *config.options]


def components(config: SlurmConfig, specs: Iterable[ProcessSpec]) -> list[JobComponent]:
    """Processes with the same GPUs, labels and ``spot`` share a component, on ``count`` nodes (default: one). A
    process that asks for none of them joins the first, and the dataflow is on the first node of its component, which
    comes first: there the batch script runs, and a run ends with the host of its dataflow anyway."""
    ordered = sorted(specs, key=lambda spec: _ORDER[spec.role])
    needs = {spec.name: config.needs(spec.name, spec.role) for spec in ordered}
    groups: dict[tuple[object, ...], list[ProcessSpec]] = {}
    plain: list[ProcessSpec] = []
    for spec in ordered:
        keys = needs[spec.name]
        if keys.gpus or keys.labels or keys.spot or keys.count:
            group = (keys.gpus, sorted_labels(keys), keys.spot, keys.count)
            groups.setdefault(group, []).append(spec)
        else:
            plain.append(spec)
    steady = [group for group in groups if not group[2]]
    if plain and not steady:  # what does not say spot = true is not put on a spot host
        groups = {(0, (), False, None): plain, **groups}
    elif plain:
        groups[steady[0]] += plain
    found = [_component(members, needs) for members in groups.values()]
    return sorted(found, key=lambda component: "dataflow" not in component.names)


def sorted_labels(keys: ProcessKeys) -> tuple[str, ...]:
    """Labels, each once."""
    return tuple(sorted(set(keys.labels)))


def _component(members: Sequence[ProcessSpec], needs: dict[str, ProcessKeys]) -> JobComponent:
    first = needs[members[0].name]
    found = JobComponent(sorted_labels(first), first.spot)
    count = min(first.count or 1, len(members))
    nodes: list[list[str]] = [[] for _ in range(count)]
    for index, spec in enumerate(members):
        nodes[0 if spec.role == "dataflow" else index % count].append(spec.name)
    found.nodes = nodes
    found.size(needs)
    return found
