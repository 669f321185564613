"""The processes of a run."""

from __future__ import annotations

import math
import secrets
import shutil
import sys
from dataclasses import replace
from pathlib import Path

from astraflow_core.config.environments import environment_of
from astraflow_core.config.load import LoadedConfig
from astraflow_core.config.models import PolicyTable, RunConfig
from astraflow_core.config.tables import component_tables
from astraflow_core.errors import PreflightError
from astraflow_core.installed.origins import how_to_add
from astraflow_core.installed.requirements import RUNTIME, missing_runtime
from astraflow_core.protocols.launcher import ProcessSpec, Role
from astraflow_runtime.dataflow.http.access_records import read_oldest
from astraflow_wire.http.access import process_token
from astraflow_wire.http.raas_client import ORIGIN, START

TOKEN = "ASTRAFLOW_TOKEN"
DATAFLOW = "ASTRAFLOW_DATAFLOW"


def plan(config: RunConfig, directory: Path, token: str, restarts: int) -> list[ProcessSpec]:
    """The dataflow first, then the trainers and the RaaS. The run's token travels in the environment; the dataflow's
    address, known once it listens, and the token of each process are put there by :func:`reaching`. ``restarts``: how often the ranks
    of a trainer are restarted when one dies: 0 if it could not continue."""

    def spec(name: str, role: Role, *argv: str, ranks: int = 1) -> ProcessSpec:
        log = directory / "logs" / f"{name}.log"
        return ProcessSpec(name, role, argv, {TOKEN: token}, log, ranks)

    def service(role: Role) -> tuple[str, ...]:
        return (
            "-m",
            "astraflow_runtime",
            role,
            str(directory / "config.toml"),
            "--directory",
            str(directory),
        )

    specs = [spec("dataflow", "dataflow", sys.executable, *service("dataflow"), "--stay")]
    for policy, table in config.policies.items():
        python = trainer_command(table, config, restarts)
        argv = (*python, *service("trainer"), "--policy", policy)
        specs.append(spec(f"trainer-{policy}", "trainer", *argv, ranks=table.trainer.ranks))
    origin = {ORIGIN: secrets.token_hex(8)}
    for index in range(config.raas.replicas):
        name = f"raas-{index}"
        raas = spec(name, "raas", sys.executable, *service("raas"), "--name", name)
        specs.append(replace(raas, environment={**raas.environment, **origin}))
    return specs


def reaching(spec: ProcessSpec, dataflow_url: str, directory: Path) -> ProcessSpec:
    """The same process with the address of the dataflow, and with its own token instead of the run's: one that was
    not revoked, according to the run's ``directory``."""
    environment = {**spec.environment, DATAFLOW: dataflow_url}
    if spec.role != "dataflow":
        name = spec.name.removeprefix("trainer-") if spec.role == "trainer" else spec.name
        generation = read_oldest(directory).get(f"{spec.role}/{name}", 0)
        environment[TOKEN] = process_token(spec.environment[TOKEN], spec.role, name, generation)
    return replace(spec, environment=environment)


def started_anew(spec: ProcessSpec, restarts: int) -> ProcessSpec:
    """The same process with the number of its restarts."""
    return replace(spec, environment={**spec.environment, START: str(restarts)})


def trainer_command(table: PolicyTable, config: RunConfig, restarts: int) -> tuple[str, ...]:
    """Interpreter and arguments that start the ranks of a trainer, before the module."""
    python = table.trainer.python or sys.executable
    if table.trainer.ranks == 1:
        return (python,)
    return (
        *(python, "-m", "torch.distributed.run", "--standalone"),
        *("--nproc-per-node", str(table.trainer.ranks)),
        *("--max-restarts", str(restarts)),
        *("--rdzv-conf", f"join_timeout={math.ceil(config.run.start_deadline_s)}"),
    )


def check_interpreters(config: RunConfig) -> None:
    """Every ``python`` that a role names must be there; raises :class:`PreflightError`."""
    for place in component_tables(config):
        python = place.table.python if "python" in place.core_keys else None
        if python is not None and shutil.which(python) is None:
            environment = environment_of(python)
            remedy = (
                "create that environment"
                if environment is None
                else f"create it with `astraflow env create {environment} --plugin PLUGIN`, "
                f"where PLUGIN provides {place.kind} {place.table.use!r}"
            )
            raise PreflightError(
                f"{place.path}.python: no interpreter at {python!r}; {remedy}, or remove the key to use this "
                "interpreter"
            )


def check_trackers(loaded: LoadedConfig) -> None:
    """Refuse a tracker whose packages are not in this interpreter, if it is to run in it: that is known before a start."""
    for name, table in loaded.config.trackers.items():
        selected, _ = loaded.components[f"trackers.{name}"]
        missing = missing_runtime(selected.metadata) if table.python is None else ()
        if missing and selected.metadata is not None:
            raise PreflightError(
                f"trackers.{name}: tracker {table.use!r} needs packages that are not installed: {', '.join(missing)}; "
                f"{how_to_add(RUNTIME, selected.metadata)}, or set python to an interpreter that has them (`astraflow env "
                f'create NAME --plugin {selected.plugin}` makes one, which is python = "env:NAME")'
            )
