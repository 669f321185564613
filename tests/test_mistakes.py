"""Mistakes of a user: a clear message, the right exit code, no traceback, nothing left running."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from astraflow_core.types import Batch
from astraflow_testing.runs import TABLE_RUN, EndedCommand, User
from astraflow_wire.batches import decode_batch

pytestmark = pytest.mark.timeout(90)


def refused(user: User, ended: EndedCommand, *expected: str, exit_code: int = 2) -> None:
    for words in expected:
        assert words in ended.text, f"{words!r} is not in:\n{ended.text}"
    assert "Traceback" not in ended.text
    assert ended.exit_code == exit_code, ended.text
    assert user.left_running() == []


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("run.max_stalness=3", ["run.max_stalness", "max_staleness"]),
        ("run.steps='many'", ["run.steps", "many"]),
        ("run.max_staleness=-1", ["run.max_staleness", "-1"]),
        ("policies.solver.transport.use='htp'", ["policies.solver.transport", "htp", "http"]),
        ("policies.solver.algorithm.use='m3po'", ["m3po", "did you mean 'm2po'?"]),
        ("policies.solver.model='nowhere/model'", ["nowhere/model"]),
        ("policies.solver.model='tiny:qwen3?hiden=8'", ["hiden", "hidden"]),
        ("reward.partial='positons'", ["reward.partial", "positons"]),
        ("policies.solver.trainer.use='no_such_module:Trainer'", ["no_such_module"]),
    ],
)
def test_a_wrong_value_is_named_with_what_was_expected(
    user: User, run_here: Callable[..., EndedCommand], override: str, expected: list[str]
) -> None:
    refused(user, run_here(override), *expected)
    assert not (user.directory / "runs").exists()


def test_all_mistakes_are_reported_at_once(user: User) -> None:
    ended = user.run_table("run.stepz=1", "sampling.top_p=7", "policies.solver.transport.use='x'")
    refused(user, ended, "run.stepz", "sampling.top_p", "policies.solver.transport")


@pytest.mark.slow
def test_a_missing_file_and_a_syntax_error_are_named(user: User) -> None:
    refused(user, user.astraflow("run", "absent.toml"), "absent.toml")
    path = user.write("broken.toml", "[run]\nsteps = = 3\n")
    refused(user, user.astraflow("run", path), "broken.toml", "line 2")


@pytest.mark.slow
def test_a_port_in_use_is_named(user: User) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        ended = user.run_table(f"dataflow.port={port}")
        refused(user, ended, "dataflow: cannot listen on 127.0.0.1", "choose another port, or 0")
    assert ended.text.count(f":{port}") == 1
    assert "--resume" not in ended.text


def test_a_run_directory_that_cannot_be_written_is_named(
    user: User, run_here: Callable[..., EndedCommand]
) -> None:
    path = user.write("taken", "a file")
    refused(user, run_here(f"run.directory='{path}'"), str(path))


def test_an_empty_or_malformed_data_set_is_named_with_its_line(
    user: User, run_here: Callable[..., EndedCommand]
) -> None:
    def jsonl(text: str) -> EndedCommand:
        path = user.write("train.jsonl", text)
        reads = f'use = "jsonl"\npath = "{path}"'
        return run_here(config=TABLE_RUN.replace('use = "digits"\ndigits = 2', reads))

    refused(user, jsonl(""), "train.jsonl")
    refused(user, jsonl('{"prompt": "1=", "answer": "2"}\n{"prompt": \n'), "train.jsonl:2")
    refused(user, jsonl('{"prompt": "1="}\n'), "train.jsonl:1", "answer")
    refused(user, run_here("prompts.use='jsonl'", "prompts.path='none.jsonl'"), "none.jsonl")


def test_max_tokens_over_the_context_are_named(
    user: User, run_here: Callable[..., EndedCommand]
) -> None:
    refused(user, run_here("sampling.max_tokens=1000"), "max_tokens", "1000", "128 tokens")
    assert not (user.directory / "runs").exists()


def test_a_prompt_and_max_tokens_over_the_context_are_named(
    user: User, run_here: Callable[..., EndedCommand]
) -> None:
    ended = run_here("sampling.max_tokens=126")
    refused(user, ended, "prompt of 4 tokens + max_tokens 126", "context")


def write_component(user: User, text: str) -> None:
    user.write("mine.py", "from __future__ import annotations\nimport asyncio\n" + text)


OWN_REWARD = TABLE_RUN.replace('use = "exact"\npartial = "positions"', 'use = "mine:reward"')


@pytest.mark.slow
def test_a_reward_that_raises_is_refused_before_anything_starts(user: User) -> None:
    write_component(user, "def reward(view):\n    return view.data['answr']\n")
    ended = user.run_table(config=OWN_REWARD)
    said = f"KeyError: 'answr' ({user.directory / 'mine.py'}:4)"
    refused(
        user,
        ended,
        "reward 'mine:reward' on prompt",
        said,
        "no process has been started",
    )
    # A slow machine also shows how long the call takes.
    assert len([line for line in ended.text.splitlines() if "s so far" not in line]) == 2
    assert not (user.directory / "runs").exists()


@pytest.mark.slow
def test_a_reward_that_raises_in_the_run_is_reported_once_at_its_end(user: User) -> None:
    write_component(
        user,
        "calls = []\n"
        "async def reward(view):\n"
        "    calls.append(view)\n"
        "    if len(calls) > 1: raise ValueError('no such unit: furlong')\n"
        "    return 0.5\n",
    )
    user.environment["ASTRAFLOW_DRY_CALL_S"] = "none"
    ended = user.run_table(config=OWN_REWARD)
    refused(user, ended, "reward 'mine:reward' raised", exit_code=1)
    told = [line for line in ended.text.splitlines() if "no such unit: furlong" in line]
    assert told[-1].startswith("astraflow: 8 tasks failed in a row, none succeeded; last error: ")
    # The first of the RaaS and when it gets no more tasks, if somebody looked then, and at the end.
    assert len(told) <= 3, ended.text
    logs = ended.run_directory / "logs"
    assert ended.out.splitlines()[-2:] == [
        "table: failed before its first step",
        f"  logs of all processes: {logs}",
    ]
    assert (logs / "raas-0.log").read_text().count("no such unit: furlong") > 2


@pytest.mark.slow
def test_an_algorithm_that_raises_is_named_with_its_file_and_line(user: User) -> None:
    write_component(
        user,
        "from astraflow_testing.table import TableAlgorithm\n"
        "class Algorithm(TableAlgorithm):\n"
        "    def weights(self, batch): return {'policy': batch.no_such_column}\n",
    )
    ended = user.run_table('policies.solver.algorithm.use="mine:Algorithm"')
    where = f"{user.directory / 'mine.py'}:5 in weights"
    assert ended.text.count("no_such_column") == 1
    said = "algorithm 'mine:Algorithm' raised AttributeError: 'Batch' object has no attribute"
    refused(user, ended, said, where, exit_code=1)


def test_a_workflow_that_is_not_async_is_refused(
    user: User, run_here: Callable[..., EndedCommand]
) -> None:
    write_component(
        user,
        "class Workflow:\n"
        "    def __init__(self, config, context): pass\n"
        "    def run_episode(self, engines, prompt): return None\n",
    )
    config = TABLE_RUN.replace('use = "single_turn"', 'use = "mine:Workflow"')
    refused(user, run_here(config=config), "'mine:Workflow' must have", "async def run_episode")
    assert not (user.directory / "runs").exists()


@pytest.mark.slow
def test_an_async_reward_that_blocks_is_named_and_ends_the_run(user: User) -> None:
    write_component(
        user,
        "import time\nasync def reward(view):\n    time.sleep(3600)\n",
    )
    config = TABLE_RUN.replace('use = "exact"\npartial = "positions"', 'use = "mine:reward"')
    user.environment["ASTRAFLOW_DRY_CALL_S"] = "none"
    ended = user.run_table("run.max_consecutive_failures=1", config=config)
    where = f"{user.directory / 'mine.py'}:5 in reward"
    refused(user, ended, "reward 'mine:reward' blocked the event loop for", where, exit_code=1)
    log = (ended.run_directory / "logs" / "raas-0.log").read_text()
    assert f"at {where}; async code must not block" in log


@pytest.mark.slow
def test_a_workflow_that_hangs_meets_its_deadline(user: User) -> None:
    write_component(
        user,
        "class Workflow:\n"
        "    def __init__(self, config, context): pass\n"
        "    async def run_episode(self, engines, prompt): await asyncio.sleep(3600)\n",
    )
    config = TABLE_RUN.replace('use = "single_turn"', 'use = "mine:Workflow"')
    user.environment["ASTRAFLOW_DRY_CALL_S"] = "none"
    short = ("run.episode_deadline_s=0.5", "run.max_consecutive_failures=3")
    ended = user.run_table(*short, config=config)
    refused(user, ended, "mine:Workflow", "0.5", exit_code=1)


@pytest.mark.slow
def test_a_loss_that_is_not_finite_ends_the_run_with_the_batch_and_keeps_the_weights(
    user: User,
) -> None:
    ended = user.run_table("policies.solver.trainer.nan_at=3")
    refused(user, ended, "solver-000003", "nan", "decode_batch", exit_code=1)
    assert (ended.run_directory / "models/solver/model.safetensors").exists()
    batch = decode_batch((ended.run_directory / "bad_batches/solver-000003.batch").read_bytes())
    assert isinstance(batch, Batch)
    assert (batch.id, len(batch)) == ("solver-000003", 32)


@pytest.mark.slow
def test_a_batch_whose_loss_is_not_finite_can_be_left_out(user: User) -> None:
    ended = user.run_table("policies.solver.trainer.nan_at=3", 'run.on_nonfinite="skip"')
    assert ended.exit_code == 0, ended.text
    assert "the loss is nan in batch solver-000003; the batch is kept in" in ended.text
    lines = (ended.run_directory / "metrics.jsonl").read_text().splitlines()
    skipped = [json.loads(line)["step"] for line in lines if '"skipped": 1.0' in line]
    assert skipped == [4]
    assert (ended.run_directory / "bad_batches/solver-000003.batch").exists()


@pytest.mark.slow
def test_a_trainer_that_dies_is_named_with_its_last_words(user: User) -> None:
    ended = user.run_table("policies.solver.trainer.crash_at=2")
    refused(user, ended, "trainer-solver", "ordered to crash", exit_code=1)


def fake_plugin(folder: Path, name: str, manifest: str) -> None:
    """A distribution on the user's path whose entry point is ``manifest``."""
    info = folder / f"astraflow_plugin_{name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: astraflow-plugin-{name}\nVersion: 1.0\n"
    )
    (info / "entry_points.txt").write_text(f"[astraflow]\n{name} = {name}_manifest\n")
    (folder / f"{name}_manifest.py").write_text(manifest)


MANIFEST = """
from astraflow_core import Component, hookimpl
ASTRAFLOW_API = {api}
@hookimpl
def astraflow_rewards():
    return [Component(name="exact", target="nowhere:Reward", summary="a second one")]
"""


@pytest.mark.slow
def test_plugins_that_are_broken_incompatible_or_named_as_ours_do_not_matter_until_named(
    user: User,
) -> None:
    fake_plugin(user.directory, "dup", MANIFEST.format(api=(1, 0)))
    fake_plugin(user.directory, "broken", "import a_module_that_is_absent\n")
    fake_plugin(user.directory, "future", MANIFEST.format(api=(9, 0)))
    ended = user.run_table("run.steps=1")
    assert ended.exit_code == 0, ended.text
    assert "note: reward: 'exact' is rewards/exact; dup/exact has the same name" in ended.out
    listed = user.astraflow("plugins")
    assert listed.exit_code == 0
    assert "a_module_that_is_absent" in listed.out and "9.0" in listed.out
    refused(
        user,
        user.run_table("policies.solver.engine.use='broken/engine'"),
        "broken",
        "a_module_that_is_absent",
    )
