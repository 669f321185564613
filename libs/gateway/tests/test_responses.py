"""An agent that calls the gateway by OpenAI's responses."""

from __future__ import annotations

from typing import Any

import pytest
from gateway_agents import CALL, THINKING, Agent, played
from test_messages import events_of

from astraflow_core.errors import UserError
from astraflow_gateway.episode import BUDGET_SPENT, Budget
from astraflow_testing import scripted_policies
from astraflow_testing.scripted_policies import FailedAnswer, PairsTokenizer

PATH = "/v1/responses"
QUESTION = "what is 1 + 22?"
TOOL = {
    "type": "function",
    "name": "add",
    "parameters": {"type": "object", "properties": {}},
    "strict": True,
}


async def told(agent: Agent, given: Any, **more: Any) -> Any:
    """The response to ``given``."""
    response = await agent.post(PATH, {"model": "p", "input": given, **more})
    assert response.status_code == 200, response.text
    return response.json()


async def refused(agent: Agent, body: Any) -> tuple[int, dict[str, Any]]:
    response = await agent.post(PATH, body)
    return response.status_code, response.json()["error"]


def output(response: Any, text: str = "23") -> dict[str, Any]:
    (call,) = [item for item in response["output"] if item["type"] == "function_call"]
    return {"type": "function_call_output", "call_id": call["call_id"], "output": text}


@pytest.mark.parametrize("kept", [True, False])
def test_turns_with_tools_become_one_sequence(kept: bool) -> None:
    async def play(agent: Agent) -> None:
        keys = {"tools": [TOOL], "instructions": "be kind", "store": kept}
        first = await told(agent, QUESTION, **keys)
        assert (first["status"], first["tool_choice"]) == ("completed", "auto")
        reasoning, message, call = first["output"]
        assert reasoning["content"] == [{"type": "reasoning_text", "text": "hm"}]
        assert message["content"][0]["text"] == "so:"
        assert (call["name"], call["arguments"]) == ("add", '{"a": 1}')
        details = first["usage"]["output_tokens_details"]
        assert details["reasoning_tokens"] == len("<think>\nhm\n</think>")
        if kept:
            last = await told(agent, [output(first)], previous_response_id=first["id"], **keys)
        else:
            question = {"role": "user", "content": [{"type": "input_text", "text": QUESTION}]}
            history = [question, *first["output"], output(first)]
            last = await told(agent, history, **keys)
        assert [item["type"] for item in last["output"]] == ["message"]
        assert last["output"][0]["content"][0]["text"] == "it is 23"

    episode = played([f"<think>\nhm\n</think>\n\nso:\n{CALL}", "it is 23"], play, THINKING)
    assert len(episode.sequences()) == 1, episode.metrics()
    assert "be kind" in episode.asked[1].text  # type: ignore[attr-defined]


def test_a_conversation_is_kept_until_it_is_deleted_and_only_in_its_episode() -> None:
    async def play(agent: Agent) -> None:
        first = await told(agent, "a", instructions="be kind")
        second = await told(agent, "berry", previous_response_id=first["id"])
        third = await told(agent, "cherry", previous_response_id=second["id"])
        other = await told(agent, "d", previous_response_id=first["id"], store=False)
        asked = [each.text for each in agent.episode.asked]  # type: ignore[attr-defined]
        assert "be kind" in asked[0] and "be kind" not in asked[1]
        assert "berry" in asked[2] and "cherry" in asked[2] and "berry" not in asked[3]
        headers = {"authorization": f"Bearer {agent.key}"}
        url = f"{agent.gateway.url}{PATH}/{third['id']}"
        assert (await agent.client.get(url, headers=headers)).json() == third
        gone = (await agent.client.delete(url, headers=headers)).json()
        assert gone == {"id": third["id"], "object": "response", "deleted": True}
        assert (await agent.client.get(url, headers=headers)).status_code == 404
        for missing in (third["id"], other["id"], "resp_none"):
            body = {"input": "e", "previous_response_id": missing}
            status, error = await refused(agent, body)
            assert (status, error["code"]) == (400, "previous_response_not_found")

    episode = played(["1", "2", "3", "4"], play)
    assert episode.metrics()["agent_calls"] == 4


