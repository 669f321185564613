"""Which process runs on which host, and with which resources. Pure: no host is contacted."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from astraflow_core.errors import PreflightError
from astraflow_core.protocols.launcher import ProcessSpec, Role
from astraflow_launching.keys import HostKeys, ProcessKeys, ResourceKeys

THREAD_VARIABLES = (
    "OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "RAYON_NUM_THREADS",
)  # fmt: skip
_ORDER: tuple[Role, ...] = ("trainer", "raas", "dataflow")
_LATER_RAAS = re.compile(r"raas-\d+")


@dataclass(frozen=True, slots=True)
class HostResources:
    """The resources of a host. ``gpus`` are values for CUDA_VISIBLE_DEVICES; ``memory_gb`` is in 10^9 bytes."""

    name: str
    cpus: float
    memory_gb: float
    gpus: tuple[str, ...] = ()
    labels: frozenset[str] = frozenset()
    spot: bool = False

    def limited(self, keys: HostKeys) -> HostResources:
        """The same with the values of the config in place of those that the host reports."""
        return HostResources(
            self.name,
            keys.cpus or self.cpus,
            keys.memory_gb or self.memory_gb,
            self.gpus if keys.gpus is None else tuple(map(str, range(keys.gpus))),
            self.labels | set(keys.labels),
            self.spot or keys.spot,
        )


@dataclass(frozen=True, slots=True)
class ProcessPlace:
    """Where a process runs, and its GPUs there; ``threads`` for libraries that compute on CPUs."""

    host: str
    gpus: tuple[str, ...] = ()
    threads: int = 1


@dataclass
class _Room:
    host: HostResources
    cpus: float
    memory_gb: float
    gpus: list[str]
    roles: list[Role] = field(default_factory=list)

    def lacks(self, keys: ProcessKeys) -> str:
        """Why a process does not fit; empty if it does."""
        host = self.host
        if missing := sorted(set(keys.labels) - host.labels):
            return f"has no label {', '.join(missing)}"
        if host.spot and not keys.spot:
            return "is a spot host, and the role does not say spot = true"
        if keys.gpus > len(self.gpus):
            return f"has {len(self.gpus)} of {len(host.gpus)} GPUs left, {keys.gpus} are needed"
        if (keys.cpus or 0) > self.cpus:
            return f"has {self.cpus:g} of {host.cpus:g} CPUs left, {keys.cpus:g} are needed"
        if (keys.memory_gb or 0) > self.memory_gb:
            return f"has {self.memory_gb:g} of {host.memory_gb:g} GB left, {keys.memory_gb:g} are needed"
        return ""

    def take(self, keys: ProcessKeys, role: Role, gpus: tuple[str, ...] = ()) -> tuple[str, ...]:
        """Give a process its share; ``gpus`` if it has them already."""
        gpus = gpus or tuple(self.gpus[: keys.gpus])
        self.cpus -= keys.cpus or 0
        self.memory_gb -= keys.memory_gb or 0
        self.gpus = [gpu for gpu in self.gpus if gpu not in gpus]
        self.roles.append(role)
        return gpus


def check_names(keys: ResourceKeys, specs: Iterable[ProcessSpec]) -> None:
    """:class:`PreflightError` if ``processes`` has the name of a process that this run cannot have. RaaS that are added
    later are named ``raas-N``."""
    names = [spec.name for spec in specs]
    for name in keys.processes:
        if name not in names and not _LATER_RAAS.fullmatch(name):
            raise PreflightError(
                f"[launcher.processes]: no process {name!r}; this run has {', '.join(names)}"
            )


def check_counts(keys: ResourceKeys, hosts: int) -> None:
    """:class:`PreflightError` if a role is to be spread over more than ``hosts`` hosts."""
    for role in reversed(_ORDER):
        needs: ProcessKeys = getattr(keys, role)
        if needs.count is not None and needs.count > hosts:
            raise PreflightError(
                f"[launcher.{role}] count is {needs.count}, and the launcher has {hosts} host"
                f"{'' if hosts == 1 else 's'}: lower count, or add hosts"
            )


class Placement:
    """Places processes on hosts. ``policies``: engines in each RaaS, for threads."""

    def __init__(
        self, keys: ResourceKeys, hosts: Iterable[HostResources], policies: int = 1
    ) -> None:
        self._keys, self._policies = keys, max(1, policies)
        self._hosts = {host.name: host for host in hosts}
        self._specs: dict[str, ProcessSpec] = {}
        self._chosen: Mapping[str, str] = {}
        self.places: dict[str, ProcessPlace] = {}

    def place(
        self, specs: Sequence[ProcessSpec], chosen: Mapping[str, str] | None = None
    ) -> Mapping[str, ProcessPlace]:
        """All processes of a run at once. Raises :class:`PreflightError` that names one without a place: first they
        are spread evenly, and if that leaves one out, packed tightly. ``chosen``: process → host, if that is known."""
        self._specs, self._chosen = {spec.name: spec for spec in specs}, chosen or {}
        problem: PreflightError | None = None
        for packed in (False, True):
            try:
                self.places = self._placed(specs, {}, packed)
            except PreflightError as error:
                problem = problem or error
            else:
                return self._with_threads()
        assert problem is not None
        raise problem

    def add(self, spec: ProcessSpec) -> ProcessPlace:
        """One more process, or one whose host was lost, in the space that the others leave."""
        self._specs[spec.name], self._chosen = spec, {}
        kept = {name: place for name, place in self.places.items() if name != spec.name}
        self.places = self._placed([spec], kept, packed=False)
        return self._with_threads()[spec.name]

    def remove_host(self, name: str) -> None:
        """A host was lost; its processes have no place until they are added again."""
        self._hosts.pop(name, None)
        self.places = {key: place for key, place in self.places.items() if place.host != name}

    def add_host(self, host: HostResources) -> None:
        """A new host, or one that has returned."""
        self._hosts[host.name] = host

    def _placed(
        self, specs: Sequence[ProcessSpec], kept: Mapping[str, ProcessPlace], packed: bool
    ) -> dict[str, ProcessPlace]:
        rooms = {n: _Room(h, h.cpus, h.memory_gb, list(h.gpus)) for n, h in self._hosts.items()}
        chosen: dict[Role, dict[str, None]] = {}
        for name, place in kept.items():
            spec = self._specs[name]
            rooms[place.host].take(self._keys.needs(name, spec.role), spec.role, place.gpus)
            chosen.setdefault(spec.role, {})[place.host] = None
        places = dict(kept)
        for spec in sorted(specs, key=self._demand):
            needs = self._keys.needs(spec.name, spec.role)
            hosts = chosen.setdefault(spec.role, {})
            room = self._choose(spec, needs, list(rooms.values()), hosts, packed)
            hosts[room.host.name] = None
            places[spec.name] = ProcessPlace(room.host.name, room.take(needs, spec.role))
        return {name: places[name] for name in self._specs if name in places}

    def _demand(self, spec: ProcessSpec) -> tuple[float, ...]:
        needs = self._keys.needs(spec.name, spec.role)
        return (
            -len(needs.labels), -needs.gpus, -(needs.memory_gb or 0), -(needs.cpus or 0),
            _ORDER.index(spec.role),
        )  # fmt: skip

    def _choose(
        self,
        spec: ProcessSpec,
        needs: ProcessKeys,
        rooms: Sequence[_Room],
        hosts: Mapping[str, None],
        packed: bool,
    ) -> _Room:
        """The host with the fewest processes where it fits, of those that the role may use; if ``packed`` the fullest."""
        full = needs.count is not None and len(hosts) >= needs.count
        allowed = [room for room in rooms if not full or room.host.name in hosts]
        if spec.name in self._chosen:
            allowed = [room for room in rooms if room.host.name == self._chosen[spec.name]]
        fitting = [room for room in allowed if not room.lacks(needs)]
        if not fitting:
            raise PreflightError(self._refusal(spec, allowed, needs))
        if packed:
            return min(fitting, key=lambda r: (len(r.gpus), r.memory_gb, r.cpus))
        return min(
            fitting,
            key=lambda r: (
                r.host.name in hosts and not full,
                len(r.gpus) - needs.gpus if not needs.gpus else 0,
                len(r.roles),
            ),
        )

    def _refusal(self, spec: ProcessSpec, rooms: Sequence[_Room], needs: ProcessKeys) -> str:
        reasons = "; ".join(f"{room.host.name} {room.lacks(needs)}" for room in rooms)
        return (
            f"no host has room for {spec.name}: {reasons or 'there is no host'}. Lower the needs of "
            f"[launcher.{spec.role}], add hosts, or run fewer processes"
        )

    def _with_threads(self) -> dict[str, ProcessPlace]:
        """An equal share of the cores that no role requested, for each process that computes."""
        for name, host in self._hosts.items():
            here = [key for key, place in self.places.items() if place.host == name]
            given = sum(self._needs(key).cpus or 0 for key in here)
            open_parts = sum(self._parts(key) for key in here if self._needs(key).cpus is None)
            share = max(1, math.floor((host.cpus - given) / max(1, open_parts)))
            for key in here:
                own = self._needs(key).cpus
                each = share if own is None else max(1, math.floor(own / max(1, self._parts(key))))
                place = self.places[key]
                self.places[key] = ProcessPlace(place.host, place.gpus, each)
        return self.places

    def _needs(self, name: str) -> ProcessKeys:
        return self._keys.needs(name, self._specs[name].role)

    def _parts(self, name: str) -> int:
        spec = self._specs[name]
        return {"trainer": spec.ranks, "raas": self._policies, "dataflow": 0}[spec.role]
