"""Metrics and rollouts of a run as frames of pandas, which is optional."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from typing import TYPE_CHECKING, Any

from astraflow_core.errors import UserError
from astraflow_runtime.launch.results.metrics import MetricsFile
from astraflow_runtime.rollouts.reader import RolloutEntry

if TYPE_CHECKING:
    from pandas import DataFrame

EXTRA = "astraflow-runtime[notebook]"


def optional(module: str, purpose: str) -> Any:
    """A module of the extra ``notebook``; :class:`UserError` names the extra if it is not installed."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if error.name != module:
            raise
        raise UserError(
            f"{purpose} needs {module}, which is not installed here: pip install '{EXTRA}'"
        ) from error


def metrics_frame(metrics: MetricsFile) -> DataFrame:
    """A row for each step of each policy: ``time`` (UTC), ``policy``, ``step``, and a column for each figure of
    ``metrics.jsonl``, NaN where a step has none; ``pass_rate: NAME`` for each source of prompts."""
    pandas = optional("pandas", "metrics_frame()")
    rows = [
        {
            "time": step.time,
            "policy": step.policy,
            "step": step.step,
            **step.figures,
            **{f"pass_rate: {name}": rate for name, rate in step.pass_rates.items()},
        }
        for step in metrics.steps
    ]
    return _frame(pandas, rows, ("time", "policy", "step"))


def evaluations_frame(metrics: MetricsFile) -> DataFrame:
    """A row for each set of each evaluation: ``time`` (UTC), ``set``, ``version: POLICY``, ``avg`` reward over ``n`` prompts, and
    ``pass``, the share that passed."""
    pandas = optional("pandas", "evaluations_frame()")
    rows = [
        {
            "time": record.time,
            "set": name,
            **{f"version: {p}": v for p, v in record.evaluation.versions.items()},
            "avg": found.avg,
            "pass": found.pass_,
            "n": found.n,
        }
        for record in metrics.evaluations
        for name, found in record.evaluation.sets.items()
    ]
    return _frame(pandas, rows, ("time", "set"))


def rollouts_frame(entries: Iterable[RolloutEntry]) -> DataFrame:
    """A row for each stored trajectory or failed attempt, as :class:`RolloutEntry` has them; ``reward`` is the mean over its
    policies, ``reward: POLICY`` that of each."""
    pandas = optional("pandas", "rollouts_frame()")
    rows = [
        {
            "time": entry.time_s,
            "group": entry.group,
            "index": entry.index,
            "prompt": entry.prompt_id,
            "raas": entry.raas,
            "outcome": entry.outcome,
            "reward": entry.reward,
            **{f"reward: {policy}": reward for policy, reward in entry.rewards.items()},
            "tokens": entry.tokens,
            "sampled": entry.sampled,
            "turns": entry.turns,
            "truncated": entry.truncated,
            "version_low": entry.versions[0],
            "version_high": entry.versions[1],
            "step": entry.step,
            "tools": ", ".join(entry.tools),
            "reason": entry.reason,
            "environment": entry.environment,
        }
        for entry in entries
    ]
    return _frame(pandas, rows, ("time", "group", "index", "outcome", "reward"))


def _frame(pandas: Any, rows: list[dict[str, Any]], always: tuple[str, ...]) -> Any:
    """The rows; with the columns ``always`` even if there are none."""
    frame = pandas.DataFrame(rows, columns=None if rows else list(always))
    frame["time"] = pandas.to_datetime(frame["time"], unit="s", utc=True)
    return frame
