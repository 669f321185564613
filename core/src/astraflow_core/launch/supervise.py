"""Starts the processes of a run, watches them, starts those anew that died, and ends them all."""

from __future__ import annotations

import json
import signal
import threading
import time
from collections.abc import Collection, Sequence
from pathlib import Path

from astraflow_core.config.models import RunConfig
from astraflow_core.errors import AstraFlowError, DeadlineExceeded, Refused, RunFailed, UserError
from astraflow_core.launch.autoscale import Autoscaler
from astraflow_core.launch.diagnosis import Watchdog
from astraflow_core.launch.endings import complaint, describe_end, error_of
from astraflow_core.launch.figures import duration
from astraflow_core.launch.logwatch import LogWatch
from astraflow_core.launch.plan import reaching
from astraflow_core.launch.pool import RaasPool
from astraflow_core.launch.signals import Interrupts
from astraflow_core.launch.status import Status, WaitStatus, parse_status
from astraflow_core.launch.view import View
from astraflow_core.protocols.launcher import Launcher, ProcessSpec, ProcessState, Role
from astraflow_core.telemetry.presence import present_s
from astraflow_core.wire.client import SyncClient
from astraflow_core.wire.messages import Done, StopRun

POLL_S = 0.5
STATUS_DEADLINE_S = 2.0
SILENT_S = 10.0
"""Silence of the dataflow, in seconds, after which a person hears of it."""

HOPELESS_S = 5.0
"""How long it must hold that nothing can come any more: one who just came back waits for nothing yet."""

FINISH_DEADLINE_S = 30.0
END_DEADLINE_S = 10.0
BLAME_S = 3.0
"""How long a failed run waits for the process at fault to end and say why."""


