"""Buffer, pipeline and policy over many batches, against a model of ten lines."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from astraflow_core.types import Group, Prompt, Trajectory
from astraflow_core.types import Sequence as TokenSequence
from astraflow_plugin_replay.config import ReplayConfig
from astraflow_plugin_replay.policy import Replay
from astraflow_runtime.dataflow.policies.pipeline import NamedPolicy, PolicyPipeline
from astraflow_runtime.dataflow.rows.rows import shares_of, trained_tokens
from astraflow_runtime.dataflow.rows.settings import StreamSettings
from astraflow_runtime.dataflow.rows.stream import PolicyStream, ServedBatch
from astraflow_testing.conformance.subject import context
from astraflow_wire.groups import ReceivedGroup, encode_group

BOUND = 4  # of the run of the conformance context
SELECTORS = ("latest", "uniform", "prioritised")


class Model:
    """Which rows are fresh, which can be drawn again, and how often each was."""

    def __init__(self, keys: dict[str, Any], count: int) -> None:
        self.config, self.count = ReplayConfig(**keys), count
        self.version: dict[int, int] = {}
        self.again: dict[int, int] = {}
        self.fresh: list[int] = []
        self.pool: list[int] = []

    def candidates(self, now: int) -> tuple[list[int], int]:
        """Rows that can be drawn again, oldest first, and how many of them a batch takes."""
        self.fresh = [row for row in self.fresh if now - self.version[row] <= BOUND]
        self.pool = [row for row in self.pool if now - self.version[row] <= BOUND]
        bound = BOUND if self.config.max_staleness is None else self.config.max_staleness
        limit = self.config.reuse_limit or math.inf
        last = self.pool[-self.config.pool_size :]
        rows = [r for r in last if now - self.version[r] <= bound and self.again[r] < limit]
        return rows, min(math.floor(self.count * self.config.ratio + 1e-9), len(rows))

    def trained(self, first: list[int], again: list[int]) -> None:
        """A batch of these rows was trained."""
        self.fresh = [row for row in self.fresh if row not in first]
        self.pool += first
        self.again |= dict.fromkeys(first, 0) | {row: self.again[row] + 1 for row in again}


def stream_of(keys: dict[str, Any], count: int, seed: int = 0) -> PolicyStream:
    policy = Replay(ReplayConfig(**keys), context("dataflow", Path("."), seed))
    settings = StreamSettings(count, 1, 10**6, BOUND, 1.0, keeps_batches=True)
    return PolicyStream("solver", settings, PolicyPipeline([NamedPolicy("replay", policy)]))


def push(stream: PolicyStream, versions: list[int], now: int) -> None:
    """One group with a row for each version, one of which differs in its reward."""
    trajectories = tuple(
        Trajectory(
            (
                TokenSequence(
                    "solver",
                    np.array([1, 2], np.int32),
                    np.array([False, True]),
                    np.array([0, -0.5], np.float32),
                    np.array([-1, version], np.int32),
                ),
            ),
            rewards={"solver": float(number == 0)},
        )
        for number, version in enumerate(versions)
    )
    received = ReceivedGroup(encode_group(Group("t", "p", trajectories), "r0"))
    share = shares_of(received, trained_tokens(received), Prompt("p", {}), {"solver": now})
    stream.offer(received, share["solver"], 0, 0, now)


def arrivals(batch: ServedBatch | None) -> list[int]:
    assert batch is not None
    return [row.item.arrival for row in batch.rows]


def test_the_rows_trained_last_are_served_once_more() -> None:
    stream, served = stream_of({"ratio": 0.5}, 4), []
    for now in range(4):
        push(stream, [now] * (2 if now else 4), now)
        served.append(arrivals(batch := stream.cut(now)))
        assert batch is not None
        stream.acknowledge(batch.id)
    assert served == [[0, 1, 2, 3], [4, 5, 2, 3], [6, 7, 4, 5], [8, 9, 6, 7]]


@pytest.mark.slow
@pytest.mark.parametrize("selector", SELECTORS)
@given(
    count=st.integers(1, 7),
    percent=st.integers(0, 99),
    pool_size=st.integers(1, 40),
    limit=st.none() | st.integers(1, 3),
    bound=st.none() | st.integers(0, BOUND),
    seed=st.integers(0, 2**32),
)
def test_every_batch_is_what_the_model_says(
    selector: str, count: int, percent: int, pool_size: int, limit: Any, bound: Any, seed: int
) -> None:
    keys = {
        "selector": selector, "ratio": percent / 100, "pool_size": pool_size,
        "reuse_limit": limit, "max_staleness": bound,
    }  # fmt: skip
    stream, model, rng = (
        stream_of(keys, count, seed),
        Model(keys, count),
        np.random.default_rng(seed),
    )
    history: list[list[int]] = []
    for now in range(24):
        ages = rng.integers(0, BOUND + 2, int(rng.integers(1, 2 * count + 2)))
        versions = [max(0, now - int(age)) for age in ages]
        push(stream, versions, now)
        for version in versions:
            if now - version <= BOUND and any(now - each <= BOUND for each in versions):
                model.version[len(model.version)] = version
                model.fresh.append(len(model.version) - 1)
        rows, again = model.candidates(now)
        batch = stream.cut(now)
        if len(model.fresh) < count - again:
            assert batch is None
            continue
        assert batch is not None
        served = arrivals(batch)
        first, second = served[: count - again], served[count - again :]
        assert first == model.fresh[: count - again]
        assert second == [row for row in rows if row in second]
        assert selector != "latest" or second == rows[len(rows) - again :]
        if rng.random() < 0.3:  # the trainer comes back with an older checkpoint
            back = int(rng.integers(0, min(3, len(history)) + 1))
            stream.rewind(stream.updates - back)
            for earlier in history[len(history) - back :]:
                repeated = stream.cut(now)
                assert arrivals(repeated) == earlier
                stream.acknowledge(repeated.id)  # type: ignore[union-attr]
            assert arrivals(stream.cut(now)) == served
        stream.acknowledge(batch.id)
        model.trained(first, second)
        history.append(served)
        assert [row.item.arrival for row in stream.buffer.kept] == model.pool
        assert [row.item.times_served for row in stream.buffer.kept] == [
            1 + model.again[row] for row in model.pool
        ]
