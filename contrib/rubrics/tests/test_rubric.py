from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from astraflow_contrib_rubrics.config import RubricConfig
from astraflow_contrib_rubrics.rubric import AskingRubric, BlockingRubric, Rubric, build_rubric
from astraflow_core.errors import UserError, WorkflowError
from astraflow_core.types import (
    Completion,
    ComponentContext,
    Prompt,
    RewardReport,
    RunInfo,
    TrajectoryView,
)

CONTEXT = ComponentContext(RunInfo("t", 0, 1, 0, ("p",), Path()), "raas", "", 0, Path())


class Returns:
    """A part that returns what the prompt's data says."""

    def __init__(self, config: Any, context: ComponentContext) -> None:
        pass

    async def score(self, view: TrajectoryView) -> Any:
        value = view.data["give"]
        if isinstance(value, Exception):
            raise value
        return value


class Blocks(Returns):
    def score(self, view: TrajectoryView) -> Any:  # type: ignore[override]
        return 2.0


class Asks(Returns):
    async def score(self, view: TrajectoryView, engines: Mapping[str, Any]) -> Any:  # type: ignore[override]
        return float(len(engines))


@pytest.fixture(autouse=True)
def parts(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys
    import types

    module = types.ModuleType("rubric_parts")
    for part in (Returns, Blocks, Asks):
        setattr(module, part.__name__, part)
    monkeypatch.setitem(sys.modules, "rubric_parts", module)


def built(**parts: dict[str, Any]) -> Any:
    return build_rubric(RubricConfig(parts=parts), CONTEXT)


def part(name: str = "Returns", **keys: Any) -> dict[str, Any]:
    return {"use": f"rubric_parts:{name}", **keys}


def view(give: Any = None) -> TrajectoryView:
    said = tuple(Completion(p, "7", np.zeros(4, np.int32), "stop") for p in ("a", "b"))
    return TrajectoryView(Prompt("q7", {"give": give, "answer": "7"}), said)


def test_the_sum_is_weighted_and_its_parts_are_shown() -> None:
    rubric = built(
        right={"use": "numeric", "weight": 2},
        short={"use": "length_penalty", "max_tokens": 16, "form": "linear", "weight": 0.5},
    )
    assert asyncio.run(rubric.score(view())) == RewardReport(1.75, {"right": 1.0, "short": -0.5})


def test_a_part_may_distinguish_policies_and_report_itself() -> None:
    rubric = built(one=part(), two={"use": "numeric", "weight": -1})
    report = RewardReport({"a": 1, "b": np.float32(0.5)}, {"seen": 3.0})
    found = asyncio.run(rubric.score(view(report)))
    assert found.reward == {"a": 0.0, "b": -0.5}
    assert found.metrics == {"one/seen": 3.0, "one/a": 1.0, "one/b": 0.5, "two": 1.0}


@pytest.mark.parametrize(
    ("give", "message"),
    [
        (math.nan, "part 'bad' returned nan"), ({"a": math.inf}, "part 'bad' returned inf"),
        ("1", "part 'bad' returned str; expected a number"), (None, "part 'bad' returned NoneType"),
        (np.ones(2), "part 'bad' returned ndarray; expected a number"), (10**400, "part 'bad' returned inf"),
        (KeyError("x"), "part 'bad' raised on prompt 'q7': KeyError: 'x'"),
        (WorkflowError("no answer"), "part 'bad': no answer"),
    ],
)  # fmt: skip
def test_a_part_that_fails_is_named(give: Any, message: str) -> None:
    with pytest.raises(WorkflowError, match=message):
        asyncio.run(built(good={"use": "numeric"}, bad=part()).score(view(give)))


def test_where_it_runs_is_decided_by_its_parts() -> None:
    assert type(built(a=part())) is Rubric
    blocking = built(a=part(), b=part("Blocks"))
    assert isinstance(blocking, BlockingRubric)
    assert blocking.score(view(1.0)).reward == 3.0
    asking = built(a=part(), b=part("Asks"))
    assert isinstance(asking, AskingRubric)
    assert asyncio.run(asking.score(view(1.0), {"x": None})).reward == 2.0  # type: ignore[dict-item]
    with pytest.raises(UserError, match=r"part 'b' asks an engine.*part 'a' may block.*a url"):
        built(a=part("Blocks"), b=part("Asks"))


def test_mistakes_name_the_part() -> None:
    with pytest.raises(UserError, match=r"reward 'rubric': part 'one': .*numerik"):
        built(one={"use": "numerik"})
    with pytest.raises(UserError, match=r"(?s)part 'one': .*each_polici"):
        built(one={"use": "numeric", "each_polici": True})
    for wrong in ({}, {"use": "numeric", "weight": "2"}, {"use": "numeric", "weight": math.nan}):
        with pytest.raises(ValidationError):
            RubricConfig(parts={"one": wrong})
    with pytest.raises(ValidationError):
        RubricConfig(parts={})
