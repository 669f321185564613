"""Entry point of a trainer process."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
from collections.abc import Iterator
from pathlib import Path

from astraflow_core.config.models import RunConfig
from astraflow_core.errors import AstraFlowError, RunFailed
from astraflow_core.types import Ranks
from astraflow_runtime.config.recovering import recovery_obstacle
from astraflow_runtime.package_skew import packages_of_run
from astraflow_runtime.telemetry.logs import configure_logging
from astraflow_runtime.trainer.components import TrainerComponents
from astraflow_runtime.trainer.culprit import describe
from astraflow_runtime.trainer.operations import Operations
from astraflow_runtime.trainer.publishing import Versions
from astraflow_runtime.trainer.ranks.channel import RankChannel, RankZeroChannel
from astraflow_runtime.trainer.ranks.follower import Follower
from astraflow_runtime.trainer.ranks.leader import Leader
from astraflow_runtime.trainer.ranks.rendezvous import RankRendezvous, ranks_of
from astraflow_runtime.trainer.ranks.sharding import RankZeroPublisher
from astraflow_runtime.trainer.recovery import Recovery
from astraflow_runtime.trainer.service import TrainerService
from astraflow_runtime.trainer.updates.stored_rows import SampledRows, StoredRows
from astraflow_runtime.trainer.upstream import DataflowClient
from astraflow_wire.host.parent import end_with_parent
from astraflow_wire.host.process import freeze_gc_after_startup, retain_freed_memory
from astraflow_wire.http.client import SyncClient
from astraflow_wire.http.connection_limits import raise_descriptor_limit

log = logging.getLogger(__name__)


def serve(config: RunConfig, directory: Path, token: str, dataflow_url: str, policy: str) -> int:
    """Train ``policy`` until the run ends; returns the exit code. SIGTERM ends it after the step.
    Under torchrun this is one of its ranks; only rank 0 announces versions and calls the dataflow.
    """
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
        meeting = RankRendezvous.of(name, ranks, token, os.environ)
        built = TrainerComponents.build(config, directory, token, policy, name, meeting)
    if ranks.rank:
        return _follow(config, policy, built, meeting, dataflow)
    dataflow.named_rewards = built.named_rewards
    dataflow.packages = packages_of_run(config, built.catalog)
    try:
        return _lead(config, policy, built, meeting, dataflow)
    finally:
        client.close()


def _lead(
    config: RunConfig,
    policy: str,
    built: TrainerComponents,
    meeting: RankRendezvous,
    dataflow: DataflowClient,
) -> int:
    """The first rank, or the only one."""
    ranks, table = meeting.ranks, built.table
    with _reported(dataflow, ranks):
        operations, publisher = _operations(config, policy, built, meeting, dataflow)
        versions = Versions(
            built.transport,
            table.transport.use,
            dataflow,
            Path(table.model),
            built.adapter_problem,
            publisher,
        )
    stored = StoredRows(config, built.run.directory, policy)
    operations.listener = stored
    built.hooks.run_started(built.run)
    service = TrainerService(
        config,
        built.run,
        policy,
        operations,
        versions,
        dataflow,
        built.hooks,
        reshards="reshard" in built.flags,
        recovery=_recovery(config, policy, built, dataflow),
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
            who = f"rank 0 of {meeting.who}: " if ranks.size > 1 else ""
            dataflow.failed(RunFailed(f"{who}{describe(problem, built.owners())}"))
        raise
    finally:
        versions.close()
        operations.close()
        stored.close()
        built.hooks.run_ended(built.run, error)
    return 0


def _recovery(
    config: RunConfig, policy: str, built: TrainerComponents, dataflow: DataflowClient
) -> Recovery | None:
    """How the trainer gets weights that it has lost; ``None`` if it is not to."""
    if not config.checkpoint.recover:
        return None
    table = built.table
    obstacle = recovery_obstacle(table.trainer, built.flags)
    return Recovery(
        dataflow,
        built.transport,
        Path(table.model),
        built.run.directory / "state",
        config.run.deadline_s,
        obstacle,
        getattr(built.trainer, "weights_kind", "full"),
    )


def _operations(
    config: RunConfig,
    policy: str,
    built: TrainerComponents,
    meeting: RankRendezvous,
    dataflow: DataflowClient,
) -> tuple[Operations, RankZeroPublisher | None]:
    """The operations of rank 0, and its publisher if each rank publishes its own blocks."""
    saves_later, sleeps = "async_save" in built.flags, "sleep" in built.flags
    trainer, algorithm = built.trainer, built.algorithm
    if meeting.ranks.size == 1:
        alone = Operations(
            config, policy, trainer, algorithm, saves_later=saves_later, sleeps=sleeps
        )
        return alone, None
    hub = RankZeroChannel(meeting)
    shards = built.shards.shard_publisher(hub.exchange) if built.shards else None
    leader = Leader(
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
    return leader, RankZeroPublisher(shards, leader) if shards else None


def _follow(
    config: RunConfig,
    policy: str,
    built: TrainerComponents,
    meeting: RankRendezvous,
    dataflow: DataflowClient,
) -> int:
    """Another rank: it follows rank 0."""
    spoke = RankChannel(meeting)
    shards = built.shards.shard_publisher(spoke.exchange) if built.shards else None
    operations = Operations(
        config,
        policy,
        built.trainer,
        built.algorithm,
        spoke.shared,
        "async_save" in built.flags,
        shards,
        "sleep" in built.flags,
    )
    operations.listener = SampledRows(config)
    follower = Follower(spoke, operations, dataflow, meeting.ranks, built.owners())
    # Torchrun passes SIGTERM on to all ranks; rank 0 decides when to stop.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        follower.run()
    except AstraFlowError as problem:
        log.error("%s", problem)
        return problem.exit_code
    finally:
        follower.close()
    return 0


@contextlib.contextmanager
def _reported(dataflow: DataflowClient, ranks: Ranks) -> Iterator[None]:
    """Report to the dataflow why a trainer of several ranks cannot start: torchrun would restart
    them, and hide their messages and exit codes.
    """
    try:
        yield
    except AstraFlowError as error:
        if ranks.size > 1:
            dataflow.failed(error)
        raise
