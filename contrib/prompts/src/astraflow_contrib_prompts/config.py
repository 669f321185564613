"""The keys of the prompt sources."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from astraflow_core.config.models import ConfigModel, PositiveInt
from astraflow_core.config.or_none import OrNone


class JsonLinesConfig(ConfigModel):
    """``use = "jsonl"``"""

    path: Path = Field(description="File, one JSON object per line.")
    limit: OrNone[PositiveInt] = Field(
        None, description="Only the first prompts, as many as this; 'none': all."
    )
    prompt_key: str = Field(
        "prompt",
        description="Key of the text or the messages, which become `prompt` in the prompt's data.",
    )
    answer_key: str = Field(
        "answer",
        description="Key of the answer, which becomes `answer` in the prompt's data; '': answers are not needed.",
    )


class DigitsConfig(ConfigModel):
    """``use = "digits"``"""

    digits: Annotated[int, Field(ge=1, le=18)] = Field(5, description="Digits per prompt.")
    operation: Literal["complement", "copy", "reverse", "sort"] = Field(
        "complement", description="What to do with the digits."
    )
    split: Literal["train", "held_out"] = Field(
        "train", description="Nine tenths of all digit strings, or the other tenth."
    )
    size: OrNone[PositiveInt] = Field(None, description="Prompts; 'none': the whole split.")
    seed: Annotated[int, Field(ge=0)] = Field(0, description="Which prompts, and in which order.")
