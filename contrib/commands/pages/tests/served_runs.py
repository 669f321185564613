"""Folders of runs as they lie on a disk, and the pages behind their real server."""

from __future__ import annotations

import asyncio
import http.client
import json
import math
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fastapi import FastAPI

from astraflow_contrib_pages.runs_folder import RunsFolder
from astraflow_contrib_pages.serving import pages_app, pages_server
from astraflow_wire.http.browser_sessions import LOGIN, BrowserSessions, Scope

CONFIG = """
[run]
name = "{name}"
seed = {seed}
steps = 100
max_staleness = 2
directory = "/somewhere"

[prompts]
use = "digits"

[policies.solver]
model = "{model}"
batch_sequences = {batch}
"""


def step_line(step: int, **more: Any) -> dict[str, Any]:
    """A line as a dataflow writes it."""
    return {
        "time": 1.7e9 + 0.1 * step, "policy": "solver", "step": step, "again": False, "version": step,
        "reward": math.tanh(step / 50) + 0.1 * math.sin(step), "trained_reward": 0.5, "groups": 4,
        "pass_rate": 0.5, "pass_rates": {"easy": {"mean": 0.25, "episodes": 4}}, "staleness": {"1": 4},
        "staleness_mean": 1.0, "staleness_max": 2, "tokens_generated": 100.0 * step,
        "metrics": {"loss": -0.01 * step, "kl": None, "entropy": 1.5, "wait_s": 0.1, "update_s": 0.2},
        **more,
    }  # fmt: skip


def write_run(
    root: Path, name: str, steps: int = 20, state: str = "finished", **config: Any
) -> Path:
    """The directory of a run: ``finished``, or ``crashed`` without a summary."""
    folder = root / name
    folder.mkdir(parents=True)
    (folder / "config.toml").write_text(
        CONFIG.format(name=name, **{"seed": 0, "batch": 32, "model": "/models/tiny", **config})
    )
    os.utime(folder / "config.toml", (1.7e9, 1.7e9))
    with (folder / "metrics.jsonl").open("w") as file:
        for step in range(1, steps + 1):
            file.write(json.dumps(step_line(step)) + "\n")
    if state != "crashed":
        summary = {"state": state, "steps": steps, "steps_planned": 100, "reward_last": 0.5, "eval_last": 0.25,
                   "tokens_generated": 2000, "wall_s": 12.5, "error": "it broke\nhere" if state == "failed" else None}  # fmt: skip
        (folder / "summary.json").write_text(json.dumps(summary))
    return folder


@dataclass
class Answer:
    """A response of a server."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        """The body."""
        return json.loads(self.body)


@dataclass
class Pages:
    """The pages, and a client that requests them."""

    sessions: BrowserSessions
    port: int
    stop: Callable[[], None]
    cookies: dict[str, str] = field(default_factory=dict)

    @property
    def origin(self) -> str:
        """The origin of their URLs."""
        return f"http://127.0.0.1:{self.port}"

    def ask(
        self,
        path: str,
        method: str = "GET",
        body: bytes | None = None,
        scope: Scope | None = "full",
        **headers: str,
    ) -> Answer:
        """One request; with the cookie of a login of ``scope``, if any."""
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        if scope is not None:
            if scope not in self.cookies:
                value = self.sessions.redeem(self.sessions.login_key(scope))
                self.cookies[scope] = f"{self.sessions.cookie}={value}"
            given.setdefault("cookie", self.cookies[scope])
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        with closing(connection):
            connection.request(method, path, body, given)
            answer = connection.getresponse()
            return Answer(
                answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read()
            )

    def login_url(self, scope: Scope = "full") -> str:
        """A login link, which works once."""
        return f"{self.origin}{LOGIN}?key={self.sessions.login_key(scope)}"


@contextmanager
def serving(
    root: Path, only: str | None = None, clock: Callable[[], float] = time.time
) -> Iterator[Pages]:
    """The pages about a folder; ``clock`` is that of logins."""
    sessions = BrowserSessions("a secret of this test", clock)
    with behind(pages_app(RunsFolder(root, only), sessions, ["pages.example"]), sessions) as pages:
        yield pages


@contextmanager
def behind(
    app: FastAPI,
    sessions: BrowserSessions,
    certificate: Path | None = None,
    private_key: Path | None = None,
) -> Iterator[Pages]:
    """An app behind its real server, in a thread."""
    loop = asyncio.new_event_loop()
    server = pages_server(app, "127.0.0.1", 0, certificate, private_key)
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    def stop() -> None:
        asyncio.run_coroutine_threadsafe(server.stop(), loop).result(20)

    try:
        asyncio.run_coroutine_threadsafe(server.start(), loop).result(20)
        yield Pages(sessions, server.port, stop)
    finally:
        stop()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
