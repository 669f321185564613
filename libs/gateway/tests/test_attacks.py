"""What an agent may do that the gateway has to survive, in each dialect."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from gateway_agents import AMPLE, QWEN, Agent, agent_of, played

from astraflow_core.types import Sampling
from astraflow_gateway import serving
from astraflow_testing.scripted_policies import ScriptedPolicies

QUESTION = "what is 1 + 22?"
PATHS = {
    "/v1/chat/completions": "messages",
    "/v1/responses": "input",
    "/v1/messages": "messages",
}
SCHEMAS: list[Any] = [
    {"type": 3},
    {"type": "object", "properties": 7},
    {"properties": {"a": None}, "required": "a"},
    {"$ref": "#"},
    {"type": "object", "properties": {"{{ x }}": {"description": "{% for %}"}}},
    {"anyOf": [{}, {"enum": []}], "a" * 10_000: ["b"] * 1000},
]


def body_of(path: str, content: Any = QUESTION, **more: Any) -> dict[str, Any]:
    """A request in the dialect of ``path``."""
    said = {PATHS[path]: [{"role": "user", "content": content}]}
    return {"model": "p", **said, "max_tokens": 100, **more}


def tool_of(path: str, schema: Any) -> dict[str, Any]:
    """A tool in the dialect of ``path``."""
    if path == "/v1/messages":
        return {"name": "add", "input_schema": schema}
    function = {"name": "add", "parameters": schema}
    return {"type": "function", **(function if path == "/v1/responses" else {"function": function})}


@pytest.mark.parametrize("path", PATHS)
def test_a_strange_schema_is_shown_to_the_model_or_refused(path: str) -> None:
    async def play(agent: Agent) -> None:
        for schema in SCHEMAS:
            response = await agent.post(path, body_of(path, tools=[tool_of(path, schema)]))
            assert response.status_code in (200, 400), response.text
            assert "error" in response.json() or response.status_code == 200

    assert played(lambda *_: "ok", play).failure is None


@pytest.mark.parametrize("path", PATHS)
def test_what_is_nested_deeply_is_no_failure(path: str) -> None:
    async def play(agent: Agent) -> None:
        for depth in (60, 400, 900, 3000, 100_000):
            for body in _nested(path, depth):
                response = await agent.post(path, body.encode())
                assert response.status_code in (200, 400), response.text[:500]

    assert played(lambda *_: "ok", play).failure is None


def _nested(path: str, depth: int) -> list[str]:
    """Requests with something ``depth`` deep: a schema, a content, what is left aside."""
    schema = '{"a":' * depth + "1" + "}" * depth
    tool = json.dumps(tool_of(path, 0)).replace(": 0}", f": {schema}}}")
    return [
        json.dumps(body_of(path, tools=[0])).replace("[0]", f"[{tool}]"),
        json.dumps(body_of(path, 0)).replace('"content": 0', f'"content": [{schema}]'),
        json.dumps(body_of(path, metadata=0)).replace('"metadata": 0', f'"metadata": {schema}'),
    ]


@pytest.mark.parametrize("path", PATHS)
def test_strange_bytes_are_a_request_that_is_refused(path: str) -> None:
    bodies = [
        b"", b"\xff\xfe", b"\x00", b'"text"', b"null", b"[1]", b'{"model": "\xff"}', b"{" * 100_000, b"1" * 5000,
        json.dumps(body_of(path)).encode()[:-1],
        json.dumps(body_of(path, temperature=1e999)).encode(),
    ]  # fmt: skip

    async def play(agent: Agent) -> None:
        for body in bodies:
            response = await agent.post(path, body)
            assert response.status_code == 400, (body[:50], response.text)
        lone = json.dumps(body_of(path, "\ud800")).encode()
        assert (await agent.post(path, lone)).status_code in (200, 400)

    assert played(lambda *_: "ok", play).failure is None


def test_a_flood_is_read_a_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "MOST_AT_ONCE", 4)
    most, running = 0, 0

    async def run() -> None:
        policies = ScriptedPolicies(
            ("p",), says=lambda *_: "ok", tokenizer=QWEN.tokenizer(), sampling=Sampling(9)
        )
        async with agent_of(policies, AMPLE) as agent:
            (engine,) = agent.episode.engines.values()
            generate, gate = engine.generate, asyncio.Event()

            async def counted(*asked: Any) -> Any:
                nonlocal most, running
                running += 1
                most = max(most, running)
                if running == 4:
                    gate.set()
                await gate.wait()
                try:
                    return await generate(*asked)
                finally:
                    running -= 1

            engine.generate = counted  # type: ignore[method-assign]
            path = "/v1/chat/completions"
            asked = [agent.post(path, body_of(path)) for _ in range(40)]
            assert {each.status_code for each in await asyncio.gather(*asked)} == {200}
            assert len(agent.episode.sequences()) == 40

    asyncio.run(run())
    assert most == 4


def test_what_waits_in_a_flood_ends_with_the_episode(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "MOST_AT_ONCE", 2)

    async def run() -> None:
        policies = ScriptedPolicies(("p",), tokenizer=QWEN.tokenizer(), holds=0)
        async with agent_of(policies, AMPLE) as agent:
            (engine,) = agent.episode.engines.values()
            begun = asyncio.Event()

            async def held(*_: Any) -> Any:
                begun.set()
                await asyncio.Event().wait()

            engine.generate = held  # type: ignore[method-assign]
            path = "/v1/messages"
            asked = [asyncio.create_task(agent.post(path, body_of(path))) for _ in range(8)]
            await begun.wait()
            await agent.gateway.end(agent.key)
            statuses = [each.status_code for each in await asyncio.gather(*asked)]
            assert statuses == [401] * 8

    asyncio.run(run())


@pytest.mark.parametrize("path", PATHS)
def test_a_stream_that_no_one_reads_to_its_end_is_trained_once(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that disconnects while a reply is sampled and repeats the request gets that reply."""
    monkeypatch.setattr(serving, "KEEP_ALIVE_S", 0.01)

    async def run() -> None:
        policies = ScriptedPolicies(("p",), says={"p": ["23"]}, tokenizer=QWEN.tokenizer())
        async with agent_of(policies, AMPLE) as agent:
            (engine,) = agent.episode.engines.values()
            generate, gate = engine.generate, asyncio.Event()

            async def late(*asked: Any) -> Any:
                await gate.wait()
                return await generate(*asked)

            engine.generate = late  # type: ignore[method-assign]
            body = json.dumps(body_of(path, stream=True)).encode()
            headers = {"authorization": f"Bearer {agent.key}"}
            url = agent.gateway.url + path
            streaming = agent.client.stream("POST", url, content=body, headers=headers)
            async with streaming as response:
                async for piece in response.aiter_bytes():
                    assert piece.startswith(b": keep-alive")
                    break
            retried = {"x-stainless-retry-count": "1"}
            again = asyncio.create_task(agent.post(path, body, retried))
            while not agent.episode.counts["retries"]:
                await asyncio.sleep(0.01)
            gate.set()
            assert b"23" in (await again).content
            assert len(agent.episode.sequences()) == 1
            assert agent.episode.metrics()["agent_calls"] == 1

    asyncio.run(run())


