"""An agent that calls the gateway by Anthropic's messages."""

from __future__ import annotations

import json
from typing import Any

import pytest
from gateway_agents import CALL, QWEN, THINKING, USER, Agent, played

from astraflow_gateway.episode import BUDGET_SPENT, Budget
from astraflow_testing import scripted_policies
from astraflow_testing.scripted_policies import FailedAnswer

TOOL = {"name": "add", "input_schema": {"type": "object", "properties": {}}}
BODY = {"model": "p", "max_tokens": 300, "messages": [USER]}
VERSION = {"anthropic-version": "2023-06-01"}


async def told(agent: Agent, *messages: Any, **more: Any) -> Any:
    """The reply to ``messages``."""
    response = await agent.post("/v1/messages", {**BODY, "messages": messages, **more}, VERSION)
    assert response.status_code == 200, response.text
    return response.json()


async def refused(agent: Agent, body: Any) -> tuple[int, dict[str, Any]]:
    response = await agent.post("/v1/messages", body, VERSION)
    assert response.json()["type"] == "error", response.text
    return response.status_code, response.json()["error"]


def events_of(text: str) -> list[dict[str, Any]]:
    """The events of a stream, whose names are those in their data."""
    found = []
    for block in text.strip().split("\n\n"):
        name, data = block.split("\n")
        found.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {found[-1]['type']}"
    return found


def result(reply: Any, content: Any = "23", **more: Any) -> dict[str, Any]:
    (use,) = [block for block in reply["content"] if block["type"] == "tool_use"]
    block = {"type": "tool_result", "tool_use_id": use["id"], "content": content, **more}
    return {"role": "user", "content": [block]}


def test_turns_with_tools_become_one_sequence() -> None:
    async def play(agent: Agent) -> None:
        system = [{"type": "text", "text": "be kind", "cache_control": {"type": "ephemeral"}}]
        first = await told(agent, USER, tools=[TOOL], system=system)
        assert first["stop_reason"] == "tool_use" and first["stop_sequence"] is None
        text, use = first["content"]
        assert text == {"type": "text", "text": "so:"}
        assert use.pop("id") and use == {"type": "tool_use", "name": "add", "input": {"a": 1}}
        assert first["usage"]["output_tokens"] == len(f"so:\n{CALL}") + 1
        use["id"] = "toolu_of_another_form"  # an agent may give ids of its own
        said = {"role": "assistant", "content": first["content"]}
        parts = [{"type": "text", "text": "2"}, {"type": "text", "text": "3"}]
        answer = result(first, parts, is_error=False)
        last = await told(agent, USER, said, answer, tools=[TOOL], system=system)
        assert last["content"] == [{"type": "text", "text": "it is 23"}]
        assert last["stop_reason"] == "end_turn"

    episode = played([f"so:\n{CALL}", "it is 23"], play)
    (sequence,) = episode.sequences()
    assert int(sequence.loss_mask.sum()) == len(f"so:\n{CALL}") + len("it is 23") + 2
    assert episode.metrics()["prompts_continued"] == 1
    assert "be kind" in episode.asked[0].text  # type: ignore[attr-defined]
    assert "2\n\n3" in episode.asked[1].text  # type: ignore[attr-defined]


def test_a_tool_that_is_found_later_is_described_from_there_on() -> None:
    later = {"name": "sub", "input_schema": {"type": "object"}, "defer_loading": True}
    tools = [TOOL, later]

    async def play(agent: Agent) -> None:
        first = await told(agent, USER, tools=tools)
        found = [{"type": "tool_reference", "tool_name": "sub"}]
        said = {"role": "assistant", "content": first["content"]}
        await told(agent, USER, said, result(first, found), tools=tools)
        messages = [USER, said, result(first, [{"type": "tool_reference", "tool_name": "mul"}])]
        _, error = await refused(agent, {**BODY, "messages": messages, "tools": tools})
        assert "messages[2].content[0].content[0]: tool_name 'mul'" in error["message"]

    episode = played([CALL, "it is 23"], play)
    assert len(episode.sequences()) == 1
    texts = [asked.text for asked in episode.asked]  # type: ignore[attr-defined]
    assert ['"name": "sub"' in text for text in texts] == [False, True]
    assert '"name": "sub"' in texts[1].rpartition("<tool_response>")[2]


@pytest.mark.parametrize("choice", [{"type": "any"}, {"type": "tool", "name": "add"}])
def test_a_tool_that_must_be_called_is_called(choice: Any) -> None:
    rest = 'add", "arguments": {"a": 1}}' if choice["type"] == "any" else '{"a": 1}}'

    async def play(agent: Agent) -> None:
        first = await told(agent, USER, tools=[TOOL], tool_choice=choice)
        (use,) = first["content"]
        assert (use["name"], use["input"]) == ("add", {"a": 1})

    played([rest + "\n</tool_call>"], play)


