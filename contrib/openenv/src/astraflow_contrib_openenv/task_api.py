"""Prompt source ``openenv_tasks``: the tasks that a server of OpenEnv lists by its Task API."""

from __future__ import annotations

import asyncio
import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import quote

import aiohttp

from astraflow_contrib_openenv.config import OpenEnvTasksConfig
from astraflow_contrib_openenv.connection import authorization
from astraflow_core.errors import PromptError
from astraflow_core.types import ComponentContext, Prompt
from astraflow_environments.tasks import PromptList

_PAGE = 500
"""Tasks that are asked for at once."""
_MOST_BYTES = 64 << 20
_MOST_TASKS = 1_000_000


class OpenEnvTasks(PromptList):
    """The tasks of a split of the server, in its order: ``data["reset"]`` has ``split`` and ``index``, by which a reset chooses one
    (https://huggingface.co/docs/openenv/guides/task-api), ``data["task"]`` what the server says about it."""

    def __init__(self, config: OpenEnvTasksConfig, context: ComponentContext) -> None:
        with ThreadPoolExecutor(1) as thread:  # there may be an event loop in this one
            tasks = thread.submit(lambda: asyncio.run(_tasks(config))).result()
        super().__init__(
            [
                Prompt(
                    f"{config.task_split}:{index}",
                    {"reset": {**config.reset, **_place(config, index)}, "task": task},
                )
                for index, task in enumerate(tasks, config.skip)
            ]
        )


def _place(config: OpenEnvTasksConfig, index: int) -> dict[str, Any]:
    return {"split": config.task_split, "index": index}


async def _tasks(config: OpenEnvTasksConfig) -> list[Any]:
    headers = authorization(config.token_variable, "prompt source 'openenv_tasks'")
    timeout = aiohttp.ClientTimeout(total=config.deadline_s)
    try:
        async with aiohttp.ClientSession(headers=headers, timeout=timeout) as session:
            server = _Server(session, config.url)
            name = quote(await server.name(), safe="")
            asked = {"split": config.task_split}
            count = (await server.told(f"/{name}/num_tasks", asked)).get("num_tasks")
            if not isinstance(count, int) or not 0 < count <= _MOST_TASKS:
                raise PromptError(
                    f"openenv_tasks: {config.url} has {count!r} tasks in its split {config.task_split!r}; "
                    f"expected 1 to {_MOST_TASKS:,}. GET /{name}/splits lists its splits"
                )
            stop = count if config.size is None else min(count, config.skip + config.size)
            found: list[Any] = []
            for start in range(config.skip, stop, _PAGE):
                end = min(stop, start + _PAGE)
                asked_part = {**asked, "start": start, "stop": end}
                tasks = (await server.told(f"/{name}/task_range", asked_part)).get("tasks")
                if not isinstance(tasks, list) or len(tasks) != end - start:
                    raise PromptError(
                        f"openenv_tasks: {config.url} gave no list of {end - start} tasks from {start} on"
                    )
                found += tasks
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
        raise PromptError(
            f"openenv_tasks: {config.url} does not list its tasks: {error or type(error).__name__}; is a server of OpenEnv "
            "running there?"
        ) from error
    if not found:
        raise PromptError(
            f"openenv_tasks: skip = {config.skip} leaves none of the {count} tasks of {config.task_split!r}"
        )
    return found


class _Server:
    """A server of OpenEnv, asked over HTTP."""

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self._session, self._url = session, url.rstrip("/")

    async def name(self) -> str:
        """Of its environment."""
        names = await self._answer("GET", "/list_environments", None)
        if not isinstance(names, list) or len(names) != 1 or not isinstance(names[0], str):
            raise PromptError(
                f"openenv_tasks: {self._url} names the environments {names!r:.80}; expected one"
            )
        return names[0]

    async def told(self, path: str, asked: dict[str, Any]) -> dict[str, Any]:
        """The object that it answers."""
        answer = await self._answer("POST", path, asked)
        return answer if isinstance(answer, dict) else {}

    async def _answer(self, method: str, path: str, asked: dict[str, Any] | None) -> Any:
        request = self._session.request(
            method, f"{self._url}{path}", json=asked, allow_redirects=False
        )
        async with request as response:
            body = await response.content.read(_MOST_BYTES + 1)
            while not response.content.at_eof() and len(body) <= _MOST_BYTES:
                body += await response.content.read(_MOST_BYTES + 1 - len(body))
        if len(body) > _MOST_BYTES:
            raise ValueError(f"{path} answers more than {_MOST_BYTES >> 20} MiB")
        if response.status in (404, 501):
            raise PromptError(
                f"openenv_tasks: the environment of {self._url} has no tasks to choose from ({path}: {response.status}); use "
                "'openenv_seeds', or prompts with data['reset']"
            )
        if response.status != 200:
            raise ValueError(
                f"{path} answers {response.status}: {body[:200].decode(errors='replace')}"
            )
        return json.loads(body)
