"""A session of an OpenEnv server: one WebSocket with its own environment (``WS /ws`` of OpenEnv 0.10)."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Mapping
from typing import Any

import aiohttp
import msgspec

from astraflow_core.errors import EnvironmentFailed, PreflightError

LOST = "lost"
MALFORMED = "malformed"
_KINDS = {"CAPACITY_REACHED": "capacity", "FACTORY_ERROR": "start", "SESSION_ERROR": "session"}
_SHOWN = 300
_CLOSE_S = 1.0
_HEARTBEAT_S = 20.0
Json = dict[str, Any]


class ServerError(Exception):
    """The server replied with an error and the session continues: its ``code`` and text."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code


def authorization(token_variable: str | None, who: str) -> dict[str, str]:
    """Headers with the bearer token of a variable; :class:`PreflightError` names ``who`` lacks it."""
    if token_variable is None:
        return {}
    token = os.environ.get(token_variable)
    if not token:
        raise PreflightError(
            f"{who}: token_variable is {token_variable!r}, which is not set; put the token there"
        )
    return {"Authorization": f"Bearer {token}"}


class OpenEnvConnection:
    """Made and used on one event loop. Whatever is lost, late or malformed is an :class:`EnvironmentFailed` that names the
    server; the deadline of a call is that of who waits for it."""

    def __init__(
        self, url: str, max_bytes: int, connect_deadline_s: float, headers: Mapping[str, str]
    ) -> None:
        self.url = url.rstrip("/")
        self._max_bytes, self._deadline_s = max_bytes, connect_deadline_s
        self._http = aiohttp.ClientSession(headers=dict(headers))
        self._socket: aiohttp.ClientWebSocketResponse | None = None

    @property
    def is_open(self) -> bool:
        """Whether calls can be made."""
        return self._socket is not None and not self._socket.closed

    async def open(self) -> None:
        """Connect; the server makes an environment then."""
        timeout = aiohttp.ClientWSTimeout(ws_close=_CLOSE_S)
        try:
            async with asyncio.timeout(self._deadline_s):
                self._socket = await self._http.ws_connect(
                    f"{_web_socket(self.url)}/ws",
                    max_msg_size=self._max_bytes,
                    heartbeat=_HEARTBEAT_S,
                    timeout=timeout,
                )
        except TimeoutError:
            raise self._failure(LOST, f"did not accept within {self._deadline_s:g} s") from None
        except (aiohttp.ClientError, OSError) as error:
            raise self._failure(LOST, f"cannot be reached: {error}") from error

    async def call(self, kind: str, data: Json | None = None) -> Json:
        """What the server answers to a message; :class:`ServerError` if that is an error."""
        socket = self._socket
        if socket is None:
            raise self._failure(LOST, "is not connected")
        message = {"type": kind} if data is None else {"type": kind, "data": data}
        # A server that refuses a session says so, and closes: that is still to be read.
        with contextlib.suppress(aiohttp.ClientError, ConnectionError):
            await socket.send_str(msgspec.json.encode(message).decode())
        body = self._text(await socket.receive())
        try:
            answer = msgspec.json.decode(body, type=Json)
        except (msgspec.DecodeError, RecursionError) as error:
            raise self._failure(
                MALFORMED, f"sent something that is not a JSON object: {error}"
            ) from error
        told = answer.get("data")
        if not isinstance(told, dict):
            raise self._failure(MALFORMED, f"sent {body!r:.80}, which has no data")
        if answer.get("type") == "error":
            raise self._error(told)
        return told

    async def get(self, path: str) -> Json:
        """The JSON object at a path of the server."""
        try:
            async with (
                asyncio.timeout(self._deadline_s),
                self._http.get(f"{_hyper_text(self.url)}{path}") as answer,
            ):
                answer.raise_for_status()
                body = await answer.content.read(self._max_bytes + 1)
        except TimeoutError:
            raise self._failure(LOST, f"gave no {path} within {self._deadline_s:g} s") from None
        except (aiohttp.ClientError, OSError) as error:
            raise self._failure(LOST, f"gave no {path}: {error}") from error
        if len(body) > self._max_bytes:
            raise self._failure(MALFORMED, f"gave more than {self._max_bytes} bytes at {path}")
        try:
            return msgspec.json.decode(body, type=Json)
        except (msgspec.DecodeError, RecursionError) as error:
            raise self._failure(
                MALFORMED, f"returned something that is not a JSON object at {path}: {error}"
            ) from error

    async def close(self) -> None:
        """End the session."""
        socket, self._socket = self._socket, None
        try:
            if socket is not None and not socket.closed:
                with contextlib.suppress(aiohttp.ClientError, ConnectionError):
                    await socket.send_str('{"type":"close"}')
                await socket.close()
        finally:
            await self._http.close()

    def _text(self, message: aiohttp.WSMessage) -> str:
        if message.type is aiohttp.WSMsgType.TEXT:
            text: str = message.data
            return text
        if message.type is aiohttp.WSMsgType.BINARY:
            raise self._failure(MALFORMED, "sent bytes; its messages are text")
        error = message.data
        code = error.code if isinstance(error, aiohttp.WebSocketError) else message.data
        if code == aiohttp.WSCloseCode.MESSAGE_TOO_BIG:
            raise self._failure(
                MALFORMED,
                f"sent more than {self._max_bytes} bytes ([workflow.environment] max_message_mb)",
            )
        raise self._failure(LOST, "closed the connection in the middle of an episode")

    def _error(self, told: Json) -> Exception:
        code, text = str(told.get("code", "")), str(told.get("message", ""))
        problems = told.get("errors")
        if isinstance(problems, list):
            text = f"{text}: {'; '.join(map(_problem, problems))}"
        if code in _KINDS:
            return self._failure(_KINDS[code], f"refused the session: {text:.{_SHOWN}}")
        return ServerError(code, f"{text:.{_SHOWN}}")

    def _failure(self, kind: str, text: str) -> EnvironmentFailed:
        return EnvironmentFailed(kind, f"server {self.url} {text}")


def _problem(problem: Any) -> str:
    """One of pydantic's errors: where, and what."""
    if not isinstance(problem, dict):
        return str(problem)
    place = problem.get("loc")
    where = ".".join(map(str, place)) if isinstance(place, list) else ""
    return f"{where}: {problem.get('msg', '')}".removeprefix(": ")


def _web_socket(url: str) -> str:
    return f"ws{url.removeprefix('http')}" if url.startswith("http") else url


def _hyper_text(url: str) -> str:
    return f"http{url.removeprefix('ws')}" if url.startswith("ws") else url