def test_a_stream_has_the_events_of_the_whole_response() -> None:
    async def play(agent: Agent) -> None:
        body = {"input": QUESTION, "tools": [TOOL], "stream": True}
        response = await agent.post(PATH, body)
        assert response.headers["content-type"].startswith("text/event-stream")
        events = events_of(response.text)
        assert [event["sequence_number"] for event in events] == list(range(len(events)))
        part = ["content_part.added", "{}.delta", "{}.done", "content_part.done"]
        item = ["output_item.added", *part, "output_item.done"]
        call = "function_call_arguments"
        assert [event["type"].removeprefix("response.") for event in events] == [
            "created", "in_progress",
            *[each.format("reasoning_text") for each in item],
            *[each.format("output_text") for each in item],
            "output_item.added", f"{call}.delta", f"{call}.done", "output_item.done",
            "completed",
        ]  # fmt: skip
        whole = events[-1]["response"]
        done = [event["item"] for event in events if event["type"].endswith("output_item.done")]
        assert done == whole["output"]
        begun = [event["item"] for event in events if event["type"].endswith("output_item.added")]
        assert begun[0]["content"] == begun[1]["content"] == [] and begun[2]["arguments"] == ""
        last = await told(agent, [output(whole)], previous_response_id=whole["id"], tools=[TOOL])
        assert last["previous_response_id"] == whole["id"]

    episode = played([f"<think>\nhm\n</think>\n\nso:\n{CALL}", "it is 23"], play, THINKING)
    assert len(episode.sequences()) == 1


def test_a_retried_stream_gets_the_same_reply_and_is_trained_once() -> None:
    async def play(agent: Agent) -> None:
        body = {"input": QUESTION, "stream": True}
        first = await agent.post(PATH, body)
        again = await agent.post(PATH, body, {"x-stainless-retry-count": "1"})
        assert first.content == again.content

    episode = played(["23"], play)
    assert len(episode.sequences()) == 1 and episode.metrics()["agent_retries"] == 1


def test_what_is_cut_for_its_length_is_incomplete() -> None:
    async def play(agent: Agent) -> None:
        whole = await told(agent, QUESTION, max_output_tokens=3)
        assert whole["status"] == "incomplete" == whole["output"][0]["status"]
        assert whole["incomplete_details"] == {"reason": "max_output_tokens"}
        streamed = await agent.post(
            PATH, {"input": QUESTION, "max_output_tokens": 3, "stream": True}
        )
        assert events_of(streamed.text)[-1]["type"] == "response.incomplete"

    played(["a long reply", "another one"], play)


def test_log_probs_come_with_the_text() -> None:
    async def play(agent: Agent) -> None:
        whole = await told(agent, QUESTION, include=["message.output_text.logprobs"])
        said = whole["output"][0]["content"][0]
        assert "".join(each["token"] for each in said["logprobs"][:-1]) == said["text"] == "23"

    played(["23"], play)


def test_a_budget_ends_with_an_ordinary_message() -> None:
    async def play(agent: Agent) -> None:
        first = await told(agent, QUESTION)
        last = await told(agent, QUESTION, previous_response_id=first["id"])
        assert last["output"][0]["content"][0]["text"] == BUDGET_SPENT

    played(["a"], play, budget=Budget(1, 1000))


def test_tokens_are_counted_and_nothing_is_recorded() -> None:
    async def play(agent: Agent) -> None:
        found = await agent.post(f"{PATH}/input_tokens", {"model": "p", "input": QUESTION})
        reply = await told(agent, QUESTION)
        tokens = reply["usage"]["input_tokens"]
        assert found.json() == {"object": "response.input_tokens", "input_tokens": tokens}

    assert played(["yes"], play).metrics()["agent_calls"] == 1


CALLED = {"type": "function_call", "call_id": "1", "name": "add", "arguments": "{}"}


def test_tools_in_a_namespace_are_called_by_their_full_names() -> None:
    said = CALL.replace("add", "sums.add")
    space = {"type": "namespace", "name": "sums", "description": "d", "tools": [TOOL]}

    async def play(agent: Agent) -> None:
        first = await told(agent, QUESTION, tools=[space, {**TOOL, "name": "sub"}])
        (call,) = first["output"]
        assert (call["namespace"], call["name"]) == ("sums", "add")
        assert first["tools"][0] == space
        history = [{"role": "user", "content": QUESTION}, call, output(first)]
        last = await told(agent, history, tools=[space, {**TOOL, "name": "sub"}])
        assert last["output"][0]["content"][0]["text"] == "it is 23"

    episode = played([said, "it is 23"], play)
    assert len(episode.sequences()) == 1
    assert '"name": "sums.add"' in episode.asked[0].text  # type: ignore[attr-defined]
    assert '"name": "sub"' in episode.asked[0].text  # type: ignore[attr-defined]