@pytest.mark.parametrize("path", PATHS)
def test_a_failure_within_a_stream_is_reported_in_it(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "KEEP_ALIVE_S", 0.01)

    async def run() -> None:
        policies = ScriptedPolicies(("p",), tokenizer=QWEN.tokenizer())
        async with agent_of(policies, AMPLE) as agent:
            (engine,) = agent.episode.engines.values()

            async def fails(*_: Any) -> Any:
                await asyncio.sleep(0.1)
                raise RuntimeError("out of memory")

            engine.generate = fails  # type: ignore[method-assign]
            response = await agent.post(path, body_of(path, stream=True))
            assert response.status_code in (200, 503)
            assert "out of memory" in response.text
            if response.status_code == 200 and path != "/v1/chat/completions":
                assert "event: error\n" in response.text

    asyncio.run(run())


def test_a_slow_reader_delays_no_other_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its reply is sampled and waits in its connection; its slot is free for the next request."""
    monkeypatch.setattr(serving, "MOST_AT_ONCE", 1)

    async def play(agent: Agent) -> None:
        path, headers = "/v1/messages", {"authorization": f"Bearer {agent.key}"}
        body = body_of(path, stream=True)
        slow = [
            agent.client.stream("POST", agent.gateway.url + path, json=body, headers=headers)
            for _ in range(3)
        ]
        responses = [await each.__aenter__() for each in slow]  # only heads are read
        assert (await agent.post(path, body_of(path))).status_code == 200
        for stream, response in zip(slow, responses, strict=True):
            assert b"message_stop" in await response.aread()
            await stream.__aexit__(None, None, None)

    assert len(played(lambda *_: "ok", play).sequences()) == 4
