"""The data policies of a run, applied in the order of their list at each point."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from astraflow_core.errors import PluginError, RunFailed
from astraflow_core.protocols.data_policy import (
    Accept,
    Admit,
    Draw,
    Follow,
    Hold,
    Key,
    Metrics,
    OnVersion,
    Stateful,
)
from astraflow_core.types import BufferedRow, GroupSummary, Prompt, Verdict


@dataclass(frozen=True, slots=True)
class NamedPolicy:
    """A data policy under the name that the config uses for it."""

    name: str
    component: Any


@contextmanager
def _blaming(policy: NamedPolicy, method: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        raise RunFailed(
            f"data policy {policy.name!r} raised {type(error).__name__} in {method}: {error}"
        ) from error


class DataChain:
    """An ordered list of data policies; what no policy decides is let through."""

    def __init__(self, policies: Sequence[NamedPolicy]) -> None:
        self._policies = tuple(policies)
        self._admit = self._with(Admit)
        self._accept = self._with(Accept)
        self._key = self._with(Key)
        self._follow = self._with(Follow)
        self._hold = self._with(Hold)
        draws = self._with(Draw)
        if len(draws) > 1:
            names = " and ".join(repr(policy.name) for policy in draws)
            raise PluginError(f"only one data policy can draw the rows of a batch, not {names}")
        self._draw = draws[0] if draws else None
        self.refused: Counter[str] = Counter()

    @property
    def draws(self) -> str | None:
        """Name of the policy that chooses the rows of a batch, if one does."""
        return self._draw.name if self._draw else None

    def admit(self, prompt: Prompt) -> bool:
        """Whether all policies admit the prompt; refusals are counted by policy."""
        for policy in self._admit:
            with _blaming(policy, "admit"):
                admitted = policy.component.admit(prompt)
            if not admitted:
                self.refused[policy.name] += 1
                return False
        return True

    def accept(self, group: GroupSummary) -> Verdict:
        """The first refusal, or acceptance. A policy after a refusal does not see the group."""
        for policy in self._accept:
            with _blaming(policy, "accept"):
                verdict = policy.component.accept(group)
            if not verdict.accepted:
                return Verdict(False, verdict.reason or policy.name)
        return Verdict(True)

    def observe(self, group: GroupSummary) -> None:
        """Let every policy learn from a group; their verdicts decide nothing."""
        for policy in self._accept:
            with _blaming(policy, "accept"):
                policy.component.accept(group)

    def key(self, row: BufferedRow) -> tuple[float, ...]:
        """Keys in list order: the first policy decides, the next break its ties."""
        keys = []
        for policy in self._key:
            with _blaming(policy, "key"):
                keys.append(float(policy.component.key(row)))
        return tuple(keys)

    def draw(
        self, count: int, fresh: Sequence[BufferedRow], kept: Sequence[BufferedRow], version: int
    ) -> list[int] | None:
        """Arrival numbers of the rows that the drawing policy chose, or ``None`` to wait."""
        assert self._draw is not None
        with _blaming(self._draw, "draw"):
            chosen = self._draw.component.draw(count, fresh, kept, version)
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
                f"data policy {self._draw.name!r} drew {len(arrivals)} rows "
                f"({len(offered.intersection(arrivals))} different ones of those offered); "
                f"exactly {count} were asked for"
            )
        return arrivals

    def on_version(self, policy: str, version: int) -> None:
        """A version was announced."""
        for named in self._with(OnVersion):
            with _blaming(named, "on_version"):
                named.component.on_version(policy, version)

    def on_admitted(self, prompt: Prompt) -> None:
        """A prompt became a task."""
        for policy in self._follow:
            with _blaming(policy, "on_admitted"):
                policy.component.on_admitted(prompt)

    def on_ended(self, prompt: Prompt, outcome: str) -> None:
        """The task of a prompt ended."""
        for policy in self._follow:
            with _blaming(policy, "on_ended"):
                policy.component.on_ended(prompt, outcome)

    def held_by(self) -> str:
        """The first policy that wants no more prompts now; empty if none does."""
        for policy in self._hold:
            with _blaming(policy, "hold"):
                if policy.component.hold():
                    return policy.name
        return ""

    def metrics(self) -> dict[str, float]:
        """``NAME/metric`` → value of all policies."""
        return {
            f"{policy.name}/{key}": float(value)
            for policy in self._with(Metrics)
            for key, value in policy.component.metrics().items()
        }

    def state_dict(self) -> list[dict[str, Any] | None]:
        """States in list order, ``None`` for policies without."""
        stateful = {id(policy) for policy in self._with(Stateful)}
        return [p.component.state_dict() if id(p) in stateful else None for p in self._policies]

    def load_state_dict(self, states: Sequence[dict[str, Any] | None]) -> None:
        """Restore :meth:`state_dict` of a chain of the same policies."""
        for policy, state in zip(self._policies, states, strict=True):
            if state is not None:
                policy.component.load_state_dict(state)

    def _with(self, protocol: type) -> tuple[NamedPolicy, ...]:
        return tuple(policy for policy in self._policies if isinstance(policy.component, protocol))
