"""Episodes with a client that knows nothing of AstraFlow, in an interpreter with that client:
``python play.py CLIENT KEY [KEY]`` plays one for each key, the first without streams, the second with them.

Each asks what 1 + 22 is, offers the tool ``add``, runs it, and prints the answer. ``OPENAI_BASE_URL`` and
``ANTHROPIC_BASE_URL`` say where the model is, as for any agent.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from typing import Any

QUESTION = "What is 1 + 22?"
SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
    "required": ["a", "b"],
}
BASE_URL = os.environ["OPENAI_BASE_URL"]
LOOP = asyncio.Runner()
"""Some clients keep connections, which belong to a loop."""


def add(a: int, b: int) -> int:
    """Add two numbers.

    Args:
        a: The first number.
        b: The second number.
    """
    return a + b


def openai_chat(stream: bool) -> str:
    """The chat completions of openai."""
    from openai import OpenAI

    client, messages = OpenAI(), [{"role": "user", "content": QUESTION}]
    tool = {"type": "function", "function": {"name": "add", "parameters": SCHEMA}}
    for _ in range(3):
        asked: dict[str, Any] = {"model": "p", "messages": messages, "tools": [tool]}
        if stream:
            with client.chat.completions.stream(**asked) as events:
                for _event in events:
                    pass
                said = events.get_final_completion().choices[0].message
        else:
            said = client.chat.completions.create(**asked).choices[0].message
        if not said.tool_calls:
            return said.content
        messages.append(said.model_dump(exclude_none=True, exclude={"parsed"}))
        for call in said.tool_calls:
            content = str(add(**json.loads(call.function.arguments)))
            messages.append({"role": "tool", "tool_call_id": call.id, "content": content})
    raise AssertionError("no answer after three turns")


def openai_responses(stream: bool) -> str:
    """The responses of openai, which the server keeps."""
    from openai import OpenAI

    client, given, previous = OpenAI(), QUESTION, None
    tool = {"type": "function", "name": "add", "parameters": SCHEMA, "strict": False}
    for _ in range(3):
        asked: dict[str, Any] = {"model": "p", "input": given, "tools": [tool]}
        if stream:
            with client.responses.stream(**asked, previous_response_id=previous) as events:
                for _event in events:
                    pass
                said = events.get_final_response()
        else:
            said = client.responses.create(**asked, previous_response_id=previous)
        calls = [item for item in said.output if item.type == "function_call"]
        if not calls:
            return said.output_text
        previous = said.id
        given = [
            {
                "type": "function_call_output",
                "call_id": call.call_id,
                "output": str(add(**json.loads(call.arguments))),
            }
            for call in calls
        ]
    raise AssertionError("no answer after three turns")


def anthropic(stream: bool) -> str:
    """The messages of anthropic."""
    from anthropic import Anthropic

    client, messages = Anthropic(), [{"role": "user", "content": QUESTION}]
    tool = {"name": "add", "description": "Add two numbers.", "input_schema": SCHEMA}
    for _ in range(3):
        asked: dict[str, Any] = {"model": "p", "messages": messages, "tools": [tool]}
        assert client.messages.count_tokens(**asked).input_tokens > 10
        if stream:
            with client.messages.stream(**asked, max_tokens=200) as events:
                said = events.get_final_message()
        else:
            said = client.messages.create(**asked, max_tokens=200)
        if said.stop_reason != "tool_use":
            return said.content[0].text
        messages.append({"role": "assistant", "content": said.content})
        results = [
            {"type": "tool_result", "tool_use_id": each.id, "content": str(add(**each.input))}
            for each in said.content
            if each.type == "tool_use"
        ]
        messages.append({"role": "user", "content": results})
    raise AssertionError("no answer after three turns")


def openai_agents(stream: bool, api: str = "responses") -> str:
    """openai-agents by responses."""
    import agents
    from openai import AsyncOpenAI

    agents.set_tracing_disabled(True)
    agents.set_default_openai_client(AsyncOpenAI())
    agents.set_default_openai_api(api)
    tools = [agents.function_tool(add)]
    agent = agents.Agent(name="adder", model="p", instructions="Be brief.", tools=tools)

    async def run() -> str:
        if not stream:
            return str((await agents.Runner.run(agent, QUESTION)).final_output)
        running = agents.Runner.run_streamed(agent, QUESTION)
        async for _event in running.stream_events():
            pass
        return str(running.final_output)

    return LOOP.run(run())


def openai_agents_chat(stream: bool) -> str:
    """openai-agents by chat completions."""
    return openai_agents(stream, "chat_completions")


def pydantic_ai(stream: bool, model: str = "openai-chat:p") -> str:
    """pydantic-ai by chat completions."""
    from pydantic_ai import Agent

    agent = Agent(model, tools=[add])
    if not stream:
        return str(agent.run_sync(QUESTION).output)

    async def streamed() -> str:
        async with agent.run_stream(QUESTION) as running:
            return str(await running.get_output())

    return LOOP.run(streamed())


def pydantic_ai_anthropic(stream: bool) -> str:
    """pydantic-ai by Anthropic's messages."""
    return pydantic_ai(stream, "anthropic:p")


