"""``astraflow run``: prepare, start, watch, summarise."""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from astraflow_core.component import Kind
from astraflow_core.config.load import component_context, run_info
from astraflow_core.errors import AstraFlowError, NoRoom
from astraflow_core.protocols.launcher import Launcher, ProcessSpec, ProcessState, Role
from astraflow_runtime.config.recovering import all_recover
from astraflow_runtime.launch.conclusion import KILLED, conclude
from astraflow_runtime.launch.planning.header import header
from astraflow_runtime.launch.planning.leftovers import clear_leftovers
from astraflow_runtime.launch.planning.plan import plan
from astraflow_runtime.launch.planning.prepare import Prepared, prepare
from astraflow_runtime.launch.planning.resume import begin_again, claim, resume
from astraflow_runtime.launch.results.held_out import notes
from astraflow_runtime.launch.results.live_curves import wants_curves
from astraflow_runtime.launch.results.metrics import MetricsFile, left_out, read_metrics
from astraflow_runtime.launch.results.report import draw_report, missing_fields
from astraflow_runtime.launch.results.summary import summarise
from astraflow_runtime.launch.tracking.view import TrackedView
from astraflow_runtime.launch.view.views import View, make_view
from astraflow_runtime.launch.watch.restarts import Resuming
from astraflow_runtime.launch.watch.signals import Interrupts, KillNow, ignore_signals
from astraflow_runtime.launch.watch.supervise import Supervisor
from astraflow_wire.host.disk import replace_file, when_room
from astraflow_wire.status import Status

if TYPE_CHECKING:
    from astraflow_runtime.launch.tracking.trackers import Trackers

SUMMARY_S = 10.0
_OF_THIS_END = ("state", "exit_code", "error")
"""What a resumed run that got nowhere changes in its summary."""


@dataclass(frozen=True, slots=True)
class EndedRun:
    """A run that was started and is over. ``error`` is what failed it, if anything did."""

    directory: Path
    exit_code: int
    summary: dict[str, Any]
    metrics: MetricsFile = field(repr=False)
    error: AstraFlowError | None = None


@dataclass(frozen=True, slots=True)
class _Clock:
    """When the launcher began, and the CPU time that it had used then (0: it exists for this run)."""

    began: float
    cpu_s: float

    def cpu_since_s(self, processes: Sequence[ProcessState]) -> float:
        return _own_cpu_s() - self.cpu_s + sum(state.cpu_s for state in processes)


def _own_cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def run_file(
    path: str | Path,
    overrides: Sequence[str] = (),
    live: bool | None = None,
    json_output: bool = False,
    resumed: bool = False,
) -> int:
    """Run a TOML file, or continue (``resumed``) with the run of a directory, from a command line: prints, and
    returns the exit code.

    0: finished; 2: a mistake of the user, named; 1: the run failed; 130 or 143: interrupted. With
    ``json_output`` stdout gets the summary only, and what people read goes to stderr.
    """
    stream = sys.stderr if json_output else sys.stdout
    try:
        clock = _Clock(time.time(), 0.0)
        prepared = resume(path) if resumed else prepare(path, overrides)
        ended = execute(prepared, live, stream, clock)
    except KeyboardInterrupt:
        sys.stderr.write("interrupted before anything was started\n")
        return 130
    except AstraFlowError as error:
        sys.stderr.write(f"astraflow: {error}\n")
        if json_output:
            _dump(
                sys.stdout, {"state": "refused", "error": str(error), "exit_code": error.exit_code}
            )
        return error.exit_code
    if ended.error is not None:
        sys.stderr.write(f"astraflow: {ended.error}\n")
    if json_output:
        _dump(sys.stdout, ended.summary)
    conclude(ended.summary, ended.directory, prepared.config, stream, json_output)
    return ended.exit_code


def run_prepared(
    prepared: Prepared,
    live: bool | None,
    stream: TextIO,
    view: View | None = None,
    interrupts: Interrupts | None = None,
) -> EndedRun:
    """The same from within a program that continues afterwards; it may bring a ``view`` in place of what is printed, and
    ``interrupts`` by which it ends the run."""
    return execute(prepared, live, stream, _Clock(time.time(), _own_cpu_s()), view, interrupts)


def execute(
    prepared: Prepared,
    live: bool | None,
    stream: TextIO,
    clock: _Clock,
    view: View | None = None,
    interrupts: Interrupts | None = None,
) -> EndedRun:
    """Start what was prepared and stay with it until nothing of it runs any longer."""
    claimed = claim(prepared.directory)
    try:
        return _execute(prepared, live, stream, clock, view, interrupts or Interrupts())
    finally:
        os.close(claimed)


