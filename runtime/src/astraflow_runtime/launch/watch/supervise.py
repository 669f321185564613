"""Starts the processes of a run, watches them, starts those again that died, and ends them all."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from msgspec.structs import replace

from astraflow_core.config.models import RunConfig
from astraflow_core.errors import (
    AstraFlowError,
    DeadlineExceeded,
    RaasRefused,
    Refused,
    RunFailed,
    UserError,
)
from astraflow_core.protocols.launcher import Launcher, ProcessSpec, ProcessState, Role
from astraflow_runtime.config.transport_security import tls_of
from astraflow_runtime.launch.planning.plan import reaching
from astraflow_runtime.launch.results.live_curves import LiveCurves
from astraflow_runtime.launch.view.formatting import duration
from astraflow_runtime.launch.view.status import parse_status
from astraflow_runtime.launch.view.views import View
from astraflow_runtime.launch.watch.autoscale import Autoscaler
from astraflow_runtime.launch.watch.diagnosis import Watchdog
from astraflow_runtime.launch.watch.exit_status import (
    KEEP_STATE,
    describe_end,
    error_of,
    last_error,
)
from astraflow_runtime.launch.watch.full_disk import RoomWatch
from astraflow_runtime.launch.watch.logwatch import LogWatch
from astraflow_runtime.launch.watch.pool import RaasPool
from astraflow_runtime.launch.watch.restarts import Restarts, Resuming
from astraflow_runtime.launch.watch.signals import Interrupts
from astraflow_runtime.launch.watch.winding_down import FINISH_DEADLINE_S, WindDown
from astraflow_runtime.telemetry.printable import cut_lines
from astraflow_wire.host.active_clock import active_time
from astraflow_wire.http.client import SyncClient
from astraflow_wire.messages import Done, StopRun
from astraflow_wire.status import Status, WaitStatus

POLL_S = 0.5
STATUS_DEADLINE_S = 2.0
SILENT_S = 10.0
"""Silence of the dataflow, in seconds, after which a person learns of it."""

HOPELESS_S = 5.0
"""How long it must hold that nothing can come any longer: one who just came back waits for nothing yet."""

END_DEADLINE_S = 10.0
BLAME_S = 3.0
"""How long a failed run waits for the process at fault to end and say why."""


class Supervisor:
    """The life of a run's processes. ``status`` is the newest that the dataflow gave. A process of a role in
    ``resuming`` that was killed is restarted and continues."""

    def __init__(
        self,
        config: RunConfig,
        specs: Sequence[ProcessSpec],
        launcher: Launcher,
        directory: Path,
        token: str,
        view: View,
        interrupts: Interrupts,
        resuming: Resuming,
    ) -> None:
        self.run, self.specs, self.launcher = config.run, {s.name: s for s in specs}, launcher
        self.directory, self.token, self.view, self.interrupts = directory, token, view, interrupts
        self._dataflow = next(spec for spec in specs if spec.role == "dataflow")
        self.status = Status()
        self._client: SyncClient | None = None
        self._logs = LogWatch(spec.log for spec in specs)
        self._restarts = Restarts(launcher, view, resuming)
        self._pool = RaasPool([spec for spec in specs if spec.role == "raas"])
        self._autoscaler = Autoscaler(config.raas.autoscale, view)
        self._gone, self._refused, self._tls = set[str](), set[str](), tls_of(config)
        self._answered = self._progressed = self._hopeful = active_time()
        self._warned = self._told_silence = self._told_deaf = self._lost_dataflow = False
        self._watchdog = Watchdog(specs, launcher, directory, view)
        self._room = RoomWatch(directory, view)
        self._curves = LiveCurves(config, directory)

    def supervise(self) -> None:
        """From the first start to the last end. Returns after a finished or stopped run; raises
        :class:`RunFailed`, or :class:`UserError` if a process blames the user. May leave processes to
        ``launcher.close()``."""
        self.launcher.prepare(list(self.specs.values()))
        try:
            if (url := self._start_dataflow()) is None:
                return
            self._client = SyncClient(url, self.token, tls=self._tls)
            self._answered = active_time()
            self._fetch_status([])
            self._begin_pool()
            for spec in self.specs.values():
                if spec.role != "dataflow":
                    self.launcher.start(reaching(spec, url, self.directory))
            self._answered = self._progressed = active_time()
            self._watch()
            self._wind_down()
            self._tell_warnings()
        except AstraFlowError as error:
            # The cause is reported once, at the end.
            self._tell_warnings(str(error), self.status.reason)
            raise
        finally:
            self._curves.close()
            if self._client is not None:
                self._client.close()

    def _start_dataflow(self) -> str | None:
        """Its address; ``None`` if a signal came before it had one."""
        file = self.directory / "dataflow.json"
        self.launcher.start(self._dataflow)
        until = time.monotonic() + self.run.start_deadline_s
        while not file.exists():
            for state in self.launcher.poll():
                if state.exit_code is None:
                    continue
                if state.exit_code > 0 or not self._restarts.left(state):
                    raise error_of(state, "before it started listening")
                self._restarts.start(state, self._dataflow, "before it started listening")
            if self.interrupts.number is not None:
                return None
            if time.monotonic() > until and not self._room.lacks():
                raise DeadlineExceeded(
                    "dataflow", "it did not start listening", self.run.start_deadline_s
                )
            self.interrupts.sleep(0.02)
        return str(json.loads(file.read_text())["url"])

    def _watch(self) -> None:
        stop_by: float | None = None
        while True:
            processes = self.launcher.poll()
            self._watchdog.look(processes)
            self._fetch_status(processes)
            self.view.show(self.status, processes)
            if said := self._curves.look(self.status):
                self.view.say(said)
            if self.status.state == "failed":
                raise self._failure()
            self._tell_warnings()
            if self.status.ended:
                return
            if not self._lost_dataflow:
                self._look_after(processes)
            if self._lost_dataflow or (self.status.state == "stopping" and self._all_saved):
                return
            self._follow_pool(processes)
            self._check_progress()
            if self.interrupts.number is not None:
                if stop_by is None:
                    self.view.say("stopping: saving after this step; repeat to stop immediately")
                    stop_by = time.monotonic() + self._finish_s
                if self.status.state != "stopping":  # a dataflow that was restarted may not know it
                    self._ask_to_stop()
            if stop_by is not None and time.monotonic() > stop_by:
                self.view.say(
                    f"not finished after {duration(self._finish_s)}; stopping the processes, trainers after "
                    f"they have saved or {duration(self._finish_s)} more"
                )
                return
            self.interrupts.sleep(POLL_S)

    @property
    def _finish_s(self) -> float:
        """Longest that a step, and saving a large model, is waited for: who cannot wait sends a second signal."""
        return max(FINISH_DEADLINE_S, self.run.give_up_after_s)

    def _tell_warnings(self, *known: str) -> None:
        for message in self._logs.news(known):
            self.view.say(message)

    def _fetch_status(self, processes: Sequence[ProcessState]) -> None:
        """From the dataflow, or what it left if it has ended."""
        assert self._client is not None
        if self._has_ended(processes):
            self._read_last_status()
            return
        try:
            answer = self._client.get_json("/v1/status", deadline_s=STATUS_DEADLINE_S)
        except DeadlineExceeded as error:
            if self._has_ended(self.launcher.poll()):  # since the processes were looked at
                self._read_last_status()
            else:
                self._bear_silence(error)
            return
        now = active_time()
        if self._told_silence:
            self.view.say(f"the dataflow responds again after {duration(now - self._answered)}")
            self._progressed = now
        self._answered, self._told_silence = now, False
        before, self.status = self.status, parse_status(answer)
        if self.status.progress != before.progress:
            self._progressed, self._warned = now, False
            self._watchdog.mark()

    def _has_ended(self, processes: Sequence[ProcessState]) -> bool:
        """Whether the dataflow has."""
        name = self._dataflow.name
        return any(state.name == name and state.exit_code is not None for state in processes)

    def _read_last_status(self) -> None:
        """That of the newest dataflow: one of a launcher that was killed may have left its own since the run was
        restarted."""
        files = [self.directory / name for name in ("status.json", "dataflow.json")]
        if all(file.exists() for file in files):
            left, place = (json.loads(file.read_text()) for file in files)
            if left.get("pid") == place["pid"]:
                self.status = replace(parse_status(left), waits=[])

    def _bear_silence(self, error: DeadlineExceeded) -> None:
        """The dataflow exists and does not answer: wait for it until its deadline."""
        silent, deadline = active_time() - self._answered, self.run.give_up_after_s
        given_up = silent >= deadline and not self._room.lacks()
        if not given_up and (self._told_silence or silent < min(SILENT_S, self.run.deadline_s)):
            return
        self._told_silence = True
        what = f"the dataflow has not responded for {duration(silent)}"
        wait = WaitStatus(
            who="launcher",
            for_whom="dataflow",
            what=f"an answer, {duration(deadline)} at most: {error.what}",
            since_s=silent,
            until_s=deadline - silent,
        )
        diagnosis = self._watchdog.explain(what, [wait])
        if given_up and self.interrupts.number is None:
            raise RunFailed(diagnosis) from error
        self.view.say(diagnosis)
        if given_up:
            self.view.say("trainers save and exit without it")
            self._lost_dataflow = True

    def _look_after(self, processes: Sequence[ProcessState]) -> None:
        for state in processes:
            if state.exit_code is None or state.name in self._gone:
                continue
            role = self.specs[state.name].role
            if role == "trainer" and state.exit_code == 0:
                self._gone.add(state.name)
            elif role == "raas" and state.exit_code != 2:
                self._replace(state)
            elif role != "raas" and self._restarts.may_resume(state, role):
                self._start_anew(state)
            elif role == "dataflow" and self.interrupts.number is not None:
                self.view.say(describe_end(state, "and is not restarted; trainers save and exit"))
                self._gone.add(state.name)
                self._lost_dataflow = True
            else:
                # Before it ended it may have told the dataflow why.
                self._fetch_status(processes)
                if self.status.ended:
                    return
                keeps = role != "trainer" or self._restarts.resumes(role)
                raise error_of(state, "while the run continued", remedy="" if keeps else KEEP_STATE)
        raas = self._raas()
        if self._lost_dataflow:
            return
        if raas <= self._gone and not self._others():
            # They leave when the run ends, which it may have done since it was asked; the dataflow, too, may
            # have ended since the processes were looked at.
            asked = active_time()
            self._fetch_status(self.launcher.poll())
            if self.status.ended or self.status.state == "stopping" or self._answered < asked:
                return
            last = next(state for state in reversed(processes) if state.name in raas)
            said = last_error(last.last_lines) or "it printed no output; see its log"
            raise RunFailed(f"no RaaS is left; {describe_end(last, 'as the last')}: {said}")

    def _raas(self) -> set[str]:
        return self._of("raas")

    def _of(self, role: Role) -> set[str]:
        return {name for name, spec in self.specs.items() if spec.role == role}

    @property
    def _all_saved(self) -> bool:
        """Whether every trainer has saved and left."""
        return self._of("trainer") <= self._gone

    def _others(self) -> bool:
        """Whether there is a RaaS that this launcher did not start."""
        there = {r.name for r in self.status.raas if r.state in ("alive", "suspect")}
        return bool(there - (self.specs.keys() - self._refused))

    def _begin_pool(self) -> None:
        others = [spec for spec in self.specs.values() if spec.role != "raas"]
        self.specs = {spec.name: spec for spec in [*others, *self._pool.begin(self.status)]}
        for spec in self.specs.values():
            self._heed(spec)

    def _heed(self, spec: ProcessSpec) -> None:
        self._logs.add(spec.log)
        self._watchdog.add(spec)

    def _follow_pool(self, processes: Sequence[ProcessState]) -> None:
        """Start the RaaS that were asked for, and end those that were to leave and are silent."""
        assert self._client is not None
        if self.status.state != "running" or self._told_silence or self._room.lacks():
            return
        for spec in self._pool.asked_for(self.status):
            self.specs[spec.name] = spec
            self._heed(spec)
            self.view.say(f"{spec.name} is starting: more RaaS were requested")
            self.launcher.start(reaching(spec, self._client.base_url, self.directory))
        known = {raas.name: raas for raas in self.status.raas}
        alive = {s.name for s in processes if s.exit_code is None} & self._raas()
        for name in alive:
            if name in known and known[name].draining and known[name].state == "gone":
                self.view.say(f"{name} was drained and does not respond; terminating it")
                self._stop([name])
        settled = all(name in known and known[name].ready for name in alive)
        leaving = any(
            raas.draining and raas.state in ("alive", "suspect") for raas in known.values()
        )
        self._autoscaler.look(self.status, self._client, leaving or not settled)

    def _replace(self, state: ProcessState) -> None:
        if any(raas.name == state.name and raas.draining for raas in self.status.raas):
            self._gone.add(state.name)
            self.view.say(
                f"{state.name} was drained and left"
                if state.exit_code == 0
                else describe_end(state, "while it was drained")
            )
        elif state.exit_code == 0:
            self._gone.add(state.name)
            self.view.say(f"{state.name} left the run")
        elif state.exit_code == RaasRefused.exit_code:
            self._gone.add(state.name)
            self._refused.add(state.name)
            self.view.say(
                f"{state.name} was refused and is not restarted: {last_error(state.last_lines)}"
            )
        elif self._restarts.left(state):
            self._start_anew(state)
        else:
            self._gone.add(state.name)
            self.view.say(f"{describe_end(state, 'and is not restarted')}")

    def _start_anew(self, state: ProcessState) -> None:
        assert self._client is not None
        spec = reaching(self.specs[state.name], self._client.base_url, self.directory)
        self._restarts.start(state, spec)

    def _check_progress(self) -> None:
        """A run without progress must not continue indefinitely: report what each process waits for, or end the run."""
        allowed = self.run.deadline_s
        if self.status.steps == 0 and not self._watchdog.any_stopped:
            allowed = max(allowed, self.run.start_deadline_s)
        still = active_time() - self._progressed
        if still < allowed or active_time() - self._answered > STATUS_DEADLINE_S:
            self._hopeful = active_time()
            return
        what = f"no progress for {duration(still)}"
        if any(wait.until_s > 0 for wait in self.status.waits) or self._room.lacks():
            self._hopeful = active_time()
        elif active_time() - self._hopeful >= min(HOPELESS_S, self.run.deadline_s):
            what += ", and nothing that the run waits for can still arrive"
            raise RunFailed(self._watchdog.explain(what, self.status.waits))
        if not self._warned:
            self._warned = True
            self.view.say(self._watchdog.explain(what, self.status.waits))

    def _ask_to_stop(self) -> None:
        assert self._client is not None
        message = StopRun(reason="the launcher received a stop signal")
        try:
            self._client.post("/v1/stop", message, Done, deadline_s=STATUS_DEADLINE_S)
        except (DeadlineExceeded, Refused) as error:
            if not self._told_deaf:
                self.view.say(f"the stop request to the dataflow failed: {error}; retrying")
            self._told_deaf = True

    def _failure(self) -> AstraFlowError:
        """Why the dataflow says the run failed; the user's fault if it says so, or a process by its exit code."""
        reason = cut_lines(self.status.reason) or "the dataflow reported no reason"
        if self.status.users_mistake:
            return UserError(reason)
        until = time.monotonic() + BLAME_S
        while time.monotonic() < until:
            workers = [state for state in self.launcher.poll() if state.name != self._dataflow.name]
            ended = [state for state in workers if state.exit_code is not None]
            guilty = [state for state in ended if state.exit_code != 0]
            if guilty:
                return error_of(max(guilty, key=lambda state: state.exit_code == 2), "", reason)
            if len(ended) == len(workers):
                break
            self.interrupts.sleep(0.1)
        return RunFailed(reason)

    def _wind_down(self) -> None:
        """Trainers and RaaS end by themselves when the run does; the dataflow is the last to go."""
        assert self._client is not None
        url = self._client.base_url
        specs = {n: reaching(spec, url, self.directory) for n, spec in self.specs.items()}
        end = WindDown(
            specs,
            self.launcher,
            self._restarts,
            self.view,
            self.interrupts,
            self.directory,
            self._look_again,
            self._finish_s,
            self._room,
        )
        if self.status.ended:
            end.wait(self.status)
        else:
            self._stop(sorted(self._of("trainer")), self._finish_s)
        self._stop(sorted(self.specs.keys() - {self._dataflow.name}))
        self._look_again()
        self._room.wait(self.interrupts)
        self._stop([self._dataflow.name])
        processes = self.launcher.poll()
        self.view.show(self.status, processes)
        if self.status.ended or self._lost_dataflow:
            error = end.error(processes, self.status)
            if error is not None:
                raise error

    def _look_again(self) -> Status:
        """The newest status of a dataflow that is no longer needed."""
        self._answered = active_time()
        self._fetch_status(self.launcher.poll())
        return self.status

    def _stop(self, names: Sequence[str], deadline_s: float = END_DEADLINE_S) -> None:
        threads = [
            threading.Thread(target=self.launcher.stop, args=(name, deadline_s), daemon=True)
            for name in names
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
