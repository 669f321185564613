"""Engines and trainers on the same devices: their turns, also after a process is killed."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
import threading

import pytest
from local_engine import LocalEngine

from astraflow_core.errors import DeadlineExceeded, EngineLost, UserError
from astraflow_runtime.device_turn import SharedDeviceLock
from astraflow_runtime.raas.engines.colocation import SharedDevices
from astraflow_runtime.raas.engines.replica import Replica
from astraflow_testing.small_disk import largest_file

pytestmark = pytest.mark.timeout(30)

HOLD = """
import sys
from pathlib import Path
from astraflow_runtime.device_turn import SharedDeviceLock
with SharedDeviceLock(Path(sys.argv[1]), "trainer-solver").exclusive(20):
    print("mine", flush=True)
    sys.stdin.read()
"""


class Trainer:
    """A trainer in a thread that has the devices from :meth:`wants` until :meth:`gives`."""

    def __init__(self, folder) -> None:
        self.has, self._done = threading.Event(), threading.Event()
        self._turn = SharedDeviceLock(folder, "trainer-solver")
        self._thread = threading.Thread(target=self._work)

    def _work(self) -> None:
        with self._turn.exclusive(20):
            self.has.set()
            self._done.wait(20)

    def wants(self) -> None:
        self._thread.start()

    def gives(self) -> None:
        self._done.set()
        self._thread.join()


async def until(condition, seconds=10.0):
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.01)


@contextlib.asynccontextmanager
async def sharing(folder, *engines, deadline_s=20.0):
    shared = SharedDevices("raas-0", SharedDeviceLock(folder, "raas-0"), deadline_s)
    shared.replicas = [Replica(n, engine, lambda: 0) for n, engine in enumerate(engines)]
    life = asyncio.create_task(shared.run())
    try:
        yield shared, life
    finally:
        life.cancel()
        await asyncio.gather(life, return_exceptions=True)


def test_engines_sleep_while_a_trainer_works_and_wake_after_it(tmp_path):
    async def scenario():
        engines = [LocalEngine(), LocalEngine(number=1)]
        trainer = Trainer(tmp_path)
        async with sharing(tmp_path, *engines) as (shared, _):
            async with shared.use():
                trainer.wants()
                await until(lambda: shared.yielding)
                await asyncio.sleep(0.1)
                assert not trainer.has.is_set(), "work is in flight"
            await until(trainer.has.is_set)
            assert [replica.state() for replica in shared.replicas] == ["asleep"] * 2
            assert not any(replica.can_take(None) for replica in shared.replicas)
            waiting = asyncio.create_task(_used(shared))
            await until(lambda: shared.wait() is not None)
            assert shared.wait().for_whom == "trainer-solver" and not waiting.done()
            trainer.gives()
            await waiting
            assert shared.wait() is None and not shared.yielding
            assert [replica.state() for replica in shared.replicas] == ["serving"] * 2
        return [engine.host.client.calls for engine in engines]

    assert asyncio.run(scenario()) == [["pause abort", "sleep 1", "wake", "resume"]] * 2


async def _used(shared):
    async with shared.use():
        pass


def _refuse_sleep(monkeypatch, engine, error):
    async def refuse(level, deadline_s):
        raise error

    monkeypatch.setattr(engine.host.client, "sleep", refuse)


def test_a_host_that_started_since_is_not_asleep(tmp_path):
    async def scenario():
        engine = LocalEngine()
        async with sharing(tmp_path, engine) as (shared, _):
            await _used(shared)
            trainer = Trainer(tmp_path)
            trainer.wants()
            await until(trainer.has.is_set)
            engine.die()
            assert shared.replicas[0].state() == "starting"
            engine.start()
            assert shared.replicas[0].state() == "serving"
            trainer.gives()
            await _used(shared)
        return engine.host.client.calls

    assert asyncio.run(scenario()) == []


def test_an_engine_that_does_not_fall_asleep_loses_its_host(tmp_path, monkeypatch):
    async def scenario():
        engine = LocalEngine()
        async with sharing(tmp_path, engine) as (shared, _):
            await _used(shared)
            _refuse_sleep(monkeypatch, engine, EngineLost("out of memory"))
            trainer = Trainer(tmp_path)
            trainer.wants()
            await until(trainer.has.is_set)
            assert engine.host is None
            trainer.gives()

    asyncio.run(scenario())


def test_an_engine_that_is_not_set_up_to_sleep_ends_the_raas_with_its_reason(tmp_path, monkeypatch):
    async def scenario():
        engine = LocalEngine()
        async with sharing(tmp_path, engine) as (shared, life):
            await _used(shared)
            _refuse_sleep(
                monkeypatch, engine, UserError("it can sleep only with sleep_mode = true")
            )
            trainer = Trainer(tmp_path)
            trainer.wants()
            with pytest.raises(UserError, match="sleep_mode = true"):
                await life
            trainer.gives()

    asyncio.run(scenario())


def test_a_killed_trainer_has_no_turn_any_more(tmp_path):
    engines = SharedDeviceLock(tmp_path, "raas-0")
    trainer = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert trainer.stdout.readline() == "mine\n"
        assert not engines.acquire() and engines.holders() == "trainer-solver"
    finally:
        trainer.kill()
        trainer.communicate()
    assert engines.acquire() and engines.holders() == "another process on the same devices"


def test_engines_hold_the_devices_together_and_a_trainer_gets_their_names(tmp_path):
    first, second = SharedDeviceLock(tmp_path, "raas-0"), SharedDeviceLock(tmp_path, "raas-1")
    assert first.acquire() and second.acquire() and not first.exclusive_pending()
    with (
        pytest.raises(DeadlineExceeded, match="raas-0, raas-1: the devices"),
        SharedDeviceLock(tmp_path, "trainer-solver").exclusive(0.05),
    ):
        pass
    first.release()
    second.release()
    with SharedDeviceLock(tmp_path, "trainer-solver").exclusive(1.0):
        assert not first.acquire()
    assert first.acquire()
    first.release()


def test_turns_continue_while_the_disk_is_full(tmp_path):
    engines = SharedDeviceLock(tmp_path, "raas-0")
    trainer = SharedDeviceLock(tmp_path, "trainer-solver")
    with largest_file(0):
        assert engines.acquire() and trainer.holders() == "another process on the same devices"
        engines.release()
        with trainer.exclusive(1.0):
            assert not engines.acquire()
    assert engines.acquire() and trainer.holders() == "raas-0"
    engines.release()


def test_a_trainer_that_keeps_the_devices_too_long_is_named(tmp_path):
    async def scenario():
        with SharedDeviceLock(tmp_path, "trainer-solver").exclusive(1.0):
            async with sharing(tmp_path, LocalEngine(), deadline_s=0.1) as (_, life):
                with pytest.raises(
                    DeadlineExceeded, match="trainer-solver: the devices that raas-0"
                ):
                    await life

    asyncio.run(scenario())
