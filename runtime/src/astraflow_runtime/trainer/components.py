"""Builds the components of a trainer from the config."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from astraflow_core.catalog import Catalog
from astraflow_core.component import Kind
from astraflow_core.config.load import catalog_of_run, component_context, run_info
from astraflow_core.config.models import PolicyTable, RunConfig
from astraflow_core.protocols.algorithm import Algorithm
from astraflow_core.protocols.trainer import Trainer
from astraflow_core.protocols.transport import ShardedTransport, Transport
from astraflow_core.types import RunInfo
from astraflow_runtime.config.named_rewards import named_rewards_of_policy
from astraflow_runtime.hooks import Hooks
from astraflow_runtime.trainer.adapters import adapter_problem
from astraflow_runtime.trainer.culprit import Owner, owners
from astraflow_runtime.trainer.ranks.rendezvous import RankRendezvous
from astraflow_runtime.trainer.ranks.sharding import sharded
from astraflow_runtime.trainer.updates.update import check_needs


@dataclass(frozen=True, slots=True)
class TrainerComponents:
    """The components of one rank. ``flags`` are the trainer's capabilities; ``shards`` is the transport, if each rank
    publishes its own blocks with it; ``named_rewards``, what the algorithm reads by name."""

    catalog: Catalog
    table: PolicyTable
    hooks: Hooks
    run: RunInfo
    algorithm: Algorithm
    trainer: Trainer
    flags: frozenset[str]
    transport: Transport
    shards: ShardedTransport | None
    named_rewards: tuple[str, ...] = ()

    @classmethod
    def build(
        cls,
        config: RunConfig,
        directory: Path,
        token: str,
        policy: str,
        name: str,
        meeting: RankRendezvous,
    ) -> TrainerComponents:
        """Build the algorithm, the trainer and the transport of ``policy``, in this order. Raises
        :class:`UserError` if they do not fit together."""
        table = config.policies[policy]
        catalog = catalog_of_run(config, directory)
        hooks = Hooks.for_run(catalog, config)
        run = run_info(config, directory)
        context = component_context(config, directory, "trainer", policy, name, token)
        context = replace(context, ranks=meeting.ranks)
        algorithm = catalog.build(Kind.ALGORITHM, table.algorithm, context)
        flags = catalog.flags(Kind.TRAINER, table.trainer.use)
        check_needs(algorithm, table.algorithm.use, table.trainer.use, flags)
        trainer = catalog.build(Kind.TRAINER, table.trainer, context)
        transport = catalog.build(Kind.TRANSPORT, table.transport, context)
        can_send = catalog.flags(Kind.TRANSPORT, table.transport.use)
        shards = sharded(table, trainer, flags, transport, can_send, meeting)
        named = named_rewards_of_policy(config, catalog, policy)
        return cls(catalog, table, hooks, run, algorithm, trainer, flags, transport, shards, named)

    def owners(self) -> list[Owner]:
        """The components whose code an unexpected error may come from."""
        return owners(self.catalog, self.table)

    def adapter_problem(self) -> str:
        """Why adapters cannot be sent to the engine; empty if they can."""
        return adapter_problem(self.catalog, self.table.transport.use, self.table.engine.use)
