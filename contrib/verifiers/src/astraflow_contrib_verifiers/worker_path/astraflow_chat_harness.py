"""A harness of verifiers 0.4 that talks and calls tools in the process of the environment: no program is started."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from contextlib import AsyncExitStack
from typing import Any

import httpx
import verifiers.v1 as vf
from verifiers.v1.dialects.chat import message_to_wire
from verifiers.v1.harnesses.utils.mcp import call_mcp, connect_mcp

__all__ = ["AstraFlowChatHarness"]

_TOOLS_ANSWER_S = 60.0
_FULL = "context_length_exceeded"
_ENDED = vf.ProgramResult(exit_code=0, stdout="", stderr="")

Json = dict[str, Any]


class AstraFlowChatHarnessConfig(vf.HarnessConfig):  # type: ignore[misc]
    """No keys other than those of every harness."""


class AstraFlowChatHarness(vf.Harness[AstraFlowChatHarnessConfig]):  # type: ignore[misc]
    """The model is asked until it calls no tool; tools are those of the task's MCP servers."""

    APPENDS_SYSTEM_PROMPT = True
    SUPPORTS_MCP = True
    SUPPORTS_RESUME = True
    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    async def launch(
        self,
        ctx: vf.ModelContext,
        trace: vf.Trace,
        runtime: vf.Runtime,
        endpoint: str,
        secret: str,
        mcp_urls: dict[str, str],
        data: vf.TaskData,
    ) -> vf.ProgramResult:
        """One segment of the conversation, in this process."""
        system, prompt = self.resolve_prompt(data)
        messages: list[Json] = [] if system is None else [{"role": "system", "content": system}]
        if isinstance(prompt, str):
            messages.append({"role": "user", "content": prompt})
        elif prompt is not None:
            messages += [message_to_wire(message) for message in prompt]
        async with AsyncExitStack() as stack:
            tools, call = await self._tools(mcp_urls, stack)
            client = await stack.enter_async_context(
                httpx.AsyncClient(
                    headers={"authorization": f"Bearer {secret}"},
                    timeout=None,  # noqa: S113 - the episode has a deadline
                    trust_env=False,
                    verify=False,  # noqa: S501 - plain HTTP over loopback; no certificates are read
                )
            )
            while True:
                body = {"model": ctx.model, "messages": messages}
                if tools:
                    body["tools"] = tools
                response = await client.post(f"{endpoint}/chat/completions", json=body)
                if response.status_code != httpx.codes.OK:
                    return _not_answered(response)
                message = response.json()["choices"][0]["message"]
                messages.append({k: v for k, v in message.items() if v is not None})
                if not (calls := message.get("tool_calls")):
                    return _ENDED
                for each in calls:
                    messages.append(await call(each))

    async def _tools(
        self, urls: Mapping[str, str], stack: AsyncExitStack
    ) -> tuple[list[Json], Any]:
        """The tools as a model is offered them, and how a call is answered."""
        if not urls:
            return [], _no_tools
        servers = {
            name: {"url": url, "timeout": self.config.tool_timeout} for name, url in urls.items()
        }
        async with asyncio.timeout(_TOOLS_ANSWER_S):
            tools, dispatch, connections = await connect_mcp({"mcpServers": servers}, stack, set())

        async def call(asked: Json) -> Json:
            name = asked["function"]["name"]
            try:
                arguments = json.loads(asked["function"]["arguments"] or "{}")
            except ValueError as error:
                return _result(asked, f"error: the arguments are not JSON: {error}")
            if not isinstance(arguments, dict):
                return _result(asked, "error: the arguments have to be a JSON object")
            if name not in dispatch:
                return _result(asked, f"error: there is no tool {name!r}")
            return _result(asked, await call_mcp(connections, dispatch, name, arguments))

        return tools, call


async def _no_tools(asked: Json) -> Json:
    return _result(asked, "error: there are no tools")


def _result(asked: Json, content: Any) -> Json:
    return {"role": "tool", "tool_call_id": asked["id"], "content": content}


def _not_answered(response: httpx.Response) -> vf.ProgramResult:
    """A full context ends the conversation; anything else has failed."""
    if response.status_code == httpx.codes.BAD_REQUEST and _FULL in response.text:
        return _ENDED
    return vf.ProgramResult(
        exit_code=1, stdout="", stderr=f"{response.status_code}: {response.text[-2000:]}"
    )
