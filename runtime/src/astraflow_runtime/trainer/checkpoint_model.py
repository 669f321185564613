"""Writes the model of a checkpoint: ``python -m astraflow_runtime.trainer.checkpoint_model SPEC UPDATES FOLDER``, as each rank
of the trainer that saved it.

Only that trainer can read its state, perhaps in a separate environment.
"""

from __future__ import annotations

import logging
import os
import sys
from dataclasses import replace
from pathlib import Path

from astraflow_core.component import Kind
from astraflow_core.config.load import catalog_of_run, component_context
from astraflow_core.errors import AstraFlowError, UserError
from astraflow_engine_host.spec import TOKEN_VARIABLE, ChildSpec, read_spec
from astraflow_runtime.telemetry.logs import configure_logging
from astraflow_runtime.trainer.checkpoints.store import Checkpoints
from astraflow_runtime.trainer.operations import Operations
from astraflow_runtime.trainer.ranks.rendezvous import ranks_of
from astraflow_wire.host.parent import end_with_parent

log = logging.getLogger(__name__)


def write_model(spec: ChildSpec, updates: int, folder: Path) -> None:
    """Load the checkpoint of ``updates`` in the run of ``spec``, verified, and write its Hugging
    Face folder into the empty folder ``folder``.
    """
    config, policy, directory = spec.run_config, spec.policy, Path(spec.directory)
    table, name = config.policies[policy], f"trainer-{policy}"
    ranks = ranks_of(os.environ, table.trainer.ranks, name, config.run.start_deadline_s)
    catalog = catalog_of_run(config, directory)
    checkpoints = Checkpoints(
        directory / "checkpoints" / policy,
        policy,
        keep=config.checkpoint.keep,
        trainer=table.trainer.use,
        ranks=ranks.size,
        reshards="reshard" in catalog.flags(Kind.TRAINER, table.trainer.use),
    )
    saved = checkpoints.chosen(updates)
    if saved is None:
        raise UserError(f"policy {policy!r} no longer has the checkpoint of update {updates}")
    token = os.environ.get(TOKEN_VARIABLE, "")
    context = component_context(config, directory, "trainer", policy, name, token)
    context = replace(context, ranks=ranks)
    algorithm = catalog.build(Kind.ALGORITHM, table.algorithm, context)
    trainer = catalog.build(Kind.TRAINER, table.trainer, context)
    operations = Operations(config, policy, trainer, algorithm)
    try:
        operations.set_up(saved)
        operations.save_model(folder)
    finally:
        operations.close()


def main() -> int:
    """The process's entry point."""
    configure_logging("checkpoint")
    end_with_parent()
    try:
        write_model(read_spec(Path(sys.argv[1])), int(sys.argv[2]), Path(sys.argv[3]))
    except AstraFlowError as error:
        log.error("%s", error)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
