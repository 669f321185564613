"""The launcher ``sample_thing``."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import sys
from collections.abc import Mapping, Sequence
from functools import partial

from pydantic import Field

from astraflow_core.errors import PreflightError
from astraflow_core.protocols.launcher import ProcessSpec
from astraflow_core.types import ComponentContext
from astraflow_launching import agent
from astraflow_launching.keys import HostKeys, HostsKeys
from astraflow_launching.launcher import AgentLauncher
from astraflow_launching.link import Open
from astraflow_launching.placement import check_counts

BOOTSTRAP = "import sys; SOURCE = open(sys.argv.pop(1), 'rb').read(); exec(compile(SOURCE, 'agent.py', 'exec'))"
"""Runs the program of the agent, which needs its own source."""
END_S = 5.0
SAID_BYTES = 4096


class SampleThingConfig(HostsKeys):
    """``launcher = { use = "sample_thing", hosts = ["box"], reach = ["docker", "exec", "-i", "{host}"] }``"""

    reach: tuple[str, ...] = Field(
        (),
        description="Command that runs the words after it on a host, with its standard input and output; '{host}' "
        "stands for the name. Default: none, so that processes run here.",
    )


class CommandStream:
    """Standard input and output of the command that reaches a host."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None and process.stdin is not None
        self._process, self._input = process, process.stdin
        self.reader = process.stdout

    def write(self, data: bytes) -> None:
        """Send, without waiting."""
        if not self._input.is_closing():
            self._input.write(data)

    async def close(self) -> str:
        """Hang up; what the command said, if it failed."""
        if self._process.returncode is None:
            self._input.close()
            try:
                await asyncio.wait_for(self._process.wait(), END_S)
            except TimeoutError:
                with contextlib.suppress(ProcessLookupError):
                    self._process.kill()
                await self._process.wait()
        if not self._process.returncode or self._process.stderr is None:
            return ""
        said = await self._process.stderr.read(SAID_BYTES)
        return " ".join(said.decode(errors="replace").split())


class SampleThing(AgentLauncher):
    """Reaches each host by a command, and starts an agent there, which starts the processes.

    The agent is a module of AstraFlow: each host has this interpreter at the same path, as containers of one image or
    hosts with a shared folder do.
    """

    def __init__(self, config: SampleThingConfig, context: ComponentContext) -> None:
        super().__init__(config, context)
        self._config = config

    def hosts(self, specs: Sequence[ProcessSpec]) -> Mapping[HostKeys, Open]:
        """Those of the config."""
        check_counts(self._config, len(self._config.tables))
        return {
            host: partial(self._connect, host.name, secrets.token_hex(16))
            for host in self._config.tables
        }

    async def _connect(self, host: str, agent_id: str) -> CommandStream:
        reach = [word.replace("{host}", host) for word in self._config.reach]
        silence = str(self._config.silence_s)
        program = [sys.executable, "-c", BOOTSTRAP, str(agent.__file__)]
        command = [*reach, *program, "attach", agent_id, silence]
        try:
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                limit=agent.LONGEST_LINE,
                start_new_session=True,
            )
        except FileNotFoundError as error:
            raise PreflightError(
                f"there is no {command[0]!r} here; change [launcher] reach"
            ) from error
        return CommandStream(process)
