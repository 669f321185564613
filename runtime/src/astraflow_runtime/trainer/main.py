"""Entry point of a trainer process."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

from astraflow_core.component import Kind
from astraflow_core.config.load import catalog_of_run, component_context, run_info
from astraflow_core.config.models import RunConfig
from astraflow_core.errors import AstraFlowError, RunFailed
from astraflow_core.hooks import Hooks
from astraflow_core.types import Ranks
from astraflow_runtime.telemetry.logs import configure_logging
from astraflow_runtime.trainer.adapters import adapter_problem
from astraflow_runtime.trainer.culprit import describe, owners
from astraflow_runtime.trainer.operations import Operations
from astraflow_runtime.trainer.publishing import Versions
from astraflow_runtime.trainer.ranks.channel import RankChannel, RankZeroChannel
from astraflow_runtime.trainer.ranks.follower import Follower
from astraflow_runtime.trainer.ranks.leader import Leader
from astraflow_runtime.trainer.ranks.rendezvous import RankRendezvous, ranks_of
from astraflow_runtime.trainer.ranks.sharding import RankZeroPublisher, sharded
from astraflow_runtime.trainer.service import TrainerService
from astraflow_runtime.trainer.updates.update import check_needs
from astraflow_runtime.trainer.upstream import DataflowClient
from astraflow_wire.host.parent import end_with_parent
from astraflow_wire.host.process import freeze_gc_after_startup, retain_freed_memory
from astraflow_wire.http.client import SyncClient
from astraflow_wire.http.connection_limits import raise_descriptor_limit

log = logging.getLogger(__name__)


def serve(config: RunConfig, directory: Path, token: str, dataflow_url: str, policy: str) -> int:
    """Train ``policy`` until the run ends; returns the exit code. SIGTERM ends it after the step. Under torchrun
    this is one of its ranks, of which the first alone announces versions and speaks with the dataflow."""
    name = f"trainer-{policy}"
    table = config.policies[policy]
    deadline_s = max(config.run.give_up_after_s, config.run.start_deadline_s)
    ranks = ranks_of(os.environ, table.trainer.ranks, name, deadline_s)
    configure_logging(f"{name}.{ranks.rank}" if ranks.rank else name)
    end_with_parent()
    retain_freed_memory()
    raise_descriptor_limit()
    client = SyncClient(dataflow_url, token, waits_for_room=True)
    dataflow = DataflowClient(client, policy, config.run.give_up_after_s)
    with _reported(dataflow, ranks), freeze_gc_after_startup():
        catalog = catalog_of_run(config, directory)
        hooks = Hooks.for_run(catalog, config)
        run = run_info(config, directory)
        context = component_context(config, directory, "trainer", policy, name, token)
        context = replace(context, ranks=ranks)
        algorithm = catalog.build(Kind.ALGORITHM, table.algorithm, context)
        flags = catalog.flags(Kind.TRAINER, table.trainer.use)
        check_needs(algorithm, table.algorithm.use, table.trainer.use, flags)
        trainer = catalog.build(Kind.TRAINER, table.trainer, context)
        transport = catalog.build(Kind.TRANSPORT, table.transport, context)
        can_send = catalog.flags(Kind.TRANSPORT, table.transport.use)
        meeting = RankRendezvous.of(name, ranks, token, os.environ)
        together = sharded(table, trainer, flags, transport, can_send, meeting)
    saves_later, sleeps = "async_save" in flags, "sleep" in flags
    if ranks.rank:
        spoke = RankChannel(meeting)
        shards = together.shard_publisher(spoke.exchange) if together else None
        operations = Operations(
            config, policy, trainer, algorithm, spoke.shared, saves_later, shards, sleeps
        )
        known = owners(catalog, table)
        return _follow(Follower(spoke, operations, dataflow, ranks, known))
    with _reported(dataflow, ranks):
        publisher = None
        if ranks.size == 1:
            operations = Operations(
                config, policy, trainer, algorithm, saves_later=saves_later, sleeps=sleeps
            )
        else:
            hub = RankZeroChannel(meeting)
            shards = together.shard_publisher(hub.exchange) if together else None
            operations = Leader(
                config,
                policy,
                trainer,
                algorithm,
                hub,
                saves_later,
                shards,
                sleeps,
                lambda: dataflow.incarnation,
            )
            publisher = RankZeroPublisher(shards, operations) if shards else None
        no_adapters = partial(adapter_problem, catalog, table.transport.use, table.engine.use)
        versions = Versions(
            transport, table.transport.use, dataflow, Path(table.model), no_adapters, publisher
        )
    hooks.run_started(run)
    service = TrainerService(
        config, run, policy, operations, versions, dataflow, hooks, reshards="reshard" in flags
    )
    signal.signal(signal.SIGTERM, lambda *_: service.stop.set())
    error: BaseException | None = None
    try:
        service.run()
    except AstraFlowError as problem:
        error = problem
        log.error("%s", problem)
        return problem.exit_code
    except BaseException as problem:
        error = problem
        if isinstance(problem, Exception):
            who = f"rank 0 of {name}: " if ranks.size > 1 else ""
            dataflow.failed(RunFailed(f"{who}{describe(problem, owners(catalog, table))}"))
        raise
    finally:
        versions.close()
        operations.close()
        client.close()
        hooks.run_ended(run, error)
    return 0


@contextlib.contextmanager
def _reported(dataflow: DataflowClient, ranks: Ranks) -> Iterator[None]:
    """Tell the dataflow what keeps a trainer of several ranks from starting: torchrun would start them again, and
    hide what they said and their exit codes."""
    try:
        yield
    except AstraFlowError as error:
        if ranks.size > 1:
            dataflow.failed(error)
        raise


def _follow(follower: Follower) -> int:
    # Torchrun passes SIGTERM on to all ranks; the first decides when it is time.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        follower.run()
    except AstraFlowError as problem:
        log.error("%s", problem)
        return problem.exit_code
    finally:
        follower.close()
    return 0
