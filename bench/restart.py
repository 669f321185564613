"""How long does a dataflow take to restart after a long run?

A journal of 10⁵ groups of two sequences (`groups`), written through the journal's own writer without a run: for each group the
prompt that was taken, the lease and the push, for each 32 groups a batch, a version and an acknowledgement, and a checkpoint after
every third. Each group has a prompt of its own; all have the same body, and files of bodies are deleted when no row is needed, as
in a run. When as many entries are missing as may follow an image of the state, a dataflow reads what is there, as after a kill:
`whole_cpu_s` is the CPU time of that for the whole journal, `entry_us` that of an entry (there are `entries`). It writes an image
of `image_mb`, which takes `image_s`; for `stood_ms` nothing else could run. The other entries follow, and another dataflow
continues from image and entries, three times, of which the shortest counts, since other work on the machine only adds:
`restart_s` is the wall time until it could answer, `restart_cpu_s` the CPU time, `growth` the growth of that for ten times as many
groups (0.1: none, 1: in proportion), `million_cpu_s` what 10⁶ groups would take by the two sizes measured, and `log_mb` the size of
the log. `resident_mb` is the memory of the process beyond what it had before.
With `--quick` the smaller journal has fewer entries behind its image, so that `growth` and `million_cpu_s` say nothing.
"""

from __future__ import annotations

import resource
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from astraflow_core.config.models import DataPolicyTable, RunConfig
from astraflow_core.errors import PluginError
from astraflow_core.types import Group, Prompt, Sequence, Trajectory
from astraflow_runtime.dataflow.clock import RunClock
from astraflow_runtime.dataflow.flow import Dataflow
from astraflow_runtime.dataflow.image.keeper import EVERY, ImageKeeper, Written
from astraflow_runtime.dataflow.image.restart import Continued, continued, written_by
from astraflow_runtime.dataflow.journal.entries import (
    Acknowledged,
    Announced,
    BatchRequested,
    Entry,
    Judged,
    Leased,
    PromptsConsumed,
    Pushed,
    RaasRegistration,
    Released,
    TrainerRegistration,
)
from astraflow_runtime.dataflow.journal.journal import Journal
from astraflow_runtime.dataflow.policies.pipeline import PolicyPipeline
from astraflow_runtime.dataflow.state import FlowState
from astraflow_runtime.dataflow.tasks.cursor import PromptCursor
from astraflow_wire.groups import GroupHeader, SequenceHeader, encode_group
from astraflow_wire.messages import (
    AcknowledgeBatch,
    AnnouncementMessage,
    NextBatch,
    RegisterRaas,
    RegisterTrainer,
    ReleaseBatches,
)
from bench.simulation.dataflow_host import scaling_rule

GROUPS, QUICK_GROUPS = 99_200, 9_600
TENTH = 10
GROUP, BATCH, CHECKPOINT = 2, 64, 3
ENTRIES_PER_BATCH = 3 * BATCH // GROUP + 3
POLICY, RAAS = "solver", "r0"
SAMPLED, LENGTH = 3, 5
RESTARTS = 3
GROUP_S = 0.01


