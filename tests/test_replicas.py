"""Whole runs with several engines: replicas of one policy, frozen engines, exact synchronous batches."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from astraflow_testing.runs import TABLE_RUN, EndedCommand, User

RunTable = Callable[..., EndedCommand]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(150)]
ON_LINUX = pytest.mark.skipif(sys.platform != "linux", reason="finds processes in /proc")
MODEL = "tiny:qwen3?hidden=8&layers=1&heads=1&kv_heads=1"

JUDGED = '''
"""Asks a frozen judge from a workflow and from a reward."""

import json
import os
from dataclasses import replace
from pathlib import Path

from astraflow_core.types import Trajectory


class Discussed:
    def __init__(self, config, context):
        assert context.run.policies == ("solver",) and context.run.engines == ("judge",)

    async def run_episode(self, engines, prompt):
        solver, judge = engines["solver"], engines["judge"]
        asked = solver.render(prompt.data["prompt"])
        answered = await solver.generate(asked)
        shown = judge.render(prompt.data["prompt"])
        said = await judge.generate(shown)
        sequences = (solver.sequence(asked, answered), judge.sequence(shown, said))
        return Trajectory(sequences, (solver.completion(answered), judge.completion(said)))


class Judged:
    def __init__(self, config, context):
        pass

    async def score(self, view, engines):
        judge = engines["judge"]
        greedy = replace(judge.sampling, temperature=0.0, max_tokens=1)
        verdict = await judge.generate(judge.render("x"), greedy)
        with (Path(os.environ["RECORDS"]) / "verdicts.jsonl").open("a") as file:
            seen = [verdict.tokens.tolist(), verdict.versions.tolist(), len(view.completions)]
            file.write(json.dumps(seen) + "\\n")
        return float(len(view.completions[0].tokens))
'''


def records(user: User, name: str) -> list[Any]:
    return [json.loads(line) for line in (user.directory / name).read_text().splitlines()]


def raas_says(run: Path, path: str) -> Any:
    """The answer of the RaaS's own small server."""
    url = json.loads((run / "state" / "raas-0" / "raas.json").read_text())["url"]
    token = (run / "token").read_text().strip()
    with httpx.Client(trust_env=False, timeout=30) as client:
        answer = client.get(url + path, headers={"Authorization": f"Bearer {token}"})
    return answer.raise_for_status().json()


@pytest.mark.slow
@ON_LINUX
def test_a_run_survives_a_killed_replica_and_takes_what_its_engines_run(user: User) -> None:
    process = user.start(
        *user.table_arguments(
            "run.steps=100000",
            "run.lease_s=1",
            "policies.solver.engine.replicas=2",
            "policies.solver.engine.slots=4",
            "policies.solver.engine.token_s=0.02",
        )
    )
    run = user.wait_for_steps(3, 90)
    user.wait_for(lambda: raas_says(run, "/v1/status")["admission"]["episodes"] < 64, 60)
    before = raas_says(run, "/v1/health")["replicas"]["solver"]
    os.kill(before[0]["pid"], signal.SIGKILL)

    def rejoined() -> bool:
        now = raas_says(run, "/v1/health")["replicas"]["solver"]
        return [replica["state"] for replica in now] == ["serving"] * 2 and now[0]["restarts"] == 1

    user.wait_for(rejoined, 60)
    after = raas_says(run, "/v1/health")["replicas"]["solver"]
    process.send_signal(signal.SIGINT)
    ended = user.end(process, 60)
    assert ended.exit_code == 130, ended.text
    assert ended.summary["steps"] >= 3
    assert ended.summary["lost"] == ended.summary["duplicated"] == ended.summary["failed"] == 0
    assert after[1]["pid"] == before[1]["pid"] and min(r["routed"] for r in after) > 0
    assert ended.summary["max_staleness_seen"] <= ended.summary["max_staleness_allowed"]


