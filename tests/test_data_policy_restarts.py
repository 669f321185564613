"""Data policies of all kinds together: a dataflow that is killed now and then makes the same decisions as one that is
never killed."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from workspace import ROOT

from astraflow_core.catalog import Catalog
from astraflow_core.config.models import DataPolicyTable
from astraflow_core.seeds import derive_seed
from astraflow_core.types import ComponentContext, Prompt, RunInfo
from astraflow_runtime.dataflow.flow import Dataflow
from astraflow_runtime.dataflow.journal.journal import Journal
from astraflow_runtime.dataflow.main import policy_builder
from astraflow_runtime.dataflow.policies.pipeline import NamedPolicy, PolicyPipeline
from astraflow_runtime.dataflow.state import FlowState
from astraflow_runtime.dataflow.tasks.cursor import PromptCursor
from astraflow_wire.batches import NoBatch, encode_batch
from astraflow_wire.messages import SwapPolicy

STALENESS = 3
STEPS = 1000
WITH_IMAGES = 23
"""The life, by the steps between its restarts, that goes on from images of the state."""

ADMISSION: list[dict[str, Any]] = [
    {"use": "quarantine", "after": 1},
    {"use": "mixing", "weights": {"a": [[0, 3], [20, 1]], "b": 1}},
    {"use": "curriculum", "by": "failure_rate", "high": [[0, 0.9], [9, 0.7]], "explore": 0.4},
    {"use": "solved_filter", "solved": 0.6, "memory": 0.5, "revisit": 0.3},
    {"use": "greso", "p_easy": 0.6, "step": 0.05},
    {"use": "greso_repository", "name": "other", "shadow": True, "sampling_batch": 4,
     "train_sequences": 12, "smallest_batch": 2},
    {"use": "staleness_throttle", "target": 0.5, "first": 6},
]  # fmt: skip
KEPT: list[dict[str, Any]] = [
    {"use": "accept_all"},
    {"use": "partial_groups", "at_least": 2},
    {"use": "length_filter", "low": 2},
    {"use": "overlong_filter"},
    {"use": "reward_filter", "name": "not_hopeless", "high": 0.95},
    {"use": "reward_filter", "name": "watched", "low": 0.4, "shadow": True},
    {"use": "dynamic_sampling"},
    {"use": "ordering", "by": "surprise"},
]
SERVED: list[list[dict[str, Any]]] = [
    [{"use": "replay", "ratio": 0.5, "selector": "prioritised", "reuse_limit": 2}],
    [
        {"use": "staleness_decay"},
        {"use": "replay", "ratio": 0.4, "selector": "uniform", "max_staleness": 1},
        {"use": "staleness_decay", "name": "watched_decay", "shadow": True, "decay": 0.1},
    ],
    [{"use": "staleness_decay"}, {"use": "staleness_decay", "name": "again", "decay": 0.9}],
]
SHADOW = {"use": "replay", "name": "watched_replay", "shadow": True, "selector": "uniform"}


SWAPS: dict[int, tuple[str, str, dict[str, Any]]] = {
    60: ("prompts", "greso", {"use": "greso", "floor_hard": 0.9}),
    90: ("prompts", "other", {"use": "greso_repository", "floor": 0.5, "shadow": True}),
    100: ("solver", "ordering", {"use": "ordering", "by": "edf"}),
    120: ("prompts", "greso", {}),
    130: ("prompts", "solved_filter", {"use": "staleness_throttle", "first": 4}),
}
"""Step of a life: place, name and table (empty: back to the one before)."""


class Prompts:
    """Prompts of two sources."""

    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> Prompt:
        return Prompt(f"p{index}", {"prompt": str(index), "source": "ab"[index % 3 == 0]})


@pytest.fixture(scope="module")
def kit() -> ModuleType:
    """The dataflow with a fake clock of the runtime's tests."""
    spec = importlib.util.spec_from_file_location(
        "dataflow_kit", ROOT / "runtime" / "tests" / "dataflow" / "conftest.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look themselves up there
    spec.loader.exec_module(module)
    return module


def bench(kit: ModuleType, data: list[dict[str, Any]], folder: Path, seed: int) -> Any:
    config = kit.make_config(
        run__steps=STEPS, run__max_staleness=STALENESS, run__group_size=3, run__task_attempts=1,
        run__max_consecutive_failures=10**6, run__deadline_s=1e6, run__start_deadline_s=1e6,
        policy__batch_sequences=6, prompts__data=ADMISSION, policy__data=data,
    )  # fmt: skip
    catalog = Catalog.discover()
    time = [1000.0]
    run = RunInfo("run", seed, STEPS, STALENESS, ("solver",), folder)

    def chain(tables: list[dict[str, Any]], policy: str) -> PolicyPipeline:
        made = []
        for index, raw in enumerate(tables):
            table = DataPolicyTable.model_validate(raw)
            own = derive_seed(seed, policy, index)
            context = ComponentContext(run, "dataflow", policy, own, folder)
            made.append(
                NamedPolicy(table.label, catalog.build("data_policy", table, context), table.shadow)
            )
        return PolicyPipeline(made)

    def build() -> Dataflow:
        return Dataflow(
            FlowState(
                config,
                cursor=PromptCursor(Prompts(), seed, True),
                admission=chain(ADMISSION, ""),
                chains={"solver": chain(data, "solver")},
                eval_sets={},
                rule=kit.scaling_rule(config),
                clock=lambda: time[0],
            ),
            policy_builder(config, folder, "", catalog),
        )

    made = kit.Bench(build(), time, build, folder)
    made.state.records.begin(Journal(folder, lambda: time[0]))
    return made.begin()


def live(b: Any, seed: int, restart_every: int) -> tuple[list[Any], dict[str, float], str]:
    """A run in which groups come late, partly, out of order or not at all: its events and final figures."""
    rng = np.random.default_rng(seed)
    skill, held, events, version = rng.random(24), [], [], 0
    for step in range(200):
        if restart_every and step % restart_every == 0:
            b.restart()
        if restart_every == WITH_IMAGES and step % restart_every == restart_every // 2:
            b.write_image()  # from here on a restart continues from it and is compared
        if step in SWAPS:
            place, name, table = SWAPS[step]
            message = SwapPolicy(
                id=str(step), place=place, name=name, author="ada", at=0.0, table=table
            )
            assert b.flow.swapping.swap(message).table["use"]
        if version < STEPS:
            tasks, _ = b.lease(9, serving=version)
            held += [(task, version) for task in tasks]
            events.append([task.prompt_id for task in tasks])
        for _ in range(int(rng.integers(0, 4))):
            if held:
                task, began = held.pop(int(rng.integers(len(held))))
                chance = rng.random()
                rewards = (rng.random(3) < skill[int(task.prompt_id[1:])]).astype(float)
                if chance < 0.1:
                    b.fail(task, fatal=chance < 0.05)
                else:
                    size = 1 if chance < 0.2 else 3
                    answer = b.push(task, rewards=tuple(rewards[:size].tolist()), version=began)
                    events.append((answer.status, dict(answer.reasons)))
        if version < STEPS and rng.random() < 0.5:
            batch = b.next_batch(version)
            if batch is not None and not isinstance(batch, NoBatch):
                events.append(encode_batch(batch))
                assert version - batch.versions[batch.loss_mask].min() <= STALENESS
                version += 1
                b.announce(version)
                b.acknowledge(batch.id, version)
        b.check()
    state = b.state
    figures = {**state.admission.chain.metrics(), **state.streams["solver"].chain.metrics()}
    states = [state.admission.chain.state_dict(), state.streams["solver"].chain.state_dict()]
    return events, figures, json.dumps(states)


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.parametrize("served", range(3))
def test_killed_and_restored_it_decides_as_if_nothing_had_happened(
    kit: ModuleType, tmp_path: Path, served: int
) -> None:
    data = [*KEPT, *SERVED[served], SHADOW]
    lives = [
        live(bench(kit, data, tmp_path / str(every), seed=5), 11, every)
        for every in (0, 7, WITH_IMAGES)
    ]
    events, figures, states = lives[0]
    for other in lives[1:]:
        assert other[0] == events
        assert other[1] == figures
        assert other[2] == states
    assert figures["greso/skipped"] > 0
    assert figures["quarantine/skipped"] > 0
    assert figures["watched/shadow_groups_refused"] > 0
    assert figures["other/shadow_prompts_refused"] > 0
    assert sum(isinstance(event, bytes) for event in events) > 10


def test_every_data_policy_is_among_them() -> None:
    listed = [*ADMISSION, *KEPT, *(table for tables in SERVED for table in tables)]
    ours = {
        c.component.name
        for c in Catalog.discover().components("data_policy")
        if c.packaged and not {"scale", "borrow"} & c.component.capabilities
    }
    assert ours <= {table["use"] for table in listed}


@pytest.mark.slow
def test_another_seed_makes_other_choices(kit: ModuleType, tmp_path: Path) -> None:
    data = [*KEPT, *SERVED[0], SHADOW]
    one, other = (live(bench(kit, data, tmp_path / str(s), seed=s), 11, 0)[0] for s in (5, 6))
    assert one != other
