"""One dry call of workflow and reward before anything is started: whatever they do, the launcher reports it and does
not crash."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest
from launch_support import Table

from astraflow_contrib_doctor.preflight import preflight
from astraflow_core.errors import UserError
from astraflow_runtime.config.loading import load_config
from astraflow_runtime.launch.planning.prepare import prepare
from astraflow_runtime.raas.episodes import dry_process
from astraflow_runtime.raas.episodes.dry_process import BLOCKS, VARIABLE

pytestmark = pytest.mark.timeout(60)


@pytest.fixture(autouse=True)
def dry_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are forks, although a worker of pytest may have threads."""
    monkeypatch.delenv(VARIABLE)
    monkeypatch.setattr(dry_process, "_may_fork", lambda: True)


@pytest.fixture(params=["a fork", "a new interpreter"])
def either_way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dry_process, "_may_fork", lambda: request.param == "a fork")


def asking(table: Table, workflow: str = "Ask", reward: str = "good") -> Table:
    table["workflow"] = {"use": f"dry_parts:{workflow}"}
    table["reward"] = {"use": f"dry_parts:{reward}"}
    return table


@pytest.mark.usefixtures("either_way")
def test_the_reward_gets_a_prompt_of_the_run_and_a_completion(table: Table) -> None:
    assert prepare(asking(table)).notes == ()


@pytest.mark.usefixtures("either_way")
def test_a_process_that_ends_is_named(table: Table) -> None:
    said = "reward 'dry_parts:Crashes' ended its process, .* exit code 7 after printing 'no licence found'"
    with pytest.raises(UserError, match=said):
        prepare(asking(table, reward="Crashes"))
    assert not Path(table["run"]["directory"]).exists()


@pytest.mark.parametrize(
    ("workflow", "reward", "said"),
    [
        ("Ask", "wants_a_key", r"reward 'dry_parts:wants_a_key' on prompt '0': KeyError: 'answr' \(.*dry_parts.py:\d+\); the prompt's data has .*'answer'"),
        ("Ask", "is_text", "reward 'dry_parts:is_text' on prompt '0': returned str; expected a number"),
        ("Ask", "leaves", r"'dry_parts:leaves' tried to exit its process: SystemExit: enough"),
        ("Ask", "dies", "reward 'dry_parts:dies' ended its process, which was killed by SIGSEGV"),
        ("Ask", "async_raises", "reward 'dry_parts:async_raises' raised .*no such unit: furlong"),
        ("Misspelt", "good", r"workflow 'dry_parts:Misspelt' raised on prompt '0': KeyError: 'qestion'"),
    ],
)  # fmt: skip
def test_what_they_do_wrong_is_reported_before_anything_starts(
    table: Table, workflow: str, reward: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UserError, match=said) as told:
        prepare(asking(table, workflow, reward))
    assert "o process has been started. Fix it; set ASTRAFLOW_DRY_CALL_S=none" in str(told.value)
    assert not Path(table["run"]["directory"]).exists()
    monkeypatch.setenv(VARIABLE, "none")
    assert prepare(table).notes == ()


@pytest.mark.parametrize(
    ("workflow", "reward", "said"),
    [
        ("Unbuilt", "good", "cannot be built: ValueError: no such role"),
        ("Misconfigured", "good", "template has no {answer}"),
        ("Unimported", "good", "raised on prompt '0': ModuleNotFoundError: No module named 'no_such_parser'"),
        ("Ask", "unimported", "on prompt '0': ModuleNotFoundError: No module named 'no_such_parser'"),
    ],
)  # fmt: skip
def test_to_leave_it_out_is_no_advice_where_the_run_would_fail_too(
    table: Table, workflow: str, reward: str, said: str
) -> None:
    with pytest.raises(UserError) as told:
        prepare(asking(table, workflow, reward))
    assert said in str(told.value)
    assert str(told.value).endswith("\n  No process has been started")


def test_a_reward_that_may_block_is_called_in_the_main_thread(table: Table) -> None:
    assert prepare(asking(table, reward="stops_in_main_thread_only")).notes == ()


@pytest.mark.parametrize("said", ["0", "-1", "nan", "inf", "soon", "None"])
def test_a_deadline_that_is_none_is_refused(
    table: Table, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, said)
    with pytest.raises(UserError, match=f"{VARIABLE} is '{said}'; expected seconds above 0"):
        prepare(table)


