"""Results of the public protocol as trajectories of ours: every shape is checked here, every value by the dataflow."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from astraflow_core.types import Sequence, Trajectory
from astraflow_core.types.trajectory import NOT_SAMPLED

COLUMNS = ("input_ids", "loss_mask", "logprobs", "versions")
MOST_METRICS = 64
Ints = npt.NDArray[np.int64]


class WrongResult(ValueError):
    """A result that is not of the form that the public protocol says; the message names what is wrong."""


@dataclass(frozen=True)
class ForeignResults:
    """Reads results of one RaaS. ``policies``: number of a model → policy. ``version_of(policy, number)``: the version
    that was delivered to the RaaS under a number; KeyError if none was."""

    policies: Mapping[int, str]
    version_of: Callable[[str, int], int]

    def trajectories(self, result: Any, most: int) -> list[Trajectory]:
        """The episodes of one submission, ``most`` at most. Raises :class:`WrongResult`."""
        if not isinstance(result, dict):
            raise WrongResult(f"a result is {type(result).__name__}, expected a dict")
        if result.get("ok") is False:
            raise WrongResult(f"the task failed there: {str(result.get('error'))[:500]}")
        episodes, count = result.get("trajectories"), result.get("n_trajs")
        if not isinstance(episodes, list) or not isinstance(count, int):
            raise WrongResult("a result needs n_trajs, rewards and trajectories")
        rewards = _column(result.get("rewards"), "rewards", np.float64)
        if not count == len(episodes) == len(rewards):
            raise WrongResult(
                f"n_trajs is {count}, with {len(rewards)} rewards and {len(episodes)} trajectories"
            )
        if count > most:
            raise WrongResult(f"{count} trajectories, but only {most} were requested")
        metrics = _metrics(result.get("agent_metrics"))
        return [
            self._trajectory(episode, float(reward), metrics)
            for episode, reward in zip(episodes, rewards, strict=True)
        ]

    def _trajectory(self, episode: Any, reward: float, metrics: dict[str, float]) -> Trajectory:
        given = episode.get("sequences") if isinstance(episode, dict) else None
        if not isinstance(given, list) or not given:
            raise WrongResult("a trajectory without sequences")
        if not all(isinstance(sequence, dict) for sequence in given):
            raise WrongResult("a sequence that is not a dict")
        own = [_own_reward(sequence) for sequence in given]
        if all(each in (None, reward) for each in own):
            own = [None] * len(own)  # each repeats the reward of the trajectory
        found = [
            sequence
            for told, earned in zip(given, own, strict=True)
            for sequence in self._sequences(told, earned)
        ]
        policies = {sequence.policy for sequence in found}
        return Trajectory(tuple(found), (), dict.fromkeys(policies, reward), dict(metrics))

    def _sequences(self, told: dict[str, Any], earned: float | None) -> list[Sequence]:
        """One sequence for each model that sampled in it."""
        tokens = _integers(told.get("input_ids"), "input_ids")
        mask = _integers(told.get("loss_mask"), "loss_mask")
        versions = _integers(told.get("versions"), "versions")
        logprobs = _column(told.get("logprobs"), "logprobs", np.float32)
        shown = told.get("attention_mask")
        attended = _integers(shown, "attention_mask") if shown is not None else np.ones_like(tokens)
        models = _integers(told["model_ids"], "model_ids") if "model_ids" in told else None
        columns = [
            tokens,
            mask,
            logprobs,
            versions,
            attended,
            *([] if models is None else [models]),
        ]
        if len({len(column) for column in columns}) > 1 or not len(tokens):
            lengths = {name: len(c) for name, c in zip(COLUMNS, columns, strict=False)}
            raise WrongResult(f"the columns of a sequence must have one length above 0: {lengths}")
        if not np.isin(mask, (0, 1)).all() or not np.isin(attended, (0, 1)).all():
            raise WrongResult("loss_mask and attention_mask must be 0 or 1")
        kept = np.flatnonzero(attended)
        if not len(kept) or kept[-1] - kept[0] + 1 != len(kept):
            raise WrongResult("attention_mask must be one run of ones")
        part = slice(int(kept[0]), int(kept[-1]) + 1)
        trained = mask[part] == 1
        chosen = self._trained_by(None if models is None else models[part], trained)
        found = []
        for policy, sampled in chosen.items():
            found.append(
                Sequence(
                    policy,
                    tokens[part].astype(np.int32),
                    sampled,
                    logprobs[part].copy(),
                    self._versions(policy, versions[part]),
                    earned,
                )
            )
        return found

    def _trained_by(
        self, models: Ints | None, trained: npt.NDArray[np.bool_]
    ) -> dict[str, npt.NDArray[np.bool_]]:
        """Policy → the tokens of it that are trained."""
        if models is None:
            if len(self.policies) > 1:
                raise WrongResult("a sequence of a run with several models needs model_ids")
            return {next(iter(self.policies.values())): trained}
        numbers = [int(number) for number in np.unique(models) if number >= 0]
        if unknown := [number for number in numbers if number not in self.policies]:
            raise WrongResult(f"model_ids has {unknown[0]}; the run has {sorted(self.policies)}")
        if not numbers:
            raise WrongResult("model_ids names no model")
        return {self.policies[number]: trained & (models == number) for number in numbers}

    def _versions(self, policy: str, numbers: Ints) -> npt.NDArray[np.int32]:
        found = np.full(len(numbers), NOT_SAMPLED, np.int32)
        for number in map(int, np.unique(numbers)):
            if number == NOT_SAMPLED:
                continue
            try:
                found[numbers == number] = self.version_of(policy, number)
            except KeyError as error:
                raise WrongResult(
                    f"tokens of version {number}, which was not delivered to this RaaS"
                ) from error
        return found


def _column(value: Any, name: str, dtype: type[np.generic]) -> npt.NDArray[Any]:
    """One row of numbers: a list, ``[L]`` or ``[1, L]``."""
    try:
        found = np.asarray(value)
        if found.dtype.kind not in "biuf":
            raise ValueError(f"it is {type(value).__name__} of {found.dtype}")
        if found.ndim == 2 and found.shape[0] == 1:
            found = found[0]
        if found.ndim != 1:
            raise ValueError(f"its shape is {found.shape}")
        return found.astype(dtype)
    except (TypeError, ValueError) as error:
        raise WrongResult(f"{name} must be one row of numbers: {str(error)[:200]}") from error


def _integers(value: Any, name: str) -> Ints:
    found = _column(value, name, np.float64)
    if not (np.isfinite(found).all() and (found == np.trunc(found)).all()):
        raise WrongResult(f"{name} must be whole numbers")
    if len(found) and (found.min() < -(1 << 31) or found.max() >= 1 << 31):
        raise WrongResult(f"{name} must be numbers of 32 bits")
    return found.astype(np.int64)


def _own_reward(sequence: dict[str, Any]) -> float | None:
    if sequence.get("rewards") is None:
        return None
    found = _column(sequence["rewards"], "rewards of a sequence", np.float64)
    if len(found) != 1:
        raise WrongResult(f"a sequence with {len(found)} rewards, expected one")
    return float(found[0])


def _metrics(told: Any) -> dict[str, float]:
    if not isinstance(told, dict):
        return {}
    numbers = {
        name: float(value)
        for name, value in told.items()
        if isinstance(name, str) and isinstance(value, int | float) and math.isfinite(value)
    }
    return dict(list(numbers.items())[:MOST_METRICS])
