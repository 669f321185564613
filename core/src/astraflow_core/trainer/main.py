"""Entry point of a trainer process."""

from __future__ import annotations

import logging
import signal
from functools import partial
from pathlib import Path

from astraflow_core.catalog import Catalog
from astraflow_core.component import Kind
from astraflow_core.config.load import component_context, run_info
from astraflow_core.config.models import RunConfig
from astraflow_core.errors import AstraFlowError
from astraflow_core.hooks import Hooks
from astraflow_core.lasting import made_to_last
from astraflow_core.telemetry.logs import configure_logging
from astraflow_core.telemetry.parent import end_with_parent
from astraflow_core.trainer.adapters import adapter_problem
from astraflow_core.trainer.publishing import Versions
from astraflow_core.trainer.service import TrainerService
from astraflow_core.trainer.update import check_needs
from astraflow_core.trainer.upstream import Dataflow
from astraflow_core.wire.client import SyncClient

log = logging.getLogger(__name__)


def serve(config: RunConfig, directory: Path, token: str, dataflow_url: str, policy: str) -> int:
    """Train ``policy`` until the run ends; returns the exit code. SIGTERM ends it after the step."""
    name = f"trainer-{policy}"
    configure_logging(name)
    end_with_parent()
    table = config.policies[policy]
    with made_to_last():
        catalog = Catalog.discover(config.plugins.disable, config.plugins.only)
        hooks = Hooks.for_run(catalog, config)
        run = run_info(config, directory)
        context = component_context(config, directory, "trainer", policy, name, token)
        algorithm = catalog.build(Kind.ALGORITHM, table.algorithm, context)
        flags = catalog.flags(Kind.TRAINER, table.trainer.use)
        check_needs(algorithm, table.algorithm.use, table.trainer.use, flags)
        trainer = catalog.build(Kind.TRAINER, table.trainer, context)
        transport = catalog.build(Kind.TRANSPORT, table.transport, context)
    hooks.run_started(run)
    client = SyncClient(dataflow_url, token)
    dataflow = Dataflow(client, policy, config.run.patience_s)
    no_adapters = partial(adapter_problem, catalog, table.transport.use, table.engine.use)
    versions = Versions(transport, table.transport.use, dataflow, Path(table.model), no_adapters)
    service = TrainerService(config, run, policy, trainer, algorithm, versions, dataflow, hooks)
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
        raise
    finally:
        versions.close()
        trainer.close()
        client.close()
        hooks.run_ended(run, error)
    return 0
