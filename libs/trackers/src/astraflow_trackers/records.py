"""What trackers get in addition to metrics: JSON-like records."""

from __future__ import annotations

from typing import Any, TypedDict


class RolloutRow(TypedDict):
    """A trajectory that ``policy`` was trained on in update ``step``. ``group``: the name of its task. ``prompt`` and
    ``completion`` are texts, cut at a bound; ``completion`` has everything that follows the prompt, with the name of a role
    where turns change. ``versions``: lowest and highest that sampled it."""

    policy: str
    step: int
    group: str
    prompt_id: str
    prompt: str
    completion: str
    reward: float
    tokens: int
    truncated: bool
    versions: tuple[int, int]
    time_s: float


class SpanRecord(TypedDict):
    """Something that ``service`` did for one prompt, from ``start_s`` to ``end_s`` (since 1970). ``trace``: 32 hexadecimal
    digits, the same for all spans of the prompt in this run; ``id`` and ``parent``: 16 of them, ``parent`` empty at the root.
    ``error``: why it failed, empty if it did not."""

    trace: str
    id: str
    parent: str
    name: str
    service: str
    start_s: float
    end_s: float
    error: str
    attributes: dict[str, Any]


ROLLOUT_COLUMNS = tuple(RolloutRow.__annotations__)
"""The keys of a :class:`RolloutRow`, in the order of a table."""
