"""The launcher ``ssh``: an agent on each host, reached by the ssh client of this host."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import secrets
import shlex
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import IO

from astraflow_contrib_ssh import host_installer
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
"""Reads a program from standard input: nothing has to be installed, and nothing is on the command line."""

OPTIONS = (
    *("-T", "-x", "-o", "BatchMode=yes", "-o", "ClearAllForwardings=yes"),
    *("-o", "ServerAliveInterval=5", "-o", "ServerAliveCountMax=3"),
)
"""Never ask for a password; notice a network that is gone."""

ROLE = "services"
"""The environment of an artifact for the dataflow, trainers and RaaS."""
END_S = 5.0
_CHUNK = 1 << 20
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

    async def send(self, source: IO[bytes]) -> None:
        """Send a file, no faster than it is taken."""
        while data := await asyncio.to_thread(source.read, _CHUNK):
            self._input.write(data)
            await self._input.drain()

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
        self._tables = self._config.tables

    def hosts(self, specs: Sequence[ProcessSpec]) -> Mapping[HostKeys, Open]:
        """The hosts of the config, with its artifact installed."""
        check_counts(self._config, len(self._tables))
        if self._config.artifact is not None:
            self._tables = self._with_artifact(self._config.artifact)
        return {host: self._way_to(host) for host in self._tables}

    def more_hosts(self, spec: ProcessSpec) -> Mapping[HostKeys, Open]:
        """The lost hosts, which may respond again."""
        lost = {name for name, link in self._links.items() if link.lost}
        return {h: self._way_to(h) for h in self._tables if h.name in lost}

    def _way_to(self, host: HostKeys) -> Open:
        return partial(self._connect, host.name, secrets.token_hex(16))

    async def _connect(self, host: str, agent_id: str) -> SshStream:
        return await self._ssh(host, self._source, "attach", agent_id, str(self._config.silence_s))

    async def _ssh(self, host: str, program: bytes, *arguments: str) -> SshStream:
        """An ssh client that runs a Python program on a host."""
        remote = shlex.join([self._config.agent_python, "-c", BOOTSTRAP, *arguments])
        command = [*self._config.command, *OPTIONS, host, remote]
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
        stream.write(b"%08d%b" % (len(program), program))
        return stream

    def _with_artifact(self, artifact: Path) -> tuple[HostKeys, ...]:
        """The hosts, each with the interpreter that the artifact has made there."""
        try:
            with artifact.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            raise PreflightError(
                f"[launcher] artifact {artifact} cannot be read: {error.strerror}; write it with `astraflow pack FILE "
                "--with-dependencies`"
            ) from error

        async def everywhere() -> list[HostKeys | PreflightError]:
            return await asyncio.gather(*(self._install(h, artifact, digest) for h in self._tables))

        longest_s = self._config.install_s + self._config.connect_s
        found = self._loop.call(everywhere(), "the hosts", "the artifact", longest_s + END_S)
        if problems := [str(each) for each in found if isinstance(each, PreflightError)]:
            raise PreflightError("; ".join(problems))
        return tuple(each for each in found if isinstance(each, HostKeys))

    async def _install(
        self, host: HostKeys, artifact: Path, digest: str
    ) -> HostKeys | PreflightError:
        """The host with the artifact installed, or why it is not."""
        longest_s, who = self._config.install_s, f"host {host.name!r}"
        program, into = Path(host_installer.__file__).read_bytes(), self._config.artifact_into
        size = str(artifact.stat().st_size)
        stream = await self._ssh(host.name, program, into, digest, size, ROLE, str(longest_s))
        try:
            async with asyncio.timeout(longest_s):
                line = await stream.reader.readline()
                if line == b"send\n":
                    # What the host says about a connection that it broke follows.
                    with artifact.open("rb") as file, contextlib.suppress(ConnectionError):
                        await stream.send(file)
                    line = await stream.reader.readline()
        except TimeoutError:
            await stream.close()
            return PreflightError(
                f"{who} has not installed the artifact within {longest_s:g} s; set install_s in [launcher]"
            )
        said = await stream.close()
        try:
            answer: dict[str, str] = json.loads(line)
            if "error" in answer:
                return PreflightError(f"{who} cannot install the artifact: {answer['error']}")
            place = {"python": answer["python"], "directory": host.directory or answer["run"]}
        except (ValueError, TypeError, KeyError):
            shown = said or line.decode(errors="replace").strip()[:80]
            return PreflightError(
                f"{who} cannot install the artifact: {shown or 'it said nothing'}"
            )
        return host.model_copy(update=place)

    def _remedies(self, host: str) -> Mapping[int, str]:
        """By exit code: 255 is of the ssh client itself, 126 and 127 are of a shell without such a program."""
        python = (
            f"host {host!r} cannot run {self._config.agent_python!r}: set [launcher] agent_python to a Python 3.8 or "
            "newer of each host"
        )
        check = f"check `{shlex.join([*self._config.command, host, 'true'])}`"
        return {255: check, 126: python, 127: python}