def measure(quick: bool) -> dict[str, float]:
    """Write the journal, and read it."""
    groups = QUICK_GROUPS if quick else GROUPS
    before = _resident_mb()
    tenth, whole = _read(groups // TENTH), _read(groups)
    cpu_s, per_group = whole["restart_cpu_s"], groups - groups // TENTH
    return {
        **whole,
        "growth": cpu_s / tenth["restart_cpu_s"] / TENTH,
        "million_cpu_s": cpu_s + (1e6 - groups) * (cpu_s - tenth["restart_cpu_s"]) / per_group,
        "resident_mb": _resident_mb() - before,
    }


def _read(groups: int) -> dict[str, float]:
    """Write a journal, with an image on the way, and restart from it."""
    config = _config(groups)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "journal"
        batches = groups * GROUP // BATCH
        behind = min(EVERY // ENTRIES_PER_BATCH + 1, batches // 2)
        now = [0.0]
        journal = Journal(path, lambda: now[0])
        _read_all(journal)
        _write(journal, now, 0, batches - behind)
        journal.close()
        whole, covered, image = _write_image(config, path, groups)
        journal = Journal(path, lambda: now[0])
        _read_all(journal)
        _write(journal, now, batches - behind, batches)
        entries = journal.count
        journal.close()
        restarts = [_timed(config, path, groups, (covered, entries)) for _ in range(RESTARTS)]
        wall, cpu = (min(taken) for taken in zip(*(times for times, _ in restarts), strict=True))
        flow = restarts[-1][1]
        stream = flow.state.streams[POLICY]
        assert stream.rows.trained == stream.rows.accepted == groups * GROUP
        assert flow.balance()["imbalances"] == []
        size = (path / "entries.log").stat().st_size
    return {
        "groups": float(groups),
        "entries": float(entries),
        "restart_s": wall,
        "restart_cpu_s": cpu,
        "whole_cpu_s": whole / covered * entries,
        "entry_us": whole / covered * 1e6,
        "image_mb": image.size / 1e6,
        "image_s": image.took_s,
        "stood_ms": image.stood_s * 1e3,
        "log_mb": size / 1e6,
    }


def _timed(
    config: RunConfig, path: Path, groups: int, counts: tuple[int, int]
) -> tuple[tuple[float, float], Dataflow]:
    """Wall and CPU seconds of a restart; ``counts``: the entries of the image, and all."""
    wall, cpu = time.perf_counter(), time.process_time()
    flow, journal, found = _restart(config, path, groups)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    journal.close()
    covered, entries = counts
    assert (found.covered, found.read) == (covered, entries - covered)
    return (wall, cpu), flow


def _read_all(journal: Journal) -> None:
    for _ in journal.entries():
        pass


def _write_image(config: RunConfig, path: Path, groups: int) -> tuple[float, int, Written]:
    """CPU seconds to read what is there, its entries, and what the image of it took."""
    cpu = time.process_time()
    flow, journal, found = _restart(config, path, groups)
    cpu = time.process_time() - cpu
    keeper = ImageKeeper(flow, journal, written_by(config), found.covered)
    assert found.covered == 0 and keeper.write_now() and keeper.last is not None
    journal.close()
    return cpu, found.read, keeper.last


def _write(journal: Journal, now: list[float], first: int, last: int) -> None:
    """The part of a run from one batch to another."""
    for entry in _begin() if first == 0 else ():
        journal.write(entry)
    body = _body()
    per_batch = BATCH // GROUP
    for batch in range(first, last):
        needed = {journal.segment}
        for number in range(batch * per_batch, (batch + 1) * per_batch):
            now[0] += GROUP_S
            task, prompt = f"train-{number}", f"p{number}"
            journal.write(PromptsConsumed(cursor=number + 1, task=task, prompt=prompt))
            journal.write(Leased(task=task, raas=RAAS, capacity=64))
            place = journal.keep(body)
            judged = [Judged(POLICY, "", "", number * GROUP, [*range(GROUP)])]
            journal.write(
                Pushed(
                    header=_header(task, prompt, batch),
                    trained=[SAMPLED] * GROUP,
                    accepted=True,
                    body=place,
                    judged=judged,
                )
            )
        for entry in _updated(batch, now[0]):
            journal.write(entry)
        if (batch + 1) % CHECKPOINT == 0:
            journal.prune(needed)


def _begin() -> Iterator[Entry]:
    yield TrainerRegistration(message=RegisterTrainer(policy=POLICY, pid=1, host="h"))
    yield _announced(0)
    yield RaasRegistration(
        message=RegisterRaas(raas=RAAS, pid=2, host="h", policies=[POLICY], capacity=64)
    )


def _announced(version: int) -> Announced:
    return Announced(
        message=AnnouncementMessage(
            policy=POLICY, version=version, transport="x", endpoints=["e"], digest=str(version), size=1
        )
    )  # fmt: skip


def _updated(batch: int, now: float) -> Iterator[Entry]:
    """A batch is taken and trained on, and perhaps a checkpoint saved."""
    name, arrivals = f"{POLICY}-{batch:06d}", [*range(batch * BATCH, (batch + 1) * BATCH)]
    asked = NextBatch(policy=POLICY, version=batch, wait_s=0.0)
    yield BatchRequested(message=asked, batch=name, arrivals=arrivals)
    yield _announced(batch + 1)
    done = AcknowledgeBatch(policy=POLICY, batch=name, version=batch + 1, metrics={"loss": 0.5})
    yield Acknowledged(
        message=done, tokens_generated=0.0, generated={}, first_asked=0.0, waited_s=now / 10
    )
    if (batch + 1) % CHECKPOINT == 0:
        yield Released(message=ReleaseBatches(policy=POLICY, updates=batch + 1))


def _header(task: str, prompt: str, version: int) -> GroupHeader:
    sequences = [
        SequenceHeader(
            trajectory=number, policy=POLICY, length=LENGTH, reward=float(number), min_version=version, truncated=False
        )
        for number in range(GROUP)
    ]  # fmt: skip
    return GroupHeader(
        raas=RAAS, task=task, prompt_id=prompt, sequences=sequences, trajectories=GROUP, incarnation=1
    )  # fmt: skip


def _body() -> bytes:
    mask = np.arange(LENGTH) >= LENGTH - SAMPLED
    trajectories = tuple(
        Trajectory(
            (
                Sequence(
                    POLICY,
                    np.arange(LENGTH, dtype=np.int32),
                    mask,
                    np.where(mask, -0.5, 0.0).astype(np.float32),
                    np.where(mask, 0, -1).astype(np.int32),
                ),
            ),
            rewards={POLICY: float(number)},
        )
        for number in range(GROUP)
    )
    return encode_group(Group("train-0", "p0", trajectories), RAAS, incarnation=1)


def _config(groups: int) -> RunConfig:
    policy = {
        "model": "/nowhere",
        "trainer": {"use": "t"},
        "algorithm": {"use": "a"},
        "engine": {"use": "e"},
        "transport": {"use": "x"},
        "batch_sequences": BATCH,
    }
    run = {"steps": groups, "max_staleness": 1, "group_size": GROUP}
    prompts = {"use": "p", "shuffle": False}
    table = {"run": run, "prompts": prompts, "eval": {}, "policies": {POLICY: policy}}
    return RunConfig.model_validate({**table, "checkpoint": {"every": CHECKPOINT}})


class _Prompts:
    def __init__(self, count: int) -> None:
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> Prompt:
        return Prompt(f"p{index}", {})


def _no_policy(place: str, table: DataPolicyTable, number: int) -> Any:
    raise PluginError(f"there is no data policy {table.use!r} here")


def _restart(config: RunConfig, folder: Path, groups: int) -> tuple[Dataflow, Journal, Continued]:
    """What the dataflow does at its start."""
    clock = RunClock()

    def make() -> Dataflow:
        state = FlowState(
            config,
            cursor=PromptCursor(_Prompts(groups), 0, False),
            admission=PolicyPipeline([]),
            chains={POLICY: PolicyPipeline([])},
            eval_sets={},
            rule=scaling_rule(config),
            clock=clock,
        )
        return Dataflow(state, _no_policy)

    journal = Journal(folder, clock)
    found = continued(make, journal, clock.set_time, written_by(config))
    clock.resume()
    found.flow.state.restore(journal, resumed=False)
    return found.flow, journal, found


def _resident_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
