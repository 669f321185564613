"""A user's pool of real processes, and whole runs on it."""

from __future__ import annotations

import json
import re
import signal
import subprocess
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from astraflow_testing.runs import TABLE_RUN, User, live_commands
from astraflow_wire.http.client import SyncClient
from astraflow_wire.http.tls import AUTHORITY, CERTIFICATE, PRIVATE_KEY, RunTls

TURNS = pytest.mark.turns(
    "contrib/commands/pool/src/**/*.py",
    "contrib/commands/pool/tests/pool_runs.py",
    "libs/launching/src/**/*.py",
    "runtime/src/astraflow_runtime/launch/**/*.py",
    "runtime/src/astraflow_runtime/raas/**/*.py",
)
"""What whole runs on a pool are about."""

POOL = """
[pool]
listen = "127.0.0.1:0"
run_lease_s = 4.0
turn_s = 3.0
drain_s = 5.0

[prices]
million_tokens = 1e6

[tenants.ada]
weight = 3
[tenants.bob]
"""


class PoolUser:
    """A user's pool with ``tenants``, without hosts at first. ``encrypted``: it serves HTTPS with a certificate of `astraflow
    certs`, which its hosts, its runs and this user trust."""

    def __init__(
        self,
        user: User,
        text: str = POOL,
        tenants: tuple[str, ...] = ("ada", "bob"),
        encrypted: bool = False,
    ) -> None:
        self.user, self._keys = user, dict[str, str]()
        user.write("pool.toml", text)
        for words, file in (*(([name], name) for name in tenants), ([], "hosts")):
            user.write(f"{file}.token", user.astraflow("pool", "token", "pool.toml", *words).out)
        if encrypted:
            self._encrypt()
        words = ["pool", "start", "pool.toml"]
        self.process = self._command(words, serves=True)
        self.address = user.directory / "pool" / "pool.json"
        user.wait_for(self.address.exists)
        self.url = json.loads(self.address.read_text())["url"]

    def _encrypt(self) -> None:
        made = self.user.astraflow("certs", "certs", "--host", "127.0.0.1")
        assert made.exit_code == 0, made.text
        files = {
            AUTHORITY: "authority.pem",
            CERTIFICATE: "127.0.0.1.pem",
            PRIVATE_KEY: "127.0.0.1.key",
        }
        folder = self.user.directory / "certs"
        self._keys = {name: str(folder / file) for name, file in files.items()}

    def _command(self, words: list[str], serves: bool = False) -> subprocess.Popen[str]:
        """Start a command of the pool. Runs do not get its keys: with an authority in its environment a run serves HTTPS itself."""
        before = dict(self.user.environment)
        self.user.environment |= {k: v for k, v in self._keys.items() if serves or k == AUTHORITY}
        try:
            return self.user.start(*words)
        finally:
            self.user.environment = before

    def join(self, name: str, slots: int, places: int = 16, *words: str) -> subprocess.Popen[str]:
        """Add a host to the pool."""
        command = ["pool", "join", self.url, "--token-file", "hosts.token", "--name", name]
        return self._command([*command, "--slots", str(slots), "--places", str(places), *words])

    def start(
        self, name: str, tenant: str, *overrides: str, config: str = TABLE_RUN
    ) -> subprocess.Popen[str]:
        """Start a run of a tenant."""
        keys = [
            f"run.name={name}",
            "launcher.use=pool",
            f"launcher.url={self.url}",
            f"launcher.token_file={tenant}.token",
        ]
        if self._keys:
            keys.append(f"launcher.authority={self._keys[AUTHORITY]}")
        return self.user.start(*self.user.table_arguments(*keys, *overrides, config=config))

    def runs(self) -> dict[str, Any]:
        """By the name in the config."""
        return {name_of(row): row for row in self.status()["runs"]}

    def status(self) -> Any:
        """As `pool ls --json` prints it; without a process for each look."""
        tls = RunTls(Path(self._keys[AUTHORITY])) if self._keys else None
        token = (self.user.directory / "pool" / "token").read_text().strip()
        with closing(SyncClient(self.url, token, tls=tls)) as client:
            return client.get_json("/v1/status", deadline_s=10)

    def ledger(self) -> dict[str, Any]:
        """By the name in the config."""
        shown = self.user.end(self._command(["pool", "ls", "pool.toml", "--ledger", "--json"]), 60)
        assert shown.exit_code == 0, shown.text
        return {name_of(row): row for row in json.loads(shown.out)}

    def end(self) -> None:
        """End the pool, of which nothing is left then."""
        self.process.send_signal(signal.SIGTERM)
        ended = self.user.end(self.process, 30)
        assert ended.exit_code == 0, ended.text
        assert self.user.left_running() == []


def name_of(row: Any) -> str:
    """The name of a run in its config."""
    return re.sub(r"\w+/|-\d+-\d+$", "", row["run"])


def raas_of(user: User, name: str) -> list[int]:
    """The RaaS of a run that are there."""
    return [
        pid
        for pid, words in live_commands(user.marker).items()
        if "raas" in words and any(f"/{name}-" in word for word in words)
    ]


def healthy(directory: Path) -> dict[str, Any]:
    """The summary of a run that has finished without an error."""
    summary = json.loads((directory / "summary.json").read_text())
    assert summary["state"] == "finished", summary
    assert summary["lost"] == summary["duplicated"] == summary["failed"] == 0, summary
    return dict(summary)