def test_one_that_takes_long_is_a_note_with_its_place(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, "1.5")
    began = time.monotonic()
    (note,) = prepare(asking(table, "Hangs")).notes
    assert "dry call of workflow 'dry_parts:Hangs' did not end within 1.5 s" in note
    assert "dry_parts.py:" in note and "in run_episode" in note
    assert time.monotonic() - began < 40


@pytest.mark.parametrize(("reward", "blocks"), [("blocks_the_loop", True), ("takes_long", False)])
def test_a_reward_that_blocks_the_loop_is_distinguished_from_one_that_takes_long(
    table: Table, monkeypatch: pytest.MonkeyPatch, reward: str, blocks: bool
) -> None:
    monkeypatch.setenv(VARIABLE, "0.5")
    (note,) = prepare(asking(table, reward=reward)).notes
    assert f"reward 'dry_parts:{reward}' did not end within 0.5 s" in note
    assert (BLOCKS in note) == blocks


def test_what_follows_from_a_made_up_verdict_is_a_note(table: Table) -> None:
    model = table["policies"]["solver"]["model"]
    table["engines"] = {"judge": {"model": model, "use": "launch_fakes:Engine"}}
    (note,) = prepare(asking(table, "AskJudge")).notes
    assert "ValueError: no verdict in" in note
    assert "with a made-up answer of a frozen engine" in note


@pytest.mark.parametrize("reward", ["good", "async_raises"])
def test_a_reward_that_the_workflow_leaves_nothing_is_a_note(table: Table, reward: str) -> None:
    asking(table, "RewardsItself", reward)
    (note,) = prepare(table).notes
    assert note.startswith(
        "workflow 'dry_parts:RewardsItself' rewards its episodes itself, so that"
    )
    assert f"reward 'dry_parts:{reward}' was not called" in note
    del table["reward"]
    assert prepare(table).notes == ()


def test_no_thread_of_the_launcher_forbids_the_fork(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    others, there = threading.active_count(), []
    monkeypatch.setattr(
        dry_process, "_may_fork", lambda: not there.append(threading.active_count())
    )
    assert prepare(asking(table)).notes == ()
    assert there == [others]


def test_data_that_no_raas_can_get_is_named(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    import launch_fakes

    from astraflow_core.types import Prompt

    prompt = Prompt("0", {"picture": object()})
    monkeypatch.setattr(launch_fakes.Prompts, "__getitem__", lambda self, index: prompt)
    with pytest.raises(UserError, match="the data of prompt '0' cannot be sent to a RaaS"):
        prepare(asking(table))


def test_the_doctor_makes_it_too(table: Table) -> None:
    bad = next(preflight(load_config(asking(table, reward="wants_a_key"))))
    assert (bad.level, bad.subject) == ("problem", "workflow and reward")
    assert "KeyError: 'answr'" in bad.text
    good = next(preflight(load_config(asking(table))))
    assert (good.level, good.subject) == ("ok", "workflow and reward")


def test_a_reward_that_the_algorithm_reads_by_name_must_be_there(table: Table) -> None:
    table["policies"]["solver"]["algorithm"] = {"use": "gdpo", "rewards": {"correct": 1, "form": 1}}
    assert prepare(asking(table, reward="names_two")).notes == ()
    for reward, known in (("names_one", "'correct'"), ("good", "none")):
        said = (
            f"'gdpo' reads the named reward '[a-z]+', and an episode has {known}; name it as a part"
        )
        with pytest.raises(UserError, match=said):
            prepare(asking(table, reward=reward))


def test_an_algorithm_that_needs_a_teacher_needs_a_workflow_that_asks_one(table: Table) -> None:
    table["policies"]["solver"]["algorithm"] = {"use": "opd", "teacher": "engine"}
    with pytest.raises(
        UserError, match="'opd' with these keys needs teacher_logprobs of each sequence"
    ):
        prepare(asking(table))
    taught = {"use": "taught", "workflow": {"use": "dry_parts:Ask"}, "teacher": "solver"}
    table["workflow"] = taught | {"given": "{prompt} {answer}"}
    with pytest.raises(
        UserError, match="needs engine capability score; 'launch_fakes:Engine' lacks it"
    ):
        prepare(table)
    table["policies"]["solver"]["engine"] = {"use": "launch_fakes:ScoringEngine"}
    assert prepare(table).notes == ()
    table["workflow"] = taught
    with pytest.raises(
        UserError, match="policy 'solver' cannot teach itself what it knows; set given"
    ):
        prepare(table)
