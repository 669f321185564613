"""Follows a prompt or a group through the entries of a journal."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import singledispatchmethod

from astraflow_core.dataflow.entries import (
    Acknowledged,
    Announced,
    Asked,
    Entry,
    Evicted,
    Failed,
    Leased,
    Overdue,
    Pushed,
    RaasCame,
    RaasGone,
    RaasLeft,
    Resumed,
    Walked,
)
from astraflow_core.dataflow.stories import (
    Attempt,
    Doubt,
    GroupStory,
    Offered,
    RowState,
    RowStory,
    Use,
    share_of,
)


class Trace:
    """What a journal says of the prompt ``prompt``, or of the group ``group``. ``attempts``: after so many leases
    without a result a task is set aside."""

    def __init__(self, attempts: int, *, prompt: str = "", group: str = "") -> None:
        self._attempts, self._prompt, self._group = attempts, prompt, group
        self.offers: list[Offered] = []
        self.groups: dict[str, GroupStory] = {}
        self._newest: dict[str, int] = {}
        self._rows: dict[tuple[str, int], RowStory] = {}
        self._blamed: dict[str, int] = {}
        self._eval_lease: dict[str, tuple[float, Leased]] = {}
        self._at = 0.0

    def read(self, entries: Iterable[tuple[float, Entry]]) -> Trace:
        """Take in (seconds, entry), in order."""
        for self._at, entry in entries:
            self._take(entry)
        return self

    # -- which ------------------------------------------------------------------------------------

    def _story(self, task: str, prompt: str) -> GroupStory | None:
        """The story of a task of this prompt, begun if it is wanted."""
        if task not in self.groups and (task == self._group or prompt == self._prompt):
            self.groups[task] = GroupStory(task)
            if task in self._eval_lease:
                at, lease = self._eval_lease[task]
                self.groups[task].attempts.append(Attempt(lease.raas, at))
        story = self.groups.get(task)
        if story is not None:
            story.prompt = prompt
        return story

    # -- what happened ----------------------------------------------------------------------------

    @singledispatchmethod
    def _take(self, entry: Entry) -> None:
        """Entries that say nothing of prompts and groups."""

    @_take.register
    def _(self, entry: Walked) -> None:
        doubts: dict[str, list[Doubt]] = {}
        for turned in (turned for turned in entry.turned if turned.shadow):
            for prompt in turned.prompts:
                doubts.setdefault(prompt, []).append(Doubt(turned.by, turned.reason))
        for turned in (turned for turned in entry.turned if not turned.shadow):
            for prompt in turned.prompts:
                if prompt == self._prompt:
                    self.offers.append(
                        Offered(
                            self._at,
                            False,
                            by=turned.by,
                            reason=turned.reason,
                            doubts=doubts.get(prompt, []),
                        )
                    )
        if not entry.task:
            return
        if (story := self._story(entry.task, entry.prompt)) is not None:
            story.offered = Offered(
                self._at, True, entry.task, entry.forced, doubts=doubts.get(entry.prompt, [])
            )
            self.offers.append(story.offered)

    @_take.register
    def _(self, entry: Leased) -> None:
        if entry.task not in self.groups and entry.task == self._group:
            self.groups[entry.task] = GroupStory(entry.task)
        story = self.groups.get(entry.task)
        if story is None:
            if entry.task.startswith("eval-"):
                # Only its result will tell which prompt it is about.
                self._eval_lease[entry.task] = (self._at, entry)
            return
        story.state = "leased"
        story.attempts.append(Attempt(entry.raas, self._at))

    @_take.register
    def _(self, entry: Overdue) -> None:
        self._given_back(entry.task, entry.reason, blame=True)

    @_take.register
    def _(self, entry: Failed) -> None:
        message = entry.message
        self._given_back(message.task, message.error, blame=True)
        story = self.groups.get(message.task)
        if story is not None and message.fatal:
            story.state = "failed"

    @_take.register
    def _(self, entry: RaasGone) -> None:
        self._all_given_back(lambda raas: raas == entry.raas, entry.reason, blame=True)

    @_take.register
    def _(self, entry: RaasLeft) -> None:
        message = entry.message
        reason = f"RaaS {message.raas!r} left: {message.reason}"
        self._all_given_back(lambda raas: raas == message.raas, reason, blame=False)

    @_take.register
    def _(self, entry: RaasCame) -> None:
        raas = entry.message.raas
        self._all_given_back(lambda name: name == raas, f"RaaS {raas!r} started anew", blame=False)

    @_take.register
    def _(self, entry: Resumed) -> None:
        self._all_given_back(lambda _: True, "the run was started again", blame=False)

    def _given_back(self, task: str, reason: str, *, blame: bool) -> None:
        story = self.groups.get(task)
        if story is None or not story.attempts or story.attempts[-1].until_s is not None:
            return
        story.attempts[-1].until_s, story.attempts[-1].ended = self._at, reason
        self._blamed[task] = self._blamed.get(task, 0) + blame
        story.state = "set_aside" if self._blamed[task] >= self._attempts else "queued"

    def _all_given_back(self, whose: Callable[[str], bool], reason: str, *, blame: bool) -> None:
        for story in self.groups.values():
            if story.state == "leased" and whose(story.attempts[-1].raas):
                self._given_back(story.group, reason, blame=blame)

    @_take.register
    def _(self, entry: Pushed) -> None:
        header = entry.header
        story = self._story(header.task, header.prompt_id)
        if entry.refill and (story is not None or entry.refill == self._group):
            self.groups[entry.refill] = GroupStory(
                entry.refill, header.prompt_id, completes=header.task
            )
        if story is None:
            return
        if story.attempts and story.attempts[-1].until_s is None:
            story.attempts[-1].until_s, story.attempts[-1].ended = self._at, "pushed"
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

    @_take.register
    def _(self, entry: Announced) -> None:
        self._newest[entry.message.policy] = entry.message.version

    @_take.register
    def _(self, entry: Asked) -> None:
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

    @_take.register
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

    @_take.register
    def _(self, entry: Evicted) -> None:
        self._mark(entry.policy, entry.arrivals, "evicted")

    def _mark(self, policy: str, arrivals: list[int], state: RowState) -> None:
        for arrival in arrivals:
            if (row := self._rows.get((policy, arrival))) is not None:
                row.state = state
