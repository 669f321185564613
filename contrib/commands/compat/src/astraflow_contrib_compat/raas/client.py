"""Calls to a rollout service of the public protocol: pickles in, pickles out, each with a bound and a deadline."""

from __future__ import annotations

import asyncio
import json
from typing import Any
from urllib.parse import urlsplit

import aiohttp

from astraflow_contrib_compat.bodies import read_bounded
from astraflow_contrib_compat.pickles.decoder import PickleDecoder
from astraflow_contrib_compat.pickles.encoder import encode_pickle
from astraflow_core.errors import AstraFlowError

MOST_JSON = 1 << 20
_MOST_REASON = 500


class ForeignFailed(AstraFlowError):
    """A rollout service of the public protocol failed a call, or answered it wrongly; the message says which."""


class ForeignUnreachable(ForeignFailed):
    """The RaaS does not answer at all."""


class ForeignClient:
    """Calls of the RaaS at ``url``. ``call_s``: the deadline of a call that names none."""

    def __init__(self, url: str, decoder: PickleDecoder, call_s: float) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"raas_url {url[:200]!r}: expected http://HOST:PORT")
        self.url, self.host = url.rstrip("/"), parts.hostname
        self._decoder, self._call_s = decoder, call_s
        # Every call has its own deadline, and nothing is decompressed.
        no_limit = aiohttp.ClientTimeout(total=None)
        self._session = aiohttp.ClientSession(
            trust_env=False,
            auto_decompress=False,
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=no_limit,
        )

    async def close(self) -> None:
        """Close the connections."""
        await self._session.close()

    async def get(self, path: str, call_s: float | None = None) -> dict[str, Any]:
        """The JSON object of ``GET /status`` or ``GET /availability``."""
        status, body = await self._request("GET", path, None, MOST_JSON, call_s)
        try:
            found = json.loads(body)
        except (ValueError, RecursionError) as error:
            raise ForeignFailed(f"GET {self.url}{path}: its answer is not JSON") from error
        if status != 200 or not isinstance(found, dict):
            raise ForeignFailed(f"GET {self.url}{path}: status {status}, expected a JSON object")
        return found

    async def post(self, path: str, message: dict[str, Any], call_s: float | None = None) -> Any:
        """``result`` of the answer to a message. :class:`ForeignFailed` if the answer says that it failed;
        :class:`~astraflow_contrib_compat.pickles.decoder.PickleRefused` if it cannot be decoded."""
        status, body = await self._request(
            "POST", path, encode_pickle(message), self._decoder.most_bytes, call_s
        )
        if status not in (200, 500):
            raise ForeignFailed(f"POST {self.url}{path}: status {status}, expected 200")
        answer = await self._decoder.decode(body)
        if not isinstance(answer, dict) or answer.get("ok") is not True:
            reason = answer.get("error") if isinstance(answer, dict) else None
            said = str(reason or "its answer has no ok")[:_MOST_REASON]
            raise ForeignFailed(f"POST {self.url}{path} failed there: {said}")
        return answer.get("result")

    async def _request(
        self, method: str, path: str, body: bytes | None, most: int, call_s: float | None
    ) -> tuple[int, bytes]:
        headers = {} if body is None else {"content-type": "application/octet-stream"}
        limit = self._call_s if call_s is None else call_s
        what = f"{method} {self.url}{path}"
        try:
            async with (
                asyncio.timeout(limit),
                self._session.request(
                    method, self.url + path, data=body, headers=headers, allow_redirects=False
                ) as response,
            ):
                if (found := await read_bounded(response, most)) is None:
                    raise ForeignFailed(f"{what}: its answer is over {most} bytes, the limit")
                return response.status, found
        except TimeoutError as error:
            raise ForeignUnreachable(f"{what}: no answer within {limit:g} s") from error
        except aiohttp.ClientError as error:
            raise ForeignUnreachable(f"{what}: {type(error).__name__}: {error}") from error
