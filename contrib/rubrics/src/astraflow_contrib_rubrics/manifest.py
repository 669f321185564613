"""What this distribution provides."""

from __future__ import annotations

from astraflow_core.component import Component
from astraflow_core.hookspecs import hookimpl

ASTRAFLOW_API = (1, 0)


@hookimpl
def astraflow_rewards() -> list[Component]:
    """The rewards."""
    return [
        Component(
            name="rubric",
            target="astraflow_contrib_rubrics.rubric:build_rubric",
            config="astraflow_contrib_rubrics.config:RubricConfig",
            summary="the weighted sum of other rewards, each shown by its name",
        ),
        Component(
            name="judge",
            target="astraflow_contrib_rubrics.judge:build_judge",
            config="astraflow_contrib_rubrics.config:JudgeConfig",
            summary="the verdict of a language model, an engine of the run or a server",
        ),
        Component(
            name="format",
            target="astraflow_contrib_rubrics.form:Form",
            config="astraflow_contrib_rubrics.config:FormConfig",
            summary="the text has a form: a pattern, tags in order, JSON with keys, one box",
        ),
        Component(
            name="length_penalty",
            target="astraflow_contrib_rubrics.length:LengthPenalty",
            config="astraflow_contrib_rubrics.config:LengthConfig",
            summary="what length costs: soft overlong punishment, linear or cosine",
        ),
    ]