@pytest.mark.parametrize(
    ("thinking", "shown"),
    [
        ({"type": "enabled", "budget_tokens": 1024}, True),
        ({"type": "adaptive"}, True),
        ({"type": "adaptive", "display": "omitted"}, False),
        ({"type": "disabled"}, False),
        (None, False),
    ],
)
def test_thinking_is_shown_to_who_asks_for_it(thinking: Any, shown: bool) -> None:
    async def play(agent: Agent) -> None:
        keys = {"tools": [TOOL], **({"thinking": thinking} if thinking else {})}
        first = await told(agent, USER, **keys)
        kinds = [block["type"] for block in first["content"]]
        assert kinds == [*(["thinking"] if shown else []), "tool_use"]
        if shown:
            assert first["content"][0]["thinking"] == "hm" and first["content"][0]["signature"]
        said = {"role": "assistant", "content": first["content"]}
        await told(agent, USER, said, result(first), **keys)

    episode = played([f"<think>\nhm\n</think>\n\n{CALL}", "it is 23"], play, THINKING)
    assert len(episode.sequences()) == 1
    assert "hm" in episode.asked[1].text  # type: ignore[attr-defined]


def test_a_stream_has_the_events_of_the_whole_reply() -> None:
    async def play(agent: Agent) -> None:
        body = {
            **BODY,
            "tools": [TOOL],
            "stream": True,
            "thinking": {"type": "adaptive"},
        }
        response = await agent.post("/v1/messages", body, VERSION)
        assert response.headers["content-type"].startswith("text/event-stream")
        start, ping, *blocks, delta, stop = events_of(response.text)
        assert start["type"] == "message_start" and start["message"]["content"] == []
        assert start["message"]["usage"]["input_tokens"] > 10
        assert ping == {"type": "ping"} and stop == {"type": "message_stop"}
        assert delta["delta"] == {"stop_reason": "tool_use", "stop_sequence": None}
        assert delta["usage"]["output_tokens"] > 10
        assert [(each["index"], each["type"].removeprefix("content_block_")) for each in blocks] == [
            (0, "start"), (0, "delta"), (0, "delta"), (0, "stop"), (1, "start"), (1, "delta"), (1, "stop"),
            (2, "start"), (2, "delta"), (2, "stop"),
        ]  # fmt: skip
        deltas = [each["delta"] for each in blocks if "delta" in each]
        assert [each["type"] for each in deltas] == [
            "thinking_delta", "signature_delta", "text_delta", "input_json_delta",
        ]  # fmt: skip
        assert deltas[2]["text"] == "so:" and json.loads(deltas[3]["partial_json"]) == {"a": 1}

    played([f"<think>\nhm\n</think>\n\nso:\n{CALL}"], play, THINKING)


def test_stops_and_lengths_are_reported() -> None:
    async def play(agent: Agent) -> None:
        first = await told(agent, USER, stop_sequences=["Observation:"])
        assert first["content"] == [{"type": "text", "text": "I look. "}]
        assert (first["stop_reason"], first["stop_sequence"]) == ("stop_sequence", "Observation:")
        second = await told(agent, USER, max_tokens=3)
        assert (second["stop_reason"], second["stop_sequence"]) == ("max_tokens", None)

    played(["I look. Observation: 1234", "so 12"], play)


def test_tokens_are_counted_and_nothing_is_recorded() -> None:
    async def play(agent: Agent) -> None:
        count = {"model": "p", "messages": [USER], "system": "be kind"}
        response = await agent.post("/v1/messages/count_tokens", count, VERSION)
        reply = await told(agent, USER, system="be kind")
        assert response.json() == {"input_tokens": reply["usage"]["input_tokens"]}
        bad = await agent.post("/v1/messages/count_tokens", {"messages": []}, VERSION)
        assert bad.status_code == 400 and bad.json()["error"]["type"] == "invalid_request_error"

    assert played(["yes"], play).metrics()["agent_calls"] == 1


def test_the_line_for_bills_of_claude_code_is_left_out() -> None:
    async def play(agent: Agent) -> None:
        messages: list[Any] = [USER]
        for number in range(2):
            bill = {"type": "text", "text": f"x-anthropic-billing-header: cch={number};"}
            kind = {"type": "text", "text": "be kind"}
            reply = await told(agent, *messages, system=[bill, kind])
            messages += [{"role": "assistant", "content": reply["content"]}, USER]

    assert len(played(["a", "b"], play).sequences()) == 1


def test_numbers_that_another_language_writes_in_another_way_are_the_same_call() -> None:
    said = CALL.replace("1}", "1.0}")

    async def play(agent: Agent) -> None:
        first = await told(agent, USER, tools=[TOOL])
        first["content"][0]["input"] = {"a": 1}  # JavaScript writes 1.0 as 1
        history = {"role": "assistant", "content": first["content"]}
        await told(agent, USER, history, result(first), tools=[TOOL])

    assert len(played([said, "23"], play).sequences()) == 1


