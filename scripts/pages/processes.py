"""The generated part of docs/processes.md: every endpoint with what it refuses, and every message."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import Any
from unittest.mock import MagicMock

import dev
import msgspec
import workspace
from fastapi import FastAPI
from starlette.routing import Route

from astraflow_core.dataflow.service import DataflowService
from astraflow_core.raas.monitor import monitor_app
from astraflow_core.wire import batches, groups, messages
from pages import views
from pages.engine_host import engine_host
from pages.interfaces import interfaces
from pages.markdown import BEGIN, END, code, page, prose, table

FRAMES: dict[tuple[str, str], tuple[type, ...]] = {
    ("/v1/groups", "body"): (groups.GroupHeader,),
    ("/v1/batches/next", "reply"): (batches.BatchHeader, batches.NoBatch),
}
"""Headers of what travels as a frame instead of as a message."""
NOT_JSON = {
    "/metrics": "text of Prometheus",
    "/v1/balance/events": "server-sent events: each `report` of `/v1/balance` above number `?after=N`, as it "
    "is made, until the run is over",
}
ANY_ROUTE = {
    401: "no token, or not this run's",
    404: "there is no such path",
    405: "the path has another method",
    413: "the body is over 512 MiB (on a RaaS 1 MiB)",
    500: "the service failed; its log has the trace",
}
ANY_POST = {
    400: "malformed: the reason names the message that was expected and the field that is wrong",
    409: "what was asked for made the run fail; the reason is the run's",
}
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
    """The page of processes with its generated part anew."""
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
        "What only some of them refuse:",
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
        "and every `POST` to the dataflow:",
        table(("status", "when"), [(str(status), when) for status, when in ANY_POST.items()]),
        "### Trainer",
        "A trainer serves nothing itself. The publisher of its transport, in the same process, serves its "
        "weights: see the plugins below.",
        engine_host(),
        interfaces(),
        "## Messages",
        *(part for struct in shown for part in _message(struct)),
    )


def _endpoints(found: list[Endpoint]) -> str:
    return table(("", "called by", "body", "reply"), [endpoint.row() for endpoint in found])


def _views(service: str, described: dict[str, views.View]) -> Iterator[str]:
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
        reply = [getattr(messages, name) for _, name in calls if name]
        yield Endpoint(
            method,
            route.path,
            tuple(sorted({caller for caller, _ in calls})) or ("anyone",),
            FRAMES.get((route.path, "body")) or (_body(route) if method == "POST" else ()),
            FRAMES.get((route.path, "reply")) or tuple(dict.fromkeys(reply)),
        )


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
        "wire/raas_client.py": "RaaS",
        "trainer/*.py": "trainer",
        "launch/*.py": "launcher",
        "cli/*.py": "command line",
    }
    found: dict[str, list[tuple[str, str]]] = {}
    for files, caller in names.items():
        for file in sorted((dev.ROOT / "core/src/astraflow_core").glob(files)):
            for node in ast.walk(workspace.tree_of(file)):
                if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
                    continue
                if node.func.attr in ("post", "post_bytes", "post_for_bytes") and node.args:
                    path = ast.unparse(node.args[0]).strip("'\"")
                    framed = node.func.attr == "post_for_bytes"
                    expected = "" if framed else ast.unparse(node.args[2]).rpartition(".")[2]
                    found.setdefault(path, []).append((caller, expected))
    return found


def _parts(struct: type) -> list[type]:
    """The structs that the fields of a message name, and those that these name."""
    modules: tuple[ModuleType, ...] = (messages, groups, batches)
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


def _message(struct: type) -> Iterator[str]:
    yield f"### {struct.__name__}"
    yield _REFUSAL.sub("", prose(struct.__doc__)).rstrip()
    if refused := refusals(struct):
        yield "\n".join(f"- {status}: {when}" for status, when in refused)
    fields = {field.name: field for field in msgspec.structs.fields(struct)}
    lines = [
        f"{name}: {annotation}{_default(fields[name])}"
        for name, annotation in struct.__annotations__.items()
    ]
    if lines:
        yield "```text\n" + "\n".join(lines) + "\n```"


def _default(field: Any) -> str:
    if field.default is not msgspec.NODEFAULT:
        return f" = {field.default!r}"
    if field.default_factory is not msgspec.NODEFAULT:
        return f" = {field.default_factory()!r}"
    return ""
