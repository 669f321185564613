"""Engines get earlier groups of a prompt when its task begins, and nothing waits for them."""

from __future__ import annotations

import asyncio
import logging

import numpy as np
import pytest

from astraflow_core.errors import DeadlineExceeded
from astraflow_engine_host import protocol
from astraflow_engine_host.main import EngineHost
from astraflow_runtime.raas.engines.host_client import HostClient
from astraflow_runtime.raas.stored_drafts import NOT_USEFUL, UNDER_WAY, StoredDrafts, draft_bytes
from astraflow_wire.http.drafts import PastSequence
from astraflow_wire.messages import SamplingMessage, Task

FLAGS = np.array([False, True, True])
FOUND = [
    PastSequence("solver", np.array([5, 6, 7], np.int32), FLAGS),
    PastSequence("judge", np.array([1], np.int32), FLAGS[1:2]),
    PastSequence("solver", np.array([8, 9], np.int32), FLAGS[:2]),
]


def task(number=0, **fields):
    return Task(
        id=f"train-{number}", prompt_id="p", data={}, group_size=1,
        sampling=SamplingMessage(max_tokens=1), lease_s=1, deadline_s=1, **fields,
    )  # fmt: skip


class Learner:
    """An engine that drafts; ``useful`` and ``refuses`` as a test sets them."""

    def __init__(self):
        self.learned = []
        self.useful, self.refuses = True, False

    async def learn_drafts(self, tokens, sampled, lengths):
        if self.refuses:
            raise ValueError("token ids from 0 to 99")
        self.learned.append((tokens.tolist(), sampled.tolist(), list(lengths)))
        return self.useful


class Linked:
    """Replicas of one engine host in this process: a client and a host, and the messages between them."""

    def __init__(self, engine):
        self.client = HostClient("the host", self, b"peer")
        self.host = EngineHost(engine, self)
        self.closed = False

    async def _to_client(self, parts):
        header, *buffers = (bytes(part) for part in parts)
        self.client.take(protocol.decode_from_host(header), buffers)

    def send_multipart(self, parts):
        if parts[0] != b"peer":
            return self._to_client(parts)
        header, *buffers = (bytes(part) for part in parts[1:])
        return self.host._dispatch(protocol.decode_to_host(header), buffers)

    async def to_all(self, call):
        await call(self.client)
        return {0: None}


class Asked:
    """A dataflow that has ``FOUND``."""

    def __init__(self):
        self.calls = []
        self.answers = asyncio.Event()
        self.answers.set()

    async def __call__(self, task, most_bytes, deadline_s):
        self.calls.append((task, most_bytes))
        await self.answers.wait()
        return FOUND


def played(act, most_bytes=None):
    """What ``act(drafts, engine, asked)`` did, with a solver that takes 64 KB."""

    async def run():
        engine, asked = Learner(), Asked()
        drafts = StoredDrafts(
            asked, {"solver": Linked(engine)}, most_bytes or {"solver": 64_000}, 5
        )
        async with asyncio.timeout(10):
            await act(drafts, engine, asked)
            await settled(drafts)
        return engine, asked

    return asyncio.run(run())


async def settled(drafts):
    await asyncio.gather(*drafts._under_way)


def test_an_engine_learns_the_sequences_of_its_policy():
    async def act(drafts, engine, asked):
        drafts.fetch(task())
        assert engine.learned == []  # in the background

    engine, asked = played(act)
    assert asked.calls == [("train-0", {"solver": 64_000})]
    assert engine.learned == [([5, 6, 7, 8, 9], [False, True, True, False, True], [3, 2])]


def test_evaluations_ask_for_nothing_and_not_all_tasks_at_once():
    async def act(drafts, engine, asked):
        drafts.fetch(task(eval_set="held"))
        asked.answers.clear()
        for number in range(UNDER_WAY + 3):
            drafts.fetch(task(number))
        await asyncio.sleep(0)
        asked.answers.set()

    _, asked = played(act)
    assert [name for name, _ in asked.calls] == [f"train-{n}" for n in range(UNDER_WAY)]


def test_while_drafts_do_not_pay_one_of_a_few_tasks_is_asked_for():
    async def act(drafts, engine, asked):
        engine.useful = False
        for number in range(2 * NOT_USEFUL):
            drafts.fetch(task(number))
            await settled(drafts)
        engine.useful = True
        for number in range(2 * NOT_USEFUL, 3 * NOT_USEFUL):
            drafts.fetch(task(number))
            await settled(drafts)

    _, asked = played(act)
    assert [name for name, _ in asked.calls] == [
        f"train-{n}" for n in (0, NOT_USEFUL, *range(2 * NOT_USEFUL, 3 * NOT_USEFUL))
    ]


def test_what_an_engine_cannot_use_is_said_once_and_a_dataflow_that_is_away_costs_nothing(caplog):
    caplog.set_level(logging.INFO, "astraflow.raas")

    async def act(drafts, engine, asked):
        async def away(*_):
            raise DeadlineExceeded("the dataflow", "drafts", 5.0)

        drafts._ask = away
        drafts.fetch(task(0))
        await settled(drafts)
        drafts._ask = asked
        engine.refuses = True
        for number in (1, 2):
            drafts.fetch(task(number))
            await settled(drafts)

    _, asked = played(act)
    assert [name for name, _ in asked.calls] == ["train-1"]
    levels = [(record.levelno, record.message.partition(":")[0]) for record in caplog.records]
    assert levels == [
        (logging.INFO, "no stored drafts for task train-0"),
        (logging.WARNING, "policy 'solver' gets no more stored drafts"),
    ]


def test_closing_ends_what_is_under_way():
    async def act(drafts, engine, asked):
        asked.answers.clear()
        drafts.fetch(task())
        await asyncio.sleep(0)
        await drafts.close()

    engine, asked = played(act)
    assert asked.calls and not engine.learned


def test_policies_without_the_key_take_none(make_config):
    assert draft_bytes(make_config()) == {}


@pytest.mark.parametrize("sizes", [[3, 3], [5, 1]])
def test_a_message_of_other_sizes_is_refused(sizes):
    tokens = np.zeros(sizes[0], np.int32)
    message = protocol.LearnDrafts(1, [3, 2])

    async def run():
        host = EngineHost(Learner(), None)
        buffers = [tokens.tobytes(), bytes(sizes[1])]
        await host._call(message, buffers)

    with pytest.raises(Exception, match="elements were expected"):
        asyncio.run(run())
