"""Bodies of requests and answers, within bounds."""

from __future__ import annotations

from typing import TypeVar

import aiohttp
from fastapi import Request
from pydantic import BaseModel, ValidationError

from astraflow_core.errors import Refused

T = TypeVar("T", bound=BaseModel)


async def read_json(request: Request, expected: type[T]) -> T:
    """The body as ``expected``; 400 names the field that is wrong."""
    try:
        return expected.model_validate(await request.json())
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"])) or "the body"
        raise Refused(400, f"{place}: {first['msg']}") from error
    except (ValueError, RecursionError) as error:
        raise Refused(400, "the body is not JSON") from error


async def read_bounded(response: aiohttp.ClientResponse, most: int) -> bytes | None:
    """The body of an answer as it came, which nothing has decompressed; ``None`` if it is over ``most`` bytes."""
    found = bytearray()
    async for piece in response.content.iter_any():
        found += piece
        if len(found) > most:
            return None
    return bytes(found)