def _execute(
    prepared: Prepared,
    live: bool | None,
    stream: TextIO,
    clock: _Clock,
    view: View | None,
    interrupts: Interrupts,
) -> EndedRun:
    config, directory = prepared.config, prepared.directory
    before = begin_again(prepared)
    context = component_context(config, directory, "launcher", "", "launcher", prepared.token)
    launcher: Launcher = prepared.catalog.build(Kind.LAUNCHER, config.launcher, context)
    specs = _specs(prepared, launcher)
    if view is None:
        begin = header(prepared) + "".join(f"  note: {note}\n" for note in notes(config))
        view = make_view(config, live, stream, directory, begin)
    trackers = _trackers(prepared)
    if trackers is not None:
        view = TrackedView(view, trackers)
    resuming = _resuming(prepared)
    supervisor = Supervisor(
        config, specs, launcher, directory, prepared.token, view, interrupts, resuming=resuming
    )
    info = run_info(config, directory)
    error: AstraFlowError | None = None
    started = killed = False
    with interrupts.installed():
        try:
            prepared.hooks.run_started(info)
            started = True
            if trackers is not None:
                trackers.start()
            supervisor.supervise()
        except AstraFlowError as problem:
            error = problem
        except KillNow:
            killed = True
        finally:
            ignore_signals()
            launcher.close()
            clear_leftovers(directory)
            view.close()
            interrupts.close()
        if started:
            prepared.hooks.run_ended(info, error)
        processes = launcher.poll()
        code = _exit_code(error, interrupts)
        metrics = read_metrics(directory)
        if damage := left_out(metrics, directory):
            _say(stream, damage)
        summary = {
            "name": config.run.name,
            "seed": config.run.seed,
            "state": _state(error, killed, supervisor.status.state),
            "exit_code": code,
            "error": None if error is None else str(error),
            **_times(clock, processes, metrics),
            **summarise(config, supervisor.status, metrics.steps, processes),
            "directory": str(directory),
        }
        if not prepared.resumed or supervisor.status != Status():
            _leave_summary(directory, summary, stream)
        elif before is not None and missing_fields(before):
            _say(stream, f"{directory / 'summary.json'} was damaged and has been removed")
        elif before is not None:  # the dataflow never said where the run is: what is known stays
            summary = {**before, **{key: summary[key] for key in _OF_THIS_END}}
            _leave_summary(directory, summary, stream)
        if not killed and wants_curves() and (directory / "summary.json").exists():
            draw_report(directory, stream)
        if trackers is not None and started:
            summary["trackers"] = trackers.end(summary, killed, partial(_say, stream))
            if (directory / "summary.json").exists():
                _leave_summary(directory, summary, stream)
    return EndedRun(directory, code, summary, metrics, error)


def _specs(prepared: Prepared, launcher: Launcher) -> list[ProcessSpec]:
    """The processes to start, each with what the run adds to its environment."""
    resuming = _resuming(prepared)
    continues = "trainer" in {*resuming.from_disk, *resuming.from_others}
    restarts = launcher.restarts if continues else 0
    planned = plan(prepared.config, prepared.directory, prepared.token, restarts)
    return [
        replace(spec, environment={**spec.environment, **prepared.environment}) for spec in planned
    ]


def _times(
    clock: _Clock, processes: Sequence[ProcessState], metrics: MetricsFile
) -> dict[str, Any]:
    """What the run took: wall and CPU seconds, and those until its first step."""
    return {
        "wall_s": round(time.time() - clock.began, 3),
        "cpu_s": round(clock.cpu_since_s(processes), 3),
        "setup_s": _setup_s(clock, metrics),
    }


def _trackers(prepared: Prepared) -> Trackers | None:
    """The trackers of the run, if it names any: others need none of what they import."""
    if not prepared.config.trackers:
        return None
    from astraflow_runtime.launch.tracking.trackers import Trackers

    return Trackers(prepared)


def _resuming(prepared: Prepared) -> Resuming:
    """Roles whose processes continue when they are restarted."""
    config = prepared.config
    kept: dict[Role, bool] = {
        "dataflow": config.journal.enabled,
        "trainer": config.checkpoint.every > 0,
    }
    from_disk: list[Role] = [role for role, keeps in kept.items() if keeps]
    return Resuming(from_disk, ["trainer"] if all_recover(config, prepared.catalog) else [])


def _exit_code(error: AstraFlowError | None, interrupts: Interrupts) -> int:
    if error is not None:
        return error.exit_code
    return 0 if interrupts.number is None else interrupts.exit_code


def _state(error: AstraFlowError | None, killed: bool, state: str) -> str:
    if error is not None:
        return "failed"
    if killed:
        return KILLED
    return state if state == "finished" else "stopped"


def _setup_s(clock: _Clock, metrics: MetricsFile) -> float | None:
    """Seconds until the first step was done; ``None`` if none was."""
    times = [
        line["time"]
        for line in metrics.lines
        if {"policy", "step"} <= line.keys() and line["time"] >= clock.began
    ]
    return round(times[0] - clock.began, 3) if times else None


def _leave_summary(directory: Path, summary: Mapping[str, Any], stream: TextIO) -> None:
    """Write the file; a full disk is retried for a short time only, as a run that ended well has already waited for space."""
    path, content = directory / "summary.json", json.dumps(summary, indent=2) + "\n"
    try:
        when_room(
            lambda: replace_file(path, content),
            path,
            longest_s=SUMMARY_S,
            report=lambda said: _say(stream, said),
        )
    except NoRoom as error:
        _say(stream, str(error))


def _say(stream: TextIO, said: str) -> None:
    stream.write(f"{said}\n")
    stream.flush()


def _dump(stream: TextIO, content: Mapping[str, Any]) -> None:
    stream.write(json.dumps(content, indent=2) + "\n")
