"""An agent that calls the gateway by OpenAI's chat completions."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from chat_templates import TEMPLATES
from gateway_agents import CALL, LLAMA, MISTRAL, QWEN, THINKING, TOOL, USER, Agent, agent_of, played

from astraflow_core.errors import UserError
from astraflow_testing import scripted_policies
from astraflow_testing.scripted_policies import FailedAnswer, ScriptedPolicies

KIMI = next(each for each in TEMPLATES if each.style == "kimi")
KIMI_CALL = (
    "<|tool_calls_section_begin|><|tool_call_begin|>functions.add:0<|tool_call_argument_begin|>"
    '{"a": 1}<|tool_call_end|><|tool_calls_section_end|>'
)


def test_turns_become_one_sequence() -> None:
    async def play(agent: Agent) -> None:
        first = await agent.chat(USER)
        said = first["choices"][0]["message"]
        assert said == {"role": "assistant", "content": "23 I think"}
        assert first["choices"][0]["finish_reason"] == "stop"
        assert first["usage"]["completion_tokens"] == len("23 I think") + 1
        await agent.chat(USER, said, {"role": "user", "content": "sure?"})

    episode = played(["23 I think", "yes"], play)
    (sequence,) = episode.sequences()
    assert int(sequence.loss_mask.sum()) == len("23 I think") + len("yes") + 2
    assert episode.metrics()["prompts_continued"] == 1 and episode.metrics()["agent_calls"] == 2


@pytest.mark.parametrize(
    ("template", "said"),
    [
        (QWEN, CALL),
        (LLAMA, '{"name": "add", "parameters": {"a": 1}}'),
        (MISTRAL, '[TOOL_CALLS] [{"name": "add", "arguments": {"a": 1}}]'),
        (TEMPLATES[9], f"let me see\n{CALL}"),
        (KIMI, f"I add.{KIMI_CALL}"),
    ],
    ids=["hermes", "llama", "mistral", "plain text", "kimi"],
)
def test_tools_are_called_in_the_form_of_each_model(template: Any, said: str) -> None:
    async def play(agent: Agent) -> None:
        first = await agent.chat(USER, tools=[TOOL])
        assert first["choices"][0]["finish_reason"] == "tool_calls"
        message = first["choices"][0]["message"]
        (call,) = message["tool_calls"]
        assert call["function"] == {"name": "add", "arguments": '{"a": 1}'}
        result = {"role": "tool", "tool_call_id": call["id"], "content": "23"}
        await agent.chat(USER, message, result, tools=[TOOL])

    episode = played([said, "it is 23"], play, template)
    assert "add" in episode.asked[0].text and len(episode.sequences()) == 1  # type: ignore[attr-defined]


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "add"}}])
def test_kimi_is_shown_its_results_under_the_ids_that_it_writes(choice: Any) -> None:
    begun = "add:0<|tool_call_argument_begin|>" if choice == "required" else ""
    said = f'{begun}{{"a": 1}}<|tool_call_end|><|tool_calls_section_end|>'

    async def play(agent: Agent) -> None:
        first = await agent.chat(USER, tools=[TOOL], tool_choice=choice)
        message = first["choices"][0]["message"]
        (call,) = message["tool_calls"]
        assert call["function"] == {"name": "add", "arguments": '{"a": 1}'}
        result = {"role": "tool", "tool_call_id": call["id"], "content": "23"}
        await agent.chat(USER, message, result, tools=[TOOL])

    episode = played([said, "it is 23"], play, KIMI)
    assert len(episode.sequences()) == 1
    assert "## Return of functions.add:0\\n23" in episode.asked[1].text  # type: ignore[attr-defined]


def test_reasoning_is_kept_apart_and_put_back() -> None:
    said = f"<think>\nhm\n</think>\n\n{CALL}"

    async def play(agent: Agent) -> None:
        message = (await agent.chat(USER, tools=[TOOL]))["choices"][0]["message"]
        assert message.pop("reasoning_content") == "hm" and message["content"] is None
        result = {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "23"}
        await agent.chat(USER, message, result, tools=[TOOL])

    episode = played([said, "it is 23"], play, THINKING)
    assert len(episode.sequences()) == 1
    assert "hm" in episode.asked[1].text  # type: ignore[attr-defined]


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "add"}}])
def test_a_tool_that_must_be_called_is_begun_for_the_model(choice: Any) -> None:
    rest = 'add", "arguments": {"a": 1}}' if choice == "required" else '{"a": 1}}'

    async def play(agent: Agent) -> None:
        first = await agent.chat(USER, tools=[TOOL], tool_choice=choice)
        message = first["choices"][0]["message"]
        assert message["tool_calls"][0]["function"] == {"name": "add", "arguments": '{"a": 1}'}
        result = {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "23"}
        await agent.chat(USER, message, result, tools=[TOOL])

    (sequence,) = played([rest + "\n</tool_call>", "so 23"], play).sequences()
    assert int(sequence.loss_mask.sum()) == len(rest + "\n</tool_call>") + len("so 23") + 2


def test_a_stream_says_the_same_in_chunks() -> None:
    async def play(agent: Agent) -> None:
        body = {
            "messages": [USER],
            "tools": [TOOL],
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        response = await agent.post("/v1/chat/completions", body)
        assert response.headers["content-type"].startswith("text/event-stream")
        *events, done = [line[6:] for line in response.text.splitlines() if line]
        assert done == "[DONE]"
        chunks = [json.loads(event) for event in events]
        deltas = [chunk["choices"][0]["delta"] for chunk in chunks if chunk["choices"]]
        assert "".join(delta.get("content", "") for delta in deltas) == "so:"
        (calls,) = [delta["tool_calls"] for delta in deltas if "tool_calls" in delta]
        assert calls[0]["index"] == 0 and calls[0]["function"]["name"] == "add"
        assert chunks[-2]["choices"][0]["finish_reason"] == "tool_calls"
        assert chunks[-1]["usage"]["completion_tokens"] > 10

    played([f"so:\n{CALL}"], play)


def test_several_choices_are_several_sequences() -> None:
    async def play(agent: Agent) -> None:
        whole = await agent.chat(USER, n=3, logprobs=True, return_token_ids=True)
        assert [each["index"] for each in whole["choices"]] == [0, 1, 2]
        for choice in whole["choices"]:
            said = choice["logprobs"]["content"]
            assert len(said) == len(choice["token_ids"]) and all(e["logprob"] < 0 for e in said)
            assert "".join(e["token"] for e in said[:-1]) == choice["message"]["content"]

    episode = played(["a", "b", "c"], play)
    assert len(episode.sequences()) == 3


def test_a_stop_cuts_the_reply_and_what_is_trained() -> None:
    async def play(agent: Agent) -> None:
        first = await agent.chat(USER, stop=["Observation:", "12"])
        assert first["choices"][0]["message"]["content"] == "I look. "
        assert first["choices"][0]["finish_reason"] == "stop"
        history = (USER, first["choices"][0]["message"], {"role": "user", "content": "12"})
        assert (await agent.chat(*history))["choices"][0]["message"]["content"] == "so 12"

    episode = played(["I look. Observation: 1234", "so 12"], play)
    first, _ = episode.sequences()
    assert int(first.loss_mask.sum()) == len("I look. Observation:")
    assert episode.metrics()["prompts_stop"] == 1


def test_a_retry_is_answered_as_before_and_trained_once() -> None:
    async def play(agent: Agent) -> None:
        body = {"messages": [USER]}
        again = {"x-stainless-retry-count": "1"}
        first = await agent.post("/v1/chat/completions", body)
        second = await agent.post("/v1/chat/completions", body, again)
        other = await agent.post("/v1/chat/completions", body)
        texts = [each.json()["choices"][0]["message"]["content"] for each in (first, second, other)]
        assert texts == ["one", "one", "two"]
        named = {"idempotency-key": "k"}
        for _ in range(2):
            third = await agent.post("/v1/chat/completions", body, named)
            assert third.json()["choices"][0]["message"]["content"] == "three"

    episode = played(["one", "two", "three"], play)
    assert len(episode.sequences()) == 3 and episode.metrics()["agent_retries"] == 2


def test_the_sampling_is_that_of_the_run_unless_it_lets_agents_deviate() -> None:
    async def play(agent: Agent) -> None:
        await agent.chat(USER, temperature=0.1, max_tokens=3)

    episode = played(["a long reply"], play)
    assert len(episode.graph.calls[0].result.tokens) == 3
    (engine,) = episode.engines.values()
    assert engine.sampling.temperature == 1.0


def test_a_title_of_an_agent_with_tools_is_not_trained() -> None:
    async def play(agent: Agent) -> None:
        await agent.chat(USER, tools=[TOOL])
        await agent.chat({"role": "user", "content": "a title, please"})

    assert len(played(["hello", "Sums"], play).sequences()) == 1
    assert len(played(["hello", "Sums"], play, train_auxiliary=True).sequences()) == 2


def test_requests_that_are_under_way_end_with_the_episode() -> None:
    async def play(agent: Agent) -> None:
        asked = [asyncio.create_task(agent.refused({"messages": [USER]})) for _ in range(2)]
        while len(agent.episode._tasks) < 2:
            await asyncio.sleep(0.01)
        await agent.gateway.end(agent.key)
        assert [status for status, _ in await asyncio.gather(*asked)] == [401, 401]

    async def run() -> None:
        policies = ScriptedPolicies(("p",), tokenizer=QWEN.tokenizer(), holds=0)
        async with agent_of(policies) as agent:
            replica = agent.episode.engines["p"]
            replica.generate = lambda *_: asyncio.Event().wait()  # type: ignore[method-assign]
            await play(agent)

    asyncio.run(run())


def test_models_are_the_policies() -> None:
    async def play(agent: Agent) -> None:
        url = f"{agent.gateway.url}/e/{agent.key}/v1/models"
        found = (await agent.client.get(url)).json()
        assert [each["id"] for each in found["data"]] == ["p", "q"]
        status, error = await agent.refused({"model": "z", "messages": [USER]})
        assert status == 404 and error["code"] == "model_not_found" and "p, q" in error["message"]

    played([], play, policies=("p", "q"))


BAD: list[tuple[Any, str, str]] = [
    (b"{", "", "not JSON"),
    (b"[]", "", "object"),
    ({"messages": []}, "messages", "empty"),
    ({"messages": [{"role": "wizard", "content": "x"}]}, "messages[0].role", "wizard"),
    ({"messages": [{"role": "user", "content": 3}]}, "messages[0].content", "int"),
    (
        {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
        "messages[0].content",
        "image_url",
    ),
    ({"messages": [USER], "n": 0}, "n", "0"),
    ({"messages": [USER], "max_tokens": 0}, "max_tokens", "at least 1"),
    ({"messages": [USER], "response_format": {"type": "json_object"}}, "response_format", "output"),
    ({"messages": [USER], "functions": [{"name": "f"}]}, "functions", "not available"),
    ({"messages": [USER], "tools": [TOOL], "tool_choice": {"function": "f"}}, "tool_choice", "'f'"),
    ({"messages": [USER], "temperature": -1}, "temperature", "-1"),
    ({"messages": [USER], "top_p": 2}, "top_p", "0.0 to 1.0"),
    ({"messages": [USER], "stop": ["a", ""]}, "stop", "none of them empty"),
    ({"messages": [USER], "stop": ["a"] * 17}, "stop", "17"),
    ({"messages": [USER], "top_logprobs": 3}, "top_logprobs", "not available"),
    ({"messages": [USER], "tools": [{"type": "web_search"}]}, "tools[0]", "web_search"),
    ({"messages": [USER], "tools": [{"function": {}}]}, "tools[0]", "no name"),
    ({"messages": [USER], "tool_choice": "required"}, "tool_choice", "no tools"),
    ({"messages": [USER], "tools": [TOOL], "tool_choice": "sub"}, "tool_choice", "sub"),
    (
        {"messages": [USER], "tools": [TOOL], "tool_choice": {"function": {"name": "sub"}}},
        "tool_choice",
        "not one of",
    ),
]


def test_the_reply_to_a_bad_request_says_what_is_wrong() -> None:
    async def play(agent: Agent) -> None:
        for body, field, says in BAD:
            status, error = await agent.refused(body)
            assert status == 400 and error["type"] == "invalid_request_error", (body, error)
            assert (error["param"] or "") == field and says in error["message"], (body, error)

    played([], play)


def test_over_the_context_has_the_error_of_openai(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scripted_policies, "CONTEXT", 20)

    async def play(agent: Agent) -> None:
        status, error = await agent.refused({"messages": [USER]})
        assert status == 400 and error["code"] == "context_length_exceeded", error

    played([], play)


def test_a_key_ends_with_its_episode() -> None:
    async def play(agent: Agent) -> None:
        for key in ("none", "ep-unknown"):
            agent.key, kept = key, agent.key
            status, error = await agent.refused({"messages": [USER]})
            assert status == 401 and error["code"] == "invalid_api_key"
            agent.key = kept
        await agent.gateway.end(agent.key)
        status, error = await agent.refused({"messages": [USER]})
        assert status == 401

    played([], play)


@pytest.mark.parametrize("stream", [False, True])
def test_an_engine_that_fails_fails_the_episode(stream: bool) -> None:
    async def play(agent: Agent) -> None:
        status, error = await agent.refused({"messages": [USER], "stream": stream})
        assert status == 503 and error["type"] == "server_error"
        assert "out of memory" in error["message"]
        await asyncio.wait_for(agent.episode.failed.wait(), 10)

    assert played([FailedAnswer("out of memory")], play).failure is not None


def test_what_is_strange_is_no_error_of_the_server() -> None:
    deep = '{"a":' * 2000 + "1" + "}" * 2000
    said = {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": "1", "function": {"name": "add", "arguments": deep}}],
    }

    async def play(agent: Agent) -> None:
        await agent.chat(USER, said, {"role": "tool", "tool_call_id": "1", "content": "x"})
        headers = {"x-stainless-retry-count": "9" * 5000}
        response = await agent.post("/v1/chat/completions", {"messages": [USER]}, headers)
        assert response.status_code == 200
        missing = await agent.post("/v1/nothing", {})
        assert missing.status_code == 404 and missing.json()["error"]["code"] == "not_found"
        await agent.gateway.end(agent.key)
        await agent.gateway.end(agent.key)

    played(["a", "b"], play)


def test_a_prompt_that_cannot_be_encoded_is_the_fault_of_the_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def play(agent: Agent) -> None:
        def encode(text: str) -> Any:
            raise UserError("tokenizer.json cannot encode 'what'")

        (engine,) = agent.episode.engines.values()
        monkeypatch.setattr(engine.tokenizer, "encode", encode)
        status, error = await agent.refused({"messages": [USER]})
        assert status == 400 and "cannot encode" in error["message"]
        assert error["param"] == "messages" and "write the messages with" in error["message"]
        assert agent.episode.refusal == error["message"] and agent.episode.failure is None

    played([], play)


def test_a_stop_that_cannot_be_encoded_is_the_fault_of_the_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def play(agent: Agent) -> None:
        (engine,) = agent.episode.engines.values()
        encode = engine.tokenizer.encode

        def refuses(text: str) -> Any:
            if text == "ü":
                raise UserError("tiny/tokenizer.json cannot encode 'ü'")
            return encode(text)

        monkeypatch.setattr(engine.tokenizer, "encode", refuses)
        status, error = await agent.refused({"messages": [USER], "stop": ["ü"]})
        assert (status, error["param"]) == (400, "stop") and agent.episode.failure is None

    played([], play)


UNREADABLE = {
    b"": "the body is empty",
    b" \n": "the body is empty",
    '{"mö": 1}'.encode("latin-1"): "the body is not UTF-8 (invalid start byte at byte 3)",
    rb'{"model": "\ud83d"}': r"has \ud83d, half of a character",
    rb'{"model": "\\\ude00\ud83d\ude00"}': r"has \ude00, half of a character",
    rb'{"model": "\\ud83d': "not JSON: Input data was truncated",
}


def test_the_reply_to_an_unreadable_body_says_why() -> None:
    async def play(agent: Agent) -> None:
        for body, says in UNREADABLE.items():
            status, error = await agent.refused(body)
            assert status == 400 and says in error["message"], (body, error)

    played([], play)


def test_a_large_body_is_refused() -> None:
    async def play(agent: Agent) -> None:
        response = await agent.post("/v1/chat/completions", b" " * (9 << 20))
        assert response.status_code == 413

    played([], play)
