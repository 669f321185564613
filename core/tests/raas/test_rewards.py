"""Rewards that block, in real worker processes; what a reward may return."""

from __future__ import annotations

import asyncio
import os
import time

import cloudpickle
import numpy as np
import pytest

from astraflow_core.catalog import Catalog
from astraflow_core.errors import RunFailed, UserError, WorkflowError
from astraflow_core.raas import reward_pool
from astraflow_core.raas.reward_pool import RewardPool
from astraflow_core.raas.rewards import LoopScorer, validated
from astraflow_core.raas.user_objects import UserObjects, as_workflow, load_user_objects
from astraflow_core.raas.workflows import build_scorer
from astraflow_core.types import Completion, Prompt, TrajectoryView

pytestmark = pytest.mark.timeout(30)


def view(**data):
    tokens = np.array([1, 2, 3], np.int32)
    return TrajectoryView(Prompt("p", data), (Completion("solver", "abc", tokens, "stop"),))


def pooled(config, directory, scenario, given=None):
    async def run():
        given_or_none = given or UserObjects()
        scorer = build_scorer(
            config, Catalog.discover(only=()), directory, "raas-0", "", given_or_none
        )
        assert isinstance(scorer, RewardPool)
        await scorer.start()
        try:
            return await scenario(scorer)
        finally:
            await scorer.close()

    return asyncio.run(run())


def blocking(make_config, **raas):
    return make_config(reward={"use": "fake_parts:Blocking"}, raas=raas)


def test_a_hanging_call_is_killed_at_its_deadline_while_others_go_on(make_config, tmp_path):
    async def scenario(pool):
        began = time.monotonic()
        hanging = asyncio.create_task(pool.score(view(do="hang")))
        others = [await pool.score(view()) for _ in range(5)]
        others_s = time.monotonic() - began
        with pytest.raises(WorkflowError, match=r"no answer within 1 s .*killed"):
            await hanging
        assert time.monotonic() - began < 3 and others_s < 1
        assert others == [1.5] * 5
        # The place of the killed worker is filled again.
        pids = await asyncio.gather(*(pool.score(view(do="pid")) for _ in range(4)))
        assert len(set(pids)) == 2

    pooled(blocking(make_config, reward_workers=2, reward_deadline_s=1.0), tmp_path, scenario)


def test_a_worker_that_dies_or_raises_is_reported_and_others_are_recycled(
    make_config, tmp_path, monkeypatch
):
    monkeypatch.setattr(reward_pool, "RECYCLE_AFTER", 3)

    async def scenario(pool):
        with pytest.raises(WorkflowError, match=r"ended its worker process.*exit code 7"):
            await pool.score(view(do="exit"))
        with pytest.raises(
            WorkflowError, match=r"KeyError: 'no answer here' \(.*fake_parts.py:\d+\)"
        ):
            await pool.score(view(do="raise"))
        pids = [await pool.score(view(do="pid")) for _ in range(5)]
        assert pids[0] == pids[1] and len(set(pids)) == 2
        assert os.getpid() not in pids

    pooled(blocking(make_config), tmp_path, scenario)


def test_a_plain_function_of_a_notebook_runs_in_a_worker(make_config, tmp_path):
    (tmp_path / "user_objects.pkl").write_bytes(
        cloudpickle.dumps({"reward": lambda view: np.float32(len(view.text)), "workflow": None})
    )

    async def scenario(pool):
        assert await pool.score(view()) == 3.0

    pooled(make_config(), tmp_path, scenario, load_user_objects(tmp_path))


def test_a_reward_that_cannot_be_built_is_an_error_at_the_start(make_config, tmp_path):
    async def scenario(pool):
        raise AssertionError("started")

    with pytest.raises(RunFailed, match=r"could not be built: RuntimeError: no compiler found"):
        pooled(make_config(reward={"use": "fake_parts:Broken"}), tmp_path, scenario)


def test_async_rewards_stay_on_the_loop():
    async def length(view):
        return len(view.text)

    assert asyncio.run(LoopScorer("length", length).score(view())) == 3


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (float("nan"), "reward 'r' returned nan for policy 'a' on prompt 'p7'"),
        (None, "returned NoneType for policy 'a'"),
        ("1", "returned str for policy 'a'"),
        ({"b": 1.0}, "gave none for policy 'a'"),
        ({"a": float("inf")}, "returned inf"),
    ],
)
def test_a_bad_reward_is_named(value, message):
    with pytest.raises(WorkflowError, match=message):
        validated("r", value, ["a"], "p7")


def test_numbers_of_numpy_are_numbers():
    assert validated("r", np.float32(0.5), ["a", "b"], "p") == {"a": 0.5, "b": 0.5}
    assert validated("r", {"a": True, "other": 3}, ["a"], "p") == {"a": 1.0}


def test_a_workflow_object_must_be_async():
    with pytest.raises(UserError, match="must be an async function"):
        as_workflow(lambda engines, prompt: None)


def test_a_reward_that_asks_engines_must_be_async(make_config, tmp_path):
    def judged(view, engines):
        return 1.0

    with pytest.raises(UserError, match=r"'judged' asks for the engines.*make its score async"):
        pooled(make_config(), tmp_path, None, UserObjects(reward=judged))
