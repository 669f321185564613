"""The part of docs/processes.md on engine hosts: every message with its effect and its errors."""

from __future__ import annotations

import typing
from collections.abc import Iterator

import msgspec

from astraflow_core.protocols.engine import Engine
from astraflow_engine_host import protocol
from pages.markdown import code, page, prose, table


def engine_host() -> str:
    """Tables of the messages to and from a host, and of the failures that come back."""
    return page(
        "### Engine host",
        "ZeroMQ multipart messages over `ipc://`, between a RaaS and its own hosts only. The first frame is "
        "a msgpack array, the name of the message and then its fields in order; the others are raw "
        "little-endian buffers. A `call` is a number that the answer repeats.",
        table(
            ("to a host", "fields", "buffers and meaning", "of the engine", "answer"),
            [_row(message) for message in _members(protocol.ToHost)],
        ),
        table(
            ("from a host", "fields", "buffers and meaning"),
            [_row(message)[:3] for message in _members(protocol.FromHost)],
        ),
        f"""
A `Failure` is `kind`, `message` and `where` (`file:line`). The caller gets it back as an exception:
{", ".join(code(kind) for kind in protocol.KNOWN)} as such, any other as `EngineError`. A host that ends, or does not
answer a `ping`, makes every call under way end with `HostGone`; a call without an answer by its deadline
ends with `DeadlineExceeded`. In both cases the host is restarted. No deadline of a call counts the time in which
the host has been stopped (SIGSTOP); it is waited for, five times `run.deadline_s` at most.
""",
    )


def _members(union: object) -> Iterator[type[msgspec.Struct]]:
    yield from typing.get_args(union)


def _row(message: type[msgspec.Struct]) -> tuple[str, ...]:
    tag = str(message.__struct_config__.tag)
    fields = {field.name: field for field in msgspec.structs.fields(message)}
    shown = ", ".join(f"`{name}: {kind}`" for name, kind in message.__annotations__.items())
    meaning = " ".join(prose(message.__doc__).split())
    method = getattr(Engine, tag, None)
    says = " ".join(prose(method.__doc__).split()) if method else ""
    if message is protocol.Generate:
        answer = "`results`, for each request when it ends"
    else:
        answer = "`reply` or `failed`" if "call" in fields else "none"
    return code(tag), shown, meaning, says, answer
