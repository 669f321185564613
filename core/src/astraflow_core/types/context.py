"""What a component is told about the run that it is part of."""

from __future__ import annotations

from dataclasses import dataclass
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
class ComponentContext:
    """Passed to a component's factory beside its config.

    ``policy`` is the policy that the component works for (empty for those of the whole run), ``role``
    the process it lives in (``"dataflow"``, ``"raas"``, ``"engine"``, ``"trainer"``, ``"launcher"``),
    ``seed`` its own seed, derived from the run's, ``directory`` a folder of its own that it may fill
    (it is created on first use by the component), ``token`` the run's bearer token (never logged).
    """

    run: RunInfo
    role: str
    policy: str
    seed: int
    directory: Path
    token: str = ""
