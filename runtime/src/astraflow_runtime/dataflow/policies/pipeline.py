"""The data policies of a run, applied in the order of their list at each point."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

from astraflow_core.errors import PluginError, RunFailed
from astraflow_core.protocols.data_policy import (
    Accept,
    Admit,
    Arrange,
    Borrow,
    Draw,
    Explain,
    Follow,
    Hold,
    Key,
    Metrics,
    OnVersion,
    Stateful,
)
from astraflow_core.types import BufferedRow, GroupSummary, Prompt, Verdict
from astraflow_runtime.dataflow.policies.decisions import Decision, Decisions, PromptRefusal
from astraflow_runtime.dataflow.policies.remembering import attributes, remembers

REFUSED = "refused"
"""The reason shown for a policy that gives none."""


@dataclass(frozen=True, slots=True)
class NamedPolicy:
    """A data policy under the name that the config uses for it. A ``shadow`` gets the same calls as
    an active policy at its place, and its decisions have no effect.
    """

    name: str
    component: Any
    shadow: bool = False


@dataclass(slots=True)
class ShadowCounts:
    """The decisions of a shadow: prompts and groups that it judged and rejected, batches that it
    was asked for, delayed or drew, and the rows of these that differ from those served.
    """

    prompts: int = 0
    prompts_refused: int = 0
    groups: int = 0
    groups_refused: int = 0
    batches: int = 0
    batches_held: int = 0
    rows_otherwise: int = 0


@contextmanager
def naming_policy(policy: NamedPolicy, method: str) -> Iterator[None]:
    """An exception in the ``method`` of a data policy ends the run and names the policy."""
    try:
        yield
    except Exception as error:
        raise RunFailed(
            f"data policy {policy.name!r} raised {type(error).__name__} in {method}: {error}"
        ) from error


class PolicyPipeline:
    """An ordered list of data policies; what no policy rejects is accepted."""

    def __init__(self, policies: Sequence[NamedPolicy]) -> None:
        self.shadows: dict[str, ShadowCounts] = {}
        self.refused: Counter[str] = Counter()
        self.decisions: Decisions = Counter()
        self._first: dict[str, dict[str, Any]] = {}
        self._policies: tuple[NamedPolicy, ...] = ()
        self._set_up(tuple(policies))

    def _set_up(self, policies: tuple[NamedPolicy, ...]) -> None:
        drawing = [policy for policy in policies if isinstance(policy.component, Draw)]
        draws = [policy for policy in drawing if not policy.shadow]
        if len(draws) > 1:
            names = " and ".join(repr(policy.name) for policy in draws)
            raise PluginError(
                f"only one data policy of a list can draw the rows of a batch, not {names}: it decides how many of "
                "them are fresh. Other data policies may order the buffer, or arrange its rows for each batch"
            )
        borrowing = [policy for policy in policies if isinstance(policy.component, Borrow)]
        if len(borrowing) > 1 or any(policy.shadow for policy in borrowing):
            names = " and ".join(repr(policy.name) for policy in borrowing)
            raise PluginError(
                f"only one data policy of a list can borrow rows of another policy, and it cannot be a shadow: {names}"
            )
        for policy in policies:
            if policy not in self._policies:
                self._first[policy.name] = attributes(policy.component)
        self._policies = policies
        self.borrowing = borrowing[0] if borrowing else None
        """The policy that takes rows which another policy of the run sampled, if one does."""
        self._draw = draws[0] if draws else None
        self._shadow_draws = [policy for policy in drawing if policy.shadow]
        self._arrange = self._implementing(Arrange)
        self._admit = self._implementing(Admit)
        self._accept = self._implementing(Accept)
        self._key = [policy for policy in self._implementing(Key) if not policy.shadow]
        self._follow = self._implementing(Follow)
        self._hold = [policy for policy in self._implementing(Hold) if not policy.shadow]
        self.shadows = {
            policy.name: self.shadows.get(policy.name, ShadowCounts())
            for policy in policies
            if policy.shadow
        }

    def policy(self, name: str) -> NamedPolicy:
        """The policy of that name; :class:`LookupError` if there is none."""
        for policy in self._policies:
            if policy.name == name:
                return policy
        raise LookupError(f"no data policy {name!r}")

    def replace(self, new: NamedPolicy) -> None:
        """Replace the policy of the same name; :class:`PluginError`, and no change, if it conflicts
        with the others.
        """
        old = self.policy(new.name)
        self._set_up(tuple(new if policy is old else policy for policy in self._policies))

    @property
    def draws(self) -> str | None:
        """The name of the policy that draws the rows of a batch, if one does."""
        return self._draw.name if self._draw else None

    @property
    def chooses(self) -> bool:
        """Whether a policy takes part in the choice of each batch."""
        return self._draw is not None or self.borrowing is not None or bool(self._arrange)

    @property
    def decides_on_own_rows(self) -> list[str]:
        """Names of the policies, shadows included, that decide which of its own rows a policy
        trains on.
        """
        points = (Accept, Key, Arrange, Draw)
        return [policy.name for policy in self._policies if isinstance(policy.component, points)]

    @property
    def wants_kept(self) -> bool:
        """Whether a policy, active or shadow, draws rows that were served before."""
        return self._draw is not None or bool(self._shadow_draws)

    def admit(self, prompt: Prompt) -> Decision:
        """Whether all policies admit the prompt. Policies after the first rejection are not asked."""
        shadow_rejections = []
        for policy in self._admit:
            with naming_policy(policy, "admit"):
                admitted = policy.component.admit(prompt)
            refusal = None if admitted else self._why_refused(policy, prompt)
            self.count(policy, "admit", refusal.reason if refusal else "admitted")
            if policy.shadow:
                self.shadows[policy.name].prompts += 1
                self.shadows[policy.name].prompts_refused += not admitted
                shadow_rejections += [refusal] if refusal else []
            elif refusal:
                self.refused[policy.name] += 1
                return Decision(refusal, tuple(shadow_rejections))
        return Decision(None, tuple(shadow_rejections))

    def accept(self, group: GroupSummary) -> Decision:
        """Whether all policies keep the group. Policies after the first rejection do not see it."""
        shadow_rejections = []
        for policy in self._accept:
            with naming_policy(policy, "accept"):
                verdict = policy.component.accept(group)
            if not isinstance(verdict, Verdict):
                raise RunFailed(
                    f"data policy {policy.name!r}: accept returned {verdict!r:.80}, expected a Verdict, such as "
                    "Verdict(False, 'too long')"
                )
            refusal = None
            if not verdict.accepted:
                refusal = PromptRefusal(policy.name, verdict.reason or REFUSED)
            self.count(policy, "accept", refusal.reason if refusal else "accepted")
            if policy.shadow:
                self.shadows[policy.name].groups += 1
                self.shadows[policy.name].groups_refused += not verdict.accepted
                shadow_rejections += [refusal] if refusal else []
            elif refusal:
                return Decision(refusal, tuple(shadow_rejections))
        return Decision(None, tuple(shadow_rejections))

    def _why_refused(self, policy: NamedPolicy, prompt: Prompt) -> PromptRefusal:
        if not isinstance(policy.component, Explain):
            return PromptRefusal(policy.name, REFUSED)
        with naming_policy(policy, "why_refused"):
            return PromptRefusal(policy.name, policy.component.why_refused(prompt))

    def count(self, policy: NamedPolicy, point: str, what: str) -> None:
        """Count a decision of a policy at a point."""
        self.decisions[policy.name, f"shadow_{point}" if policy.shadow else point, what] += 1

    def observe(self, group: GroupSummary) -> None:
        """Let every policy learn from a group; their verdicts have no effect."""
        for policy in self._accept:
            with naming_policy(policy, "accept"):
                policy.component.accept(group)

    def key(self, row: BufferedRow) -> tuple[float, ...]:
        """Sort keys in list order: the first policy decides, the next ones break ties."""
        keys = []
        for policy in self._key:
            with naming_policy(policy, "key"):
                keys.append(float(policy.component.key(row)))
        return tuple(keys)

    def arranged(
        self, count: int, fresh: Sequence[BufferedRow], version: int
    ) -> Sequence[BufferedRow]:
        """The fresh rows as all policies arrange them for a batch of ``count``. A shadow arranges
        them as they are at its place; the rows that it would have moved to the front are counted.
        """
        for policy in self._arrange:
            rows = self._rearranged(policy, fresh, version)
            self.count(policy, "arrange", "arranged" if len(rows) == len(fresh) else "held back")
            if policy.shadow:
                counts, before = self.shadows[policy.name], {row.arrival for row in fresh[:count]}
                counts.batches += 1
                counts.batches_held += len(rows) < count <= len(fresh)
                counts.rows_otherwise += len({row.arrival for row in rows[:count]} - before)
            else:
                fresh = rows
        return fresh

    @staticmethod
    def _rearranged(
        policy: NamedPolicy, fresh: Sequence[BufferedRow], version: int
    ) -> list[BufferedRow]:
        with naming_policy(policy, "arrange"):
            rows: list[BufferedRow] = policy.component.arrange(fresh, version)
        arrivals, offered = [row.arrival for row in rows], {row.arrival for row in fresh}
        if len({*arrivals}) != len(arrivals) or not offered.issuperset(arrivals):
            raise RunFailed(
                f"data policy {policy.name!r} arranged {len(fresh)} rows and returned {len(rows)}, "
                f"{len(offered.intersection(arrivals))} of them distinct; it must return each row at most once"
            )
        return rows

    def draw(
        self, count: int, fresh: Sequence[BufferedRow], kept: Sequence[BufferedRow], version: int
    ) -> list[int] | None:
        """Arrival numbers of the rows that the drawing policy chose, or ``None`` to wait."""
        assert self._draw is not None
        drawn = self._drawn(self._draw, count, fresh, kept, version)
        self.count(self._draw, "draw", "waited" if drawn is None else "drawn")
        return drawn

    def served(
        self,
        arrivals: Sequence[int],
        fresh: Sequence[BufferedRow],
        kept: Sequence[BufferedRow],
        version: int,
    ) -> None:
        """A batch of rows with these arrival numbers was cut: ask the drawing shadows for their
        choice.
        """
        for policy in self._shadow_draws:
            counts = self.shadows[policy.name]
            drawn = self._drawn(policy, len(arrivals), fresh, kept, version)
            self.count(policy, "draw", "waited" if drawn is None else "drawn")
            counts.batches += 1
            counts.batches_held += drawn is None
            counts.rows_otherwise += len(set(drawn or ()) - set(arrivals))

    @staticmethod
    def _drawn(
        policy: NamedPolicy,
        count: int,
        fresh: Sequence[BufferedRow],
        kept: Sequence[BufferedRow],
        version: int,
    ) -> list[int] | None:
        with naming_policy(policy, "draw"):
            chosen = policy.component.draw(count, fresh, kept, version)
        if chosen is None:
            return None
        arrivals = [row.arrival for row in chosen]
        offered = {row.arrival for row in fresh} | {row.arrival for row in kept}
        if (
            len(arrivals) != count
            or len(set(arrivals)) != count
            or not offered.issuperset(arrivals)
        ):
            raise RunFailed(
                f"data policy {policy.name!r} drew {len(arrivals)} rows ({len(offered.intersection(arrivals))} "
                f"distinct ones of those offered); expected exactly {count}"
            )
        return arrivals

    def on_version(self, policy: str, version: int) -> None:
        """A version was announced."""
        for named in self._implementing(OnVersion):
            with naming_policy(named, "on_version"):
                named.component.on_version(policy, version)

    def on_admitted(self, prompt: Prompt) -> None:
        """A prompt became a task."""
        for policy in self._follow:
            with naming_policy(policy, "on_admitted"):
                policy.component.on_admitted(prompt)

    def on_ended(self, prompt: Prompt, outcome: str) -> None:
        """The task of a prompt ended."""
        for policy in self._follow:
            with naming_policy(policy, "on_ended"):
                policy.component.on_ended(prompt, outcome)

    def held_by(self) -> str:
        """The first policy that holds back prompts now; empty if none does."""
        for policy in self._hold:
            with naming_policy(policy, "hold"):
                if policy.component.hold():
                    return policy.name
        return ""

    def metrics(self) -> dict[str, float]:
        """``NAME/metric`` → value for all policies; for shadows also ``shadow_…``, their decisions
        (:class:`ShadowCounts`).
        """
        own: dict[str, float] = {}
        for policy in self._implementing(Metrics):
            with naming_policy(policy, "metrics"):
                given = policy.component.metrics().items()
                own |= {f"{policy.name}/{key}": float(value) for key, value in given}
        for name, counts in self.shadows.items():
            own |= {f"{name}/shadow_{key}": float(n) for key, n in asdict(counts).items()}
        return own

    @property
    def remembering(self) -> str:
        """The name of a policy that has a state but no ``state_dict``; empty if there is none."""
        for policy in self._policies:
            if remembers(policy.component, self._first[policy.name]):
                return policy.name
        return ""

    def state_dict(self) -> list[dict[str, Any] | None]:
        """States in list order, ``None`` for policies without."""
        stateful = {id(policy) for policy in self._implementing(Stateful)}
        return [p.component.state_dict() if id(p) in stateful else None for p in self._policies]

    def load_state_dict(self, states: Sequence[dict[str, Any] | None]) -> None:
        """Restore the :meth:`state_dict` of a list of the same policies."""
        for policy, state in zip(self._policies, states, strict=True):
            if state is not None:
                policy.component.load_state_dict(state)

    def _implementing(self, protocol: type) -> tuple[NamedPolicy, ...]:
        return tuple(policy for policy in self._policies if isinstance(policy.component, protocol))
