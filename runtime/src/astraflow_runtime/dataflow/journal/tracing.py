"""Traces a prompt or a group through the entries of a journal."""

from __future__ import annotations

from functools import singledispatchmethod

from astraflow_runtime.dataflow.journal.entries import (
    Acknowledged,
    Announced,
    BatchRequested,
    Entry,
    Evicted,
    Leased,
    PromptsConsumed,
    Pushed,
)
from astraflow_runtime.dataflow.journal.lineage import (
    Attempt,
    GroupLineage,
    Offered,
    RowLineage,
    RowState,
    ShadowRejection,
    Use,
    share_of,
)
from astraflow_runtime.dataflow.lease_history import EndedLease, LeaseHistory


class Trace:
    """A journal listener that collects the history of the prompt ``prompt``, or of the group
    ``group``. ``attempts``: the number of leases without a result after which a task is set aside.
    """

    def __init__(self, attempts: int, *, prompt: str = "", group: str = "") -> None:
        self._attempts, self._prompt, self._group = attempts, prompt, group
        self.offers: list[Offered] = []
        self.groups: dict[str, GroupLineage] = {}
        self._newest: dict[str, int] = {}
        self._rows: dict[tuple[str, int], RowLineage] = {}
        self._blamed: dict[str, int] = {}
        self.leases = LeaseHistory()
        self._at = 0.0

    def on_entry(self, at_s: float, entry: Entry) -> None:
        """Handle an entry."""
        self._at = at_s
        if isinstance(entry, Pushed):
            self._lineage(entry.header.task, entry.header.prompt_id)
        for ended in self.leases.take(at_s, entry):
            self._ended(ended)
        self._on_other_entry(entry)

    # -- which ------------------------------------------------------------------------------------

    def _lineage(self, task: str, prompt: str) -> GroupLineage | None:
        """The lineage of a task of this prompt, created if the trace asks for it."""
        if task not in self.groups and (task == self._group or prompt == self._prompt):
            self.groups[task] = GroupLineage(task)
            if (lease := self.leases.held.get(task)) is not None:
                # A task of an evaluation: only its result names the prompt.
                self.groups[task].attempts.append(Attempt(lease.raas, lease.since_s))
        story = self.groups.get(task)
        if story is not None:
            story.prompt = prompt
        return story

    # -- what happened ----------------------------------------------------------------------------

    @singledispatchmethod
    def _on_other_entry(self, entry: Entry) -> None:
        """Handle the entries that name no prompt or group."""

    @_on_other_entry.register
    def _(self, entry: PromptsConsumed) -> None:
        shadow_rejections: dict[str, list[ShadowRejection]] = {}
        for turned in (turned for turned in entry.turned if turned.shadow):
            for prompt in turned.prompts:
                shadow_rejections.setdefault(prompt, []).append(
                    ShadowRejection(turned.by, turned.reason)
                )
        for turned in (turned for turned in entry.turned if not turned.shadow):
            for prompt in turned.prompts:
                if prompt == self._prompt:
                    self.offers.append(
                        Offered(
                            self._at,
                            False,
                            by=turned.by,
                            reason=turned.reason,
                            shadow_rejections=shadow_rejections.get(prompt, []),
                        )
                    )
        if not entry.task:
            return
        if (story := self._lineage(entry.task, entry.prompt)) is not None:
            story.offered = Offered(
                self._at,
                True,
                entry.task,
                entry.forced,
                shadow_rejections=shadow_rejections.get(entry.prompt, []),
            )
            self.offers.append(story.offered)

    @_on_other_entry.register
    def _(self, entry: Leased) -> None:
        if entry.task not in self.groups and entry.task == self._group:
            self.groups[entry.task] = GroupLineage(entry.task)
        if (story := self.groups.get(entry.task)) is not None:
            story.state = "leased"
            story.attempts.append(Attempt(entry.raas, self._at, second=entry.second))

    def _ended(self, ended: EndedLease) -> None:
        task = ended.lease.task
        story = self.groups.get(task)
        if story is None:
            return
        for attempt in story.attempts:
            if attempt.until_s is None and attempt.raas == ended.lease.raas:
                attempt.until_s, attempt.ended = self._at, ended.reason or "pushed"
        if ended.other:
            return
        self._blamed[task] = self._blamed.get(task, 0) + ended.blame
        if not ended.returned:
            story.state = "failed"
        else:
            story.state = "set_aside" if self._blamed[task] >= self._attempts else "queued"

    @_on_other_entry.register
    def _(self, entry: Pushed) -> None:
        header = entry.header
        story = self.groups.get(header.task)
        if entry.refill and (story is not None or entry.refill == self._group):
            self.groups[entry.refill] = GroupLineage(
                entry.refill, header.prompt_id, completes=header.task
            )
        if story is None:
            return
        story.state = "accepted" if entry.accepted else "rejected"
        if entry.refill:
            story.state, story.completed_by = "refilled", entry.refill
            self._blamed[entry.refill] = self._blamed.get(header.task, 0) + 1
        story.late = header.late
        story.eval_set, story.pushed_s = header.eval_set, self._at
        story.trajectories, story.rejected_by_workflow = header.trajectories, header.rejected
        for judged in entry.judged:
            newest = self._newest.get(judged.policy, -1)
            share = share_of(judged, header, entry.trained, newest)
            story.shares.append(share)
            self._rows |= {(share.policy, row.arrival): row for row in share.rows}

    @_on_other_entry.register
    def _(self, entry: Announced) -> None:
        self._newest[entry.message.policy] = entry.message.version

    @_on_other_entry.register
    def _(self, entry: BatchRequested) -> None:
        policy = entry.message.policy
        self._mark(policy, entry.dropped, "stale")
        for arrival in entry.arrivals:
            if (row := self._rows.get((policy, arrival))) is not None:
                row.state = "being_trained"
                if not any(use.batch == entry.batch for use in row.batches):
                    row.batches.append(Use(entry.batch, self._at, entry.message.version))
        for arrival in entry.borrowed:
            if (row := self._rows.get((entry.source, arrival))) is not None and not any(
                use.batch == entry.batch for use in row.lent
            ):
                row.lent.append(Use(entry.batch, self._at, entry.message.version))

    @_on_other_entry.register
    def _(self, entry: Acknowledged) -> None:
        message = entry.message
        for (policy, _), row in self._rows.items():
            for use in row.lent:
                if use.batch == message.batch:
                    use.trained_s, use.published = self._at, message.version
            if policy == message.policy and row.state == "being_trained":
                for use in row.batches:
                    if use.batch == message.batch:
                        use.trained_s, use.published = self._at, message.version
                        row.state = "trained"

    @_on_other_entry.register
    def _(self, entry: Evicted) -> None:
        self._mark(entry.policy, entry.arrivals, "evicted")

    def _mark(self, policy: str, arrivals: list[int], state: RowState) -> None:
        for arrival in arrivals:
            if (row := self._rows.get((policy, arrival))) is not None:
                row.state = state