FROZEN = (
    TABLE_RUN
    + f"""
[engines.judge]
model = "{MODEL}"
use = "astraflow_testing.table:TableEngine"
replicas = 2
"""
)


def test_a_frozen_engine_is_asked_and_never_trained(user: User) -> None:
    user.write("judged.py", JUDGED)
    user.environment["RECORDS"] = str(user.directory)
    user.environment["ASTRAFLOW_DRY_CALL_S"] = "none"  # it would be among the verdicts
    ended = user.run_table(
        "workflow={ use = 'judged:Discussed' }",
        "reward={ use = 'judged:Judged' }",
        "run.steps=4",
        config=FROZEN,
    )
    assert ended.exit_code == 0, ended.text
    assert ended.summary["steps"] == 4 and ended.summary["versions"] == 4
    verdicts = records(user, "verdicts.jsonl")
    assert len(verdicts) >= 4 * 32
    # One token of a model that stays what it is, of its one version, about both completions.
    assert len({json.dumps(verdict) for verdict in verdicts}) == 1
    assert verdicts[0][1:] == [[0], 2]
    logs = sorted(path.stem for path in (ended.run_directory / "logs").iterdir())
    assert "trainer-solver" in logs and "trainer-judge" not in logs
    assert "frozen, engine astraflow_testing.table:TableEngine" in ended.text
    status = json.loads((ended.run_directory / "status.json").read_text())
    assert list(status["policies"]) == ["solver"] and status["invariants_ok"]


def test_a_workflow_of_two_policies_runs_with_one_of_them_frozen(user: User) -> None:
    config = FROZEN.replace("[engines.judge]", "[engines.verifier]")
    config = config.replace(
        'use = "single_turn"', 'use = "solver_verifier"\ntemplate = "{prompt}{answer};"'
    )
    ended = user.run_table("run.steps=3", config=config)
    assert ended.exit_code == 0, ended.text
    assert ended.summary["steps"] == 3 and ended.summary["failed"] == 0


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("engines.judge.trainer={ use = 'torch' }", "trainer: a frozen engine is not trained"),
        ("engines.judge.batch_sequences=4", "batch_sequences: a frozen engine is not trained"),
        ("engines.judge.slot=4", "did you mean 'slots'"),
        (
            "engines.solver={ use = 'torch', model = 'm' }",
            "solver names both a policy and a frozen engine",
        ),
    ],
)
def test_what_a_frozen_engine_cannot_have_is_refused(
    run_here: RunTable, override: str, said: str
) -> None:
    ended = run_here(override, config=FROZEN)
    assert ended.exit_code == 2 and said in ended.err, ended.text
    assert "Traceback" not in ended.text and not (ended.directory / "runs").exists()


def test_the_error_for_an_engine_that_cannot_be_trained_says_where_it_belongs(
    run_here: RunTable,
) -> None:
    ended = run_here("policies.solver.engine={ use = 'openai', url = 'http://127.0.0.1:9/v1' }")
    assert ended.exit_code == 2
    assert "'openai' is frozen and loads no weights" in ended.err
    assert "[engines.solver]" in ended.err