class Supervisor:
    """The life of a run's processes. ``status`` is the newest that the dataflow gave. A process of a role in
    ``resuming`` that was killed is started anew, to go on from what it has left on the disk."""

    def __init__(
        self,
        config: RunConfig,
        specs: Sequence[ProcessSpec],
        launcher: Launcher,
        directory: Path,
        token: str,
        view: View,
        interrupts: Interrupts,
        resuming: Collection[Role],
    ) -> None:
        self.run, self.specs, self.launcher = config.run, {s.name: s for s in specs}, launcher
        self.directory, self.token, self.view, self.interrupts = directory, token, view, interrupts
        self._dataflow = next(spec for spec in specs if spec.role == "dataflow")
        self.status = Status()
        self._client: SyncClient | None = None
        self._logs = LogWatch(spec.log for spec in specs)
        self._resuming = resuming
        self._pool = RaasPool([spec for spec in specs if spec.role == "raas"])
        self._autoscaler = Autoscaler(config.raas.autoscale, view)
        self._gone: set[str] = set()
        self._answered = self._progressed = self._hopeful = present_s()
        self._warned = self._told_silence = False
        self._watchdog = Watchdog(specs, launcher, directory, view)

    def supervise(self) -> None:
        """From the first start to the last end. Returns after a finished or stopped run; raises
        :class:`RunFailed`, or :class:`UserError` if a process blames the user. May leave processes to
        ``launcher.close()``."""
        self.launcher.prepare(list(self.specs.values()))
        try:
            url = self._start_dataflow()
            if url is None:
                return
            self._client = SyncClient(url, self.token)
            self._answered = present_s()
            self._fetch_status([])
            self._begin_pool()
            for spec in self.specs.values():
                if spec.role != "dataflow":
                    self.launcher.start(reaching(spec, url))
            self._answered = self._progressed = present_s()
            self._watch()
            self._wind_down()
        finally:
            self._tell_warnings()
            if self._client is not None:
                self._client.close()

    def _start_dataflow(self) -> str | None:
        """Its address; ``None`` if a signal came before it had one."""
        file = self.directory / "dataflow.json"
        self.launcher.start(self._dataflow)
        until = time.monotonic() + self.run.start_deadline_s
        while not file.exists():
            for state in self.launcher.poll():
                if state.exit_code is not None:
                    raise error_of(state, "before it listened")
            if self.interrupts.number is not None:
                return None
            if time.monotonic() > until:
                raise DeadlineExceeded(
                    "dataflow", "it did not begin to listen", self.run.start_deadline_s
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
            self._tell_warnings()
            if self.status.state == "failed":
                raise self._failure()
            if self.status.ended:
                return
            self._look_after(processes)
            self._follow_pool(processes)
            self._check_progress()
            if self.interrupts.number is not None and stop_by is None:
                self.view.say("stopping: the step is finished and saved; once more ends at once")
                self._ask_to_stop()
                stop_by = time.monotonic() + self._finish_s
            if stop_by is not None and time.monotonic() > stop_by:
                self.view.say(
                    f"not finished after {duration(self._finish_s)}; ending the processes"
                )
                return
            self.interrupts.sleep(POLL_S)

    @property
    def _finish_s(self) -> float:
        """Longest that a step, and saving a large model, is waited for: who cannot wait sends a second signal."""
        return max(FINISH_DEADLINE_S, self.run.patience_s)

    def _tell_warnings(self) -> None:
        for message in self._logs.news():
            # The reason of a failed run is told once, at its end.
            if not (self.status.state == "failed" and self.status.reason in message):
                self.view.say(message)

    def _fetch_status(self, processes: Sequence[ProcessState]) -> None:
        """From the dataflow, or what it left if it has ended."""
        assert self._client is not None
        if self._has_ended(processes):
            self._read_last_status()
            return
        try:
            answer = self._client.get_json("/v1/status", deadline_s=STATUS_DEADLINE_S)
            waits = self._client.get_json("/v1/waits", deadline_s=STATUS_DEADLINE_S)
        except DeadlineExceeded as error:
            if self._has_ended(self.launcher.poll()):  # since the processes were looked at
                self._read_last_status()
            else:
                self._bear_silence(error)
            return
        now = present_s()
        if self._told_silence:
            self.view.say(f"the dataflow answers again after {duration(now - self._answered)}")
            self._progressed = now
        self._answered, self._told_silence = now, False
        before, self.status = self.status, parse_status(answer, waits)
        if self.status.progress != before.progress:
            self._progressed, self._warned = now, False
            self._watchdog.mark()

    def _has_ended(self, processes: Sequence[ProcessState]) -> bool:
        """Whether the dataflow has."""
        name = self._dataflow.name
        return any(state.name == name and state.exit_code is not None for state in processes)

    def _read_last_status(self) -> None:
        left = self.directory / "status.json"
        if left.exists():
            self.status = parse_status(json.loads(left.read_text()), [])

    def _bear_silence(self, error: DeadlineExceeded) -> None:
        """The dataflow is there and does not answer: wait for it, but not for ever."""
        silent, patience = present_s() - self._answered, self.run.patience_s
        given_up = silent >= patience
        if not given_up and (self._told_silence or silent < min(SILENT_S, self.run.deadline_s)):
            return
        self._told_silence = True
        what = f"the dataflow has not answered for {duration(silent)}"
        wait = WaitStatus(
            who="launcher",
            for_whom="dataflow",
            what=f"an answer, {duration(patience)} at most: {error.what}",
            since_s=silent,
            until_s=patience - silent,
        )
        diagnosis = self._watchdog.explain(what, [wait])
        if given_up:
            raise RunFailed(diagnosis) from error
        self.view.say(diagnosis)

    def _look_after(self, processes: Sequence[ProcessState]) -> None:
        for state in processes:
            if state.exit_code is None or state.name in self._gone:
                continue
            role = self.specs[state.name].role
            if role == "trainer" and state.exit_code == 0:
                self._gone.add(state.name)
            elif role == "raas" and state.exit_code != 2:
                self._replace(state)
            elif role != "raas" and self._may_resume(state):
                self._start_anew(state)
            else:
                # Before it ended it may have told the dataflow why.
                self._fetch_status(processes)
                if self.status.ended:
                    return
                raise error_of(state, "while the run went on")
        raas = self._raas()
        if raas <= self._gone and not self._others():
            # They leave when the run ends, which it may have done since it was asked; the dataflow, too, may
            # have ended since the processes were looked at.
            asked = present_s()
            self._fetch_status(self.launcher.poll())
            if self.status.ended or self.status.state == "stopping" or self._answered < asked:
                return
            last = next(state for state in reversed(processes) if state.name in raas)
            said = complaint(last.last_lines) or "it said nothing; see its log"
            raise RunFailed(f"no RaaS is left; {describe_end(last, 'as the last')}: {said}")

    def _raas(self) -> set[str]:
        return {name for name, spec in self.specs.items() if spec.role == "raas"}

    def _others(self) -> bool:
        """Whether a RaaS is there that somebody else started."""
        there = {r.name for r in self.status.raas if r.state in ("alive", "suspect")}
        return bool(there - self.specs.keys())

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
        if self.status.state != "running" or self._told_silence:
            return
        for spec in self._pool.asked_for(self.status):
            self.specs[spec.name] = spec
            self._heed(spec)
            self.view.say(f"{spec.name} is started: more RaaS were asked for")
            self.launcher.start(reaching(spec, self._client.base_url))
        known = {raas.name: raas for raas in self.status.raas}
        alive = {s.name for s in processes if s.exit_code is None} & self._raas()
        for name in alive:
            if name in known and known[name].draining and known[name].state == "gone":
                self.view.say(f"{name} was drained and is silent; it is ended")
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
        elif state.restarts < self.launcher.restarts:
            self._start_anew(state)
        else:
            self._gone.add(state.name)
            self.view.say(f"{describe_end(state, 'and is not started again')}")

    def _may_resume(self, state: ProcessState) -> bool:
        """Whether a process was killed, goes on if started anew, and was not started too often."""
        assert state.exit_code is not None
        killed = state.exit_code < 0
        resumes = self.specs[state.name].role in self._resuming
        return killed and resumes and state.restarts < self.launcher.restarts

    def _start_anew(self, state: ProcessState) -> None:
        assert self._client is not None
        count = f"{state.restarts + 1} of {self.launcher.restarts}"
        self.view.say(f"{describe_end(state, 'and is started anew')} (restart {count})")
        self.launcher.start(reaching(self.specs[state.name], self._client.base_url))

    def _check_progress(self) -> None:
        """A run that stands still must not do so for ever: say who waits for what, or end it."""
        allowed = self.run.deadline_s
        if self.status.steps == 0 and not self._watchdog.any_stopped:
            allowed = max(allowed, self.run.start_deadline_s)
        still = present_s() - self._progressed
        if still < allowed or present_s() - self._answered > STATUS_DEADLINE_S:
            self._hopeful = present_s()
            return
        what = f"no progress for {duration(still)}"
        if any(wait.until_s > 0 for wait in self.status.waits):
            self._hopeful = present_s()
        elif present_s() - self._hopeful >= min(HOPELESS_S, self.run.deadline_s):
            what += ", and nothing that is waited for can still come"
            raise RunFailed(self._watchdog.explain(what, self.status.waits))
        if not self._warned:
            self._warned = True
            self.view.say(self._watchdog.explain(what, self.status.waits))

    def _ask_to_stop(self) -> None:
        assert self._client is not None
        message = StopRun(reason="the launcher was asked to stop")
        try:
            self._client.post("/v1/stop", message, Done, deadline_s=STATUS_DEADLINE_S)
        except (DeadlineExceeded, Refused) as error:
            self.view.say(f"the dataflow could not be told to stop: {error}")

    def _failure(self) -> AstraFlowError:
        """Why the dataflow says the run failed; the user's fault if it says so, or a process by its exit code."""
        reason = self.status.reason or "the dataflow gives no reason"
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
        workers = {name for name in self.specs if name != self._dataflow.name}
        trainers = {name for name in workers if self.specs[name].role == "trainer"}
        ended = time.monotonic()
        while self.status.ended:
            processes = self.launcher.poll()
            self.view.show(self.status, processes)
            alive = {state.name for state in processes if state.exit_code is None}
            # Large models take their time to be saved.
            saving = self.status.state != "failed" and bool(trainers & alive)
            waited = time.monotonic() - ended
            if not workers & alive or waited > (self._finish_s if saving else FINISH_DEADLINE_S):
                break
            self.interrupts.sleep(0.1)
        self._stop(sorted(workers))
        self._fetch_status(self.launcher.poll())
        self._stop([self._dataflow.name])
        processes = self.launcher.poll()
        self.view.show(self.status, processes)
        for state in processes:
            saving = self.specs[state.name].role == "trainer" and self.status.ended
            if saving and state.exit_code not in (0, -signal.SIGTERM):
                raise error_of(state, "at the end of the run")

    def _stop(self, names: Sequence[str]) -> None:
        threads = [
            threading.Thread(target=self.launcher.stop, args=(name, END_DEADLINE_S), daemon=True)
            for name in names
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
