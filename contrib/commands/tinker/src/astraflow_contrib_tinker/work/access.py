"""Who uses the server: keys with limits, turns that are fair between them, and what each has used."""

from __future__ import annotations

import asyncio
import contextlib
import tomllib
from collections import OrderedDict, deque
from collections.abc import AsyncIterator
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from astraflow_contrib_tinker.wire.datums import first_problem
from astraflow_core.errors import UserError
from astraflow_wire.http.auth import is_token

PREFIX = "tml-"
"""Clients refuse a key that begins otherwise."""
CURRENT: ContextVar[str] = ContextVar("tinker_key", default="")
"""Whose request is worked on, in its task and those that it starts; empty where there is one key, and in the server's own."""


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid")

    key: str = Field(repr=False)
    requests: Annotated[int, Field(ge=1)] = 4096
    models: Annotated[int, Field(ge=1)] = 1024
    disk_gib: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1024.0


@dataclass(frozen=True, slots=True)
class ClientKey:
    """A key, and how many requests under way, models and bytes saved by name it may have."""

    name: str
    key: str = field(repr=False)
    requests: int
    models: int
    disk_bytes: int


def read_keys(file: Path) -> dict[str, ClientKey]:
    """Name → key, from a table of the file for each; :class:`UserError` says what is wrong, and no key."""
    try:
        tables = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"--keys {file}: it cannot be read: {error.strerror}") from error
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UserError(f"--keys {file}: it is not TOML: {error}") from error
    found = {name: _key(file, name, table) for name, table in tables.items()}
    if not found or len({each.key for each in found.values()}) < len(found):
        raise UserError(f"--keys {file}: expected tables, each with its own key")
    return found


def _key(file: Path, name: str, table: Any) -> ClientKey:
    try:
        given = _Table.model_validate(table)
    except ValidationError as error:
        raise UserError(f"--keys {file}: {name}.{first_problem(error)}") from None
    if not given.key.startswith(PREFIX) or not is_token(given.key) or len(given.key) < 20:
        raise UserError(
            f"--keys {file}: {name}.key: expected {PREFIX} and at least 16 letters and digits, as clients do"
        )
    size = int(given.disk_gib * (1 << 30))
    return ClientKey(name, given.key, given.requests, given.models, size)


def visible(owner: str) -> bool:
    """Whether the request of now may see what is of ``owner``, the name of a key."""
    return CURRENT.get() in ("", owner)


class FairTurns:
    """``slots`` works at a time; those that wait are taken in the order in which they came, from each key in turn."""

    def __init__(self, slots: int) -> None:
        self._free = slots
        self._waiting: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()

    @contextlib.asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Wait for a turn of the key of now, and have it."""
        if self._free:
            self._free -= 1
        else:
            mine: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.setdefault(CURRENT.get(), deque()).append(mine)
            try:
                await mine
            except asyncio.CancelledError:
                if mine.done() and not mine.cancelled():
                    self._pass_on()
                raise
        try:
            yield
        finally:
            self._pass_on()

    def _pass_on(self) -> None:
        while self._waiting:
            name, waiting = self._waiting.popitem(last=False)
            first = waiting.popleft()
            if waiting:
                self._waiting[name] = waiting  # behind the others
            if not first.done():
                first.set_result(None)
                return
        self._free += 1


@dataclass
class Usage:
    """What a key has used since the server started."""

    forward_backward_tokens: int = 0
    forward_tokens: int = 0
    optimizer_steps: int = 0
    prompt_tokens: int = 0
    sampled_tokens: int = 0
    training_s: float = 0.0