COLOCATED = '''
"""Engine and trainer that fail if the other one uses the devices at the same time."""

import asyncio
import os
import time
from pathlib import Path

from astraflow_testing.table import TableEngine, TableTrainer

HERE = Path(os.environ["RECORDS"])
TRAINING = HERE / "training"


def awake():
    """Engines that have the devices and whose process lives."""
    found = [path for path in HERE.glob("awake-*")]
    return [path for path in found if Path(f"/proc/{path.name[6:]}").exists()]


AWAKE = HERE / "trainer-awake"


class Engine(TableEngine):
    def _mark(self):
        return HERE / f"awake-{os.getpid()}"

    async def start(self, model):
        assert not TRAINING.exists(), "an engine starts while a trainer works"
        self._mark().touch()
        await super().start(model)

    async def generate(self, request):
        assert self._mark().exists(), "a request while the engine sleeps"
        return await super().generate(request)

    async def load_weights(self, source):
        assert self._mark().exists() and not TRAINING.exists()
        await super().load_weights(source)

    async def sleep(self, level):
        await super().sleep(level)
        self._mark().unlink()

    async def wake(self):
        assert not TRAINING.exists(), "an engine wakes while a trainer works"
        assert not AWAKE.exists(), "an engine wakes while a trainer has the devices' memory"
        self._mark().touch()
        await super().wake()


class Trainer(TableTrainer):
    capabilities = TableTrainer.capabilities | {"sleep"}

    def setup(self, model, total_steps, needs):
        assert not awake(), "an engine is awake while the trainer loads its model"
        AWAKE.touch()
        super().setup(model, total_steps, needs)

    def sleep(self):
        AWAKE.unlink()

    def wake(self):
        assert not awake(), "an engine is awake while the trainer wakes"
        assert not AWAKE.exists(), "the trainer never slept"
        AWAKE.touch()

    def export(self):
        assert AWAKE.exists(), "weights are exported by a trainer that sleeps"
        return super().export()

    def step(self, batch, algorithm, step):
        assert not awake(), "an engine is awake while the trainer works"
        assert set(batch.versions[batch.loss_mask].tolist()) == {batch.version}
        assert AWAKE.exists(), "a step of a trainer that sleeps"
        TRAINING.touch()
        try:
            return super().step(batch, algorithm, step)
        finally:
            TRAINING.unlink()
'''


def colocated(user: User, *overrides: str) -> list[str]:
    user.write("turns.py", COLOCATED)
    user.environment["RECORDS"] = str(user.directory)
    return user.table_arguments(
        "run.colocated=true",
        "run.max_staleness=0",
        "policies.solver.engine.use=turns:Engine",
        "policies.solver.engine.replicas=2",
        "policies.solver.trainer.use=turns:Trainer",
        *overrides,
        config=TABLE_RUN,
    )


@ON_LINUX
def test_trainer_and_engines_take_turns_on_the_devices(user: User) -> None:
    more = ("raas.replicas=2", "policies.solver.publish_every=2")
    ended = user.astraflow(*colocated(user, "run.steps=6", *more), deadline_s=120)
    assert ended.exit_code == 0, ended.text
    assert ended.summary["steps"] == 6 and ended.summary["failed"] == 0
    assert not (user.directory / "trainer-awake").exists()


def restarted(run: Path, deaths: int) -> bool:
    """Whether the first replica has a running host after so many deaths."""
    (replica, _) = raas_says(run, "/v1/health")["replicas"]["solver"]
    return bool(replica["restarts"] == deaths and replica["pid"] is not None)


@pytest.mark.slow
@ON_LINUX
def test_turns_continue_after_a_killed_engine(user: User) -> None:
    process = user.start(*colocated(user, "run.steps=100000"))
    run = user.wait_for_steps(2, 90)
    for deaths in (1, 2):
        (host, _) = raas_says(run, "/v1/health")["replicas"]["solver"]
        os.kill(host["pid"], signal.SIGKILL)
        user.wait_for(lambda n=deaths: restarted(run, n), 60)
        user.wait_for_steps(2 + 3 * deaths, 60)
    process.send_signal(signal.SIGINT)
    ended = user.end(process, 60)
    assert ended.exit_code == 130, ended.text
    assert ended.summary["steps"] >= 8 and ended.summary["lost"] == ended.summary["failed"] == 0


def test_devices_are_not_shared_with_an_engine_that_cannot_sleep(run_here: RunTable) -> None:
    ended = run_here("run.colocated=true", "policies.solver.engine={ use = 'torch' }")
    assert ended.exit_code == 2
    assert "run.colocated: needs engine capability sleep; 'torch' of policies.solver" in ended.err
