"""The protocol of a worker: a line of JSON in, a line of JSON out.

``tasks`` reads a :class:`Spec` with ``skip`` and ``size`` on its standard input and writes ``{"roles", "tasks"}``. ``serve``
listens at a Unix socket, with MIB of address space (0: no limit); a connection is an episode, and closing it
cancels that. A reply is what the environment says of the episode, or ``{"failed": {"kind", "reason"}}``.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import math
import os
import resource
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

Json = dict[str, Any]

MOST_LINE = 64 << 20
"""Bytes of a request or a reply."""
_MOST_REASON = 4000


@dataclass(frozen=True)
class Spec:
    """Which environment: its module, its arguments and its split."""

    environment: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    split: str = "train"

    @property
    def key(self) -> str:
        """The same for the same environment."""
        return json.dumps([self.environment, self.arguments, self.split], sort_keys=True)


@dataclass(frozen=True)
class ToldTask:
    """A task as others see it. ``content`` is all of it, of which its digest is made."""

    prompt: Any
    answer: Any
    content: Any

    @property
    def digest(self) -> str:
        """Distinguishes this task from every other one."""
        text = json.dumps(self.content, sort_keys=True, default=str)
        return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:16]


class Refusal(Exception):
    """Something failed; ``kind`` is a word to count by."""

    def __init__(self, kind: str, reason: str) -> None:
        self.kind, self.reason = kind, reason
        super().__init__(f"{kind}: {reason}")


class Loaded(Protocol):
    """An environment that is imported."""

    roles: list[str]

    def tasks(self) -> Iterable[ToldTask]:
        """Its tasks, always in the same order; they may have no end."""

    def endless(self) -> bool:
        """Whether the tasks have no end."""

    def task(self, index: int) -> ToldTask:
        """One of them."""

    async def play(self, index: int, roles: Mapping[str, Json]) -> Json:
        """Play a task. ``roles``: name → ``base_url`` and ``model`` of its player, with ``tokenizer`` and ``renderer``
        if it renders prompts itself. :class:`Refusal` if the episode has failed."""


Load = Callable[[Spec], Loaded]


def main(arguments: list[str], load: Load) -> int:
    """The process's entry point."""
    if arguments[:1] == ["tasks"]:
        said = os.dup(1)
        os.dup2(2, 1)  # the output of an environment must not mix with the protocol
        reply = _guarded(lambda: _list_tasks(json.loads(sys.stdin.readline()), load))
        with os.fdopen(said, "w", encoding="utf-8") as out:
            json.dump(reply, out)
        return 0
    _, address, memory_mb = arguments
    if limit := int(memory_mb) << 20:
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    asyncio.run(_serve(address, load))
    return 0


def _list_tasks(asked: Json, load: Load) -> Json:
    loaded = load(_spec(asked))
    skip, size = asked["skip"], asked["size"]
    if size is None and loaded.endless():
        raise Refusal("endless", "its tasks have no end: set `size` to the number of tasks to use")
    tasks = [
        {"index": index, "prompt": task.prompt, "answer": task.answer, "digest": task.digest}
        for index, task in _between(loaded.tasks(), skip, size)
    ]
    return {"roles": loaded.roles, "tasks": tasks}


def _between(
    tasks: Iterable[ToldTask], skip: int, size: int | None
) -> Iterator[tuple[int, ToldTask]]:
    for index, task in enumerate(tasks):
        if size is not None and index == skip + size:
            return
        if index >= skip:
            yield index, task


def _spec(asked: Json) -> Spec:
    return Spec(asked["environment"], asked["arguments"], asked["split"])


def _guarded(call: Callable[[], Json]) -> Json:
    try:
        return call()
    except Refusal as error:
        return _failed(error.kind, error.reason)
    except BaseException as error:  # noqa: BLE001 - an environment may raise anything, SystemExit too
        return _failed("load", _reason(error))


def _reason(error: BaseException) -> str:
    """The error, and where in the code of others it was raised."""
    last = "".join(traceback.format_exception_only(type(error), error)).strip()
    frames = traceback.extract_tb(error.__traceback__)
    places = [each for each in frames if not each.filename.startswith(os.path.dirname(__file__))]
    return f"{last} ({places[-1].filename}:{places[-1].lineno})" if places else last


def _failed(kind: str, reason: str) -> Json:
    return {"failed": {"kind": kind, "reason": reason[:_MOST_REASON]}}


async def _serve(address: str, load: Load) -> None:
    service = _Service(load)
    server = await asyncio.start_unix_server(service.episode, f"{address}.new", limit=MOST_LINE)
    os.rename(f"{address}.new", address)  # who sees it can connect
    await server.serve_forever()


class _Service:
    def __init__(self, load: Load) -> None:
        self._load = load
        self._loaded: dict[str, Loaded] = {}

    async def episode(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection."""
        try:
            line = await reader.readline()
            playing = asyncio.create_task(self._played(line))
            leaving = asyncio.create_task(reader.read(1))
            await asyncio.wait({playing, leaving}, return_when=asyncio.FIRST_COMPLETED)
            leaving.cancel()
            if not playing.done():
                playing.cancel()
            await asyncio.wait({playing})
            if not playing.cancelled():
                writer.write(json.dumps(playing.result()).encode() + b"\n")
                await writer.drain()
        except ConnectionError:
            pass  # the caller no longer waits for the reply
        finally:
            writer.close()

    async def _played(self, line: bytes) -> Json:
        asked = json.loads(line)
        spec = _spec(asked)
        try:
            if spec.key not in self._loaded:
                self._loaded[spec.key] = self._load(spec)
            loaded = self._loaded[spec.key]
            digest = loaded.task(asked["index"]).digest
            if digest != asked["digest"]:
                raise Refusal(
                    "other_task",
                    f"task {asked['index']} of {spec.environment} has the digest {digest} here and {asked['digest']} where the "
                    "prompts are made: install the same version of the environment on every host",
                )
            return _sendable(await loaded.play(asked["index"], asked["roles"]))
        except Refusal as error:
            return _failed(error.kind, error.reason)
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # noqa: BLE001 - SystemExit, too, must not end the episodes of others
            return _failed("environment", _reason(error))


def _sendable(reply: Json) -> Json:
    """The reply with rewards and metrics as plain numbers; :class:`Refusal` names one that is not finite, or is no number."""
    for role, told in reply["roles"].items():
        told["reward"] = _number(told["reward"], f"the reward of role {role!r}")
        told["metrics"] = {
            str(name): _number(value, f"the metric {name!r} of role {role!r}")
            for name, value in told["metrics"].items()
        }
    return reply


def _number(value: Any, what: str) -> float | None:
    """Numbers of numpy and torch as a float; ``None`` is none."""
    if value is None:
        return None
    problem = f"{what} is {value!r:.80}; expected a finite number"
    if not hasattr(value, "__float__"):
        raise Refusal("reward", problem)
    try:
        number = float(value)
    except Exception as error:  # a class of an environment may raise anything
        raise Refusal("reward", f"{problem} ({type(error).__name__}: {error})") from error
    if not math.isfinite(number):
        raise Refusal("reward", problem)
    return number
