"""The trackers of a run: a thread of the launcher for each, which feeds its process from the files of the run."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from astraflow_core.component import Kind
from astraflow_core.config.load import component_context, run_info
from astraflow_core.config.models import RunConfig, TrackerTable
from astraflow_runtime.launch.planning.prepare import Prepared
from astraflow_runtime.launch.results.curves import FILE as CURVES
from astraflow_runtime.launch.tracking.cursor import Cursor, read_cursor, write_cursor
from astraflow_runtime.launch.tracking.metrics_feed import MetricsFeed
from astraflow_runtime.launch.tracking.rollout_feed import RolloutFeed
from astraflow_runtime.launch.tracking.span_feed import SpanFeed
from astraflow_trackers.process import TrackerFailed, TrackerProcess
from astraflow_wire.redaction import hidden_texts, redacted, without_secrets

FOLDER = "trackers"
"""In ``state`` of the run directory: a folder for each tracker, and a file that says how far it has come."""
POLL_S = 1.0
STEPS_AT_ONCE = 50
TELL_S = 5.0
END_S = 10.0
CATCH_UP_S = 60.0
"""The longest that the end of a run waits for a tracker that is behind, in addition to its last call."""


@dataclass(frozen=True, slots=True)
class TrackerReport:
    """What became of a tracker, for the summary. ``state``: ``recording``, ``complete``, ``behind`` (it did not get everything
    in time; a resumed run sends the rest) or ``failed``. ``place``: where a person finds the record. ``steps``: group → last
    step that it has; ``rollouts`` and ``spans`` count."""

    use: str
    state: str
    place: str = ""
    error: str = ""
    steps: Mapping[str, int] | None = None
    rollouts: int = 0
    spans: int = 0


class Trackers:
    """All of a run. Nothing here waits for a tracker before :meth:`end`."""

    def __init__(self, prepared: Prepared) -> None:
        self._notices: deque[str] = deque(maxlen=100)
        self._feeds = {
            name: TrackerFeed(name, table, prepared, self._notices)
            for name, table in prepared.config.trackers.items()
        }

    def start(self) -> None:
        """Begin to record."""
        for feed in self._feeds.values():
            feed.thread.start()

    def news(self) -> Iterator[str]:
        """Messages for the user that were not shown yet."""
        while self._notices:
            yield self._notices.popleft()

    def end(
        self, summary: Mapping[str, Any], killed: bool, say: Callable[[str], None]
    ) -> dict[str, dict[str, Any]]:
        """Give each what is missing and its end, all at once and each until its deadline; ``killed``, and from Ctrl-C on: no
        time. Returns the result of each."""
        for feed in self._feeds.values():
            feed.finish(dict(without_secrets(summary)), killed)
        with _on_signal(self._stop):
            until, told = time.monotonic() + TELL_S, False
            while waiting := [name for name, feed in self._feeds.items() if feed.waits()]:
                if not told and time.monotonic() > until:
                    told = True
                    say(
                        f"waiting for the end of tracker {', '.join(waiting)}; Ctrl-C ends the wait"
                    )
        for said in self.news():
            say(said)
        return {name: asdict(feed.report) for name, feed in self._feeds.items()}

    def _stop(self) -> None:
        for feed in self._feeds.values():
            feed.stop("the wait for its end was interrupted")


class TrackerFeed:
    """One tracker and its thread."""

    def __init__(
        self, name: str, table: TrackerTable, prepared: Prepared, notices: deque[str]
    ) -> None:
        self._name, self._table, self._prepared, self._notices = name, table, prepared, notices
        directory = prepared.directory
        self._cursor_file = directory / "state" / FOLDER / f"{name}.json"
        self._cursor: Cursor = read_cursor(self._cursor_file)
        flags = prepared.catalog.flags(Kind.TRACKER, table.use)
        rollouts = table.rollouts if "rollouts" in flags else 0
        spans = table.spans if "spans" in flags else 0.0
        self._metrics = MetricsFeed(directory, self._cursor.steps)
        self._rollouts = RolloutFeed(directory, rollouts, self._cursor.rollouts)
        self._spans = SpanFeed(directory, spans, self._cursor.journal)
        self._process: TrackerProcess | None = None
        self._summary: dict[str, Any] = {}
        self._ending, self._stopped = threading.Event(), ""
        self._until = self._last_s = 0.0
        self.report = TrackerReport(table.use, "recording")
        self.thread = threading.Thread(target=self._run, name=f"tracker-{name}", daemon=True)

    def finish(self, summary: dict[str, Any], killed: bool) -> None:
        """The run has ended."""
        self._summary = summary
        self._until = time.monotonic() + CATCH_UP_S
        self._last_s = self._until + self._table.deadline_s + END_S
        if killed:
            self.stop("the run was killed")
        self._ending.set()

    def waits(self) -> bool:
        """Whether its thread is still at it; looks for a moment."""
        self.thread.join(0.1)
        if time.monotonic() > self._last_s:
            self.stop("it did not end in time")
        return self.thread.is_alive()

    def stop(self, why: str) -> None:
        """End its process whatever it does."""
        self._stopped = self._stopped or why
        if self._process is not None:
            self._process.stop()

    # -- the thread ------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._begin()
            while not self._ending.is_set():
                if not self._send():
                    self._ending.wait(POLL_S)
            self._end()
        except TrackerFailed as error:
            self._fail(self._stopped or str(error))
        except Exception as error:  # noqa: BLE001 - no error here may touch the run
            self._fail(self._stopped or f"{type(error).__name__}: {error}")
        finally:
            if self._process is not None:
                self._process.kill()
            self._note()

    def _begin(self) -> None:
        prepared, config = self._prepared, self._prepared.config
        place = prepared.directory / "state" / FOLDER / self._name
        log = prepared.directory / "logs" / f"tracker-{self._name}.log"
        spec = _spec(config, prepared.directory, self._name, self._table, place)
        python = self._table.python or ""
        self._process = TrackerProcess(spec, log, python, prepared.environment)
        self._process.start()
        shown = without_secrets(config.model_dump(mode="json"))
        where = self._process.call("started", shown)
        self.report = replace(self.report, place=self._redacted(where))

    def _send(self) -> bool:
        """Send what is new, in pieces; whether there was anything."""
        assert self._process is not None
        cursor = self._cursor
        if steps := self._metrics.new(STEPS_AT_ONCE):
            self._process.metrics([tuple(step) for step in steps])  # type: ignore[misc]
            cursor.steps |= {step.group: step.step for step in steps}
        if rows := self._rollouts.new():
            self._process.call("rollouts", rows)
            cursor.rollouts[rows[0]["policy"]] = rows[0]["step"]
            cursor.rows += len(rows)
        if spans := self._spans.new():
            self._process.call("spans", spans)
            cursor.journal = self._spans.position
            cursor.spans += len(spans)
        sent = bool(steps or rows or spans)
        if sent:
            write_cursor(self._cursor_file, cursor)
        return sent

    def _end(self) -> None:
        assert self._process is not None
        behind = False
        self._spans.last()
        while self._send():
            if behind := time.monotonic() > self._until:
                break
        curves = self._prepared.directory / CURVES
        state = str(self._summary["state"])
        picture = str(curves) if curves.exists() else None
        self._process.call("ended", state, self._summary, picture)
        self._process.close()
        self.report = replace(self.report, state="behind" if behind else "complete")
        if behind:
            self._notices.append(
                f"tracker {self._name!r} is behind: it has not received everything after {CATCH_UP_S:g} s; `astraflow run --resume` "
                "of this run would send the rest"
            )

    def _redacted(self, text: str) -> str:
        """What its process said, without the secrets of its table."""
        return redacted(text, hidden_texts(self._table.model_dump(mode="json")))

    def _fail(self, why: str) -> None:
        why = self._redacted(why)
        self.report = replace(self.report, state="failed", error=why)
        what = (
            "did not record the end of the run"
            if self._ending.is_set()
            else "is switched off, and the run continues without it"
        )
        self._notices.append(
            f"tracker {self._name!r} ({self._table.use}) {what}: {why}; its log is "
            f"{self._prepared.directory / 'logs' / f'tracker-{self._name}.log'}; the metrics are in the run directory"
        )

    def _note(self) -> None:
        cursor = self._cursor
        self.report = replace(
            self.report, steps=dict(cursor.steps), rollouts=cursor.rows, spans=cursor.spans
        )


@contextlib.contextmanager
def _on_signal(stop: Callable[[], None]) -> Iterator[None]:
    """Call ``stop`` at Ctrl-C and SIGTERM; that is possible on the main thread only."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.signal(number, lambda *_: stop()) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)


def _spec(
    config: RunConfig, directory: Path, name: str, table: TrackerTable, place: Path
) -> dict[str, Any]:
    """The settings of its process; see :mod:`astraflow_trackers.host`."""
    run = run_info(config, directory)
    seed = component_context(config, directory, "launcher", "", f"trackers/{name}", "").seed
    plugins = config.plugins
    return {
        "use": table.use,
        "options": table.model_dump(mode="json", include=set(table.options)),
        "run": {**asdict(run), "directory": str(run.directory)},
        "seed": seed,
        "directory": str(place),
        "deadline_s": table.deadline_s,
        "disable": list(plugins.disable),
        "only": None if plugins.only is None else list(plugins.only),
    }
