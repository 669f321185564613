"""The generated part of docs/processes.md: every endpoint with what it refuses, and every message."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from types import ModuleType, NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin
from unittest.mock import MagicMock

import dev
import msgspec
import workspace
from fastapi import FastAPI
from starlette.routing import Route

from astraflow_core.types.columns import Column
from astraflow_core.types.named_rewards import NAMED_REWARD_COLUMNS
from astraflow_core.types.turns import TURN_COLUMNS
from astraflow_core.types.units import UNIT_COLUMNS
from astraflow_runtime.dataflow.http.service import DataflowService
from astraflow_runtime.raas.monitor import monitor_app
from astraflow_wire import batches, column_table, groups, limits, messages
from astraflow_wire.http import drafts, recovery
from pages import views
from pages.engine_host import engine_host
from pages.fields import View
from pages.interfaces import interfaces
from pages.markdown import BEGIN, END, code, page, prose, table

FRAMES: dict[tuple[str, str], tuple[type, ...]] = {
    ("/v1/groups", "body"): (groups.GroupHeader,),
    ("/v1/batches/next", "reply"): (batches.BatchHeader, batches.NoBatch),
    ("/v1/tasks/drafts", "reply"): (drafts.DraftsHeader,),
}
"""Headers of what travels as a frame instead of as a message."""
NOT_JSON = {
    "/metrics": "text of Prometheus",
    "/v1/balance/events": "server-sent events: each `report` of `/v1/balance` above number `?after=N`, as it "
    "is made, until the run is over",
}
ANY_ROUTE = {
    401: "no token, or one that is not of this run, has ended or was revoked",
    403: "the token is of a role whose rights do not include the request, or of another process than the one that the message names ([security](security.md#rights))",
    404: "no such path",
    405: "the path has another method",
    413: "the body is over 512 MiB (on a RaaS 1 MiB)",
    431: "the head is over 64 KiB, or has more than 100 headers",
    500: "the service failed; its log has the trace",
    503: "no place for another connection: all belong to peers that have shown the token",
}
ANY_POST = {
    400: "malformed: the reason names the message that was expected and the field that is wrong",
    409: "the request made the run fail; the reason is that of the run",
    507: "it is done, but the disk under the journal is full; the same call again gets the answer when there is room, "
    "and no deadline counts until then",
}
_COUNTED = re.compile(r"^Annotated\[(.+), Meta\(max_length=(\w+)\)\]$")
_REFUSAL = re.compile(r"^(\d{3}): (.*(?:\n(?!\d{3}: ).+)*)", re.MULTILINE)


@dataclass(frozen=True)
class Endpoint:
    """One route: who calls it, and the messages or headers that go in and come out."""

    method: str
    path: str
    callers: tuple[str, ...]
    body: tuple[type, ...]
    reply: tuple[type, ...]

    def refusals(self) -> list[tuple[int, str]]:
        """Status and reason of what only this endpoint refuses, as its message says."""
        return [found for struct in self.body for found in refusals(struct)]

    def row(self) -> tuple[str, ...]:
        """A line of the table of endpoints."""
        body = _linked(self.body, (self.path, "body") in FRAMES)
        reply = _linked(self.reply, (self.path, "reply") in FRAMES)
        if not self.reply:
            reply = NOT_JSON.get(self.path, "JSON, see below")
        return f"{self.method} `{self.path}`", ", ".join(self.callers), body, reply


def _linked(types: tuple[type, ...], framed: bool) -> str:
    links = " or ".join(f"[{t.__name__}](#{t.__name__.lower()})" for t in types)
    return f"frame: {links}" if framed else links


def processes(text: str) -> str:
    """The page of processes with its generated part again."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise dev.Failure(f"docs/processes.md must hold the lines {BEGIN!r} and {END!r}")
    return before + page(BEGIN, _protocol(), END).rstrip("\n") + after


def _protocol() -> str:
    dataflow, raas = list(endpoints(dataflow_app())), list(endpoints(raas_app()))
    used = [t for endpoint in dataflow for t in (*endpoint.body, *endpoint.reply)]
    shown = dict.fromkeys(used)
    for struct in used:
        shown.update(dict.fromkeys(_parts(struct)))
    return page(
        "### Dataflow",
        _endpoints(dataflow),
        "Errors of individual endpoints:",
        table(
            ("", "status", "when"),
            [
                (f"POST `{endpoint.path}`", str(status), when.rstrip("."))
                for endpoint in dataflow
                for status, when in endpoint.refusals()
            ],
        ),
        *_views("dataflow", views.DATAFLOW),
        "### RaaS",
        _endpoints(raas),
        *_views("RaaS", views.RAAS),
        "### Dataflow and RaaS",
        "Every request to either may be refused:",
        table(("status", "when"), [(str(status), when) for status, when in ANY_ROUTE.items()]),
        "A connection over which no request with the token has come within 10 seconds is closed; the oldest such one makes room "
        "for a new one. There are as many places as half of the files that the process may open, at most 4,096, three quarters of them for one "
        "address. A connection that is idle for 120 seconds is closed.",
        "Every `POST` to the dataflow may be refused too:",
        table(("status", "when"), [(str(status), when) for status, when in ANY_POST.items()]),
        "### Trainer",
        "A trainer serves nothing itself. The publisher of its transport, in the same process, serves its "
        "weights: see the plugins below.",
        engine_host(),
        interfaces(),
        *_columns(),
        "## Messages",
        "A message is a msgpack map of its fields by name, unless stated otherwise. One with a default may be left out; "
        "`incarnation` is given all the same.",
        "Types of fields. NaN and infinities are out of bounds, and what is out of bounds is refused when it is "
        f"decoded. Texts for people are cut after {limits.MAX_TEXT} characters instead, those of a wait after "
        f"{limits.MAX_WAIT_TEXT}.",
        _field_types(),
        *(part for struct in shown for part in _message(struct)),
    )


