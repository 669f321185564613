"""Rewards that block, in real worker processes; what a reward may return."""

from __future__ import annotations

import asyncio
import os

import cloudpickle
import numpy as np
import pytest

from astraflow_core.catalog import Catalog
from astraflow_core.errors import RunFailed, UserError, WorkflowError
from astraflow_core.types import Completion, Prompt, RewardReport, TrajectoryView
from astraflow_runtime.raas.episodes.workflows import build_scorer, build_workflow
from astraflow_runtime.raas.rewards import pool as reward_pool
from astraflow_runtime.raas.rewards.pool import RewardPool
from astraflow_runtime.raas.rewards.scoring import LoopScorer, validated
from astraflow_runtime.raas.user_objects import UserObjects, as_workflow, load_user_objects

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


@pytest.mark.slow
def test_a_hanging_call_is_killed_at_its_deadline_while_others_continue(make_config, tmp_path):
    async def scenario(pool):
        hanging = asyncio.create_task(pool.score(view(do="hang")))
        others = [await pool.score(view()) for _ in range(5)]
        assert not hanging.done(), "they waited for it"
        with pytest.raises(WorkflowError, match=r"no result within 2 s .*killed"):
            await hanging
        assert others == [1.5] * 5
        # The place of the killed worker is filled again.
        pids = await asyncio.gather(*(pool.score(view(do="pid")) for _ in range(4)))
        assert len(set(pids)) == 2

    pooled(blocking(make_config, reward_workers=2, reward_deadline_s=2.0), tmp_path, scenario)


@pytest.mark.slow
def test_a_worker_that_dies_or_raises_is_reported_and_others_are_recycled(
    make_config, tmp_path, monkeypatch
):
    monkeypatch.setattr(reward_pool, "RECYCLE_AFTER", 3)

    async def scenario(pool):
        with pytest.raises(WorkflowError, match=r"exited its worker process.*exit code 7"):
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
    file = tmp_path / "user_objects.pkl"
    file.touch(0o600)
    file.write_bytes(
        cloudpickle.dumps({"reward": lambda view: np.float32(len(view.text)), "workflow": None})
    )

    async def scenario(pool):
        assert await pool.score(view()) == 3.0

    pooled(make_config(), tmp_path, scenario, load_user_objects(tmp_path))


class Bomb:
    """Leaves a trace when it is unpickled."""

    def __init__(self, trace):
        self.trace = trace

    def __reduce__(self):
        return os.mkdir, (str(self.trace),)


@pytest.mark.parametrize("mode", [0o660, 0o606, None])
def test_objects_that_another_user_may_have_written_are_not_loaded(tmp_path, monkeypatch, mode):
    file, trace = tmp_path / "user_objects.pkl", tmp_path / "trace"
    file.write_bytes(cloudpickle.dumps(Bomb(trace)))
    if mode is None:
        file.chmod(0o600)
        monkeypatch.setattr(os, "geteuid", lambda: file.stat().st_uid + 1)
    else:
        file.chmod(mode)
    with pytest.raises(
        UserError, match=r"user_objects.pkl holds code and is not loaded: .*chmod 600"
    ):
        load_user_objects(tmp_path)
    assert not trace.exists()


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
        ({"b": 1.0}, "returned no reward for policy 'a'"),
        ({"a": float("inf")}, "returned inf"),
        (10**400, "returned inf for policy 'a'"),
        (np.array([1.0, 2.0]), "returned ndarray for policy 'a'"),
        ({"a": np.array([1.0, 2.0])}, "returned ndarray for policy 'a'"),
    ],
)
def test_a_bad_reward_is_named(value, message):
    with pytest.raises(WorkflowError, match=message):
        validated("r", value, ["a"], "p7")


def test_a_report_of_a_worker_arrives_with_its_metrics(make_config, tmp_path):
    async def scenario(pool):
        found = await pool.score(view())
        assert found == RewardReport({"solver": 3.0}, {"length": 3.0})
        with pytest.raises(WorkflowError, match=r"returned metrics \{'length': 'long'\}; expected"):
            await pool.score(view(metrics={"length": "long"}))

    pooled(make_config(reward={"use": "fake_parts:reported_length"}), tmp_path, scenario)


def test_numbers_of_numpy_are_numbers():
    assert validated("r", np.float32(0.5), ["a", "b"], "p") == {"a": 0.5, "b": 0.5}
    assert validated("r", {"a": True, "other": 3}, ["a"], "p") == {"a": 1.0}


def test_a_workflow_object_must_be_async():
    with pytest.raises(UserError, match="must be an async function"):
        as_workflow(lambda engines, prompt: None)


def test_a_reward_that_asks_engines_must_be_async(make_config, tmp_path):
    def judged(view, engines):
        return 1.0

    with pytest.raises(UserError, match=r"'judged' uses the engines.*make its score async"):
        pooled(make_config(), tmp_path, None, UserObjects(reward=judged))


def test_a_config_may_name_a_function_as_its_reward(make_config, tmp_path):
    async def scenario(pool):
        assert await pool.score(view()) == 3.0

    pooled(make_config(reward={"use": "fake_parts:text_length"}), tmp_path, scenario)


def test_an_async_function_of_a_config_is_awaited_and_may_ask_engines(make_config, tmp_path):
    config = make_config(reward={"use": "fake_parts:judged_length"})
    scorer = build_scorer(config, Catalog.discover(only=()), tmp_path, "raas-0", "", UserObjects())
    assert isinstance(scorer, LoopScorer)
    assert asyncio.run(scorer.score(view(), {"solver": None})) == 4


def test_a_reward_that_is_not_async_is_reported_to_run_in_worker_processes(
    make_config, tmp_path, caplog
):
    caplog.set_level("INFO", "astraflow.raas")
    config = make_config(reward={"use": "fake_parts:text_length"}, raas={"reward_workers": 3})
    build_scorer(config, Catalog.discover(only=()), tmp_path, "raas-0", "", UserObjects())
    said = "reward 'fake_parts:text_length' is not async: it runs in 3 worker processes"
    assert [record.getMessage() for record in caplog.records] == [said]


def test_a_workflow_of_a_config_must_be_async(make_config, tmp_path):
    config = make_config(workflow={"use": "fake_parts:NotAsync"})
    with pytest.raises(
        UserError, match=r"'fake_parts:NotAsync' must have .*async def run_episode.* NotAsync is no"
    ):
        build_workflow(config, Catalog.discover(only=()), tmp_path, "raas-0", "", UserObjects())
