"""The keys of the workflow."""

from __future__ import annotations

from pydantic import Field, model_validator

from astraflow_core.config.models import ConfigModel


class SingleTurnConfig(ConfigModel):
    """``[workflow] use = "single_turn"``"""

    policy: str | None = Field(None, description="Policy that answers; default: the only one.")
    chat: bool = Field(
        False, description="Render text prompts as a user's message by the model's chat template."
    )
    system: str = Field("", description="System message put before prompts that have none.")

    @model_validator(mode="after")
    def _system_needs_chat(self) -> SingleTurnConfig:
        if self.system and not self.chat:
            raise ValueError("system needs chat = true: a plain text prompt has no messages")
        return self
