"""Reward ``rubric``: the weighted sum of other rewards."""

from __future__ import annotations

import asyncio
import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from astraflow_contrib_rubrics.config import RubricConfig
from astraflow_core.component import Kind
from astraflow_core.config.models import PartTable
from astraflow_core.errors import UserError, WorkflowError
from astraflow_core.nested import build_component
from astraflow_core.protocols.workflow import PolicyEngine
from astraflow_core.types import ComponentContext, RewardReport, TrajectoryView

Engines = Mapping[str, PolicyEngine]


@dataclass(frozen=True, slots=True)
class RubricPart:
    """A reward of the sum. ``waits``: its score is async; ``asks``: it is given the engines."""

    name: str
    weight: float
    score: Callable[..., Any]
    waits: bool
    asks: bool

    @classmethod
    def of(cls, name: str, table: PartTable, context: ComponentContext) -> RubricPart:
        """The reward that a table names; a mistake in it is named with the part."""
        try:
            reward = build_component(Kind.REWARD, {"use": table.use, **table.options}, context)
        except UserError as error:
            raise UserError(f"reward 'rubric': part {name!r}: {error}") from error
        score = getattr(reward, "score", reward)
        if not callable(score):
            raise UserError(f"reward 'rubric': part {name!r} has no score(view)")
        return cls(
            name,
            table.weight,
            score,
            inspect.iscoroutinefunction(score)
            or inspect.iscoroutinefunction(getattr(score, "__call__", None)),  # noqa: B004 - an instance
            "engines" in inspect.signature(score).parameters,
        )


class Rubric:
    """Asks all parts at once and adds what they give. The metrics have each part by its name, before it is weighted,
    and below that name what the part reports itself. A part that fails, or returns something that is not a finite number, fails the
    episode by its name."""

    def __init__(self, parts: list[RubricPart]) -> None:
        self._parts = parts

    async def score(self, view: TrajectoryView) -> RewardReport:
        """The sum, for all policies or for each."""
        return await self.total(view, {})

    async def total(self, view: TrajectoryView, engines: Engines) -> RewardReport:
        """The same; ``engines`` are for the parts that ask them."""
        async with asyncio.TaskGroup() as group:
            asked = [group.create_task(_kept(_scored(part, view, engines))) for part in self._parts]
        metrics: dict[str, float] = {}
        totals: dict[str, float] = {}
        alike = 0.0
        for part, task in zip(self._parts, asked, strict=True):
            found = task.result()
            if isinstance(found, Exception):
                raise found
            value, reported = found
            metrics |= {f"{part.name}/{name}": each for name, each in reported.items()}
            if isinstance(value, float):
                metrics[part.name] = value
                alike += part.weight * value
                continue
            for policy, each in value.items():
                metrics[f"{part.name}/{policy}"] = each
                totals[policy] = totals.get(policy, 0.0) + part.weight * each
        if not totals:
            return RewardReport(alike, metrics)
        return RewardReport({policy: total + alike for policy, total in totals.items()}, metrics)


class AskingRubric(Rubric):
    """A rubric of which a part asks the engines."""

    async def score(self, view: TrajectoryView, engines: Engines) -> RewardReport:  # type: ignore[override]
        """The sum, for all policies or for each."""
        return await self.total(view, engines)


class BlockingRubric:
    """A rubric of which a part may block: it runs in worker processes as a whole."""

    def __init__(self, parts: list[RubricPart]) -> None:
        self._rubric = Rubric(parts)

    def score(self, view: TrajectoryView) -> RewardReport:
        """The sum, for all policies or for each."""
        return asyncio.run(self._rubric.score(view))


def build_rubric(config: RubricConfig, context: ComponentContext) -> Rubric | BlockingRubric:
    """The rubric, on the event loop unless a part may block. :class:`UserError` if a part cannot be built, or if one asks
    the engines while another may block."""
    parts = [
        RubricPart.of(name, PartTable.model_validate(table), context)
        for name, table in config.parts.items()
    ]
    asking = [part.name for part in parts if part.asks]
    blocking = [part.name for part in parts if not part.waits]
    if asking and blocking:
        raise UserError(
            f"reward 'rubric': part {asking[0]!r} asks an engine, which only the event loop reaches, and part "
            f"{blocking[0]!r} may block and so needs a worker process; give the judge a url in place of an engine, or "
            "leave one of them out"
        )
    if blocking:
        return BlockingRubric(parts)
    return AskingRubric(parts) if asking else Rubric(parts)


Scored = tuple[float | dict[str, float], dict[str, float]]


async def _kept(scored: Any) -> Scored | Exception:
    """The result of a part, or its exception: the first part that failed is reported, not an exception group."""
    try:
        given: Scored = await scored
    except Exception as error:  # noqa: BLE001 - raised again by the sum
        return error
    return given


async def _scored(part: RubricPart, view: TrajectoryView, engines: Engines) -> Scored:
    try:
        value = part.score(view, engines=engines) if part.asks else part.score(view)
        if inspect.isawaitable(value):
            value = await value
    except WorkflowError as error:
        raise WorkflowError(f"part {part.name!r}: {error}") from error
    except Exception as error:
        raise WorkflowError(
            f"part {part.name!r} raised on prompt {view.prompt.id!r}: {type(error).__name__}: {error}"
        ) from error
    report = value if isinstance(value, RewardReport) else RewardReport(value)
    if isinstance(report.reward, dict):
        each = {str(policy): _finite(part, one) for policy, one in report.reward.items()}
        return each, report.metrics
    return _finite(part, report.reward), report.metrics


def _finite(part: RubricPart, value: Any) -> float:
    problem = f"part {part.name!r} returned {type(value).__name__}; expected a number or a dict of policy to number"
    if not hasattr(value, "__float__"):
        raise WorkflowError(problem)
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    except Exception as error:
        raise WorkflowError(f"{problem} ({type(error).__name__}: {error})") from error
    if not math.isfinite(number):
        raise WorkflowError(f"part {part.name!r} returned {number}; a reward must be finite")
    return number
