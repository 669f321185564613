"""The workflow ``sample_thing``."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import Field

from astraflow_core.config.models import ConfigModel
from astraflow_core.errors import WorkflowError
from astraflow_core.protocols.workflow import PolicyEngine
from astraflow_core.types import ComponentContext, Prompt, Trajectory


class SampleThingConfig(ConfigModel):
    """``[workflow] use = "sample_thing"``"""

    instruction: str = Field("Answer:", description="Text before each prompt.")


class SampleThing:
    """One completion of the first policy, after an instruction and the prompt."""

    def __init__(self, config: SampleThingConfig, context: ComponentContext) -> None:
        self._instruction, self._policy = config.instruction, context.run.policies[0]

    async def run_episode(
        self, engines: Mapping[str, PolicyEngine], prompt: Prompt
    ) -> Trajectory | None:
        """Play one episode."""
        text = prompt.data.get("prompt")
        if not isinstance(text, str):
            raise WorkflowError(f"prompt {prompt.id!r} has no text in data['prompt']")
        engine = engines[self._policy]
        asked = engine.render(f"{self._instruction} {text}")
        result = await engine.generate(asked)
        return Trajectory((engine.sequence(asked, result),), (engine.completion(result),))
