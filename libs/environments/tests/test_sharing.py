"""Episodes that share worker processes do not affect each other, whatever one does to the process."""

from __future__ import annotations

import asyncio
import logging
import os
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from test_pool import in_a_loop, pool, text, until_gone

from astraflow_core.errors import ConfigError, EnvironmentFailed, UserError
from astraflow_core.types import Action, Outcome, Prompt
from astraflow_environments.sharing import MOST_LOST

SHARED: Any = {"most_environments": 4, "worker_processes": 1}


def noted(file: Path) -> list[int]:
    """The processes in which `note` was obeyed."""
    return [int(line) for line in file.read_text().split()] if file.exists() else []


async def begun(stack: AsyncExitStack, made: Any, *names: str) -> list[Any]:
    """Episodes that are under way."""
    played = [await stack.enter_async_context(made.episode()) for _ in names]
    first = await asyncio.gather(
        *(one.reset(Prompt(name), 7) for one, name in zip(played, names, strict=True))
    )
    assert [text(seen) for seen in first] == [f"{name} 7" for name in names]
    return played


@in_a_loop
async def test_episodes_share_a_process_and_have_their_own_instances(tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    async with pool(tmp_path, "Repeats", **SHARED) as made:
        for _ in range(2):
            async with AsyncExitStack() as stack:
                played = await begun(stack, made, "a", "b", "c")
                for number in (1, 2):
                    seen = await asyncio.gather(
                        *(one.step(Action(f"note {notes}")) for one in played)
                    )
                    assert [text(one) for one in seen] == [f"{number}: note {notes}"] * 3
                assert (await played[0].step(Action("end"))).outcome is Outcome.FINISHED
                assert text(await played[1].step(Action("x"))) == "3: x"
        (pid,) = set(noted(notes))
        assert len(noted(notes)) == 12 and pid != os.getpid()
        async with made.episode() as failing:
            with pytest.raises(UserError, match="no such task"):
                await failing.reset(Prompt("p", {"order": "refuse no such task"}), 1)
        await until_gone(pid)  # those that were not in use end with it
        async with AsyncExitStack() as stack:
            played = await begun(stack, made, "a", "b")
            with pytest.raises(EnvironmentFailed, match="raised ValueError: no") as failed:
                await played[0].step(Action("raise no"))
            assert failed.value.kind == "error"
            assert text(await played[1].step(Action("x"))) == "1: x"
            await played[1].step(Action(f"note {notes}"))
    await until_gone(*noted(notes))


@pytest.mark.slow
@in_a_loop
async def test_what_one_does_to_the_process_is_its_own_failure_and_the_others_go_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    notes = tmp_path / "notes"
    deeds = (
        ("exit 3", "crashed", "its worker process ended with exit code 3"),
        ("hang", "timeout", "gave no answer within 0.5 s"),
        (f"allocate {1 << 42}", "memory", "has no memory left"),
    )
    assert len(deeds) == MOST_LOST
    keys = SHARED | {"step_deadline_s": 0.5}
    async with pool(tmp_path, "Repeats", **keys) as made:
        for order, kind, reason in deeds:
            async with AsyncExitStack() as stack:
                culprit, other, idle = await begun(stack, made, "a", "b", "c")
                await asyncio.gather(*(one.step(Action("x")) for one in (culprit, other, idle)))
                both: tuple[Any, Any] = await asyncio.gather(
                    culprit.step(Action(order)),
                    other.step(Action(f"note {notes}")),
                    return_exceptions=True,
                )
                dies, lives = both
                assert isinstance(dies, EnvironmentFailed) and dies.kind == kind
                assert reason in dies.reason
                assert text(lives) == f"2: note {notes}"
                assert text(await idle.step(Action("y"))) == "2: y"
                assert (await other.step(Action("end"))).outcome is Outcome.FINISHED
        warned = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
        assert len(warned) == MOST_LOST and "and so do all further ones" in warned[-1]
        notes.unlink()
        async with AsyncExitStack() as stack:
            played = await begun(stack, made, "a", "b", "c")
            await asyncio.gather(*(one.step(Action(f"note {notes}")) for one in played))
        assert len(set(noted(notes))) == 3
    await until_gone(*noted(notes))


@pytest.mark.slow
@in_a_loop
async def test_a_cancelled_call_gets_no_answer_and_a_false_declaration_is_reported(
    tmp_path: Path,
) -> None:
    async with pool(tmp_path, "Repeats", **SHARED) as made, AsyncExitStack() as stack:
        left, other = await begun(stack, made, "a", "b")
        asked = asyncio.ensure_future(left.step(Action("x")))
        await asyncio.sleep(0)
        asked.cancel()
        assert text(await other.step(Action("y"))) == "1: y"
        assert asked.cancelled()
    async with pool(tmp_path, "SaysSo", **SHARED) as made, AsyncExitStack() as stack:
        played = [await stack.enter_async_context(made.episode()) for _ in "ab"]
        for one in played:
            await one.reset(Prompt("p"), 1)
        for one, order in zip(played, ("exit 3", "x"), strict=True):
            with pytest.raises(EnvironmentFailed, match="remove the capability 'deterministic'"):
                await one.step(Action(order))


@in_a_loop
async def test_only_what_repeats_itself_shares(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"worker_processes = 1: .*Obeys.* does not declare"):
        async with pool(tmp_path, **SHARED):
            pass
