"""Leasing: which RaaS gets which task, admission of new prompts, renewals and failures."""

from __future__ import annotations

import logging

from astraflow_runtime.dataflow.fleet.notices import notices
from astraflow_runtime.dataflow.fleet.raas import RaasRecord
from astraflow_runtime.dataflow.journal.entries import (
    AttemptFailed,
    PromptsConsumed,
    RaasLeft,
    RaasRegistration,
)
from astraflow_runtime.dataflow.state import FlowState
from astraflow_runtime.dataflow.tasks.admission import rejections
from astraflow_runtime.dataflow.tasks.elsewhere import prefer_others
from astraflow_runtime.dataflow.tasks.evaluation_tasks import evaluation_sampling
from astraflow_runtime.dataflow.tasks.lease_refusals import lease_refusal
from astraflow_runtime.dataflow.tasks.queue import TaskRecord, TaskTable
from astraflow_runtime.dataflow.tasks.second_leases import second_task
from astraflow_wire.limits import MAX_WAITS
from astraflow_wire.messages import (
    FailTask,
    LeasesRenewed,
    LeaseTasks,
    LeaveRaas,
    RaasRegistered,
    RegisterRaas,
    RenewLeases,
    SamplingMessage,
    Task,
    TasksLeased,
)

log = logging.getLogger(__name__)

REFUSALS_PER_CALL = 256


