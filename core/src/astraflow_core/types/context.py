"""What a component knows about the run that it is part of."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True)
class RunInfo:
    """The run as every process and every lifecycle hook sees it. ``engines`` are the frozen ones: models that
    workflows ask by name, like ``policies``, and that are never trained."""

    name: str
    seed: int
    steps: int
    max_staleness: int
    policies: tuple[str, ...]
    directory: Path
    engines: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Ranks:
    """Which process of a trainer this one is: ``rank`` of ``size``, ``local`` among those of its host.
    ``deadline_s`` is the longest that it waits for the others, for time-outs of collectives."""

    rank: int = 0
    size: int = 1
    local: int = 0
    deadline_s: float = 600.0


@dataclass(frozen=True, slots=True)
class ComponentContext:
    """Passed to a component's factory along with its config.

    ``policy`` is the policy that the component works for (empty for those of the whole run), ``role``
    the process it lives in (``"dataflow"``, ``"raas"``, ``"engine"``, ``"trainer"``, ``"launcher"``),
    ``seed`` its own seed, derived from the run's, ``directory`` its own folder, which it may fill
    (it is created on first use by the component), ``token`` the secret that the components of the run share (never logged),
    ``ranks`` the place of this process among those of a trainer, ``replica`` which of the ``replicas`` engines that
    serve the policy in one RaaS this is.
    """

    run: RunInfo
    role: str
    policy: str
    seed: int
    directory: Path
    token: str = field(default="", repr=False)
    ranks: Ranks = Ranks()
    replica: int = 0
    replicas: int = 1
