"""What a worker process does: it builds instances of an environment and answers calls of them."""

from __future__ import annotations

import inspect
import random
import socket
import sys
import time
import traceback
from typing import Any

import msgspec

from astraflow_core.errors import EnvironmentFailed
from astraflow_environments.building import ChosenEnvironment, failure_of
from astraflow_environments.messages import (
    Call,
    ResetCall,
    SharedBuild,
    SharedCall,
    SharedClose,
    SharedReset,
    WorkerBuilt,
    WorkerFailed,
    WorkerObserved,
)
from astraflow_environments.observations import MALFORMED, checked
from astraflow_wire.host.worker_channel import MAX_ANSWER, answer_calls, messages, say

MAX_OBSERVATION = MAX_ANSWER - 16
"""The maximum bytes of an observation: one fits into a separate message."""
_HELD_BYTES = 1 << 20
_HELD_S = 0.002
"""How much of the answers of a worker that several share waits for the next answer, and how long."""
_CALLS: msgspec.msgpack.Decoder[Call] = msgspec.msgpack.Decoder(Call)
_SHARED_CALLS: msgspec.msgpack.Decoder[list[SharedCall]] = msgspec.msgpack.Decoder(list[SharedCall])
_ENCODER = msgspec.msgpack.Encoder()


def play(chosen: ChosenEnvironment, seat: int, connection: socket.socket) -> None:
    """Build an environment and answer calls of it, until the other end is closed."""
    try:
        environment, roles = chosen.build(seat)
    except Exception as error:  # noqa: BLE001 - the pool raises it again
        say(connection, _ENCODER.encode(_failed(error)))
        return
    say(connection, _ENCODER.encode(WorkerBuilt(roles)))
    answer_calls(connection, lambda body: answer(environment, roles, body))
    environment.close()


def play_many(chosen: ChosenEnvironment, connection: socket.socket) -> None:
    """Build instances and answer calls of them in the order in which they come, until the other end is closed. The
    answers to calls of one message come in few."""
    instances = _Instances(chosen)
    for body in messages(connection):
        held: list[msgspec.Raw] = []
        size, since = 0, time.monotonic()
        for call in _SHARED_CALLS.decode(body):
            said = instances.answer(call)
            if said is None:
                continue
            if held and size + len(said) > _HELD_BYTES:
                say(connection, _ENCODER.encode(held))
                held, size = [], 0
            held.append(msgspec.Raw(said))
            size += len(said)
            if (now := time.monotonic()) - since > _HELD_S:
                say(connection, _ENCODER.encode(held))
                held, size, since = [], 0, now
        if held:
            say(connection, _ENCODER.encode(held))
    instances.close()


def answer(environment: Any, roles: tuple[str, ...], body: bytes) -> bytes:
    """What a call gives, or what it raised."""
    call = _CALLS.decode(body)
    if isinstance(call, ResetCall):
        # All workers have the generators of the process that they were forked from.
        random.seed(call.seed)
        if (numpy := sys.modules.get("numpy")) is not None:
            numpy.random.seed(call.seed % 2**32)
        return _answered(roles, True, environment.reset, call.task, call.seed)
    return _answered(roles, False, environment.step, call.action)


class _Instances:
    """Those of a worker that several share, by seat."""

    def __init__(self, chosen: ChosenEnvironment) -> None:
        self._chosen = chosen
        self._built: dict[int, tuple[Any, tuple[str, ...]]] = {}

    def answer(self, call: SharedCall) -> bytes | None:
        if isinstance(call, SharedBuild):
            self._close(call.seat)  # its caller no longer waits
            try:
                built = self._built[call.seat] = self._chosen.build(call.seat)
            except Exception as error:  # noqa: BLE001 - the pool raises it again
                return _ENCODER.encode(_failed(error))
            return _ENCODER.encode(WorkerBuilt(built[1]))
        if isinstance(call, SharedClose):
            self._close(call.seat)
            return None
        environment, roles = self._built[call.seat]
        if isinstance(call, SharedReset):
            return _answered(roles, True, environment.reset, call.task, call.seed)
        return _answered(roles, False, environment.step, call.action)

    def close(self) -> None:
        for seat in list(self._built):
            self._close(seat)

    def _close(self, seat: int) -> None:
        built = self._built.pop(seat, None)
        if built is None:
            return
        try:
            built[0].close()
        except Exception:  # noqa: BLE001 - its episode is over, and those of others are not
            traceback.print_exc()


def _answered(roles: tuple[str, ...], first: bool, call: Any, *given: Any) -> bytes:
    try:
        observed = call(*given)
        if inspect.iscoroutine(observed):
            observed.close()
            method = observed.cr_code.co_name
            raise EnvironmentFailed(
                MALFORMED,
                f"declares the capability 'blocking' and has `async def {method}`: write `def {method}`, or remove the capability",
            )
        observation = checked(observed, first, roles)
    except Exception as error:  # noqa: BLE001 - the pool raises it again
        return _ENCODER.encode(_failed(error))
    try:
        said = _ENCODER.encode(WorkerObserved(observation))
    except (TypeError, ValueError, RecursionError) as error:
        return _ENCODER.encode(
            WorkerFailed(MALFORMED, f"returned a value that is not JSON: {error}")
        )
    if len(said) > MAX_OBSERVATION:
        large = WorkerFailed(MALFORMED, f"returned an observation of {len(said)} bytes")
        return _ENCODER.encode(large)
    return said


def _failed(error: Exception) -> WorkerFailed:
    told = failure_of(error)
    if isinstance(told, EnvironmentFailed):
        return WorkerFailed(told.kind, told.reason)
    return WorkerFailed("", str(told), fatal=True)