def pydantic_ai_responses(stream: bool) -> str:
    """pydantic-ai by responses."""
    return pydantic_ai(stream, "openai-responses:p")


def smolagents(stream: bool) -> str:
    """smolagents, whose answer is a tool call, too."""
    from smolagents import OpenAIServerModel, ToolCallingAgent, tool

    model = OpenAIServerModel("p", api_base=BASE_URL, api_key=os.environ["OPENAI_API_KEY"])
    agent = ToolCallingAgent([tool(add)], model, stream_outputs=stream, verbosity_level=0)
    return str(agent.run(QUESTION))


def langgraph(stream: bool) -> str:
    """langgraph over the client of langchain."""
    from langchain_openai import ChatOpenAI
    from langgraph.prebuilt import create_react_agent

    agent = create_react_agent(ChatOpenAI(model="p", streaming=stream), [add])
    given = {"messages": [("user", QUESTION)]}
    if not stream:
        return str(agent.invoke(given)["messages"][-1].content)
    streamed = agent.stream(given, stream_mode="messages")
    # Results of tools are among them.
    return "".join(str(chunk.content) for chunk, _ in streamed if chunk.type == "AIMessageChunk")


def litellm(stream: bool, model: str = "openai/p") -> str:
    """litellm by chat completions."""
    from litellm import completion, stream_chunk_builder

    anthropic = model.startswith("anthropic/")
    place = {} if anthropic else {"api_base": BASE_URL}
    messages: list[Any] = [{"role": "user", "content": QUESTION}]
    tool = {"type": "function", "function": {"name": "add", "parameters": SCHEMA}}
    for _ in range(3):
        reply = completion(
            model,
            messages,
            tools=[tool],
            stream=stream,
            api_key=os.environ["OPENAI_API_KEY"],
            max_tokens=200,
            **place,
        )
        if stream:
            reply = stream_chunk_builder(list(reply), messages=messages)
        said = reply.choices[0].message
        if not said.tool_calls:
            return str(said.content)
        messages.append(said.model_dump())
        for call in said.tool_calls:
            content = str(add(**json.loads(call.function.arguments)))
            messages.append({"role": "tool", "tool_call_id": call.id, "content": content})
    raise AssertionError("no answer after three turns")


def litellm_anthropic(stream: bool) -> str:
    """litellm by Anthropic's messages."""
    return litellm(stream, "anthropic/p")


def dspy(stream: bool) -> str:
    """DSPy, which has a form of its own for tool calls: in plain text."""
    import dspy

    dspy.configure_cache(enable_disk_cache=False, enable_memory_cache=False)
    dspy.configure(
        lm=dspy.LM(
            "openai/p", api_base=BASE_URL, api_key=os.environ["OPENAI_API_KEY"], max_tokens=200
        )
    )
    return str(dspy.ReAct("question -> answer", tools=[add], max_iters=3)(question=QUESTION).answer)


def autogen(stream: bool) -> str:
    """AutoGen."""
    from autogen_agentchat.agents import AssistantAgent
    from autogen_ext.models.openai import OpenAIChatCompletionClient

    can = {
        "vision": False, "function_calling": True, "json_output": False, "structured_output": False,
        "family": "unknown",
    }  # fmt: skip
    client = OpenAIChatCompletionClient(
        model="p", base_url=BASE_URL, api_key=os.environ["OPENAI_API_KEY"], model_info=can
    )
    agent = AssistantAgent(
        "adder", client, tools=[add], max_tool_iterations=3, model_client_stream=stream
    )
    return str(LOOP.run(agent.run(task=QUESTION)).messages[-1].content)


def main() -> None:
    """Play the episodes one after the other."""
    play, keys = globals()[sys.argv[1]], sys.argv[2:]
    for stream, key in enumerate(keys):
        os.environ["OPENAI_API_KEY"] = os.environ["ANTHROPIC_API_KEY"] = key
        sys.stdout.write(f"\nanswer: {play(bool(stream))}\n")


if __name__ == "__main__":
    main()
