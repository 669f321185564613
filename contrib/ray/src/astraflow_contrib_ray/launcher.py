"""The launcher ``ray``: an actor on each node that is used, whose agent starts our processes."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from astraflow_contrib_ray.config import RayConfig
from astraflow_contrib_ray.node_actor import NodeActor
from astraflow_core.errors import PreflightError
from astraflow_core.protocols.launcher import ProcessSpec
from astraflow_core.types import ComponentContext
from astraflow_launching import agent
from astraflow_launching.dial_in import DialIn, own_address
from astraflow_launching.keys import HostKeys
from astraflow_launching.launcher import AgentLauncher
from astraflow_launching.link import Open
from astraflow_launching.placement import HostResources, Placement, check_counts

NODE_ID = "ray.io/node-id"
"""The label that Ray gives each node: it ties a bundle to its node."""

SPOT = ("ray.io/market-type", "spot")


@dataclass(frozen=True)
class _Reserved:
    """Room on a node: a bundle of a placement group. ``has`` is what processes may use of it."""

    node: str
    group: Any
    index: int
    has: HostResources


class RayLauncher(AgentLauncher):
    """See :class:`astraflow_core.protocols.launcher.Launcher`.

    Our placement decides which process goes to which node; placement groups then reserve what the processes of each node need,
    so that no other job on the cluster takes it.
    """

    def __init__(self, config: RayConfig | None, context: ComponentContext) -> None:
        self._config = config or RayConfig()
        self._ray = _imported()
        self._initialized = False
        self._dial_in: DialIn | None = None
        self._reserved: dict[str, _Reserved] = {}
        self._actors: dict[str, Any] = {}
        super().__init__(self._config, context)

    def hosts(self, specs: Sequence[ProcessSpec]) -> Mapping[HostKeys, Open]:
        """Nodes with room for the processes, all reserved at once."""
        self._connect()
        nodes = self._nodes()
        check_counts(self._config, len(nodes))
        return self._reserve(specs, nodes)

    def more_hosts(self, spec: ProcessSpec) -> Mapping[HostKeys, Open]:
        """The room of an actor that died, if its node is still there; else room on another node."""
        nodes = self._nodes()
        for name, room in list(self._reserved.items()):
            if room.node in nodes and self._links[name].lost:
                return self._supervised([self._reserved.pop(name)])
        return self._reserve([spec], nodes)

    def resources(self, host: HostKeys, facts: Mapping[str, Any]) -> HostResources:
        """What was reserved, with the GPUs that Ray chose."""
        room = self._reserved[host.name].has
        gpus = self._ray.get(self._actors[host.name].gpus.remote(), timeout=self._config.connect_s)
        return replace(room, name=host.name, gpus=tuple(gpus))

    def release(self) -> None:
        """End the actors and release their resources."""
        from ray.util import remove_placement_group

        for actor in self._actors.values():
            self._ray.kill(actor)
        for group in {id(room.group): room.group for room in self._reserved.values()}.values():
            remove_placement_group(group)
        if self._dial_in is not None:
            self._dial_in.remove_files()
        if self._initialized:
            self._ray.shutdown()

    async def last(self) -> None:
        """Listen no longer."""
        if self._dial_in is not None:
            await self._dial_in.close()

    # --- within --------------------------------------------------------------------------------

    def _connect(self) -> None:
        if not self._ray.is_initialized():
            options = {"namespace": self._config.namespace, "log_to_driver": False}
            try:
                self._ray.init(self._config.address, configure_logging=False, **options)
            except (ConnectionError, RuntimeError, ValueError) as error:
                where = self._config.address or "this host"
                raise PreflightError(
                    f"no Ray cluster can be joined at {where}: {error}; start one with `ray start --head`, or "
                    "set [launcher] address"
                ) from error
            self._initialized = True
        self._dial_in = DialIn(self._context.run.directory, self._config.silence_s)
        address = own_address(self._ray.util.get_node_ip_address())
        self._loop.call(self._dial_in.open(address), "this host", "a port to listen on", 10.0)

    def _nodes(self) -> dict[str, HostResources]:
        """The nodes that are alive and that the config allows, by id."""
        found = {}
        for node in self._ray.nodes():
            names = {
                node["NodeID"],
                node["NodeManagerAddress"],
                node["NodeManagerHostname"],
                node["NodeName"],
            }
            if not node["Alive"] or (self._config.hosts and not names & set(self._config.hosts)):
                continue
            has, labels = node["Resources"], node.get("Labels", {})
            pairs = {f"{key}={value}" for key, value in labels.items()}
            found[node["NodeID"]] = HostResources(
                node["NodeID"],
                has.get("CPU", 0.0),
                has.get("memory", 0.0) / 1e9,
                tuple(map(str, range(int(has.get("GPU", 0))))),
                frozenset(pairs | has.keys()),
                labels.get(SPOT[0]) == SPOT[1],
            )
        if not found:
            raise PreflightError("the Ray cluster has no node that [launcher] hosts allows")
        return found

    def _reserve(
        self, specs: Sequence[ProcessSpec], nodes: Mapping[str, HostResources]
    ) -> Mapping[HostKeys, Open]:
        from ray.util import placement_group, remove_placement_group

        policies = len(self._context.run.policies)
        places = Placement(self._config, nodes.values(), policies).place(specs)
        used = list(dict.fromkeys(place.host for place in places.values()))
        needs = {
            node: [self._config.needs(s.name, s.role) for s in specs if places[s.name].host == node]
            for node in used
        }
        bundles = []
        for node in used:
            bundle = {
                "CPU": sum(need.cpus or 0 for need in needs[node]),
                "GPU": sum(need.gpus for need in needs[node]),
                "memory": int(sum(need.memory_gb or 0 for need in needs[node]) * 1e9),
            }
            whole = {key: amount for key, amount in bundle.items() if amount}
            bundles.append(whole or {"CPU": 0.001})
        group = placement_group(
            bundles,
            strategy="PACK",
            name=f"astraflow-{self._context.run.name}-{secrets.token_hex(4)}",
            bundle_label_selector=[{NODE_ID: node} for node in used],
        )
        if not group.wait(self._config.connect_s):
            remove_placement_group(group)
            raise PreflightError(
                f"Ray did not reserve room for {', '.join(spec.name for spec in specs)} within "
                f"{self._config.connect_s:g} s: other jobs hold the resources (`ray status` shows them), or "
                "lower the needs of the roles in [launcher]"
            )
        rooms = [
            _Reserved(node, group, index, _only(nodes[node], bundles[index]))
            for index, node in enumerate(used)
        ]
        ways = self._supervised(rooms)
        names = {self._reserved[host.name].node: host.name for host in ways}
        self.chosen |= {name: names[place.host] for name, place in places.items()}
        return ways

    def _supervised(self, rooms: Iterable[_Reserved]) -> Mapping[HostKeys, Open]:
        """An actor for each room. A host is named after its node, and numbered if it is not the first there."""
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        assert self._dial_in is not None
        ways = {}
        for room in rooms:
            agent_id = secrets.token_hex(8)
            description = self._dial_in.describe(agent_id)
            actor = (
                self._ray.remote(NodeActor)
                .options(
                    num_cpus=0,
                    num_gpus=len(room.has.gpus),
                    max_concurrency=2,
                    scheduling_strategy=PlacementGroupSchedulingStrategy(
                        room.group, placement_group_bundle_index=room.index
                    ),
                )
                .remote()
            )
            first = f"node-{room.node[:8]}"
            before = [name for name in self._links if name.partition("_")[0] == first]
            name = f"{first}_{len(before) + 1}" if before else first
            self._reserved[name], self._actors[name] = room, actor
            ended = actor.run.remote(agent.__file__, str(description)).future()
            ended.add_done_callback(
                lambda done, name=name, key=agent_id: self._ended(name, key, done)
            )
            ways[HostKeys(name=name)] = self._dial_in.way_to(agent_id)
        return ways

    def _ended(self, name: str, agent_id: str, done: Any) -> None:
        """The actor of a host has ended, and the agent and its processes with it."""
        if self._closed or self._dial_in is None:
            return
        error = done.exception()
        why = (
            f"its actor died: {error}".splitlines()[0]
            if error
            else done.result() or "its agent ended"
        )
        self._dial_in.no_longer(agent_id, why)

        async def give_up() -> None:
            if name in self._links:
                self._links[name].give_up(why)

        self._loop.start(give_up())


def _only(node: HostResources, bundle: Mapping[str, float]) -> HostResources:
    """What a bundle has of its node. Where no cores or memory were asked for, processes share what there is."""
    return replace(
        node,
        cpus=bundle["CPU"] if bundle.get("CPU", 0) >= 1 else max(1.0, node.cpus),
        memory_gb=bundle["memory"] / 1e9 if "memory" in bundle else node.memory_gb,
        gpus=node.gpus[: int(bundle.get("GPU", 0))],
    )


def _imported() -> Any:
    try:
        import ray
        import ray.util
    except ImportError as error:
        raise PreflightError(
            "the launcher 'ray' needs Ray: pip install 'astraflow-contrib-ray[runtime]'"
        ) from error
    return ray
