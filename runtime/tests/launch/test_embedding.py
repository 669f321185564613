"""A run inside a program with an event loop: its events, its end, and what is left of it."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest
from launch_support import Table, behaving, gone_within

from astraflow_core.errors import RunFailed, UserError
from astraflow_runtime import Run, RunEvent
from astraflow_runtime.launch import embedding
from astraflow_wire.status import Status

pytestmark = pytest.mark.timeout(120)


def test_a_program_follows_a_run_to_its_end(
    table: Table, capsys: pytest.CaptureFixture[str]
) -> None:
    seen: list[RunEvent] = []

    async def program() -> None:
        run = Run(table)
        with pytest.raises(UserError, match="async with Run"):
            run.stop()
        async with run:
            async for event in run.events():
                seen.append(event)
            result = await run.result()
            assert result.exit_code == 0 and result.directory == run.directory
            assert result.summary == seen[-1].data
        with pytest.raises(UserError, match="entered once"):
            await run.__aenter__()

    asyncio.run(program())
    kinds = [event.kind for event in seen]
    assert kinds[-1] == "ended" and kinds.count("ended") == 1
    assert "lost" not in kinds
    steps = [event.data["step"] for event in seen if event.kind == "step"]
    assert steps == list(range(1, 21))
    states = [event.data["state"] for event in seen if event.kind == "status"]
    assert states[-1] == "finished" and "running" in states
    assert capsys.readouterr() == ("", "")


def test_a_mistake_is_reported_before_anything_starts(table: Table) -> None:
    async def program() -> None:
        async with Run(table, overrides=["run.stepz=1"]):
            raise AssertionError("it was started")

    async def nowhere() -> None:
        async with Run.resume("nowhere"):
            raise AssertionError("it was started")

    with pytest.raises(UserError, match=r"run\.stepz"):
        asyncio.run(program())
    with pytest.raises(UserError, match="nowhere"):
        asyncio.run(nowhere())


def test_leaving_the_block_ends_the_run_cleanly(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedding, "MOST_WAITING", 3)

    async def program() -> Path:
        async with Run(behaving(table, rate=5)) as run:
            async for event in run.events():
                if event.kind == "step":
                    break
            await asyncio.sleep(1)
        assert (await run.result()).exit_code == 130
        kept = [event async for event in run.events()]
        assert [event.kind for event in kept][0::3] == ["lost", "ended"] and len(kept) == 4
        assert kept[0].data["events"] > 5
        assert kept[-1].data["state"] == "stopped" and 1 <= kept[-1].data["steps"] < 20
        return run.directory

    directory = asyncio.run(program())
    assert gone_within(directory, 0.0)


def test_lines_of_metrics_are_events_once(tmp_path: Path) -> None:
    file, told = tmp_path / "metrics.jsonl", list[RunEvent]()
    file.write_text('{"policy": "a", "step": 1}\n')
    view = embedding._EventView(tmp_path, told.append)  # of a run that continues
    lines = ['{"policy": "a", "step": 2}', "{damaged", "3", '{"eval": {}, "time": 1}', '{"policy"']
    with file.open("a") as out:
        out.write("\n".join(lines))
    view.show(Status(state="running", steps=2), ())
    view.show(Status(state="running", steps=2), ())
    with file.open("a") as out:
        out.write(': "a", "step": 3}\n')
    view.close()
    assert [event.kind for event in told] == ["step", "evaluation", "status", "step"]
    assert [event.data["step"] for event in told if event.kind == "step"] == [2, 3]


def test_a_failed_run_raises_once(table: Table) -> None:
    async def leaves() -> None:
        async with Run(behaving(table, rate=1, trainer_solver="exit1")) as run:
            async for _ in run.events():
                pass

    async def asks() -> None:
        async with Run(behaving(table, rate=1, trainer_solver="exit1")) as run:
            with pytest.raises(RunFailed):
                await run.result()

    with pytest.raises(RunFailed):
        asyncio.run(leaves())
    asyncio.run(asks())


def test_a_cancelled_program_leaves_nothing_running(table: Table) -> None:
    runs: list[Run] = []

    async def program() -> None:
        async with Run(
            behaving(table, rate=2, dataflow="ignore_stop", trainer_solver="deaf")
        ) as run:
            runs.append(run)
            await asyncio.sleep(60)

    async def both() -> None:
        task = asyncio.create_task(program())
        while not runs:
            await asyncio.sleep(0.01)
        async for event in runs[0].events():
            if event.kind == "step":
                break
        task.cancel()
        await asyncio.sleep(0.2)  # it waits for the clean end
        assert not task.done()
        task.cancel()
        began = time.monotonic()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert time.monotonic() - began < 30

    asyncio.run(both())
    assert gone_within(runs[0].directory, 0.0)
