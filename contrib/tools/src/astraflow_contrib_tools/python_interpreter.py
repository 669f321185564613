"""The tool ``python``: runs what the policy writes, in a sandbox."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from astraflow_contrib_tools.config import ToolsConfig
from astraflow_contrib_tools.results import ToolError
from astraflow_contrib_tools.toolbox import Tool
from astraflow_environments.actions import shortened
from astraflow_sandbox.code_runner import ProgramResult, SandboxFailed
from astraflow_sandbox.subprocess_runner import Session

NAME = "python"
PARAMETERS = {
    "type": "object",
    "properties": {"code": {"type": "string", "description": "Python source"}},
    "required": ["code"],
}
ENDED = {
    "cpu": "it ran too long",
    "deadline": "it did not end in time",
    "output": "it wrote too much",
}
_ABOUT = "Run Python code and show what it prints, and the value of an expression at its end. "
_STATE = {
    "call": "Each call begins anew.",
    "episode": "Names that a call defines are there for the next one.",
}


class PythonInterpreter:
    """The tool of all episodes, and the sandbox that they share. :class:`~astraflow_core.errors.PreflightError` if this
    host cannot offer one."""

    def __init__(self, config: ToolsConfig) -> None:
        assert config.python is not None, "who has no such table has no such tool"
        self._state, self._most = config.python.state, config.max_result
        self._runner = config.python.runner()

    @asynccontextmanager
    async def tool(self) -> AsyncIterator[Tool]:
        """That of one episode; what it keeps ends with it."""
        async with AsyncExitStack() as stack:
            run = self._runner.evaluate if self._state == "call" else self._stateful(stack)

            async def call(arguments: Mapping[str, Any]) -> str:
                code = arguments.get("code")
                if not isinstance(code, str) or len(arguments) > 1:
                    raise ToolError('expected the arguments {"code": source}')
                return self._shown(await run(code))

            yield Tool(NAME, _ABOUT + _STATE[self._state], PARAMETERS, "[workflow.python]", call)

    def _stateful(self, stack: AsyncExitStack) -> Callable[[str], Awaitable[ProgramResult]]:
        """Runs pieces of one session in turn, which begins with the first of them."""
        turn = asyncio.Lock()
        sessions: list[Session] = []

        async def run(code: str) -> ProgramResult:
            async with turn:
                if not sessions:
                    sessions.append(await stack.enter_async_context(self._runner.session()))
                return await sessions[0].run(code)

        return run

    def _shown(self, result: ProgramResult) -> str:
        if result.starved:
            raise SandboxFailed("the machine was too busy for a call of the tool 'python'")
        said = shortened(result.stdout + result.stderr, self._most)
        lost = ", and what it had defined is lost" if self._state == "episode" else ""
        if result.ending != "exited":
            raise ToolError(f"{ENDED[result.ending]}{lost}\n{said}".rstrip())
        if result.code:
            raise ToolError(said.rstrip() or f"it ended with exit code {result.code}{lost}")
        return said.rstrip("\n")
