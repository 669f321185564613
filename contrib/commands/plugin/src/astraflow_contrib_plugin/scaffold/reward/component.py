"""The reward ``sample_thing``."""

from __future__ import annotations

from itertools import takewhile

from pydantic import Field

from astraflow_core.config.models import ConfigModel
from astraflow_core.errors import WorkflowError
from astraflow_core.types import ComponentContext, TrajectoryView


class SampleThingConfig(ConfigModel):
    """``[reward] use = "sample_thing"``"""

    ignore_case: bool = Field(False, description="Compare without regard to upper and lower case.")


class SampleThing:
    """Characters that a completion and the answer begin with alike, divided by the longer length: 0 to 1."""

    def __init__(self, config: SampleThingConfig, context: ComponentContext) -> None:
        self._ignore_case = config.ignore_case

    async def score(self, view: TrajectoryView) -> float:
        """The score of the last completion."""
        answer, said = view.data.get("answer"), view.text.strip()
        if not isinstance(answer, str) or not answer:
            raise WorkflowError(f"prompt {view.prompt.id!r} has no text in data['answer']")
        if self._ignore_case:
            answer, said = answer.casefold(), said.casefold()
        pairs = zip(answer, said, strict=False)
        alike = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
        return alike / max(len(answer), len(said))