class Leasing:
    """The calls of RaaS, except pushes."""

    def __init__(self, state: FlowState) -> None:
        self._state = state
        self.more_to_admit = False
        config = state.config
        self._train_sampling = SamplingMessage(
            max_tokens=config.sampling.max_tokens,
            temperature=config.sampling.temperature,
            top_p=config.sampling.top_p,
            top_k=config.sampling.top_k,
            min_p=config.sampling.min_p,
            stop=list(config.sampling.stop),
        )
        self._eval_sampling = evaluation_sampling(config)

    def register(self, message: RegisterRaas) -> RaasRegistered:
        """Register a RaaS; the leases under this name return to the queue."""
        state = self._state
        for policy in message.policies:
            state.stream(policy)
        state.fleet.check(message)
        state.records.append(RaasRegistration(message=message))
        state.give_back_all(message.raas, f"RaaS {message.raas!r} restarted", blame=False)
        record = state.fleet.register(message, state.versions.newest, state.clock())
        state.signals.new_raas(message.raas)
        return RaasRegistered(
            run=state.config.run.name,
            renew_s=state.renew_s,
            notices=notices(state, record),
            incarnation=record.incarnation,
        )

    def ask(self, message: LeaseTasks) -> RaasRecord:
        """A RaaS asks for tasks: record what it serves and which notices it has seen."""
        record = self._heard(message)
        self._state.advance_evaluations()
        return record

    def lease(self, record: RaasRecord, free: int) -> TasksLeased:
        """Tasks for ``free`` episodes, possibly none, and the notices."""
        state = self._state
        leased: list[TaskRecord] = []
        offered = free
        kinds = [self._next_train, self._next_eval]
        active = state.evaluations.active
        if active is not None and active.host == record.name:
            kinds.reverse()
        for take in (*kinds, self._next_second):
            while free and (task := take(record, free)) is not None:
                leased.append(task)
                free -= task.missing
        if leased:
            state.last_progress = state.clock()
        record.set_idle_slots(0 if leased else offered, state.clock())
        return TasksLeased(
            tasks=[self._message(task) for task in leased], notices=notices(state, record)
        )

    def work_available(self) -> bool:
        """Whether any RaaS could get a task now."""
        state = self._state
        if state.evaluations.active is not None and state.eval.queued:
            return True
        return lease_refusal(state) is None

    def renew(self, message: RenewLeases) -> LeasesRenewed:
        """The heartbeat: extends the leases of the RaaS and names those that it does not hold."""
        state, now = self._state, self._state.clock()
        state.fleet.check_metrics(state.streams, message.metrics)
        before = state.fleet.get(message.raas)
        served = dict(before.serving) if before else {}
        record = self._heard(message)
        if record.serving != served:
            state.signals.raas(record.name)
        state.fleet.update_metrics(record, message.metrics, now)
        record.waits = message.waits[:MAX_WAITS]
        revoked = {}
        for table in (state.train, state.eval):
            named = [task for task in message.tasks if table.owns(task)]
            revoked.update({r.task: r for r in table.renew(message.raas, named, now)})
        unknown = [t for t in message.tasks if not (state.train.owns(t) or state.eval.owns(t))]
        revoked.update({r.task: r for r in state.train.renew(message.raas, unknown, now)})
        record.revoked = {**record.revoked, **revoked}
        state.advance_evaluations()
        return LeasesRenewed(notices=notices(state, record))

    def fail(self, message: FailTask) -> None:
        """A RaaS failed a task. Without a lease of that task nothing changes."""
        state = self._state
        table = state.table_of(message.task)
        task = table.get(message.task) if table.owns(message.task) else None
        if task is None or task.lease_of(message.raas) is None:
            return
        state.records.append(AttemptFailed(message=message))
        if message.fatal:
            state.decided(task, message.raas)
            table.end(task, "failed")
        else:
            table.give_back(task, message.error, blame=True, raas=message.raas)
            if not (task.leases or state.replaying):
                prefer_others(state, task, message.raas)
        self._after_failure(table, task, message)

    def leave(self, message: LeaveRaas) -> None:
        """A RaaS says goodbye; its leases return at once and are not held against the tasks."""
        state = self._state
        if state.fleet.get(message.raas) is None:
            return
        reason = f"RaaS {message.raas!r} left: {message.reason}"
        state.records.append(RaasLeft(message=message))
        state.fleet.leave(message.raas, state.clock())
        state.give_back_all(message.raas, reason, blame=False)
        state.advance_evaluations()
        state.signals.state()

    def _heard(self, message: LeaseTasks | RenewLeases) -> RaasRecord:
        """Record what a RaaS serves. What the run has not announced counts for nothing: the RaaS gets
        no task and loses its leases until it has discarded it.
        """
        state = self._state
        for policy in (*message.serving, *message.seen):
            state.stream(policy)
        foreign = state.versions.foreign(message.serving, message.seen, message.digests)
        serving = {policy: v for policy, v in message.serving.items() if policy not in foreign}
        seen = {policy: v for policy, v in message.seen.items() if policy not in foreign}
        record = state.fleet.heard(message.raas, serving, seen, state.clock())
        if foreign.keys() - record.foreign.keys():
            log.warning(
                "RaaS %r has weights that this run does not have: %s. Their announcement is missing from the journal. The "
                "RaaS has to discard them and load the announced version; its tasks return to the queue",
                record.name, "; ".join(foreign.values()),
            )  # fmt: skip
        record.foreign = foreign
        record.discard = {policy: message.digests.get(policy, "") for policy in foreign}
        if foreign:
            state.revoke_all(
                record.name, f"RaaS {record.name!r} has weights that this run does not have"
            )
        return record

    def _after_failure(self, table: TaskTable, task: TaskRecord, message: FailTask) -> None:
        state = self._state
        if table is state.eval and table.outcome(task.id) is not None:
            state.evaluations.fail(task, message.error)
        if table is state.train:
            if not state.replaying:
                state.rollouts.failed(task, message, state.updates)
            error = _with_prompt(message.error, task.prompt.id)
            if message.environment and table.outcome(task.id) == "set_aside":
                state.admission.quarantine(task.prompt, message.environment)
            if why := state.failures.failed(message.raas, error, message.environment):
                state.fail(why)
        state.signals.work()
        state.advance_evaluations()

    def _next_eval(self, record: RaasRecord, free: int) -> TaskRecord | None:
        state = self._state
        if state.progress.ending or not state.evaluations.may_lease(record, state.versions.newest):
            return None
        if record.set_aside or (record.draining and not state.evaluations.pins(record.name)):
            return None
        task = state.eval.first(record.name)
        if task is None or free < min(task.group_size, record.capacity):
            return None
        return state.lease(state.eval, record.name, record.capacity)

    def _next_train(self, record: RaasRecord, free: int) -> TaskRecord | None:
        state = self._state
        self.more_to_admit = False
        if lease_refusal(state, record, free) is not None:
            return None
        admitted = []
        if state.train.first(record.name) is None:
            admitted.append(entry := self._admit())
            if not entry.task:
                state.records.append(entry)
                return None
        return state.lease(state.train, record.name, record.capacity, after=admitted)

    def _next_second(self, record: RaasRecord, free: int) -> TaskRecord | None:
        task = second_task(self._state, record, free)
        if task is None:
            return None
        return self._state.lease_again(task, record.name, record.capacity)

    def _admit(self) -> PromptsConsumed:
        """Make the next prompt that the policies admit a task; returns the entry for the journal. The work of one call is
        bounded; ``more_to_admit`` says that it ended at the bound, without a task."""
        state, admission = self._state, self._state.admission
        offers = [admission.take()]
        while not offers[-1].admitted and len(offers) < REFUSALS_PER_CALL:
            offers.append(admission.take())
        last = offers[-1]
        if last.forced:
            log.warning("%s", admission.why_forced(last.prompt))
        task = state.admit(last.prompt) if last.admitted else None
        self.more_to_admit = task is None
        return PromptsConsumed(
            cursor=admission.cursor.position,
            task=task.id if task is not None else "",
            prompt=last.prompt.id if task is not None else "",
            forced=last.forced,
            turned=rejections(offers),
        )

    def _message(self, task: TaskRecord) -> Task:
        state = self._state
        return Task(
            id=task.id,
            prompt_id=task.prompt.id,
            data=task.prompt.data,
            group_size=task.missing,
            sampling=self._eval_sampling if task.eval_set else self._train_sampling,
            lease_s=state.config.run.lease_s,
            deadline_s=state.config.run.episode_deadline_s,
            pinned=dict(task.pinned),
            eval_set=task.eval_set,
            group_deadline_s=None if task.eval_set else state.config.run.group_deadline_s,
        )


def _with_prompt(error: str, prompt: str) -> str:
    """An error that names the prompt, once."""
    return error if f"prompt {prompt!r}" in error else f"{error} (prompt {prompt})"