def test_a_budget_ends_with_an_ordinary_message() -> None:
    async def play(agent: Agent) -> None:
        await told(agent, USER)
        last = await told(agent, USER)
        assert last["content"] == [{"type": "text", "text": BUDGET_SPENT}]
        assert last["stop_reason"] == "end_turn"

    played(["a"], play, budget=Budget(1, 1000))


def test_models_have_the_shape_that_the_client_expects() -> None:
    async def play(agent: Agent) -> None:
        headers = {"x-api-key": agent.key, **VERSION}
        found = (await agent.client.get(f"{agent.gateway.url}/v1/models", headers=headers)).json()
        assert [each["id"] for each in found["data"]] == ["p", "q"] and not found["has_more"]
        url = f"{agent.gateway.url}/v1/models/q"
        assert (await agent.client.get(url, headers=headers)).json()["type"] == "model"
        url = f"{agent.gateway.url}/v1/nothing"
        assert (await agent.client.get(url, headers=headers)).json()["type"] == "error"
        wrong = {"authorization": "Bearer of-somebody-else", **headers}
        response = await agent.client.get(f"{agent.gateway.url}/v1/models", headers=wrong)
        assert response.status_code == 200

    played([], play, policies=("p", "q"))


USE = {"type": "tool_use", "id": "1", "name": "add", "input": {}}
BAD: list[tuple[Any, str]] = [
    (b"{", "not JSON"),
    ({"messages": [USER], "model": "p"}, "max_tokens"),
    ({**BODY, "messages": []}, "at least one message"),
    ({**BODY, "max_tokens": 0}, "at least 1"),
    ({**BODY, "messages": [{"role": "tool", "content": "x"}]}, "messages[0].role"),
    ({**BODY, "messages": [{"role": "user", "content": []}]}, "messages[0].content is empty"),
    (
        {**BODY, "messages": [{"role": "user", "content": [{"type": "image"}]}]},
        "content[0].source is None; expected an object",
    ),
    ({**BODY, "messages": [{"role": "user", "content": [{"type": ["x"]}]}]}, "['x']"),
    ({**BODY, "messages": [USER, {"role": "assistant", "content": "I"}]}, "prefilled"),
    (
        {**BODY, "messages": [{"role": "user", "content": [{**USE, "type": "tool_result"}]}]},
        "use_id",
    ),
    (
        {
            **BODY,
            "messages": [
                {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "gone"}]}
            ],
        },
        "'gone'",
    ),
    (
        {**BODY, "messages": [{"role": "assistant", "content": [{**USE, "input": "x"}]}, USER]},
        "messages[0].content[0].input",
    ),
    ({**BODY, "system": [{"type": "image"}]}, "system[0]"),
    ({**BODY, "tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "web_search"),
    ({**BODY, "tools": [{"name": "add"}]}, "not a JSON schema"),
    ({**BODY, "tools": [{"name": "", "input_schema": {}}]}, "no name"),
    ({**BODY, "tools": [TOOL], "tool_choice": {"type": "tool", "name": "sub"}}, "'sub'"),
    ({**BODY, "tools": [TOOL], "tool_choice": {"type": "some"}}, "'some'"),
    ({**BODY, "tool_choice": {"type": "any"}}, "no tools"),
    ({**BODY, "stop_sequences": [""]}, "stop_sequences"),
    ({**BODY, "temperature": -1}, "temperature"),
    ({**BODY, "mcp_servers": [{"url": "http://x"}]}, "mcp_servers"),
    ({**BODY, "output_config": {"format": {"type": "json_schema"}}}, "output_config.format"),
]


def test_the_reply_to_a_bad_request_says_what_is_wrong() -> None:
    async def play(agent: Agent) -> None:
        for body, says in BAD:
            status, error = await refused(agent, body)
            assert (status, error["type"]) == (400, "invalid_request_error"), (body, error)
            assert says in error["message"], error

    played([], play)


def test_errors_have_the_shape_of_the_dialect(monkeypatch: pytest.MonkeyPatch) -> None:
    async def play(agent: Agent) -> None:
        status, error = await refused(agent, {**BODY, "model": "z"})
        assert (status, error["type"]) == (404, "not_found_error")
        status, error = await refused(agent, BODY)
        assert (status, error["type"]) == (503, "api_error")
        monkeypatch.setattr(scripted_policies, "CONTEXT", 20)
        agent.key = "foreign"
        status, error = await refused(agent, BODY)
        assert (status, error["type"]) == (401, "authentication_error")
        large = await agent.post("/v1/messages", b" " * (9 << 20), VERSION)
        assert (large.status_code, large.json()["error"]["type"]) == (413, "request_too_large")

    played([FailedAnswer("out of memory")], play, policies=("p", "q"))


def test_a_prompt_that_is_too_long_is_reported_in_the_words_that_agents_look_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(scripted_policies, "CONTEXT", 20)

    async def play(agent: Agent) -> None:
        status, error = await refused(agent, BODY)
        assert status == 400 and error["message"].startswith("prompt is too long: ")
        assert error["message"].endswith(" tokens > 20 maximum")

    played([], play, QWEN)
