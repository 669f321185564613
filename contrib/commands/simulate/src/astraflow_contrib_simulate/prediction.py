"""The figures of a run, as recorded and as simulated, computed alike."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from astraflow_contrib_simulate.recording import RecordedPolicy, Recording
from astraflow_contrib_simulate.simulator import Setting, Simulator

WARM_UP = 5
"""Updates before those that count, in addition to the bound: buffers fill first."""
FEWEST_UPDATES = 50


@dataclass(frozen=True, slots=True)
class Figures:
    """Of one policy: seconds from update to update, the share of them that its trainer waited, rows by their
    staleness, and accepted rows per hour of one GPU (0 if there was no time)."""

    step_s: float
    waiting_fraction: float
    staleness: dict[int, int]
    rows_per_gpu_hour: float


@dataclass(frozen=True, slots=True)
class Prediction:
    """A setting and the figures of each policy. A policy without any stands still in that setting."""

    setting: Setting
    policies: dict[str, Figures]

    @property
    def step_s(self) -> float:
        """Seconds of a step of the slowest policy; infinite if a policy makes no steps."""
        return max((f.step_s for f in self.policies.values()), default=float("inf"))


def recorded(recording: Recording, gpus_per_raas: float = 1.0) -> dict[str, Figures]:
    """What happened."""
    gpus = _gpus(recording.policies, recording.replicas, gpus_per_raas)
    found = {}
    for name, policy in recording.policies.items():
        waited = sum(step.waited_s for step in policy.steps)
        seconds = waited + sum(step.busy_s for step in policy.steps)
        staleness = Counter(lag for step in policy.steps for lag in step.staleness)
        found[name] = _figures(len(policy.steps), seconds, waited, staleness, policy.accepted, gpus)
    return found


def predict(
    recording: Recording, setting: Setting, gpus_per_raas: float = 1.0, seed: int = 0
) -> Prediction:
    """What the run would have been in ``setting``, once it is under way."""
    warm_up = WARM_UP + setting.max_staleness
    wanted = max(FEWEST_UPDATES, *(len(p.steps) for p in recording.policies.values()))
    simulator = Simulator(recording, setting, warm_up + wanted, seed)
    simulator.run()
    gpus = _gpus(recording.policies, setting.replicas, gpus_per_raas)
    found = {}
    for name, trainer in simulator.trainers.items():
        ends = trainer.ends[warm_up - 1 :]
        if len(ends) < 2:
            return Prediction(setting, {})
        counted = slice(warm_up, warm_up + len(ends) - 1)
        found[name] = _figures(
            len(ends) - 1,
            ends[-1] - ends[0],
            sum(trainer.waits[counted]),
            sum(trainer.staleness[counted], Counter()),
            sum(ends[0] < at <= ends[-1] for at in trainer.accepted),
            gpus,
        )
    return Prediction(setting, found)


def recommended(predictions: list[Prediction], slack: float = 0.05) -> Prediction | None:
    """The one with the fewest RaaS whose steps are within ``slack`` of the fastest."""
    going = [p for p in predictions if p.policies]
    if not going:
        return None
    fastest = min(p.step_s for p in going)
    near = [p for p in going if p.step_s <= fastest * (1 + slack)]
    return min(near, key=lambda p: (p.setting.replicas, p.setting.max_staleness))


def _gpus(policies: Mapping[str, RecordedPolicy], replicas: float, gpus_per_raas: float) -> float:
    return sum(policy.ranks for policy in policies.values()) + replicas * gpus_per_raas


def _figures(
    steps: int, seconds: float, waited: float, staleness: Counter[int], accepted: int, gpus: float
) -> Figures:
    return Figures(
        step_s=seconds / steps,
        waiting_fraction=waited / seconds if seconds > 0 else 0.0,
        staleness=dict(sorted(staleness.items())),
        rows_per_gpu_hour=accepted * 3600 / (seconds * gpus) if seconds * gpus > 0 else 0.0,
    )
