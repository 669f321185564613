"""What data policies see of groups and rows, and what they return."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from astraflow_core.types.prompt import Prompt


@dataclass(frozen=True, slots=True)
class GroupSummary:
    """A finished group as one policy's data policies see it, before any normalisation.

    ``rewards`` float64 ``[n]`` of the policy's sequences, rounded to float32 as they are trained, ``lengths`` int32 ``[n]`` (all tokens),
    ``trained`` int32 ``[n]`` (trained tokens), ``min_versions`` int32 ``[n]``, ``truncated`` bool ``[n]``
    (ended by the token limit). ``version`` is the policy's newest announced version.
    """

    policy: str
    prompt: Prompt
    rewards: npt.NDArray[np.float64]
    lengths: npt.NDArray[np.int32]
    trained: npt.NDArray[np.int32]
    min_versions: npt.NDArray[np.int32]
    truncated: npt.NDArray[np.bool_]
    version: int


@dataclass(frozen=True, slots=True)
class Verdict:
    """``accepted``, or the reason why not (a short phrase, counted per reason)."""

    accepted: bool
    reason: str = ""


@dataclass(frozen=True, slots=True)
class BufferedRow:
    """A row in a policy's buffer. ``arrival`` numbers rows in the order of acceptance."""

    arrival: int
    prompt_id: str
    min_version: int
    length: int
    reward: float
    group_size: int
    group_mean: float
    group_std: float
    times_served: int = 0


@dataclass(frozen=True, slots=True)
class PoolWindow:
    """What one trainer measured of a pool of ``size`` RaaS during a few versions: the share of its time that it
    waited (``waiting``), trained tokens that were ``accepted`` and ``consumed`` (each row once, no matter
    how often it was replayed), and ``held_back``, the share of episode slots that were idle for lack of
    a task, in [0, 1)."""

    size: int
    waiting: float
    accepted: float
    consumed: float
    held_back: float = 0.0


Branch = Literal["grow", "shrink", "hold"]


@dataclass(frozen=True, slots=True)
class PoolTarget:
    """The size that the pool should have, and why."""

    branch: Branch
    size: int
