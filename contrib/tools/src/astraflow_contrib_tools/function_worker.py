"""The process that runs functions: ``python -m astraflow_contrib_tools.function_worker MODULE:FUNCTION … --describe``
prints what they are, ``… --serve FD MOST PARENT`` answers calls."""

from __future__ import annotations

import asyncio
import importlib
import inspect
import json
import os
import socket
import sys
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from pydantic import TypeAdapter, ValidationError
from pydantic.errors import PydanticUserError

from astraflow_environments.actions import shortened
from astraflow_wire.host.parent import end_with
from astraflow_wire.host.worker_channel import answer_calls, say


class FunctionOffer(msgspec.Struct, frozen=True):
    """A function as a tool. ``function`` is the entry of the configuration."""

    function: str
    name: str
    description: str
    parameters: dict[str, Any]


class WorkerCall(msgspec.Struct, frozen=True, array_like=True):
    """A call of the function ``name``."""

    name: str
    arguments: dict[str, Any]


class FunctionAnswer(msgspec.Struct, frozen=True, array_like=True):
    """The result as text, or the text of an ``error``."""

    text: str
    error: bool = False


class Functions:
    """The functions, imported, and called with arguments as their annotations want them."""

    def __init__(self, entries: Sequence[str]) -> None:
        self._offers: dict[str, FunctionOffer] = {}
        self._adapters: dict[str, TypeAdapter[Any]] = {}
        for entry in entries:
            function = _imported(entry)
            adapter, parameters = _described(entry, function)
            name = function.__name__
            offer = FunctionOffer(entry, name, inspect.getdoc(function) or "", parameters)
            if other := self._offers.get(name):
                raise ValueError(
                    f"functions {other.function} and {entry} are both named {name!r}; rename one"
                )
            self._offers[name], self._adapters[name] = offer, adapter

    @property
    def offers(self) -> list[FunctionOffer]:
        """All of them."""
        return list(self._offers.values())

    def answer(self, call: WorkerCall) -> FunctionAnswer:
        """What a function gives; what it raises is an error to show."""
        try:
            result = self._adapters[call.name].validate_python(call.arguments)
            if inspect.isawaitable(result):
                result = asyncio.run(_awaited(result))
        except ValidationError as error:
            return FunctionAnswer(_problems(error), True)
        except Exception as error:  # noqa: BLE001 - the model reads it
            return FunctionAnswer(f"{type(error).__name__}: {error}", True)
        return FunctionAnswer(_as_text(result))


def _imported(entry: str) -> Callable[..., Any]:
    module, _, name = entry.partition(":")
    try:
        found = getattr(importlib.import_module(module), name)
    except Exception as error:
        raise ValueError(
            f"function {entry!r} cannot be imported: {type(error).__name__}: {error} ([workflow] folder says where "
            "modules lie)"
        ) from error
    if not inspect.isfunction(found):
        raise ValueError(f"{entry!r} is a {type(found).__name__}; expected a function")
    return found


def _described(entry: str, function: Callable[..., Any]) -> tuple[TypeAdapter[Any], dict[str, Any]]:
    try:
        adapter: TypeAdapter[Any] = TypeAdapter(function)  # type: ignore[arg-type]
        parameters = adapter.json_schema()
    except (PydanticUserError, NameError) as error:
        raise ValueError(
            f"the arguments of function {entry!r} have no JSON schema: {str(error).splitlines()[0]}; annotate each with a "
            "type that JSON has"
        ) from error
    if parameters.get("type") != "object":
        raise ValueError(
            f"function {entry!r} takes positional arguments only; a model gives them by name"
        )
    for each in parameters.get("properties", {}).values():
        each.pop("title", None)
    return adapter, parameters


def _problems(error: ValidationError) -> str:
    return "; ".join(
        f"{'.'.join(map(str, each['loc'])) or 'arguments'}: {each['msg']}"
        for each in error.errors()
    )


def _as_text(result: Any) -> str:
    if isinstance(result, str):
        return result
    try:
        return json.dumps(result, ensure_ascii=False)
    except (TypeError, ValueError):
        return str(result)


async def _awaited(given: Any) -> Any:
    return await given


def main(arguments: list[str]) -> int:
    """The process's entry point."""
    said = os.dup(1)
    os.dup2(2, 1)  # the output of functions must not mix with the protocol
    mode = next(at for at, each in enumerate(arguments) if each in ("--describe", "--serve"))
    try:
        functions = Functions(arguments[:mode])
    except ValueError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    if arguments[mode] == "--describe":
        os.write(said, msgspec.json.encode(functions.offers))
        return 0
    descriptor, most, parent = map(int, arguments[mode + 1 :])
    end_with(parent, cleans_up=False)
    connection = socket.socket(fileno=descriptor)
    say(connection, b"")

    def answer(body: bytes) -> bytes:
        answer = functions.answer(msgspec.msgpack.decode(body, type=WorkerCall))
        return msgspec.msgpack.encode(
            msgspec.structs.replace(answer, text=shortened(answer.text, most))
        )

    answer_calls(connection, answer)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