BAD: list[tuple[Any, str]] = [
    (b"{", "not JSON"),
    ({"model": "p"}, "input"),
    ({"input": []}, "input is empty"),
    ({"input": [{"role": "wizard", "content": "x"}]}, "input[0].role"),
    ({"input": [{"role": ["user"], "content": "x"}]}, "input[0].role"),
    (
        {"input": [{"role": "user", "content": [{"type": "input_image"}]}]},
        "an image without image_url",
    ),
    ({"input": [{"role": "user", "content": [{"type": ["x"]}]}]}, "['x']"),
    ({"input": [{"role": "user", "content": 3}]}, "input[0].content"),
    ({"input": [{"type": "web_search_call"}]}, "'web_search_call'"),
    ({"input": [{"type": "item_reference", "id": "x"}]}, "'item_reference'"),
    ({"input": [{**CALLED, "arguments": {}}]}, "input[0].arguments"),
    ({"input": [{**CALLED, "call_id": ""}]}, "input[0].call_id"),
    ({"input": [{"type": "function_call_output", "call_id": "9", "output": ""}]}, "'9'"),
    ({"input": "x", "tools": [{"type": "web_search"}]}, "'web_search'"),
    ({"input": "x", "tools": [{"type": "namespace", "tools": []}]}, "tools[0]: expected a name"),
    ({"input": "x", "tools": [{"type": "namespace", "name": "n", "tools": [{}]}]}, "have names"),
    (
        {
            "input": "x",
            "tools": [
                {"type": "namespace", "name": "n", "tools": [{"name": "m", "type": "custom"}]}
            ],
        },
        "tools[0].tools[0] is of type 'custom'",
    ),
    ({"input": "x", "tools": [{"type": "function", "name": "f", "parameters": 3}]}, "schema"),
    ({"input": "x", "tools": [TOOL], "tool_choice": {"type": "mcp"}}, "'mcp'"),
    ({"input": "x", "tools": [TOOL], "tool_choice": {"type": "function", "name": "g"}}, "'g'"),
    ({"input": "x", "tool_choice": "required"}, "no tools"),
    ({"input": "x", "max_output_tokens": 0}, "max_output_tokens"),
    ({"input": "x", "background": True}, "background"),
    ({"input": "x", "conversation": "c"}, "conversation"),
    ({"input": "x", "truncation": "auto"}, "truncation"),
    ({"input": "x", "text": {"format": {"type": "json_object"}}}, "text.format"),
    ({"input": "x", "top_logprobs": 2}, "only the log-prob of each sampled token"),
]


def test_the_reply_to_a_bad_request_says_what_is_wrong() -> None:
    async def play(agent: Agent) -> None:
        for body, says in BAD:
            status, error = await refused(agent, body)
            assert (status, error["type"]) == (400, "invalid_request_error"), (body, error)
            assert says in error["message"], error

    played([], play)


def test_what_the_tokenizer_cannot_encode_is_named_by_its_field(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    encode = PairsTokenizer.encode

    def refuses(self: PairsTokenizer, text: str) -> Any:
        if "parameters" in text or "ü" in text:
            raise UserError("tiny/tokenizer.json cannot encode it")
        return encode(self, text)

    monkeypatch.setattr(PairsTokenizer, "encode", refuses)

    async def play(agent: Agent) -> None:
        tool = {"type": "function", "name": "add", "parameters": {}}
        for body, param, says in (
            ({"input": "ünï"}, "input", "write the messages with characters that it has, or use"),
            ({"input": "x", "tools": [tool]}, "tools", "does not support tools; send none, or"),
        ):
            status, error = await refused(agent, body)
            assert (status, error["param"]) == (400, param), error
            assert says in error["message"]
        assert agent.episode.failure is None

    played([], play)


def test_errors_have_the_shape_of_the_dialect(monkeypatch: pytest.MonkeyPatch) -> None:
    async def play(agent: Agent) -> None:
        status, error = await refused(agent, {"input": QUESTION})
        assert (status, error["type"]) == (503, "server_error")
        monkeypatch.setattr(scripted_policies, "CONTEXT", 20)
        agent.key = "foreign"
        status, error = await refused(agent, {"input": QUESTION})
        assert (status, error["code"]) == (401, "invalid_api_key")
        large = await agent.post(PATH, b" " * (9 << 20))
        assert (large.status_code, large.json()["error"]["code"]) == (413, "request_too_large")

    played([FailedAnswer("out of memory")], play)


def test_a_prompt_that_is_too_long_has_the_error_of_openai(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(scripted_policies, "CONTEXT", 20)

    async def play(agent: Agent) -> None:
        status, error = await refused(agent, {"input": QUESTION})
        assert (status, error["code"]) == (400, "context_length_exceeded")

    played([], play)