def _endpoints(found: list[Endpoint]) -> str:
    return table(("", "called by", "body", "reply"), [endpoint.row() for endpoint in found])


def _views(service: str, described: dict[str, View]) -> Iterator[str]:
    """What the JSON of each view holds."""
    for path, view in described.items():
        yield f"`GET {path}` of the {service}:"
        yield table(("key", ""), [(code(key), meaning) for key, meaning in view.items()])


def dataflow_app() -> FastAPI:
    """The app of the dataflow; a route is declared without a look at the run that it serves."""
    return DataflowService(MagicMock(), MagicMock(), token="").app


def raas_app() -> FastAPI:
    """The app of a RaaS."""
    return monitor_app("", lambda: True, dict, dict, bytes)


def endpoints(app: FastAPI) -> Iterator[Endpoint]:
    """The routes of an app by path, those with a body first."""
    for method, route in sorted(
        _routes(app.routes), key=lambda found: (found[0] != "POST", found[1].path)
    ):
        calls = _calls().get(route.path, []) if method == "POST" else []
        reply = [_reply_named(name) for _, name in calls if name]
        yield Endpoint(
            method,
            route.path,
            tuple(sorted({caller for caller, _ in calls})) or ("anyone",),
            FRAMES.get((route.path, "body")) or (_body(route) if method == "POST" else ()),
            FRAMES.get((route.path, "reply")) or tuple(dict.fromkeys(reply)),
        )


def _reply_named(name: str) -> type:
    """The message of this name."""
    found: type = getattr(recovery if hasattr(recovery, name) else messages, name)
    return found


def _routes(routes: Iterable[Any]) -> Iterator[tuple[str, Route]]:
    """Method and route, flat, plain or of FastAPI, however it keeps the routers that an app includes."""
    for route in routes:
        if isinstance(route, Route):
            yield from ((method, route) for method in sorted(route.methods or ()))
        elif (router := getattr(route, "original_router", None)) is not None:
            yield from _routes(router.routes)


def _body(route: Route) -> tuple[type, ...]:
    """The message that the handler of a route reads."""
    names = inspect.getclosurevars(inspect.unwrap(route.endpoint))
    for scope in (names.nonlocals, names.globals):
        for value in scope.values():
            known = isinstance(value, type) and issubclass(value, messages.Message)
            if known and value is not messages.Done:
                return (value,)
    raise dev.Failure(f"no message is read by the handler of {route.path}")


@cache
def _calls() -> dict[str, list[tuple[str, str]]]:
    """Path -> the callers in the core, each with the name of the message that it expects ("": a frame)."""
    names = {
        "libs/wire/src/astraflow_wire/http/raas_client.py": "RaaS",
        "runtime/src/astraflow_runtime/trainer/**/*.py": "trainer",
        "runtime/src/astraflow_runtime/launch/**/*.py": "launcher",
        "runtime/src/astraflow_runtime/cli/**/*.py": "command line",
    }
    found: dict[str, list[tuple[str, str]]] = {}
    for files, caller in names.items():
        for file in sorted(dev.ROOT.glob(files)):
            for node in workspace.nodes_of(file):
                if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
                    continue
                if (
                    node.func.attr in ("post", "_post", "post_bytes", "post_for_bytes")
                    and node.args
                ):
                    path = ast.unparse(node.args[0]).strip("'\"")
                    framed = node.func.attr == "post_for_bytes"
                    expected = "" if framed else ast.unparse(node.args[2]).rpartition(".")[2]
                    found.setdefault(path, []).append((caller, expected))
    return found


def _parts(struct: type) -> list[type]:
    """The structs that the fields of a message name, and those that these name."""
    modules: tuple[ModuleType, ...] = (messages, groups, batches, recovery)
    found: list[type] = []
    for annotation in struct.__annotations__.values():
        for word in re.findall(r"\w+", str(annotation)):
            part = next((getattr(m, word) for m in modules if hasattr(m, word)), None)
            if isinstance(part, type) and issubclass(part, msgspec.Struct):
                found += [part, *_parts(part)]
    return found


