"""The pages and what they ask for, below ``/ui/``."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, suppress
from functools import partial
from importlib.resources import files
from typing import Any

import msgspec
from fastapi import APIRouter, Request, Response
from fastapi.responses import StreamingResponse

from astraflow_contrib_pages import guard, installation
from astraflow_contrib_pages.configuration import described
from astraflow_contrib_pages.events import changes
from astraflow_contrib_pages.journal.journal_views import JournalViews
from astraflow_contrib_pages.plugin_views import plugins_of
from astraflow_contrib_pages.running_run import RunningRun
from astraflow_contrib_pages.runs_folder import RunFolder, RunsFolder
from astraflow_contrib_pages.trajectories import StoredRollouts
from astraflow_contrib_pages.views.process import ViewsProcess
from astraflow_core.errors import Refused, UserError
from astraflow_runtime.launch.results.config_differences import differing, flatten
from astraflow_wire.http.browser_sessions import LOGIN, PREFIX, BrowserSession, BrowserSessions
from astraflow_wire.redaction import without_secrets

FIGURES = (
    "reward", "reward_std", "trained_reward", "pass_rate", "loss", "kl", "approx_kl", "entropy", "entropy_estimate",
    "clip_fraction", "grad_norm", "staleness_mean", "staleness_max", "completion_length_mean", "truncated_fraction",
    "equal_groups_fraction", "tokens_per_s", "wait_s", "update_s", "lr",
)  # fmt: skip
"""The metrics that the page of a run draws by default."""
MOST_COMPARED = 8
_BUCKETS = 600
_MOST_BUCKETS = 4000
_DELTAS, _VERSIONS = ("delta_bytes", "delta_density"), 1000
_COLUMNS, _MOST_COLUMNS = 100, 400
VIEW_S = 20.0
"""The longest that a view may take: its reads have their own limits, but a disk may hang."""
_WORKERS = 6
_TYPES = {
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".svg": "image/svg+xml",
    ".LICENSE": "text/plain; charset=utf-8",
}
Answer = Callable[[], Any]


def static_files() -> dict[str, tuple[bytes, str]]:
    """Path below ``static/`` → content and type, of all that a browser may have: no path is looked up on the disk."""
    found = {}
    for folder in ("", "vendor/"):
        for entry in files("astraflow_contrib_pages").joinpath("static", folder).iterdir():
            kind = next((kind for end, kind in _TYPES.items() if entry.name.endswith(end)), None)
            if kind is not None and entry.is_file():
                found[folder + entry.name] = (entry.read_bytes(), kind)
    return found


class PageRoutes:
    """Routes about the runs of ``folder`` for the logins of ``sessions``; without them, for those of the service that has
    these routes, and for its token."""

    def __init__(self, folder: RunsFolder, sessions: BrowserSessions | None = None) -> None:
        self._folder, self._sessions = folder, sessions
        self._running: dict[str, RunningRun] = {}
        self._rollouts: dict[str, StoredRollouts] = {}
        self._journals: dict[str, JournalViews] = {}
        self._views, self._viewing = ViewsProcess(), asyncio.Semaphore(1)
        # Separate threads: a dataflow that has these routes needs the others itself.
        self._workers = ThreadPoolExecutor(_WORKERS, "pages")
        self._static = static_files()
        self.router = APIRouter()
        get = partial(self.router.add_api_route, methods=["GET"])
        get(LOGIN, self._login)
        looked_at = partial(self.router.add_api_route, methods=["GET", "HEAD"])
        looked_at(PREFIX, self._index)
        looked_at(PREFIX + "static/{path:path}", self._file)
        for path, view in {
            "session": self._session,
            "runs": self._runs,
            "compare": self._compare,
            "runs/{name}": self._run,
            "runs/{name}/curves": self._curves,
            "runs/{name}/staleness": self._staleness,
            "runs/{name}/cost": self._cost,
            "runs/{name}/status": self._status,
            "runs/{name}/pool": self._pool,
            "runs/{name}/weights": self._weights,
            "runs/{name}/data": self._data,
            "runs/{name}/plugins": self._plugins,
            "runs/{name}/config": self._config,
            "runs/{name}/life/{subject}": self._life,
            "runs/{name}/trajectories": self._trajectories,
            "runs/{name}/trajectories/{group}": self._group,
        }.items():
            get(f"{PREFIX}api/{path}", self._answering(view))
        path = "api/runs/{name}/trajectories/{group}/views"
        get(PREFIX + path, self._answering(self._viewed, self._viewing))
        explaining = asyncio.Semaphore(1)
        get(PREFIX + "api/installed", self._answering(self._installed, explaining))
        get(PREFIX + "api/why", self._answering(self._why, explaining))
        get(PREFIX + "api/runs/{name}/events", self._events)
        self.router.add_api_route(
            PREFIX + "api/runs/{name}/actions/{action}", self._act, methods=["POST"]
        )

    # -- who may ask ------------------------------------------------------------------------------

    def _check(self, request: Request) -> BrowserSession:
        guard.own_origin(request)
        return self._logged_in(request)

    def _logged_in(self, request: Request) -> BrowserSession:
        return guard.logged_in(request, self._known(request), request.app.state.token)

    def _known(self, request: Request) -> BrowserSessions:
        found = self._sessions or getattr(request.app.state, "browser_sessions", None)
        if not isinstance(found, BrowserSessions):
            raise Refused(403, "a service without a token has no pages; start the run with a token")
        return found

    def _answering(
        self,
        view: Callable[[Request, BrowserSession], Any],
        turns: AbstractAsyncContextManager[Any] | None = None,
    ) -> Callable[..., Awaitable[Response]]:
        """The route of a view: JSON, made in a thread, since files are read for it, within :data:`VIEW_S`. ``turns``: what requests
        wait for, so that slow ones do not take all threads; the view then has its own limit."""

        async def answer(request: Request) -> Response:
            session = self._check(request)
            look = partial(_seen, view, request, session)
            if turns is None:
                found = await self._in_time(look)
            else:
                async with turns:
                    found = await self._in_thread(look)
            body = msgspec.json.encode(found, enc_hook=str)
            return Response(body, media_type="application/json", headers=guard.HEADERS)

        return answer

    def _in_thread(self, look: Answer) -> asyncio.Future[Any]:
        return asyncio.get_running_loop().run_in_executor(self._workers, look)

    async def _in_time(self, look: Answer) -> Any:
        """What ``look`` gives; ``Refused`` (503) if that takes too long, though its thread continues."""
        try:
            return await asyncio.wait_for(self._in_thread(look), VIEW_S)
        except TimeoutError as error:
            raise Refused(
                503,
                f"the server did not find the answer within {VIEW_S:g} s: its disk is slow or too many ask; ask again later",
            ) from error

    # -- files ------------------------------------------------------------------------------------

    async def _login(self, request: Request, key: str = "") -> Response:
        return guard.login(request, self._known(request), key)

    async def _index(self, request: Request) -> Response:
        return await self._file(request, "index.html")

    async def _file(self, request: Request, path: str) -> Response:
        self._logged_in(request)
        if path not in self._static:
            raise Refused(404, "no such file")
        content, kind = self._static[path]
        headers = guard.HEADERS | {"content-type": kind}
        return Response(content, headers=headers)

    # -- views ------------------------------------------------------------------------------------

    def _found(self, request: Request) -> RunFolder:
        return self._folder.run(request.path_params["name"])

    def _asked(self, request: Request, run: RunFolder) -> RunningRun:
        return self._running.setdefault(run.name, RunningRun(run, request.app.state.token))

    def _session(self, request: Request, session: BrowserSession) -> Any:
        ends = session.ends if math.isfinite(session.ends) else None
        return {"scope": session.scope, "ends": ends, "only": self._folder.only}

    def _runs(self, request: Request, session: BrowserSession) -> Any:
        return self._folder.table()

    def _compare(self, request: Request, session: BrowserSession) -> Any:
        names = list(dict.fromkeys(request.query_params.getlist("run")))
        if not 0 < len(names) <= MOST_COMPARED:
            raise Refused(400, f"expected 1 to {MOST_COMPARED} runs; the request has {len(names)}")
        runs = [self._folder.run(name) for name in names]
        flat = {run.name: flatten(run.shown_config) for run in runs}
        keys = differing(flat)
        return {
            "runs": [{**run.row(), **self._drawn(run, request)} for run in runs],
            "differs": [{"key": key, "values": [flat[n].get(key) for n in names]} for key in keys],
        }

    def _run(self, request: Request, session: BrowserSession) -> Any:
        run = self._found(request)
        run.columns.look()
        return {
            **run.row(),
            "seed": run.config.get("run", {}).get("seed"),
            "max_staleness": run.config.get("run", {}).get("max_staleness"),
            "summary": without_secrets(run.summary),
            "figures": run.columns.names(),
            "damaged": run.columns.damaged,
        }

    def _drawn(self, run: RunFolder, request: Request) -> dict[str, Any]:
        names = request.query_params.getlist("figure") or FIGURES
        buckets, first, last = _range(request, _BUCKETS, _MOST_BUCKETS)
        read = run.columns.look()
        return {
            "read": read,
            "share": run.columns.share,
            "steps": run.columns.steps,
            "policies": run.columns.curves(names, buckets, first, last),
            "waiting": run.columns.waiting(buckets, first, last),
            "evaluations": list(run.columns.evaluations),
        }

    def _curves(self, request: Request, session: BrowserSession) -> Any:
        return self._drawn(self._found(request), request)

    def _staleness(self, request: Request, session: BrowserSession) -> Any:
        columns = self._found(request).columns
        asked = _range(request, _COLUMNS, _MOST_COLUMNS)
        return {"read": columns.look(), "policies": columns.staleness(*asked)}

    def _cost(self, request: Request, session: BrowserSession) -> Any:
        asked = _range(request, _BUCKETS, _MOST_BUCKETS)
        journal = self._journal(self._found(request))
        try:
            return {**journal.hours(*asked), "said": ""}
        except Refused as refused:  # no error of the page: the run of many a folder has no journal
            return {"share": 1.0, "hours": {}, "said": str(refused)}

    def _status(self, request: Request, session: BrowserSession) -> Any:
        return self._asked(request, self._found(request)).status()

    def _pool(self, request: Request, session: BrowserSession) -> Any:
        run = self._found(request)
        asked = self._asked(request, run)
        status = asked.status()
        waits, leases = status.get("waits", []), None
        if status["live"]:
            waits = asked.ask("waits")
            with suppress(Refused):  # a run without a journal has no list of them
                leases = self._journal(run).leases()
        return {
            "status": status,
            "waits": waits,
            "leases": leases,
            "launched": run.launched,
            "audit": asked.audit(),
            "scope": session.scope,
        }

    def _weights(self, request: Request, session: BrowserSession) -> Any:
        run = self._found(request)
        status = self._asked(request, run).status()
        serving = [
            {key: raas[key] for key in ("name", "state", "serving", "metrics")}
            for raas in status.get("raas", [])
        ]
        run.columns.look()
        deltas = run.columns.of_versions(_DELTAS, _VERSIONS)
        return {**self._journal(run).versions(), "serving": serving, "deltas": deltas}

    def _data(self, request: Request, session: BrowserSession) -> Any:
        run = self._found(request)
        status = self._asked(request, run).status()
        return {**self._journal(run).funnel(), "status": status}

    def _plugins(self, request: Request, session: BrowserSession) -> Any:
        return {"plugins": plugins_of(self._found(request).path)}

    def _installed(self, request: Request, session: BrowserSession) -> Any:
        return {"plugins": installation.installed()}

    def _why(self, request: Request, session: BrowserSession) -> Any:
        return {"reports": installation.why(request.query_params.get("name", ""))}

    def _config(self, request: Request, session: BrowserSession) -> Any:
        return {"values": described(self._found(request))}

    def _life(self, request: Request, session: BrowserSession) -> Any:
        run, name = self._found(request), request.query_params.get("id", "")
        return self._journal(run).life(run.config, request.path_params["subject"], name)

    def _journal(self, run: RunFolder) -> JournalViews:
        if run.name not in self._journals:
            prompts = run.config.get("prompts", {})
            sources = prompts.get("sources", {}) if prompts.get("use") == "merged" else {}
            self._journals.setdefault(run.name, JournalViews(run.path, list(sources)))
        return self._journals[run.name]

    def _stored(self, run: RunFolder) -> StoredRollouts:
        return self._rollouts.setdefault(run.name, StoredRollouts(run, self._views))

    def _trajectories(self, request: Request, session: BrowserSession) -> Any:
        return self._stored(self._found(request)).listed(request.query_params.get("filter", ""))

    def _group(self, request: Request, session: BrowserSession) -> Any:
        index = _whole(request.query_params.get("index"), 0, 0)
        return self._stored(self._found(request)).group(request.path_params["group"], index)

    def _viewed(self, request: Request, session: BrowserSession) -> Any:
        index = _whole(request.query_params.get("index"), 0, 0)
        stored = self._stored(self._found(request))
        return {"views": stored.views(request.path_params["group"], index)}

    # -- current state ----------------------------------------------------------------------------

    async def _events(self, request: Request, name: str) -> Response:
        session = self._check(request)
        run = self._folder.run(name)
        asked = self._asked(request, run)

        def look() -> dict[str, Any]:
            state = run.state
            found = {"state": state, "read": run.columns.look(), "steps": run.columns.steps}
            found["share"] = run.columns.share
            if state == "running":
                found["status"] = asked.status()
            return found

        stream = changes(partial(self._in_thread, look), session.ends)
        return StreamingResponse(stream, media_type="text/event-stream", headers=guard.HEADERS)

    async def _act(self, request: Request, name: str, action: str) -> Response:
        session = self._check(request)
        guard.may_act(request, session)
        body = await guard.body_of(request)
        try:
            given = msgspec.json.decode(body, type=dict[str, str])
        except msgspec.DecodeError as error:
            raise Refused(400, f"the body is not a table of texts: {error}") from error
        run = self._folder.run(name)
        done = await self._in_thread(
            partial(self._asked(request, run).act, action, given, session.name)
        )
        return Response(
            msgspec.json.encode(done), media_type="application/json", headers=guard.HEADERS
        )


def _seen(
    view: Callable[[Request, BrowserSession], Any], request: Request, session: BrowserSession
) -> Any:
    """What a view gives; ``Refused`` (409) if a file that the run has left cannot be read."""
    try:
        return view(request, session)
    except UserError as error:
        raise Refused(409, str(error)) from error
    except OSError as error:
        raise Refused(409, f"{error.filename} cannot be read: {error.strerror}") from error


def _range(request: Request, buckets: int, most: int) -> tuple[int, float, float]:
    """Into how many buckets, from which step to which."""
    asked = request.query_params
    return (
        min(_whole(asked.get("buckets"), buckets, 1), most),
        _number(asked.get("first"), -math.inf),
        _number(asked.get("last"), math.inf),
    )


def _whole(text: str | None, default: int, least: int) -> int:
    if text is None:
        return default
    if not (text.isascii() and text.isdigit() and len(text) < 10 and int(text) >= least):
        raise Refused(400, f"{text[:50]!r} is not a whole number from {least}")
    return int(text)


def _number(text: str | None, default: float) -> float:
    if text is None:
        return default
    try:
        value = float(text)
    except ValueError as error:
        raise Refused(400, f"{text[:50]!r} is not a number") from error
    if math.isnan(value):
        raise Refused(400, "nan is not a number")
    return value
