"""DataPolicy: decides in the dataflow which prompts to roll out, what to keep, what to train on; or, in
``[balance]``, how many RaaS there should be (:class:`Scale`).

A data policy implements any of :class:`Admit`, :class:`Accept`, :class:`Key`, :class:`Arrange`, :class:`Draw`,
:class:`Borrow`;
those of a list in the config are applied in order at each point. ``why_refused``, ``on_version``, ``on_admitted`` and
``on_ended``, ``hold``, ``state_dict`` and ``load_state_dict``, ``metrics`` are optional. A data policy sees
rewards and statistics, never an algorithm's advantages; random choices use a generator seeded by ``context.seed``,
which is part of its state. Its decisions depend only on its calls and that seed: a restarted
dataflow repeats all calls in the same order and must reach the same decisions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

from astraflow_core.types import (
    BufferedRow,
    GroupSummary,
    PoolTarget,
    PoolWindow,
    Prompt,
    Verdict,
)


@runtime_checkable
class Admit(Protocol):
    """Decides before rollout."""

    def admit(self, prompt: Prompt) -> bool:
        """Whether to roll this prompt out now."""


@runtime_checkable
class Explain(Protocol):
    """Says why it refused a prompt."""

    def why_refused(self, prompt: Prompt) -> str:
        """A short phrase, counted per reason; called right after ``admit`` refused this prompt, without
        side effects."""


@runtime_checkable
class Accept(Protocol):
    """Decides after rollout."""

    def accept(self, group: GroupSummary) -> Verdict:
        """Whether to keep the group for ``group.policy``; also the place to learn from outcomes."""


@runtime_checkable
class Key(Protocol):
    """Orders the buffer."""

    def key(self, row: BufferedRow) -> float:
        """Rows with smaller keys are served first; equal keys in order of arrival."""


@runtime_checkable
class Arrange(Protocol):
    """Decides for each batch which fresh rows come first, before one of the list draws."""

    def arrange(self, fresh: Sequence[BufferedRow], version: int) -> list[BufferedRow]:
        """``fresh`` (never served, in the order of the policies before) in the order in which they are
        considered for the batch that updates ``version``; rows that are omitted wait."""


@runtime_checkable
class Draw(Protocol):
    """Chooses the rows of a batch; only one policy of a list can."""

    def draw(
        self, count: int, fresh: Sequence[BufferedRow], kept: Sequence[BufferedRow], version: int
    ) -> list[BufferedRow] | None:
        """``count`` rows out of ``fresh`` (never served, in key order or as arranged) and ``kept`` (served
        before, each once, in the order in which they were served first), or ``None`` to wait for more. Rows too
        stale for ``version`` are not offered."""


@runtime_checkable
class Borrow(Protocol):
    """Mixes rows that another policy sampled into batches, or lets the policy share that one's stream; only one
    policy of a list can, and no shadow."""

    @property
    def source(self) -> str:
        """The policy whose accepted rows are lent; its config has the key ``source``."""

    @property
    def max_age(self) -> int:
        """The maximum number of versions *of the source* that a borrowed row may be behind its newest one."""

    def most(self, count: int) -> int:
        """The maximum number of borrowed rows in a batch of ``count``, the same at each call. If that is
        ``count`` the stream is shared entirely: no row of a batch is the policy's own, and a batch waits until ``count``
        rows are borrowed."""

    def borrow(self, count: int, lent: Sequence[BufferedRow], version: int) -> list[BufferedRow]:
        """At most :meth:`most` of the rows ``lent`` (accepted for the source, never borrowed, oldest first) for
        the batch that updates ``version``; its other rows, if it is to have any, are drawn from the policy's
        own."""


@runtime_checkable
class Stateful(Protocol):
    """Has state that a checkpoint holds."""

    def state_dict(self) -> dict[str, Any]:
        """JSON-like state, generators included."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore :meth:`state_dict`."""


@runtime_checkable
class OnVersion(Protocol):
    """Is notified of new versions."""

    def on_version(self, policy: str, version: int) -> None:
        """Version ``version`` of ``policy`` was announced."""


@runtime_checkable
class Follow(Protocol):
    """Is notified of what happens to prompts; used under ``[prompts] data`` only."""

    def on_admitted(self, prompt: Prompt) -> None:
        """The prompt became a task: every policy admitted it, or it was forced."""

    def on_ended(self, prompt: Prompt, outcome: str) -> None:
        """Its task ended: ``"accepted"`` or ``"rejected"`` (after all calls of ``accept``), ``"failed"``
        (a RaaS reported that it cannot be done) or ``"set_aside"`` (too many attempts)."""


@runtime_checkable
class Hold(Protocol):
    """Decides when to roll out; used under ``[prompts] data`` only."""

    def hold(self) -> bool:
        """Whether to admit no more prompts for now. May be called at any time and any number of times, without
        side effects. It is overruled while no task is in progress."""


@runtime_checkable
class Scale(Protocol):
    """Says how many RaaS there should be, for ``[raas] autoscale`` and for people; capability ``scale``. Its
    config has ``min_replicas`` and ``max_replicas`` (or ``None``), between which it stays."""

    @property
    def every(self) -> int:
        """Versions between two reports."""

    @property
    def cool_down_s(self) -> float:
        """Minimum seconds between two changes of the pool."""

    def pool_size(self, window: PoolWindow) -> PoolTarget:
        """The pool size that the measurements of one trainer suggest; the largest of all trainers is used."""


@runtime_checkable
class Metrics(Protocol):
    """Exports metrics."""

    def metrics(self) -> dict[str, float]:
        """Current metrics of the policy, with names without a prefix."""
