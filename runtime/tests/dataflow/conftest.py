"""A dataflow with a fake clock and in-module components; nothing here waits or does I/O."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from astraflow_core.catalog import Catalog
from astraflow_core.component import Kind
from astraflow_core.config.load import component_context
from astraflow_core.config.models import DataPolicyTable, RunConfig
from astraflow_core.errors import PluginError
from astraflow_core.protocols.data_policy import Scale
from astraflow_core.types import Batch, Group, Images, Prompt, Trajectory
from astraflow_core.types import Sequence as TokenSequence
from astraflow_core.types.generation import RoutedExperts
from astraflow_runtime.dataflow.flow import Dataflow
from astraflow_runtime.dataflow.image.file import IMAGE
from astraflow_runtime.dataflow.image.keeper import ImageKeeper
from astraflow_runtime.dataflow.image.restart import continued
from astraflow_runtime.dataflow.image.whole import save_state
from astraflow_runtime.dataflow.journal.journal import Journal
from astraflow_runtime.dataflow.policies.pipeline import NamedPolicy, PolicyPipeline
from astraflow_runtime.dataflow.policies.swapping import PolicyBuilder
from astraflow_runtime.dataflow.replay import JournalReplay
from astraflow_runtime.dataflow.state import FlowState
from astraflow_runtime.dataflow.tasks.cursor import PromptCursor
from astraflow_wire.batches import NoBatch, decode_batch
from astraflow_wire.groups import encode_group
from astraflow_wire.messages import (
    AcknowledgeBatch,
    AddRaas,
    AnnouncementMessage,
    BatchAcknowledged,
    DrainRaas,
    FailTask,
    GroupPushed,
    LeaseTasks,
    LeaveRaas,
    NextBatch,
    Notices,
    PoolChanged,
    RegisterRaas,
    RegisterTrainer,
    RenewLeases,
    Task,
)

sys.path.insert(0, str(Path(__file__).parent))

from picture import picture

PLACEHOLDER = 999


class Prompts:
    """``count`` prompts ``p0``, ``p1`` …"""

    def __init__(self, count: int, name: str = "p") -> None:
        self._count, self._name = count, name

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> Prompt:
        return Prompt(f"{self._name}{index}", {"prompt": str(index)})


def make_config(policies: Sequence[str] = ("solver",), **changes: Any) -> RunConfig:
    """A config; ``changes`` maps ``table__key`` to a value, ``policy__key`` for all policies."""
    table: dict[str, Any] = {
        "model": "m",
        "trainer": {"use": "t"},
        "algorithm": {"use": "a"},
        "engine": {"use": "e"},
        "transport": {"use": "x"},
        "batch_sequences": 4,
    }
    raw: dict[str, Any] = {
        "run": {"steps": 10, "max_staleness": 1, "group_size": 2, "lease_s": 30.0},
        "prompts": {"use": "p", "shuffle": False},
        "eval": {},
        "policies": {},
    }
    for key, value in changes.items():
        where, _, name = key.partition("__")
        if where == "policy":
            table[name] = value
        else:
            raw.setdefault(where, {})[name] = value
    raw["policies"] = {policy: dict(table) for policy in policies}
    return RunConfig.model_validate(raw)


def scaling_rule(config: RunConfig) -> Scale:
    """What ``[balance]`` names."""
    context = component_context(config, Path(), "dataflow", "", "balance", "")
    rule: Scale = Catalog.discover().build(Kind.DATA_POLICY, config.balance, context)
    return rule


def group_body(
    task: str,
    prompt_id: str,
    raas: str = "r0",
    *,
    rewards: Sequence[float] = (0.0, 1.0),
    version: int | Sequence[int] = 0,
    policies: Sequence[str] = ("solver",),
    length: int = 5,
    eval_set: str = "",
    trained: bool = True,
    late: int = 0,
    rejected: int = 0,
    incarnation: int = 1,
    metrics: Sequence[Mapping[str, float]] = (),
    turn_rewards: Mapping[int, float] | None = None,
    turn_states: Mapping[int, int | str] | None = None,
    routed: Sequence[RoutedExperts | None] = (),
    seen: Sequence[Images] = (),
) -> bytes:
    """A push with one trajectory for each reward, and each of ``routed`` and ``seen``; the last three tokens of a sequence are
    trained, the token ids tell trajectory and position, and are :data:`PLACEHOLDER` where there is an image."""
    versions = [version] * len(rewards) if isinstance(version, int) else list(version)
    trajectories = []
    for number, (reward, sampled) in enumerate(zip(rewards, versions, strict=True)):
        mask = np.arange(length) >= max(1, length - 3)
        tokens = np.arange(length, dtype=np.int32) + 100 * number
        images = seen[number] if seen else ()
        for image in images:
            tokens[image.start : image.end] = PLACEHOLDER
        sequences = tuple(
            TokenSequence(
                policy,
                tokens,
                mask & trained,
                np.where(mask, -0.5, 0.0).astype(np.float32),
                np.where(mask, sampled, -1).astype(np.int32),
                turn_rewards=turn_rewards,
                turn_states=turn_states,
                routed_experts=routed[number] if routed else None,
                images=images,
            )
            for policy in policies
        )
        measured = dict(metrics[number]) if metrics else {}
        earned = dict.fromkeys(policies, reward)
        trajectories.append(Trajectory(sequences, rewards=earned, metrics=measured))
    group = Group(task, prompt_id, tuple(trajectories))
    return encode_group(
        group, raas, eval_set=eval_set, late=late, rejected=rejected, incarnation=incarnation
    )


@dataclass
class Bench:
    """A dataflow, its fake clock, and short ways to play RaaS and trainer."""

    flow: Dataflow
    time: list[float]
    build: Callable[[], Dataflow]
    journal: Path | None = None
    bodies: dict[str, bytes] = field(default_factory=dict)

    @property
    def state(self) -> FlowState:
        return self.flow.state

    def restart(self, *, resumed: bool = False) -> Bench:
        """The dataflow is killed, and another one continues from its journal."""
        assert self.journal is not None
        now, before = self.time[0], picture(self.flow)
        self.state.close()
        self.flow = self.build()
        journal = Journal(self.journal, lambda: self.time[0])
        JournalReplay(self.flow, journal.reader, partial(self.time.__setitem__, 0)).run(
            journal.entries()
        )
        assert picture(self.flow) == before
        if (self.journal / IMAGE).exists():
            self._continue_from_image(journal, before)
        self.time[0] = now
        self.state.restore(journal, resumed=resumed)
        return self

    def write_image(self) -> Path:
        """Write an image of the present state."""
        journal = self.state.records._journal
        assert journal is not None
        keeper = ImageKeeper(self.flow, journal, "test", 0)
        assert keeper.write_now()
        return journal.path / IMAGE

    def _continue_from_image(self, journal: Journal, before: dict[str, Any]) -> None:
        """Go on with the dataflow that an image and the entries after it give: it must be equal to that of the whole
        journal."""
        whole = save_state(self.flow)()
        found = continued(self.build, journal, partial(self.time.__setitem__, 0), "test")
        assert found.covered and found.covered + found.read == journal.count
        self.flow, restored = found.flow, save_state(found.flow)()
        for name in whole.__struct_fields__:
            assert getattr(restored, name) == getattr(whole, name), name
        assert picture(found.flow) == before

    def stamped(self, message: Any) -> Any:
        """The message with the incarnation of the process that registered last, unless it has one."""
        if getattr(message, "incarnation", None) != 0:
            return message
        raas, policy = getattr(message, "raas", None), getattr(message, "policy", None)
        holder = self.state.fleet.get(raas) if raas else self.state.trainers.get(policy)
        return replace(message, incarnation=holder.incarnation if holder is not None else 0)

    def pass_time(self, seconds: float, *, sweep: bool = True) -> None:
        self.time[0] += seconds
        if sweep:
            self.flow.watch.sweep()

    def register_raas(self, name: str = "r0", capacity: int = 64) -> Notices:
        message = RegisterRaas(
            raas=name, pid=1, host="h", policies=list(self.state.streams), capacity=capacity
        )
        return self.flow.leasing.register(message).notices

    def register_trainers(self) -> None:
        for policy in self.state.streams:
            self.flow.training.register(RegisterTrainer(policy=policy, pid=2, host="h"))

    def announce(self, version: int, policy: str = "solver") -> list[int]:
        message = AnnouncementMessage(
            policy=policy,
            version=version,
            transport="x",
            endpoints=["e"],
            digest=f"d{version}",
            size=1,
        )
        return self.flow.training.announce(message).retain

    def begin(self, *raas: str) -> Bench:
        """Trainers at version 0, and the RaaS."""
        self.register_trainers()
        for policy in self.state.streams:
            self.announce(0, policy)
        for name in raas or ("r0",):
            self.register_raas(name)
        return self

    def lease(
        self, free: int = 64, raas: str = "r0", serving: Mapping[str, int] | int = 0
    ) -> tuple[list[Task], Notices]:
        versions = (
            dict.fromkeys(self.state.streams, serving)
            if isinstance(serving, int)
            else dict(serving)
        )
        message = LeaseTasks(raas=raas, free=free, wait_s=0, serving=versions, seen=versions)
        record = self.flow.leasing.ask(message)
        answer = self.flow.leasing.lease(record, free)
        return answer.tasks, answer.notices

    def renew(self, tasks: Sequence[str], raas: str = "r0", serving: int = 0) -> Notices:
        versions = dict.fromkeys(self.state.streams, serving)
        message = RenewLeases(raas=raas, tasks=list(tasks), serving=versions, seen=versions)
        return self.flow.leasing.renew(message).notices

    def push(self, task: Task, raas: str = "r0", **group: Any) -> GroupPushed:
        group.setdefault("policies", tuple(self.state.streams))
        group.setdefault("eval_set", task.eval_set)
        if (record := self.state.fleet.get(raas)) is not None:
            group.setdefault("incarnation", record.incarnation)
        group.setdefault("rewards", tuple(float(i % 2) for i in range(task.group_size)))
        body = group_body(task.id, task.prompt_id, raas, **group)
        self.bodies[task.id] = body
        return self.flow.intake.accept(body)

    def fail(
        self,
        task: Task,
        error: str = "boom",
        raas: str = "r0",
        fatal: bool = False,
        environment: str = "",
    ) -> None:
        told = FailTask(raas=raas, task=task.id, error=error, fatal=fatal, environment=environment)
        self.flow.leasing.fail(told)

    def leave(self, raas: str = "r0") -> None:
        self.flow.leasing.leave(LeaveRaas(raas=raas, reason="test"))

    def next_batch(self, version: int, policy: str = "solver") -> Batch | NoBatch | None:
        body = self.flow.training.next_batch(NextBatch(policy=policy, version=version, wait_s=0))
        return None if body is None else decode_batch(b"".join(body))

    def acknowledge(self, batch: str, version: int, policy: str = "solver") -> BatchAcknowledged:
        return self.flow.training.acknowledge(
            AcknowledgeBatch(policy=policy, batch=batch, version=version, metrics={"loss": 0.5})
        )

    def update(self, version: int) -> None:
        """Roll two groups out with a version, and train on them."""
        for task in self.lease(4, serving=version)[0]:
            self.push(task, version=version)
        batch = self.next_batch(version)
        assert isinstance(batch, Batch)
        self.announce(version + 1)
        self.acknowledge(batch.id, version + 1)

    def drain(self, raas: str) -> PoolChanged:
        return self.flow.pool.drain(DrainRaas(raas=raas, author="ada"))

    def add(self, count: int = 1, id: str = "") -> PoolChanged:
        message = AddRaas(id=id or f"{self.flow.pool.added}", count=count, author="ada")
        return self.flow.pool.add(message)

    def check(self) -> None:
        """Both invariants hold."""
        assert self.flow.balance()["imbalances"] == []


def no_policies(place: str, table: DataPolicyTable, number: int) -> Any:
    raise PluginError(f"no data policy {table.use!r} is installed")


def make_bench(
    config: RunConfig | None = None,
    *,
    prompts: int = 100,
    evals: Mapping[str, int] | None = None,
    admission: Sequence[Callable[[], Any] | Any] = (),
    data: Sequence[Callable[[], Any] | Any] = (),
    journal: Path | None = None,
    build_policy: PolicyBuilder = no_policies,
    **parts: Any,
) -> Bench:
    """``admission`` and ``data``: policies, or functions that make one. ``journal``: a folder for one."""
    config = config or make_config()
    time = [1000.0]

    def chain(policies: Sequence[Any]) -> PolicyPipeline:
        made = [policy() if isinstance(policy, type) else policy for policy in policies]
        return PolicyPipeline([NamedPolicy(type(policy).__name__, policy) for policy in made])

    def data_of(policy: str) -> Sequence[Any]:
        return data.get(policy, ()) if isinstance(data, Mapping) else data

    def build() -> Dataflow:
        state = FlowState(
            config,
            cursor=PromptCursor(Prompts(prompts), config.run.seed, config.prompts.shuffle),
            admission=chain(admission),
            chains={policy: chain(data_of(policy)) for policy in config.policies},
            eval_sets={name: Prompts(count, name) for name, count in (evals or {}).items()},
            rule=scaling_rule(config),
            clock=lambda: time[0],
            **parts,
        )
        return Dataflow(state, build_policy)

    bench = Bench(build(), time, build, journal)
    if journal is not None:
        bench.state.records.begin(Journal(journal, lambda: time[0]))
    return bench


@pytest.fixture
def config() -> Callable[..., RunConfig]:
    return make_config


@pytest.fixture
def bench() -> Callable[..., Bench]:
    return make_bench


@pytest.fixture
def body() -> Callable[..., bytes]:
    return group_body
