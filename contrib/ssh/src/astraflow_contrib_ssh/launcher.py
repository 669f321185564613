"""The launcher ``ssh``: an agent on each host, reached by the ssh client of this host."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import shlex
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from astraflow_contrib_ssh.config import SshConfig
from astraflow_core.errors import PreflightError
from astraflow_core.protocols.launcher import ProcessSpec
from astraflow_core.types import ComponentContext
from astraflow_launching import agent
from astraflow_launching.keys import HostKeys
from astraflow_launching.launcher import AgentLauncher
from astraflow_launching.link import Open
from astraflow_launching.placement import check_counts

BOOTSTRAP = (
    "f=open(0,'rb',0,closefd=False);n=int(f.read(8));SOURCE=b'';exec('while len(SOURCE)<n:SOURCE+=f.read(n-len(SOURCE))');"
    "exec(compile(SOURCE,'agent.py','exec'))"
)
"""Reads the agent's program from standard input: nothing has to be installed, and nothing is on the command line."""

OPTIONS = (
    *("-T", "-x", "-o", "BatchMode=yes", "-o", "ClearAllForwardings=yes"),
    *("-o", "ServerAliveInterval=5", "-o", "ServerAliveCountMax=3"),
)
"""Never ask for a password; notice a network that is gone."""

END_S = 5.0
_SAID_BYTES = 4096


class SshStream:
    """Standard input and output of an ssh client. ``remedies``: exit code → what to do about it."""

    def __init__(self, process: asyncio.subprocess.Process, remedies: Mapping[int, str]) -> None:
        assert process.stdout is not None and process.stdin is not None
        self._process, self._input = process, process.stdin
        self.reader = process.stdout
        self._stderr, self._remedies = "", remedies

    def write(self, data: bytes) -> None:
        """Send, without waiting."""
        if not self._input.is_closing():
            self._input.write(data)

    async def close(self) -> str:
        """Hang up. Returns what the client said, if it failed."""
        if self._process.returncode is None:
            self._input.close()
            try:
                await asyncio.wait_for(self._process.wait(), END_S)
            except TimeoutError:
                with contextlib.suppress(ProcessLookupError):
                    self._process.kill()
                await self._process.wait()
        if self._process.stderr is not None and not self._stderr:
            said = await self._process.stderr.read(_SAID_BYTES)
            self._stderr = " ".join(said.decode(errors="replace").split())
        remedy = self._remedies.get(self._process.returncode or 0)
        if remedy:
            return f"{self._stderr}; {remedy}" if self._stderr else remedy
        return self._stderr if self._process.returncode else ""


class SshLauncher(AgentLauncher):
    """See :class:`astraflow_core.protocols.launcher.Launcher`."""

    def __init__(self, config: SshConfig | None, context: ComponentContext) -> None:
        self._config = config or SshConfig()
        super().__init__(self._config, context)
        self._source = Path(agent.__file__).read_bytes()

    def hosts(self, specs: Sequence[ProcessSpec]) -> Mapping[HostKeys, Open]:
        """Those of the config."""
        check_counts(self._config, len(self._config.tables))
        return {host: self._way_to(host) for host in self._config.tables}

    def more_hosts(self, spec: ProcessSpec) -> Mapping[HostKeys, Open]:
        """Those that were lost, which may answer again."""
        lost = {name for name, link in self._links.items() if link.lost}
        return {h: self._way_to(h) for h in self._config.tables if h.name in lost}

    def _way_to(self, host: HostKeys) -> Open:
        return partial(self._connect, host.name, secrets.token_hex(16))

    async def _connect(self, host: str, agent_id: str) -> SshStream:
        remote = [self._config.agent_python, "-c", BOOTSTRAP, "attach", agent_id]
        silence = str(self._config.silence_s)
        command = [*self._config.command, *OPTIONS, host, shlex.join([*remote, silence])]
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
                f"there is no {command[0]!r} here; install an ssh client, or name yours in [launcher] command"
            ) from error
        stream = SshStream(process, self._remedies(host))
        stream.write(b"%08d%b" % (len(self._source), self._source))
        return stream

    def _remedies(self, host: str) -> Mapping[int, str]:
        """By exit code: 255 is of the ssh client itself, 126 and 127 are of a shell without such a program."""
        python = (
            f"host {host!r} cannot run {self._config.agent_python!r}: set [launcher] agent_python to a Python 3.8 or "
            "newer of each host"
        )
        check = f"check `{shlex.join([*self._config.command, host, 'true'])}`"
        return {255: check, 126: python, 127: python}
