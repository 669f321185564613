"""The resource keys of ``[launcher]``, which mean the same for every launcher."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, model_validator

from astraflow_core.config.models import ConfigModel, PositiveInt, Seconds
from astraflow_core.protocols.launcher import Role

Amount = Annotated[float, Field(gt=0, allow_inf_nan=False)]
HostName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9._@:-]*$")]
Label = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._/=-]*$")]


class ProcessKeys(ConfigModel):
    """What each process of a role needs of its host."""

    gpus: Annotated[int, Field(ge=0)] = Field(
        default=0, description="GPUs for this process alone, by CUDA_VISIBLE_DEVICES."
    )
    cpus: Amount | None = Field(
        default=None, description="CPU cores; default: an equal share of those that are left."
    )
    memory_gb: Amount | None = Field(
        default=None, description="Memory, 10^9 bytes; default: none is set aside."
    )
    labels: tuple[Label, ...] = Field(default=(), description="Labels that the host must have.")
    count: PositiveInt | None = Field(
        default=None,
        description="Number of hosts over which the processes of the role are spread; default: all that fit.",
    )
    spot: bool = Field(
        default=False, description="May run on a host that can be taken away at any time."
    )


class ResourceKeys(ConfigModel):
    """Keys that every launcher has."""

    dataflow: ProcessKeys = Field(default=ProcessKeys(), description="Needs of the dataflow.")
    trainer: ProcessKeys = Field(default=ProcessKeys(), description="Needs of each trainer.")
    raas: ProcessKeys = Field(default=ProcessKeys(), description="Needs of each RaaS.")
    processes: dict[str, ProcessKeys] = Field(
        default={},
        description="Process name, such as 'trainer-solver' → its needs, in the place of its role's.",
    )
    restarts: Annotated[int, Field(ge=0)] = Field(
        default=3,
        description="How often a killed process is restarted: a RaaS, a trainer with checkpoints, a dataflow "
        "with a journal.",
    )

    def needs(self, name: str, role: Role) -> ProcessKeys:
        """What the process ``name`` needs."""
        found: ProcessKeys = self.processes.get(name, getattr(self, role))
        return found

    @property
    def shares_gpus(self) -> bool:
        """Whether the config says who gets which GPUs; otherwise every process sees all."""
        roles = (self.dataflow, self.trainer, self.raas, *self.processes.values())
        return any(role.gpus for role in roles)


class HostKeys(ConfigModel):
    """A host. What is not given is what the host reports."""

    name: HostName = Field(description="Name of the host, by which a launcher reaches it.")
    address: str | None = Field(
        default=None,
        description="Address at which other hosts reach its services; default: the one that the launcher reached.",
    )
    gpus: Annotated[int, Field(ge=0)] | None = Field(
        default=None, description="GPUs to use; default: those that it reports."
    )
    cpus: Amount | None = Field(
        default=None, description="CPU cores to use; default: those that it reports."
    )
    memory_gb: Amount | None = Field(
        default=None, description="Memory to use, 10^9 bytes; default: what it reports."
    )
    labels: tuple[Label, ...] = Field(default=(), description="Labels that roles may ask for.")
    spot: bool = Field(default=False, description="The host can be taken away at any time.")
    python: str | None = Field(
        default=None,
        description="Interpreter with AstraFlow on this host; default: the path of the launcher's own.",
    )
    directory: str | None = Field(
        default=None,
        description="Folder in which processes start; default: the path of the launcher's current folder.",
    )


class RemoteKeys(ResourceKeys):
    """Keys of launchers that reach their hosts through an agent."""

    silence_s: Seconds = Field(
        default=30.0,
        description="A host that receives nothing from the launcher for this long ends its processes; a host "
        "from which the launcher receives nothing counts as lost shortly after.",
    )
    connect_s: Seconds = Field(default=60.0, description="Maximum time to reach a host.")


class HostsKeys(RemoteKeys):
    """Keys of a launcher with a list of hosts."""

    hosts: tuple[HostKeys | HostName, ...] = Field(
        default=("localhost",), description="Hosts: names, or tables with keys."
    )

    @property
    def tables(self) -> tuple[HostKeys, ...]:
        """Every host as a table."""
        return tuple(HostKeys(name=h) if isinstance(h, str) else h for h in self.hosts)

    @model_validator(mode="after")
    def _refuse_no_host_and_twins(self) -> Self:
        names = [host.name for host in self.tables]
        if not names:
            raise ValueError("hosts is empty: name at least one host")
        if twins := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"{', '.join(twins)} appears more than once in hosts")
        return self
