"""A judge behind an OpenAI-compatible URL."""

from __future__ import annotations

import asyncio
import os
from typing import Any

import aiohttp
import msgspec

from astraflow_contrib_rubrics.config import JudgeConfig
from astraflow_core.errors import UserError

_MOST_BYTES = 4 << 20
FIRST_PAUSE_S = 0.25
"""The pause before the second attempt; each later one doubles, up to 5 s."""
_AGAIN = frozenset({408, 429, 500, 502, 503, 504})


class NoVerdict(Exception):
    """The judge gave no text; the reason is for people. ``again``: another attempt may have one."""

    def __init__(self, reason: str, again: bool = True) -> None:
        self.again = again
        super().__init__(reason)


class JudgeServer:
    """Asks the server of ``config.url``; the key is never shown."""

    def __init__(self, config: JudgeConfig) -> None:
        assert config.url is not None
        self._config = config
        self._url = config.url.rstrip("/") + "/chat/completions"
        self._headers = {"Content-Type": "application/json"}
        if name := config.api_key_variable:
            if not os.environ.get(name):
                raise UserError(
                    f"reward 'judge': the environment variable {name} (api_key_variable) is not set where the RaaS runs"
                )
            self._headers["Authorization"] = f"Bearer {os.environ[name]}"

    async def ask(self, messages: list[dict[str, str]]) -> str:
        """The text of its answer; :class:`NoVerdict` if there is none."""
        config = self._config
        body = msgspec.json.encode(
            {
                "model": config.model,
                "messages": messages,
                "max_tokens": config.max_tokens,
                "temperature": 0,
            }
        )
        try:
            async with (
                aiohttp.ClientSession(headers=self._headers) as session,
                session.post(self._url, data=body, allow_redirects=False) as response,
            ):
                said = await _bounded(response)
        except (aiohttp.ClientError, OSError) as error:
            raise NoVerdict(
                f"{self._url} cannot be asked: {error or type(error).__name__}"
            ) from error
        if response.status != 200:
            reason = said[:200].decode("utf-8", "replace")
            raise NoVerdict(
                f"{self._url} answered {response.status}: {reason}", response.status in _AGAIN
            )
        return _text_of(said, self._url)


async def _bounded(response: aiohttp.ClientResponse) -> bytes:
    said = b""
    async for part in response.content.iter_chunked(1 << 16):
        said += part
        if len(said) > _MOST_BYTES:
            raise NoVerdict(f"the judge's reply is longer than {_MOST_BYTES >> 20} MiB")
    return said


def _text_of(body: bytes, url: str) -> str:
    try:
        found: Any = msgspec.json.decode(body)
        text = found["choices"][0]["message"]["content"]
    except (msgspec.DecodeError, LookupError, TypeError, RecursionError) as error:
        raise NoVerdict(f"{url} sent no chat completion: {body[:120]!r}") from error
    if not isinstance(text, str):
        raise NoVerdict(f"{url} answered without text")
    return text


async def pause(attempt: int) -> None:
    """Before another attempt."""
    await asyncio.sleep(min(5.0, FIRST_PAUSE_S * 2**attempt))
