"""Numbers as people read them."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

from astraflow_wire.policy_status import PolicyStatus

_WINDOW_S = 10.0
_REASONS = 2


class Rates:
    """Tokens per second over the last ten seconds."""

    def __init__(self) -> None:
        self._points: deque[tuple[float, int, int]] = deque()

    def update(self, now: float, generated: int, trained: int) -> None:
        """Note both counters at time ``now`` (seconds). One that went back, as it does when updates are made again,
        starts over."""
        if self._points and (generated < self._points[-1][1] or trained < self._points[-1][2]):
            self._points.clear()
        self._points.append((now, generated, trained))
        while len(self._points) > 2 and now - self._points[0][0] > _WINDOW_S:
            self._points.popleft()

    def _rate(self, index: int) -> float:
        if len(self._points) < 2:
            return 0.0
        first, last = self._points[0], self._points[-1]
        return (last[index] - first[index]) / max(last[0] - first[0], 1e-9)

    @property
    def generated(self) -> float:
        """Sampled tokens per second."""
        return self._rate(1)

    @property
    def trained(self) -> float:
        """Trained tokens per second."""
        return self._rate(2)


def number(value: float | None, digits: int = 3) -> str:
    """A figure, or a dash for one that is not there yet."""
    return "–" if value is None else f"{value:.{digits}f}"


def probe_gap(metrics: Mapping[str, float | None]) -> str:
    """`` gap 0.0012`` in nats of the last probe of a policy; empty if there was none."""
    mean = metrics.get("probe_mean")
    return "" if mean is None else f" gap {mean:.2g}"


def sampled(policy: PolicyStatus) -> str:
    """What was sampled for the last step: ``112 tokens (most 400), 12% cut off, 25% equal groups, 50% passed``; empty before
    the first."""
    if policy.completion_length_mean is None:
        return ""
    parts = [f"{policy.completion_length_mean:.0f} tokens (most {policy.completion_length_max})"]
    for share, what in (
        (policy.truncated_fraction, "cut off"),
        (policy.equal_groups_fraction, "equal groups"),
        (policy.pass_rate, "passed"),
    ):
        if share is not None:
            parts.append(f"{share:.0%} {what}")
    return ", ".join(parts)


def episode_metrics(policy: PolicyStatus, most: int) -> str:
    """``tool_calls 1.500 (6 of 8), …``: the first ``most`` metrics of the batch trained last, with the number of episodes
    that gave one if not all did."""
    parts = [
        f"{name} {number(each.mean)}"
        + (f" ({each.episodes} of {policy.episodes})" if each.episodes < policy.episodes else "")
        for name, each in list(policy.episode_metrics.items())[:most]
    ]
    more = ", …" if len(policy.episode_metrics) > most else ""
    return ", ".join(parts) + more


def rejections(accepted: int, rejected: Mapping[str, int], most: int = _REASONS) -> str:
    """``3 of 10 groups rejected: "all rewards equal" (2), "stale" (1)``, the ``most`` frequent reasons; empty if none was.
    ``rejected``: reason → groups."""
    total = sum(rejected.values())
    if not total:
        return ""
    often = sorted(rejected.items(), key=lambda entry: (-entry[1], entry[0]))
    told = [f'"{reason}" ({groups})' for reason, groups in often[:most]]
    more = ", …" if len(often) > most else ""
    return f"{total} of {accepted + total} groups rejected: {', '.join(told)}{more}"


def count(value: float) -> str:
    """A large count with a suffix: ``12.3k``, ``4.5M``."""
    for size, suffix in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= size:
            return f"{value / (1e3 if suffix == 'k' else size):.1f}{suffix}"
    return f"{value:.0f}"


def duration(seconds: float) -> str:
    """``42 s``, ``3 min 05 s``, ``2 h 10 min``."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