def refusals(struct: type) -> list[tuple[int, str]]:
    """What the docstring of a body says that its endpoint refuses: lines of status and reason."""
    text = prose(struct.__doc__)
    return [(int(status), " ".join(when.split())) for status, when in _REFUSAL.findall(text)]


COLUMNS = (
    ("Columns of tokens", "token", column_table.TOKEN_COLUMNS),
    ("Columns of rows", "row", column_table.ROW_COLUMNS),
    ("Columns of units", "row", UNIT_COLUMNS),
    ("Columns of turns", "turn", TURN_COLUMNS),
    ("Columns of named rewards", "row", NAMED_REWARD_COLUMNS),
    ("Sparse columns", "token", column_table.SPARSE_COLUMNS),
    ("Column of borrowed rows", "row", column_table.SOURCE_COLUMNS),
)


def _columns() -> Iterator[str]:
    """The buffers of frames."""
    yield "## Columns"
    yield (
        "The buffers of a pushed group are the columns of tokens, over all its sequences in the order of the header. "
        "Those of a batch are the columns of rows, of tokens, with `units` in its header those of units, and with a "
        "`source` the column of borrowed rows, and with a number as `turns` the columns of turns, and with names as "
        "`named_rewards` the columns of named rewards, in this order. A buffer "
        "has one element for each token, or for each row, which is a sequence, or for each turn; the rows of a batch lie "
        "end to end. The columns of turns have those of all sequences that the policy has in the groups of the batch, also "
        "of sequences that are not in it. A column of named rewards has the rows of the batch once for each name, one name after "
        "the other. The sparse columns that the header names come "
        "last, in the order of their table. Each has two buffers: ascending indexes of the tokens that have a value "
        "(`<i8`, from 0, over all tokens), and the values."
    )
    for title, per, columns in COLUMNS:
        yield f"### {title}"
        lines = [
            (
                code(c.name),
                code(_dtype(c)),
                c.about,
                "" if c.not_sampled is None else str(c.not_sampled),
            )
            for c in columns
        ]
        sampled = any(line[-1] for line in lines)
        head = ("column", "dtype", f"each {per}", "where nothing was sampled")
        yield table(head, lines) if sampled else table(head[:3], [line[:3] for line in lines])


def _dtype(column: Column) -> str:
    """As NumPy writes it, with the order of bytes."""
    return column.raw.newbyteorder("<").str.replace("|", "")


def _message(struct: type) -> Iterator[str]:
    yield f"### {struct.__name__}"
    yield _REFUSAL.sub("", prose(struct.__doc__)).rstrip()
    config = struct.__struct_config__  # type: ignore[attr-defined]
    if config.array_like:
        yield "A msgpack array of these fields, in this order, instead of a map:"
    if config.tag is not None:
        yield f"The map has one key more, `{config.tag_field}`, with the value `{config.tag}`."
    if refused := refusals(struct):
        yield "\n".join(f"- {status}: {when}" for status, when in refused)
    fields = {field.name: field for field in msgspec.structs.fields(struct)}
    lines = [
        f"{name}: {_COUNTED.sub(_at_most, annotation)}{_default(fields[name])}"
        for name, annotation in struct.__annotations__.items()
    ]
    if lines:
        yield "```text\n" + "\n".join(lines) + "\n```"


def _at_most(found: re.Match[str]) -> str:
    return f"{found[1]} (at most {getattr(limits, found[2])})"


def _field_types() -> str:
    """The types of fields that bound what may be sent."""
    rows = []
    for name, value in vars(limits).items():
        if get_origin(value) is Annotated:
            base, *metas = get_args(value)
            bounds = [f"{key} {number}" for m in metas for key, number in _bounds(m)]
            rows.append((code(name), code(_spelled(base)), ", ".join(bounds)))
    return table(("type", "is", "bounds"), rows)


def _bounds(meta: msgspec.Meta) -> Iterator[tuple[str, Any]]:
    words = (("ge", "from"), ("le", "to"), ("max_length", "length at most"))
    for key, word in words:
        if (number := getattr(meta, key)) is not None:
            yield word, number


def _spelled(base: Any) -> str:
    """A type with the names that :mod:`astraflow_wire.limits` has for its parts."""
    names = {id(value): name for name, value in vars(limits).items()}
    if (name := names.get(id(base))) is not None:
        return name
    parts = [_spelled(part) for part in get_args(base)]
    if get_origin(base) in (Union, UnionType):
        return " | ".join(parts)
    if base is NoneType:
        return "None"
    plain = "..." if base is ... else getattr(base, "__name__", str(base))
    return f"{plain}[{', '.join(parts)}]" if parts else plain


def _default(field: Any) -> str:
    if field.default is not msgspec.NODEFAULT:
        return f" = {field.default!r}"
    if field.default_factory is not msgspec.NODEFAULT:
        return f" = {field.default_factory()!r}"
    return ""
