"""A RaaS asks for earlier groups of the prompt of a task that it has leased."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from astraflow_runtime.dataflow.http.service import DataflowService
from astraflow_runtime.dataflow.http.wakeups import Wakeups
from astraflow_runtime.dataflow.rollout_log import NO_ROLLOUTS, RolloutLog
from astraflow_wire import messages
from astraflow_wire.http.drafts import AskDrafts, PastSequence, decode_drafts


@pytest.fixture
def served(bench: Any, config: Any) -> Callable[[RolloutLog], tuple[Any, TestClient]]:
    """A dataflow of one prompt that stores both groups of each batch, and a client of it."""

    def serve(rollouts: RolloutLog) -> tuple[Any, TestClient]:
        wakeups = Wakeups()
        made = bench(config(run__max_staleness=8), prompts=1, signals=wakeups, rollouts=rollouts)
        return made.begin("r0", "r1"), TestClient(
            DataflowService(made.flow, wakeups, "secret").app,
            headers={"Authorization": "Bearer secret"},
        )

    return serve


def stored(config: Any, folder: Path) -> RolloutLog:
    return RolloutLog.of_run(config(rollouts__groups_per_step=2), folder)


def ask(made: Any, client: TestClient, task: str, raas: str = "r0", most: int = 1000) -> Any:
    message = made.stamped(AskDrafts(raas=raas, task=task, most_bytes={"solver": most}))
    return client.post("/v1/tasks/drafts", content=messages.encode(message))


def found(made: Any, client: TestClient, task: str, **asked: Any) -> list[PastSequence]:
    return decode_drafts(ask(made, client, task, **asked).content)


def test_a_group_is_a_source_of_drafts_once_it_is_stored_also_for_another_dataflow(
    served: Any, config: Any, tmp_path: Path
) -> None:
    made, client = served(stored(config, tmp_path))
    tasks, _ = made.lease(free=4)
    assert found(made, client, tasks[0].id) == []
    made.push(tasks[0])
    assert made.state.rollouts.wait(made.state.rollouts.mark(), 10)
    first = found(made, client, tasks[1].id)
    assert [each.tokens.tolist() for each in first] == [[*range(5)], [*range(100, 105)]]
    assert [each.sampled.tolist() for each in first] == [[False] * 2 + [True] * 3] * 2
    assert [len(each.tokens) for each in found(made, client, tasks[1].id, most=40)] == [5, 3]
    assert [len(each.tokens) for each in found(made, client, tasks[1].id, most=35)] == [5]
    made.state.close()
    again, client = served(stored(config, tmp_path))
    task = again.lease(free=2)[0][0]
    assert len(found(again, client, task.id)) == 2
    again.state.close()


def test_only_the_holder_of_a_task_gets_its_drafts(
    served: Any, config: Any, tmp_path: Path
) -> None:
    made, client = served(stored(config, tmp_path))
    tasks, _ = made.lease(free=4)
    made.push(tasks[0])
    assert made.state.rollouts.wait(made.state.rollouts.mark(), 10)
    assert found(made, client, tasks[1].id, raas="r1") == []
    assert found(made, client, tasks[0].id) == []  # it has ended
    assert found(made, client, "train-99") == []
    assert ask(made, client, tasks[1].id, raas="nobody").status_code == 404
    assert ask(made, client, tasks[1].id, most=2**40).status_code == 400
    made.state.close()


def test_a_run_without_a_store_says_so(served: Any) -> None:
    made, client = served(NO_ROLLOUTS)
    task = made.lease(free=2)[0][0]
    reply = ask(made, client, task.id)
    assert reply.status_code == 409
    assert "[rollouts] groups_per_step is 0" in reply.json()["error"]
