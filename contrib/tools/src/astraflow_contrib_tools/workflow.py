"""The episode: the policy is asked, the tools that it calls are run, until it calls none."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any

from astraflow_contrib_tools.config import ToolsConfig
from astraflow_contrib_tools.content import ShownImages
from astraflow_contrib_tools.functions import FunctionTools
from astraflow_contrib_tools.python_interpreter import PythonInterpreter
from astraflow_contrib_tools.toolbox import ToolAnswer, Toolbox
from astraflow_core.errors import PreflightError, PromptError, WorkflowError
from astraflow_core.protocols.workflow import PolicyEngine
from astraflow_core.types import ComponentContext, Prompt, Trajectory
from astraflow_gateway.chat.messages import Message, ToolCall
from astraflow_gateway.conversation import Conversation, Episodes, ModelTurn, NoMoreTurns
from astraflow_gateway.episode import Budget

if TYPE_CHECKING:
    from astraflow_contrib_tools.mcp_servers import McpServers

TOO_MANY = ToolAnswer("error: too many calls in one reply; this one was not run", False)


class ToolsWorkflow:
    """A policy answers ``data["prompt"]``, text or messages, with the help of tools. The run's reward component scores
    the last reply."""

    def __init__(self, config: ToolsConfig, context: ComponentContext) -> None:
        policies = context.run.policies
        if config.policy is None and len(policies) != 1:
            raise PreflightError(
                f"workflow 'tools' serves one policy and the run has {', '.join(policies)}: say which in workflow.policy"
            )
        if config.policy is not None and config.policy not in policies:
            raise PreflightError(
                f"workflow 'tools': policy {config.policy!r} is not in the run, which has {', '.join(policies)}"
            )
        self._policy, self._config = config.policy or policies[0], config
        budget = Budget(config.max_turns, config.max_tokens)
        self._episodes = Episodes(context.run, budget, config.calls == "python")
        self._functions = FunctionTools(config)
        self._python = None if config.python is None else PythonInterpreter(config)
        Toolbox(self._functions.tools, ShownImages(0))  # refuses what cannot be offered
        self._servers = _servers(config) if config.mcp else None

    async def run_episode(
        self, engines: Mapping[str, PolicyEngine], prompt: Prompt
    ) -> Trajectory | None:
        """Play one episode."""
        messages = self._opening(prompt)
        episode = self._episodes.begin(engines)
        counts: Counter[str] = Counter()
        async with self._tools() as tools:
            chat = Conversation(episode, self._policy, messages, tools.offers)
            await self._converse(chat, tools, counts)
        if not chat.turns:
            raise PromptError(
                f"prompt {prompt.id!r} leaves no room for an answer: it is longer than the model's context"
            )
        metrics = {**episode.metrics(), **{name: float(count) for name, count in counts.items()}}
        return Trajectory(tuple(episode.sequences()), tuple(episode.completions), {}, metrics)

    async def _converse(self, chat: Conversation, tools: Toolbox, counts: Counter[str]) -> None:
        for number in range(self._config.max_turns):
            try:
                turn = await chat.reply()
            except NoMoreTurns:
                return
            calls = turn.reply.tool_calls
            if not calls or number + 1 == self._config.max_turns:
                return
            for call, answer in zip(calls, await self._answers(tools, calls), strict=True):
                chat.answer_tool(call, answer.content)
                counts["tool_calls" if answer.good else "tool_errors"] += 1
                self._reward(chat, turn, answer)

    async def _answers(self, tools: Toolbox, calls: tuple[ToolCall, ...]) -> list[ToolAnswer]:
        """In the order of the calls, which run at once."""
        run, left = calls[: self._config.max_calls_of_turn], calls[self._config.max_calls_of_turn :]
        try:
            async with asyncio.TaskGroup() as group:
                running = [group.create_task(tools.answer(call)) for call in run]
        except ExceptionGroup as failed:
            raise failed.exceptions[0] from None
        return [*(task.result() for task in running), *(TOO_MANY for _ in left)]

    def _reward(self, chat: Conversation, turn: ModelTurn, answer: ToolAnswer) -> None:
        earned = self._config.call_reward if answer.good else self._config.error_reward
        if earned:
            chat.reward(turn, earned)

    def _opening(self, prompt: Prompt) -> list[Message]:
        content = prompt.data.get("prompt")
        if isinstance(content, str) and content:
            messages: list[Message] = [{"role": "user", "content": content}]
        elif isinstance(content, list) and content and all(map(_is_message, content)):
            messages = [dict(message) for message in content]
        else:
            raise WorkflowError(
                f"prompt {prompt.id!r}: workflow 'tools' expects data['prompt'] to be text or a list of messages, got "
                f"{content!r:.80}"
            )
        if self._config.system and messages[0]["role"] != "system":
            messages.insert(0, {"role": "system", "content": self._config.system})
        place = int(messages[0]["role"] == "system")
        messages[place:place] = map(dict, self._config.examples)
        return messages

    @asynccontextmanager
    async def _tools(self) -> AsyncIterator[Toolbox]:
        """The tools of one episode, with the servers that are its own."""
        async with AsyncExitStack() as stack:
            more = await stack.enter_async_context(self._servers.tools()) if self._servers else []
            own = [await stack.enter_async_context(self._python.tool())] if self._python else []
            shown = ShownImages(self._config.max_images)
            yield Toolbox([*self._functions.tools, *own, *more], shown)


def _servers(config: ToolsConfig) -> McpServers:
    try:
        from astraflow_contrib_tools.mcp_servers import McpServers
    except ImportError as error:
        raise PreflightError(
            f"workflow 'tools': [workflow.mcp] needs a package that is not installed ({error}): "
            "pip install 'astraflow-contrib-tools[runtime]'"
        ) from error
    return McpServers(config)


def _is_message(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and isinstance(value.get("role"), str)
        and isinstance(value.get("content"), str | list)
    )
