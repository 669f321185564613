"""Bodies of requests in JSON, and the replies to requests whose results are fetched later."""

from __future__ import annotations

from typing import Annotated, Any, TypeVar

from fastapi import Request
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from astraflow_contrib_tinker.wire.datums import first_problem
from astraflow_contrib_tinker.work.futures import Promise
from astraflow_core.errors import Refused

MOST_METADATA = 1 << 16
TimeToLive = Annotated[int, Field(ge=3600, le=10 * 366 * 86400)] | None
"""Seconds for which something is kept; ``None``: for ever."""


class Body(BaseModel):
    """A body; additional fields of newer clients are ignored."""

    model_config = ConfigDict(extra="ignore", protected_namespaces=())


B = TypeVar("B", bound=Body)


def parsed(body: bytes, form: type[B]) -> B:
    """The body; :class:`Refused` with 400 names its first problem."""
    try:
        return form.model_validate_json(body)
    except ValidationError as error:
        raise Refused(400, f"the body of the request: {first_problem(error)}") from error


async def read(request: Request, form: type[B]) -> B:
    """The body of a request."""
    return parsed(await request.body(), form)


def later(promise: Promise, **more: Any) -> dict[str, Any]:
    """The reply to a request whose result is fetched later."""
    return {"request_id": promise.id, **more}


def as_texts(metadata: dict[str, Any] | None) -> dict[str, str]:
    """Metadata of a client, whose values are texts when it asks for them; :class:`Refused` if it is too long to keep."""
    texts = {str(key): str(value) for key, value in (metadata or {}).items()}
    if sum(len(key) + len(value) for key, value in texts.items()) > MOST_METADATA:
        raise Refused(400, f"user_metadata has more than {MOST_METADATA} characters")
    return texts
