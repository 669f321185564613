"""The environment ``openenv``."""

from __future__ import annotations

import json
from numbers import Real
from typing import Any

from astraflow_contrib_openenv.actions import Json, Tools, action_of, tool_of_schema, tools_of_mcp
from astraflow_contrib_openenv.config import OpenEnvConfig
from astraflow_contrib_openenv.connection import (
    LOST,
    MALFORMED,
    OpenEnvConnection,
    ServerError,
    authorization,
)
from astraflow_contrib_openenv.servers import Servers, StartedServer, servers_of
from astraflow_core.errors import EnvironmentFailed, PromptError
from astraflow_core.types import Action, ComponentContext, Observation, Outcome, Prompt
from astraflow_environments.actions import said
from astraflow_environments.tasks import seed_of

_WRONG = frozenset({"VALIDATION_ERROR", "INVALID_JSON"})
"""What is wrong with an action, and not with its environment."""
EMPTY = "Nothing to see."


class OpenEnvEnvironment:
    """An environment that a server of OpenEnv (https://github.com/huggingface/OpenEnv, 0.10) holds. An instance keeps its
    session from one episode to the next; one that is lost between two is made anew."""

    def __init__(self, config: OpenEnvConfig, context: ComponentContext) -> None:
        self._config, self._folder = config, context.directory
        self._headers = authorization(config.token_variable, "environment 'openenv'")
        self._connection: OpenEnvConnection | None = None
        self._servers: Servers | None = None
        self._server: StartedServer | None = None
        self._tools: Tools = ()
        self._left = self._wrong = 0
        self._metrics: dict[str, float] = {}

    async def reset(self, task: Prompt, seed: int) -> Observation:
        """Begin an episode with the data of the prompt; :class:`PromptError` if they are none."""
        data = _reset_data(self._config, task, seed)
        self._left, self._wrong, self._metrics = self._config.turns, 0, {}
        try:
            told = await self._begun(data)
        except ServerError as error:
            raise EnvironmentFailed("error", f"could not begin an episode: {error}") from error
        text, _, done = self._parts(told)
        if done:
            raise EnvironmentFailed(MALFORMED, "began an episode that is over")
        if self._config.instructions:
            text = f"{self._config.instructions}\n{text}"
        return Observation(said(None, text), tools=self._tools)

    async def step(self, action: Action) -> Observation:
        """Take the action of a reply. A reply that is not an action gets an observation that says so, and costs a turn."""
        self._left -= 1
        try:
            data = action_of(self._config, self._tools, action)
            told = await self._called("step", data)
        except ValueError as wrong:
            return self._answer(action, str(wrong), wrong=True)
        except ServerError as error:
            if error.code not in _WRONG and self._config.errors == "fail":
                raise EnvironmentFailed("error", f"raised on its server: {error}") from error
            return self._answer(action, str(error), wrong=True)
        text, reward, done = self._parts(told)
        return self._answer(action, text, reward, done)

    async def close(self) -> None:
        """End its session, and its server if no other session uses it."""
        try:
            await self._disconnect()
        finally:
            await self._leave_server()

    async def _begun(self, data: Json) -> Json:
        """The first observation; in a new session if the previous one is lost, for example after a restart of the server."""
        had_one = self._connection is not None
        try:
            await self._connect()
            return await self._called("reset", data)
        except EnvironmentFailed as failure:
            if not had_one or failure.kind != LOST:
                raise
        await self.close()
        await self._connect()
        return await self._called("reset", data)

    async def _connect(self) -> None:
        if self._connection is not None and self._connection.is_open:
            return
        await self._disconnect()
        url = self._config.url
        if url is None:
            if self._server is None:
                self._servers = servers_of(self._config)
                self._server = self._servers.taken(self._folder)
            await self._server.ready()
            url = self._server.url
        config = self._config
        self._connection = OpenEnvConnection(
            url, config.max_message_mb << 20, config.connect_deadline_s, self._headers
        )
        try:
            await self._connection.open()
        except EnvironmentFailed as failure:
            raise await self._explained(failure) from failure
        self._tools = await self._offered()

    async def _offered(self) -> Tools:
        assert self._connection is not None
        if self._config.actions == "tools":
            return (tool_of_schema((await self._connection.get("/schema")).get("action")),)
        if self._config.actions == "mcp":
            request = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}}
            answer = await self._called("mcp", request)
            return tools_of_mcp(answer.get("result") or answer)
        return ()

    async def _called(self, kind: str, data: Json) -> Json:
        if self._connection is None:
            raise EnvironmentFailed(LOST, "has no session")
        try:
            return await self._connection.call(kind, data)
        except EnvironmentFailed as failure:
            raise await self._explained(failure) from failure

    async def _explained(self, failure: EnvironmentFailed) -> EnvironmentFailed:
        """The error with the last output of a server that we started."""
        if self._server is None or failure.kind != LOST:
            return failure
        return EnvironmentFailed(LOST, f"{failure.reason}{await self._server.why_gone()}")

    async def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()

    async def _leave_server(self) -> None:
        server, self._server = self._server, None
        if server is not None and self._servers is not None:
            await self._servers.given_back(server)

    def _parts(self, told: Json) -> tuple[str, float, bool]:
        """Text, reward and whether the episode is over."""
        observed, reward, done = told.get("observation"), told.get("reward"), told.get("done")
        if not isinstance(observed, dict):
            raise EnvironmentFailed(
                MALFORMED, f"gave the observation {observed!r:.80}, which is not an object"
            )
        if reward is not None and not isinstance(reward, Real):
            raise EnvironmentFailed(
                MALFORMED, f"gave the reward {reward!r:.80}; a reward is a number, or null"
            )
        if not isinstance(done, bool):
            raise EnvironmentFailed(
                MALFORMED, f"says that it is over: {done!r:.80}; expected true or false"
            )
        for name in self._config.metrics:
            if observed.get(name) is not None:
                self._metrics[name] = observed[name]
        return self._text(observed), float(reward or 0), done

    def _text(self, observed: Json) -> str:
        names = self._config.fields or [
            name
            for name, value in observed.items()
            if name != "metadata" and value not in (None, "", [], {})
        ]
        if missing := [name for name in names if name not in observed]:
            raise EnvironmentFailed(
                MALFORMED,
                f"gave an observation without {missing[0]!r} ([workflow.environment] fields), but with {', '.join(observed)}",
            )
        texts = {name: _as_text(observed[name]) for name in names}
        if len(self._config.fields) == 1:
            return texts[names[0]] or EMPTY
        return "\n".join(f"{name}: {text}" for name, text in texts.items()) or EMPTY

    def _answer(
        self,
        action: Action,
        text: str,
        reward: float = 0.0,
        done: bool = False,
        wrong: bool = False,
    ) -> Observation:
        self._wrong += wrong
        if done or self._left == 0:
            outcome = Outcome.FINISHED if done else Outcome.TRUNCATED
            metrics = {**self._metrics, "illegal_actions": float(self._wrong)}
            return Observation((), reward, outcome, metrics=metrics)
        return Observation(said(action, text), reward, tools=self._tools)


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _reset_data(config: OpenEnvConfig, task: Prompt, seed: int) -> Json:
    more = task.data.get("reset", {})
    if not isinstance(more, dict):
        raise PromptError(
            f"prompt {task.id!r}: 'reset' is {more!r:.40}; the environment 'openenv' needs an object, or none"
        )
    return {**config.reset, **more, "seed": seed_of("the environment 'openenv'", task, seed)}
